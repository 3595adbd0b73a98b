//! Plan choice: from a filter, a sort and the indexes there are to ways of
//! finding the documents.
//!
//! ```text
//!   filter ──► leaves ──► bounds per index field ──► IndexAccess ──┐
//!   $or    ──► one access per branch ──────────────► Union ────────┼──► candidates, best guess first
//!   nothing usable ────────────────────────────────► Records ──────┘
//! ```
//!
//! Pure: nothing is read here. Where several candidates are close, the shard
//! lets them run against each other for a moment and keeps the most productive.
//!
//! Invariants:
//! - **Bounds never lose a match.** What they do not prove stays as a residual
//!   filter. The property test in `tests.rs` runs random plans over a model.
//! - **A document is emitted once, at its first key inside the bounds** (with
//!   several branches: in the first branch that has such a key, whichever branch
//!   it matches). This is recomputed from the document; no set of seen ids is
//!   kept, so a position is all that a scan needs to go on. It depends on index
//!   keys alone, so other fields may change meanwhile. See [`emits_at`] and
//!   [`has_key_inside`].
//!
//! Left out: intersections of several indexes, and collations.

mod access;
mod explain;
mod implication;
mod interval;
mod leaves;
mod predicate_bounds;
mod scan_bounds;
mod shard_key_ranges;
mod sort_merge;

#[cfg(test)]
mod tests;

pub use access::IndexAccess;
pub use explain::{bounds_document, interval_text};
pub use implication::implies;
pub use interval::{FieldBounds, Interval};
pub use scan_bounds::{Check, ScanBounds, ScanDirection};
pub use shard_key_ranges::{named_shard_key, plain_shard_key, range_of_key, shard_key_ranges};
pub use sort_merge::Merged;

use crate::filter::{Comparison, Filter, Predicate};
use crate::index::{FieldKind, IndexDefinition};
use crate::index_keys::MultikeyPaths;
use crate::path::Path;
use crate::sort::SortPattern;
use access::Use;
use model::bson::{Doc, Value, ValueRef};
use model::key::{KeyBuilder, RecordKey};
use model::{Code, Error};
use std::ops::Bound;

/// Among more candidates than these no trial would pay.
const CANDIDATES_MAX: usize = 16;

/// What a unique key costs.
const LOOKUP_COST: f64 = 1e-9;

/// An index as the planner sees it: ready, and not hidden.
#[derive(Clone, Debug)]
pub struct IndexView<'a> {
    pub definition: &'a IndexDefinition,
    /// Where documents in it may have arrays.
    pub multikey: MultikeyPaths,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Optimized.
    pub filter: &'a Filter,
    pub sort: Option<&'a SortPattern>,
    /// The fields that suffice; `None` where the whole document is needed.
    pub needed: Option<&'a [Path]>,
    pub hint: Option<Hint>,
    /// Bounds given outright; they need a hint.
    pub min: Option<Doc<'a>>,
    pub max: Option<Doc<'a>>,
}

impl<'a> PlanRequest<'a> {
    pub fn new(filter: &'a Filter) -> Self {
        Self {
            filter,
            sort: None,
            needed: None,
            hint: None,
            min: None,
            max: None,
        }
    }
}

/// A hint that was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    Natural(ScanDirection),
    /// The place in the list of indexes.
    Index(usize),
}

/// A way of finding documents.
#[derive(Clone, Debug)]
pub struct Plan {
    pub access: Access,
    /// The documents do not come in the order asked for.
    pub needs_sort: bool,
    /// A guess at the work, only for comparing.
    pub cost: f64,
}

#[derive(Clone, Debug)]
pub enum Access {
    /// The filter matches nothing.
    Nothing,
    /// One record by its key; the filter asks for nothing else.
    Id(RecordKey),
    /// Records in their order.
    Records {
        direction: ScanDirection,
        filter: Option<Filter>,
    },
    Index(IndexAccess),
    Union(Union),
}

/// Branches of an `$or`, one after the other. A later branch leaves out every
/// document that has a key inside the bounds of an earlier one, so the earlier
/// one has to yield it, even if it matches only the later branch's condition.
#[derive(Clone, Debug)]
pub struct Union {
    pub branches: Vec<IndexAccess>,
    /// What every document must match besides its branch.
    pub residual: Option<Filter>,
    /// The whole condition: what decides where a branch's residual says no.
    pub filter: Filter,
    /// Not one after the other, but merged by a sort that each branch obeys.
    pub merged: Option<Merged>,
}

/// Looks up a hint: the name of an index or its key pattern.
pub fn find_hint(hint: &Value, indexes: &[IndexView<'_>]) -> Result<Option<Hint>, Error> {
    let position = match hint {
        Value::String(name) => indexes
            .iter()
            .position(|index| index.definition.name == *name),
        Value::Document(pattern) => {
            if pattern.as_doc().is_empty() {
                return Ok(None);
            }
            if let Some(direction) = crate::sort::natural_direction(pattern.as_doc())? {
                return Ok(Some(Hint::Natural(match direction {
                    model::key::Direction::Ascending => ScanDirection::Forward,
                    model::key::Direction::Descending => ScanDirection::Backward,
                })));
            }
            only_one_of(pattern.as_doc(), indexes)?
        }
        _ => {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "Hint must be a string or an object",
            ));
        }
    };
    match position {
        Some(at) => Ok(Some(Hint::Index(at))),
        None => Err(Error::bad_value(
            "error processing query: planner returned error :: caused by :: hint provided does \
             not correspond to an existing index",
        )),
    }
}

/// The index with a key pattern. Indexes that differ in other options may have the same one:
/// then the pattern says too little.
fn only_one_of(pattern: Doc<'_>, indexes: &[IndexView<'_>]) -> Result<Option<usize>, Error> {
    let mut matched = indexes.iter().enumerate().filter(|(_, index)| {
        model::order::compare_documents(index.definition.key_pattern(), pattern).is_eq()
    });
    match (matched.next(), matched.next()) {
        (Some((_, first)), Some((_, second))) => Err(Error::new(
            Code::INDEX_NOT_FOUND,
            format!(
                "error processing query: planner returned error :: caused by :: Hint matched \
                 multiple indexes, must hint by index name. Matched: {:?} and {:?}",
                first.definition.spec, second.definition.spec
            ),
        )),
        (found, _) => Ok(found.map(|(at, _)| at)),
    }
}

/// The plans worth considering, the most promising first. Never empty.
pub fn candidates(
    request: &PlanRequest<'_>,
    indexes: &[IndexView<'_>],
) -> Result<Vec<Plan>, Error> {
    if request.min.is_some() || request.max.is_some() {
        return Ok(vec![between(request, indexes)?]);
    }
    if matches!(request.filter, Filter::AlwaysFalse) {
        return Ok(vec![Plan {
            access: Access::Nothing,
            needs_sort: false,
            cost: 0.0,
        }]);
    }
    if request.hint.is_none()
        && let Some(key) = id_equality(request.filter)
    {
        return Ok(vec![Plan {
            access: Access::Id(key),
            needs_sort: false,
            cost: 0.0,
        }]);
    }
    let planner = Planner { request, indexes };
    match request.hint {
        Some(Hint::Natural(direction)) => Ok(vec![planner.records(direction)]),
        Some(Hint::Index(at)) => Ok(by_cost(planner.hinted(at)?)),
        None => {
            let mut plans = planner.indexed();
            if plans.is_empty() {
                plans.push(planner.records(ScanDirection::Forward));
            }
            Ok(by_cost(plans))
        }
    }
}

/// The most promising plans.
fn by_cost(mut plans: Vec<Plan>) -> Vec<Plan> {
    plans.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    // One document at most: nothing can beat that.
    let lookup = plans.first().is_some_and(|best| best.cost <= LOOKUP_COST);
    plans.truncate(if lookup { 1 } else { CANDIDATES_MAX });
    plans
}

/// The record key, if the filter is equality on `_id` and nothing else.
pub fn id_equality(filter: &Filter) -> Option<RecordKey> {
    id_value(filter).map(RecordKey::from_id)
}

/// The `_id` that a filter names, if that is all it says.
pub fn id_value(filter: &Filter) -> Option<ValueRef<'_>> {
    let only = match filter {
        Filter::And(children) => match &children[..] {
            [only] => only,
            _ => return None,
        },
        single => single,
    };
    match only {
        Filter::Field {
            path,
            predicate: Predicate::Compare(Comparison::Equal, value),
        } if path.as_str() == "_id"
            && !matches!(
                value,
                Value::Array(_) | Value::Undefined | Value::Regex { .. }
            ) =>
        {
            Some(value.as_ref())
        }
        _ => None,
    }
}

struct Planner<'r, 'a> {
    request: &'r PlanRequest<'a>,
    indexes: &'r [IndexView<'a>],
}

impl Planner<'_, '_> {
    fn records(&self, direction: ScanDirection) -> Plan {
        let filter = self.request.filter;
        Plan {
            access: Access::Records {
                direction,
                filter: (!filter.is_everything()).then(|| filter.clone()),
            },
            needs_sort: self.needs_sort(),
            cost: 2.0,
        }
    }

    fn needs_sort(&self) -> bool {
        self.request.sort.is_some_and(|sort| !sort.is_empty())
    }

    fn hinted(&self, at: usize) -> Result<Vec<Plan>, Error> {
        let filter = self.request.filter;
        let leaves = leaves::leaves(filter);
        let view = self.indexes.get(at).ok_or_else(|| {
            Error::bad_value("hint provided does not correspond to an existing index")
        })?;
        let mut found = access::accesses(at, view, filter, &leaves, false);
        if found.is_empty() {
            // The index may lack documents that match: it is scanned as it is.
            found = access::accesses(at, view, filter, &[], true);
        }
        let plans = found.into_iter();
        Ok(plans
            .map(|(access, _)| self.merged(self.finish(access, view)))
            .collect())
    }

    /// Every plan that uses an index to some end.
    fn indexed(&self) -> Vec<Plan> {
        let filter = self.request.filter;
        let leaves = leaves::leaves(filter);
        let mut plans = Vec::new();
        for (at, view) in self.indexes.iter().enumerate() {
            let found = access::accesses(at, view, filter, &leaves, false);
            let bounded = found.into_iter().filter(|(_, used)| *used == Use::Bounds);
            plans.extend(bounded.map(|(access, _)| self.merged(self.finish(access, view))));
        }
        plans.extend(self.union().map(|plan| self.merged(plan)));
        // Without bounds an index is worth it for its order alone. Reading a whole
        // index instead of the records would show missing fields as null.
        if self.lacks_order(&plans) {
            let indexes = self.indexes.iter().enumerate();
            plans.extend(indexes.filter_map(|(at, view)| self.in_order_of(at, view)));
        }
        plans
    }

    /// Whether there is a sort that no plan so far does without.
    fn lacks_order(&self, plans: &[Plan]) -> bool {
        self.needs_sort() && plans.iter().all(|plan| plan.needs_sort)
    }

    /// An index for the sake of its order, if that is the order asked for. Of
    /// arrays it takes the bounds away, for these would disturb it.
    fn in_order_of(&self, at: usize, view: &IndexView<'_>) -> Option<Plan> {
        let filter = self.request.filter;
        let leaves = leaves::leaves(filter);
        let in_order = |leaves: &[leaves::Leaf<'_>], forced| {
            access::accesses(at, view, filter, leaves, forced)
                .into_iter()
                .map(|(access, _)| self.finish(access, view))
                .find(|plan| !plan.needs_sort)
        };
        // The conditions say whether the index has all that matches.
        if access::accesses(at, view, filter, &leaves, false).is_empty() {
            return None;
        }
        in_order(&leaves, false).or_else(|| in_order(&[], true))
    }

    fn finish(&self, mut access: IndexAccess, view: &IndexView<'_>) -> Plan {
        let needs_sort = match self.request.sort {
            Some(sort) if !sort.is_empty() => !access.ordered_by(view, sort),
            _ => false,
        };
        if let Some(needed) = self.request.needed {
            access.cover(view, needed);
            // What has to be sorted must also be there to sort by.
            if let (true, true, Some(sort)) = (access.covered, needs_sort, self.request.sort) {
                access.cover(view, sort.paths());
            }
        }
        let cost = self.cost(&access, view, needs_sort);
        Plan {
            access: Access::Index(access),
            needs_sort,
            cost,
        }
    }

    /// Guesses: an equality leaves a hundredth, a range a third.
    fn cost(&self, access: &IndexAccess, view: &IndexView<'_>, needs_sort: bool) -> f64 {
        let mut share = 1.0;
        let mut keys = 1.0;
        let mut is_prefix = true;
        for bounds in &access.fields {
            let width = access::width(bounds);
            share *= width;
            if is_prefix {
                keys *= width;
            }
            is_prefix &= bounds.all_points();
        }
        let unique = view.definition.unique || view.definition.is_id();
        if unique && access.fields.iter().all(FieldBounds::is_single_point) {
            return LOOKUP_COST;
        }
        let fetch = if access.covered { 0.0 } else { share };
        let sort = if needs_sort { share } else { 0.0 };
        // Between equals, fewer fields mean smaller keys.
        keys + fetch + sort + access.fields.len() as f64 * 1e-6
    }

    /// A plan for an `$or` whose every branch can use an index.
    fn union(&self) -> Option<Plan> {
        let conjuncts = leaves::conjuncts(self.request.filter);
        let (at, branches) =
            conjuncts
                .iter()
                .enumerate()
                .find_map(|(at, conjunct)| match conjunct {
                    Filter::Or(branches) => Some((at, branches)),
                    _ => None,
                })?;
        let others: Vec<Filter> = conjuncts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, conjunct)| conjunct.clone())
            .collect();
        let mut union = Union {
            branches: Vec::with_capacity(branches.len()),
            residual: (!others.is_empty()).then(|| Filter::And(others.clone())),
            filter: self.request.filter.clone(),
            merged: None,
        };
        let mut cost = 0.0;
        for branch in branches {
            // What holds beside the `$or` may narrow each branch further.
            let mut all = leaves::conjuncts(branch).to_vec();
            all.extend(others.iter().cloned());
            let combined = Filter::And(all);
            let (access, branch_cost) = self.branch_access(branch, &combined)?;
            cost += branch_cost;
            union.branches.push(access);
        }
        Some(Plan {
            access: Access::Union(union),
            needs_sort: self.needs_sort(),
            cost: cost + if self.needs_sort() { cost } else { 0.0 },
        })
    }

    fn branch_access(&self, branch: &Filter, combined: &Filter) -> Option<(IndexAccess, f64)> {
        let leaves = leaves::leaves(combined);
        let own = leaves::conjuncts(branch).len();
        self.indexes
            .iter()
            .enumerate()
            .filter_map(|(at, view)| {
                let (access, used) = access::accesses(at, view, combined, &leaves, false)
                    .into_iter()
                    .min_by(|(a, _), (b, _)| {
                        let cost = |access| self.cost(access, view, false);
                        cost(a).total_cmp(&cost(b))
                    })?;
                // An index that serves only what stands beside the `$or` serves
                // the whole query better without branches.
                let first = &view.definition.fields.first()?.path;
                let of_branch = leaves
                    .iter()
                    .any(|leaf| leaf.path == *first && leaf.conjunct.is_none_or(|at| at < own));
                if used != Use::Bounds || !of_branch {
                    return None;
                }
                let cost = self.cost(&access, view, false);
                Some((access, cost))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// A plan for `min` and `max`: all keys from one to below the other.
fn between(request: &PlanRequest<'_>, indexes: &[IndexView<'_>]) -> Result<Plan, Error> {
    let Some(Hint::Index(at)) = request.hint else {
        return Err(Error::location(
            51173,
            "When using min()/max() a hint of which index to use must be provided",
        ));
    };
    let planner = Planner { request, indexes };
    let view = &indexes[at];
    let directions = access::directions(view);
    let encode = |doc: Doc<'_>| -> Result<Vec<u8>, Error> {
        let mut key = KeyBuilder::new();
        let mut elements = doc.iter();
        for (field, &direction) in view.definition.fields.iter().zip(&directions) {
            let element = elements
                .next()
                .filter(|element| element.key() == field.path.as_str());
            match element {
                Some(element) if field.kind != FieldKind::Hashed => {
                    key.push(element.value(), direction);
                }
                _ => return Err(wrong_bounds()),
            }
        }
        match elements.next() {
            Some(_) => Err(wrong_bounds()),
            None => Ok(key.finish().0),
        }
    };
    let low = match request.min {
        Some(min) => Bound::Included(encode(min)?),
        None => Bound::Unbounded,
    };
    let high = match request.max {
        Some(max) => Bound::Excluded(encode(max)?),
        None => Bound::Unbounded,
    };
    if let (Bound::Included(low), Bound::Excluded(high)) = (&low, &high)
        && low >= high
    {
        return Err(Error::location(
            51175,
            "The value provided for min() does not come before the value provided for max() in \
             the hinted index",
        ));
    }
    let filter = request.filter;
    let mut access = IndexAccess {
        index: at,
        fields: vec![FieldBounds::everything(); directions.len()],
        bounds: ScanBounds::new(
            &vec![FieldBounds::everything(); directions.len()],
            &directions,
        ),
        direction: ScanDirection::Forward,
        multikey: view.multikey.clone(),
        conditions: Vec::new(),
        covered: false,
        residual: (!filter.is_everything()).then(|| filter.clone()),
        residual_of_key: false,
    };
    let needs_sort = match request.sort {
        // With arrays, bounds may hide the key that decides the order.
        Some(sort) if !sort.is_empty() => {
            !view.multikey.is_empty() || !access.ordered_by(view, sort)
        }
        _ => false,
    };
    access.bounds = ScanBounds::between(low, high, &directions);
    let cost = planner.cost(&access, view, needs_sort);
    Ok(Plan {
        access: Access::Index(access),
        needs_sort,
        cost,
    })
}

fn wrong_bounds() -> Error {
    Error::location(51174, "The index chosen is not compatible with min/max")
}

/// Whether a document with several keys is emitted at this one: the first of
/// its keys inside the bounds, in the direction of the scan.
pub fn emits_at(
    definition: &IndexDefinition,
    access: &IndexAccess,
    key: &[u8],
    document: Doc<'_>,
) -> Result<bool, Error> {
    let keys = definition.keys(document)?;
    let inside = |fields: &[u8]| access.bounds.contains(fields).unwrap_or(false);
    let first = match access.direction {
        ScanDirection::Forward => keys.keys.iter().find(|key| inside(&key.fields)),
        ScanDirection::Backward => keys.keys.iter().rev().find(|key| inside(&key.fields)),
    };
    Ok(first.is_some_and(|first| first.fields == key))
}

/// Whether a key is the first of all that a document has, in the direction of the scan: then the document belongs
/// here in the order of the keys.
pub fn leads_at(
    definition: &IndexDefinition,
    direction: ScanDirection,
    key: &[u8],
    document: Doc<'_>,
) -> Result<bool, Error> {
    let keys = definition.keys(document)?;
    let first = match direction {
        ScanDirection::Forward => keys.keys.first(),
        ScanDirection::Backward => keys.keys.last(),
    };
    Ok(first.is_some_and(|first| first.fields == key))
}

/// Whether a document has a key inside the bounds, and so belongs to a branch.
pub fn has_key_inside(
    definition: &IndexDefinition,
    access: &IndexAccess,
    document: Doc<'_>,
) -> Result<bool, Error> {
    let keys = definition.keys(document)?;
    let inside = |fields: &[u8]| access.bounds.contains(fields).unwrap_or(false);
    Ok(keys.keys.iter().any(|key| inside(&key.fields)))
}
