//! The pace of one side of a move: what `cluster::migration::pace` says to what clients feel.
//!
//! The recipient paces its batches by what clients feel here and on the donor, which tells it with each batch; the
//! donor paces the scan for its digest by what clients feel there. `setParameter movePacingEnabled: false`
//! switches both to full pace.
//!
//! A pace holds for an interval. Where clients have come, or feel too much, it changes as soon as there are new figures:
//! a scan of a whole collection may take less than an interval. Where they have gone, it need not hold as long.

use crate::Shard;
use cluster::migration::pace::Pace;
use std::time::{Duration, Instant};

/// How long a pace holds: as long as a window of latencies where clients are few.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long at least: as long as one where they are many.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Who was here so lately may come again.
const LATELY: Duration = Duration::from_secs(5);

/// What is known of clients of one shard.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Felt {
    /// How many times longer they wait than at rest.
    pub(super) strain: Option<f64>,
    /// Whether there were some lately.
    pub(super) lately: bool,
}

impl Felt {
    pub(super) fn on(shard: &Shard) -> Self {
        Self {
            strain: shard.latency.strain(),
            lately: shard.latency.had_clients(LATELY),
        }
    }

    /// Whether there is nobody, and was nobody lately.
    pub(super) fn is_nobody(self) -> bool {
        self.strain.is_none() && !self.lately
    }

    /// The worse of both.
    pub(super) fn and(self, other: Self) -> Self {
        let strains = [self.strain, other.strain].into_iter().flatten();
        Self {
            strain: strains.reduce(f64::max),
            lately: self.lately || other.lately,
        }
    }
}

pub(super) struct Pacer {
    pace: Pace,
    /// When that was decided, and after how many windows of latencies; `None`: nothing was done yet.
    decided: Option<(Instant, u64)>,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self {
            pace: Pace::FULL,
            decided: None,
        }
    }

    /// The pace from now on, given what clients feel on the other side.
    pub(super) fn pace(&mut self, shard: &Shard, elsewhere: Felt) -> Pace {
        if !shard.parameters.current().move_pacing {
            self.pace = Pace::FULL;
            return self.pace;
        }
        let now = Instant::now();
        let felt = Felt::on(shard).and(elsewhere);
        let windows = shard.latency.windows();
        match self.decided {
            None => {
                if felt.strain.is_some() || felt.lately {
                    self.pace = Pace::FIRST;
                }
                self.decided = Some((now, windows));
            }
            Some((at, known)) => {
                let holds = match felt.strain {
                    Some(strain) if windows != known && self.pace.is_too_fast(strain) => {
                        INTERVAL_MIN
                    }
                    Some(_) => INTERVAL,
                    None if felt.lately => INTERVAL / 2,
                    None => INTERVAL_MIN,
                };
                if now - at >= holds {
                    self.pace = self.pace.after(felt.strain);
                    self.decided = Some((now, windows));
                    shard.latency.set_at_least_pace(self.pace.is_least());
                }
            }
        }
        self.pace
    }
}
