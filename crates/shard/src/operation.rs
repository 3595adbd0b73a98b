//! What runs right now: each command is an operation with an id, a deadline
//! and a way to be killed.
//!
//! Long loops call [`Operation::check`] between steps; it answers with the error
//! that ends them. A killed operation ends at its next check, never in the
//! middle of a write.

use bytes::Bytes;
use foldhash::fast::FixedState;
use model::{Code, Error};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use wire::ConnectionInfo;

/// One command under way.
pub(crate) struct Operation {
    pub(crate) id: i32,
    pub(crate) started: Instant,
    pub(crate) connection: Arc<ConnectionInfo>,
    /// The command document, for `currentOp`.
    pub(crate) command: Bytes,
    deadline: Mutex<Option<Instant>>,
    killed: AtomicBool,
}

impl Operation {
    pub(crate) fn set_time_limit(&self, limit: Duration) {
        *self.deadline.lock() = self.started.checked_add(limit);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        *self.deadline.lock()
    }

    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// The error that ends this operation now, if any. Cheap enough for every
    /// hundredth step of a loop, not for every one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_killed() {
            return Err(Error::new(Code::INTERRUPTED, "operation was interrupted"));
        }
        if self.connection.is_closed() {
            return Err(Error::new(
                Code::CLIENT_DISCONNECT,
                "operation was interrupted because a client disconnected",
            ));
        }
        match self.deadline() {
            Some(deadline) if Instant::now() >= deadline => Err(Error::new(
                Code::MAX_TIME_MS_EXPIRED,
                "operation exceeded time limit",
            )),
            _ => Ok(()),
        }
    }
}

/// All operations of this shard.
pub(crate) struct Operations {
    next_id: AtomicI32,
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
            running: Mutex::new(HashMap::with_hasher(FixedState::with_seed(3))),
        }
    }

    pub(crate) fn begin(&self, connection: &Arc<ConnectionInfo>, command: Bytes) -> Registered<'_> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let operation = Arc::new(Operation {
            id,
            started: Instant::now(),
            connection: connection.clone(),
            command,
            deadline: Mutex::new(None),
            killed: AtomicBool::new(false),
        });
        self.running.lock().insert(id, operation.clone());
        Registered {
            operations: self,
            operation,
        }
    }

    pub(crate) fn get(&self, id: i32) -> Option<Arc<Operation>> {
        self.running.lock().get(&id).cloned()
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
