//! What the loop, the readers and the maintenance share about one log.
//!
//! ```text
//!   first ≤ unbroken first ≤ applied + 1     `read` returns first … applied, except gaps
//!   applied ≤ appended                       and nothing after applied
//! ```
//!
//! The list of segments has at least one element, and the last one is being written.
//! Segment `i` holds the positions `header[i].first ..= header[i+1].previous`.
//! Locks are held for a few lines, never over a read, a write or a sync.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use model::time::ClusterTime;
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::watch;

use crate::clock::WallClock;
use crate::disk::{Disk, DiskFile, Fill};
use crate::entry::{Applied, Entry, LogPosition, Term};
use crate::error::ReadError;
use crate::options::Options;
use crate::segment::{ENTRY_HEADER_BYTES, HEADER_BYTES, Segment, SegmentHeader};
use crate::syncs::Syncs;

/// How far a group has come; see [`crate::Group::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub applied: LogPosition,
    /// The time of the entry at `applied`.
    pub time: ClusterTime,
    /// False when nothing more will come: the group was closed, or stopped.
    pub running: bool,
}

/// A file that is ready to become a segment.
pub(crate) struct Spare {
    pub name: String,
    pub file: Arc<dyn DiskFile>,
}

/// What holds entries back from leaving the log.
#[derive(Default)]
pub(crate) struct Pins {
    /// How many pins there are at each position.
    pub counts: BTreeMap<LogPosition, u64>,
    /// Everything up to here is leaving or has left the log.
    pub trimmed: LogPosition,
}

#[derive(Default)]
pub(crate) struct MaintenanceSignal {
    pub wanted: bool,
    pub closing: bool,
}

pub(crate) struct LogState {
    pub options: Options,
    pub disk: Arc<dyn Disk>,
    pub wall: Arc<dyn WallClock>,
    pub segments: RwLock<Vec<Arc<Segment>>>,
    pub tail: Mutex<Tail>,
    pub pins: Mutex<Pins>,
    pub spares: Mutex<Vec<Spare>>,
    /// Files of segments that are full, or left, since the last pass of the maintenance, which gives their memory back.
    pub full: Mutex<Vec<Arc<dyn DiskFile>>>,
    spare_number: AtomicU64,
    pub progress: watch::Sender<Progress>,
    appended: AtomicU64,
    synced: AtomicU64,
    applied: AtomicU64,
    /// From here to the end there is no gap: this is what can be sent to others.
    unbroken_first: AtomicU64,
    /// How much of the segment being written is used.
    written_bytes: AtomicU64,
    /// How the segment being written is synced.
    syncs: Mutex<Syncs>,
    /// The sequence of a segment that the log had better leave before it is full; 0 for none.
    left_early: AtomicU64,
    /// Set once, when the group stops for good.
    pub stop_reason: OnceLock<Arc<str>>,
    pub maintenance_signal: Mutex<MaintenanceSignal>,
    pub maintenance_wakeup: Condvar,
}

pub(crate) const SPARE_PREFIX: &str = "spare-";

impl LogState {
    pub fn new(options: Options, disk: Arc<dyn Disk>, wall: Arc<dyn WallClock>) -> Self {
        let tail = Tail::new(options.tail_bytes_max);
        Self {
            options,
            disk,
            wall,
            segments: RwLock::new(Vec::new()),
            tail: Mutex::new(tail),
            pins: Mutex::default(),
            spares: Mutex::default(),
            full: Mutex::default(),
            spare_number: AtomicU64::new(0),
            progress: watch::Sender::new(Progress {
                applied: LogPosition::BEFORE_FIRST,
                time: ClusterTime::ZERO,
                running: true,
            }),
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            unbroken_first: AtomicU64::new(1),
            written_bytes: AtomicU64::new(0),
            syncs: Mutex::default(),
            left_early: AtomicU64::new(0),
            stop_reason: OnceLock::new(),
            maintenance_signal: Mutex::default(),
            maintenance_wakeup: Condvar::new(),
        }
    }

    pub fn appended(&self) -> LogPosition {
        LogPosition::new(self.appended.load(Ordering::Acquire))
    }

    /// Everything up to here is stable on this member.
    pub fn synced(&self) -> LogPosition {
        LogPosition::new(self.synced.load(Ordering::Acquire))
    }

    pub fn set_synced(&self, position: LogPosition) {
        self.synced.store(position.get(), Ordering::Release);
    }

    pub fn applied(&self) -> LogPosition {
        LogPosition::new(self.applied.load(Ordering::Acquire))
    }

    pub fn first(&self) -> LogPosition {
        self.segments.read()[0].header.first
    }

    pub fn unbroken_first(&self) -> LogPosition {
        LogPosition::new(self.unbroken_first.load(Ordering::Acquire))
    }

    /// Looks again where the log begins; to be called when segments come or go.
    pub fn find_unbroken_first(&self) {
        let segments = self.segments.read();
        let broken = segments
            .iter()
            .rposition(|segment| segment.header.previous.next() < segment.header.first)
            .unwrap_or(0);
        let first = segments[broken].header.first;
        self.unbroken_first.store(first.get(), Ordering::Release);
    }

    pub fn active(&self) -> Arc<Segment> {
        let segments = self.segments.read();
        segments[segments.len() - 1].clone()
    }

    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub fn count_sync(&self) {
        let row = self.options.syncs_looked_at;
        let now_ms = || self.wall.now_ms();
        if self.syncs.lock().count(self.written_bytes(), row, now_ms) {
            self.want_maintenance();
        }
    }

    /// Whether the segment being written is synced often, for little each time.
    pub fn are_syncs_quick(&self) -> bool {
        self.syncs.lock().are_quick()
    }

    /// How the next segment is best made, going by how this one is written.
    pub fn next_fill(&self) -> Fill {
        self.syncs.lock().next_fill(self.written_bytes())
    }

    /// Lets the log go on in its next segment from the next entry on, if it still writes this one.
    pub fn leave_early(&self, segment: &Segment) {
        self.left_early
            .store(segment.header.sequence, Ordering::Release);
    }

    pub fn is_left_early(&self, segment: &Segment) -> bool {
        self.left_early.load(Ordering::Acquire) == segment.header.sequence
    }

    /// The log ends with `position`, at `written_bytes` of the last segment.
    pub fn set_appended(&self, position: LogPosition, written_bytes: u64) {
        self.appended.store(position.get(), Ordering::Release);
        self.written_bytes.store(written_bytes, Ordering::Relaxed);
    }

    /// Lets readers see what has been applied.
    pub fn publish(&self, applied: Applied) {
        self.applied
            .store(applied.position.get(), Ordering::Release);
        self.progress.send_if_modified(|progress| {
            progress.applied = applied.position;
            progress.time = applied.time;
            // Mostly nobody follows, and looking for those who do is dear. Asked with the value locked: who
            // has begun to follow by then is counted, and who begins later finds this value.
            self.progress.receiver_count() > 0
        });
    }

    pub fn want_maintenance(&self) {
        self.maintenance_signal.lock().wanted = true;
        self.maintenance_wakeup.notify_one();
    }

    pub fn spare_names_begin_after(&self, number: u64) {
        self.spare_number.fetch_max(number + 1, Ordering::Relaxed);
    }

    pub fn next_spare_name(&self) -> String {
        let number = self.spare_number.fetch_add(1, Ordering::Relaxed);
        format!("{SPARE_PREFIX}{number:016x}.seg")
    }

    /// Makes a segment ready for entries: header and name are stable when it returns,
    /// and it is the last in the list. `room` is what its first entry needs.
    ///
    /// Until the rename it is a spare, so that a crash in between leaves nothing that
    /// could be taken for a part of the log.
    pub fn begin_segment(
        &self,
        header: SegmentHeader,
        room: u64,
        fill: Fill,
    ) -> io::Result<Arc<Segment>> {
        let bytes = self
            .options
            .segment_bytes
            .max((HEADER_BYTES + room).next_multiple_of(HEADER_BYTES));
        let spare = if bytes == self.options.segment_bytes {
            self.spares.lock().pop()
        } else {
            None
        };
        let spare = match spare {
            Some(spare) => spare,
            None => {
                let name = self.next_spare_name();
                let file = self.disk.create(&name, bytes, fill)?;
                Spare { name, file }
            }
        };
        spare.file.write_at(0, &header.encode())?;
        spare.file.sync()?;
        self.disk.rename(&spare.name, &header.name())?;
        self.disk.sync_directory()?;

        let segment = Arc::new(Segment::new(header, spare.file, bytes));
        *self.syncs.lock() = Syncs::default();
        self.left_early.store(0, Ordering::Release);
        let mut segments = self.segments.write();
        // An empty segment that was too small for the entry has just been replaced.
        if segments
            .last()
            .is_some_and(|last| last.name == segment.name)
        {
            segments.pop();
        }
        segments.push(segment.clone());
        drop(segments);
        self.find_unbroken_first();
        Ok(segment)
    }

    /// The term of an entry that is in the log, or of the one right before its unbroken
    /// part. Most of the time that needs no look at the disk.
    pub fn term_at(&self, position: LogPosition) -> Result<Term, ReadError> {
        if let Some(term) = self.tail.lock().term(position) {
            return Ok(term);
        }
        {
            let segments = self.segments.read();
            let later = segments.partition_point(|segment| segment.header.first <= position);
            let (own, next) = (
                later.checked_sub(1).map(|index| &segments[index].header),
                segments.get(later).map(|segment| &segment.header),
            );
            // The entry right before a segment, or a segment whose terms are all the same.
            match (own, next) {
                (_, Some(next)) if next.first == position.next() => return Ok(next.previous_term),
                (Some(own), Some(next)) if own.previous_term == next.previous_term => {
                    return Ok(own.previous_term);
                }
                (None | Some(_), None | Some(_)) => {}
            }
        }
        let entries = self.read_files(position.previous(), position, 0)?;
        match entries.first() {
            Some(entry) => Ok(entry.term),
            None => Err(ReadError::TooOld {
                after: position.previous(),
                first: self.first(),
            }),
        }
    }
}

/// The newest entries that were written, without holes. Those that are not applied yet
/// are never dropped for want of room.
pub(crate) struct Tail {
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Tail {
    fn new(bytes_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    pub fn push(&mut self, entry: Entry) {
        debug_assert!(
            self.entries
                .back()
                .is_none_or(|last| last.position.next() == entry.position),
            "the tail has no holes"
        );
        self.bytes += memory_bytes(&entry);
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries that are applied while there are too many.
    pub fn shrink(&mut self, applied: LogPosition) {
        while self.bytes > self.bytes_max
            && let Some(oldest) = self
                .entries
                .pop_front_if(|oldest| oldest.position <= applied)
        {
            self.bytes -= memory_bytes(&oldest);
        }
    }

    /// Forgets everything after a position.
    pub fn truncate(&mut self, last: LogPosition) {
        while let Some(newest) = self.entries.pop_back_if(|newest| newest.position > last) {
            self.bytes -= memory_bytes(&newest);
        }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    fn get(&self, position: LogPosition) -> Option<&Entry> {
        let front = self.entries.front()?.position;
        let index = position.get().checked_sub(front.get())?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The last position before a time, up to `until`, if the tail reaches back to it.
    pub fn last_before(&self, time: ClusterTime, until: LogPosition) -> Option<LogPosition> {
        if self.entries.front()?.time >= time {
            return None;
        }
        let later = self
            .entries
            .partition_point(|entry| entry.time < time && entry.position <= until);
        Some(self.entries.get(later.checked_sub(1)?)?.position)
    }

    pub fn term(&self, position: LogPosition) -> Option<Term> {
        self.get(position).map(|entry| entry.term)
    }

    /// What `outline` makes of the entries from `low` to before `high`, if they are all
    /// here: as many as stay within `bytes_max`, at least one.
    pub fn outlines<T>(
        &self,
        low: u64,
        high: u64,
        bytes_max: u64,
        outline: impl Fn(&Entry) -> T,
    ) -> Option<Vec<T>> {
        let front = self.entries.front()?.position.get();
        let skip = usize::try_from(low.checked_sub(front)?).ok()?;
        let count = usize::try_from(high.checked_sub(low)?).ok()?;
        let mut outlines = Vec::with_capacity(count.min(self.entries.len()));
        let mut bytes = 0u64;
        for entry in self
            .entries
            .range(skip.min(self.entries.len())..)
            .take(count)
        {
            bytes += memory_bytes(entry) as u64;
            if !outlines.is_empty() && bytes > bytes_max {
                break;
            }
            outlines.push(outline(entry));
        }
        Some(outlines)
    }

    /// Entries after a position up to another, if the tail reaches back to the first: at
    /// least one, then as many as stay within `bytes_max`.
    pub fn read(
        &self,
        after: LogPosition,
        until: LogPosition,
        bytes_max: usize,
    ) -> Option<Vec<Entry>> {
        let front = self.entries.front()?.position;
        let skip = after.next().get().checked_sub(front.get())?;
        let mut taken = Vec::new();
        let mut bytes = 0usize;
        for entry in self.entries.iter().skip(usize::try_from(skip).ok()?) {
            bytes += memory_bytes(entry);
            if entry.position > until || (!taken.is_empty() && bytes > bytes_max) {
                break;
            }
            taken.push(entry.clone());
        }
        Some(taken)
    }
}

/// What an entry counts for in limits of memory.
pub(crate) fn memory_bytes(entry: &Entry) -> usize {
    entry.payload.len() + ENTRY_HEADER_BYTES
}
