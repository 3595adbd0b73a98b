//! A write command with a transaction number: its session is checked out from
//! before its first statement until its reply is made, but not while it waits for
//! a range that moves.
//!
//! Each statement is looked up in the history first. What was executed is
//! answered from there, at the latest when the entry that said so is applied;
//! what was not is evaluated, and the entry of its write carries the session's
//! new document.
//!
//! Invariant: such an entry is refused unless this member has led without a break
//! since the session was checked out. Otherwise another leader may have gone on with
//! the session, and the document would take that back.
//!
//! Who waits for the end of a move gives the session back meanwhile
//! (`given_back.rs`), and looks its statement up again.

use super::catalog::CheckedOut;
use super::document::{Addition, SessionKey, Stored, StoredImage, Written, decode_overflow};
use super::history::{Effect, Executed, History, Image};
use super::{SessionId, header};
use crate::Shard;
use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use model::bson::DocBuf;
use model::{Code, Error};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use replication::Term;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use storage::entry::Encoder;

/// Which statement of a transaction number each statement of a command is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum StatementIds {
    /// Counted from zero.
    #[default]
    Counted,
    /// Counted from this one.
    From(i32),
    Listed(Vec<i32>),
}

impl StatementIds {
    pub(crate) fn of(&self, index: usize) -> i32 {
        match self {
            StatementIds::Counted => index as i32,
            StatementIds::From(first) => first.wrapping_add(index as i32),
            // The length was checked against the batch.
            StatementIds::Listed(ids) => ids.get(index).copied().unwrap_or(index as i32),
        }
    }
}

/// The id that stands for none, as in MongoDB: never found again.
const NO_STATEMENT: i32 = -1;

/// The session of a command that may be a retry.
pub(crate) struct Retryable {
    pub(super) session: SessionId,
    pub(super) number: i64,
    /// Or why it is in other hands.
    pub(super) held: Mutex<Result<Held, Error>>,
    /// For how long the command has waited for moves.
    pub(super) waited: Mutex<Duration>,
    /// Statements that were answered from history.
    retried: AtomicU64,
}

pub(super) struct Held {
    /// In which this member led when the session was checked out.
    term: Term,
    /// Whether no statement can have been executed before.
    is_fresh: bool,
    checked_out: CheckedOut,
}

impl Shard {
    /// Checks the session out and begins or continues the transaction number.
    pub(crate) async fn begin_retryable(
        &self,
        session: SessionId,
        number: i64,
        operation: &Operation,
    ) -> Result<Retryable, Error> {
        let held = self.hold_session(session, number, operation).await?;
        Ok(Retryable {
            session,
            number,
            held: Mutex::new(Ok(held)),
            waited: Mutex::default(),
            retried: AtomicU64::new(0),
        })
    }

    pub(super) async fn hold_session(
        &self,
        session: SessionId,
        number: i64,
        operation: &Operation,
    ) -> Result<Held, Error> {
        // Asked first: the history holds only while this member leads without a break.
        let term = self.log.leading().map_err(crate::error::from_log)?;
        let now_ms = self.clock.now_ms();
        let mut checked_out = self.sessions.check_out(session, operation, now_ms).await?;
        if checked_out.needs_loading() {
            Box::pin(self.load_history(&mut checked_out)).await?;
        }
        checked_out.history_mut().begin(number, session)?;
        Ok(Held {
            term,
            is_fresh: checked_out.history().is_empty(),
            checked_out,
        })
    }

    /// Reads what is stored of a session. If an entry of it may be under way,
    /// then only behind that entry.
    async fn load_history(&self, checked_out: &mut CheckedOut) -> Result<(), Error> {
        if checked_out.is_unsettled() {
            self.propose_catalog(|encoder| encoder.noop()).await?;
        }
        let history = tokio::task::block_in_place(|| self.stored_history(checked_out.id()))?;
        checked_out.load(history);
        Ok(())
    }

    fn stored_history(&self, session: SessionId) -> Result<History, Error> {
        let snapshot = self.store.snapshot();
        let get = |key: &[u8]| snapshot.get_meta(key).map_err(crate::error::from_storage);
        let Some(value) = get(&SessionKey::session(session))? else {
            return Ok(History::default());
        };
        let mut stored = Stored::decode(&value)?;
        let mut sealed = Vec::new();
        for chunk in 0..stored.overflow {
            match get(&SessionKey::overflow(session, chunk))? {
                Some(value) => sealed.extend(decode_overflow(&value)?),
                None => stored.incomplete = true,
            }
        }
        Ok(History::stored(stored, sealed))
    }

    /// The image of a statement of `findAndModify`.
    pub(crate) fn stored_image(
        &self,
        retryable: &Retryable,
        statement: i32,
    ) -> Result<Image, Error> {
        let value = self
            .store
            .get_meta(&SessionKey::image(retryable.session))
            .map_err(crate::error::from_storage)?;
        if let Some(value) = value {
            let stored = StoredImage::decode(&value)?;
            if stored.number == retryable.number && stored.statement == statement {
                return Ok(stored.image);
            }
        }
        Err(Error::location(
            5637602,
            format!(
                "image collection no longer contains the complete write history of this \
                 transaction, record with sessionId: {} cannot be found",
                retryable.session
            ),
        ))
    }

    /// Waits until what was answered from history is as durable as is asked now.
    pub(crate) async fn settle_retry(
        &self,
        retryable: &Retryable,
        concern: WriteConcern,
    ) -> Result<(), Error> {
        let retried = retryable.retried.load(Ordering::Relaxed);
        if retried == 0 {
            return Ok(());
        }
        let counters = &self.counters;
        counters.retried_commands.fetch_add(1, Ordering::Relaxed);
        counters
            .retried_statements
            .fetch_add(retried, Ordering::Relaxed);
        let is_synced =
            matches!(&*retryable.held.lock(), Ok(held) if held.checked_out.history().synced);
        if concern == WriteConcern::Applied || is_synced {
            return Ok(());
        }
        self.propose_catalog(|encoder| encoder.noop()).await?;
        if let Ok(held) = &mut *retryable.held.lock() {
            held.checked_out.history_mut().synced = true;
        }
        Ok(())
    }
}

impl Retryable {
    pub(crate) fn term(&self) -> Term {
        self.held().term
    }

    /// Only for who writes: who has waited has looked a statement up before.
    fn held(&self) -> MappedMutexGuard<'_, Held> {
        MutexGuard::map(self.held.lock(), |held| {
            held.as_mut()
                .expect("a session is held while a statement of it is evaluated")
        })
    }

    pub(crate) fn history(&self) -> MappedMutexGuard<'_, History> {
        self.history_mut()
    }

    fn history_mut(&self) -> MappedMutexGuard<'_, History> {
        MappedMutexGuard::map(self.held(), |held| held.checked_out.history_mut())
    }

    /// What a statement did when it was executed before, if it was.
    pub(crate) fn executed(&self, statement: i32) -> Result<Option<Effect>, Error> {
        let held = self.held.lock();
        let held = held.as_ref().map_err(Error::clone)?;
        if held.is_fresh || statement == NO_STATEMENT {
            return Ok(None);
        }
        let effect = held.checked_out.history().find(statement)?.cloned();
        if effect.is_some() {
            self.retried.fetch_add(1, Ordering::Relaxed);
        }
        Ok(effect)
    }

    /// The session header of an entry with these statements.
    pub(crate) fn header(&self, items: &[Executed]) -> DocBuf {
        header::encode(self.session, self.number, items)
    }

    /// Appends the session's documents to an entry.
    pub(crate) fn encode(
        &self,
        shard: &Shard,
        items: &[Executed],
        image: Option<&Image>,
        encoder: &mut Encoder<'_>,
    ) -> Written {
        let addition = Addition {
            session: self.session,
            items,
            image,
            term: self.term().get(),
            wall_ms: shard.clock.now_ms(),
        };
        addition.encode(&self.history(), encoder)
    }

    /// Another shard does not know all that was executed, so nobody does.
    pub(super) fn note_incomplete(&self, incomplete: bool) {
        self.history_mut().incomplete |= incomplete;
    }

    /// The entry has its place in the log.
    pub(crate) fn appended(&self, items: Vec<Executed>, written: &Written, concern: WriteConcern) {
        let synced = concern == WriteConcern::Majority;
        self.history_mut().appended(items, written.sealed, synced);
    }

    /// The entry is applied.
    pub(crate) fn applied(&self) {
        if let Ok(held) = &mut *self.held.lock() {
            held.checked_out.history_mut().unsettled = false;
        }
    }
}

/// The error for a retry that is another command than the first attempt.
pub(crate) fn incompatible(code: i32, command: &str, effect: &Effect) -> Error {
    Error::location(
        code,
        format!(
            "{command} retry request is not compatible with previous write in the transaction \
             of type: {}",
            effect.letter()
        ),
    )
}

/// Refuses a statement that changes many documents: it cannot be told how far it
/// came.
pub(crate) fn refuse_multi(option: &str) -> Error {
    Error::new(
        Code::INVALID_OPTIONS,
        format!("Cannot use (or request) retryable writes with {option}"),
    )
}
