//! Memory for what scans keep: one for all stores of a process.
//!
//! ```text
//!   │ own: for scans alone     │ record caches of all stores                    │
//!   │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│▒▒▒▒▒▒▒▒▒▒▒▒▒▒│         │█████████████████████│
//!   └ stretches ──────────────────── used ───┘  limit ─┘└ records ────────────┘
//! ```
//!
//! Where ranges move from shard to shard, a share for each of them fits none: the one that has more at
//! the moment has too little, and what the other one has lies idle. And whoever scans much may have few
//! records that are read one by one. So stretches of all stores take from one supply, and what record
//! caches do not use is lent to it. It is given back as these fill: they tell how much came into them,
//! and every mebibyte somebody looks, and has stretches give way.
//!
//! Who gives way is the store that keeps most, so that a store that has little comes to its share.
//!
//! The limit may be passed for a moment by as much as scans keep and records are filled in at once, and
//! that mebibyte.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Shared;

/// What may come into record caches until somebody looks how full they are.
const LOOK_BYTES: u64 = 1 << 20;

/// Cheap to clone; clones are the same memory.
#[derive(Clone, Debug)]
pub struct ScanMemory(Arc<Supply>);

#[derive(Debug)]
struct Supply {
    own_bytes: u64,
    /// With what record caches left when somebody looked last.
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// Came into record caches since somebody looked.
    filled_bytes: AtomicU64,
    stores: Mutex<Vec<Weak<Shared>>>,
}

impl ScanMemory {
    /// So much is for scans alone. With zero they keep nothing, and nothing is lent to them.
    pub fn of(own_bytes: u64) -> Self {
        Self(Arc::new(Supply {
            own_bytes,
            limit_bytes: AtomicU64::new(own_bytes),
            used_bytes: AtomicU64::new(0),
            filled_bytes: AtomicU64::new(0),
            stores: Mutex::default(),
        }))
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.own_bytes == 0
    }

    /// One more store uses it, and lends what its record cache does not need.
    pub(super) fn join(&self, store: &Arc<Shared>) {
        let mut stores = self.0.stores.lock();
        stores.retain(|other| other.strong_count() > 0);
        stores.push(Arc::downgrade(store));
        drop(stores);
        self.look();
    }

    /// Whether so much fits without taking the place of others.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let used = self.0.used_bytes.load(Ordering::Relaxed);
        used + bytes <= self.0.limit_bytes.load(Ordering::Relaxed) || used + bytes <= self.look()
    }

    /// Has others give way for so many bytes; false if there can be no room for them. Nobody may call this
    /// who holds the lock of a store's stretches.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        if self.has_room(bytes) {
            return true;
        }
        bytes <= self.0.limit_bytes.load(Ordering::Relaxed) && self.give_way_for(bytes)
    }

    /// A store's stretches have become more, or less.
    pub(super) fn changed(&self, before_bytes: u64, now_bytes: u64) {
        let used = &self.0.used_bytes;
        match now_bytes >= before_bytes {
            true => used.fetch_add(now_bytes - before_bytes, Ordering::Relaxed),
            false => used.fetch_sub(before_bytes - now_bytes, Ordering::Relaxed),
        };
    }

    /// So much has come into a record cache.
    pub(super) fn records_came(&self, bytes: u64) {
        let filled = &self.0.filled_bytes;
        if filled.fetch_add(bytes, Ordering::Relaxed) + bytes < LOOK_BYTES {
            return;
        }
        filled.store(0, Ordering::Relaxed);
        self.look();
        // There may be none any more: other memory than theirs was never lent.
        let _ = self.give_way_for(0);
    }

    /// Asks the record caches what they leave; returns how much stretches may use with it.
    fn look(&self) -> u64 {
        let stores = self.0.stores.lock();
        let left = stores.iter().filter_map(Weak::upgrade);
        let limit = self.0.own_bytes + left.map(|store| store.cache.left_bytes()).sum::<u64>();
        self.0.limit_bytes.store(limit, Ordering::Relaxed);
        limit
    }

    fn give_way_for(&self, bytes: u64) -> bool {
        let Supply {
            used_bytes,
            limit_bytes,
            ..
        } = &*self.0;
        while used_bytes.load(Ordering::Relaxed) + bytes > limit_bytes.load(Ordering::Relaxed) {
            let largest = {
                let stores = self.0.stores.lock();
                let stores = stores.iter().filter_map(Weak::upgrade);
                stores.max_by_key(|store| store.stretches.memory_bytes())
            };
            if !largest.is_some_and(|store| store.stretches.give_way()) {
                return false;
            }
        }
        true
    }
}
