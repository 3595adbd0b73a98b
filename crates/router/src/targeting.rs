//! Which shards a request concerns.
//!
//! Reads, and updates and deletes of many documents, go to every shard that owns keys within the
//! ranges of the filter. A statement about one document must find that document on one shard, by
//! MongoDB's rules:
//!
//! ```text
//!   upsert                    the filter holds the whole shard key
//!   update of one, delete     one shard by the filter; a replacement also by its own shard key;
//!                             or an exact _id: then all shards are asked
//!   findAndModify             one shard by the filter's whole shard key
//! ```
//!
//! Equality with null is also met by documents with a value of the outdated type undefined, which have another
//! key. A statement about one document that names the whole key means the one key of null, as in MongoDB.

use crate::Router;
use crate::apart::apart;
use crate::request::{Clock, snapshot_time};
use crate::routing::Route;
use cluster::cache::Placement;
use cluster::routing::{Owner, RoutingTable, ShardId};
use model::bson::{Array, Doc, Timestamp, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::range::RangeSet;
use model::text::document_quoted;
use model::time::ClusterTime;
use query::context::QueryContext;
use query::expression::{Expression, check_user_variable};
use query::filter::Filter;
use query::path::Path;
use query::plan::{named_shard_key, plain_shard_key, range_of_key, shard_key_ranges};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

impl Router {
    /// Routes a request, and makes sure that what is known of the shards it goes to is not stale.
    /// `None` if the database does not exist and is not to be created.
    pub(crate) async fn route_to(
        &self,
        namespace: &Namespace,
        create: bool,
        mut target: impl FnMut(&Route) -> Result<Vec<ShardId>, Error>,
    ) -> Result<Option<(Route, Vec<ShardId>)>, Error> {
        let Some(mut route) = self.routing.route(namespace, create).await? else {
            return Ok(None);
        };
        loop {
            let shards = target(&route)?;
            let placement = self.routing.placement(namespace, Some(&shards)).await?;
            if placement.version() == route.placement.version() {
                return Ok(Some((route, shards)));
            }
            route.placement = placement;
        }
    }
}

impl Route {
    pub(crate) fn table(&self) -> Option<&RoutingTable> {
        match &self.placement {
            Placement::Sharded(table) => Some(table),
            Placement::Unsharded => None,
        }
    }

    fn primary(&self) -> Vec<ShardId> {
        vec![self.database.primary.clone()]
    }

    /// The shards that have anything of the collection.
    pub(crate) fn all(&self) -> Vec<ShardId> {
        match self.table() {
            None => self.primary(),
            Some(table) => table.shards().iter().map(|one| one.shard.clone()).collect(),
        }
    }

    /// The shards that may have matches, never none: somebody has to answer.
    pub(crate) fn read_targets(&self, filter: &Filter) -> Vec<ShardId> {
        let Some(table) = self.table() else {
            return self.primary();
        };
        let ranges = shard_key_ranges(filter, &table.pattern);
        let targets = table.targets(ranges.as_slice());
        match targets.is_empty() {
            true => self.all().into_iter().take(1).collect(),
            false => targets,
        }
    }

    /// The same for a read, which goes to those who owned documents at its time, if it names one.
    pub(crate) fn targets_of(&self, filter: &Filter, body: Doc<'_>) -> Result<Vec<ShardId>, Error> {
        let (Some(time), Some(table)) = (snapshot_time(body), self.table()) else {
            return Ok(self.read_targets(filter));
        };
        let mut targets: Vec<ShardId> = Vec::new();
        for range in shard_key_ranges(filter, &table.pattern).iter() {
            for (_, owner) in table.owners_at(range, time) {
                let Owner::Shard(owner) = owner else {
                    return Err(Error::new(
                        Code::STALE_CHUNK_HISTORY,
                        format!(
                            "Cannot find shardId the chunk belonged to at cluster time {time:?} \
                             in {}",
                            self.namespace
                        ),
                    ));
                };
                if let Err(at) = targets.binary_search(owner) {
                    targets.insert(at, owner.clone());
                }
            }
        }
        match targets.is_empty() {
            true => Ok(self.read_targets(filter)),
            false => Ok(targets),
        }
    }

    pub(crate) fn insert_target(&self, document: Doc<'_>) -> Result<Vec<ShardId>, Error> {
        let Some(table) = self.table() else {
            return Ok(self.primary());
        };
        let key = table.pattern.key_of(document)?;
        Ok(vec![table.find(&key).chunk.shard.clone()])
    }

    pub(crate) fn update_targets(
        &self,
        statement: Doc<'_>,
        context: &QueryContext,
    ) -> Result<Vec<ShardId>, Error> {
        let Some(table) = self.table() else {
            return Ok(self.primary());
        };
        let query = statement.get_doc("q").unwrap_or(Doc::EMPTY);
        let context = with_constants(statement, context);
        let filter = parse_filter(query, &context)?;
        let is = |name: &str| statement.get(name).is_some_and(model::number::is_truthy);
        if is("upsert") {
            if !holds_shard_key(&filter, table) {
                return Err(Error::new(
                    Code::SHARD_KEY_NOT_FOUND,
                    "Failed to target upsert by query :: could not extract exact shard key",
                ));
            }
            return Ok(self.one_target(&filter, table));
        }
        let targets = match is("multi") {
            true => self.read_targets(&filter),
            false => self.one_target(&filter, table),
        };
        if targets.len() == 1 || is("multi") {
            return Ok(targets);
        }
        if let Some(replacement) = replacement_of(statement) {
            let has_fields = |field: &model::shard_key::ShardKeyField| {
                let first = field.path.split('.').next().unwrap_or_default();
                replacement.get(first).is_some()
            };
            if !exact_id(&filter) && table.pattern.fields().iter().all(has_fields) {
                let key = table.pattern.key_of(replacement)?;
                return Ok(vec![table.find(&key).chunk.shard.clone()]);
            }
        }
        if exact_id(&filter) {
            return Ok(self.all());
        }
        Err(Error::new(
            Code::INVALID_OPTIONS,
            format!(
                "A {{multi:false}} update on a sharded collection must contain an exact match on \
                 _id or must target a single shard (and have the simple collation), but this \
                 update targeted {} shards. Update request: {}, shard key pattern: {}",
                targets.len(),
                document_quoted(statement),
                pattern_text(table)
            ),
        ))
    }

    pub(crate) fn delete_targets(
        &self,
        statement: Doc<'_>,
        context: &QueryContext,
    ) -> Result<Vec<ShardId>, Error> {
        let Some(table) = self.table() else {
            return Ok(self.primary());
        };
        let query = statement.get_doc("q").unwrap_or(Doc::EMPTY);
        let filter = parse_filter(query, context)?;
        let many = !statement.get("limit").is_some_and(model::number::is_truthy);
        let targets = match many {
            true => self.read_targets(&filter),
            false => self.one_target(&filter, table),
        };
        if targets.len() == 1 || many {
            return Ok(targets);
        }
        if exact_id(&filter) {
            return Ok(self.all());
        }
        Err(Error::new(
            Code::SHARD_KEY_NOT_FOUND,
            format!(
                "A single delete on a sharded collection must contain an exact match on _id (and \
                 have the collection default collation) or contain the shard key (and have the \
                 simple collation). Delete request: {}, shard key pattern: {}",
                document_quoted(statement),
                pattern_text(table)
            ),
        ))
    }

    pub(crate) fn find_and_modify_target(&self, filter: &Filter) -> Result<Vec<ShardId>, Error> {
        let Some(table) = self.table() else {
            return Ok(self.primary());
        };
        if !holds_shard_key(filter, table) {
            return Err(Error::new(
                Code::SHARD_KEY_NOT_FOUND,
                "Query for sharded findAndModify must contain the shard key",
            ));
        }
        Ok(self.one_target(filter, table))
    }

    /// The shards that may have the one document that a statement means: one, if the filter names its key.
    fn one_target(&self, filter: &Filter, table: &RoutingTable) -> Vec<ShardId> {
        let targets = self.read_targets(filter);
        if targets.len() == 1 {
            return targets;
        }
        match named_shard_key(filter, &table.pattern) {
            Some(key) => {
                let owner = &table.find(&key).chunk.shard;
                match targets.contains(owner) {
                    true => vec![owner.clone()],
                    false => targets,
                }
            }
            None => targets,
        }
    }
}

/// The filter of a command. It is parsed where plain values of the shard key do not say where the command goes.
pub(crate) struct Asked<'a> {
    body: Doc<'a>,
    given: Doc<'a>,
    parsed: OnceLock<Filter>,
}

impl<'a> Asked<'a> {
    /// `field`: of the command, with its filter.
    pub(crate) fn new(body: Doc<'a>, field: &str) -> Asked<'a> {
        Asked {
            body,
            given: body.get_doc(field).unwrap_or(Doc::EMPTY),
            parsed: OnceLock::new(),
        }
    }

    pub(crate) fn filter(&self, clock: &Clock) -> Result<&Filter, Error> {
        if let Some(parsed) = self.parsed.get() {
            return Ok(parsed);
        }
        let context = context_of(self.body, clock)?;
        let parsed = parse_filter(self.given, &context)?;
        Ok(self.parsed.get_or_init(|| parsed))
    }

    /// The shards that may have matches.
    pub(crate) fn targets(&self, route: &Route, clock: &Clock) -> Result<Vec<ShardId>, Error> {
        let Some(table) = route.table() else {
            return Ok(route.primary());
        };
        match self
            .key(table)
            .filter(|_| snapshot_time(self.body).is_none())
        {
            Some(key) => Ok(vec![table.find(&key).chunk.shard.clone()]),
            None => route.targets_of(self.filter(clock)?, self.body),
        }
    }

    /// The ranges that matches lie in.
    pub(crate) fn ranges(&self, table: &RoutingTable, clock: &Clock) -> Result<RangeSet, Error> {
        match self.key(table) {
            Some(key) => Ok(range_of_key(&key)),
            None => Ok(shard_key_ranges(self.filter(clock)?, &table.pattern)),
        }
    }

    fn key(&self, table: &RoutingTable) -> Option<Vec<u8>> {
        // Variables are checked with the filter.
        match self.body.get("let") {
            None => plain_shard_key(self.given, &table.pattern),
            Some(_) => None,
        }
    }
}

/// Parses a filter, constants folded; one that may take long, away from the connections.
pub(crate) fn parse_filter(filter: Doc<'_>, context: &QueryContext) -> Result<Filter, Error> {
    apart(filter, || Ok(Filter::parse(filter, context)?.optimized()))
}

/// Whether a filter names one value for every field of the shard key.
pub(crate) fn holds_shard_key(filter: &Filter, table: &RoutingTable) -> bool {
    if named_shard_key(filter, &table.pattern).is_some() {
        return true;
    }
    let equalities = filter.equalities();
    table.pattern.fields().iter().all(|field| {
        let path = Path::new(&field.path);
        equalities.iter().any(|(named, _)| **named == path)
    })
}

fn exact_id(filter: &Filter) -> bool {
    let id = Path::new("_id");
    filter.equalities().iter().any(|(path, _)| **path == id)
}

/// The document that takes the place of another, if the statement is of that kind.
fn replacement_of(statement: Doc<'_>) -> Option<Doc<'_>> {
    let update = statement.get_doc("u")?;
    match update.first() {
        Some(first) if first.key().starts_with('$') => None,
        Some(_) | None => Some(update),
    }
}

/// The context of a statement with constants (`c`) for its pipeline.
pub(crate) fn with_constants(statement: Doc<'_>, context: &QueryContext) -> QueryContext {
    let mut context = context.clone();
    for element in statement.get_doc("c").iter().flat_map(|doc| doc.iter()) {
        let variable = (element.key().to_owned(), element.value().to_owned());
        context.variables.push(variable);
    }
    context
}

fn pattern_text(table: &RoutingTable) -> String {
    let mut text = String::from("{");
    for field in table.pattern.fields() {
        let kind = if field.hashed { "\"hashed\"" } else { "1" };
        text.push_str(&format!(" {}: {kind},", field.path));
    }
    text.pop();
    text.push_str(" }");
    text
}

/// What a command's expressions may refer to: the time, and its `let`.
pub(crate) fn context_of(body: Doc<'_>, clock: &Clock) -> Result<QueryContext, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
    let mut context = QueryContext::new(now_ms);
    context.interrupts = crate::operation::interrupts();
    let time = clock.now();
    if time > ClusterTime::ZERO {
        context.cluster_time = Some(Timestamp {
            seconds: time.seconds(),
            increment: time.increment(),
        });
    }
    if let Some(other) = body.get("let")
        && !matches!(other, ValueRef::Document(_))
        && !other.is_nullish()
    {
        let command = body.first().map_or("", |first| first.key());
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{command}.let' is the wrong type '{}', expected type 'object'",
                other.kind().name()
            ),
        ));
    }
    let variables = body.get_doc("let").unwrap_or(Doc::EMPTY);
    for element in variables.iter() {
        if element.key() != "CURRENT" {
            check_user_variable(element.key())?;
        }
        let value = apart(variables, || {
            let expression = Expression::parse(element.value(), &context)?;
            // The shards refuse what is wrong with it; here it only must not stand in the way.
            match expression.reads_document() {
                true => Ok(None),
                false => expression.evaluate(Doc::EMPTY),
            }
        })?;
        let value = value.unwrap_or(model::bson::Value::Undefined);
        context.variables.push((element.key().to_owned(), value));
    }
    Ok(context)
}

/// The collection that a command's first field names.
pub(crate) fn namespace_of(body: Doc<'_>, database: &str) -> Result<Namespace, Error> {
    match body.first().map(|first| (first.key(), first.value())) {
        Some((_, ValueRef::String(collection))) => Namespace::new(database, collection),
        Some((name, other)) => Err(Error::new(
            Code::BAD_VALUE,
            format!(
                "collection name has invalid type {} in command {name}",
                other.kind().name()
            ),
        )),
        None => Err(Error::bad_value("the command is empty")),
    }
}

/// The same for commands with another code for a name that is no string.
pub(crate) fn namespace_of_check(body: Doc<'_>, database: &str) -> Result<Namespace, Error> {
    let first = body.first().map(|first| first.value());
    let is_text = matches!(first, Some(ValueRef::String(_)));
    namespace_of(body, database).map_err(|error| match is_text {
        true => error,
        false => Error::new(Code::INVALID_NAMESPACE, error.message),
    })
}

/// The documents of an array.
pub(crate) fn documents<'a>(array: Array<'a>) -> impl Iterator<Item = Doc<'a>> {
    array.iter().filter_map(|value| match value {
        ValueRef::Document(doc) => Some(doc),
        _ => None,
    })
}
