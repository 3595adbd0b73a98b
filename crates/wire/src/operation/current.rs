//! Which operation a task works for.
//!
//! It is known by the task, not handed from function to function: what a cursor keeps runs within its next
//! `getMore`, whose operation is another one. Whoever asks others within this process is asked by name: they see
//! that it is to end ([`crate::InProcess`]).

use super::Operation;
use model::Error;
use std::sync::Arc;

tokio::task_local! {
    static CURRENT: Arc<Operation>;
}

/// Runs a command within its operation.
pub async fn within<T>(operation: Arc<Operation>, command: impl Future<Output = T>) -> T {
    CURRENT.scope(operation, command).await
}

/// What another task does for the operation of this one.
pub fn inherited<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let operation = current();
    async move {
        match operation {
            Some(operation) => within(operation, work).await,
            None => work.await,
        }
    }
}

/// The operation of whoever runs this, if it is one's.
pub fn current() -> Option<Arc<Operation>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// The error that ends what runs here, if any.
pub fn check() -> Result<(), Error> {
    let checked = CURRENT.try_with(|operation| operation.check());
    checked.unwrap_or(Ok(()))
}
