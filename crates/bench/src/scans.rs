//! `bench scans`: the whole of a sharded collection through a router, at rest and while ranges move.
//!
//! ```text
//!   at rest      mongod │ shards read directly, one after the other │ through the router
//!   under moves  through the router, while a range after the other goes on to the next shard
//!                (both with each role a process of its own, and with all roles in one: `terndb up --shards`)
//!   positions    how large a resume token is; what a batch costs from a cursor that is open (getMore)
//!                and from a position (find with $_resumeAfter), with one document each
//! ```
//!
//! One client, one scan at a time, the same size of batches everywhere. Every scan is counted and its
//! `_id`s are added up: each document must have come once, also under moves. Scans of all ways at rest
//! take turns, so that what slows the machine slows all of them; those under moves come after them. A shard
//! that is read directly shows what it owns.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};

use crate::command::Request;
use crate::connection::Connection;
use crate::dataset::DATABASE;
use crate::options::ScansOptions;
use crate::place::{self, Place};
use crate::ranges::{self, COLLECTION, Cluster, Cpu};
use crate::reply;
use crate::report::with_range;
use crate::servers::{Product, Server, Shape};
use crate::statistics::Spread;
use crate::table::{Table, number, time};

/// A scan at rest takes a fraction of a second, and a round beside moves many: so many of them are a round.
const SCANS_AT_REST: usize = 5;
/// Ranges for each shard.
const RANGES_EACH: u64 = 4;
/// Batches of one document whose cost is measured.
const SMALL_BATCHES: u64 = 1_000;
/// Moves that end while scans go on, in each round: with their beginnings and ends, and not only the first moment of
/// one.
const MOVES_BESIDE: u64 = 2;

/// What one scan took.
#[derive(Clone, Copy)]
struct Scanned {
    elapsed: Duration,
    cpu: Duration,
}

/// What came in a scan.
#[derive(Clone, Copy, Default, PartialEq)]
struct Seen {
    documents: u64,
    ids: f64,
}

/// A cluster that is scanned, and what its scans took.
struct Side {
    prefix: &'static str,
    server: Server,
    /// Where its ranges begin.
    ranges: Vec<Option<u64>>,
    directly: Vec<Scanned>,
    routed: Vec<Scanned>,
    moving: Vec<Scanned>,
    moves: u64,
}

impl Side {
    fn start(apart: bool, place: &Place, options: &ScansOptions, records: u64) -> Result<Side> {
        let (label, prefix) = match apart {
            true => ("cluster", ""),
            false => ("process", "one process: "),
        };
        let shards = options.shards;
        let binaries = options.servers.binaries();
        let server =
            Server::start_cluster(label, &binaries, place.path(), Shape { shards, apart })?;
        eprintln!("{label}: loading {records} documents");
        ranges::load(&server, records)?;
        let ranges = spread(&mut Cluster::new(&server)?, records, shards)?;
        Ok(Side {
            prefix,
            server,
            ranges,
            directly: Vec::new(),
            routed: Vec::new(),
            moving: Vec::new(),
            moves: 0,
        })
    }

    fn scan_at_rest(&mut self, options: &ScansOptions, all: Seen, counts: bool) -> Result<()> {
        let shards = 0..options.shards;
        let direct = shards.map(|shard| self.server.connect_to_shard(shard));
        let mut direct: Vec<Connection> = direct.collect::<Result<_>>()?;
        let directly = scan(&self.server, &mut direct, options, all)?;
        let routed = scan(&self.server, &mut [self.server.connect()?], options, all)?;
        if counts {
            self.directly.push(directly);
            self.routed.push(routed);
        }
        Ok(())
    }

    fn scan_beside_moves(&mut self, options: &ScansOptions, all: Seen) -> Result<()> {
        let (scans, moved) = scan_beside_moves(&self.server, &self.ranges, options, all)?;
        self.moving.extend(scans);
        self.moves += moved;
        Cluster::new(&self.server)?.check_count(all.documents)
    }

    fn rows(&self) -> [(String, &[Scanned]); 3] {
        [
            ("shards directly", &*self.directly),
            ("through the router", &*self.routed),
            ("through the router, ranges moving", &*self.moving),
        ]
        .map(|(name, scans)| (format!("{}{name}", self.prefix), scans))
    }
}

pub fn run(options: &ScansOptions) -> Result<()> {
    place::raise_open_files();
    place::warn_if_busy();
    let place = Place::new(&options.servers)?;
    let bytes = ranges::document_bytes()?;
    let records = options.megabytes * 1_000_000 / bytes;
    let megabytes = (records * bytes) as f64 / 1e6;
    let all = Seen {
        documents: records,
        ids: (records * (records - 1) / 2) as f64,
    };
    let mut sides = Vec::new();
    for apart in options.processes.apart() {
        sides.push(Side::start(*apart, &place, options, records)?);
    }
    let mut mongod = match options.alone {
        true => None,
        false => {
            let binaries = options.servers.binaries();
            let mongod = Server::start(Product::Mongod, "mongod", &binaries, place.path())?;
            eprintln!("mongod: loading");
            ranges::load(&mongod, records)?;
            Some(mongod)
        }
    };
    let mut of_mongod = Vec::new();
    // Scans take turns, one of each kind. At rest is before any of the rounds with moves: after a move caches
    // are cold, and the removal and the merges that it leaves go on for a while. The one that is not counted warms
    // all caches.
    for round in 0..=options.rounds * SCANS_AT_REST {
        if let Some(mongod) = &mut mongod {
            mongod.resume()?;
            let scanned = scan(mongod, &mut [mongod.connect()?], options, all)?;
            mongod.pause()?;
            if round > 0 {
                of_mongod.push(scanned);
            }
        }
        for side in &mut sides {
            side.scan_at_rest(options, all, round > 0)?;
        }
    }
    for side in &mut sides {
        for _ in 0..options.rounds {
            side.scan_beside_moves(options, all)?;
        }
    }
    let mut table = Table::new(1, &["", "MB/s", "CPU µs per document"]);
    let sides_rows = sides.iter().flat_map(Side::rows);
    let rows = std::iter::once(("mongod".to_owned(), &*of_mongod)).chain(sides_rows);
    for (name, scans) in rows {
        let rate = scans
            .iter()
            .map(|scan| megabytes / scan.elapsed.as_secs_f64());
        let cpu = scans
            .iter()
            .map(|scan| scan.cpu.as_secs_f64() * 1e6 / records as f64);
        table.push(vec![
            name,
            with_range(Spread::of(rate)),
            with_range(Spread::of(cpu)),
        ]);
    }
    println!("{}", place::machine());
    print!("{}", table.text());
    for side in sides {
        let Side { prefix, moves, .. } = side;
        println!("{prefix}{moves} ranges moved meanwhile");
        positions(&side.server, records)?;
        println!("{}", counters(&mut Cluster::new(&side.server)?)?);
        side.server.stop()?;
    }
    if let Some(mut mongod) = mongod {
        mongod.resume()?;
        mongod.stop()?;
    }
    place.clear()
}

/// Splits the collection, and gives each shard its share; returns where the ranges begin.
fn spread(cluster: &mut Cluster<'_>, records: u64, shards: usize) -> Result<Vec<Option<u64>>> {
    let count = RANGES_EACH * shards as u64;
    let mut ranges = vec![None];
    for at in 1..count {
        cluster.split(at * records / count)?;
        ranges.push(Some(at * records / count));
    }
    for shard in 0..shards {
        cluster.set_parameter(shard, "orphanCleanupDelaySecs", 0)?;
    }
    for (at, range) in ranges.iter().enumerate() {
        let to = at % shards;
        if cluster.owner(range.unwrap_or(0))? != to {
            cluster.move_range(*range, to)?;
        }
    }
    for shard in 0..shards {
        cluster.await_deletions(shard)?;
    }
    ranges::wait_until_quiet(cluster.server)?;
    Ok(ranges)
}

/// One scan, over these connections one after the other.
fn scan(
    server: &Server,
    connections: &mut [Connection],
    options: &ScansOptions,
    all: Seen,
) -> Result<Scanned> {
    let before = Cpu::of(server)?;
    let begin = Instant::now();
    let mut seen = Seen::default();
    for connection in connections {
        scan_one(connection, options.batch, &mut seen)?;
    }
    ensure!(
        seen == all,
        "a scan found {} documents with a sum of {} instead of {} with {}",
        seen.documents,
        seen.ids,
        all.documents,
        all.ids
    );
    Ok(Scanned {
        elapsed: begin.elapsed(),
        cpu: Cpu::of(server)?.since(&before),
    })
}

fn sized(mut command: Document, batch: u64) -> Result<Request> {
    if batch > 0 {
        command.insert("batchSize", i32::try_from(batch)?);
    }
    command.insert("$db", DATABASE);
    Request::new(&command)
}

fn scan_one(connection: &mut Connection, batch: u64, seen: &mut Seen) -> Result<()> {
    let mut request = sized(doc! { "find": COLLECTION }, batch)?;
    loop {
        let found = reply::expect_batch(connection.exchange(&mut request)?)?;
        seen.documents += found.count()?;
        seen.ids += found.sum("_id")?;
        if found.cursor == 0 {
            return Ok(());
        }
        let cursor = found.cursor;
        request = sized(doc! { "getMore": cursor, "collection": COLLECTION }, batch)?;
    }
}

/// Some scans, while a range after the other goes to the next shard. CPU has the moves in it.
fn scan_beside_moves(
    server: &Server,
    ranges: &[Option<u64>],
    options: &ScansOptions,
    all: Seen,
) -> Result<(Vec<Scanned>, u64)> {
    let stop = AtomicBool::new(false);
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let moves = keep_moving(server, ranges, options.shards, &stop, &moved);
            // Nobody waits for more of them.
            moves.inspect_err(|_| moved.store(MOVES_BESIDE, Ordering::Relaxed))
        });
        let mut scans = Vec::new();
        while moved.load(Ordering::Relaxed) < MOVES_BESIDE {
            match server
                .connect()
                .and_then(|to| scan(server, &mut [to], options, all))
            {
                Ok(scanned) => scans.push(scanned),
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        match moving.join() {
            Ok(moves) => moves?,
            Err(_) => bail!("the thread that moves ranges panicked"),
        }
        Ok((scans, moved.load(Ordering::Relaxed)))
    })
}

fn keep_moving(
    server: &Server,
    ranges: &[Option<u64>],
    shards: usize,
    stop: &AtomicBool,
    moved: &AtomicU64,
) -> Result<()> {
    let mut cluster = Cluster::new(server)?;
    for range in ranges.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let owner = cluster.owner(range.unwrap_or(0))?;
        cluster.move_range(*range, (owner + 1) % shards)?;
        moved.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// How large a position is, and what a batch costs that begins at one.
fn positions(server: &Server, records: u64) -> Result<()> {
    let mut connection = server.connect()?;
    let find = doc! {
        "find": COLLECTION, "hint": { "$natural": 1 }, "$_requestResumeToken": true, "$db": DATABASE,
    };
    let mut first = find.clone();
    first.insert("batchSize", i32::try_from(records.min(1_000) / 2)?);
    let reply = connection.run(&first)?;
    let cursor = reply.get_document("cursor")?;
    let token = cursor.get_document("postBatchResumeToken");
    let token = token.context("a resume token")?.clone();
    println!("a position: {} bytes of BSON", token.to_vec()?.len());
    let mut close = doc! { "killCursors": COLLECTION, "$db": DATABASE };
    close.insert("cursors", vec![cursor.get_i64("id")?]);
    connection.run(&close)?;

    let mut table = Table::new(1, &["a batch of one document", "CPU µs", "p50"]);
    let mut resume = find;
    resume.insert("$_resumeAfter", token);
    resume.insert("batchSize", 1);
    resume.insert("singleBatch", true);
    let mut request = Request::new(&resume)?;
    let from_position = small_batches(server, |_| {
        let batch = reply::expect_batch(connection.exchange(&mut request)?)?;
        ensure!(batch.count()? == 1, "a batch of one document");
        Ok(())
    })?;
    let open = sized(doc! { "find": COLLECTION }, 1)?;
    let mut request = open;
    let from_cursor = small_batches(server, |_| {
        let cursor = reply::expect_batch(connection.exchange(&mut request)?)?.cursor;
        request = sized(doc! { "getMore": cursor, "collection": COLLECTION }, 1)?;
        Ok(())
    })?;
    for (name, (cpu, typical)) in [
        ("from an open cursor", from_cursor),
        ("from a position", from_position),
    ] {
        table.push(vec![name.to_owned(), number(cpu), time(typical)]);
    }
    print!("{}", table.text());
    Ok(())
}

/// Server CPU of each, and the usual latency, in microseconds.
fn small_batches(
    server: &Server,
    mut perform: impl FnMut(u64) -> Result<()>,
) -> Result<(f64, f64)> {
    let before = Cpu::of(server)?;
    let mut latencies = Vec::new();
    for turn in 0..SMALL_BATCHES {
        let begin = Instant::now();
        perform(turn)?;
        latencies.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let cpu = Cpu::of(server)?.since(&before).as_secs_f64() * 1e6 / SMALL_BATCHES as f64;
    let typical = Spread::of(latencies).map_or(f64::NAN, |spread| spread.median);
    Ok((cpu, typical))
}

/// What the router counted.
fn counters(cluster: &mut Cluster<'_>) -> Result<String> {
    let status = cluster.run(&doc! { "serverStatus": 1, "$db": "admin" })?;
    let statistics = status.get_document("shardingStatistics")?;
    Ok(statistics.get_document("elasticScans")?.to_string())
}
