//! Accumulators of `$group`: parsed once, with a state per group.
//!
//! ```text
//!   Accumulator --start--> State --add per document--> finish -> Value
//!                            │ partial -> Value ──merge──► another State
//! ```
//!
//! A partial is a BSON value, so that it can be spilled to disk or sent to the
//! node that merges; merging partials in the order of their documents gives
//! what one state over all documents would give.
//!
//! Left out: `$accumulator` (JavaScript) and the window functions.

mod numeric;
mod parse;
mod partial;
mod ranked;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use numeric::{Deviation, Extreme, Mean};
pub use state::State;

use crate::context::QueryContext;
use crate::expression::{Expression, check_n};
use model::Error;
use model::bson::{Doc, Value, ValueRef};
use ranked::Ranking;

/// Which of equal values of different types `$min` and `$max` keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ties {
    First,
    Latest,
}

/// One output field of `$group`.
#[derive(Clone, Debug)]
pub struct Accumulator {
    kind: Kind,
    argument: Expression,
}

#[derive(Clone, Debug)]
enum Kind {
    Sum,
    Count,
    Avg,
    Extreme(Extreme, Ties),
    First,
    Last,
    Push,
    AddToSet,
    MergeObjects,
    StdDevPop,
    StdDevSamp,
    FirstN(Expression),
    LastN(Expression),
    ExtremeN(Extreme, Expression),
    /// `$top`, `$topN` and their opposites; without `n` the result is no array.
    Ranked {
        n: Option<Expression>,
        ranking: Ranking,
    },
}

impl Accumulator {
    /// As it is written.
    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Sum => "$sum",
            Kind::Count => "$count",
            Kind::Avg => "$avg",
            Kind::Extreme(Extreme::Min, _) => "$min",
            Kind::Extreme(Extreme::Max, _) => "$max",
            Kind::First => "$first",
            Kind::Last => "$last",
            Kind::Push => "$push",
            Kind::AddToSet => "$addToSet",
            Kind::MergeObjects => "$mergeObjects",
            Kind::StdDevPop => "$stdDevPop",
            Kind::StdDevSamp => "$stdDevSamp",
            Kind::FirstN(_) => "$firstN",
            Kind::LastN(_) => "$lastN",
            Kind::ExtremeN(Extreme::Min, _) => "$minN",
            Kind::ExtremeN(Extreme::Max, _) => "$maxN",
            Kind::Ranked { n: None, .. } => "$top or $bottom",
            Kind::Ranked { n: Some(_), .. } => "$topN or $bottomN",
        }
    }

    /// Keeps the latest of equal values, as MongoDB's other engine does.
    pub(crate) fn keep_latest(&mut self) {
        if let Kind::Extreme(_, ties) = &mut self.kind {
            *ties = Ties::Latest;
        }
    }

    /// Reads `{$sum: …}`, the value of an output field named `field`.
    pub fn parse(
        field: &str,
        spec: ValueRef<'_>,
        context: &QueryContext,
    ) -> Result<Accumulator, Error> {
        parse::parse(field, spec, context)
    }

    /// The state of a new group. `n` may refer to fields of a group key that is
    /// a document.
    pub fn start(&self, group_key: Doc<'_>) -> Result<State, Error> {
        let n = |expression: &Expression| check_n(expression.evaluate_ref(group_key)?.as_value());
        Ok(match &self.kind {
            Kind::Sum | Kind::Count => State::sum(),
            Kind::Avg => State::mean(),
            Kind::Extreme(which, ties) => State::extreme(*which, *ties),
            Kind::First => State::first(),
            Kind::Last => State::last(),
            Kind::Push => State::push(),
            Kind::AddToSet => State::set(),
            Kind::MergeObjects => State::merged(),
            Kind::StdDevPop => State::deviation(false),
            Kind::StdDevSamp => State::deviation(true),
            Kind::FirstN(limit) => State::first_n(n(limit)?),
            Kind::LastN(limit) => State::last_n(n(limit)?),
            Kind::ExtremeN(which, limit) => State::extreme_n(*which, n(limit)?),
            Kind::Ranked { n: None, ranking } => State::ranked(ranking.clone(), None),
            Kind::Ranked {
                n: Some(limit),
                ranking,
            } => State::ranked(ranking.clone(), Some(n(limit)?)),
        })
    }

    /// Adds what a document contributes.
    pub fn add(&self, state: &mut State, document: Doc<'_>) -> Result<(), Error> {
        self.add_with(state, document, &[])
    }

    /// [`Self::add`] with values for the context's late variables.
    pub fn add_with(
        &self,
        state: &mut State,
        document: Doc<'_>,
        late: &[Option<Value>],
    ) -> Result<(), Error> {
        let value = self.argument.evaluate_with(document, late)?;
        match &self.kind {
            Kind::Ranked { ranking, .. } => {
                let key = ranking.key(document);
                state.add_ranked(key, value.as_value())
            }
            Kind::Sum
            | Kind::Count
            | Kind::Avg
            | Kind::Extreme(..)
            | Kind::First
            | Kind::Last
            | Kind::Push
            | Kind::AddToSet
            | Kind::MergeObjects
            | Kind::StdDevPop
            | Kind::StdDevSamp
            | Kind::FirstN(_)
            | Kind::LastN(_)
            | Kind::ExtremeN(..) => state.add(value.as_value()),
        }
    }
}
