//! Cursors: results that are handed out in batches.
//!
//! ```text
//!   open ─► idle ──check_out──► busy ──check_in──► idle …
//!             │ ten idle minutes, killCursors        │ killCursors: ends at its next check
//!             ▼                                      ▼
//!            gone                                   gone
//! ```
//!
//! A cursor is a source of batches and the namespace it belongs to. While a
//! getMore uses it, it is not in the registry but marked busy there; a getMore
//! that ends in any other way than `check_in` leaves nothing behind.
//!
//! Cursors of a session end with it: when it is killed, or at the refresh after it
//! was ended or has expired.

use crate::change_stream::Interest;
use crate::operation::Operation;
use crate::read::Budget;
use crate::session::SessionId;
use foldhash::fast::FixedState;
use model::bson::{Doc, DocWriter};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::store::Counter;

/// Documents of a first batch where the client names no number.
pub(crate) const FIRST_BATCH_DOCUMENTS: u64 = 101;
/// What a batch may weigh: one document of the greatest size always fits.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// More room than this is not taken in advance.
const BATCH_BYTES_EXPECTED_MAX: u64 = 512 * 1024;
/// Idle cursors are closed after this time.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Steps of a batch that run on the connection's own worker; what needs more
/// tells the runtime that it blocks.
const STEPS_INLINE: u64 = 2048;

/// Documents on their way into a reply.
pub(crate) struct Batch {
    writer: DocWriter,
    start: usize,
    documents: u64,
    documents_max: u64,
    bytes_max: usize,
    /// Bytes that the reply will carry beside the documents.
    beside: usize,
}

impl Batch {
    /// Begins the array of documents within `writer`'s open document.
    pub(crate) fn begin(mut writer: DocWriter, name: &str, documents_max: Option<u64>) -> Self {
        writer.begin_array(name);
        Self {
            start: writer.len(),
            writer,
            documents: 0,
            documents_max: documents_max.unwrap_or(u64::MAX),
            bytes_max: BATCH_BYTES_MAX,
            beside: 0,
        }
    }

    /// Lets it weigh no more than this, unless its first document does.
    pub(crate) fn with_bytes_max(mut self, bytes_max: Option<usize>) -> Self {
        self.bytes_max = bytes_max.unwrap_or(BATCH_BYTES_MAX).min(BATCH_BYTES_MAX);
        self
    }

    pub(crate) fn is_full(&self) -> bool {
        self.documents >= self.documents_max
    }

    pub(crate) fn documents(&self) -> u64 {
        self.documents
    }

    /// Appends a document, unless it does not fit.
    pub(crate) fn offer(&mut self, document: Doc<'_>) -> bool {
        self.offer_with(document, 0)
    }

    /// [`Batch::offer`] for a document whose place comes with it elsewhere in the reply, and once
    /// more if it is the last one.
    pub(crate) fn offer_with(&mut self, document: Doc<'_>, place: usize) -> bool {
        let beside = self.beside + 2 * place;
        let bytes = self.writer.len() - self.start + beside + document.len() + 16;
        if self.is_full() || (self.documents > 0 && bytes > self.bytes_max) {
            return false;
        }
        self.writer.push(document);
        self.documents += 1;
        if place > 0 {
            self.beside += place + 16;
        }
        true
    }

    /// Ends the array; the document around it stays open.
    pub(crate) fn end(mut self) -> DocWriter {
        self.writer.end();
        self.writer
    }
}

/// The room that a reply with so many documents of a collection will probably take, so
/// that it need not be moved while it grows. What is not used is never touched.
pub(crate) fn batch_bytes(collection: Counter, documents: u64) -> usize {
    let average = collection.bytes / collection.items.max(1);
    let bytes = documents.saturating_mul(average + 8).saturating_add(512);
    bytes.min(BATCH_BYTES_EXPECTED_MAX) as usize
}

/// Why a source stopped filling a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// The batch is full; there may be more.
    Full,
    /// The budget is used up.
    Paused,
    /// There is nothing more now; there may be later.
    Dry,
    /// There is nothing more.
    Ended,
}

/// Where batches come from.
pub(crate) trait BatchSource: Send {
    /// Offers documents to the batch until it is full.
    fn fill(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        budget: &mut Budget,
    ) -> Result<Filled, Error>;

    /// Lets go of what must not be held between batches.
    fn suspend(&mut self);

    /// Whether a getMore that finds nothing waits for news.
    fn awaits_data(&self) -> bool {
        false
    }

    /// Whether it is a change stream, which a driver resumes after some errors.
    fn is_change_stream(&self) -> bool {
        false
    }

    /// Whether who waits is told of news that bring no documents, too.
    fn tells_any_news(&self) -> bool {
        false
    }

    /// What it waits for.
    fn interest(&self) -> Interest {
        Interest::Everything
    }

    /// Writes what belongs behind the batch in the `cursor` document.
    fn append_state(&self, _writer: &mut DocWriter) {}
}

/// Fills a batch, and says why it ended.
pub(crate) fn fill_batch(
    source: &mut dyn BatchSource,
    operation: &Arc<Operation>,
    batch: &mut Batch,
) -> Result<Filled, Error> {
    let mut filled = Filled::Paused;
    if !operation.runs_apart() {
        filled = source.fill(operation, batch, &mut Budget::of(STEPS_INLINE))?;
    }
    if filled == Filled::Paused {
        filled = tokio::task::block_in_place(|| {
            let mut budget = Budget::unlimited();
            source.fill(operation, batch, &mut budget)
        })?;
    }
    Ok(filled)
}

/// A cursor in somebody's hands.
pub(crate) struct OpenCursor {
    pub(crate) namespace: Namespace,
    pub(crate) source: Box<dyn BatchSource>,
    /// What its expressions ask whether to end.
    pub(crate) opened_by: Arc<Operation>,
    pub(crate) no_timeout: bool,
    /// What is left of the time limit of the command that opened it.
    pub(crate) time_left: Option<Duration>,
    /// The time that its reads see, for its replies.
    pub(crate) at: Option<ClusterTime>,
    /// The session it was opened in: only there it goes on.
    pub(crate) session: Option<SessionId>,
}

struct Slot {
    namespace: Namespace,
    session: Option<SessionId>,
    state: State,
}

enum State {
    Idle {
        cursor: Box<OpenCursor>,
        since: Instant,
    },
    Busy(Arc<Operation>),
}

/// All cursors of this shard.
pub(crate) struct Cursors {
    slots: Mutex<HashMap<i64, Slot, FixedState>>,
}

/// What became of cursors that were to be killed.
#[derive(Default)]
pub(crate) struct Killed {
    pub(crate) killed: Vec<i64>,
    pub(crate) not_found: Vec<i64>,
}

fn not_found(id: i64) -> Error {
    Error::new(Code::CURSOR_NOT_FOUND, format!("cursor id {id} not found"))
}

impl Cursors {
    pub(crate) fn new() -> Self {
        Self {
            slots: Mutex::new(HashMap::with_hasher(FixedState::with_seed(7))),
        }
    }

    /// Keeps a cursor and names it.
    pub(crate) fn open(&self, mut cursor: OpenCursor) -> i64 {
        cursor.source.suspend();
        let mut slots = self.slots.lock();
        let id = loop {
            let id = fastrand::i64(1..);
            if !slots.contains_key(&id) {
                break id;
            }
        };
        slots.insert(id, Slot::idle(cursor));
        id
    }

    /// Takes a cursor for one getMore.
    pub(crate) fn check_out(
        &self,
        id: i64,
        namespace: &Namespace,
        operation: &Arc<Operation>,
    ) -> Result<CheckedOut<'_>, Error> {
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&id).ok_or_else(|| not_found(id))?;
        if slot.namespace != *namespace {
            return Err(Error::new(
                Code::UNAUTHORIZED,
                format!(
                    "Requested getMore on namespace '{namespace}', but cursor belongs to a \
                     different namespace {}",
                    slot.namespace
                ),
            ));
        }
        let busy = State::Busy(operation.clone());
        match std::mem::replace(&mut slot.state, busy) {
            State::Idle { cursor, .. } => {
                cursor.opened_by.continue_as(operation);
                Ok(CheckedOut {
                    cursors: self,
                    id,
                    cursor: Some(cursor),
                })
            }
            State::Busy(other) => {
                slot.state = State::Busy(other);
                Err(Error::new(
                    Code::CURSOR_IN_USE,
                    format!("cursor id {id} is already in use"),
                ))
            }
        }
    }

    /// Ends cursors; one that is busy ends at its next check.
    pub(crate) fn kill(&self, ids: &[i64]) -> Killed {
        let mut outcome = Killed::default();
        let mut slots = self.slots.lock();
        for &id in ids {
            match slots.remove(&id) {
                None => outcome.not_found.push(id),
                Some(slot) => {
                    if let State::Busy(operation) = slot.state {
                        operation.kill_cursor();
                    }
                    outcome.killed.push(id);
                }
            }
        }
        outcome
    }

    /// Ends all cursors of sessions; how many.
    pub(crate) fn kill_of_sessions(&self, is_meant: &dyn Fn(&SessionId) -> bool) -> usize {
        let mut slots = self.slots.lock();
        let before = slots.len();
        slots.retain(|_, slot| {
            let meant = slot.session.is_some_and(|id| is_meant(&id));
            if meant && let State::Busy(operation) = &slot.state {
                operation.kill();
            }
            !meant
        });
        before - slots.len()
    }

    /// Closes cursors that were idle for too long.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.slots.lock().retain(|_, slot| match &slot.state {
            State::Busy(_) => true,
            State::Idle { cursor, since } => {
                cursor.no_timeout || now.saturating_duration_since(*since) < IDLE_TIMEOUT
            }
        });
    }

    /// Open cursors: all, those in use, those without timeout.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let slots = self.slots.lock();
        let busy = |slot: &&Slot| matches!(slot.state, State::Busy(_));
        let endless = |slot: &&Slot| match &slot.state {
            State::Idle { cursor, .. } => cursor.no_timeout,
            State::Busy(_) => false,
        };
        (
            slots.len(),
            slots.values().filter(busy).count(),
            slots.values().filter(endless).count(),
        )
    }
}

impl Slot {
    fn idle(cursor: OpenCursor) -> Self {
        Self {
            namespace: cursor.namespace.clone(),
            session: cursor.session,
            state: State::Idle {
                cursor: Box::new(cursor),
                since: Instant::now(),
            },
        }
    }
}

/// A cursor in use; dropped, it is gone.
pub(crate) struct CheckedOut<'a> {
    cursors: &'a Cursors,
    id: i64,
    cursor: Option<Box<OpenCursor>>,
}

impl CheckedOut<'_> {
    pub(crate) fn cursor(&mut self) -> &mut OpenCursor {
        self.cursor
            .as_mut()
            .expect("a checked out cursor is there until it is checked in")
    }

    /// Gives the cursor back for the next getMore. False if it was killed.
    pub(crate) fn check_in(mut self) -> bool {
        let Some(mut cursor) = self.cursor.take() else {
            return false;
        };
        cursor.source.suspend();
        let mut slots = self.cursors.slots.lock();
        match slots.get_mut(&self.id) {
            Some(slot) => {
                slot.state = State::Idle {
                    cursor,
                    since: Instant::now(),
                };
                true
            }
            None => false,
        }
    }
}

impl Drop for CheckedOut<'_> {
    fn drop(&mut self) {
        if self.cursor.is_some() {
            self.cursors.slots.lock().remove(&self.id);
        }
    }
}
