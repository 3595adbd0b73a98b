//! The pace of one side of a move: what `cluster::migration::pace` says to what clients feel.
//!
//! The recipient paces its batches by what clients feel here and on the donor, which tells it with each batch; the
//! donor paces the scan for its digest by what clients feel there. `setParameter movePacingEnabled: false`
//! switches both to full pace.

use crate::Shard;
use cluster::migration::pace::Pace;
use std::time::{Duration, Instant};

/// How long a pace holds: as long as a window of latencies.
const INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct Pacer {
    pace: Pace,
    /// When the next interval ends; `None`: nothing was done yet.
    due: Option<Instant>,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self {
            pace: Pace::FULL,
            due: None,
        }
    }

    /// The pace from now on, given what clients feel on the other side.
    pub(super) fn pace(&mut self, shard: &Shard, elsewhere: Option<f64>) -> Pace {
        if !shard.parameters.current().move_pacing {
            self.pace = Pace::FULL;
            return self.pace;
        }
        let now = Instant::now();
        let strain = || match (shard.latency.strain(), elsewhere) {
            (Some(here), Some(there)) => Some(here.max(there)),
            (here, there) => here.or(there),
        };
        match self.due {
            None => {
                if strain().is_some() {
                    self.pace = Pace::FIRST;
                }
                self.due = Some(now + INTERVAL);
            }
            Some(due) if now >= due => {
                self.pace = self.pace.after(strain());
                self.due = Some(now + INTERVAL);
                shard.latency.set_at_least_pace(self.pace.is_least());
            }
            Some(_) => {}
        }
        self.pace
    }
}
