//! The record cache: whole record values above the engine, sized in bytes.
//!
//! A warm read costs a fifth of what the engine's own cache charges, and shares
//! the value instead of copying it.
//!
//! Coherence. A cached value must never be older than what a snapshot taken
//! before the read could have shown. The engine makes a batch visible in one
//! instant that the cache cannot hook into, so the writer brackets it:
//!
//! ```text
//!  writer   mark keys `Changing` ─► engine commit ─► put new values / forget removed keys
//!  reader   finds `Changing` ─► asks the engine, and does not fill the cache
//!  reader   finds nothing ─► leaves a placeholder, asks the engine, fills the placeholder
//! ```
//!
//! A snapshot reads through the cache too, but it accepts only versions that it
//! contains and fills in only while it is surely the latest: see `Snapshot::get`.
//!
//! Filling fails if the placeholder was replaced by a mark meanwhile, so a value
//! that was read before the commit cannot be filled in after it. A mark that is
//! evicted within the few microseconds of a commit would let a slow reader see
//! the replaced version for the rest of that commit; nobody was told of the new
//! one yet.

use std::time::Duration;

use parking_lot::RwLock;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::allocation::view_bytes;
use super::memory::ScanMemory;
use crate::engine::Slice;
use crate::error::Result;

#[derive(Clone)]
enum Cached {
    Value(Slice),
    /// A batch that writes this key is being committed.
    Changing,
}

#[derive(Clone)]
struct Weight;

/// What an entry costs besides its bytes: hash table slot, links, and its part of those that are remembered
/// after they were evicted.
const OVERHEAD_BYTES: u64 = 112;

fn value_bytes(value: &Slice) -> u64 {
    view_bytes(value.len()) + OVERHEAD_BYTES
}

impl Weighter<Slice, Cached> for Weight {
    fn weight(&self, key: &Slice, value: &Cached) -> u64 {
        let value_bytes = match value {
            Cached::Value(value) => value_bytes(value),
            Cached::Changing => OVERHEAD_BYTES,
        };
        view_bytes(key.len()) + value_bytes
    }
}

type Inner = Cache<Slice, Cached, Weight, DefaultHashBuilder, DefaultLifecycle<Slice, Cached>>;

pub(super) struct RecordCache {
    inner: Option<Inner>,
    /// What this does not use is lent to scans.
    memory: ScanMemory,
    /// Held while a value is read from the engine and filled in.
    filling: RwLock<()>,
}

impl RecordCache {
    pub fn new(capacity_bytes: u64, memory: ScanMemory) -> Self {
        let items = usize::try_from(capacity_bytes / 512).unwrap_or(usize::MAX);
        // The builder refuses only missing capacities; without a cache all still works.
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(capacity_bytes)
            .build()
            .ok()
            .filter(|_| items > 0);
        let inner = options.map(|options| {
            Cache::with_options(
                options,
                Weight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            )
        });
        Self {
            inner,
            memory,
            filling: RwLock::default(),
        }
    }

    pub fn weight(&self) -> u64 {
        self.inner.as_ref().map_or(0, Cache::weight)
    }

    /// How much more would fit.
    pub fn left_bytes(&self) -> u64 {
        let left = |cache: &Inner| cache.capacity().saturating_sub(cache.weight());
        self.inner.as_ref().map_or(0, left)
    }

    /// The value if it is here.
    pub fn get(&self, key: &[u8]) -> Option<Slice> {
        match self.inner.as_ref()?.get(key)? {
            Cached::Value(value) => Some(value),
            Cached::Changing => None,
        }
    }

    /// The value from here, if the reader accepts it, or from `load`, which is asked
    /// without a lock held. It is kept if `may_keep`, asked before `load`, holds.
    pub fn get_or_load(
        &self,
        key: &[u8],
        accepts: impl Fn(&Slice) -> bool,
        load: impl FnOnce() -> Result<Option<Slice>>,
        may_keep: impl FnOnce() -> bool,
    ) -> Result<Option<Slice>> {
        let detached = |value: Option<Slice>| value.map(|value| Slice::new(&value));
        let Some(cache) = &self.inner else {
            return load().map(detached);
        };
        match cache.get(key) {
            Some(Cached::Value(value)) if accepts(&value) => return Ok(Some(value)),
            Some(Cached::Value(_) | Cached::Changing) => return load().map(detached),
            None => {}
        }
        match cache.get_value_or_guard(&Slice::new(key), Some(Duration::ZERO)) {
            GuardResult::Value(Cached::Value(value)) if accepts(&value) => Ok(Some(value)),
            GuardResult::Value(Cached::Value(_) | Cached::Changing) | GuardResult::Timeout => {
                load().map(detached)
            }
            GuardResult::Guard(guard) => {
                let _filling = self.filling.read();
                // With the placeholder in place: a batch that begins later replaces it.
                let may_keep = may_keep();
                // A copy of its own: the engine's slice keeps a whole block alive.
                let value = detached(load()?);
                if may_keep && let Some(value) = &value {
                    // Refused if a writer came between; then the value is only returned.
                    let _ = guard.insert(Cached::Value(value.clone()));
                    self.memory.records_came(value_bytes(value));
                }
                Ok(value)
            }
        }
    }

    /// Before a commit that writes `key`.
    pub fn mark_changing(&self, key: &Slice) {
        if let Some(cache) = &self.inner {
            cache.insert(key.clone(), Cached::Changing);
        }
    }

    /// After that commit.
    pub fn changed(&self, key: Slice, value: Option<Slice>) {
        let Some(cache) = &self.inner else { return };
        match value {
            Some(value) => {
                let bytes = value_bytes(&value);
                cache.insert(key, Cached::Value(value));
                self.memory.records_came(bytes);
            }
            None => {
                cache.remove(&key);
            }
        }
    }

    /// Frees what begins with `prefix`. Walks over the whole cache.
    pub fn forget(&self, prefix: &[u8]) {
        if let Some(cache) = &self.inner {
            cache.retain(|key, _| !key.starts_with(prefix));
        }
    }

    /// Frees values that are gone, those too that somebody is filling in just now. Whoever begins
    /// later must know by himself that they are.
    pub fn forget_values(&self, is_gone: impl Fn(&[u8], &Slice) -> bool) {
        let Some(cache) = &self.inner else { return };
        drop(self.filling.write());
        cache.retain(|key, value| match value {
            Cached::Value(value) => !is_gone(key, value),
            Cached::Changing => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(value: &str) -> impl FnOnce() -> Result<Option<Slice>> {
        let value = Slice::from(value);
        move || Ok(Some(value))
    }

    fn read(cache: &RecordCache, stored: &str) -> String {
        let value = cache
            .get_or_load(b"key", |_| true, load(stored), || true)
            .expect("no errors");
        String::from_utf8(value.expect("loaded").to_vec()).expect("text")
    }

    #[test]
    fn slow_reader_cannot_fill_in_a_replaced_version() {
        let cache = RecordCache::new(1 << 20, ScanMemory::of(0));
        let key = Slice::from("key");
        // The reader asks the engine, and meanwhile a batch is committed.
        let load = || {
            cache.mark_changing(&key);
            cache.changed(key.clone(), Some("new".into()));
            Ok(Some("old".into()))
        };
        let value = cache.get_or_load(b"key", |_| true, load, || true);
        assert_eq!(value.expect("no errors").as_deref(), Some(&b"old"[..]));
        assert_eq!(read(&cache, "not asked"), "new");
    }

    #[test]
    fn nothing_is_filled_in_while_a_commit_runs() {
        let cache = RecordCache::new(1 << 20, ScanMemory::of(0));
        let key = Slice::from("key");
        assert_eq!(read(&cache, "1"), "1");
        assert_eq!(read(&cache, "not asked"), "1");
        cache.mark_changing(&key);
        assert_eq!(read(&cache, "1"), "1");
        assert_eq!(read(&cache, "2"), "2", "the engine was asked again");
        cache.changed(key.clone(), Some("2".into()));
        assert_eq!(read(&cache, "not asked"), "2");
        cache.mark_changing(&key);
        cache.changed(key, None);
        assert_eq!(read(&cache, "3"), "3");
    }

    #[test]
    fn memory_is_bounded_and_zero_means_none() {
        let cache = RecordCache::new(64 << 10, ScanMemory::of(0));
        for at in 0..10_000u32 {
            let key = Slice::from(at.to_be_bytes());
            cache.mark_changing(&key);
            cache.changed(key, Some(vec![0; 100].into()));
        }
        assert!(cache.weight() <= 64 << 10);
        let none = RecordCache::new(0, ScanMemory::of(0));
        assert_eq!(read(&none, "1"), "1");
        assert_eq!(read(&none, "2"), "2");
    }
}
