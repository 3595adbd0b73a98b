//! Stretches: consecutive pairs as long scans read them, packed and kept in memory.
//!
//! The engine merges memtables and tables for each pair that a scan asks for. Who reads
//! the same documents again should not pay for that again: a scan packs what it reads,
//! 62 KiB at a time, and later scans walk over that.
//!
//! ```text
//!   stored keys   ──────[ stretch )[ stretch )···· gap ····[ stretch )──────
//!                       from     to = from      filled by the next scan
//! ```
//!
//! A stretch says of an interval of stored keys exactly which pairs lie in it. The
//! intervals never overlap.
//!
//! Coherence. Batches are counted. A stretch belongs to the number of batches that were
//! finished before its scan's snapshot was taken:
//!
//! ```text
//!  writer   count the batch as begun ─► note its subjects, forget stretches around its keys
//!           ─► engine commit ─► count it as finished
//!  builder  keeps a stretch only if no batch that writes inside it has begun since its
//!           snapshot, as far as `changes.rs` remembers
//!  reader   takes a stretch only if its snapshot is not older than the stretch's
//! ```
//!
//! So while a stretch is found, nothing inside it has changed since it was read, and the
//! reader's snapshot lies in that time. A snapshot that is older than a stretch asks the
//! engine.
//!
//! Room. What is kept is bounded, for all stores of a process together (`memory.rs`). When all of
//! it is used, one in a few new stretches takes the place of an old one, in key order: a scan over
//! more than fits then still finds most of what is kept, where replacing the oldest would find nothing.
//!
//! Pieces. Each write takes a stretch away, and the next scan may fill the gap in part. So
//! that pieces do not become ever smaller, a scan that asks the engine anyway goes on
//! through small stretches behind the gap, and what it leaves takes their place.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use byteview::ByteView;
use model::ids::CollectionId;
use parking_lot::RwLock;

use super::allocation::{block_bytes, view_bytes};
use super::changes::Changes;
use super::joined::{Attempts, Joined};
use super::memory::ScanMemory;
use crate::engine::Pair;
use crate::layout::{self, Subject};

/// Of this many new stretches one replaces others when there is no room.
const REPLACED_ONE_IN: u32 = 16;
/// A stretch of less is read anew with the gap before it.
const SMALL_BYTES: usize = 16 << 10;
/// So many small ones in a row are looked at.
const SMALL_MAX: usize = 16;
/// Of a batch of more keys than this, many may lie in the same gap.
const LONG_BATCH: usize = 8;

/// What one costs besides its bytes: itself, and its place among others.
const OVERHEAD_BYTES: u64 = 192;
/// What one may take, unless its last document is a large one.
const STRETCH_BYTES_MAX: u64 = 128 << 10;

/// The pairs of an interval of stored keys.
pub(super) struct Stretch {
    /// Where the interval ends, excluded.
    to: Box<[u8]>,
    /// Keys and values in turn.
    bytes: ByteView,
    /// Where each key and each value begins in `bytes`, and the end of the last value.
    places: Box<[u32]>,
    /// The batches that were finished when this was read.
    commits_finished: u64,
    /// The records of these index entries. Changed only with the lock over all stretches.
    joined: RwLock<Option<Arc<Joined>>>,
    pub attempts: Attempts,
}

impl Stretch {
    pub fn new(to: &[u8], pairs: &[Pair], commits_finished: u64) -> Self {
        let length = pairs.iter().map(|(key, value)| key.len() + value.len());
        let mut bytes = Vec::with_capacity(length.sum());
        let mut places = Vec::with_capacity(pairs.len() * 2 + 1);
        for part in pairs.iter().flat_map(|(key, value)| [key, value]) {
            places.push(bytes.len() as u32);
            bytes.extend_from_slice(part);
        }
        places.push(bytes.len() as u32);
        Self {
            to: to.into(),
            bytes: ByteView::new(&bytes),
            places: places.into(),
            commits_finished,
            joined: RwLock::default(),
            attempts: Attempts::default(),
        }
    }

    pub fn to(&self) -> &[u8] {
        &self.to
    }

    pub fn len(&self) -> usize {
        self.places.len() / 2
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.bytes[self.places[2 * at] as usize..self.places[2 * at + 1] as usize]
    }

    pub fn value(&self, at: usize) -> &[u8] {
        &self.bytes[self.places[2 * at + 1] as usize..self.places[2 * at + 2] as usize]
    }

    pub fn pair(&self, at: usize) -> Pair {
        let [key, value, end] = [0, 1, 2].map(|part| self.places[2 * at + part] as usize);
        (
            self.bytes.slice(key..value).into(),
            self.bytes.slice(value..end).into(),
        )
    }

    /// How many pairs lie before `key`.
    pub fn before(&self, key: &[u8]) -> usize {
        // A scan comes from the stretch before, and would wait for memory at each step of the search.
        if self.len() == 0 || self.key(0) >= key {
            return 0;
        }
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.key(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn is_small(&self) -> bool {
        self.bytes.len() < SMALL_BYTES
    }

    fn memory_bytes(&self) -> u64 {
        let joined = self.joined.read();
        let joined_bytes = joined.as_ref().map_or(0, |joined| joined.memory_bytes());
        let places_bytes = block_bytes(size_of_val(&*self.places));
        // Where it begins is about as long as where it ends.
        let keys_bytes = 2 * block_bytes(self.to.len());
        view_bytes(self.bytes.len()) + places_bytes + keys_bytes + OVERHEAD_BYTES + joined_bytes
    }
}

/// What is known around a key.
pub(super) enum Around {
    /// The key lies in this stretch.
    Inside(Arc<Stretch>),
    /// It lies in none; the next one worth walking over begins here.
    Before(Option<Box<[u8]>>),
    /// It lies in one that is newer than the reader's snapshot.
    Newer,
}

#[derive(Default)]
struct Kept {
    /// By where they begin.
    stretches: BTreeMap<Box<[u8]>, Arc<Stretch>>,
    memory_bytes: u64,
    changes: Changes,
    /// Where the search for the next one to be replaced begins.
    hand: Box<[u8]>,
}

impl Kept {
    /// The stretch that a key lies in, and where that begins.
    fn around(&self, key: &[u8]) -> Option<(&[u8], &Arc<Stretch>)> {
        let reach = (Bound::Unbounded, Bound::Included(key));
        let (from, stretch) = self.stretches.range::<[u8], _>(reach).next_back()?;
        (key < &stretch.to[..]).then_some((&from[..], stretch))
    }

    /// Where the stretches begin that any of these keys lies in. The keys of a load mostly lie in
    /// one gap between stretches, which is looked for once.
    fn around_any<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) -> Vec<Box<[u8]>> {
        let is_long = keys.clone().nth(LONG_BATCH).is_some();
        let mut found = Vec::new();
        // From here to before there, all is said already.
        let mut known: Option<(&[u8], Option<&[u8]>)> = None;
        for key in keys {
            if known.is_some_and(|(low, high)| low <= key && high.is_none_or(|high| key < high)) {
                continue;
            }
            let reach = (Bound::Unbounded, Bound::Included(key));
            let before = self.stretches.range::<[u8], _>(reach).next_back();
            known = match before {
                Some((from, stretch)) if key < &stretch.to[..] => {
                    found.push(from.clone());
                    Some((&from[..], Some(&stretch.to[..])))
                }
                before if is_long => {
                    let reach = (Bound::Excluded(key), Bound::Unbounded);
                    let next = self.stretches.range::<[u8], _>(reach).next();
                    let low = before.map_or(&[][..], |(_, stretch)| &stretch.to[..]);
                    Some((low, next.map(|(from, _)| &from[..])))
                }
                _ => known,
            };
        }
        found
    }

    fn remove(&mut self, from: &[u8]) {
        if let Some(stretch) = self.stretches.remove(from) {
            self.memory_bytes -= stretch.memory_bytes();
        }
    }

    /// Removes all stretches of a collection or index.
    fn remove_all(&mut self, subject: Subject) {
        let prefix = layout::all_of(subject);
        let reach = (Bound::Included(&prefix[..]), Bound::Unbounded);
        let gone: Vec<Box<[u8]>> = self
            .stretches
            .range::<[u8], _>(reach)
            .map(|(from, _)| from.clone())
            .take_while(|from| from.starts_with(&prefix))
            .collect();
        for from in gone {
            self.remove(&from);
        }
    }

    /// Removes the one whose turn it is; false if there is none.
    fn remove_next(&mut self) -> bool {
        let reach = (Bound::Excluded(&self.hand[..]), Bound::Unbounded);
        let next = self.stretches.range::<[u8], _>(reach).next();
        match next.or_else(|| self.stretches.first_key_value()) {
            Some((from, _)) => self.hand = from.clone(),
            None => return false,
        }
        let from = self.hand.clone();
        self.remove(&from);
        true
    }
}

pub(super) struct Stretches {
    memory: ScanMemory,
    kept: RwLock<Kept>,
    /// Spares short scans and loads the lock.
    is_empty: AtomicBool,
    memory_bytes: AtomicU64,
    /// New ones since one was replaced.
    refused: AtomicU32,
}

impl Stretches {
    pub fn new(memory: ScanMemory) -> Self {
        Self {
            memory,
            kept: RwLock::default(),
            is_empty: AtomicBool::new(true),
            memory_bytes: AtomicU64::new(0),
            refused: AtomicU32::new(0),
        }
    }

    pub fn is_off(&self) -> bool {
        self.memory.is_off()
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Whether one more has place without taking that of others.
    pub fn has_room(&self) -> bool {
        self.memory.has_room(STRETCH_BYTES_MAX)
    }

    /// Whether it is worth while to make something that takes so many bytes: there is
    /// room, or it is the one in a few that takes others' place.
    pub fn wants(&self, bytes: u64) -> bool {
        if self.memory.has_room(bytes) {
            return true;
        }
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        refused.is_multiple_of(REPLACED_ONE_IN)
    }

    /// For a reader whose snapshot was taken after so many batches.
    pub fn around(&self, key: &[u8], commits_finished: u64) -> Around {
        if self.is_empty.load(Ordering::Acquire) {
            return Around::Before(None);
        }
        let kept = self.kept.read();
        match kept.around(key) {
            Some((_, stretch)) if stretch.commits_finished <= commits_finished => {
                Around::Inside(Arc::clone(stretch))
            }
            Some(_) => Around::Newer,
            None => {
                let reach = (Bound::Excluded(key), Bound::Unbounded);
                let mut next = kept.stretches.range::<[u8], _>(reach).take(SMALL_MAX);
                let next = next.find(|(_, stretch)| !stretch.is_small());
                Around::Before(next.map(|(from, _)| from.clone()))
            }
        }
    }

    /// Keeps a stretch, if it is still what the store holds.
    pub fn keep(&self, subject: Subject, from: &[u8], stretch: Stretch) {
        let bytes = stretch.memory_bytes();
        if !self.memory.make_room(bytes) {
            return;
        }
        let mut kept = self.kept.write();
        let within = (from, &stretch.to[..]);
        let commits_finished = stretch.commits_finished;
        if from >= &stretch.to[..]
            || !kept
                .changes
                .is_unchanged_within(subject, within, commits_finished)
        {
            return;
        }
        // Another scan may have been here meanwhile.
        if kept.around(from).is_some_and(|(other, _)| other < from) {
            return;
        }
        let reach = (Bound::Included(from), Bound::Excluded(&stretch.to[..]));
        let mut small = Vec::new();
        for (other, replaced) in kept.stretches.range::<[u8], _>(reach) {
            if !replaced.is_small() {
                return;
            }
            small.push(other.clone());
        }
        for other in small {
            kept.remove(&other);
        }
        kept.memory_bytes += bytes;
        kept.stretches.insert(from.into(), Arc::new(stretch));
        self.note_sizes(&kept);
    }

    /// The records of a stretch of index entries, if they are known to be those of the
    /// reader's snapshot.
    pub fn joined(
        &self,
        stretch: &Stretch,
        collection: CollectionId,
        commits_finished: u64,
    ) -> Option<Arc<Joined>> {
        let joined = stretch.joined.read().clone()?;
        let subject = Subject::Collection(collection);
        let is_same = joined.commits_finished <= commits_finished
            && self
                .kept
                .read()
                .changes
                .is_unchanged(subject, joined.commits_finished);
        is_same.then_some(joined)
    }

    /// Keeps the records of a stretch with it.
    pub fn join(&self, stretch: &Arc<Stretch>, collection: CollectionId, joined: &Arc<Joined>) {
        if stretch.len() == 0 || !self.memory.make_room(joined.memory_bytes()) {
            return;
        }
        let mut kept = self.kept.write();
        let subject = Subject::Collection(collection);
        if !kept.changes.is_unchanged(subject, joined.commits_finished) {
            return;
        }
        // It may have gone meanwhile, or just now.
        let is_kept = kept
            .around(stretch.key(0))
            .is_some_and(|(_, other)| Arc::ptr_eq(other, stretch));
        if is_kept {
            kept.memory_bytes -= stretch.memory_bytes();
            *stretch.joined.write() = Some(Arc::clone(joined));
            kept.memory_bytes += stretch.memory_bytes();
        }
        self.note_sizes(&kept);
    }

    /// What was joined last, whether it still holds or not.
    pub fn last_joined(&self, stretch: &Stretch) -> Option<Arc<Joined>> {
        stretch.joined.read().clone()
    }

    /// Before the commit of the batch with this number.
    pub fn changing<'a>(
        &self,
        number: u64,
        subjects: impl Iterator<Item = Subject>,
        keys: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        if self.is_off() {
            return;
        }
        let mut kept = self.kept.write();
        kept.changes.note(number, subjects, keys.clone());
        if kept.stretches.is_empty() {
            return;
        }
        for from in kept.around_any(keys) {
            kept.remove(&from);
        }
        self.note_sizes(&kept);
    }

    /// Before the commit of the batch with this number, which may change anything of a subject from one key to
    /// before another.
    pub fn changing_within(&self, number: u64, subject: Subject, (from, to): (&[u8], &[u8])) {
        if self.is_off() {
            return;
        }
        let mut kept = self.kept.write();
        kept.changes.note_span(number, subject, (from, to));
        let reach = (Bound::Included(from), Bound::Excluded(to));
        let inside = kept
            .stretches
            .range::<[u8], _>(reach)
            .map(|(from, _)| &from[..]);
        let across = kept.around(from).map(|(from, _)| from);
        let gone: Vec<Box<[u8]>> = across.into_iter().chain(inside).map(Box::from).collect();
        for from in gone {
            kept.remove(&from);
        }
        self.note_sizes(&kept);
    }

    /// Before the commit of the batch with this number, which may change anything of these.
    pub fn changing_all(&self, number: u64, subjects: impl Iterator<Item = Subject>) {
        if self.is_off() {
            return;
        }
        let mut kept = self.kept.write();
        for subject in subjects {
            kept.changes.note_all(number, subject);
            kept.remove_all(subject);
        }
        self.note_sizes(&kept);
    }

    /// Before the batch with this number, which replaces everything.
    pub fn clear(&self, number: u64) {
        let mut kept = self.kept.write();
        *kept = Kept {
            changes: Changes::after_replacement(number),
            ..Kept::default()
        };
        self.note_sizes(&kept);
    }

    /// Frees what belongs to something dropped, which nobody will ask for any more.
    pub fn forget(&self, subject: Subject) {
        let mut kept = self.kept.write();
        // Nothing is kept from now on. The entry stays: an old snapshot must not keep
        // what a batch has changed that nobody remembers.
        kept.changes.note_dropped(subject);
        kept.remove_all(subject);
        self.note_sizes(&kept);
    }

    /// Makes one of them give way to others; false if there is none.
    pub fn give_way(&self) -> bool {
        let mut kept = self.kept.write();
        let removed = kept.remove_next();
        self.note_sizes(&kept);
        removed
    }

    /// With the lock held.
    fn note_sizes(&self, kept: &Kept) {
        self.is_empty
            .store(kept.stretches.is_empty(), Ordering::Release);
        let before = self.memory_bytes.swap(kept.memory_bytes, Ordering::Relaxed);
        self.memory.changed(before, kept.memory_bytes);
    }
}

impl Drop for Stretches {
    fn drop(&mut self) {
        self.memory.changed(self.memory_bytes(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Against looking for each key.
    #[test]
    fn stretches_around_any_key_are_found() {
        let mut kept = Kept::default();
        for (from, to) in [("b", "d"), ("d", "f"), ("h", "k"), ("p", "q")] {
            let stretch = Arc::new(Stretch::new(to.as_bytes(), &[], 0));
            kept.stretches.insert(from.as_bytes().into(), stretch);
        }
        let mut random = 1u64;
        for count in (0..30).cycle().take(3_000) {
            let keys: Vec<[u8; 1]> = std::iter::repeat_with(|| {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                [b'a' + (random >> 33) as u8 % 20]
            })
            .take(count)
            .collect();
            let keys = keys.iter().map(|key| &key[..]);
            let expected: BTreeSet<&[u8]> = keys
                .clone()
                .filter_map(|key| Some(kept.around(key)?.0))
                .collect();
            let found = kept.around_any(keys.clone());
            let found: BTreeSet<&[u8]> = found.iter().map(|from| &from[..]).collect();
            assert_eq!(found, expected, "{:?}", keys.collect::<Vec<_>>());
        }
    }
}
