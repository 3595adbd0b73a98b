//! Numbers across BSON's four numeric types.

use crate::bson::ValueRef;
use std::cmp::Ordering;

/// Compares two numbers by value; `None` if either is not a number.
pub fn compare(left: ValueRef<'_>, right: ValueRef<'_>) -> Option<Ordering> {
    match (left, right) {
        (ValueRef::Int32(a), ValueRef::Int32(b)) => Some(a.cmp(&b)),
        _ => None,
    }
}
