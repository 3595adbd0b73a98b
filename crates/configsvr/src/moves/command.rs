//! `moveRange` and `moveChunk`: what clients ask for, and what that means now.
//!
//! ```text
//!   {moveRange: ns, min: {..}, max: {..}, toShard, waitForDelete, forceJumbo, secondaryThrottle}   one bound will do
//!   {moveChunk: ns, find: {..} | bounds: [min, max], to, waitForDelete, forceJumbo, secondaryThrottle}
//!   {setAllowMigrations: ns, allowMigrations: false}
//! ```
//!
//! A range lies within one chunk. Where it is a part of one, the chunk is split by the entry that commits the
//! move. A range that is there already is answered without doing anything. `moveRange` with one bound moves
//! what lies between it and the other end of its chunk.

use super::state::{Move, Options, Told};
use super::{KIND, halt, run};
use crate::chunks::two_bounds;
use crate::commit::{Commit, by};
use crate::documents::{self, CHUNKS, COLLECTIONS, CollectionEntry, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::{Claim, Patience};
use crate::server::{missing, ok, text};
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure, log_change};
use crate::ticket::{self, Ticket};
use cluster::routing::{ChunkView, RoutingTable, ShardId};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::number::Number;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::text::document_quoted;
use model::{Code, Error, Namespace};
use std::sync::Arc;

/// Unless `config.settings` says otherwise.
const MOVES_PER_SHARD: usize = 2;
const MOVES_PER_SHARD_SETTING: &str = "maxConcurrentMigrationsPerShard";

/// What somebody wants to be moved.
pub(crate) struct Wanted {
    pub(super) namespace: Namespace,
    what: What,
    /// A name, or a connection string.
    to: String,
    options: Options,
    /// Of the command, and how it is answered.
    ticket: Option<Ticket>,
    pub(super) told: Told,
}

pub(crate) enum What {
    /// The chunk of a document.
    Find(DocBuf),
    /// A whole chunk.
    Chunk(DocBuf, DocBuf),
    /// At least one of the two.
    Range(Option<DocBuf>, Option<DocBuf>),
    /// A range that the balancer chose.
    Exactly(KeyRange),
}

impl Wanted {
    /// A range that was chosen here.
    pub(crate) fn exactly(namespace: Namespace, range: KeyRange, to: &ShardId) -> Self {
        Self {
            namespace,
            what: What::Exactly(range),
            to: to.as_str().to_owned(),
            options: Options::default(),
            ticket: None,
            told: Told::Plainly,
        }
    }
}

/// Answers `moveRange`.
pub(crate) async fn move_range(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let namespace = Namespace::parse(text(command, KIND)?)?;
    let (mut min, mut max, mut to) = (None, None, None);
    let mut options = Options::default();
    for element in command.iter().skip(1) {
        match (element.key(), element.value()) {
            ("min", ValueRef::Document(bound)) => min = Some(bound.to_owned()),
            ("max", ValueRef::Document(bound)) => max = Some(bound.to_owned()),
            ("toShard", ValueRef::String(shard)) => to = Some(shard.to_owned()),
            (name @ ("min" | "max"), other) => return Err(wrong_type(name, other, "object")),
            ("toShard", other) => return Err(wrong_type("toShard", other, "string")),
            (name, value) => read_option(&mut options, KIND, name, value)?,
        }
    }
    let to = to.ok_or_else(|| missing("moveRange.toShard"))?;
    if min.is_none() && max.is_none() {
        return Err(Fault::new(
            Code::INVALID_OPTIONS,
            "moveRange needs min or max, or both",
        ));
    }
    let what = What::Range(min, max);
    let wanted = Wanted {
        namespace,
        what,
        to,
        options,
        ticket,
        told: Told::Plainly,
    };
    run(tenure, wanted, Patience::of(command)?).await
}

/// Answers `moveChunk`.
pub(crate) async fn move_chunk(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let namespace = Namespace::parse(text(command, "moveChunk")?)?;
    let (mut find, mut to) = (None, None);
    let bounds = two_bounds(command)?;
    let mut options = Options::default();
    for element in command.iter().skip(1) {
        match (element.key(), element.value()) {
            ("find", ValueRef::Document(filter)) => find = Some(filter.to_owned()),
            ("find", other) => return Err(wrong_type("find", other, "object")),
            ("to", ValueRef::String(shard)) if !shard.is_empty() => to = Some(shard.to_owned()),
            ("bounds" | "to", _) => {}
            (name, value) => read_option(&mut options, "moveChunk", name, value)?,
        }
    }
    let to = to.ok_or_else(|| missing("moveChunk.to"))?;
    let either = |why: &str| Err(Fault::new(Code::INVALID_OPTIONS, why));
    let what = match (find, bounds) {
        (Some(find), None) => What::Find(find),
        (None, Some((min, max))) => What::Chunk(min, max),
        (Some(_), Some(_)) => return either("cannot specify bounds and query at the same time"),
        (None, None) => return either("need to specify query or bounds"),
    };
    let wanted = Wanted {
        namespace,
        what,
        to,
        options,
        ticket,
        told: Told::WithMillis,
    };
    run(tenure, wanted, Patience::of(command)?).await
}

fn wrong_type(name: &str, value: ValueRef<'_>, expected: &str) -> Fault {
    Fault::new(
        Code::TYPE_MISMATCH,
        format!(
            "BSON field '{name}' is the wrong type '{}', expected type '{expected}'",
            value.kind().name()
        ),
    )
}

/// Reads what both commands take; what is common to all commands says nothing here.
fn read_option(
    options: &mut Options,
    command: &str,
    name: &str,
    value: ValueRef<'_>,
) -> Result<(), Fault> {
    let flag = || match value {
        ValueRef::Boolean(flag) => Ok(flag),
        ValueRef::Null => Ok(false),
        other if other.is_number() => {
            Ok(Number::of(other).is_some_and(|number| number.to_f64() != 0.0))
        }
        other => Err(wrong_type(name, other, "bool")),
    };
    match name {
        "waitForDelete" | "_waitForDelete" => options.wait_for_delete = flag()?,
        "forceJumbo" => options.force_jumbo = flag()?,
        // A document is a write concern: as much as secondaries can be waited for.
        "secondaryThrottle" | "_secondaryThrottle" => {
            options.secondary_throttle = matches!(value, ValueRef::Document(_)) || flag()?;
        }
        "maxTimeMS"
        | "writeConcern"
        | "readConcern"
        | "comment"
        | "lsid"
        | "apiVersion"
        | "apiStrict"
        | "apiDeprecationErrors"
        | "maxChunkSizeBytes" => {}
        name if name.starts_with('$') => {}
        name => {
            return Err(Fault::Refused(Error::location(
                40415,
                format!("BSON field '{command}.{name}' is an unknown field."),
            )));
        }
    }
    Ok(())
}

/// How many moves a shard may take part in at once.
pub(crate) async fn moves_per_shard(tenure: &Tenure) -> Result<usize, Fault> {
    let id = by("_id", MOVES_PER_SHARD_SETTING);
    let setting = tenure.store.find_one("settings", id.as_doc()).await?;
    let value = setting.and_then(|doc| doc.get("value").and_then(Number::of));
    Ok(value.map_or(MOVES_PER_SHARD, |value| value.to_f64().max(1.0) as usize))
}

impl Wanted {
    /// What is to be moved from where, as things are; `None` if it is there already.
    pub(super) async fn resolve(&self, tenure: &Tenure) -> Result<Option<Move>, Fault> {
        let state = tenure.state().await?.clone();
        let (entry, table) = match (state.lookup(&self.namespace)?, &self.what) {
            (None, What::Range(..)) => {
                return Err(Fault::new(
                    Code::NAMESPACE_NOT_FOUND,
                    format!("collection {} not found", self.namespace),
                ));
            }
            (Some(_) | None, _) => state.sharded(&self.namespace)?,
        };
        if !permits_moves(entry) {
            return Err(Fault::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("migrations of {} are not allowed now", self.namespace),
            ));
        }
        let to = self.recipient(&state)?;
        let range = self.range(table)?;
        let chunk = chunk_around(table, &range)?;
        let from = chunk.chunk.shard.clone();
        if from == to {
            return Ok(None);
        }
        if state
            .authority
            .shards()
            .any(|(shard, usable)| *shard == to && !usable)
        {
            return Err(Fault::new(
                Code::SHARD_NOT_FOUND,
                format!("{to} is being removed and takes no more data"),
            ));
        }
        let (min, max) = stored_bounds(tenure, table, &chunk, &range).await?;
        Ok(Some(Move {
            id: ticket::id_for(self.ticket),
            ticket: self.ticket,
            told: self.told,
            namespace: self.namespace.clone(),
            uuid: entry.uuid,
            key: entry.key.clone(),
            min: self.given(table, &range.min).unwrap_or(min),
            max: self.given(table, &range.max).unwrap_or(max),
            range,
            from,
            to,
            catalog: entry.catalog.version,
            options: self.options,
            began_ms: documents::now_ms(),
        }))
    }

    fn recipient(&self, state: &State) -> Result<ShardId, Fault> {
        state.shard_called(&self.to)
    }

    fn range(&self, table: &RoutingTable) -> Result<KeyRange, Fault> {
        let pattern = &table.pattern;
        match &self.what {
            What::Exactly(range) => Ok(range.clone()),
            What::Find(filter) => {
                let filter = filter.as_doc();
                let key = asked_key(pattern, filter).ok_or_else(|| {
                    let filter = document_quoted(filter);
                    let why = format!("no shard key found in chunk query {filter}");
                    Fault::Refused(Error::location(656450, why))
                })?;
                Ok(table.find(&pattern.key_of(key.as_doc())?).range())
            }
            What::Chunk(min, max) => {
                let bounds = || {
                    let (min, max) = (document_quoted(min.as_doc()), document_quoted(max.as_doc()));
                    format!("[{min}, {max})")
                };
                let is_key = |bound: &DocBuf| !bound.iter().any(|field| is_no_key(field.value()));
                let range = match (pattern.bound(min.as_doc()), pattern.bound(max.as_doc())) {
                    (Ok(low), Ok(high)) if is_key(min) && is_key(max) => KeyRange::new(low, high),
                    _ => {
                        let bounds = bounds();
                        let why =
                            format!("shard key bounds {bounds} are not valid for the shard key");
                        return Err(Fault::Refused(Error::location(656451, why)));
                    }
                };
                let view = table.find(range.min.as_bytes());
                match view.range() == range {
                    true => Ok(range),
                    false => {
                        let bounds = bounds();
                        let why = format!("no chunk found with the shard key bounds {bounds}");
                        Err(Fault::Refused(Error::location(656452, why)))
                    }
                }
            }
            What::Range(min, max) => {
                let bound = |given: &Option<DocBuf>| match given {
                    Some(given) => {
                        let bound = pattern.bound(given.as_doc())?;
                        check_bound(pattern, given.as_doc())?;
                        Ok::<_, Fault>(Some(bound))
                    }
                    None => Ok(None),
                };
                let (min, max) = (bound(min)?, bound(max)?);
                let range = match (min, max) {
                    (Some(min), Some(max)) => KeyRange::new(min, max),
                    (Some(min), None) => {
                        let end = table.find(min.as_bytes()).max.clone();
                        KeyRange::new(min, end)
                    }
                    (None, Some(max)) => KeyRange::new(begin_of_last(table, &max), max),
                    (None, None) => table.whole(),
                };
                if range.is_empty() {
                    return Err(Fault::new(
                        Code::INVALID_OPTIONS,
                        "the bounds of the range are the wrong way round",
                    ));
                }
                Ok(range)
            }
        }
    }

    /// A bound as the client gave it, if it lies inside the chunk: at its ends the stored one is kept.
    fn given(&self, table: &RoutingTable, bound: &KeyBound) -> Option<DocBuf> {
        let What::Range(min, max) = &self.what else {
            return None;
        };
        if table.find(bound.as_bytes()).chunk.min == *bound || *bound == KeyBound::after_all() {
            return None;
        }
        let given = [min, max].into_iter().flatten().find(|given| {
            table
                .pattern
                .bound(given.as_doc())
                .is_ok_and(|given| given == *bound)
        });
        given.cloned()
    }
}

/// Refuses a bound with values that no shard key lies beside, or that are no hashes.
pub(crate) fn check_bound(pattern: &ShardKeyPattern, bound: Doc<'_>) -> Result<(), Fault> {
    for (field, element) in pattern.fields().iter().zip(bound.iter()) {
        let value = element.value();
        let is_end = matches!(value, ValueRef::MinKey | ValueRef::MaxKey);
        let is_hash = matches!(value, ValueRef::Int64(_) | ValueRef::Int32(_));
        let fits = match field.hashed {
            true => is_end || is_hash,
            false => !is_no_key(value) && !matches!(value, ValueRef::Regex { .. }),
        };
        if !fits {
            return Err(Fault::new(
                Code::BAD_VALUE,
                format!(
                    "no shard key has '{}' in the field '{}' of the bound {}",
                    value.kind().name(),
                    field.path,
                    document_quoted(bound)
                ),
            ));
        }
    }
    Ok(())
}

/// Values that no shard key has.
fn is_no_key(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Array(_) | ValueRef::Undefined)
}

/// The shard key that a filter asks for, as a document has it: every field by equality. `None` if one is missing.
pub(crate) fn asked_key(pattern: &ShardKeyPattern, filter: Doc<'_>) -> Option<DocBuf> {
    let fields = pattern.fields().iter();
    let values = fields.map(|field| Some((&*field.path, asked_value(filter, &field.path)?)));
    let values: Option<Vec<_>> = values.collect();
    let mut key = DocWriter::new();
    append_nested(&mut key, &values?);
    Some(key.finish())
}

/// What a filter wants a field to be.
fn asked_value<'a>(filter: Doc<'a>, path: &str) -> Option<ValueRef<'a>> {
    let found = filter.iter().find_map(|element| match element.value() {
        ValueRef::Array(all) if element.key() == "$and" => all.iter().find_map(|one| match one {
            ValueRef::Document(one) => asked_value(one, path),
            _ => None,
        }),
        value if element.key() == path => equality(value),
        ValueRef::Document(inner) if !is_operator(inner) => {
            let rest = path.strip_prefix(element.key())?.strip_prefix('.')?;
            rest.split('.')
                .try_fold(ValueRef::Document(inner), |at, name| match at {
                    ValueRef::Document(at) => at.get(name),
                    _ => None,
                })
        }
        _ => None,
    });
    found.filter(|value| !is_no_key(*value))
}

fn is_operator(value: Doc<'_>) -> bool {
    value
        .first()
        .is_some_and(|first| first.key().starts_with('$'))
}

fn equality(value: ValueRef<'_>) -> Option<ValueRef<'_>> {
    match value {
        ValueRef::Document(operators) if is_operator(operators) => operators.get("$eq"),
        ValueRef::Regex { .. } => None,
        value => Some(value),
    }
}

/// Fields by their paths, as documents within documents.
fn append_nested(writer: &mut DocWriter, fields: &[(&str, ValueRef<'_>)]) {
    let mut done: Vec<&str> = Vec::new();
    for (path, value) in fields {
        let Some((name, _)) = path.split_once('.') else {
            writer.append(path, *value);
            continue;
        };
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        let within = fields.iter().filter_map(|(path, value)| {
            let rest = path.strip_prefix(name)?.strip_prefix('.')?;
            Some((rest, *value))
        });
        let within: Vec<_> = within.collect();
        writer.begin_document(name);
        append_nested(writer, &within);
        writer.end();
    }
}

/// Where the chunk begins that ends at a bound or has it inside.
fn begin_of_last(table: &RoutingTable, max: &KeyBound) -> KeyBound {
    let before = KeyRange::new(table.whole().min, max.clone());
    let last = table.overlapping(&before).last();
    last.map_or_else(|| before.min.clone(), |view| view.chunk.min.clone())
}

fn chunk_around<'a>(table: &'a RoutingTable, range: &KeyRange) -> Result<ChunkView<'a>, Fault> {
    let view = table.find(range.min.as_bytes());
    if view.chunk.min > range.min || *view.max < range.max {
        let quoted = |bound: &KeyBound| {
            let bound = documents::bound(&table.pattern, bound.as_bytes())?;
            Ok::<String, Fault>(document_quoted(bound.as_doc()))
        };
        return Err(Fault::new(
            Code::INVALID_OPTIONS,
            format!(
                "the range [{}, {}) is not within one chunk; the chunk of its beginning is [{}, {})",
                quoted(&range.min)?,
                quoted(&range.max)?,
                quoted(&view.chunk.min)?,
                quoted(view.max)?,
            ),
        ));
    }
    Ok(view)
}

/// The bounds of a range with the types of the chunk's, where it ends with the chunk.
async fn stored_bounds(
    tenure: &Tenure,
    table: &RoutingTable,
    chunk: &ChunkView<'_>,
    range: &KeyRange,
) -> Result<(DocBuf, DocBuf), Fault> {
    let decoded = |bound: &KeyBound| documents::bound(&table.pattern, bound.as_bytes());
    let (mut min, mut max) = (decoded(&range.min)?, decoded(&range.max)?);
    let query = DocWriter::new()
        .with("uuid", uuid_value(&table.uuid))
        .with("min", &decoded(&chunk.chunk.min)?)
        .finish();
    if let Some(stored) = tenure.store.find_one(CHUNKS, query.as_doc()).await? {
        let stored = stored.as_doc();
        if let (true, Some(bound)) = (chunk.chunk.min == range.min, stored.get_doc("min")) {
            min = bound.to_owned();
        }
        if let (true, Some(bound)) = (*chunk.max == range.max, stored.get_doc("max")) {
            max = bound.to_owned();
        }
    }
    Ok((min, max))
}

/// Whether moves of a collection are allowed: MongoDB's name for it, absent means yes.
fn permits_moves(entry: &CollectionEntry) -> bool {
    entry.document.get("permitMigrations") != Some(ValueRef::Boolean(false))
}

/// Answers `setAllowMigrations`: none is left running when they are not allowed any more. ⚑ They end before that is
/// written, with the answer; none begins meanwhile, for want of a turn.
pub(crate) async fn set_allow(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(command, "setAllowMigrations")?)?;
    let allow = match command.get("allowMigrations") {
        Some(ValueRef::Boolean(allow)) => allow,
        Some(other) => return Err(wrong_type("allowMigrations", other, "bool")),
        None => return Err(missing("setAllowMigrations.allowMigrations")),
    };
    let patience = Patience::of(command)?;
    let here = tenure.clone();
    tenure
        .complete(async move {
            let claim = Claim::one(&name);
            let _turn = here.queue.enter_within(&claim, patience).await?;
            here.state().await?.sharded(&name)?;
            if !allow {
                halt(&here, &claim, "setAllowMigrations").await?;
            }
            here.decide(|state| {
                let (entry, _) = state.sharded(&name)?;
                let new = entry.with(by("permitMigrations", allow).as_doc())?;
                let mut commit = Commit::default();
                placement::expect_unchanged(&mut commit, entry);
                let id = by("_id", name.as_str());
                commit.put(COLLECTIONS, id.as_doc(), new.document.as_doc());
                let details = by("allowMigrations", allow);
                log_change(
                    &mut commit,
                    "setAllowMigrations",
                    name.as_str(),
                    details.as_doc(),
                );
                let plan = Plan {
                    commit,
                    effects: vec![Effect::Collection(new)],
                    answer: (),
                };
                Ok(plan.answering(state, ticket, &Ok(ok())))
            })
            .await?;
            Ok(ok())
        })
        .await
}
