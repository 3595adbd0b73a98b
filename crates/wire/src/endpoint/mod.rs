//! Somebody who answers commands: a shard, a config server; in this process or elsewhere.
//!
//! ```text
//!   caller ── Request ──► Endpoint ──┬ InProcess   a handler, no socket
//!          ◄── Reply ────            ├ Host        a bounded pool of connections to one server
//!                                    └ ReplicaSet  members behind any of these; follows the primary
//! ```
//!
//! The bytes of requests and replies pass through as they are. Endpoints never send a request
//! twice unless it is certain that nothing of it was carried out; who gets
//! [`CallError::OutcomeUnknown`] has to find out, or to say so.

mod abandoned;
mod host;
mod in_process;
mod pulse;
mod read_preference;
mod replica_set;
mod watched;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::reply::Reply;
use crate::request::Request;

pub use host::{Host, HostOptions};
pub use in_process::InProcess;
pub use read_preference::{ReadMode, ReadPreference};
pub use replica_set::{Dial, ReplicaSet, ReplicaSetTimes};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was carried out: the request never reached anybody whole.
    #[error("{0}")]
    NotSent(String),
    /// Nor was it here: of a replica set nobody was found whom the request may go to.
    #[error("{0}")]
    NobodyFits(String),
    /// It was sent and the connection ended before the reply: it may have been carried out.
    #[error("{0}")]
    OutcomeUnknown(String),
}

/// A reply, and who gave it where that matters.
pub struct Answer {
    pub reply: Reply,
    /// Who alone can continue what the request began (a cursor); `None` means whoever was asked.
    pub member: Option<Arc<dyn Endpoint>>,
}

/// Somebody who answers commands.
///
/// A call that is dropped ends its connection if there is one, and leaves the outcome unknown:
/// whoever was asked finishes what he has begun. A cursor that he opens all the same is closed.
pub trait Endpoint: Send + Sync {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>>;

    /// For a request whose reply names a cursor: says also where that cursor is.
    fn open(&self, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        let reply = self.call(request);
        Box::pin(async move {
            Ok(Answer {
                reply: reply.await?,
                member: None,
            })
        })
    }

    /// Whether a call that has begun needs nothing of its caller until the reply comes: it is worked on in
    /// another process.
    fn works_elsewhere(&self) -> bool {
        false
    }

    /// Asks whoever is behind this what has changed: the members of a replica set.
    fn look_again(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// `set/host,host` of a replica set, as far as it is known now.
    fn connection_string(&self) -> Option<String> {
        None
    }

    /// The connections behind it, by server; none within a process.
    fn pools(&self) -> Vec<PoolStatistics> {
        Vec::new()
    }
}

/// The connections to one server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    pub host: String,
    /// With a call under way, or about to be made for one.
    pub in_use: u64,
    pub available: u64,
    /// Since the start.
    pub created: u64,
}
