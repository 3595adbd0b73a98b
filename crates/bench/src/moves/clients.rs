//! Clients that go on reading and updating single documents while something else happens.
//!
//! Each has a connection and a timetable: requests are due at fixed intervals, and a latency counts
//! from the moment the request was *due*. A client that had to wait therefore finds the next ones late
//! too, as the users of a service would (no coordinated omission). Where a machine cannot give the
//! rate that was asked for, latencies grow without end: the rate that came out is told with them.
//!
//! ⚑ A connection has one request under way. Where it is due again before it is answered, as when 8 of them ask
//! 5,000 times each second for what takes 1.4 ms, a wait of some milliseconds makes a queue that is there for
//! hundreds: the latency is that of the queue. So who watches waits of that length takes connections enough
//! that an interval is longer than they are; what came from the moment a request was *sent* is told beside it.
//!
//! Every reply is checked; the first wrong one ends the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bson::doc;
use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::command::{Request, Slot, marker};
use crate::connection::Connection;
use crate::dataset::{DATABASE, FIELD_BYTES, TextPool};
use crate::ranges::COLLECTION;
use crate::reply;
use crate::servers::Server;
use crate::statistics::{empty_latencies, record_latency};

/// What clients ask for.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    pub connections: usize,
    pub reads_per_second: u64,
    pub updates_per_second: u64,
    /// They ask for documents with numbers below this.
    pub records: u64,
}

/// What came out in a stretch of time.
pub struct Served {
    pub reads: Histogram<u64>,
    pub updates: Histogram<u64>,
    /// The same from the moment that they were sent.
    pub updates_sent: Histogram<u64>,
    pub elapsed: Duration,
}

struct Shared {
    stop: AtomicBool,
    reads: Mutex<Histogram<u64>>,
    updates: Mutex<Histogram<u64>>,
    updates_sent: Mutex<Histogram<u64>>,
    failed: Mutex<Option<anyhow::Error>>,
}

pub struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Update,
}

impl Clients {
    pub fn start(server: &Server, demand: Demand) -> Result<Clients> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            reads: Mutex::new(empty_latencies()),
            updates: Mutex::new(empty_latencies()),
            updates_sent: Mutex::new(empty_latencies()),
            failed: Mutex::new(None),
        });
        let mut threads = Vec::new();
        for (kind, per_second) in [
            (Kind::Read, demand.reads_per_second),
            (Kind::Update, demand.updates_per_second),
        ] {
            if per_second == 0 {
                continue;
            }
            let interval = Duration::from_secs_f64(demand.connections as f64 / per_second as f64);
            for number in 0..demand.connections {
                let mut client = Client::new(server, kind, demand.records, number as u64)?;
                let shared = Arc::clone(&shared);
                // They are spread over the interval, or all would ask at once.
                let first = Instant::now() + interval * number as u32 / demand.connections as u32;
                threads.push(std::thread::spawn(move || {
                    if let Err(error) = client.run(&shared, first, interval) {
                        let failed = shared.failed.lock();
                        failed
                            .unwrap_or_else(PoisonError::into_inner)
                            .get_or_insert(error);
                    }
                }));
            }
        }
        Ok(Clients {
            shared,
            threads,
            since: Instant::now(),
        })
    }

    /// What came out since the last time it was asked.
    pub fn take(&mut self) -> Result<Served> {
        let failed = self.shared.failed.lock();
        if let Some(error) = failed.unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error.context("a client beside the moves"));
        }
        let taken = |from: &Mutex<Histogram<u64>>| {
            let mut from = from.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *from, empty_latencies())
        };
        let elapsed = self.since.elapsed();
        self.since = Instant::now();
        Ok(Served {
            reads: taken(&self.shared.reads),
            updates: taken(&self.shared.updates),
            updates_sent: taken(&self.shared.updates_sent),
            elapsed,
        })
    }

    /// Lets them run for a while, and says what came out.
    pub fn observe(&mut self, during: Duration) -> Result<Served> {
        self.take()?;
        std::thread::sleep(during);
        self.take()
    }

    pub fn stop(mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a client panicked"))?;
        }
        self.take()?;
        Ok(())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn record(latencies: &Mutex<Histogram<u64>>, latency: Duration) {
    let mut latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    record_latency(&mut latencies, latency);
}

struct Client {
    connection: Connection,
    kind: Kind,
    request: Request,
    key: Slot,
    text: Option<Slot>,
    records: u64,
    texts: TextPool,
    random: Rng,
}

impl Client {
    fn new(server: &Server, kind: Kind, records: u64, seed: u64) -> Result<Client> {
        let command = match kind {
            Kind::Read => doc! {
                "find": COLLECTION, "filter": { "_id": marker::LONG }, "limit": 1,
                "singleBatch": true, "$db": DATABASE,
            },
            Kind::Update => doc! {
                "update": COLLECTION,
                "updates": [{
                    "q": { "_id": marker::LONG },
                    "u": { "$set": { "field3": marker::text(FIELD_BYTES) } },
                }],
                "writeConcern": { "w": "majority" }, "$db": DATABASE,
            },
        };
        let request = Request::new(&command)?;
        let text = match kind {
            Kind::Read => None,
            Kind::Update => Some(request.slot(marker::text(FIELD_BYTES).as_bytes())?),
        };
        Ok(Client {
            connection: server.connect()?,
            kind,
            key: request.slot(&marker::LONG.to_le_bytes())?,
            text,
            request,
            records,
            texts: TextPool::new(),
            random: Rng::with_seed(seed),
        })
    }

    fn run(&mut self, shared: &Shared, first: Instant, interval: Duration) -> Result<()> {
        let mut due = first;
        while !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            self.perform()?;
            match self.kind {
                Kind::Read => record(&shared.reads, due.elapsed()),
                Kind::Update => {
                    record(&shared.updates, due.elapsed());
                    record(&shared.updates_sent, sent.elapsed());
                }
            }
            due += interval;
        }
        Ok(())
    }

    fn perform(&mut self) -> Result<()> {
        let number = self.random.u64(..self.records) as i64;
        self.request.patch(&self.key, &number.to_le_bytes());
        if let Some(text) = &self.text {
            let value = self.texts.slice(&mut self.random);
            self.request.patch(text, value);
        }
        let reply = self.connection.exchange(&mut self.request)?;
        match self.kind {
            Kind::Read => {
                let count = reply::expect_batch(reply)?.count()?;
                ensure!(count == 1, "document {number} came {count} times");
            }
            Kind::Update => reply::expect_count(reply, 1)?,
        }
        Ok(())
    }
}
