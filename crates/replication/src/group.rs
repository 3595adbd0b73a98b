//! The handle to one replicated log: open, propose, wait, read, pin, close.
//!
//! A [`Group`] is cheap to clone. It decides nothing itself: proposals go to the
//! sequencer, the log's thread commits them, the maintenance thread trims. Dropping the
//! last handle begins to close the group; [`Group::close`] also waits for the end.

use std::future::Future;
use std::pin::Pin as Pinned;
use std::sync::Arc;
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
use crate::entry::{Applied, Durability, Entry, LogPosition, Term};
use crate::error::{DriftError, Error, ProposeError, ReadError};
use crate::log_state::{LogState, Progress};
use crate::options::Options;
use crate::recovery::recover;
use crate::sequencer::Shared;
use crate::state_machine::StateMachine;
use crate::trim::{Maintenance, Pin};

/// How often the age of entries is looked at when nothing else wakes the maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(30);

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
}

impl<C> Drop for Handle<C> {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl<S: StateMachine> Group<S> {
    /// Opens the log, brings the state up to its end, and starts its threads. Blocks
    /// while it replays.
    pub fn open(
        options: Options,
        disk: Arc<dyn Disk>,
        wall: Arc<dyn WallClock>,
        state: S,
    ) -> Result<Self, Error> {
        let (group, driver) = Self::open_stepped(options, disk, wall, state)?;
        let shared = group.handle.shared.clone();
        let spawn = |name: &str, life: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(life)
                .map_err(Error::disk("starting a thread"))
        };
        // First the one that ends by itself when the other cannot be started.
        let maintenance = spawn("log-maintenance", Box::new(move || maintain(&shared)))?;
        let commit = spawn("log", Box::new(move || driver.run()))?;
        group.handle.threads.lock().extend([commit, maintenance]);
        Ok(group)
    }

    /// The same without threads: nothing happens except in the driver's steps and in
    /// [`Group::maintain`].
    pub fn open_stepped(
        options: Options,
        disk: Arc<dyn Disk>,
        wall: Arc<dyn WallClock>,
        mut state: S,
    ) -> Result<(Self, Driver<S>), Error> {
        options.check()?;
        let log = Arc::new(LogState::new(options, disk, wall));
        let mut syncer = state.syncer();
        let end = recover(&log, &mut state, &mut syncer)?;
        let writer = Writer::new(log.clone(), &end);
        let maintenance = Maintenance::new(log.clone(), syncer);
        let shared = Arc::new(Shared::new(
            log,
            end.last_term.next(),
            end.last,
            end.last_time,
            maintenance,
        ));
        let driver = Driver::new(shared.clone(), state, writer);
        let handle = Arc::new(Handle {
            shared,
            threads: Mutex::default(),
        });
        Ok((Self { handle }, driver))
    }

    /// Puts an entry into the log. The closure is given the entry's position and time
    /// and returns its payload; it runs at once, in the order of the log, and should be
    /// short. The answer comes when the entry is applied.
    ///
    /// An error means that nothing was appended. [`ProposeError::Busy`] passes: wait with
    /// [`Group::ready`].
    pub fn propose(
        &self,
        durability: Durability,
        build: impl FnOnce(LogPosition, ClusterTime) -> (Vec<u8>, S::Companion),
    ) -> Result<Pending, ProposeError> {
        let (given, answered) = self.handle.shared.propose(durability, build)?;
        Ok(Pending { given, answered })
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

    pub fn last_applied(&self) -> LogPosition {
        self.log().applied()
    }

    /// The last entry that was written; it may not be synced or applied yet.
    pub fn last_appended(&self) -> LogPosition {
        self.log().appended()
    }

    pub fn term(&self) -> Term {
        self.handle.shared.term
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

/// A proposal under way: a future of its outcome.
#[must_use = "the outcome of a proposal is known only when it is awaited"]
pub struct Pending {
    given: Applied,
    answered: oneshot::Receiver<Result<Applied, ProposeError>>,
}

impl Pending {
    /// The position and time that were given, whatever comes of it.
    pub fn given(&self) -> Applied {
        self.given
    }

    /// Waits on a thread that is not part of an async runtime.
    pub fn wait(self) -> Result<Applied, ProposeError> {
        self.answered.blocking_recv().unwrap_or_else(|_| lost())
    }

    /// The outcome if it is there already.
    pub fn poll_now(&mut self) -> Option<Result<Applied, ProposeError>> {
        match self.answered.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(lost()),
        }
    }
}

impl Future for Pending {
    type Output = Result<Applied, ProposeError>;

    fn poll(mut self: Pinned<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
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
