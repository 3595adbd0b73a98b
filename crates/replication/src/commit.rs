//! The loop: gather, write, sync, send, apply, answer. It has a thread of its own, and
//! proposers take turns of it where that is cheaper (`turns.rs`).
//!
//! All proposals that wait are one group: one write, one sync if any of them asks for
//! it, one batch for the state machine. While a group is being synced the next one
//! gathers, so that groups grow with the load by themselves.
//!
//! ```text
//!   packets ─► raft ─┐
//!   queue ═► propose ─► ready: term, vote ─► leader's messages ─► append… ─► write
//!                        ─► sync? ─► follower's messages ─► apply what is committed
//!                        ─► tail, progress ─► answers
//! ```
//!
//! One turn of the loop, in this order: packets (they may end our leadership, and what
//! was proposed in it must then not be written), proposals, requests, then everything
//! that `raft` has to do because of them (`ready.rs`), then what follows from where we
//! stand now: the role (`leadership.rs`), the members (`membership.rs`), copies of the
//! state for those who are too far behind (`copying.rs`).
//!
//! When any step fails the group stops: the answers under way are "outcome unknown",
//! because their entries may be found when the log is opened again.
//!
//! [`Driver`] is the same loop without the thread, one step at a time, for tests and
//! for simulation. Time comes in through [`Driver::tick`] only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use raft::eraftpb::{HardState, MessageType};
use raft::{Config, RaftState, RawNode, ReadOnlyOption};

use crate::append::Writer;
use crate::commit_hint::{CommitHint, CommittedEntry};
use crate::copying::Copying;
use crate::election::{Elections, Standing};
use crate::entry::{LogPosition, Term};
use crate::error::{Error, ProposeError};
use crate::leadership::{Barriers, Transfer};
use crate::member::MemberId;
use crate::member_file::MemberFile;
use crate::membership::Changing;
use crate::message::{Envelope, Packet};
use crate::raft_entry::to_raft;
use crate::raft_store::RaftStore;
use crate::recovery::committed_for_certain;
use crate::sequencer::Shared;
use crate::state_machine::StateMachine;
use crate::transport::Transport;
use crate::work::{Proposal, Request, Work};

/// How much is applied in one batch when there is a lot to catch up with.
pub(crate) const APPLY_BYTES: u64 = 16 << 20;

/// What was last heard from a member.
#[derive(Clone, Copy)]
pub(crate) struct Heard {
    pub tick: u64,
    pub applied: LogPosition,
    pub is_resting: bool,
}

/// Commits what is proposed to a group.
pub struct Driver<S: StateMachine> {
    pub(crate) shared: Arc<Shared<S::Companion>>,
    pub(crate) state: S,
    pub(crate) writer: Writer,
    pub(crate) member: MemberFile,
    pub(crate) node: RawNode<RaftStore>,
    pub(crate) transport: Arc<dyn Transport>,
    work: Work<S::Companion>,
    /// Proposals that were given to `raft`, in the order of their positions.
    pub(crate) in_flight: VecDeque<Proposal<S::Companion>>,
    /// Whether this turn's entries may be applied before their sync, if nobody else has
    /// a copy of the log.
    pub(crate) may_buffer: bool,
    /// The term in which proposals are accepted.
    pub(crate) leading: Option<Term>,
    pub(crate) applied_term: Term,
    pub(crate) barriers: Barriers,
    pub(crate) transfer: Option<Transfer>,
    pub(crate) changing: Changing,
    pub(crate) copying: Copying,
    /// Whether parts of copies are read on threads of their own.
    pub(crate) reads_apart: bool,
    pub(crate) ticks: u64,
    pub(crate) heard: BTreeMap<MemberId, Heard>,
    pub(crate) standing: Standing,
    pub(crate) elections: Elections,
    hint: CommitHint,
    finished: bool,
}

impl<S: StateMachine> Driver<S> {
    pub(crate) fn new(
        shared: Arc<Shared<S::Companion>>,
        state: S,
        writer: Writer,
        member: MemberFile,
        transport: Arc<dyn Transport>,
    ) -> Result<Self, Error> {
        let log = shared.log.clone();
        let applied = state.applied();
        let applied_term = log.term_at(applied).unwrap_or(Term::new(0));
        let hint = CommitHint::open(&log);
        let node = new_node(&log, &member, applied, hint.believed(&log))?;
        Ok(Self {
            shared,
            state,
            writer,
            member,
            node,
            transport,
            work: Work::default(),
            in_flight: VecDeque::new(),
            may_buffer: false,
            leading: None,
            applied_term,
            barriers: Barriers::default(),
            transfer: None,
            changing: Changing::default(),
            copying: Copying::default(),
            reads_apart: false,
            ticks: 0,
            heard: BTreeMap::new(),
            standing: Standing::default(),
            elections: Elections::default(),
            hint,
            finished: false,
        })
    }

    pub(crate) fn me(&self) -> MemberId {
        self.shared.log.options.member
    }

    /// Whether nobody else has a copy of the log.
    pub(crate) fn is_sole(&self) -> bool {
        self.member.state.configuration.is_sole(self.me())
    }

    /// A sole voter need not wait for anybody: it elects itself and applies the rest of
    /// its log. Others wait for time to pass.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        let alone = self.member.state.configuration.voters == [self.me()]
            && !self.member.state.configuration.is_joint();
        self.offer_copy();
        // First the members that the group began with, which nobody votes about.
        self.turn(|_| Ok(()));
        if alone {
            self.turn(|driver| {
                driver.campaign();
                Ok(())
            });
        }
        match self.shared.log.stop_reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Stopped {
                reason: reason.clone(),
            }),
        }
    }

    /// Whether time matters: a sole member that leads waits for nobody. One that was told
    /// to rest must notice when its time is over.
    pub(crate) fn is_ticking(&self) -> bool {
        !self.is_sole() || self.leading.is_none()
    }

    /// When what was only buffered must be synced.
    pub(crate) fn sync_due(&self) -> Option<Instant> {
        self.writer.sync_due()
    }

    /// Does what waits if it is small and nothing of it would have to wait for a disk, for
    /// others, or for the state machine. False if nothing was done.
    pub(crate) fn step_at_once(&mut self, bytes_max: usize) -> bool {
        let due = self.sync_due();
        if self.is_ticking()
            || due.is_some_and(|due| due <= Instant::now())
            || !self.state.applies_at_once()
        {
            return false;
        }
        // What entries take in the log beyond their payloads is far less than as much again.
        let bytes_max = bytes_max.min(self.writer.room_bytes() / 2);
        let work = self.shared.take_small(bytes_max, &mut self.work);
        if work {
            self.do_work();
        }
        if due.is_none() && self.sync_due().is_some() {
            self.shared.deadline_changed();
        }
        work
    }

    /// Does everything that waits, as one group. False if nothing did.
    pub fn step(&mut self) -> bool {
        let work = self.shared.take(&mut self.work);
        if work {
            self.do_work();
        }
        work
    }

    /// One tick of time passes.
    pub fn tick(&mut self) {
        self.ticks += 1;
        let options = &self.shared.log.options;
        if let Some(seed) = options.election_seed {
            let (low, high) = election_range(options.election_ticks);
            // By term, so that two members that collide do not do so again.
            let mixed = mix(seed ^ mix(self.me().get()) ^ mix(self.node.raft.term << 8));
            let timeout = low + (mixed % (high - low) as u64) as usize;
            self.node.raft.set_randomized_election_timeout(timeout);
        }
        self.turn(|driver| {
            driver.pursue_succession();
            if driver.node.raft.state == raft::StateRole::Leader || driver.may_stand() {
                driver.node.tick();
            } else {
                // It goes on to notice that nobody leads, so that it votes for another.
                driver.node.raft.election_elapsed += 1;
            }
            driver.pursue_copies();
            driver.discard_copies();
            Ok(())
        });
        self.hint_at_commit();
    }

    /// Notes how far the log is committed, for when this member starts and is alone.
    fn hint_at_commit(&mut self) {
        let log = &self.shared.log;
        if self.is_sole() || log.stop_reason.get().is_some() {
            return;
        }
        let mut committed = CommittedEntry {
            position: log.applied(),
            term: self.applied_term,
            time: log.progress.borrow().time,
        };
        if log.options.faults.hint_appended {
            committed.position = self.writer.last();
            committed.term = log.term_at(committed.position).unwrap_or(Term::new(0));
            committed.time = self.writer.last_time();
        }
        // Where the log begins with a copy of a state, nothing of it was applied from the log.
        if committed.position >= log.unbroken_first() {
            self.hint.say(&*log.disk, committed);
        }
    }

    /// Makes buffered writes stable, as the loop does when their time has come.
    pub fn sync(&mut self) {
        if self.shared.log.stop_reason.get().is_some() {
            return;
        }
        if let Err(error) = self.writer.sync() {
            self.fail(&format!("syncing the log: {error}"));
        }
    }

    /// Finishes what is queued, syncs the log, and ends.
    pub fn close(mut self) -> Result<(), Error> {
        self.shared.begin_close();
        self.step();
        self.finish()
    }

    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.sync();
        self.hint_at_commit();
        self.hint.sync(&*self.shared.log.disk);
        self.finished = true;
        self.abandon("it was closed");
        self.shared.end();
        match self.shared.log.stop_reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Stopped {
                reason: reason.clone(),
            }),
        }
    }

    fn do_work(&mut self) {
        let work = std::mem::take(&mut self.work);
        self.turn(move |driver| {
            for envelope in work.packets {
                driver.receive(envelope)?;
            }
            driver.notice_loss();
            driver.may_buffer = !work.batch.proposals.is_empty() && !work.batch.needs_sync;
            driver.propose(work.batch.proposals);
            for request in work.requests {
                driver.request(request);
            }
            Ok(())
        });
    }

    /// One turn: something happens, then all that follows from it.
    fn turn(&mut self, happens: impl FnOnce(&mut Self) -> Result<(), String>) {
        // The maintenance may have stopped the group meanwhile.
        let stopped = self.shared.log.stop_reason.get().cloned();
        let outcome = match stopped {
            Some(reason) => Err(reason.to_string()),
            None => happens(self).and_then(|()| self.settle()),
        };
        self.may_buffer = false;
        if let Err(reason) = outcome {
            self.fail(&reason);
        }
    }

    /// Does what `raft` has to do until there is nothing left.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            while self.node.has_ready() {
                self.handle_ready()?;
            }
            self.notice_role();
            self.pursue_changes();
            self.begin_copies();
            if !self.node.has_ready() {
                break;
            }
        }
        self.answer_barriers();
        self.publish_members();
        Ok(())
    }

    /// Stops the group for good.
    fn fail(&mut self, reason: &str) {
        self.shared.stop(reason);
        let reason = self.shared.stop_reason();
        self.abandon(&reason);
    }

    /// Nobody hears from this loop again.
    fn abandon(&mut self, reason: &str) {
        let reason: Arc<str> = Arc::from(reason);
        let mut unanswered: Vec<_> = self.in_flight.drain(..).collect();
        unanswered.append(&mut self.work.batch.proposals);
        for proposal in unanswered {
            proposal.answer(Err(ProposeError::OutcomeUnknown {
                reason: reason.clone(),
            }));
        }
        self.barriers = Barriers::default();
        self.transfer = None;
        self.changing = Changing::default();
        self.copying = Copying::default();
    }

    /// Gives proposals to `raft`, which must still lead in their term.
    pub(crate) fn propose(&mut self, proposals: Vec<Proposal<S::Companion>>) {
        let Some(first) = proposals.first() else {
            return;
        };
        if self.leading != Some(first.entry.term) {
            return self.refuse(proposals);
        }
        assert_eq!(
            first.entry.position.get(),
            self.node.raft.raft_log.last_index() + 1,
            "proposals come in the order in which they were given positions"
        );
        let mut message = raft::eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.me().get();
        let entries: Vec<_> = proposals
            .iter()
            .map(|proposal| to_raft(&proposal.entry))
            .collect();
        message.set_entries(entries.into());
        match self.node.raft.step(message) {
            Ok(()) => self.in_flight.extend(proposals),
            Err(error) => {
                // Positions were given that are not used: leadership begins anew.
                tracing::warn!(%error, "proposals were dropped");
                self.lose();
                self.refuse(proposals);
            }
        }
    }

    fn refuse(&mut self, proposals: Vec<Proposal<S::Companion>>) {
        let leader = MemberId::checked(self.node.raft.leader_id).filter(|id| *id != self.me());
        for proposal in proposals {
            proposal.answer(Err(ProposeError::NotLeader { leader }));
        }
    }

    fn receive(&mut self, envelope: Envelope) -> Result<(), String> {
        let from = envelope.from.member;
        let known = self.heard.get(&from).map(|heard| heard.applied);
        let heard = Heard {
            tick: self.ticks,
            // Packets overtake each other.
            applied: envelope.from.applied.max(known.unwrap_or_default()),
            is_resting: envelope.from.is_resting,
        };
        self.heard.insert(from, heard);
        match envelope.packet {
            Packet::Raft(message) => {
                let raft = &self.node.raft;
                // The leader knows of acknowledgements that this member cannot have made
                // with the log that it has now.
                if message.get_msg_type() == MessageType::MsgHeartbeat
                    && message.term >= raft.term
                    && message.commit > raft.raft_log.last_index()
                {
                    return Err(format!(
                        "the log ends at {}, but member {} says that it once reached {}",
                        raft.raft_log.last_index(),
                        from,
                        message.commit
                    ));
                }
                if let MessageType::MsgRequestPreVote | MessageType::MsgRequestVote =
                    message.get_msg_type()
                {
                    self.consider_caretaking(from, &message);
                }
                if message.get_msg_type() == MessageType::MsgTimeoutNow {
                    if !self.may_stand() {
                        return Ok(());
                    }
                    self.standing.called_by = Some(from);
                }
                if let Err(error) = self.node.step(message) {
                    tracing::debug!(%error, %from, "a message was not heeded");
                }
            }
            Packet::Part(part) => self.receive_part(from, part)?,
            Packet::PartAnswer(answer) => self.receive_part_answer(from, answer),
        }
        Ok(())
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Barrier(answer) => self.begin_barrier(answer),
            Request::Transfer { to, answer } => self.begin_transfer(to, answer),
            Request::Change {
                voters,
                learners,
                answer,
            } => self.begin_change(&voters, &learners, answer),
            Request::Unreachable(member) => self.node.report_unreachable(member.get()),
            Request::Gone(member) => {
                self.node.report_unreachable(member.get());
                self.succeed(member);
            }
            Request::Campaign => self.campaign(),
            Request::Rest { ticks } => self.rest(ticks),
            Request::StepDown(answer) => self.step_down(answer),
            Request::PartRead {
                to,
                position,
                parts,
                next,
            } => self.part_read(to, position, parts, next),
            Request::CopyResumed { copy, resumed } => self.copy_resumed(copy, resumed),
        }
    }

    pub(crate) fn campaign(&mut self) {
        // `raft` checks it only for elections that it begins by itself.
        if !self.may_stand() || !self.node.raft.promotable() {
            return;
        }
        if let Err(error) = self.node.campaign() {
            tracing::debug!(%error, "no election was begun");
        }
    }
}

/// Least and (excluded) greatest election timeout.
fn election_range(election_ticks: usize) -> (usize, usize) {
    (election_ticks, election_ticks + (election_ticks / 2).max(2))
}

/// A number that shares nothing with its neighbours (SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn new_node(
    log: &Arc<crate::log_state::LogState>,
    member: &MemberFile,
    applied: LogPosition,
    hinted: Option<LogPosition>,
) -> Result<RawNode<RaftStore>, Error> {
    let options = &log.options;
    let (low, high) = election_range(options.election_ticks);
    let config = Config {
        id: options.member.get(),
        election_tick: options.election_ticks,
        heartbeat_tick: options.heartbeat_ticks,
        min_election_tick: low,
        max_election_tick: high,
        applied: applied.get(),
        max_size_per_msg: options.message_bytes_max,
        max_inflight_msgs: 256,
        check_quorum: true,
        pre_vote: true,
        read_only_option: ReadOnlyOption::Safe,
        max_committed_size_per_ready: APPLY_BYTES,
        ..Config::default()
    };
    let state = &member.state;
    let configuration = state.configuration.to_raft();
    // What is applied is committed, and so is what comes before the log, and what was committed before the
    // restart. The members that a group begins with are agreed upon beforehand.
    let agreed = u64::from(state.configuration_position > LogPosition::BEFORE_FIRST);
    let commit = committed_for_certain(log, state, applied)?
        .get()
        .max(hinted.map_or(0, LogPosition::get))
        .max(log.unbroken_first().previous().get())
        .max(agreed.min(log.appended().get()));
    let hard_state = HardState {
        term: state.term.get(),
        vote: state.vote.map_or(0, MemberId::get),
        commit,
        ..HardState::default()
    };
    let store = RaftStore {
        log: log.clone(),
        initial: RaftState {
            hard_state,
            conf_state: configuration.clone(),
        },
        copyable: None,
        configuration,
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, store, &logger).map_err(|error| Error::Corrupt {
        file: crate::member_file::MEMBER_FILE.to_owned(),
        detail: error.to_string(),
    })
}

/// A loop that ends in any other way than by closing (a panic of the state machine, a
/// driver that was dropped) must not leave proposers waiting.
impl<S: StateMachine> Drop for Driver<S> {
    fn drop(&mut self) {
        if !self.finished {
            self.fail("the log's loop has ended unexpectedly");
        }
    }
}
