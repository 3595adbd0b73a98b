//! How far a long operation is, as `currentOp` shows it.

use model::bson::DocWriter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counted by the operation while it runs.
pub struct Progress {
    /// What it does.
    message: &'static str,
    done: AtomicU64,
    /// A guess made when it began: what is to be done may grow meanwhile.
    total: u64,
}

impl Progress {
    pub fn new(message: &'static str, total: u64) -> Progress {
        Progress {
            message,
            done: AtomicU64::new(0),
            total,
        }
    }

    pub fn add(&self, done: u64) {
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    pub(super) fn append(&self, writer: &mut DocWriter) {
        let message = self.message;
        let done = self.done.load(Ordering::Relaxed);
        let total = self.total.max(done);
        let percent = (u128::from(done) * 100).checked_div(total.into());
        let percent = percent.unwrap_or(100);
        let text = format!("{message} {message}: {done}/{total} {percent}%");
        writer
            .append("msg", text.as_str())
            .begin_document("progress");
        for (name, count) in [("done", done), ("total", total)] {
            match i32::try_from(count) {
                Ok(count) => writer.append(name, count),
                Err(_) => writer.append(name, i64::try_from(count).unwrap_or(i64::MAX)),
            };
        }
        writer.end();
    }
}
