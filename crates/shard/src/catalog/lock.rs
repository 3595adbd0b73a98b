//! The lock that whoever changes the catalog holds, from reading it until the change is applied.
//!
//! It counts how often it was taken. Who has asked somebody else a question, and must know that nobody has
//! changed anything since, looks where the count was before and whether it is his turn that comes next. So the
//! lock need not be held while an answer is waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct CatalogLock {
    mutex: Mutex<()>,
    /// Changed only by who holds the mutex.
    taken: AtomicU64,
}

/// How often the lock had been taken at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u64);

impl CatalogLock {
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        let guard = self.mutex.lock().await;
        self.taken.fetch_add(1, Ordering::AcqRel);
        guard
    }

    /// Whether nobody has it.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.mutex.try_lock().is_ok()
    }

    pub(crate) fn place(&self) -> Place {
        Place(self.taken.load(Ordering::Acquire))
    }

    /// For who holds the lock: whether nobody has taken it between that place and now.
    pub(crate) fn is_next(&self, place: Place) -> bool {
        self.taken.load(Ordering::Acquire) == place.0 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_was_overtaken_knows_it() {
        let lock = CatalogLock::default();
        let place = lock.place();
        let held = lock.lock().await;
        assert!(lock.is_next(place));
        // Who asks while somebody holds it is not overtaken by that one.
        let while_held = lock.place();
        drop(held);
        let held = lock.lock().await;
        assert!(lock.is_next(while_held));
        assert!(!lock.is_next(place));
        drop(held);
    }
}
