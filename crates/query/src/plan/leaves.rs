//! The conditions of a filter that an index may serve.
//!
//! Leaves are collected from conjunctions and from inside `$elemMatch`, where
//! their path is the whole path from the document's root. On an index over
//! arrays, conditions may be combined only if they surely speak of the same
//! key; the `$elemMatch`s around a leaf say which array element that is.
//!
//! An `$expr` that compares a field with a constant is such a condition too, but
//! of another kind: it compares across types, and an array as a whole.

use super::predicate_bounds::{
    IndexTraits, PredicateBounds, expression_bounds, hashed_bounds, leaf_bounds,
};
use crate::filter::{Comparison, Filter, Predicate};
use crate::path::Path;
use model::bson::Value;
use std::cmp::Ordering;

/// What a leaf asks of its field.
#[derive(Clone, Debug)]
pub(super) enum Condition<'f> {
    Filter(&'f Filter),
    /// Part of an `$expr`, which stays to be asked.
    Expression(Comparison, Value),
}

impl Condition<'_> {
    /// Which is considered first.
    pub(super) fn usual_order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Condition::Filter(left), Condition::Filter(right)) => left.usual_order(right),
            (Condition::Filter(_), Condition::Expression(..)) => Ordering::Less,
            (Condition::Expression(..), Condition::Filter(_)) => Ordering::Greater,
            (Condition::Expression(..), Condition::Expression(..)) => Ordering::Equal,
        }
    }
}

/// One condition.
#[derive(Clone, Debug)]
pub(super) struct Leaf<'f> {
    /// From the root of the document.
    pub(super) path: Path,
    pub(super) condition: Condition<'f>,
    /// The enclosing `$elemMatch`s, outermost first: their number and how many
    /// components their path has.
    elements: Vec<(usize, usize)>,
    /// The conjunct of the whole filter this leaf is, if it is one by itself.
    pub(super) conjunct: Option<usize>,
}

/// The top-level conjuncts of a filter.
pub(super) fn conjuncts(filter: &Filter) -> &[Filter] {
    match filter {
        Filter::And(children) => children,
        single => std::slice::from_ref(single),
    }
}

pub(super) fn leaves(filter: &Filter) -> Vec<Leaf<'_>> {
    let mut collector = Collector {
        found: Vec::new(),
        next_element: 0,
    };
    for (at, conjunct) in conjuncts(filter).iter().enumerate() {
        collector.collect(conjunct, &Around::default(), Some(at));
    }
    collector.found
}

struct Collector<'f> {
    found: Vec<Leaf<'f>>,
    next_element: usize,
}

/// Where a condition stands.
#[derive(Clone, Default)]
struct Around {
    prefix: String,
    elements: Vec<(usize, usize)>,
}

impl Around {
    fn path(&self, path: &Path) -> Path {
        if self.prefix.is_empty() {
            path.clone()
        } else {
            Path::new(&format!("{}.{}", self.prefix, path.as_str()))
        }
    }
}

impl<'f> Collector<'f> {
    fn collect(&mut self, filter: &'f Filter, around: &Around, conjunct: Option<usize>) {
        match filter {
            Filter::And(children) => {
                for child in children {
                    self.collect(child, around, None);
                }
            }
            Filter::Field {
                path,
                predicate: Predicate::ElementMatches(inner),
            } => {
                let path = around.path(path);
                let mut elements = around.elements.clone();
                elements.push((self.next_element, path.components().len()));
                self.next_element += 1;
                let around = Around {
                    prefix: path.as_str().to_owned(),
                    elements,
                };
                self.collect(inner, &around, None);
            }
            Filter::Field { path, .. } => {
                self.push(path, Condition::Filter(filter), around, conjunct);
            }
            Filter::Not(child) => {
                if let Filter::Field { path, .. } = &**child {
                    self.push(path, Condition::Filter(filter), around, conjunct);
                }
            }
            Filter::Expression { expression, .. } => {
                for (path, comparison, value) in expression.comparisons() {
                    let condition = Condition::Expression(comparison, value);
                    self.push(&Path::new(&path), condition, around, conjunct);
                }
            }
            Filter::Or(_)
            | Filter::Nor(_)
            | Filter::SampleRate(_)
            | Filter::AlwaysTrue
            | Filter::AlwaysFalse => {}
        }
    }

    fn push(
        &mut self,
        path: &Path,
        condition: Condition<'f>,
        around: &Around,
        conjunct: Option<usize>,
    ) {
        if path.is_itself() {
            return;
        }
        self.found.push(Leaf {
            path: around.path(path),
            condition,
            elements: around.elements.clone(),
            conjunct: conjunct.filter(|_| around.elements.is_empty()),
        });
    }
}

impl Leaf<'_> {
    /// The bounds it puts on its field; `None` if an index is of no use to it.
    pub(super) fn bounds(&self, index: IndexTraits) -> Option<PredicateBounds> {
        match &self.condition {
            Condition::Filter(filter) => leaf_bounds(&self.path, filter, index),
            Condition::Expression(comparison, value) => {
                expression_bounds(&self.path, *comparison, value, index)
            }
        }
    }

    /// The same for a hashed field.
    pub(super) fn hashed_bounds(&self, index: IndexTraits) -> Option<PredicateBounds> {
        let predicate = match &self.condition {
            Condition::Filter(Filter::Field { predicate, .. }) => predicate,
            Condition::Filter(_) => return None,
            Condition::Expression(comparison, value) => {
                expression_bounds(&self.path, *comparison, value, index)?;
                &Predicate::Compare(*comparison, value.clone())
            }
        };
        hashed_bounds(predicate)
    }

    /// Whether two conditions that hold for a document hold for one of its keys
    /// together, given at which components of the paths there are arrays. Below
    /// the innermost `$elemMatch` that both are in, the paths must part before
    /// the next array: different elements of that could satisfy them.
    pub(super) fn shares_a_key_with(
        &self,
        other: &Leaf<'_>,
        is_array: impl Fn(usize) -> bool,
    ) -> bool {
        let decided = self
            .elements
            .iter()
            .zip(&other.elements)
            .take_while(|(a, b)| a == b)
            .last()
            .map_or(0, |((_, length), _)| *length);
        let pairs = self.path.components().iter().zip(other.path.components());
        let common = pairs.take_while(|(a, b)| a.name() == b.name()).count();
        !(decided..common).any(is_array)
    }
}
