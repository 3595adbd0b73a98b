//! `removeShard`: everything leaves a shard, then the shard leaves the cluster.
//!
//! ```text
//!   first call    config.shards.draining: true            state "started"
//!   later calls   what is left is counted                 state "ongoing"
//!   nothing left  the shard's document is removed          state "completed"
//! ```
//!
//! Ranges are moved away by the balancer, for this also while it is stopped. Databases whose primary it is
//! have to be dropped or moved by the operator (`movePrimary`): it is not removed before.

use crate::commit::{Commit, by};
use crate::documents::SHARDS;
use crate::error::Fault;
use crate::queue::Patience;
use crate::server::text;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, log_change};
use crate::ticket::Ticket;
use crate::zones::all_shards;
use cluster::routing::ShardId;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter};
use std::sync::Arc;

pub(crate) async fn remove(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let called = text(command, "removeShard")?.to_owned();
    let patience = Patience::of(command)?;
    let here = tenure.clone();
    tenure
        .complete(async move {
            let _turn = here.queue.enter_within(&all_shards(), patience).await?;
            let planned = |state: &State| {
                let plan = plan(state, &here, &state.shard_called(&called)?)?;
                let reply = Ok(plan.answer.clone());
                Ok(plan.answering(state, ticket, &reply))
            };
            let reply = here.decide(planned).await?;
            here.balancer.wake();
            Ok(reply)
        })
        .await
}

/// What is left on a shard.
struct Left {
    chunks: usize,
    databases: Vec<String>,
}

fn left(state: &State, shard: &ShardId) -> Left {
    let tables = state.authority.collections();
    let chunks = tables.map(|(_, table)| {
        let own = table.chunks().filter(|view| view.chunk.shard == *shard);
        own.count()
    });
    let databases = state.authority.databases();
    let own = databases.filter(|(_, placement)| placement.primary == *shard);
    Left {
        chunks: chunks.sum(),
        databases: own.map(|(name, _)| name.to_owned()).collect(),
    }
}

fn plan(state: &State, tenure: &Tenure, shard: &ShardId) -> Result<Plan<DocBuf>, Fault> {
    let usable = state.authority.shards().find(|(name, _)| *name == shard);
    let Some((_, usable)) = usable else {
        return Err(Fault::new(
            Code::SHARD_NOT_FOUND,
            format!("Shard {shard} not found"),
        ));
    };
    let others = state.authority.shards();
    let others = others.filter(|(name, usable)| *name != shard && *usable);
    if others.count() == 0 {
        return Err(Fault::new(
            Code::ILLEGAL_OPERATION,
            "Operation not allowed because it would remove the last shard",
        ));
    }
    let left = left(state, shard);
    let mut commit = Commit::default();
    let mut effects = Vec::new();
    let id = by("_id", shard.as_str());
    let mut reply = DocWriter::new();
    if usable {
        let change = by("$set", by("draining", true).as_doc());
        commit.change(SHARDS, id.as_doc(), change.as_doc());
        log_change(
            &mut commit,
            "removeShard.start",
            "",
            by("shard", shard.as_str()).as_doc(),
        );
        effects.push(Effect::Draining(shard.clone()));
        reply
            .append("msg", "draining started successfully")
            .append("state", "started")
            .append("shard", shard.as_str());
    } else if left.chunks > 0 || !left.databases.is_empty() || tenure.moves.involve(shard) {
        reply
            .append("msg", "draining ongoing")
            .append("state", "ongoing")
            .begin_document("remaining")
            .append("chunks", left.chunks as i64)
            .append("dbs", left.databases.len() as i64)
            .append("jumboChunks", 0i64)
            .end();
    } else {
        // ⚑ Of what cannot be understood, anything may be on it.
        if let Some((name, damaged)) = state.damaged.first_key_value() {
            return Err(damaged.fault(name));
        }
        commit.delete(SHARDS, id.as_doc());
        log_change(
            &mut commit,
            "removeShard",
            "",
            by("shard", shard.as_str()).as_doc(),
        );
        effects.push(Effect::ShardGone(shard.clone()));
        reply
            .append("msg", "removeshard completed successfully")
            .append("state", "completed")
            .append("shard", shard.as_str());
        return Ok(Plan {
            commit,
            effects,
            answer: reply.with("ok", 1.0).finish(),
        });
    }
    reply
        .append("note", "you need to drop or movePrimary these databases")
        .begin_array("dbsToMove");
    for name in &left.databases {
        reply.push(name);
    }
    reply.end();
    Ok(Plan {
        commit,
        effects,
        answer: reply.with("ok", 1.0).finish(),
    })
}
