//! When a donor gives up on a recipient that does not get on.
//!
//! A move keeps the donor's log from the position before its copy on, on every member (`pins.rs`). A
//! recipient that stays away must not keep it for ever: while it copies, one of two limits ends the move,
//! both of them server parameters of the donor:
//!
//! | parameter | default | the move is aborted when |
//! | --- | --- | --- |
//! | `moveStallSecs` | 900 | nothing was heard of the recipient for so long, or always the same |
//! | `movePinnedLogBytesMax` | 32 GiB | the log that is kept for it is larger, in whole files |
//!
//! Getting on is also what comes before the first document: a recipient that removes left-overs, builds indexes
//! or takes over histories of sessions counts what it does (`prepared`).
//!
//! ⚑ Only while copying: nothing was asked of the config server then, so the donor may still abort on its
//! own. Writes are blocked for seconds at most (`donor.rs`), and once reads are, the recipient has
//! everything, and nothing is kept for it any more. What is kept goes with the phase: the document of an
//! aborted move pins nothing, on any member, also while its recipient does not hear of the end.
//!
//! Time is counted anew by a new primary; the size is the same for it.

use super::plan::Fields;
use crate::Shard;
use replication::LogPosition;
use std::time::{Duration, Instant};

/// What a recipient told of its progress last.
pub(super) struct Stall {
    told: Option<[Option<i64>; 5]>,
    since: Instant,
}

impl Stall {
    pub(super) fn begins() -> Self {
        Self {
            told: None,
            since: Instant::now(),
        }
    }

    /// Takes note of a report.
    pub(super) fn hear(&mut self, report: Fields<'_>) {
        let names = ["copied", "documents", "bytes", "replayed", "prepared"];
        let told = Some(names.map(|name| report.long(name).ok()));
        if told != self.told {
            self.told = told;
            self.gets_on();
        }
    }

    /// The recipient is not who is waited for.
    pub(super) fn gets_on(&mut self) {
        self.since = Instant::now();
    }

    /// Why the move has to end by now, if it has to.
    pub(super) fn is_over(&self, shard: &Shard, since: LogPosition) -> Option<String> {
        let settings = shard.parameters.current();
        let limit = Duration::from_secs(u64::from(settings.move_stall_secs.unsigned_abs()));
        if self.since.elapsed() > limit {
            let seconds = limit.as_secs();
            return Some(format!(
                "the recipient did not get on for {seconds} seconds (moveStallSecs)"
            ));
        }
        let pinned = shard.log.bytes_behind(since);
        if pinned > settings.move_pinned_log_bytes_max.unsigned_abs() {
            return Some(format!(
                "it keeps {pinned} bytes of the log (movePinnedLogBytesMax)"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocWriter;

    /// ⚑ Whatever a recipient tells that is new counts, what it prepares too; the same again does not.
    #[test]
    fn who_prepares_gets_on() {
        let report = |name: &str, count: i64| {
            let names = ["copied", "documents", "bytes", "replayed", "prepared"];
            let mut writer = DocWriter::new();
            for known in names {
                writer.append(known, if known == name { count } else { 0 });
            }
            writer.finish()
        };
        for name in ["copied", "documents", "bytes", "replayed", "prepared"] {
            let mut stall = Stall::begins();
            stall.hear(Fields(report(name, 1).as_doc()));
            let long_ago = stall.since - Duration::from_millis(1);
            for (count, gets_on) in [(1, false), (2, true), (2, false)] {
                stall.since = long_ago;
                stall.hear(Fields(report(name, count).as_doc()));
                assert_eq!(stall.since > long_ago, gets_on, "{name} {count}");
            }
        }
    }
}
