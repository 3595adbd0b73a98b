//! Bounds as explain prints them.

use super::access::IndexAccess;
use super::interval::{FieldBounds, Interval};
use super::scan_bounds::ScanDirection;
use crate::index::{FieldKind, IndexDefinition};
use model::bson::{DocBuf, DocWriter};
use model::key::Direction;
use model::text::value_quoted;

/// `{a: ["[1, 1]"], b: ["[MaxKey, MinKey]"]}`.
pub fn bounds_document(definition: &IndexDefinition, access: &IndexAccess) -> DocBuf {
    let mut out = DocWriter::new();
    for (field, bounds) in definition.fields.iter().zip(&access.fields) {
        let stored = match field.kind {
            FieldKind::Hashed => Direction::Ascending,
            FieldKind::Ascending | FieldKind::Descending => field.kind.direction(),
        };
        let ascending = match access.direction {
            ScanDirection::Forward => stored == Direction::Ascending,
            ScanDirection::Backward => stored == Direction::Descending,
        };
        out.begin_array(field.path.as_str());
        for text in texts(bounds, ascending) {
            out.push(text.as_str());
        }
        out.end();
    }
    out.finish()
}

fn texts(bounds: &FieldBounds, ascending: bool) -> Vec<String> {
    let print = |interval: &Interval| interval_text(interval, ascending);
    if ascending {
        bounds.intervals().iter().map(print).collect()
    } else {
        bounds.intervals().iter().rev().map(print).collect()
    }
}

/// One interval, `(5, inf.0]`, in the direction of the scan.
pub fn interval_text(interval: &Interval, ascending: bool) -> String {
    let low = (&interval.low, interval.low_included);
    let high = (&interval.high, interval.high_included);
    let (from, to) = if ascending { (low, high) } else { (high, low) };
    format!(
        "{}{}, {}{}",
        if from.1 { '[' } else { '(' },
        value_quoted(from.0.as_ref()),
        value_quoted(to.0.as_ref()),
        if to.1 { ']' } else { ')' },
    )
}
