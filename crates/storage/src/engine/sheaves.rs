//! Large batches are kept as they are, beside the memtable.
//!
//! A load comes in batches of hundreds of records, a range that is received in batches of thousands, with their index
//! entries. Put into the memtable one by one, each is searched for in a skip list, gets a node there, is found again by
//! the flush and is taken out of memory by itself: nearly half of what the engine takes. But such a batch is sorted
//! already, no memtable has its keys, and nobody changes it. So it stays what it is, a *sheaf*: a sorted row of pairs.
//!
//! ```text
//!                    ┌─ a key that may lie in a memtable, a removal ─► memtable ─┐
//!   batch, sorted ───┤                                                           ├─ one flush ─► tables
//!                    └─ any other ─────────────────────────────────► sheaf ──────┘
//! ```
//!
//! **What holds.**
//!
//! - A sheaf belongs to the memtable that was written at that time, and becomes tables with it, at one moment. ⚑ Whoever
//!   seals a memtable flushes its sheaves with it or *spills* them into it, before any other thread may flush it: the
//!   engine's own know of no sheaf, and a memtable without them would be no prefix of the batches (`applied` without
//!   what was applied).
//! - A key is in one sheaf at most, and a memtable's version of it is newer: when the sheaf was made, no memtable had
//!   the key. Tables may have an older version. ⚑ So the filter that knows a memtable's keys stays until its sheaves are
//!   gone.
//! - ⚑ Therefore a sheaf's version is what a reader finds, unless the key was *overwritten* before its snapshot. That is
//!   noted behind the write to the memtable, and before the batch is published: who reads without a snapshot finds one
//!   of both, never what is below both.
//! - A sheaf is in the list before its number is published, and until its tables are. ⚑ Snapshots take their number and
//!   the list while the list does not change: a snapshot from before the flush reads the tables of before, which a
//!   later list would not make up for.
//!
//! What is left out: sheaves of small batches, and joining sheaves in memory. Who looks for a key asks the filters of
//! all of them, and who begins a scan each of them. So there are few, and they make way when no new ones come.

use std::cmp::Ordering as Order;
use std::collections::{BinaryHeap, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fjall::SeqNo;
use lsm_tree::{InternalValue, ValueType};
use parking_lot::RwLock;

use super::key_filter::KeyFilter;
use super::{Direction, KeyRange, Pair, Slice};

/// About one key in a hundred that is not there seems to be.
const FILTER_BYTES_PER_KEY: usize = 2;

/// One batch, as far as its keys were new.
pub(super) struct Sheaf {
    number: SeqNo,
    /// In the order of their keys, no key twice.
    pairs: Vec<Pair>,
    /// As a memtable would count them.
    bytes: u64,
    filter: KeyFilter,
    has_overwritten: AtomicBool,
    /// The first batch that has changed a key since.
    overwritten: RwLock<HashMap<Slice, SeqNo, foldhash::fast::RandomState>>,
}

impl Sheaf {
    /// With the hash of each key.
    pub fn new(number: SeqNo, pairs: Vec<Pair>, hashes: &[u64]) -> Self {
        debug_assert_eq!(pairs.len(), hashes.len());
        debug_assert!(pairs.is_sorted_by(|(one, _), (next, _)| one[..] < next[..]));
        let bytes = pairs
            .iter()
            .map(|(key, value)| key.len() + value.len() + size_of::<InternalValue>())
            .sum::<usize>() as u64;
        let filter = KeyFilter::new(pairs.len() * FILTER_BYTES_PER_KEY);
        hashes.iter().for_each(|&hash| filter.insert(hash));
        Self {
            number,
            pairs,
            bytes,
            filter,
            has_overwritten: AtomicBool::new(false),
            overwritten: RwLock::default(),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of it, as a memtable takes it.
    pub fn versions(&self) -> impl Iterator<Item = InternalValue> {
        self.pairs.iter().map(|pair| self.version(pair))
    }

    fn version(&self, (key, value): &Pair) -> InternalValue {
        InternalValue::from_components(key.clone(), value.clone(), self.number, ValueType::Value)
    }

    fn find(&self, key: &[u8], hash: u64) -> Option<&Pair> {
        if !self.filter.may_contain(hash) {
            return None;
        }
        let place = self
            .pairs
            .binary_search_by(|(other, _)| other[..].cmp(key))
            .ok()?;
        Some(&self.pairs[place])
    }

    /// Behind the write of a newer version to the memtable.
    fn overwrite(&self, key: Slice, number: SeqNo) {
        let mut overwritten = self.overwritten.write();
        overwritten.entry(key).or_insert(number);
        self.has_overwritten.store(true, Ordering::Release);
    }

    /// Whether a reader of what is numbered below `before` finds a newer version elsewhere.
    fn is_overwritten(&self, key: &[u8], before: SeqNo) -> bool {
        self.has_overwritten.load(Ordering::Acquire)
            && self
                .overwritten
                .read()
                .get(key)
                .is_some_and(|&number| number < before)
    }

    /// The places of the pairs within a range.
    fn within(&self, range: KeyRange<'_>) -> Range<usize> {
        let below = |limit: &[u8]| self.pairs.partition_point(|(key, _)| &key[..] < limit);
        let through = |limit: &[u8]| self.pairs.partition_point(|(key, _)| &key[..] <= limit);
        let low = match range.low {
            Bound::Unbounded => 0,
            Bound::Included(low) => below(low),
            Bound::Excluded(low) => through(low),
        };
        let high = match range.high {
            Bound::Unbounded => self.pairs.len(),
            Bound::Included(high) => through(high),
            Bound::Excluded(high) => below(high),
        };
        low..high.max(low)
    }
}

/// Sheaves as they were at one moment. A key is in one of them at most.
pub(super) type List = Arc<Vec<Arc<Sheaf>>>;

/// All sheaves that are not in tables yet.
#[derive(Default)]
pub(super) struct Sheaves {
    list: RwLock<List>,
    /// Twice the number of changes of the list, and one if it is not empty: spares readers the lock.
    changes: AtomicU64,
}

impl Sheaves {
    pub fn is_empty(&self) -> bool {
        self.changes.load(Ordering::Acquire) & 1 == 0
    }

    pub fn list(&self) -> List {
        Arc::clone(&self.list.read())
    }

    /// What `take` takes, and the sheaves at the same moment, if there are any.
    pub fn at_one_moment<T>(&self, take: impl Fn() -> T) -> (T, Option<List>) {
        let before = self.changes.load(Ordering::Acquire);
        if before & 1 == 0 {
            let taken = take();
            if self.changes.load(Ordering::Acquire) == before {
                return (taken, None);
            }
        }
        let list = self.list.read();
        (take(), Some(Arc::clone(&list)))
    }

    pub fn add(&self, sheaf: Arc<Sheaf>) {
        self.change(|list| list.push(sheaf));
    }

    pub fn remove(&self, gone: &[Arc<Sheaf>]) {
        let is_gone = |sheaf: &Arc<Sheaf>| gone.iter().any(|gone| Arc::ptr_eq(gone, sheaf));
        self.change(|list| list.retain(|sheaf| !is_gone(sheaf)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Sheaf>>)) {
        let mut list = self.list.write();
        let mut changed = list.as_ref().clone();
        change(&mut changed);
        let is_filled = u64::from(!changed.is_empty());
        *list = Arc::new(changed);
        let changes = self.changes.load(Ordering::Relaxed) | 1;
        // Stored while the list is locked: a reader who finds the same number twice has missed no change.
        self.changes
            .store(changes + 1 + is_filled, Ordering::Release);
    }
}

/// What a reader of everything numbered below `before` finds under a key, if it is in a sheaf for him.
pub(super) fn get(list: &List, key: &[u8], hash: u64, before: SeqNo) -> Option<Slice> {
    let visible = list.iter().filter(|sheaf| sheaf.number < before);
    let (sheaf, pair) = visible
        .filter_map(|sheaf| Some((sheaf, sheaf.find(key, hash)?)))
        .next()?;
    (!sheaf.is_overwritten(key, before)).then(|| pair.1.clone())
}

/// Notes that the memtable has a newer version of a key now.
pub(super) fn overwrite(list: &List, key: &Slice, hash: u64, number: SeqNo) {
    for sheaf in list.iter() {
        if sheaf.find(key, hash).is_some() {
            sheaf.overwrite(key.clone(), number);
        }
    }
}

/// What is left of one sheaf, ordered by the pair that comes next: the greatest comes first in a heap.
struct Part {
    sheaf: Arc<Sheaf>,
    left: Range<usize>,
    direction: Direction,
}

impl Part {
    fn next(&self) -> &Pair {
        match self.direction {
            Direction::Forward => &self.sheaf.pairs[self.left.start],
            Direction::Backward => &self.sheaf.pairs[self.left.end - 1],
        }
    }

    /// Steps over the pair that comes next. False if it was the last.
    fn step(&mut self) -> bool {
        match self.direction {
            Direction::Forward => self.left.start += 1,
            Direction::Backward => self.left.end -= 1,
        }
        !self.left.is_empty()
    }
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> Order {
        let order = self.next().0[..].cmp(&other.next().0[..]);
        match self.direction {
            Direction::Forward => order.reverse(),
            Direction::Backward => order,
        }
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Part {}

/// The pairs of several sheaves in the order of their keys.
struct Merged(BinaryHeap<Part>);

impl Merged {
    fn new<'a>(
        sheaves: impl Iterator<Item = &'a Arc<Sheaf>>,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> Self {
        let parts = sheaves.map(|sheaf| Part {
            left: sheaf.within(range),
            sheaf: Arc::clone(sheaf),
            direction,
        });
        Self(parts.filter(|part| !part.left.is_empty()).collect())
    }

    fn peek(&self) -> Option<(&Sheaf, &Pair)> {
        let part = self.0.peek()?;
        Some((&part.sheaf, part.next()))
    }

    fn step(&mut self) {
        if let Some(mut part) = self.0.peek_mut()
            && !part.step()
        {
            std::collections::binary_heap::PeekMut::pop(part);
        }
    }
}

/// A scan over what is stored, with the sheaves that its snapshot saw.
pub(super) struct SheafScan<I: Iterator> {
    stored: std::iter::Peekable<I>,
    sheaves: Merged,
    direction: Direction,
    before: SeqNo,
}

impl<E, I: Iterator<Item = Result<Pair, E>>> SheafScan<I> {
    /// Nothing, where no sheaf has anything within the range.
    pub fn new(
        list: &List,
        range: KeyRange<'_>,
        direction: Direction,
        before: SeqNo,
        stored: impl FnOnce() -> I,
    ) -> Option<Self> {
        let visible = list.iter().filter(|sheaf| sheaf.number < before);
        let sheaves = Merged::new(visible, range, direction);
        sheaves.peek()?;
        Some(Self {
            stored: stored().peekable(),
            sheaves,
            direction,
            before,
        })
    }
}

impl<E, I: Iterator<Item = Result<Pair, E>>> Iterator for SheafScan<I> {
    type Item = Result<Pair, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((sheaf, pair)) = self.sheaves.peek() else {
                return self.stored.next();
            };
            let order = match self.stored.peek() {
                Some(Ok((stored, _))) => stored[..].cmp(&pair.0[..]),
                Some(Err(_)) => return self.stored.next(),
                // Everything stored comes first, in either direction, if there is any.
                None => match self.direction {
                    Direction::Forward => Order::Greater,
                    Direction::Backward => Order::Less,
                },
            };
            let is_stored_first = match self.direction {
                Direction::Forward => order.is_lt(),
                Direction::Backward => order.is_gt(),
            };
            if is_stored_first {
                return self.stored.next();
            }
            if sheaf.is_overwritten(&pair.0, self.before) {
                // What is stored says what became of it.
                self.sheaves.step();
                continue;
            }
            let pair = pair.clone();
            self.sheaves.step();
            if order.is_eq() {
                self.stored.next();
            }
            return Some(Ok(pair));
        }
    }
}

/// A memtable with its sheaves, as a flush wants them: in the order of keys, the latest version of a key first.
pub(super) fn with_sheaves(
    memtable: impl Iterator<Item = InternalValue>,
    sheaves: &[Arc<Sheaf>],
) -> impl Iterator<Item = InternalValue> {
    let mut memtable = memtable.peekable();
    let mut merged = Merged::new(sheaves.iter(), KeyRange::ALL, Direction::Forward);
    std::iter::from_fn(move || {
        let Some((sheaf, pair)) = merged.peek() else {
            return memtable.next();
        };
        // The memtable's version of a key is newer.
        let is_first = |version: &InternalValue| version.key.user_key[..] <= pair.0[..];
        if memtable.peek().is_some_and(is_first) {
            return memtable.next();
        }
        let version = sheaf.version(pair);
        merged.step();
        Some(version)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn get(list: &List, key: &str, before: SeqNo) -> Option<Slice> {
        super::get(list, key.as_bytes(), xxh3_64(key.as_bytes()), before)
    }

    fn overwrite(list: &List, key: &str, number: SeqNo) {
        super::overwrite(list, &slice(key), xxh3_64(key.as_bytes()), number);
    }

    fn slice(text: &str) -> Slice {
        Slice::new(text.as_bytes())
    }

    fn sheaf(number: SeqNo, keys: &[&str]) -> Arc<Sheaf> {
        let hashes: Vec<_> = keys.iter().map(|key| xxh3_64(key.as_bytes())).collect();
        let pairs = keys.iter();
        let pairs = pairs.map(|key| (slice(key), slice(&number.to_string())));
        Arc::new(Sheaf::new(number, pairs.collect(), &hashes))
    }

    fn shown(pairs: impl Iterator<Item = Result<Pair, Infallible>>) -> String {
        let text = |slice: &Slice| String::from_utf8_lossy(slice).into_owned();
        let pairs = pairs.map(|pair| {
            let Ok((key, value)) = pair;
            format!("{}={}", text(&key), text(&value))
        });
        pairs.collect::<Vec<_>>().join(" ")
    }

    /// What is stored under `keys` has the value "s".
    fn scan(
        list: &List,
        range: KeyRange<'_>,
        direction: Direction,
        before: SeqNo,
        keys: &[&str],
    ) -> Option<String> {
        let mut stored: Vec<_> = keys
            .iter()
            .map(|key| Ok((slice(key), slice("s"))))
            .collect();
        if direction == Direction::Backward {
            stored.reverse();
        }
        SheafScan::new(list, range, direction, before, || stored.into_iter()).map(shown)
    }

    #[test]
    fn scans_merge_what_is_stored_with_what_their_snapshot_saw() {
        let list: List = Arc::new(vec![sheaf(3, &["b", "e"]), sheaf(7, &["c", "f"])]);
        let (forward, backward) = (Direction::Forward, Direction::Backward);
        let stored = ["a", "c", "d", "g"];
        let all = |direction, before| {
            scan(&list, KeyRange::ALL, direction, before, &stored).unwrap_or_default()
        };
        assert_eq!(all(forward, 8), "a=s b=3 c=7 d=s e=3 f=7 g=s");
        assert_eq!(all(backward, 8), "g=s f=7 e=3 d=s c=7 b=3 a=s");
        assert_eq!(all(forward, 7), "a=s b=3 c=s d=s e=3 g=s");
        assert_eq!(all(forward, 3), "", "no sheaf: the plain scan is enough");
        assert_eq!(get(&list, "c", 8).as_deref(), Some(&b"7"[..]));
        assert_eq!(get(&list, "c", 7), None);
        let between = KeyRange::new(Bound::Excluded(b"b"), Bound::Included(b"e"));
        let found = scan(&list, between, backward, 8, &["c", "d"]);
        assert_eq!(found.as_deref(), Some("e=3 d=s c=7"));
        let beyond = KeyRange::new(Bound::Included(b"g"), Bound::Unbounded);
        assert_eq!(scan(&list, beyond, forward, 8, &["g"]), None);
        let crossed = KeyRange::new(Bound::Excluded(b"e"), Bound::Excluded(b"c"));
        assert_eq!(scan(&list, crossed, forward, 8, &[]), None);
    }

    /// ⚑ What was overwritten is what is stored says, from then on: a newer version, or none.
    #[test]
    fn what_is_overwritten_is_left_to_what_is_stored() {
        let list: List = Arc::new(vec![sheaf(3, &["b", "c", "d"])]);
        overwrite(&list, "b", 5);
        overwrite(&list, "c", 5);
        // The first time counts: later versions are where this one is.
        overwrite(&list, "c", 9);
        overwrite(&list, "x", 5);
        let all = |before, stored: &[&str]| {
            scan(&list, KeyRange::ALL, Direction::Forward, before, stored).unwrap_or_default()
        };
        assert_eq!(all(5, &["b"]), "b=3 c=3 d=3");
        assert_eq!(all(6, &["b"]), "b=s d=3");
        assert_eq!(get(&list, "c", 5).as_deref(), Some(&b"3"[..]));
        assert_eq!(get(&list, "c", 6), None);
    }

    #[test]
    fn a_flush_gets_the_latest_version_of_a_key_first() {
        let version = |key: &str, number| {
            InternalValue::from_components(slice(key), slice("m"), number, ValueType::Value)
        };
        let memtable = [
            version("a", 1),
            version("c", 9),
            version("c", 8),
            version("z", 2),
        ];
        let sheaves = [sheaf(3, &["b", "c"]), sheaf(5, &["d", "y"])];
        let found: Vec<_> = with_sheaves(memtable.into_iter(), &sheaves)
            .map(|version| {
                let key = String::from_utf8_lossy(&version.key.user_key).into_owned();
                (key, version.key.seqno)
            })
            .collect();
        let wanted = [
            ("a", 1),
            ("b", 3),
            ("c", 9),
            ("c", 8),
            ("c", 3),
            ("d", 5),
            ("y", 5),
            ("z", 2),
        ];
        assert_eq!(found, wanted.map(|(key, number)| (key.to_owned(), number)));
    }

    #[test]
    fn readers_see_the_list_of_one_moment() {
        let sheaves = Sheaves::default();
        assert!(sheaves.is_empty());
        assert!(sheaves.at_one_moment(|| ()).1.is_none());
        let (one, other) = (sheaf(1, &["a"]), sheaf(2, &["b"]));
        sheaves.add(Arc::clone(&one));
        sheaves.add(Arc::clone(&other));
        // ⚑ Nobody changes the list meanwhile.
        let (changes, both) = sheaves.at_one_moment(|| sheaves.list.try_write().is_some());
        assert!(!changes);
        sheaves.remove(&[one]);
        assert_eq!(both.map(|list| list.len()), Some(2));
        assert_eq!(sheaves.list().len(), 1);
        sheaves.remove(&[other]);
        assert!(sheaves.is_empty());
        // ⚑ A list that changes while something is taken is not the list of that moment.
        let taken = std::cell::Cell::new(0);
        let late = sheaf(3, &["c"]);
        let (_, list) = sheaves.at_one_moment(|| {
            taken.set(taken.get() + 1);
            if taken.get() == 1 {
                sheaves.add(Arc::clone(&late));
            }
        });
        assert_eq!((taken.get(), list.map(|list| list.len())), (2, Some(1)));
    }
}
