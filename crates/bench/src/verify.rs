//! `bench verify`: how fast `terndb verify` compares two servers, and whose CPU that takes.
//!
//! Two servers get the same documents of about 1 kB, once with `_id`s in the order of insertion and
//! once in a random one, and the verifier compares them, each way of reading in turn. Its CPU is
//! read when it has ended, user and kernel apart; the kernel's share is mostly reading from sockets. The
//! servers' CPU is the difference over the run, with connections' threads that ended in it. A way that the servers cannot do is left out.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use fastrand::Rng;

use crate::options::VerifyOptions;
use crate::place::{self, Place};
use crate::process::{self, TotalCpu};
use crate::servers::Server;
use crate::statistics::Spread;
use crate::table::{Table, megabytes, number};

const DATABASE: &str = "bench";
const DOCUMENTS_AT_ONCE: u64 = 1000;
const COULD_NOT_TELL: i32 = 2;
const POLL: Duration = Duration::from_millis(20);

/// Collections by the order of their `_id`s.
const COLLECTIONS: [(&str, &str); 2] = [("ascending", "in order"), ("shuffled", "at random")];
const WAYS: [(&str, &[&str]); 3] = [
    ("_id", &[]),
    ("natural", &["--partition-by", "natural"]),
    ("hashes", &["--hash"]),
];

/// What one verification took.
struct Run {
    documents: f64,
    bytes: f64,
    seconds: f64,
    user: Duration,
    system: Duration,
    source: Duration,
    destination: Duration,
    peak_bytes: u64,
}

pub fn run(options: &VerifyOptions) -> Result<()> {
    place::warn_if_busy();
    let place = Place::new(&options.servers)?;
    let binaries = options.servers.binaries();
    let start = |label: &str| Server::start(options.target, label, &binaries, place.path());
    let (source, destination) = (start("source")?, start("destination")?);
    for server in [&source, &destination] {
        for (collection, _) in COLLECTIONS {
            load(server, collection, options.records)?;
        }
    }
    let mut table = Table::new(
        2,
        &[
            "read by",
            "_ids",
            "documents/s",
            "MB/s a side",
            "verifier µs",
            "of it own",
            "source µs",
            "destination µs",
            "memory at most",
        ],
    );
    let program = binaries.terndb()?;
    for (way, arguments) in WAYS {
        for (collection, order) in COLLECTIONS {
            let mut runs = Vec::new();
            for _ in 0..options.rounds.max(1) {
                let servers = (&source, &destination);
                runs.extend(verify(
                    &program,
                    servers,
                    collection,
                    arguments,
                    place.path(),
                )?);
            }
            if runs.is_empty() {
                eprintln!("{way}: the servers cannot do it");
                break;
            }
            table.push(row(way, order, &runs));
        }
    }
    println!("{}", place::machine());
    print!("{}", table.text());
    source.stop()?;
    destination.stop()?;
    place.clear()
}

fn row(way: &str, order: &str, runs: &[Run]) -> Vec<String> {
    let median = |value: &dyn Fn(&Run) -> f64| {
        let spread = Spread::of(runs.iter().map(value));
        number(spread.map_or(f64::NAN, |spread| spread.median))
    };
    let micros = |time: Duration, run: &Run| time.as_secs_f64() * 1e6 / run.documents;
    vec![
        way.to_owned(),
        order.to_owned(),
        median(&|run| run.documents / run.seconds),
        median(&|run| run.bytes / run.seconds / 1e6),
        median(&|run| micros(run.user + run.system, run)),
        median(&|run| micros(run.user, run)),
        median(&|run| micros(run.source, run)),
        median(&|run| micros(run.destination, run)),
        megabytes(runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0)),
    ]
}

/// The same documents wherever it is called with the same name.
fn load(server: &Server, collection: &str, records: u64) -> Result<()> {
    let mut connection = server.connect()?;
    let mut random = Rng::with_seed(17);
    let mut first = 0;
    while first < records {
        let numbers = first..(first + DOCUMENTS_AT_ONCE).min(records);
        let documents: Vec<Document> = numbers
            .map(|number| document(collection, number, &mut random))
            .collect();
        let count = documents.len();
        let reply = connection.run(&doc! {
            "insert": collection, "documents": documents, "ordered": false,
            "writeConcern": {"w": 1}, "$db": DATABASE,
        })?;
        ensure!(
            reply.get_i32("n").is_ok_and(|n| n as usize == count),
            "loading {collection}: {reply}"
        );
        first += DOCUMENTS_AT_ONCE;
    }
    Ok(())
}

fn document(collection: &str, number: u64, random: &mut Rng) -> Document {
    let key = match collection {
        "shuffled" => random.u64(..),
        _ => number,
    };
    let mut document = doc! {"_id": format!("{key:020}")};
    for field in 0..10 {
        let text: String = (0..85).map(|_| random.alphanumeric()).collect();
        document.insert(format!("field{field}"), text);
    }
    document
}

/// One verification; none if the servers cannot do it this way.
fn verify(
    program: &Path,
    (source, destination): (&Server, &Server),
    collection: &str,
    arguments: &[&str],
    place: &Path,
) -> Result<Option<Run>> {
    let report = place.join("report.json");
    let address = |server: &Server| format!("mongodb://127.0.0.1:{}", server.port);
    let spent = |server: &Server| Ok::<Duration, anyhow::Error>(TotalCpu::of(server.pid())?.sum());
    let (source_before, destination_before) = (spent(source)?, spent(destination)?);
    let mut child = Command::new(program)
        .arg("verify")
        .args(["--from", &address(source), "--to", &address(destination)])
        .args(["--include", &format!("{DATABASE}.{collection}")])
        .args(["--writes-off", "--quiet", "--restart"])
        .arg("--state")
        .arg(place.join("state"))
        .arg("--report")
        .arg(&report)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    let mut peak_bytes = 0;
    let cpu = loop {
        // It is read before the process is waited for, while the kernel still knows it.
        if let Some(cpu) = process::cpu_if_ended(child.id())? {
            break cpu;
        }
        peak_bytes = process::peak_bytes(child.id()).unwrap_or(peak_bytes);
        std::thread::sleep(POLL);
    };
    let status = child.wait()?;
    let mut errors = String::new();
    if let Some(mut from) = child.stderr.take() {
        from.read_to_string(&mut errors)?;
    }
    match status.code() {
        Some(0) => {}
        Some(COULD_NOT_TELL) if errors.contains("--hash") => return Ok(None),
        _ => bail!("terndb verify ended with {status}: {errors}"),
    }
    let text = std::fs::read_to_string(&report)?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let figure = |value: &serde_json::Value| value.as_f64().context("a figure in the report");
    Ok(Some(Run {
        documents: figure(&report["totals"]["source_documents"])?,
        bytes: figure(&report["totals"]["source_bytes"])?,
        seconds: figure(&report["seconds"])?,
        user: cpu.user,
        system: cpu.system,
        source: spent(source)? - source_before,
        destination: spent(destination)? - destination_before,
        peak_bytes,
    }))
}
