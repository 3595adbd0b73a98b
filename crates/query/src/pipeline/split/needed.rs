//! Which fields the merging half looks at, where that is easy to tell: then shards
//! send nothing else.
//!
//! Only where a stage makes new documents of what it reads can fields be left out,
//! and only top-level ones are told apart.

use super::Order;
use crate::context::QueryContext;
use crate::pipeline::optimize::{asks_only_for, reads_only};
use crate::pipeline::project::parse_project;
use crate::pipeline::stage::{Stage, Step};
use crate::sort::SortPattern;
use model::bson::{DocWriter, ValueRef};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A `$project` for the end of the shards' half, if it is worth one.
pub(super) fn projection(merging: &[Step], order: &Order) -> Option<Step> {
    let fields = fields(merging, order)?;
    let mut spec = DocWriter::new();
    // One that keeps no other field would be one that leaves out.
    let keeps_id = fields.contains("_id") || fields.is_empty();
    spec.append("_id", i32::from(keeps_id));
    for name in fields.iter().filter(|name| *name != "_id") {
        spec.append(name, 1);
    }
    let spec = spec.finish();
    // A text that only looks like a path may name what no field is called.
    let projector = parse_project(ValueRef::from(&spec), &QueryContext::new(0)).ok()?;
    Some(Step::new("$project", &spec, Stage::Project(projector)))
}

/// The top-level fields that are looked at; `None` if all may be.
fn fields(merging: &[Step], order: &Order) -> Option<BTreeSet<String>> {
    let found = RefCell::new(BTreeSet::new());
    let note = |name: &str| {
        found.borrow_mut().insert(name.to_owned());
        true
    };
    let sorted_by = |pattern: &SortPattern| {
        for path in pattern.paths() {
            note(path.as_str().split('.').next().unwrap_or_default());
        }
    };
    match order {
        Order::Sorted(pattern) => sorted_by(pattern),
        Order::Any => {}
        Order::Events => return None,
    }
    for step in merging {
        match &step.stage {
            Stage::Skip(_) | Stage::Limit(_) => {}
            Stage::Sort { pattern, .. } => sorted_by(pattern),
            Stage::Match(filter) => {
                if !asks_only_for(filter, &note) {
                    return None;
                }
            }
            Stage::Group(_) | Stage::BucketAuto(_) => {
                let spec = ValueRef::Document(step.spec.as_doc());
                let all = !ranks(spec) && reads_only(spec, &note);
                return all.then(|| found.take());
            }
            Stage::Project(projector) => {
                projector.only_fields()?.into_iter().for_each(|name| {
                    note(name);
                });
                return Some(found.take());
            }
            _ => return None,
        }
    }
    None
}

/// Whether fields are named in other ways than as paths.
fn ranks(spec: ValueRef<'_>) -> bool {
    match spec {
        ValueRef::Document(doc) => doc
            .iter()
            .any(|element| element.key() == "sortBy" || ranks(element.value())),
        ValueRef::Array(array) => array.iter().any(ranks),
        _ => false,
    }
}
