//! What a move is compared with: the same documents read from one `mongod` and inserted into another.
//!
//! One thread reads with `find` and `getMore`, another inserts what came before, both with the same
//! number of documents at once; the destination has the indexes already, as a recipient has. Documents
//! are passed on as bytes. Writes are acknowledged by `w: 1`, the last one by the majority.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::doc;

use crate::command::Request;
use crate::dataset::DATABASE;
use crate::ranges::{self, COLLECTION, Cpu};
use crate::reply;
use crate::servers::Server;

/// Batches that wait for the destination.
const WAITING: usize = 2;

/// What a copy took.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    pub elapsed: Duration,
    /// Of both servers.
    pub cpu: Duration,
}

/// Copies the first documents of the collection into one of another name, which is dropped again.
pub fn copy(
    source: &Server,
    destination: &Server,
    name: &str,
    records: u64,
    at_once: u64,
) -> Result<Copied> {
    ranges::create(destination, name)?;
    let before = (Cpu::of(source)?, Cpu::of(destination)?);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(WAITING);
        let reading = scope.spawn(move || read(source, records, at_once, &send));
        let written = write(destination, name, records, &receive);
        // A reader that waits for room must not wait for ever.
        drop(receive);
        match reading.join() {
            Ok(read) => written.and(read),
            Err(_) => bail!("a reading thread panicked"),
        }
    })?;
    let copied = Copied {
        elapsed: begin.elapsed(),
        cpu: Cpu::of(source)?.since(&before.0) + Cpu::of(destination)?.since(&before.1),
    };
    let drop = doc! { "drop": name, "writeConcern": { "w": "majority" }, "$db": DATABASE };
    destination.connect()?.run(&drop)?;
    Ok(copied)
}

type Documents = Vec<Vec<u8>>;

fn read(server: &Server, records: u64, at_once: u64, send: &SyncSender<Documents>) -> Result<()> {
    let mut connection = server.connect()?;
    let at_once = i32::try_from(at_once)?;
    let mut request = Request::new(&doc! {
        "find": COLLECTION, "batchSize": at_once, "limit": records as i64, "$db": DATABASE,
    })?;
    loop {
        let batch = reply::expect_batch(connection.exchange(&mut request)?)?;
        let documents = batch.documents()?;
        let cursor = batch.cursor;
        if send.send(documents).is_err() {
            // Whoever inserts has failed, and says why.
            return Ok(());
        }
        if cursor == 0 {
            return Ok(());
        }
        request = Request::new(&doc! {
            "getMore": cursor, "collection": COLLECTION, "batchSize": at_once, "$db": DATABASE,
        })?;
    }
}

fn write(server: &Server, name: &str, records: u64, receive: &Receiver<Documents>) -> Result<()> {
    let mut connection = server.connect()?;
    let command = doc! {
        "insert": name, "ordered": false, "writeConcern": { "w": 1 }, "$db": DATABASE,
    };
    let mut count = 0;
    while let Ok(documents) = receive.recv() {
        if documents.is_empty() {
            continue;
        }
        let (mut request, _) = Request::with_sequence(&command, "documents", &documents)?;
        reply::expect_count(connection.exchange(&mut request)?, documents.len() as u64)?;
        count += documents.len() as u64;
    }
    ensure!(count == records, "{count} documents came of {records}");
    let last = doc! {
        "update": name, "updates": [{ "q": { "_id": -1_i64 }, "u": { "$set": { "x": 1 } } }],
        "writeConcern": { "w": "majority", "j": true }, "$db": DATABASE,
    };
    connection.run(&last).context("waiting for the majority")?;
    Ok(())
}
