//! Copying the state to a member that is too far behind for the log, or is new and too
//! late for it, while everything goes on.
//!
//! ```text
//!   leader                                    receiver
//!   raft: the log does not reach back ─► open the state as of P
//!   part 0, empty ───────────────────────────► begin to take over
//!           ◄──────────────────────── wants 1 [holds …]
//!   part 1, or: keep it ─────────────────────► …
//!           ◄──────────────────────── wants n [holds …]
//!   last part ───────────────────────────────► raft: install P; see `install.rs`
//!           ◄──────────────────────── wants n + 1
//!   raft: go on behind P
//! ```
//!
//! One part at a time is on its way to a member. A part that is not answered is sent again
//! after a while, so that a copy goes on after the network was away. A receiver that was
//! restarted looks what it still has of the copy ([`StateMachine::resume_install`]) and goes
//! on there. If it has lost some of it, or the leader has changed, the copy begins anew with
//! a state of that moment.
//!
//! ⚑ What is there of the copy before is not sent again, as far as it is the same in this one. The
//! receiver describes the stretch that it holds of what comes next; the sender compares it with its own
//! and says *keep it*, or sends what it has. Stretches are told apart by what is in them, not by
//! positions, so that it does not matter whose copy it was, nor when it was made. The sender's words
//! repeat the description: a receiver that has lost what it described does not keep something else.
//!
//! Parts are read on a thread of their own, which gives them back to the loop: reading a
//! large state from disk holds nobody up. (Without threads they are read in the loop.)
//!
//! So is what a receiver has gathered before it was restarted. Until that is known it answers that it still wants
//! the part that it was sent, and takes none of any copy.
//!
//! Nothing that the receiver has is touched before all of the copy is there: its log may
//! be what makes a majority. If that has led as far as the copy meanwhile, or nobody has sent a part for
//! [`KEPT`], what was gathered is discarded.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use model::time::ClusterTime;
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{SnapshotStatus, StateRole};

use crate::append::Writer;
use crate::commit::Driver;
use crate::entry::{Applied, LogPosition, Term};
use crate::error::BoxError;
use crate::install::begin_after_installed;
use crate::member::{Configuration, MemberId, Role};
use crate::message::{Part, PartAnswer, encode_part, encode_part_answer};
use crate::state_machine::{CopyId, Resume, StateInstall, StateMachine, StateParts};
use crate::work::Request;

/// How much of the state one packet carries.
const PART_BYTES: usize = 256 << 10;
/// How long parts are kept that nobody goes on with.
const KEPT: Duration = Duration::from_secs(3600);

/// A copy on its way to a member.
struct Copy {
    /// Away while the next part is being read.
    parts: Option<Box<dyn StateParts>>,
    /// The part that is on its way; none yet if it has no number.
    part: Part,
    /// The number of the part that is being read, and what the receiver holds of it.
    reading: u64,
    held: Bytes,
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
    /// What there is of the part that is wanted, from an earlier copy.
    held: Bytes,
    /// How many parts an earlier copy had left.
    kept: u64,
    install: Box<dyn StateInstall>,
}

impl Receiving {
    fn of(copy: CopyId, gathering: Gathering) -> Self {
        let CopyId {
            from,
            leader_term,
            position,
        } = copy;
        Self {
            from,
            leader_term,
            position,
            wanted: gathering.wanted,
            held: gathering.held,
            kept: 0,
            install: gathering.install,
        }
    }

    fn copy(&self) -> CopyId {
        CopyId {
            from: self.from,
            leader_term: self.leader_term,
            position: self.position,
        }
    }
}

/// A copy of which there is something, the part that is wanted next, and what is held of that.
pub(crate) struct Gathering {
    install: Box<dyn StateInstall>,
    wanted: u64,
    held: Bytes,
}

/// What was read of a state that is being copied.
pub(crate) enum PartRead {
    Body(Vec<u8>),
    /// The receiver holds it.
    Held,
    End,
}

/// A copy that is complete and waits for `raft` to agree.
struct Complete {
    position: LogPosition,
    term: Term,
    time: ClusterTime,
    configuration: Configuration,
    install: Box<dyn StateInstall>,
}

pub(crate) struct Copying {
    /// Members that `raft` wants to have a copy.
    pub wanted: Vec<MemberId>,
    sending: BTreeMap<MemberId, Copy>,
    receiving: Option<Receiving>,
    /// The copy of which it is being looked for what is there.
    resuming: Option<CopyId>,
    /// One of which nothing is there: who goes on with it is refused, and begins anew.
    missing: Option<CopyId>,
    complete: Option<Complete>,
    /// When the last part came, or the process began: something may be gathered since then.
    gathered_tick: Option<u64>,
}

impl Default for Copying {
    fn default() -> Self {
        Self {
            wanted: Vec::new(),
            sending: BTreeMap::new(),
            receiving: None,
            resuming: None,
            missing: None,
            complete: None,
            gathered_tick: Some(0),
        }
    }
}

/// Reads what comes next of a state, unless the receiver holds it.
fn read(parts: &mut dyn StateParts, held: &[u8]) -> Result<PartRead, BoxError> {
    if !held.is_empty() && parts.skip_held(held, PART_BYTES)? {
        return Ok(PartRead::Held);
    }
    Ok(match parts.next_part(PART_BYTES)? {
        Some(body) => PartRead::Body(body),
        None => PartRead::End,
    })
}

/// Looks for what there is of a copy.
fn resume(resume: Resume) -> Result<Option<Gathering>, BoxError> {
    let Some((mut install, parts)) = resume()? else {
        return Ok(None);
    };
    let held = held(&mut *install)?;
    // The first part is empty and not kept.
    let wanted = parts + 1;
    Ok(Some(Gathering {
        install,
        wanted,
        held,
    }))
}

/// What an earlier copy has left of what comes next.
fn held(install: &mut dyn StateInstall) -> Result<Bytes, String> {
    let held = install
        .held()
        .map_err(|error| format!("looking at an earlier copy: {error}"))?;
    Ok(held.map_or_else(Bytes::new, Bytes::from))
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
        let parts = match opened {
            Ok(parts) => parts,
            Err(error) => {
                tracing::warn!(%error, %to, "the state cannot be copied");
                self.node.report_snapshot(to.get(), SnapshotStatus::Failure);
                return;
            }
        };
        tracing::info!(%to, %position, "copying the state");
        let part = Part {
            leader_term: Term::new(self.node.raft.term),
            position,
            term: self.applied_term,
            time: self.state.applied_time().unwrap_or(ClusterTime::ZERO),
            configuration: self.member.state.configuration.clone(),
            number: 0,
            is_last: false,
            is_kept: false,
            body: Bytes::new(),
        };
        let copy = Copy {
            parts: Some(parts),
            part,
            reading: 0,
            held: Bytes::new(),
            sent_tick: self.ticks,
            attempts: 0,
        };
        self.copying.sending.insert(to, copy);
        // Empty: what is sent next depends on what the receiver holds.
        self.send_part(to);
    }

    /// Reads the next part of a copy, here or elsewhere.
    fn read_part(&mut self, to: MemberId) {
        let Some(copy) = self.copying.sending.get_mut(&to) else {
            return;
        };
        let Some(mut parts) = copy.parts.take() else {
            return;
        };
        let position = copy.part.position;
        let held = copy.held.clone();
        if !self.reads_apart {
            let next = read(&mut *parts, &held);
            return self.part_read(to, position, parts, next);
        }
        let shared = self.shared.clone();
        let reads = move || {
            let next = read(&mut *parts, &held);
            shared.request(Request::PartRead {
                to,
                position,
                parts,
                next,
            });
        };
        let thread = std::thread::Builder::new().name("log-copy".to_owned());
        if let Err(error) = thread.spawn(reads) {
            self.end_copy(to, Err(format!("starting a thread: {error}")));
        }
    }

    /// A part was read: it is sent, if the copy is still wanted.
    pub(crate) fn part_read(
        &mut self,
        to: MemberId,
        position: LogPosition,
        parts: Box<dyn StateParts>,
        next: Result<PartRead, BoxError>,
    ) {
        let copy = self.copying.sending.get_mut(&to);
        let Some(copy) = copy.filter(|copy| copy.part.position == position) else {
            return;
        };
        match next {
            Ok(next) => {
                copy.parts = Some(parts);
                copy.part.number = copy.reading;
                copy.part.is_last = matches!(next, PartRead::End);
                copy.part.is_kept = matches!(next, PartRead::Held);
                copy.part.body = match next {
                    PartRead::Body(body) => Bytes::from(body),
                    PartRead::Held => copy.held.clone(),
                    PartRead::End => Bytes::new(),
                };
                self.send_part(to);
            }
            Err(error) => self.end_copy(to, Err(error.to_string())),
        }
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
        if answer.wanted == copy.part.number {
            // It looks what it has of the copy, which takes its time.
            copy.attempts = 0;
        }
        if answer.wanted != copy.part.number + 1 {
            return;
        }
        copy.attempts = 0;
        if copy.part.is_last {
            return self.end_copy(from, Ok(()));
        }
        if copy.parts.is_some() {
            copy.reading = copy.part.number + 1;
            copy.held = answer.held;
            self.read_part(from);
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
            } else if copy.parts.is_some() && self.ticks >= copy.sent_tick + patience {
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
        let (leader_term, position) = (part.leader_term, part.position);
        let answer = |wanted, is_refused, held| PartAnswer {
            leader_term,
            position,
            wanted,
            is_refused,
            held,
        };
        if part.position <= self.shared.log.applied() {
            // It is here already: the last answer was lost.
            self.answer_part(from, answer(part.number + 1, false, Bytes::new()));
            return Ok(());
        }
        let copy = CopyId {
            from,
            leader_term,
            position,
        };
        self.copying.gathered_tick = Some(self.ticks);
        let is_known = |receiving: &Receiving| receiving.copy() == copy;
        if !self.copying.receiving.as_ref().is_some_and(is_known)
            && self.copying.missing != Some(copy)
        {
            self.take_over(copy, part.number)?;
        }
        if self.copying.resuming.is_some() {
            self.answer_part(from, answer(part.number, false, Bytes::new()));
            return Ok(());
        }
        self.copying.missing = None;
        let receiving = self.copying.receiving.as_mut().filter(|it| is_known(it));
        let Some(receiving) = receiving.filter(|it| it.wanted >= part.number) else {
            // Parts before this one are missing.
            self.copying.receiving.take_if(|it| is_known(it));
            self.answer_part(from, answer(0, true, Bytes::new()));
            return Ok(());
        };
        if part.number == receiving.wanted {
            if part.is_kept && part.body != receiving.held {
                // A restart has lost what was described.
                self.copying.receiving = None;
                self.answer_part(from, answer(0, true, Bytes::new()));
                return Ok(());
            }
            let taken = match (part.is_kept, part.body.is_empty()) {
                (true, _) => receiving.install.keep(&part.body),
                (false, true) => Ok(()),
                (false, false) => receiving.install.add(&part.body),
            };
            taken.map_err(|error| format!("taking over a state: {error}"))?;
            receiving.kept += u64::from(part.is_kept);
            receiving.wanted += 1;
            if part.is_last {
                return self.complete(from, part);
            }
            receiving.held = held(&mut *receiving.install)?;
        }
        let (wanted, held) = (receiving.wanted, receiving.held.clone());
        self.answer_part(from, answer(wanted, false, held));
        Ok(())
    }

    /// Begins to take over a state, or to look for what there is of it. ⚑ While that is not known nothing is
    /// begun: both would be at the same files.
    fn take_over(&mut self, copy: CopyId, part: u64) -> Result<(), String> {
        if self.copying.resuming.is_some() {
            return Ok(());
        }
        if part == 0 {
            let failed = |error: BoxError| format!("beginning to take over a state: {error}");
            let mut install = self.state.begin_install(copy).map_err(failed)?;
            let held = held(&mut *install)?;
            let gathering = Gathering {
                install,
                wanted: 0,
                held,
            };
            self.copying.receiving = Some(Receiving::of(copy, gathering));
            return Ok(());
        }
        self.copying.resuming = Some(copy);
        let looks = self.state.resume_install(copy);
        if !self.reads_apart {
            let resumed = resume(looks);
            self.copy_resumed(copy, resumed);
            return Ok(());
        }
        let shared = self.shared.clone();
        let looks = move || {
            let resumed = resume(looks);
            shared.request(Request::CopyResumed { copy, resumed });
        };
        let thread = std::thread::Builder::new().name("log-copy".to_owned());
        if let Err(error) = thread.spawn(looks) {
            self.copy_resumed(copy, Err(error.into()));
        }
        Ok(())
    }

    /// It is known what there is of a copy. The sender sends again what it was not answered, and is told then.
    pub(crate) fn copy_resumed(
        &mut self,
        copy: CopyId,
        resumed: Result<Option<Gathering>, BoxError>,
    ) {
        if self.copying.resuming.take() != Some(copy) {
            return;
        }
        match resumed {
            Ok(Some(gathering)) => {
                self.copying.receiving = Some(Receiving::of(copy, gathering));
            }
            Ok(None) => self.copying.missing = Some(copy),
            Err(error) => {
                tracing::warn!(%error, "what is there of a copy cannot be read");
                self.copying.missing = Some(copy);
            }
        }
    }

    /// Discards what was gathered of copies that nobody needs any more.
    pub(crate) fn discard_copies(&mut self) {
        let applied = self.shared.log.applied();
        let copying = &mut self.copying;
        let Some(since) = copying.gathered_tick.filter(|_| copying.resuming.is_none()) else {
            return;
        };
        let receiving = copying.receiving.as_ref().map(|copy| copy.position);
        let complete = copying.complete.as_ref().map(|copy| copy.position);
        let is_behind = receiving.max(complete).is_some_and(|copy| copy <= applied);
        let ticks = self.ticks.saturating_sub(since);
        let idle = (self.shared.tick()).saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        if is_behind || idle > KEPT {
            copying.receiving = None;
            copying.complete = None;
            copying.gathered_tick = None;
            self.state.discard_installs();
        }
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
        tracing::info!(
            position = %part.position,
            parts = part.number,
            kept = receiving.kept,
            "the state of another member is here"
        );
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
        self.copying.gathered_tick = None;
        self.offer_copy();
        tracing::info!(member = %self.me(), %position, "installed a state");
        Ok(())
    }
}
