//! From a query to a plan: candidates from the planner, a short trial where
//! several compete, and the memory of who won.
//!
//! The trial runs each candidate for a bounded number of steps from the start
//! and keeps the one that found most per step; a candidate that finishes within
//! the trial wins outright. The winner is remembered per shape of query, which
//! is the query without its constants, for as long as the collection has the
//! same indexes.

use super::Query;
use super::execution::{Budget, Execution, Step};
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::operation::Operation;
use foldhash::fast::FixedState;
use model::ids::CollectionId;
use model::key::RecordKey;
use model::{Code, Error};
use parking_lot::Mutex;
use query::filter::{Filter, Predicate};
use query::plan::{self, Access, Hint, IndexView, Plan, PlanRequest};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Steps that each candidate gets in a trial.
const TRIAL_STEPS: u64 = 200;
/// Documents after which a trial ends early.
const TRIAL_DOCUMENTS: u64 = 101;
/// Shapes remembered; when full, all are forgotten.
const SHAPES_MAX: usize = 1000;

/// A plan with the indexes it speaks of.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// The plan names indexes by their place here.
    pub(crate) indexes: Vec<Arc<Index>>,
    /// What else was considered, for explain.
    pub(crate) rejected: Vec<Plan>,
}

impl Planned {
    pub(super) fn id(key: RecordKey) -> Self {
        Self {
            plan: Plan {
                access: Access::Id(key),
                needs_sort: false,
                cost: 0.0,
            },
            indexes: Vec::new(),
            rejected: Vec::new(),
        }
    }

    pub(super) fn branches(&self) -> usize {
        match &self.plan.access {
            Access::Union(union) => union.branches.len(),
            Access::Nothing | Access::Id(_) | Access::Records { .. } | Access::Index(_) => 1,
        }
    }

    /// The indexes that the plan scans.
    pub(crate) fn used_indexes(&self) -> impl Iterator<Item = &Arc<Index>> {
        let used: Vec<usize> = match &self.plan.access {
            Access::Index(access) => vec![access.index],
            Access::Union(union) => union.branches.iter().map(|b| b.index).collect(),
            Access::Nothing | Access::Id(_) | Access::Records { .. } => Vec::new(),
        };
        used.into_iter().map(|at| &self.indexes[at])
    }
}

/// Who won which trial.
pub(crate) struct PlanCache {
    winners: Mutex<HashMap<(CollectionId, String), String, FixedState>>,
}

impl PlanCache {
    pub(crate) fn new() -> Self {
        Self {
            winners: Mutex::new(HashMap::with_hasher(FixedState::with_seed(11))),
        }
    }

    fn get(&self, collection: CollectionId, shape: &str) -> Option<String> {
        self.winners
            .lock()
            .get(&(collection, shape.to_owned()))
            .cloned()
    }

    fn put(&self, collection: CollectionId, shape: String, winner: String) {
        let mut winners = self.winners.lock();
        if winners.len() >= SHAPES_MAX {
            winners.clear();
        }
        winners.insert((collection, shape), winner);
    }
}

/// Chooses a plan. The caller took its snapshot before.
pub(crate) fn plan(
    shard: &Arc<Shard>,
    collection: &Arc<Collection>,
    query: &Query,
    operation: &Operation,
) -> Result<Planned, Error> {
    let indexes: Vec<Arc<Index>> = collection
        .indexes
        .iter()
        .filter(|index| index.is_ready() && !index.definition.hidden)
        .cloned()
        .collect();
    if query.at.is_some() {
        return plan_past(query, indexes);
    }
    let views = views(&indexes);
    let hint = match &query.hint {
        Some(hint) => plan::find_hint(hint, &views)?,
        None => None,
    };
    let request = PlanRequest {
        filter: &query.filter,
        sort: query.sort.as_ref(),
        needed: query.needed.as_deref(),
        hint,
        min: query.min.as_ref().map(|doc| doc.as_doc()),
        max: query.max.as_ref().map(|doc| doc.as_doc()),
    };
    let mut candidates = plan::candidates(&request, &views)?;
    let winner = match candidates.len() {
        1 => 0,
        _ => choose(shard, collection, query, &candidates, &indexes, operation)?,
    };
    let plan = candidates.remove(winner);
    Ok(Planned {
        plan,
        indexes,
        rejected: candidates,
    })
}

/// Index entries have no history, only records do: an earlier state is scanned
/// record by record, whatever indexes there are now, and a hint is only checked.
fn plan_past(query: &Query, mut indexes: Vec<Arc<Index>>) -> Result<Planned, Error> {
    if query.min.is_some() || query.max.is_some() {
        return Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "min and max cannot be read at an earlier time: indexes have no history",
        ));
    }
    let hint = match &query.hint {
        Some(hint) => plan::find_hint(hint, &views(&indexes))?,
        None => None,
    };
    let hint = hint.and_then(|hint| match hint {
        Hint::Natural(_) => Some(hint),
        Hint::Index(_) => None,
    });
    indexes.retain(|index| index.id.is_none());
    let request = PlanRequest {
        filter: &query.filter,
        sort: query.sort.as_ref(),
        needed: None,
        hint,
        min: None,
        max: None,
    };
    let mut candidates = plan::candidates(&request, &views(&indexes))?;
    let plan = candidates.swap_remove(0);
    Ok(Planned {
        plan,
        indexes,
        rejected: Vec::new(),
    })
}

fn views(indexes: &[Arc<Index>]) -> Vec<IndexView<'_>> {
    indexes
        .iter()
        .map(|index| IndexView {
            definition: &index.definition,
            multikey: index.is_multikey(),
        })
        .collect()
}

fn choose(
    shard: &Arc<Shard>,
    collection: &Arc<Collection>,
    query: &Query,
    candidates: &[Plan],
    indexes: &[Arc<Index>],
    operation: &Operation,
) -> Result<usize, Error> {
    let shape = shape(query, indexes);
    if let Some(known) = shard.plan_cache.get(collection.id, &shape)
        && let Some(at) = candidates
            .iter()
            .position(|plan| signature(plan, indexes) == known)
    {
        return Ok(at);
    }
    // Among equals the older index wins, as in MongoDB.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&at| match &candidates[at].access {
        Access::Index(access) => access.index,
        Access::Nothing | Access::Id(_) | Access::Records { .. } | Access::Union(_) => usize::MAX,
    });
    let mut best = 0;
    let mut best_score = f64::MIN;
    for at in order {
        let plan = &candidates[at];
        let score = trial(shard, collection, query, plan, indexes, operation)?;
        if score > best_score {
            (best, best_score) = (at, score);
        }
    }
    let winner = signature(&candidates[best], indexes);
    shard.plan_cache.put(collection.id, shape, winner);
    Ok(best)
}

/// What each candidate of a plan does in a trial, the winner first; none where
/// nothing competed.
pub(crate) fn trials(
    execution: &Execution,
    operation: &Operation,
) -> Result<Vec<Execution>, Error> {
    let planned = execution.planned();
    if planned.rejected.is_empty() {
        return Ok(Vec::new());
    }
    std::iter::once(&planned.plan)
        .chain(&planned.rejected)
        .map(|plan| {
            let (tried, _) = try_out(
                execution.shard(),
                execution.collection(),
                execution.query(),
                plan,
                &planned.indexes,
                operation,
            )?;
            Ok(tried)
        })
        .collect()
}

/// Documents per step, with a bonus for being done and for not sorting.
fn trial(
    shard: &Arc<Shard>,
    collection: &Arc<Collection>,
    query: &Query,
    plan: &Plan,
    indexes: &[Arc<Index>],
    operation: &Operation,
) -> Result<f64, Error> {
    let (execution, ended) = try_out(shard, collection, query, plan, indexes, operation)?;
    let steps = execution.statistics.steps.max(1) as f64;
    let mut score = execution.statistics.returned as f64 / steps;
    if ended {
        // Everything is found already; among such, fewer steps are better.
        score += 1.0 + 1.0 / steps;
    }
    if !plan.needs_sort {
        score += 1e-4;
    }
    if let Access::Index(access) = &plan.access
        && access.covered
    {
        score += 1e-4;
    }
    Ok(score)
}

/// Runs a candidate from the start for a bounded time; whether it ended.
fn try_out(
    shard: &Arc<Shard>,
    collection: &Arc<Collection>,
    query: &Query,
    plan: &Plan,
    indexes: &[Arc<Index>],
    operation: &Operation,
) -> Result<(Execution, bool), Error> {
    let planned = Planned {
        plan: plan.clone(),
        indexes: indexes.to_vec(),
        rejected: Vec::new(),
    };
    let mut execution = Execution::with_plan(shard, collection, query.clone(), planned, None)?;
    let mut budget = Budget::of(TRIAL_STEPS);
    let mut ended = false;
    let mut found = 0u64;
    while found < TRIAL_DOCUMENTS {
        match execution.next(operation, &mut budget)? {
            Step::Found(_) => found += 1,
            Step::Paused => break,
            Step::Ended => {
                ended = true;
                break;
            }
        }
    }
    execution.suspend();
    Ok((execution, ended))
}

/// Names for the shape of a query, alone and with the indexes there are.
pub(crate) fn query_hashes(query: &Query, indexes: &[Arc<Index>]) -> (String, String) {
    // FNV-1a: the same in every version, since users compare these.
    let hash = |text: &str| {
        let hash = text.bytes().fold(0x811C_9DC5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("{hash:08X}")
    };
    (hash(&shape(query, &[])), hash(&shape(query, indexes)))
}

/// The query without its constants, and the indexes it was planned with.
fn shape(query: &Query, indexes: &[Arc<Index>]) -> String {
    let mut out = String::new();
    write_shape(&query.filter, &mut out);
    out.push('|');
    if let Some(sort) = &query.sort {
        for (path, direction) in sort.fields() {
            let _ = write!(out, "{}{direction:?},", path.as_str());
        }
    }
    out.push('|');
    if let Some(needed) = &query.needed {
        for path in needed {
            let _ = write!(out, "{},", path.as_str());
        }
    }
    let _ = write!(out, "|{}|", query.limit.is_some());
    for index in indexes {
        let _ = write!(out, "{:?}{},", index.id, index.is_multikey());
    }
    out
}

fn write_shape(filter: &Filter, out: &mut String) {
    let list = |name: &str, children: &[Filter], out: &mut String| {
        let _ = write!(out, "{name}[");
        for child in children {
            write_shape(child, out);
            out.push(',');
        }
        out.push(']');
    };
    match filter {
        Filter::And(children) => list("and", children, out),
        Filter::Or(children) => list("or", children, out),
        Filter::Nor(children) => list("nor", children, out),
        Filter::Not(child) => list("not", std::slice::from_ref(child), out),
        Filter::Field { path, predicate } => {
            let _ = write!(out, "{}:", path.as_str());
            match predicate {
                Predicate::Compare(comparison, value) => {
                    let _ = write!(out, "{comparison:?}{:?}", value.kind());
                }
                Predicate::In(set) => {
                    let _ = write!(out, "in{}", set.values().len().min(4));
                }
                Predicate::Regex(regex) => {
                    let _ = write!(out, "regex{}", regex.prefix().is_some());
                }
                Predicate::Exists => out.push_str("exists"),
                Predicate::Type(_) => out.push_str("type"),
                Predicate::Size(_) => out.push_str("size"),
                Predicate::Modulo { .. } => out.push_str("mod"),
                Predicate::Bits(..) => out.push_str("bits"),
                Predicate::ElementMatches(filter) => {
                    list("elem", std::slice::from_ref(filter), out)
                }
                Predicate::ElementPasses(filters) => list("elem", filters, out),
            }
        }
        Filter::Expression { .. } => out.push_str("expr"),
        Filter::SampleRate(_) => out.push_str("sample"),
        Filter::AlwaysTrue => out.push_str("true"),
        Filter::AlwaysFalse => out.push_str("false"),
    }
}

/// What tells candidates of one query apart.
fn signature(plan: &Plan, indexes: &[Arc<Index>]) -> String {
    match &plan.access {
        Access::Nothing => "nothing".to_owned(),
        Access::Id(_) => "id".to_owned(),
        Access::Records { .. } => "records".to_owned(),
        Access::Index(access) => format!(
            "{} {:?}",
            indexes[access.index].definition.name, access.direction
        ),
        Access::Union(union) => union
            .branches
            .iter()
            .map(|branch| indexes[branch.index].definition.name.as_str())
            .collect::<Vec<_>>()
            .join(match union.merged {
                Some(_) => " and ",
                None => " or ",
            }),
    }
}
