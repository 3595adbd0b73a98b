//! What a router does itself, as operations: listed by `$currentOp` with `localOps`, ended by `killOp`, with
//! their sessions, and when their clients go.
//!
//! ```text
//!   dispatch ── begins an operation ──► the command runs within it (the task knows which one it is)
//!                                         │
//!        ┌────────────────────────────────┼──────────────────────────────────┐
//!        ▼                                ▼                                  ▼
//!   waits for shards                 computes: a merging half          waits while it blocks a thread
//!   `waiting`: the wait ends          `check` between documents        `watching`: looks for the client
//! ```
//!
//! ⚑ Only waits for what reads end early. What a shard was asked is dropped then: its connection is closed, by which
//! the shard learns that nobody wants the answer. A write is waited for, because its outcome would be unknown;
//! it ends before its next round. What was opened meanwhile is closed by whoever opened it, as after any error.
//!
//! Left out: what the router asks the config server is waited for.

use model::SessionId;
use model::error::Error;
use query::context::{Interrupt, Interrupts};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use wire::Request;
use wire::operation::Operation;
pub(crate) use wire::operation::{check, current, inherited, within};

/// How often one who blocks a thread looks whether his client is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What is known of an operation once its command was read. A session that is malformed is for whoever answers.
pub(crate) fn describe(operation: &Operation, request: &Request, limit: Option<Duration>) {
    if let Some(session) = request.get_doc("lsid")
        && let Ok(id) = SessionId::parse("lsid", session)
    {
        operation.set_session(id, request.get("txnNumber").is_some());
    }
    if let Some(limit) = limit {
        operation.set_time_limit(limit);
    }
}

/// Waits for a shard, unless the operation is to end before that.
pub(crate) async fn waiting<T>(awaited: impl Future<Output = T>) -> Result<T, Error> {
    match current() {
        Some(operation) => operation.wait_on_connection(awaited).await,
        None => Ok(awaited.await),
    }
}

/// Waits where a thread is blocked, so that nobody else notices that the client goes: whatever waits within is
/// told then.
pub(crate) async fn watching<T>(awaited: impl Future<Output = T>) -> T {
    let Some(operation) = current() else {
        return awaited.await;
    };
    let mut awaited = std::pin::pin!(awaited);
    loop {
        tokio::select! {
            biased;
            done = &mut awaited => return done,
            () = tokio::time::sleep(LOOK_INTERVAL) => operation.look(),
        }
    }
}

/// Expressions that take long ask whoever evaluates them.
struct Whoever;

impl Interrupt for Whoever {
    fn check(&self) -> Result<(), Error> {
        check()
    }
}

pub(crate) fn interrupts() -> Interrupts {
    static WHOEVER: LazyLock<Arc<Whoever>> = LazyLock::new(|| Arc::new(Whoever));
    Interrupts::by(WHOEVER.clone())
}
