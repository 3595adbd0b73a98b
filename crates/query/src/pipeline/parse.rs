//! Reads a pipeline: each stage by its name, then the rules about places.
//!
//! ```text
//!   array ─► documents of one field each ─► stage by name ─► steps ─► places checked
//!                                             │ `$bucket`, `$sortByCount` are two steps
//! ```
//!
//! Every error has MongoDB's number, and they come in its order: the first bad stage is
//! told before anything about the places of good ones. What MongoDB has and this server
//! has not is refused by name.
//!
//! Small stages are read in `arguments.rs`, places are in `places.rs`; the others have
//! files of their own.

mod arguments;
mod places;

use super::bucket;
use super::bucket_auto::BucketAuto;
use super::change_stream::{ChangeStream, check_behind};
use super::collection_stats::parse_collection_stats;
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
use arguments::{
    count_argument, parse_count, parse_current_operations, parse_limit, parse_replace_root,
    parse_sample, parse_sort, parse_sort_by_count,
};
use model::bson::{Array, Doc, ValueRef};
use model::{Code, Error, Namespace};
use places::check_places;
pub(super) use places::required_collection;

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
    let parsed = parse_all(stages, scope);
    // Constants are computed when all stages have been read: what is wrong with a later stage is
    // told before what is wrong with a constant of an earlier one.
    match parsed {
        Err(error) if scope.depth == 0 && !scope.context.computes_late => {
            let late = scope.context.computing_late();
            let scope = Scope {
                context: &late,
                ..*scope
            };
            parse_all(stages, &scope).and(Err(error))
        }
        parsed => parsed,
    }
}

fn parse_all(stages: Array<'_>, scope: &Scope<'_>) -> Result<Vec<Step>, Error> {
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
        "$bucketAuto" => Stage::BucketAuto(Box::new(BucketAuto::parse(spec, context)?)),
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
