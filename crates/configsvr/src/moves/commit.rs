//! `_configsvrCommitMove`: a range has been copied and is blocked on its donor; from now on it is the
//! recipient's.
//!
//! ```text
//!   {_configsvrCommitMove: 1, id, ns, uuid, range: {min, max}, from, to, epoch, timestamp, catalogVersion,
//!    blockedAt: Timestamp}
//!   => {outcome: "committed", version: {e, t, v}, validAfter: Timestamp} | {outcome: "aborted"}
//!      | {outcome: "catalogChanged", catalogVersion: long}
//!
//!   {_configsvrCatalogVersion: 1, ns, uuid, id?} => {catalogVersion: long, changes: bool}
//! ```
//!
//! ⚑ One entry, by operation id: the chunks and the outcome are written together, under the condition that
//! nothing was decided before. Asked again, it answers what was decided. It is refused if the collection has
//! another life than when the move was begun, or if the move is none that runs: a late message of one that
//! has ended changes nothing.
//!
//! ⚑ It is put off if options or indexes have changed since the version that the donor names, or change
//! right now. That is no outcome: versions only grow, so it is known that the move will never be committed
//! with that one, and the donor asks again with the one that stands (`_configsvrCatalogVersion`) when the
//! recipient has the same indexes. A donor that is about to finish names its move (`id`): one that is put off again
//! and again gets its turn (`registry.rs`).
//!
//! ⚑ The recipient owns the range from a time on (`validAfter`) that is later than the donor's blocking
//! entry, which is later than all that the recipient has received. It is chosen once, in the entry that
//! decides, stands in the history of the chunks and in the outcome, and is what donor and recipient count
//! from, however late they hear of it: a read at any time finds exactly one owner.

use super::Move;
use super::state::read_range;
use crate::commit::{Commit, by};
use crate::documents::{self, CHUNKS, Fields, OPERATIONS, uuid_value};
use crate::error::Fault;
use crate::history;
use crate::placement::{self, Bounds};
use crate::settle;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, log_change};
use cluster::authority::{Answer, Expected, NewPlacement, OperationId, Outcome, Refusal, Request};
use cluster::routing::{History, RoutingTable};
use model::bson::{Doc, DocBuf, DocWriter};
use model::range::KeyBound;
use model::time::ClusterTime;
use model::version::Incarnation;
use model::{Code, Namespace};
use std::sync::Arc;

/// How often the bounds of chunks are read anew where other moves are committed meanwhile.
const ATTEMPTS: usize = 10;

/// What the donor believes.
struct Asked {
    id: OperationId,
    namespace: Namespace,
    request: Request,
    uuid: model::ids::Uuid,
}

/// What a donor is answered.
enum Verdict {
    Decided(Outcome),
    /// Nothing is decided: this version of options and indexes, or one that follows it, will stand.
    CatalogChanged(u64),
    /// Nothing is decided: another move of the collection was, after the bounds of chunks were read.
    OtherChunks,
}

pub(crate) async fn answer(tenure: &Arc<Tenure>, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let asked = read(body, history::kept(tenure).await?)?;
    let blocked_at = Fields::of(OPERATIONS, body).time("blockedAt")?;
    let here = tenure.clone();
    let verdict = tenure
        .complete(async move { commit(&here, asked, blocked_at).await })
        .await?;
    Ok(match verdict {
        Verdict::Decided(outcome) => settle::reply(outcome),
        Verdict::CatalogChanged(now) => DocWriter::new()
            .with("outcome", "catalogChanged")
            .with("catalogVersion", now as i64)
            .with("ok", 1.0)
            .finish(),
        Verdict::OtherChunks => {
            return Err(Fault::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "chunks change again and again",
            ));
        }
    })
}

/// Which version of options and indexes stands, or that they change.
pub(crate) async fn catalog_version(tenure: &Tenure, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let fields = Fields::of(OPERATIONS, body);
    let namespace = Namespace::parse(fields.text("ns")?)?;
    let uuid = fields.uuid("uuid")?;
    let state = tenure.state().await?;
    let (entry, _) = state.sharded(&namespace)?;
    check_life(&namespace, entry.uuid == uuid)?;
    if body.get("id").is_some() {
        tenure
            .moves
            .is_told(fields.uuid("id")?, entry.catalog.version);
    }
    Ok(DocWriter::new()
        .with("catalogVersion", entry.catalog.version as i64)
        .with("changes", entry.catalog.changes)
        .with("ok", 1.0)
        .finish())
}

fn check_life(namespace: &Namespace, is_same: bool) -> Result<(), Fault> {
    match is_same {
        true => Ok(()),
        false => Err(Fault::new(
            Code::STALE_EPOCH,
            format!("{namespace} is another collection now"),
        )),
    }
}

fn read(body: Doc<'_>, history: History) -> Result<Asked, Fault> {
    let fields = Fields::of(OPERATIONS, body);
    let expected = Expected {
        incarnation: Incarnation {
            epoch: fields.object_id("epoch")?,
            began: fields.time("timestamp")?,
        },
        catalog: Some(fields.number("catalogVersion")?),
    };
    Ok(Asked {
        id: fields.uuid("id")?,
        namespace: Namespace::parse(fields.text("ns")?)?,
        uuid: fields.uuid("uuid")?,
        request: Request::Move {
            expected,
            range: read_range(body)?,
            from: cluster::routing::ShardId::new(fields.text("from")?),
            to: cluster::routing::ShardId::new(fields.text("to")?),
            history,
        },
    })
}

async fn commit(tenure: &Tenure, asked: Asked, blocked_at: ClusterTime) -> Result<Verdict, Fault> {
    let decided = tenure.state().await?.authority.outcome(asked.id);
    if let Some(outcome) = decided {
        return Ok(Verdict::Decided(outcome));
    }
    let moved = tenure
        .moves
        .get(asked.id)
        .filter(|moved| is_meant(moved, &asked));
    let moved = moved.ok_or_else(|| {
        Fault::new(
            Code::OPERATION_FAILED,
            format!("no such move of {} runs", asked.namespace),
        )
    })?;
    // ⚑ Later than what is known of the range so far, too: owners follow each other in time.
    let known = {
        let state = tenure.state().await?;
        let chunks = state.sharded(&moved.namespace)?.1.overlapping(&moved.range);
        chunks.map(|view| view.chunk.since).max()
    };
    let now = tenure
        .store
        .time_after(blocked_at.max(known.unwrap_or(blocked_at)));
    let mut verdict = Verdict::OtherChunks;
    for _ in 0..ATTEMPTS {
        verdict = decide(tenure, &moved, &asked, now).await?;
        if !matches!(verdict, Verdict::OtherChunks) {
            break;
        }
    }
    if let Verdict::CatalogChanged(now) = verdict {
        tenure.moves.is_told(asked.id, now);
    }
    Ok(verdict)
}

async fn decide(
    tenure: &Tenure,
    moved: &Move,
    asked: &Asked,
    now: ClusterTime,
) -> Result<Verdict, Fault> {
    let bounds = bounds_of(tenure, moved, now).await?;
    // ⚑ Taken anew while nothing else is decided: of two placements the later one has the later time,
    // whatever was waited for before. Tokens of scans name placements by it.
    let work_out = |state: &State| {
        let now = tenure.store.time_after(now);
        plan(state, moved, asked, &bounds, now)
    };
    tenure.decide(work_out).await
}

/// Whether a running move is the one that is asked for.
fn is_meant(moved: &Move, asked: &Asked) -> bool {
    let Request::Move {
        range, from, to, ..
    } = &asked.request
    else {
        return false;
    };
    moved.namespace == asked.namespace
        && moved.uuid == asked.uuid
        && moved.range == *range
        && moved.from == *from
        && moved.to == *to
}

fn plan(
    state: &State,
    moved: &Move,
    asked: &Asked,
    bounds: &Bounds,
    now: ClusterTime,
) -> Result<Plan<Verdict>, Fault> {
    let without_writing = |answer: Verdict| Plan {
        commit: Commit::default(),
        effects: Vec::new(),
        answer,
    };
    // Settled while the bounds were read.
    if let Some(outcome) = state.authority.outcome(asked.id) {
        return Ok(without_writing(Verdict::Decided(outcome)));
    }
    let (entry, table) = state.sharded(&asked.namespace)?;
    check_life(&asked.namespace, entry.uuid == asked.uuid)?;
    let request = asked.request.clone();
    let answer = state
        .authority
        .decide(asked.id, &asked.namespace, request, now);
    let decision = match answer {
        Ok(Answer::Write(decision)) => decision,
        Ok(Answer::Decided(outcome)) => {
            return Ok(without_writing(Verdict::Decided(outcome)));
        }
        Err(Refusal::CatalogChanged { now }) => {
            return Ok(without_writing(Verdict::CatalogChanged(now)));
        }
        Err(refusal) => return Err(refusal.into()),
    };
    // Each move changes one chunk of its donor beside those that it moves: with several at once that may be another.
    if let Some((_, NewPlacement::Changes(changes))) = &decision.placement {
        let is_known = |bound: &KeyBound| bounds.contains_key(bound);
        if !changes
            .iter()
            .all(|(chunk, end)| is_known(&chunk.min) && is_known(end))
        {
            return Ok(without_writing(Verdict::OtherChunks));
        }
    }
    let mut commit = Commit::default();
    placement::expect_unchanged(&mut commit, entry);
    let id = by("_id", uuid_value(&asked.id));
    let mut undecided = DocWriter::new().with("kind", super::KIND);
    for field in ["committed", "aborted"] {
        undecided
            .begin_document(field)
            .append("$exists", false)
            .end();
    }
    commit.expect(OPERATIONS, id.as_doc(), undecided.finish().as_doc());
    if let Some((_, NewPlacement::Changes(changes))) = &decision.placement {
        placement::replace_chunks(&mut commit, table, changes, bounds)?;
    }
    if let Outcome::Committed { version, since } = decision.outcome {
        let mut change = DocWriter::new();
        change.begin_document("$set");
        settle::append_committed(&mut change, version, since);
        change.end();
        commit.change(OPERATIONS, id.as_doc(), change.finish().as_doc());
    }
    let details = moved.described().finish();
    log_change(
        &mut commit,
        "moveChunk.commit",
        asked.namespace.as_str(),
        details.as_doc(),
    );
    let outcome = decision.outcome;
    Ok(Plan {
        commit,
        effects: vec![Effect::Outcome(Box::new(decision), documents::now_ms())],
        answer: Verdict::Decided(outcome),
    })
}

/// Bounds of the chunks that change, as they are stored: their types are known only there.
async fn bounds_of(tenure: &Tenure, moved: &Move, now: ClusterTime) -> Result<Bounds, Fault> {
    let mut bounds = Bounds::new();
    let table: RoutingTable = {
        let state = tenure.state().await?;
        state.sharded(&moved.namespace)?.1.clone()
    };
    // What cannot be is refused when it is decided.
    let changes = table
        .moving(&moved.range, &moved.to, now)
        .unwrap_or_default();
    for (chunk, _) in &changes {
        let there = table.find(chunk.min.as_bytes());
        let min = documents::bound(&table.pattern, there.chunk.min.as_bytes())?;
        let query = DocWriter::new()
            .with("uuid", uuid_value(&table.uuid))
            .with("min", &min)
            .finish();
        let Some(stored) = tenure.store.find_one(CHUNKS, query.as_doc()).await? else {
            continue;
        };
        for name in ["min", "max"] {
            if let Some(bound) = stored.as_doc().get_doc(name) {
                let key = table.pattern.bound(bound)?;
                bounds.entry(key).or_insert_with(|| bound.to_owned());
            }
        }
    }
    for (bound, given) in [
        (&moved.range.min, &moved.min),
        (&moved.range.max, &moved.max),
    ] {
        let given = given.clone();
        bounds.entry(bound.clone()).or_insert(given);
    }
    Ok(bounds)
}
