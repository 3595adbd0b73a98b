//! `currentOp`, `killOp`, `fsync` and `shutdown`: what the server does right
//! now, and how to end it.

use super::arguments::{arguments, is_generic};
use super::{Answer, Invocation, bare_failure, finish};
use crate::Shard;
use crate::operation::Operation;
use crate::read::stages::summary;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::number::Number;
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
            name if is_generic(name) => {}
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
    let operations = all.iter().map(|operation| describe(shard, operation));
    operations
        .chain(crate::migration::running_moves(shard))
        .collect()
}

fn describe(shard: &Shard, operation: &Operation) -> DocBuf {
    let command = Doc::from_validated(&operation.command);
    let running = operation.started.elapsed();
    let connection = &operation.connection;
    let name = &shard.host.name;
    let host = match connection.local() {
        Some(local) => format!("{name}:{}", local.port()),
        None => name.clone(),
    };
    let mut writer = DocWriter::new();
    writer
        .append("type", "op")
        .append("host", &host)
        .append("desc", format!("conn{}", connection.id()).as_str())
        .append("connectionId", connection.id() as i32);
    if let Some(peer) = connection.peer() {
        writer.append("client", peer.to_string().as_str());
    }
    if let Some(metadata) = connection.client_metadata() {
        let application = metadata.as_doc().get_doc("application");
        if let Some(name) = application.and_then(|application| application.get_str("name")) {
            writer.append("appName", name);
        }
        writer.append("clientMetadata", metadata);
    }
    writer
        .append("active", true)
        .append("currentOpTime", iso_time(shard.clock.now_ms()).as_str())
        .append("threaded", true)
        .append("opid", operation.id);
    if let Some(session) = operation.session() {
        session.append(&mut writer, "lsid");
    }
    writer
        .append("secs_running", running.as_secs() as i64)
        .append("microsecs_running", running.as_micros() as i64)
        .append("op", kind_of(command))
        .append("ns", namespace_of(command).as_str())
        .append("command", command);
    if let Some(plan) = operation.plan().filter(|_| name_of(command) != "explain") {
        let summary = summary(plan, name_of(command) == "count");
        writer.append("planSummary", summary.as_str());
    }
    if operation.is_killed() {
        writer.append("killPending", true);
    }
    writer
        .append("numYields", 0)
        .begin_document("locks")
        .end()
        .append("waitingForLock", false)
        .begin_document("lockStats")
        .end()
        .append("waitingForFlowControl", false)
        .begin_document("flowControlStats")
        .end();
    writer.finish()
}

fn name_of(command: Doc<'_>) -> &str {
    command.first().map_or("", |element| element.key())
}

fn kind_of(command: Doc<'_>) -> &'static str {
    match name_of(command) {
        "find" => "query",
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        _ => "command",
    }
}

fn namespace_of(command: Doc<'_>) -> String {
    let database = command.get_str("$db").unwrap_or_default();
    match command
        .first()
        .map(|element| (element.key(), element.value()))
    {
        Some(("getMore", _)) => {
            let collection = command.get_str("collection").unwrap_or("$cmd");
            format!("{database}.{collection}")
        }
        Some(("aggregate" | "currentOp", value)) if value.is_number() => {
            format!("{database}.$cmd.aggregate")
        }
        Some((_, ValueRef::String(collection))) => format!("{database}.{collection}"),
        Some(("explain", ValueRef::Document(explained))) => {
            match explained.first().map(|first| first.value()) {
                Some(ValueRef::String(collection)) => format!("{database}.{collection}"),
                _ => format!("{database}.$cmd"),
            }
        }
        _ => format!("{database}.$cmd"),
    }
}

/// Milliseconds since 1970 as `2026-11-15T21:09:10.453+00:00`.
fn iso_time(now_ms: i64) -> String {
    let (days, in_day) = (now_ms.div_euclid(86_400_000), now_ms.rem_euclid(86_400_000));
    // Years begin in March here, so that the leap day is their last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, milli) = (in_day / 1_000 % 60, in_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}+00:00")
}

pub(crate) fn kill_op(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let value = invocation
        .request
        .body()
        .get("op")
        .ok_or_else(|| Error::new(Code::NO_SUCH_KEY, "Missing expected field \"op\""))?;
    let number = Number::of(value).ok_or_else(|| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Expected field \"op\" to have numeric type, but found {}",
                value.kind().name()
            ),
        )
    })?;
    let id = number.to_i64_exact().ok_or_else(|| {
        Error::bad_value(format!(
            "Expected field \"op\" to have a value exactly representable as a 64-bit integer, but \
             found op: {}",
            model::text::value_quoted(value)
        ))
    })?;
    // Ids are shown as signed and may come back as unsigned.
    let narrow = i32::try_from(id).or_else(|_| u32::try_from(id).map(u32::cast_signed));
    let Ok(id) = narrow else {
        return Err(Error::location(
            26823,
            format!("invalid op : {id}. Op ID cannot be represented with 32 bits"),
        ));
    };
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

#[cfg(test)]
mod tests {
    use super::iso_time;

    #[test]
    fn times_as_text() {
        for (now_ms, text) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (1_577_836_800_000, "2020-01-01T00:00:00.000+00:00"),
            (1_709_210_096_789, "2024-02-29T12:34:56.789+00:00"),
            (-1, "1969-12-31T23:59:59.999+00:00"),
        ] {
            assert_eq!(iso_time(now_ms), text);
        }
    }
}
