//! What can be set for a group.

use crate::error::Error;
use crate::segment::{ENTRY_HEADER_BYTES, GroupId, HEADER_BYTES};

#[derive(Clone, Debug)]
pub struct Options {
    pub group: GroupId,
    /// The size of a segment file; an entry that needs more gets a larger one.
    pub segment_bytes: u64,
    /// Entries are kept while the log is smaller than this …
    pub window_bytes: u64,
    /// … or while they are younger than this.
    pub window_ms: i64,
    /// A proposal is refused as busy while this much waits to be written. One entry
    /// may go over it, so that every entry has a chance.
    pub queue_bytes_max: usize,
    pub queue_entries_max: usize,
    /// How much of the newest entries stays in memory for readers.
    pub tail_bytes_max: usize,
    /// The largest payload of one entry.
    pub payload_bytes_max: usize,
    /// How soon the sync follows a buffered write.
    pub sync_delay_ms: u64,
    /// How far ahead of the wall clock a time from outside may be.
    pub drift_seconds_max: u32,
}

impl Options {
    pub fn new(group: GroupId) -> Self {
        Self {
            group,
            segment_bytes: 64 << 20,
            window_bytes: 1 << 30,
            window_ms: 0,
            queue_bytes_max: 64 << 20,
            queue_entries_max: 16_384,
            tail_bytes_max: 16 << 20,
            payload_bytes_max: 512 << 20,
            sync_delay_ms: 100,
            drift_seconds_max: 365 * 24 * 3600,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |name, detail| Err(Error::Option { name, detail });
        if self.segment_bytes < HEADER_BYTES + 4 * ENTRY_HEADER_BYTES as u64 {
            return refuse("segment_bytes", "too small for a few entries");
        }
        if !self.segment_bytes.is_multiple_of(HEADER_BYTES) {
            return refuse("segment_bytes", "must be a multiple of 512");
        }
        if self.payload_bytes_max > (1 << 31) {
            return refuse("payload_bytes_max", "must not be over 2 GiB");
        }
        if self.queue_bytes_max == 0 || self.queue_entries_max == 0 {
            return refuse("queue_bytes_max", "an empty queue accepts nothing");
        }
        Ok(())
    }
}
