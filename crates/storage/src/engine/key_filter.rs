//! Which keys may lie in a memtable: a Bloom filter for each memtable that is not
//! flushed yet.
//!
//! A load asks for each `_id` whether it is free. Tables have filters of their own, but
//! a memtable answers only by a search through its skip list, a microsecond of cache
//! misses for a key that is not there. These filters answer with one.
//!
//! ```text
//!   oldest sealed ── … ── sealed ── active        one filter each, newest last
//!   dropped when flushed                 gets every key before the memtable does
//! ```
//!
//! A filter goes only when the tables of its memtable are visible. So who finds a key in
//! no filter, and only then looks for the current tables, has not missed it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Bits of one key, all in one word: with sixteen bits of filter for each key about
/// one in a hundred that is not there seems to be.
const BITS_PER_KEY: u32 = 4;

/// The filter of one memtable, or of one sheaf.
pub(super) struct KeyFilter {
    words: Box<[AtomicU64]>,
}

impl KeyFilter {
    pub fn new(bytes: usize) -> Self {
        let words = (bytes / 8).max(1);
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = (u128::from(hash) * self.words.len() as u128) >> 64;
        let mut bits = 0;
        for part in 0..BITS_PER_KEY {
            bits |= 1 << ((hash >> (6 * part)) & 63);
        }
        (&self.words[word as usize], bits)
    }

    /// Only one thread at a time inserts: it need not lock the word, for which it would wait until all it has read
    /// before is there.
    pub fn insert(&self, hash: u64) {
        let (word, bits) = self.place(hash);
        word.store(word.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }

    pub fn may_contain(&self, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        word.load(Ordering::Relaxed) & bits == bits
    }
}

/// The filters of all memtables, by hashes of keys.
pub(super) struct KeyFilters {
    bytes_each: usize,
    filters: RwLock<VecDeque<Arc<KeyFilter>>>,
}

impl KeyFilters {
    pub fn new(bytes_each: usize) -> Self {
        let first = Arc::new(KeyFilter::new(bytes_each));
        Self {
            bytes_each,
            filters: RwLock::new([first].into()),
        }
    }

    /// Before these keys go into the active memtable. The caller holds the lock of those who write.
    pub fn insert(&self, hashes: impl Iterator<Item = u64>) {
        let active = self.filters.read().back().map(Arc::clone);
        let active = active.expect("the active memtable has a filter");
        hashes.for_each(|hash| active.insert(hash));
    }

    /// As [`Self::insert`]; with each hash, whether the key may have been in a memtable before.
    pub fn insert_and_tell(&self, hashes: impl Iterator<Item = u64>) -> Vec<(u64, bool)> {
        let filters = self.filters.read();
        let mut told: Vec<_> = hashes.map(|hash| (hash, false)).collect();
        // All questions first, one filter after the other and without a branch: none of them waits for another, and
        // many are under way at once.
        for filter in filters.iter() {
            for (hash, is_known) in &mut told {
                *is_known |= filter.may_contain(*hash);
            }
        }
        let active = filters.back().expect("the active memtable has a filter");
        told.iter().for_each(|&(hash, _)| active.insert(hash));
        told
    }

    /// False if the key is surely in no memtable. The writer of the key must have told
    /// the caller that it is done.
    pub fn may_contain(&self, hash: u64) -> bool {
        let filters = self.filters.read();
        filters.iter().any(|filter| filter.may_contain(hash))
    }

    /// The active memtable was sealed; of the sealed ones so many are not flushed yet, or have sheaves.
    pub fn sealed(&self, unflushed: usize) {
        let next = Arc::new(KeyFilter::new(self.bytes_each));
        let mut filters = self.filters.write();
        filters.push_back(next);
        while filters.len() > unflushed + 1 {
            filters.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn hashes(range: std::ops::Range<u32>) -> impl Iterator<Item = u64> {
        range.map(|number| xxh3_64(&number.to_be_bytes()))
    }

    #[test]
    fn what_is_inserted_is_found_until_it_is_flushed() {
        let filters = KeyFilters::new(2_000);
        filters.insert(hashes(0..1_000));
        assert!(hashes(0..1_000).all(|hash| filters.may_contain(hash)));
        filters.sealed(1);
        filters.insert(hashes(1_000..2_000));
        assert!(hashes(0..2_000).all(|hash| filters.may_contain(hash)));
        let wrong = hashes(5_000..15_000).filter(|hash| filters.may_contain(*hash));
        assert!(
            wrong.count() < 800,
            "most of what is not there is known not to be"
        );
        // The first one was flushed before the second was sealed.
        filters.sealed(1);
        assert!(hashes(1_000..2_000).all(|hash| filters.may_contain(hash)));
        assert!(
            hashes(0..1_000)
                .filter(|hash| filters.may_contain(*hash))
                .count()
                < 100
        );
    }
}
