//! The logical session cache: which sessions are in use on this member, and
//! since when they are not.
//!
//! ```text
//!   a command with an lsid ──► active ── ended, or expired from the collection ──► gone
//!                                │ refresh: used since the last one
//!                                ▼
//!                     config.system.sessions, where an index on lastUse lets them expire
//! ```
//!
//! Every command of a session passes through here, so the map is split and
//! touching a known session stores one number.

use super::SessionId;
use foldhash::fast::FixedState;
use model::{Code, Error};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// As MongoDB's `maxSessions`.
pub(crate) const SESSIONS_MAX: usize = 1_000_000;

/// Ended sessions that are remembered while the collection cannot be written. More than that expire
/// there by themselves, as if nobody had ended them.
pub(crate) const ENDED_MAX: usize = 100_000;

/// What `serverStatus` shows of one kind of job.
#[derive(Clone, Copy, Default)]
pub(crate) struct JobStatistics {
    pub(crate) count: i32,
    pub(crate) duration_ms: i32,
    pub(crate) began_ms: i64,
}

/// What `serverStatus` shows of the jobs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Statistics {
    pub(crate) refresh: JobStatistics,
    pub(crate) refreshed: i32,
    pub(crate) ended: i32,
    pub(crate) cursors_closed: i32,
    pub(crate) reap: JobStatistics,
    pub(crate) reaped: i32,
}

type Map = HashMap<SessionId, i64, FixedState>;

pub(crate) struct SessionCache {
    /// When each session was last used, in milliseconds.
    active: Vec<Mutex<Map>>,
    hasher: FixedState,
    count: AtomicUsize,
    /// Ended by their clients since the last refresh.
    ended: Mutex<BTreeSet<SessionId>>,
    last_refresh_ms: AtomicI64,
    pub(super) statistics: Mutex<Statistics>,
}

impl SessionCache {
    pub(crate) fn new() -> Self {
        let hasher = FixedState::with_seed(9);
        Self {
            active: (0..SHARDS)
                .map(|_| Mutex::new(HashMap::with_hasher(hasher.clone())))
                .collect(),
            hasher,
            count: AtomicUsize::new(0),
            ended: Mutex::new(BTreeSet::new()),
            last_refresh_ms: AtomicI64::new(i64::MIN),
            statistics: Mutex::new(Statistics::default()),
        }
    }

    fn shard(&self, id: &SessionId) -> &Mutex<Map> {
        &self.active[self.hasher.hash_one(id) as usize % SHARDS]
    }

    /// A session is used now.
    pub(crate) fn touch(&self, id: SessionId, now_ms: i64) -> Result<(), Error> {
        let mut active = self.shard(&id).lock();
        if let Some(last_use) = active.get_mut(&id) {
            *last_use = now_ms.max(*last_use);
            return Ok(());
        }
        if self.count.load(Ordering::Relaxed) >= SESSIONS_MAX {
            return Err(Error::new(
                Code::TOO_MANY_LOGICAL_SESSIONS,
                format!(
                    "Unable to add session ID {id} into the cache because the number of active \
                     sessions is too high"
                ),
            ));
        }
        active.insert(id, now_ms);
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn contains(&self, id: SessionId) -> bool {
        self.shard(&id).lock().contains_key(&id)
    }

    /// Its client is done with it; it goes with the next refresh.
    pub(crate) fn end(&self, id: SessionId) {
        let mut ended = self.ended.lock();
        if ended.len() < ENDED_MAX {
            ended.insert(id);
        }
    }

    pub(super) fn take_ended(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Forgets a session, unless it was used after a time.
    pub(super) fn remove(&self, id: SessionId, unused_since_ms: i64) -> bool {
        let mut active = self.shard(&id).lock();
        match active.get(&id) {
            Some(last_use) if *last_use <= unused_since_ms => {
                active.remove(&id);
                self.count.fetch_sub(1, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// All sessions with their last use.
    pub(crate) fn all(&self) -> Vec<(SessionId, i64)> {
        let mut all = Vec::with_capacity(self.len());
        for active in &self.active {
            all.extend(active.lock().iter().map(|(id, last_use)| (*id, *last_use)));
        }
        all.sort_unstable();
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn last_refresh_ms(&self) -> i64 {
        self.last_refresh_ms.load(Ordering::Relaxed)
    }

    pub(super) fn refreshed_at(&self, time_ms: i64) {
        self.last_refresh_ms.store(time_ms, Ordering::Relaxed);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        *self.statistics.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sessions_are_not_remembered_without_limit() {
        let cache = SessionCache::new();
        for at in 0..ENDED_MAX as u128 + 10 {
            cache.end(SessionId::new(at.to_be_bytes()));
        }
        assert_eq!(cache.take_ended().len(), ENDED_MAX);
        cache.end(SessionId::new([1; 16]));
        assert_eq!(cache.take_ended().len(), 1);
    }
}
