//! `serverStatus`: what monitoring tools read, section by section.
//!
//! Only figures that the server has: a section that would have to be made up is left out.

use super::arguments::arguments;
use super::diagnostic::COMPATIBLE_VERSION;
use super::{Answer, Invocation, finish};
use crate::Shard;
use crate::counters::OperationKind;
use crate::process::Process;
use model::bson::{Doc, DocWriter, Kind, ValueRef};
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Reply;

pub(crate) fn server_status(invocation: &Invocation<'_>) -> Answer {
    let left_out: Vec<&str> = arguments("serverStatus", invocation.request.body())
        .filter(|argument| !model::number::is_truthy(argument.value()))
        .map(|argument| argument.name())
        .collect();
    let mut writer = Reply::writer();
    if left_out.is_empty() {
        append_server_status(invocation.shard, &mut writer);
        return finish(writer);
    }
    let mut whole = DocWriter::new();
    append_server_status(invocation.shard, &mut whole);
    for element in whole.finish().iter() {
        // Only sections can be switched off, not who answers.
        let is_section = element.kind() == Kind::Document;
        if !(is_section && left_out.contains(&element.key())) {
            writer.append_element(&element);
        }
    }
    finish(writer)
}

/// The sections of `serverStatus`.
pub(crate) fn append_server_status(shard: &Shard, writer: &mut DocWriter) {
    let metrics = shard.wire_metrics();
    let process = Process::now();
    let uptime = shard.started.elapsed();
    let (cursors, cursors_in_use, cursors_endless) = shard.cursors.counts();
    writer
        .append("host", &shard.host.name)
        .append("version", COMPATIBLE_VERSION)
        .append("process", "terndb")
        .append("pid", i64::from(std::process::id()))
        .append("uptime", uptime.as_secs_f64())
        .append("uptimeMillis", uptime.as_millis() as i64)
        .append("uptimeEstimate", uptime.as_secs() as i64)
        .append("localTime", ValueRef::DateTime(shard.clock.now_ms()))
        .begin_document("connections")
        .append("current", metrics.connections_current as i32)
        .append("available", metrics.connections_available as i32)
        .append("totalCreated", metrics.connections_created as i32)
        .end()
        .begin_document("network")
        .append("bytesIn", metrics.bytes_in as i64)
        .append("bytesOut", metrics.bytes_out as i64)
        .append("numRequests", metrics.requests as i64)
        .end();
    let cursor_counts = [cursors, cursors_in_use, cursors_endless].map(|count| count as i64);
    shard.counters.append_to(writer, cursor_counts);
    if shard.sharding.is_shard() {
        writer.begin_document("shardingStatistics");
        crate::migration::append_statistics(shard, writer);
        shard.counters.append_sharding_to(writer);
        let deletions = shard.range_deletions().map_or(0, |all| all.len());
        writer.append("rangeDeleterTasks", deletions as i64);
        writer.end();
    }
    writer
        .begin_document("storageEngine")
        .append("name", "fjall")
        .append("supportsCommittedReads", true)
        .append("persistent", true)
        .append("readOnly", false)
        .end()
        .begin_document("mem")
        .append("bits", usize::BITS as i32)
        .append("resident", process.resident_mb())
        .append("virtual", process.virtual_mb())
        .append("supported", true)
        .end();
    process.append_extra_info(writer);
    append_clients(shard, writer);
    append_sessions(shard, writer);
    super::replica_set::append_server_status(shard, writer);
    writer
        .begin_document("cursors")
        .append("open", cursors as i64)
        .append("inUse", cursors_in_use as i64)
        .append("noTimeout", cursors_endless as i64)
        .end();
}

fn append_sessions(shard: &Shard, writer: &mut DocWriter) {
    let jobs = shard.session_cache.statistics();
    writer
        .begin_document("logicalSessionRecordCache")
        .append("activeSessionsCount", shard.session_cache.len() as i32)
        .append("sessionsCollectionJobCount", jobs.refresh.count)
        .append(
            "lastSessionsCollectionJobDurationMillis",
            jobs.refresh.duration_ms,
        )
        .append(
            "lastSessionsCollectionJobTimestamp",
            ValueRef::DateTime(jobs.refresh.began_ms),
        )
        .append("lastSessionsCollectionJobEntriesRefreshed", jobs.refreshed)
        .append("lastSessionsCollectionJobEntriesEnded", jobs.ended)
        .append(
            "lastSessionsCollectionJobCursorsClosed",
            jobs.cursors_closed,
        )
        .append("transactionReaperJobCount", jobs.reap.count)
        .append(
            "lastTransactionReaperJobDurationMillis",
            jobs.reap.duration_ms,
        )
        .append(
            "lastTransactionReaperJobTimestamp",
            ValueRef::DateTime(jobs.reap.began_ms),
        )
        .append("lastTransactionReaperJobEntriesCleanedUp", jobs.reaped)
        .append("sessionCatalogSize", shard.sessions.len() as i32)
        .end();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
    writer
        .begin_document("transactions")
        .append(
            "retriedCommandsCount",
            read(&shard.counters.retried_commands),
        )
        .append(
            "retriedStatementsCount",
            read(&shard.counters.retried_statements),
        )
        .end();
}

/// `globalLock`: there is no such lock, so nobody waits for it. Clients are active while a command of theirs
/// runs that reads or writes documents.
fn append_clients(shard: &Shard, writer: &mut DocWriter) {
    let (mut readers, mut writers) = (0, 0);
    for operation in shard.operations.all() {
        let command = Doc::from_validated(&operation.command);
        let name = command.first().map_or("", |element| element.key());
        match OperationKind::of(name) {
            OperationKind::Read => readers += 1,
            OperationKind::Write => writers += 1,
            OperationKind::Command => {}
        }
    }
    writer
        .begin_document("globalLock")
        .append("totalTime", shard.started.elapsed().as_micros() as i64);
    for (name, readers, writers) in [("currentQueue", 0, 0), ("activeClients", readers, writers)] {
        writer
            .begin_document(name)
            .append("total", readers + writers)
            .append("readers", readers)
            .append("writers", writers)
            .end();
    }
    writer.end();
}
