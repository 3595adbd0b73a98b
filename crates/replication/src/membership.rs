//! Changing who belongs to the group, and telling how far each member is.
//!
//! ```text
//!   asked ─► proposed ─► applied: simple ──────────────────────────► answered
//!                     └► applied: joint ─► leaving proposed ─► applied ─► answered
//! ```
//!
//! One change at a time. Whoever leads leaves a joint configuration, whoever asked for
//! it: the leader that entered it may be gone.
//!
//! A leader that is no voter any more steps down when that has been applied.

use raft::StateRole;
use tokio::sync::oneshot;

use crate::commit::Driver;
use crate::entry::{Entry, EntryKind, LogPosition, Term};
use crate::error::{ChangeError, ProposeError};
use crate::member::{
    Configuration, ConfigurationChange, MEMBERS_MAX, MemberId, MemberProgress, Members,
};
use crate::raft_entry::to_conf_change;
use crate::state_machine::StateMachine;
use std::sync::Arc;

/// A change of members under way.
#[derive(Default)]
pub(crate) struct Changing {
    /// Where the entry of a change that was asked for will be.
    asked: Option<(LogPosition, oneshot::Sender<Result<(), ChangeError>>)>,
    /// Where the entry that leaves the joint configuration will be.
    leaving: Option<LogPosition>,
    /// The change that was asked for has been applied.
    entered: bool,
}

impl<S: StateMachine> Driver<S> {
    pub(crate) fn begin_change(
        &mut self,
        voters: &[MemberId],
        learners: &[MemberId],
        answer: oneshot::Sender<Result<(), ChangeError>>,
    ) {
        match self.propose_change(voters, learners) {
            Ok(Some(position)) => {
                self.changing.entered = false;
                self.changing.asked = Some((position, answer));
            }
            Ok(None) => {
                let _ = answer.send(Ok(()));
            }
            Err(error) => {
                let _ = answer.send(Err(error));
            }
        }
    }

    /// Where the change will be in the log; `None` if nothing is to change.
    fn propose_change(
        &mut self,
        voters: &[MemberId],
        learners: &[MemberId],
    ) -> Result<Option<LogPosition>, ChangeError> {
        let invalid = |detail| Err(ChangeError::Invalid { detail });
        if voters.is_empty() {
            return invalid("a group needs a voter");
        }
        if voters.len() + learners.len() > MEMBERS_MAX {
            return invalid("a group has at most 50 members");
        }
        if voters.iter().any(|voter| learners.contains(voter)) {
            return invalid("a member is a voter or a learner, not both");
        }
        if self.leading.is_none() {
            let leader = MemberId::checked(self.node.raft.leader_id);
            return Err(ProposeError::NotLeader { leader }.into());
        }
        let current = &self.member.state.configuration;
        if current.is_joint() || self.changing.asked.is_some() || self.node.raft.has_pending_conf()
        {
            return Err(ChangeError::Busy);
        }
        match ConfigurationChange::between(current, voters, learners) {
            None => Ok(None),
            Some(change) => Ok(Some(self.shared.propose_change(change)?)),
        }
    }

    /// Carries out a change that is committed, and makes it stable.
    pub(crate) fn apply_change(
        &mut self,
        change: &ConfigurationChange,
        position: LogPosition,
    ) -> Result<(), String> {
        if position <= self.member.state.configuration_position {
            return Ok(());
        }
        let was_sole = self.is_sole();
        // The first members of a group cannot go through a joint configuration with none.
        let parts: Vec<ConfigurationChange> = if self.member.state.configuration.voters.is_empty() {
            let single = |step| ConfigurationChange { steps: vec![step] };
            change.steps.iter().copied().map(single).collect()
        } else {
            vec![change.clone()]
        };
        let mut state = None;
        for part in &parts {
            match self.node.apply_conf_change(&to_conf_change(part)) {
                Ok(after) => state = Some(after),
                // The same on every member, since they all had the same configuration.
                Err(error) => tracing::warn!(%error, %position, "a change of members is void"),
            }
        }
        let Some(state) = state else {
            return Ok(());
        };
        let configuration = Configuration::from_raft(&state);
        tracing::info!(member = %self.me(), ?configuration, "the members have changed");
        self.node.mut_store().configuration = state;
        self.member
            .save(|state| {
                state.configuration = configuration;
                state.configuration_position = position;
            })
            .map_err(|error| format!("saving the members: {error}"))?;
        if was_sole && !self.is_sole() {
            // From here on others rely on what is written.
            self.writer
                .sync()
                .map_err(|error| format!("syncing the log: {error}"))?;
        }
        let me = self.me();
        self.heard
            .retain(|member, _| self.member.state.configuration.contains(*member) && *member != me);
        Ok(())
    }

    /// An entry that this member proposed was applied: was it the change asked for?
    pub(crate) fn note_change_outcome(&mut self, entry: &Entry) {
        let asked = self.changing.asked.as_ref().map(|(position, _)| *position);
        if asked != Some(entry.position) {
            return;
        }
        match entry.kind {
            EntryKind::Configuration(_) => self.changing.entered = true,
            EntryKind::Data | EntryKind::Noop => {
                if let Some((_, answer)) = self.changing.asked.take() {
                    let _ = answer.send(Err(ChangeError::Busy));
                }
            }
        }
    }

    /// Leaves a joint configuration, answers who asked for a change, and steps down if we
    /// are no voter any more.
    pub(crate) fn pursue_changes(&mut self) {
        let Some(_) = self.leading else {
            return;
        };
        let configuration = &self.member.state.configuration;
        let applied = self.shared.log.applied();
        if configuration.is_joint() {
            let under_way = self
                .changing
                .leaving
                .is_some_and(|leaving| leaving > applied)
                || self.node.raft.has_pending_conf();
            if !under_way && let Ok(position) = self.shared.propose_change(Default::default()) {
                self.changing.leaving = Some(position);
            }
            return;
        }
        if self.changing.entered {
            self.changing.entered = false;
            if let Some((_, answer)) = self.changing.asked.take() {
                let _ = answer.send(Ok(()));
            }
        }
        if !configuration.voters.contains(&self.me()) && self.node.raft.state == StateRole::Leader {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.notice_role();
        }
    }

    pub(crate) fn abandon_changes(&mut self) {
        self.changing.leaving = None;
        self.changing.entered = false;
        if let Some((_, answer)) = self.changing.asked.take() {
            let _ = answer.send(Err(ProposeError::LeadershipLost.into()));
        }
    }

    pub(crate) fn publish_members(&self) {
        if self.is_sole() {
            // Of interest is only what cannot be seen from what is applied.
            let published = self.shared.members.borrow();
            if published.term.get() == self.node.raft.term
                && published.leader.map_or(0, MemberId::get) == self.node.raft.leader_id
                && published.configuration_position == self.member.state.configuration_position
            {
                return;
            }
        }
        let members = self.members();
        self.shared.members.send_if_modified(|published| {
            let changed = **published != members;
            if changed {
                *published = Arc::new(members);
            }
            changed
        });
    }

    pub(crate) fn members(&self) -> Members {
        let me = self.me();
        let raft = &self.node.raft;
        let elected = raft.state == StateRole::Leader;
        let configuration = self.member.state.configuration.clone();
        let mut ids: Vec<MemberId> = configuration.members().collect();
        ids.sort_unstable();
        ids.dedup();
        let progress = ids.into_iter().map(|member| {
            let known = raft.prs().get(member.get()).filter(|_| elected);
            let position = |index: u64| Some(LogPosition::new(index));
            if member == me {
                return MemberProgress {
                    member,
                    matched: Some(self.writer.synced()),
                    committed: position(raft.raft_log.committed),
                    applied: Some(self.shared.log.applied()),
                    ticks_since_contact: Some(0),
                    is_resting: self.is_resting(),
                    snapshot: None,
                    snapshot_parts: None,
                };
            }
            let heard = self.heard.get(&member);
            MemberProgress {
                member,
                matched: known.and_then(|known| position(known.matched)),
                committed: known.and_then(|known| position(known.committed_index)),
                applied: heard.map(|heard| heard.applied),
                ticks_since_contact: heard.map(|heard| self.ticks - heard.tick),
                is_resting: heard.is_some_and(|heard| heard.is_resting),
                snapshot: known
                    .filter(|known| known.pending_snapshot > 0)
                    .and_then(|known| position(known.pending_snapshot)),
                snapshot_parts: self.copy_parts(member),
            }
        });
        Members {
            me,
            term: Term::new(raft.term),
            leader: MemberId::checked(raft.leader_id),
            progress: progress.collect(),
            elections: self.elections,
            configuration_position: self.member.state.configuration_position,
            configuration,
        }
    }
}
