//! `_configsvrSettle {operation}`: what became of an operation whose answer was lost.
//!
//! ```text
//!   => {outcome: "committed", version: {e, t, v}, validAfter: Timestamp} | {outcome: "aborted"}
//!
//!   {_configsvrOutcome: 1, operation, knowing?} => the same, or {outcome: "undecided"}, or {outcome: "unknown"}
//! ```
//!
//! ⚑ If nothing was decided, *aborted* is written before it is answered; a commit that comes later is
//! refused.
//!
//! `_configsvrOutcome` decides nothing. ⚑ It is answered only where the outcome of another operation, `knowing`, is
//! known: what was decided before that is known there too, and what is undecided will be decided later. Without
//! one the answer is what a majority knows when it is asked: somebody is about to make something for an operation
//! that may have ended long ago, and of which nothing is *known* any more.

use crate::commit::{Commit, by};
use crate::documents::{Fields, OPERATIONS, now_ms, uuid_value};
use crate::error::Fault;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, no_primary};
use cluster::authority::{Answer, OperationId, Outcome};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::version::PlacementVersion;
use std::sync::Arc;

/// The kind of a document of which nothing but the outcome is left.
pub(crate) const OUTCOME: &str = "outcome";

pub(crate) async fn settle(tenure: &Arc<Tenure>, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let operation = Fields::of(OPERATIONS, body).uuid("operation")?;
    let here = tenure.clone();
    let outcome = tenure
        .complete(async move { here.decide(|state| plan(state, operation)).await })
        .await?;
    Ok(reply(outcome))
}

/// What became of an operation that may be undecided, told by who knows of another one.
pub(crate) async fn outcome(tenure: &Tenure, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let fields = Fields::of(OPERATIONS, body);
    let operation = fields.uuid("operation")?;
    if body.get("knowing").is_none() {
        return confirmed(tenure, operation).await;
    }
    let knowing = fields.uuid("knowing")?;
    let state = tenure.state().await?;
    if state.authority.outcome(knowing).is_none() {
        return Err(no_primary());
    }
    Ok(match state.authority.outcome(operation) {
        Some(outcome) => reply(outcome),
        None => without_outcome("undecided"),
    })
}

/// The same by the document of the operation, as a majority has it.
async fn confirmed(tenure: &Tenure, operation: OperationId) -> Result<DocBuf, Fault> {
    let id = by("_id", uuid_value(&operation));
    let Some(stored) = tenure.store.find_confirmed(OPERATIONS, id.as_doc()).await? else {
        return Ok(without_outcome("unknown"));
    };
    let fields = Fields::of(OPERATIONS, stored.as_doc());
    if let Some(committed) = stored.as_doc().get_doc("committed") {
        return Ok(reply(Outcome::Committed {
            version: PlacementVersion::from_document(committed)?,
            since: fields.time("validAfter")?,
        }));
    }
    Ok(match fields.flag("aborted") {
        true => reply(Outcome::Aborted),
        false => without_outcome("undecided"),
    })
}

fn without_outcome(what: &str) -> DocBuf {
    let reply = DocWriter::new().with("outcome", what);
    reply.with("ok", 1.0).finish()
}

/// What whoever asks is told.
pub(crate) fn reply(outcome: Outcome) -> DocBuf {
    let mut reply = DocWriter::new();
    match outcome {
        Outcome::Committed { version, since } => {
            reply
                .append("outcome", "committed")
                .begin_document("version");
            version.append_to(&mut reply);
            reply.end().append("validAfter", since);
        }
        Outcome::Aborted => {
            reply.append("outcome", "aborted");
        }
    }
    reply.with("ok", 1.0).finish()
}

/// What is written so that the outcome of an operation is certain.
pub(crate) fn plan(state: &State, operation: OperationId) -> Result<Plan<Outcome>, Fault> {
    let decision = match state.authority.settle(operation) {
        Answer::Decided(outcome) => {
            return Ok(Plan {
                commit: Commit::default(),
                effects: Vec::new(),
                answer: outcome,
            });
        }
        Answer::Write(decision) => decision,
    };
    let mut commit = Commit::default();
    let mut committed = DocWriter::new().with("_id", uuid_value(&operation));
    committed
        .begin_document("committed")
        .append("$exists", true)
        .end();
    commit.expect_none(OPERATIONS, committed.finish().as_doc());
    // Into the state document of the operation, if it has one.
    let mut change = DocWriter::new();
    change.begin_document("$set").append("aborted", true).end();
    change
        .begin_document("$setOnInsert")
        .append("kind", OUTCOME)
        .append("at", ValueRef::DateTime(now_ms()))
        .end();
    let id = by("_id", uuid_value(&operation));
    commit.put(OPERATIONS, id.as_doc(), change.finish().as_doc());
    let outcome = decision.outcome;
    Ok(Plan {
        commit,
        effects: vec![Effect::Outcome(Box::new(decision), now_ms())],
        answer: outcome,
    })
}

/// What a commit adds to the document of its operation.
pub(crate) fn append_committed(
    writer: &mut DocWriter,
    version: PlacementVersion,
    since: ClusterTime,
) {
    writer.begin_document("committed");
    version.append_to(writer);
    writer.end().append("validAfter", since);
}

/// What is left of an operation that has ended.
pub(crate) fn outcome_document(operation: OperationId, outcome: Outcome) -> DocBuf {
    let mut writer = DocWriter::new()
        .with("_id", uuid_value(&operation))
        .with("kind", OUTCOME)
        .with("at", ValueRef::DateTime(now_ms()));
    match outcome {
        Outcome::Committed { version, since } => append_committed(&mut writer, version, since),
        Outcome::Aborted => {
            writer.append("aborted", true);
        }
    }
    writer.finish()
}
