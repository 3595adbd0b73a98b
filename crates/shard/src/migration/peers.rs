//! How a shard reaches other shards and the config server.
//!
//! Who is asked may be down, or between two primaries: that passes, and the same question is
//! asked again. Every question of a move may be asked twice. A refusal is an answer.

use crate::Shard;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::{Endpoint, Reply, Request};

/// How a shard is reached: by its name and its connection string.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;

#[derive(Default)]
pub(super) struct OtherShards {
    connect: OnceLock<Connect>,
    known: Mutex<HashMap<(String, String), Arc<dyn Endpoint>>>,
}

impl OtherShards {
    /// The first one counts.
    pub(super) fn reached_by(&self, connect: Connect) {
        let _ = self.connect.set(connect);
    }

    pub(super) fn are_reached(&self) -> bool {
        self.connect.get().is_some()
    }

    pub(super) fn get(&self, name: &str, host: &str) -> Result<Arc<dyn Endpoint>, Error> {
        let Some(connect) = self.connect.get() else {
            return Err(Error::new(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "this server was not told how to reach other shards",
            ));
        };
        let mut known = self.known.lock();
        let endpoint = known
            .entry((name.to_owned(), host.to_owned()))
            .or_insert_with(|| connect(name, host));
        Ok(endpoint.clone())
    }
}

/// Why a question was not answered as hoped.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It passes: ask again.
    Unreachable(String),
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Refused(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unreachable(why) => f.write_str(why),
            Failure::Refused(error) => f.write_str(&error.message),
        }
    }
}

/// Asks, and waits so long for the answer. Both tell each other the time.
pub(super) async fn ask(
    shard: &Shard,
    endpoint: &dyn Endpoint,
    mut question: DocWriter,
    wait: Duration,
) -> Result<Reply, Failure> {
    shard.gossip(&mut question);
    let question: DocBuf = question.with("$db", "admin").finish();
    let request = Request::from_parts(question, Vec::new())?;
    let reply = match tokio::time::timeout(wait, endpoint.call(request)).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(Failure::Unreachable(error.to_string())),
        Err(_) => return Err(Failure::Unreachable("no answer in time".to_owned())),
    };
    let document = reply.document();
    shard.hear_time(document);
    if document.get("ok") == Some(ValueRef::Double(1.0)) {
        return Ok(reply);
    }
    let code = match document.get("code") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code::INTERNAL_ERROR,
    };
    let message = document.get_str("errmsg").unwrap_or("refused").to_owned();
    Err(match passes(code) {
        true => Failure::Unreachable(message),
        false => Failure::Refused(Error::new(code, message)),
    })
}

/// Errors of a member that is not the primary, or not any more.
fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::NOT_WRITABLE_PRIMARY
            | Code::NOT_PRIMARY_NO_SECONDARY_OK
            | Code::NOT_PRIMARY_OR_SECONDARY
            | Code::PRIMARY_STEPPED_DOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::INTERRUPTED_AT_SHUTDOWN
            | Code::SHUTDOWN_IN_PROGRESS
            | Code::HOST_UNREACHABLE
            | Code::HOST_NOT_FOUND
            | Code::NETWORK_TIMEOUT
    )
}
