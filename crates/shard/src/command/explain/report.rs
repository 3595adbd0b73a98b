//! What explain answers: the chosen plan, the others, and what running did.
//!
//! A pipeline of which the scan took over everything looks like a search; one
//! with stages left is a `$cursor` with these behind it.

use super::{Purpose, ShownStage, Verbosity};
use crate::command::{Answer, Invocation, diagnostic, finish};
use crate::read::stages::Stage;
use model::Namespace;
use model::bson::{Doc, DocBuf, DocWriter};
use wire::Reply;

/// What one candidate did in its trial.
pub(super) struct Trial {
    pub(super) stage: Stage,
    pub(super) returned: u64,
    pub(super) keys_examined: u64,
    pub(super) documents_examined: u64,
}

/// What is told.
pub(super) struct Report {
    pub(super) namespace: Namespace,
    pub(super) parsed: Option<DocBuf>,
    pub(super) winning: Stage,
    pub(super) rejected: Vec<Stage>,
    pub(super) returned: u64,
    pub(super) keys_examined: u64,
    pub(super) documents_examined: u64,
    pub(super) elapsed_ms: i32,
    /// Of the query, and of the query with these indexes.
    pub(super) hashes: Option<(String, String)>,
    pub(super) trials: Vec<Trial>,
    /// What each step of a pipeline gave, if it ran.
    pub(super) stages_returned: Vec<u64>,
}

impl Report {
    pub(super) fn reply(
        &self,
        invocation: &Invocation<'_>,
        command: Doc<'_>,
        verbosity: Verbosity,
        purpose: &Purpose,
    ) -> Answer {
        let mut out = Reply::writer();
        out.append("explainVersion", "1");
        match purpose {
            Purpose::Aggregate { rest, .. } if !rest.is_empty() => {
                out.begin_array("stages");
                out.push_document().begin_document("$cursor");
                self.write(&mut out, verbosity, false);
                out.end();
                if verbosity > Verbosity::QueryPlanner {
                    out.append("nReturned", self.returned as i64)
                        .append("executionTimeMillisEstimate", i64::from(self.elapsed_ms));
                }
                out.end();
                self.write_stages(&mut out, rest);
                out.end();
            }
            Purpose::Made { stages } => {
                out.begin_array("stages");
                self.write_stages(&mut out, stages);
                out.end();
            }
            Purpose::Aggregate { .. } => self.write(&mut out, verbosity, true),
            Purpose::Find { .. }
            | Purpose::Count { .. }
            | Purpose::Distinct { .. }
            | Purpose::FindAndModify { .. }
            | Purpose::Update { .. }
            | Purpose::Delete { .. } => self.write(&mut out, verbosity, false),
        }
        out.begin_document("command");
        for element in command.iter() {
            out.append_element(&element);
        }
        if command.get("$db").is_none() {
            out.append("$db", invocation.request.database());
        }
        out.end();
        let port = invocation.shard.port_of(invocation.connection);
        out.begin_document("serverInfo")
            .append("host", invocation.shard.host.name.as_str())
            .append("port", i32::from(port))
            .append("version", diagnostic::COMPATIBLE_VERSION)
            .append("gitVersion", "")
            .end();
        finish(out)
    }

    fn write_stages(&self, out: &mut DocWriter, stages: &[ShownStage]) {
        for stage in stages {
            out.push_document();
            for element in stage.spec.iter() {
                out.append_element(&element);
            }
            if let Some(returned) = self.stages_returned.get(stage.step) {
                out.append("nReturned", *returned as i64)
                    .append("executionTimeMillisEstimate", i64::from(self.elapsed_ms));
            }
            out.end();
        }
    }

    fn write(&self, out: &mut DocWriter, verbosity: Verbosity, optimized: bool) {
        out.begin_document("queryPlanner")
            .append("namespace", self.namespace.as_str())
            .append("indexFilterSet", false);
        if let Some(parsed) = &self.parsed {
            out.append("parsedQuery", parsed);
        }
        if let Some((query, with_indexes)) = &self.hashes {
            out.append("queryHash", query)
                .append("planCacheKey", with_indexes);
        }
        if optimized {
            out.append("optimizedPipeline", true);
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
            out.begin_array("allPlansExecution");
            for trial in &self.trials {
                out.push_document()
                    .append("nReturned", narrow(trial.returned))
                    .append("executionTimeMillisEstimate", 0)
                    .append("totalKeysExamined", narrow(trial.keys_examined))
                    .append("totalDocsExamined", narrow(trial.documents_examined))
                    .begin_document("executionStages");
                trial.stage.write(out, true);
                out.end().end();
            }
            out.end();
        }
        out.end();
    }
}
