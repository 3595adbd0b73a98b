//! Records as they were at an earlier cluster time.
//!
//! A record's versions lie in two places: the latest in *records*, those it
//! replaced in *history*, each under the time at which it ended:
//!
//! ```text
//!  history (k, t2) -> committed t1        history (k, t5) -> committed t2       record k -> committed t7
//!          t1 ≤ visible < t2                      t2 ≤ visible < t5            t5 deleted, t7 ≤ visible
//! ```
//!
//! A range that was forgotten later than T is there: see `forgotten.rs`.
//!
//! At time T the version is the latest one if it was committed at or before T.
//! Otherwise it is the history entry with the smallest end after T, if that one
//! was committed at or before T; else there was no record.
//!
//! A scan merges both places by record key. Index entries have no history yet, so
//! there is deliberately no way to scan an index here: it would miss entries that
//! were removed and show ones that came later.

use std::ops::Bound;

use model::ids::CollectionId;
use model::time::ClusterTime;

use super::snapshot::{RecordScan, scan_within};
use super::{Direction, EngineSnapshot, KeyRange, Record, Slice, Snapshot, StoredRecord};
use crate::error::Result;
use crate::layout::{self, Subject};

/// How many versions of one key are stepped over before seeking past them.
const STEPS_BEFORE_SEEK: usize = 8;

/// A snapshot's records at an earlier time.
#[derive(Clone)]
pub struct PastSnapshot<S: EngineSnapshot> {
    snapshot: Snapshot<S>,
    time: ClusterTime,
}

impl<S: EngineSnapshot> PastSnapshot<S> {
    pub(super) fn new(snapshot: &Snapshot<S>, time: ClusterTime) -> Self {
        Self {
            snapshot: snapshot.before_forgetting(time),
            time,
        }
    }

    pub fn time(&self) -> ClusterTime {
        self.time
    }

    pub fn get(&self, collection: CollectionId, key: &[u8]) -> Result<Option<Record>> {
        let latest = self.snapshot.get(collection, key)?;
        self.visible(collection, key, latest)
    }

    pub fn scan_records(
        &self,
        collection: CollectionId,
        range: KeyRange<'_>,
        direction: Direction,
    ) -> PastScan<S> {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let records = self.snapshot.scan_records(collection, range, direction);
        let mut scan = PastScan {
            past: self.clone(),
            collection,
            direction,
            low: owned(range.low),
            high: owned(range.high),
            records,
            next_record: None,
            history: None,
            next_history: None,
            is_ended: range.is_empty() || self.snapshot.is_dropped(Subject::Collection(collection)),
        };
        if !scan.is_ended {
            scan.history = Some(scan.history_from(None));
        }
        scan
    }

    /// What was visible at this time of a record whose latest version is `latest`.
    fn visible(
        &self,
        collection: CollectionId,
        key: &[u8],
        latest: Option<Record>,
    ) -> Result<Option<Record>> {
        if latest
            .as_ref()
            .is_some_and(|latest| latest.time() <= self.time)
            || self.snapshot.is_dropped(Subject::Collection(collection))
        {
            return Ok(latest);
        }
        let ended_by_now = layout::history(collection, key, self.time);
        let mut prefix = layout::histories(collection);
        prefix.push(key);
        let end = layout::after_prefix(&prefix);
        let high = match &end {
            Some(end) => Bound::Excluded(&end[..]),
            None => Bound::Unbounded,
        };
        // Bounded above, so that a neighbour's removed versions are never walked over.
        let range = KeyRange::new(Bound::Excluded(&ended_by_now[..]), high);
        let Some(pair) = self.snapshot.state().scan(range, Direction::Forward).next() else {
            return Ok(None);
        };
        let record = Record::from_stored(pair?.1)?;
        Ok((record.time() <= self.time).then_some(record))
    }
}

/// Merges the latest records and history in record-key order.
pub struct PastScan<S: EngineSnapshot> {
    past: PastSnapshot<S>,
    collection: CollectionId,
    direction: Direction,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    records: RecordScan<S>,
    next_record: Option<StoredRecord>,
    history: Option<S::Scan>,
    /// The record key of the next history entry, with its prefix and its end.
    next_history: Option<HistoryKey>,
    is_ended: bool,
}

struct HistoryKey {
    stored: Slice,
    prefix: usize,
    end: usize,
}

impl HistoryKey {
    fn key(&self) -> &[u8] {
        &self.stored[self.prefix..self.end]
    }
}

impl<S: EngineSnapshot> Iterator for PastScan<S> {
    type Item = Result<StoredRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_ended {
            match self.step() {
                Ok(Step::Found(record)) => return Some(Ok(record)),
                Ok(Step::NotVisible) => {}
                Ok(Step::End) => self.is_ended = true,
                Err(error) => {
                    self.is_ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

enum Step {
    Found(StoredRecord),
    /// The next key had no version at the time.
    NotVisible,
    End,
}

impl<S: EngineSnapshot> PastScan<S> {
    fn step(&mut self) -> Result<Step> {
        if self.next_record.is_none() {
            self.next_record = self.records.next().transpose()?;
        }
        if self.next_history.is_none() {
            self.next_history = self.advance_history()?;
        }
        let from_record = match (&self.next_record, &self.next_history) {
            (None, None) => return Ok(Step::End),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(record), Some(history)) => match self.direction {
                Direction::Forward => record.key() <= history.key(),
                Direction::Backward => record.key() >= history.key(),
            },
        };
        if from_record && let Some(record) = self.next_record.take() {
            if self
                .next_history
                .as_ref()
                .is_some_and(|history| history.key() == record.key())
            {
                self.pass_history_of(record.key())?;
            }
            let visible =
                self.past
                    .visible(self.collection, record.key(), Some(record.record.clone()))?;
            return Ok(match visible {
                Some(version) => Step::Found(StoredRecord {
                    record: version,
                    ..record
                }),
                None => Step::NotVisible,
            });
        }
        let Some(history) = self.next_history.take() else {
            return Ok(Step::End);
        };
        let visible = self.past.visible(self.collection, history.key(), None)?;
        let found = visible.map(|record| {
            let stored = layout::record(self.collection, history.key());
            StoredRecord {
                prefix: stored.len() - history.key().len(),
                key: stored.to_slice(),
                record,
            }
        });
        let key = history.key().to_vec();
        self.pass_history_of(&key)?;
        Ok(found.map_or(Step::NotVisible, Step::Found))
    }

    /// The next history entry whose record key lies in the range.
    fn advance_history(&mut self) -> Result<Option<HistoryKey>> {
        let prefix = layout::histories(self.collection).len();
        while let Some(pair) = self.history.as_mut().and_then(Iterator::next) {
            let (stored, _) = pair?;
            let end = prefix + layout::split_history(&stored[prefix..])?.0.len();
            let history = HistoryKey {
                stored,
                prefix,
                end,
            };
            if self.is_in_range(history.key()) {
                return Ok(Some(history));
            }
        }
        Ok(None)
    }

    fn is_in_range(&self, key: &[u8]) -> bool {
        let above = match &self.low {
            Bound::Included(low) => key >= &low[..],
            Bound::Excluded(low) => key > &low[..],
            Bound::Unbounded => true,
        };
        above
            && match &self.high {
                Bound::Included(high) => key <= &high[..],
                Bound::Excluded(high) => key < &high[..],
                Bound::Unbounded => true,
            }
    }

    /// Leaves the next history entry at another key than this one.
    fn pass_history_of(&mut self, key: &[u8]) -> Result<()> {
        for _ in 0..STEPS_BEFORE_SEEK {
            self.next_history = self.advance_history()?;
            match &self.next_history {
                Some(history) if history.key() == key => {}
                Some(_) | None => return Ok(()),
            }
        }
        self.history = Some(self.history_from(Some(key)));
        self.next_history = self.advance_history()?;
        Ok(())
    }

    /// History entries from the beginning of the range, or from behind `passed`.
    /// The range is coarse: entries of the bounds' own keys need a second look.
    fn history_from(&self, passed: Option<&[u8]>) -> S::Scan {
        let mut low = match &self.low {
            Bound::Included(low) | Bound::Excluded(low) => Bound::Included(low.clone()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut high = match &self.high {
            Bound::Included(high) => {
                layout::after_prefix(high).map_or(Bound::Unbounded, Bound::Excluded)
            }
            Bound::Excluded(high) => Bound::Excluded(high.clone()),
            Bound::Unbounded => Bound::Unbounded,
        };
        if let Some(passed) = passed {
            match self.direction {
                Direction::Forward => match layout::after_prefix(passed) {
                    Some(after) => low = Bound::Included(after),
                    // Nothing can follow a key of all ones.
                    None => high = Bound::Excluded(Vec::new()),
                },
                Direction::Backward => high = Bound::Excluded(passed.to_vec()),
            }
        }
        let range = KeyRange::new(
            low.as_ref().map(Vec::as_slice),
            high.as_ref().map(Vec::as_slice),
        );
        let prefix = layout::histories(self.collection);
        scan_within(self.past.snapshot.state(), &prefix, range, self.direction)
    }
}
