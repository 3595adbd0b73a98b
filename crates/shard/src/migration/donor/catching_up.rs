//! How far behind a recipient is that follows the log, how much of that is borne when writes are blocked, and whether
//! it gets closer.
//!
//! Writes wait while the recipient catches up with what is missing then, so that it is worth a moment to find it
//! close: little is borne at first, and twice as much after each [`PATIENCE`], up to a bound that takes some
//! milliseconds. One entry is borne in any case, whatever is in it: it is missing until all of it is there.
//!
//! Who has copied for an hour has an hour of the log to follow. As long as the way to its end gets shorter so fast
//! that its end will come in time, nobody is in a hurry. If not, writers are as fast as those who follow them, and they
//! make way (`making_way.rs`), if it is they who write what is to be followed, and not those of other ranges.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Entries of the log that may be missing when writes are blocked.
const ENTRIES_MAX: u64 = 200;
/// Changes of the range in them. One entry may have a thousand.
const CHANGES_MAX: u64 = 1_000;
/// Bytes of the documents in these changes.
const BYTES_MAX: u64 = 16 << 20;
/// How many entries and changes are borne at first, and bytes.
const COUNT_AT_FIRST: u64 = 16;
const BYTES_AT_FIRST: u64 = 1 << 20;
/// After such a time twice as much is borne.
const PATIENCE: Duration = Duration::from_millis(100);
/// Over which time it is looked at whether the way to the end of the log gets shorter, and how often.
const WINDOW: Duration = Duration::from_secs(2);
const LOOKS_APART: Duration = Duration::from_millis(250);
/// Of so many entries that were followed one has to be of the range, or it is others who write.
const OF_THE_RANGE_MIN: u64 = 10;
/// Who is so many times further behind has not caught up any more. ⚑ Not at the limit itself: many parts of a
/// whole that go to and fro around it would never have caught up together.
const AGAIN: u64 = 10;

/// Changes of the range, and what they weigh.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::migration) struct Changes {
    pub(in crate::migration) count: u64,
    pub(in crate::migration) bytes: u64,
}

impl std::ops::AddAssign for Changes {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// What a recipient does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lag {
    /// Entries of the log, of whatever they are.
    pub(super) entries: u64,
    pub(super) changes: Changes,
}

impl Lag {
    fn is_within(self, [entries, count, bytes]: [u64; 3]) -> bool {
        self.entries <= entries && self.changes.count <= count && self.changes.bytes <= bytes
    }

    /// Whether writes may be blocked, if the recipient could have caught up for so long.
    pub(super) fn is_borne(self, waited: Duration) -> bool {
        let doublings = (waited.as_millis() / PATIENCE.as_millis()).min(16) as u32;
        let count = COUNT_AT_FIRST << doublings;
        let bytes = BYTES_AT_FIRST << doublings;
        self.entries <= 1
            || self.is_within([
                count.min(ENTRIES_MAX),
                count.min(CHANGES_MAX),
                bytes.min(BYTES_MAX),
            ])
    }

    /// Whether who had caught up has not any more.
    pub(super) fn is_far(self) -> bool {
        !self.is_within([ENTRIES_MAX, CHANGES_MAX, BYTES_MAX].map(|most| AGAIN * most))
    }
}

/// How far the digest has followed the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::migration) struct Followed {
    /// The position of the last entry.
    pub(in crate::migration) position: u64,
    /// How many entries had changes of the range so far.
    pub(in crate::migration) of_the_range: u64,
}

/// Whether a recipient comes to the end of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Approach {
    /// In time, or it is not known yet.
    GetsCloser,
    /// Those who write to the range are too fast for it.
    Outrun,
    /// Those who write to other ranges are.
    OutrunByOthers,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    to_go: u64,
    followed: Followed,
}

/// A recipient that has copied everything, and follows.
#[derive(Debug)]
pub(super) struct CatchingUp {
    since: Instant,
    /// The first is as old as [`WINDOW`], once that has passed.
    looks: VecDeque<Look>,
}

impl CatchingUp {
    pub(super) fn begins(now: Instant) -> Self {
        Self {
            since: now,
            looks: VecDeque::new(),
        }
    }

    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Takes note of how many entries those who follow have to go, the slower of them; they should be at the end
    /// before so much time has passed.
    pub(super) fn looks(
        &mut self,
        to_go: u64,
        followed: Followed,
        now: Instant,
        left: Duration,
    ) -> Approach {
        let look = Look {
            at: now,
            to_go,
            followed,
        };
        let ago = |look: &Look| now.saturating_duration_since(look.at);
        if self
            .looks
            .back()
            .is_none_or(|last| ago(last) >= LOOKS_APART)
        {
            self.looks.push_back(look);
        }
        while self.looks.get(1).is_some_and(|next| ago(next) >= WINDOW) {
            self.looks.pop_front();
        }
        let Some(first) = self.looks.front().filter(|first| ago(first) >= WINDOW) else {
            return Approach::GetsCloser;
        };
        let gained = first.to_go.saturating_sub(to_go);
        let needed = ago(first).as_secs_f64() * to_go as f64 / gained as f64;
        // Without anything gained it is infinite.
        if to_go == 0 || needed <= left.as_secs_f64() {
            return Approach::GetsCloser;
        }
        let all = followed.position.saturating_sub(first.followed.position);
        let of_the_range = followed
            .of_the_range
            .saturating_sub(first.followed.of_the_range);
        match of_the_range.saturating_mul(OF_THE_RANGE_MIN) >= all {
            true => Approach::Outrun,
            false => Approach::OutrunByOthers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lag(entries: u64, count: u64, bytes: u64) -> Lag {
        let changes = Changes { count, bytes };
        Lag { entries, changes }
    }

    #[test]
    fn more_is_borne_after_a_while_and_never_too_much() {
        let table = [
            (lag(16, 16, 1 << 20), 0, true),
            (lag(17, 0, 0), 0, false),
            (lag(17, 0, 0), 100, true),
            (lag(2, 17, 0), 99, false),
            // One entry is borne, whatever is in it.
            (lag(1, 5_000, 100 << 20), 0, true),
            (lag(2, 1000, 0), 600, true),
            // ⚑ A few entries may be very large.
            (lag(2, 2, 3 << 20), 100, false),
            (lag(2, 2, 3 << 20), 200, true),
            (lag(200, 1000, 16 << 20), 60_000, true),
            (lag(201, 0, 0), 60_000, false),
            (lag(2, 1001, 0), 60_000, false),
            (lag(2, 2, (16 << 20) + 1), 60_000, false),
        ];
        for (lag, waited, expected) in table {
            let borne = lag.is_borne(Duration::from_millis(waited));
            assert_eq!(borne, expected, "{lag:?} after {waited} ms");
        }
    }

    #[test]
    fn who_goes_to_and_fro_around_the_limit_has_caught_up() {
        assert!(!lag(2_000, 10_000, 160 << 20).is_far());
        assert!(lag(2_001, 0, 0).is_far());
        assert!(lag(1, 10_001, 0).is_far());
        assert!(lag(1, 1, (160 << 20) + 1).is_far());
    }

    /// What is to go in turn, a second apart, of how many of a hundred entries that are followed each second the
    /// range has changes, and what is found in the end, with a minute for all of it.
    #[test]
    fn who_will_be_there_in_time_is_not_outrun() {
        use Approach::{GetsCloser, Outrun, OutrunByOthers};
        let table: [(&[u64], u64, Approach); 10] = [
            // It is not known before two seconds have passed.
            (&[90_000, 91_000], 100, GetsCloser),
            // A large backlog that shrinks evenly.
            (&[100_000, 95_000, 90_000], 100, GetsCloser),
            (
                &[100_000, 95_000, 90_000, 85_000, 80_000, 75_000],
                100,
                GetsCloser,
            ),
            // Too slowly.
            (&[100_000, 99_000, 98_000], 100, Outrun),
            (&[90_000, 91_000, 92_000], 100, Outrun),
            // Close, and never there.
            (&[3, 3, 4], 100, Outrun),
            // It came closer, and then no more.
            (&[900, 300, 301], 100, GetsCloser),
            (&[900, 300, 301, 299], 100, Outrun),
            // ⚑ Others write, by now: writers of the range could not help.
            (&[90_000, 91_000, 92_000, 93_000], 9, OutrunByOthers),
            (&[900, 300, 0], 100, GetsCloser),
        ];
        let begin = Instant::now();
        let limit = Duration::from_secs(60);
        for (ways, share, expected) in table {
            let mut catching_up = CatchingUp::begins(begin);
            let mut found = GetsCloser;
            for (second, to_go) in ways.iter().enumerate() {
                let second = second as u64;
                let passed = Duration::from_secs(second);
                let followed = Followed {
                    position: 1_000 + 100 * second,
                    of_the_range: 7 + share * second,
                };
                found = catching_up.looks(*to_go, followed, begin + passed, limit - passed);
            }
            assert_eq!(found, expected, "{ways:?} with {share}");
        }
    }
}
