//! What the API answers, as JSON, in the form of MongoDB's own verifier.

use crate::difference::Difference;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::metadata::MetadataMismatch;
use crate::record::{Mismatch, decode};
use crate::report::MismatchKind;
use crate::scan::Shared;
use crate::status::{Phase, StreamStatus};
use crate::time::{ClusterTime, now_ms, shown_moment};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::sync::atomic::Ordering;

const PAGE: usize = 1000;
/// How many mismatches are listed when nobody says how many.
const LISTED_MAX: usize = 10_000;

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Check => "check",
        Phase::Recheck => "recheck",
        Phase::Idle => "idle",
    }
}

fn timestamp(time: ClusterTime) -> Json {
    json!({"$timestamp": {"t": time.seconds, "i": time.counter}})
}

/// How many seconds a side's clock is ahead of the changes that are known of it.
pub fn lag_seconds(stream: &StreamStatus) -> Option<i64> {
    let position = *stream.position.borrow();
    let known = position.time.milliseconds();
    (known > 0).then(|| match position.idle {
        true => 0,
        false => (now_ms() - known).max(0) / 1000,
    })
}

fn changes(stream: &StreamStatus) -> Json {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    json!({
        "lagSecs": lag_seconds(stream),
        "eventCounts": {
            "insert": count(&stream.inserts),
            "update": count(&stream.updates),
            "replace": count(&stream.replaces),
            "delete": count(&stream.deletes),
            "definition": count(&stream.definitions),
        },
        "position": timestamp(stream.position.borrow().time),
    })
}

pub fn progress(run: &Shared) -> Json {
    let status = &run.status;
    let (open, done) = (
        status.tasks_open.load(Ordering::Relaxed),
        status.tasks_done.load(Ordering::Relaxed),
    );
    let seconds = run.started.elapsed().as_secs_f64().max(0.001);
    let (documents, bytes) = (run.tally.documents(), run.tally.bytes());
    json!({"progress": {
        "phase": phase_name(status.phase()),
        "generation": status.generation.load(Ordering::Relaxed),
        "generationStats": {
            "docsCompared": documents,
            "totalDocs": run.tally.documents_expected(),
            "srcBytesCompared": bytes,
            "totalNamespaces": run.tally.len(),
        },
        "docsComparedPerSecond": documents as f64 / seconds,
        "srcBytesComparedPerSecond": bytes as f64 / seconds,
        "totalRechecksDone": status.documents_rechecked.load(Ordering::Relaxed),
        "docMismatches": run.ledger.total(),
        "nsMismatches": status.metadata().len(),
        "writesOff": status.writes_off.get().is_some(),
        "srcChangeStats": changes(&status.source),
        "dstChangeStats": changes(&status.destination),
        "srcLastRecheckedTS": status.rechecked_until(Side::Source).map(timestamp),
        "dstLastRecheckedTS": status.rechecked_until(Side::Destination).map(timestamp),
        "unverified": status.failures(),
        "error": null,
        "verificationStatus": {
            "totalTasks": open,
            "completedTasks": done,
            "addedTasks": open.saturating_sub(done),
        },
    }})
}

pub async fn summary(run: &Shared) -> Result<Json, VerifyError> {
    Ok(json!({"summary": {
        "from": run.source.address,
        "to": run.destination.address,
        "phase": phase_name(run.status.phase()),
        "generation": run.status.generation.load(Ordering::Relaxed),
        "collections": run.collection_reports().await?,
        "nsMismatches": run.status.metadata(),
        "unverified": run.status.failures(),
    }}))
}

/// Which documents are listed.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Mismatches {
    /// Only those that have differed for so long.
    #[serde(rename = "minDurationSecs")]
    seconds_min: Option<f64>,
    limit: Option<usize>,
}

impl Mismatches {
    /// The mismatches, those that differ longest first.
    pub async fn list(&self, run: &Shared) -> Result<Vec<Json>, VerifyError> {
        let limit = self.limit.unwrap_or(LISTED_MAX);
        let seconds_min = self.seconds_min.unwrap_or(0.0);
        let mut found: Vec<Mismatch> = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = run.store.page(b"m", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (_, bytes) in &page {
                let mismatch: Mismatch = decode(bytes)?;
                if duration_seconds(&mismatch) >= seconds_min {
                    found.push(mismatch);
                }
            }
            // Never more than one page beyond what is answered.
            found.sort_by_key(|one| std::cmp::Reverse(one.last_seen_ms - one.first_seen_ms));
            found.truncate(limit);
        }
        Ok(found.iter().map(document_mismatch).collect())
    }
}

fn duration_seconds(mismatch: &Mismatch) -> f64 {
    (mismatch.last_seen_ms - mismatch.first_seen_ms) as f64 / 1000.0
}

fn document_mismatch(mismatch: &Mismatch) -> Json {
    let kind = match mismatch.kind {
        MismatchKind::Missing => "missingOnDst",
        MismatchKind::Extra => "extraOnDst",
        MismatchKind::Content => "content",
        MismatchKind::Repeated => "repeated",
    };
    let mut answer = json!({
        "type": kind,
        "namespace": mismatch.namespace,
        "_id": crate::difference::relaxed(mismatch.id.as_ref()),
        "durationSecs": duration_seconds(mismatch),
        "firstSeen": shown_moment(mismatch.first_seen_ms),
    });
    if let Some(changed) = mismatch.changed_ms {
        answer["lastChange"] = shown_moment(changed).into();
    }
    if let Some(first) = mismatch.differences.first() {
        answer["field"] = first.path.as_str().into();
        if let Some(copy) = &first.copy {
            answer["shardKey"] = copy.as_str().into();
        }
        let details: Vec<String> = mismatch.differences.iter().map(detail).collect();
        answer["detail"] = details.join("; ").into();
    }
    answer
}

fn detail(difference: &Difference) -> String {
    let side = |side: &Option<crate::difference::Shown>| match side {
        Some(shown) => format!("{} ({})", shown.value, shown.kind),
        None => "nothing".to_owned(),
    };
    format!(
        "{}: {} on the source, {} on the destination",
        difference.place(),
        side(&difference.source),
        side(&difference.destination)
    )
}

pub fn namespace_mismatch(mismatch: &MetadataMismatch) -> Json {
    let kind = match (&mismatch.source, &mismatch.destination) {
        (Some(_), None) => "missingOnDst",
        (None, Some(_)) => "extraOnDst",
        (_, _) => "content",
    };
    let what = mismatch.what.as_str();
    let (aspect, component) = match what.split_once(' ') {
        Some(("index", rest)) => ("index", Some(rest)),
        Some(("option", rest)) => ("spec", Some(rest)),
        Some((_, _)) => (what, None),
        None if what == "collection" => ("exist", None),
        None => (what, None),
    };
    let mut answer = json!({"type": kind, "namespace": mismatch.namespace, "aspect": aspect});
    if let Some(component) = component {
        answer["component"] = component.into();
    }
    let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
    answer["detail"] = format!(
        "{} on the source, {} on the destination",
        side(&mismatch.source),
        side(&mismatch.destination)
    )
    .into();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_told_by_aspect_and_component() {
        let check = |what: &str, source: bool, destination: bool, expected: Json| {
            let there = |there: bool| there.then(|| "x".to_owned());
            let mut answer = namespace_mismatch(&MetadataMismatch {
                namespace: "d.c".to_owned(),
                what: what.to_owned(),
                source: there(source),
                destination: there(destination),
            });
            let answer = answer.as_object_mut().unwrap();
            answer.remove("detail");
            answer.remove("namespace");
            assert_eq!(Json::Object(answer.clone()), expected, "{what}");
        };
        check(
            "collection",
            true,
            false,
            json!({"type": "missingOnDst", "aspect": "exist"}),
        );
        check(
            "type",
            true,
            true,
            json!({"type": "content", "aspect": "type"}),
        );
        check(
            "index a_1, unique",
            false,
            true,
            json!({"type": "extraOnDst", "aspect": "index", "component": "a_1, unique"}),
        );
        check(
            "option validator",
            true,
            true,
            json!({"type": "content", "aspect": "spec", "component": "validator"}),
        );
        check(
            "shard key",
            true,
            true,
            json!({"type": "content", "aspect": "shard key"}),
        );
    }
}
