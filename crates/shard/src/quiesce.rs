//! The orderly end of a member, as its clients notice it.
//!
//! ```text
//!   serving ── hands leadership over ──► quiescing ── nobody is connected, or time is up ──► connections are closed
//!                                        hello: 91, how long it lasts
//!                                        new work: 91; what runs goes on
//! ```
//!
//! Drivers look elsewhere as soon as they hear it, on connections that they keep: nobody is cut off in the
//! middle of a word. How long that lasts, in the order of what ends it:
//!
//! - nobody but other members is connected: at once;
//! - `shutdownTimeoutMillisForSignaledShutdown` (or what the command `shutdown` says) is over, and nothing runs any
//!   more. Where there is no other member to go to, that time is zero: a server on a laptop stops at once;
//! - what runs has had the time that the caller grants it. It is interrupted then.
//!
//! Member-to-member traffic goes on until the log is closed: a member that quiesces still counts for majorities.

use crate::Shard;
use crate::replica_set::transport::Incoming;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::ConnectionInfo;

/// How often connections are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// A member that is about to stop does not stand for election again.
const REST: Duration = Duration::from_secs(3600);

/// Connections by which other members send what their logs have to say.
#[derive(Default)]
pub(crate) struct Callers(AtomicU64);

impl Callers {
    /// What a connection of another member has begun to say.
    pub(crate) fn incoming<'a>(&self, connection: &'a ConnectionInfo) -> &'a Incoming {
        connection.handler_state(|| {
            self.0.fetch_add(1, Ordering::Relaxed);
            Incoming::default()
        })
    }

    pub(crate) fn disconnected(&self, connection: &ConnectionInfo) {
        if connection.existing_handler_state::<Incoming>().is_some() {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Shard {
    /// Whether somebody else could be the primary.
    fn has_other_voters(&self) -> bool {
        let members = self.log.members();
        let voters = &members.configuration.voters;
        voters.iter().any(|voter| *voter != members.me)
    }

    /// How long clients are told that this member is about to stop.
    pub fn quiesce_limit(&self) -> Duration {
        if !self.has_other_voters() {
            return Duration::ZERO;
        }
        let asked = *self.shutdown_limit.lock();
        asked.unwrap_or_else(|| {
            let millis = self.parameters.current().shutdown_timeout_ms;
            Duration::from_millis(u64::try_from(millis).unwrap_or(0))
        })
    }

    /// Hands leadership over if there is somebody to take it, which may take `hand_over`, and tells
    /// clients that the member is about to stop, and will answer for `limit` at most. From here on new work is
    /// refused, and what waits for news stops waiting.
    pub async fn begin_quiesce(&self, hand_over: Duration, limit: Duration) {
        if !hand_over.is_zero() && self.has_other_voters() {
            self.log.rest(REST);
            if self.replica_set.is_primary() {
                // If nobody can take over, the others elect somebody when this one is gone.
                let _ = tokio::time::timeout(hand_over, self.log.transfer(None)).await;
            }
        }
        self.replica_set.quiesces(Instant::now() + limit);
        self.begin_shutdown();
    }

    /// Completes when connections may be closed; whether something still runs that had `finish` to end.
    pub async fn quiesced(&self, limit: Duration, finish: Duration) -> bool {
        let began = Instant::now();
        loop {
            let metrics = self.wire_metrics();
            let clients = metrics
                .connections_current
                .saturating_sub(self.callers.count());
            let is_idle = metrics.connections_active == 0;
            let waited = began.elapsed();
            if clients == 0 || (is_idle && waited >= limit) {
                return false;
            }
            if waited >= finish.max(limit) {
                return true;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}
