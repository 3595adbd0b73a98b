//! Who works on a run that is kept in a database: one process at a time.
//!
//! A document beside the entries names the owner's host and process, and when it was last renewed by
//! the server's clock. It is taken if there is none; if its process is gone from this host; if it was
//! not renewed for a minute, wherever its owner is. An owner that finds itself replaced writes nothing
//! more. A process may open a place twice: its own lease is no obstacle.
//!
//! Crash windows: a process that is killed leaves its lease, which the next on the same host takes at
//! once, and one elsewhere after a minute. An owner that was cut off for longer than that may make
//! the write that was under way when it was replaced, before it finds out.

use super::failed;
use crate::error::VerifyError;
use crate::scan::AbortOnDrop;
use bson::{DateTime, Document, doc};
use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};
use mongodb::options::WriteConcern;
use mongodb::{Client, Collection};
use rustix::io::Errno;
use rustix::process::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Above the keys of all entries, which are hexadecimal.
const KEY: &str = "~lease";
const RENEWED_EVERY: Duration = Duration::from_secs(10);
const LAPSES_AFTER_MS: i64 = 60_000;
const DUPLICATE_KEY: i32 = 11000;

pub struct Lease {
    lost: Arc<AtomicBool>,
    _renewing: AbortOnDrop,
}

impl Lease {
    /// Takes the lease, or says who has it.
    pub async fn take(
        client: &Client,
        entries: &Collection<Document>,
        place: &str,
    ) -> Result<Lease, VerifyError> {
        let broken = |error: DriverError| failed(place, error);
        let now = server_time(client).await.map_err(broken)?;
        let mut mine = owner();
        mine.insert("_id", KEY);
        mine.insert("renewed", now);
        let inserted = entries
            .insert_one(&mine)
            .write_concern(WriteConcern::majority())
            .await;
        match inserted {
            Ok(_) => {}
            Err(error) if is_duplicate(&error) => {
                let held = entries.find_one(doc! {"_id": KEY}).await.map_err(broken)?;
                let held = held.unwrap_or_else(|| doc! {"_id": KEY});
                let free = is_free(&held, now);
                // Only if it is still what was judged: of two who find it free one gets it.
                let replaced = match free {
                    true => {
                        entries
                            .replace_one(held.clone(), &mine)
                            .write_concern(WriteConcern::majority())
                            .await
                            .map_err(broken)?
                            .matched_count
                    }
                    false => 0,
                };
                if replaced == 0 {
                    let host = held.get_str("host").unwrap_or("another host");
                    let pid = held.get_i64("pid").unwrap_or_default();
                    return Err(failed(
                        place,
                        format!(
                            "it is in use by process {pid} on {host}; wait for its end, or name another database with --meta-database"
                        ),
                    ));
                }
            }
            Err(error) => return Err(broken(error)),
        }
        let lost = Arc::new(AtomicBool::new(false));
        let renewing = tokio::spawn(renew(client.clone(), entries.clone(), lost.clone()));
        Ok(Lease {
            lost,
            _renewing: AbortOnDrop(renewing),
        })
    }

    /// Refuses to go on once another process has taken over.
    pub fn check(&self, place: &str) -> Result<(), VerifyError> {
        match self.lost.load(Ordering::SeqCst) {
            true => Err(failed(
                place,
                "another process has taken it over, because this one did not reach it for a minute",
            )),
            false => Ok(()),
        }
    }
}

/// Gives the lease of this process back.
pub async fn release(entries: &Collection<Document>, place: &str) -> Result<(), VerifyError> {
    let mut mine = owner();
    mine.insert("_id", KEY);
    let released = entries.delete_one(mine).await;
    released.map(drop).map_err(|error| failed(place, error))
}

async fn renew(client: Client, entries: Collection<Document>, lost: Arc<AtomicBool>) {
    let mut mine = owner();
    mine.insert("_id", KEY);
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        // What cannot be reached now is tried again with the next round.
        let Ok(now) = server_time(&client).await else {
            continue;
        };
        let renewed = entries
            .update_one(mine.clone(), doc! {"$set": {"renewed": now}})
            .await;
        if renewed.is_ok_and(|renewed| renewed.matched_count == 0) {
            lost.store(true, Ordering::SeqCst);
            return;
        }
    }
}

fn owner() -> Document {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    doc! {"host": host, "pid": i64::from(std::process::id())}
}

/// Whether somebody else's lease may be taken.
fn is_free(held: &Document, now: DateTime) -> bool {
    let mine = owner();
    let renewed = held.get_datetime("renewed");
    let lapsed = renewed
        .is_ok_and(|renewed| now.timestamp_millis() - renewed.timestamp_millis() > LAPSES_AFTER_MS);
    let here = held.get("host") == mine.get("host");
    let pid = held
        .get_i64("pid")
        .ok()
        .and_then(|pid| i32::try_from(pid).ok());
    let gone = match pid.and_then(Pid::from_raw) {
        _ if held.get("pid") == mine.get("pid") => true,
        Some(pid) => rustix::process::test_kill_process(pid) == Err(Errno::SRCH),
        None => true,
    };
    lapsed || (here && gone)
}

fn is_duplicate(error: &DriverError) -> bool {
    matches!(
        error.kind.as_ref(),
        ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE_KEY
    )
}

/// The time of the server, which all who share the database agree on.
async fn server_time(client: &Client) -> Result<DateTime, DriverError> {
    let admin = client.database("admin");
    let hello = admin.run_command(doc! {"hello": 1}).await?;
    // A server too old to say so has clients whose clocks must do.
    Ok(hello
        .get_datetime("localTime")
        .copied()
        .unwrap_or_else(|_| DateTime::now()))
}
