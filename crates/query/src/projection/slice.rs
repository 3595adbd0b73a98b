//! The `$slice` of a query's projection: a part of an array, by count.

use model::bson::{Array, DocWriter, ValueRef};
use model::number::Number;

/// Which elements remain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    First(usize),
    Last(usize),
    /// From an index (from the end if negative), so many.
    Range {
        skip: i64,
        limit: usize,
    },
}

impl Slice {
    /// Reads a number or `[skip, limit]`. Anything else may still be the
    /// expression `$slice`, so that it is no error here.
    pub(super) fn parse(argument: ValueRef<'_>) -> Option<Slice> {
        let ValueRef::Array(array) = argument else {
            let count = truncated(argument)?;
            let elements = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
            return Some(if count < 0 {
                Slice::Last(elements)
            } else {
                Slice::First(elements)
            });
        };
        let mut values = array.iter();
        let (skip, limit) = (values.next()?, values.next()?);
        if values.next().is_some() {
            return None;
        }
        let (skip, limit) = (truncated(skip)?, truncated(limit)?);
        if limit <= 0 {
            return None;
        }
        Some(Slice::Range {
            skip,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        })
    }

    /// Writes what remains into the innermost open array.
    pub(super) fn write(self, array: Array<'_>, out: &mut DocWriter) {
        let (skip, limit) = match self {
            Slice::First(limit) => (0, limit),
            Slice::Last(limit) => (array.count().saturating_sub(limit), limit),
            Slice::Range { skip, limit } => match usize::try_from(skip) {
                Ok(skip) => (skip, limit),
                Err(_) => {
                    let from_end = usize::try_from(skip.unsigned_abs()).unwrap_or(usize::MAX);
                    (array.count().saturating_sub(from_end), limit)
                }
            },
        };
        for value in array.iter().skip(skip).take(limit) {
            out.push(value);
        }
    }
}

/// A number without its fraction, at the end of the range if it lies beyond.
fn truncated(value: ValueRef<'_>) -> Option<i64> {
    let number = Number::of(value)?;
    Some(match number.to_i64_truncated() {
        Some(whole) => whole,
        None if number.is_nan() => 0,
        None if number.to_f64() < 0.0 => i64::MIN,
        None => i64::MAX,
    })
}
