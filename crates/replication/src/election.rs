//! Standing for election: who may, and what is remembered of the elections that were held.
//!
//! ```text
//!   resting                     votes, but never asks for votes, and is handed nothing
//!   priority 0                  the same, except as a caretaker (below)
//!   otherwise                   asks for votes when nobody leads, or when the leader hands over
//! ```
//!
//! Priorities belong to the state ([`StateMachine::priority`]): they change where the entry that
//! changes them is applied. They never decide who may be elected by whom, only who asks. A leader
//! hands over to a member with a greater priority when it is told to ([`crate::Group::transfer`]).
//!
//! A member with priority 0 may have entries that those lack who are wanted; then it cannot vote
//! for them, and nobody could be elected. When it has to refuse one of them for that reason it
//! stands itself, as a *caretaker*: it leads until the others have what they lack, and hands over.
//! Without somebody wanted who asks for votes it never stands.
//!
//! A member that rests was told so, for a time that its own ticks measure.
//!
//! Whoever follows a leader and hears that its process has ended ([`crate::Group::gone`]) does not wait for
//! an election timeout: it follows nobody any more, so that it votes for others, and asks for votes itself
//! soon. They take turns, so that they do not ask at the same time: the most wanted one at the next tick,
//! the next one two ticks later, and so on. It is a matter of time only. If the word is wrong, those who
//! still hear the leader refuse (pre-vote), and its next heartbeat is obeyed as ever.

use std::sync::atomic::Ordering;

use model::time::ClusterTime;
use raft::StateRole;
use raft::eraftpb::Message;

use crate::commit::Driver;
use crate::entry::Term;
use crate::member::MemberId;
use crate::state_machine::StateMachine;

/// Why a member asked for votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionReason {
    /// Nobody led for too long.
    Timeout,
    /// A leader with a smaller priority handed over.
    PriorityTakeover,
    /// A leader handed over for another reason.
    HandedOver,
}

/// The end of a log at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub time: ClusterTime,
    pub term: Term,
}

/// The election by which this member leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WonElection {
    pub term: Term,
    pub reason: ElectionReason,
    pub wall_ms: i64,
    pub committed: Seen,
    pub last: Seen,
    pub votes_needed: usize,
    pub prior_leader: Option<MemberId>,
    /// When it had applied an entry of the term.
    pub began_wall_ms: Option<i64>,
}

/// The last vote that this member gave to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastVote {
    pub term: Term,
    pub candidate: MemberId,
    pub wall_ms: i64,
    pub applied: Seen,
    /// When it had applied an entry of that term.
    pub began_wall_ms: Option<i64>,
}

/// So many elections were called for a reason, and so many of them won.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionCount {
    pub called: u64,
    pub won: u64,
}

/// What a member remembers of elections, since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elections {
    pub won: Option<WonElection>,
    pub voted: Option<CastVote>,
    pub after_timeout: ElectionCount,
    pub after_takeover: ElectionCount,
    pub after_hand_over: ElectionCount,
    /// How often it led no longer because others were in a later term.
    pub lost_to_later_term: u64,
}

impl Elections {
    fn count(&mut self, reason: ElectionReason) -> &mut ElectionCount {
        match reason {
            ElectionReason::Timeout => &mut self.after_timeout,
            ElectionReason::PriorityTakeover => &mut self.after_takeover,
            ElectionReason::HandedOver => &mut self.after_hand_over,
        }
    }

    /// An entry of a new term was applied.
    pub(crate) fn term_began(&mut self, term: Term, wall_ms: i64) {
        if let Some(won) = &mut self.won
            && won.term == term
        {
            won.began_wall_ms = Some(wall_ms);
        }
        if let Some(voted) = &mut self.voted
            && voted.term == term
        {
            voted.began_wall_ms = Some(wall_ms);
        }
    }
}

/// What a member needs for it.
#[derive(Default)]
pub(crate) struct Standing {
    /// It does not ask for votes before this tick.
    pub rests_until: u64,
    /// It stands for others before this tick, though it is not wanted itself.
    caretaker_until: u64,
    /// The leader that handed over to it.
    pub called_by: Option<MemberId>,
    /// Who led last, other than this member.
    pub last_leader: Option<MemberId>,
    /// Whether it was seen to ask for votes, or to have them.
    is_candidate: bool,
    succession: Option<Succession>,
}

/// The leader of a term is gone: at this tick it is this member's turn to ask for votes.
struct Succession {
    term: Term,
    due: u64,
}

/// Time for one election, before the next member asks for votes.
const TURN_TICKS: u64 = 2;

impl<S: StateMachine> Driver<S> {
    pub(crate) fn is_resting(&self) -> bool {
        self.ticks < self.standing.rests_until || self.shared.rest_pending.load(Ordering::SeqCst)
    }

    /// Whether it may ask for votes now.
    pub(crate) fn may_stand(&self) -> bool {
        let is_wanted = self.state.priority(self.me()) > 0;
        !self.is_resting() && (is_wanted || self.ticks < self.standing.caretaker_until)
    }

    /// Another asks for a vote: if it is wanted, and lacks what only this one may bring it.
    pub(crate) fn consider_caretaking(&mut self, from: MemberId, request: &Message) {
        let raft = &self.node.raft;
        let own = (raft.raft_log.last_term(), raft.raft_log.last_index());
        let has_more = own > (request.log_term, request.index);
        let is_wanted = self.state.priority(from) > 0;
        let ticks = self.shared.log.options.election_ticks;
        // Nobody is elected against a leader that was heard of lately.
        let is_led = raft.leader_id != raft::INVALID_ID && raft.election_elapsed < ticks;
        if has_more && is_wanted && !is_led {
            self.standing.caretaker_until = self.ticks + 2 * ticks as u64;
        }
    }

    /// A member's process has ended. If it led, this member follows it no longer.
    pub(crate) fn succeed(&mut self, gone: MemberId) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Follower || raft.leader_id != gone.get() {
            return;
        }
        let term = raft.term;
        raft.become_follower(term, raft::INVALID_ID);
        let me = self.me();
        let rank = |member: MemberId| (self.state.priority(member), std::cmp::Reverse(member));
        let configuration = &self.member.state.configuration;
        let before = (configuration.voters.iter())
            .filter(|voter| **voter != gone && rank(**voter) > rank(me))
            .count();
        tracing::info!(member = %me, leader = %gone, "the leader is gone");
        self.standing.succession = Some(Succession {
            term: Term::new(term),
            due: self.ticks + 1 + TURN_TICKS * before as u64,
        });
    }

    /// Asks for votes when it is this member's turn, unless somebody leads or is about to.
    pub(crate) fn pursue_succession(&mut self) {
        let is_due = |succession: &mut Succession| succession.due <= self.ticks;
        let Some(succession) = self.standing.succession.take_if(is_due) else {
            return;
        };
        let raft = &self.node.raft;
        if raft.state == StateRole::Follower
            && raft.leader_id == raft::INVALID_ID
            && Term::new(raft.term) == succession.term
        {
            self.campaign();
        }
    }

    /// Zero ends the rest.
    pub(crate) fn rest(&mut self, ticks: u64) {
        self.standing.rests_until = self.ticks.saturating_add(ticks);
        if ticks == 0 {
            self.standing.rests_until = 0;
        }
        self.shared.rest_pending.store(false, Ordering::SeqCst);
    }

    fn reason(&self) -> ElectionReason {
        match self.standing.called_by {
            None => ElectionReason::Timeout,
            Some(by) if self.state.priority(self.me()) > self.state.priority(by) => {
                ElectionReason::PriorityTakeover
            }
            Some(_) => ElectionReason::HandedOver,
        }
    }

    /// Notes what became of elections. To be called when the role may have changed.
    pub(crate) fn note_elections(&mut self) {
        let state = self.node.raft.state;
        let is_candidate = state != StateRole::Follower;
        if is_candidate && !self.standing.is_candidate {
            let reason = self.reason();
            self.elections.count(reason).called += 1;
        }
        self.standing.is_candidate = is_candidate;
        let term = Term::new(self.node.raft.term);
        match state {
            StateRole::Leader if self.elections.won.is_none_or(|won| won.term != term) => {
                self.note_won(term);
            }
            StateRole::Leader | StateRole::Candidate | StateRole::PreCandidate => {}
            StateRole::Follower => {
                self.elections.won = None;
                let leader = MemberId::checked(self.node.raft.leader_id);
                if let Some(leader) = leader.filter(|leader| *leader != self.me()) {
                    if self.standing.last_leader != Some(leader) {
                        self.standing.called_by = None;
                    }
                    self.standing.last_leader = Some(leader);
                }
            }
        }
    }

    fn note_won(&mut self, term: Term) {
        let log = &self.shared.log;
        let reason = self.reason();
        // The term's first entry has the time of the one before it.
        let before =
            crate::entry::LogPosition::new(self.node.raft.raft_log.last_index()).previous();
        let won = WonElection {
            term,
            reason,
            wall_ms: log.wall.now_ms(),
            committed: self.applied_seen(),
            last: Seen {
                time: self.writer.last_time(),
                term: log.term_at(before).unwrap_or(self.applied_term),
            },
            votes_needed: self.member.state.configuration.voters.len() / 2 + 1,
            prior_leader: self.standing.last_leader,
            began_wall_ms: (self.applied_term == term).then(|| log.wall.now_ms()),
        };
        self.elections.won = Some(won);
        self.elections.count(reason).won += 1;
        self.standing.called_by = None;
    }

    /// A vote for another member was made stable.
    pub(crate) fn note_vote(&mut self, term: Term, candidate: MemberId) {
        self.elections.voted = Some(CastVote {
            term,
            candidate,
            wall_ms: self.shared.log.wall.now_ms(),
            applied: self.applied_seen(),
            began_wall_ms: None,
        });
    }

    fn applied_seen(&self) -> Seen {
        Seen {
            time: self.shared.log.progress.borrow().time,
            term: self.applied_term,
        }
    }
}
