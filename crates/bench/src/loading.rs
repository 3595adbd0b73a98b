//! Filling a server with the dataset before anything is measured.
//!
//! Users are loaded through the same code as the load workload, orders in larger batches, and the
//! secondary indexes are built over the loaded orders. Then the server is asked to write everything to
//! disk, so that its size means something, and given time to become quiet.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bson::{Document, doc};
use fastrand::Rng;

use crate::command::Request;
use crate::dataset::{DATABASE, Dataset, ORDERS, USERS};
use crate::driver::{Pace, measure};
use crate::operations::{Scratch, Setting};
use crate::process::{self, CpuReading};
use crate::reply;
use crate::servers::Server;
use crate::workload::{Durability, Workload};

const CONNECTIONS: usize = 8;
const ORDER_BATCH: u64 = 1_000;
/// A server is quiet when it uses less than a twentieth of a core.
const QUIET_WINDOW: Duration = Duration::from_millis(500);
const QUIET_CPU: Duration = Duration::from_millis(25);
const QUIET_TIMEOUT: Duration = Duration::from_secs(20);

/// What a server takes after loading.
#[derive(Debug, Clone)]
pub struct Footprint {
    pub resident_bytes: u64,
    pub disk_bytes: u64,
    pub disk_bytes_by_entry: Vec<(String, u64)>,
    pub load: Duration,
    pub index_build: Duration,
}

/// Directories of a write-ahead log. Its size says how much is preallocated and kept, not how large
/// the data is, so it is also shown without.
const LOG_DIRECTORIES: [&str; 3] = ["journal", "log", "wal"];

impl Footprint {
    pub fn disk_bytes_without_log(&self) -> u64 {
        let is_log = |name: &str| LOG_DIRECTORIES.contains(&name);
        let entries = self.disk_bytes_by_entry.iter();
        entries
            .filter(|(name, _)| !is_log(name))
            .map(|(_, bytes)| bytes)
            .sum()
    }
}

/// Loads the dataset and says what it takes.
pub fn load(server: &Server, dataset: &Arc<Dataset>) -> Result<Footprint> {
    let mut connection = server.connect()?;
    let begin = Instant::now();
    create(server, USERS)?;
    let setting = Arc::new(Setting {
        dataset: Arc::clone(dataset),
        durability: Some(Durability::W1),
        scratch: Some(Scratch {
            collection: USERS.to_owned(),
            next: AtomicU64::new(0),
        }),
        sessions: false,
    });
    let pace = Pace {
        warm_up: Duration::ZERO,
        measure: Duration::ZERO,
    };
    measure(server, &setting, Workload::Load, CONNECTIONS, pace, 1).context("loading users")?;
    create(server, ORDERS)?;
    load_orders(server, dataset).context("loading orders")?;
    let load = begin.elapsed();

    let begin = Instant::now();
    let indexes: Vec<Document> = ["customer", "category"]
        .into_iter()
        .map(|field| doc! { "key": { field: 1 }, "name": format!("{field}_1") })
        .collect();
    connection.run(&doc! {
        "createIndexes": ORDERS,
        "indexes": indexes,
        "writeConcern": { "w": "majority" },
        "$db": DATABASE,
    })?;
    let index_build = begin.elapsed();

    if let Err(error) = connection.run(&doc! { "fsync": 1, "$db": "admin" }) {
        eprintln!(
            "note: {} did not take fsync: {error:#}",
            server.product.name()
        );
    }
    wait_until_quiet(server)?;
    Ok(Footprint {
        resident_bytes: server.resident_bytes()?,
        disk_bytes: process::disk_bytes(&server.data_directory())?,
        disk_bytes_by_entry: process::disk_bytes_by_entry(&server.data_directory())?,
        load,
        index_build,
    })
}

pub fn create(server: &Server, collection: &str) -> Result<()> {
    let create =
        doc! { "create": collection, "writeConcern": { "w": "majority" }, "$db": DATABASE };
    let mut connection = server.connect()?;
    connection.run(&create)?;
    if server.sharded {
        connection.run(&doc! {
            "shardCollection": format!("{DATABASE}.{collection}"), "key": { "_id": "hashed" },
            "$db": "admin",
        })?;
    }
    Ok(())
}

pub fn drop_collection(server: &Server, collection: &str) -> Result<()> {
    let drop = doc! { "drop": collection, "writeConcern": { "w": "majority" }, "$db": DATABASE };
    server.connect()?.run(&drop)?;
    Ok(())
}

fn load_orders(server: &Server, dataset: &Dataset) -> Result<()> {
    let mut connection = server.connect()?;
    let mut random = Rng::with_seed(11);
    let command = doc! { "insert": ORDERS, "writeConcern": { "w": 1 }, "$db": DATABASE };
    let mut first = 0;
    while first < dataset.records {
        let mut documents = Vec::new();
        for number in first..(first + ORDER_BATCH).min(dataset.records) {
            documents.push(dataset.order(number, &mut random).to_vec()?);
        }
        let (mut request, _) = Request::with_sequence(&command, "documents", &documents)?;
        reply::expect_count(connection.exchange(&mut request)?, documents.len() as u64)?;
        first += ORDER_BATCH;
    }
    Ok(())
}

/// Waits until the background work that a load leaves behind is done, or for a while.
fn wait_until_quiet(server: &Server) -> Result<()> {
    let deadline = Instant::now() + QUIET_TIMEOUT;
    let mut before = CpuReading::of(server.pid())?;
    while Instant::now() < deadline {
        std::thread::sleep(QUIET_WINDOW);
        let now = CpuReading::of(server.pid())?;
        if now.since(&before) < QUIET_CPU {
            break;
        }
        before = now;
    }
    Ok(())
}
