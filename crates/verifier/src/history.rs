//! Whether a side is still the cluster that was compared, or went back in time.
//!
//! Files of an earlier day that are put back, a restored backup: what was seen since is gone without an
//! event, and a clock that only says how late it is says nothing of it. So a run keeps, for each side and each
//! of its shards, a *witness* of its history: the newest entry of the oplog that a majority has.
//!
//! ```text
//! history    ──a────b────────c───────────►        reads and marks before c are covered by c
//! put back   ──a──┐                               a is there, c is not: it went back
//!                 └────b'──────c'────────►        as late as c, but other entries
//! ```
//!
//! A chain: each new witness is taken first, then the one before is asked for; were the side put back between
//! the two, the next link would break. A link is made every few seconds, before anything that was seen is
//! marked as done (so that what is kept saw nothing later than the witness that is kept), and once
//! more before the verdict. A later process asks for the witness that it finds, and begins anew if it is
//! gone. It reads changes from the witness on if the mark of the stream is later: changes in between may have
//! been put back as well.
//!
//! An entry is known by its time, term, wall clock, kind and collection. It is asked for at the primary: a member
//! that was put back alone catches up with the others, and if the others follow it, it is the primary.
//!
//! Where the oplog may not be read (the role `readAnyDatabase` leaves `local` out) the witness is the
//! primary itself: its process and its election. As long as both are the same, so is the history; after
//! another election nothing can be told. The shards of a cluster are asked directly, with the user of the
//! URI; where that is not possible nothing tells, and a later process begins anew. So it is with a server
//! without an oplog.
//!
//! Left out: config servers, and a backup so young that it has the last witness but not what was read in
//! the few seconds since, put back while the same process goes on.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::record::{history_key, put, read};
use crate::scan::Shared;
use crate::store::Store;
use crate::time::{ClusterTime, shown_moment};
use crate::topology::Topology;
use bson::{Document, doc};
use mongodb::options::{ReadPreference, SelectionCriteria};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const LINK_INTERVAL: Duration = Duration::from_secs(5);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long a side may be out of reach before what was seen stays undone; it can be resumed.
const PATIENCE: Duration = Duration::from_secs(60);
const ACTION: &str = "tell its history";
const GRANT: &str = "grant its user the role read on the database local";

/// The witnesses of a side, by the names of its shards; a replica set has one, without a name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    sets: BTreeMap<String, Witness>,
}

/// What a replica set had at some moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Witness {
    /// Everything that was seen of it before it was asked is not later than this.
    time: ClusterTime,
    /// The digest of the entry of that time; None where the oplog may not be read.
    entry: Option<String>,
    /// The process and the election of its primary, if it tells them.
    primary: Option<String>,
}

impl History {
    /// Up to where all of it is known to be as it was.
    fn time(&self) -> Option<ClusterTime> {
        self.sets.values().map(|witness| witness.time).min()
    }
}

/// Who keeps the chain of a side.
pub struct Historian {
    cluster: Cluster,
    /// Connections to shards, by their connection strings.
    shards: Mutex<HashMap<String, Cluster>>,
    last: tokio::sync::Mutex<Last>,
    /// Why nothing tells the history, or not all of it; for people.
    silence: OnceLock<String>,
    /// Where a later process resumes the stream at the latest.
    resumed_at: OnceLock<ClusterTime>,
}

#[derive(Default)]
struct Last {
    /// None if nothing tells the history.
    history: Option<History>,
    /// When the last link was begun.
    begun: Option<Instant>,
}

/// Both sides'.
pub type Historians = [Historian; 2];

impl Historian {
    pub fn new(cluster: &Cluster) -> Historian {
        Historian {
            cluster: cluster.clone(),
            shards: Mutex::default(),
            last: tokio::sync::Mutex::default(),
            silence: OnceLock::new(),
            resumed_at: OnceLock::new(),
        }
    }

    /// The first link of a new run.
    pub async fn begin(&self, store: &Store) -> Result<(), VerifyError> {
        if self.cluster.topology == Topology::Standalone {
            return Ok(());
        }
        let begun = Instant::now();
        let history = match self.take().await {
            Ok(history) => history,
            Err(error @ (VerifyError::State { .. } | VerifyError::Interrupted(_))) => {
                return Err(error);
            }
            Err(error) => {
                self.is_silent(format!(
                    "nothing tells whether the {} goes back in time ({error}): an interrupted run will begin anew",
                    self.cluster.side
                ));
                return Ok(());
            }
        };
        if history.sets.values().any(|witness| witness.entry.is_none()) {
            self.is_silent(format!(
                "the user on the {} may not read its oplog, so that the run cannot go on when the primary changes: {GRANT}",
                self.cluster.side
            ));
        }
        self.keep(store, &history).await?;
        *self.last.lock().await = Last {
            history: Some(history),
            begun: Some(begun),
        };
        Ok(())
    }

    /// Takes up the chain of an earlier process; says why that is not possible.
    pub async fn resume(&self, store: &Store) -> Result<Result<(), String>, VerifyError> {
        let side = self.cluster.side;
        let Some(kept) = read::<History>(store, &history_key(side)).await? else {
            return Ok(Err(format!(
                "nothing tells whether the {side} is still as it was then"
            )));
        };
        let next = match self.take().await {
            Ok(next) => next,
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => return Ok(Err(error.to_string())),
        };
        match self.check(&kept, &next).await {
            Ok(()) => {}
            Err(VerifyError::WentBack { detail, .. }) => {
                return Ok(Err(format!("the {side} is not what it was: {detail}")));
            }
            Err(error) => return Err(error),
        }
        if let Some(time) = kept.time() {
            // Once, when a process begins.
            let _ = self.resumed_at.set(time);
        }
        self.keep(store, &next).await?;
        *self.last.lock().await = Last {
            history: Some(next),
            begun: Some(Instant::now()),
        };
        Ok(Ok(()))
    }

    /// A later mark of an earlier process may lie behind what was put back.
    pub fn resumed_at(&self) -> Option<ClusterTime> {
        self.resumed_at.get().copied()
    }

    pub fn silence(&self) -> Option<&String> {
        self.silence.get()
    }

    fn is_silent(&self, why: String) {
        // Once, when a run begins.
        let _ = self.silence.set(why);
    }

    async fn keep(&self, store: &Store, history: &History) -> Result<(), VerifyError> {
        let key = history_key(self.cluster.side);
        store.write(vec![put(key, history)?]).await
    }

    /// Makes a link that covers everything that was seen before this was called.
    async fn link(&self, store: &Store) -> Result<(), VerifyError> {
        let called = Instant::now();
        let mut last = self.last.lock().await;
        let Some(history) = &last.history else {
            return Ok(());
        };
        // Somebody else's, while we waited for it.
        if last.begun.is_some_and(|begun| begun > called) {
            return Ok(());
        }
        let begun = Instant::now();
        let next = self.take().await?;
        self.check(history, &next).await?;
        if next != *history {
            self.keep(store, &next).await?;
        }
        *last = Last {
            history: Some(next),
            begun: Some(begun),
        };
        Ok(())
    }

    /// The replica sets of the side, by name.
    async fn sets(&self) -> Result<BTreeMap<String, Cluster>, VerifyError> {
        if self.cluster.topology != Topology::Sharded {
            return Ok(BTreeMap::from([(String::new(), self.cluster.clone())]));
        }
        let mut sets = BTreeMap::new();
        for (name, hosts) in self.cluster.shards().await? {
            let known = self.shards().get(&hosts).cloned();
            let shard = match known {
                Some(shard) => shard,
                None => {
                    let shard = self.cluster.replica_set(&hosts)?;
                    self.shards().insert(hosts, shard.clone());
                    shard
                }
            };
            sets.insert(name, shard);
        }
        Ok(sets)
    }

    fn shards(&self) -> std::sync::MutexGuard<'_, HashMap<String, Cluster>> {
        // Single changes of a map cannot be left half done.
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self) -> Result<History, VerifyError> {
        let sets = self.sets().await?;
        let taken = sets.into_iter().map(|(name, set)| async move {
            let witness = Witness::take(&set).await;
            witness.map(|witness| (name, witness))
        });
        let taken = futures_util::future::try_join_all(taken).await?;
        Ok(History {
            sets: taken.into_iter().collect(),
        })
    }

    /// Whether the side still has what it had, after `now` was taken.
    async fn check(&self, kept: &History, now: &History) -> Result<(), VerifyError> {
        let sets = self.sets().await?;
        for (name, witness) in &kept.sets {
            // A shard that was removed has given its documents to others, which is told as changes of theirs.
            let (Some(set), Some(now)) = (sets.get(name), now.sets.get(name)) else {
                continue;
            };
            witness.check(set, now).await?;
        }
        Ok(())
    }
}

impl Witness {
    async fn take(set: &Cluster) -> Result<Witness, VerifyError> {
        let hello = ask(set, "admin", doc! {"hello": 1}).await?;
        // The time of its last write. What a reply has as its time may lie ahead of that, on a shard that has
        // heard of others; to wait for it is to wait until something is written.
        let written = hello.get_document("lastWrite");
        let written = written.and_then(|write| write.get_document("opTime"));
        let written = written.and_then(|time| time.get_timestamp("ts"));
        let told: ClusterTime = written.map_err(|_| set.malformed(ACTION))?.into();
        let process = hello
            .get_document("topologyVersion")
            .ok()
            .and_then(|version| version.get_object_id("processId").ok());
        let primary = process
            .zip(hello.get_object_id("electionId").ok())
            .map(|(process, election)| format!("{process} {election}"));
        let newest = doc! {
            "sort": {"$natural": -1},
            "readConcern": {"level": "majority", "afterClusterTime": told.timestamp()},
        };
        let (time, entry) = match entry_of(set, newest).await {
            Ok(Some(entry)) => (entry.time, Some(entry.digest)),
            Ok(None) => return Err(set.malformed(ACTION)),
            Err(VerifyError::Privilege { .. }) if primary.is_some() => (told, None),
            Err(error) => return Err(error),
        };
        Ok(Witness {
            time,
            entry,
            primary,
        })
    }

    /// Whether a set still has what it had, after `now` was taken.
    async fn check(&self, set: &Cluster, now: &Witness) -> Result<(), VerifyError> {
        let at = shown_moment(self.time.milliseconds());
        let Some(digest) = &self.entry else {
            return match self.primary == now.primary && self.time <= now.time {
                true => Ok(()),
                false => Err(set.went_back(format!(
                    "its primary has changed or was started again since {at}, and whether it went back in time only its oplog tells: {GRANT}"
                ))),
            };
        };
        // At the primary itself, which has what a majority had; how far a majority is it may not know yet.
        let local = doc! {"level": "local"};
        let from = doc! {
            "filter": {"ts": {"$gte": self.time.timestamp()}}, "readConcern": &local,
        };
        let found = match entry_of(set, from).await {
            Err(VerifyError::Privilege { detail, .. }) => {
                return Err(set.went_back(format!(
                    "whether it went back in time since {at} only its oplog tells ({detail}): {GRANT}"
                )));
            }
            found => found?,
        };
        if found.is_some_and(|found| found.time == self.time && found.digest == *digest) {
            return Ok(());
        }
        let oldest = doc! {"sort": {"$natural": 1}, "readConcern": &local};
        let oldest = entry_of(set, oldest).await?;
        Err(set.went_back(match oldest {
            Some(oldest) if oldest.time > self.time => format!(
                "its oplog no longer reaches back to {at}, where this run left off: make the oplog larger"
            ),
            Some(_) | None => format!(
                "it went back in time, because its oplog does not have the entry of {at} that it had, as after older files or a backup were put back"
            ),
        }))
    }
}

/// An entry of an oplog, as far as it tells one history from another.
struct Entry {
    time: ClusterTime,
    digest: String,
}

/// The first entry that a query finds.
async fn entry_of(set: &Cluster, query: Document) -> Result<Option<Entry>, VerifyError> {
    let mut command = doc! {
        "find": "oplog.rs", "limit": 1, "singleBatch": true,
        "projection": {"_id": 0, "ts": 1, "t": 1, "wall": 1, "op": 1, "ns": 1, "ui": 1},
    };
    command.extend(query);
    let reply = ask(set, "local", command).await?;
    let cursor = reply.get_document("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|_| set.malformed(ACTION))?;
    let Some(entry) = batch.first() else {
        return Ok(None);
    };
    let read = entry.as_document().and_then(|entry| {
        let time = entry.get_timestamp("ts").ok()?.into();
        let digest = xxhash_rust::xxh3::xxh3_128(&entry.to_vec().ok()?);
        let digest = format!("{digest:032x}");
        Some(Entry { time, digest })
    });
    read.map(Some).ok_or_else(|| set.malformed(ACTION))
}

async fn ask(set: &Cluster, database: &str, command: Document) -> Result<Document, VerifyError> {
    set.client
        .database(database)
        .run_command(command)
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .await
        .map_err(|error| set.failed(ACTION, &error))
}

impl Cluster {
    fn went_back(&self, detail: String) -> VerifyError {
        VerifyError::WentBack {
            side: self.side,
            address: self.address.clone(),
            detail,
        }
    }
}

impl Shared {
    pub fn historian(&self, side: Side) -> &Historian {
        &self.historians[side as usize]
    }

    /// Makes sure that all that was seen of both sides so far is part of their history, and keeps what
    /// shows it. Before anything that was seen is marked as done.
    pub async fn cover(&self) -> Result<(), VerifyError> {
        let begun = Instant::now();
        loop {
            match self.cover_once().await {
                Err(error) if error.is_transient() && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) if error.is_transient() => {
                    return Err(VerifyError::Interrupted(Box::new(error)));
                }
                ended => return ended,
            }
        }
    }

    pub async fn cover_once(&self) -> Result<(), VerifyError> {
        let [source, destination] = &self.historians;
        tokio::try_join!(source.link(&self.store), destination.link(&self.store))?;
        Ok(())
    }

    /// What a run cannot notice, for people.
    pub fn silences(&self) -> Vec<String> {
        let told = self.historians.iter().filter_map(Historian::silence);
        told.cloned().collect()
    }
}

/// Makes links until one breaks, and says why.
pub async fn watch(shared: Arc<Shared>) -> VerifyError {
    loop {
        tokio::time::sleep(LINK_INTERVAL).await;
        match shared.cover_once().await {
            Ok(()) => {}
            // Whoever needs the side finds out, and waits for it.
            Err(error) if error.is_transient() => {}
            Err(error) => return error,
        }
    }
}
