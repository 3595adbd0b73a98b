//! Whether two documents are the same, and the verdict on one `_id`.
//!
//! By bytes, two documents are the same if nothing at all differs: order of fields, numeric types,
//! the payload of a NaN. Ignoring field order, the fields of a document, at any depth, may come in
//! another order; everything else must still agree to the bit, and elements of arrays keep their
//! places. Fields that share a name are paired in the order in which they come.

use crate::element::{Element, LEVELS_MAX, Malformed, ValueRef, check_depth, elements, kind};

/// What counts as the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Bytes,
    IgnoreFieldOrder,
}

impl Comparison {
    pub fn same_document(self, left: &[u8], right: &[u8]) -> Result<bool, Malformed> {
        match self {
            _ if left == right => Ok(true),
            Comparison::Bytes => Ok(false),
            // Reordering keeps the length.
            Comparison::IgnoreFieldOrder if left.len() != right.len() => Ok(false),
            Comparison::IgnoreFieldOrder => {
                check_depth(left, LEVELS_MAX)?;
                same_fields(left, right)
            }
        }
    }

    /// As [`Comparison::same_document`], for values of documents whose depth was checked.
    pub fn same_value(self, left: ValueRef<'_>, right: ValueRef<'_>) -> Result<bool, Malformed> {
        if left == right {
            return Ok(true);
        }
        match (self, left.kind, right.kind) {
            (Comparison::IgnoreFieldOrder, kind::DOCUMENT, kind::DOCUMENT) => {
                same_fields(left.bytes, right.bytes)
            }
            (Comparison::IgnoreFieldOrder, kind::ARRAY, kind::ARRAY) => {
                same_items(left.bytes, right.bytes)
            }
            (_, _, _) => Ok(false),
        }
    }
}

/// The fields by name; those that share a name stay in their order.
pub fn sorted_fields(document: &[u8]) -> Result<Vec<Element<'_>>, Malformed> {
    let mut fields = elements(document)?.collect::<Result<Vec<_>, _>>()?;
    fields.sort_by(|left, right| left.name.cmp(right.name));
    Ok(fields)
}

fn same_fields(left: &[u8], right: &[u8]) -> Result<bool, Malformed> {
    same_pairs(&sorted_fields(left)?, &sorted_fields(right)?)
}

fn same_items(left: &[u8], right: &[u8]) -> Result<bool, Malformed> {
    let left = elements(left)?.collect::<Result<Vec<_>, _>>()?;
    let right = elements(right)?.collect::<Result<Vec<_>, _>>()?;
    same_pairs(&left, &right)
}

fn same_pairs(left: &[Element<'_>], right: &[Element<'_>]) -> Result<bool, Malformed> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (one, other) in left.iter().zip(right) {
        let same = one.name == other.name
            && Comparison::IgnoreFieldOrder.same_value(one.value, other.value)?;
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What both sides hold for one `_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// On the source only.
    Missing,
    /// On the destination only.
    Extra,
    Content,
    /// An `_id` that is there more than once, as only a sharded collection can have it, and not
    /// with the same documents on both sides.
    Repeated,
}

/// How many documents both sides have, each paired once, in any order.
pub fn pairs(
    comparison: Comparison,
    source: &[Vec<u8>],
    destination: &[Vec<u8>],
) -> Result<usize, Malformed> {
    let mut left: Vec<&Vec<u8>> = destination.iter().collect();
    for one in source {
        for (position, other) in left.iter().enumerate() {
            if comparison.same_document(one, other)? {
                left.swap_remove(position);
                break;
            }
        }
    }
    Ok(destination.len() - left.len())
}

/// Judges the documents that were found with one `_id`.
pub fn judge(
    comparison: Comparison,
    source: &[Vec<u8>],
    destination: &[Vec<u8>],
) -> Result<Verdict, Malformed> {
    Ok(match (source, destination) {
        // Gone from both since it was first seen.
        ([], []) => Verdict::Same,
        ([_], []) => Verdict::Missing,
        ([], [_]) => Verdict::Extra,
        ([one], [other]) => match comparison.same_document(one, other)? {
            true => Verdict::Same,
            false => Verdict::Content,
        },
        (one, other) => {
            let pairs = pairs(comparison, one, other)?;
            match pairs == one.len() && pairs == other.len() {
                true => Verdict::Same,
                false => Verdict::Repeated,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn check(left: Document, right: Document, by_bytes: bool, ignoring_order: bool) {
        let (one, other) = (left.to_vec().unwrap(), right.to_vec().unwrap());
        let expected = [
            (Comparison::Bytes, by_bytes),
            (Comparison::IgnoreFieldOrder, ignoring_order),
        ];
        for (comparison, expected) in expected {
            let same = comparison.same_document(&one, &other).unwrap();
            assert_eq!(same, expected, "{comparison:?} {left} {right}");
        }
    }

    #[test]
    fn documents_compare() {
        check(doc! {}, doc! {}, true, true);
        check(doc! {"a": 1, "b": 2}, doc! {"a": 1, "b": 2}, true, true);
        check(doc! {"a": 1, "b": 2}, doc! {"b": 2, "a": 1}, false, true);
        check(
            doc! {"x": [{"a": 1, "b": {"c": 1, "d": 2}}]},
            doc! {"x": [{"b": {"d": 2, "c": 1}, "a": 1}]},
            false,
            true,
        );
        check(doc! {"x": [1, 2]}, doc! {"x": [2, 1]}, false, false);
        check(doc! {"a": 1_i64}, doc! {"a": 1.0}, false, false);
        check(doc! {"a": 0.0}, doc! {"a": -0.0}, false, false);
        check(doc! {"a": 1}, doc! {"b": 1}, false, false);
        check(doc! {"a": 1}, doc! {"a": 1, "b": 1}, false, false);
    }

    #[test]
    fn verdicts() {
        let one = doc! {"_id": 1, "a": 1}.to_vec().unwrap();
        let other = doc! {"_id": 1, "a": 2}.to_vec().unwrap();
        let check = |source: &[&Vec<u8>], destination: &[&Vec<u8>], expected| {
            let source: Vec<Vec<u8>> = source.iter().copied().cloned().collect();
            let destination: Vec<Vec<u8>> = destination.iter().copied().cloned().collect();
            let verdict = judge(Comparison::Bytes, &source, &destination).unwrap();
            assert_eq!(verdict, expected);
        };
        check(&[], &[], Verdict::Same);
        check(&[&one], &[], Verdict::Missing);
        check(&[], &[&one], Verdict::Extra);
        check(&[&one], &[&one], Verdict::Same);
        check(&[&one], &[&other], Verdict::Content);
        check(&[&one, &one], &[&one], Verdict::Repeated);
        check(&[&one, &other], &[&other, &one], Verdict::Same);
        check(&[&one, &one], &[&other, &one], Verdict::Repeated);
        check(&[&one, &other], &[], Verdict::Repeated);
        let documents =
            |given: &[&Vec<u8>]| -> Vec<Vec<u8>> { given.iter().copied().cloned().collect() };
        let check_pairs = |source: &[&Vec<u8>], destination: &[&Vec<u8>], expected| {
            let (source, destination) = (documents(source), documents(destination));
            let found = pairs(Comparison::Bytes, &source, &destination).unwrap();
            assert_eq!(found, expected);
        };
        check_pairs(&[&one, &other], &[&one], 1);
        check_pairs(&[&one], &[&other, &one], 1);
        check_pairs(&[&one, &one], &[&one], 1);
        check_pairs(&[&one, &other], &[&other, &one], 2);
        check_pairs(&[&one], &[&other], 0);
    }
}
