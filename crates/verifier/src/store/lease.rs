//! Who works on a run that is kept in a database: one process at a time.
//!
//! ```text
//! verify_lease            {_id: "lease", first, token, host, machine, pid, renewed}
//! verify_state_<token>    the entries, as far as the owner of that token has them
//! ```
//!
//! One document names the owner. It is taken if there is none; if its process is gone from this
//! machine; if it was not renewed for a minute, wherever its owner is. Each taking has a *token* of its
//! own, greater than all before it. A process that opens a place again takes it from itself.
//!
//! **Fencing.** Whoever takes over renames the entries to a name that ends in its token, before it reads
//! them. A process that was paused or cut off, and does not know yet that it was replaced, still writes
//! under its old name: nobody reads that any more. Of a write that was under way, what the server
//! made before it renamed is part of the entries, and the rest is not: a first part of it, as after
//! a kill. What such a process reads is empty, so it must not conclude anything: [`Lease::confirm`]
//! stands between the last read and every verdict.
//!
//! **Which entries are the run's.** Those with the greatest token that is not below `first`, the token
//! of whoever made the document. For entries get a token only by the renaming of those of the
//! greatest one before, by somebody who had taken the lease; names that a replaced process made
//! again have smaller ones, and names that were left from before the document was made are
//! smaller than `first`. So a process that dies between taking and renaming harms nothing, nor does
//! one that wakes up there: at worst it renames what its successor then renames once more.
//!
//! **Clocks.** Times are the server's. If they jump, a lease passes on early or late, which costs an
//! owner its work at most. Only between the end of one run and the beginning of another tokens rely on
//! the clock not going back.

use crate::error::VerifyError;
use crate::scan::AbortOnDrop;
use bson::{DateTime, Document, doc};
use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};
use mongodb::options::WriteConcern;
use mongodb::{Collection, Database};
use rustix::io::Errno;
use rustix::process::Pid;
use std::time::Duration;
use tokio::sync::watch;

const OWNERS: &str = "verify_lease";
const ENTRIES: &str = "verify_state_";
const KEY: &str = "lease";
const RENEWED_EVERY: Duration = Duration::from_secs(10);
const LAPSES_AFTER_MS: i64 = 60_000;
const DUPLICATE_KEY: i32 = 11000;
const NAMESPACE_NOT_FOUND: i32 = 26;
/// How often the lease is looked at while others take and leave it.
const TAKINGS: u32 = 20;
/// How often the entries are looked for while others rename them.
const ADOPTIONS: u32 = 10;

pub struct Lease {
    database: Database,
    place: String,
    token: i64,
    /// Greater tokens than this, up to our own, were given to this run.
    first: i64,
    lost: watch::Receiver<bool>,
    _renewing: AbortOnDrop,
}

/// Whether a collection of the database that runs are kept in is part of one.
pub fn is_ours(collection: &str) -> bool {
    collection == OWNERS || token_of(collection).is_some()
}

impl Lease {
    /// Takes the lease and what it is for, or says who has it.
    pub async fn take(database: &Database, place: &str) -> Result<Lease, VerifyError> {
        let broken = |error: DriverError| VerifyError::of_meta(place, &error);
        let mut tries = 0;
        let (first, token) = loop {
            let now = server_time(database).await.map_err(broken)?;
            let (mut first, mut token) = (now.timestamp_millis(), now.timestamp_millis());
            let inserted = owners(database).insert_one(owner(first, token, now)).await;
            match inserted {
                Ok(_) => break (first, token),
                Err(error) if is_duplicate(&error) => {}
                Err(error) => return Err(broken(error)),
            }
            let held = owners(database).find_one(doc! {"_id": KEY}).await;
            tries += 1;
            let Some(held) = held.map_err(broken)? else {
                // Its owner left between the two looks.
                if tries < TAKINGS {
                    continue;
                }
                return Err(super::failed(
                    place,
                    "other processes come and go there all the time: start again, or name another database with --meta-database",
                ));
            };
            first = held.get_i64("first").unwrap_or(first);
            token = token.max(held.get_i64("token").unwrap_or_default() + 1);
            // Only if it is still what was judged: of two who find it free one gets it.
            let mut judged = doc! {"_id": KEY, "token": held.get("token")};
            let Some(why) = why_free(&held, now) else {
                return Err(in_use(place, &held));
            };
            if why == Free::Lapsed {
                judged.insert("renewed", held.get("renewed"));
            }
            let mine = owner(first, token, now);
            let replaced = owners(database).replace_one(judged, mine).await;
            if replaced.map_err(broken)?.matched_count > 0 {
                break (first, token);
            }
            // It is no longer what was judged: somebody was faster, or its owner left.
            if tries == TAKINGS {
                return Err(in_use(place, &held));
            }
        };
        let (losing, lost) = watch::channel(false);
        let renewing = tokio::spawn(renew(database.clone(), token, losing));
        let lease = Lease {
            database: database.clone(),
            place: place.to_owned(),
            token,
            first,
            lost,
            _renewing: AbortOnDrop(renewing),
        };
        lease.adopt().await?;
        lease.confirm().await?;
        Ok(lease)
    }

    /// Where the owner of this lease keeps the entries.
    pub fn entries(&self) -> String {
        format!("{ENTRIES}{:015}", self.token)
    }

    /// Gives the run's entries, if there are any, the name of this token.
    async fn adopt(&self) -> Result<(), VerifyError> {
        for _ in 0..ADOPTIONS {
            let tokens = self.tokens().await?;
            let Some(last) = tokens.last().filter(|last| **last >= self.first) else {
                return Ok(());
            };
            if *last >= self.token {
                return Err(self.taken_over());
            }
            let name = self.database.name();
            let from = format!("{name}.{ENTRIES}{last:015}");
            let to = format!("{name}.{}", self.entries());
            let rename = doc! {
                "renameCollection": from, "to": to, "writeConcern": {"w": "majority"},
            };
            let admin = self.database.client().database("admin");
            match admin.run_command(rename).await {
                Ok(_) => return Ok(()),
                // Somebody who had the lease before us has just done the same.
                Err(error) if crate::cluster::code_of(&error) == Some(NAMESPACE_NOT_FOUND) => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Err(self.taken_over())
    }

    /// The tokens of all entries in the database, in their order.
    async fn tokens(&self) -> Result<Vec<i64>, VerifyError> {
        let names = self.database.list_collection_names().await;
        let names = names.map_err(|error| self.broken(&error))?;
        let mut tokens: Vec<i64> = names.iter().filter_map(|name| token_of(name)).collect();
        tokens.sort_unstable();
        Ok(tokens)
    }

    /// Refuses to go on if another process is known to have taken over.
    pub fn check(&self) -> Result<(), VerifyError> {
        match *self.lost.borrow() {
            true => Err(self.taken_over()),
            false => Ok(()),
        }
    }

    /// Makes sure that nobody had taken over before this was asked.
    pub async fn confirm(&self) -> Result<(), VerifyError> {
        match renew_once(&self.database, self.token).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.taken_over()),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Waits until another process is known to have taken over.
    pub async fn until_lost(&self) -> VerifyError {
        let mut lost = self.lost.clone();
        // An error means that renewing ended, which it does only when the lease is lost.
        let _ = lost.wait_for(|lost| *lost).await;
        self.taken_over()
    }

    /// Removes the run and the lease: all that was ever made here, as far as nobody else's is with it.
    pub async fn remove_all(self) -> Result<(), VerifyError> {
        self.confirm().await?;
        for token in self.tokens().await? {
            // A greater one is that of a process which took over just now.
            if token <= self.token {
                let entries = format!("{ENTRIES}{token:015}");
                let dropped = self.database.collection::<Document>(&entries).drop().await;
                dropped.map_err(|error| self.broken(&error))?;
            }
        }
        let owners = owners(&self.database);
        let mine = doc! {"_id": KEY, "token": self.token};
        let released = owners.delete_one(mine).await;
        released.map_err(|error| self.broken(&error))?;
        let any = owners.find_one(doc! {}).await;
        if any.map_err(|error| self.broken(&error))?.is_none() {
            // A user who may not drop it leaves an empty collection, which is no reason to fail.
            let _ = owners.drop().await;
        }
        Ok(())
    }

    fn broken(&self, error: &DriverError) -> VerifyError {
        VerifyError::of_meta(&self.place, error)
    }

    fn taken_over(&self) -> VerifyError {
        super::failed(
            &self.place,
            "another process has taken it over, because this one did not reach it for a minute: let that one end it",
        )
    }
}

fn owners(database: &Database) -> Collection<Document> {
    let options = mongodb::options::CollectionOptions::builder()
        .write_concern(WriteConcern::majority())
        .build();
    database.collection_with_options(OWNERS, options)
}

fn in_use(place: &str, held: &Document) -> VerifyError {
    let host = held.get_str("host").unwrap_or("another host");
    let pid = held.get_i64("pid").unwrap_or_default();
    super::failed(
        place,
        format!(
            "it is in use by process {pid} on {host}: wait for its end, or name another database with --meta-database"
        ),
    )
}

/// Says whether the lease was still that of the token.
async fn renew_once(database: &Database, token: i64) -> Result<bool, DriverError> {
    let mine = doc! {"_id": KEY, "token": token};
    let renewal = doc! {"$currentDate": {"renewed": true}};
    let renewed = owners(database).update_one(mine, renewal).await?;
    Ok(renewed.matched_count > 0)
}

async fn renew(database: Database, token: i64, losing: watch::Sender<bool>) {
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        // What cannot be reached now is tried again with the next round.
        if let Ok(false) = renew_once(&database, token).await {
            losing.send_replace(true);
            return;
        }
    }
}

fn owner(first: i64, token: i64, now: DateTime) -> Document {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let pid = i64::from(std::process::id());
    doc! {
        "_id": KEY, "first": first, "token": token,
        "host": host, "machine": machine(), "pid": pid, "renewed": now,
    }
}

/// Where process ids mean what they mean here: this start of this machine, and this container.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let container = std::fs::read_link("/proc/self/ns/pid");
    // Without these files machines go by the names of their hosts alone.
    let (boot, container) = (boot.unwrap_or_default(), container.unwrap_or_default());
    format!("{} {}", boot.trim(), container.display())
}

/// Why a lease may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Free {
    /// Its process is gone, or is this one, whose earlier handle may still renew it.
    Gone,
    /// It was not renewed; its owner may be about to.
    Lapsed,
}

/// Whether somebody's lease may be taken.
fn why_free(held: &Document, now: DateTime) -> Option<Free> {
    let mine = owner(0, 0, now);
    let same = |field: &str| held.get(field) == mine.get(field);
    let pid = held.get_i64("pid").ok();
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let gone = match pid {
        Some(pid) => same("pid") || rustix::process::test_kill_process(pid) == Err(Errno::SRCH),
        None => true,
    };
    if same("host") && same("machine") && gone {
        return Some(Free::Gone);
    }
    let renewed = held.get_datetime("renewed").ok()?;
    let age_ms = now.timestamp_millis() - renewed.timestamp_millis();
    (age_ms > LAPSES_AFTER_MS).then_some(Free::Lapsed)
}

fn token_of(collection: &str) -> Option<i64> {
    let digits = collection.strip_prefix(ENTRIES)?;
    let token = digits.parse().ok()?;
    (format!("{token:015}") == digits).then_some(token)
}

fn is_duplicate(error: &DriverError) -> bool {
    matches!(
        error.kind.as_ref(),
        ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE_KEY
    )
}

/// The time of the server, which all who share the database agree on.
async fn server_time(database: &Database) -> Result<DateTime, DriverError> {
    let hello = database.run_command(doc! {"hello": 1}).await?;
    // A server too old to say so has clients whose clocks must do.
    Ok(hello
        .get_datetime("localTime")
        .copied()
        .unwrap_or_else(|_| DateTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_token_are_entries() {
        assert_eq!(token_of("verify_state_000000000000007"), Some(7));
        for other in ["verify_state_7", "verify_state_", "verify_state_x", "state"] {
            assert_eq!(token_of(other), None, "{other}");
            assert!(!is_ours(other));
        }
        assert!(is_ours(OWNERS));
    }
}
