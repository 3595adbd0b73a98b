//! One live scan over records or index entries, within bounds.
//!
//! It skips what is outside the bounds by seeking, and remembers the last item
//! it looked at, so that another scan over another snapshot goes on behind it.

use super::part::Mark;
use crate::Snapshot;
use crate::error::from_storage;
use model::ids::{CollectionId, IndexId};
use model::key::{KeyError, prefix_end};
use model::time::ClusterTime;
use model::{Code, Error};
use query::plan::{Check, ScanBounds, ScanDirection};
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use storage::engine::fjall::FjallEngine;
use storage::store::{FoundEntry, IndexScan, PastScan, RecordScan, Verdict};
use storage::{Direction, Engine, IndexEntry, KeyRange, Position, StoredRecord};

type EngineSnapshot = <FjallEngine as Engine>::Snapshot;

/// What is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Records(CollectionId),
    /// Records as they were.
    Past(CollectionId, ClusterTime),
    Index(IndexId),
}

/// What a scan yields.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Record(StoredRecord),
    Entry(IndexEntry),
}

impl Item {
    /// Where to go on from.
    pub(super) fn position(&self) -> Position {
        match self {
            Item::Record(record) => record.position(),
            Item::Entry(entry) => entry.position(),
        }
    }
}

enum Items {
    Records(RecordScan<EngineSnapshot>),
    Past(Box<PastScan<EngineSnapshot>>),
    Entries(IndexScan<EngineSnapshot>),
    None,
}

pub(super) struct Scan {
    items: Items,
    space: Space,
    direction: ScanDirection,
    /// Where it goes on when its range has ended.
    ahead: VecDeque<KeyWindow>,
    /// Items looked at, inside or not.
    pub(super) examined: u64,
    pub(super) seeks: u64,
}

/// What one step of a scan found.
pub(super) enum Stepped {
    Inside(Item),
    /// Skipped one item.
    Outside,
    Ended,
}

type KeyWindow = model::range::KeyRange;

/// The keys of records that a scan is about, where that is known: ascending, none touching the next.
pub(super) type Windows = Arc<[KeyWindow]>;

/// The later of two beginnings.
fn later<'a>(low: Bound<&'a [u8]>, mark: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    match (low, mark) {
        (Bound::Included(key), Bound::Included(other) | Bound::Excluded(other)) if key > other => {
            low
        }
        (Bound::Excluded(key), Bound::Included(other) | Bound::Excluded(other)) if key >= other => {
            low
        }
        (Bound::Unbounded | Bound::Included(_) | Bound::Excluded(_), mark) => mark,
    }
}

/// The earlier of two ends.
fn earlier<'a>(high: Bound<&'a [u8]>, mark: Bound<&'a [u8]>) -> Bound<&'a [u8]> {
    match (high, mark) {
        (Bound::Included(key), Bound::Included(other) | Bound::Excluded(other)) if key < other => {
            high
        }
        (Bound::Excluded(key), Bound::Included(other) | Bound::Excluded(other)) if key <= other => {
            high
        }
        (Bound::Unbounded | Bound::Included(_) | Bound::Excluded(_), mark) => mark,
    }
}

/// Those of some windows that a scan that stands behind a mark has not passed yet.
fn not_passed<'w>(
    windows: &'w [KeyWindow],
    behind: Option<Bound<&[u8]>>,
    direction: ScanDirection,
) -> &'w [KeyWindow] {
    let Some(Bound::Included(key) | Bound::Excluded(key)) = behind else {
        return windows;
    };
    match direction {
        ScanDirection::Forward => {
            &windows[windows.partition_point(|window| window.max.as_bytes() <= key)..]
        }
        ScanDirection::Backward => {
            &windows[..windows.partition_point(|window| window.min.as_bytes() <= key)]
        }
    }
}

fn limits(window: &KeyWindow) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (
        Bound::Included(window.min.as_bytes()),
        Bound::Excluded(window.max.as_bytes()),
    )
}

fn damaged(error: KeyError) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a stored key is damaged: {error}"),
    )
}

impl Scan {
    /// Starts within the bounds, where `mark` says.
    pub(super) fn open(
        snapshot: &Snapshot,
        space: Space,
        bounds: Option<&ScanBounds>,
        direction: ScanDirection,
        mark: &Mark,
        windows: Option<&Windows>,
    ) -> Result<Self, Error> {
        let mut scan = Self {
            items: Items::None,
            space,
            direction,
            ahead: VecDeque::new(),
            examined: 0,
            seeks: 0,
        };
        let behind = match mark {
            Mark::Beginning => None,
            Mark::Behind(key) => Some(Bound::Excluded(key.as_slice())),
            Mark::From(key) => Some(Bound::Included(key.as_slice())),
            Mark::Ended => return Ok(scan),
        };
        let windows = match (bounds, windows) {
            (None, Some(windows)) => Some(not_passed(windows, behind, direction)),
            (Some(_), _) | (None, None) => None,
        };
        let first = windows.and_then(|windows| match direction {
            ScanDirection::Forward => windows.first(),
            ScanDirection::Backward => windows.last(),
        });
        let (low, high) = match (bounds, first) {
            (Some(bounds), _) => bounds.range(),
            (None, Some(window)) => limits(window),
            // None of the windows is left.
            (None, None) if windows.is_some() => return Ok(scan),
            (None, None) => (Bound::Unbounded, Bound::Unbounded),
        };
        scan.ahead
            .extend(windows.unwrap_or_default().iter().cloned());
        scan.leave_window();
        // Where a mark lies outside, it was made with other bounds.
        let (low, high) = match (behind, direction) {
            (None, _) => (low, high),
            (Some(mark), ScanDirection::Forward) => (later(low, mark), high),
            (Some(mark), ScanDirection::Backward) => (low, earlier(high, mark)),
        };
        scan.start(snapshot, low, high)?;
        Ok(scan)
    }

    /// Takes the window that comes first out of those ahead.
    fn leave_window(&mut self) -> Option<KeyWindow> {
        match self.direction {
            ScanDirection::Forward => self.ahead.pop_front(),
            ScanDirection::Backward => self.ahead.pop_back(),
        }
    }

    /// Goes on with the next window; false if there is none.
    fn next_window(&mut self, snapshot: &Snapshot) -> Result<bool, Error> {
        let Some(window) = self.leave_window() else {
            return Ok(false);
        };
        let (low, high) = limits(&window);
        self.start(snapshot, low, high)?;
        Ok(true)
    }

    fn start(
        &mut self,
        snapshot: &Snapshot,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
    ) -> Result<(), Error> {
        let range = KeyRange::new(low, high);
        if range.is_empty() {
            self.items = Items::None;
            return Ok(());
        }
        self.seeks += 1;
        let direction = match self.direction {
            ScanDirection::Forward => Direction::Forward,
            ScanDirection::Backward => Direction::Backward,
        };
        self.items = match self.space {
            Space::Records(id) => Items::Records(snapshot.scan_records(id, range, direction)),
            Space::Index(id) => Items::Entries(snapshot.scan_index(id, range, direction)),
            Space::Past(id, time) => {
                let past = snapshot.at(time).map_err(from_storage)?;
                Items::Past(Box::new(past.scan_records(id, range, direction)))
            }
        };
        Ok(())
    }

    fn next_item(&mut self, snapshot: &Snapshot) -> Result<Option<Item>, Error> {
        loop {
            let item = match &mut self.items {
                Items::Records(scan) => scan.next().map(|found| found.map(Item::Record)),
                Items::Past(scan) => scan.next().map(|found| found.map(Item::Record)),
                Items::Entries(scan) => scan.next().map(|found| found.map(Item::Entry)),
                Items::None => None,
            };
            if item.is_some() || !self.next_window(snapshot)? {
                return item.transpose().map_err(from_storage);
            }
        }
    }

    /// Goes on behind all keys that begin with `prefix`; forward scans only.
    pub(super) fn skip_prefix(
        &mut self,
        snapshot: &Snapshot,
        bounds: &ScanBounds,
        prefix: &[u8],
    ) -> Result<(), Error> {
        let (_, high) = bounds.range();
        match prefix_end(prefix) {
            Some(end) => self.start(snapshot, Bound::Included(&end), high),
            None => {
                self.items = Items::None;
                Ok(())
            }
        }
    }

    /// The next record that is taken or stopped at, of a scan over records whose
    /// range decides.
    pub(super) fn find_record(
        &mut self,
        snapshot: &Snapshot,
        mut judge: impl FnMut(&[u8]) -> Verdict,
    ) -> Result<Option<(Verdict, StoredRecord)>, Error> {
        while let Items::Records(scan) = &mut self.items {
            let examined = &mut self.examined;
            let found = scan.find_record(|document| {
                *examined += 1;
                judge(document)
            });
            if found.is_some() || !self.next_window(snapshot)? {
                return found.transpose().map_err(from_storage);
            }
        }
        while let Some(Item::Record(record)) = self.next_item(snapshot)? {
            self.examined += 1;
            let verdict = judge(record.document());
            if verdict != Verdict::Pass {
                return Ok(Some((verdict, record)));
            }
        }
        Ok(None)
    }

    /// The next entry that is taken or stopped at, judged by the document that it leads
    /// to, of a scan over an index whose range decides.
    pub(super) fn find_fetched(
        &mut self,
        snapshot: &Snapshot,
        collection: CollectionId,
        mut judge: impl FnMut(&[u8]) -> Verdict,
    ) -> Result<Option<FoundEntry>, Error> {
        let Items::Entries(scan) = &mut self.items else {
            return Ok(None);
        };
        let examined = &mut self.examined;
        let found = scan.find_record(snapshot, collection, |document| {
            *examined += 1;
            judge(document)
        });
        found.map_err(from_storage)
    }

    /// Looks at one item.
    pub(super) fn step(
        &mut self,
        snapshot: &Snapshot,
        bounds: Option<&ScanBounds>,
    ) -> Result<Stepped, Error> {
        let Some(item) = self.next_item(snapshot)? else {
            return Ok(Stepped::Ended);
        };
        self.examined += 1;
        let Some(bounds) = bounds.filter(|bounds| !bounds.range_decides()) else {
            return Ok(Stepped::Inside(item));
        };
        let key = match &item {
            Item::Record(record) => record.key(),
            Item::Entry(entry) => entry.fields(),
        };
        match bounds.check(key, self.direction).map_err(damaged)? {
            Check::Inside => Ok(Stepped::Inside(item)),
            Check::Ended => Ok(Stepped::Ended),
            Check::SeekTo(target) => {
                let (low, high) = bounds.range();
                match self.direction {
                    ScanDirection::Forward => {
                        self.start(snapshot, Bound::Included(&target), high)?
                    }
                    ScanDirection::Backward => {
                        self.start(snapshot, low, Bound::Excluded(&target))?
                    }
                }
                Ok(Stepped::Outside)
            }
        }
    }
}
