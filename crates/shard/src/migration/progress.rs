//! How far a move is, for `currentOp`, `serverStatus` and the other side.

use crate::operation::Operation;
use cluster::migration::pace::Pace;
use model::bson::DocWriter;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Counted while the move runs.
pub(super) struct Progress {
    pub(super) began: Instant,
    /// Of the whole move, those that an earlier primary received too.
    pub(super) documents: AtomicU64,
    /// What came since this primary goes on.
    pub(super) bytes: AtomicU64,
    /// What an earlier primary had received.
    pub(super) resumed_at: AtomicU64,
    /// What was done before the first document could come: left-overs removed, histories of sessions taken
    /// over, what an earlier primary has received looked at. It says only that something goes on.
    pub(super) prepared: AtomicU64,
    /// Changes that came through the log.
    pub(super) replayed: AtomicU64,
    pub(super) scanned: AtomicBool,
    /// It has said that it has everything, and waits for the decision.
    pub(super) ready: AtomicBool,
    pub(super) ended: AtomicBool,
    /// The part of its time that the copy works, in thousandths.
    pub(super) pace_thousandths: AtomicU64,
    /// The donor's log is replayed up to here.
    pub(super) copied_up_to: AtomicU64,
    /// What the steps took, in milliseconds, those that are over.
    pub(super) preparing_ms: AtomicU64,
    pub(super) scanning_ms: AtomicU64,
    pub(super) catching_up_ms: AtomicU64,
    /// The most entries with documents that were under way while the next one was made.
    pub(super) in_flight_max: AtomicU64,
    /// What `$currentOp` shows and `killOp` kills, while a receiver works.
    pub(super) operation: Mutex<Option<Arc<Operation>>>,
}

/// Measures steps that follow each other.
pub(super) struct StepWatch(Instant);

impl StepWatch {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    /// A step is over, and the next one begins.
    pub(super) fn ends(&mut self, step: &AtomicU64) {
        step.store(self.0.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.0 = Instant::now();
    }
}

impl Progress {
    pub(super) fn new(since: u64) -> Self {
        Self {
            began: Instant::now(),
            documents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            resumed_at: AtomicU64::new(0),
            prepared: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            scanned: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            pace_thousandths: AtomicU64::new(1000),
            copied_up_to: AtomicU64::new(since),
            preparing_ms: AtomicU64::new(0),
            scanning_ms: AtomicU64::new(0),
            catching_up_ms: AtomicU64::new(0),
            in_flight_max: AtomicU64::new(0),
            operation: Mutex::default(),
        }
    }

    pub(super) fn copied(&self, documents: u64, bytes: u64) {
        self.documents.fetch_add(documents, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What it is at, in words that both sides use.
    pub(super) fn phase(&self) -> &'static str {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let documents = self.documents.load(Ordering::Relaxed);
        if is_set(&self.ready) {
            "ready"
        } else if is_set(&self.scanned) {
            "catchingUp"
        } else if documents > self.resumed_at.load(Ordering::Relaxed) {
            "copying"
        } else {
            "recipientBegins"
        }
    }

    /// A new primary goes on behind so many documents.
    pub(super) fn resumes_at(&self, documents: u64) {
        self.documents.store(documents, Ordering::Relaxed);
        self.resumed_at.store(documents, Ordering::Relaxed);
    }

    pub(super) fn prepares(&self, steps: u64) {
        self.prepared.fetch_add(steps, Ordering::Relaxed);
    }

    pub(super) fn set_pace(&self, pace: Pace) {
        let thousandths = (pace.share() * 1000.0) as u64;
        self.pace_thousandths.store(thousandths, Ordering::Relaxed);
    }

    pub(super) fn replayed(&self, changes: u64, bytes: u64) {
        self.replayed.fetch_add(changes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What the donor is told.
    pub(super) fn append(&self, writer: &mut DocWriter) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as i64;
        writer
            .append("copied", self.copied_up_to.load(Ordering::Acquire) as i64)
            .append("scanned", self.scanned.load(Ordering::Acquire))
            .append("documents", count(&self.documents))
            .append("resumedAt", count(&self.resumed_at))
            .append("bytes", count(&self.bytes))
            .append("replayed", count(&self.replayed))
            .append("prepared", count(&self.prepared))
            .append("pace", count(&self.pace_thousandths) as f64 / 1000.0)
            // What the recipient's side of it is, as `config.changelog` shows it.
            .begin_document("to")
            .append("prepareMillis", count(&self.preparing_ms))
            .append("cloneMillis", count(&self.scanning_ms))
            .append("catchUpMillis", count(&self.catching_up_ms))
            .append("clonedDocs", count(&self.documents))
            .append("clonedBytes", count(&self.bytes))
            .append("replayedChanges", count(&self.replayed))
            .append("entriesInFlight", count(&self.in_flight_max))
            .end();
    }
}
