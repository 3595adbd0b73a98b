//! Plans and what they did, as the tree of stages that explain shows.
//!
//! Stages carry MongoDB's names. Numbers that TernDB does not count (`works`,
//! `needTime`, the states of yielding) are derived from those it does.

use super::distinct::DistinctScan;
use super::execution::{BranchStatistics, Execution, Statistics};
use super::planning::Planned;
use crate::catalog::Index;
use model::bson::{Doc, DocBuf, DocWriter};
use model::key::Direction;
use query::filter::{Filter, Predicate};
use query::plan::{Access, IndexAccess, Plan, ScanDirection, Union, bounds_document};
use query::sort::SortPattern;
use std::sync::Arc;

/// One stage.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    name: &'static str,
    filter: Option<Filter>,
    returned: u64,
    works: u64,
    /// Fields that say what the stage does.
    about: DocBuf,
    /// Fields that say what it did.
    done: DocBuf,
    inputs: Vec<Stage>,
}

impl Stage {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            filter: None,
            returned: 0,
            works: 1,
            about: DocBuf::new(),
            done: DocBuf::new(),
            inputs: Vec::new(),
        }
    }

    pub(crate) fn about(mut self, about: DocWriter) -> Self {
        self.about = about.finish();
        self
    }

    pub(crate) fn done(mut self, done: DocWriter) -> Self {
        self.done = done.finish();
        self
    }

    fn filter(mut self, filter: Option<Filter>) -> Self {
        self.filter = filter;
        self
    }

    pub(crate) fn returning(mut self, returned: u64, works: u64) -> Self {
        self.returned = returned;
        self.works = works.max(returned);
        self
    }

    pub(crate) fn over(mut self, input: Stage) -> Self {
        self.inputs.push(input);
        self
    }

    /// The stage below, if this one only limits it.
    pub(crate) fn without_limit(mut self) -> Self {
        match (self.name, self.inputs.pop()) {
            ("LIMIT", Some(input)) => input,
            (_, input) => {
                self.inputs.extend(input);
                self
            }
        }
    }

    pub(crate) fn works(&self) -> u64 {
        self.works
    }

    /// Writes the stage into the innermost open document.
    pub(crate) fn write(&self, out: &mut DocWriter, with_statistics: bool) {
        out.append("stage", self.name);
        if let Some(filter) = &self.filter {
            let filter = match self.name {
                "FETCH" => filter.clone().normalized_by_path(),
                _ => filter.clone().normalized(),
            };
            out.append("filter", &filter.to_document());
        }
        if with_statistics {
            let need_time = self.works.saturating_sub(self.returned + 1);
            out.append("nReturned", narrow(self.returned))
                .append("executionTimeMillisEstimate", 0)
                .append("works", narrow(self.works))
                .append("advanced", narrow(self.returned))
                .append("needTime", narrow(need_time))
                .append("needYield", 0)
                .append("saveState", 0)
                .append("restoreState", 0)
                .append("isEOF", 1);
        }
        copy(self.about.as_doc(), out);
        if with_statistics {
            copy(self.done.as_doc(), out);
        }
        match &self.inputs[..] {
            [] => {}
            [only] if !matches!(self.name, "OR" | "SORT_MERGE") => {
                out.begin_document("inputStage");
                only.write(out, with_statistics);
                out.end();
            }
            several => {
                out.begin_array("inputStages");
                for input in several {
                    out.push_document();
                    input.write(out, with_statistics);
                    out.end();
                }
                out.end();
            }
        }
    }
}

fn copy(from: Doc<'_>, out: &mut DocWriter) {
    for element in from.iter() {
        out.append_element(&element);
    }
}

fn narrow(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// How the documents are wanted in the end.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'a> {
    Whole,
    /// Whole, and with what the search knows of them besides.
    Keyed,
    /// A projection: its specification, and whether it only includes fields.
    Projected(Doc<'a>, bool),
    /// Only their number.
    Counted,
}

/// The stages of an execution.
pub(crate) fn stages(execution: &Execution, shape: Shape<'_>) -> Stage {
    tree(
        execution,
        &execution.planned().plan,
        &execution.statistics,
        shape,
    )
}

/// The stages of the plans that were not chosen.
pub(crate) fn rejected(execution: &Execution, shape: Shape<'_>) -> Vec<Stage> {
    execution
        .planned()
        .rejected
        .iter()
        .map(|plan| {
            let branches = match &plan.access {
                Access::Union(union) => union.branches.len(),
                _ => 1,
            };
            let statistics = Statistics {
                branches: vec![BranchStatistics::default(); branches],
                ..Statistics::default()
            };
            tree(execution, plan, &statistics, shape)
        })
        .collect()
}

fn tree(execution: &Execution, plan: &Plan, statistics: &Statistics, shape: Shape<'_>) -> Stage {
    let query = execution.query();
    let counted = matches!(shape, Shape::Counted);
    let mut stage = match execution.collection().is_sharded() {
        false => access_stage(execution.planned(), plan, statistics, counted),
        true => sharding_filter(execution.planned(), plan, statistics, counted),
    };
    let covered = matches!(&plan.access, Access::Index(access) if access.covered);
    let matched = statistics.matched;
    if plan.needs_sort
        && let Some(pattern) = &query.sort
    {
        let is_simple = !covered && !matches!(shape, Shape::Keyed);
        stage = sort_stage(pattern, execution, statistics, is_simple).over(stage);
    }
    if query.skip > 0 && !counted {
        let below_fetch = stage.name == "FETCH" && stage.filter.is_none() && !plan.needs_sort;
        let skip = |input: Stage| {
            let returned = input.returned.saturating_sub(query.skip);
            let works = input.works;
            Stage::new("SKIP")
                .about(DocWriter::new().with("skipAmount", query.skip as i64))
                .returning(returned, works)
                .over(input)
        };
        stage = match (below_fetch, stage.inputs.pop()) {
            (true, Some(input)) => {
                stage.returned = stage.returned.saturating_sub(query.skip);
                stage.over(skip(input))
            }
            (_, input) => {
                stage.inputs.extend(input);
                skip(stage)
            }
        };
    }
    // A projection that keeps what is sorted by makes the sort smaller.
    let mut sort = None;
    if let (Shape::Projected(spec, simple), Some(pattern)) = (shape, &query.sort)
        && plan.needs_sort
        && query.limit.is_none()
        && query.skip == 0
        && keeps_sort_fields(spec, simple, pattern)
        && let Some(input) = stage.inputs.pop()
    {
        sort = Some(stage);
        stage = input;
    }
    if let Shape::Projected(spec, simple) = shape {
        let name = match (covered, simple) {
            (true, _) => "PROJECTION_COVERED",
            (false, true) => "PROJECTION_SIMPLE",
            (false, false) => "PROJECTION_DEFAULT",
        };
        let works = stage.works;
        stage = Stage::new(name)
            .about(DocWriter::new().with("transformBy", spec))
            .returning(statistics.returned, works)
            .over(stage);
    }
    if let Some(sort) = sort {
        stage = sort.over(stage);
    }
    let by_id = matches!(plan.access, Access::Id(_));
    if let (false, Some(limit), false, false) = (by_id, query.limit, plan.needs_sort, counted) {
        stage = Stage::new("LIMIT")
            .about(DocWriter::new().with("limitAmount", limit as i64))
            .returning(statistics.returned, statistics.returned + 1)
            .over(stage);
    }
    let planned_by_branch = matches!(query.filter, Filter::Or(_))
        && query.hint.is_none()
        && query.min.is_none()
        && query.max.is_none();
    if planned_by_branch {
        let (returned, works) = (stage.returned, stage.works);
        stage = Stage::new("SUBPLAN").returning(returned, works).over(stage);
    }
    if counted {
        let skipped = query.skip.min(matched);
        let works = stage.works;
        stage = Stage::new("COUNT")
            .done(
                DocWriter::new()
                    .with("nCounted", narrow(statistics.returned))
                    .with("nSkipped", narrow(skipped)),
            )
            .returning(0, works)
            .over(stage);
    }
    stage
}

/// Lets through what belongs to this shard.
fn sharding_filter(
    planned: &Planned,
    plan: &Plan,
    statistics: &Statistics,
    counted: bool,
) -> Stage {
    let all = Statistics {
        matched: statistics.matched + statistics.hidden,
        ..statistics.clone()
    };
    let input = access_stage(planned, plan, &all, counted);
    let works = input.works;
    Stage::new("SHARDING_FILTER")
        .done(DocWriter::new().with("chunkSkips", narrow(statistics.hidden)))
        .returning(statistics.matched, works)
        .over(input)
}

fn sort_document(pattern: &SortPattern) -> DocBuf {
    let mut spec = DocWriter::new();
    for (path, direction) in pattern.fields() {
        spec.append(
            path.as_str(),
            match direction {
                Direction::Ascending => 1,
                Direction::Descending => -1,
            },
        );
    }
    spec.finish()
}

/// A simple sort is one of whole documents and nothing else.
fn sort_stage(
    pattern: &SortPattern,
    execution: &Execution,
    statistics: &Statistics,
    is_simple: bool,
) -> Stage {
    let query = execution.query();
    let mut about = DocWriter::new();
    about
        .append("sortPattern", &sort_document(pattern))
        .append("memLimit", execution.sort_memory_bytes());
    if let Some(limit) = query.limit {
        about.append("limitAmount", narrow(limit.saturating_add(query.skip)));
    }
    about.append("type", if is_simple { "simple" } else { "default" });
    let returned = match query.limit {
        Some(limit) => statistics.matched.min(limit.saturating_add(query.skip)),
        None => statistics.matched,
    };
    Stage::new("SORT")
        .about(about)
        .done(
            DocWriter::new()
                .with("totalDataSizeSorted", statistics.sorted_bytes as i64)
                .with("usedDisk", statistics.spilled)
                .with("spills", i32::from(statistics.spilled)),
        )
        .returning(returned, statistics.steps + returned + 2)
}

/// The plan in one line, as `currentOp` shows it. `counted`: only the number of documents is wanted.
pub(crate) fn summary(planned: &Planned, counted: bool) -> String {
    let scan = |access: &IndexAccess| {
        let index = &planned.indexes[access.index];
        let name = match counted && access.covered && access.residual.is_none() {
            true if is_one_range(access) => "COUNT_SCAN",
            _ => "IXSCAN",
        };
        let pattern = model::text::document_quoted(index.definition.key_pattern());
        format!("{name} {pattern}")
    };
    match &planned.plan.access {
        Access::Nothing | Access::Records { .. } => "COLLSCAN".to_owned(),
        Access::Id(_) => "IDHACK".to_owned(),
        Access::Index(access) => scan(access),
        Access::Union(union) => {
            let scans: Vec<String> = union.branches.iter().map(scan).collect();
            scans.join(", ")
        }
    }
}

fn access_stage(planned: &Planned, plan: &Plan, statistics: &Statistics, counted: bool) -> Stage {
    match &plan.access {
        // MongoDB scans for what cannot be; here nothing is read.
        Access::Nothing => Stage::new("COLLSCAN")
            .filter(Some(Filter::AlwaysFalse))
            .about(DocWriter::new().with("direction", "forward"))
            .done(DocWriter::new().with("docsExamined", 0)),
        Access::Id(_) => Stage::new("IDHACK")
            .done(
                DocWriter::new()
                    .with("keysExamined", narrow(statistics.keys_examined))
                    .with("docsExamined", narrow(statistics.documents_examined)),
            )
            .returning(statistics.matched, statistics.matched + 1),
        Access::Records { direction, filter } => Stage::new("COLLSCAN")
            .filter(filter.clone())
            .about(DocWriter::new().with("direction", direction_name(*direction)))
            .done(DocWriter::new().with("docsExamined", narrow(statistics.documents_examined)))
            .returning(statistics.matched, statistics.documents_examined + 2),
        Access::Index(access) => {
            let index = &planned.indexes[access.index];
            let (of_key, of_document) = split_residual(access, access.residual.as_ref(), index);
            let branch = statistics.branches.first().copied().unwrap_or_default();
            if access.covered {
                if counted && of_key.is_none() && of_document.is_none() && is_one_range(access) {
                    return count_scan(index, access, branch);
                }
                return index_scan(index, access, branch, statistics.matched)
                    .filter(access.residual.clone());
            }
            let scan = index_scan(index, access, branch, branch.keys_inside).filter(of_key);
            fetch(of_document, statistics).over(scan)
        }
        Access::Union(union) => union_stage(planned, union, statistics),
    }
}

/// Several scans, one after the other or merged, and what is asked of what they
/// find together.
fn union_stage(planned: &Planned, union: &Union, statistics: &Statistics) -> Stage {
    let mut either = Stage::new("OR");
    // The scans of one index, taken apart: what it leaves open is asked above them.
    let mut taken_apart = false;
    if let Some(merged) = &union.merged {
        either = Stage::new("SORT_MERGE")
            .about(DocWriter::new().with("sortPattern", &sort_document(&merged.sort)));
        taken_apart = merged.groups.iter().all(|group| *group == 0);
    }
    either = either
        .done(
            DocWriter::new()
                .with(
                    "dupsTested",
                    narrow(statistics.matched + statistics.duplicates),
                )
                .with("dupsDropped", narrow(statistics.duplicates)),
        )
        .returning(statistics.matched, statistics.steps + 1);
    let mut above = union.residual.clone();
    for (branch, counts) in union.branches.iter().zip(&statistics.branches) {
        let index = &planned.indexes[branch.index];
        let own = own_residual(branch, union.residual.as_ref());
        let (of_key, of_document) = split_residual(branch, own.as_ref(), index);
        let scan = index_scan(index, branch, *counts, counts.keys_inside).filter(of_key);
        either = either.over(match of_document {
            Some(filter) if taken_apart => {
                above = Some(filter);
                scan
            }
            None => scan,
            Some(filter) => Stage::new("FETCH")
                .filter(Some(filter))
                .done(DocWriter::new().with("docsExamined", narrow(counts.keys_inside)))
                .returning(counts.keys_inside, counts.keys_examined + 1)
                .over(scan),
        });
    }
    fetch(above, statistics).over(either)
}

/// Whether everything that is sorted by is there after the projection.
fn keeps_sort_fields(spec: Doc<'_>, simple: bool, pattern: &SortPattern) -> bool {
    pattern.paths().iter().all(|path| {
        let path = path.as_str();
        let named = spec.iter().find(|element| {
            let name = element.key();
            name == path || path.starts_with(&format!("{name}."))
        });
        match named {
            Some(element) => simple && model::number::is_truthy(element.value()),
            None => !simple || path == "_id",
        }
    })
}

fn fetch(filter: Option<Filter>, statistics: &Statistics) -> Stage {
    Stage::new("FETCH")
        .filter(filter)
        .done(
            DocWriter::new()
                .with("docsExamined", narrow(statistics.documents_examined))
                .with("alreadyHasObj", 0),
        )
        .returning(statistics.matched, statistics.steps)
}

fn direction_name(direction: ScanDirection) -> &'static str {
    match direction {
        ScanDirection::Forward => "forward",
        ScanDirection::Backward => "backward",
    }
}

/// The fields that say which index is scanned.
fn index_fields(index: &Index, access: &IndexAccess) -> DocWriter {
    let definition = &index.definition;
    let mut about = DocWriter::new();
    about
        .append("keyPattern", definition.key_pattern())
        .append("indexName", definition.name.as_str())
        .append("isMultiKey", !access.multikey.is_empty());
    if !definition.is_hashed() {
        about.begin_document("multiKeyPaths");
        for (at, field) in definition.fields.iter().enumerate() {
            about.begin_array(field.path.as_str());
            let components = access.multikey.field(at);
            let mut length = 0;
            for (at, component) in field.path.components().iter().enumerate() {
                length += component.name().len() + usize::from(at > 0);
                if components.contains(at) {
                    about.push(&field.path.as_str()[..length]);
                }
            }
            about.end();
        }
        about.end();
    }
    about
        .append("isUnique", definition.unique || definition.is_id())
        .append("isSparse", definition.sparse)
        .append("isPartial", definition.partial.is_some())
        .append("indexVersion", 2);
    about
}

fn index_scan(
    index: &Arc<Index>,
    access: &IndexAccess,
    counts: BranchStatistics,
    returned: u64,
) -> Stage {
    let mut about = index_fields(index, access);
    about
        .append("direction", direction_name(access.direction))
        .append("indexBounds", &bounds_document(&index.definition, access));
    Stage::new("IXSCAN")
        .about(about)
        .done(
            DocWriter::new()
                .with("keysExamined", narrow(counts.keys_examined))
                .with("seeks", narrow(counts.seeks.max(1)))
                .with(
                    "dupsTested",
                    if !access.multikey.is_empty() {
                        narrow(counts.keys_inside)
                    } else {
                        0
                    },
                )
                .with(
                    "dupsDropped",
                    if !access.multikey.is_empty() {
                        narrow(counts.keys_inside - returned.min(counts.keys_inside))
                    } else {
                        0
                    },
                ),
        )
        .returning(returned, counts.keys_examined + 1)
}

/// Whether the bounds are one stretch of keys.
fn is_one_range(access: &IndexAccess) -> bool {
    access.bounds.range_decides()
}

fn count_scan(index: &Arc<Index>, access: &IndexAccess, counts: BranchStatistics) -> Stage {
    let definition = &index.definition;
    let mut start = DocWriter::new();
    let mut end = DocWriter::new();
    let (mut start_included, mut end_included) = (true, true);
    for (field, bounds) in definition.fields.iter().zip(&access.fields) {
        let Some(interval) = bounds.intervals().first() else {
            continue;
        };
        let low = (&interval.low, interval.low_included);
        let high = (&interval.high, interval.high_included);
        let (from, to) = match field.kind.direction() {
            Direction::Ascending => (low, high),
            Direction::Descending => (high, low),
        };
        // Beside an end that is left out, the rest of the key is what is furthest.
        start.append(
            field.path.as_str(),
            if start_included { from.0 } else { to.0 },
        );
        end.append(
            field.path.as_str(),
            if end_included { to.0 } else { from.0 },
        );
        start_included &= from.1;
        end_included &= to.1;
    }
    let mut about = index_fields(index, access);
    about
        .begin_document("indexBounds")
        .append("startKey", &start.finish())
        .append("startKeyInclusive", start_included)
        .append("endKey", &end.finish())
        .append("endKeyInclusive", end_included)
        .end();
    Stage::new("COUNT_SCAN")
        .about(about)
        .done(DocWriter::new().with("keysExamined", narrow(counts.keys_examined + 1)))
        .returning(counts.keys_inside, counts.keys_examined + 1)
}

/// The stages of a `distinct` that an index answers by itself.
pub(crate) fn distinct_stages(scan: &DistinctScan, values: u64) -> Stage {
    let mut about = index_fields(&scan.index, &scan.access);
    about
        .append("direction", direction_name(scan.access.direction))
        .append(
            "indexBounds",
            &bounds_document(&scan.index.definition, &scan.access),
        );
    let scanned = Stage::new("DISTINCT_SCAN")
        .about(about)
        .done(DocWriter::new().with("keysExamined", narrow(values)))
        .returning(values, values + 1);
    let dotted = scan.path().components().len() > 1;
    let projection = match dotted {
        true => "PROJECTION_DEFAULT",
        false => "PROJECTION_COVERED",
    };
    Stage::new(projection)
        .about(DocWriter::new().with("transformBy", Doc::EMPTY))
        .returning(values, values + 1)
        .over(scanned)
}

fn conjuncts(filter: Option<&Filter>) -> &[Filter] {
    match filter {
        None => &[],
        Some(Filter::And(children)) => children,
        Some(single) => std::slice::from_ref(single),
    }
}

fn conjunction(mut filters: Vec<Filter>) -> Option<Filter> {
    match filters.len() {
        0 => None,
        1 => filters.pop(),
        _ => Some(Filter::And(filters)),
    }
}

/// What a branch asks besides what all branches ask.
fn own_residual(access: &IndexAccess, common: Option<&Filter>) -> Option<Filter> {
    let common: Vec<DocBuf> = conjuncts(common).iter().map(Filter::to_document).collect();
    let own = conjuncts(access.residual.as_ref())
        .iter()
        .filter(|filter| !common.contains(&filter.to_document()))
        .cloned()
        .collect();
    conjunction(own)
}

/// The conditions that MongoDB would ask of the key, and the others.
fn split_residual(
    access: &IndexAccess,
    residual: Option<&Filter>,
    index: &Index,
) -> (Option<Filter>, Option<Filter>) {
    let (of_key, of_document) = conjuncts(residual).iter().cloned().partition(|filter| {
        let Filter::Field { path, predicate } = filter else {
            return false;
        };
        // It does not ask keys of which a document may have several.
        access.multikey.is_empty()
            && index
                .definition
                .fields
                .iter()
                .any(|field| field.path == *path)
            && match predicate {
                Predicate::Regex(_) | Predicate::Modulo { .. } => true,
                Predicate::Type(types) => !types.contains(model::bson::Kind::Array),
                Predicate::In(set) => !set.regexes().is_empty() && !set.has_null(),
                Predicate::Compare(..)
                | Predicate::Exists
                | Predicate::Size(_)
                | Predicate::Bits(..)
                | Predicate::ElementMatches(_)
                | Predicate::ElementPasses(_) => false,
            }
    });
    (conjunction(of_key), conjunction(of_document))
}
