//! From a query to a plan: candidates from the planner, a short trial where
//! several compete, and the memory of who won.
//!
//! The trial runs all candidates from the start, step by step side by side, until
//! one is done or has found enough, for a bounded number of steps. Who found most
//! by then is kept; a candidate that is done wins outright. The winner is
//! remembered per shape of query, which is the query without its constants, for
//! as long as the collection has the same indexes. It is forgotten when it takes
//! many more steps than it took then, and never asked where candidates scan the
//! same index within other bounds: there constants decide.

use super::Query;
use super::execution::{Budget, Execution, Step};
use super::part::{Place, lost_plan};
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::operation::Operation;
use foldhash::fast::FixedState;
use model::ids::CollectionId;
use model::key::RecordKey;
use model::{Code, Error};
use parking_lot::Mutex;
use query::filter::{Filter, Predicate};
use query::index_keys::{MultikeyComponents, MultikeyPaths};
use query::plan::{self, Access, Hint, IndexAccess, IndexView, Plan, PlanRequest, ScanDirection};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

/// Steps that each candidate gets in a trial.
const TRIAL_STEPS: u64 = 200;
/// Documents after which a trial ends early.
const TRIAL_DOCUMENTS: u64 = 101;
/// A remembered plan that takes so many times as long is tried again.
const DISAPPOINTMENT: u64 = 10;
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
    /// The memory that the plan comes from.
    pub(super) remembered: Option<Remembered>,
}

/// A winner of an earlier trial.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    shape: String,
    /// How many steps the trial took.
    steps: u64,
}

impl Remembered {
    /// Whether it does much worse now than it did.
    pub(super) fn disappoints(&self, steps: u64, returned: u64) -> bool {
        returned < TRIAL_DOCUMENTS && steps > DISAPPOINTMENT * self.steps.max(TRIAL_STEPS / 10)
    }
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
            remembered: None,
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

#[derive(Clone)]
struct Winner {
    signature: String,
    steps: u64,
}

/// Who won which trial.
pub(crate) struct PlanCache {
    winners: Mutex<HashMap<(CollectionId, String), Winner, FixedState>>,
}

impl PlanCache {
    pub(crate) fn new() -> Self {
        Self {
            winners: Mutex::new(HashMap::with_hasher(FixedState::with_seed(11))),
        }
    }

    fn get(&self, collection: CollectionId, shape: &str) -> Option<Winner> {
        self.winners
            .lock()
            .get(&(collection, shape.to_owned()))
            .cloned()
    }

    pub(super) fn forget(&self, collection: CollectionId, remembered: &Remembered) {
        let key = (collection, remembered.shape.clone());
        self.winners.lock().remove(&key);
    }

    fn put(&self, collection: CollectionId, shape: String, winner: Winner) {
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
        return plan_past(collection, query, indexes);
    }
    let views = views(&indexes);
    let refusal = |error| match &query.part {
        Some(part) => part.refusal(error),
        None => error,
    };
    let mut hint = match &query.hint {
        Some(hint) => plan::find_hint(hint, &views).map_err(refusal)?,
        None => None,
    };
    if hint.is_none() && is_hidden_lookup(collection, query) {
        let mut definitions = indexes.iter().map(|index| &index.definition);
        hint = definitions
            .position(|definition| definition.is_id())
            .map(Hint::Index);
    }
    let request = PlanRequest {
        filter: &query.filter,
        sort: query.sort.as_ref(),
        needed: query.needed.as_deref(),
        hint,
        min: query.min.as_ref().map(|doc| doc.as_doc()),
        max: query.max.as_ref().map(|doc| doc.as_doc()),
    };
    if let Some(place) = query.part.as_ref().and_then(|part| part.after.as_ref()) {
        let plan = plan_of(place, &request, &indexes).map_err(refusal)?;
        return Ok(Planned {
            plan,
            indexes,
            rejected: Vec::new(),
            remembered: None,
        });
    }
    let mut candidates = plan::candidates(&request, &views).map_err(refusal)?;
    let (winner, remembered) = match candidates.len() {
        1 => (0, None),
        _ => choose(shard, collection, query, &candidates, &indexes, operation)?,
    };
    let plan = candidates.remove(winner);
    Ok(Planned {
        plan,
        indexes,
        rejected: candidates,
        remembered,
    })
}

/// The plan that a scan over several shards began with, and goes on with.
///
/// ⚑ Each shard knows for itself where documents have arrays, and what the planner may do depends on it. So the plan
/// is looked for as if they were where the shard may have had them that began with it. An execution finds out by
/// itself that they are elsewhere, as it does when they come later.
fn plan_of(
    place: &Place,
    request: &PlanRequest<'_>,
    indexes: &[Arc<Index>],
) -> Result<Plan, Error> {
    let fields = indexes.iter().map(|index| index.definition.fields.len());
    let one_field = (0..fields.max().unwrap_or(0)).map(Arrays::InField);
    let all = [Arrays::AsKnown, Arrays::Nowhere, Arrays::Everywhere];
    for arrays in all.into_iter().chain(one_field) {
        let views: Vec<IndexView<'_>> = (indexes.iter())
            .map(|index| IndexView {
                definition: &index.definition,
                multikey: arrays.of(index),
            })
            .collect();
        let candidates = plan::candidates(request, &views)?;
        let mut plans = candidates.into_iter();
        if let Some(plan) = plans.find(|plan| fingerprint(plan, indexes) == place.plan) {
            return Ok(plan);
        }
    }
    Err(lost_plan())
}

/// Where documents may have arrays.
#[derive(Clone, Copy)]
enum Arrays {
    AsKnown,
    Nowhere,
    Everywhere,
    /// In this field of an index.
    InField(usize),
}

impl Arrays {
    fn of(self, index: &Index) -> MultikeyPaths {
        let everywhere = || MultikeyPaths::everywhere(index.definition.fields.len());
        match self {
            Arrays::AsKnown => index.multikey_paths(),
            Arrays::Nowhere => MultikeyPaths::default(),
            Arrays::Everywhere => everywhere(),
            Arrays::InField(at) => {
                let mut fields = vec![MultikeyComponents::default(); at];
                fields.push(everywhere().field(at));
                MultikeyPaths::of(&fields)
            }
        }
    }
}

/// Index entries have no history, only records do: an earlier state is scanned
/// record by record, whatever indexes there are now, and a hint is only checked.
fn plan_past(
    collection: &Collection,
    query: &Query,
    mut indexes: Vec<Arc<Index>>,
) -> Result<Planned, Error> {
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
    let natural = is_hidden_lookup(collection, query);
    let hint = hint.or(natural.then_some(Hint::Natural(ScanDirection::Forward)));
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
        remembered: None,
    })
}

/// Whether a filter names one `_id` in a collection whose records are found by other fields
/// first: then the planner must not look for the record under its `_id`.
fn is_hidden_lookup(collection: &Collection, query: &Query) -> bool {
    collection.clustering.is_some() && plan::id_value(&query.filter).is_some()
}

fn views(indexes: &[Arc<Index>]) -> Vec<IndexView<'_>> {
    indexes
        .iter()
        .map(|index| IndexView {
            definition: &index.definition,
            multikey: index.multikey_paths(),
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
) -> Result<(usize, Option<Remembered>), Error> {
    let shape = shape(query, indexes);
    let use_memory = !query.plan_anew && !differ_by_bounds(candidates);
    if use_memory
        && let Some(known) = shard.plan_cache.get(collection.id, &shape)
        && let Some(at) = candidates
            .iter()
            .position(|plan| signature(plan, indexes) == known.signature)
    {
        let steps = known.steps;
        return Ok((at, Some(Remembered { shape, steps })));
    }
    // Among equals the older index wins, as in MongoDB.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&at| match &candidates[at].access {
        Access::Index(access) => access.index,
        Access::Nothing | Access::Id(_) | Access::Records { .. } | Access::Union(_) => usize::MAX,
    });
    let plans: Vec<&Plan> = order.iter().map(|&at| &candidates[at]).collect();
    let tried = contest(shard, collection, query, &plans, indexes, operation)?;
    let mut best = order[0];
    let mut best_score = f64::MIN;
    for (&at, tried) in order.iter().zip(&tried) {
        let score = tried.score();
        if score > best_score {
            (best, best_score) = (at, score);
        }
    }
    if use_memory {
        let winner = Winner {
            signature: signature(&candidates[best], indexes),
            steps: tried.iter().map(|tried| tried.steps).max().unwrap_or(0),
        };
        shard.plan_cache.put(collection.id, shape, winner);
    }
    Ok((best, None))
}

/// Whether two candidates scan one index within the bounds of other conditions.
fn differ_by_bounds(candidates: &[Plan]) -> bool {
    let scanned = |plan: &Plan| match &plan.access {
        Access::Index(access) => Some(access.index),
        Access::Nothing | Access::Id(_) | Access::Records { .. } | Access::Union(_) => None,
    };
    candidates.iter().enumerate().any(|(at, plan)| {
        scanned(plan).is_some()
            && candidates[..at]
                .iter()
                .any(|other| scanned(other) == scanned(plan))
    })
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
    let plans: Vec<&Plan> = std::iter::once(&planned.plan)
        .chain(&planned.rejected)
        .collect();
    let tried = contest(
        execution.shard(),
        execution.collection(),
        execution.query(),
        &plans,
        &planned.indexes,
        operation,
    )?;
    Ok(tried.into_iter().map(|tried| tried.execution).collect())
}

/// How far a candidate came.
struct Tried {
    execution: Execution,
    found: u64,
    steps: u64,
    ended: bool,
}

impl Tried {
    /// More for each document, for being done, and a little for not sorting and
    /// not fetching. All candidates took the same number of steps.
    fn score(&self) -> f64 {
        let plan = &self.execution.planned().plan;
        let mut score = self.found as f64 / TRIAL_DOCUMENTS as f64;
        if self.ended {
            score += 1.0;
        }
        if !plan.needs_sort {
            score += 1e-4;
        }
        if matches!(&plan.access, Access::Index(access) if access.covered) {
            score += 1e-4;
        }
        score
    }
}

/// Runs candidates from the start, side by side.
fn contest(
    shard: &Arc<Shard>,
    collection: &Arc<Collection>,
    query: &Query,
    plans: &[&Plan],
    indexes: &[Arc<Index>],
    operation: &Operation,
) -> Result<Vec<Tried>, Error> {
    let mut tried = Vec::with_capacity(plans.len());
    for &plan in plans {
        let planned = Planned {
            plan: plan.clone(),
            indexes: indexes.to_vec(),
            rejected: Vec::new(),
            remembered: None,
        };
        tried.push(Tried {
            execution: Execution::with_plan(shard, collection, query.clone(), planned, None)?,
            found: 0,
            steps: 0,
            ended: false,
        });
    }
    for _ in 0..TRIAL_STEPS {
        let mut decided = false;
        for candidate in &mut tried {
            candidate.steps += 1;
            match candidate.execution.next(operation, &mut Budget::of(1))? {
                Step::Found(_) => candidate.found += 1,
                Step::Paused => {}
                Step::Ended => candidate.ended = true,
            }
            decided |= candidate.ended || candidate.found >= TRIAL_DOCUMENTS;
        }
        if decided {
            break;
        }
    }
    for candidate in &mut tried {
        candidate.execution.suspend();
    }
    Ok(tried)
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
        let _ = write!(out, "{:?}{:?},", index.id, index.multikey_paths());
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
            "{} {:?} {:?}",
            indexes[access.index].definition.name, access.direction, access.conditions
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

/// The same on every shard: a name for a plan among the candidates of one query. ⚑ It says the keys of indexes,
/// and not only what they are called: a place in one is none in another that took its name.
pub(super) fn fingerprint(plan: &Plan, indexes: &[Arc<Index>]) -> u64 {
    let used: &[IndexAccess] = match &plan.access {
        Access::Index(access) => std::slice::from_ref(access),
        Access::Union(union) => &union.branches,
        Access::Nothing | Access::Id(_) | Access::Records { .. } => &[],
    };
    let keys: Vec<_> = (used.iter())
        .flat_map(|access| &indexes[access.index].definition.fields)
        .map(|field| (field.path.as_str(), field.kind))
        .collect();
    let direction = match &plan.access {
        Access::Records { direction, .. } => Some(*direction),
        Access::Nothing | Access::Id(_) | Access::Index(_) | Access::Union(_) => None,
    };
    let sorts = plan.needs_sort;
    let text = format!(
        "{} {direction:?} {sorts} {keys:?}",
        signature(plan, indexes)
    );
    // FNV-1a, of 64 bits.
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
