//! On whose behalf an entry is written: what it asks for, and when it waits no longer.

use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use crate::session::Retryable;
use model::Error;
use parking_lot::Mutex;
use replication::{Pending, Term};

/// Entries that may be waited for together, before the first of them is.
const TOGETHER_MAX: usize = 256;

/// On whose behalf something is written.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) concern: WriteConcern,
    /// The session whose statements they are, if they are retryable.
    pub(crate) session: Option<&'a Retryable>,
    /// Who is not made to wait any longer once it is killed or out of time.
    pub(crate) operation: Option<&'a Operation>,
    /// The term that what is known of earlier writes is from: an entry of another one is refused.
    pub(crate) term: Option<Term>,
    /// Where entries go that are not waited for one by one.
    pub(crate) together: Option<&'a Together>,
}

/// Entries of one command that are waited for together: a batch of statements costs a few syncs instead of
/// one for each.
///
/// A statement that names its record sees what those before it have appended (`overlay.rs`); one that
/// searches sees what is applied, so that all before it are waited for first. ⚑ Nobody is answered before
/// all of them are applied.
#[derive(Default)]
pub(crate) struct Together(Mutex<Vec<Pending>>);

impl Together {
    pub(super) fn add(&self, pending: Pending) {
        self.0.lock().push(pending);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.lock().len() >= TOGETHER_MAX
    }

    /// Waits until all of them are applied; they are the session's, if there is one.
    pub(crate) async fn applied(&self, session: Option<&Retryable>) -> Result<(), Error> {
        let all = std::mem::take(&mut *self.0.lock());
        if all.is_empty() {
            return Ok(());
        }
        for pending in all {
            pending.await.map_err(crate::error::from_log)?;
        }
        if let Some(session) = session {
            session.applied();
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// The error that ends it while it waits, if any.
    pub(super) fn check(self) -> Result<(), Error> {
        self.operation.map_or(Ok(()), |operation| operation.check())
    }

    pub(super) async fn wait_for<T>(self, awaited: impl Future<Output = T>) -> Result<T, Error> {
        match self.operation {
            Some(operation) => operation.wait_for(awaited).await,
            None => Ok(awaited.await),
        }
    }
}
