//! The records of a stretch of index entries, packed in the order of the entries.
//!
//! A scan over an index asks for one record after the other, each at another place in
//! memory: most of the time goes by waiting for that memory. Once as many records were
//! looked up through a stretch as it takes to fetch all of them, they are packed:
//!
//! ```text
//!   stretch   ( entry )( entry )( entry )
//!   joined    ( record )( record )( record )      walked over side by side
//! ```
//!
//! Coherence. A record may change while its index entries do not, so that a stretch
//! lives on when its records are others. Packed records are therefore taken only while no
//! batch with their collection has begun since the snapshot they were read from, and only
//! by a snapshot that is not older. Under steady writes this brings nothing; so each time
//! that they were made for little, four times as many lookups must go by until the next.

use std::sync::atomic::{AtomicU64, Ordering};

use super::allocation::block_bytes;
use super::snapshot::Record;

/// Packed records of more than this are not worth their memory.
const JOINED_BYTES_MAX: usize = 4 << 20;
/// So often must packed records be walked over to have been worth it.
const WORTH_WALKS: u64 = 4;
/// What they cost besides their bytes.
const OVERHEAD_BYTES: u64 = 96;
/// From here on there is no further attempt.
const ATTEMPTS_MAX: u64 = 12;

pub(super) struct Joined {
    bytes: Vec<u8>,
    /// Where each value ends; an entry without a record has an empty one.
    ends: Vec<u32>,
    /// The batches that were finished when this was read.
    pub commits_finished: u64,
    walked: AtomicU64,
}

impl Joined {
    /// Nothing if the records take too much room.
    pub fn new<E>(
        records: impl Iterator<Item = Result<Option<Record>, E>>,
        commits_finished: u64,
    ) -> Result<Option<Self>, E> {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for record in records {
            if let Some(record) = record? {
                bytes.extend_from_slice(record.stored());
            }
            if bytes.len() > JOINED_BYTES_MAX {
                return Ok(None);
            }
            ends.push(bytes.len() as u32);
        }
        bytes.shrink_to_fit();
        ends.shrink_to_fit();
        Ok(Some(Self {
            bytes,
            ends,
            commits_finished,
            walked: AtomicU64::new(0),
        }))
    }

    /// The stored value of the record of one entry, empty if there is none.
    pub fn value(&self, at: usize) -> &[u8] {
        let from = match at {
            0 => 0,
            _ => self.ends[at - 1] as usize,
        };
        &self.bytes[from..self.ends[at] as usize]
    }

    pub fn note_walk(&self, entries: usize) {
        self.walked.fetch_add(entries as u64, Ordering::Relaxed);
    }

    fn was_worth_it(&self) -> bool {
        self.walked.load(Ordering::Relaxed) >= WORTH_WALKS * self.ends.len() as u64
    }

    pub fn memory_bytes(&self) -> u64 {
        block_bytes(self.bytes.len()) + block_bytes(size_of_val(&self.ends[..])) + OVERHEAD_BYTES
    }
}

/// Decides when the records of a stretch are packed.
#[derive(Default)]
pub(super) struct Attempts {
    /// Records that were looked up since the last attempt.
    looked_up: AtomicU64,
    made: AtomicU64,
}

impl Attempts {
    /// Counts lookups through a stretch of so many entries; whether it is time.
    pub fn is_due(&self, lookups: usize, entries: usize) -> bool {
        let lookups = lookups as u64;
        let sum = self.looked_up.fetch_add(lookups, Ordering::Relaxed) + lookups;
        let made = self.made.load(Ordering::Relaxed);
        made < ATTEMPTS_MAX && sum >= (entries as u64) << (1 + 2 * made)
    }

    /// Counts an attempt, unless what it replaces was worth it.
    pub fn begin(&self, replaced: Option<&Joined>) {
        self.looked_up.store(0, Ordering::Relaxed);
        if !replaced.is_some_and(Joined::was_worth_it) {
            self.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn give_up(&self) {
        self.made.store(ATTEMPTS_MAX, Ordering::Relaxed);
    }
}
