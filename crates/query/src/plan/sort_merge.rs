//! Branches in the order of a sort, to be merged instead of sorted.
//!
//! ```text
//!   {b: {$in: [1, 2]}} sorted by a, index {b, a}     b = 1: a …  ─┐
//!                                                    b = 2: a …  ─┴► merge by a
//!   {$or: [{a: 1}, {b: 5}]} sorted by a              a = 1, and b = 5: a …
//! ```
//!
//! A scan whose leading fields have several values each is taken apart into one
//! scan for each combination, until what is left comes in order. With a limit
//! only so many documents are read from each.
//!
//! What is sorted by must be without arrays: a document with several keys could
//! come at the wrong one. Elsewhere a document may be found by several branches,
//! and the first of them yields it.

use super::access::IndexAccess;
use super::interval::FieldBounds;
use super::scan_bounds::{ScanBounds, ScanDirection};
use super::{Access, IndexView, Plan, Planner, Union};
use crate::sort::SortPattern;

/// As in MongoDB, more scans than these are not worth it.
const SCANS_MAX: usize = 200;

/// How the branches of a union are put together in order.
#[derive(Clone, Debug)]
pub struct Merged {
    pub sort: SortPattern,
    /// For each branch a number; branches of the same number share no document,
    /// unless their index has arrays.
    pub groups: Vec<usize>,
}

impl Planner<'_, '_> {
    /// The plan without its sort, if its branches can be merged instead.
    pub(super) fn merged(&self, plan: Plan) -> Plan {
        let Some(sort) = self.request.sort.filter(|_| plan.needs_sort) else {
            return plan;
        };
        let (accesses, residual) = match &plan.access {
            Access::Index(access) => (std::slice::from_ref(access), None),
            Access::Union(union) => (&union.branches[..], union.residual.clone()),
            Access::Nothing | Access::Id(_) | Access::Records { .. } => return plan,
        };
        let mut branches = Vec::new();
        let mut groups = Vec::new();
        for (group, access) in accesses.iter().enumerate() {
            let Some(ordered) = in_order(access, &self.indexes[access.index], sort) else {
                return plan;
            };
            groups.resize(branches.len() + ordered.len(), group);
            branches.extend(ordered);
        }
        if branches.is_empty() || branches.len() > SCANS_MAX {
            return plan;
        }
        Plan {
            // What the sort would have cost; a little is left for the merge.
            cost: plan.cost / 2.0 + 1e-6,
            needs_sort: false,
            access: Access::Union(Union {
                branches,
                residual,
                filter: self.request.filter.clone(),
                merged: Some(Merged {
                    sort: sort.clone(),
                    groups,
                }),
            }),
        }
    }
}

/// Scans that together find what one does, each in order.
fn in_order(
    access: &IndexAccess,
    view: &IndexView<'_>,
    sort: &SortPattern,
) -> Option<Vec<IndexAccess>> {
    let mut fields = view.definition.fields.iter().enumerate();
    let has_arrays = fields.any(|(at, field)| {
        !view.multikey.field(at).is_empty() && sort.paths().contains(&field.path)
    });
    if has_arrays {
        return None;
    }
    let mut scans = vec![IndexAccess {
        covered: false,
        ..access.clone()
    }];
    for at in 0..=access.fields.len() {
        if scans.iter_mut().all(|scan| scan.ordered_by(view, sort)) {
            // In the order in which one scan would have come to them.
            if scans
                .iter()
                .all(|scan| scan.direction == ScanDirection::Backward)
            {
                scans.reverse();
            }
            return Some(scans);
        }
        let bounds = access.fields.get(at)?;
        if !bounds.all_points() || scans.len() * bounds.intervals().len() > SCANS_MAX {
            return None;
        }
        let points = bounds.intervals().iter();
        scans = points
            .flat_map(|point| {
                let point = FieldBounds::of(vec![point.clone()]);
                let scans = scans.iter();
                scans.map(move |scan| with_bounds(scan, view, at, point.clone()))
            })
            .collect();
    }
    None
}

fn with_bounds(
    scan: &IndexAccess,
    view: &IndexView<'_>,
    at: usize,
    bounds: FieldBounds,
) -> IndexAccess {
    let mut fields = scan.fields.clone();
    fields[at] = bounds;
    IndexAccess {
        bounds: ScanBounds::new(&fields, &view.definition.directions()),
        fields,
        ..scan.clone()
    }
}
