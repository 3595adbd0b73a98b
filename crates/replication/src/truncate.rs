//! Cutting entries off the end of the log: what another leader has replaced.
//!
//! A member that was leader, or followed one, may hold entries that never reached a
//! majority. When a later leader has others in their place, they go:
//!
//! ```text
//!   before   log-1 [1 … 9]   log-10 [10 … 19]   log-20 [20 … 25]
//!   cut 14   log-1 [1 … 9]   log-10 [10 … 19]                       newest first, each stable
//!            log-1 [1 … 9]   log-10 [10 … 14]   log-15 [15 …        a new file, by its rename
//! ```
//!
//! Nothing is overwritten: the header of the new segment says where the one before it
//! ends, and the rename that gives it its name is the moment of the cut. Before it, the
//! log ends with the old entries or an earlier part of them, which is harmless, since
//! none of them is committed; after it, with the last entry that stays.
//!
//! Invariants:
//! - ⚑ Nothing that was applied is cut off: that it was applied means that a majority
//!   has it, and no leader can have anything else there.
//! - A file that is cut off is removed, not recycled: its sequence may be used again
//!   after a crash, and its entries would count under it.

use std::io;

use crate::append::{LogEnd, Writer};
use crate::entry::LogPosition;
use crate::segment::SegmentHeader;

impl Writer {
    /// Cuts off everything after `last`. After an error the group must stop.
    pub fn truncate(&mut self, last: LogPosition) -> io::Result<()> {
        let log = self.log().clone();
        assert!(last >= log.applied(), "what was applied is never cut off");
        assert!(last < self.last(), "there is something to cut off");
        self.flush_synced()?;
        let sequence = log.active().header.sequence + 1;
        let (end, header) = self.header_after(last, sequence)?;
        loop {
            let segments = log.segments.read();
            let newest = segments[segments.len() - 1].clone();
            drop(segments);
            if newest.header.first <= last.next() {
                break;
            }
            log.disk.remove(&newest.name)?;
            // One after the other, so that no crash leaves a hole.
            log.disk.sync_directory()?;
            log.segments.write().pop();
        }
        self.restart(header, end)?;
        log.tail.lock().truncate(last);
        Ok(())
    }

    /// Where the log will end, and the segment that goes on from there.
    fn header_after(
        &self,
        last: LogPosition,
        sequence: u64,
    ) -> io::Result<(LogEnd, SegmentHeader)> {
        let log = self.log();
        let own = {
            let segments = log.segments.read();
            let later = segments.partition_point(|segment| segment.header.first <= last.next());
            assert!(later > 0, "the log reaches back to the cut");
            segments[later - 1].header
        };
        if own.first == last.next() {
            // It begins with what is cut off: a file of the same name takes its place.
            let end = LogEnd {
                last,
                last_time: own.previous_time,
                last_wall_ms: own.wall_ms,
                last_term: own.previous_term,
                offset: 0,
            };
            return Ok((end, SegmentHeader { sequence, ..own }));
        }
        let entries = log
            .read_until(last.previous(), last, 0)
            .map_err(io::Error::other)?;
        let Some(entry) = entries.first() else {
            return Err(io::Error::other("the entry before the cut is missing"));
        };
        let end = LogEnd {
            last,
            last_time: entry.time,
            last_wall_ms: entry.wall_ms,
            last_term: entry.term,
            offset: 0,
        };
        let header = SegmentHeader {
            sequence,
            first: last.next(),
            previous: last,
            previous_time: end.last_time,
            previous_term: end.last_term,
            wall_ms: log.wall.now_ms(),
            previous_sequence: own.sequence,
            group: own.group,
        };
        Ok((end, header))
    }
}
