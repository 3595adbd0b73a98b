//! BSON's order, as far as the verifier needs it: groups of types, and a hint between two values.
//!
//! Values of different groups compare by group, in the order of [`Group`]; within a group they
//! compare by value. The groups are exact: range queries are built from them. The order within a
//! group is only a **hint**: it tells the comparator which of two streams is probably behind. Both
//! streams are sorted by their servers, by a collation perhaps that we do not know, and decimals
//! are compared here by their nearest double. A wrong hint costs a second look at some documents;
//! it can neither hide a difference nor invent one (see `merge`).

use crate::element::{LEVELS_MAX, ValueRef, elements, kind};
use std::cmp::Ordering;

/// Types that compare with each other, in BSON's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    MinKey,
    Undefined,
    Null,
    Number,
    Text,
    Document,
    Array,
    Binary,
    ObjectId,
    Boolean,
    Date,
    Timestamp,
    Regex,
    DbPointer,
    Code,
    CodeWithScope,
    MaxKey,
}

impl Group {
    pub const ALL: [Group; 17] = [
        Group::MinKey,
        Group::Undefined,
        Group::Null,
        Group::Number,
        Group::Text,
        Group::Document,
        Group::Array,
        Group::Binary,
        Group::ObjectId,
        Group::Boolean,
        Group::Date,
        Group::Timestamp,
        Group::Regex,
        Group::DbPointer,
        Group::Code,
        Group::CodeWithScope,
        Group::MaxKey,
    ];

    /// The group of a type code; codes that BSON does not have sort last.
    pub fn of(code: u8) -> Group {
        match code {
            kind::MIN_KEY => Group::MinKey,
            kind::UNDEFINED => Group::Undefined,
            kind::NULL => Group::Null,
            kind::DOUBLE | kind::INT32 | kind::INT64 | kind::DECIMAL => Group::Number,
            kind::STRING | kind::SYMBOL => Group::Text,
            kind::DOCUMENT => Group::Document,
            kind::ARRAY => Group::Array,
            kind::BINARY => Group::Binary,
            kind::OBJECT_ID => Group::ObjectId,
            kind::BOOLEAN => Group::Boolean,
            kind::DATE => Group::Date,
            kind::TIMESTAMP => Group::Timestamp,
            kind::REGEX => Group::Regex,
            kind::DB_POINTER => Group::DbPointer,
            kind::CODE => Group::Code,
            kind::CODE_WITH_SCOPE => Group::CodeWithScope,
            _ => Group::MaxKey,
        }
    }

    /// The names that `$type` takes for this group.
    pub fn type_names(self) -> &'static [&'static str] {
        match self {
            Group::MinKey => &["minKey"],
            Group::Undefined => &["undefined"],
            Group::Null => &["null"],
            Group::Number => &["number"],
            Group::Text => &["string", "symbol"],
            Group::Document => &["object"],
            Group::Array => &["array"],
            Group::Binary => &["binData"],
            Group::ObjectId => &["objectId"],
            Group::Boolean => &["bool"],
            Group::Date => &["date"],
            Group::Timestamp => &["timestamp"],
            Group::Regex => &["regex"],
            Group::DbPointer => &["dbPointer"],
            Group::Code => &["javascript"],
            Group::CodeWithScope => &["javascriptWithScope"],
            Group::MaxKey => &["maxKey"],
        }
    }

    /// Whether a value of this group may begin a partition.
    ///
    /// The others are either ends of the order themselves, or types that a query cannot compare
    /// with; both lie inside partitions, never on their borders.
    pub fn can_be_bound(self) -> bool {
        match self {
            Group::Null
            | Group::Number
            | Group::Text
            | Group::Document
            | Group::Binary
            | Group::ObjectId
            | Group::Boolean
            | Group::Date
            | Group::Timestamp => true,
            Group::MinKey
            | Group::Undefined
            | Group::Array
            | Group::Regex
            | Group::DbPointer
            | Group::Code
            | Group::CodeWithScope
            | Group::MaxKey => false,
        }
    }
}

/// Whether the value is a number that is not one.
pub fn is_nan(value: ValueRef<'_>) -> bool {
    Group::of(value.kind) == Group::Number && as_double(value).is_nan()
}

/// Which of two values the servers probably sort first.
pub fn hint(left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    within(left, right, LEVELS_MAX, numbers)
}

/// The order in which values are listed: as [`hint`], but a total one, so that it can be sorted by.
pub fn listed(left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    let order = within(left, right, LEVELS_MAX, |left, right| {
        // Long integers that share a double come behind other numbers there, in their own order.
        let (one, other) = (as_double(left), as_double(right));
        other
            .is_nan()
            .cmp(&one.is_nan())
            .then(one.total_cmp(&other))
            .then(left.kind.cmp(&right.kind))
            .then_with(|| match left.kind {
                kind::INT64 => signed(left).cmp(&signed(right)),
                _ => left.bytes.cmp(right.bytes),
            })
    });
    order.then_with(|| (left.kind, left.bytes).cmp(&(right.kind, right.bytes)))
}

type OfNumbers = fn(ValueRef<'_>, ValueRef<'_>) -> Ordering;

fn within(left: ValueRef<'_>, right: ValueRef<'_>, levels: usize, numbers: OfNumbers) -> Ordering {
    let group = Group::of(left.kind);
    group.cmp(&Group::of(right.kind)).then_with(|| match group {
        Group::MinKey | Group::Undefined | Group::Null | Group::MaxKey => Ordering::Equal,
        Group::Number => numbers(left, right),
        Group::Date => signed(left).cmp(&signed(right)),
        Group::Timestamp => unsigned(left).cmp(&unsigned(right)),
        Group::Document | Group::Array => match levels.checked_sub(1) {
            Some(levels) => documents(left.bytes, right.bytes, levels, numbers),
            None => left.bytes.cmp(right.bytes),
        },
        // The length in front would compare wrongly; without it the bytes compare rightly.
        Group::Text | Group::Code => left.bytes.get(4..).cmp(&right.bytes.get(4..)),
        Group::Binary => (left.bytes.len(), left.bytes).cmp(&(right.bytes.len(), right.bytes)),
        Group::ObjectId
        | Group::Boolean
        | Group::Regex
        | Group::DbPointer
        | Group::CodeWithScope => left.bytes.cmp(right.bytes),
    })
}

fn documents(left: &[u8], right: &[u8], levels: usize, numbers: OfNumbers) -> Ordering {
    let (mut left, mut right) = match (elements(left), elements(right)) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(_), Err(_)) => return left.cmp(right),
        (one, other) => return one.is_ok().cmp(&other.is_ok()),
    };
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(Ok(one)), Some(Ok(other))) => {
                let order = Group::of(one.value.kind)
                    .cmp(&Group::of(other.value.kind))
                    .then_with(|| one.name.cmp(other.name))
                    .then_with(|| within(one.value, other.value, levels, numbers));
                if order != Ordering::Equal {
                    return order;
                }
            }
            // Malformed bytes are reported by whoever compares the documents.
            (Some(one), Some(other)) => return one.is_ok().cmp(&other.is_ok()),
        }
    }
}

fn numbers(left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    if left.kind == kind::INT64 && right.kind == kind::INT64 {
        return signed(left).cmp(&signed(right));
    }
    let (left, right) = (as_double(left), as_double(right));
    match (left.is_nan(), right.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => left.partial_cmp(&right).unwrap_or(Ordering::Equal),
    }
}

fn signed(value: ValueRef<'_>) -> i64 {
    value
        .bytes
        .first_chunk()
        .map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

fn unsigned(value: ValueRef<'_>) -> u64 {
    value
        .bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn as_double(value: ValueRef<'_>) -> f64 {
    match value.kind {
        kind::INT32 => value
            .bytes
            .first_chunk()
            .map_or(0.0, |bytes| f64::from(i32::from_le_bytes(*bytes))),
        kind::INT64 => signed(value) as f64,
        kind::DECIMAL => value.bytes.first_chunk().map_or(0.0, |bytes| {
            let text = bson::Decimal128::from_bytes(*bytes).to_string();
            text.parse().unwrap_or(f64::NAN)
        }),
        _ => f64::from_bits(unsigned(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Value, field};
    use bson::{Bson, doc};

    #[test]
    fn what_is_listed_has_one_order() {
        let large = 1_i64 << 53;
        let ascending = [
            value(Bson::Null),
            value(f64::NAN),
            value(-1),
            value(1.0),
            value(1),
            value(2_i64),
            value(large as f64),
            value(large),
            value(large + 1),
            value(f64::INFINITY),
            value("a"),
            value(doc! {"a": 9}),
            value(doc! {"a": 300}),
            value(doc! {"a": 300, "b": 1}),
        ];
        for (place, one) in ascending.iter().enumerate() {
            for (other_place, other) in ascending.iter().enumerate() {
                let order = listed(one.as_ref(), other.as_ref());
                assert_eq!(order, place.cmp(&other_place), "{one:?} {other:?}");
            }
        }
    }

    fn value(given: impl Into<Bson>) -> Value {
        let bytes = doc! {"v": given.into()}.to_vec().unwrap();
        field(&bytes, "v").unwrap().unwrap().to_value()
    }

    #[test]
    fn values_in_order_compare_so() {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        let ascending = [
            value(Bson::MinKey),
            value(Bson::Undefined),
            value(Bson::Null),
            value(f64::NAN),
            value(f64::NEG_INFINITY),
            value(-5_i64),
            value(decimal("-4.5")),
            value(0),
            value(0.5),
            value(i64::MAX - 1),
            value(i64::MAX),
            value(decimal("1E+400")),
            value(""),
            value("a"),
            value("aa"),
            value(Bson::Symbol("b".to_owned())),
            value(doc! {}),
            value(doc! {"b": 1}),
            value(doc! {"b": 2}),
            value(doc! {"a": "text"}),
            value(vec![1, 2]),
            value(bson::oid::ObjectId::from_bytes([0; 12])),
            value(bson::oid::ObjectId::from_bytes([255; 12])),
            value(false),
            value(true),
            value(bson::DateTime::from_millis(-1)),
            value(bson::DateTime::from_millis(1)),
            value(bson::Timestamp {
                time: 1,
                increment: 200,
            }),
            value(bson::Timestamp {
                time: 2,
                increment: 1,
            }),
            value(Bson::MaxKey),
        ];
        for (i, left) in ascending.iter().enumerate() {
            for (j, right) in ascending.iter().enumerate() {
                assert_eq!(
                    hint(left.as_ref(), right.as_ref()),
                    i.cmp(&j),
                    "{left:?} {right:?}"
                );
            }
        }
        assert!(is_nan(value(decimal("NaN")).as_ref()));
        assert!(!is_nan(value("NaN").as_ref()));
    }

    #[test]
    fn groups_are_listed_in_their_order() {
        assert!(Group::ALL.is_sorted());
    }
}
