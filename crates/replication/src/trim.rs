//! Trimming and recycling: what leaves the log, and where new segments come from.
//!
//! A pass of the maintenance does three things:
//!
//! 1. **Release.** Segments that are full need no memory of the system any more; giving back the pages of one
//!    takes some milliseconds, in which the loop would write nothing.
//! 2. **Trim.** The oldest segments leave while the log is larger than its window and
//!    they are older than its age, no pin needs them, and the state machine has been
//!    synced past them; it is synced here if that is all that is missing.
//! 3. **Prepare.** When the current segment is half full there must be a spare, so that
//!    the loop never waits for zeros to be written (or for space to be reserved, where
//!    zeros are not worth it: see `syncs.rs`). A segment that is only reserved and is synced
//!    often is left as soon as there is a zeroed spare.
//!
//! ```text
//!   log-A.seg ──rename──► spare-N.seg ──header, sync, rename──► log-B.seg
//!             in the list until here       (in `log_state.rs`, by the loop)
//! ```
//!
//! Segments leave oldest first, each rename stable before the next, so that no crash
//! leaves a hole. A segment that a reader still holds is not recycled but removed: the
//! reader keeps its handle, and its bytes stay what they were.
//!
//! The maintenance has a thread of its own; the only thing it shares with the loop
//! for long is the disk. A rename or a creation that fails is logged and tried again in
//! the next pass, because nothing depends on it. A failed sync, of the state or of the
//! directory, stops the group: what the disk holds is unknown from then on.

use std::io;
use std::sync::Arc;

use crate::disk::{DiskFile, Fill};
use crate::entry::LogPosition;
use crate::error::ReadError;
use crate::log_state::{LogState, Spare};
use crate::recovery::SPARES_MAX;
use crate::segment::Segment;
use crate::state_machine::Syncer;

pub(crate) struct Maintenance {
    log: Arc<LogState>,
    syncer: Syncer,
    /// The state machine is durable up to here.
    state_synced: LogPosition,
    /// Zeros are kept as if they were reserved here, so that nothing follows from that.
    keeps_no_zeros: bool,
    /// The segment that was written when a spare could not be made.
    failed_in: Option<u64>,
}

impl Maintenance {
    pub fn new(log: Arc<LogState>, syncer: Syncer) -> Self {
        Self {
            log,
            syncer,
            state_synced: LogPosition::BEFORE_FIRST,
            keeps_no_zeros: false,
            failed_in: None,
        }
    }

    /// Trims and prepares. An error is the reason for which the group must stop.
    pub fn pass(&mut self) -> Result<(), String> {
        let full = std::mem::take(&mut *self.log.full.lock());
        for file in full {
            file.release_memory();
        }
        while let Some((segment, last)) = self.oldest_outside_window() {
            if last > self.state_synced && !self.log.options.faults.trim_unsynced {
                self.state_synced = (self.syncer)()
                    .map_err(|error| format!("syncing the state machine: {error}"))?;
                if last > self.state_synced {
                    break;
                }
            }
            if !self.claim(last) {
                break;
            }
            let name = self.log.next_spare_name();
            if let Err(error) = self.log.disk.rename(&segment.name, &name) {
                tracing::warn!(%error, "a segment could not leave the log, trying again later");
                break;
            }
            // Until this is stable, the next one must not go: there would be a hole.
            self.log
                .disk
                .sync_directory()
                .map_err(|error| format!("syncing the log's directory: {error}"))?;
            self.log.segments.write().remove(0);
            self.log.find_unbroken_first();
            if let Err(error) = self.recycle(segment, name) {
                tracing::warn!(%error, "a segment that left the log could not be removed");
            }
        }
        if let Err(error) = self.prepare_spare() {
            tracing::warn!(%error, "a spare segment could not be prepared, trying again later");
        }
        Ok(())
    }

    /// The oldest segment and its last position, if neither size nor age keeps it.
    fn oldest_outside_window(&self) -> Option<(Arc<Segment>, LogPosition)> {
        let segments = self.log.segments.read();
        let [oldest, next, ..] = segments.as_slice() else {
            return None;
        };
        let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        let age_ms = self.log.wall.now_ms().saturating_sub(next.header.wall_ms);
        let keep = bytes <= self.log.options.window_bytes || age_ms < self.log.options.window_ms;
        (!keep).then(|| (oldest.clone(), next.header.previous))
    }

    /// Announces that everything up to `last` leaves, unless a pin needs some of it.
    fn claim(&self, last: LogPosition) -> bool {
        let mut pins = self.log.pins.lock();
        if pins
            .counts
            .first_key_value()
            .is_some_and(|(after, _)| *after < last)
        {
            return false;
        }
        pins.trimmed = pins.trimmed.max(last);
        true
    }

    /// Makes a spare of a segment that is in the list no longer.
    fn recycle(&self, segment: Arc<Segment>, name: String) -> io::Result<()> {
        let log = &self.log;
        let wanted =
            segment.bytes == log.options.segment_bytes && log.spares.lock().len() < SPARES_MAX;
        // Out of the list, nobody can come to hold it who does not hold it now.
        match Arc::into_inner(segment) {
            // Opened anew: handles that only its writer needs went when it was full.
            Some(_) if wanted => {
                let file = log.disk.open(&name)?;
                log.spares.lock().push(Spare { name, file });
                Ok(())
            }
            Some(_) | None => log.disk.remove(&name),
        }
    }

    fn prepare_spare(&mut self) -> io::Result<()> {
        let log = self.log.clone();
        let active = log.active();
        let is_slow = log.are_syncs_quick() && self.is_reserved(&*active.file, active.bytes)?;
        if log.written_bytes() < active.bytes / 2 && !is_slow {
            return Ok(());
        }
        let bytes = log.options.segment_bytes;
        let fill = log.next_fill();
        let spares: Vec<_> = {
            let spares = log.spares.lock();
            let handles = spares.iter();
            handles
                .map(|it| (it.name.clone(), it.file.clone()))
                .collect()
        };
        let mut unfit = Vec::new();
        for (name, file) in &spares {
            if fill == Fill::Zeroed && self.is_reserved(&**file, bytes)? {
                unfit.push(name.as_str());
            }
        }
        if unfit.len() == spares.len() {
            let sequence = active.header.sequence;
            if !spares.is_empty() && self.failed_in == Some(sequence) {
                // The disk may be full, and there is one to go on in.
                return Ok(());
            }
            let name = log.next_spare_name();
            let file = log.disk.create(&name, bytes, fill).inspect_err(|_| {
                // What there is of it takes up space; if it cannot be removed now, it
                // is when the log is opened the next time.
                let _ = log.disk.remove(&name);
                self.failed_in = Some(sequence);
            })?;
            self.keeps_no_zeros |= fill == Fill::Zeroed && self.is_reserved(&*file, bytes)?;
            log.spares.lock().push(Spare { name, file });
        }
        // Only now: where there is no room for another one, the log goes on in what there is.
        for name in unfit {
            self.remove_spare(name)?;
        }
        if is_slow && !self.keeps_no_zeros {
            log.leave_early(&active);
        }
        Ok(())
    }

    /// Whether much of a file of so many bytes is only reserved. The end of a segment that was reserved, and is full, is
    /// not written either.
    fn is_reserved(&self, file: &dyn DiskFile, bytes: u64) -> io::Result<bool> {
        Ok(!self.keeps_no_zeros && bytes.saturating_sub(file.reserved_from()?) > bytes / 8)
    }

    /// Unless the log has taken it meanwhile.
    fn remove_spare(&self, name: &str) -> io::Result<()> {
        let mut spares = self.log.spares.lock();
        let taken_out = spares.extract_if(.., |it| it.name == name).next();
        drop(spares);
        match taken_out {
            Some(spare) => self.log.disk.remove(&spare.name),
            None => Ok(()),
        }
    }
}

/// Keeps the entries after a position in the log until it is dropped.
pub struct Pin {
    log: Arc<LogState>,
    after: LogPosition,
}

impl Pin {
    pub(crate) fn new(log: Arc<LogState>, after: LogPosition) -> Result<Self, ReadError> {
        let first = log.first();
        {
            let mut pins = log.pins.lock();
            if after < pins.trimmed || after.next() < first {
                return Err(ReadError::TooOld {
                    after,
                    first: first.max(pins.trimmed.next()),
                });
            }
            *pins.counts.entry(after).or_insert(0) += 1;
        }
        Ok(Self { log, after })
    }

    pub fn after(&self) -> LogPosition {
        self.after
    }

    /// Gives up the entries up to `after`. A pin never goes back.
    pub fn advance(&mut self, after: LogPosition) {
        if after > self.after {
            *self.log.pins.lock().counts.entry(after).or_insert(0) += 1;
            self.release();
            self.after = after;
        }
    }

    fn release(&self) {
        let mut pins = self.log.pins.lock();
        if let Some(count) = pins.counts.get_mut(&self.after) {
            *count -= 1;
            if *count == 0 {
                pins.counts.remove(&self.after);
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.release();
        self.log.want_maintenance();
    }
}
