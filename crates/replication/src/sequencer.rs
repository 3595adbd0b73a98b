//! Where a proposal gets its position and its time, and waits to be written.
//!
//! One mutex holds all of it for the length of one proposal's closure. The closure runs
//! inside so that the proposer can publish what it wrote under that position before the
//! loop (or any later proposal) can get ahead of it.
//!
//! ```text
//!   Running ──close──► Closing ──nothing left──► Ended, with the loop
//!      └──────────┬───────┘
//!                 └─ a write, sync or apply failed ──► Stopped, for good
//!
//!   Following ◄──────────── lost ─────────────┬────────────┐
//!       └── own entry applied ──► Leading ──transfer──► HandingOver
//!                                    ▲                     │
//!                                    └──── gave up ────────┘
//! ```
//!
//! Positions can be given here because only a leader proposes, and nothing is appended
//! to a leader's log that did not come through this queue: it opens when everything in
//! the log is applied, and every proposal that was given a position goes to the log in
//! that order, or leadership ends and none of the later ones does.
//!
//! ⚑ A proposal may name the term in which it was evaluated. If leadership was lost
//! meanwhile, even if it was won again, it is refused: what it was evaluated against
//! may never have happened.
//!
//! The queue is bounded by entries and bytes, what waits for others to confirm included.
//! When it is full, proposals are refused as busy before their closure runs, and
//! [`Shared::ready`] waits until there is room.
//!
//! Packets from other members and requests from handles wait here too, so that the loop
//! has one place to sleep at. Packets beyond a bound are thrown away: members repeat
//! what was not answered.
//!
//! The loop sleeps on while all that waits is *promised*: proposals whose proposers are
//! about to take the turn themselves, see `turns.rs`.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::time::ClusterTime;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot, watch};

use crate::clock::HybridClock;
use crate::entry::{Applied, Durability, Entry, EntryKind, LogPosition, Term};
use crate::error::{DriftError, ProposeError};
use crate::log_state::{LogState, memory_bytes};
use crate::member::{ConfigurationChange, MemberId, Members, Role};
use crate::message::Envelope;
use crate::trim::Maintenance;
use crate::work::{Proposal, Request, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Closing,
    /// Closed, and the loop is gone.
    Ended,
    Stopped,
}

/// Whether proposals are accepted, as far as leadership goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Following { leader: Option<MemberId> },
    Leading { term: Term },
    HandingOver { term: Term },
}

struct Sequencer<C> {
    phase: Phase,
    lead: Lead,
    last: LogPosition,
    clock: HybridClock,
    waiting: Work<C>,
    /// How many of the proposals that wait are promised.
    promised: usize,
    /// The loop has to look at its deadlines again.
    deadline_changed: bool,
    /// What the loop has taken and not answered yet.
    in_flight_entries: usize,
    in_flight_bytes: usize,
}

impl<C> Sequencer<C> {
    /// Whether there is no loop any more that would look.
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended | Phase::Stopped)
    }

    /// Whether something waits that nobody has promised to do.
    fn has_unpromised(&self) -> bool {
        let Work {
            batch,
            packets,
            requests,
        } = &self.waiting;
        batch.proposals.len() > self.promised || !packets.is_empty() || !requests.is_empty()
    }
}

/// Why the loop was woken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Something waits.
    Work,
    /// It is time, or the deadlines have changed.
    Deadline,
    /// Nothing waits and nothing will.
    Finished,
}

/// What the handles, the loop and the maintenance of one group share.
pub(crate) struct Shared<C> {
    pub log: Arc<LogState>,
    sequencer: Mutex<Sequencer<C>>,
    work: Condvar,
    room: Notify,
    /// The clock's latest time, readable without the mutex.
    latest_time: AtomicU64,
    /// A rest was asked for that the loop has not heard of yet: it holds already.
    pub rest_pending: AtomicBool,
    /// How long a tick is, in milliseconds.
    tick_ms: AtomicU64,
    pub role: watch::Sender<Role>,
    pub members: watch::Sender<Arc<Members>>,
    /// Gone when the group is closed, so that nothing holds the state any longer.
    pub maintenance: Mutex<Option<Maintenance>>,
}

impl<C> Shared<C> {
    pub fn new(
        log: Arc<LogState>,
        last: LogPosition,
        last_time: ClusterTime,
        members: Members,
        maintenance: Maintenance,
    ) -> Self {
        Self {
            sequencer: Mutex::new(Sequencer {
                phase: Phase::Running,
                lead: Lead::Following { leader: None },
                last,
                clock: HybridClock::new(last_time, log.options.drift_seconds_max),
                waiting: Work::default(),
                promised: 0,
                deadline_changed: false,
                in_flight_entries: 0,
                in_flight_bytes: 0,
            }),
            work: Condvar::new(),
            room: Notify::new(),
            latest_time: AtomicU64::new(last_time.to_u64()),
            rest_pending: AtomicBool::new(false),
            tick_ms: AtomicU64::new(log.options.tick_ms),
            role: watch::Sender::new(Role::Follower {
                term: members.term,
                leader: None,
            }),
            members: watch::Sender::new(Arc::new(members)),
            maintenance: Mutex::new(Some(maintenance)),
            log,
        }
    }

    pub fn tick(&self) -> Duration {
        Duration::from_millis(self.tick_ms.load(Ordering::Relaxed))
    }

    pub fn set_tick(&self, tick: Duration) {
        let ms = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
        self.tick_ms.store(ms.max(1), Ordering::Relaxed);
    }

    pub fn propose(
        &self,
        evaluated_in: Option<Term>,
        durability: Durability,
        is_promised: bool,
        times: u32,
        mut payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> C,
    ) -> Result<(Applied, oneshot::Receiver<Result<Applied, ProposeError>>), ProposeError> {
        let limit = self.log.options.payload_bytes_max;
        if payload.len() > limit {
            return Err(ProposeError::TooLarge {
                bytes: payload.len(),
                limit,
            });
        }
        let wall_ms = self.log.wall.now_ms();
        let mut sequencer = self.sequencer.lock();
        self.check_open(&sequencer)?;
        check_leads(&sequencer, evaluated_in)?;
        if !self.has_room(&sequencer) {
            return Err(ProposeError::Busy);
        }
        let (term, position, time) = self.next(&sequencer, wall_ms, times)?;
        // Nothing has moved yet: a closure that panics leaves no trace here. Nothing
        // is refused from here on: what it published comes.
        let companion = build(&mut payload, position, time);
        let (answer, answered) = oneshot::channel();
        let proposal = Proposal {
            entry: Entry {
                position,
                term,
                time,
                wall_ms,
                kind: EntryKind::Data,
                payload: Bytes::from(payload),
            },
            companion: Some(companion),
            answer: Some(answer),
        };
        let was_noticed = sequencer.has_unpromised();
        self.push(&mut sequencer, proposal, durability);
        sequencer.promised += usize::from(is_promised);
        drop(sequencer);
        if !is_promised && !was_noticed {
            self.work.notify_one();
        }
        Ok((Applied { position, time }, answered))
    }

    /// Puts a change of members into the queue, room or not. For the loop itself.
    pub fn propose_change(&self, change: ConfigurationChange) -> Result<LogPosition, ProposeError> {
        let wall_ms = self.log.wall.now_ms();
        let mut sequencer = self.sequencer.lock();
        self.check_open(&sequencer)?;
        check_leads(&sequencer, None)?;
        let (term, position, time) = self.next(&sequencer, wall_ms, 1)?;
        let proposal = Proposal {
            entry: Entry {
                position,
                term,
                time,
                wall_ms,
                kind: EntryKind::Configuration(change),
                payload: Bytes::new(),
            },
            companion: None,
            answer: None,
        };
        self.push(&mut sequencer, proposal, Durability::Synced);
        Ok(position)
    }

    fn next(
        &self,
        sequencer: &Sequencer<C>,
        wall_ms: i64,
        times: u32,
    ) -> Result<(Term, LogPosition, ClusterTime), ProposeError> {
        let Lead::Leading { term } = sequencer.lead else {
            return Err(ProposeError::NotLeader { leader: None });
        };
        let time = sequencer
            .clock
            .next(wall_ms, times)
            .ok_or(ProposeError::TimeExhausted)?;
        Ok((term, sequencer.last.next(), time))
    }

    fn push(&self, sequencer: &mut Sequencer<C>, proposal: Proposal<C>, durability: Durability) {
        sequencer.last = proposal.entry.position;
        sequencer.clock.advance(proposal.entry.time);
        self.latest_time
            .store(proposal.entry.time.to_u64(), Ordering::Release);
        let queue = &mut sequencer.waiting.batch;
        queue.bytes += memory_bytes(&proposal.entry);
        queue.needs_sync |= durability == Durability::Synced;
        queue.proposals.push(proposal);
    }

    fn check_open(&self, sequencer: &Sequencer<C>) -> Result<(), ProposeError> {
        match sequencer.phase {
            Phase::Running => Ok(()),
            Phase::Closing | Phase::Ended => Err(ProposeError::Closed),
            Phase::Stopped => Err(ProposeError::Stopped {
                reason: self.stop_reason(),
            }),
        }
    }

    fn has_room(&self, sequencer: &Sequencer<C>) -> bool {
        let options = &self.log.options;
        let queue = &sequencer.waiting.batch;
        queue.bytes + sequencer.in_flight_bytes < options.queue_bytes_max
            && queue.proposals.len() + sequencer.in_flight_entries < options.queue_entries_max
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
                check_leads(&sequencer, None)?;
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

    /// Takes the time of an entry into account that another leader made.
    pub fn advance_clock(&self, time: ClusterTime) {
        if time <= self.latest_time() {
            return;
        }
        let mut sequencer = self.sequencer.lock();
        sequencer.clock.advance(time);
        let latest = sequencer.clock.latest();
        self.latest_time.store(latest.to_u64(), Ordering::Release);
    }

    /// The position of the last proposal, or of the last entry if it is later.
    pub fn last_proposed(&self) -> LogPosition {
        self.sequencer.lock().last.max(self.log.applied())
    }

    /// The term in which proposals are accepted now.
    pub fn leading(&self) -> Result<Term, ProposeError> {
        let sequencer = self.sequencer.lock();
        self.check_open(&sequencer)?;
        check_leads(&sequencer, None)
    }

    /// Accepts proposals from now on, after `last`.
    pub fn lead(&self, term: Term, last: LogPosition, last_time: ClusterTime) {
        let mut sequencer = self.sequencer.lock();
        assert!(
            sequencer.waiting.batch.proposals.is_empty(),
            "nothing is proposed to a follower"
        );
        sequencer.lead = Lead::Leading { term };
        sequencer.last = last;
        sequencer.clock.advance(last_time);
        let latest = sequencer.clock.latest();
        self.latest_time.store(latest.to_u64(), Ordering::Release);
        if self.log.options.faults.time_from_wall {
            sequencer.clock = HybridClock::new(ClusterTime::ZERO, u32::MAX);
        }
    }

    /// Whom to name when a proposal is refused.
    pub fn note_leader(&self, known: Option<MemberId>) {
        if let Lead::Following { leader } = &mut self.sequencer.lock().lead {
            *leader = known;
        }
    }

    /// Accepts no proposals while leadership is handed over; `false` goes back to it.
    pub fn set_handing_over(&self, handing_over: bool) {
        let mut sequencer = self.sequencer.lock();
        sequencer.lead = match sequencer.lead {
            Lead::Leading { term } if handing_over => Lead::HandingOver { term },
            Lead::HandingOver { term } if !handing_over => Lead::Leading { term },
            other => other,
        };
        drop(sequencer);
        self.room.notify_waiters();
    }

    /// Whether it leads and accepts no proposals.
    pub fn is_handing_over(&self) -> bool {
        matches!(self.sequencer.lock().lead, Lead::HandingOver { .. })
    }

    /// Accepts no proposals any more. What was queued comes back; it never reached the
    /// log.
    pub fn follow(&self, leader: Option<MemberId>, last: LogPosition) -> Vec<Proposal<C>> {
        let mut sequencer = self.sequencer.lock();
        sequencer.lead = Lead::Following { leader };
        sequencer.last = last;
        sequencer.in_flight_entries = 0;
        sequencer.in_flight_bytes = 0;
        let queue = std::mem::take(&mut sequencer.waiting.batch);
        sequencer.promised = 0;
        drop(sequencer);
        self.room.notify_waiters();
        queue.proposals
    }

    /// So many entries of so many bytes are no longer in flight.
    pub fn release(&self, entries: usize, bytes: usize) {
        let mut sequencer = self.sequencer.lock();
        sequencer.in_flight_entries = sequencer.in_flight_entries.saturating_sub(entries);
        sequencer.in_flight_bytes = sequencer.in_flight_bytes.saturating_sub(bytes);
        drop(sequencer);
        self.room.notify_waiters();
    }

    /// Gives a packet to the loop, or throws it away if too many wait.
    pub fn receive(&self, envelope: Envelope) {
        let mut sequencer = self.sequencer.lock();
        let full = sequencer.waiting.packets.len() >= self.log.options.inbox_messages_max;
        if full || sequencer.is_over() {
            return;
        }
        let was_noticed = sequencer.has_unpromised();
        sequencer.waiting.packets.push(envelope);
        drop(sequencer);
        if !was_noticed {
            self.work.notify_one();
        }
    }

    /// Gives a request to the loop. It is dropped, and with it its answer, if the group
    /// has stopped.
    pub fn request(&self, request: Request) {
        let mut sequencer = self.sequencer.lock();
        if sequencer.is_over() {
            return;
        }
        let was_noticed = sequencer.has_unpromised();
        sequencer.waiting.requests.push(request);
        drop(sequencer);
        if !was_noticed {
            self.work.notify_one();
        }
    }

    /// Blocks until there is something to do. While the group closes and something is
    /// still `under_way`, only the deadline ends the wait.
    pub fn wait(&self, deadline: Option<Instant>, under_way: bool) -> Wake {
        let mut sequencer = self.sequencer.lock();
        loop {
            // Whoever is awake does not ask what was promised.
            if !sequencer.waiting.is_empty() {
                return Wake::Work;
            }
            if std::mem::take(&mut sequencer.deadline_changed) {
                return Wake::Deadline;
            }
            if sequencer.phase != Phase::Running && !under_way {
                return Wake::Finished;
            }
            match deadline {
                None => self.work.wait(&mut sequencer),
                Some(deadline) => {
                    if self.work.wait_until(&mut sequencer, deadline).timed_out() {
                        return Wake::Deadline;
                    }
                }
            }
        }
    }

    /// The loop has to look at its deadlines again.
    pub fn deadline_changed(&self) {
        self.sequencer.lock().deadline_changed = true;
        self.work.notify_one();
    }

    /// The proposer of a promised proposal keeps its promise now, or gives it up. False
    /// if somebody has taken the proposal before.
    pub fn redeem(&self, position: LogPosition) -> bool {
        let mut sequencer = self.sequencer.lock();
        let proposals = &sequencer.waiting.batch.proposals;
        let waits = proposals
            .first()
            .is_some_and(|first| first.entry.position <= position);
        if waits {
            sequencer.promised = sequencer.promised.saturating_sub(1);
        }
        waits
    }

    /// Whether something waits for somebody to take a turn.
    pub fn has_unpromised(&self) -> bool {
        self.sequencer.lock().has_unpromised()
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Takes what waits if it is only a few proposals, none of which wants a sync.
    pub fn take_small(&self, bytes_max: usize, work: &mut Work<C>) -> bool {
        let mut sequencer = self.sequencer.lock();
        let waiting = &sequencer.waiting;
        let is_small = waiting.packets.is_empty()
            && waiting.requests.is_empty()
            && !waiting.batch.needs_sync
            && waiting.batch.bytes <= bytes_max;
        is_small && sequencer.phase == Phase::Running && self.take_locked(&mut sequencer, work)
    }

    pub fn is_closing(&self) -> bool {
        self.sequencer.lock().phase != Phase::Running
    }

    /// Takes the proposals alone.
    pub fn take_batch(&self) -> Vec<Proposal<C>> {
        let mut sequencer = self.sequencer.lock();
        let batch = std::mem::take(&mut sequencer.waiting.batch);
        sequencer.promised = 0;
        sequencer.in_flight_entries += batch.proposals.len();
        sequencer.in_flight_bytes += batch.bytes;
        batch.proposals
    }

    /// Takes what waits without blocking.
    pub fn take(&self, work: &mut Work<C>) -> bool {
        self.take_locked(&mut self.sequencer.lock(), work)
    }

    fn take_locked(&self, sequencer: &mut Sequencer<C>, work: &mut Work<C>) -> bool {
        if sequencer.waiting.is_empty() {
            return false;
        }
        std::mem::swap(&mut sequencer.waiting, work);
        sequencer.promised = 0;
        sequencer.in_flight_entries += work.batch.proposals.len();
        sequencer.in_flight_bytes += work.batch.bytes;
        work.batch.bytes = 0;
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
        let waiting = {
            let mut sequencer = self.sequencer.lock();
            sequencer.phase = Phase::Stopped;
            std::mem::take(&mut sequencer.waiting)
        };
        for proposal in waiting.batch.proposals {
            proposal.answer(Err(ProposeError::Stopped {
                reason: self.stop_reason(),
            }));
        }
        self.work.notify_one();
        self.room.notify_waiters();
        self.end_progress();
    }

    /// The loop is gone, in good order: nobody waits for it any longer.
    pub fn end(&self) {
        let waiting = {
            let mut sequencer = self.sequencer.lock();
            if sequencer.phase != Phase::Stopped {
                sequencer.phase = Phase::Ended;
            }
            std::mem::take(&mut sequencer.waiting)
        };
        for proposal in waiting.batch.proposals {
            proposal.answer(Err(ProposeError::Closed));
        }
        self.end_progress();
    }

    fn end_progress(&self) {
        self.role.send_replace(Role::Gone);
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

fn check_leads<C>(
    sequencer: &Sequencer<C>,
    evaluated_in: Option<Term>,
) -> Result<Term, ProposeError> {
    match sequencer.lead {
        Lead::Leading { term } if evaluated_in.is_none_or(|evaluated| evaluated == term) => {
            Ok(term)
        }
        Lead::Leading { .. } | Lead::HandingOver { .. } => {
            Err(ProposeError::NotLeader { leader: None })
        }
        Lead::Following { leader } => Err(ProposeError::NotLeader { leader }),
    }
}
