//! What clients have asked for since the start, as `opcounters` of `serverStatus` tells it.
//!
//! Counted as MongoDB does: writes by the statements that were tried, everything else by commands.

use model::bson::DocWriter;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub struct OpCounters {
    insert: AtomicU64,
    query: AtomicU64,
    update: AtomicU64,
    delete: AtomicU64,
    get_more: AtomicU64,
    command: AtomicU64,
}

impl OpCounters {
    /// A command has come. Writes count when it is known how many they are.
    pub fn command(&self, name: &str) {
        let counter = match name {
            "find" => &self.query,
            "getMore" => &self.get_more,
            "insert" | "update" | "delete" => return,
            _ => &self.command,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub fn inserts(&self, statements: usize) {
        self.insert.fetch_add(statements as u64, Relaxed);
    }

    pub fn updates(&self, statements: usize) {
        self.update.fetch_add(statements as u64, Relaxed);
    }

    pub fn deletes(&self, statements: usize) {
        self.delete.fetch_add(statements as u64, Relaxed);
    }

    pub fn append_to(&self, writer: &mut DocWriter) {
        let read = |counter: &AtomicU64| counter.load(Relaxed) as i64;
        writer
            .begin_document("opcounters")
            .append("insert", read(&self.insert))
            .append("query", read(&self.query))
            .append("update", read(&self.update))
            .append("delete", read(&self.delete))
            .append("getmore", read(&self.get_more))
            .append("command", read(&self.command))
            .end();
    }
}
