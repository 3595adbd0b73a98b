//! Beginning the log anew behind a state that was installed from another member.
//!
//! ```text
//!   1. the member's file: about to install the state at P, of term T, and its members
//!   2. the state machine: the new state, all of it or nothing, synced
//!   3. the log: every segment is removed, newest first
//!   4. a new segment that begins at P + 1
//! ```
//!
//! A crash before 2 is done leaves the old state and the old log, which still go
//! together: the note of 1 is for a position that the state does not have. A crash after
//! it is recognised by the state's position being the one in the note, and 3 and 4 are
//! done again when the log is opened.

use std::sync::Arc;

use model::time::ClusterTime;

use crate::append::LogEnd;
use crate::disk::Fill;
use crate::entry::{LogPosition, Term};
use crate::error::Error;
use crate::log_state::LogState;
use crate::segment::{HEADER_BYTES, Segment, SegmentHeader};

/// Steps 3 and 4. Nobody may trim the log meanwhile.
pub(crate) fn begin_after_installed(
    log: &LogState,
    position: LogPosition,
    term: Term,
    time: Option<ClusterTime>,
) -> Result<LogEnd, Error> {
    let failed = || Error::disk("beginning the log anew");
    let (end, header) = end_and_header(log, position, term, time.unwrap_or(ClusterTime::ZERO));
    // Readers may be looking at them: the list changes when there is something new in it.
    let old: Vec<Arc<Segment>> = log.segments.read().clone();
    for segment in old.iter().rev() {
        log.disk.remove(&segment.name).map_err(failed())?;
        log.disk.sync_directory().map_err(failed())?;
    }
    let begun = log
        .begin_segment(header, 0, Fill::Reserved)
        .map_err(failed())?;
    log.segments
        .write()
        .retain(|segment| Arc::ptr_eq(segment, &begun));
    log.find_unbroken_first();
    log.tail.lock().clear();
    log.set_appended(position, HEADER_BYTES);
    Ok(end)
}

fn end_and_header(
    log: &LogState,
    position: LogPosition,
    term: Term,
    time: ClusterTime,
) -> (LogEnd, SegmentHeader) {
    let wall_ms = log.wall.now_ms();
    // Not used before, even if no segment is left that would tell: each segment made so
    // far held at least one entry.
    let sequence = log
        .segments
        .read()
        .last()
        .map_or(0, |last| last.header.sequence)
        .max(position.get())
        + 1;
    let header = SegmentHeader {
        group: log.options.group,
        sequence,
        first: position.next(),
        previous: position,
        previous_time: time,
        previous_term: term,
        wall_ms,
        previous_sequence: 0,
    };
    let end = LogEnd {
        last: position,
        last_time: time,
        last_wall_ms: wall_ms,
        last_term: term,
        offset: HEADER_BYTES,
    };
    (end, header)
}
