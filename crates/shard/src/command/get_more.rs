//! `getMore`: the next batch of a cursor.

use super::arguments::{arguments, missing};
use super::find::finish_cursor;
use super::placement::shutting_down;
use super::{Answer, Invocation};
use crate::cursor::{Batch, BatchSource, Filled, batch_bytes, fill_batch};
use crate::read::ScanPart;
use crate::session::SessionId;
use model::bson::ValueRef;
use model::{Code, Error, Namespace};
use std::time::Duration;
use tokio::time::Instant;
use wire::Reply;

/// How long a getMore waits for news where the client does not say.
const AWAIT_DATA_DEFAULT: Duration = Duration::from_secs(1);
/// A day is as good as for ever.
const AWAIT_DATA_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn get_more(invocation: &Invocation<'_>) -> Answer {
    let request = invocation.request;
    let body = request.body();
    let id = match body.first().map(|first| first.value()) {
        Some(ValueRef::Int64(id)) => id,
        Some(ValueRef::Null | ValueRef::Undefined) | None => {
            return Err(missing("getMore", "getMore"));
        }
        Some(other) => {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'getMore.getMore' is the wrong type '{}', expected type 'long'",
                    other.kind().name()
                ),
            ));
        }
    };
    let mut collection = None;
    let mut batch_size = None;
    for argument in arguments("getMore", body) {
        match argument.name() {
            "collection" => collection = Some(argument.string()?),
            "batchSize" => {
                let size = argument.non_negative()? as u64;
                batch_size = Some(size).filter(|size| *size > 0);
            }
            "term" | "lastKnownCommittedOpTime" => {}
            _ => return Err(argument.unknown()),
        }
    }
    let bytes_max = ScanPart::read(body)?.and_then(|part| part.bytes);
    let collection = collection.ok_or_else(|| missing("getMore", "collection"))?;
    let namespace = Namespace::new(request.database(), collection)?;
    let shard = invocation.shard;
    let mut held = shard
        .cursors
        .check_out(id, &namespace, invocation.operation)?;
    let session = invocation.envelope.session;
    if let Err(error) = check_session(id, held.cursor().session, session) {
        held.check_in();
        return Err(error);
    }
    if held.cursor().source.is_change_stream() {
        invocation.operation.set_of_stream();
    }
    // A member that was removed hears of nothing any more: who waits there waits for ever.
    if let Err(error) = shard.check_goes_on() {
        held.check_in();
        return Err(error);
    }
    let awaits = held.cursor().source.awaits_data();
    // Nothing more comes here; elsewhere it does.
    if awaits && shard.is_shutting_down() {
        held.check_in();
        return Err(shutting_down());
    }
    if invocation.envelope.time_limit.is_some() && !awaits {
        held.check_in();
        return Err(Error::bad_value(
            "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
        ));
    }
    // A cursor on the log reads nothing of a range: it does not wait for one, least of all with
    // the time it is given to wait for news.
    let known = shard.catalog.get(&namespace).filter(|_| !awaits);
    if known.is_some_and(|known| known.has_blocks()) {
        held.check_in();
        Box::pin(shard.await_readable(&namespace, invocation.operation)).await?;
        held = (shard.cursors).check_out(id, &namespace, invocation.operation)?;
    }
    let cursor = held.cursor();
    let at = cursor.at;
    if let Some(left) = cursor.time_left {
        invocation.operation.set_time_limit(left);
    }
    if let Some(plan) = cursor.opened_by.plan() {
        invocation.operation.show_plan(plan);
    }
    if cursor.opened_by.runs_apart() {
        invocation.operation.set_apart();
    }
    let bytes = match (batch_size, shard.readable(&namespace)) {
        (Some(size), Some(collection)) => {
            batch_bytes(shard.store.collection_counter(collection.id), size)
        }
        _ => 16 * 1024,
    };
    let mut writer = Reply::writer_with_capacity(bytes);
    writer.begin_document("cursor");
    let mut batch = Batch::begin(writer, "nextBatch", batch_size).with_bytes_max(bytes_max);
    let filled = if awaits {
        invocation.operation.set_waits_for_news();
        invocation.operation.lift_time_limit();
        let wait = invocation.envelope.time_limit.unwrap_or(AWAIT_DATA_DEFAULT);
        let until = Instant::now() + wait.min(AWAIT_DATA_MAX);
        let source = &mut *cursor.source;
        Box::pin(fill_or_wait(invocation, source, &mut batch, until)).await?
    } else {
        let filled = fill_batch(&mut *cursor.source, invocation.operation, &mut batch)?;
        let latency = &shard.latency;
        latency.note_batch(invocation.operation.started.elapsed());
        filled
    };
    if let Some(left) = &mut cursor.time_left {
        *left = left.saturating_sub(invocation.operation.started.elapsed());
    }
    shard.counters.returned(batch.documents() as usize);
    let mut writer = batch.end();
    held.cursor().source.append_state(&mut writer);
    let more = filled != Filled::Ended && held.check_in();
    let reply = finish_cursor(writer, if more { id } else { 0 }, &namespace, at)?;
    if more && request.exhaust_allowed() {
        return Ok(reply.then(request.clone()));
    }
    Ok(reply)
}

/// Fills a batch; if there is nothing, waits for news and tries again. When the time is over it looks a
/// last time, so that it knows how far the log has come.
///
/// It listens before the log is read, so that what comes in between is not missed.
async fn fill_or_wait(
    invocation: &Invocation<'_>,
    source: &mut dyn BatchSource,
    batch: &mut Batch,
    until: Instant,
) -> Result<Filled, Error> {
    let shard = invocation.shard;
    let watch = shard.watchers.watch(source.interest());
    let state = shard.state_for(invocation.request)?;
    let mut is_last = false;
    loop {
        let mut news = std::pin::pin!(watch.notify.notified());
        news.as_mut().enable();
        let filled = fill_batch(source, invocation.operation, batch)?;
        if filled != Filled::Dry || batch.documents() > 0 || is_last {
            return Ok(filled);
        }
        tokio::select! {
            () = news => {
                shard.watchers.woke();
                is_last = source.tells_any_news();
            }
            () = tokio::time::sleep_until(until) => is_last = true,
            () = invocation.operation.interrupted() => {}
            () = invocation.connection.closed() => return Ok(filled),
            () = shard.shutdown_begun() => return Ok(filled),
        }
        invocation.operation.check()?;
        // Whoever is woken because the state was replaced need not go on.
        if !shard.is_unbroken(state) {
            return Ok(filled);
        }
    }
}

/// A cursor goes on in the session that opened it, or in none if none did.
fn check_session(
    id: i64,
    opened: Option<SessionId>,
    asking: Option<SessionId>,
) -> Result<(), Error> {
    let (code, why) = match (opened, asking) {
        (opened, asking) if opened == asking => return Ok(()),
        (None, _) => (50736, "it was not created in a session"),
        (Some(_), None) => (50737, "it was created in a session"),
        (Some(_), Some(_)) => (50738, "it was created in another session"),
    };
    Err(Error::location(
        code,
        format!("Cannot run getMore on cursor {id} here: {why}"),
    ))
}
