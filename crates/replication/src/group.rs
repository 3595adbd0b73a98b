//! The handle to one replicated log: open, propose, wait, read, pin, close.
//!
//! A [`Group`] is cheap to clone. It decides nothing itself: proposals go to the
//! sequencer, the log's thread commits them, the maintenance thread trims. Dropping the
//! last handle begins to close the group; [`Group::close`] also waits for the end.

use std::future::Future;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use model::time::ClusterTime;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::append::Writer;
use crate::clock::WallClock;
use crate::commit::Driver;
use crate::disk::Disk;
use crate::election::Elections;
use crate::entry::{Applied, Durability, Entry, LogPosition, Term};
use crate::error::{
    ChangeError, DriftError, Error, LeaderError, ProposeError, ReadError, ReceiveError,
};
use crate::log_state::{LogState, Progress};
use crate::member::{MemberId, Members, Role};
use crate::message::decode;
use crate::options::Options;
use crate::recovery::{first_entry, recover};
use crate::sequencer::Shared;
use crate::state_machine::StateMachine;
use crate::transport::Transport;
use crate::trim::{Maintenance, Pin};
use crate::turns::{TakesTurns, Turns};
use crate::work::Request;

/// How often the age of entries is looked at when nothing else wakes the maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(30);
/// Shorter ticks would only keep the loop busy.
const TICK_MIN: Duration = Duration::from_millis(10);

/// One replicated log and the state it leads to.
pub struct Group<S: StateMachine> {
    handle: Arc<Handle<S::Companion>>,
}

impl<S: StateMachine> Clone for Group<S> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
        }
    }
}

struct Handle<C> {
    shared: Arc<Shared<C>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How a proposer takes a turn himself; not without threads.
    turns: Option<Arc<dyn TakesTurns>>,
}

impl<C> Drop for Handle<C> {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl<S: StateMachine> Group<S> {
    /// Opens the log and starts its threads. Blocks while it reads and, if this is a sole
    /// voter, until the state has everything that is in the log: it leads when this
    /// returns. With other voters it follows until somebody is elected.
    pub fn open(
        options: Options,
        disk: Arc<dyn Disk>,
        wall: Arc<dyn WallClock>,
        transport: Arc<dyn Transport>,
        state: S,
    ) -> Result<Self, Error> {
        let (shared, driver) = Self::open_parts(options, disk, wall, transport, state)?;
        let turns = Arc::new(Turns::new(shared.clone(), driver));
        let group = Self::of(shared.clone(), Some(turns.clone()));
        let spawn = |name: &str, life: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(life)
                .map_err(Error::disk("starting a thread"))
        };
        // First the one that ends by itself when the other cannot be started.
        let maintenance = spawn("log-maintenance", Box::new(move || maintain(&shared)))?;
        let commit = spawn("log", Box::new(move || turns.run()))?;
        group.handle.threads.lock().extend([commit, maintenance]);
        Ok(group)
    }

    fn of(shared: Arc<Shared<S::Companion>>, turns: Option<Arc<dyn TakesTurns>>) -> Self {
        let handle = Arc::new(Handle {
            shared,
            threads: Mutex::default(),
            turns,
        });
        Self { handle }
    }

    /// The same without threads: nothing happens except in the driver's steps and in
    /// [`Group::maintain`].
    pub fn open_stepped(
        options: Options,
        disk: Arc<dyn Disk>,
        wall: Arc<dyn WallClock>,
        transport: Arc<dyn Transport>,
        state: S,
    ) -> Result<(Self, Driver<S>), Error> {
        let (shared, driver) = Self::open_parts(options, disk, wall, transport, state)?;
        Ok((Self::of(shared, None), driver))
    }

    #[expect(clippy::type_complexity, reason = "two parts of one thing")]
    fn open_parts(
        options: Options,
        disk: Arc<dyn Disk>,
        wall: Arc<dyn WallClock>,
        transport: Arc<dyn Transport>,
        state: S,
    ) -> Result<(Arc<Shared<S::Companion>>, Driver<S>), Error> {
        options.check()?;
        let log = Arc::new(LogState::new(options, disk, wall));
        let mut syncer = state.syncer();
        let recovered = recover(&log, &state, &mut syncer)?;
        let mut writer = Writer::new(log.clone(), &recovered.end);
        if writer.last() == LogPosition::BEFORE_FIRST
            && let Some(first) = first_entry(&recovered.member.state)
        {
            let failed = || Error::disk("beginning the log");
            writer.append(&first).map_err(failed())?;
            writer.flush().map_err(failed())?;
            writer.sync().map_err(failed())?;
        }
        log.publish(Applied {
            position: state.applied(),
            time: state.applied_time().unwrap_or(ClusterTime::ZERO),
        });
        let members = Members {
            me: log.options.member,
            term: recovered.member.state.term,
            leader: None,
            configuration: recovered.member.state.configuration.clone(),
            configuration_position: recovered.member.state.configuration_position,
            progress: Vec::new(),
            elections: Elections::default(),
        };
        let shared = Arc::new(Shared::new(
            log.clone(),
            writer.last(),
            writer.last_time(),
            members,
            Maintenance::new(log, syncer),
        ));
        let mut driver = Driver::new(shared.clone(), state, writer, recovered.member, transport)?;
        driver.begin()?;
        Ok((shared, driver))
    }

    /// Puts an entry into the log. The closure is given the payload, whose length stays,
    /// and the entry's position and time; it runs at once, in the order of the log, and
    /// should be short. The answer comes when the entry is applied.
    ///
    /// An error means that nothing was appended. [`ProposeError::Busy`] passes: wait with
    /// [`Group::ready`]. The closure does not run if the proposal is refused, so it may publish
    /// what the entry brings.
    pub fn propose(
        &self,
        durability: Durability,
        payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> S::Companion,
    ) -> Result<Pending, ProposeError> {
        self.propose_several(None, durability, 1, payload, build)
    }

    /// The same for what was evaluated against the latest state and what was proposed on
    /// top of it: refused unless this member has led without interruption since it led in
    /// `term`. See [`Group::leading`].
    pub fn propose_in(
        &self,
        term: Term,
        durability: Durability,
        payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> S::Companion,
    ) -> Result<Pending, ProposeError> {
        self.propose_several(Some(term), durability, 1, payload, build)
    }

    /// The same for an entry that takes so many times, of which its own is the last. The
    /// others are times of its second, right before it, and no other entry's.
    pub fn propose_several(
        &self,
        term: Option<Term>,
        durability: Durability,
        times: u32,
        payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> S::Companion,
    ) -> Result<Pending, ProposeError> {
        self.put(term, durability, times, None, payload, build)
    }

    /// The same for a proposer that awaits the answer at once. ⚑ On that relies whoever
    /// comes next: the log's thread is not woken if the proposer can do its work as well, when
    /// it first polls ([`turns.rs`](crate::turns)).
    pub fn propose_awaited(
        &self,
        term: Option<Term>,
        durability: Durability,
        times: u32,
        payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> S::Companion,
    ) -> Result<Pending, ProposeError> {
        let turns = match durability {
            Durability::Buffered => self.handle.turns.clone(),
            Durability::Synced => None,
        };
        self.put(term, durability, times, turns, payload, build)
    }

    fn put(
        &self,
        term: Option<Term>,
        durability: Durability,
        times: u32,
        promised: Option<Arc<dyn TakesTurns>>,
        payload: Vec<u8>,
        build: impl FnOnce(&mut [u8], LogPosition, ClusterTime) -> S::Companion,
    ) -> Result<Pending, ProposeError> {
        let shared = &self.handle.shared;
        let is_promised = promised.is_some();
        let (given, answered) =
            shared.propose(term, durability, is_promised, times, payload, build)?;
        Ok(Pending {
            given,
            answered,
            promised,
        })
    }

    /// The term in which this member leads: to be asked before evaluating, and to be named
    /// when proposing what was evaluated.
    pub fn leading(&self) -> Result<Term, ProposeError> {
        self.handle.shared.leading()
    }

    /// The longest payload that is accepted.
    pub fn payload_bytes_max(&self) -> usize {
        self.log().options.payload_bytes_max
    }

    /// What this member is to the group, and when that changes.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.handle.shared.role.subscribe()
    }

    /// The members and how far each is, as this member knows it.
    pub fn members(&self) -> Arc<Members> {
        let published = self.handle.shared.members.borrow().clone();
        let log = self.log();
        let own = published.of(published.me);
        let (synced, applied) = (Some(log.synced()), Some(log.applied()));
        if own.is_none_or(|own| {
            own.matched == synced && own.committed >= applied && own.applied == applied
        }) {
            return published;
        }
        // What this member does without others is not published each time.
        let mut members = (*published).clone();
        for own in &mut members.progress {
            if own.member == members.me {
                own.matched = synced;
                own.committed = own.committed.max(applied);
                own.applied = applied;
            }
        }
        Arc::new(members)
    }

    /// The same, followed. A sole member does not tell of its own progress this way; it is
    /// what [`Group::watch`] follows.
    pub fn watch_members(&self) -> watch::Receiver<Arc<Members>> {
        self.handle.shared.members.subscribe()
    }

    /// Returns when this member is known to lead, by a majority that was asked after the
    /// call, and has applied everything that was acknowledged to anybody before the call.
    /// A read that begins then is linearizable. Waits as long as no majority answers: set
    /// a deadline.
    pub async fn read_barrier(&self) -> Result<LogPosition, LeaderError> {
        let (answer, answered) = oneshot::channel();
        self.handle.shared.request(Request::Barrier(answer));
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(LeaderError::Stopped {
                reason: self.handle.shared.stop_reason(),
            }),
        }
    }

    /// Hands leadership over to a voter, or to the one that is furthest. Until it is done,
    /// or given up after an election timeout, proposals are refused.
    pub async fn transfer(&self, to: Option<MemberId>) -> Result<(), LeaderError> {
        let (answer, answered) = oneshot::channel();
        self.handle.shared.request(Request::Transfer { to, answer });
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(LeaderError::Stopped {
                reason: self.handle.shared.stop_reason(),
            }),
        }
    }

    /// Whether proposals are refused because leadership is being handed over.
    pub fn is_handing_over(&self) -> bool {
        self.handle.shared.is_handing_over()
    }

    /// Leads no longer, whoever may lead next. Others notice after an election timeout; so that
    /// this member is not elected again, let it rest first.
    pub async fn step_down(&self) -> Result<(), LeaderError> {
        let (answer, answered) = oneshot::channel();
        self.handle.shared.request(Request::StepDown(answer));
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(LeaderError::Stopped {
                reason: self.handle.shared.stop_reason(),
            }),
        }
    }

    /// How long a follower that hears nothing waits before it asks for votes (or up to half
    /// as long again). All else that is measured in ticks, heartbeats among it, changes with
    /// it. All members should be told the same.
    pub fn set_election_timeout(&self, timeout: Duration) {
        let ticks = self.log().options.election_ticks as u32;
        let tick = (timeout / ticks).max(TICK_MIN);
        self.handle.shared.set_tick(tick);
    }

    /// What was told last.
    pub fn election_timeout(&self) -> Duration {
        self.handle.shared.tick() * self.log().options.election_ticks as u32
    }

    /// Does not ask for votes for some time, and is handed no leadership. Zero ends that. If it
    /// leads, it leads on.
    pub fn rest(&self, time: Duration) {
        let tick = self.handle.shared.tick();
        let ticks = time.as_nanos().div_ceil(tick.as_nanos().max(1));
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        // A packet that is taken together with the request must find it done.
        let pending = &self.handle.shared.rest_pending;
        pending.store(ticks > 0, Ordering::SeqCst);
        self.handle.shared.request(Request::Rest { ticks });
    }

    /// Asks for votes now instead of after an election timeout. Whether it wins is seen in
    /// the role.
    pub fn campaign(&self) {
        self.handle.shared.request(Request::Campaign);
    }

    /// Makes these the members, through a joint configuration if more than one differs.
    /// A member that is new should first be a learner until it has caught up.
    pub async fn change_members(
        &self,
        voters: &[MemberId],
        learners: &[MemberId],
    ) -> Result<(), ChangeError> {
        let (answer, answered) = oneshot::channel();
        self.handle.shared.request(Request::Change {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
            answer,
        });
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => Err(ProposeError::OutcomeUnknown {
                reason: self.handle.shared.stop_reason(),
            }
            .into()),
        }
    }

    /// Takes a packet that another member's [`Transport`] has sent.
    pub fn receive(&self, packet: &[u8]) -> Result<(), ReceiveError> {
        let envelope = decode(self.log().options.group, packet)?;
        if envelope.to != self.log().options.member {
            return Err(ReceiveError::ForeignMember);
        }
        self.handle.shared.receive(envelope);
        Ok(())
    }

    /// Says that packets to a member do not arrive, so that not too many are wasted.
    pub fn unreachable(&self, member: MemberId) {
        self.handle.shared.request(Request::Unreachable(member));
    }

    /// Says that a member's process has ended, as somebody has seen who knows it for sure. Who followed
    /// it does not wait any longer to hear of it.
    pub fn gone(&self, member: MemberId) {
        self.handle.shared.request(Request::Gone(member));
    }

    /// Waits until there is room in the queue. Others may take it first.
    pub async fn ready(&self) -> Result<(), ProposeError> {
        self.handle.shared.ready().await
    }

    /// Applied entries after a position, in order: at least one if there is one, then as
    /// many as stay within `bytes_max`. Nothing is skipped silently. Reading what is no
    /// longer in memory blocks on the disk.
    pub fn read(&self, after: LogPosition, bytes_max: usize) -> Result<Vec<Entry>, ReadError> {
        self.log().read(after, bytes_max)
    }

    /// The position after which [`Group::read`] gives exactly the entries at or after
    /// `time`.
    pub fn position_at_time(&self, time: ClusterTime) -> Result<LogPosition, ReadError> {
        self.log().position_at_time(time)
    }

    /// The position of the oldest entry in the log (of the next one if it is empty).
    pub fn first_position(&self) -> LogPosition {
        self.log().first()
    }

    /// Behind which position somebody keeps it.
    pub fn pinned(&self) -> Option<LogPosition> {
        let pins = self.log().pins.lock();
        pins.counts.first_key_value().map(|(after, _)| *after)
    }

    /// What it holds behind a position, counted in whole files but the last.
    pub fn bytes_behind(&self, after: LogPosition) -> u64 {
        let segments = self.log().segments.read();
        let ends = segments.iter().skip(1).map(|next| next.header.previous);
        let full = segments.iter().zip(ends).filter(|(_, end)| *end > after);
        full.map(|(segment, _)| segment.bytes).sum::<u64>() + self.log().written_bytes()
    }

    /// What the log holds, and what it may hold before its oldest part leaves.
    pub fn bytes(&self) -> LogBytes {
        let segments = self.log().segments.read();
        let full = segments.split_last().map_or(0, |(_, full)| {
            full.iter().map(|segment| segment.bytes).sum()
        });
        LogBytes {
            stored: full + self.log().written_bytes(),
            window: self.log().options.window_bytes,
        }
    }

    pub fn last_applied(&self) -> LogPosition {
        self.log().applied()
    }

    /// The last entry that this member has on its disk for sure.
    pub fn last_synced(&self) -> LogPosition {
        self.log().synced()
    }

    /// The last entry that was written; it may not be synced or applied yet.
    pub fn last_appended(&self) -> LogPosition {
        self.log().appended()
    }

    /// The position of the last proposal that was accepted, applied or not.
    pub fn last_proposed(&self) -> LogPosition {
        self.handle.shared.last_proposed()
    }

    /// Waits until everything that was proposed so far is applied. Fails if leadership is
    /// lost meanwhile.
    pub async fn wait_proposed(&self) -> Result<(), ProposeError> {
        let term = self.leading()?;
        let last = self.last_proposed();
        let mut role = self.role();
        let lost = role.wait_for(|role| *role != Role::Leader { term });
        let applied = self.wait_applied(last);
        let (mut lost, mut applied) = (std::pin::pin!(lost), std::pin::pin!(applied));
        std::future::poll_fn(move |context| {
            if let Poll::Ready(outcome) = applied.as_mut().poll(context) {
                return Poll::Ready(outcome.map_err(|error| ProposeError::Stopped {
                    reason: Arc::from(error.to_string()),
                }));
            }
            match lost.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(Err(ProposeError::NotLeader { leader: None })),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// The latest term that this member knows of.
    pub fn term(&self) -> Term {
        self.handle.shared.members.borrow().term
    }

    /// The greatest cluster time given or observed.
    pub fn latest_time(&self) -> ClusterTime {
        self.handle.shared.latest_time()
    }

    /// Takes a time from outside into account: all times given from now on are greater.
    pub fn observe(&self, time: ClusterTime) -> Result<(), DriftError> {
        self.handle.shared.observe(time)
    }

    /// Follows what is applied, for those who tail the log.
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.log().progress.subscribe()
    }

    /// Waits until everything up to a position is applied.
    pub async fn wait_applied(&self, position: LogPosition) -> Result<(), ReadError> {
        let mut progress = self.watch();
        let reached = progress
            .wait_for(|progress| progress.applied >= position || !progress.running)
            .await;
        match reached {
            Ok(progress) if progress.applied >= position => Ok(()),
            Ok(_) | Err(_) => Err(ReadError::Stopped {
                reason: self.handle.shared.stop_reason(),
            }),
        }
    }

    /// Keeps the entries after a position in the log while the pin lives.
    pub fn pin(&self, after: LogPosition) -> Result<Pin, ReadError> {
        Pin::new(self.handle.shared.log.clone(), after)
    }

    /// Why the group stopped for good, if it did.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.log().stop_reason.get().cloned()
    }

    /// Trims the log and prepares spare segments now, on this thread.
    pub fn maintain(&self) {
        maintenance_pass(&self.handle.shared);
    }

    /// Refuses new proposals, finishes those that are queued, syncs the log, and waits
    /// for the threads, which drop the state machine. Blocks.
    pub fn close(&self) -> Result<(), Error> {
        self.handle.shared.begin_close();
        let threads = std::mem::take(&mut *self.handle.threads.lock());
        for thread in threads {
            // A thread that panicked has stopped the group on its way out.
            let _ = thread.join();
        }
        *self.handle.shared.maintenance.lock() = None;
        match self.stopped() {
            None => Ok(()),
            Some(reason) => Err(Error::Stopped { reason }),
        }
    }

    fn log(&self) -> &LogState {
        &self.handle.shared.log
    }
}

fn maintenance_pass<C>(shared: &Shared<C>) {
    if shared.log.stop_reason.get().is_some() {
        return;
    }
    if let Some(maintenance) = shared.maintenance.lock().as_mut()
        && let Err(reason) = maintenance.pass()
    {
        shared.stop(&reason);
    }
}

/// A maintenance thread that panics takes the group with it: a log that is never trimmed
/// would fill the disk in silence.
struct StopOnPanic<'a, C>(&'a Shared<C>);

impl<C> Drop for StopOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop("the log's maintenance has ended unexpectedly");
        }
    }
}

/// The life of the maintenance thread.
fn maintain<C>(shared: &Shared<C>) {
    let _guard = StopOnPanic(shared);
    let log = &shared.log;
    loop {
        {
            let mut signal = log.maintenance_signal.lock();
            if !signal.wanted && !signal.closing {
                log.maintenance_wakeup
                    .wait_for(&mut signal, MAINTENANCE_INTERVAL);
            }
            if signal.closing {
                break;
            }
            signal.wanted = false;
        }
        maintenance_pass(shared);
    }
    *shared.maintenance.lock() = None;
}

/// The size of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBytes {
    pub stored: u64,
    /// More is kept while it is young.
    pub window: u64,
}

/// A proposal under way: a future of its outcome.
#[must_use = "the outcome of a proposal is known only when it is awaited"]
pub struct Pending {
    given: Applied,
    answered: oneshot::Receiver<Result<Applied, ProposeError>>,
    /// Until it is first polled: it takes the log's turn then.
    promised: Option<Arc<dyn TakesTurns>>,
}

impl Pending {
    /// The position and time that were given, whatever comes of it.
    pub fn given(&self) -> Applied {
        self.given
    }

    /// Waits on a thread that is not part of an async runtime.
    pub fn wait(mut self) -> Result<Applied, ProposeError> {
        self.keep_promise();
        let (_, answered) = oneshot::channel();
        let answered = std::mem::replace(&mut self.answered, answered);
        answered.blocking_recv().unwrap_or_else(|_| lost())
    }

    fn keep_promise(&mut self) {
        if let Some(turns) = self.promised.take() {
            turns.keep_promise(self.given.position);
        }
    }

    /// The outcome if it is there already.
    pub fn poll_now(&mut self) -> Option<Result<Applied, ProposeError>> {
        self.keep_promise();
        match self.answered.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(lost()),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(turns) = self.promised.take() {
            turns.give_up_promise(self.given.position);
        }
    }
}

impl Future for Pending {
    type Output = Result<Applied, ProposeError>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.keep_promise();
        Pinned::new(&mut self.answered)
            .poll(context)
            .map(|answer| answer.unwrap_or_else(|_| lost()))
    }
}

/// The loop went away with the answer.
fn lost() -> Result<Applied, ProposeError> {
    Err(ProposeError::OutcomeUnknown {
        reason: Arc::from("the log's loop has ended unexpectedly"),
    })
}
