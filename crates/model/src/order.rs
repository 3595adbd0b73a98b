//! The order of BSON values: MongoDB's comparison across all types.
//!
//! Values of different type brackets compare by bracket; numbers compare by
//! value across int32, int64, double and decimal; documents compare field by
//! field: type bracket of the value, then name, then value. NaN is equal to
//! itself and below all other numbers; -0.0 equals 0.0.

use crate::bson::{Doc, Kind, ValueRef};
use crate::number;
use std::cmp::Ordering;

/// Where a type stands among the others.
pub const fn bracket(kind: Kind) -> u8 {
    match kind {
        Kind::MinKey => 0,
        Kind::Undefined => 5,
        Kind::Null => 10,
        Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128 => 15,
        Kind::String | Kind::Symbol => 20,
        Kind::Document => 25,
        Kind::Array => 30,
        Kind::Binary => 35,
        Kind::ObjectId => 40,
        Kind::Boolean => 45,
        Kind::DateTime => 50,
        Kind::Timestamp => 55,
        Kind::Regex => 60,
        Kind::DbPointer => 65,
        Kind::JavaScript => 70,
        Kind::JavaScriptWithScope => 75,
        Kind::MaxKey => 127,
    }
}

/// Compares two values.
pub fn compare(left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    let brackets = bracket(left.kind()).cmp(&bracket(right.kind()));
    if brackets.is_ne() {
        return brackets;
    }
    match (left, right) {
        (ValueRef::String(a) | ValueRef::Symbol(a), ValueRef::String(b) | ValueRef::Symbol(b)) => {
            a.as_bytes().cmp(b.as_bytes())
        }
        (ValueRef::Document(a), ValueRef::Document(b)) => compare_documents(a, b),
        (ValueRef::Array(a), ValueRef::Array(b)) => {
            let mut left = a.iter();
            let mut right = b.iter();
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return Ordering::Equal,
                    (None, Some(_)) => return Ordering::Less,
                    (Some(_), None) => return Ordering::Greater,
                    (Some(a), Some(b)) => match compare(a, b) {
                        Ordering::Equal => {}
                        unequal => return unequal,
                    },
                }
            }
        }
        (
            ValueRef::Binary {
                subtype: a_subtype,
                bytes: a,
            },
            ValueRef::Binary {
                subtype: b_subtype,
                bytes: b,
            },
        ) => a
            .len()
            .cmp(&b.len())
            .then(a_subtype.cmp(&b_subtype))
            .then_with(|| a.cmp(b)),
        (ValueRef::ObjectId(a), ValueRef::ObjectId(b)) => a.cmp(&b),
        (ValueRef::Boolean(a), ValueRef::Boolean(b)) => a.cmp(&b),
        (ValueRef::DateTime(a), ValueRef::DateTime(b)) => a.cmp(&b),
        (ValueRef::Timestamp(a), ValueRef::Timestamp(b)) => a.cmp(&b),
        (
            ValueRef::Regex {
                pattern: a,
                options: a_options,
            },
            ValueRef::Regex {
                pattern: b,
                options: b_options,
            },
        ) => a.cmp(b).then_with(|| a_options.cmp(b_options)),
        (
            ValueRef::DbPointer {
                namespace: a,
                id: a_id,
            },
            ValueRef::DbPointer {
                namespace: b,
                id: b_id,
            },
        ) => a
            .len()
            .cmp(&b.len())
            .then_with(|| a.cmp(b))
            .then(a_id.cmp(&b_id)),
        (ValueRef::JavaScript(a), ValueRef::JavaScript(b)) => a.cmp(b),
        (
            ValueRef::JavaScriptWithScope {
                code: a,
                scope: a_scope,
            },
            ValueRef::JavaScriptWithScope {
                code: b,
                scope: b_scope,
            },
        ) => a.cmp(b).then_with(|| compare_documents(a_scope, b_scope)),
        // MinKey, Undefined, Null, MaxKey: one value each; else two numbers.
        (left, right) => number::compare(left, right).unwrap_or(Ordering::Equal),
    }
}

/// Compares two documents in the order of their fields.
pub fn compare_documents(left: Doc<'_>, right: Doc<'_>) -> Ordering {
    let mut left = left.iter();
    let mut right = right.iter();
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => {
                let unequal = bracket(a.kind())
                    .cmp(&bracket(b.kind()))
                    .then_with(|| a.key_bytes().cmp(b.key_bytes()))
                    .then_with(|| compare(a.value(), b.value()));
                if unequal.is_ne() {
                    return unequal;
                }
            }
        }
    }
}
