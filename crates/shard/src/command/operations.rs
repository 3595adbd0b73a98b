//! `currentOp`, `killOp`, `fsync` and `shutdown`: what the server does right
//! now, and how to end it.

use super::arguments::{arguments, is_generic};
use super::{Answer, Invocation, bare_failure, finish};
use crate::Shard;
use crate::operation::Operation;
use crate::read::stages::summary;
use model::bson::{Doc, DocBuf, DocWriter};
use model::{Code, Error};
use query::context::QueryContext;
use query::filter::Filter;
use std::sync::Arc;
use std::time::Duration;
use wire::Reply;

/// Nobody who stops a server waits longer for its clients.
const QUIESCE_MAX_S: u64 = 24 * 60 * 60;

pub(crate) fn current_op(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let mut own = false;
    let mut filter = DocWriter::new();
    for element in body.iter().skip(1) {
        match element.key() {
            "$ownOps" => own = model::number::is_truthy(element.value()),
            "$all" | "$truncateOps" => {}
            name if is_generic(name.as_bytes()) => {}
            _ => {
                filter.append_element(&element);
            }
        }
    }
    let context = QueryContext::new(invocation.shard.clock.now_ms());
    let filter = Filter::parse(filter.finish().as_doc(), &context)?;
    let mut writer = Reply::writer();
    writer.begin_array("inprog");
    // Without users, all operations are everybody's own.
    let _ = own;
    for document in running_operations(invocation.shard) {
        if filter.matches(document.as_doc())? {
            writer.push(&document);
        }
    }
    writer.end();
    finish(writer)
}

/// All running operations as documents; `$currentOp` shows the same.
pub(crate) fn running_operations(shard: &Arc<Shard>) -> Vec<DocBuf> {
    let all = shard.operations.all();
    let of_moves = crate::migration::of_moves(shard);
    let others = all.iter().filter(|it| !of_moves.contains(&it.id));
    let operations = others.map(|operation| describe(shard, operation));
    operations
        .chain(crate::migration::running_moves(shard))
        .collect()
}

fn describe(shard: &Shard, operation: &Operation) -> DocBuf {
    let host = shard.host_of(&operation.connection);
    let command = Doc::from_validated(&operation.command);
    let named = command.first().map_or("", |element| element.key());
    let plan = operation.plan().filter(|_| named != "explain");
    let plan = plan.map(|plan| summary(plan, named == "count"));
    let progress = operation.progress();
    operation.describe(&host, shard.clock.now_ms(), plan.as_deref(), progress)
}

pub(crate) fn kill_op(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let id = wire::operation::kill_target(invocation.request.body())?;
    if let Some(operation) = invocation.shard.operations.get(id) {
        operation.kill();
    }
    finish(Reply::writer().with("info", "attempting to kill op"))
}

/// Makes everything appended so far durable, in the log and in the engine.
pub(crate) async fn fsync(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    for argument in arguments("fsync", invocation.request.body()) {
        if argument.name() == "lock" && model::number::is_truthy(argument.value()) {
            return Err(Error::new(
                Code::COMMAND_NOT_SUPPORTED,
                "fsync with lock is not supported",
            ));
        }
    }
    let shard = invocation.shard;
    // A synced entry is synced after everything before it.
    shard.propose_catalog(|encoder| encoder.noop()).await?;
    tokio::task::block_in_place(|| shard.store.sync()).map_err(crate::error::from_storage)?;
    finish(Reply::writer().with("numFiles", 1))
}

pub(crate) fn fsync_unlock(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    bare_failure("fsyncUnlock called when not locked")
}

pub(crate) fn shutdown(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let mut limit = None;
    for argument in arguments("shutdown", invocation.request.body()) {
        match argument.name() {
            "force" => {
                argument.loose_boolean()?;
            }
            "timeoutSecs" => {
                let seconds = argument.integer()?;
                let seconds = u64::try_from(seconds).unwrap_or(0);
                limit = Some(Duration::from_secs(seconds.min(QUIESCE_MAX_S)));
            }
            _ => return Err(argument.unknown()),
        }
    }
    *invocation.shard.shutdown_limit.lock() = limit;
    invocation.shard.request_shutdown();
    finish(Reply::writer())
}
