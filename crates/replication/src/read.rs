//! Reading applied entries, from memory or from the files, and finding a time.
//!
//! A reader says *after* which position it wants to go on. What it gets is a stretch
//! without holes that begins right there, or an error: [`ReadError::TooOld`] before the
//! start of the log, [`ReadError::Gap`] where a power cut took entries. Whoever keeps
//! up reads from the tail in memory; the others read the files, where every checksum is
//! verified. A reader holds on to the segments it reads: a file is recycled only when
//! nobody does (see `trim.rs`).

use std::sync::Arc;

use model::time::ClusterTime;

use crate::entry::{Entry, LogPosition};
use crate::error::ReadError;
use crate::log_state::{LogState, memory_bytes};
use crate::segment::{Found, Segment};

/// A segment with the last position it holds.
struct Stretch {
    segment: Arc<Segment>,
    last: LogPosition,
}

impl LogState {
    /// Entries after a position, in order: at least one if one is applied, then as many
    /// as stay within `bytes_max`.
    pub fn read(&self, after: LogPosition, bytes_max: usize) -> Result<Vec<Entry>, ReadError> {
        let applied = self.applied();
        if after >= applied {
            return Ok(Vec::new());
        }
        // The tail may still hold what has left the log. The start of the log is one
        // place for everybody, wherever the bytes happen to be.
        let first = self.first();
        if after.next() < first {
            if self.options.faults.read_over_gaps {
                return self.read_until(first.previous(), applied, bytes_max);
            }
            return Err(ReadError::TooOld { after, first });
        }
        self.read_until(after, applied, bytes_max)
    }

    /// The same up to `until`, which may lie behind what is applied.
    pub fn read_until(
        &self,
        after: LogPosition,
        until: LogPosition,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        if let Some(entries) = self.tail.lock().read(after, until, bytes_max) {
            return Ok(entries);
        }
        self.read_files(after, until, bytes_max)
    }

    /// The same from the files alone, up to `until`.
    pub fn read_files(
        &self,
        after: LogPosition,
        until: LogPosition,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut reached = after;
        while reached < until {
            let stretch = match self.stretch_after(reached, until) {
                Ok(stretch) => stretch,
                // The stretch so far is good; who asks on from its end gets the error.
                Err(_) if !entries.is_empty() => break,
                Err(error) => return Err(error),
            };
            let mut walk = stretch.segment.walk(reached.next());
            while reached < stretch.last {
                let entry = next_entry(&stretch.segment, &mut walk)?;
                bytes += memory_bytes(&entry);
                if !entries.is_empty() && bytes > bytes_max {
                    return Ok(entries);
                }
                reached = entry.position;
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// The segment that holds the entry after a position.
    fn stretch_after(&self, after: LogPosition, until: LogPosition) -> Result<Stretch, ReadError> {
        let segments = self.segments.read();
        let later = segments.partition_point(|segment| segment.header.first <= after.next());
        let Some(index) = later.checked_sub(1) else {
            return Err(ReadError::TooOld {
                after,
                first: segments[0].header.first,
            });
        };
        let segment = segments[index].clone();
        let last = match segments.get(later) {
            None => until,
            Some(next) if after >= next.header.previous => {
                return Err(ReadError::Gap {
                    after,
                    next: next.header.first,
                });
            }
            Some(next) => next.header.previous.min(until),
        };
        Ok(Stretch { segment, last })
    }

    /// The position after which reading gives exactly the entries at or after `time`.
    pub fn position_at_time(&self, time: ClusterTime) -> Result<LogPosition, ReadError> {
        let applied = self.applied();
        // Mostly somebody resumes where he left off a moment ago.
        let recent = self.tail.lock().last_before(time, applied);
        if let Some(position) = recent
            && position.next() >= self.first()
        {
            return Ok(position);
        }
        let (segment, last) = {
            let segments = self.segments.read();
            // Entries before a segment have at most its previous time.
            let later = segments.partition_point(|segment| segment.header.previous_time < time);
            let Some(index) = later.checked_sub(1) else {
                let first = segments[0].header.first;
                // Before the very first entry there was nothing to miss.
                return match first.previous() {
                    LogPosition::BEFORE_FIRST => Ok(LogPosition::BEFORE_FIRST),
                    _ => Err(ReadError::TimeTooOld { first }),
                };
            };
            let last = segments
                .get(later)
                .map_or(applied, |next| next.header.previous.min(applied));
            (segments[index].clone(), last)
        };
        let mut before = segment.header.first.previous();
        let mut walk = segment.walk(segment.header.first);
        while before < last {
            let entry = next_entry(&segment, &mut walk)?;
            if entry.time >= time {
                break;
            }
            before = entry.position;
        }
        Ok(before)
    }
}

/// The next entry of a stretch that is known to be complete.
fn next_entry(segment: &Segment, walk: &mut crate::segment::Walk<'_>) -> Result<Entry, ReadError> {
    let detail = match walk.step() {
        Ok(Found::Entry(found)) => return Ok(found.entry),
        Ok(Found::Nothing) => "an entry is missing",
        Ok(Found::NotAnEntry(why)) => why,
        Err(error) => {
            return Err(ReadError::Disk {
                file: segment.name.clone(),
                detail: error.to_string(),
            });
        }
    };
    Err(ReadError::Corrupt {
        file: segment.name.clone(),
        detail: format!("at byte {}: {detail}", walk.offset()),
    })
}
