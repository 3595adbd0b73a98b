//! Waiting for a move without keeping one's session.
//!
//! ```text
//!   a statement's range is blocked ─► what the command has appended is applied ─► session given back
//!     ─► the move ends ─► session checked out again ─► the statement is looked up again ─► answered, or run
//! ```
//!
//! ⚑ A move that comes here may bring the history of the same session. If it waited for a writer that waits for a
//! move to the other side, which in turn waits for such a writer there, neither would end. So nobody who waits
//! for a move has a session.
//!
//! ⚑ Others may have had the session meanwhile: a retry of the same command, or history from another shard. So
//! nothing that was known of the statement holds any longer; who waited gets an error that never leaves the server
//! ([`is_to_be_looked_up_again`]) and begins anew with the statement, of which nothing was written. If a
//! greater number was begun meanwhile, the command is refused as one that comes too late.

use super::Retryable;
use crate::Shard;
use crate::catalog::Collection;
use crate::command::Invocation;
use crate::operation::Operation;
use crate::write::Together;
use model::bson::DocWriter;
use model::{Code, Error, Namespace};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MARK: &str = "sessionWasGivenBack";

fn look_up_again() -> Error {
    let details = DocWriter::new().with(MARK, true).finish();
    Error::new(
        Code::EXCEEDED_TIME_LIMIT,
        "the session was given back while a range was moved to another shard",
    )
    .with_details(details)
}

/// Whether a statement has to be looked up again, and then perhaps run: nothing of it was written.
pub(crate) fn is_to_be_looked_up_again(error: &Error) -> bool {
    let details = error.details.as_ref();
    error.code == Code::EXCEEDED_TIME_LIMIT
        && details.is_some_and(|details| details.as_doc().get(MARK).is_some())
}

impl Retryable {
    /// For how long its command has waited for moves: one patience for all of its statements.
    pub(crate) fn waited(&self) -> Duration {
        *self.waited.lock()
    }
}

impl Shard {
    /// Waits without the session meanwhile, if there is one. `together` is what the command has appended and
    /// not waited for.
    pub(crate) async fn wait_without_session(
        &self,
        retryable: Option<&Retryable>,
        together: Option<&Together>,
        operation: &Operation,
        awaited: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let Some(retryable) = retryable else {
            return awaited.await;
        };
        if let Some(together) = together {
            together.applied(Some(retryable)).await?;
        }
        let began = Instant::now();
        *retryable.held.lock() = Err(look_up_again());
        let awaited = awaited.await;
        *retryable.waited.lock() += began.elapsed();
        // Also for the statements behind one that waited in vain.
        let held = self.hold_session(retryable.session, retryable.number, operation);
        let held = held.await;
        let taken = held.as_ref().map(|_| ()).map_err(Error::clone);
        *retryable.held.lock() = held;
        taken?;
        awaited?;
        Err(look_up_again())
    }
}

impl Invocation<'_> {
    /// See [`Shard::wait_without_session`].
    pub(crate) async fn without_session(
        &self,
        together: Option<&Together>,
        awaited: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let retryable = self.retryable.as_ref();
        let shard = self.shard;
        shard
            .wait_without_session(retryable, together, self.operation, awaited)
            .await
    }

    /// The collection, made if it is not there: once its database does not move.
    pub(crate) async fn ensure_collection(
        &self,
        namespace: &Namespace,
        together: Option<&Together>,
    ) -> Result<Arc<Collection>, Error> {
        let shard = self.shard;
        if let Some(collection) = shard.catalog.get(namespace) {
            return Ok(collection);
        }
        let operation = Some(&**self.operation);
        let database = namespace.database();
        let known = shard.sharding.database(database);
        if self.retryable.is_some() && known.is_some_and(|known| known.moving.is_some()) {
            let stays = async { shard.ddl_in(&[database], operation).await.map(drop) };
            Box::pin(self.without_session(together, stays)).await?;
        }
        Box::pin(shard.ensure_collection(namespace, operation)).await
    }
}
