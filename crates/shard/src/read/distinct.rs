//! The different values of an index's first field: one seek per value.
//!
//! What an index holds is not quite what documents hold: null stands for a
//! missing field, undefined for an empty array. MongoDB answers `distinct` from
//! an index in the same way.

use super::Query;
use super::scan::{Item, Scan, Space, Stepped};
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::operation::Operation;
use model::bson::Value;
use model::key::{Direction, TypeBits, decode_value, skip_value};
use model::{Code, Error};
use query::index::FieldKind;
use query::path::Path;
use query::plan::{self, Access, FieldBounds, Hint, IndexAccess, IndexView, PlanRequest};
use std::sync::Arc;

/// Values between two looks at the deadline.
const VALUES_PER_CHECK: u64 = 128;

/// An index that can name the values by itself.
pub(crate) struct DistinctScan {
    pub(crate) index: Arc<Index>,
    pub(crate) access: IndexAccess,
}

impl DistinctScan {
    /// Looks for an index that begins with the field, holds all documents, and
    /// whose bounds on that field are all that the filter asks.
    pub(crate) fn find(collection: &Collection, query: &Query, path: &Path) -> Option<Self> {
        if query.at.is_some() {
            return None;
        }
        collection.indexes.iter().find_map(|index| {
            let definition = &index.definition;
            let first = definition.fields.first()?;
            let usable = index.is_ready()
                && index.id.is_some()
                && !definition.hidden
                && !definition.sparse
                && definition.partial.is_none()
                && first.path == *path
                && first.kind != FieldKind::Hashed;
            // A document that passes through an array would be asked as a whole.
            let dotted = path.components().len() > 1;
            let multikey = index.is_multikey();
            if !usable || multikey && (dotted || !query.filter.is_everything()) {
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
                        && access.fields[1..].iter().all(FieldBounds::is_everything) =>
                {
                    Some(Self {
                        index: index.clone(),
                        access,
                    })
                }
                _ => None,
            }
        })
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
        let direction = self.index.definition.directions()[0];
        let mut scan = Scan::open(
            &snapshot,
            Space::Index(id),
            Some(bounds),
            self.access.direction,
            None,
        )?;
        let mut values = 0;
        loop {
            let entry = match scan.step(&snapshot, Some(bounds))? {
                Stepped::Ended => return Ok(values),
                Stepped::Outside | Stepped::Inside(Item::Record(_)) => continue,
                Stepped::Inside(Item::Entry(entry)) => entry,
            };
            let (value, length) = first_value(entry.fields(), entry.type_bits(), direction)?;
            visit(value)?;
            values += 1;
            if u64::is_multiple_of(values, VALUES_PER_CHECK) {
                operation.check()?;
            }
            scan.skip_prefix(&snapshot, bounds, &entry.fields()[..length])?;
        }
    }
}

fn first_value(
    fields: &[u8],
    type_bits: &[u8],
    direction: Direction,
) -> Result<(Value, usize), Error> {
    let damaged = |error: model::key::KeyError| {
        Error::new(
            Code::INTERNAL_ERROR,
            format!("an index entry is damaged: {error}"),
        )
    };
    let length = skip_value(fields, direction).map_err(damaged)?;
    let (value, _) =
        decode_value(fields, &TypeBits::from_bytes(type_bits), direction).map_err(damaged)?;
    Ok((value, length))
}
