//! The filters that ask a server for the documents of one partition, or for some `_id`s.
//!
//! A plain comparison in a filter is *type bracketed*: `{_id: {$lt: "b"}}` finds no numbers, although
//! numbers sort below text. A partition may span types, and must not lose any of them. So:
//!
//! | bounds                             | filter                                               |
//! | ---                                | ---                                                  |
//! | none                               | `{}`                                                 |
//! | both of one group of types         | `{_id: {$gte: lower, $lt: upper}}`                   |
//! | otherwise, [`AcrossTypes::Expression`] | `{$expr: {$and: [{$gte: ["$_id", lower]}, …]}}`  |
//! | otherwise, [`AcrossTypes::Join`]   | `{$or: [{_id: {$gte: lower}}, {_id: {$type: types between}}, {_id: {$lt: upper}}]}` |
//!
//! Expressions compare without brackets, but servers before 5.0 do not use the index for them.
//!
//! Two values need care. NaN sorts below all numbers, yet a filter's comparison with NaN, or of NaN,
//! is only ever true for equality. And a comparison with null also matches what is missing. Both are
//! expressed by types and equality instead. The type array is left out of a join: no server takes
//! an array as an `_id`, and with it in the list the whole index would be read.

use crate::element::{Value, ValueRef, Writer, kind, text_bytes};
use crate::order::{Group, is_nan};
use crate::partition::Partition;

/// How a partition that spans types is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcrossTypes {
    Expression,
    Join,
}

/// The filter whose result is exactly the partition.
pub fn partition_filter(partition: &Partition, across_types: AcrossTypes) -> Vec<u8> {
    let (lower, upper) = (partition.lower(), partition.upper());
    match (lower, upper) {
        (None, None) => Writer::new().finish(),
        (Some(lower), Some(upper))
            if comparable(lower) && comparable(upper) && one_group(lower, upper) =>
        {
            compare_id(&[("$gte", lower), ("$lt", upper)])
        }
        (_, _) => match across_types {
            AcrossTypes::Expression => expression(lower, upper),
            AcrossTypes::Join => join(lower, upper),
        },
    }
}

/// Whether a plain comparison with this value means what the order means.
fn comparable(value: &Value) -> bool {
    value.kind != kind::NULL && !is_nan(value.as_ref())
}

fn one_group(lower: &Value, upper: &Value) -> bool {
    Group::of(lower.kind) == Group::of(upper.kind)
}

fn compare_id(comparisons: &[(&str, &Value)]) -> Vec<u8> {
    let mut condition = Writer::new();
    for (operator, value) in comparisons {
        condition.value(operator, value.as_ref());
    }
    on_id(&condition.finish())
}

fn on_id(condition: &[u8]) -> Vec<u8> {
    let mut filter = Writer::new();
    filter.document("_id", condition);
    filter.finish()
}

fn expression(lower: Option<&Value>, upper: Option<&Value>) -> Vec<u8> {
    let comparisons: Vec<Vec<u8>> = [("$gte", lower), ("$lt", upper)]
        .into_iter()
        .filter_map(|(operator, bound)| Some(id_against(operator, bound?)))
        .collect();
    let mut both = Writer::new();
    both.documents("$and", &comparisons);
    let mut filter = Writer::new();
    filter.document("$expr", &both.finish());
    filter.finish()
}

/// `{operator: ["$_id", {$literal: bound}]}`
fn id_against(operator: &str, bound: &Value) -> Vec<u8> {
    let mut literal = Writer::new();
    literal.value("$literal", bound.as_ref());
    let literal = literal.finish();
    let path = text_bytes("$_id");
    let operands = [
        ValueRef {
            kind: kind::STRING,
            bytes: &path,
        },
        ValueRef {
            kind: kind::DOCUMENT,
            bytes: &literal,
        },
    ];
    let mut comparison = Writer::new();
    comparison.array(operator, operands);
    comparison.finish()
}

fn join(lower: Option<&Value>, upper: Option<&Value>) -> Vec<u8> {
    let first = lower.map(|value| Group::of(value.kind));
    let last = upper.map(|value| Group::of(value.kind));
    let mut branches = Vec::new();
    match (lower, upper) {
        // Only null and NaN come here with both bounds in one group.
        (Some(lower), Some(upper)) if one_group(lower, upper) => branches.extend(head(upper)),
        (_, _) => {
            branches.extend(lower.map(tail));
            let between: Vec<&str> = Group::ALL
                .into_iter()
                .filter(|group| *group != Group::Array)
                .filter(|group| first.is_none_or(|first| *group > first))
                .filter(|group| last.is_none_or(|last| *group < last))
                .flat_map(Group::type_names)
                .copied()
                .collect();
            if !between.is_empty() {
                branches.push(of_types(&between));
            }
            branches.extend(upper.into_iter().flat_map(head));
        }
    }
    if branches.is_empty() {
        // Nothing sorts there: an `_id` is never of no type at all.
        branches.push(equal_to_any(&[]));
    }
    let mut filter = Writer::new();
    filter.documents("$or", &branches);
    filter.finish()
}

/// The part of its group from `lower` on.
fn tail(lower: &Value) -> Vec<u8> {
    match comparable(lower) {
        true => compare_id(&[("$gte", lower)]),
        // Null is alone in its group, and NaN the first of its own.
        false => of_types(Group::of(lower.kind).type_names()),
    }
}

/// The part of its group below `upper`.
fn head(upper: &Value) -> Vec<Vec<u8>> {
    if !comparable(upper) {
        return Vec::new();
    }
    let mut branches = vec![compare_id(&[("$lt", upper)])];
    if Group::of(upper.kind) == Group::Number {
        let not_a_number = f64::NAN.to_le_bytes();
        branches.push(equal_to_any(&[ValueRef {
            kind: kind::DOUBLE,
            bytes: &not_a_number,
        }]));
    }
    branches
}

fn of_types(names: &[&str]) -> Vec<u8> {
    let texts: Vec<Vec<u8>> = names.iter().map(|name| text_bytes(name)).collect();
    let mut condition = Writer::new();
    let values = texts.iter().map(|bytes| ValueRef {
        kind: kind::STRING,
        bytes,
    });
    condition.array("$type", values);
    on_id(&condition.finish())
}

fn equal_to_any(values: &[ValueRef<'_>]) -> Vec<u8> {
    let mut condition = Writer::new();
    condition.array("$in", values.iter().copied());
    on_id(&condition.finish())
}

/// The filter for the second look: all documents with one of these `_id`s.
///
/// It may find a little more (1.0 for 1, another case under a collation); who asks matches by bytes.
pub fn ids_filter(ids: &[ValueRef<'_>]) -> Vec<u8> {
    // Inside `$in` a document whose first field looks like an operator is refused, and a regular
    // expression matches text; after `$eq` both are values.
    let (literal, plain): (Vec<ValueRef<'_>>, Vec<ValueRef<'_>>) = ids
        .iter()
        .partition(|id| matches!(id.kind, kind::DOCUMENT | kind::REGEX));
    let mut branches = vec![equal_to_any(&plain)];
    branches.extend(literal.into_iter().map(|id| {
        let mut condition = Writer::new();
        condition.value("$eq", id);
        on_id(&condition.finish())
    }));
    let mut filter = Writer::new();
    filter.documents("$or", &branches);
    filter.finish()
}

/// A filter and the user's own, both required.
pub fn both(filter: Vec<u8>, users: Option<&[u8]>) -> Vec<u8> {
    match users {
        None => filter,
        Some(users) => {
            let mut joined = Writer::new();
            joined.documents("$and", &[filter, users.to_vec()]);
            joined.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::field;
    use crate::partition::Cutter;
    use bson::{Bson, Document, doc};

    fn value(given: Bson) -> Value {
        let bytes = doc! {"v": given}.to_vec().unwrap();
        field(&bytes, "v").unwrap().unwrap().to_value()
    }

    /// The last partition cut by the bounds; an absent upper bound is MaxKey.
    fn check(lower: Option<Bson>, upper: Option<Bson>, across: AcrossTypes, expected: Document) {
        let mut cutter = Cutter::new();
        if let Some(lower) = lower.clone() {
            cutter.cut(value(lower));
        }
        let partition = match upper.clone() {
            Some(upper) => cutter.cut(value(upper)).unwrap(),
            None => cutter.finish(),
        };
        let filter = partition_filter(&partition, across);
        let filter = Document::from_reader(filter.as_slice()).unwrap();
        assert_eq!(
            filter.to_string(),
            expected.to_string(),
            "{lower:?} {upper:?}"
        );
    }

    #[test]
    fn filters_follow_the_bounds() {
        use AcrossTypes::{Expression, Join};
        let nan = || Bson::Double(f64::NAN);
        check(None, None, Join, doc! {});
        check(
            Some(1.into()),
            Some(2.5.into()),
            Expression,
            doc! {"_id": {"$gte": 1, "$lt": 2.5}},
        );
        check(
            Some(1.into()),
            Some("a".into()),
            Expression,
            doc! {"$expr": {"$and": [
                {"$gte": ["$_id", {"$literal": 1}]}, {"$lt": ["$_id", {"$literal": "a"}]},
            ]}},
        );
        check(
            None,
            Some("a".into()),
            Expression,
            doc! {"$expr": {"$and": [{"$lt": ["$_id", {"$literal": "a"}]}]}},
        );
        check(
            Some(500.into()),
            Some(Bson::Document(doc! {"foo": 1})),
            Join,
            doc! {"$or": [
                {"_id": {"$gte": 500}},
                {"_id": {"$type": ["string", "symbol"]}},
                {"_id": {"$lt": {"foo": 1}}},
            ]},
        );
        check(
            Some(true.into()),
            None,
            Join,
            doc! {"$or": [
                {"_id": {"$gte": true}},
                {"_id": {"$type": ["date", "timestamp", "regex", "dbPointer", "javascript",
                    "javascriptWithScope", "maxKey"]}},
            ]},
        );
        check(
            Some(Bson::Null),
            Some(5.into()),
            Join,
            doc! {"$or": [{"_id": {"$type": ["null"]}}, {"_id": {"$lt": 5}}, {"_id": {"$in": [nan()]}}]},
        );
        check(
            Some(nan()),
            Some(5.into()),
            Join,
            doc! {"$or": [{"_id": {"$lt": 5}}, {"_id": {"$in": [nan()]}}]},
        );
        check(
            Some(Bson::Null),
            Some(nan()),
            Join,
            doc! {"$or": [{"_id": {"$type": ["null"]}}]},
        );
    }
}
