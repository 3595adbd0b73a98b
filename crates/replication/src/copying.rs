//! Copying the state to a member that is too far behind for the log, or is new and too
//! late for it, while everything goes on.
//!
//! ```text
//!   leader                                    receiver
//!   raft: the log does not reach back ─► open the state as of P
//!   part 0 ──────────────────────────────────► begin to take over
//!           ◄──────────────────────── wants 1
//!   part 1 ──────────────────────────────────► …
//!           ◄──────────────────────── wants n
//!   last part ───────────────────────────────► raft: install P; see `install.rs`
//!           ◄──────────────────────── wants n + 1
//!   raft: go on behind P
//! ```
//!
//! One part at a time is on its way to a member. A part that is not answered is sent again
//! after a while, so that a copy goes on after the network was away. If the receiver has
//! lost what it had (it was restarted), or the leader has changed, the copy begins anew
//! with a state of that moment.
//!
//! Nothing that the receiver has is touched before all of the copy is there: its log may
//! be what makes a majority.
//!
//! What it leaves out: continuing a copy over a restart of the receiver. Parts are read on
//! the log's thread, so they are small.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::time::ClusterTime;
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{SnapshotStatus, StateRole};

use crate::append::Writer;
use crate::commit::Driver;
use crate::entry::{Applied, LogPosition, Term};
use crate::install::begin_after_installed;
use crate::member::{Configuration, MemberId, Role};
use crate::message::{Part, PartAnswer, encode_part, encode_part_answer};
use crate::state_machine::{StateInstall, StateMachine, StateParts};

/// How much of the state one packet carries.
const PART_BYTES: usize = 256 << 10;

/// A copy on its way to a member.
struct Copy {
    parts: Box<dyn StateParts>,
    /// The part that is on its way.
    part: Part,
    sent_tick: u64,
    /// How often it was sent without an answer.
    attempts: u64,
}

/// A copy that is being received.
struct Receiving {
    from: MemberId,
    leader_term: Term,
    position: LogPosition,
    wanted: u64,
    install: Box<dyn StateInstall>,
}

/// A copy that is complete and waits for `raft` to agree.
struct Complete {
    position: LogPosition,
    term: Term,
    time: ClusterTime,
    configuration: Configuration,
    install: Box<dyn StateInstall>,
}

#[derive(Default)]
pub(crate) struct Copying {
    /// Members that `raft` wants to have a copy.
    pub wanted: Vec<MemberId>,
    sending: BTreeMap<MemberId, Copy>,
    receiving: Option<Receiving>,
    complete: Option<Complete>,
}

impl<S: StateMachine> Driver<S> {
    /// `raft` may ask for a copy of what is applied now.
    pub(crate) fn offer_copy(&mut self) {
        if self.state.can_be_copied() {
            let applied = (self.shared.log.applied(), self.applied_term);
            self.node.mut_store().copyable = Some(applied);
        }
    }

    /// Begins the copies that `raft` asked for.
    pub(crate) fn begin_copies(&mut self) {
        for to in std::mem::take(&mut self.copying.wanted) {
            self.begin_copy(to);
        }
    }

    fn begin_copy(&mut self, to: MemberId) {
        let position = self.shared.log.applied();
        let opened = self.state.open_copy();
        let mut parts = match opened {
            Ok(parts) => parts,
            Err(error) => {
                tracing::warn!(%error, %to, "the state cannot be copied");
                self.node.report_snapshot(to.get(), SnapshotStatus::Failure);
                return;
            }
        };
        tracing::info!(%to, %position, "copying the state");
        let first = match parts.next_part(PART_BYTES) {
            Ok(first) => first,
            Err(error) => return self.end_copy(to, Err(error.to_string())),
        };
        let (body, is_last) = match first {
            Some(body) => (Bytes::from(body), false),
            None => (Bytes::new(), true),
        };
        let part = Part {
            leader_term: Term::new(self.node.raft.term),
            position,
            term: self.applied_term,
            time: self.state.applied_time().unwrap_or(ClusterTime::ZERO),
            configuration: self.member.state.configuration.clone(),
            number: 0,
            is_last,
            body,
        };
        let copy = Copy {
            parts,
            part,
            sent_tick: self.ticks,
            attempts: 0,
        };
        self.copying.sending.insert(to, copy);
        self.send_part(to);
    }

    fn send_part(&mut self, to: MemberId) {
        let sender = self.sender();
        let Some(copy) = self.copying.sending.get_mut(&to) else {
            return;
        };
        copy.sent_tick = self.ticks;
        copy.attempts += 1;
        let packet = encode_part(&sender, to, &copy.part);
        self.transport.send(to, packet);
    }

    fn end_copy(&mut self, to: MemberId, outcome: Result<(), String>) {
        self.copying.sending.remove(&to);
        let status = match outcome {
            Ok(()) => SnapshotStatus::Finish,
            Err(reason) => {
                tracing::warn!(%to, reason, "a copy of the state was given up");
                SnapshotStatus::Failure
            }
        };
        self.node.report_snapshot(to.get(), status);
    }

    pub(crate) fn receive_part_answer(&mut self, from: MemberId, answer: PartAnswer) {
        let term = Term::new(self.node.raft.term);
        let Some(copy) = self.copying.sending.get_mut(&from) else {
            return;
        };
        if answer.leader_term != term || answer.position != copy.part.position {
            return;
        }
        if answer.is_refused {
            return self.end_copy(from, Err("the member begins anew".to_owned()));
        }
        if answer.wanted != copy.part.number + 1 {
            return;
        }
        copy.attempts = 0;
        if copy.part.is_last {
            return self.end_copy(from, Ok(()));
        }
        match copy.parts.next_part(PART_BYTES) {
            Ok(next) => {
                copy.part.number += 1;
                copy.part.is_last = next.is_none();
                copy.part.body = Bytes::from(next.unwrap_or_default());
                self.send_part(from);
            }
            Err(error) => self.end_copy(from, Err(error.to_string())),
        }
    }

    /// Sends again what was not answered; ends what has become pointless.
    pub(crate) fn pursue_copies(&mut self) {
        let options = &self.shared.log.options;
        let patience = (2 * options.heartbeat_ticks) as u64;
        let attempts_max = 10 * options.election_ticks as u64;
        let term = Term::new(self.node.raft.term);
        // Elected is enough: whether its entries can be committed may depend on the copy.
        let elected = self.node.raft.state == StateRole::Leader;
        let mut again = Vec::new();
        let mut given_up = Vec::new();
        for (to, copy) in &self.copying.sending {
            if !elected
                || copy.part.leader_term != term
                || copy.attempts > attempts_max
                || !self.member.state.configuration.contains(*to)
            {
                given_up.push(*to);
            } else if self.ticks >= copy.sent_tick + patience {
                again.push(*to);
            }
        }
        for to in given_up {
            self.end_copy(to, Err("it is not wanted any more".to_owned()));
        }
        for to in again {
            self.send_part(to);
        }
    }

    /// How far a copy to a member has come, in parts.
    pub(crate) fn copy_parts(&self, to: MemberId) -> Option<u64> {
        let copy = self.copying.sending.get(&to)?;
        Some(copy.part.number)
    }

    pub(crate) fn receive_part(&mut self, from: MemberId, part: Part) -> Result<(), String> {
        if part.leader_term < Term::new(self.node.raft.term) {
            return Ok(());
        }
        let answer = |wanted, is_refused| PartAnswer {
            leader_term: part.leader_term,
            position: part.position,
            wanted,
            is_refused,
        };
        if part.position <= self.shared.log.applied() {
            // It is here already: the last answer was lost.
            self.answer_part(from, answer(part.number + 1, false));
            return Ok(());
        }
        let known = self.copying.receiving.as_ref().is_some_and(|receiving| {
            receiving.from == from
                && receiving.leader_term == part.leader_term
                && receiving.position == part.position
        });
        if !known {
            if part.number != 0 {
                self.answer_part(from, answer(0, true));
                return Ok(());
            }
            let install = self
                .state
                .begin_install()
                .map_err(|error| format!("beginning to take over a state: {error}"))?;
            self.copying.receiving = Some(Receiving {
                from,
                leader_term: part.leader_term,
                position: part.position,
                wanted: 0,
                install,
            });
        }
        let Some(receiving) = &mut self.copying.receiving else {
            return Ok(());
        };
        if part.number == receiving.wanted {
            if !part.body.is_empty() {
                receiving
                    .install
                    .add(&part.body)
                    .map_err(|error| format!("taking over a state: {error}"))?;
            }
            receiving.wanted += 1;
            if part.is_last {
                return self.complete(from, part);
            }
        }
        let wanted = receiving.wanted;
        self.answer_part(from, answer(wanted, false));
        Ok(())
    }

    fn answer_part(&self, to: MemberId, answer: PartAnswer) {
        let packet = encode_part_answer(&self.sender(), to, &answer);
        self.transport.send(to, packet);
    }

    /// All of it is here: now it is for `raft` to say whether it is of use. The answer
    /// goes out when it is installed.
    fn complete(&mut self, from: MemberId, part: Part) -> Result<(), String> {
        let Some(receiving) = self.copying.receiving.take() else {
            return Ok(());
        };
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = part.position.get();
        metadata.term = part.term.get();
        metadata.set_conf_state(part.configuration.to_raft());
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = from.get();
        message.to = self.me().get();
        message.term = part.leader_term.get();
        message.set_snapshot(snapshot);
        self.copying.complete = Some(Complete {
            position: part.position,
            term: part.term,
            time: part.time,
            configuration: part.configuration,
            install: receiving.install,
        });
        if let Err(error) = self.node.step(message) {
            tracing::debug!(%error, "a state was not heeded");
        }
        Ok(())
    }

    /// `raft` has agreed: the state and the log begin anew. The steps are those of
    /// `install.rs`.
    pub(crate) fn install(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let position = LogPosition::new(snapshot.get_metadata().index);
        let complete = self.copying.complete.take();
        let Some(complete) = complete.filter(|complete| complete.position == position) else {
            return Err(format!("the state at {position} is not here"));
        };
        let failed = |what: &str, error: String| format!("installing a state: {what}: {error}");
        let log = self.shared.log.clone();
        self.shared.role.send_replace(Role::Installing { position });
        self.member
            .save(|state| {
                state.installed = Some((position, complete.term));
                state.configuration = complete.configuration.clone();
                state.configuration_position = position;
            })
            .map_err(|error| failed("the member's file", error.to_string()))?;
        self.state
            .install(complete.install, position, complete.time)
            .map_err(|error| failed("the state machine", error.to_string()))?;
        self.writer
            .sync()
            .map_err(|error| failed("the log", error.to_string()))?;
        let trimming = self.shared.maintenance.lock();
        let end = begin_after_installed(&log, position, complete.term, Some(complete.time))
            .map_err(|error| failed("the log", error.to_string()))?;
        drop(trimming);
        self.writer = Writer::new(log.clone(), &end);
        self.node.mut_store().configuration = complete.configuration.to_raft();
        self.applied_term = complete.term;
        self.shared.advance_clock(complete.time);
        log.publish(Applied {
            position,
            time: complete.time,
        });
        self.offer_copy();
        tracing::info!(member = %self.me(), %position, "installed a state");
        Ok(())
    }
}
