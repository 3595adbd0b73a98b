//! Moves of ranges from shard to shard: the config server's part.
//!
//! ```text
//!   moveRange, moveChunk ─► in turn: checked, registered, state document, one entry ─► the turn is given back
//!     ─► _terndbMoveRange to the donor, again and again until it answers
//!            └─ donor ── _configsvrCommitMove ─► commit.rs: one entry by operation id ⚑
//!     ─► settled ─► the state document becomes the outcome, one entry ─► whoever waits is told
//! ```
//!
//! **A move holds no claim while it runs**, because it may take hours: it is begun in the turn of its
//! collection and goes on without. What must not happen meanwhile is excluded by other means. Another move of
//! an overlapping range is refused, the same one is joined ([`Moves`]). A split inside the range is refused.
//! Whoever changes the collection as a whole holds its claim, so that no move begins, and ends those that run
//! ([`halt`]): each is settled, which is final, before the first effect of the change. ⚑ Those who change
//! only options or indexes let them run, and put their commits off (`commit.rs`).
//!
//! **One document is the whole story**: `config.terndb_operations` has `{_id, kind: "moveRange", ..}`, the
//! decision adds `committed: {e, t, v}` and `validAfter`, or `aborted: true`, to it, and when the move has ended the document is
//! cut down to the outcome. A new primary registers what it finds before it serves, and asks the donors again.
//!
//! **Whoever asked and lost the answer asks again** with the id of the move (`ticket.rs`), and waits for it or is told
//! how it ended. Who joined the same move of somebody else has no record of its own: asked again, the move is looked
//! for again, and if the range is where it should be, that is the answer.
//!
//! Left out: outcomes are kept [`OUTCOMES_KEPT_MS`], not until every message of the move is known to be gone.

pub(crate) mod command;
pub(crate) mod commit;
mod registry;
mod state;

pub(crate) use registry::Moves;
pub(crate) use state::{KIND, Move};

use crate::commit::{Commit, by};
use crate::documents::{OPERATIONS, now_ms, uuid_value};
use crate::error::{Fault, Retry};
use crate::queue::{Claim, Patience};
use crate::settle;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, log_change, no_primary};
use crate::ticket::{self, Place};
use cluster::authority::Outcome;
use cluster::routing::ShardId;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use registry::{Admission, Registered};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long it is remembered what became of a move: longer than any message of it can be on its way.
const OUTCOMES_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// Moves a range and waits for the end; the answer.
pub(crate) async fn run(
    tenure: &Arc<Tenure>,
    wanted: command::Wanted,
    patience: Patience,
) -> Result<DocBuf, Fault> {
    let here = tenure.clone();
    tenure
        .complete(async move {
            let (told, began_ms) = (wanted.told, now_ms());
            match begin(&here, wanted, patience).await? {
                Begun::Nothing => Ok(told.reply(0)),
                Begun::First(waiting) => ticket::ended(waiting).await,
                Begun::Joined(waiting) => {
                    ticket::ended(waiting).await?;
                    Ok(told.reply(now_ms() - began_ms))
                }
            }
        })
        .await
}

/// What came of a wish for a move.
enum Begun {
    /// The range is there already.
    Nothing,
    First(registry::Waiting),
    /// Somebody else's, of the same range to the same shard.
    Joined(registry::Waiting),
}

/// Begins a move, or joins one, in the turn of its collection.
async fn begin(
    tenure: &Arc<Tenure>,
    wanted: command::Wanted,
    patience: Patience,
) -> Result<Begun, Fault> {
    let claim = Claim::one(&wanted.namespace);
    let _turn = tenure.queue.enter_within(&claim, patience).await?;
    if let Some(name) = tenure.closed(&claim) {
        return Err(Fault::new(
            Code::MANUAL_INTERVENTION_REQUIRED,
            format!("an earlier operation on {name} could not be finished"),
        ));
    }
    let Some(moved) = wanted.resolve(tenure).await? else {
        return Ok(Begun::Nothing);
    };
    let per_shard = command::moves_per_shard(tenure).await?;
    let registered = match tenure.moves.admit(moved, per_shard)? {
        Admission::Joins(waiting) => return Ok(Begun::Joined(waiting)),
        Admission::First(registered) => registered,
    };
    let moved = registered.moved.clone();
    decide(tenure, |_| {
        let mut commit = Commit::default();
        let id = by("_id", uuid_value(&moved.id));
        // If the answer to this is lost it is written again.
        commit.put(OPERATIONS, id.as_doc(), moved.document().as_doc());
        let details = moved.described().finish();
        log_change(
            &mut commit,
            "moveChunk.start",
            moved.namespace.as_str(),
            details.as_doc(),
        );
        Ok(Plan {
            commit,
            effects: Vec::new(),
            answer: (),
        })
    })
    .await?;
    let waiting = registered.subscribe();
    launch(tenure, registered, None).await;
    Ok(Begun::First(waiting))
}

/// Takes up a move that an earlier primary began, before anybody else comes.
pub(crate) async fn resume(tenure: &Arc<Tenure>, document: Doc<'_>) -> Result<(), Fault> {
    let moved = Move::restore(document)?;
    tracing::info!(
        "the move of a range of {} to {} goes on after a change of primary",
        moved.namespace,
        moved.to
    );
    // Whoever asked for it asks again.
    let place = moved.ticket.map(|ticket| tenure.tickets.enter(ticket));
    let registered = tenure.moves.register(moved);
    launch(tenure, registered, place).await;
    Ok(())
}

/// `place` is that of its command, if nobody else has it.
async fn launch(tenure: &Arc<Tenure>, registered: Registered, place: Option<Place>) {
    let here = tenure.clone();
    let told = tenure
        .spawn(async move {
            let ended = drive(&here, &registered.moved).await;
            if let Err(fault) = &ended {
                tracing::info!("a range of {} stays: {fault}", registered.moved.namespace);
            }
            if let Some(place) = place {
                place.end(&ended);
            }
            registered.end(ended);
            Ok(())
        })
        .await;
    // Whoever waits does so in the registry.
    drop(told);
}

/// From the first message to the donor to the end.
async fn drive(tenure: &Tenure, moved: &Move) -> Result<DocBuf, Fault> {
    let host = tenure.with_state(|state| state.hosts.get(&moved.to).cloned());
    let command = moved.command(&host.unwrap_or_default());
    let answered = tenure.insist(&moved.from, "admin", command.as_doc()).await;
    if tenure.is_over() {
        return Err(no_primary());
    }
    // Whatever the donor says: what counts is what was decided here, and if nothing was, now it is.
    let outcome = decide(tenure, |state| settle::plan(state, moved.id)).await?;
    let stats = match &answered {
        Ok(reply) => reply.as_doc().get_doc("stats").unwrap_or(Doc::EMPTY),
        Err(_) => Doc::EMPTY,
    };
    let ended = match (outcome, &answered) {
        (Outcome::Committed { .. }, _) => Ok(moved.told.reply(now_ms() - moved.began_ms)),
        (Outcome::Aborted, Err(fault)) => Err(fault.clone()),
        (Outcome::Aborted, Ok(reply)) => Err(why_aborted(reply.as_doc())),
    };
    decide(tenure, |state| {
        let plan = last_entry(state, moved, outcome, stats, ended.as_ref().err());
        Ok(plan.answering(state, moved.ticket, &ended))
    })
    .await?;
    ended
}

/// What a donor says of a move that was aborted: with a code of its own if somebody killed it.
fn why_aborted(reply: Doc<'_>) -> Fault {
    let code = match reply.get("reasonCode") {
        Some(ValueRef::Int32(code)) => Code(code),
        _ => Code::OPERATION_FAILED,
    };
    let reason = reply.get_str("reason");
    Fault::new(code, reason.unwrap_or("the move was aborted"))
}

/// The entry by which a move ends: what is left is its outcome.
fn last_entry(
    state: &State,
    moved: &Move,
    outcome: Outcome,
    stats: Doc<'_>,
    fault: Option<&Fault>,
) -> Plan<()> {
    let mut commit = Commit::default();
    let id = by("_id", uuid_value(&moved.id));
    let left = settle::outcome_document(moved.id, outcome);
    commit.put(OPERATIONS, id.as_doc(), left.as_doc());
    let note = match fault {
        None => "success",
        Some(_) => "aborted",
    };
    let of_recipient = stats.get_doc("to").unwrap_or(Doc::EMPTY);
    for (what, steps) in [("moveChunk.from", stats), ("moveChunk.to", of_recipient)] {
        let mut details = moved.described();
        for element in steps.iter() {
            if element.value().is_number() {
                details.append_element(&element);
            }
        }
        details
            .append("millis", now_ms() - moved.began_ms)
            .append("note", note);
        if let Some(fault) = fault {
            details.append("errmsg", fault.to_string().as_str());
        }
        let details = details.finish();
        let name = moved.namespace.as_str();
        log_change(&mut commit, what, name, details.as_doc());
    }
    let before = now_ms() - OUTCOMES_KEPT_MS;
    let old = state.outcomes_before(before);
    if !old.is_empty() {
        let mut query = DocWriter::new().with("kind", "outcome");
        query
            .begin_document("at")
            .append("$lt", ValueRef::DateTime(before))
            .end();
        commit.delete(OPERATIONS, query.finish().as_doc());
    }
    Plan {
        commit,
        effects: old.into_iter().map(Effect::Forgotten).collect(),
        answer: (),
    }
}

/// Ends every move that a claim touches, so that none can be committed any more; for whom.
///
/// ⚑ It is settled here first: a donor that did not hear of it yet is refused when it asks. Then the donors
/// are told, and answer when the range is free again.
pub(crate) async fn halt(tenure: &Tenure, claim: &Claim, for_whom: &str) -> Result<(), Fault> {
    let running = tenure.moves.touched_by(claim);
    let mut donors: BTreeSet<(ShardId, String, [u8; 16])> = BTreeSet::new();
    for moved in running {
        decide(tenure, |state| settle::plan(state, moved.id)).await?;
        let name = moved.namespace.to_string();
        donors.insert((moved.from.clone(), name, moved.uuid.0));
    }
    for (donor, namespace, uuid) in donors {
        let command = DocWriter::new()
            .with("_terndbAbortMoves", 1)
            .with("ns", namespace.as_str())
            .with("uuid", uuid_value(&model::ids::Uuid(uuid)))
            .with("for", for_whom)
            .finish();
        match tenure.insist(&donor, "admin", command.as_doc()).await {
            // One that is no shard any more, or never began, has nothing that could be committed.
            Ok(_) | Err(Fault::Refused(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// [`Tenure::decide`] until it is known to be so, or the tenure is over.
async fn decide<T>(
    tenure: &Tenure,
    work_out: impl Fn(&State) -> Result<Plan<T>, Fault>,
) -> Result<T, Fault> {
    let mut pause = Tenure::first_pause();
    loop {
        match tenure.decide(&work_out).await {
            Err(fault) if fault.retry() == Retry::AfterBackoff => tenure.pause(&mut pause).await?,
            decided => return decided,
        }
    }
}
