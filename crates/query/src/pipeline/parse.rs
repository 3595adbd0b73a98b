//! Reads a pipeline: each stage by its name, then the rules about places.

use super::bucket;
use super::change_stream::{ChangeStream, check_behind};
use super::facet::Facet;
use super::graph_lookup::GraphLookup;
use super::group::Group;
use super::list_sessions;
use super::lookup::Lookup;
use super::output;
use super::project::{parse_add_fields, parse_project, parse_unset};
use super::redact::Redact;
use super::source::Replacement;
use super::split;
use super::stage::{Stage, Step};
use super::union::UnionWith;
use super::unwind::Unwind;
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::filter::Filter;
use crate::sort::SortPattern;
use model::bson::{Array, Doc, DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Error, Namespace};

/// MongoDB's limit on the length of a pipeline.
const STAGES_MAX: usize = 1000;
/// Pipelines inside of pipelines, at most.
const DEPTH_MAX: usize = 20;

/// What a pipeline is parsed for.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub database: &'a str,
    /// `None` for `{aggregate: 1}`.
    pub collection: Option<&'a Namespace>,
    pub context: &'a QueryContext,
    pub place: Place,
    /// How many pipelines are around this one.
    pub depth: usize,
}

/// Where a pipeline stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Command,
    /// The half of a command's pipeline that a router sends to a shard: the stages
    /// that only routers write are understood, see [`super::split`].
    ShardHalf,
    Facet,
    Lookup,
    UnionWith,
    Update,
}

impl<'a> Scope<'a> {
    /// A pipeline inside of this one.
    pub(super) fn inside<'b>(
        &self,
        place: Place,
        collection: Option<&'b Namespace>,
        context: &'b QueryContext,
    ) -> Result<Scope<'b>, Error>
    where
        'a: 'b,
    {
        if self.depth >= DEPTH_MAX {
            return Err(Error::location(
                40599,
                format!("Maximum number of nested sub-pipelines is {DEPTH_MAX}"),
            ));
        }
        Ok(Scope {
            database: self.database,
            collection,
            context,
            place,
            depth: self.depth + 1,
        })
    }
}

/// The error for a pipeline that is no array.
pub fn not_an_array() -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        "'pipeline' option must be specified as an array",
    )
}

pub fn parse(stages: Array<'_>, scope: &Scope<'_>) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    for (at, value) in stages.iter().enumerate() {
        let ValueRef::Document(doc) = value else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        if at >= STAGES_MAX {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
            ));
        }
        parse_stage(doc, scope, &mut steps)?;
    }
    check_behind(&steps)?;
    check_places(&steps, scope)?;
    Ok(steps)
}

/// One stage; some are short for several.
fn parse_stage(doc: Doc<'_>, scope: &Scope<'_>, steps: &mut Vec<Step>) -> Result<(), Error> {
    let mut elements = doc.iter();
    let (Some(element), None) = (elements.next(), elements.next()) else {
        return Err(Error::location(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        ));
    };
    let name = element.key();
    let spec = element.value();
    let context = scope.context;
    let stage = match name {
        "$match" => match spec {
            ValueRef::Document(filter) => Stage::Match(
                Filter::parse(filter, context)
                    .map_err(refused_in_match)?
                    .optimized(),
            ),
            _ => {
                return Err(Error::location(
                    15959,
                    "the match filter must be an expression in an object",
                ));
            }
        },
        "$changeStream" => Stage::ChangeStream(Box::new(ChangeStream::parse(spec, scope)?)),
        "$project" => Stage::Project(parse_project(spec, context)?),
        "$addFields" | "$set" => Stage::Project(parse_add_fields(name, spec, context)?),
        "$unset" => Stage::Project(parse_unset(spec)?),
        "$replaceRoot" => Stage::Replace(parse_replace_root(spec, context)?),
        "$replaceWith" => Stage::Replace(Replacement {
            expression: Expression::parse(spec, context)?,
            name: "'replacement document' ",
        }),
        "$sort" => Stage::Sort {
            pattern: parse_sort(spec)?,
            limit: None,
        },
        "$limit" => Stage::Limit(parse_limit(spec)?),
        "$skip" => Stage::Skip(count_argument("$skip", spec, 5107200)?),
        "$count" => Stage::Count(parse_count(spec)?),
        "$unwind" => Stage::Unwind(Unwind::parse(spec)?),
        "$group" => Stage::Group(Box::new(Group::parse(spec, context)?)),
        "$bucket" => {
            steps.extend(bucket::parse_bucket(spec, context)?);
            return Ok(());
        }
        "$bucketAuto" => Stage::BucketAuto(Box::new(bucket::BucketAuto::parse(spec, context)?)),
        "$sortByCount" => {
            steps.extend(parse_sort_by_count(spec, context)?);
            return Ok(());
        }
        "$sample" => Stage::Sample {
            size: parse_sample(spec)?,
            keyed: false,
        },
        "$redact" => Stage::Redact(Redact::parse(spec, context)?),
        "$facet" => Stage::Facet(Box::new(Facet::parse(spec, scope)?)),
        "$lookup" => Stage::Lookup(Box::new(Lookup::parse(spec, scope)?)),
        "$graphLookup" => Stage::GraphLookup(Box::new(GraphLookup::parse(spec, scope)?)),
        "$unionWith" => Stage::UnionWith(Box::new(UnionWith::parse(spec, scope)?)),
        "$documents" => Stage::Documents(Expression::parse(spec, context)?),
        "$collStats" => parse_collection_stats(spec, scope)?,
        "$indexStats" => match spec {
            ValueRef::Document(empty) if empty.is_empty() => {
                Stage::IndexStats(required_collection("$indexStats", scope)?.clone())
            }
            _ => {
                return Err(Error::location(
                    28803,
                    "The $indexStats stage specification must be an empty object",
                ));
            }
        },
        "$listLocalSessions" => list_sessions::parse_local(spec, scope)?,
        "$listSessions" => list_sessions::parse_stored(spec, scope, steps.is_empty())?,
        "$currentOp" => parse_current_operations(spec, scope)?,
        "$out" => Stage::Out(output::Out::parse(spec, scope)?),
        "$merge" => Stage::Merge(Box::new(output::Merge::parse(spec, scope)?)),
        "$_internalInhibitOptimization" => return Ok(()),
        split::GROUP if scope.place == Place::ShardHalf => {
            let group = Group::parse(split::read_group(spec)?, context)?;
            Stage::Group(Box::new(group.shard_half()))
        }
        split::SAMPLE if scope.place == Place::ShardHalf => Stage::Sample {
            size: parse_sample(split::read_sample(spec)?)?,
            keyed: true,
        },
        unsupported => return Err(refuse(unsupported, spec)),
    };
    steps.push(Step {
        spec: doc.to_owned(),
        stage,
    });
    Ok(())
}

/// Some conditions are refused in `$match` for other reasons than in `find`.
fn refused_in_match(error: Error) -> Error {
    if error.code == Code::COMMAND_NOT_SUPPORTED && error.message.starts_with("$where") {
        return Error::bad_value("$where is not allowed in this context");
    }
    if error.code == Code::NO_QUERY_EXECUTION_PLANS {
        return Error::location(
            5626500,
            "$geoNear, $near, and $nearSphere are not allowed in this context, as these \
             operators require sorting geospatial data.",
        );
    }
    error
}

/// What MongoDB has and this server has not, and what nobody has.
fn refuse(name: &str, spec: ValueRef<'_>) -> Error {
    match name {
        "$geoNear" if matches!(spec, ValueRef::Document(doc) if doc.get("near").is_none()) => {
            Error::location(5860400, "$geoNear requires a 'near' argument")
        }
        "$densify"
        | "$fill"
        | "$geoNear"
        | "$listCatalog"
        | "$mergeCursors"
        | "$operationMetrics"
        | "$planCacheStats"
        | "$queue"
        | "$setWindowFields"
        | "$shardedDataDistribution" => Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            format!("the stage {name} is not supported yet"),
        ),
        _ => Error::location(40324, format!("Unrecognized pipeline stage name: '{name}'")),
    }
}

fn check_places(steps: &[Step], scope: &Scope<'_>) -> Result<(), Error> {
    let is_command = matches!(scope.place, Place::Command | Place::ShardHalf);
    if is_command && scope.collection.is_none() {
        check_collection(steps, scope)?;
    }
    for (at, step) in steps.iter().enumerate() {
        let name = step.name();
        let writes = step.stage.is_final();
        let watches = matches!(step.stage, Stage::ChangeStream(_));
        match scope.place {
            Place::Facet
                if writes || step.stage.is_initial() || matches!(step.stage, Stage::Facet(_)) =>
            {
                return Err(Error::location(
                    40600,
                    format!("{name} is not allowed to be used within a $facet stage"),
                ));
            }
            Place::Lookup if writes || watches => {
                return Err(Error::location(
                    51047,
                    format!("{name} is not allowed within a $lookup's sub-pipeline"),
                ));
            }
            Place::UnionWith if writes || watches => {
                return Err(Error::location(
                    31441,
                    format!("{name} is not allowed within a $unionWith's sub-pipeline"),
                ));
            }
            Place::Update if !matches!(step.stage, Stage::Project(_) | Stage::Replace(_)) => {
                return Err(Error::new(
                    Code::INVALID_OPTIONS,
                    format!("{name} is not allowed to be used within an update"),
                ));
            }
            Place::Command
            | Place::ShardHalf
            | Place::Facet
            | Place::Lookup
            | Place::UnionWith
            | Place::Update => {}
        }
        if step.stage.is_initial() && at > 0 {
            return Err(Error::location(
                40602,
                format!("{name} is only valid as the first stage in a pipeline"),
            ));
        }
        if writes && at + 1 < steps.len() {
            return Err(Error::location(
                40601,
                format!("{name} can only be the final stage in the pipeline"),
            ));
        }
    }
    if is_command {
        check_collection(steps, scope)?;
    }
    Ok(())
}

/// Whether the command named a collection, as the first stage wants it.
fn check_collection(steps: &[Step], scope: &Scope<'_>) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(Code::INVALID_NAMESPACE, message));
    let first = steps.first();
    match (scope.collection, first.map(|step| &step.stage)) {
        (Some(_), Some(Stage::Documents(_))) => {
            invalid("'$documents' can only be run with {aggregate: 1}".to_owned())
        }
        (None, None) => invalid("{aggregate: 1} is not valid for an empty pipeline.".to_owned()),
        (
            None,
            Some(
                Stage::Documents(_)
                | Stage::CurrentOperations(_)
                | Stage::LocalSessions(_)
                | Stage::ChangeStream(_),
            ),
        ) => Ok(()),
        (None, Some(_)) => invalid(needs_collection(first.map_or("", Step::name))),
        (Some(_), _) => Ok(()),
    }
}

fn needs_collection(name: &str) -> String {
    format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required.")
}

fn required_collection<'s>(name: &str, scope: &Scope<'s>) -> Result<&'s Namespace, Error> {
    scope
        .collection
        .ok_or_else(|| Error::new(Code::INVALID_NAMESPACE, needs_collection(name)))
}

/// The argument of `$limit` and `$skip`.
fn count_argument(stage: &str, value: ValueRef<'_>, code: i32) -> Result<u64, Error> {
    let fail = |why: &str| {
        Err(Error::location(
            code,
            format!("invalid argument to {stage} stage: {why}: {stage}: {value:?}"),
        ))
    };
    let Some(number) = Number::of(value) else {
        return fail("Expected a number in");
    };
    match number.to_i64_exact() {
        Some(count) => match u64::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => fail("Expected a non-negative number in"),
        },
        None if number.is_integral() => fail("Cannot represent as a 64-bit integer"),
        None => fail("Expected an integer"),
    }
}

fn parse_limit(value: ValueRef<'_>) -> Result<u64, Error> {
    match count_argument("$limit", value, 5107201)? {
        0 => Err(Error::location(15958, "the limit must be positive")),
        limit => Ok(limit),
    }
}

fn parse_sort(value: ValueRef<'_>) -> Result<SortPattern, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::location(
            15973,
            "the $sort key specification must be an object",
        ));
    };
    if doc.is_empty() {
        return Err(Error::location(
            15976,
            "$sort stage must have at least one sort key",
        ));
    }
    SortPattern::parse(doc)
}

fn parse_count(value: ValueRef<'_>) -> Result<Box<str>, Error> {
    let fail = |code: i32, why: &str| Err(Error::location(code, format!("the count field {why}")));
    let ValueRef::String(name) = value else {
        return fail(40156, "must be a non-empty string");
    };
    if name.is_empty() {
        return fail(40157, "must be a non-empty string");
    }
    if name.starts_with('$') {
        return fail(40158, "cannot be a $-prefixed path");
    }
    if name.contains('\0') {
        return fail(40159, "cannot contain a null byte");
    }
    if name.contains('.') {
        return fail(40160, "cannot contain '.'");
    }
    if name == "_id" {
        return Err(Error::location(
            15948,
            "a group's _id may only be specified once",
        ));
    }
    Ok(name.into())
}

fn parse_replace_root(spec: ValueRef<'_>, context: &QueryContext) -> Result<Replacement, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::location(
            40229,
            format!(
                "expected an object as specification for $replaceRoot stage, got {}",
                spec.kind().name()
            ),
        ));
    };
    for element in doc.iter() {
        if element.key() != "newRoot" {
            return Err(unknown_field("$replaceRoot", element.key()));
        }
    }
    let root = doc
        .get("newRoot")
        .ok_or_else(|| missing_field("$replaceRoot", "newRoot"))?;
    Ok(Replacement {
        expression: Expression::parse(root, context)?,
        name: "'newRoot' expression ",
    })
}

fn parse_sample(value: ValueRef<'_>) -> Result<u64, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::location(
            28745,
            "the $sample stage specification must be an object",
        ));
    };
    let mut size = None;
    for element in doc.iter() {
        if element.key() != "size" {
            return Err(Error::location(
                28748,
                format!("unrecognized option to $sample: {}", element.key()),
            ));
        }
        let number = Number::of(element.value())
            .ok_or_else(|| Error::location(28746, "size argument to $sample must be a number"))?;
        let whole = number.to_i64_truncated().unwrap_or(i64::MAX);
        size = Some(u64::try_from(whole).map_err(|_| {
            Error::location(28747, "size argument to $sample must not be negative")
        })?);
    }
    size.ok_or_else(|| Error::location(28749, "$sample stage must specify a size"))
}

/// `$group` with a count, then `$sort`.
fn parse_sort_by_count(spec: ValueRef<'_>, context: &QueryContext) -> Result<[Step; 2], Error> {
    const MESSAGE: &str = "the sortByCount field must be defined as a $-prefixed path or an \
                           expression inside an object";
    match spec {
        ValueRef::Document(doc) if !doc.first().is_some_and(|e| e.key().starts_with('$')) => {
            return Err(Error::location(40147, MESSAGE));
        }
        ValueRef::String(text) if !text.starts_with('$') => {
            return Err(Error::location(40148, MESSAGE));
        }
        ValueRef::Document(_) | ValueRef::String(_) => {}
        _ => {
            return Err(Error::location(
                40149,
                "the sortByCount field must be specified as a string or as an object",
            ));
        }
    }
    let mut group = DocWriter::new().with("_id", spec);
    group.begin_document("count").append("$sum", 1).end();
    let group = group.finish();
    let sort = DocWriter::new().with("count", -1).finish();
    Ok([
        Step::new(
            "$group",
            &group,
            Stage::Group(Box::new(Group::parse(ValueRef::from(&group), context)?)),
        ),
        Step::new(
            "$sort",
            &sort,
            Stage::Sort {
                pattern: SortPattern::parse(sort.as_doc())?,
                limit: None,
            },
        ),
    ])
}

fn parse_collection_stats(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Stage, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::location(
            5447000,
            format!("$collStats must take a nested object but found: $collStats: {spec:?}"),
        ));
    };
    for element in doc.iter() {
        if !matches!(
            element.key(),
            "count" | "storageStats" | "latencyStats" | "queryExecStats"
        ) {
            return Err(unknown_field("$collStats", element.key()));
        }
        let ValueRef::Document(options) = element.value() else {
            return Err(wrong_type(
                "$collStats",
                element.key(),
                element.value(),
                "object",
            ));
        };
        let scale = options.get("scale").and_then(Number::of);
        if let Some(scale) = scale.and_then(|scale| scale.to_i64_truncated())
            && scale < 1
        {
            return Err(Error::location(
                51024,
                format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
            ));
        }
    }
    let namespace = required_collection("$collStats", scope)?;
    Ok(Stage::CollectionStats(namespace.clone(), doc.to_owned()))
}

fn parse_current_operations(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Stage, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "$currentOp options must be specified in an object, but found: {}",
                spec.kind().name()
            ),
        ));
    };
    for element in doc.iter() {
        let known = matches!(
            element.key(),
            "allUsers"
                | "idleConnections"
                | "idleSessions"
                | "localOps"
                | "truncateOps"
                | "idleCursors"
                | "backtrace"
                | "targetAllNodes"
        );
        if !known {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "Unrecognized option '{}' in $currentOp stage.",
                    element.key()
                ),
            ));
        }
        if !matches!(element.value(), ValueRef::Boolean(_)) {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "The '{}' parameter of the $currentOp stage must be a boolean value, but \
                     found: {}",
                    element.key(),
                    element.value().kind().name()
                ),
            ));
        }
    }
    if scope.database != "admin" || scope.collection.is_some() {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            "$currentOp must be run against the 'admin' database with {aggregate: 1}",
        ));
    }
    Ok(Stage::CurrentOperations(doc.to_owned()))
}

pub(super) fn unknown_field(stage: &str, field: &str) -> Error {
    Error::location(
        40415,
        format!("BSON field '{stage}.{field}' is an unknown field."),
    )
}

pub(super) fn missing_field(stage: &str, field: &str) -> Error {
    Error::location(
        40414,
        format!("BSON field '{stage}.{field}' is missing but a required field"),
    )
}

pub(super) fn wrong_type(stage: &str, field: &str, value: ValueRef<'_>, expected: &str) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "BSON field '{stage}.{field}' is the wrong type '{}', expected type '{expected}'",
            value.kind().name()
        ),
    )
}
