//! The writer: entries into the current segment, one write per group (a large one has several), a new segment
//! when the current one is full.
//!
//! ```text
//!   synced ≤ written ≤ last          synced ≤ applied's durable part
//! ```
//!
//! A segment is synced before its successor is made, so that only the last one can
//! have a torn tail.
//!
//! **One call.** A group that must be synced is written and synced by one call of the system,
//! [`DiskFile::write_at_synced`](crate::disk::DiskFile::write_at_synced), which makes its own
//! bytes stable and no others. ⚑ So it is used only where everything before them is stable: an
//! entry is synced when all up to it are. Behind entries that were only buffered, a group is
//! written like those, and the file is synced as a whole.
//!
//! **Whole pages.** A file system keeps files in memory page by page. Of a page that it
//! does not have and that is written in part, it reads the rest from the disk first, which
//! takes almost half as long as a sync; and no page of a segment is in memory beforehand (see
//! [`DiskFile::release_memory`](crate::disk::DiskFile::release_memory)). So a write that
//! goes on into new pages fills the last of them with zeros: behind the end of the log
//! there is nothing that anybody needs, and the next write finds the page in memory.
//!
//! **Past the memory.** What is written takes pages that are new to the system, only to be
//! given back with the segment; finding and clearing them costs more than the write. So a
//! group that must be synced begins where its first block does, with the bytes of it that are
//! there already, and ends with a whole block (`group_buffer.rs`): such a write is done directly,
//! where the file system can. The next one that is only buffered begins with its block, too, because that page
//! is not in memory then. Bytes that are there already are stable whenever they are written
//! once more by a write that is synced, and the same.
//!
//! **In pieces.** A group of many megabytes is written a few at a time, so that the buffer stays small and is used
//! again. Each piece is a group by itself: what is cut off in between is the end of the log.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::time::ClusterTime;

use crate::disk::Fill;
use crate::entry::{Entry, LogPosition, Term};
use crate::group_buffer::{BLOCK_BYTES, GroupBuffer};
use crate::log_state::LogState;
use crate::segment::{HEADER_BYTES, Segment, SegmentHeader, stored_bytes};

pub(crate) struct Writer {
    log: Arc<LogState>,
    segment: Arc<Segment>,
    /// Up to here the buffer is written.
    offset: u64,
    buffer: GroupBuffer,
    /// The page at `offset` was written directly, so that the system has to read it.
    is_page_absent: bool,
    last: LogPosition,
    last_time: ClusterTime,
    last_wall_ms: i64,
    last_term: Term,
    synced: LogPosition,
    /// When the oldest write that is not synced yet was made.
    unsynced_since: Option<Instant>,
}

/// Where the log ends, as recovery found it.
pub(crate) struct LogEnd {
    pub last: LogPosition,
    pub last_time: ClusterTime,
    pub last_wall_ms: i64,
    pub last_term: Term,
    /// Behind the last entry in the last segment.
    pub offset: u64,
}

impl Writer {
    /// Everything up to `end` must be synced.
    pub fn new(log: Arc<LogState>, end: &LogEnd) -> Self {
        log.set_synced(end.last);
        Self {
            segment: log.active(),
            log,
            offset: end.offset,
            buffer: GroupBuffer::new(end.offset),
            is_page_absent: false,
            last: end.last,
            last_time: end.last_time,
            last_wall_ms: end.last_wall_ms,
            last_term: end.last_term,
            synced: end.last,
            unsynced_since: None,
        }
    }

    /// The last entry that was appended.
    pub fn last(&self) -> LogPosition {
        self.last
    }

    pub fn last_time(&self) -> ClusterTime {
        self.last_time
    }

    pub fn last_wall_ms(&self) -> i64 {
        self.last_wall_ms
    }

    pub fn synced(&self) -> LogPosition {
        self.synced
    }

    /// What is left of the segment that is being written: nothing, if the next entry goes on in another one.
    pub fn room_bytes(&self) -> usize {
        if self.log.is_left_early(&self.segment) {
            return 0;
        }
        let left = self.segment.bytes.saturating_sub(self.offset);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Adds an entry to what the next flush writes. After an error the group must stop.
    pub fn append(&mut self, entry: &Entry) -> io::Result<()> {
        assert_eq!(entry.position, self.last.next(), "positions are dense");
        // It may come from another member.
        if entry.time <= self.last_time || entry.term < self.last_term {
            return Err(io::Error::other(format!(
                "the entry at {} is not later than the one before it",
                entry.position
            )));
        }
        let room = stored_bytes(entry);
        let is_full = self.buffer.end() + room > self.segment.bytes;
        if is_full || self.log.is_left_early(&self.segment) {
            self.rotate(entry, room)?;
        }
        self.segment.remember(entry.position, self.buffer.end());
        let buffer = self.buffer.with_room(room as usize);
        self.segment.encode(entry, self.synced, buffer);
        self.last = entry.position;
        self.last_time = entry.time;
        self.last_wall_ms = entry.wall_ms;
        self.last_term = entry.term;
        Ok(())
    }

    /// Writes what was appended. After an error the group must stop.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.is_flushed() {
            return Ok(());
        }
        self.write(false)?;
        self.unsynced_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Writes what was appended, and makes everything stable. After an error the group must
    /// stop.
    pub fn flush_synced(&mut self) -> io::Result<()> {
        let follows_unsynced =
            self.unsynced_since.is_some() && !self.log.options.faults.sync_over_unsynced;
        if self.is_flushed() || follows_unsynced {
            self.flush()?;
            return self.sync();
        }
        self.write(true)?;
        self.all_is_synced();
        Ok(())
    }

    /// Writes what was appended, and makes everything stable unless it is only to be buffered.
    pub fn flush_as(&mut self, is_buffered: bool) -> io::Result<()> {
        match is_buffered {
            true => self.flush(),
            false => self.flush_synced(),
        }
    }

    /// Whether so much was appended that it had better be written before the rest of the group.
    pub fn has_piece(&self) -> bool {
        self.buffer.end() - self.offset >= self.log.options.piece_bytes
    }

    fn is_flushed(&self) -> bool {
        self.offset == self.buffer.end()
    }

    fn write(&mut self, is_synced: bool) -> io::Result<()> {
        let (before, end) = (self.offset, self.buffer.end());
        let begin = self.buffer.begin();
        let is_direct = is_synced && end - before >= self.log.options.direct_bytes_min;
        let is_whole = (is_direct || self.is_page_absent) && begin.is_multiple_of(BLOCK_BYTES);
        let from = if is_whole { begin } else { before };
        let filled = fill_page(from, end).min(self.segment.bytes);
        let bytes = self.buffer.filled(from, filled);
        let file = &self.segment.file;
        match is_synced {
            true => file.write_at_synced(from, bytes)?,
            false => file.write_at(from, bytes)?,
        }
        self.buffer.written(end);
        self.offset = end;
        self.is_page_absent = is_direct && is_whole;
        self.log.set_appended(self.last, self.offset);
        let half = self.segment.bytes / 2;
        if before < half && self.offset >= half {
            // Time to have a spare segment ready.
            self.log.want_maintenance();
        }
        Ok(())
    }

    /// Makes everything written stable. After an error the group must stop.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.unsynced_since.is_some() {
            self.segment.file.sync()?;
            self.all_is_synced();
        }
        Ok(())
    }

    fn all_is_synced(&mut self) {
        self.log.count_sync();
        self.synced = self.last;
        self.log.set_synced(self.last);
        self.unsynced_since = None;
    }

    /// Whether what the next flush writes must be synced, because it or something before it
    /// has waited for long enough.
    pub fn is_sync_due(&self) -> bool {
        let now = Instant::now();
        let waited = now.saturating_duration_since(self.unsynced_since.unwrap_or(now));
        waited >= self.sync_delay()
    }

    fn sync_delay(&self) -> Duration {
        Duration::from_millis(self.log.options.sync_delay_ms)
    }

    /// When the bytes that were written without a sync must be synced at the latest.
    pub fn sync_due(&self) -> Option<Instant> {
        self.unsynced_since.map(|since| since + self.sync_delay())
    }

    fn rotate(&mut self, next: &Entry, room: u64) -> io::Result<()> {
        self.flush_synced()?;
        self.log.full.lock().push(self.segment.file.clone());
        let current = &self.segment.header;
        // A segment that is still empty is replaced by a larger one. It keeps its place
        // in the row, and what it says about a gap.
        let (sequence, previous, previous_sequence) = if current.first == next.position {
            (
                current.sequence,
                current.previous,
                current.previous_sequence,
            )
        } else {
            (current.sequence + 1, self.last, current.sequence)
        };
        let header = SegmentHeader {
            group: current.group,
            sequence,
            first: next.position,
            previous,
            previous_time: self.last_time,
            previous_term: self.last_term,
            // Not the entry's, which is no later than the entry's leader made it.
            wall_ms: self.log.wall.now_ms(),
            previous_sequence,
        };
        self.begin(header, room)?;
        self.log.want_maintenance();
        Ok(())
    }

    fn begin(&mut self, header: SegmentHeader, room: u64) -> io::Result<()> {
        self.segment = self.log.begin_segment(header, room, Fill::Reserved)?;
        self.offset = HEADER_BYTES;
        self.buffer.restart(HEADER_BYTES);
        self.is_page_absent = false;
        Ok(())
    }

    /// Goes on in a new segment behind `end`, whatever came after it. Everything written
    /// so far must be synced.
    pub(crate) fn restart(&mut self, header: SegmentHeader, end: LogEnd) -> io::Result<()> {
        assert!(
            self.is_flushed() && self.unsynced_since.is_none(),
            "what was written is synced before the log goes on elsewhere"
        );
        self.begin(header, 0)?;
        self.last = end.last;
        self.last_time = end.last_time;
        self.last_wall_ms = end.last_wall_ms;
        self.last_term = end.last_term;
        self.synced = end.last;
        self.log.set_synced(end.last);
        self.log.set_appended(self.last, self.offset);
        Ok(())
    }

    pub(crate) fn log(&self) -> &Arc<LogState> {
        &self.log
    }
}

/// How far a write from `start` to `end` had better go: to the end of its last page, if
/// it is the first to write there.
fn fill_page(start: u64, end: u64) -> u64 {
    let page = end - end % BLOCK_BYTES;
    if page >= start {
        end.next_multiple_of(BLOCK_BYTES)
    } else {
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_filled_by_the_first_write_in_it() {
        let check = |start: u64, end: u64, filled: u64| {
            assert_eq!(fill_page(start, end), filled, "{start}..{end}");
        };
        // The first page of a segment has its header.
        check(512, 600, 600);
        check(600, 4096, 4096);
        check(600, 4097, 8192);
        check(4096, 4100, 8192);
        check(4100, 4200, 4200);
        check(4200, 13_000, 16_384);
        check(13_000, 16_384, 16_384);
    }
}
