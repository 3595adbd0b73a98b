//! Who is wanted more as primary becomes it.
//!
//! A service of the primary. It looks who of the others has a greater priority, is there, has applied
//! nearly everything and does not rest, and after a while hands over to it:
//!
//! ```text
//!   so many members have a greater priority than the best one that is there: n
//!   it has been there for (n + 1) election timeouts ─► hand over ── failed ──► not before REST
//! ```
//!
//! The wait is MongoDB's: a member that comes back and goes away again is not made primary in between,
//! and where several could take over, the most wanted one comes first.
//!
//! A primary that has been given priority 0 hands over at once, to whoever may lead.

use super::transport::configuration_id;
use crate::Shard;
use crate::primary_services::Tenure;
use replication::{MemberId, Members};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How long nothing is tried after a hand-over that failed.
const REST: Duration = Duration::from_secs(10);
/// A member that was not heard of for so many ticks is not there.
const TICKS_AWAY: u64 = 10;
/// Who is at most so many entries behind has nearly everything.
const BEHIND_MAX: u64 = 1000;

pub(crate) async fn run(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut waiting: Option<(MemberId, Instant)> = None;
    loop {
        let rest = match step(shard, &mut waiting).await {
            Ok(()) => LOOK_INTERVAL,
            Err(error) => {
                tracing::info!("leadership is not handed over: {error}");
                waiting = None;
                REST
            }
        };
        tokio::select! {
            () = tenure.ended() => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

async fn step(
    shard: &Shard,
    waiting: &mut Option<(MemberId, Instant)>,
) -> Result<(), replication::LeaderError> {
    let members = shard.log.members();
    let rank = |member: MemberId| shard.replica_set.rank(member);
    if rank(members.me) == 0 {
        return shard.log.transfer(None).await;
    }
    let Some((successor, ahead)) = more_wanted(&members, rank) else {
        *waiting = None;
        return Ok(());
    };
    let since = match *waiting {
        Some((member, since)) if member == successor => since,
        _ => waiting.insert((successor, Instant::now())).1,
    };
    if since.elapsed() < shard.replica_set.election_timeout() * (ahead + 1) {
        return Ok(());
    }
    tracing::info!(
        member = configuration_id(successor),
        "another member has a greater priority"
    );
    shard.log.transfer(Some(successor)).await
}

/// The most wanted member that could lead now, if it is wanted more than the one that leads; and how
/// many are wanted even more.
fn more_wanted(members: &Members, rank: impl Fn(MemberId) -> u64) -> Option<(MemberId, u32)> {
    let own = members.of(members.me)?.applied?;
    let could_lead = |member: &MemberId| {
        members.of(*member).is_some_and(|progress| {
            let applied = progress.applied.map_or(0, |applied| applied.get());
            let heard = progress.ticks_since_contact;
            !progress.is_resting
                && heard.is_some_and(|ticks| ticks < TICKS_AWAY)
                && applied + BEHIND_MAX >= own.get()
        })
    };
    let voters = &members.configuration.voters;
    let wanted_more = voters
        .iter()
        .filter(|voter| rank(**voter) > rank(members.me));
    let best = wanted_more
        .filter(|voter| could_lead(voter))
        .max_by_key(|voter| (rank(**voter), std::cmp::Reverse(**voter)))?;
    let ahead = voters.iter().filter(|voter| rank(**voter) > rank(*best));
    Some((*best, u32::try_from(ahead.count()).unwrap_or(0)))
}

impl Shard {
    /// Whether somebody else could be elected: a voter that is there, is wanted and has everything.
    pub(crate) fn has_electable_successor(&self) -> bool {
        let members = self.log.members();
        let applied = Some(self.log.last_applied());
        let Some(configuration) = self.replica_set.configuration() else {
            return false;
        };
        configuration.members.iter().any(|member| {
            let id = configuration.in_log(member);
            id != members.me
                && member.is_voter()
                && member.is_electable()
                && members.of(id).is_some_and(|progress| {
                    let heard = progress.ticks_since_contact;
                    progress.matched >= applied && heard.is_some_and(|ticks| ticks < TICKS_AWAY)
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replication::{Configuration, Elections, LogPosition, MemberProgress, Term};

    fn members(known: &[(u64, u64, u64, bool)]) -> Members {
        let id = MemberId::new;
        Members {
            me: id(1),
            term: Term::new(1),
            leader: Some(id(1)),
            configuration: Configuration {
                voters: known.iter().map(|(member, ..)| id(*member)).collect(),
                ..Configuration::default()
            },
            configuration_position: LogPosition::new(1),
            progress: known
                .iter()
                .map(|(member, applied, ticks, is_resting)| MemberProgress {
                    member: id(*member),
                    matched: None,
                    committed: None,
                    applied: Some(LogPosition::new(*applied)),
                    is_resting: *is_resting,
                    ticks_since_contact: Some(*ticks),
                    snapshot: None,
                    snapshot_parts: None,
                })
                .collect(),
            elections: Elections::default(),
        }
    }

    #[test]
    fn who_is_wanted_more_and_could_lead() {
        let rank = |member: MemberId| member.get() * 10;
        let check = |known: &[(u64, u64, u64, bool)], expected: Option<(u64, u32)>| {
            let found = more_wanted(&members(known), rank);
            let found = found.map(|(member, ahead)| (member.get(), ahead));
            assert_eq!(found, expected, "{known:?}");
        };
        let me = (1, 5000, 0, false);
        check(&[me], None);
        check(
            &[me, (2, 5000, 0, false), (3, 5000, 0, false)],
            Some((3, 0)),
        );
        // It is away, or far behind, or rests.
        check(
            &[me, (2, 5000, 0, false), (3, 5000, 99, false)],
            Some((2, 1)),
        );
        check(
            &[me, (2, 5000, 0, false), (3, 3000, 0, false)],
            Some((2, 1)),
        );
        check(&[me, (2, 5000, 0, false), (3, 5000, 0, true)], Some((2, 1)));
        check(&[me, (2, 5000, 0, true)], None);
        // Nobody is wanted more than member 1 if all are alike.
        let alike = more_wanted(&members(&[me, (2, 5000, 0, false)]), |_| 1);
        assert_eq!(alike, None);
    }
}
