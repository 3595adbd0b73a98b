//! On whose behalf an entry is written: what it asks for, and when it waits no longer.

use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use crate::session::Retryable;
use model::Error;
use replication::Term;

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
}

impl Writer<'_> {
    /// The error that ends it while it waits, if any.
    pub(super) fn check(self) -> Result<(), Error> {
        self.operation.map_or(Ok(()), Operation::check)
    }

    pub(super) async fn wait_for<T>(self, awaited: impl Future<Output = T>) -> Result<T, Error> {
        match self.operation {
            Some(operation) => operation.wait_for(awaited).await,
            None => Ok(awaited.await),
        }
    }
}
