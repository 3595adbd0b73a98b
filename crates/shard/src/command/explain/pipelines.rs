//! Pipelines: what of them is a search, and how MongoDB writes the rest.

use super::expressions;
use super::searches::namespace_of;
use super::{Explained, PipelineStep, Purpose, ShownStage};
use crate::command::arguments::missing;
use crate::command::{Invocation, let_variables};
use crate::read::Query;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Error, Namespace};
use query::context::QueryContext;
use query::filter::Filter;
use query::path::Path;
use query::pipeline::{
    Merge, Place, Scope, Stage as PipelineStage, WhenMatched, WhenNotMatched, not_an_array, parse,
    shown_unwound, split_scan,
};
use query::projection::Projection;

impl Explained {
    /// The search that a pipeline begins with, and the stages behind it.
    pub(super) fn aggregate(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let context = let_variables(invocation, command.get_doc("let"))?;
        let database = invocation.request.database();
        let collection = match command.first().map(|first| first.value()) {
            Some(value) if value.is_number() => None,
            _ => Some(namespace_of(invocation, command)?),
        };
        let stages = match command.get("pipeline") {
            Some(ValueRef::Array(stages)) => stages,
            Some(_) => return Err(not_an_array()),
            None => return Err(missing("aggregate", "pipeline")),
        };
        let scope = Scope {
            database,
            collection: collection.as_ref(),
            context: &context,
            place: match command.get("needsMerge") {
                Some(ValueRef::Boolean(true)) => Place::ShardHalf,
                _ => Place::Command,
            },
            depth: 0,
        };
        let mut steps = parse(stages, &scope)?;
        let makes_documents = matches!(
            steps.first().map(|step| &step.stage),
            Some(
                PipelineStage::Documents(_)
                    | PipelineStage::CollectionStats(..)
                    | PipelineStage::IndexStats(_)
                    | PipelineStage::CurrentOperations(_)
                    | PipelineStage::LocalSessions(_)
                    | PipelineStage::ChangeStream(_)
            )
        );
        let Some(namespace) = collection.filter(|_| !makes_documents) else {
            return Ok(Self {
                namespace: Namespace::new(database, "$cmd.aggregate")?,
                query: Query::new(Filter::everything()),
                purpose: Purpose::Made {
                    stages: shown(&steps, database, &context),
                },
            });
        };
        let hint = match command.get("hint") {
            Some(ValueRef::Document(doc)) if doc.is_empty() => None,
            other => other.map(|hint| hint.to_owned()),
        };
        let output = steps
            .pop_if(|step| matches!(step.stage, PipelineStage::Out(_) | PipelineStage::Merge(_)));
        let (request, mut rest) = split_scan(steps, namespace.clone(), hint);
        rest.extend(output);
        let query = Query {
            sort: request.sort,
            skip: request.skip,
            limit: request.limit,
            needed: request
                .fields
                .map(|fields| fields.iter().map(|name| Path::new(name)).collect()),
            hint: request.hint,
            ..Query::new(request.filter)
        };
        // A last projection of fields is part of the search in MongoDB.
        let mut projection = None;
        if let [only] = &rest[..]
            && only.name() == "$project"
            && let Some(spec) = only.spec.as_doc().get_doc("$project")
            && Projection::parse_stage(spec, &context).is_ok_and(|parsed| parsed.is_simple())
        {
            projection = Some(spec.to_owned());
            rest.clear();
        }
        Ok(Self {
            namespace,
            query,
            purpose: Purpose::Aggregate {
                rest: shown(&rest, database, &context),
                steps: rest,
                projection,
            },
        })
    }
}

/// Stages as MongoDB shows them, which is not always as they were written.
fn shown(steps: &[PipelineStep], database: &str, context: &QueryContext) -> Vec<ShownStage> {
    let mut stages = Vec::new();
    let mut sorted_limit = None;
    let mut numbered = steps.iter().enumerate();
    while let Some((at, step)) = numbered.next() {
        if let Some(spec) = shown_unwound(step, steps.get(at + 1)) {
            stages.push(ShownStage { spec, step: at });
            numbered.next();
            continue;
        }
        let mut out: Vec<DocBuf> = Vec::new();
        let taken_in = sorted_limit.take();
        let spec = step.spec.as_doc();
        match (&step.stage, spec.first().map(|first| first.value())) {
            (PipelineStage::Unwind(_), Some(ValueRef::String(path))) => {
                let inner = DocWriter::new().with("path", path).finish();
                out.push(DocWriter::new().with("$unwind", &inner).finish());
            }
            (PipelineStage::Sort { limit, .. }, Some(pattern)) => {
                let mut inner = DocWriter::new().with("sortKey", pattern);
                if let Some(limit) = *limit {
                    inner.append("limit", limit as i64);
                    sorted_limit = Some(limit);
                }
                out.push(DocWriter::new().with("$sort", &inner.finish()).finish());
            }
            // The sort before it stops by itself.
            (PipelineStage::Limit(limit), _) if taken_in == Some(*limit) => {}
            (PipelineStage::Count(name), _) => out.extend(counting(name)),
            (PipelineStage::Out(_), Some(ValueRef::String(name))) => {
                let target = DocWriter::new().with("db", database).with("coll", name);
                out.push(DocWriter::new().with("$out", &target.finish()).finish());
            }
            (PipelineStage::Merge(merge), _) => out.push(match merging(merge) {
                Some(shown) => DocWriter::new().with("$merge", &shown).finish(),
                None => step.spec.clone(),
            }),
            (PipelineStage::Match(filter), _) => {
                let filter = filter.clone().normalized().to_document();
                out.push(DocWriter::new().with("$match", &filter).finish());
            }
            (_, Some(ValueRef::Document(spec))) => {
                out.push(match step.name() {
                    "$group" => one("$group", &expressions::group(spec, context)),
                    "$project" => one("$project", &expressions::project(spec, context)),
                    name @ ("$addFields" | "$set") => {
                        one(name, &expressions::fields(spec, context))
                    }
                    name @ "$replaceRoot" => one(name, &expressions::fields(spec, context)),
                    "$replaceWith" => {
                        let root = expressions::shown(ValueRef::Document(spec), context);
                        let root = DocWriter::new().with("newRoot", &root).finish();
                        one("$replaceRoot", &root)
                    }
                    _ => step.spec.clone(),
                });
            }
            _ => out.push(step.spec.clone()),
        }
        stages.extend(out.into_iter().map(|spec| ShownStage { spec, step: at }));
    }
    stages
}

/// All that a `$merge` does, said or not. One with a pipeline is shown as it was written.
fn merging(merge: &Merge) -> Option<DocBuf> {
    let matched = match merge.when_matched {
        WhenMatched::Replace => "replace",
        WhenMatched::Merge => "merge",
        WhenMatched::KeepExisting => "keepExisting",
        WhenMatched::Fail => "fail",
        WhenMatched::Pipeline(_) => return None,
    };
    let not_matched = match merge.when_not_matched {
        WhenNotMatched::Insert => "insert",
        WhenNotMatched::Discard => "discard",
        WhenNotMatched::Fail => "fail",
    };
    let mut out = DocWriter::new();
    out.begin_document("into")
        .append("db", merge.target.database())
        .append("coll", merge.target.collection())
        .end();
    match merge.on.as_deref() {
        None => {
            out.append("on", "_id");
        }
        Some([only]) => {
            out.append("on", only);
        }
        Some(several) => {
            out.begin_array("on");
            for name in several {
                out.push(name.as_str());
            }
            out.end();
        }
    }
    out.append("whenMatched", matched)
        .append("whenNotMatched", not_matched);
    Some(out.finish())
}

fn one(name: &str, spec: &DocBuf) -> DocBuf {
    DocWriter::new().with(name, spec).finish()
}

/// `$count` as the two stages that it stands for.
fn counting(name: &str) -> [DocBuf; 2] {
    let one = DocWriter::new().with("$const", 1).finish();
    let null = DocWriter::new().with("$const", ValueRef::Null).finish();
    let sum = DocWriter::new().with("$sum", &one).finish();
    let group = DocWriter::new()
        .with("_id", &null)
        .with(name, &sum)
        .finish();
    let project = DocWriter::new()
        .with(name, true)
        .with("_id", false)
        .finish();
    [
        DocWriter::new().with("$group", &group).finish(),
        DocWriter::new().with("$project", &project).finish(),
    ]
}
