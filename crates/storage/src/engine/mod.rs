//! The port to the storage engine: an ordered map of bytes with atomic batches
//! and snapshots.
//!
//! The trait is as narrow as the store needs, so that the in-memory engine of the
//! simulator is small enough to be believed. What an engine must promise:
//!
//! - a batch is visible to snapshots whole or not at all;
//! - a snapshot never changes while it is held (but it costs memory: hold
//!   positions, not snapshots);
//! - after a crash the map holds a prefix of the batches, at least up to the last
//!   [`Engine::sync`];
//! - pairs that the garbage rule covers may vanish at any moment, from new
//!   snapshots, never from those already open, and never with a later value of the key.
//!
//! Values are [`Slice`]s: reference-counted views, cheap to clone. A slice that
//! comes out of a scan may share a whole block of the engine's cache; copy it
//! before keeping it for long.

mod asked_thread;
mod creation;
pub mod directory;
pub(crate) mod engine_log;
pub mod fjall;
mod flush_without;
mod flusher;
mod garbage;
mod key_filter;
pub mod memory;
mod sheaves;
mod table_removal;
mod table_writeback;

use std::ops::Bound;
use std::panic::RefUnwindSafe;
use std::sync::Arc;

pub use ::fjall::Slice;

use crate::error::Result;

/// The longest key an engine takes.
pub const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// Batches of fewer changes are written as they come.
const ORDERED_MIN: usize = 64;

/// Which way a scan goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Forward,
    Backward,
}

/// A stretch of keys. Bounds are bytes, so a scan is resumed by putting the last
/// position seen as an excluded bound.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'a> {
    pub low: Bound<&'a [u8]>,
    pub high: Bound<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    pub const ALL: KeyRange<'static> = KeyRange {
        low: Bound::Unbounded,
        high: Bound::Unbounded,
    };

    pub fn new(low: Bound<&'a [u8]>, high: Bound<&'a [u8]>) -> Self {
        Self { low, high }
    }

    /// Exactly one key.
    pub fn only(key: &'a [u8]) -> Self {
        Self::new(Bound::Included(key), Bound::Included(key))
    }

    /// Whether no key can lie inside. Engines may not cope with crossed bounds.
    pub fn is_empty(&self) -> bool {
        match (self.low, self.high) {
            (Bound::Unbounded, Bound::Unbounded | Bound::Included(_)) => false,
            (Bound::Unbounded, Bound::Excluded(high)) => high.is_empty(),
            (Bound::Included(_) | Bound::Excluded(_), Bound::Unbounded) => false,
            (Bound::Included(low), Bound::Included(high)) => low > high,
            (
                Bound::Included(low) | Bound::Excluded(low),
                Bound::Excluded(high) | Bound::Included(high),
            ) => low >= high,
        }
    }
}

/// Key and value as a scan yields them.
pub type Pair = (Slice, Slice);

/// Says which stored pairs nobody will ask for again, by the key and, where it matters, the value.
pub type GarbageRule =
    Arc<dyn Fn(&[u8], &dyn Fn() -> Option<Slice>) -> bool + Send + Sync + RefUnwindSafe>;

/// Changes that become visible together. The last change to a key wins.
#[derive(Default, Debug)]
pub struct WriteBatch {
    changes: Vec<(Slice, Option<Slice>)>,
    /// Whether others may have the core meanwhile.
    gives_way: bool,
    /// Whether there is much, and hardly any key was written a moment ago.
    is_bulk: bool,
    /// How many changes there were when it was put into order.
    ordered: Option<usize>,
}

impl WriteBatch {
    pub fn put(&mut self, key: Slice, value: Slice) {
        self.changes.push((key, Some(value)));
    }

    pub fn remove(&mut self, key: Slice) {
        self.changes.push((key, None));
    }

    /// Lets others have the core while it is written: nobody waits for any of it who waits for an answer.
    pub fn give_way(&mut self) {
        self.gives_way = true;
    }

    /// Says that there is much of it, and that hardly any key was written a moment ago: an engine may keep it together
    /// until it goes to the disk. It makes no difference to what is stored.
    pub fn in_bulk(&mut self) {
        self.is_bulk = true;
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The keys that change.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.changes.iter().map(|(key, _)| &key[..])
    }

    /// Puts the changes of a long batch into the order of their keys: each is then looked for where the one
    /// before it went. Changes of one key stay in their order.
    pub(crate) fn order(&mut self) {
        let all = Some(self.changes.len());
        if std::mem::replace(&mut self.ordered, all) == all {
            return;
        }
        if self.changes.len() >= ORDERED_MIN {
            // As bytes: slices compare their first four apart, and those are mostly equal here.
            self.changes
                .sort_by(|(one, _), (other, _)| one[..].cmp(&other[..]));
        } else {
            // What is kept together has to be in order.
            self.is_bulk = false;
        }
    }

    fn into_changes(self) -> Vec<(Slice, Option<Slice>)> {
        self.changes
    }
}

/// An ordered map of bytes.
pub trait Engine: Send + Sync + 'static {
    type Snapshot: EngineSnapshot;

    /// The newest committed value. May see a batch a moment before snapshots do.
    fn get(&self, key: &[u8]) -> Result<Option<Slice>>;

    fn snapshot(&self) -> Self::Snapshot;

    /// Commits a batch, which may be in memory only. Keys are at most [`MAX_KEY_BYTES`] long.
    fn write(&self, batch: WriteBatch) -> Result<()>;

    /// Returns when everything written before the call would survive a power cut.
    fn sync(&self) -> Result<()>;

    /// As [`Engine::sync`], and from then on by another rule for garbage. Of the given stretches nothing has to be
    /// kept on the way: whatever is in them is garbage by that rule, and what made it so was written before the call.
    fn sync_without(&self, stretches: &[(Vec<u8>, Vec<u8>)], rule: GarbageRule) -> Result<()> {
        let _ = stretches;
        self.sync()?;
        self.set_garbage(rule);
        Ok(())
    }

    /// Whether a small batch might be held up now until others have caught up.
    fn lets_writers_wait(&self) -> bool {
        false
    }

    /// Bytes held on disk (or in memory, where there is no disk).
    fn approximate_size_bytes(&self) -> u64;

    /// Replaces the rule by which the engine may forget keys on its own.
    fn set_garbage(&self, rule: GarbageRule);

    /// Forgets some garbage now, looking at no more than `budget` keys. Engines
    /// that do so while compacting have nothing to do here.
    fn collect_garbage(&self, budget: usize) -> Result<()>;

    /// Puts into order what a burst of writes has left behind, so that reads become cheap
    /// again. Does nothing while writes go on; may take some seconds otherwise.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a burst of writes is under way, as the last calls of [`Engine::tidy`] found it: what
    /// can wait had better wait.
    fn is_in_burst(&self) -> bool {
        false
    }

    /// Gives back the space of a stretch that is garbage as a whole, as far as
    /// that is possible without touching single keys. Older versions of removed
    /// keys may come back; the caller removes what is left one by one.
    fn release_stretch(&self, low: &[u8], high: &[u8]) -> Result<()>;

    /// Rewrites everything without its garbage. Takes long.
    fn compact(&self) -> Result<()>;
}

/// A state of the map that does not change.
pub trait EngineSnapshot: Clone + Send + Sync + 'static {
    type Scan: Iterator<Item = Result<Pair>> + Send + 'static;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>>;

    fn scan(&self, range: KeyRange<'_>, direction: Direction) -> Self::Scan;
}
