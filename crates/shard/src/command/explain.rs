//! `explain`: which plan a command would run with, and what running it does.
//!
//! A write is explained as the search it begins with; nothing is changed. What
//! it would change is counted as what it finds.

use super::arguments::{arguments, fields, is_generic};
use super::count::CountCommand;
use super::distinct::DistinctCommand;
use super::find::{FindCommand, hint, sort_pattern};
use super::{Answer, Invocation, diagnostic, finish, let_variables};
use crate::read::stages::{Shape, Stage, distinct_stages, rejected, stages};
use crate::read::{Budget, DistinctScan, Execution, Query, Step};
use model::bson::{Array, Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error, Namespace};
use query::filter::Filter;
use query::path::Path;
use std::time::Instant;
use wire::Reply;

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
        remove: bool,
        upsert: bool,
    },
    Update {
        multi: bool,
        upsert: bool,
    },
    Delete {
        multi: bool,
    },
    /// The stages behind the search.
    Aggregate {
        rest: Vec<DocBuf>,
    },
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
        for field in fields(name, statement) {
            match field.name() {
                "q" => filter = field.doc()?,
                "hint" => wanted_hint = hint(&field)?,
                "multi" => multi = field.loose_boolean()?,
                "upsert" => upsert = field.loose_boolean()?,
                "limit" => multi = field.integer()? == 0,
                _ => {}
            }
        }
        let context = let_variables(invocation, command.get_doc("let"))?;
        let mut query = Query::new(Filter::parse(filter, &context)?.optimized());
        query.hint = wanted_hint;
        if !multi {
            query.limit = Some(1);
        }
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query,
            purpose: match name {
                "update" => Purpose::Update { multi, upsert },
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
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query,
            purpose: Purpose::FindAndModify {
                remove: truthy("remove"),
                upsert: truthy("upsert"),
            },
        })
    }

    /// The search that a pipeline begins with, and the stages behind it.
    fn aggregate(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let context = let_variables(invocation, command.get_doc("let"))?;
        let mut query = Query::new(Filter::everything());
        if let Some(wanted) = command.get("hint") {
            query.hint = match wanted {
                ValueRef::Document(doc) if doc.is_empty() => None,
                value => Some(value.to_owned()),
            };
        }
        let mut rest = Vec::new();
        let stages = command.get_array("pipeline").unwrap_or(Array::EMPTY);
        for stage in stages.iter() {
            let ValueRef::Document(stage) = stage else {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    "Each element of the 'pipeline' array must be an object",
                ));
            };
            let operation = stage.first();
            let at_start = rest.is_empty();
            match operation.map(|first| (first.key(), first.value())) {
                Some(("$match", ValueRef::Document(filter)))
                    if at_start && query.sort.is_none() && query.limit.is_none() =>
                {
                    let parsed = Filter::parse(filter, &context)?;
                    let both = vec![query.filter.clone(), parsed];
                    query.filter = Filter::And(both).optimized();
                }
                Some(("$sort", ValueRef::Document(sort)))
                    if at_start && query.sort.is_none() && query.limit.is_none() =>
                {
                    query.sort = sort_pattern(sort, &mut query.hint)?;
                }
                Some(("$limit", limit)) if at_start && query.limit.is_none() => {
                    let number = model::number::Number::of(limit)
                        .and_then(|number| number.to_i64_exact())
                        .and_then(|number| u64::try_from(number).ok());
                    query.limit = number;
                }
                _ => rest.push(stage.to_owned()),
            }
        }
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query,
            purpose: Purpose::Aggregate { rest },
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
        };
        match shard.catalog.get(&self.namespace) {
            None => {
                if let Purpose::Count { .. } = self.purpose {
                    report.winning = Stage::new("COUNT")
                        .done(DocWriter::new().with("nCounted", 0).with("nSkipped", 0))
                        .over(Stage::new("EOF"));
                }
            }
            Some(collection) if matches!(self.purpose, Purpose::Count { fast: true }) => {
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
                let mut execution =
                    Execution::new(shard, &collection, self.query.clone(), invocation.operation)?;
                if verbosity > Verbosity::QueryPlanner {
                    tokio::task::block_in_place(|| run_to_end(&mut execution, invocation))?;
                }
                self.describe(&execution, &mut report);
            }
        }
        report.elapsed_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
        report.reply(invocation, command, verbosity, &self.purpose)
    }

    fn describe(&self, execution: &Execution, report: &mut Report) {
        let shape = match &self.purpose {
            Purpose::Find {
                projection: Some((spec, simple)),
            } => Shape::Projected(spec.as_doc(), *simple),
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
            | Purpose::Aggregate { .. } => Shape::Whole,
        };
        let statistics = &execution.statistics;
        report.winning = self.wrap(stages(execution, shape), statistics.returned);
        report.rejected = rejected(execution, shape)
            .into_iter()
            .map(|stage| self.wrap(stage, 0))
            .collect();
        report.returned = match self.purpose {
            Purpose::Find { .. }
            | Purpose::Distinct { .. }
            | Purpose::FindAndModify { .. }
            | Purpose::Aggregate { .. } => statistics.returned,
            Purpose::Count { .. } | Purpose::Update { .. } | Purpose::Delete { .. } => 0,
        };
        report.keys_examined = statistics.keys_examined;
        report.documents_examined = statistics.documents_examined;
    }

    /// The stage that changes what the search finds.
    fn wrap(&self, search: Stage, found: u64) -> Stage {
        let count = i32::try_from(found).unwrap_or(i32::MAX);
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
        match self.purpose {
            Purpose::Update { upsert, .. }
            | Purpose::FindAndModify {
                remove: false,
                upsert,
            } => Stage::new("UPDATE")
                .done(
                    DocWriter::new()
                        .with("nMatched", count)
                        .with("nWouldModify", count)
                        .with("nWouldUpsert", i32::from(upsert && found == 0)),
                )
                .returning(0, works)
                .over(search),
            Purpose::Delete { .. } | Purpose::FindAndModify { remove: true, .. } => {
                Stage::new("DELETE")
                    .done(DocWriter::new().with("nWouldDelete", count))
                    .returning(0, works)
                    .over(search)
            }
            Purpose::Find { .. }
            | Purpose::Count { .. }
            | Purpose::Distinct { .. }
            | Purpose::Aggregate { .. } => search,
        }
    }
}

fn run_to_end(execution: &mut Execution, invocation: &Invocation<'_>) -> Result<(), Error> {
    let mut budget = Budget::unlimited();
    while let Step::Found(_) = execution.next(invocation.operation, &mut budget)? {}
    execution.suspend();
    Ok(())
}

/// What is told.
struct Report {
    namespace: Namespace,
    parsed: Option<DocBuf>,
    winning: Stage,
    rejected: Vec<Stage>,
    returned: u64,
    keys_examined: u64,
    documents_examined: u64,
    elapsed_ms: i32,
}

impl Report {
    fn reply(
        &self,
        invocation: &Invocation<'_>,
        command: Doc<'_>,
        verbosity: Verbosity,
        purpose: &Purpose,
    ) -> Answer {
        let mut out = Reply::writer();
        out.append("explainVersion", "1");
        match purpose {
            Purpose::Aggregate { rest } if !rest.is_empty() => {
                out.begin_array("stages");
                out.push_document().begin_document("$cursor");
                self.write(&mut out, verbosity);
                out.end().end();
                for stage in rest {
                    out.push(stage);
                }
                out.end();
            }
            _ => self.write(&mut out, verbosity),
        }
        out.begin_document("command");
        for element in command.iter() {
            out.append_element(&element);
        }
        if command.get("$db").is_none() {
            out.append("$db", invocation.request.database());
        }
        out.end();
        let port = invocation
            .connection
            .local()
            .map_or(0, |local| local.port());
        out.begin_document("serverInfo")
            .append("host", invocation.shard.host.name.as_str())
            .append("port", i32::from(port))
            .append("version", diagnostic::COMPATIBLE_VERSION)
            .append("gitVersion", "")
            .end();
        finish(out)
    }

    fn write(&self, out: &mut DocWriter, verbosity: Verbosity) {
        out.begin_document("queryPlanner")
            .append("namespace", self.namespace.as_str())
            .append("indexFilterSet", false);
        if let Some(parsed) = &self.parsed {
            out.append("parsedQuery", parsed);
        }
        out.append("maxIndexedOrSolutionsReached", false)
            .append("maxIndexedAndSolutionsReached", false)
            .append("maxScansToExplodeReached", false)
            .begin_document("winningPlan");
        self.winning.write(out, false);
        out.end().begin_array("rejectedPlans");
        for stage in &self.rejected {
            out.push_document();
            stage.write(out, false);
            out.end();
        }
        out.end().end();
        if verbosity == Verbosity::QueryPlanner {
            return;
        }
        let narrow = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
        out.begin_document("executionStats")
            .append("executionSuccess", true)
            .append("nReturned", narrow(self.returned))
            .append("executionTimeMillis", self.elapsed_ms)
            .append("totalKeysExamined", narrow(self.keys_examined))
            .append("totalDocsExamined", narrow(self.documents_examined))
            .begin_document("executionStages");
        self.winning.write(out, true);
        out.end();
        if verbosity == Verbosity::AllPlansExecution {
            out.begin_array("allPlansExecution").end();
        }
        out.end();
    }
}
