//! The different values of a field of an index: one seek per value. The fields
//! before it must be bound to one value each.
//!
//! What an index holds is not quite what documents hold: null stands for a
//! missing field, undefined for an empty array, and an array within an array for its elements, on dotted paths
//! too. MongoDB answers `distinct` from an index in the same way.

use super::part::Mark;
use super::scan::{Item, Scan, Space, Stepped};
use super::{Query, covered};
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::operation::Operation;
use model::bson::Value;
use model::key::skip_value;
use model::{Code, Error};
use query::index::FieldKind;
use query::path::Path;
use query::plan::{self, Access, FieldBounds, Hint, IndexAccess, IndexView, PlanRequest};
use std::sync::Arc;
use storage::IndexEntry;

/// Values between two looks at the deadline.
const VALUES_PER_CHECK: u64 = 128;

/// An index that can name the values by itself.
pub(crate) struct DistinctScan {
    pub(crate) index: Arc<Index>,
    pub(crate) access: IndexAccess,
    /// Which field of the index.
    field: usize,
}

impl DistinctScan {
    /// Looks for an index that has the field behind fields of one value each,
    /// holds all documents, and whose bounds are all that the filter asks.
    pub(crate) fn find(collection: &Collection, query: &Query, path: &Path) -> Option<Self> {
        if query.at.is_some() || collection.may_hold_orphans() {
            return None;
        }
        // A number may be a place in an array: MongoDB looks at documents then.
        if (path.components().iter()).any(|component| component.index().is_some()) {
            return None;
        }
        let everything = query.filter.is_everything();
        collection.indexes.iter().find_map(|index| {
            let definition = &index.definition;
            let field = definition.fields.iter().position(|f| f.path == *path)?;
            let usable = index.is_ready()
                && index.id.is_some()
                && !definition.hidden
                // What a sparse index leaves out has no value to name.
                && (!definition.sparse || everything && definition.fields.len() == 1)
                && definition.partial.is_none()
                && definition.fields[field].kind != FieldKind::Hashed;
            let multikey = index.multikey_paths();
            let has_arrays = !multikey.field(field).is_empty();
            // A document whose array passes has values that do not.
            if !usable || has_arrays && (field > 0 || !everything) {
                return None;
            }
            let view = IndexView {
                definition,
                multikey,
            };
            let request = PlanRequest {
                hint: Some(Hint::Index(0)),
                ..PlanRequest::new(&query.filter)
            };
            let plan = plan::candidates(&request, &[view]).ok()?.pop()?;
            match plan.access {
                Access::Index(access)
                    if access.residual.is_none()
                        && access.fields[..field]
                            .iter()
                            .all(FieldBounds::is_single_point)
                        && access.fields[field + 1..]
                            .iter()
                            .all(FieldBounds::is_everything) =>
                {
                    Some(Self {
                        index: index.clone(),
                        access,
                        field,
                    })
                }
                _ => None,
            }
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.index.definition.fields[self.field].path
    }

    /// Hands over every value once, in the order of the index.
    pub(crate) fn run(
        &self,
        shard: &Shard,
        operation: &Operation,
        mut visit: impl FnMut(Value) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let Some(id) = self.index.id else {
            return Ok(0);
        };
        let snapshot = shard.store.snapshot();
        let bounds = &self.access.bounds;
        let mut scan = Scan::open(
            &snapshot,
            Space::Index(id),
            Some(bounds),
            self.access.direction,
            &Mark::Beginning,
            None,
        )?;
        let mut values = 0;
        loop {
            let entry = match scan.step(&snapshot, Some(bounds))? {
                Stepped::Ended => return Ok(values),
                Stepped::Outside | Stepped::Inside(Item::Record(_)) => continue,
                Stepped::Inside(Item::Entry(entry)) => entry,
            };
            let (value, length) = self.value(&entry)?;
            visit(value)?;
            values += 1;
            if u64::is_multiple_of(values, VALUES_PER_CHECK) {
                operation.check()?;
            }
            scan.skip_prefix(&snapshot, bounds, &entry.fields()[..length])?;
        }
    }

    /// The value in a key, and how many bytes of the key lead up to its end.
    fn value(&self, entry: &IndexEntry) -> Result<(Value, usize), Error> {
        let definition = &self.index.definition;
        let damaged = |error: model::key::KeyError| {
            Error::new(
                Code::INTERNAL_ERROR,
                format!("an index entry is damaged: {error}"),
            )
        };
        let mut length = 0;
        for direction in definition.directions().into_iter().take(self.field + 1) {
            length += skip_value(&entry.fields()[length..], direction).map_err(damaged)?;
        }
        let mut values = covered::key_values(definition, entry.fields(), entry.type_bits())?;
        Ok((values.swap_remove(self.field), length))
    }
}
