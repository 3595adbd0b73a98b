//! How the segment that is being written is synced, and what the next one had better be made of.
//!
//! A segment is *zeroed*: written once with zeros, so that a sync of what is written over them changes
//! nothing but these bytes. Or it is *reserved*, which takes no time, and every first write to a page of it
//! changes what the file system knows about the file: on the file system that this was measured with, a third
//! wait for the disk with each sync, and a quarter fewer small groups each second.
//!
//! ```text
//!   a load, synced ten times a second, megabytes each   reserved: zeros would be written for a few syncs
//!   groups of some kB, synced when they come            zeroed
//! ```
//!
//! One follows the other at any time, and a small group takes long to fill the segment that a load has left. So
//! syncs are looked at in rows of some hundred. When a row was *quick*, a zeroed spare is made, and the log goes
//! on there before its segment is full (`trim.rs`).

use crate::disk::Fill;

/// From this many bytes between two syncs on, a segment is reserved instead of zeroed.
const RESERVE_FROM_BYTES_PER_SYNC: u64 = 1 << 20;
/// Who syncs less often has no use for syncs that take less time.
const QUICK_INTERVAL_MS: u64 = 10;

/// The syncs of one segment.
#[derive(Default)]
pub(crate) struct Syncs {
    count: u64,
    /// What was written, and when, at the end of the last row.
    looked_at: Option<(u64, i64)>,
    are_quick: bool,
}

impl Syncs {
    /// Counts one, with all that is written so far. True if a row of them turns out to be quick, for the first time.
    pub fn count(&mut self, written_bytes: u64, row: u64, now_ms: impl FnOnce() -> i64) -> bool {
        self.count += 1;
        if self.are_quick || !self.count.is_multiple_of(row) {
            return false;
        }
        let now_ms = now_ms();
        if let Some((bytes, ms)) = self.looked_at.replace((written_bytes, now_ms)) {
            let is_small = written_bytes.saturating_sub(bytes) / row < RESERVE_FROM_BYTES_PER_SYNC;
            // A clock that was set back says nothing.
            let took_ms = u64::try_from(now_ms.saturating_sub(ms)).unwrap_or(u64::MAX);
            self.are_quick = is_small && took_ms <= row * QUICK_INTERVAL_MS;
        }
        self.are_quick
    }

    pub fn are_quick(&self) -> bool {
        self.are_quick
    }

    /// How the next segment is best made.
    pub fn next_fill(&self, written_bytes: u64) -> Fill {
        let bytes_per_sync = written_bytes / self.count.max(1);
        match self.are_quick || bytes_per_sync < RESERVE_FROM_BYTES_PER_SYNC {
            true => Fill::Zeroed,
            false => Fill::Reserved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_zeroed_where_syncs_are_frequent() {
        let check = |written_bytes: u64, syncs: u64, fill: Fill| {
            let mut counted = Syncs::default();
            for _ in 0..syncs {
                counted.count(written_bytes, u64::MAX, || 0);
            }
            let next = counted.next_fill(written_bytes);
            assert_eq!(next, fill, "{written_bytes} bytes, {syncs} syncs");
        };
        check(512, 0, Fill::Zeroed);
        check(32 << 20, 0, Fill::Reserved);
        check(32 << 20, 10, Fill::Reserved);
        check(32 << 20, 1_000, Fill::Zeroed);
    }

    /// Of syncs of so many bytes, so many milliseconds apart, behind a load.
    #[test]
    fn small_syncs_behind_a_load_are_noticed_once() {
        let check = |bytes: u64, interval_ms: i64, noticed: &[u64]| {
            let mut syncs = Syncs::default();
            let load = 40 << 20;
            assert!(!syncs.count(load, 4, || 0));
            let row: Vec<u64> = (1..=20)
                .filter(|sync| {
                    let now_ms = interval_ms * *sync as i64;
                    syncs.count(load + bytes * sync, 4, || now_ms)
                })
                .collect();
            assert_eq!(row, noticed, "{bytes} bytes every {interval_ms} ms");
            let expected = match noticed.is_empty() {
                true => Fill::Reserved,
                false => Fill::Zeroed,
            };
            assert_eq!(syncs.next_fill(load + 20 * bytes), expected);
        };
        check(4096, 1, &[7]);
        check(4096, 10, &[7]);
        check(4096, 11, &[]);
        check(1 << 20, 1, &[]);
    }
}
