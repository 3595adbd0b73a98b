//! `split` and `mergeChunks`: bounds come and go, owners stay.
//!
//! Each is one entry, with its answer, so it needs no state document. The owner is told of its new version afterwards; if
//! that fails it learns of it from the first request that knows more.

use crate::commit::Commit;
use crate::documents::{self, CHUNKS, CollectionEntry, uuid_value};
use crate::error::Fault;
use crate::history;
use crate::middle::key_within;
use crate::moves::command::{asked_key, check_bound};
use crate::placement::{self, Bounds};
use crate::queue::{Claim, Patience};
use crate::server::{ok, text};
use crate::tenure::{Plan, Tenure, log_change};
use crate::ticket::Ticket;
use cluster::authority::{Expected, NewPlacement, Request};
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::range::{KeyBound, KeyRange};
use model::text::document_quoted;
use model::{Code, Namespace};
use std::sync::Arc;

/// `{split: ns, find: {..} | bounds: [min, max] | middle: {..}}`.
pub(crate) async fn split(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(command, "split")?)?;
    let patience = Patience::of(command)?;
    let (here, command) = (tenure.clone(), command.to_owned());
    tenure
        .complete(async move {
            let _turn = here
                .queue
                .enter_within(&Claim::one(&name), patience)
                .await?;
            split_in_turn(&here, ticket, &name, command.as_doc()).await
        })
        .await
}

async fn known(
    tenure: &Tenure,
    name: &Namespace,
) -> Result<(CollectionEntry, RoutingTable), Fault> {
    let state = tenure.state().await?;
    let (entry, table) = state.sharded(name)?;
    Ok((entry.clone(), table.clone()))
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Code::INVALID_OPTIONS, message)
}

/// Two bounds in an array.
pub(crate) fn two_bounds(command: Doc<'_>) -> Result<Option<(DocBuf, DocBuf)>, Fault> {
    let Some(bounds) = command.get_array("bounds") else {
        return Ok(None);
    };
    match (bounds.get(0), bounds.get(1), bounds.count()) {
        (Some(ValueRef::Document(min)), Some(ValueRef::Document(max)), 2) => {
            Ok(Some((min.to_owned(), max.to_owned())))
        }
        _ => Err(Fault::new(
            Code::BAD_VALUE,
            "bounds must be an array of two documents, the least and the greatest key",
        )),
    }
}

async fn split_in_turn(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    name: &Namespace,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let (entry, table) = known(tenure, name).await?;
    let pattern = &table.pattern;
    let (find, middle) = (command.get_doc("find"), command.get_doc("middle"));
    let bounds = two_bounds(command)?;
    let given = bounds.iter().flat_map(|(min, max)| [min, max]);
    for bound in given.map(DocBuf::as_doc).chain(middle) {
        check_bound(pattern, bound)?;
    }
    let (point, stored) = match (find, &bounds, middle) {
        (None, None, Some(middle)) => (pattern.bound(middle)?, middle.to_owned()),
        (Some(find), None, None) => {
            let key = asked_key(pattern, find).ok_or_else(|| {
                let find = document_quoted(find);
                invalid(format!("no shard key found in chunk query {find}"))
            })?;
            let key = pattern.key_of(key.as_doc())?;
            median(tenure, &entry, &table, &key).await?
        }
        (None, Some((min, max)), None) => {
            let (min, max) = (pattern.bound(min.as_doc())?, pattern.bound(max.as_doc())?);
            let view = table.find(min.as_bytes());
            if view.chunk.min != min || *view.max != max {
                return Err(invalid(format!(
                    "no chunk found with the given upper and lower bounds in {name}"
                )));
            }
            median(tenure, &entry, &table, min.as_bytes()).await?
        }
        (None, None, None) => return Err(invalid("need to specify find/bounds or middle")),
        _ => {
            return Err(invalid(
                "cannot specify more than one of find, bounds and middle",
            ));
        }
    };
    if table.find(point.as_bytes()).chunk.min == point || point == KeyBound::after_all() {
        return Err(invalid(format!(
            "new split key {} is a boundary key of an existing chunk",
            document_quoted(stored.as_doc())
        )));
    }
    if tenure.moves.would_be_cut(name, &point) {
        return Err(Fault::new(
            Code::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("a range of {name} around the split key is moving"),
        ));
    }
    let owner = table.find(point.as_bytes()).chunk.shard.clone();
    let known = Bounds::from([(point.clone(), stored)]);
    let points = vec![point];
    change(tenure, ticket, name, "split", known, |expected| {
        Request::Split { expected, points }
    })
    .await?;
    tell(tenure, name, &owner).await;
    Ok(ok())
}

/// `{mergeChunks: ns, bounds: [min, max]}`.
pub(crate) async fn merge(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(command, "mergeChunks")?)?;
    let bounds = two_bounds(command)?;
    let bounds = bounds.ok_or_else(|| invalid("mergeChunks needs bounds"))?;
    let patience = Patience::of(command)?;
    let here = tenure.clone();
    tenure
        .complete(async move {
            let _turn = here
                .queue
                .enter_within(&Claim::one(&name), patience)
                .await?;
            merge_in_turn(&here, ticket, &name, bounds).await
        })
        .await
}

async fn merge_in_turn(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    name: &Namespace,
    (min, max): (DocBuf, DocBuf),
) -> Result<DocBuf, Fault> {
    let (_, table) = known(tenure, name).await?;
    let pattern = &table.pattern;
    for bound in [&min, &max] {
        check_bound(pattern, bound.as_doc())?;
    }
    let range = KeyRange::new(pattern.bound(min.as_doc())?, pattern.bound(max.as_doc())?);
    let owner = table.find(range.min.as_bytes()).chunk.shard.clone();
    let history = history::kept(tenure).await?;
    change(tenure, ticket, name, "merge", Bounds::new(), |expected| {
        Request::Merge {
            expected,
            range,
            history,
        }
    })
    .await?;
    tell(tenure, name, &owner).await;
    Ok(ok())
}

/// Decides a change of bounds.
async fn change(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    name: &Namespace,
    what: &str,
    mut bounds: Bounds,
    request: impl FnOnce(Expected) -> Request,
) -> Result<(), Fault> {
    let now = tenure.store.next_time();
    let (_, table) = known(tenure, name).await?;
    let expected = Expected {
        incarnation: table.incarnation,
        catalog: None,
    };
    let request = request(expected);
    stored_bounds(tenure, &table, &request, &mut bounds).await?;
    tenure
        .decide(|state| {
            let (entry, table) = state.sharded(name)?;
            let answer = state
                .authority
                .decide(documents::new_uuid(), name, request, now)?;
            let decision = placement::decision(answer)?;
            let mut commit = Commit::default();
            placement::expect_unchanged(&mut commit, entry);
            if let Some((_, NewPlacement::Changes(changes))) = &decision.placement {
                placement::replace_chunks(&mut commit, table, changes, &bounds)?;
            }
            log_change(&mut commit, what, name.as_str(), Doc::EMPTY);
            let plan = Plan {
                commit,
                effects: vec![placement::keeps(decision, entry.clone())],
                answer: (),
            };
            Ok(plan.answering(state, ticket, &Ok(ok())))
        })
        .await
}

/// Bounds of the chunks that a request touches, as they are stored: their types are known only there.
async fn stored_bounds(
    tenure: &Tenure,
    table: &RoutingTable,
    request: &Request,
    bounds: &mut Bounds,
) -> Result<(), Fault> {
    let range = match request {
        Request::Merge { range, .. } => range.clone(),
        Request::Split { points, .. } => match points.first() {
            Some(point) => table.find(point.as_bytes()).range(),
            None => return Ok(()),
        },
        Request::Shard { .. }
        | Request::Move { .. }
        | Request::Refine { .. }
        | Request::Drop { .. } => return Ok(()),
    };
    for view in table.overlapping(&range) {
        let min = documents::bound(&table.pattern, view.chunk.min.as_bytes())?;
        let query = DocWriter::new()
            .with("uuid", uuid_value(&table.uuid))
            .with("min", &min)
            .finish();
        let Some(chunk) = tenure.store.find_one(CHUNKS, query.as_doc()).await? else {
            continue;
        };
        for name in ["min", "max"] {
            if let Some(bound) = chunk.as_doc().get_doc(name) {
                let key = table.pattern.bound(bound)?;
                bounds.entry(key).or_insert_with(|| bound.to_owned());
            }
        }
    }
    Ok(())
}

/// The key in the middle of the chunk that a key belongs to.
async fn median(
    tenure: &Tenure,
    entry: &CollectionEntry,
    table: &RoutingTable,
    key: &[u8],
) -> Result<(KeyBound, DocBuf), Fault> {
    let range = table.find(key).range();
    let middle = key_within(tenure, entry, table, &range, 0.5, None).await?;
    middle.ok_or_else(|| {
        Fault::new(
            Code::CANNOT_SPLIT,
            format!(
                "cannot find the middle of a chunk of {}: it holds too few keys",
                entry.namespace
            ),
        )
    })
}

/// Tells an owner its new version.
async fn tell(tenure: &Tenure, name: &Namespace, shard: &ShardId) {
    let command = tenure.with_state(|state| {
        let (entry, table) = state.sharded(name)?;
        placement::set_placement(entry, table, shard)
    });
    let told = match command {
        Ok(command) => tenure.ask(shard, "admin", command.as_doc()).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = told {
        tracing::debug!("{shard} was not told of a change of {name}: {fault}");
    }
}
