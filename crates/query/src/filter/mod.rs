//! Filters: parsed once into a tree, matched against documents as bytes.
//!
//! ```text
//!   {a: {$gt: 1, $lt: 5}, $or: [..]}
//!       │ parse        mongod's grammar and errors
//!       ▼
//!   And[a > 1, a < 5, Or[..]]           in the order as written
//!       │ optimized    flatten, drop what is always true or false, $or of equalities to $in
//!       │ normalized   the same, and children sorted: explain's `parsedQuery`
//!       ▼
//!   matches(document)
//! ```
//!
//! The tree is public, because the planner reads index bounds from it and an
//! upsert takes the fields of a new document from it. Each leaf is a path and a
//! [`Predicate`]. Negated operators (`$ne`, `$nin`, `$exists: false`) are `Not`
//! around the positive one, so that there is one meaning to implement.
//!
//! Matching cannot fail, except inside `$expr`; such an error is kept aside
//! until the walk is over, so that the inner loops return plain booleans.
//!
//! Left out and refused by name: `$jsonSchema`, `$text`, `$where`, the
//! geospatial operators, and all collations but the simple one.

mod arguments;
mod bits;
mod evaluate;
mod normalize;
mod parse;
mod parse_field;
mod render;
mod types;
mod values;

#[cfg(test)]
pub(crate) mod tests;

pub use bits::{BitMask, BitTest};
pub use types::TypeSet;
pub use values::ValueSet;

use crate::context::QueryContext;
use crate::expression::Expression;
use crate::path::Path;
use crate::regex::Regex;
use model::Error;
use model::bson::{Doc, DocBuf, Value, ValueRef};
use std::cmp::Ordering;

/// A parsed filter.
#[derive(Clone, Debug)]
pub enum Filter {
    /// No children: every document.
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Nor(Vec<Filter>),
    Not(Box<Filter>),
    Field {
        path: Path,
        predicate: Predicate,
    },
    Expression {
        /// As written, for explain.
        source: Value,
        expression: Box<Expression>,
    },
    /// Matches at random, with this probability.
    SampleRate(f64),
    AlwaysTrue,
    AlwaysFalse,
}

/// What is asked of the candidates of a path.
#[derive(Clone, Debug)]
pub enum Predicate {
    Compare(Comparison, Value),
    In(ValueSet),
    Regex(Regex),
    /// Present, even if null.
    Exists,
    Type(TypeSet),
    Size(i64),
    Modulo {
        divisor: i64,
        remainder: i64,
    },
    Bits(BitTest, BitMask),
    /// An element that is a document (or an array) matches.
    ElementMatches(Box<Filter>),
    /// An element passes all of these; their paths are [`Path::itself`].
    ElementPasses(Vec<Filter>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn accepts(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
        }
    }

    /// The operator's name.
    pub fn operator(self) -> &'static str {
        match self {
            Comparison::Equal => "$eq",
            Comparison::Less => "$lt",
            Comparison::LessOrEqual => "$lte",
            Comparison::Greater => "$gt",
            Comparison::GreaterOrEqual => "$gte",
        }
    }
}

impl Filter {
    /// Reads a filter as a command carries it.
    pub fn parse(doc: Doc<'_>, context: &QueryContext) -> Result<Filter, Error> {
        parse::parse(doc, context)
    }

    /// The filter that every document passes.
    pub fn everything() -> Filter {
        Filter::And(Vec::new())
    }

    pub fn is_everything(&self) -> bool {
        match self {
            Filter::And(children) => children.is_empty(),
            Filter::AlwaysTrue => true,
            Filter::Or(_)
            | Filter::Nor(_)
            | Filter::Not(_)
            | Filter::Field { .. }
            | Filter::Expression { .. }
            | Filter::SampleRate(_)
            | Filter::AlwaysFalse => false,
        }
    }

    pub fn equal(path: Path, value: Value) -> Filter {
        Filter::Field {
            path,
            predicate: Predicate::Compare(Comparison::Equal, value),
        }
    }

    /// Whether the document passes.
    pub fn matches(&self, doc: Doc<'_>) -> Result<bool, Error> {
        evaluate::matches(self, doc)
    }

    /// Like [`Filter::matches`]; if it passes, also the index of the array
    /// element that the positional operator `$` stands for: of the conditions
    /// that hold, the last one that found its candidate inside an array decides.
    ///
    /// MongoDB asks the [normalized](Filter::normalized) filter in updates and
    /// the [optimized](Filter::optimized) one in projections.
    pub fn matches_with_position(&self, doc: Doc<'_>) -> Result<Option<Matched>, Error> {
        evaluate::matches_with_position(self, doc)
    }

    /// Whether one value passes a filter over [`Path::itself`].
    pub fn matches_value(&self, value: ValueRef<'_>) -> bool {
        evaluate::matches_value(self, value)
    }

    /// Simplified without changing the order of what remains.
    pub fn optimized(self) -> Filter {
        normalize::optimize(self)
    }

    /// Simplified and sorted: the same for equivalent spellings of a filter.
    pub fn normalized(self) -> Filter {
        normalize::sort(normalize::optimize(self))
    }

    /// The same, conditions that must all hold by their paths: how MongoDB shows what is left
    /// to ask of a document that an index has found.
    pub fn normalized_by_path(self) -> Filter {
        normalize::by_path(self.normalized())
    }

    /// Which of two conditions comes first where the order is nobody's wish.
    pub(crate) fn usual_order(&self, other: &Filter) -> std::cmp::Ordering {
        normalize::compare(self, other)
    }

    /// As explain prints it.
    pub fn to_document(&self) -> DocBuf {
        render::render(self)
    }

    /// What must hold in every matching document: fields equal to a value. An
    /// upsert starts a new document from these. Ask the optimized filter.
    pub fn equalities(&self) -> Vec<(&Path, ValueRef<'_>)> {
        let mut found = Vec::new();
        self.collect_equalities(&mut found);
        found
    }

    fn collect_equalities<'f>(&'f self, found: &mut Vec<(&'f Path, ValueRef<'f>)>) {
        match self {
            Filter::And(children) => children
                .iter()
                .for_each(|child| child.collect_equalities(found)),
            Filter::Field {
                path,
                predicate: Predicate::Compare(Comparison::Equal, value),
            } => found.push((path, value.as_ref())),
            Filter::Field { .. }
            | Filter::Or(_)
            | Filter::Nor(_)
            | Filter::Not(_)
            | Filter::Expression { .. }
            | Filter::SampleRate(_)
            | Filter::AlwaysTrue
            | Filter::AlwaysFalse => {}
        }
    }
}

/// A document passed the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matched {
    /// The array element that `$` stands for.
    pub position: Option<u32>,
}

/// Refuses a filter, already parsed, that an upsert may not have: nothing can be
/// inserted that fits an expression.
pub fn refuse_expression_in_upsert(filter: Doc<'_>) -> Result<(), Error> {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            ("$expr", _) => {
                return Err(Error::new(
                    model::Code::QUERY_FEATURE_NOT_ALLOWED,
                    "$expr is not allowed in the query predicate for an upsert",
                ));
            }
            ("$and" | "$or" | "$nor", ValueRef::Array(branches)) => {
                for branch in branches.iter() {
                    if let ValueRef::Document(branch) = branch {
                        refuse_expression_in_upsert(branch)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}
