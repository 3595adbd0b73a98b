//! Why a request to a shard has no result, and what to do next.
//!
//! ```text
//!   Stale      the request was routed by an old version: mark, refresh, route again
//!   Reply      the shard's own error, passed on as it is
//!   Error      an error of the router
//! ```

use cluster::routing::ShardId;
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::version::PlacementVersion;
use wire::{CallError, Reply};

/// What a shard said about how a request was routed.
#[derive(Clone, Debug)]
pub(crate) enum Stale {
    Collection {
        shard: ShardId,
        /// What the shard has, if it knows.
        wanted: Option<PlacementVersion>,
    },
    Database,
}

#[derive(Debug)]
pub(crate) enum Failure {
    Stale(Stale),
    Reply(Reply),
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl Failure {
    /// What the client is told.
    pub(crate) fn into_reply(self) -> Reply {
        match self {
            Failure::Reply(reply) => reply,
            Failure::Error(error) => Reply::error(&error),
            Failure::Stale(stale) => Reply::error(&stale.error()),
        }
    }
}

impl Stale {
    /// Reads an error document: a reply, or an element of `writeErrors`.
    pub(crate) fn of(error: Doc<'_>, shard: &ShardId) -> Option<Stale> {
        let Some(ValueRef::Int32(code)) = error.get("code") else {
            return None;
        };
        match Code(code) {
            Code::STALE_DB_VERSION => Some(Stale::Database),
            Code::STALE_CONFIG | Code::STALE_EPOCH => {
                let details = error.get_doc("errInfo").unwrap_or(error);
                let wanted = details
                    .get_doc("vWanted")
                    .and_then(|wanted| PlacementVersion::from_document(wanted).ok());
                Some(Stale::Collection {
                    shard: shard.clone(),
                    wanted,
                })
            }
            _ => None,
        }
    }

    pub(crate) fn error(&self) -> Error {
        match self {
            Stale::Collection { shard, .. } => Error::new(
                Code::STALE_CONFIG,
                format!("routed to {shard} by an old version again and again"),
            ),
            Stale::Database => Error::new(
                Code::STALE_DB_VERSION,
                "routed by an old version of the database again and again",
            ),
        }
    }
}

/// Whether nobody of a shard answers for it now.
pub(crate) fn is_absent(failure: &Failure) -> bool {
    let code = match failure {
        Failure::Error(error) => error.code,
        Failure::Reply(reply) => crate::scan::code_of(reply),
        Failure::Stale(_) => return false,
    };
    // What only says that a cursor is gone is not about the shard.
    crate::scan::is_passing(code) && !matches!(code, Code::CURSOR_NOT_FOUND | Code::CURSOR_KILLED)
}

/// Whether a reply says that the command succeeded.
pub(crate) fn is_ok(reply: Doc<'_>) -> bool {
    reply.get("ok").is_some_and(is_one)
}

/// Whether the value of `ok` says so.
pub(crate) fn is_one(ok: ValueRef<'_>) -> bool {
    match ok {
        ValueRef::Double(ok) => ok == 1.0,
        other => model::number::Number::of(other).is_some_and(|ok| ok.to_f64() == 1.0),
    }
}

/// Sorts a shard's reply.
pub(crate) fn checked(reply: Reply, shard: &ShardId) -> Result<Reply, Failure> {
    if is_ok(reply.document()) {
        return Ok(reply);
    }
    match Stale::of(reply.document(), shard) {
        Some(stale) => Err(Failure::Stale(stale)),
        None => Err(Failure::Reply(reply)),
    }
}

/// The error for a shard that gave no reply. Whoever retries a retryable write is safe: the shard
/// recognises its statements.
pub(crate) fn unreachable(shard: &ShardId, error: &CallError, retryable: bool) -> Error {
    let code = match error {
        CallError::NobodyFits(_) => Code::FAILED_TO_SATISFY_READ_PREFERENCE,
        CallError::NotSent(_) | CallError::OutcomeUnknown(_) => Code::HOST_UNREACHABLE,
    };
    let told = Error::new(code, format!("shard {shard}: {error}"));
    if !retryable {
        return told;
    }
    let mut labels = DocWriter::new();
    labels
        .begin_array("errorLabels")
        .push("RetryableWriteError")
        .end();
    told.with_details(labels.finish())
}
