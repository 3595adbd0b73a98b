//! Where a proposal gets its position and its time, and waits to be written.
//!
//! One mutex holds all of it for the length of one proposal's closure. The closure runs
//! inside so that the proposer can publish what it wrote under that position before the
//! loop (or any later proposal) can get ahead of it.
//!
//! ```text
//!   Running ──close──► Closing ──queue empty──► the loop ends
//!      └──────────┬───────┘
//!                 └─ a write, sync or apply failed ──► Stopped, for good
//! ```
//!
//! The queue is bounded by entries and bytes. When it is full, proposals are refused
//! as busy before their closure runs, and [`Shared::ready`] waits until the loop has
//! taken the queue.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use model::time::ClusterTime;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use crate::clock::HybridClock;
use crate::entry::{Applied, Committed, Durability, Entry, LogPosition, Term};
use crate::error::{DriftError, ProposeError};
use crate::log_state::{LogState, memory_bytes};
use crate::trim::Maintenance;

pub(crate) type Answer = oneshot::Sender<Result<Applied, ProposeError>>;

/// Proposals that are written, synced, applied and answered together.
pub(crate) struct Batch<C> {
    pub entries: Vec<Committed<C>>,
    /// One for each entry, in the same order.
    pub answers: Vec<Answer>,
    pub needs_sync: bool,
    bytes: usize,
}

impl<C> Batch<C> {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            answers: Vec::new(),
            needs_sync: false,
            bytes: 0,
        }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.answers.clear();
        self.needs_sync = false;
        self.bytes = 0;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Closing,
    Stopped,
}

struct Sequencer<C> {
    phase: Phase,
    last: LogPosition,
    clock: HybridClock,
    queue: Batch<C>,
}

/// Why the loop was woken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The batch has been filled.
    Work,
    SyncDue,
    /// Nothing is queued and nothing will be.
    Finished,
}

/// What the handles, the loop and the maintenance of one group share.
pub(crate) struct Shared<C> {
    pub log: Arc<LogState>,
    pub term: Term,
    sequencer: Mutex<Sequencer<C>>,
    work: Condvar,
    room: Notify,
    /// The clock's latest time, readable without the mutex.
    latest_time: AtomicU64,
    /// Gone when the group is closed, so that nothing holds the state any longer.
    pub maintenance: Mutex<Option<Maintenance>>,
}

impl<C> Shared<C> {
    pub fn new(
        log: Arc<LogState>,
        term: Term,
        last: LogPosition,
        last_time: ClusterTime,
        maintenance: Maintenance,
    ) -> Self {
        Self {
            term,
            sequencer: Mutex::new(Sequencer {
                phase: Phase::Running,
                last,
                clock: HybridClock::new(last_time, log.options.drift_seconds_max),
                queue: Batch::new(),
            }),
            work: Condvar::new(),
            room: Notify::new(),
            latest_time: AtomicU64::new(last_time.to_u64()),
            maintenance: Mutex::new(Some(maintenance)),
            log,
        }
    }

    pub fn propose(
        &self,
        durability: Durability,
        build: impl FnOnce(LogPosition, ClusterTime) -> (Vec<u8>, C),
    ) -> Result<(Applied, oneshot::Receiver<Result<Applied, ProposeError>>), ProposeError> {
        let wall_ms = self.log.wall.now_ms();
        let mut sequencer = self.sequencer.lock();
        self.check_open(&sequencer)?;
        if !self.has_room(&sequencer) {
            return Err(ProposeError::Busy);
        }
        let position = sequencer.last.next();
        let time = sequencer
            .clock
            .next(wall_ms)
            .ok_or(ProposeError::TimeExhausted)?;

        // Nothing has moved yet: a closure that panics leaves no trace here.
        let (payload, companion) = build(position, time);
        let limit = self.log.options.payload_bytes_max;
        if payload.len() > limit {
            return Err(ProposeError::TooLarge {
                bytes: payload.len(),
                limit,
            });
        }
        let entry = Entry {
            position,
            term: self.term,
            time,
            wall_ms,
            payload: Bytes::from(payload),
        };
        let (answer, answered) = oneshot::channel();
        sequencer.last = position;
        sequencer.clock.advance(time);
        self.latest_time.store(time.to_u64(), Ordering::Release);
        let queue = &mut sequencer.queue;
        let was_empty = queue.entries.is_empty();
        queue.bytes += memory_bytes(&entry);
        queue.needs_sync |= durability == Durability::Synced;
        queue.entries.push(Committed {
            entry,
            companion: Some(companion),
        });
        queue.answers.push(answer);
        drop(sequencer);
        if was_empty {
            self.work.notify_one();
        }
        Ok((Applied { position, time }, answered))
    }

    fn check_open(&self, sequencer: &Sequencer<C>) -> Result<(), ProposeError> {
        match sequencer.phase {
            Phase::Running => Ok(()),
            Phase::Closing => Err(ProposeError::Closed),
            Phase::Stopped => Err(ProposeError::Stopped {
                reason: self.stop_reason(),
            }),
        }
    }

    fn has_room(&self, sequencer: &Sequencer<C>) -> bool {
        let options = &self.log.options;
        sequencer.queue.bytes < options.queue_bytes_max
            && sequencer.queue.entries.len() < options.queue_entries_max
    }

    /// Waits until a proposal would not be refused as busy.
    pub async fn ready(&self) -> Result<(), ProposeError> {
        loop {
            let mut taken = pin!(self.room.notified());
            // Registered before looking, or a queue taken in between would be missed.
            taken.as_mut().enable();
            {
                let sequencer = self.sequencer.lock();
                self.check_open(&sequencer)?;
                if self.has_room(&sequencer) {
                    return Ok(());
                }
            }
            taken.await;
        }
    }

    pub fn latest_time(&self) -> ClusterTime {
        ClusterTime::from_u64(self.latest_time.load(Ordering::Acquire))
    }

    pub fn observe(&self, time: ClusterTime) -> Result<(), DriftError> {
        if time <= self.latest_time() {
            return Ok(());
        }
        let wall_ms = self.log.wall.now_ms();
        let mut sequencer = self.sequencer.lock();
        sequencer.clock.observe(time, wall_ms)?;
        let latest = sequencer.clock.latest();
        self.latest_time.store(latest.to_u64(), Ordering::Release);
        Ok(())
    }

    /// Blocks until there is something to do; `batch` must be empty.
    pub fn wait(&self, sync_due: Option<Instant>, batch: &mut Batch<C>) -> Wake {
        let mut sequencer = self.sequencer.lock();
        loop {
            if self.take_locked(&mut sequencer, batch) {
                return Wake::Work;
            }
            if sequencer.phase != Phase::Running {
                return Wake::Finished;
            }
            match sync_due {
                None => self.work.wait(&mut sequencer),
                Some(due) => {
                    if self.work.wait_until(&mut sequencer, due).timed_out() {
                        return if self.take_locked(&mut sequencer, batch) {
                            Wake::Work
                        } else {
                            Wake::SyncDue
                        };
                    }
                }
            }
        }
    }

    /// Takes what is queued without waiting.
    pub fn take(&self, batch: &mut Batch<C>) -> bool {
        self.take_locked(&mut self.sequencer.lock(), batch)
    }

    fn take_locked(&self, sequencer: &mut Sequencer<C>, batch: &mut Batch<C>) -> bool {
        if sequencer.queue.entries.is_empty() {
            return false;
        }
        std::mem::swap(&mut sequencer.queue, batch);
        self.room.notify_waiters();
        true
    }

    /// No new proposals from here on; what is queued is still done.
    pub fn begin_close(&self) {
        let mut sequencer = self.sequencer.lock();
        if sequencer.phase == Phase::Running {
            sequencer.phase = Phase::Closing;
        }
        drop(sequencer);
        self.work.notify_one();
        self.room.notify_waiters();
        self.log.maintenance_signal.lock().closing = true;
        self.log.maintenance_wakeup.notify_one();
    }

    /// Stops the group for good. What is queued was never written.
    pub fn stop(&self, reason: &str) {
        let stopped_now = self.log.stop_reason.set(Arc::from(reason)).is_ok();
        if stopped_now {
            tracing::error!(reason, "the log has stopped");
        }
        let mut queue = Batch::new();
        {
            let mut sequencer = self.sequencer.lock();
            sequencer.phase = Phase::Stopped;
            std::mem::swap(&mut sequencer.queue, &mut queue);
        }
        for answer in queue.answers.drain(..) {
            // A proposer that no longer listens does not mind.
            let _ = answer.send(Err(ProposeError::Stopped {
                reason: self.stop_reason(),
            }));
        }
        self.work.notify_one();
        self.room.notify_waiters();
        self.end_progress();
    }

    pub fn end_progress(&self) {
        self.log
            .progress
            .send_modify(|progress| progress.running = false);
    }

    /// Why nothing more happens.
    pub fn stop_reason(&self) -> Arc<str> {
        match self.log.stop_reason.get() {
            Some(reason) => reason.clone(),
            None => Arc::from("it was closed"),
        }
    }
}
