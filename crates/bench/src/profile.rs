//! `bench profile`: one workload against one server, long enough for a profiler to look at it.
//!
//! With `--perf FILE` the server is recorded by `perf record` from the start of the workload to its
//! end; otherwise its process id is printed, to attach whatever one likes.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::compare::Side;
use crate::options::{ProfileOptions, checked_records, pace};
use crate::place::{self, Place};
use crate::servers::Server;
use crate::table;
use crate::workload::Case;

pub fn run(options: &ProfileOptions) -> Result<()> {
    let records = checked_records(options.records)?;
    let pace = pace(options.seconds)?;
    place::raise_open_files();
    let place = Place::new(&options.servers)?;
    let product = options.target;
    let binaries = options.servers.binaries();
    let server = Server::start(product, product.name(), &binaries, place.path())?;
    let side = Side::load(product.name().to_owned(), server, records)?;
    let case = Case {
        workload: options.workload,
        durability: (!options.workload.durabilities().is_empty()).then_some(options.durability),
        connections: options.connections,
    };
    eprintln!(
        "{case}, {} connections, against process {} on port {}",
        case.connections,
        side.server.pid(),
        side.server.port
    );
    let recorder = match &options.perf {
        Some(file) => Some(record(side.server.pid(), file)?),
        None => None,
    };
    let measured = side.measure(case, options.sessions, pace, 1)?;
    if let Some(recorder) = recorder {
        finish(recorder)?;
    }
    let figures = measured.figures();
    println!(
        "{} per second, p50 {}, p99 {}, server CPU {} µs, client CPU {} µs, resident {}",
        table::number(figures.throughput),
        table::time(figures.p50_us),
        table::time(figures.p99_us),
        table::number(figures.server_cpu_us),
        table::number(figures.client_cpu_us),
        table::megabytes(side.server.resident_bytes()?),
    );
    side.server.stop()?;
    place.clear()
}

fn record(pid: u32, file: &Path) -> Result<Child> {
    Command::new("perf")
        .args(["record", "-F", "997", "-g", "-p", &pid.to_string(), "-o"])
        .arg(file)
        .stdin(Stdio::null())
        .spawn()
        .context("starting perf")
}

/// perf writes its file when it is interrupted.
fn finish(mut recorder: Child) -> Result<()> {
    let pid = i32::try_from(recorder.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.context("an odd process id")?, Signal::INT).context("interrupting perf")?;
    recorder.wait()?;
    Ok(())
}
