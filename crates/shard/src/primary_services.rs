//! Services that run only on the primary, and who starts and stops them.
//!
//! ```text
//!   elected, an entry of the own term applied ─► configuration founded, unfinished builds discarded
//!     ─► clients are told ─► services run ── step-down ──► told to end, waited for ─► the next election
//! ```
//!
//! A service is driven by what is stored, never by what an earlier primary had in memory: it looks at
//! its documents when it starts, and goes on from there. It gets a [`Tenure`], which ends with leadership
//! (or with the process), looks at it between steps, and returns. ⚑ What follows from what it has read is
//! proposed in the tenure's term: a member that is deposed and elected again meanwhile is refused by the log,
//! because another primary may have gone on in between.
//!
//! One task owns all of it, so services of two tenures never overlap on one member.

use crate::replica_set::{membership, takeover};
use crate::sharding::range_deletion;
use crate::{Shard, migration, ttl};
use replication::{Role, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often a primary without writes writes an entry that changes nothing, so that secondaries
/// and those who wait for a time get on.
const NOOP_INTERVAL: Duration = Duration::from_secs(10);

/// One period as primary.
#[derive(Clone)]
pub(crate) struct Tenure {
    over: watch::Receiver<bool>,
    term: Term,
}

impl Tenure {
    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// Completes when the member leads no longer, or is about to stop.
    pub(crate) async fn ended(&self) {
        // A sender that is gone has ended it as well.
        let _ = self.over.clone().wait_for(|over| *over).await;
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }
}

/// Follows the log's role until a shutdown begins: publishes it to clients, and runs the services while
/// this member leads.
pub(crate) async fn run(shard: &Arc<Shard>) {
    let mut role = shard.log.role();
    loop {
        let now = *role.borrow_and_update();
        match now {
            Role::Leader { term } => lead(shard, term, &mut role).await,
            Role::Follower { .. } | Role::Candidate { .. } | Role::Installing { .. } => {
                shard.replica_set.took_role(now);
                tokio::select! {
                    () = shard.shutdown_begun() => return,
                    _ = role.changed() => {}
                }
            }
            Role::Gone => {
                shard.replica_set.took_role(now);
                return;
            }
        }
        if shard.is_shutting_down() {
            return;
        }
    }
}

/// Runs the services of one tenure and returns when they have all ended.
async fn lead(shard: &Arc<Shard>, term: Term, role: &mut watch::Receiver<Role>) {
    let (over, tenure) = watch::channel(false);
    let tenure = Tenure { over: tenure, term };
    let ends = async {
        tokio::select! {
            () = shard.shutdown_begun() => {}
            // The sender lives as long as the log.
            _ = role.wait_for(|role| *role != Role::Leader { term }) => {}
        }
        // Clients hear of it at once, however long the services take to end.
        if !shard.is_shutting_down() {
            shard.replica_set.took_role(*shard.log.role().borrow());
        }
        over.send_replace(true);
    };
    let services = async {
        // The only member of a set has done this before it began to serve.
        if !shard.replica_set.is_primary() {
            if let Err(error) = shard.prepare_to_lead().await {
                tracing::warn!("the primary's start is not complete: {error}");
            }
            // Clients hear of it now: an index build of theirs must not be taken for an old one.
            if !tenure.is_over() {
                shard.replica_set.took_role(Role::Leader { term });
            }
        }
        tokio::join!(
            ttl::run(shard, &tenure),
            migration::run(shard, &tenure),
            membership::run(shard, &tenure),
            takeover::run(shard, &tenure),
            range_deletion::run(shard, &tenure),
            write_noops(shard, &tenure),
        );
    };
    tokio::join!(ends, services);
}

async fn write_noops(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut before = shard.log.last_applied();
    loop {
        tokio::select! {
            () = tenure.ended() => return,
            () = tokio::time::sleep(NOOP_INTERVAL) => {}
        }
        let now = shard.log.last_applied();
        // The only member of a set has nobody to tell, unless a router merges its change streams
        // with those of other shards.
        let is_followed = shard.log.members().configuration.members().count() > 1
            || shard.sharding.known().identity.is_some();
        if now == before && is_followed {
            // Refused when leadership is lost: the tenure has ended then.
            let _ = shard.propose_catalog(|encoder| encoder.noop()).await;
        }
        before = shard.log.last_applied();
    }
}
