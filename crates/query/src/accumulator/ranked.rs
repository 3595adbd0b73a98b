//! The order of `$top`, `$topN`, `$bottom`, `$bottomN`.
//!
//! Fields are compared as they stand: an array is one value here, where `$sort`
//! would look at its elements. A document enters only if it is better than the
//! worst one kept; then the first of the worst goes.

use crate::expression::FieldPath;
use model::bson::{ArrayBuf, ArrayWriter, Doc, Value, ValueRef};
use model::number::Number;
use model::{Error, order};
use std::cmp::Ordering;

#[derive(Clone, Debug)]
pub(super) struct Ranking {
    fields: Vec<(FieldPath, bool)>,
    bottom: bool,
}

impl Ranking {
    pub(super) fn parse(fields: Doc<'_>, bottom: bool) -> Result<Ranking, Error> {
        let mut parsed = Vec::new();
        for element in fields.iter() {
            let direction = Number::of(element.value()).and_then(Number::to_i64_exact);
            let descending = match direction {
                Some(1) => false,
                Some(-1) => true,
                None if !element.value().is_number() => {
                    return Err(Error::location(15974, "Illegal key in $sort specification"));
                }
                _ => {
                    return Err(Error::location(
                        15975,
                        "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
                    ));
                }
            };
            parsed.push((FieldPath::parse(element.key())?, descending));
        }
        Ok(Ranking {
            fields: parsed,
            bottom,
        })
    }

    /// What a document is ranked by: one value per field, null if missing.
    pub(super) fn key(&self, document: Doc<'_>) -> ArrayBuf {
        let mut key = ArrayWriter::new();
        for (path, _) in &self.fields {
            let value = path.evaluate(document);
            key.push(value.as_value().unwrap_or(ValueRef::Null));
        }
        key.finish()
    }

    fn compare(&self, left: &ArrayBuf, right: &ArrayBuf) -> Ordering {
        for ((left, right), (_, descending)) in left.iter().zip(right.iter()).zip(&self.fields) {
            let by_field = order::compare(left, right);
            if by_field.is_ne() {
                return if *descending {
                    by_field.reverse()
                } else {
                    by_field
                };
            }
        }
        Ordering::Equal
    }

    /// Puts an entry among at most `limit` in order.
    pub(super) fn insert(
        &self,
        entries: &mut Vec<(ArrayBuf, Value)>,
        limit: usize,
        key: ArrayBuf,
        value: Value,
    ) {
        let full = entries.len() >= limit;
        if full {
            let worst = if self.bottom {
                entries.first()
            } else {
                entries.last()
            };
            let better = worst.is_some_and(|(worst, _)| {
                let against = self.compare(&key, worst);
                if self.bottom {
                    against.is_gt()
                } else {
                    against.is_lt()
                }
            });
            if !better {
                return;
            }
            if self.bottom {
                entries.remove(0);
            } else {
                entries.pop();
            }
        }
        let at = entries.partition_point(|(known, _)| self.compare(known, &key).is_le());
        entries.insert(at, (key, value));
    }
}
