//! Counts of what was done since the start, for `serverStatus`.

use model::bson::DocWriter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::OpCounters;

/// What an operation does with documents, as MongoDB tells commands apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OperationKind {
    Read,
    Write,
    Command,
}

impl OperationKind {
    pub(crate) fn of(command: &str) -> OperationKind {
        match command {
            "find" | "getMore" | "count" | "distinct" | "aggregate" => OperationKind::Read,
            "insert" | "update" | "delete" | "findAndModify" | "findandmodify" => {
                OperationKind::Write
            }
            _ => OperationKind::Command,
        }
    }
}

/// How many operations there were, and how long all of them took together.
#[derive(Default)]
struct Took {
    operations: AtomicU64,
    us: AtomicU64,
}

impl Took {
    fn append_to(&self, writer: &mut DocWriter, name: &str) {
        writer
            .begin_document(name)
            .append("latency", self.us.load(Ordering::Relaxed) as i64)
            .append("ops", self.operations.load(Ordering::Relaxed) as i64)
            .end();
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) operations: OpCounters,
    reads: Took,
    writes: Took,
    commands: Took,
    failed_commands: AtomicU64,
    documents_inserted: AtomicU64,
    documents_updated: AtomicU64,
    documents_deleted: AtomicU64,
    documents_returned: AtomicU64,
    /// Commands and statements that were answered from a session's history.
    pub(crate) retried_commands: AtomicU64,
    pub(crate) retried_statements: AtomicU64,
    pub(crate) ttl_passes: AtomicU64,
    pub(crate) ttl_deleted: AtomicU64,
    pub(crate) waits_for_moves: AtomicU64,
    pub(crate) range_deletions: AtomicU64,
    /// Those that would have removed what is owned or received.
    pub(crate) refused_range_deletions: AtomicU64,
    pub(crate) range_deleted_documents: AtomicU64,
    /// Records that were counted to be forgotten.
    pub(crate) counted_records: AtomicU64,
    /// Records that index builds have gone through.
    pub(crate) indexed_records: AtomicU64,
}

impl Counters {
    /// An operation waits for the end of a move.
    pub(crate) fn waited_for_move(&self) {
        self.waits_for_moves.fetch_add(1, Ordering::Relaxed);
    }

    /// What was done by now of what a range that is to come may have to wait for: dead ranges are removed,
    /// indexes built.
    pub(crate) fn preparation(&self) -> u64 {
        let counters = [
            &self.range_deleted_documents,
            &self.counted_records,
            &self.indexed_records,
        ];
        let counts = counters.map(|counter| counter.load(Ordering::Relaxed));
        counts.iter().sum()
    }

    /// What `serverStatus` tells of moves.
    pub(crate) fn append_sharding_to(&self, writer: &mut DocWriter) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
        writer
            .append(
                "countDocsDeletedByRangeDeleter",
                read(&self.range_deleted_documents),
            )
            .append("countRangeDeletions", read(&self.range_deletions))
            .append(
                "countRangeDeletionsRefused",
                read(&self.refused_range_deletions),
            )
            .append("countWaitsForMoves", read(&self.waits_for_moves));
    }

    /// An operation has ended that has not waited for news.
    pub(crate) fn ended(&self, command: &str, took: Duration) {
        let kind = match OperationKind::of(command) {
            OperationKind::Read => &self.reads,
            OperationKind::Write => &self.writes,
            OperationKind::Command => &self.commands,
        };
        kind.operations.fetch_add(1, Ordering::Relaxed);
        kind.us
            .fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// A command was answered with an error.
    pub(crate) fn failed(&self) {
        self.failed_commands.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn inserted(&self, count: i64) {
        self.documents_inserted
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn updated(&self, count: i64) {
        self.documents_updated
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn deleted(&self, count: i64) {
        self.documents_deleted
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn returned(&self, count: usize) {
        self.documents_returned
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// The sections of `serverStatus` that come from here.
    /// `cursors` are those open, in use and without a time limit.
    pub(crate) fn append_to(&self, writer: &mut DocWriter, cursors: [i64; 3]) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
        self.operations.append_to(writer);
        writer.begin_document("opLatencies");
        self.reads.append_to(writer, "reads");
        self.writes.append_to(writer, "writes");
        self.commands.append_to(writer, "commands");
        // There are none.
        Took::default().append_to(writer, "transactions");
        writer.end();
        // A bug of the server ends it: only what clients did wrong is left to be counted.
        writer.begin_document("asserts");
        for name in ["regular", "warning", "msg"] {
            writer.append(name, 0);
        }
        let failed = read(&self.failed_commands);
        match i32::try_from(failed) {
            Ok(failed) => writer.append("user", failed),
            Err(_) => writer.append("user", failed),
        };
        writer.append("tripwire", 0).append("rollovers", 0).end();
        writer
            .begin_document("metrics")
            .begin_document("document")
            .append("deleted", read(&self.documents_deleted))
            .append("inserted", read(&self.documents_inserted))
            .append("returned", read(&self.documents_returned))
            .append("updated", read(&self.documents_updated))
            .end()
            .begin_document("cursor")
            .begin_document("open")
            .append("noTimeout", cursors[2])
            .append("pinned", cursors[1])
            .append("total", cursors[0])
            .end()
            .end()
            .begin_document("ttl")
            .append("deletedDocuments", read(&self.ttl_deleted))
            .append("passes", read(&self.ttl_passes))
            .end()
            .end();
    }
}
