//! Who waits for news, and of what: a write wakes those whom it may concern, and nobody else.
//!
//! ```text
//!   getMore finds nothing ─► Watch (counted by what it is interested in) ─► waits
//!   entries can be read   ─► names in their headers ─► those who wait for one of them wake
//!                            no names (a change of the catalog) ─► everybody wakes
//! ```
//!
//! Entries of one batch wake a stream once. A stream that is not woken reads what has come since when
//! its time is over, so that its token moves on.
//!
//! Invariant: a [`Watch`] is ready before the log is read, so nothing that comes in between is missed.

use query::pipeline::Target;
use replication::Committed;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use storage::entry::Entry;
use tokio::sync::Notify;

/// What a cursor that waits wants to hear of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Interest {
    Everything,
    Database(String),
    /// By its full name.
    Collection(String),
}

impl From<&Target> for Interest {
    fn from(target: &Target) -> Self {
        match target {
            Target::Cluster => Interest::Everything,
            Target::Database(name) => Interest::Database(name.clone()),
            Target::Collection(namespace) => Interest::Collection(namespace.as_str().to_owned()),
        }
    }
}

struct Waiting {
    notify: Arc<Notify>,
    watches: usize,
}

#[derive(Default)]
pub(crate) struct Watchers {
    waiting: Mutex<HashMap<Interest, Waiting>>,
    /// How many wait: zero lets the log's thread look no further.
    count: AtomicUsize,
    /// How often a cursor that waited was woken by the log.
    wakes: AtomicU64,
}

/// One who waits, while it lives.
pub(crate) struct Watch<'a> {
    watchers: &'a Watchers,
    interest: Interest,
    pub(crate) notify: Arc<Notify>,
}

impl Watchers {
    pub(crate) fn watch(&self, interest: Interest) -> Watch<'_> {
        let mut waiting = self.waiting.lock();
        let known = waiting.entry(interest.clone()).or_insert_with(|| Waiting {
            notify: Arc::new(Notify::new()),
            watches: 0,
        });
        known.watches += 1;
        let notify = known.notify.clone();
        self.count.fetch_add(1, Ordering::SeqCst);
        Watch {
            watchers: self,
            interest,
            notify,
        }
    }

    /// Entries can be read from now on.
    pub(crate) fn published<C>(&self, entries: &[Committed<C>]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut names = BTreeSet::new();
        for committed in entries {
            let decoded = Entry::decode(&committed.entry.payload);
            match decoded.ok().and_then(|entry| entry.header.names) {
                Some(found) => names.extend(found.namespaces()),
                None if committed.entry.payload.is_empty() => {}
                // It may concern anybody.
                None => return self.wake(|_| true),
            }
        }
        self.wake(|interest| match interest {
            Interest::Everything => true,
            Interest::Collection(name) => names.contains(name.as_str()),
            Interest::Database(name) => names.iter().any(|namespace| {
                let rest = namespace.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.starts_with('.'))
            }),
        });
    }

    /// Everybody looks for himself: the state was replaced, or the member stops.
    pub(crate) fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, concerns: impl Fn(&Interest) -> bool) {
        for (interest, waiting) in self.waiting.lock().iter() {
            if concerns(interest) {
                waiting.notify.notify_waiters();
            }
        }
    }

    pub(crate) fn woke(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut waiting = self.watchers.waiting.lock();
        if let Some(known) = waiting.get_mut(&self.interest) {
            known.watches -= 1;
            if known.watches == 0 {
                waiting.remove(&self.interest);
            }
        }
        self.watchers.count.fetch_sub(1, Ordering::SeqCst);
    }
}
