//! `_configsvrSettle {operation}`: what became of an operation whose answer was lost.
//!
//! ```text
//!   => {outcome: "committed", version: {e, t, v}} | {outcome: "aborted"}
//! ```
//!
//! ⚑ If nothing was decided, *aborted* is written before it is answered; a commit that comes later is
//! refused.

use crate::commit::{Commit, by};
use crate::documents::{Fields, OPERATIONS, now_ms, uuid_value};
use crate::error::Fault;
use crate::state::Effect;
use crate::tenure::{Plan, Tenure};
use cluster::authority::{Answer, OperationId, Outcome};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::sync::Arc;

pub(crate) async fn settle(tenure: &Arc<Tenure>, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let operation = Fields::of(OPERATIONS, body).uuid("operation")?;
    let here = tenure.clone();
    let outcome = tenure
        .complete(async move { decide(&here, operation).await })
        .await?;
    let mut reply = DocWriter::new();
    match outcome {
        Outcome::Committed(version) => {
            reply
                .append("outcome", "committed")
                .begin_document("version");
            version.append_to(&mut reply);
            reply.end();
        }
        Outcome::Aborted => {
            reply.append("outcome", "aborted");
        }
    }
    Ok(reply.with("ok", 1.0).finish())
}

async fn decide(tenure: &Tenure, operation: OperationId) -> Result<Outcome, Fault> {
    tenure
        .decide(|state| match state.authority.settle(operation) {
            Answer::Decided(outcome) => Ok(Plan {
                commit: Commit::default(),
                effects: Vec::new(),
                answer: outcome,
            }),
            Answer::Write(decision) => {
                let mut commit = Commit::default();
                let document = outcome_document(operation, decision.outcome);
                let id = by("_id", uuid_value(&operation));
                commit.expect_none(OPERATIONS, id.as_doc());
                commit.insert(OPERATIONS, document.as_doc());
                let outcome = decision.outcome;
                Ok(Plan {
                    commit,
                    effects: vec![Effect::Outcome(Box::new(decision))],
                    answer: outcome,
                })
            }
        })
        .await
}

fn outcome_document(operation: OperationId, outcome: Outcome) -> DocBuf {
    let mut writer = DocWriter::new()
        .with("_id", uuid_value(&operation))
        .with("kind", "outcome")
        .with("at", ValueRef::DateTime(now_ms()));
    if let Outcome::Committed(version) = outcome {
        writer.begin_document("committed");
        version.append_to(&mut writer);
        writer.end();
    }
    writer.finish()
}
