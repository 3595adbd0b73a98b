//! `balancerStart`, `balancerStop`, `balancerStatus`, `balancerCollectionStatus`.

use super::{CHUNK_BYTES, View};
use crate::commit::{Commit, by};
use crate::error::Fault;
use crate::server::{ok, text};
use crate::state::{Effect, SETTINGS};
use crate::tenure::{Plan, Tenure};
use crate::ticket::Ticket;
use cluster::balance::{Reason, violation};
use model::bson::{Doc, DocBuf, DocWriter};
use model::{Code, Namespace};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Starts or stops it. Moves that run come to their end.
pub(crate) async fn set(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    on: bool,
) -> Result<DocBuf, Fault> {
    let here = tenure.clone();
    tenure
        .complete(async move {
            here.decide(|state| {
                let mut commit = Commit::default();
                let mut change = DocWriter::new();
                change
                    .begin_document("$set")
                    .append("mode", if on { "full" } else { "off" })
                    .append("stopped", !on)
                    .end();
                let id = by("_id", "balancer");
                commit.put(SETTINGS, id.as_doc(), change.finish().as_doc());
                let plan = Plan {
                    commit,
                    effects: vec![Effect::Balances(on)],
                    answer: (),
                };
                Ok(plan.answering(state, ticket, &Ok(ok())))
            })
            .await?;
            here.balancer.wake();
            Ok(ok())
        })
        .await
}

pub(crate) async fn status(tenure: &Tenure) -> Result<DocBuf, Fault> {
    let on = tenure.state().await?.balances;
    let balancer = &tenure.balancer;
    Ok(DocWriter::new()
        .with("mode", if on { "full" } else { "off" })
        .with("inBalancerRound", balancer.in_round.load(Ordering::Acquire))
        .with("numBalancerRounds", balancer.rounds.load(Ordering::Acquire))
        .with("ok", 1.0)
        .finish())
}

pub(crate) async fn collection_status(tenure: &Tenure, command: Doc<'_>) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(command, "balancerCollectionStatus")?)?;
    let view = View::of(tenure, &name).await?.ok_or_else(|| {
        Fault::new(
            Code::NAMESPACE_NOT_SHARDED,
            "Collection unsharded or undefined",
        )
    })?;
    let mut reply = DocWriter::new().with("chunkSize", (CHUNK_BYTES >> 20) as i32);
    match violation(&view.table, &view.loads, &view.zones, CHUNK_BYTES) {
        None => {
            reply.append("balancerCompliant", true);
        }
        Some(reason) => {
            let reason = match reason {
                Reason::Draining => "draining",
                Reason::ZoneViolation => "zoneViolation",
                Reason::Imbalance => "chunksImbalance",
            };
            reply
                .append("balancerCompliant", false)
                .append("firstComplianceViolation", reason);
        }
    }
    Ok(reply.with("ok", 1.0).finish())
}
