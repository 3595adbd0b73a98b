//! Where a pipeline over several shards is divided, and how the stage at that place is.

use super::Order;
use super::internal::{self, DOCUMENT, KEY};
use super::needed;
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::filter::Filter;
use crate::pipeline::group::Group;
use crate::pipeline::optimize::{Window, match_step};
use crate::pipeline::project::parse_project;
use crate::pipeline::source::Replacement;
use crate::pipeline::stage::{Stage, Step};
use crate::sort::SortPattern;
use model::Error;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::shard_key::ShardKeyPattern;

type Halves = (Vec<Step>, Vec<Step>, Order);

/// Divides optimized steps.
pub(super) fn halves(
    steps: Vec<Step>,
    shard_key: Option<&ShardKeyPattern>,
) -> Result<Halves, Error> {
    // While documents have them as they are stored. ⚑ Not hashed ones: 1.5 equals its decimal, but
    // their hashes, and so their shards, differ.
    let mut key_paths: Option<Vec<&str>> = shard_key
        .filter(|key| key.fields().iter().all(|field| !field.hashed))
        .map(|key| key.fields().iter().map(|field| &*field.path).collect());
    let mut shards = Vec::new();
    let mut rest = steps.into_iter();
    while let Some(step) = rest.next() {
        let stays = match &step.stage {
            Stage::Group(group) => key_paths
                .take()
                .is_some_and(|paths| group.tells_apart(&paths)),
            stage => looks_at_one_document(stage),
        };
        if !stays {
            let mut behind = vec![step];
            behind.extend(rest);
            return divide(shards, behind);
        }
        key_paths = key_paths.filter(|paths| paths.iter().all(|path| keeps(&step.stage, path)));
        shards.push(step);
    }
    Ok((shards, Vec::new(), Order::Any))
}

/// Whether a stage does the same wherever the other documents are.
pub(super) fn looks_at_one_document(stage: &Stage) -> bool {
    match stage {
        Stage::Match(_)
        | Stage::Project(_)
        | Stage::Replace(_)
        | Stage::Unwind(_)
        | Stage::Redact(_)
        // What makes the documents is done where they are made.
        | Stage::CollectionStats(..)
        | Stage::IndexStats(_)
        | Stage::CurrentOperations(_)
        | Stage::LocalSessions(_)
        | Stage::ChangeStream(_)
        | Stage::Documents(_) => true,
        Stage::Sort { .. }
        | Stage::Limit(_)
        | Stage::Skip(_)
        | Stage::Count(_)
        | Stage::Group(_)
        | Stage::BucketAuto(_)
        | Stage::Sample { .. }
        | Stage::Facet(_)
        | Stage::Lookup(_)
        | Stage::GraphLookup(_)
        | Stage::UnionWith(_)
        | Stage::Out(_)
        | Stage::Merge(_) => false,
    }
}

/// Whether a field comes out of a stage as it went in.
fn keeps(stage: &Stage, path: &str) -> bool {
    let name = path.split('.').next().unwrap_or(path);
    match stage {
        Stage::Match(_) => true,
        Stage::Project(projector) => projector.keeps(name),
        Stage::Unwind(unwind) => unwind.keeps(name),
        _ => false,
    }
}

/// Divides the first of the stages `behind`.
fn divide(mut shards: Vec<Step>, mut behind: Vec<Step>) -> Result<Halves, Error> {
    let first = behind.remove(0);
    let order = match &first.stage {
        Stage::Sort { pattern, limit } => {
            let order = Order::Sorted(pattern.clone());
            let wanted = limit.and_then(limit_step);
            shards.push(first);
            shards.extend(wanted);
            shards.extend(needed::projection(&behind, &order));
            order
        }
        Stage::Limit(_) | Stage::Skip(_) => {
            behind.insert(0, first);
            let mut window = Window::default();
            for step in &behind {
                if !window.take(&step.stage) {
                    break;
                }
            }
            shards.extend(window.end().and_then(limit_step));
            shards.extend(needed::projection(&behind, &Order::Any));
            Order::Any
        }
        Stage::Count(name) => {
            let sum = sum_of_counts(name)?;
            shards.push(first);
            behind.splice(0..0, sum);
            Order::Any
        }
        Stage::Group(group) => {
            let (own, merging) = group_halves(group, first.spec.as_doc().get("$group"))?;
            shards.push(own);
            behind.insert(0, merging);
            Order::Any
        }
        Stage::Sample { size, .. } => {
            let (own, merging) = sample_halves(*size)?;
            shards.push(own);
            behind.splice(0..0, merging);
            Order::Sorted(SortPattern::parse(
                DocWriter::new().with(KEY, 1).finish().as_doc(),
            )?)
        }
        _ => {
            behind.insert(0, first);
            shards.extend(needed::projection(&behind, &Order::Any));
            Order::Any
        }
    };
    Ok((shards, behind, order))
}

/// A `$limit` for the shards; none for a number that BSON does not have. Where
/// nothing at all is wanted one document is asked for, since zero cannot be.
fn limit_step(limit: u64) -> Option<Step> {
    let limit = limit.max(1);
    let written = i64::try_from(limit).ok()?;
    Some(Step::new("$limit", written, Stage::Limit(limit)))
}

/// A stage that whoever parses it understands. Windows that were put together may let
/// nothing through, which no `$limit` can say, or skip more than a number can.
pub(super) fn as_written(step: Step) -> Step {
    match step.stage {
        Stage::Limit(0) | Stage::Skip(0x8000_0000_0000_0000..) => match_step(Filter::AlwaysFalse),
        _ => step,
    }
}

/// Counts of shards added up, in a document like that of one shard. A sum of whole
/// numbers has the same type as a count: the smallest that holds it.
fn sum_of_counts(name: &str) -> Result<[Step; 2], Error> {
    let context = QueryContext::new(0);
    let mut group = DocWriter::new().with("_id", ValueRef::Null);
    group
        .begin_document(name)
        .append("$sum", format!("${name}").as_str())
        .end();
    let group = group.finish();
    let project = DocWriter::new().with("_id", 0).finish();
    Ok([
        Step::new(
            "$group",
            &group,
            Stage::Group(Box::new(Group::parse(ValueRef::from(&group), &context)?)),
        ),
        Step::new(
            "$project",
            &project,
            Stage::Project(parse_project(ValueRef::from(&project), &context)?),
        ),
    ])
}

fn group_halves(group: &Group, spec: Option<ValueRef<'_>>) -> Result<(Step, Step), Error> {
    let spec = spec.unwrap_or(ValueRef::Null);
    let own = Step::new(
        internal::GROUP,
        &internal::write_group(spec),
        Stage::Group(Box::new(group.clone().shard_half())),
    );
    let merging = Step::new(
        "$group",
        &doing_merge(spec),
        Stage::Group(Box::new(group.clone().merging_half())),
    );
    Ok((own, merging))
}

/// The specification as explain shows it where groups are put together.
fn doing_merge(spec: ValueRef<'_>) -> DocBuf {
    let mut shown = DocWriter::new();
    if let ValueRef::Document(fields) = spec {
        for field in fields.iter() {
            shown.append_element(&field);
        }
    }
    shown.with("$doingMerge", true).finish()
}

fn sample_halves(size: u64) -> Result<(Step, [Step; 2]), Error> {
    let written = i64::try_from(size).unwrap_or(i64::MAX);
    let sample = DocWriter::new().with("size", written).finish();
    let own = Step::new(
        internal::SAMPLE,
        &internal::write_sample(ValueRef::from(&sample)),
        Stage::Sample { size, keyed: true },
    );
    let path = format!("${DOCUMENT}");
    let context = QueryContext::new(0);
    let unpack = Replacement {
        expression: Expression::parse(ValueRef::String(&path), &context)?,
        name: "a sampled document",
    };
    Ok((
        own,
        [
            Step::new("$limit", written, Stage::Limit(size)),
            Step::new("$replaceWith", path.as_str(), Stage::Replace(unpack)),
        ],
    ))
}

/// How many of the first steps a scan of one server would take over.
pub(super) fn scanned(steps: &[Step]) -> usize {
    let mut at = 0;
    let is = |at: usize, wanted: fn(&Stage) -> bool| {
        steps.get(at).is_some_and(|step| wanted(&step.stage))
    };
    if is(at, |stage| matches!(stage, Stage::Match(_))) {
        at += 1;
    }
    if is(at, |stage| matches!(stage, Stage::Sort { .. })) {
        at += 1;
    }
    while is(at, |stage| {
        matches!(stage, Stage::Skip(_) | Stage::Limit(_))
    }) {
        at += 1;
    }
    at
}
