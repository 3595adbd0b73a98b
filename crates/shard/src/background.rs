//! Work that goes on while the shard serves: storage maintenance, expiry of
//! documents, timeouts of cursors and sessions; and the log is told what the set's
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
                primary_services::run(&shard),
                session::run(&shard)
            );
        })
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

async fn maintenance(shard: &Arc<Shard>) {
    let mut ticks = tokio::time::interval(MAINTENANCE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shard.cursors.close_idle(idle_clock(shard));
        tokio::task::block_in_place(|| migration::keep_log(shard));
        let maintained = tokio::task::block_in_place(|| {
            // Times are given when something is written: the window passes without that.
            let clock_s = u32::try_from(shard.clock.now_ms() / 1000).unwrap_or(0);
            let now = shard.log.latest_time().max(ClusterTime::new(clock_s, 0));
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
