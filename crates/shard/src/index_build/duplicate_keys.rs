//! Keys that several records had, of unique indexes that are being built.
//!
//! ```text
//!   catalog: building ─► whoever adds a key that another record has notes it: writers, the build
//!   all records read  ─► [gate] noted keys, a portion at a time ─► two documents have one: the build fails
//!   [ddl, gate] what was noted since, the same ─► catalog: ready
//! ```
//!
//! A unique index that is being built may never exist, so it refuses no write. Of two records that
//! have a key at the end one has got its entry after the other; whoever added it had the key's latch,
//! or the collection's gate for himself, saw the other one, and has noted the key. What else was noted
//! does no harm: each key is looked at again when everything that was appended is applied and nobody
//! evaluates a write.
//!
//! They are kept in memory only: a build does not outlive its primary. While nobody follows an index
//! that is being built (its builder was given up, and it waits to be discarded), it refuses writes like
//! one that is ready.

use model::ids::IndexId;
use parking_lot::Mutex;
use query::index::EncodedKey;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct DuplicateKeys {
    followed: Mutex<HashMap<IndexId, Noted>>,
}

/// Type bits by fields, so that a key is kept once.
#[derive(Default)]
struct Noted {
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
}

/// What a key takes besides its bytes, about.
const KEY_OVERHEAD_BYTES: usize = 64;

impl DuplicateKeys {
    /// Keys of these indexes may be noted until the answer is dropped.
    pub(super) fn follow(self: &Arc<Self>, indexes: Vec<IndexId>) -> Following {
        let mut followed = self.followed.lock();
        for index in &indexes {
            followed.insert(*index, Noted::default());
        }
        Following {
            keys: self.clone(),
            indexes,
        }
    }

    /// Whether somebody who builds this index looks at noted keys again.
    pub(crate) fn follows(&self, index: IndexId) -> bool {
        self.followed.lock().contains_key(&index)
    }

    /// Notes a key that another record has. ⚑ If nobody follows the index any more, it does not become ready.
    pub(crate) fn note(&self, index: IndexId, key: &EncodedKey) {
        let mut followed = self.followed.lock();
        let Some(noted) = followed.get_mut(&index) else {
            return;
        };
        if !noted.keys.contains_key(&key.fields) {
            noted.bytes += key.fields.len() + key.type_bits.len() + KEY_OVERHEAD_BYTES;
            noted.keys.insert(key.fields.clone(), key.type_bits.clone());
        }
    }
}

/// The noted keys of indexes that are built together.
pub(super) struct Following {
    keys: Arc<DuplicateKeys>,
    indexes: Vec<IndexId>,
}

impl Following {
    /// What the noted keys take in memory.
    pub(super) fn bytes(&self) -> usize {
        let followed = self.keys.followed.lock();
        let noted = self.indexes.iter().filter_map(|index| followed.get(index));
        noted.map(|noted| noted.bytes).sum()
    }

    /// Takes the noted keys away, to look at them.
    pub(super) fn take(&self) -> Vec<(IndexId, EncodedKey)> {
        let mut followed = self.keys.followed.lock();
        let mut taken = Vec::new();
        for index in &self.indexes {
            let noted = followed.get_mut(index).map(std::mem::take);
            let keys = noted.into_iter().flat_map(|noted| noted.keys);
            taken
                .extend(keys.map(|(fields, type_bits)| (*index, EncodedKey { fields, type_bits })));
        }
        taken
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followed = self.keys.followed.lock();
        for index in &self.indexes {
            followed.remove(index);
        }
    }
}
