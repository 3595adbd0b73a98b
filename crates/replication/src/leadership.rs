//! Winning, losing, confirming and handing over leadership.
//!
//! ```text
//!   elected ─► first entry of the term applied ─► the state machine is told
//!           ─► proposals are accepted ─► the role says Leader
//!
//!   lost ─► proposals are refused ─► the state machine is told (it forgets what was only
//!           proposed) ─► the role says so ─► proposers under way: leadership lost
//! ```
//!
//! ⚑ A leader serves only after it has applied an entry of its own term. Until then it
//! may not know that entries of earlier terms are committed, and would serve a past
//! that others have left behind.
//!
//! ⚑ A read barrier asks a majority, never a clock: a leader that was paused does not
//! know how long.

use raft::{ReadState, StateRole};
use tokio::sync::oneshot;

use crate::commit::Driver;
use crate::entry::{LogPosition, Term};
use crate::error::{LeaderError, ProposeError};
use crate::member::{MemberId, Role};
use crate::state_machine::StateMachine;
use std::collections::BTreeMap;

/// Who is at most so many entries behind has them in a moment.
const CLOSE_ENTRIES: u64 = 1000;

type BarrierAnswer = oneshot::Sender<Result<LogPosition, LeaderError>>;

/// Who waits for leadership to be confirmed.
#[derive(Default)]
pub(crate) struct Barriers {
    number: u64,
    asked: BTreeMap<u64, BarrierAnswer>,
    /// Confirmed, to be answered when this position is applied.
    confirmed: Vec<(LogPosition, BarrierAnswer)>,
}

/// Leadership that is being handed over.
pub(crate) struct Transfer {
    answer: oneshot::Sender<Result<(), LeaderError>>,
}

impl<S: StateMachine> Driver<S> {
    fn is_elected(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn term(&self) -> Term {
        Term::new(self.node.raft.term)
    }

    fn other_leader(&self) -> Option<MemberId> {
        MemberId::checked(self.node.raft.leader_id).filter(|leader| *leader != self.me())
    }

    /// Ends what must not go on if we lead no longer. To be called before anything is
    /// proposed.
    pub(crate) fn notice_loss(&mut self) {
        if let Some(term) = self.leading
            && (!self.is_elected() || term != self.term())
        {
            self.lose();
        }
    }

    /// Compares what `raft` says with what is served. To be called when everything that
    /// `raft` wanted has been done.
    pub(crate) fn notice_role(&mut self) {
        self.notice_loss();
        self.note_elections();
        self.notice_transfer();
        let faults = self.shared.log.options.faults;
        if self.is_elected()
            && self.leading.is_none()
            && self.node.raft.lead_transferee.is_none()
            && (self.applied_term == self.term() || faults.lead_at_once)
        {
            self.gain();
        }
        self.publish_role();
    }

    fn role(&self) -> Role {
        let term = self.term();
        match (self.leading, self.node.raft.state) {
            (Some(term), _) => Role::Leader { term },
            (None, StateRole::Follower) => Role::Follower {
                term,
                leader: self.other_leader(),
            },
            (None, StateRole::Candidate | StateRole::PreCandidate | StateRole::Leader) => {
                Role::Candidate { term }
            }
        }
    }

    fn publish_role(&self) {
        let role = self.role();
        let changed = self.shared.role.send_if_modified(|published| {
            let changed = *published != role && *published != Role::Gone;
            if changed {
                *published = role;
            }
            changed
        });
        if changed {
            self.shared.note_leader(self.other_leader());
        }
    }

    fn gain(&mut self) {
        let term = self.term();
        self.leading = Some(term);
        self.state.role_changed(Role::Leader { term });
        let last = LogPosition::new(self.node.raft.raft_log.last_index());
        assert_eq!(last, self.writer.last(), "everything of raft's was written");
        self.shared.lead(term, last, self.writer.last_time());
        tracing::info!(member = %self.me(), term = term.get(), "leads");
    }

    pub(crate) fn lose(&mut self) {
        if self.leading.is_some_and(|term| term < self.term()) {
            self.elections.lost_to_later_term += 1;
        }
        let leader = self.other_leader();
        let last = LogPosition::new(self.node.raft.raft_log.last_index());
        let queued = self.shared.follow(leader, last);
        self.leading = None;
        self.state.role_changed(self.role());
        self.publish_role();
        tracing::info!(member = %self.me(), term = self.term().get(), "leads no longer");
        for proposal in self.in_flight.drain(..) {
            proposal.answer(Err(ProposeError::LeadershipLost));
        }
        for proposal in queued {
            proposal.answer(Err(ProposeError::NotLeader { leader }));
        }
        let barriers = std::mem::take(&mut self.barriers);
        let waiting = barriers.asked.into_values();
        for answer in waiting.chain(barriers.confirmed.into_iter().map(|(_, answer)| answer)) {
            let _ = answer.send(Err(LeaderError::NotLeader { leader }));
        }
        // Numbers are not used again, so that a late answer is not taken for a new one.
        self.barriers.number = barriers.number;
        self.abandon_changes();
        if let Some(transfer) = self.transfer.take() {
            let _ = transfer.answer.send(Ok(()));
        }
    }

    pub(crate) fn begin_barrier(&mut self, answer: BarrierAnswer) {
        if self.leading.is_none() {
            let leader = self.other_leader();
            let _ = answer.send(Err(LeaderError::NotLeader { leader }));
            return;
        }
        if self.shared.log.options.faults.barrier_without_quorum {
            let _ = answer.send(Ok(self.shared.log.applied()));
            return;
        }
        self.barriers.number += 1;
        let number = self.barriers.number;
        self.barriers.asked.insert(number, answer);
        self.node.read_index(number.to_le_bytes().to_vec());
    }

    pub(crate) fn confirm_barriers(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Ok(number) = state.request_ctx.as_slice().try_into() else {
                continue;
            };
            let number = u64::from_le_bytes(number);
            if let Some(answer) = self.barriers.asked.remove(&number) {
                let position = LogPosition::new(state.index);
                self.barriers.confirmed.push((position, answer));
            }
        }
    }

    pub(crate) fn answer_barriers(&mut self) {
        if self.barriers.confirmed.is_empty() {
            return;
        }
        let applied = self.shared.log.applied();
        for (position, answer) in std::mem::take(&mut self.barriers.confirmed) {
            if position <= applied {
                let _ = answer.send(Ok(position));
            } else {
                self.barriers.confirmed.push((position, answer));
            }
        }
    }

    pub(crate) fn begin_transfer(
        &mut self,
        to: Option<MemberId>,
        answer: oneshot::Sender<Result<(), LeaderError>>,
    ) {
        if self.leading.is_none() || self.transfer.is_some() {
            let leader = self.other_leader();
            let _ = answer.send(Err(LeaderError::NotLeader { leader }));
            return;
        }
        let voters = &self.member.state.configuration.voters;
        let to = match to {
            Some(to) if to == self.me() => {
                let _ = answer.send(Ok(()));
                return;
            }
            Some(to) if !voters.contains(&to) || self.state.priority(to) == 0 => {
                let _ = answer.send(Err(LeaderError::NotAVoter(to)));
                return;
            }
            Some(to) => to,
            None => match self.best_successor() {
                Some(to) => to,
                None => {
                    let _ = answer.send(Err(LeaderError::Nobody));
                    return;
                }
            },
        };
        // What was given a position is proposed first; after that nothing is given one.
        self.shared.set_handing_over(true);
        let queued = self.shared.take_batch();
        self.propose(queued);
        self.node.transfer_leader(to.get());
        self.transfer = Some(Transfer { answer });
    }

    /// Follows, whoever may lead next.
    pub(crate) fn step_down(&mut self, answer: oneshot::Sender<Result<(), LeaderError>>) {
        let outcome = match self.leading {
            None => Err(LeaderError::NotLeader {
                leader: self.other_leader(),
            }),
            Some(_) => {
                let term = self.node.raft.term;
                self.node.raft.become_follower(term, raft::INVALID_ID);
                self.notice_role();
                Ok(())
            }
        };
        let _ = answer.send(outcome);
    }

    /// Of the voters that were heard of lately and may lead: the one that is most wanted among
    /// those that are close behind, else the one that has most of the log.
    fn best_successor(&self) -> Option<MemberId> {
        let voters = &self.member.state.configuration.voters;
        let last = self.node.raft.raft_log.last_index();
        let rests = |voter: &MemberId| {
            let heard = self.heard.get(voter);
            heard.is_some_and(|heard| heard.is_resting)
        };
        voters
            .iter()
            .filter(|voter| **voter != self.me())
            .filter_map(|voter| Some((*voter, self.node.raft.prs().get(voter.get())?)))
            .filter(|(_, progress)| progress.recent_active)
            .filter(|(voter, _)| self.state.priority(*voter) > 0 && !rests(voter))
            .max_by_key(|(voter, progress)| {
                let is_close = progress.matched + CLOSE_ENTRIES >= last;
                let priority = self.state.priority(*voter);
                let wanted = if is_close { priority } else { 0 };
                (wanted, progress.matched, std::cmp::Reverse(*voter))
            })
            .map(|(voter, _)| voter)
    }

    /// `raft` gives up a transfer after an election timeout.
    fn notice_transfer(&mut self) {
        if self.leading.is_some()
            && self.node.raft.lead_transferee.is_none()
            && let Some(transfer) = self.transfer.take()
        {
            self.shared.set_handing_over(false);
            let _ = transfer.answer.send(Err(LeaderError::TimedOut));
        }
    }
}
