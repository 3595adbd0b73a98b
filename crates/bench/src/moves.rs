//! `bench moves`: what moving ranges costs, and what clients notice of it.
//!
//! ```text
//!   rate       engine alone │ mongod ─find─► client ─insertMany─► mongod │ shard0 ─moveRange─► shard1
//!              then the donor removes what it gave away: time and CPU; in every other round it
//!              keeps a small range, in the others nothing is left there
//!   latency    reads and updates at a fixed rate: [ without a move │ beside a move ] × rounds
//!   critical   a small range to and fro, while its documents are updated: how long writes waited
//! ```
//!
//! The cluster is a router, a config server and two shards of one member, a process each. The copy
//! between `mongod`s takes turns with the moves, and each stands still while the other is measured.
//! CPU counts until the servers are quiet again, so that flushes and merges that a copy leaves behind
//! belong to it; rates do not wait for that. After every round the documents are counted.
//!
//! Left out: several moves at once, members that lag, a network.

mod clients;
mod copying;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::moves::clients::{Clients, Demand, Served};
use crate::moves::copying::{Copied, copy};
use crate::options::{MovesOptions, MovesPart};
use crate::place::{self, Place};
use crate::ranges::{self, Cluster, Cpu, Moved};
use crate::report::with_range;
use crate::servers::{Product, Server, Shape};
use crate::statistics::{Spread, empty_latencies, record_latency};
use crate::table::{Table, number, time};

/// A range that is moved many times.
const SMALL_RECORDS: u64 = 2_000;
const SMALL_RANGES: u64 = 4;
/// How long clients are watched without a move, within bounds that a move takes.
const WITHOUT_MIN: Duration = Duration::from_secs(3);
const WITHOUT_MAX: Duration = Duration::from_secs(15);
/// As long as nothing is to be removed by itself.
const NEVER_SECONDS: i32 = 1_000_000;
/// What stays where it is while all the others go to and fro.
const KEPT_RECORDS: u64 = 1_000;
/// As long as history takes to be gone once its window is zero: the servers look every second.
const HISTORY_PASSES: Duration = Duration::from_secs(4);
const HISTORY_WINDOW_SECONDS: i32 = 300;
/// A move begins slowly where clients were a moment ago, and the first second of it would be measured: longer than that
/// moment, which is five seconds.
const NOBODY_FOR: Duration = Duration::from_secs(6);
/// A part of the documents is enough to find the best number at once.
const TRIED_SHARE: u64 = 5;

/// What one move took in all.
struct MoveRound {
    moved: Moved,
    /// Of all processes of the cluster.
    cpu: Duration,
    removed: Duration,
    /// Of the donor.
    removal_cpu: Duration,
    /// Whether the donor owns other ranges of the collection.
    keeps_others: bool,
}

pub fn run(options: &MovesOptions) -> Result<()> {
    place::raise_open_files();
    place::warn_if_busy();
    let place = Place::new(&options.servers)?;
    let records = options.megabytes * 1_000_000 / ranges::document_bytes()?;
    ensure!(
        records > 2 * SMALL_RANGES * SMALL_RECORDS,
        "--megabytes is too small to move anything"
    );
    let has = |part| {
        let parts = options.parts.as_ref();
        parts.is_none_or(|parts| parts.contains(&part))
    };
    println!("{}", place::machine());
    let binaries = options.servers.binaries();
    let shape = Shape {
        shards: 2,
        apart: true,
    };
    let server = Server::start_cluster("cluster", &binaries, place.path(), shape)?;
    eprintln!("cluster: loading {records} documents");
    ranges::load(&server, records)?;
    ranges::wait_until_quiet(&server)?;
    let mut cluster = Cluster::new(&server)?;
    if has(MovesPart::Rate) {
        rates(options, &mut cluster, records, &place)?;
    }
    if has(MovesPart::Latency) {
        latencies(options, &mut cluster, records)?;
    }
    if has(MovesPart::Critical) {
        critical_sections(options, &mut cluster, records)?;
    }
    drop(cluster);
    server.stop()?;
    place.clear()
}

// Rates.

fn rates(
    options: &MovesOptions,
    cluster: &mut Cluster<'_>,
    records: u64,
    place: &Place,
) -> Result<()> {
    let megabytes = (records * ranges::document_bytes()?) as f64 / 1e6;
    if let Some(line) = engine_load(options, records)? {
        println!("the engine alone: {line}");
    }
    let mut copies: Vec<Copied> = Vec::new();
    let mut moves: Vec<MoveRound> = Vec::new();
    let mut mongods = match options.alone {
        true => None,
        false => Some(Mongods::start(options, records, place)?),
    };
    cluster.split(records - KEPT_RECORDS)?;
    for round in 0..options.rounds {
        if let Some(mongods) = &mut mongods {
            let copied = mongods.copy(records, round)?;
            eprintln!("copied in {}", seconds(copied.elapsed));
            copies.push(copied);
        }
        let moved = move_everything(cluster, records)?;
        eprintln!(
            "moved in {} (copying {}, writes blocked {}), removed in {}",
            seconds(moved.moved.elapsed),
            seconds(moved.moved.copied),
            seconds(moved.moved.critical),
            seconds(moved.removed),
        );
        moves.push(moved);
    }
    if let Some(mongods) = mongods {
        mongods.stop()?;
    }
    let mut table = Table::new(1, &["", "MB/s", "CPU µs per document", "seconds"]);
    let mut push = |name: &str, times: Vec<(Duration, Duration)>| {
        let rate = times
            .iter()
            .map(|(elapsed, _)| megabytes / elapsed.as_secs_f64());
        if times.is_empty() {
            return;
        }
        let cpu = times
            .iter()
            .map(|(_, cpu)| cpu.as_secs_f64() * 1e6 / records as f64);
        let elapsed = times.iter().map(|(elapsed, _)| elapsed.as_secs_f64());
        table.push(vec![
            name.to_owned(),
            with_range(Spread::of(rate)),
            with_range(Spread::of(cpu)),
            with_range(Spread::of(elapsed)),
        ]);
    };
    let copied = copies.iter().map(|copied| (copied.elapsed, copied.cpu));
    push("mongod to mongod", copied.collect());
    let moved = moves.iter().map(|round| (round.moved.elapsed, round.cpu));
    push("a move", moved.collect());
    for (name, keeps_others) in [
        ("removal on a donor that keeps others", true),
        ("removal of the last range", false),
    ] {
        let removed = moves
            .iter()
            .filter(|round| round.keeps_others == keeps_others)
            .map(|round| (round.removed, round.removal_cpu));
        push(name, removed.collect());
    }
    print!("{}", table.text());
    Ok(())
}

/// The last line that the engine's own load prints.
fn engine_load(options: &MovesOptions, records: u64) -> Result<Option<String>> {
    let program = match &options.engine {
        Some(program) => program.clone(),
        None => beside("examples/load")?,
    };
    if !program.is_file() {
        eprintln!(
            "note: there is no {}: build it with `cargo build --release -p storage --example load`",
            program.display()
        );
        return Ok(None);
    }
    let output = Command::new(&program)
        .arg(format!("documents={records}"))
        .arg(format!("bytes={}", ranges::document_bytes()?))
        .args([
            "indexes=2",
            "ordered=1",
            "entry_documents=2000",
            "moved=1",
            "only_load=1",
        ])
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().map(str::to_owned))
}

fn beside(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(name))
}

/// Two servers, the first with the documents.
struct Mongods {
    source: Server,
    destination: Server,
    at_once: u64,
}

impl Mongods {
    fn start(options: &MovesOptions, records: u64, place: &Place) -> Result<Mongods> {
        let binaries = options.servers.binaries();
        let start = |label: &str| Server::start(Product::Mongod, label, &binaries, place.path());
        let (source, destination) = (start("source")?, start("destination")?);
        eprintln!("mongod: loading {records} documents");
        ranges::load(&source, records)?;
        let mut tried = Vec::new();
        for &at_once in &options.batches {
            let part = records / TRIED_SHARE;
            let name = format!("tried_{at_once}");
            let copied = copy(&source, &destination, &name, part, at_once)?;
            eprintln!("{at_once} at once: {}", seconds(copied.elapsed));
            tried.push((copied.elapsed, at_once));
        }
        let (_, at_once) = tried.into_iter().min().context("--batches is empty")?;
        println!("mongod to mongod: {at_once} documents at once");
        let mut mongods = Mongods {
            source,
            destination,
            at_once,
        };
        mongods.source.pause()?;
        mongods.destination.pause()?;
        Ok(mongods)
    }

    fn copy(&mut self, records: u64, round: usize) -> Result<Copied> {
        self.source.resume()?;
        self.destination.resume()?;
        let before = (Cpu::of(&self.source)?, Cpu::of(&self.destination)?);
        let name = format!("copy_{round}");
        let mut copied = copy(
            &self.source,
            &self.destination,
            &name,
            records,
            self.at_once,
        )?;
        ranges::wait_until_quiet(&self.destination)?;
        copied.cpu =
            Cpu::of(&self.source)?.since(&before.0) + Cpu::of(&self.destination)?.since(&before.1);
        self.source.pause()?;
        self.destination.pause()?;
        Ok(copied)
    }

    fn stop(self) -> Result<()> {
        self.source.stop()?;
        self.destination.stop()
    }
}

/// Nearly everything goes to the other shard, then, when no read can ask for it, the donor removes it.
fn move_everything(cluster: &mut Cluster<'_>, records: u64) -> Result<MoveRound> {
    let donor = cluster.owner(0)?;
    for shard in [0, 1] {
        cluster.set_parameter(shard, "orphanCleanupDelaySecs", NEVER_SECONDS)?;
        cluster.set_parameter(shard, "rangeDeleterBatchDelayMS", 0)?;
    }
    std::thread::sleep(NOBODY_FOR);
    let before = Cpu::of(cluster.server)?;
    let moved = cluster.move_range(None, 1 - donor)?;
    ranges::wait_until_quiet(cluster.server)?;
    let cpu = Cpu::of(cluster.server)?.since(&before);
    ensure!(
        moved.documents == records - KEPT_RECORDS,
        "a move of {} documents copied {}",
        records - KEPT_RECORDS,
        moved.documents
    );
    let keeps_others = cluster.owner(records - 1)? == donor;
    cluster.set_parameter(donor, "minSnapshotHistoryWindowInSeconds", 0)?;
    std::thread::sleep(HISTORY_PASSES);
    ranges::wait_until_quiet(cluster.server)?;
    let before = Cpu::of(cluster.server)?;
    let begin = Instant::now();
    cluster.set_parameter(donor, "orphanCleanupDelaySecs", 0)?;
    cluster.await_deletions(donor)?;
    let removed = begin.elapsed();
    ranges::wait_until_quiet(cluster.server)?;
    let removal_cpu = Cpu::of(cluster.server)?.since(&before);
    let window = HISTORY_WINDOW_SECONDS;
    cluster.set_parameter(donor, "minSnapshotHistoryWindowInSeconds", window)?;
    cluster.check_count(records)?;
    Ok(MoveRound {
        moved,
        cpu,
        removed,
        removal_cpu,
        keeps_others,
    })
}

// What clients notice.

fn latencies(options: &MovesOptions, cluster: &mut Cluster<'_>, records: u64) -> Result<()> {
    let demand = Demand {
        connections: options.connections,
        reads_per_second: options.rate,
        updates_per_second: options.rate,
        records,
    };
    let mut clients = Clients::start(cluster.server, demand)?;
    clients.observe(WITHOUT_MIN)?;
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    let mut took = WITHOUT_MIN;
    for round in 0..options.rounds {
        without.push(clients.observe(took.clamp(WITHOUT_MIN, WITHOUT_MAX))?);
        let donor = cluster.owner(0)?;
        for shard in [0, 1] {
            cluster.set_parameter(shard, "orphanCleanupDelaySecs", NEVER_SECONDS)?;
        }
        clients.take()?;
        let moved = cluster.move_range(None, 1 - donor)?;
        beside.push(clients.take()?);
        took = moved.elapsed;
        eprintln!(
            "round {}: moved in {}, writes blocked {}",
            round + 1,
            seconds(moved.elapsed),
            seconds(moved.critical)
        );
        cluster.set_parameter(donor, "orphanCleanupDelaySecs", 0)?;
        cluster.await_deletions(donor)?;
        ranges::wait_until_quiet(cluster.server)?;
    }
    clients.stop()?;
    cluster.check_count(records)?;
    let mut table = Table::new(2, &["", "", "per second", "p50", "p99", "largest"]);
    type Kind = (&'static str, fn(&Served) -> &hdrhistogram::Histogram<u64>);
    let kinds: [Kind; 2] = [
        ("read", |served| &served.reads),
        ("update", |served| &served.updates),
    ];
    for (name, of) in kinds {
        for (when, rounds) in [("without", &without), ("beside a move", &beside)] {
            let rate = rounds
                .iter()
                .map(|served| of(served).len() as f64 / served.elapsed.as_secs_f64());
            let quantile = |quantile: f64| {
                let values = rounds
                    .iter()
                    .map(|served| of(served).value_at_quantile(quantile) as f64 / 1e3);
                with_range(Spread::of(values))
            };
            table.push(vec![
                name.to_owned(),
                when.to_owned(),
                with_range(Spread::of(rate)),
                quantile(0.5) + " ms",
                quantile(0.99) + " ms",
                quantile(1.0) + " ms",
            ]);
        }
        let ratios = without.iter().zip(&beside).map(|(without, beside)| {
            of(beside).value_at_quantile(0.99) as f64 / of(without).value_at_quantile(0.99) as f64
        });
        println!("{name}: p99 ×{}", with_range(Spread::of(ratios)));
    }
    print!("{}", table.text());
    Ok(())
}

// How long writes wait.

fn critical_sections(
    options: &MovesOptions,
    cluster: &mut Cluster<'_>,
    records: u64,
) -> Result<()> {
    for part in 1..=SMALL_RANGES {
        cluster.split(part * SMALL_RECORDS)?;
    }
    for shard in [0, 1] {
        cluster.set_parameter(shard, "orphanCleanupDelaySecs", 0)?;
        cluster.set_parameter(shard, "rangeDeleterBatchDelayMS", 0)?;
    }
    let demand = Demand {
        connections: options.update_connections,
        reads_per_second: 0,
        updates_per_second: options.updates,
        records: SMALL_RANGES * SMALL_RECORDS,
    };
    let mut clients = Clients::start(cluster.server, demand)?;
    clients.observe(WITHOUT_MIN)?;
    let without = clients.observe(WITHOUT_MIN)?;
    let (mut critical, mut whole) = (empty_latencies(), empty_latencies());
    let (mut ready, mut reads, mut decided) =
        (empty_latencies(), empty_latencies(), empty_latencies());
    for turn in 0..options.small_moves {
        let part = turn as u64 % SMALL_RANGES;
        let donor = cluster.owner(part * SMALL_RECORDS)?;
        let min = (part > 0).then_some(part * SMALL_RECORDS);
        let moved = cluster.move_range(min, 1 - donor)?;
        record_latency(&mut critical, moved.critical);
        record_latency(&mut ready, moved.ready);
        record_latency(&mut reads, moved.reads_blocked);
        record_latency(&mut decided, moved.decided);
        record_latency(&mut whole, moved.elapsed);
    }
    let served = clients.take()?;
    clients.stop()?;
    cluster.check_count(records)?;
    let mut table = Table::new(1, &["", "p50", "p99", "largest"]);
    for (name, times) in [
        ("writes blocked", &critical),
        ("  until the recipient is ready", &ready),
        ("  until reads are blocked too", &reads),
        ("  until it is decided", &decided),
        ("the whole move", &whole),
        ("updates without moves", &without.updates),
        ("  from when they were sent", &without.updates_sent),
        ("updates", &served.updates),
        ("  from when they were sent", &served.updates_sent),
    ] {
        let quantile = |quantile: f64| time(times.value_at_quantile(quantile) as f64);
        table.push(vec![
            name.to_owned(),
            quantile(0.5),
            quantile(0.99),
            quantile(1.0),
        ]);
    }
    println!(
        "{} moves of {SMALL_RECORDS} documents under {} updates each second",
        options.small_moves,
        number(served.updates.len() as f64 / served.elapsed.as_secs_f64())
    );
    print!("{}", table.text());
    Ok(())
}

fn seconds(duration: Duration) -> String {
    time(duration.as_secs_f64() * 1e6)
}
