//! Work that goes on while the shard serves: storage maintenance, expiry of
//! documents, timeouts of cursors and sessions; the engine's files are put into order when a
//! burst of writes is over; and the log is told what the set's
//! configuration says about it, and what moves need of it.
//!
//! One task owns all of it and ends when a shutdown begins; its parent waits for
//! it. Maintenance is bounded in each pass and may be left at any point; expiry
//! writes, so it is never left in the middle but looks for the shutdown itself.

use crate::cursor::IDLE_TIMEOUT;
use crate::{Shard, migration, primary_services, session};
use model::time::ClusterTime;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Keys that one maintenance pass may touch.
const MAINTENANCE_BUDGET: usize = 20_000;

impl Shard {
    pub fn spawn_background(self: &Arc<Self>) -> JoinHandle<()> {
        let shard = self.clone();
        tokio::spawn(async move {
            let maintained = async {
                tokio::select! {
                    () = shard.shutdown_begun() => {}
                    () = maintenance(&shard) => {}
                }
            };
            let configured = async {
                tokio::select! {
                    () = shard.shutdown_begun() => {}
                    () = obey_settings(&shard) => {}
                }
            };
            tokio::join!(
                maintained,
                configured,
                tidying(&shard),
                primary_services::run(&shard),
                session::run(&shard)
            );
        })
    }
}

/// Lets the engine put its files into order. That takes seconds, so a thread of its own does
/// it; a shutdown that begins meanwhile waits for it, as it waits for the engine's own merges.
async fn tidying(shard: &Arc<Shard>) {
    let mut ticks = tokio::time::interval(MAINTENANCE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shard.shutdown_begun() => return,
            _ = ticks.tick() => {}
        }
        let store = shard.store.clone();
        match tokio::task::spawn_blocking(move || store.tidy()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!("putting the engine's files into order failed: {error}");
                return;
            }
            // It panicked, which was told where it happened.
            Err(_) => return,
        }
    }
}

/// Tells the log what the set's configuration says, now and whenever it changes.
async fn obey_settings(shard: &Arc<Shard>) {
    let mut changes = shard.replica_set.watch();
    loop {
        shard
            .log
            .set_election_timeout(shard.replica_set.election_timeout());
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// The time by which cursors are judged. They end after [`IDLE_TIMEOUT`]; a
/// parameter that says otherwise moves the clock instead.
fn idle_clock(shard: &Shard) -> Instant {
    let now = Instant::now();
    let wanted_ms = shard.parameters.current().cursor_timeout_ms;
    let wanted = Duration::from_millis(u64::try_from(wanted_ms).unwrap_or(0));
    let moved = match IDLE_TIMEOUT.checked_sub(wanted) {
        Some(sooner) => now.checked_add(sooner),
        None => now.checked_sub(wanted - IDLE_TIMEOUT),
    };
    moved.unwrap_or(now)
}

/// The cluster's time where nothing is written: times are given when something is, but history
/// grows old without that. Counted from the latest time that is known, and not by this member's
/// clock ⚑: one that is ahead of the primary's would give up history that was promised.
struct PassingTime {
    latest: ClusterTime,
    since: Instant,
}

impl PassingTime {
    fn new(latest: ClusterTime) -> PassingTime {
        PassingTime {
            latest,
            since: Instant::now(),
        }
    }

    fn now(&mut self, latest: ClusterTime, at: Instant) -> ClusterTime {
        if latest != self.latest {
            (self.latest, self.since) = (latest, at);
        }
        let passed = at.saturating_duration_since(self.since).as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        let seconds = latest.seconds().saturating_add(passed);
        latest.max(ClusterTime::new(seconds, 0))
    }
}

async fn maintenance(shard: &Arc<Shard>) {
    let mut ticks = tokio::time::interval(MAINTENANCE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut passing = PassingTime::new(shard.log.latest_time());
    loop {
        ticks.tick().await;
        shard.cursors.close_idle(idle_clock(shard));
        tokio::task::block_in_place(|| migration::keep_log(shard));
        let maintained = tokio::task::block_in_place(|| {
            let now = passing.now(shard.log.latest_time(), Instant::now());
            let window = shard.parameters.current().history_window_secs;
            shard.store.set_history_window(window.unsigned_abs());
            shard.store.maintain(now, MAINTENANCE_BUDGET)
        });
        if let Err(error) = maintained {
            tracing::error!("storage maintenance failed: {error}");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PassingTime;
    use model::time::ClusterTime;
    use std::time::{Duration, Instant};

    #[test]
    fn time_passes_from_the_latest_one_that_is_known() {
        let (first, later) = (ClusterTime::new(100, 7), ClusterTime::new(130, 1));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut passing = PassingTime::new(first);
        passing.since = start;
        assert_eq!(passing.now(first, at(0)), first);
        assert_eq!(passing.now(first, at(40)), ClusterTime::new(140, 0));
        // It is told by who gives times, however long it was quiet here.
        assert_eq!(passing.now(later, at(60)), later);
        assert_eq!(passing.now(later, at(65)), ClusterTime::new(135, 0));
    }
}
