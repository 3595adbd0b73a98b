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
use crate::index_keys::MultikeyPaths;
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
    pub multikey: MultikeyPaths,
    /// The conditions that the bounds are made of, by their place in the filter.
    pub conditions: Vec<usize>,
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

/// The scans of one index for a filter. None if the index may not contain all
/// matching documents. With `forced` (a hint) that is not asked.
///
/// There are several where documents have arrays at the first field: of
/// conditions that different elements may meet, bounds can take only one.
pub(super) fn accesses(
    at: usize,
    index: &IndexView<'_>,
    filter: &Filter,
    leaves: &[Leaf<'_>],
    forced: bool,
) -> Vec<(IndexAccess, Use)> {
    let definition = index.definition;
    if let Some(partial) = &definition.partial
        && !forced
        && !implication::implies(filter, partial)
    {
        return Vec::new();
    }
    assignments(index, usable(index, leaves))
        .into_iter()
        .filter(|chosen| !definition.sparse || forced || proves_presence(chosen))
        .map(|chosen| scan(at, index, filter, &chosen))
        .collect()
}

/// The scan whose bounds are made of these conditions.
fn scan(
    at: usize,
    index: &IndexView<'_>,
    filter: &Filter,
    chosen: &[Chosen<'_>],
) -> (IndexAccess, Use) {
    let definition = index.definition;
    let fields: Vec<FieldBounds> = (0..definition.fields.len())
        .map(|field| {
            let of_field = chosen.iter().filter(|c| c.field == field);
            of_field
                .map(|c| c.bounds.clone())
                .reduce(|bounds, next| bounds.intersection(&next))
                .unwrap_or_else(FieldBounds::everything)
        })
        .collect();
    let used = match chosen.iter().any(|c| c.field == 0) {
        true => Use::Bounds,
        false => Use::WholeIndex,
    };
    let (residual, residual_of_key) = residual(filter, chosen, index);
    let mut conditions: Vec<usize> = chosen.iter().map(|c| c.number).collect();
    conditions.sort_unstable();
    let access = IndexAccess {
        index: at,
        bounds: ScanBounds::new(&fields, &definition.directions()),
        fields,
        direction: ScanDirection::Forward,
        multikey: index.multikey.clone(),
        conditions,
        covered: false,
        residual,
        residual_of_key,
    };
    (access, used)
}

/// A condition that contributed to the bounds.
#[derive(Clone)]
struct Chosen<'f> {
    leaf: Leaf<'f>,
    /// The leaf's place among all.
    number: usize,
    /// The field of the index that it bounds.
    field: usize,
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

/// Every condition that could bound some field, in the order in which they are
/// considered: MongoDB's.
fn usable<'f>(index: &IndexView<'_>, leaves: &[Leaf<'f>]) -> Vec<Chosen<'f>> {
    let definition = index.definition;
    let mut usable = Vec::new();
    for (field, indexed) in definition.fields.iter().enumerate() {
        let traits = IndexTraits {
            multikey: !index.multikey.field(field).is_empty(),
            sparse: definition.sparse && definition.fields.len() == 1,
        };
        let of_field = leaves.iter().enumerate();
        let of_field = of_field.filter(|(_, leaf)| leaf.path == indexed.path);
        for (number, leaf) in of_field {
            let found = match indexed.kind {
                FieldKind::Hashed => leaf.hashed_bounds(traits),
                FieldKind::Ascending | FieldKind::Descending => leaf.bounds(traits),
            };
            let Some(PredicateBounds { bounds, proof }) = found else {
                continue;
            };
            usable.push(Chosen {
                leaf: leaf.clone(),
                number,
                field,
                may_be_missing: match indexed.kind {
                    FieldKind::Hashed => may_be_missing_hashed(&bounds),
                    FieldKind::Ascending | FieldKind::Descending => may_be_missing(&bounds),
                },
                bounds,
                // Inside `$elemMatch` the document's own array matters too.
                proof: match leaf.conjunct {
                    Some(_) => proof,
                    None => Proof::Document,
                },
            });
        }
    }
    usable.sort_by(|a, b| a.leaf.condition.usual_order(&b.leaf.condition));
    usable
}

/// The sets of conditions that may bound one scan together, because a document
/// that meets them all has one key that does. Without arrays that is all of them.
fn assignments<'f>(index: &IndexView<'_>, usable: Vec<Chosen<'f>>) -> Vec<Vec<Chosen<'f>>> {
    if index.multikey.is_empty() {
        return vec![usable];
    }
    let (leading, mut others): (Vec<_>, Vec<_>) = usable.into_iter().partition(|c| c.field == 0);
    others.sort_by_key(|c| c.field);
    let several = !index.multikey.field(0).is_empty() && leading.len() > 1;
    let first: Vec<Option<&Chosen<'f>>> = match several {
        true => leading.iter().map(Some).collect(),
        false => vec![None],
    };
    let mut sets: Vec<Vec<Chosen<'f>>> = Vec::with_capacity(first.len());
    for first in first {
        let mut chosen: Vec<Chosen<'f>> = first.cloned().into_iter().collect();
        for next in leading.iter().chain(&others) {
            let is_first = first.is_some_and(|first| first.number == next.number);
            if !is_first && chosen.iter().all(|c| agree(index, c, next)) {
                chosen.push(next.clone());
            }
        }
        let numbers = |set: &[Chosen<'_>]| {
            let mut numbers: Vec<usize> = set.iter().map(|c| c.number).collect();
            numbers.sort_unstable();
            numbers
        };
        if sets.iter().all(|set| numbers(set) != numbers(&chosen)) {
            sets.push(chosen);
        }
    }
    sets
}

/// Whether two conditions that hold for a document hold for one of its keys
/// together.
fn agree(index: &IndexView<'_>, left: &Chosen<'_>, right: &Chosen<'_>) -> bool {
    let arrays = [left.field, right.field].map(|field| index.multikey.field(field));
    left.leaf.shares_a_key_with(&right.leaf, |component| {
        arrays.iter().any(|array| array.contains(component))
    })
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
    let mut of_key = !has_nested_paths(index);
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
        0 => (None, true),
        1 => (left.pop(), of_key),
        _ => (Some(Filter::And(left)), of_key),
    }
}

/// Whether keys hold the value at a path: not where they hold elements of an
/// array, its hash, or what may be an element or a field.
fn key_tells(index: &IndexView<'_>, path: &Path) -> bool {
    let mut fields = index.definition.fields.iter().enumerate();
    fields.any(|(at, field)| {
        field.path == *path
            && field.kind != FieldKind::Hashed
            && index.multikey.field(at).is_empty()
            && path.components().iter().all(|part| part.index().is_none())
    })
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
            key_tells(index, path)
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
        let mut sorted: Vec<usize> = Vec::new();
        for (at, (field, bounds)) in definition.fields.iter().zip(&self.fields).enumerate() {
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
            let constant = bounds.is_single_point() && index.multikey.field(at).is_empty();
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
            sorted.push(at);
            wanted.next();
        }
        // A field that is the same in all documents needs no sorting.
        for (path, _) in wanted {
            let mut fields = definition.fields.iter().zip(&self.fields).enumerate();
            let constant = fields.any(|(at, (field, bounds))| {
                field.path == *path
                    && bounds.is_single_point()
                    && index.multikey.field(at).is_empty()
            });
            if !constant {
                return None;
            }
        }
        if !self.keeps_order_with_arrays(index, &sorted) {
            return None;
        }
        Some(direction.unwrap_or(ScanDirection::Forward))
    }

    /// A document is emitted at its first key inside the bounds. That is its
    /// place in the sort only if no bounds hide a smaller key: the sorted fields
    /// that have arrays are unbounded, and no bounded ones share an array with them.
    fn keeps_order_with_arrays(&self, index: &IndexView<'_>, sorted: &[usize]) -> bool {
        let fields = &index.definition.fields;
        let share_an_array = |left: usize, right: usize| {
            let pairs = fields[left].path.components().iter();
            let pairs = pairs.zip(fields[right].path.components());
            let common = pairs.take_while(|(a, b)| a.name() == b.name()).count();
            let arrays = index.multikey.field(left);
            arrays.iter().any(|component| component < common)
        };
        let bounded = self.fields.iter().enumerate();
        bounded
            .filter(|(_, bounds)| !bounds.is_everything())
            .all(|(at, _)| sorted.iter().all(|&field| !share_an_array(field, at)))
    }

    /// Whether no two keys of one document are inside the bounds: fields with
    /// arrays are bound to one value each.
    pub fn is_one_key(&self, multikey: &MultikeyPaths) -> bool {
        let mut fields = self.fields.iter().enumerate();
        fields.all(|(at, bounds)| multikey.field(at).is_empty() || bounds.is_single_point())
    }

    /// Skips fetching if the keys hold every field that is asked for.
    pub(super) fn cover(&mut self, index: &IndexView<'_>, needed: &[Path]) {
        // Of a document with several keys at most one is this one.
        let counts_keys =
            needed.is_empty() && self.residual.is_none() && self.is_one_key(&index.multikey);
        self.covered = counts_keys
            || (self.residual.is_none() || self.residual_of_key && index.multikey.is_empty())
                && needed.iter().all(|path| key_tells(index, path))
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
