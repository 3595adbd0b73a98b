//! The router's cursors.
//!
//! ```text
//!   Passed    the cursor is one shard's, or the config server's: of lists, tailable ones, those whose client asks for
//!             the shard's own tokens; getMore passes through
//!   Merged    the router goes on with it: a scan, streams of several shards
//! ```
//!
//! A passed cursor keeps the id that its shard gave it, unless that is taken here. While a getMore
//! uses a cursor it is marked busy; killCursors then ends that getMore. Cursors that nobody used for
//! `cursorTimeoutMillis` are closed, here and on the shards.
//!
//! Shards have a timeout of their own. A cursor of theirs that it ends costs a scan nothing but time: the next getMore
//! asks anew, from the place that the stream has reached. A passed cursor ends with it, as with MongoDB.

use crate::Router;
use crate::merge::Merge;
use model::SessionId;
use model::bson::{Doc, DocBuf, DocWriter};
use model::error::{Code, Error};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};
use wire::Endpoint;
use wire::operation::Operation;

/// How often it is looked for cursors that nobody uses. Shards look as often; MongoDB every four seconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) enum Source {
    Passed {
        member: Arc<dyn Endpoint>,
        /// As the shard calls it.
        id: i64,
    },
    Merged(Box<dyn Merge>),
}

pub(crate) struct Cursor {
    /// `database.collection`.
    pub(crate) namespace: String,
    pub(crate) session: Option<DocBuf>,
    pub(crate) no_timeout: bool,
    pub(crate) source: Source,
    /// The command that opened it, for `$currentOp`.
    opened_by: Option<Arc<DocBuf>>,
}

/// How much of a command is kept to be shown.
const SHOWN_BYTES_MAX: usize = 1_000;

enum Slot {
    Idle {
        cursor: Cursor,
        since: Instant,
    },
    Busy {
        killed: bool,
        session: Option<SessionId>,
        /// Who uses it.
        operation: Option<Arc<Operation>>,
        no_timeout: bool,
        opened_by: Option<Arc<DocBuf>>,
    },
}

#[derive(Default)]
pub(crate) struct Cursors {
    slots: Mutex<HashMap<i64, Slot>>,
    /// Closed because nobody used them.
    timed_out: AtomicU64,
}

impl Cursors {
    /// Keeps a shard's cursor under its own id, unless that is taken.
    pub(crate) fn keep_as(&self, id: i64, cursor: Cursor) -> Result<(), Cursor> {
        let mut slots = self.slots.lock();
        if slots.contains_key(&id) {
            return Err(cursor);
        }
        slots.insert(id, idle(cursor));
        Ok(())
    }

    /// Keeps a cursor under a new id.
    pub(crate) fn keep(&self, cursor: Cursor) -> i64 {
        let mut slots = self.slots.lock();
        loop {
            let id = fastrand::i64(1..);
            if let Entry::Vacant(place) = slots.entry(id) {
                place.insert(idle(cursor));
                return id;
            }
        }
    }

    /// Takes a cursor out to use it. It must be put back or let go of.
    pub(crate) fn check_out(
        &self,
        id: i64,
        namespace: &str,
        session: Option<Doc<'_>>,
    ) -> Result<Cursor, Error> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(&id) else {
            return Err(not_found(id));
        };
        let Slot::Idle { cursor, .. } = slot else {
            return Err(Error::new(
                Code::CURSOR_IN_USE,
                format!("cursor id {id} is already in use"),
            ));
        };
        if cursor.namespace != namespace {
            return Err(Error::new(
                Code::UNAUTHORIZED,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a \
                     different namespace {}",
                    cursor.namespace
                ),
            ));
        }
        if let Source::Merged(_) = cursor.source {
            let opened = cursor
                .session
                .as_ref()
                .and_then(|session| session.get("id"));
            let asked = session.and_then(|session| session.get("id"));
            check_session(id, opened.is_some(), asked.is_some(), opened == asked)?;
        }
        let busy = Slot::Busy {
            killed: false,
            session: cursor.session_id(),
            operation: crate::operation::current(),
            no_timeout: cursor.no_timeout,
            opened_by: cursor.opened_by.clone(),
        };
        match std::mem::replace(slot, busy) {
            Slot::Idle { cursor, .. } => Ok(cursor),
            Slot::Busy { .. } => Err(not_found(id)),
        }
    }

    /// Puts a cursor back; gives it back if it was killed meanwhile.
    pub(crate) fn check_in(&self, id: i64, cursor: Cursor) -> Option<Cursor> {
        let mut slots = self.slots.lock();
        match slots.get(&id) {
            Some(Slot::Busy { killed: false, .. }) => {
                slots.insert(id, idle(cursor));
                None
            }
            Some(Slot::Busy { killed: true, .. } | Slot::Idle { .. }) | None => {
                slots.remove(&id);
                Some(cursor)
            }
        }
    }

    /// Forgets a cursor that was checked out.
    pub(crate) fn let_go(&self, id: i64) {
        self.slots.lock().remove(&id);
    }

    /// Whether there was such a cursor; an idle one is handed out to be closed.
    pub(crate) fn kill(&self, id: i64, namespace: &str) -> Option<Option<Cursor>> {
        let mut slots = self.slots.lock();
        match slots.get_mut(&id)? {
            Slot::Idle { cursor, .. } if cursor.namespace != namespace => None,
            Slot::Idle { .. } => match slots.remove(&id) {
                Some(Slot::Idle { cursor, .. }) => Some(Some(cursor)),
                Some(Slot::Busy { .. }) | None => Some(None),
            },
            Slot::Busy {
                killed, operation, ..
            } => {
                *killed = true;
                if let Some(operation) = operation {
                    operation.kill_cursor();
                }
                Some(None)
            }
        }
    }

    /// Ends the cursors of sessions; idle ones are handed out to be closed.
    pub(crate) fn kill_of_sessions(&self, is_meant: &dyn Fn(&SessionId) -> bool) -> Vec<Cursor> {
        let is_meant = |session: &Option<SessionId>| session.as_ref().is_some_and(is_meant);
        let mut slots = self.slots.lock();
        let mut meant = Vec::new();
        for (id, slot) in slots.iter_mut() {
            match slot {
                Slot::Idle { cursor, .. } if is_meant(&cursor.session_id()) => meant.push(*id),
                Slot::Busy {
                    killed, session, ..
                } if is_meant(session) => *killed = true,
                Slot::Idle { .. } | Slot::Busy { .. } => {}
            }
        }
        let taken = meant.into_iter().filter_map(|id| match slots.remove(&id) {
            Some(Slot::Idle { cursor, .. }) => Some(cursor),
            Some(Slot::Busy { .. }) | None => None,
        });
        taken.collect()
    }

    /// Takes out what nobody used for so long.
    pub(crate) fn expired(&self, timeout: Duration) -> Vec<Cursor> {
        let mut slots = self.slots.lock();
        let is_old = |slot: &Slot| match slot {
            Slot::Idle { cursor, since } => !cursor.no_timeout && since.elapsed() > timeout,
            Slot::Busy { .. } => false,
        };
        let old: Vec<i64> = slots
            .iter()
            .filter(|(_, slot)| is_old(slot))
            .map(|(id, _)| *id)
            .collect();
        self.timed_out
            .fetch_add(old.len() as u64, Ordering::Relaxed);
        let taken = old.into_iter().filter_map(|id| match slots.remove(&id) {
            Some(Slot::Idle { cursor, .. }) => Some(cursor),
            Some(Slot::Busy { .. }) | None => None,
        });
        taken.collect()
    }

    /// Cursors that nobody uses now, as `$currentOp` shows them.
    pub(crate) fn describe_idle(&self) -> Vec<DocBuf> {
        let ids: Vec<i64> = self.slots.lock().keys().copied().collect();
        // One at a time ⚑: nobody's getMore waits until all are described.
        let described = ids.into_iter().filter_map(|id| {
            let slots = self.slots.lock();
            match slots.get(&id)? {
                Slot::Idle { cursor, since } => Some(cursor.describe(id, since.elapsed())),
                Slot::Busy { .. } => None,
            }
        });
        described.collect()
    }

    /// The cursors that are used now, each by an operation.
    pub(crate) fn describe_busy(&self) -> HashMap<i32, DocBuf> {
        let slots = self.slots.lock();
        let busy = slots.iter().filter_map(|(id, slot)| match slot {
            Slot::Busy {
                operation: Some(operation),
                no_timeout,
                opened_by,
                ..
            } => {
                let mut writer = DocWriter::new();
                append_facts(&mut writer, *id, *no_timeout, opened_by.as_deref());
                Some((operation.id, writer.finish()))
            }
            Slot::Busy {
                operation: None, ..
            }
            | Slot::Idle { .. } => None,
        });
        busy.collect()
    }

    pub(crate) fn open(&self) -> usize {
        self.slots.lock().len()
    }

    pub(crate) fn timed_out(&self) -> u64 {
        self.timed_out.load(Ordering::Relaxed)
    }
}

/// Closes cursors that nobody uses, until it is aborted.
pub(crate) async fn close_idle(router: Arc<Router>) {
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        close_expired(&router).await;
    }
}

pub(crate) async fn close_expired(router: &Router) {
    let timeout = router.parameters().cursor_timeout();
    for cursor in router.cursors.expired(timeout) {
        cursor.close().await;
    }
}

impl Cursor {
    /// One that the command opens which runs now.
    pub(crate) fn new(
        namespace: &str,
        session: Option<DocBuf>,
        no_timeout: bool,
        source: Source,
    ) -> Cursor {
        let operation = crate::operation::current();
        Cursor {
            namespace: namespace.to_owned(),
            session,
            no_timeout,
            source,
            opened_by: operation.map(|it| Arc::new(shown(Doc::from_validated(&it.command)))),
        }
    }

    fn describe(&self, id: i64, idle: Duration) -> DocBuf {
        let mut writer = DocWriter::new()
            .with("type", "idleCursor")
            .with("ns", self.namespace.as_str());
        if let Some(session) = &self.session {
            writer.append("lsid", session);
        }
        writer.begin_document("cursor");
        append_facts(&mut writer, id, self.no_timeout, self.opened_by.as_deref());
        let idle_ms = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
        writer.append("idleMillis", idle_ms);
        if let Source::Merged(merge) = &self.source {
            merge.describe(&mut writer);
        }
        writer.end();
        writer.finish()
    }

    fn session_id(&self) -> Option<SessionId> {
        let session = self.session.as_ref()?;
        SessionId::parse("lsid", session.as_doc()).ok()
    }

    /// Ends what is open on shards.
    pub(crate) async fn close(self) {
        match self.source {
            Source::Passed { member, id } => {
                crate::merge::kill_cursor(&*member, &self.namespace, id).await;
            }
            Source::Merged(merge) => merge.close().await,
        }
    }
}

/// What is shown of a cursor whether somebody uses it or not.
fn append_facts(writer: &mut DocWriter, id: i64, no_timeout: bool, opened_by: Option<&DocBuf>) {
    writer
        .append("cursorId", id)
        .append("noCursorTimeout", no_timeout);
    if let Some(command) = opened_by {
        writer.append("originatingCommand", command);
    }
}

fn idle(cursor: Cursor) -> Slot {
    Slot::Idle {
        cursor,
        since: Instant::now(),
    }
}

pub(crate) fn not_found(id: i64) -> Error {
    Error::new(Code::CURSOR_NOT_FOUND, format!("cursor id {id} not found"))
}

/// A cursor that was opened in a session is continued in that session.
fn check_session(id: i64, opened: bool, asked: bool, same: bool) -> Result<(), Error> {
    match (opened, asked) {
        (true, true) if !same => Err(Error::location(
            50738,
            format!("Cannot run getMore on cursor {id}, which was created in another session"),
        )),
        (true, false) => Err(Error::location(
            50737,
            format!(
                "Cannot run getMore on cursor {id}, which was created in a session, without an lsid"
            ),
        )),
        (false, true) => Err(Error::location(
            50736,
            format!(
                "Cannot run getMore on cursor {id}, which was not created in a session, in a session"
            ),
        )),
        (true, true) | (false, false) => Ok(()),
    }
}

/// A command as far as it is shown: very many cursors may have been opened by very long ones.
fn shown(command: Doc<'_>) -> DocBuf {
    if command.len() <= SHOWN_BYTES_MAX {
        return command.to_owned();
    }
    let mut text: String = format!("{command:?}");
    text.truncate(text.floor_char_boundary(SHOWN_BYTES_MAX));
    DocWriter::new().with("$truncated", text.as_str()).finish()
}
