//! The loop: gather, write, sync, apply, answer. It has a thread of its own.
//!
//! All proposals that wait are one group: one write, one sync if any of them asks for
//! it, one batch for the state machine. While a group is being synced the next one
//! gathers, so that groups grow with the load by themselves.
//!
//! ```text
//!   queue ═► append… ─► write ─► sync? ─► apply ─► tail, progress ─► answers
//!                                 └ yes, if one asks for it or the last sync is 100 ms ago
//! ```
//!
//! When any step fails the group stops: the answers of the batch under way are
//! "outcome unknown", because its entries may be found when the log is opened again.
//!
//! [`Driver`] is the same loop without the thread, one step at a time, for tests and
//! for simulation.

use std::sync::Arc;
use std::time::Instant;

use crate::append::Writer;
use crate::entry::Applied;
use crate::error::{Error, ProposeError};
use crate::sequencer::{Batch, Shared, Wake};
use crate::state_machine::StateMachine;

/// Commits what is proposed to a group.
pub struct Driver<S: StateMachine> {
    shared: Arc<Shared<S::Companion>>,
    state: S,
    writer: Writer,
    batch: Batch<S::Companion>,
    finished: bool,
}

impl<S: StateMachine> Driver<S> {
    pub(crate) fn new(shared: Arc<Shared<S::Companion>>, state: S, writer: Writer) -> Self {
        Self {
            shared,
            state,
            writer,
            batch: Batch::new(),
            finished: false,
        }
    }

    /// The life of the log's thread.
    pub(crate) fn run(mut self) {
        loop {
            match self.shared.wait(self.writer.sync_due(), &mut self.batch) {
                Wake::Work => self.commit(),
                Wake::SyncDue => self.sync(),
                Wake::Finished => break,
            }
        }
        // The reason is kept in the group, where `close` finds it.
        let _ = self.finish();
    }

    /// Commits everything that is queued, as one group. False if nothing was.
    pub fn step(&mut self) -> bool {
        let work = self.shared.take(&mut self.batch);
        if work {
            self.commit();
        }
        work
    }

    /// Makes buffered writes stable, as the loop does when their time has come.
    pub fn sync(&mut self) {
        if self.shared.log.stop_reason.get().is_some() {
            return;
        }
        if let Err(error) = self.writer.sync() {
            self.shared.stop(&format!("syncing the log: {error}"));
        }
    }

    /// Finishes what is queued, syncs the log, and ends.
    pub fn close(mut self) -> Result<(), Error> {
        self.shared.begin_close();
        self.step();
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.sync();
        self.finished = true;
        self.shared.end_progress();
        match self.shared.log.stop_reason.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Stopped {
                reason: reason.clone(),
            }),
        }
    }

    fn commit(&mut self) {
        if let Err(reason) = self.write_and_apply() {
            self.shared.stop(&reason);
            let reason = self.shared.stop_reason();
            for answer in self.batch.answers.drain(..) {
                // A proposer that no longer listens does not mind.
                let _ = answer.send(Err(ProposeError::OutcomeUnknown {
                    reason: reason.clone(),
                }));
            }
            self.batch.clear();
            return;
        }
        let mut tail = self.shared.log.tail.lock();
        let mut outcomes = Vec::with_capacity(self.batch.entries.len());
        for committed in self.batch.entries.drain(..) {
            outcomes.push(Applied {
                position: committed.entry.position,
                time: committed.entry.time,
            });
            tail.push(committed.entry);
        }
        drop(tail);
        // Readers see the entries before their proposers hear of it.
        if let Some(last) = outcomes.last() {
            self.shared.log.publish(*last);
        }
        for (answer, outcome) in self.batch.answers.drain(..).zip(outcomes) {
            let _ = answer.send(Ok(outcome));
        }
        self.batch.clear();
    }

    fn write_and_apply(&mut self) -> Result<(), String> {
        // The maintenance may have stopped the group since the batch was taken.
        if let Some(reason) = self.shared.log.stop_reason.get() {
            return Err(reason.to_string());
        }
        let writing = |error| format!("writing the log: {error}");
        for committed in &self.batch.entries {
            self.writer.append(&committed.entry).map_err(writing)?;
        }
        self.writer.flush().map_err(writing)?;
        let due = self
            .writer
            .sync_due()
            .is_some_and(|due| due <= Instant::now());
        if self.batch.needs_sync || due {
            self.writer
                .sync()
                .map_err(|error| format!("syncing the log: {error}"))?;
        }
        self.state
            .apply(&mut self.batch.entries)
            .map_err(|error| format!("applying to the state machine: {error}"))
    }
}

/// A loop that ends in any other way than by closing (a panic of the state machine, a
/// driver that was dropped) must not leave proposers waiting.
impl<S: StateMachine> Drop for Driver<S> {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.stop("the log's loop has ended unexpectedly");
        }
    }
}
