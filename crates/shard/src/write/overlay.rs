//! The overlay: versions that are appended to the log but not yet applied.
//!
//! Evaluation must never see a version that an earlier entry already replaces,
//! and entries are applied only after their group commit. In between, their
//! effects live here. Evaluators look here first and then in the engine; the
//! log's loop removes an entry's versions after the engine has them. Looking in
//! the other order would miss a version that moves over in between.
//!
//! Readers never look here: what they see is applied.

use crate::rules::{Rule, Rules};
use model::ids::{CollectionId, IndexId};
use model::key::RecordKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 64;

/// A version of a record that has its place in the log.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) position: u64,
    /// `None`: the record is removed.
    pub(crate) record: Option<storage::Record>,
}

/// A change of a unique index's key that has its place in the log.
#[derive(Clone, Debug)]
pub(crate) struct PendingIndexKey {
    position: u64,
    record_key: Box<[u8]>,
    present: bool,
}

pub(crate) struct Overlay {
    records: Vec<Mutex<Map<(CollectionId, RecordKey), Pending>>>,
    index_keys: Vec<Mutex<Map<IndexKey, Vec<PendingIndexKey>>>>,
    /// Entries in all maps: zero lets an evaluator skip them.
    entries: AtomicUsize,
    rules: Arc<Rules>,
}

/// An index and the encoded fields of one of its keys.
type IndexKey = (IndexId, Box<[u8]>);
type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

impl Overlay {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        let hasher = || foldhash::fast::FixedState::with_seed(2);
        Self {
            records: (0..SHARDS)
                .map(|_| Mutex::new(HashMap::with_hasher(hasher())))
                .collect(),
            index_keys: (0..SHARDS)
                .map(|_| Mutex::new(HashMap::with_hasher(hasher())))
                .collect(),
            entries: AtomicUsize::new(0),
            rules,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Acquire) == 0
    }

    pub(crate) fn record(&self, collection: CollectionId, key: &RecordKey) -> Option<Pending> {
        if self.is_empty() || !self.rules.hold(Rule::SeeAppended) {
            return None;
        }
        let map = self.records[shard(key.as_bytes())].lock();
        map.get(&(collection, key.clone())).cloned()
    }

    pub(crate) fn put_record(&self, collection: CollectionId, key: RecordKey, pending: Pending) {
        let mut map = self.records[shard(key.as_bytes())].lock();
        let replaced = map.insert((collection, key), pending);
        if replaced.is_none() {
            self.entries.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Forgets everything: leadership was lost, and what is pending may never be
    /// applied. Nothing may be put here meanwhile.
    pub(crate) fn clear(&self) {
        if !self.rules.hold(Rule::ForgetAppended) {
            return;
        }
        for map in &self.records {
            map.lock().clear();
        }
        for map in &self.index_keys {
            map.lock().clear();
        }
        self.entries.store(0, Ordering::Release);
    }

    /// Called after the engine applied the entry at `position`.
    pub(crate) fn record_applied(&self, collection: CollectionId, key: &RecordKey, position: u64) {
        let mut map = self.records[shard(key.as_bytes())].lock();
        // A later entry may have put a newer version in its place meanwhile.
        if let Entry::Occupied(known) = map.entry((collection, key.clone()))
            && known.get().position == position
        {
            known.remove();
            self.entries.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The changes of one unique key, latest per record: (record key, present).
    pub(crate) fn index_key(&self, index: IndexId, fields: &[u8]) -> Vec<(Box<[u8]>, bool)> {
        if self.is_empty() {
            return Vec::new();
        }
        let map = self.index_keys[shard(fields)].lock();
        map.get(&(index, Box::from(fields)))
            .map(|pending| {
                pending
                    .iter()
                    .map(|p| (p.record_key.clone(), p.present))
                    .collect()
            })
            .unwrap_or_default()
    }

    pub(crate) fn put_index_key(
        &self,
        index: IndexId,
        fields: &[u8],
        record_key: &[u8],
        present: bool,
        position: u64,
    ) {
        let mut map = self.index_keys[shard(fields)].lock();
        let pending = map.entry((index, Box::from(fields))).or_default();
        match pending.iter_mut().find(|p| *p.record_key == *record_key) {
            Some(p) => {
                p.present = present;
                p.position = position;
            }
            None => {
                pending.push(PendingIndexKey {
                    position,
                    record_key: Box::from(record_key),
                    present,
                });
                self.entries.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    pub(crate) fn index_key_applied(
        &self,
        index: IndexId,
        fields: &[u8],
        record_key: &[u8],
        position: u64,
    ) {
        let mut map = self.index_keys[shard(fields)].lock();
        let key = (index, Box::from(fields));
        let Some(pending) = map.get_mut(&key) else {
            return;
        };
        let before = pending.len();
        pending.retain(|p| p.position != position || *p.record_key != *record_key);
        self.entries
            .fetch_sub(before - pending.len(), Ordering::AcqRel);
        if pending.is_empty() {
            map.remove(&key);
        }
    }
}

fn shard(key: &[u8]) -> usize {
    // Any cheap mix will do: the maps hash properly themselves.
    let mut mixed = key.len();
    for &byte in key.iter().rev().take(8) {
        mixed = mixed.wrapping_mul(31).wrapping_add(byte as usize);
    }
    mixed % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(position: u64) -> Pending {
        Pending {
            position,
            record: None,
        }
    }

    #[test]
    fn an_older_entry_does_not_remove_a_newer_version() {
        let overlay = Overlay::new(Arc::default());
        let id = CollectionId(1);
        let key = RecordKey::from_bytes(b"k");
        overlay.put_record(id, key.clone(), pending(1));
        overlay.put_record(id, key.clone(), pending(2));
        overlay.record_applied(id, &key, 1);
        assert_eq!(overlay.record(id, &key).map(|p| p.position), Some(2));
        overlay.record_applied(id, &key, 2);
        assert!(overlay.record(id, &key).is_none());
        assert!(overlay.is_empty());
    }

    #[test]
    fn nothing_pending_outlives_leadership() {
        let overlay = Overlay::new(Arc::default());
        let key = RecordKey::from_bytes(b"k");
        overlay.put_record(CollectionId(1), key.clone(), pending(1));
        overlay.put_index_key(IndexId(1), b"f", b"k", true, 1);
        overlay.clear();
        assert!(overlay.is_empty());
        overlay.put_record(CollectionId(1), key.clone(), pending(2));
        assert!(overlay.record(CollectionId(1), &key).is_some());
        assert!(overlay.index_key(IndexId(1), b"f").is_empty());
    }

    #[test]
    fn a_unique_key_that_changes_hands_keeps_both_changes() {
        let overlay = Overlay::new(Arc::default());
        let index = IndexId(1);
        overlay.put_index_key(index, b"f", b"a", false, 1);
        overlay.put_index_key(index, b"f", b"b", true, 2);
        let mut changes = overlay.index_key(index, b"f");
        changes.sort();
        assert_eq!(changes, [(b"a"[..].into(), false), (b"b"[..].into(), true)]);
        overlay.index_key_applied(index, b"f", b"a", 1);
        overlay.index_key_applied(index, b"f", b"b", 2);
        assert!(overlay.is_empty());
    }
}
