//! `explain`: which plan a command would run with, and what running it does.
//!
//! A write is explained as the search it begins with; nothing is changed. What
//! it would change is found out on the documents that the search yields.
//!
//! Left out: what the stages behind a pipeline's search did, and merging sorted
//! branches of an `$or`.

mod report;

use super::arguments::{arguments, fields, is_generic, missing};
use super::count::CountCommand;
use super::distinct::DistinctCommand;
use super::find::{FindCommand, hint, sort_pattern};
use super::{Answer, Invocation, diagnostic, let_variables};
use crate::read::stages::{Shape, Stage, distinct_stages, rejected, stages};
use crate::read::{Budget, DistinctScan, Execution, Query, Step, query_hashes, trials};
use model::bson::{Array, Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::filter::Filter;
use query::path::Path;
use query::pipeline::{Place, Scope, Stage as PipelineStage, not_an_array, parse, split_scan};
use query::projection::Projection;
use query::update::{Update, UpdateMoment};
use report::{Report, Trial};
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verbosity {
    QueryPlanner,
    ExecutionStats,
    AllPlansExecution,
}

impl Verbosity {
    fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "queryPlanner" => Ok(Verbosity::QueryPlanner),
            "executionStats" => Ok(Verbosity::ExecutionStats),
            "allPlansExecution" => Ok(Verbosity::AllPlansExecution),
            other => Err(Error::bad_value(format!(
                "Enumeration value '{other}' for field 'explain.verbosity' is not a valid value."
            ))),
        }
    }
}

pub(crate) fn explain(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let command = match body.first().map(|first| first.value()) {
        Some(ValueRef::Document(command)) => command,
        other => {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'explain.explain' is the wrong type '{}', expected type 'object'",
                    other.map_or("missing", |value| value.kind().name())
                ),
            ));
        }
    };
    let mut verbosity = Verbosity::AllPlansExecution;
    for argument in arguments("explain", body) {
        match argument.name() {
            "verbosity" => verbosity = Verbosity::parse(argument.string()?)?,
            _ => return Err(argument.unknown()),
        }
    }
    explain_command(invocation, command, verbosity)
}

/// Explains one command; `aggregate` with `explain: true` comes here too.
pub(crate) fn explain_command(
    invocation: &Invocation<'_>,
    command: Doc<'_>,
    verbosity: Verbosity,
) -> Answer {
    let Some(first) = command.first() else {
        return Err(Error::new(
            Code::COMMAND_NOT_FOUND,
            "Explain failed due to unknown command: ",
        ));
    };
    let name = first.key();
    let explained = match name {
        "find" => Explained::find(invocation, command)?,
        "count" => Explained::count(invocation, command)?,
        "distinct" => Explained::distinct(invocation, command)?,
        "update" | "delete" => Explained::write(invocation, command, name)?,
        "findAndModify" | "findandmodify" => Explained::find_and_modify(invocation, command)?,
        "aggregate" => Explained::aggregate(invocation, command)?,
        known if diagnostic::is_command(known) => {
            return Err(Error::new(
                Code::ILLEGAL_OPERATION,
                format!("Cannot explain cmd: {name}"),
            ));
        }
        other => {
            return Err(Error::new(
                Code::COMMAND_NOT_FOUND,
                format!("Explain failed due to unknown command: {other}"),
            ));
        }
    };
    explained.run(invocation, command, verbosity)
}

/// What is done with the documents that a plan finds.
enum Purpose {
    Find {
        projection: Option<(DocBuf, bool)>,
    },
    Count {
        fast: bool,
    },
    Distinct {
        path: Path,
    },
    /// A change of one document that returns it.
    FindAndModify {
        /// `None` removes it.
        change: Option<Change>,
        upsert: bool,
    },
    Update {
        multi: bool,
        upsert: bool,
        change: Change,
    },
    Delete {
        multi: bool,
    },
    /// The stages behind the search, or a projection if that is all there is.
    Aggregate {
        rest: Vec<DocBuf>,
        projection: Option<DocBuf>,
    },
    /// A pipeline that makes its own documents.
    Made {
        stages: Vec<DocBuf>,
    },
}

/// An update that is tried and not written.
struct Change {
    update: Update,
    context: QueryContext,
}

impl Change {
    /// Whether a document would be another one afterwards.
    fn modifies(&self, filter: &Filter, document: Doc<'_>) -> Result<bool, Error> {
        let mut position = None;
        if self.update.uses_position()
            && let Some(matched) = filter.matches_with_position(document)?
        {
            position = matched.position.map(|at| at.to_string());
        }
        let moment = UpdateMoment {
            matched: position.as_deref(),
            is_insert: false,
            timestamp: model::bson::Timestamp {
                seconds: 0,
                increment: 0,
            },
        };
        let after = self.update.apply(document, moment, &self.context)?;
        Ok(after.is_some())
    }
}

struct Explained {
    namespace: Namespace,
    query: Query,
    purpose: Purpose,
}

fn namespace_of(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Namespace, Error> {
    match command.first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => Namespace::new(invocation.request.database(), name),
        Some(other) => Err(Error::bad_value(format!(
            "collection name has invalid type {}",
            other.kind().name()
        ))),
        None => Err(Error::bad_value("the command is empty")),
    }
}

impl Explained {
    fn find(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = FindCommand::parse(invocation, command)?;
        let projection = parsed
            .projection_spec
            .filter(|spec| !spec.as_doc().is_empty())
            .map(|spec| {
                (
                    spec,
                    parsed.projection.as_ref().is_some_and(|p| p.is_simple()),
                )
            });
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query: parsed.query,
            purpose: Purpose::Find { projection },
        })
    }

    fn count(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = CountCommand::parse(invocation, command)?;
        let fast = parsed.is_fast();
        Ok(Self {
            namespace: parsed.namespace,
            query: parsed.query,
            purpose: Purpose::Count { fast },
        })
    }

    fn distinct(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = DistinctCommand::parse(invocation, command)?;
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query: parsed.query,
            purpose: Purpose::Distinct { path: parsed.path },
        })
    }

    /// The one statement of an `update` or `delete`.
    fn write(invocation: &Invocation<'_>, command: Doc<'_>, name: &str) -> Result<Self, Error> {
        let list = match name {
            "update" => "updates",
            _ => "deletes",
        };
        let statements = command.get_array(list).unwrap_or(Array::EMPTY);
        let mut statements = statements.iter();
        let (Some(ValueRef::Document(statement)), None) = (statements.next(), statements.next())
        else {
            return Err(Error::new(
                Code::INVALID_LENGTH,
                "explained write batches must be of size 1",
            ));
        };
        let mut filter = Doc::EMPTY;
        let mut wanted_hint = None;
        let (mut multi, mut upsert) = (false, false);
        let (mut change, mut constants, mut array_filters) = (None, None, None);
        for field in fields(name, statement) {
            match field.name() {
                "q" => filter = field.doc()?,
                "u" => change = Some(field.value()),
                "c" => constants = field.optional_doc()?,
                "arrayFilters" if !field.is_null() => array_filters = Some(field.array()?),
                "hint" => wanted_hint = hint(&field)?,
                "multi" => multi = field.loose_boolean()?,
                "upsert" => upsert = field.loose_boolean()?,
                "limit" => multi = field.integer()? == 0,
                _ => {}
            }
        }
        let mut context = let_variables(invocation, command.get_doc("let"))?;
        for element in constants.iter().flat_map(|constants| constants.iter()) {
            let value = element.value().to_owned();
            context.variables.push((element.key().to_owned(), value));
        }
        let mut query = Query::new(Filter::parse(filter, &context)?.optimized());
        query.hint = wanted_hint;
        if !multi {
            query.limit = Some(1);
        }
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query,
            purpose: match name {
                "update" => {
                    let change = change.ok_or_else(|| missing("update.updates", "u"))?;
                    Purpose::Update {
                        multi,
                        upsert,
                        change: Change {
                            update: Update::parse(change, array_filters, &context)?,
                            context,
                        },
                    }
                }
                _ => Purpose::Delete { multi },
            },
        })
    }

    fn find_and_modify(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let context = let_variables(invocation, command.get_doc("let"))?;
        let filter = command.get_doc("query").unwrap_or(Doc::EMPTY);
        let mut query = Query::new(Filter::parse(filter, &context)?.optimized());
        query.limit = Some(1);
        for field in fields("findAndModify", command) {
            if is_generic(field.name()) {
                continue;
            }
            match field.name() {
                "hint" => query.hint = hint(&field)?,
                "sort" => {
                    if let Some(sort) = field.optional_doc()? {
                        query.sort = sort_pattern(sort, &mut query.hint)?;
                    }
                }
                _ => {}
            }
        }
        let truthy = |name| command.get(name).is_some_and(model::number::is_truthy);
        let change = match command.get("update") {
            Some(change) if !truthy("remove") => Some(Change {
                update: Update::parse(change, command.get_array("arrayFilters"), &context)?,
                context,
            }),
            _ => None,
        };
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query,
            purpose: Purpose::FindAndModify {
                change,
                upsert: truthy("upsert"),
            },
        })
    }

    /// The search that a pipeline begins with, and the stages behind it.
    fn aggregate(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
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
                    stages: shown(&steps, database),
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
                rest: shown(&rest, database),
                projection,
            },
        })
    }

    fn run(self, invocation: &Invocation<'_>, command: Doc<'_>, verbosity: Verbosity) -> Answer {
        let shard = invocation.shard;
        let filter = self.query.filter.clone();
        let started = Instant::now();
        let mut report = Report {
            namespace: self.namespace.clone(),
            parsed: Some(filter.normalized().to_document()),
            winning: Stage::new("EOF"),
            rejected: Vec::new(),
            returned: 0,
            keys_examined: 0,
            documents_examined: 0,
            elapsed_ms: 0,
            hashes: None,
            trials: Vec::new(),
        };
        if let Purpose::Made { .. } = self.purpose {
            return report.reply(invocation, command, verbosity, &self.purpose);
        }
        match shard.readable(&self.namespace) {
            None => {
                if let Purpose::Count { .. } = self.purpose {
                    report.winning = Stage::new("COUNT")
                        .done(DocWriter::new().with("nCounted", 0).with("nSkipped", 0))
                        .over(Stage::new("EOF"));
                }
            }
            Some(collection)
                if matches!(self.purpose, Purpose::Count { fast: true })
                    && !collection.may_hold_orphans() =>
            {
                let all = shard.store.collection_counter(collection.id).items;
                let counted = all
                    .saturating_sub(self.query.skip)
                    .min(self.query.limit.unwrap_or(u64::MAX));
                report.parsed = None;
                report.winning = Stage::new("RECORD_STORE_FAST_COUNT").done(
                    DocWriter::new()
                        .with("nCounted", i32::try_from(counted).unwrap_or(i32::MAX))
                        .with("nSkipped", self.query.skip.min(all) as i32),
                );
            }
            Some(collection) => {
                if let Purpose::Distinct { path } = &self.purpose
                    && let Some(scan) = DistinctScan::find(&collection, &self.query, path)
                {
                    let mut values = 0;
                    if verbosity > Verbosity::QueryPlanner {
                        values = tokio::task::block_in_place(|| {
                            scan.run(shard, invocation.operation, |_| Ok(()))
                        })?;
                    }
                    report.winning = distinct_stages(&scan, values);
                    report.returned = values;
                    report.keys_examined = values;
                    return report.reply(invocation, command, verbosity, &self.purpose);
                }
                let query = Query {
                    plan_anew: true,
                    ..self.query.clone()
                };
                let mut execution =
                    Execution::new(shard, &collection, query, invocation.operation)?;
                report.hashes = Some(query_hashes(&self.query, &collection.indexes));
                let mut would_modify = 0;
                if verbosity > Verbosity::QueryPlanner {
                    would_modify = tokio::task::block_in_place(|| {
                        self.run_to_end(&mut execution, invocation)
                    })?;
                }
                self.describe(&execution, &mut report, would_modify);
                if verbosity == Verbosity::AllPlansExecution {
                    let tried =
                        tokio::task::block_in_place(|| trials(&execution, invocation.operation))?;
                    report.trials = tried.iter().map(|tried| self.trial(tried)).collect();
                }
            }
        }
        report.elapsed_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
        report.reply(invocation, command, verbosity, &self.purpose)
    }

    /// Runs the search, and says how many of its documents would be changed.
    fn run_to_end(
        &self,
        execution: &mut Execution,
        invocation: &Invocation<'_>,
    ) -> Result<u64, Error> {
        let change = match &self.purpose {
            Purpose::Update { change, .. } => Some(change),
            Purpose::FindAndModify { change, .. } => change.as_ref(),
            Purpose::Find { .. }
            | Purpose::Count { .. }
            | Purpose::Distinct { .. }
            | Purpose::Delete { .. }
            | Purpose::Aggregate { .. }
            | Purpose::Made { .. } => None,
        };
        let mut modified = 0;
        let mut budget = Budget::unlimited();
        while let Step::Found(found) = execution.next(invocation.operation, &mut budget)? {
            if let Some(change) = change
                && change.modifies(&self.query.filter, found.document())?
            {
                modified += 1;
            }
        }
        execution.suspend();
        Ok(modified)
    }

    fn shape(&self, execution: &Execution) -> Shape<'_> {
        match &self.purpose {
            Purpose::Find {
                projection: Some((spec, simple)),
            } => Shape::Projected(spec.as_doc(), *simple),
            Purpose::Aggregate {
                projection: Some(spec),
                ..
            } => Shape::Projected(spec.as_doc(), true),
            Purpose::Count { .. } => Shape::Counted,
            // MongoDB projects where some index might have covered.
            Purpose::Distinct { path } => {
                let indexed = execution
                    .collection()
                    .indexes
                    .iter()
                    .any(|index| index.definition.fields.iter().any(|f| f.path == *path));
                match indexed {
                    true => Shape::Projected(Doc::EMPTY, true),
                    false => Shape::Whole,
                }
            }
            Purpose::Find { projection: None }
            | Purpose::Update { .. }
            | Purpose::Delete { .. }
            | Purpose::FindAndModify { .. }
            | Purpose::Aggregate {
                projection: None, ..
            }
            | Purpose::Made { .. } => Shape::Whole,
        }
    }

    fn trial(&self, tried: &Execution) -> Trial {
        let statistics = &tried.statistics;
        Trial {
            stage: stages(tried, self.shape(tried)),
            returned: statistics.returned,
            keys_examined: statistics.keys_examined,
            documents_examined: statistics.documents_examined,
        }
    }

    fn describe(&self, execution: &Execution, report: &mut Report, would_modify: u64) {
        let shape = self.shape(execution);
        let statistics = &execution.statistics;
        report.winning = self.wrap(stages(execution, shape), statistics.returned, would_modify);
        report.rejected = rejected(execution, shape)
            .into_iter()
            .map(|stage| self.wrap(stage, 0, 0))
            .collect();
        report.returned = match self.purpose {
            Purpose::Find { .. }
            | Purpose::Distinct { .. }
            | Purpose::FindAndModify { .. }
            | Purpose::Aggregate { .. }
            | Purpose::Made { .. } => statistics.returned,
            Purpose::Count { .. } | Purpose::Update { .. } | Purpose::Delete { .. } => 0,
        };
        report.keys_examined = statistics.keys_examined;
        report.documents_examined = statistics.documents_examined;
    }

    /// The stage that changes what the search finds.
    fn wrap(&self, search: Stage, found: u64, modified: u64) -> Stage {
        let narrow = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
        let search = match (&self.purpose, search) {
            // A single change stops by itself: its limit is no stage.
            (
                Purpose::Update { multi: false, .. }
                | Purpose::Delete { multi: false }
                | Purpose::FindAndModify { .. },
                stage,
            ) => stage.without_limit(),
            (_, stage) => stage,
        };
        let works = search.works() + 1;
        match &self.purpose {
            Purpose::Update { upsert, .. }
            | Purpose::FindAndModify {
                change: Some(_),
                upsert,
            } => Stage::new("UPDATE")
                .done(
                    DocWriter::new()
                        .with("nMatched", narrow(found))
                        .with("nWouldModify", narrow(modified))
                        .with("nWouldUpsert", i32::from(*upsert && found == 0)),
                )
                .returning(0, works)
                .over(search),
            Purpose::Delete { .. } | Purpose::FindAndModify { change: None, .. } => {
                Stage::new("DELETE")
                    .done(DocWriter::new().with("nWouldDelete", narrow(found)))
                    .returning(0, works)
                    .over(search)
            }
            Purpose::Find { .. }
            | Purpose::Count { .. }
            | Purpose::Distinct { .. }
            | Purpose::Aggregate { .. }
            | Purpose::Made { .. } => search,
        }
    }
}

/// Stages as MongoDB shows them, which is not always as they were written.
fn shown(steps: &[query::pipeline::Step], database: &str) -> Vec<DocBuf> {
    let mut out: Vec<DocBuf> = Vec::new();
    let mut sorted_limit = None;
    for step in steps {
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
            _ => out.push(step.spec.clone()),
        }
    }
    out
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
