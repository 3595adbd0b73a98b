//! `bench chunks`: a collection of very many chunks in a real cluster, each role a process of its own.
//!
//! ```text
//!   full          the router has forgotten the collection: all chunks come from the config server
//!   split         one chunk becomes two, from command to reply
//!   incremental   the next read, which fetches what the split has changed
//! ```
//!
//! Another client reads another collection all the while: how long it waits is what requests notice.
//!
//! All chunks but those that are split here are written into `config.chunks` by hand, which is how a
//! million of them is made in a minute. They are on one shard, which owns everything before and
//! after: only their number matters. The config server reads its collections again when one of them was
//! written by hand; that is waited for and not measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::oid::ObjectId;
use bson::{Bson, Document, Timestamp, doc};
use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::command::Request;
use crate::connection::Connection;
use crate::dataset::DATABASE;
use crate::options::ChunksOptions;
use crate::place::{self, Place};
use crate::ranges::Cpu;
use crate::reply;
use crate::report::with_range;
use crate::servers::{Server, Shape};
use crate::statistics::{Spread, empty_latencies, record_latency};
use crate::table::{Table, megabytes, time};

const COLLECTION: &str = "chunked";
const BESIDE: &str = "beside";
const KEYS_PER_CHUNK: i64 = 1_000;
const WRITTEN_AT_ONCE: i64 = 10_000;
const SPLITS_EACH: usize = 10;
/// The config server reads a million chunks.
const PATIENCE: Duration = Duration::from_secs(300);

pub fn run(options: &ChunksOptions) -> Result<()> {
    place::raise_open_files();
    place::warn_if_busy();
    let place = Place::new(&options.servers)?;
    let shape = Shape {
        shards: 2,
        apart: true,
    };
    let binaries = options.servers.binaries();
    let server = Server::start_cluster("cluster", &binaries, place.path(), shape)?;
    let mut router = server.connect()?;
    router.set_timeout(PATIENCE)?;
    eprintln!("writing {} chunks", options.chunks);
    make(&mut router, options.chunks)?;
    let small = server.resident_bytes()?;
    read(&mut router, 5)?;
    let grown = server.resident_bytes()?.saturating_sub(small);

    let mut random = Rng::with_seed(0);
    let quiet = beside(&server, || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    let (mut full, mut split, mut incremental) = (Vec::new(), Vec::new(), Vec::new());
    let mut cpu = Duration::ZERO;
    let in_full = beside(&server, || {
        for _ in 0..options.rounds {
            let flush = doc! { "flushRouterConfig": namespace(), "$db": "admin" };
            router.run(&flush)?;
            let before = Cpu::of(&server)?;
            full.push(timed(|| read(&mut router, 5))?);
            cpu += Cpu::of(&server)?.since(&before);
        }
        Ok(())
    })?;
    let in_splits = beside(&server, || {
        for _ in 0..options.rounds * SPLITS_EACH {
            let chunk = random.i64(1..options.chunks - 1);
            let middle = chunk * KEYS_PER_CHUNK + random.i64(1..KEYS_PER_CHUNK);
            let command = doc! { "split": namespace(), "middle": { "k": middle }, "$db": "admin" };
            split.push(timed(|| router.run(&command))?);
            incremental.push(timed(|| read(&mut router, middle))?);
        }
        Ok(())
    })?;

    let mut table = Table::new(1, &["", "µs", "others, p50", "p99", "largest"]);
    for (name, figures, others) in [
        ("nothing", Vec::new(), &quiet),
        ("full", full, &in_full),
        ("split", split, &in_splits),
        ("incremental", incremental, &in_splits),
    ] {
        let mut row = vec![name.to_owned(), with_range(Spread::of(figures))];
        let quantiles = [0.5, 0.99, 1.0].map(|quantile| others.value_at_quantile(quantile));
        row.extend(quantiles.map(|micros| time(micros as f64)));
        table.push(row);
    }
    println!("{}", place::machine());
    print!("{}", table.text());
    let each = cpu.as_secs_f64() * 1e3 / options.rounds as f64;
    println!("CPU of all processes for one full refresh: {each:.0} ms");
    println!(
        "memory of all processes grew by {} with it",
        megabytes(grown)
    );
    drop(router);
    server.stop()?;
    place.clear()
}

fn namespace() -> String {
    format!("{DATABASE}.{COLLECTION}")
}

/// Shards the collection and cuts it into chunks.
fn make(router: &mut Connection, chunks: i64) -> Result<()> {
    router.run(&doc! { "shardCollection": namespace(), "key": { "k": 1 }, "$db": "admin" })?;
    for collection in [COLLECTION, BESIDE] {
        router.run(&doc! {
            "insert": collection, "documents": [{ "_id": 5, "k": 5_i64 }], "$db": DATABASE,
        })?;
    }
    let first = |reply: &Document| -> Result<Document> {
        let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
        let document = batch.first().and_then(Bson::as_document);
        document.cloned().context("a document of the config server")
    };
    let entry = first(&router.run(&doc! {
        "find": "collections", "filter": { "_id": namespace() }, "$db": "config",
    })?)?;
    let uuid = entry.get("uuid").context("a UUID")?;
    let all = doc! { "uuid": uuid };
    let model = first(&router.run(&doc! { "find": "chunks", "filter": &all, "$db": "config" })?)?;
    router.run(&doc! {
        "delete": "chunks", "deletes": [{ "q": &all, "limit": 0 }], "$db": "config",
    })?;
    let bound = |chunk: i64| match chunk {
        0 => Bson::MinKey,
        _ if chunk == chunks => Bson::MaxKey,
        _ => Bson::Int64(chunk * KEYS_PER_CHUNK),
    };
    let insert = doc! { "insert": "chunks", "ordered": false, "$db": "config" };
    let mut from = 0;
    while from < chunks {
        let to = (from + WRITTEN_AT_ONCE).min(chunks);
        let documents = (from..to).map(|chunk| {
            let mut document = model.clone();
            document.insert("_id", ObjectId::new());
            document.insert("min", doc! { "k": bound(chunk) });
            document.insert("max", doc! { "k": bound(chunk + 1) });
            let increment = u32::try_from(chunk + 1)?;
            document.insert("lastmod", Timestamp { time: 1, increment });
            Ok(document.to_vec()?)
        });
        let documents = documents.collect::<Result<Vec<_>>>()?;
        let (mut request, _) = Request::with_sequence(&insert, "documents", &documents)?;
        reply::expect_count(router.exchange(&mut request)?, documents.len() as u64)?;
        from = to;
    }
    // Now the config server reads its collections again.
    router.run(&doc! {
        "update": "collections",
        "updates": [{ "q": { "_id": namespace() }, "u": { "$set": { "noBalance": true } } }],
        "$db": "config",
    })?;
    router.run(&doc! { "flushRouterConfig": 1, "$db": "admin" })?;
    find_one(router, BESIDE, doc! { "_id": 5 })
}

/// Reads by shard key.
fn read(router: &mut Connection, key: i64) -> Result<()> {
    let filter = doc! { "k": key };
    match key {
        5 => find_one(router, COLLECTION, filter),
        _ => {
            let find = doc! { "find": COLLECTION, "filter": filter, "$db": DATABASE };
            router.run(&find).map(drop)
        }
    }
}

fn find_one(connection: &mut Connection, collection: &str, filter: Document) -> Result<()> {
    let find = doc! { "find": collection, "filter": filter, "singleBatch": true, "$db": DATABASE };
    let mut request = Request::new(&find)?;
    let found = reply::expect_batch(connection.exchange(&mut request)?)?;
    ensure!(found.count()? == 1, "the document is not found");
    Ok(())
}

/// Microseconds.
fn timed<T>(perform: impl FnOnce() -> Result<T>) -> Result<f64> {
    let begin = Instant::now();
    perform()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}

/// How long reads of another collection take while something is done.
fn beside(server: &Server, perform: impl FnOnce() -> Result<()>) -> Result<Histogram<u64>> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<Histogram<u64>> {
            let mut connection = server.connect()?;
            connection.set_timeout(PATIENCE)?;
            let mut latencies = empty_latencies();
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                find_one(&mut connection, BESIDE, doc! { "_id": 5 })?;
                record_latency(&mut latencies, begin.elapsed());
            }
            Ok(latencies)
        });
        let performed = perform();
        stop.store(true, Ordering::Relaxed);
        match reading.join() {
            Ok(latencies) => performed.and(latencies),
            Err(_) => bail!("the thread that reads panicked"),
        }
    })
}
