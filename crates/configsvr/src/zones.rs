//! Zones: keys that belong on certain shards.
//!
//! ```text
//!   addShardToZone, removeShardFromZone {.., zone}        config.shards.tags
//!   updateZoneKeyRange {ns, min, max, zone | null}         config.tags {_id: {ns, min}, ns, min, max, tag}
//! ```
//!
//! Each is one entry. Ranges of one collection do not overlap; they may be there before the collection is
//! sharded: then the first chunks of an empty collection lie as they say (`operation/first_chunks.rs`).
//! Data that is elsewhere goes where it belongs when the balancer runs.

use crate::commit::{Commit, by};
use crate::documents::{Fields, SHARDS, TAGS};
use crate::error::Fault;
use crate::queue::{Claim, Patience};
use crate::server::{ok, text};
use crate::tenure::{Plan, Tenure};
use crate::ticket::Ticket;
use cluster::balance::Zone;
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::order::compare_documents;
use model::shard_key::ShardKeyPattern;
use model::text::document_quoted;
use model::{Code, Namespace};
use std::cmp::Ordering;
use std::sync::Arc;

/// Answers `addShardToZone` and `removeShardFromZone`, whose name this is.
pub(crate) async fn change_shard(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    name: &'static str,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let shard = ShardId::new(text(command, name)?);
    let zone = zone_of(command)?.to_owned();
    let patience = Patience::of(command)?;
    let here = tenure.clone();
    tenure
        .complete(async move {
            let _turn = here.queue.enter_within(&all_shards(), patience).await?;
            let removes = name == "removeShardFromZone";
            if !here.with_state(|state| state.hosts.contains_key(&shard)) {
                return Err(Fault::new(
                    Code::SHARD_NOT_FOUND,
                    format!("shard {shard} does not exist"),
                ));
            }
            let others = tagged(&here, &zone).await?;
            let last = others.iter().all(|other| *other == shard) && others.contains(&shard);
            if removes && last {
                let used = here.store.find_one(TAGS, by("tag", &zone).as_doc()).await?;
                if used.is_some() {
                    return Err(Fault::new(
                        Code::ZONE_STILL_IN_USE,
                        "cannot remove a shard from zone if a chunk range is associated with it",
                    ));
                }
            }
            let operator = if removes { "$pull" } else { "$addToSet" };
            let change = by(operator, by("tags", &zone).as_doc());
            let id = by("_id", shard.as_str());
            write(&here, ticket, |commit| {
                commit.change(SHARDS, id.as_doc(), change.as_doc());
            })
            .await?;
            here.balancer.wake();
            Ok(ok())
        })
        .await
}

/// Shards come and go one after the other: as if all of them were one database.
pub(crate) fn all_shards() -> Claim {
    Claim::Database(SHARDS.to_owned())
}

fn zone_of(command: Doc<'_>) -> Result<&str, Fault> {
    match command.get("zone") {
        Some(ValueRef::String(zone)) if !zone.is_empty() => Ok(zone),
        Some(ValueRef::String(_)) => Err(Fault::new(Code::BAD_VALUE, "zone must not be empty")),
        Some(other) => Err(Fault::new(
            Code::TYPE_MISMATCH,
            format!(
                "\"zone\" had the wrong type. Expected string, found {}",
                other.kind().name()
            ),
        )),
        None => Err(Fault::new(
            Code::NO_SUCH_KEY,
            "Missing expected field \"zone\"",
        )),
    }
}

pub(crate) async fn tagged(tenure: &Tenure, zone: &str) -> Result<Vec<ShardId>, Fault> {
    let found = tenure
        .store
        .find(SHARDS, by("tags", zone).as_doc(), Doc::EMPTY)
        .await?;
    let names = found.iter().map(|doc| {
        let name = Fields::of(SHARDS, doc.as_doc()).text("_id")?;
        Ok(ShardId::new(name))
    });
    names.collect()
}

/// One entry, with the answer.
async fn write(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    fill: impl FnOnce(&mut Commit),
) -> Result<(), Fault> {
    let mut commit = Commit::default();
    fill(&mut commit);
    tenure
        .decide(|state| {
            let plan = Plan {
                commit,
                effects: Vec::new(),
                answer: (),
            };
            Ok(plan.answering(state, ticket, &Ok(ok())))
        })
        .await
}

/// Answers `updateZoneKeyRange`.
pub(crate) async fn update_range(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(command, "updateZoneKeyRange")?)?;
    let bound = |field: &str| {
        let given = command.get_doc(field).map(Doc::to_owned);
        given.ok_or_else(|| {
            Fault::new(
                Code::NO_SUCH_KEY,
                format!("Missing expected field \"{field}\""),
            )
        })
    };
    let (min, max) = (bound("min")?, bound("max")?);
    let zone = match command.get("zone") {
        Some(ValueRef::Null) => None,
        _ => Some(zone_of(command)?.to_owned()),
    };
    check_bounds(min.as_doc(), max.as_doc())?;
    let patience = Patience::of(command)?;
    let here = tenure.clone();
    tenure
        .complete(async move {
            let claim = Claim::one(&name);
            let _turn = here.queue.enter_within(&claim, patience).await?;
            let key = here.with_state(|state| -> Result<_, Fault> {
                let sharded = state.lookup(&name)?;
                Ok(sharded.map(|(entry, _)| entry.key.clone()))
            })?;
            let (min, max) = match &key {
                Some(key) => (extended(min, key.as_doc())?, extended(max, key.as_doc())?),
                None => (min, max),
            };
            let id = DocWriter::new()
                .with("ns", name.as_str())
                .with("min", &min)
                .finish();
            match zone {
                None => remove_range(&here, ticket, &id, &max).await?,
                Some(zone) => set_range(&here, ticket, &name, &id, (&min, &max), &zone).await?,
            }
            here.balancer.wake();
            Ok(ok())
        })
        .await
}

async fn remove_range(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    id: &DocBuf,
    max: &DocBuf,
) -> Result<(), Fault> {
    let mut range = DocWriter::new();
    for element in id.iter() {
        range.append_element(&element);
    }
    let range = range.with("max", max).finish();
    write(tenure, ticket, |commit| {
        commit.delete(TAGS, range.as_doc());
    })
    .await
}

async fn set_range(
    tenure: &Tenure,
    ticket: Option<Ticket>,
    name: &Namespace,
    id: &DocBuf,
    (min, max): (&DocBuf, &DocBuf),
    zone: &str,
) -> Result<(), Fault> {
    if tagged(tenure, zone).await?.is_empty() {
        return Err(Fault::new(
            Code::ZONE_NOT_FOUND,
            format!("zone {zone} does not exist"),
        ));
    }
    let there = tenure
        .store
        .find(TAGS, by("ns", name.as_str()).as_doc(), Doc::EMPTY)
        .await?;
    for other in &there {
        let fields = Fields::of(TAGS, other.as_doc());
        let (other_min, other_max) = (fields.doc("min")?, fields.doc("max")?);
        let same = compare_documents(other_min, min.as_doc()) == Ordering::Equal
            && compare_documents(other_max, max.as_doc()) == Ordering::Equal;
        let overlaps = compare_documents(min.as_doc(), other_max) == Ordering::Less
            && compare_documents(other_min, max.as_doc()) == Ordering::Less;
        if overlaps && !same {
            return Err(Fault::new(
                Code::RANGE_OVERLAP_CONFLICT,
                format!(
                    "Zone range: {} -->> {}  on  {zone} is overlapping with existing: {} -->> {}  on  {}",
                    document_quoted(min.as_doc()),
                    document_quoted(max.as_doc()),
                    document_quoted(other_min),
                    document_quoted(other_max),
                    fields.text("tag")?,
                ),
            ));
        }
    }
    let document = DocWriter::new()
        .with("_id", id)
        .with("ns", name.as_str())
        .with("min", min)
        .with("max", max)
        .with("tag", zone)
        .finish();
    write(tenure, ticket, |commit| {
        commit.put(TAGS, by("_id", id.as_doc()).as_doc(), document.as_doc());
    })
    .await
}

fn check_bounds(min: Doc<'_>, max: Doc<'_>) -> Result<(), Fault> {
    let names = |bound: Doc<'_>| -> Vec<String> {
        bound.iter().map(|field| field.key().to_owned()).collect()
    };
    if names(min) != names(max) {
        return Err(Fault::new(
            Code::SHARD_KEY_NOT_FOUND,
            format!(
                "the shard key of min {} doesn't match with the shard key of max {}",
                document_quoted(min),
                document_quoted(max)
            ),
        ));
    }
    if compare_documents(min, max) != Ordering::Less {
        return Err(Fault::new(
            Code::FAILED_TO_PARSE,
            format!(
                "min: {} should be less than max: {}",
                document_quoted(min),
                document_quoted(max)
            ),
        ));
    }
    Ok(())
}

/// A bound of the key's first fields as one of the whole key: from the least value of the others on.
fn extended(bound: DocBuf, key: Doc<'_>) -> Result<DocBuf, Fault> {
    let mut writer = DocWriter::new();
    let mut given = bound.iter();
    let mut all_max = true;
    for field in key.iter() {
        match given.next() {
            Some(element) if element.key() == field.key() => {
                all_max &= element.value() == ValueRef::MaxKey;
                writer.append_element(&element);
            }
            Some(_) => return Err(other_fields(bound.as_doc(), key)),
            None if all_max => {
                writer.append(field.key(), ValueRef::MaxKey);
            }
            None => {
                writer.append(field.key(), ValueRef::MinKey);
            }
        }
    }
    match given.next() {
        Some(_) => Err(other_fields(bound.as_doc(), key)),
        None => Ok(writer.finish()),
    }
}

fn other_fields(bound: Doc<'_>, key: Doc<'_>) -> Fault {
    Fault::new(
        Code::SHARD_KEY_NOT_FOUND,
        format!(
            "min or max {} does not match the shard key {}",
            document_quoted(bound),
            document_quoted(key)
        ),
    )
}

/// The stored zones of a collection with bounds for a key that has more fields: what takes their place.
pub(crate) async fn refined(
    tenure: &Tenure,
    name: &Namespace,
    key: Doc<'_>,
) -> Result<Vec<(DocBuf, DocBuf)>, Fault> {
    let of_name = by("ns", name.as_str());
    let stored = tenure
        .store
        .find(TAGS, of_name.as_doc(), Doc::EMPTY)
        .await?;
    let mut refined = Vec::new();
    for zone in stored {
        let fields = Fields::of(TAGS, zone.as_doc());
        let bound = |name| fields.doc(name).map(Doc::to_owned);
        // One of other fields counts for nothing, before and after.
        let (Ok(min), Ok(max)) = (extended(bound("min")?, key), extended(bound("max")?, key))
        else {
            continue;
        };
        let id = DocWriter::new().with("ns", name.as_str()).with("min", &min);
        let new = DocWriter::new()
            .with("_id", &id.finish())
            .with("ns", name.as_str())
            .with("min", &min)
            .with("max", &max)
            .with("tag", fields.text("tag")?)
            .finish();
        refined.push((zone, new));
    }
    Ok(refined)
}

/// Refuses zones of a collection that is about to be sharded by a key that they do not fit.
pub(crate) async fn check_fit(
    tenure: &Tenure,
    name: &Namespace,
    key: Doc<'_>,
) -> Result<(), Fault> {
    let of_name = by("ns", name.as_str());
    for zone in tenure
        .store
        .find(TAGS, of_name.as_doc(), Doc::EMPTY)
        .await?
    {
        let fields = Fields::of(TAGS, zone.as_doc());
        for bound in [fields.doc("min")?, fields.doc("max")?] {
            let named = bound.iter().map(|field| field.key().to_owned());
            let wanted = key.iter().map(|field| field.key().to_owned());
            if !named.eq(wanted) {
                return Err(Fault::new(
                    Code::INVALID_OPTIONS,
                    format!(
                        "the proposed shard key {} does not match with the shard key of tag range                          {} -->> {} for {name}",
                        document_quoted(key),
                        document_quoted(fields.doc("min")?),
                        document_quoted(fields.doc("max")?),
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// The zones of a sharded collection. What does not fit its key counts for nothing.
pub(crate) async fn of_collection(
    tenure: &Tenure,
    name: &Namespace,
    pattern: &ShardKeyPattern,
) -> Result<Vec<Zone>, Fault> {
    let stored = tenure
        .store
        .find(
            TAGS,
            by("ns", name.as_str()).as_doc(),
            by("min", 1).as_doc(),
        )
        .await?;
    let mut zones = Vec::new();
    for doc in &stored {
        let fields = Fields::of(TAGS, doc.as_doc());
        if let Ok(range) = pattern.range_of(fields.doc("min")?, fields.doc("max")?) {
            let name = fields.text("tag")?.to_owned();
            zones.push(Zone { range, name });
        }
    }
    Ok(zones)
}
