//! Matching: a filter, a document, a boolean.
//!
//! Comparisons are bracketed by type: a number is neither less nor greater than
//! a string. Exceptions: null equals missing and undefined; MinKey and MaxKey
//! compare with everything; NaN equals NaN and is not ordered otherwise.
//!
//! Positions follow the walk: every condition that holds overwrites what an
//! earlier one left, disjunctions and negations leave nothing, and a conjunction
//! that fails wipes it.

use super::{Comparison, Filter, Matched, Predicate};
use crate::path::{LeafArray, Path};
use model::Error;
use model::bson::{Array, Doc, Kind, ValueRef};
use model::number::{self, Number};
use model::order;

/// What a walk leaves behind besides its result.
#[derive(Default)]
struct Trail {
    position: Option<u32>,
    /// The first error of an expression; the boolean means nothing then.
    error: Option<Error>,
}

pub(super) fn matches(filter: &Filter, doc: Doc<'_>) -> Result<bool, Error> {
    Ok(matches_with_position(filter, doc)?.is_some())
}

pub(super) fn matches_with_position(
    filter: &Filter,
    doc: Doc<'_>,
) -> Result<Option<Matched>, Error> {
    let mut trail = Trail::default();
    let held = filter.holds(doc, &mut trail);
    match trail.error {
        Some(error) => Err(error),
        None => Ok(held.then_some(Matched {
            position: trail.position,
        })),
    }
}

pub(super) fn matches_value(filter: &Filter, value: ValueRef<'_>) -> bool {
    filter.holds_for_value(value, &mut Trail::default())
}

impl Filter {
    fn holds(&self, doc: Doc<'_>, trail: &mut Trail) -> bool {
        match self {
            Filter::And(children) => {
                for child in children {
                    if !child.holds(doc, trail) {
                        trail.position = None;
                        return false;
                    }
                }
                true
            }
            Filter::Or(children) => any_quietly(children, doc, trail),
            Filter::Nor(children) => !any_quietly(children, doc, trail),
            Filter::Not(child) => !any_quietly(std::slice::from_ref(child), doc, trail),
            Filter::Field { path, predicate } => predicate.holds(path, doc, trail),
            Filter::Expression { expression, .. } => match expression.evaluate(doc) {
                Ok(value) => value.is_some_and(|value| number::is_truthy(value.as_ref())),
                Err(error) => {
                    trail.error.get_or_insert(error);
                    false
                }
            },
            Filter::SampleRate(rate) => fastrand::f64() < *rate,
            Filter::AlwaysTrue => true,
            Filter::AlwaysFalse => false,
        }
    }

    /// For filters over the value itself.
    fn holds_for_value(&self, value: ValueRef<'_>, trail: &mut Trail) -> bool {
        match self {
            Filter::And(children) => children
                .iter()
                .all(|child| child.holds_for_value(value, trail)),
            Filter::Or(children) => children
                .iter()
                .any(|child| child.holds_for_value(value, trail)),
            Filter::Nor(children) => !children
                .iter()
                .any(|child| child.holds_for_value(value, trail)),
            Filter::Not(child) => !child.holds_for_value(value, trail),
            Filter::Field { path, predicate } if path.is_itself() => {
                predicate.accepts(Some(value), trail)
            }
            Filter::SampleRate(rate) => fastrand::f64() < *rate,
            Filter::AlwaysTrue => true,
            // Fields and expressions ask a document; a bare value has none.
            Filter::Field { .. } | Filter::Expression { .. } | Filter::AlwaysFalse => false,
        }
    }
}

impl Predicate {
    /// What this predicate wants to see of an array at the end of its path.
    pub(super) fn leaf_array(&self) -> LeafArray {
        match self {
            Predicate::Size(_) | Predicate::ElementMatches(_) | Predicate::ElementPasses(_) => {
                LeafArray::Whole
            }
            Predicate::Compare(..)
            | Predicate::In(_)
            | Predicate::Regex(_)
            | Predicate::Exists
            | Predicate::Type(_)
            | Predicate::Modulo { .. }
            | Predicate::Bits(..) => LeafArray::Expand,
        }
    }

    fn holds(&self, path: &Path, doc: Doc<'_>, trail: &mut Trail) -> bool {
        // The most frequent predicate gets a walk of its own, without the match.
        if let Predicate::Compare(comparison, value) = self {
            let (comparison, value) = (*comparison, value.as_ref());
            // And of those the most frequent is decided by bytes.
            if let (Comparison::Equal, ValueRef::String(text)) = (comparison, value)
                && let [field] = path.components()
            {
                match doc.element(field.name()) {
                    // What is missing equals null at most.
                    None => return false,
                    Some(element) => {
                        if let Some(found) = element.text_bytes() {
                            return found == text.as_bytes();
                        }
                    }
                }
            }
            return path.any(doc, LeafArray::Expand, &mut |candidate, position| {
                let accepted = compare(comparison, candidate, value);
                if accepted && position.is_some() {
                    trail.position = position;
                }
                accepted
            });
        }
        path.any(doc, self.leaf_array(), &mut |candidate, position| {
            let accepted = self.accepts(candidate, trail);
            if accepted && position.is_some() {
                trail.position = position;
            }
            accepted
        })
    }

    /// Whether one candidate passes; `None` is the missing field.
    fn accepts(&self, candidate: Option<ValueRef<'_>>, trail: &mut Trail) -> bool {
        match self {
            Predicate::Compare(comparison, value) => {
                compare(*comparison, candidate, value.as_ref())
            }
            Predicate::In(values) => values.accepts(candidate),
            Predicate::Regex(regex) => candidate.is_some_and(|value| regex.matches_value(value)),
            Predicate::Exists => candidate.is_some(),
            Predicate::Type(types) => candidate.is_some_and(|value| types.contains(value.kind())),
            Predicate::Size(size) => match candidate {
                Some(ValueRef::Array(array)) => array.count() as i64 == *size,
                _ => false,
            },
            Predicate::Modulo { divisor, remainder } => candidate
                .and_then(Number::of)
                .and_then(Number::to_i64_truncated)
                .is_some_and(|value| value.wrapping_rem(*divisor) == *remainder),
            Predicate::Bits(test, mask) => candidate.is_some_and(|value| test.accepts(mask, value)),
            Predicate::ElementMatches(filter) => match candidate {
                Some(ValueRef::Array(array)) => any_element(array, trail, |element, trail| {
                    match element {
                        ValueRef::Document(doc) => filter.holds(doc, trail),
                        // An array is a document whose names are numbers.
                        ValueRef::Array(nested) => filter.holds(nested.as_doc(), trail),
                        _ => false,
                    }
                }),
                _ => false,
            },
            Predicate::ElementPasses(filters) => match candidate {
                Some(ValueRef::Array(array)) => any_element(array, trail, |element, trail| {
                    filters
                        .iter()
                        .all(|filter| filter.holds_for_value(element, trail))
                }),
                _ => false,
            },
        }
    }
}

/// Whether any of the filters holds, leaving no position behind.
fn any_quietly(filters: &[Filter], doc: Doc<'_>, trail: &mut Trail) -> bool {
    let before = trail.position;
    let any = filters.iter().any(|filter| filter.holds(doc, trail));
    trail.position = before;
    any
}

/// The first element that passes is the position, whatever its inside said.
fn any_element<'a>(
    array: Array<'a>,
    trail: &mut Trail,
    mut test: impl FnMut(ValueRef<'a>, &mut Trail) -> bool,
) -> bool {
    let before = trail.position;
    let found = array.iter().position(|element| test(element, trail));
    trail.position = match found {
        Some(at) => u32::try_from(at).ok(),
        None => before,
    };
    found.is_some()
}

/// `candidate <comparison> value`, bracketed by type.
pub(super) fn compare(
    comparison: Comparison,
    candidate: Option<ValueRef<'_>>,
    value: ValueRef<'_>,
) -> bool {
    // A missing field compares as undefined does.
    let candidate = candidate.unwrap_or(ValueRef::Undefined);
    let (left, right) = (candidate.kind(), value.kind());
    if order::bracket(left) != order::bracket(right) {
        return match right {
            Kind::Null if left == Kind::Undefined => comparison.accepts(std::cmp::Ordering::Equal),
            Kind::MinKey => comparison.accepts(std::cmp::Ordering::Greater),
            Kind::MaxKey => comparison.accepts(std::cmp::Ordering::Less),
            _ => false,
        };
    }
    let ordering = order::compare(candidate, value);
    if ordering.is_ne() && left.is_number() && (is_nan(candidate) || is_nan(value)) {
        return false;
    }
    comparison.accepts(ordering)
}

fn is_nan(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Double(double) => double.is_nan(),
        ValueRef::Decimal128(_) => Number::of(value).is_some_and(Number::is_nan),
        _ => false,
    }
}
