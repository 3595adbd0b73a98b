//! `currentOp` and `killOp`.
//!
//! As in MongoDB, `currentOp` tells what the shards do (operations are called `shard:id`); what this router does
//! itself is told by `$currentOp` with `localOps`. `killOp` takes both kinds of names.

use crate::failure::Failure;
use crate::get_more::get_more;
use crate::hello::now_ms;
use crate::registry::batch_of;
use crate::{Router, aggregate};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::number::is_truthy;
use std::sync::Arc;
use wire::operation::kill_target;
use wire::{Reply, Request};

/// What this router does, oldest first. A `getMore` shows the cursor that it goes on with.
pub(crate) fn own_operations(router: &Router) -> Vec<DocBuf> {
    let mut cursors = router.cursors.describe_busy();
    let all = router.operations.all();
    let described = all.iter().map(|operation| {
        let host = router.options.host.as_str();
        let plain = operation.describe(host, now_ms(), None, None);
        let Some(cursor) = cursors.remove(&operation.id) else {
            return plain;
        };
        let mut writer = DocWriter::new();
        for element in plain.iter() {
            writer.append_element(&element);
            if element.key() == "command" {
                writer.append("cursor", &cursor);
            }
        }
        writer.finish()
    });
    described.collect()
}

pub(crate) async fn current_op(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let mut reply = aggregate::aggregate(router, &asked(request)?).await?;
    let mut writer = Reply::writer();
    writer.begin_array("inprog");
    loop {
        let cursor = reply.document().get_doc("cursor").unwrap_or(Doc::EMPTY);
        for operation in batch_of(cursor) {
            writer.push(operation);
        }
        let id = match cursor.get("id") {
            Some(ValueRef::Int64(id)) if id != 0 => id,
            _ => break,
        };
        let mut more = DocWriter::new()
            .with("getMore", id)
            .with("collection", "$cmd.aggregate");
        if let Some(session) = request.body().get_doc("lsid") {
            more.append("lsid", session);
        }
        more.append("$db", "admin");
        let more = Request::from_parts(more.finish(), Vec::new())?;
        reply = get_more(router, &more).await?;
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// The same as a pipeline.
fn asked(request: &Request) -> Result<Request, Error> {
    let (mut options, mut filter) = (DocWriter::new(), DocWriter::new());
    let mut all_users = true;
    let mut carried = DocWriter::new();
    for element in request.body().iter().skip(1) {
        match element.key() {
            "$ownOps" => all_users = !is_truthy(element.value()),
            "$all" => {
                options.append("idleConnections", is_truthy(element.value()));
            }
            "$truncateOps" => {
                options.append("truncateOps", is_truthy(element.value()));
            }
            "lsid" | "comment" | "maxTimeMS" | "$readPreference" | "$clusterTime" => {
                carried.append_element(&element);
            }
            "$db"
            | "readConcern"
            | "writeConcern"
            | "apiVersion"
            | "apiStrict"
            | "apiDeprecationErrors" => {}
            _ => {
                filter.append_element(&element);
            }
        }
    }
    options.append("allUsers", all_users);
    let mut command = DocWriter::new().with("aggregate", 1);
    command
        .begin_array("pipeline")
        .push_document()
        .append("$currentOp", &options.finish())
        .end()
        .push_document()
        .append("$match", &filter.finish())
        .end()
        .end()
        .begin_document("cursor")
        .end();
    for element in carried.finish().iter() {
        command.append_element(&element);
    }
    command.append("$db", "admin");
    Request::from_parts(command.finish(), Vec::new())
}

pub(crate) async fn kill_op(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let Some(name) = request.body().get_str("op") else {
        if let Some(operation) = router.operations.get(kill_target(request.body())?) {
            operation.kill();
        }
        let told = Reply::writer().with("info", "attempting to kill op");
        return Ok(Reply::from_writer(told.with("ok", 1.0)));
    };
    let named = name.split_once(':');
    let Some((shard, id)) = named.filter(|(shard, id)| !shard.is_empty() && !id.is_empty()) else {
        let message = format!(
            "The op argument to killOp must be of the format shardid:opid but found \"{name}\""
        );
        return Err(Error::location(28625, message).into());
    };
    let Ok(id) = id.parse::<i32>() else {
        let message = format!("Failed to parse number '{id}' in input");
        return Err(Error::new(Code::FAILED_TO_PARSE, message).into());
    };
    let shard = match router.registry.find(shard) {
        Some(known) => known.id,
        None => cluster::routing::ShardId::new(shard),
    };
    let command = DocWriter::new()
        .with("killOp", 1)
        .with("op", id)
        .with("$db", "admin");
    let command = Request::from_parts(command.finish(), Vec::new())?;
    // The shard says nothing that matters: it tries.
    router.ask_as_named(&shard, command).await?;
    let told = Reply::writer()
        .with("shard", shard.as_str())
        .with("shardid", id);
    Ok(Reply::from_writer(told.with("ok", 1.0)))
}
