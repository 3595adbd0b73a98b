//! `$cmp`, `$eq` and their like: BSON's order over all types.
//!
//! A missing value stands below all others but MinKey, undefined included.

use super::node::{Evaluated, Frame, Node};
use crate::filter::Comparison;
use model::Error;
use model::bson::{Kind, Value, ValueRef};
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

/// Collects the comparisons of a field with a known value without which an
/// expression cannot be true.
pub(super) fn necessary(
    node: &Node,
    variables: &[Option<Value>],
    found: &mut Vec<(String, Comparison, Value)>,
) {
    let Node::Call {
        operator,
        arguments,
    } = node
    else {
        return;
    };
    // How the first argument compares with the second, and the other way round.
    let (forward, backward) = match operator.name {
        "$and" => {
            for argument in arguments {
                necessary(argument, variables, found);
            }
            return;
        }
        "$eq" => (Comparison::Equal, Comparison::Equal),
        "$lt" => (Comparison::Less, Comparison::Greater),
        "$lte" => (Comparison::LessOrEqual, Comparison::GreaterOrEqual),
        "$gt" => (Comparison::Greater, Comparison::Less),
        "$gte" => (Comparison::GreaterOrEqual, Comparison::LessOrEqual),
        _ => return,
    };
    let known = |node: &Node| match node {
        Node::Constant(value) => Some(value.clone()),
        Node::Variable { slot, path: None } => variables.get(*slot)?.clone(),
        _ => None,
    };
    let [left, right] = &**arguments else {
        return;
    };
    for (field, value, comparison) in [(left, right, forward), (right, left, backward)] {
        if let (Node::Field(path), Some(value)) = (field, known(value)) {
            found.push((path.dotted(), comparison, value));
        }
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
