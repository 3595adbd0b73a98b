//! One collection of 1 kB documents with two secondary indexes, whose ranges can be moved.
//!
//! ```text
//!   { _id: long, customer: string, rank: long, field0: 100 characters, …, field7 }     ≈ 0.97 kB
//!     0 …… records, the shard key    indexes
//! ```
//!
//! Every value but the text is a function of the number, so that a scan's count and sum are known.
//! In a cluster it is sharded by `_id`, each role a process of its own: moves go from process to
//! process, as they would between machines. Elsewhere it is an ordinary collection.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::{Bson, Document, doc};
use fastrand::Rng;

use crate::command::Request;
use crate::connection::Connection;
use crate::dataset::{self, DATABASE, TextPool};
use crate::process::{CpuReading, cpu_of};
use crate::reply;
use crate::servers::Server;
use crate::zipfian::scatter;

pub const COLLECTION: &str = "ranges";
const FIELDS: usize = 8;
const LOADED_AT_ONCE: u64 = 1_000;
const LOADERS: u64 = 4;
const CUSTOMERS: u64 = 1_000;
/// A move of a gigabyte on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(5);
const QUIET_WINDOW: Duration = Duration::from_millis(500);
const QUIET_CPU: Duration = Duration::from_millis(40);
const QUIET_TIMEOUT: Duration = Duration::from_secs(20);

pub fn namespace() -> String {
    format!("{DATABASE}.{COLLECTION}")
}

/// A document by its number.
pub fn document(number: u64, texts: &TextPool, random: &mut Rng) -> Result<Vec<u8>> {
    let mut document = doc! {
        "_id": number as i64,
        "customer": dataset::customer(number % CUSTOMERS),
        "rank": (scatter(number) >> 1) as i64,
    };
    for field in 0..FIELDS {
        let text = String::from_utf8_lossy(texts.slice(random)).into_owned();
        document.insert(format!("field{field}"), text);
    }
    Ok(document.to_vec()?)
}

/// What one document weighs.
pub fn document_bytes() -> Result<u64> {
    let document = document(0, &TextPool::new(), &mut Rng::with_seed(0))?;
    Ok(document.len() as u64)
}

/// Makes the collection, with its indexes.
pub fn create(server: &Server, collection: &str) -> Result<()> {
    let mut connection = server.connect()?;
    let majority = doc! { "w": "majority" };
    if server.sharded {
        connection.run(&doc! {
            "shardCollection": format!("{DATABASE}.{collection}"), "key": { "_id": 1 }, "$db": "admin",
        })?;
    } else {
        connection
            .run(&doc! { "create": collection, "writeConcern": &majority, "$db": DATABASE })?;
    }
    connection.run(&doc! {
        "createIndexes": collection,
        "indexes": [
            { "key": { "customer": 1 }, "name": "customer_1" },
            { "key": { "rank": 1 }, "name": "rank_1" },
        ],
        "writeConcern": majority,
        "$db": DATABASE,
    })?;
    Ok(())
}

/// Makes and fills the collection, over several connections.
pub fn load(server: &Server, records: u64) -> Result<()> {
    create(server, COLLECTION)?;
    let texts = TextPool::new();
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..LOADERS)
            .map(|loader| {
                let texts = &texts;
                scope.spawn(move || load_part(server, records, loader, texts))
            })
            .collect();
        for loader in loaders {
            match loader.join() {
                Ok(loaded) => loaded?,
                Err(_) => bail!("a loading thread panicked"),
            }
        }
        Ok(())
    })
}

fn load_part(server: &Server, records: u64, loader: u64, texts: &TextPool) -> Result<()> {
    let mut connection = server.connect()?;
    let mut random = Rng::with_seed(loader);
    let command = doc! { "insert": COLLECTION, "writeConcern": { "w": 1 }, "$db": DATABASE };
    let mut first = loader * LOADED_AT_ONCE;
    while first < records {
        let numbers = first..(first + LOADED_AT_ONCE).min(records);
        let documents = numbers
            .map(|number| document(number, texts, &mut random))
            .collect::<Result<Vec<_>>>()?;
        let (mut request, _) = Request::with_sequence(&command, "documents", &documents)?;
        reply::expect_count(connection.exchange(&mut request)?, documents.len() as u64)?;
        first += LOADERS * LOADED_AT_ONCE;
    }
    Ok(())
}

/// Waits until the work that a load or a move leaves behind is done, or for a while.
pub fn wait_until_quiet(server: &Server) -> Result<()> {
    let deadline = Instant::now() + QUIET_TIMEOUT;
    let mut before = Cpu::of(server)?;
    while Instant::now() < deadline {
        std::thread::sleep(QUIET_WINDOW);
        let now = Cpu::of(server)?;
        if now.since(&before) < QUIET_CPU {
            break;
        }
        before = now;
    }
    Ok(())
}

/// The CPU of all processes of a server.
pub struct Cpu(Vec<CpuReading>);

impl Cpu {
    pub fn of(server: &Server) -> Result<Cpu> {
        Ok(Cpu(cpu_of(server.pids())?))
    }

    pub fn since(&self, earlier: &Cpu) -> Duration {
        let pairs = self.0.iter().zip(&earlier.0);
        pairs.map(|(after, before)| after.since(before)).sum()
    }
}

/// What one move took.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    pub elapsed: Duration,
    pub copied: Duration,
    pub critical: Duration,
    /// Parts of it: until the recipient has everything, until reads are blocked, until it is decided.
    pub ready: Duration,
    pub reads_blocked: Duration,
    pub decided: Duration,
    pub documents: u64,
}

/// The routers's side of a cluster with the collection.
pub struct Cluster<'s> {
    pub server: &'s Server,
    router: Connection,
}

impl<'s> Cluster<'s> {
    pub fn new(server: &'s Server) -> Result<Cluster<'s>> {
        let router = server.connect()?;
        router.set_timeout(PATIENCE)?;
        Ok(Cluster { server, router })
    }

    pub fn run(&mut self, command: &Document) -> Result<Document> {
        self.router.run(command)
    }

    /// The shard (by number) that owns the chunk of a key.
    pub fn owner(&mut self, key: u64) -> Result<usize> {
        let found = self.run(&doc! {
            "aggregate": "chunks",
            "pipeline": [
                { "$match": { "min._id": { "$lte": key as i64 } } },
                { "$sort": { "min._id": -1 } },
                { "$limit": 1 },
            ],
            "cursor": {}, "$db": "config",
        })?;
        let mut first = batch(&found)?;
        if first.is_empty() {
            // The first chunk begins at MinKey, which `$lte` of a number does not compare with.
            let found = self.run(&doc! {
                "find": "chunks", "sort": { "min._id": 1 }, "limit": 1, "$db": "config",
            })?;
            first = batch(&found)?;
        }
        let chunk = first.first().context("a chunk")?;
        let name = chunk.get_str("shard")?;
        let number = name.strip_prefix("shard").and_then(|n| n.parse().ok());
        number.with_context(|| format!("a shard with the name {name}"))
    }

    pub fn split(&mut self, at: u64) -> Result<()> {
        self.run(&doc! { "split": namespace(), "middle": { "_id": at as i64 }, "$db": "admin" })?;
        Ok(())
    }

    /// Moves the chunk that begins at a key, or the first one.
    pub fn move_range(&mut self, min: Option<u64>, to: usize) -> Result<Moved> {
        let min = min.map_or(Bson::MinKey, |min| Bson::Int64(min as i64));
        let begin = Instant::now();
        self.run(&doc! {
            "moveRange": namespace(), "min": { "_id": min.clone() },
            "toShard": format!("shard{to}"), "$db": "admin",
        })?;
        let elapsed = begin.elapsed();
        let last = self.run(&doc! {
            "find": "changelog", "filter": { "what": "moveChunk.from" },
            "sort": { "time": -1, "_id": -1 }, "limit": 1, "$db": "config",
        })?;
        let last = batch(&last)?;
        let details = last.first().context("a line of the changelog")?;
        let details = details.get_document("details")?;
        let number = |name: &str| match details.get(name) {
            Some(Bson::Int64(value)) => Ok(*value as u64),
            Some(Bson::Int32(value)) => Ok(*value as u64),
            other => bail!("{name} of a move is {other:?} in {details}"),
        };
        ensure!(
            details.get_document("min")?.get("_id") == Some(&min),
            "the last move of the changelog is another: {details}"
        );
        Ok(Moved {
            elapsed,
            copied: Duration::from_millis(number("cloneMillis")?),
            critical: Duration::from_micros(number("criticalSectionMicros")?),
            ready: Duration::from_micros(number("readyMicros")?),
            reads_blocked: Duration::from_micros(number("blockReadsMicros")?),
            decided: Duration::from_micros(number("commitMicros")?),
            documents: number("clonedDocs")?,
        })
    }

    pub fn set_parameter(&self, shard: usize, name: &str, value: i32) -> Result<()> {
        let mut connection = self.server.connect_to_shard(shard)?;
        connection.run(&doc! { "setParameter": 1, name: value, "$db": "admin" })?;
        Ok(())
    }

    /// Waits until a shard has nothing to remove any more.
    pub fn await_deletions(&self, shard: usize) -> Result<()> {
        let mut connection = self.server.connect_to_shard(shard)?;
        let deadline = Instant::now() + PATIENCE;
        let count = doc! { "count": "rangeDeletions", "$db": "config" };
        while connection.run(&count)?.get("n") != Some(&Bson::Int32(0)) {
            ensure!(Instant::now() < deadline, "a range is not removed");
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The collection has as many documents as it should, and none is left where it is not owned.
    pub fn check_count(&mut self, records: u64) -> Result<()> {
        let counted = self.run(&doc! {
            "aggregate": COLLECTION,
            "pipeline": [{ "$group": { "_id": null, "n": { "$sum": 1 }, "ids": { "$sum": "$_id" } } }],
            "cursor": {}, "$db": DATABASE,
        })?;
        let groups = batch(&counted)?;
        let group = groups.first().context("a count")?;
        let number = |name: &str| match group.get(name) {
            Some(Bson::Int64(value)) => Ok(*value as u64),
            Some(Bson::Int32(value)) => Ok(*value as u64),
            other => bail!("{name} is {other:?}"),
        };
        let (count, sum) = (number("n")?, number("ids")?);
        ensure!(
            count == records && sum == records * (records - 1) / 2,
            "{count} documents with a sum of {sum} instead of {records}"
        );
        Ok(())
    }
}

/// The documents of a first batch.
fn batch(reply: &Document) -> Result<Vec<Document>> {
    let batch = reply.get_document("cursor")?.get_array("firstBatch")?;
    batch
        .iter()
        .map(|document| document.as_document().cloned().context("a document"))
        .collect()
}
