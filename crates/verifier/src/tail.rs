//! Following a side by its oplog, where change streams are not wanted.
//!
//! ```text
//! ask the primary for its time T ──► find {ts: {$gte: last}}, majority, after T ──► entries
//!          ▲                                                                          │
//!          └──── a moment later, with the last entry read; everything up to T is known ┘
//! ```
//!
//! Each round is a query of its own rather than a cursor that waits: its read concern makes it wait until
//! everything up to T is committed, so that a round that ends has seen every entry up to T, also if the
//! last of them is older. A cursor that waits does not say how far it has come while nothing happens.
//!
//! Each round begins with the entry that the last one ended with. If it is not there, the oplog must
//! at least begin before it: otherwise something is lost, and the run cannot go on.

use crate::cluster::Cluster;
use crate::element::{Malformed, Writer};
use crate::error::VerifyError;
use crate::event::Event;
use crate::oplog::{Entries, Unread, time_of};
use crate::reading::Documents;
use crate::time::ClusterTime;
use bson::{RawDocumentBuf, doc};
use mongodb::options::{ReadPreference, SelectionCriteria};
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const ENTRIES_AT_ONCE: i32 = 2000;
const ACTION: &str = "read its oplog";

/// The oplog of a side, as something to ask.
struct Oplog {
    cluster: Cluster,
}

/// An oplog that is being read.
pub struct Tail {
    oplog: Oplog,
    /// The entry that was read last, or where to begin.
    last: ClusterTime,
    /// Whether that entry was read.
    is_read: bool,
    entries: Entries,
    round: Option<Round>,
    is_idle: bool,
}

struct Round {
    documents: Documents,
    /// When this round ends, everything up to here is known.
    covers: ClusterTime,
    has_begun: bool,
}

/// What a part of a round showed.
pub struct Tailed {
    pub events: Vec<Event>,
    /// Up to which time everything is known.
    pub reached: ClusterTime,
    /// Where to resume.
    pub resume_at: ClusterTime,
    /// Whether the round has ended.
    pub is_idle: bool,
}

impl Tail {
    pub fn new(cluster: Cluster, from: ClusterTime) -> Tail {
        Tail {
            oplog: Oplog { cluster },
            last: from,
            is_read: false,
            entries: Entries::default(),
            round: None,
            is_idle: false,
        }
    }

    pub async fn next(&mut self) -> Result<Tailed, VerifyError> {
        let mut round = match self.round.take() {
            Some(round) => round,
            None => self.begin_round().await?,
        };
        let batch = round.documents.next().await;
        let batch = batch.map_err(|error| self.oplog.explained(error))?;
        if !round.has_begun {
            let first = batch.as_ref().and_then(|batch| batch.get(0));
            let first = first.map(time_of).transpose();
            let first = first.map_err(|Malformed| self.oplog.cluster.malformed(ACTION))?;
            self.oplog.check_continuity(self.last, first).await?;
            round.has_begun = true;
        }
        let mut events = Vec::new();
        let Some(batch) = batch else {
            self.is_idle = true;
            return Ok(self.tailed(events, round.covers.max(self.last)));
        };
        for entry in batch.documents() {
            let time = time_of(entry).map_err(|Malformed| self.oplog.cluster.malformed(ACTION))?;
            if self.is_read && time <= self.last {
                continue;
            }
            let read = self.entries.read(entry, time);
            events.extend(read.map_err(|unread| self.oplog.unread(unread))?);
            self.last = time;
            self.is_read = true;
        }
        self.is_idle = false;
        self.round = Some(round);
        Ok(self.tailed(events, self.last))
    }

    fn tailed(&self, events: Vec<Event>, reached: ClusterTime) -> Tailed {
        let held = self.entries.held_back_from();
        Tailed {
            events,
            reached,
            resume_at: held.map_or(self.last, |held| held.min(self.last)),
            is_idle: self.is_idle,
        }
    }

    async fn begin_round(&mut self) -> Result<Round, VerifyError> {
        if self.is_idle {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let covers = self.oplog.time_of_primary().await?;
        let mut bound = Writer::new();
        bound.timestamp("$gte", self.last.timestamp());
        let mut filter = Writer::new();
        filter.document("ts", &bound.finish());
        let mut command = Writer::new();
        command
            .text("find", "oplog.rs")
            .document("filter", &filter.finish())
            .int32("batchSize", ENTRIES_AT_ONCE);
        if self.oplog.cluster.has_sample_rate {
            // Of documents only the keys, on servers that can compute in a projection.
            let wanted = doc! {
                "ts": 1, "op": 1, "ns": 1, "lsid": 1, "txnNumber": 1,
                "o2": {"_id": "$o2._id"},
                "o": {"$cond": [{"$eq": ["$op", "c"]}, "$o", {"_id": "$o._id"}]},
            };
            let wanted = wanted.to_vec();
            let wanted = wanted.map_err(|_| self.oplog.cluster.malformed(ACTION))?;
            command.document("projection", &wanted);
        }
        let documents = self.oplog.query(command, covers).await?;
        Ok(Round {
            documents,
            covers,
            has_begun: false,
        })
    }
}

impl Oplog {
    async fn query(
        &self,
        mut command: Writer,
        after: ClusterTime,
    ) -> Result<Documents, VerifyError> {
        let mut concern = Writer::new();
        concern
            .text("level", "majority")
            .timestamp("afterClusterTime", after.timestamp());
        command.document("readConcern", &concern.finish());
        let command = RawDocumentBuf::from_bytes(command.finish())
            .expect("what the writer wrote is a document");
        let batch = ENTRIES_AT_ONCE.unsigned_abs();
        let opened = self.cluster.open("local", command, batch, ACTION).await;
        opened.map_err(|error| self.explained(self.cluster.failed(ACTION, &error)))
    }

    /// The time of the last write that the primary knows.
    async fn time_of_primary(&self) -> Result<ClusterTime, VerifyError> {
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let database = self.cluster.client.database("admin");
        let asked = database
            .run_command(doc! {"ping": 1})
            .selection_criteria(primary);
        let reply = asked
            .await
            .map_err(|error| self.cluster.failed("tell its cluster time", &error))?;
        let time = ClusterTime::of_reply(&reply);
        time.ok_or_else(|| self.cluster.malformed("tell its cluster time"))
    }

    /// Whether nothing is missing between the last entry and the first of this round.
    async fn check_continuity(
        &self,
        last: ClusterTime,
        first: Option<ClusterTime>,
    ) -> Result<(), VerifyError> {
        if first == Some(last) {
            return Ok(());
        }
        let mut natural = Writer::new();
        natural.int32("$natural", 1);
        let mut command = Writer::new();
        command
            .text("find", "oplog.rs")
            .document("sort", &natural.finish())
            .int32("limit", 1);
        let mut oldest = self.query(command, last).await?;
        let oldest = oldest.next().await.map_err(|error| self.explained(error))?;
        let oldest = oldest.as_ref().and_then(|batch| batch.get(0)).map(time_of);
        match oldest {
            Some(Ok(oldest)) if oldest <= last => Ok(()),
            Some(Ok(_)) | None => Err(self.cluster.history_lost()),
            Some(Err(Malformed)) => Err(self.cluster.malformed(ACTION)),
        }
    }

    fn unread(&self, unread: Unread) -> VerifyError {
        match unread {
            Unread::Malformed => self.cluster.malformed(ACTION),
            Unread::Kind(kind) => self.cluster.no_changes(format!(
                "its oplog has entries of a kind ({kind}) that this build does not know: leave --changes out"
            )),
        }
    }

    /// A user who may read every database may not read this one.
    fn explained(&self, error: VerifyError) -> VerifyError {
        match error {
            VerifyError::Privilege { detail, .. } => self.cluster.no_changes(format!(
                "its user may not read the oplog ({detail}): grant it the role read on the database local, or leave --changes out"
            )),
            error => error,
        }
    }
}
