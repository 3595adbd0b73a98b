//! `$cmp`, `$eq` and their like: BSON's order over all types.
//!
//! A missing value stands below all others but MinKey, undefined included.

use super::node::{Evaluated, Frame, Node};
use model::Error;
use model::bson::{Kind, ValueRef};
use model::order;
use std::cmp::Ordering;

/// Compares two results; a missing one has a place of its own in the order.
pub(super) fn compare(left: &Evaluated<'_>, right: &Evaluated<'_>) -> Ordering {
    compare_values(left.as_value(), right.as_value())
}

pub(super) fn compare_values(left: Option<ValueRef<'_>>, right: Option<ValueRef<'_>>) -> Ordering {
    match (left, right) {
        (Some(left), Some(right)) => order::compare(left, right),
        (None, None) => Ordering::Equal,
        (None, Some(right)) => missing_against(right),
        (Some(left), None) => missing_against(left).reverse(),
    }
}

fn missing_against(value: ValueRef<'_>) -> Ordering {
    match value.kind() {
        Kind::MinKey => Ordering::Greater,
        // Missing and undefined share a place in the order of types.
        Kind::Undefined => Ordering::Equal,
        _ => Ordering::Less,
    }
}

fn ordering<'a>(arguments: &'a [Node], frame: &mut Frame<'a>) -> Result<Ordering, Error> {
    let left = arguments[0].evaluate(frame)?;
    let right = arguments[1].evaluate(frame)?;
    Ok(compare(&left, &right))
}

macro_rules! comparisons {
    ($($name:ident: $holds:expr;)*) => {$(
        pub(super) fn $name<'a>(
            arguments: &'a [Node],
            frame: &mut Frame<'a>,
        ) -> Result<Evaluated<'a>, Error> {
            let holds: fn(Ordering) -> bool = $holds;
            Ok(holds(ordering(arguments, frame)?).into())
        }
    )*};
}

comparisons! {
    eq: Ordering::is_eq;
    ne: Ordering::is_ne;
    lt: Ordering::is_lt;
    lte: Ordering::is_le;
    gt: Ordering::is_gt;
    gte: Ordering::is_ge;
}

pub(super) fn cmp<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    Ok((ordering(arguments, frame)? as i32).into())
}
