//! The bounds that one condition puts on an index field.
//!
//! Bounds never lose a match: a document that meets the condition has a key
//! inside. The other direction is a property of its own:
//!
//! ```text
//!   Exact    a key inside proves the condition; no need to ask the document
//!   Key      the condition can be asked of the key itself (one key per document)
//!   Document only the document knows
//! ```
//!
//! What a key does not tell: null stands for a missing field, undefined for an
//! empty array, and elements of arrays have lost their array.

use super::interval::{FieldBounds, Interval, bracket_of, least_of, upper_end_of};
use crate::filter::{Comparison, Filter, Predicate, TypeSet, ValueSet};
use crate::path::Path;
use crate::regex::Regex;
use model::bson::{Kind, Value, ValueRef};
use model::number::Number;

/// How much of a condition its bounds prove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Proof {
    Document,
    Key,
    Exact,
}

#[derive(Clone, Debug)]
pub(super) struct PredicateBounds {
    pub(super) bounds: FieldBounds,
    pub(super) proof: Proof,
}

/// What is known of the index that the bounds are for.
#[derive(Clone, Copy)]
pub(super) struct IndexTraits {
    pub(super) multikey: bool,
    pub(super) sparse: bool,
}

fn exact(bounds: FieldBounds) -> Option<PredicateBounds> {
    with_proof(bounds, Proof::Exact)
}

fn with_proof(bounds: FieldBounds, proof: Proof) -> Option<PredicateBounds> {
    Some(PredicateBounds { bounds, proof })
}

/// The bounds of a leaf, or `None` if an index is of no use to it.
/// `inside_array` is true below `$elemMatch`.
pub(super) fn leaf_bounds(
    path: &Path,
    leaf: &Filter,
    index: IndexTraits,
) -> Option<PredicateBounds> {
    let found = match leaf {
        Filter::Field { predicate, .. } => predicate_bounds(predicate, index)?,
        Filter::Not(child) => match &**child {
            Filter::Field { predicate, .. } => negated_bounds(predicate, index)?,
            _ => return None,
        },
        _ => return None,
    };
    // A number in a path is an index to some walks and a name to others: only
    // conditions on a value that is surely there are the same for both.
    if path.components().iter().any(|part| part.index().is_some()) {
        let plain = match leaf {
            Filter::Field { predicate, .. } => matches!(
                predicate,
                Predicate::Compare(..) | Predicate::In(_) | Predicate::Regex(_)
            ),
            _ => false,
        };
        if !plain || may_be_missing(&found.bounds) {
            return None;
        }
    }
    Some(found)
}

/// Whether the key of a missing field, or of an empty array, is inside.
pub(super) fn may_be_missing(bounds: &FieldBounds) -> bool {
    bounds.contains(&Value::Null) || bounds.contains(&Value::Undefined)
}

/// The same for the bounds of a hashed field.
pub(super) fn may_be_missing_hashed(bounds: &FieldBounds) -> bool {
    bounds.contains(&Value::Int64(model::hash::hashed_index_key(ValueRef::Null)))
}

fn predicate_bounds(predicate: &Predicate, index: IndexTraits) -> Option<PredicateBounds> {
    match predicate {
        Predicate::Compare(Comparison::Equal, value) => equality(value),
        Predicate::Compare(comparison, value) => range(*comparison, value),
        Predicate::In(set) => membership(set),
        Predicate::Regex(regex) => Some(pattern(regex)),
        Predicate::Exists => {
            let proof = if index.sparse {
                Proof::Exact
            } else {
                Proof::Document
            };
            with_proof(FieldBounds::everything(), proof)
        }
        Predicate::Type(types) => Some(type_brackets(*types)),
        Predicate::Modulo { .. } => {
            with_proof(FieldBounds::of(vec![bracket_of(Kind::Double)]), Proof::Key)
        }
        // All of them speak of one element, which is one key.
        Predicate::ElementPasses(filters) => {
            let mut bounds = FieldBounds::everything();
            let mut any = false;
            for filter in filters {
                if let Some(found) = element_bounds(filter, index) {
                    bounds = bounds.intersection(&found);
                    any = true;
                }
            }
            if !any {
                return None;
            }
            with_proof(bounds, Proof::Document)
        }
        Predicate::Size(_) | Predicate::Bits(..) | Predicate::ElementMatches(_) => None,
    }
}

/// Bounds for a condition on an element itself.
fn element_bounds(filter: &Filter, index: IndexTraits) -> Option<FieldBounds> {
    let (predicate, negated) = match filter {
        Filter::Field { predicate, .. } => (predicate, false),
        Filter::Not(child) => match &**child {
            Filter::Field { predicate, .. } => (predicate, true),
            _ => return None,
        },
        _ => return None,
    };
    // An element that is an array is one key as a whole, and is not entered.
    let speaks_of_arrays = match predicate {
        Predicate::Compare(_, value) => matches!(value, Value::Array(_)),
        Predicate::In(set) => set.values().iter().any(|v| matches!(v, Value::Array(_))),
        Predicate::Regex(_) | Predicate::Modulo { .. } => false,
        Predicate::Exists
        | Predicate::Type(_)
        | Predicate::Size(_)
        | Predicate::Bits(..)
        | Predicate::ElementMatches(_)
        | Predicate::ElementPasses(_) => true,
    };
    if speaks_of_arrays {
        return None;
    }
    let found = if negated {
        negated_bounds(predicate, index)?
    } else {
        predicate_bounds(predicate, index)?
    };
    Some(found.bounds)
}

fn equality(value: &Value) -> Option<PredicateBounds> {
    match value {
        Value::Undefined => None,
        Value::Null => with_proof(nullish(), Proof::Document),
        Value::Array(array) => {
            // The array itself where it is an element or reached by index, and
            // otherwise the key that its first element, or its emptiness, has.
            let first = match array.iter().next() {
                Some(first) => first.to_owned(),
                None => Value::Undefined,
            };
            let bounds =
                FieldBounds::of(vec![Interval::point(first), Interval::point(value.clone())]);
            with_proof(bounds, Proof::Document)
        }
        value => exact(FieldBounds::point(value.clone())),
    }
}

fn nullish() -> FieldBounds {
    FieldBounds::of(vec![
        Interval::point(Value::Undefined),
        Interval::point(Value::Null),
    ])
}

fn is_nan(value: &Value) -> bool {
    Number::of(value.as_ref()).is_some_and(Number::is_nan)
}

fn range(comparison: Comparison, value: &Value) -> Option<PredicateBounds> {
    let included = matches!(
        comparison,
        Comparison::LessOrEqual | Comparison::GreaterOrEqual
    );
    let below = matches!(comparison, Comparison::Less | Comparison::LessOrEqual);
    match value {
        Value::Undefined => None,
        // Elements of a greater array may be anything.
        Value::Array(_) => with_proof(FieldBounds::everything(), Proof::Document),
        // Ends of all brackets: everything is on one side, a missing field too.
        Value::MinKey | Value::MaxKey => {
            let bounds = if below {
                FieldBounds::of(vec![Interval::new(
                    Value::MinKey,
                    true,
                    value.clone(),
                    included,
                )])
            } else {
                FieldBounds::of(vec![Interval::new(
                    value.clone(),
                    included,
                    Value::MaxKey,
                    true,
                )])
            };
            with_proof(bounds, Proof::Document)
        }
        Value::Null => {
            let bounds = if included {
                nullish()
            } else {
                FieldBounds::nothing()
            };
            with_proof(bounds, Proof::Document)
        }
        value if is_nan(value) => exact(if included {
            FieldBounds::point(value.clone())
        } else {
            FieldBounds::nothing()
        }),
        value if below => {
            let low = match value.kind() {
                // NaN is below all numbers in order, but not less than any.
                kind if kind.is_number() => Value::Double(f64::NEG_INFINITY),
                kind => least_of(kind),
            };
            exact(FieldBounds::of(vec![Interval::new(
                low,
                true,
                value.clone(),
                included,
            )]))
        }
        value => {
            let (high, high_included) = upper_end_of(value.kind());
            exact(FieldBounds::of(vec![Interval::new(
                value.clone(),
                included,
                high,
                high_included,
            )]))
        }
    }
}

fn membership(set: &ValueSet) -> Option<PredicateBounds> {
    let mut intervals = Vec::with_capacity(set.values().len());
    let mut proof = Proof::Exact;
    for value in set.values() {
        let found = equality(value)?;
        proof = proof.min(found.proof);
        intervals.extend(found.bounds.intervals().iter().cloned());
    }
    for regex in set.regexes() {
        let found = pattern(regex);
        proof = proof.min(found.proof);
        intervals.extend(found.bounds.intervals().iter().cloned());
    }
    with_proof(FieldBounds::of(intervals), proof)
}

fn pattern(regex: &Regex) -> PredicateBounds {
    let (strings, proof) = match regex.prefix() {
        Some(prefix) => {
            let (high, high_included) = match next_text(&prefix.text) {
                Some(next) => (Value::String(next), false),
                None => upper_end_of(Kind::String),
            };
            let proof = if prefix.is_exact {
                Proof::Exact
            } else {
                Proof::Key
            };
            let low = Value::String(prefix.text);
            (Interval::new(low, true, high, high_included), proof)
        }
        None => (bracket_of(Kind::String), Proof::Key),
    };
    PredicateBounds {
        bounds: FieldBounds::of(vec![strings, Interval::point(regex.to_value())]),
        proof,
    }
}

/// The least text that is above all texts beginning with this one.
fn next_text(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        let next = match last {
            '\u{D7FF}' => Some('\u{E000}'),
            other => char::from_u32(u32::from(other) + 1),
        };
        if let Some(next) = next {
            text.push(next);
            return Some(text);
        }
    }
    None
}

fn type_brackets(types: TypeSet) -> PredicateBounds {
    if types.contains(Kind::Array) {
        return PredicateBounds {
            bounds: FieldBounds::everything(),
            proof: Proof::Document,
        };
    }
    let only_numbers = types.all_numbers() && types.codes().next().is_none();
    PredicateBounds {
        bounds: FieldBounds::of(types.kinds().map(bracket_of).collect()),
        proof: if only_numbers {
            Proof::Exact
        } else {
            Proof::Document
        },
    }
}

/// Bounds of `$ne`, `$nin`, `$not` and `$exists: false`. Sound because the
/// positive bounds hold only keys that prove the positive condition: a document
/// that does not meet it has none of its keys there.
fn negated_bounds(predicate: &Predicate, index: IndexTraits) -> Option<PredicateBounds> {
    let proof = if index.multikey {
        Proof::Document
    } else {
        Proof::Exact
    };
    let complement = |bounds: &FieldBounds| with_proof(bounds.complement(), proof);
    match predicate {
        Predicate::Exists => with_proof(FieldBounds::point(Value::Null), Proof::Document),
        Predicate::Compare(_, Value::Null) => {
            // With arrays, null and undefined keys prove nothing.
            if index.multikey {
                return None;
            }
            let positive = predicate_bounds(predicate, index)?;
            complement(&positive.bounds)
        }
        Predicate::Compare(_, value) => {
            if matches!(value, Value::MinKey | Value::MaxKey) {
                return None;
            }
            let positive = predicate_bounds(predicate, index)?;
            match positive.proof {
                Proof::Exact => complement(&positive.bounds),
                Proof::Key | Proof::Document => None,
            }
        }
        Predicate::In(set) => {
            let unsound = !set.regexes().is_empty()
                || set.has_null() && index.multikey
                || set
                    .values()
                    .iter()
                    .any(|value| matches!(value.as_ref(), ValueRef::Array(_)));
            if unsound {
                return None;
            }
            complement(&membership(set)?.bounds)
        }
        Predicate::Regex(_)
        | Predicate::Type(_)
        | Predicate::Size(_)
        | Predicate::Modulo { .. }
        | Predicate::Bits(..)
        | Predicate::ElementMatches(_)
        | Predicate::ElementPasses(_) => None,
    }
}

/// A hashed field knows nothing but whether a value may be equal.
pub(super) fn hashed_bounds(predicate: &Predicate) -> Option<PredicateBounds> {
    let hash =
        |value: ValueRef<'_>| Interval::point(Value::Int64(model::hash::hashed_index_key(value)));
    let points = |value: &Value| match value {
        Value::Null => Some(vec![hash(ValueRef::Null), hash(ValueRef::Undefined)]),
        Value::Array(_) | Value::Undefined => None,
        value => Some(vec![hash(value.as_ref())]),
    };
    let intervals = match predicate {
        Predicate::Compare(Comparison::Equal, value) => points(value)?,
        Predicate::In(set) if set.regexes().is_empty() => {
            let mut intervals = Vec::new();
            for value in set.values() {
                intervals.extend(points(value)?);
            }
            intervals
        }
        _ => return None,
    };
    with_proof(FieldBounds::of(intervals), Proof::Document)
}

/// The bounds of a comparison within an `$expr`. It orders all types, and a
/// missing field below null; an array it compares as a whole, of which keys know
/// nothing.
pub(super) fn expression_bounds(
    path: &Path,
    comparison: Comparison,
    value: &Value,
    index: IndexTraits,
) -> Option<PredicateBounds> {
    // A number in a path is a name to expressions, and may be an index to keys.
    let numbered = path.components().iter().any(|part| part.index().is_some());
    if index.multikey || numbered || matches!(value, Value::Array(_) | Value::Undefined) {
        return None;
    }
    let upwards = |included| Interval::new(value.clone(), included, Value::MaxKey, true);
    let downwards = |included| Interval::new(Value::MinKey, true, value.clone(), included);
    let bounds = match comparison {
        Comparison::Equal if matches!(value, Value::Null) => nullish(),
        Comparison::Equal => FieldBounds::point(value.clone()),
        Comparison::Greater => FieldBounds::of(vec![upwards(false)]),
        Comparison::GreaterOrEqual => FieldBounds::of(vec![upwards(true)]),
        // The key of a missing field, which is less than null, is null.
        Comparison::Less => FieldBounds::of(vec![downwards(matches!(value, Value::Null))]),
        Comparison::LessOrEqual => FieldBounds::of(vec![downwards(true)]),
    };
    with_proof(bounds, Proof::Document)
}
