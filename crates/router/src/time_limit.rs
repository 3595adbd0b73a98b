//! `maxTimeMS` of commands whose shards do not answer.
//!
//! Shards obey the limit themselves. One that is away cannot: the router answers for it, a moment
//! ([`GRACE`]) after the limit, so that a shard that is there tells more of what became of its part.
//!
//! What was begun goes on without its client, as on a server whose client has gone: a command is never
//! dropped between two of its steps. A cursor that it opens is closed, for nobody knows it.
//!
//! `getMore` has its own meaning of `maxTimeMS`.

use crate::get_more::kill_cursors;
use crate::{Router, dispatch};
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::number::Number;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use wire::{ConnectionInfo, Reply, Request};

pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// The limit of a command, if it has one.
pub(crate) fn of(request: &Request) -> Option<Duration> {
    if request.name() == "getMore" {
        return None;
    }
    let limit = request.get("maxTimeMS").and_then(Number::of)?;
    let limit_ms = u64::try_from(limit.to_i64_truncated()?).ok()?;
    (limit_ms > 0).then(|| Duration::from_millis(limit_ms))
}

/// Answers within the limit.
pub(crate) async fn answer_within(
    limit: Duration,
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: Request,
) -> Reply {
    let is_given_up = Arc::new(AtomicBool::new(false));
    let working = {
        let (router, connection) = (router.clone(), connection.clone());
        let is_given_up = is_given_up.clone();
        tokio::spawn(async move {
            let reply = dispatch::dispatch_now(&router, &connection, request).await;
            if is_given_up.load(Ordering::Acquire) {
                close_cursor(&router, reply.document()).await;
            }
            reply
        })
    };
    let ended = timeout(limit + GRACE, working).await;
    let error = match ended {
        Ok(Ok(reply)) => return reply,
        Ok(Err(error)) => Error::new(Code::INTERNAL_ERROR, format!("it did not end: {error}")),
        Err(_) => {
            is_given_up.store(true, Ordering::Release);
            Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit")
        }
    };
    let mut reply = Reply::error(&error);
    router.clock.tell(&mut reply);
    reply
}

async fn close_cursor(router: &Router, reply: Doc<'_>) {
    let cursor = reply.get_doc("cursor");
    let named = cursor.and_then(|cursor| Some((cursor.get("id")?, cursor.get_str("ns")?)));
    let Some((ValueRef::Int64(id), namespace)) = named else {
        return;
    };
    let Some((database, collection)) = namespace.split_once('.').filter(|_| id != 0) else {
        return;
    };
    let mut body = DocWriter::new().with("killCursors", collection);
    body.begin_array("cursors").push(id);
    body.end().append("$db", database);
    let request = Request::from_parts(body.finish(), Vec::new());
    if let Ok(request) = request {
        // One that cannot be closed ends when it has been idle for long enough.
        let _closed = kill_cursors(router, &request).await;
    }
}
