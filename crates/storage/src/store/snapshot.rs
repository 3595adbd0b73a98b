//! Everything as of one moment, and scans over it.
//!
//! Ranges are bytes: record keys for records, fields followed by record key for
//! index entries. What a scan yields last is the position from which another
//! snapshot goes on, with an excluded bound.
//!
//! A scan yields an error for a pair that does not decode and goes on behind it,
//! so that `validate` can list all damage; other callers stop at the first.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use byteview::ByteView;
use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;

use super::forgotten::{Marks, Sieve};
use super::joined::Joined;
use super::pairs::{Leaves, Origin, Pairs, Verdict};
use super::past::PastSnapshot;
use super::stretches::Stretch;
use super::{Direction, EngineSnapshot, KeyRange, Shared, Slice};
use crate::error::{Error, Result};
use crate::layout::{self, StoredKey, Subject, TIME_BYTES};

/// A version of a record: commit time and document, sharing the stored bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record(Slice);

impl Record {
    pub(crate) fn from_stored(value: Slice) -> Result<Self> {
        layout::value_time(&value)?;
        Ok(Self(value))
    }

    /// A version that is not stored yet (appended, but not applied).
    pub fn new(time: ClusterTime, document: &[u8]) -> Self {
        Self(ByteView::fused(&layout::time_bytes(time), document).into())
    }

    /// A version that has no place in the log yet: its time is still to be set.
    pub fn draft(document: &[u8]) -> Self {
        Self::new(ClusterTime::ZERO, document)
    }

    /// The same document, committed at `time`. The bytes are copied only if somebody
    /// else holds them too.
    #[must_use]
    pub fn committed_at(self, time: ClusterTime) -> Self {
        let mut value = ByteView::from(self.0);
        if let Some(mut bytes) = value.get_mut() {
            bytes[..TIME_BYTES].copy_from_slice(&layout::time_bytes(time));
        } else {
            return Self::new(time, &value[TIME_BYTES..]);
        }
        Self(value.into())
    }

    pub fn time(&self) -> ClusterTime {
        layout::value_time(&self.0).unwrap_or(ClusterTime::ZERO)
    }

    pub fn document(&self) -> &[u8] {
        &self.0[TIME_BYTES..]
    }

    pub(crate) fn stored(&self) -> &Slice {
        &self.0
    }

    pub(crate) fn into_stored(self) -> Slice {
        self.0
    }
}

/// A record with its key, as a scan yields it.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    pub(super) key: Slice,
    pub(super) prefix: usize,
    pub record: Record,
}

impl StoredRecord {
    /// The record key, which is also the position to go on from.
    pub fn key(&self) -> &[u8] {
        &self.key[self.prefix..]
    }

    /// The same, to keep.
    pub fn position(&self) -> Position {
        Position {
            key: self.key.clone(),
            prefix: self.prefix,
        }
    }

    pub fn into_position(self) -> Position {
        Position {
            key: self.key,
            prefix: self.prefix,
        }
    }

    pub fn document(&self) -> &[u8] {
        self.record.document()
    }
}

/// Where a scan has come to: a record key, or fields and record key.
#[derive(Clone, Debug)]
pub struct Position {
    key: Slice,
    prefix: usize,
}

impl Position {
    pub fn as_bytes(&self) -> &[u8] {
        &self.key[self.prefix..]
    }
}

/// An index entry, split without decoding.
#[derive(Clone, Debug)]
pub struct IndexEntry {
    key: Slice,
    value: Slice,
    prefix: usize,
    record_key_at: usize,
    type_bits_at: usize,
}

impl IndexEntry {
    fn from_stored(key: Slice, value: Slice, prefix: usize) -> Result<Self> {
        let split = || {
            let split = layout::split_index_value(&value)?;
            let at = key.len().checked_sub(split.key_bytes)?;
            (at >= prefix).then_some((at, split.type_bits_at))
        };
        let (record_key_at, type_bits_at) = split().ok_or(Error::Damaged {
            what: "index entry",
        })?;
        Ok(Self {
            key,
            value,
            prefix,
            record_key_at,
            type_bits_at,
        })
    }

    /// The encoded fields.
    pub fn fields(&self) -> &[u8] {
        &self.key[self.prefix..self.record_key_at]
    }

    pub fn record_key(&self) -> &[u8] {
        &self.key[self.record_key_at..]
    }

    pub fn type_bits(&self) -> &[u8] {
        &self.value[self.type_bits_at..]
    }

    /// Fields and record key: the position to go on from.
    pub fn fields_and_record_key(&self) -> &[u8] {
        &self.key[self.prefix..]
    }

    /// The same, to keep.
    pub fn position(&self) -> Position {
        Position {
            key: self.key.clone(),
            prefix: self.prefix,
        }
    }
}

/// The store as of one moment. Cheap to clone, costly to keep.
#[derive(Clone)]
pub struct Snapshot<S: EngineSnapshot> {
    /// Shared with the scans over it.
    state: Arc<S>,
    time: ClusterTime,
    commits_finished: u64,
    dropped: Arc<BTreeSet<Subject>>,
    /// What is stored and gone; `None` if nothing is.
    forgotten: Option<Arc<Marks>>,
    /// Marks of later times are left out: caches are not for it.
    is_earlier: bool,
    shared: Arc<Shared>,
}

impl<S: EngineSnapshot> Snapshot<S> {
    /// `commits_finished` and `time` were read before `state` was taken, marks before and after.
    pub(super) fn new(
        (state, forgotten): (S, Option<Arc<Marks>>),
        time: ClusterTime,
        commits_finished: u64,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            state: Arc::new(state),
            time,
            commits_finished,
            // After the state: what is dropped in between is already gone here.
            dropped: shared.dropped(),
            forgotten,
            is_earlier: false,
            shared,
        }
    }

    /// The same without the ranges that were forgotten later than a time.
    pub(super) fn before_forgetting(&self, time: ClusterTime) -> Self {
        let mut earlier = self.clone();
        if let Some(marks) = &self.forgotten
            && marks.all().iter().any(|mark| mark.time > time)
        {
            earlier.forgotten = Some(Arc::new(marks.only(|mark| mark.time <= time)));
            earlier.is_earlier = true;
        }
        earlier
    }

    /// A time that this snapshot surely contains: that of an applied entry.
    pub fn time(&self) -> ClusterTime {
        self.time
    }

    /// The time of the last entry that this snapshot contains, which may be a little later than
    /// [`Snapshot::time`].
    pub fn last_time(&self) -> Result<ClusterTime> {
        super::counters::applied_time(&*self.state)
    }

    /// One record of this snapshot, from the record cache where that is the same.
    ///
    /// The cache holds the latest version. If that one was committed at or before
    /// a time that the snapshot contains, it is also the snapshot's: a later one
    /// that the snapshot contains would be the latest. The other way round, what
    /// is read here may go into the cache only while no batch has begun since the
    /// snapshot was taken.
    pub fn get(&self, collection: CollectionId, key: &[u8]) -> Result<Option<Record>> {
        if layout::check_user_key(key.len()).is_err() {
            return Ok(None);
        }
        if self.dropped.contains(&Subject::Collection(collection)) {
            return Ok(None);
        }
        let stored = layout::record(collection, key);
        let marks = self.forgotten.as_deref();
        let is_there =
            |value: &Slice| marks.is_none_or(|marks| !marks.covers_record(collection, key, value));
        let load = || Ok(self.state.get(&stored)?.filter(is_there));
        if self.is_earlier {
            return load()?.map(Record::from_stored).transpose();
        }
        let value = self.shared.cache.get_or_load(
            &stored,
            |value| {
                layout::value_time(value).is_ok_and(|time| time <= self.time) && is_there(value)
            },
            load,
            // The latest only if nothing has begun besides what was finished before the
            // snapshot: a batch in between might have removed what it still shows.
            || self.shared.commits_begun.load(Ordering::Acquire) == self.commits_finished,
        )?;
        value.map(Record::from_stored).transpose()
    }

    pub fn scan_records(
        &self,
        collection: CollectionId,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> RecordScan<S> {
        let (prefix, pairs) = self.pairs(
            Subject::Collection(collection),
            range,
            direction,
            Leaves::Stretches,
        );
        RecordScan { prefix, pairs }
    }

    /// The same, forward, for whoever removes what he reads, or has no use for it any more: nothing more of it is
    /// kept in memory.
    pub fn scan_records_once(
        &self,
        collection: CollectionId,
        range: KeyRange<'_>,
    ) -> RecordScan<S> {
        let (prefix, pairs) = self.pairs(
            Subject::Collection(collection),
            range,
            Direction::Forward,
            Leaves::Nothing,
        );
        RecordScan { prefix, pairs }
    }

    /// Leaves the records of a range in memory, as scans do, as long as there is room for more and `goes_on` says so,
    /// which is asked behind each record. Where that has come to, if it was told to stop.
    pub fn keep_in_memory(
        &self,
        collection: CollectionId,
        range: KeyRange<'_>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Position>> {
        for record in self.scan_records(collection, range, Direction::Forward) {
            let record = record?;
            if !self.shared.stretches.has_room() {
                break;
            }
            if !goes_on() {
                return Ok(Some(record.into_position()));
            }
        }
        Ok(None)
    }

    /// The records of a range from the engine alone, for whoever compares what is stored with what somebody else has read.
    pub fn scan_records_stored(
        &self,
        collection: CollectionId,
        range: KeyRange<'_>,
    ) -> RecordScan<S> {
        let subject = Subject::Collection(collection);
        let prefix = layout::all_of(subject);
        let pairs = match self.dropped.contains(&subject) {
            true => Pairs::none(),
            false => {
                let bounds = bounds_within(&prefix, range);
                let sieve = self.sieve(subject);
                Pairs::of_engine(&*self.state, bounds, Direction::Forward, sieve)
            }
        };
        RecordScan {
            prefix: prefix.len(),
            pairs,
        }
    }

    pub fn scan_index(
        &self,
        index: IndexId,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> IndexScan<S> {
        let (prefix, pairs) =
            self.pairs(Subject::Index(index), range, direction, Leaves::Stretches);
        IndexScan {
            prefix,
            pairs,
            joined: None,
        }
    }

    /// The records that a stretch of index entries leads to, packed, if it is time for
    /// that or was before. So many of its entries are about to be looked at.
    fn joined(
        &self,
        stretch: &Arc<Stretch>,
        entries: usize,
        collection: CollectionId,
        prefix: usize,
    ) -> Result<Option<Arc<Joined>>> {
        let stretches = &self.shared.stretches;
        if let Some(joined) = stretches.joined(stretch, collection, self.commits_finished) {
            joined.note_walk(entries);
            return Ok(Some(joined));
        }
        if !stretch.attempts.is_due(entries, stretch.len()) {
            return Ok(None);
        }
        let replaced = stretches.last_joined(stretch);
        stretch.attempts.begin(replaced.as_deref());
        let records = (0..stretch.len()).map(|at| {
            let (key, value) = stretch.pair(at);
            let entry = IndexEntry::from_stored(key, value, prefix)?;
            self.get(collection, entry.record_key())
        });
        let Some(joined) = Joined::new(records, self.commits_finished)? else {
            stretch.attempts.give_up();
            return Ok(None);
        };
        let joined = Arc::new(joined);
        if stretches.wants(joined.memory_bytes()) {
            stretches.join(stretch, collection, &joined);
        }
        Ok(Some(joined))
    }

    /// The length of the subject's prefix, and its pairs.
    fn pairs(
        &self,
        subject: Subject,
        range: KeyRange<'_>,
        direction: Direction,
        leaves: Leaves,
    ) -> (usize, Pairs<S>) {
        let prefix = layout::all_of(subject);
        let pairs = if self.dropped.contains(&subject) {
            Pairs::none()
        } else if self.is_earlier {
            let bounds = bounds_within(&prefix, range);
            Pairs::of_engine(&*self.state, bounds, direction, self.sieve(subject))
        } else {
            let bounds = bounds_within(&prefix, range);
            let origin = Origin {
                state: Arc::clone(&self.state),
                commits_finished: self.commits_finished,
                shared: Arc::clone(&self.shared),
                subject,
            };
            Pairs::new(origin, bounds, direction, leaves, self.sieve(subject))
        };
        (prefix.len(), pairs)
    }

    fn sieve(&self, subject: Subject) -> Option<Sieve> {
        Sieve::new(self.forgotten.as_deref()?, subject)
    }

    /// The entries whose fields and record key begin with `fields`: with complete
    /// fields, those that a unique index must look at before it takes another.
    pub fn index_entries_with_prefix(&self, index: IndexId, fields: &[u8]) -> IndexScan<S> {
        let end = layout::after_prefix(fields);
        let high = match &end {
            Some(end) => Bound::Excluded(&end[..]),
            None => Bound::Unbounded,
        };
        let range = KeyRange::new(Bound::Included(fields), high);
        self.scan_index(index, range, Direction::Forward)
    }

    /// Whether a scan of this collection would find nothing because it is dropped.
    pub fn has_dropped_collection(&self, collection: CollectionId) -> bool {
        self.dropped.contains(&Subject::Collection(collection))
    }

    /// Whether a scan of this index would find nothing because it is dropped.
    pub fn has_dropped_index(&self, index: IndexId) -> bool {
        self.dropped.contains(&Subject::Index(index))
    }

    /// The records of this snapshot as they were at `time`.
    pub fn at(&self, time: ClusterTime) -> Result<PastSnapshot<S>> {
        if time > self.time {
            return Err(Error::TimeNotReached {
                asked: time,
                applied: self.time,
            });
        }
        // Read after the state was fixed: what is removed later stays visible in it.
        let oldest = self.shared.history_start();
        if time < oldest {
            return Err(Error::SnapshotTooOld {
                asked: time,
                oldest,
            });
        }
        Ok(PastSnapshot::new(self, time))
    }

    pub fn get_meta(&self, key: &[u8]) -> Result<Option<Slice>> {
        self.state.get(&layout::document(key))
    }

    /// The shard's documents whose keys begin with `prefix`, in key order.
    pub fn scan_meta(&self, prefix: &[u8]) -> MetaScan<S> {
        MetaScan {
            pairs: scan_prefix(&*self.state, &layout::document(prefix)),
        }
    }

    /// Those of them in a range; its bounds are what follows the prefix.
    pub fn scan_meta_within(
        &self,
        prefix: &[u8],
        range: KeyRange<'_>,
        direction: Direction,
    ) -> MetaScan<S> {
        MetaScan {
            pairs: scan_within(&*self.state, &layout::document(prefix), range, direction),
        }
    }

    pub(super) fn state(&self) -> &S {
        &self.state
    }

    pub(super) fn is_dropped(&self, subject: Subject) -> bool {
        self.dropped.contains(&subject)
    }
}

/// Everything whose key begins with `prefix`.
pub(super) fn scan_prefix<S: EngineSnapshot>(state: &S, prefix: &StoredKey) -> S::Scan {
    scan_within(state, prefix, KeyRange::ALL, Direction::Forward)
}

/// The part of `range` below `prefix`; bounds are what follows the prefix.
pub(super) fn scan_within<S: EngineSnapshot>(
    state: &S,
    prefix: &[u8],
    range: KeyRange<'_>,
    direction: Direction,
) -> S::Scan {
    let (low, high) = bounds_within(prefix, range);
    let range = KeyRange::new(
        low.as_ref().map(Vec::as_slice),
        high.as_ref().map(Vec::as_slice),
    );
    state.scan(range, direction)
}

/// The bounds of that part as stored keys.
fn bounds_within(prefix: &[u8], range: KeyRange<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let below = |rest: &[u8]| {
        let mut key = Vec::with_capacity(prefix.len() + rest.len());
        key.extend_from_slice(prefix);
        key.extend_from_slice(rest);
        key
    };
    // No stored key is longer than the limit, so a longer bound lies right behind
    // its own beginning; engines do not take it as it is.
    let shortened = |rest: &[u8]| {
        layout::check_user_key(rest.len())
            .is_err()
            .then(|| below(&rest[..layout::MAX_USER_KEY_BYTES]))
    };
    let low = match range.low {
        Bound::Included(rest) | Bound::Excluded(rest) if let Some(key) = shortened(rest) => {
            Bound::Excluded(key)
        }
        Bound::Included(rest) => Bound::Included(below(rest)),
        Bound::Excluded(rest) => Bound::Excluded(below(rest)),
        Bound::Unbounded => Bound::Included(prefix.to_vec()),
    };
    let high = match range.high {
        Bound::Included(rest) | Bound::Excluded(rest) if let Some(key) = shortened(rest) => {
            Bound::Included(key)
        }
        Bound::Included(rest) => Bound::Included(below(rest)),
        Bound::Excluded(rest) => Bound::Excluded(below(rest)),
        Bound::Unbounded => match layout::after_prefix(prefix) {
            Some(end) => Bound::Excluded(end),
            None => Bound::Unbounded,
        },
    };
    (low, high)
}

/// Records in record-key order.
pub struct RecordScan<S: EngineSnapshot> {
    prefix: usize,
    pairs: Pairs<S>,
}

impl<S: EngineSnapshot> Iterator for RecordScan<S> {
    type Item = Result<StoredRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        Some(pair.and_then(|(key, value)| {
            Ok(StoredRecord {
                key,
                prefix: self.prefix,
                record: Record::from_stored(value)?,
            })
        }))
    }
}

impl<S: EngineSnapshot> RecordScan<S> {
    /// Whether the last record came out of memory, where scans had left it.
    pub fn is_kept(&self) -> bool {
        self.pairs.is_kept()
    }

    /// The next record that is taken or stopped at, judged by its document. Those passed
    /// cost less than with [`Iterator::next`].
    pub fn find_record(
        &mut self,
        mut judge: impl FnMut(&[u8]) -> Verdict,
    ) -> Option<Result<(Verdict, StoredRecord)>> {
        let found = self.pairs.find(|value| match value.get(TIME_BYTES..) {
            Some(document) => judge(document),
            // Taken, to fail below.
            None => Verdict::Take,
        })?;
        Some(found.and_then(|(verdict, (key, value))| {
            let record = StoredRecord {
                key,
                prefix: self.prefix,
                record: Record::from_stored(value)?,
            };
            Ok((verdict, record))
        }))
    }
}

/// Index entries in index order.
pub struct IndexScan<S: EngineSnapshot> {
    prefix: usize,
    pairs: Pairs<S>,
    /// The stretch whose records were asked for last, with its records if they are packed.
    joined: Option<(Arc<Stretch>, Option<Arc<Joined>>)>,
}

impl<S: EngineSnapshot> Iterator for IndexScan<S> {
    type Item = Result<IndexEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        Some(pair.and_then(|(key, value)| IndexEntry::from_stored(key, value, self.prefix)))
    }
}

/// What a search through an index stopped at.
pub type FoundEntry = (Verdict, IndexEntry, Record);

impl<S: EngineSnapshot> IndexScan<S> {
    /// The next entry that is taken or stopped at, judged by the document that it leads
    /// to in the snapshot that is scanned. Entries without a record are passed.
    pub fn find_record(
        &mut self,
        snapshot: &Snapshot<S>,
        collection: CollectionId,
        mut judge: impl FnMut(&[u8]) -> Verdict,
    ) -> Result<Option<FoundEntry>> {
        loop {
            if let Some(found) = self.find_joined(snapshot, collection, &mut judge)? {
                return Ok(Some(found));
            }
            let Some(entry) = self.next().transpose()? else {
                return Ok(None);
            };
            let Some(record) = snapshot.get(collection, entry.record_key())? else {
                continue;
            };
            let verdict = judge(record.document());
            if verdict != Verdict::Pass {
                return Ok(Some((verdict, entry, record)));
            }
        }
    }

    /// The same within the stretch that is walked over, if its records are packed.
    fn find_joined(
        &mut self,
        snapshot: &Snapshot<S>,
        collection: CollectionId,
        judge: &mut impl FnMut(&[u8]) -> Verdict,
    ) -> Result<Option<FoundEntry>> {
        let Some((stretch, at, end)) = self.pairs.kept() else {
            return Ok(None);
        };
        let joined = match &self.joined {
            Some((known, joined)) if Arc::ptr_eq(known, stretch) => joined,
            Some(_) | None => {
                let left = end.saturating_sub(*at);
                let joined = snapshot.joined(stretch, left, collection, self.prefix)?;
                &self.joined.insert((Arc::clone(stretch), joined)).1
            }
        };
        let Some(joined) = joined else {
            return Ok(None);
        };
        while *at < end {
            let value = joined.value(*at);
            *at += 1;
            let Some(document) = value.get(TIME_BYTES..) else {
                continue;
            };
            let verdict = judge(document);
            if verdict != Verdict::Pass {
                let (key, of_entry) = stretch.pair(*at - 1);
                let entry = IndexEntry::from_stored(key, of_entry, self.prefix)?;
                let record = Record::from_stored(Slice::new(value))?;
                return Ok(Some((verdict, entry, record)));
            }
        }
        Ok(None)
    }
}

/// Documents of the shard: key and value.
pub struct MetaScan<S: EngineSnapshot> {
    pairs: S::Scan,
}

impl<S: EngineSnapshot> Iterator for MetaScan<S> {
    type Item = Result<(Vec<u8>, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        let prefix = layout::document(&[]).len();
        Some(pair.map(|(key, value)| (key[prefix..].to_vec(), value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_gets_its_time_in_place_unless_somebody_else_holds_it() {
        let time = ClusterTime::new(3, 4);
        let check = |document: &[u8], is_shared: bool| {
            let draft = Record::draft(document);
            let other = is_shared.then(|| draft.clone());
            let committed = draft.committed_at(time);
            assert_eq!(committed, Record::new(time, document));
            assert_eq!(committed.time(), time);
            if let Some(other) = other {
                assert_eq!(
                    other,
                    Record::draft(document),
                    "not changed under its holder"
                );
            }
        };
        for is_shared in [false, true] {
            // In the view itself, and in memory of its own.
            check(b"", is_shared);
            check(b"short", is_shared);
            check(&[7; 1000], is_shared);
        }
    }
}
