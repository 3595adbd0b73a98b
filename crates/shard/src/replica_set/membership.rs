//! From the configuration that was asked for to the members that the log has.
//!
//! The configuration document is what should be; the log's voters and learners are what is. This
//! service of the primary leads from one to the other, one step after the other, and can be taken over by
//! any later primary at any point:
//!
//! ```text
//!   a new member: learner ─► has caught up ─► voter         a member that is gone: removed
//! ```
//!
//! A member that was added again and has lost its data gets another life (`returning.rs`) before it is
//! given any.
//!
//! A member that has just been added counts for nothing until it holds what the others hold, so adding
//! one never endangers a majority.

use super::returning::Returned;
use crate::Shard;
use crate::primary_services::Tenure;
use replication::{LogPosition, MemberId, Members};
use std::sync::Arc;
use std::time::Duration;

/// How often a learner's progress is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// A learner that is at most so many entries behind has caught up.
const BEHIND_MAX: u64 = 1000;

pub(crate) async fn run(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut topology = shard.replica_set.watch();
    loop {
        topology.borrow_and_update();
        let under_way = step(shard).await;
        let rest = async {
            match under_way {
                true => tokio::time::sleep(LOOK_INTERVAL).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tenure.ended() => return,
            // The sender lives in the shard.
            _ = topology.changed() => {}
            () = rest => {}
        }
    }
}

/// Takes the next step; whether there is more to do.
async fn step(shard: &Shard) -> bool {
    // Who hands leadership over, or has lost it, changes nothing.
    let Ok(term) = shard.log.leading() else {
        return true;
    };
    let Some(configuration) = shard.replica_set.configuration() else {
        return false;
    };
    let members = shard.log.members();
    let returned = shard.renew_lives(term, &configuration, &members).await;
    if returned == Returned::Renewed {
        return true;
    }
    let wanted = |voter: bool| -> Vec<MemberId> {
        let members = configuration.members.iter();
        let mut ids: Vec<MemberId> = members
            .filter(|member| member.is_voter() == voter)
            .map(|member| configuration.in_log(member))
            .collect();
        ids.sort_unstable();
        ids
    };
    let (voters, learners) = (wanted(true), wanted(false));
    let now = &members.configuration;
    if now.is_joint() {
        return true;
    }
    if (&now.voters, &now.learners) == (&voters, &learners) {
        return returned == Returned::NotAll;
    }
    let (ready, behind): (Vec<MemberId>, Vec<MemberId>) = voters.into_iter().partition(|voter| {
        now.voters.contains(voter) || has_caught_up(&members, *voter, shard.log.last_applied())
    });
    let mut others = learners;
    others.extend(behind);
    others.sort_unstable();
    if ready.is_empty() || (&now.voters, &now.learners) == (&ready, &others) {
        return true;
    }
    if let Err(error) = shard.log.change_members(&ready, &others).await {
        tracing::warn!("the members are not changed yet: {error}");
    }
    true
}

fn has_caught_up(members: &Members, member: MemberId, applied: LogPosition) -> bool {
    let is_learner = members.configuration.learners.contains(&member);
    let matched = members.of(member).and_then(|progress| progress.matched);
    // In a short log nobody is far behind: it must have something of it at least.
    let has_caught_up = |matched: LogPosition| {
        matched > LogPosition::BEFORE_FIRST && matched.get() + BEHIND_MAX >= applied.get()
    };
    is_learner && matched.is_some_and(has_caught_up)
}
