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
//! memtable, and whoever comes first flushes it: the engine, or this thread before the next one.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Wanted {
    flush: bool,
    end: bool,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

/// Ends its thread when it is dropped.
pub(super) struct Flusher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// What it does when it is asked; without a thread nobody does it.
    pub fn start(flush: impl Fn() + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("flush".to_owned())
            .spawn(move || {
                while of_thread.is_asked() {
                    flush();
                }
            })
            .inspect_err(|error| tracing::warn!(%error, "the engine flushes by itself"))
            .ok();
        Self { shared, thread }
    }

    /// Asks for a flush; once is enough until it has begun.
    pub fn ask(&self) {
        let asked_before = std::mem::replace(&mut self.shared.wanted.lock().flush, true);
        if !asked_before {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.shared.wanted.lock().end = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Waits for somebody who asks; false if that is over.
    fn is_asked(&self) -> bool {
        let mut wanted = self.wanted.lock();
        while !wanted.flush && !wanted.end {
            self.changed.wait(&mut wanted);
        }
        wanted.flush = false;
        !wanted.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_flushes_when_it_is_asked_and_ends_when_it_is_dropped() {
        let (flushing, begun) = mpsc::channel();
        let (done, finish) = mpsc::channel();
        let flusher = Flusher::start(move || {
            flushing.send(()).expect("the test listens");
            finish.recv().expect("the test answers");
        });
        flusher.ask();
        begun.recv().expect("it begins");
        // Meanwhile: both are one flush.
        flusher.ask();
        flusher.ask();
        done.send(()).expect("it listens");
        begun.recv().expect("it begins again");
        done.send(()).expect("it listens");
        drop(flusher);
        assert!(begun.recv().is_err(), "its thread has ended");
    }
}
