//! Who belongs to a group, what each of them is now, and how that changes.
//!
//! ```text
//!   learner ──promote──► voter ──demote──► learner        remove: from either
//!
//!   one step:       C ─────────────────────► C'
//!   several steps:  C ──► joint (C and C') ──► C'         both majorities decide meanwhile
//! ```
//!
//! A change is an entry of the log. It holds from the moment it is applied. The leader
//! leaves a joint configuration by itself as soon as it has been applied, also when it
//! took over from a leader that could not.

use std::fmt;

use crate::election::Elections;
use crate::entry::{LogPosition, Term};

/// The most members that a configuration may name.
pub const MEMBERS_MAX: usize = 50;

/// One member of a group. Never zero, and never given to another member again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

impl MemberId {
    /// # Panics
    /// If the id is zero.
    pub const fn new(id: u64) -> Self {
        assert!(id != 0, "a member's id is never zero");
        Self(id)
    }

    /// For numbers from outside.
    pub const fn checked(id: u64) -> Option<Self> {
        if id == 0 { None } else { Some(Self(id)) }
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a member is to its group at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It was elected in this term and has applied an entry of it: what it has applied
    /// contains everything that was ever acknowledged. Only now may it evaluate, answer
    /// reads of the latest state and run services that need a leader.
    Leader { term: Term },
    /// It follows, or waits for somebody to follow. A learner is always this.
    Follower {
        term: Term,
        leader: Option<MemberId>,
    },
    /// It asks for votes, or has them and has not applied an entry of its term yet.
    Candidate { term: Term },
    /// It is taking over the state at this position from another member: what can be read
    /// from its state machine meanwhile means nothing.
    Installing { position: LogPosition },
    /// It takes no part any more: closed, or stopped for good.
    Gone,
}

impl Role {
    pub fn is_leader(&self) -> bool {
        matches!(self, Role::Leader { .. })
    }
}

/// Voters and learners. While `outgoing` is not empty the configuration is joint: a
/// decision needs a majority of the voters and one of the outgoing voters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    pub voters: Vec<MemberId>,
    pub learners: Vec<MemberId>,
    pub outgoing: Vec<MemberId>,
    /// Outgoing voters that become learners when the joint configuration is left.
    pub learners_next: Vec<MemberId>,
}

impl Configuration {
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether nobody else has a copy of the log.
    pub fn is_sole(&self, member: MemberId) -> bool {
        self.voters == [member] && self.learners.is_empty() && self.outgoing.is_empty()
    }

    pub fn contains(&self, member: MemberId) -> bool {
        self.members().any(|other| other == member)
    }

    /// Everybody, some perhaps twice in a joint configuration.
    pub fn members(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.voters
            .iter()
            .chain(&self.learners)
            .chain(&self.outgoing)
            .copied()
    }

    pub(crate) fn from_raft(state: &raft::eraftpb::ConfState) -> Self {
        let sorted = |ids: &[u64]| {
            let mut members: Vec<_> = ids.iter().filter_map(|id| MemberId::checked(*id)).collect();
            members.sort_unstable();
            members
        };
        Self {
            voters: sorted(&state.voters),
            learners: sorted(&state.learners),
            outgoing: sorted(&state.voters_outgoing),
            learners_next: sorted(&state.learners_next),
        }
    }

    pub(crate) fn to_raft(&self) -> raft::eraftpb::ConfState {
        let ids = |members: &[MemberId]| members.iter().map(|member| member.get()).collect();
        let mut state = raft::eraftpb::ConfState::default();
        state.set_voters(ids(&self.voters));
        state.set_learners(ids(&self.learners));
        state.set_voters_outgoing(ids(&self.outgoing));
        state.set_learners_next(ids(&self.learners_next));
        state
    }
}

/// One step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStep {
    Voter(MemberId),
    Learner(MemberId),
    Remove(MemberId),
}

/// What an entry says about the members. No steps: the joint configuration is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationChange {
    pub steps: Vec<MemberStep>,
}

/// Bytes that are no change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a change of members")]
pub(crate) struct MalformedChange;

impl ConfigurationChange {
    /// From one configuration to another; `None` if they are the same.
    pub fn between(
        from: &Configuration,
        voters: &[MemberId],
        learners: &[MemberId],
    ) -> Option<Self> {
        let mut steps = Vec::new();
        for member in voters {
            if !from.voters.contains(member) {
                steps.push(MemberStep::Voter(*member));
            }
        }
        for member in learners {
            if !from.learners.contains(member) && !voters.contains(member) {
                steps.push(MemberStep::Learner(*member));
            }
        }
        for member in from.voters.iter().chain(&from.learners) {
            if !voters.contains(member) && !learners.contains(member) {
                steps.push(MemberStep::Remove(*member));
            }
        }
        (!steps.is_empty()).then_some(Self { steps })
    }

    /// `[count u16]` then for each step `[1 voter | 2 learner | 3 remove][member u64]`,
    /// little-endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.steps.len() as u16).to_le_bytes().to_vec();
        for step in &self.steps {
            let (kind, member) = match step {
                MemberStep::Voter(member) => (1, member),
                MemberStep::Learner(member) => (2, member),
                MemberStep::Remove(member) => (3, member),
            };
            bytes.push(kind);
            bytes.extend_from_slice(&member.get().to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedChange> {
        let (count, mut rest) = bytes.split_first_chunk::<2>().ok_or(MalformedChange)?;
        let count = usize::from(u16::from_le_bytes(*count));
        if count > 2 * MEMBERS_MAX || rest.len() != count * 9 {
            return Err(MalformedChange);
        }
        let mut steps = Vec::with_capacity(count);
        while let Some((step, next)) = rest.split_first_chunk::<9>() {
            let [kind, member @ ..] = *step;
            let member = MemberId::checked(u64::from_le_bytes(member)).ok_or(MalformedChange)?;
            steps.push(match kind {
                1 => MemberStep::Voter(member),
                2 => MemberStep::Learner(member),
                3 => MemberStep::Remove(member),
                _ => return Err(MalformedChange),
            });
            rest = next;
        }
        Ok(Self { steps })
    }
}

/// How far a member is, as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    pub member: MemberId,
    /// Its log equals the leader's up to here, and is synced up to here. Known to the
    /// leader only (and to each member about itself).
    pub matched: Option<LogPosition>,
    /// It knows that everything up to here is committed.
    pub committed: Option<LogPosition>,
    /// It has applied everything up to here, as far as it was heard.
    pub applied: Option<LogPosition>,
    /// It does not stand for election for some time, as it was told.
    pub is_resting: bool,
    /// How many ticks ago something was heard from it; zero for the member itself.
    pub ticks_since_contact: Option<u64>,
    /// It is being sent a copy of the state as of this position (it may be some way
    /// behind what the copy really has).
    pub snapshot: Option<LogPosition>,
    /// So many parts of the copy have arrived.
    pub snapshot_parts: Option<u64>,
}

/// The group as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub me: MemberId,
    pub term: Term,
    pub leader: Option<MemberId>,
    pub configuration: Configuration,
    /// The entry that made this configuration.
    pub configuration_position: LogPosition,
    /// In the order of ids.
    pub progress: Vec<MemberProgress>,
    /// As far as this member took part in them.
    pub elections: Elections,
}

impl Members {
    pub fn of(&self, member: MemberId) -> Option<&MemberProgress> {
        self.progress.iter().find(|other| other.member == member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: fn(u64) -> MemberId = MemberId::new;

    #[test]
    fn a_change_is_read_back_and_nothing_else_is_read() {
        let change = ConfigurationChange {
            steps: vec![
                MemberStep::Voter(M(3)),
                MemberStep::Learner(M(u64::MAX)),
                MemberStep::Remove(M(1)),
            ],
        };
        let bytes = change.encode();
        assert_eq!(ConfigurationChange::decode(&bytes), Ok(change));
        for end in 0..bytes.len() {
            assert!(ConfigurationChange::decode(&bytes[..end]).is_err());
        }
        for (at, value) in [(0, 4), (1, 1), (2, 0), (2, 4)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert!(ConfigurationChange::decode(&damaged).is_err(), "{at}");
        }
        assert!(ConfigurationChange::decode(&[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn the_way_from_one_configuration_to_another() {
        let from = Configuration {
            voters: vec![M(1), M(2)],
            learners: vec![M(3), M(4)],
            ..Configuration::default()
        };
        let check = |voters: &[u64], learners: &[u64], steps: &[MemberStep]| {
            let ids = |ids: &[u64]| ids.iter().map(|id| M(*id)).collect::<Vec<_>>();
            let change = ConfigurationChange::between(&from, &ids(voters), &ids(learners));
            assert_eq!(change.map_or(Vec::new(), |change| change.steps), steps);
        };
        use MemberStep::{Learner, Remove, Voter};
        check(&[1, 2], &[3, 4], &[]);
        check(&[1, 2, 3], &[4], &[Voter(M(3))]);
        check(&[1], &[3, 4], &[Remove(M(2))]);
        check(&[1], &[2, 3, 4], &[Learner(M(2))]);
        check(
            &[1, 5],
            &[3, 6],
            &[Voter(M(5)), Learner(M(6)), Remove(M(2)), Remove(M(4))],
        );
    }
}
