//! One index scan for one filter: bounds, proofs, order.

use super::interval::FieldBounds;
use super::leaves::{Condition, Leaf, conjuncts};
use super::predicate_bounds::{
    IndexTraits, PredicateBounds, Proof, may_be_missing, may_be_missing_hashed,
};
use super::scan_bounds::{ScanBounds, ScanDirection};
use super::{IndexView, implication};
use crate::filter::{Filter, Predicate};
use crate::index::FieldKind;
use crate::path::Path;
use crate::sort::SortPattern;
use model::bson::Value;
use model::key::Direction;

/// A scan over an index.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    /// The index's place in the list that the planner was given.
    pub index: usize,
    /// Per field, in the order of values.
    pub fields: Vec<FieldBounds>,
    pub bounds: ScanBounds,
    pub direction: ScanDirection,
    /// As it was when the plan was made.
    pub multikey: bool,
    /// The keys hold all that is needed: documents are not fetched.
    pub covered: bool,
    /// The conditions that must be asked of the document, or of the key.
    pub residual: Option<Filter>,
    /// Whether all of `residual` can be asked of the key.
    pub residual_of_key: bool,
}

/// Whether some condition uses the index's first field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Bounds,
    /// Only its order or its being hinted speaks for it.
    WholeIndex,
}

/// The best scan of one index for a filter. `None` if the index may not contain
/// all matching documents. With `forced` (a hint) that is not asked.
pub(super) fn access(
    at: usize,
    index: &IndexView<'_>,
    filter: &Filter,
    leaves: &[Leaf<'_>],
    forced: bool,
) -> Option<(IndexAccess, Use)> {
    let definition = index.definition;
    if let Some(partial) = &definition.partial
        && !forced
        && !implication::implies(filter, partial)
    {
        return None;
    }
    let mut chosen: Vec<Chosen<'_>> = Vec::new();
    let mut fields = Vec::with_capacity(definition.fields.len());
    for field in &definition.fields {
        let found = choose(field.kind, &field.path, index, leaves, &chosen);
        let bounds = match &found[..] {
            [] => FieldBounds::everything(),
            [first, rest @ ..] => rest.iter().fold(first.bounds.clone(), |bounds, next| {
                bounds.intersection(&next.bounds)
            }),
        };
        fields.push(bounds);
        chosen.extend(found);
    }
    if definition.sparse && !forced && !proves_presence(&chosen) {
        return None;
    }
    let first_path = definition.fields.first().map(|field| &field.path);
    let used = if chosen.iter().any(|c| Some(&c.leaf.path) == first_path) {
        Use::Bounds
    } else {
        Use::WholeIndex
    };
    let (residual, residual_of_key) = residual(filter, &chosen, index);
    let directions = definition.directions();
    Some((
        IndexAccess {
            index: at,
            bounds: ScanBounds::new(&fields, &directions),
            fields,
            direction: ScanDirection::Forward,
            multikey: index.multikey,
            covered: false,
            residual,
            residual_of_key,
        },
        used,
    ))
}

/// A condition that contributed to the bounds.
struct Chosen<'f> {
    leaf: Leaf<'f>,
    bounds: FieldBounds,
    proof: Proof,
    /// The key of a missing field is inside.
    may_be_missing: bool,
}

/// A document with a value in one of the fields is in a sparse index.
fn proves_presence(chosen: &[Chosen<'_>]) -> bool {
    chosen.iter().any(|c| {
        !c.may_be_missing
            || matches!(
                c.leaf.condition,
                Condition::Filter(Filter::Field {
                    predicate: Predicate::Exists,
                    ..
                })
            )
    })
}

/// The conditions that bound one field: without arrays all of them, else one
/// that speaks of the same key as those chosen before.
fn choose<'f>(
    kind: FieldKind,
    path: &Path,
    index: &IndexView<'_>,
    leaves: &[Leaf<'f>],
    before: &[Chosen<'f>],
) -> Vec<Chosen<'f>> {
    let traits = IndexTraits {
        multikey: index.multikey,
        sparse: index.definition.sparse && index.definition.fields.len() == 1,
    };
    let mut usable: Vec<Chosen<'f>> = leaves
        .iter()
        .filter(|leaf| leaf.path == *path)
        .filter_map(|leaf| {
            let PredicateBounds { bounds, proof } = match kind {
                FieldKind::Hashed => leaf.hashed_bounds(traits)?,
                FieldKind::Ascending | FieldKind::Descending => leaf.bounds(traits)?,
            };
            // Inside `$elemMatch` the document's own array matters too.
            let proof = match leaf.conjunct {
                Some(_) => proof,
                None => Proof::Document,
            };
            Some(Chosen {
                leaf: leaf.clone(),
                may_be_missing: match kind {
                    FieldKind::Hashed => may_be_missing_hashed(&bounds),
                    FieldKind::Ascending | FieldKind::Descending => may_be_missing(&bounds),
                },
                bounds,
                proof,
            })
        })
        .collect();
    if !index.multikey {
        return usable;
    }
    usable.retain(|c| before.iter().all(|b| b.leaf.shares_a_key_with(&c.leaf)));
    usable
        .into_iter()
        .min_by(|a, b| width(&a.bounds).total_cmp(&width(&b.bounds)))
        .into_iter()
        .collect()
}

/// A guess at the share of keys inside: only for comparing.
pub(super) fn width(bounds: &FieldBounds) -> f64 {
    let widths = bounds.intervals().iter().map(|interval| {
        if interval.is_point() {
            0.01
        } else if is_bracket_end(&interval.low) || is_bracket_end(&interval.high) {
            if matches!(interval.low, Value::MinKey) || matches!(interval.high, Value::MaxKey) {
                0.6
            } else {
                0.3
            }
        } else {
            0.1
        }
    });
    let sum: f64 = widths.sum();
    if bounds.is_everything() {
        1.0
    } else {
        sum.min(0.95)
    }
}

fn is_bracket_end(value: &Value) -> bool {
    match value {
        Value::MinKey | Value::MaxKey => true,
        Value::Double(number) => number.is_infinite() || number.is_nan(),
        Value::String(text) => text.is_empty(),
        Value::Document(doc) => doc.as_doc().is_empty(),
        Value::Array(array) => array.as_array().is_empty(),
        Value::DateTime(ms) => *ms == i64::MIN || *ms == i64::MAX,
        _ => false,
    }
}

/// What the bounds leave unproven, and whether keys alone could answer it.
fn residual(
    filter: &Filter,
    chosen: &[Chosen<'_>],
    index: &IndexView<'_>,
) -> (Option<Filter>, bool) {
    let mut left = Vec::new();
    let mut of_key = !index.multikey && !has_nested_paths(index);
    for (at, conjunct) in conjuncts(filter).iter().enumerate() {
        let proven = chosen
            .iter()
            .any(|c| c.leaf.conjunct == Some(at) && c.proof == Proof::Exact);
        if proven {
            continue;
        }
        of_key &= can_ask_key(conjunct, index);
        left.push(conjunct.clone());
    }
    match left.len() {
        0 => (None, !index.multikey),
        1 => (left.pop(), of_key),
        _ => (Some(Filter::And(left)), of_key),
    }
}

/// Whether a condition gives the same answer for the document that a key
/// describes, in which missing fields are null.
fn can_ask_key(filter: &Filter, index: &IndexView<'_>) -> bool {
    match filter {
        Filter::And(children) | Filter::Or(children) | Filter::Nor(children) => {
            children.iter().all(|child| can_ask_key(child, index))
        }
        Filter::Not(child) => can_ask_key(child, index),
        Filter::Field { path, predicate } => {
            let has_field = index.definition.fields.iter().any(|field| {
                field.path == *path
                    && field.kind != FieldKind::Hashed
                    && path.components().iter().all(|part| part.index().is_none())
            });
            has_field
                && match predicate {
                    Predicate::Compare(_, value) => {
                        !matches!(value, Value::Array(_) | Value::Undefined)
                    }
                    Predicate::In(_) | Predicate::Regex(_) | Predicate::Modulo { .. } => true,
                    Predicate::Exists
                    | Predicate::Type(_)
                    | Predicate::Size(_)
                    | Predicate::Bits(..)
                    | Predicate::ElementMatches(_)
                    | Predicate::ElementPasses(_) => false,
                }
        }
        Filter::AlwaysTrue | Filter::AlwaysFalse => true,
        Filter::Expression { .. } | Filter::SampleRate(_) => false,
    }
}

impl IndexAccess {
    /// Turns the scan so that it yields documents in the order of `sort`, if it can.
    pub(super) fn ordered_by(&mut self, index: &IndexView<'_>, sort: &SortPattern) -> bool {
        match self.order_for(index, sort) {
            Some(direction) => {
                self.direction = direction;
                true
            }
            None => false,
        }
    }

    fn order_for(&self, index: &IndexView<'_>, sort: &SortPattern) -> Option<ScanDirection> {
        let definition = index.definition;
        let mut wanted = sort.fields().peekable();
        let mut direction: Option<ScanDirection> = None;
        let mut sorted: Vec<&Path> = Vec::new();
        for (field, bounds) in definition.fields.iter().zip(&self.fields) {
            let Some(&(path, way)) = wanted.peek() else {
                break;
            };
            let same = *path == field.path && field.kind != FieldKind::Hashed;
            if !same {
                // One value throughout does not disturb the order of what follows.
                if bounds.is_single_point() {
                    continue;
                }
                return None;
            }
            let constant = bounds.is_single_point() && !index.multikey;
            if !constant {
                let this = if way == field.kind.direction() {
                    ScanDirection::Forward
                } else {
                    ScanDirection::Backward
                };
                if direction.is_some_and(|other| other != this) {
                    return None;
                }
                direction = Some(this);
            }
            sorted.push(path);
            wanted.next();
        }
        // A field that is the same in all documents needs no sorting.
        for (path, _) in wanted {
            let constant = !index.multikey
                && definition
                    .fields
                    .iter()
                    .zip(&self.fields)
                    .any(|(field, bounds)| field.path == *path && bounds.is_single_point());
            if !constant {
                return None;
            }
        }
        if index.multikey && !self.keeps_order_with_arrays(index, &sorted) {
            return None;
        }
        Some(direction.unwrap_or(ScanDirection::Forward))
    }

    /// A document is emitted at its first key inside the bounds. That is its
    /// place in the sort only if no bounds hide a smaller key: the sorted fields
    /// are unbounded, and the bounded ones share no array with them.
    fn keeps_order_with_arrays(&self, index: &IndexView<'_>, sorted: &[&Path]) -> bool {
        let first = |path: &Path| path.components().first().map(|c| c.name().to_owned());
        index
            .definition
            .fields
            .iter()
            .zip(&self.fields)
            .filter(|(_, bounds)| !bounds.is_everything())
            .all(|(field, _)| sorted.iter().all(|path| first(path) != first(&field.path)))
    }

    /// Whether no two keys of one document are inside the bounds, for there is
    /// only one inside.
    pub fn is_one_key(&self) -> bool {
        self.fields.iter().all(FieldBounds::is_single_point)
    }

    /// Skips fetching if the keys hold every field that is asked for.
    pub(super) fn cover(&mut self, index: &IndexView<'_>, needed: &[Path]) {
        let has = |path: &Path| {
            index.definition.fields.iter().any(|field| {
                field.path == *path
                    && field.kind != FieldKind::Hashed
                    && path.components().iter().all(|part| part.index().is_none())
            })
        };
        // Of a document with several keys at most one is this one.
        let counts_keys = needed.is_empty() && self.residual.is_none() && self.is_one_key();
        self.covered = counts_keys
            || !index.multikey
                && (self.residual.is_none() || self.residual_of_key)
                && needed.iter().all(has)
                && !has_nested_paths(index);
    }
}

/// `a` beside `a.b`: a document cannot be put together from such keys.
fn has_nested_paths(index: &IndexView<'_>) -> bool {
    let paths: Vec<&str> = index
        .definition
        .fields
        .iter()
        .map(|field| field.path.as_str())
        .collect();
    paths.iter().enumerate().any(|(at, path)| {
        paths.iter().enumerate().any(|(other_at, other)| {
            at != other_at && (path == other || other.starts_with(&format!("{path}.")))
        })
    })
}

/// The stored direction of a field, for `min` and `max`.
pub(super) fn directions(index: &IndexView<'_>) -> Vec<Direction> {
    index.definition.directions()
}
