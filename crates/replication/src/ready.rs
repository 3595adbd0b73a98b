//! What `raft` wants done, in the order that makes it safe.
//!
//! ```text
//!   term and vote changed?   make them stable                      before any message
//!   leader's messages        send: others sync while we do
//!   a state to install       instead of what we have, see `copying.rs`
//!   entries                  cut off what they replace, append, write, and
//!                            sync, unless nobody else has a copy and nobody asks for it
//!   follower's messages      send: they say what is stable here (and applied, if there was
//!                            nothing to write)
//!   committed entries        members first, then the state machine, then readers, then
//!                            the answers
//! ```
//!
//! ⚑ Nothing is applied before its entry is synced here, and committed: synced by a
//! majority. Sole exception: a sole member, all of whose waiting proposals are buffered.
//!
//! ⚑ A change of members is made stable before the state machine can contain its entry.
//! So what the member's file says is never older than the state; entries at or before
//! its position are not carried out again when they are replayed.

use raft::Ready;
use raft::eraftpb::{Message, MessageType};

use crate::commit::{APPLY_BYTES, Driver};
use crate::entry::{Applied, Committed, EntryKind, LogPosition, Term};
use crate::error::ProposeError;
use crate::log_state::memory_bytes;
use crate::member::MemberId;
use crate::message::{Sender, encode_raft};
use crate::raft_entry::from_raft;
use crate::state_machine::StateMachine;
use crate::work::{Answer, Proposal};

type Done = Result<(), String>;

impl<S: StateMachine> Driver<S> {
    pub(crate) fn handle_ready(&mut self) -> Done {
        let mut ready = self.node.ready();
        self.save_vote(&ready)?;
        self.send(ready.take_messages());
        let installed = LogPosition::new(ready.snapshot().get_metadata().index);
        if installed > LogPosition::BEFORE_FIRST {
            self.install(ready.snapshot())?;
        }
        let mut committed = last_of(ready.committed_entries());
        if ready.entries().is_empty() {
            // Who only hears that entries are committed applies them first: its answer tells how
            // far it has come, and somebody may wait for that.
            if let Some(last) = committed {
                self.apply_until(last)?;
            }
        } else {
            self.write(&mut ready)?;
        }
        self.send(ready.take_persisted_messages());
        self.confirm_barriers(ready.take_read_states());
        let mut light = self.node.advance_append(ready);
        self.send(light.take_messages());
        if installed > LogPosition::BEFORE_FIRST {
            self.node.advance_apply_to(installed.get());
        }
        committed = committed.max(last_of(light.committed_entries()));
        if let Some(last) = committed {
            self.apply_until(last)?;
            self.node.advance_apply_to(last.get());
            self.offer_copy();
        }
        Ok(())
    }

    /// ⚑ A vote that is forgotten could be given twice.
    fn save_vote(&mut self, ready: &Ready) -> Done {
        let Some(hard_state) = ready.hs() else {
            return Ok(());
        };
        let term = Term::new(hard_state.term);
        let vote = MemberId::checked(hard_state.vote);
        if term == self.member.state.term && vote == self.member.state.vote {
            return Ok(());
        }
        let vote = vote.filter(|_| !self.shared.log.options.faults.forget_votes);
        self.member
            .save(|state| {
                state.term = term;
                state.vote = vote;
            })
            .map_err(|error| format!("saving the vote: {error}"))?;
        if let Some(candidate) = vote.filter(|candidate| *candidate != self.me()) {
            self.note_vote(term, candidate);
        }
        Ok(())
    }

    pub(crate) fn sender(&self) -> Sender {
        Sender {
            group: self.shared.log.options.group,
            member: self.me(),
            applied: self.shared.log.applied(),
            is_resting: self.is_resting(),
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let Some(to) = MemberId::checked(message.to) else {
                continue;
            };
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.copying.wanted.push(to);
            } else if let Some(packet) = encode_raft(&self.sender(), &message) {
                self.transport.send(to, packet);
            }
        }
    }

    fn write(&mut self, ready: &mut Ready) -> Done {
        let entries = ready.take_entries();
        if entries.is_empty() {
            return Ok(());
        }
        let writing = |error| format!("writing the log: {error}");
        let first = LogPosition::new(entries[0].index);
        if first <= self.writer.last() {
            self.writer.truncate(first.previous()).map_err(writing)?;
        }
        let may_wait = self.may_buffer && self.is_sole() && !self.writer.is_sync_due();
        let is_buffered = may_wait || self.shared.log.options.faults.acknowledge_unsynced;
        for raft_entry in entries {
            let (time, wall_ms) = (self.writer.last_time(), self.writer.last_wall_ms());
            let Some(entry) = from_raft(raft_entry, time, wall_ms) else {
                return Err("raft made an entry that is none of ours".to_owned());
            };
            self.writer.append(&entry).map_err(writing)?;
            self.shared.log.tail.lock().push(entry);
            if self.writer.has_piece() {
                self.writer.flush_as(is_buffered).map_err(writing)?;
            }
        }
        self.writer.flush_as(is_buffered).map_err(writing)?;
        if self.leading.is_none() {
            // Whoever leads next goes on from there.
            self.shared.advance_clock(self.writer.last_time());
        }
        Ok(())
    }

    fn apply_until(&mut self, last: LogPosition) -> Done {
        let log = self.shared.log.clone();
        loop {
            let applied = log.applied();
            if applied >= last {
                break;
            }
            let entries = log
                .read_until(applied, last, APPLY_BYTES as usize)
                .map_err(|error| format!("reading what is to be applied: {error}"))?;
            let mut batch = Vec::with_capacity(entries.len());
            let mut answers: Vec<(Answer, Result<Applied, ProposeError>)> = Vec::new();
            let (mut done, mut done_bytes) = (0, 0);
            for entry in entries {
                if let EntryKind::Configuration(change) = &entry.kind {
                    self.apply_change(change, entry.position)?;
                }
                let mut companion = None;
                let is_next = |next: &mut Proposal<_>| next.entry.position == entry.position;
                if let Some(mut proposal) = self.in_flight.pop_front_if(is_next) {
                    done += 1;
                    done_bytes += memory_bytes(&proposal.entry);
                    companion = proposal.companion.take();
                    self.note_change_outcome(&entry);
                    if let Some(answer) = proposal.answer {
                        let outcome = if entry.kind == EntryKind::Noop {
                            Err(ProposeError::NotApplied)
                        } else {
                            Ok(Applied {
                                position: entry.position,
                                time: entry.time,
                            })
                        };
                        answers.push((answer, outcome));
                    }
                }
                batch.push(Committed { entry, companion });
            }
            let Some(newest) = batch.last() else {
                return Err(format!("the entry after {applied} is missing"));
            };
            let newest = (
                Applied {
                    position: newest.entry.position,
                    time: newest.entry.time,
                },
                newest.entry.term,
            );
            self.state
                .apply(&mut batch)
                .map_err(|error| format!("applying to the state machine: {error}"))?;
            if newest.1 != self.applied_term {
                self.elections.term_began(newest.1, log.wall.now_ms());
            }
            self.applied_term = newest.1;
            // Readers see the entries before their proposers hear of it.
            log.publish(newest.0);
            self.state.published(&batch);
            log.tail.lock().shrink(newest.0.position);
            if done > 0 {
                self.shared.release(done, done_bytes);
            }
            for (answer, outcome) in answers {
                // A proposer that no longer listens does not mind.
                let _ = answer.send(outcome);
            }
        }
        Ok(())
    }
}

fn last_of(entries: &[raft::eraftpb::Entry]) -> Option<LogPosition> {
    entries.last().map(|entry| LogPosition::new(entry.index))
}
