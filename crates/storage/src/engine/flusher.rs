//! Full memtables become tables on a thread of ours, which gives way.
//!
//! ```text
//!   writer    … batch ─ batch ─ full: ask ─ batch ─ batch ─ …      fuller by a quarter: seals it himself
//!   here                           └─ seal ─ flush, in pieces ─┘
//!   engine                            └─ waits ───────────────────── nothing to flush; merges
//! ```
//!
//! A flush takes a core for a fifth of a second and more, in the middle of what clients do. The engine's own cannot
//! be interrupted, and at a lower priority writers would wait for it. One of ours reads the memtable through an
//! iterator of ours, which offers the core after every piece (`giving_way.rs`).
//!
//! The engine is told of each memtable that is sealed, as ever, and its thread waits until the flush is done. So
//! nothing depends on this thread: what it cannot flush, the engine tries; where it is late, a writer seals the
//! memtable, and whoever comes first flushes it: the engine, or this thread before the next one. Beside large batches
//! (`sheaves.rs`), which the engine's thread knows nothing of, the writer comes later, and flushes it himself.

use super::asked_thread::AskedThread;

/// Ends its thread when it is dropped.
pub(super) struct Flusher(AskedThread);

impl Flusher {
    /// What it does when it is asked; without a thread nobody does it.
    pub fn start(flush: impl Fn() + Send + 'static) -> Self {
        let thread = AskedThread::start("flush", "the engine flushes by itself", move |asked| {
            while asked.wait() {
                flush();
            }
        });
        Self(thread)
    }

    /// Asks for a flush; once is enough until it has begun.
    pub fn ask(&self) {
        self.0.ask();
    }
}
