//! What runs right now: each command is an operation with an id, a deadline and a way to be killed.
//!
//! ```text
//!   begin ──► running ──► dropped: it is listed no more
//!               │ killed, its cursor killed, its client gone, stepped down, the process ends
//!               ▼
//!          interrupted ── the next check, or whoever waits, ends it
//! ```
//!
//! Long loops call [`Operation::check`] between steps; it answers with the error that ends them. A killed
//! operation ends at its next check, never in the middle of a write. What only reads also ends when its
//! client has gone; a write goes on, because a client may send one and hang up.
//!
//! An operation is interrupted once: a second reason to end adds nothing.
//!
//! Roles keep more of an operation than is known here, so [`Operations`] holds whatever has one inside.

mod current;
mod kill;
mod progress;
mod report;

pub use current::{check, current, inherited, within};
pub use kill::kill_target;
pub use progress::Progress;

use crate::connection::ConnectionInfo;
use bytes::Bytes;
use model::bson::Doc;
use model::{Code, Error, SessionId};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often a computing operation looks whether its client is still there.
const LOOK_FOR_HANGUP_MS: u64 = 100;

/// How often one that waits does.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Why an operation is to end before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    Killed,
    /// The cursor that it works for was killed.
    CursorKilled,
    /// Nobody waits for its answer.
    ClientGone,
    /// Its time is over.
    TimeLimit,
    /// This member is not the primary any more.
    SteppedDown,
    Shutdown,
}

impl Interruption {
    pub fn error(self) -> Error {
        let (code, message) = match self {
            Interruption::Killed => (Code::INTERRUPTED, "operation was interrupted"),
            Interruption::CursorKilled => (Code::CURSOR_KILLED, "cursor was killed"),
            Interruption::ClientGone => (
                Code::CLIENT_DISCONNECT,
                "operation was interrupted because a client disconnected",
            ),
            Interruption::TimeLimit => (Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"),
            Interruption::SteppedDown => (
                Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                "operation was interrupted",
            ),
            Interruption::Shutdown => (Code::INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown"),
        };
        Error::new(code, message)
    }
}

/// One command under way.
pub struct Operation {
    pub id: i32,
    pub started: Instant,
    pub connection: Arc<ConnectionInfo>,
    /// The command document, for `currentOp`.
    pub command: Bytes,
    deadline: Mutex<Option<Instant>>,
    interruption: OnceLock<Interruption>,
    /// Wakes those who wait when `interruption` is set.
    signal: Notify,
    ends_with_client: bool,
    /// The session it belongs to, and whether it has a transaction number.
    session: OnceLock<(SessionId, bool)>,
    /// When to look for the client again, in milliseconds after the start.
    next_look_ms: AtomicU64,
}

impl Operation {
    fn new(id: i32, connection: &Arc<ConnectionInfo>, command: Bytes) -> Operation {
        Operation {
            id,
            started: Instant::now(),
            connection: connection.clone(),
            ends_with_client: ends_with_client(&command),
            command,
            deadline: Mutex::new(None),
            interruption: OnceLock::new(),
            signal: Notify::new(),
            session: OnceLock::new(),
            next_look_ms: AtomicU64::new(LOOK_FOR_HANGUP_MS),
        }
    }

    pub fn set_time_limit(&self, limit: Duration) {
        *self.deadline.lock() = self.started.checked_add(limit);
    }

    /// For limits that say how long to wait, not how long to work.
    pub fn lift_time_limit(&self) {
        *self.deadline.lock() = None;
    }

    pub fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock()
    }

    /// Told once, when the command has been read.
    pub fn set_session(&self, session: SessionId, is_numbered: bool) {
        let _ = self.session.set((session, is_numbered));
    }

    pub fn session(&self) -> Option<SessionId> {
        self.session.get().map(|(session, _)| *session)
    }

    /// Whether it holds or awaits its session's history.
    pub fn is_numbered(&self) -> bool {
        self.session.get().is_some_and(|(_, numbered)| *numbered)
    }

    pub fn kill(&self) {
        self.interrupt(Interruption::Killed);
    }

    pub fn kill_cursor(&self) {
        self.interrupt(Interruption::CursorKilled);
    }

    pub fn interrupt(&self, why: Interruption) {
        // A second reason to end adds nothing.
        let _ = self.interruption.set(why);
        self.signal.notify_waiters();
    }

    /// Completes when the operation is to end before its time.
    pub async fn interrupted(&self) {
        let mut signal = pin!(self.signal.notified());
        // Registered before it is asked, so that no signal falls between the two.
        signal.as_mut().enable();
        if self.interruption.get().is_none() {
            signal.await;
        }
    }

    /// Waits for something, unless the operation is to end before that. It looks for the client itself,
    /// so it may wait where nobody else does.
    pub async fn wait_for<T>(&self, awaited: impl Future<Output = T>) -> Result<T, Error> {
        let mut awaited = pin!(awaited);
        loop {
            self.check()?;
            tokio::select! {
                biased;
                done = &mut awaited => return Ok(done),
                () = self.interrupted() => {}
                // Clients may hang up, and time limits end.
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Waits within the task of the connection, which notices by itself when the client goes: no timer is
    /// needed for that, so it costs little more than what is waited for.
    pub async fn wait_on_connection<T>(
        &self,
        awaited: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let mut awaited = pin!(awaited);
        let gone = async {
            match self.ends_with_client {
                true => self.connection.closed().await,
                false => std::future::pending().await,
            }
        };
        let late = async {
            match self.deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = &mut awaited => return Ok(done),
            () = self.interrupted() => {}
            () = gone => self.interrupt(Interruption::ClientGone),
            () = late => self.interrupt(Interruption::TimeLimit),
        }
        let why = self.interruption.get().copied();
        Err(why.unwrap_or(Interruption::Killed).error())
    }

    /// Interrupts it if its client has gone or its time is over, for those who wait in several places.
    pub fn look(&self) {
        if let Some(why) = self.reason_to_end() {
            self.interrupt(why);
        }
    }

    pub fn is_killed(&self) -> bool {
        self.interruption.get().is_some()
    }

    /// The error that ends this operation now, if any. Cheap enough for every
    /// hundredth step of a loop, not for every one.
    pub fn check(&self) -> Result<(), Error> {
        self.reason_to_end().map_or(Ok(()), |why| Err(why.error()))
    }

    fn reason_to_end(&self) -> Option<Interruption> {
        if let Some(why) = self.interruption.get() {
            return Some(*why);
        }
        let now = Instant::now();
        if self.ends_with_client && self.client_is_gone(now) {
            return Some(Interruption::ClientGone);
        }
        let deadline = self.deadline();
        (deadline.is_some_and(|deadline| now >= deadline)).then_some(Interruption::TimeLimit)
    }

    fn client_is_gone(&self, now: Instant) -> bool {
        let running_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        if running_ms < self.next_look_ms.load(Ordering::Relaxed) {
            return self.connection.is_closed();
        }
        self.next_look_ms
            .store(running_ms + LOOK_FOR_HANGUP_MS, Ordering::Relaxed);
        self.connection.look_for_hangup()
    }
}

/// Whether a command is of no use to anybody once its client has gone.
fn ends_with_client(command: &[u8]) -> bool {
    let first = Doc::from_validated(command).first();
    !matches!(
        first.map(|first| first.key_bytes()),
        Some(
            b"insert"
                | b"update"
                | b"delete"
                | b"findAndModify"
                | b"findandmodify"
                | b"createIndexes"
        )
    )
}

/// Whether a command reads and writes nothing, so that nothing is lost if it ends half-way.
pub fn only_reads(command: &str) -> bool {
    matches!(
        command,
        "find"
            | "getMore"
            | "aggregate"
            | "count"
            | "distinct"
            | "explain"
            | "listCollections"
            | "listIndexes"
            | "collStats"
            | "dbStats"
            | "dataSize"
            | "validate"
    )
}

/// All operations of one role.
pub struct Operations<O = Operation> {
    next_id: AtomicI32,
    shutting_down: AtomicBool,
    running: Mutex<HashMap<i32, Arc<O>, foldhash::fast::FixedState>>,
}

/// Registered while it lives.
pub struct Registered<'a, O: Borrow<Operation> = Operation> {
    operations: &'a Operations<O>,
    operation: Arc<O>,
}

impl<O: Borrow<Operation> + From<Operation>> Default for Operations<O> {
    fn default() -> Self {
        Self {
            next_id: AtomicI32::new(1),
            shutting_down: AtomicBool::new(false),
            running: Mutex::new(HashMap::with_hasher(foldhash::fast::FixedState::with_seed(
                3,
            ))),
        }
    }
}

impl<O: Borrow<Operation> + From<Operation>> Operations<O> {
    pub fn begin(&self, connection: &Arc<ConnectionInfo>, command: Bytes) -> Registered<'_, O> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(O::from(Operation::new(id, connection, command)));
        self.running.lock().insert(id, operation.clone());
        // Asked after it is listed: whoever interrupts all has either seen it or is seen here.
        if self.shutting_down.load(Ordering::SeqCst) {
            (*operation).borrow().interrupt(Interruption::Shutdown);
        }
        Registered {
            operations: self,
            operation,
        }
    }

    pub fn get(&self, id: i32) -> Option<Arc<O>> {
        self.running.lock().get(&id).cloned()
    }

    /// Ends what runs, and what still begins, because the process ends.
    pub fn interrupt_for_shutdown(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        self.interrupt_if(Interruption::Shutdown, |_| true);
    }

    /// Ends the operations of sessions, except one.
    pub fn kill_of_sessions(&self, is_meant: &dyn Fn(&SessionId) -> bool, except: i32) {
        self.interrupt_if(Interruption::Killed, |operation| {
            operation.id != except && operation.session().is_some_and(|id| is_meant(&id))
        });
    }

    /// Ends the operations that hold or await their session's history: others may go on with it.
    pub fn interrupt_numbered(&self) {
        self.interrupt_if(Interruption::SteppedDown, Operation::is_numbered);
    }

    fn interrupt_if(&self, why: Interruption, is_meant: impl Fn(&Operation) -> bool) {
        for operation in self.running.lock().values() {
            let operation: &Operation = (**operation).borrow();
            if is_meant(operation) {
                operation.interrupt(why);
            }
        }
    }

    /// All running operations, oldest first.
    pub fn all(&self) -> Vec<Arc<O>> {
        let mut all: Vec<_> = self.running.lock().values().cloned().collect();
        all.sort_by_key(|operation| (**operation).borrow().started);
        all
    }
}

impl<O: Borrow<Operation>> std::ops::Deref for Registered<'_, O> {
    type Target = Arc<O>;
    fn deref(&self) -> &Arc<O> {
        &self.operation
    }
}

impl<O: Borrow<Operation>> Drop for Registered<'_, O> {
    fn drop(&mut self) {
        let id = (*self.operation).borrow().id;
        self.operations.running.lock().remove(&id);
    }
}
