//! The session catalog: the runtime state of sessions that write with a
//! transaction number, and the check-out that runs them one after the other.
//!
//! ```text
//!   absent ──check_out──► taken ──returned──► idle ──check_out──► taken …
//!                           │ invalidated       │ reaped, invalidated
//!                           ▼                   ▼
//!                       returned to nobody     gone
//! ```
//!
//! A history is in the hands of one operation at a time; others wait for it to be
//! returned. It is a cache of the session's stored documents: what is not here is
//! loaded when it is asked for.
//!
//! Invalidating forgets all of it at once: when this member stops being the
//! leader, others may write; when `config.transactions` is dropped, there is
//! nothing left to be a cache of. Operations that hold a history go on with a copy
//! that nobody looks at again, and are killed.

use super::SessionId;
use super::history::History;
use crate::operation::Operation;
use foldhash::fast::FixedState;
use model::Error;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const SHARDS: usize = 16;
/// How often a waiting operation looks whether its time is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

enum State {
    Idle(Box<History>),
    /// Not read from the store yet.
    Unloaded,
    Taken,
    /// No longer in the map: look again. Somebody may still hold its history.
    Gone {
        is_taken: bool,
    },
}

struct Slot {
    id: SessionId,
    inner: Mutex<Inner>,
    returned: Notify,
}

struct Inner {
    state: State,
    last_check_out_ms: i64,
    waiting: usize,
}

type Map = HashMap<SessionId, Arc<Slot>, FixedState>;

pub(crate) struct SessionCatalog {
    shards: Vec<Mutex<Map>>,
    hasher: FixedState,
}

/// A session that is in the hands of one operation.
pub(crate) struct CheckedOut {
    slot: Arc<Slot>,
    /// `None` only while it is being loaded.
    history: Option<Box<History>>,
}

impl SessionCatalog {
    pub(crate) fn new() -> Self {
        let hasher = FixedState::with_seed(8);
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(HashMap::with_hasher(hasher.clone())))
                .collect(),
            hasher,
        }
    }

    fn shard(&self, id: &SessionId) -> &Mutex<Map> {
        use std::hash::BuildHasher;
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }

    fn slot(&self, id: SessionId, now_ms: i64) -> Arc<Slot> {
        let mut slots = self.shard(&id).lock();
        let slot = slots
            .entry(id)
            .or_insert_with(|| Arc::new(Slot::new(id, now_ms)));
        slot.clone()
    }

    /// Takes a session, waiting for whoever has it. Its history may not be
    /// loaded yet.
    pub(crate) async fn check_out(
        &self,
        id: SessionId,
        operation: &Operation,
        now_ms: i64,
    ) -> Result<CheckedOut, Error> {
        loop {
            let slot = self.slot(id, now_ms);
            match slot.take(now_ms) {
                Take::Taken(history) => return Ok(CheckedOut { slot, history }),
                Take::Gone => continue,
                Take::Busy => {}
            }
            let _waiting = Waiting::new(&slot);
            loop {
                // Registered before it is asked again, so that no return is missed.
                let mut returned = pin!(slot.returned.notified());
                returned.as_mut().enable();
                match slot.take(now_ms) {
                    Take::Taken(history) => {
                        return Ok(CheckedOut {
                            slot: slot.clone(),
                            history,
                        });
                    }
                    Take::Gone => break,
                    Take::Busy => {}
                }
                operation.check()?;
                tokio::select! {
                    () = returned => {}
                    () = operation.interrupted() => {}
                    () = tokio::time::sleep(LOOK_INTERVAL) => {}
                }
            }
        }
    }

    /// Takes a session if nobody has it.
    pub(crate) fn try_check_out(&self, id: SessionId, now_ms: i64) -> Option<CheckedOut> {
        let slot = self.slot(id, now_ms);
        match slot.take(now_ms) {
            Take::Taken(history) => Some(CheckedOut { slot, history }),
            Take::Busy | Take::Gone => None,
        }
    }

    /// Forgets everything: see the header of this file. Those that are in
    /// somebody's hands are named.
    pub(crate) fn invalidate(&self) -> Vec<Forgotten> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let slots = std::mem::take(&mut *shard.lock());
            for slot in slots.into_values() {
                let is_taken = {
                    let mut inner = slot.inner.lock();
                    let is_taken = matches!(inner.state, State::Taken);
                    inner.state = State::Gone { is_taken };
                    is_taken
                };
                slot.returned.notify_waiters();
                if is_taken {
                    taken.push(Forgotten(slot));
                }
            }
        }
        taken
    }

    /// Sessions that nobody uses and nobody has used since a time.
    pub(crate) fn idle_since(&self, time_ms: i64) -> Vec<SessionId> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for (id, slot) in shard.lock().iter() {
                if slot.inner.lock().is_idle_since(time_ms) {
                    found.push(*id);
                }
            }
        }
        found
    }

    /// Forgets one session, unless it has been used since a time.
    pub(crate) fn remove_idle(&self, id: SessionId, time_ms: i64) -> bool {
        let mut shard = self.shard(&id).lock();
        let Some(slot) = shard.get(&id) else {
            return false;
        };
        {
            let mut inner = slot.inner.lock();
            if !inner.is_idle_since(time_ms) {
                return false;
            }
            inner.state = State::Gone { is_taken: false };
        }
        shard.remove(&id);
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

enum Take {
    Taken(Option<Box<History>>),
    Busy,
    Gone,
}

impl Inner {
    fn is_idle_since(&self, time_ms: i64) -> bool {
        let free = matches!(self.state, State::Idle(_) | State::Unloaded);
        free && self.waiting == 0 && self.last_check_out_ms <= time_ms
    }
}

impl Slot {
    fn new(id: SessionId, now_ms: i64) -> Self {
        Self {
            id,
            inner: Mutex::new(Inner {
                state: State::Unloaded,
                last_check_out_ms: now_ms,
                waiting: 0,
            }),
            returned: Notify::new(),
        }
    }

    fn take(&self, now_ms: i64) -> Take {
        let mut inner = self.inner.lock();
        let history = match std::mem::replace(&mut inner.state, State::Taken) {
            State::Idle(history) => Some(history),
            State::Unloaded => None,
            State::Taken => return Take::Busy,
            gone @ State::Gone { .. } => {
                inner.state = gone;
                return Take::Gone;
            }
        };
        inner.last_check_out_ms = now_ms;
        Take::Taken(history)
    }
}

/// Counts an operation that waits for a session, which keeps it from being reaped.
struct Waiting<'a>(&'a Slot);

impl<'a> Waiting<'a> {
    fn new(slot: &'a Slot) -> Self {
        slot.inner.lock().waiting += 1;
        Self(slot)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().waiting -= 1;
    }
}

/// A session that was forgotten while an operation held its history.
pub(crate) struct Forgotten(Arc<Slot>);

impl Forgotten {
    /// Waits until the operation has let go of it.
    pub(crate) async fn returned(&self) {
        loop {
            let mut returned = pin!(self.0.returned.notified());
            returned.as_mut().enable();
            if !matches!(self.0.inner.lock().state, State::Gone { is_taken: true }) {
                return;
            }
            returned.await;
        }
    }
}

impl CheckedOut {
    pub(crate) fn id(&self) -> SessionId {
        self.slot.id
    }

    /// Whether the history must be read from the store before it is asked.
    pub(crate) fn needs_loading(&self) -> bool {
        self.history
            .as_ref()
            .is_none_or(|history| history.unsettled)
    }

    /// Whether an entry of it may still be under way.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.history
            .as_ref()
            .is_some_and(|history| history.unsettled)
    }

    pub(crate) fn load(&mut self, history: History) {
        self.history = Some(Box::new(history));
    }

    pub(crate) fn history(&self) -> &History {
        self.history
            .as_ref()
            .expect("a session is loaded when it is checked out")
    }

    pub(crate) fn history_mut(&mut self) -> &mut History {
        self.history
            .as_mut()
            .expect("a session is loaded when it is checked out")
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        let mut inner = self.slot.inner.lock();
        match inner.state {
            State::Taken => {
                inner.state = match self.history.take() {
                    Some(history) => State::Idle(history),
                    None => State::Unloaded,
                };
                self.slot.returned.notify_one();
            }
            State::Gone { .. } => {
                inner.state = State::Gone { is_taken: false };
                self.slot.returned.notify_waiters();
            }
            State::Idle(_) | State::Unloaded => {
                unreachable!("a session is in the hands of one operation at a time")
            }
        }
    }
}
