//! On whose behalf an entry is written: what it asks for, and when it waits no longer.

use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use crate::session::Retryable;
use model::Error;

/// On whose behalf something is written.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) concern: WriteConcern,
    /// The session whose statements they are, if they are retryable.
    pub(super) session: Option<&'a Retryable>,
    /// Who is not made to wait any longer once it is killed or out of time.
    pub(super) operation: Option<&'a Operation>,
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
