//! The load generator: TernDB and the real `mongod` side by side on one machine.
//!
//! ```text
//!  cargo run --release -p bench -- compare [quick|standard|full]   figures and ratios of every workload
//!  cargo run --release -p bench -- profile --workload c            one workload, for a profiler
//!  cargo run --release -p bench -- idle --connections 10000        memory of idle connections
//!  cargo run --release -p bench -- verify --records 1000000        speed of `terndb verify`
//!  cargo run --release -p bench -- moves                           moves of ranges between shards
//!  cargo run --release -p bench -- scans                           scans through a router, while ranges move
//!  cargo run --release -p bench -- chunks                          routing of a million chunks
//!  cargo run --release -p bench -- help compare                    all options
//! ```
//!
//! How a comparison is kept fair and honest:
//! - Equal terms: 1 GiB of cache, the same disk, the same write concern in every command, `mongod` as a
//!   replica set of one member. Servers take turns (A B A B …), and the one that waits is stopped.
//! - A lean client: blocking sockets, prebuilt commands patched in place, replies checked but not
//!   decoded. Client and server share the cores, so the client's CPU is printed too.
//! - Every reply is checked (`ok`, `n`, the document asked for, known sums). One error ends the run.
//! - Server CPU comes from the kernel's nanosecond accounting over the measured stretch. It is the
//!   figure to trust on a small or busy machine; throughput and latency depend on what else runs.
//! - Figures are medians over rounds with the smallest and largest value. `--same mongod` measures a
//!   server against itself: how far its ratios are from 1 is the noise.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | the command line and its presets |
//! | `place` | the servers' directory, the machine |
//! | `servers`, `process` | start and stop; CPU, memory and disk as the kernel sees them |
//! | `dataset`, `zipfian` | the documents, and which one a request asks for |
//! | `workload` | what is measured |
//! | `command`, `reply`, `connection`, `operations` | requests patched in place, replies checked |
//! | `loading`, `driver` | filling a server; one measurement |
//! | `statistics`, `report`, `table` | figures and how they are printed |
//! | `compare`, `profile`, `idle`, `verify`, `moves`, `scans`, `chunks` | the commands |
//! | `ranges` | the collection of moves and scans |
//!
//! Left out: several machines, open-loop (fixed rate) load except beside moves, TLS and compression.

mod chunks;
mod command;
mod compare;
mod connection;
mod dataset;
mod driver;
mod idle;
mod loading;
mod moves;
mod operations;
mod options;
mod place;
mod process;
mod profile;
mod ranges;
mod reply;
mod report;
mod scans;
mod servers;
mod statistics;
mod table;
mod verify;
mod workload;
mod zipfian;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Command, Options};

fn main() -> ExitCode {
    let result = match Options::parse().command {
        Command::Compare(options) => compare::run(&options),
        Command::Profile(options) => profile::run(&options),
        Command::Idle(options) => idle::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Moves(options) => moves::run(&options),
        Command::Scans(options) => scans::run(&options),
        Command::Chunks(options) => chunks::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nbench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
