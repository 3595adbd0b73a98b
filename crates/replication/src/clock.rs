//! Wall time as a port, and the hybrid logical clock that gives times to entries.
//!
//! Every time given is greater than every time given or observed before, and at
//! least the wall clock's second. While the wall clock moves, times follow it; if
//! it stands still or jumps back, only the increment (and at its end the second)
//! goes on. An entry may take several times that follow each other, all of one
//! second, and is named by the last of them. A time from outside pushes the clock, but not further ahead of the
//! wall clock than a bound: otherwise one client could use up all of time.

use std::time::{SystemTime, UNIX_EPOCH};

use model::time::ClusterTime;

use crate::error::DriftError;

/// The one door through which wall time comes in.
pub trait WallClock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;
}

impl<F: Fn() -> i64 + Send + Sync + 'static> WallClock for F {
    fn now_ms(&self) -> i64 {
        self()
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        }
    }
}

fn wall_seconds(wall_ms: i64) -> u32 {
    u32::try_from(wall_ms.div_euclid(1000).max(0)).unwrap_or(u32::MAX)
}

#[derive(Debug)]
pub(crate) struct HybridClock {
    latest: ClusterTime,
    drift_seconds_max: u32,
}

impl HybridClock {
    pub fn new(latest: ClusterTime, drift_seconds_max: u32) -> Self {
        Self {
            latest,
            drift_seconds_max,
        }
    }

    pub fn latest(&self) -> ClusterTime {
        self.latest
    }

    /// The last of the `count` times for the next entry, or `None` at the end of
    /// time. The clock moves only when that entry is accepted, with [`Self::advance`].
    pub fn next(&self, wall_ms: i64, count: u32) -> Option<ClusterTime> {
        let count = count.max(1);
        let wall = wall_seconds(wall_ms);
        if wall > self.latest.seconds() {
            return Some(ClusterTime::new(wall, count));
        }
        match self.latest.increment().checked_add(count) {
            Some(increment) => Some(ClusterTime::new(self.latest.seconds(), increment)),
            None => Some(ClusterTime::new(
                self.latest.seconds().checked_add(1)?,
                count,
            )),
        }
    }

    pub fn advance(&mut self, time: ClusterTime) {
        self.latest = self.latest.max(time);
    }

    pub fn observe(&mut self, time: ClusterTime, wall_ms: i64) -> Result<(), DriftError> {
        let wall_seconds = wall_seconds(wall_ms);
        if time > self.latest
            && time.seconds() > wall_seconds.saturating_add(self.drift_seconds_max)
        {
            return Err(DriftError {
                seconds: time.seconds(),
                wall_seconds,
                drift_seconds_max: self.drift_seconds_max,
            });
        }
        self.advance(time);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_later_and_not_behind_the_wall() {
        let several = |latest: (u32, u32), wall_ms, count, expected: Option<(u32, u32)>| {
            let clock = HybridClock::new(ClusterTime::new(latest.0, latest.1), 10);
            assert_eq!(
                clock.next(wall_ms, count),
                expected.map(|(seconds, increment)| ClusterTime::new(seconds, increment)),
                "{count} after {latest:?} at {wall_ms} ms"
            );
        };
        let check = |latest, wall_ms, expected| several(latest, wall_ms, 1, expected);
        check((0, 0), 5_999, Some((5, 1)));
        check((5, 1), 5_999, Some((5, 2)));
        check((5, 7), 6_000, Some((6, 1)));
        check((9, 3), 6_000, Some((9, 4)));
        check((9, u32::MAX), 6_000, Some((10, 1)));
        check((0, 0), -1, Some((0, 1)));
        check((u32::MAX, u32::MAX), 0, None);
        several((5, 7), 6_000, 3, Some((6, 3)));
        several((5, 7), 5_000, 3, Some((5, 10)));
        several((5, u32::MAX - 2), 5_000, 3, Some((6, 3)));
        several((u32::MAX, u32::MAX - 2), 0, 3, None);
    }

    #[test]
    fn a_time_from_outside_is_bounded() {
        let check = |seconds: u32, accepted: bool| {
            let mut clock = HybridClock::new(ClusterTime::new(50, 1), 10);
            let outcome = clock.observe(ClusterTime::new(seconds, 9), 100_000);
            assert_eq!(outcome.is_ok(), accepted, "{seconds}");
            let expected = if accepted && seconds >= 50 {
                ClusterTime::new(seconds, 9)
            } else {
                ClusterTime::new(50, 1)
            };
            assert_eq!(clock.latest(), expected, "{seconds}");
        };
        check(10, true);
        check(60, true);
        check(110, true);
        check(111, false);
        check(u32::MAX, false);
    }
}
