//! `getMore` and `killCursors`.

use crate::Router;
use crate::cursor::Source;
use crate::failure::{Failure, is_ok, unreachable};
use crate::find::{whole, with_cursor_id};
use crate::merge::Batch;
use crate::operation;
use crate::request::fields_without;
use cluster::routing::ShardId;
use model::bson::{Doc, ValueRef};
use model::error::{Code, Error};
use std::time::Duration;
use wire::{Reply, Request};

pub(crate) async fn get_more(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let id = match body.first().map(|first| first.value()) {
        Some(ValueRef::Int64(id)) => id,
        other => {
            let kind = other.map_or("missing", |other| other.kind().name());
            return Err(Failure::Error(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'getMore.getMore' is the wrong type '{kind}', expected type 'long'"
                ),
            )));
        }
    };
    let collection = body.get_str("collection").ok_or_else(|| {
        let message = "BSON field 'getMore.collection' is missing but a required field";
        Error::location(40414, message)
    })?;
    model::namespace::Namespace::new(request.database(), collection)?;
    let namespace = format!("{}.{collection}", request.database());
    let session = body.get_doc("lsid");
    let mut cursor = router.cursors.check_out(id, &namespace, session)?;
    match &mut cursor.source {
        Source::Passed { member, id: theirs } => {
            let (member, theirs) = (member.clone(), *theirs);
            let answered = pass(router, request, &*member, id, theirs).await;
            let more = answered
                .as_ref()
                .is_ok_and(|reply| is_open(reply.document()));
            // A command that was refused says nothing about the cursor.
            let refused = answered
                .as_ref()
                .is_ok_and(|reply| !is_ok(reply.document()));
            let gone = answered
                .as_ref()
                .is_ok_and(|reply| reply.document().get("code") == Some(ValueRef::Int32(43)));
            if more || (refused && !gone) {
                if let Some(killed) = router.cursors.check_in(id, cursor) {
                    killed.close().await;
                }
            } else {
                router.cursors.let_go(id);
                // Who did not wait for an answer does not know whether the shard still has it.
                if answered.is_err() {
                    cursor.close().await;
                }
            }
            answered
        }
        Source::Merged(merge) => {
            let size = whole(body.get("batchSize"));
            let refused = match size {
                None => Some(Error::new(
                    Code::BAD_VALUE,
                    "batchSize must not be negative",
                )),
                Some(_) if body.get("maxTimeMS").is_some() && !merge.awaits_data() => {
                    Some(Error::bad_value(
                        "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
                    ))
                }
                Some(_) => None,
            };
            if let Some(error) = refused {
                if let Some(killed) = router.cursors.check_in(id, cursor) {
                    killed.close().await;
                }
                return Err(error.into());
            }
            let size = size.filter(|size| *size > 0);
            merge.set_batch_size(size);
            let wait_ms = body.get("maxTimeMS").and_then(|limit| whole(Some(limit)));
            merge.set_wait(wait_ms.map(Duration::from_millis));
            let mut writer = Reply::writer_with_capacity(16 * 1024);
            writer.begin_document("cursor");
            let mut batch = Batch::begin(writer, "nextBatch", size);
            let filled = merge.fill(&mut batch).await;
            let over = match filled {
                Ok(over) => over,
                Err(failure) => {
                    router.cursors.let_go(id);
                    cursor.close().await;
                    return Err(failure);
                }
            };
            let mut writer = batch.end();
            merge.append_state(&mut writer);
            let left = if over {
                router.cursors.let_go(id);
                Some(cursor)
            } else {
                router.cursors.check_in(id, cursor)
            };
            let told = if left.is_some() { 0 } else { id };
            if let Some(cursor) = left {
                cursor.close().await;
            }
            writer
                .append("id", told)
                .append("ns", namespace.as_str())
                .end()
                .append("ok", 1.0);
            Ok(Reply::from_writer(writer))
        }
    }
}

/// Lets the shard continue its cursor.
async fn pass(
    router: &Router,
    request: &Request,
    member: &dyn wire::Endpoint,
    ours: i64,
    theirs: i64,
) -> Result<Reply, Failure> {
    let mut writer = model::bson::DocWriter::new();
    for element in fields_without(request.body(), &[]).finish().iter() {
        match element.key() {
            "getMore" => writer.append("getMore", theirs),
            _ => writer.append_element(&element),
        };
    }
    router.clock.append_to(&mut writer);
    let routed = Request::from_parts(writer.finish(), Vec::new())?;
    let reply = operation::waiting(member.call(routed)).await?;
    let reply =
        reply.map_err(|error| unreachable(&ShardId::new("of the cursor"), &error, false))?;
    router.clock.observe(reply.document());
    if ours != theirs && is_open(reply.document()) {
        return Ok(with_cursor_id(reply.document(), ours));
    }
    Ok(reply)
}

/// Whether a reply's cursor has more.
fn is_open(reply: Doc<'_>) -> bool {
    let id = reply.get_doc("cursor").and_then(|cursor| cursor.get("id"));
    matches!(id, Some(ValueRef::Int64(id)) if id != 0)
}

pub(crate) async fn kill_cursors(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = crate::targeting::namespace_of(body, request.database())?;
    let listed = body.get_array("cursors").ok_or_else(|| {
        let message = "BSON field 'killCursors.cursors' is missing but a required field";
        Error::location(40414, message)
    })?;
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    for (at, id) in listed.iter().enumerate() {
        let ValueRef::Int64(id) = id else {
            return Err(Failure::Error(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'killCursors.cursors.{at}' is the wrong type '{}', expected type \
                     'long'",
                    id.kind().name()
                ),
            )));
        };
        match router.cursors.kill(id, namespace.as_str()) {
            Some(cursor) => {
                if let Some(cursor) = cursor {
                    cursor.close().await;
                }
                killed.push(id);
            }
            None => missing.push(id),
        }
    }
    let mut writer = Reply::writer();
    for (name, ids) in [
        ("cursorsKilled", killed),
        ("cursorsNotFound", missing),
        ("cursorsAlive", Vec::new()),
        ("cursorsUnknown", Vec::new()),
    ] {
        writer.begin_array(name);
        for id in ids {
            writer.push(id);
        }
        writer.end();
    }
    writer.append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}
