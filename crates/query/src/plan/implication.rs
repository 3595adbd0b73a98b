//! Whether one filter implies another, as far as this is easy to see.
//!
//! A partial index may serve a query only if the query's filter implies the
//! index's. Saying no where the answer is yes costs a better plan, never a
//! result.

use crate::filter::{Comparison, Filter, Predicate};
use model::bson::Value;
use model::order;

/// Whether every document that matches `filter` surely matches `wanted`.
pub fn implies(filter: &Filter, wanted: &Filter) -> bool {
    match wanted {
        Filter::And(children) => children.iter().all(|child| implies(filter, child)),
        Filter::AlwaysTrue => true,
        Filter::Or(children) if children.iter().any(|child| implies(filter, child)) => true,
        _ => match filter {
            Filter::Or(branches) if !branches.is_empty() => {
                branches.iter().all(|branch| implies(branch, wanted))
            }
            Filter::And(children) => children.iter().any(|child| implies(child, wanted)),
            Filter::AlwaysFalse => true,
            leaf => leaf_implies(leaf, wanted),
        },
    }
}

fn leaf_implies(leaf: &Filter, wanted: &Filter) -> bool {
    let (
        Filter::Field { path, predicate },
        Filter::Field {
            path: wanted_path,
            predicate: wanted_predicate,
        },
    ) = (leaf, wanted)
    else {
        return leaf.to_document() == wanted.to_document();
    };
    if path != wanted_path {
        return false;
    }
    leaf.to_document() == wanted.to_document() || predicate_implies(predicate, wanted_predicate)
}

fn predicate_implies(predicate: &Predicate, wanted: &Predicate) -> bool {
    match wanted {
        Predicate::Exists => needs_a_value(predicate),
        Predicate::Compare(comparison, limit) => match predicate {
            Predicate::Compare(given, value) => compare_implies(*given, value, *comparison, limit),
            Predicate::In(set) => {
                set.regexes().is_empty()
                    && set
                        .values()
                        .iter()
                        .all(|value| satisfies(value, *comparison, limit))
            }
            _ => false,
        },
        Predicate::Type(types) => match predicate {
            Predicate::Compare(Comparison::Equal, value) => {
                !matches!(value, Value::Null | Value::Undefined)
                    && !value.kind().is_number()
                    && !matches!(value, Value::String(_) | Value::Symbol(_))
                    && types.contains(value.kind())
            }
            _ => false,
        },
        Predicate::In(wanted) => match predicate {
            Predicate::Compare(Comparison::Equal, value) => wanted
                .values()
                .iter()
                .any(|other| order::compare(value.as_ref(), other.as_ref()).is_eq()),
            Predicate::In(set) => {
                set.regexes().is_empty()
                    && set.values().iter().all(|value| {
                        wanted
                            .values()
                            .iter()
                            .any(|other| order::compare(value.as_ref(), other.as_ref()).is_eq())
                    })
            }
            _ => false,
        },
        Predicate::Regex(_)
        | Predicate::Size(_)
        | Predicate::Modulo { .. }
        | Predicate::Bits(..)
        | Predicate::ElementMatches(_)
        | Predicate::ElementPasses(_) => false,
    }
}

/// Whether the condition fails for a missing field.
fn needs_a_value(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::Compare(_, Value::Null | Value::Undefined | Value::MinKey | Value::MaxKey) => {
            false
        }
        Predicate::In(set) => !set.has_null(),
        Predicate::Compare(..)
        | Predicate::Regex(_)
        | Predicate::Exists
        | Predicate::Type(_)
        | Predicate::Size(_)
        | Predicate::Modulo { .. }
        | Predicate::Bits(..)
        | Predicate::ElementMatches(_)
        | Predicate::ElementPasses(_) => true,
    }
}

fn is_ordinary(value: &Value) -> bool {
    let is_nan = model::number::Number::of(value.as_ref()).is_some_and(|number| number.is_nan());
    !is_nan
        && !matches!(
            value,
            Value::Null | Value::Undefined | Value::MinKey | Value::MaxKey
        )
}

/// Whether a candidate equal to `value` satisfies `<comparison> limit`.
fn satisfies(value: &Value, comparison: Comparison, limit: &Value) -> bool {
    is_ordinary(value)
        && is_ordinary(limit)
        && order::bracket(value.kind()) == order::bracket(limit.kind())
        && comparison.accepts(order::compare(value.as_ref(), limit.as_ref()))
}

fn compare_implies(given: Comparison, value: &Value, wanted: Comparison, limit: &Value) -> bool {
    if !is_ordinary(value)
        || !is_ordinary(limit)
        || order::bracket(value.kind()) != order::bracket(limit.kind())
    {
        return false;
    }
    let ordering = order::compare(value.as_ref(), limit.as_ref());
    match (given, wanted) {
        (Comparison::Equal, wanted) => wanted.accepts(ordering),
        (Comparison::Less, Comparison::Less | Comparison::LessOrEqual)
        | (Comparison::LessOrEqual, Comparison::LessOrEqual) => ordering.is_le(),
        (Comparison::LessOrEqual, Comparison::Less) => ordering.is_lt(),
        (Comparison::Greater, Comparison::Greater | Comparison::GreaterOrEqual)
        | (Comparison::GreaterOrEqual, Comparison::GreaterOrEqual) => ordering.is_ge(),
        (Comparison::GreaterOrEqual, Comparison::Greater) => ordering.is_gt(),
        _ => false,
    }
}
