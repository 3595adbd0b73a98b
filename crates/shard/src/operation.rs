//! What runs right now: each command is an operation with an id, a deadline
//! and a way to be killed.
//!
//! Long loops call [`Operation::check`] between steps; it answers with the error
//! that ends them. A killed operation ends at its next check, never in the
//! middle of a write. What only reads also ends when its client has gone; a
//! write goes on, because a client may send one and hang up.
//!
//! What a command has parsed may outlive it in a cursor, and its expressions
//! still ask the operation they were parsed for. So a cursor's getMore takes
//! that operation's place ([`Operation::continue_as`]).

use crate::read::Planned;
use crate::session::SessionId;
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use foldhash::fast::FixedState;
use model::bson::Doc;
use model::{Code, Error};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use wire::ConnectionInfo;

/// How often a computing operation looks whether its client is still there.
const LOOK_FOR_HANGUP_MS: u64 = 100;

/// How often one that waits does.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Why an operation is to end before its time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interruption {
    Killed,
    /// The cursor that it works for was killed.
    CursorKilled,
    /// This member is not the primary any more.
    SteppedDown,
    Shutdown,
}

/// One command under way.
pub(crate) struct Operation {
    pub(crate) id: i32,
    pub(crate) started: Instant,
    pub(crate) connection: Arc<ConnectionInfo>,
    /// The command document, for `currentOp`.
    pub(crate) command: Bytes,
    deadline: Mutex<Option<Instant>>,
    interruption: OnceLock<Interruption>,
    /// Wakes one who waits when `interruption` is set.
    interrupted: Notify,
    ends_with_client: bool,
    /// The session it belongs to, and whether it has a transaction number.
    session: OnceLock<(SessionId, bool)>,
    /// When to look for the client again, in milliseconds after the start.
    next_look_ms: AtomicU64,
    /// Whether it was found to be costly: see `command/apart.rs`.
    runs_apart: AtomicBool,
    /// Whether it goes on with a change stream, whose driver resumes it after some errors.
    is_of_stream: AtomicBool,
    /// The getMore that goes on with what this one began.
    successor: ArcSwapOption<Operation>,
    /// Whether anything was written for it.
    has_written: AtomicBool,
    /// The plan of its first search, for `currentOp`.
    plan: OnceLock<Arc<Planned>>,
}

impl query::context::Interrupt for Operation {
    fn check(&self) -> Result<(), Error> {
        match &*self.successor.load() {
            Some(successor) => successor.check(),
            None => Operation::check(self),
        }
    }
}

impl Operation {
    /// From now on another operation runs what was parsed for this one.
    pub(crate) fn continue_as(&self, successor: &Arc<Operation>) {
        self.successor.store(Some(successor.clone()));
    }

    /// Says that something was written for it, whatever becomes of the rest.
    pub(crate) fn note_write(&self) {
        self.has_written.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Tells with which plan it searches. Searches within the first one are not told.
    pub(crate) fn show_plan(&self, plan: &Arc<Planned>) {
        if self.plan.get().is_none() {
            let _ = self.plan.set(plan.clone());
        }
    }

    pub(crate) fn plan(&self) -> Option<&Arc<Planned>> {
        self.plan.get()
    }

    /// Says that no step of it is known to be short.
    pub(crate) fn set_apart(&self) {
        self.runs_apart.store(true, Ordering::Relaxed);
    }

    pub(crate) fn runs_apart(&self) -> bool {
        self.runs_apart.load(Ordering::Relaxed)
    }

    pub(crate) fn set_of_stream(&self) {
        self.is_of_stream.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_of_stream(&self) -> bool {
        self.is_of_stream.load(Ordering::Relaxed)
    }

    pub(crate) fn set_time_limit(&self, limit: Duration) {
        *self.deadline.lock() = self.started.checked_add(limit);
    }

    /// For limits that say how long to wait, not how long to work.
    pub(crate) fn lift_time_limit(&self) {
        *self.deadline.lock() = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock()
    }

    /// Told once, when the command has been read.
    pub(crate) fn set_session(&self, session: SessionId, is_numbered: bool) {
        let _ = self.session.set((session, is_numbered));
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session.get().map(|(session, _)| *session)
    }

    /// Whether it holds or awaits its session's history.
    pub(crate) fn is_numbered(&self) -> bool {
        self.session.get().is_some_and(|(_, numbered)| *numbered)
    }

    pub(crate) fn kill(&self) {
        self.interrupt(Interruption::Killed);
    }

    pub(crate) fn kill_cursor(&self) {
        self.interrupt(Interruption::CursorKilled);
    }

    fn interrupt(&self, why: Interruption) {
        // A second reason to end adds nothing.
        let _ = self.interruption.set(why);
        self.interrupted.notify_one();
    }

    /// Completes when the operation is to end before its time.
    pub(crate) async fn interrupted(&self) {
        while self.interruption.get().is_none() {
            self.interrupted.notified().await;
        }
    }

    /// Waits for something, unless the operation is to end before that.
    pub(crate) async fn wait_for<T>(&self, awaited: impl Future<Output = T>) -> Result<T, Error> {
        let mut awaited = std::pin::pin!(awaited);
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

    pub(crate) fn is_killed(&self) -> bool {
        self.interruption.get().is_some()
    }

    /// The error that ends this operation now, if any. Cheap enough for every
    /// hundredth step of a loop, not for every one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.interruption.get() {
            Some(Interruption::Killed) => {
                return Err(Error::new(Code::INTERRUPTED, "operation was interrupted"));
            }
            Some(Interruption::CursorKilled) => {
                return Err(Error::new(Code::CURSOR_KILLED, "cursor was killed"));
            }
            Some(Interruption::SteppedDown) => {
                return Err(Error::new(
                    Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                    "operation was interrupted",
                ));
            }
            Some(Interruption::Shutdown) => {
                return Err(Error::new(
                    Code::INTERRUPTED_AT_SHUTDOWN,
                    "interrupted at shutdown",
                ));
            }
            None => {}
        }
        let now = Instant::now();
        if self.ends_with_client && self.client_is_gone(now) {
            return Err(Error::new(
                Code::CLIENT_DISCONNECT,
                "operation was interrupted because a client disconnected",
            ));
        }
        match self.deadline() {
            Some(deadline) if now >= deadline => Err(Error::new(
                Code::MAX_TIME_MS_EXPIRED,
                "operation exceeded time limit",
            )),
            _ => Ok(()),
        }
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
    let name = Doc::from_validated(command)
        .first()
        .map(|element| element.key());
    !matches!(
        name,
        Some("insert" | "update" | "delete" | "findAndModify" | "findandmodify" | "createIndexes")
    )
}

/// All operations of this shard.
pub(crate) struct Operations {
    next_id: AtomicI32,
    shutting_down: AtomicBool,
    running: Mutex<HashMap<i32, Arc<Operation>, FixedState>>,
}

/// Registered while it lives.
pub(crate) struct Registered<'a> {
    operations: &'a Operations,
    operation: Arc<Operation>,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self {
            next_id: AtomicI32::new(1),
            shutting_down: AtomicBool::new(false),
            running: Mutex::new(HashMap::with_hasher(FixedState::with_seed(3))),
        }
    }

    pub(crate) fn begin(&self, connection: &Arc<ConnectionInfo>, command: Bytes) -> Registered<'_> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(Operation {
            id,
            started: Instant::now(),
            connection: connection.clone(),
            ends_with_client: ends_with_client(&command),
            command,
            deadline: Mutex::new(None),
            interruption: OnceLock::new(),
            interrupted: Notify::new(),
            session: OnceLock::new(),
            next_look_ms: AtomicU64::new(LOOK_FOR_HANGUP_MS),
            runs_apart: AtomicBool::new(false),
            is_of_stream: AtomicBool::new(false),
            successor: ArcSwapOption::empty(),
            has_written: AtomicBool::new(false),
            plan: OnceLock::new(),
        });
        self.running.lock().insert(id, operation.clone());
        // Asked after it is listed: whoever interrupts all has either seen it or is seen here.
        if self.shutting_down.load(Ordering::SeqCst) {
            operation.interrupt(Interruption::Shutdown);
        }
        Registered {
            operations: self,
            operation,
        }
    }

    pub(crate) fn get(&self, id: i32) -> Option<Arc<Operation>> {
        self.running.lock().get(&id).cloned()
    }

    /// Ends what runs, and what still begins, because the process ends.
    pub(crate) fn interrupt_for_shutdown(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        for operation in self.running.lock().values() {
            operation.interrupt(Interruption::Shutdown);
        }
    }

    /// Ends the operations of sessions, except one.
    pub(crate) fn kill_of_sessions(&self, is_meant: &dyn Fn(&SessionId) -> bool, except: i32) {
        for operation in self.running.lock().values() {
            if operation.id != except && operation.session().is_some_and(|id| is_meant(&id)) {
                operation.kill();
            }
        }
    }

    /// Ends the operations that hold or await their session's history: others may go on with it.
    pub(crate) fn interrupt_numbered(&self) {
        for operation in self.running.lock().values() {
            if operation.is_numbered() {
                operation.interrupt(Interruption::SteppedDown);
            }
        }
    }

    /// All running operations, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Operation>> {
        let mut all: Vec<_> = self.running.lock().values().cloned().collect();
        all.sort_by_key(|operation| operation.started);
        all
    }
}

impl std::ops::Deref for Registered<'_> {
    type Target = Arc<Operation>;
    fn deref(&self) -> &Arc<Operation> {
        &self.operation
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.operations.running.lock().remove(&self.operation.id);
    }
}
