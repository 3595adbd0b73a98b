//! `explain`: which plan a command would run with, and what running it does.
//!
//! A write is explained as the search it begins with; nothing is changed. What
//! it would change is found out on the documents that the search yields.
//!
//! | file | what |
//! | --- | --- |
//! | `searches.rs` | the search of each command, from its arguments |
//! | `pipelines.rs` | the search that a pipeline begins with, and its other stages |
//! | `expressions.rs` | expressions as they are shown |
//! | `counting.rs` | what each stage of a pipeline gives |
//! | `report.rs` | the reply |
//!
//! Left out: what a pipeline's stages took of memory and disk.

mod counting;
mod expressions;
mod pipelines;
mod report;
mod searches;

use super::arguments::arguments;
use super::{Answer, Invocation, diagnostic};
use crate::read::stages::{Shape, Stage, distinct_stages, rejected, stages};
use crate::read::{Budget, DistinctScan, Execution, Query, Step, query_hashes, trials};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error, Namespace};
use parking_lot::Mutex;
use query::context::QueryContext;
use query::filter::Filter;
use query::path::Path;
use query::pipeline::Step as PipelineStep;
use query::update::{Update, UpdateMoment};
use report::{Report, Trial};
use std::sync::Arc;
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
    searches::check_envelope(invocation, command)?;
    let is_pipeline = command
        .first()
        .is_some_and(|first| first.key() == "aggregate");
    if is_pipeline {
        super::aggregate::check_explained(command)?;
    }
    let runs = command.get("pipeline").is_some() && command.get("explain").is_none();
    if is_pipeline && runs && command.get("cursor").is_none() {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
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
        "find" if !matches!(first.value(), ValueRef::String(_)) => {
            return Err(Error::new(
                Code::INVALID_NAMESPACE,
                format!(
                    "collection name has invalid type {}",
                    first.value().kind().name()
                ),
            ));
        }
        "find" => Explained::find(invocation, command)?,
        "count" => Explained::count(invocation, command)?,
        "distinct" => Explained::distinct(invocation, command)?,
        "update" | "delete" => Explained::write(invocation, command, name)?,
        "findAndModify" | "findandmodify" => Explained::find_and_modify(invocation, command)?,
        "aggregate" => Explained::aggregate(invocation, command)?,
        known if diagnostic::is_command(known) => {
            return Err(searches::not_explained(invocation, command, name));
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
        /// Which fields of it are returned, if not all.
        fields: Option<DocBuf>,
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
        rest: Vec<ShownStage>,
        steps: Vec<PipelineStep>,
        projection: Option<DocBuf>,
    },
    /// A pipeline that makes its own documents.
    Made {
        stages: Vec<ShownStage>,
    },
}

/// A stage as it is shown, and which step of the pipeline it stands for.
struct ShownStage {
    spec: DocBuf,
    step: usize,
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

impl Explained {
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
            stages_returned: Vec::new(),
        };
        if let Purpose::Made { .. } = self.purpose {
            return report.reply(invocation, command, verbosity, &self.purpose);
        }
        match shard.readable(&self.namespace) {
            None => {
                self.check_missing(invocation)?;
                if !matches!(
                    self.purpose,
                    Purpose::Find { .. } | Purpose::Distinct { .. } | Purpose::Aggregate { .. }
                ) {
                    report.parsed = None;
                }
                if let Purpose::Count { .. } = self.purpose {
                    report.winning = Stage::new("COUNT")
                        .done(DocWriter::new().with("nCounted", 0).with("nSkipped", 0))
                        .over(Stage::new("EOF"));
                }
                if verbosity > Verbosity::QueryPlanner {
                    report.stages_returned = self.count_stages(invocation, None)?;
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
                    if self.has_stages() {
                        let searched = Arc::new(Mutex::new(execution));
                        report.stages_returned =
                            self.count_stages(invocation, Some(searched.clone()))?;
                        execution = Arc::into_inner(searched)
                            .expect("the stages that ran over it are gone")
                            .into_inner();
                    } else {
                        would_modify = tokio::task::block_in_place(|| {
                            self.run_to_end(&mut execution, invocation)
                        })?;
                    }
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

    /// A change of one document is not explained where there is not even a database.
    fn check_missing(&self, invocation: &Invocation<'_>) -> Result<(), Error> {
        let database = self.namespace.database();
        let catalog = invocation.shard.catalog.current();
        if let Purpose::FindAndModify { .. } = self.purpose
            && catalog.database(database).next().is_none()
        {
            return Err(Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("database {database} does not exist"),
            ));
        }
        Ok(())
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
            Purpose::Find { .. } if self.query.return_key => Shape::Keyed,
            Purpose::FindAndModify { .. } => Shape::Keyed,
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
            (Purpose::Update { multi: false, .. } | Purpose::Delete { multi: false }, stage) => {
                stage.without_limit()
            }
            (Purpose::FindAndModify { .. }, stage) if self.query.sort.is_none() => {
                stage.without_limit()
            }
            (_, stage) => stage,
        };
        let works = search.works() + 1;
        // What is changed is also returned by the one that says so.
        let returned = match &self.purpose {
            Purpose::FindAndModify { .. } => found,
            _ => 0,
        };
        let changed = match &self.purpose {
            Purpose::Update { upsert, .. }
            | Purpose::FindAndModify {
                change: Some(_),
                upsert,
                ..
            } => Stage::new("UPDATE")
                .done(
                    DocWriter::new()
                        .with("nMatched", narrow(found))
                        .with("nWouldModify", narrow(modified))
                        .with("nWouldUpsert", i32::from(*upsert && found == 0)),
                )
                .returning(returned, works)
                .over(search),
            Purpose::Delete { .. } | Purpose::FindAndModify { change: None, .. } => {
                Stage::new("DELETE")
                    .done(DocWriter::new().with("nWouldDelete", narrow(found)))
                    .returning(returned, works)
                    .over(search)
            }
            Purpose::Find { .. } if self.query.return_key => {
                let (returned, works) = (found, search.works());
                Stage::new("RETURN_KEY")
                    .returning(returned, works)
                    .over(search)
            }
            Purpose::Find { .. }
            | Purpose::Count { .. }
            | Purpose::Distinct { .. }
            | Purpose::Aggregate { .. }
            | Purpose::Made { .. } => search,
        };
        match &self.purpose {
            Purpose::FindAndModify {
                fields: Some(fields),
                ..
            } => Stage::new("PROJECTION_DEFAULT")
                .about(DocWriter::new().with("transformBy", fields))
                .returning(found, changed.works())
                .over(changed),
            _ => changed,
        }
    }
}
