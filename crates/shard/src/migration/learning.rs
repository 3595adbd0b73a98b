//! ⚑ A shard learns of commits in their order.
//!
//! ```text
//!   committed:   5  range X: here          6  range Y: here, or away from here
//!   heard here:                            6 ─► of which other moves has this shard said that it is ready?
//!                                               X ─► what became of it? 5: written first ─► then 6
//! ```
//!
//! Routers name the version of a shard with a request, and not the ranges: whoever agrees with version 6 answers for
//! all that it owns by version 6. With two moves at once the decisions may be heard in any order. A shard that called
//! version 6 its own before it knew that X is its own since version 5 would answer that nothing is there
//! (`commits_are_learned_in_order` in `cluster/src/migration/tests.rs`).
//!
//! So before a commit is written the config server is asked about every other range that is ready to be received here.
//! What is undecided then will be decided with a newer version, so that asking and writing need not be one step. A
//! range that is given away needs nothing of this: until it is known who has it, it is blocked.
//!
//! ⚑ Who answers must know of the commit that was heard: a member of the config server that was deposed before it
//! knows nothing of the earlier one either.
//!
//! Nobody waits in a circle: only for older versions, and a recipient whose donor is silent asks by itself.

use super::peers::Failure;
use super::plan::{Fields, Plan, uuid_value};
use super::recipient::{Letter, Message};
use super::{ask_config, recipient::RecipientHandle};
use crate::Shard;
use crate::primary_services::Tenure;
use cluster::authority::Outcome;
use model::bson::DocWriter;
use model::ids::Uuid;
use model::version::{Age, PlacementVersion};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const ANSWER_WAIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

/// Before the outcome of a move is written: this shard learns of commits that came before it.
pub(super) async fn learn_earlier(shard: &Shard, tenure: &Tenure, plan: &Plan, outcome: Outcome) {
    let Outcome::Committed { version, .. } = outcome else {
        return;
    };
    if plan.part_of.is_some() {
        return;
    }
    for other in shard.migrations.recipients() {
        let is_meant = other.plan.uuid == plan.uuid && other.plan.id != plan.id;
        if is_meant {
            learn(shard, tenure, plan.id, version, &other).await;
        }
    }
}

async fn learn(
    shard: &Shard,
    tenure: &Tenure,
    decided: Uuid,
    version: PlacementVersion,
    other: &Arc<RecipientHandle>,
) {
    while other.is_ready() && !tenure.is_over() {
        match outcome_of(shard, other.plan.id, decided).await {
            Ok(Some(earlier @ Outcome::Committed { version: its, .. }))
                if its.age(version) == Age::Older =>
            {
                let (answer, answered) = oneshot::channel();
                let message = Message::Release(earlier);
                // One that does not answer has ended with its tenure.
                if other
                    .letters
                    .send(Letter { message, answer })
                    .await
                    .is_err()
                    || answered.await.is_err()
                {
                    return;
                }
            }
            Ok(_) => return,
            Err(failure) => {
                tracing::warn!("it is not known what became of an earlier move: {failure}");
                tokio::select! {
                    () = tenure.ended() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }
}

/// What became of a move, asked of who knows that another one was decided; `None`: nothing yet.
async fn outcome_of(shard: &Shard, id: Uuid, decided: Uuid) -> Result<Option<Outcome>, Failure> {
    let question = DocWriter::new()
        .with("_configsvrOutcome", 1)
        .with("operation", uuid_value(&id))
        .with("knowing", uuid_value(&decided));
    let reply = ask_config(shard, question, ANSWER_WAIT).await?;
    let fields = Fields(reply.document());
    match fields.text("outcome")? {
        "undecided" => Ok(None),
        _ => Ok(Some(fields.outcome()?)),
    }
}
