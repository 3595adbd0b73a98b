//! What a shard tells about its moves: `$currentOp` and `currentOp`, and `shardingStatistics` of
//! `serverStatus`.

use super::donor::{DonorHandle, Steps};
use super::plan::{Plan, uuid_value};
use crate::Shard;
use crate::operation::Operation;
use model::bson::{DocBuf, DocWriter};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a move is shown as: the command that asks for it.
pub(super) fn command(plan: &Plan) -> DocBuf {
    DocWriter::new()
        .with("moveRange", plan.namespace.as_str())
        .with("id", uuid_value(&plan.id))
        .with("range", &plan.bounds)
        .with("fromShard", plan.donor.as_str())
        .with("toShard", plan.recipient.as_str())
        .finish()
}

/// The operations of moves, which are shown as such.
pub(crate) fn of_moves(shard: &Shard) -> BTreeSet<i32> {
    let donors = shard.migrations.donors();
    let recipients = shard.migrations.recipients();
    let donors = donors.iter().filter_map(|donor| donor.operation.get());
    let given = donors.map(|operation| operation.id).collect::<Vec<_>>();
    let received = recipients
        .iter()
        .filter_map(|recipient| Some(recipient.progress.operation.lock().as_ref()?.id));
    received.chain(given).collect()
}

fn described(
    shard: &Shard,
    side: &str,
    plan: &Plan,
    operation: Option<&Operation>,
    running: Duration,
) -> DocWriter {
    let mut writer = DocWriter::new()
        .with("type", "op")
        .with("host", &shard.host.name)
        .with("desc", side)
        .with("active", true);
    if let Some(operation) = operation {
        writer.append("opid", operation.id);
        if operation.is_killed() {
            writer.append("killPending", true);
        }
    }
    writer
        .append("op", "command")
        .append("ns", plan.namespace.as_str())
        .append("command", &command(plan))
        .append("secs_running", running.as_secs() as i64)
        .append("microsecs_running", running.as_micros() as i64);
    writer
}

fn per_second(bytes: i64, running: Duration) -> i64 {
    (bytes as f64 / running.as_secs_f64().max(0.001)) as i64
}

/// How much of the range has been copied, and how long the rest takes at the same pace. Until the donor has counted
/// the documents of the range they are as many as all of the collection here, at most.
fn append_share(shard: &Shard, donor: &DonorHandle, steps: &Steps, writer: &mut DocWriter) {
    let stored = |id| shard.store.collection_counter(id).items;
    let expected = match (steps.expected, donor.collection) {
        (Some(expected), _) => {
            writer.append("expectedDocs", expected as i64);
            expected
        }
        (None, Some(collection)) => {
            let at_most = stored(collection);
            writer.append("expectedDocsAtMost", at_most as i64);
            at_most
        }
        (None, None) => return,
    };
    let share = (steps.documents as f64 / expected.max(1) as f64).min(1.0);
    writer.append("percent", share * 100.0);
    let received_here = (steps.documents - steps.resumed_at) as f64;
    if received_here > 0.0 && share < 1.0 {
        let left = (expected as f64 - steps.documents as f64).max(0.0);
        let seconds = donor.began.elapsed().as_secs_f64() * left / received_here;
        writer.append("estimatedSecondsLeft", seconds);
    }
}

/// The moves that run here, as operations.
pub(crate) fn running_moves(shard: &Shard) -> Vec<DocBuf> {
    let mut all = Vec::new();
    for donor in shard.migrations.donors() {
        let running = donor.began.elapsed();
        let steps = donor.steps.lock().clone();
        let operation = donor.operation.get().map(|operation| &**operation);
        let mut writer = described(shard, "MoveRangeDonor", &donor.plan, operation, running);
        writer
            .append("phase", *donor.phase.lock())
            .append("clonedDocs", steps.documents)
            .append("clonedBytes", steps.bytes)
            .append("replayedChanges", steps.replayed)
            .append("pace", steps.pace.unwrap_or(1.0))
            .append("bytesPerSecond", per_second(steps.bytes, running));
        append_share(shard, &donor, &steps, &mut writer);
        if steps.critical_section_us > 0 {
            writer.append("criticalSectionMicros", steps.critical_section_us as i64);
        }
        all.push(writer.finish());
    }
    for recipient in shard.migrations.recipients() {
        if recipient.has_ended() {
            continue;
        }
        let running = recipient.progress.began.elapsed();
        let operation = recipient.progress.operation.lock().clone();
        let (side, plan) = ("MoveRangeRecipient", &recipient.plan);
        let mut writer = described(shard, side, plan, operation.as_deref(), running);
        writer.append("phase", recipient.progress.phase());
        recipient.progress.append(&mut writer);
        let bytes = recipient.progress.bytes.load(Ordering::Relaxed) as i64;
        writer.append("bytesPerSecond", per_second(bytes, running));
        all.push(writer.finish());
    }
    all
}

/// What `shardingStatistics` says about moves.
pub(crate) fn append_statistics(shard: &Shard, writer: &mut DocWriter) {
    let moves = &shard.migrations;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
    let ms = |counter: &AtomicU64| count(counter) / 1000;
    writer
        .append("countDonorMoveChunkStarted", count(&moves.started))
        .append("countDonorMoveChunkCommitted", count(&moves.committed))
        .append("countDonorMoveChunkAborted", count(&moves.aborted))
        .append("totalDonorMoveChunkTimeMillis", ms(&moves.total_us))
        .append("totalDonorChunkCloneTimeMillis", ms(&moves.copying_us))
        .append("totalCriticalSectionCommitTimeMillis", ms(&moves.commit_us))
        .append(
            "totalCriticalSectionTimeMillis",
            ms(&moves.critical_section_us),
        )
        .append(
            "totalCriticalSectionTimeMicros",
            count(&moves.critical_section_us),
        )
        .append(
            "countDocsClonedOnRecipient",
            count(&moves.received_documents),
        )
        .append("countBytesClonedOnRecipient", count(&moves.received_bytes))
        .append("countDocsClonedOnDonor", count(&moves.documents))
        .append("countBytesClonedOnDonor", count(&moves.bytes))
        .append("countRecipientMoveChunkStarted", count(&moves.receptions))
        .append("countWritesHeldForMoves", moves.making_way.held() as i64);
    let [commands, batches] = shard.latency.figures();
    for (name, figure) in [
        ("clientLatencyMicros", commands.lately),
        ("clientLatencyAtRestMicros", commands.at_rest),
        ("clientBatchLatencyMicros", batches.lately),
        ("clientBatchLatencyAtRestMicros", batches.at_rest),
    ] {
        if let Some(figure) = figure {
            writer.append(name, figure as i64);
        }
    }
    writer.begin_array("runningMoves");
    for running in running_moves(shard) {
        writer.push(&running);
    }
    writer.end();
}
