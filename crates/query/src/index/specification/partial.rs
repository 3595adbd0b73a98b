//! What a partial index may ask of a document: conditions of which the planner
//! can tell that a query implies them. Negations, regular expressions and
//! conditions on arrays are none; expressions are not even read.

use super::cannot_create;
use crate::context::QueryContext;
use crate::filter::{Filter, Predicate};
use model::bson::Doc;
use model::text::document_quoted;
use model::{Code, Error};

/// How deep `$and` and `$or` may nest in a partial index's expression.
const PARTIAL_DEPTH_MAX: usize = 4;

pub(super) fn parse_partial(filter: Doc<'_>) -> Result<Filter, Error> {
    let parsed = Filter::parse(filter, &QueryContext::new(0))?;
    refuse_expressions(&parsed)?;
    Ok(parsed)
}

fn refuse_expressions(filter: &Filter) -> Result<(), Error> {
    match filter {
        Filter::Expression { .. } => Err(Error::new(
            Code::QUERY_FEATURE_NOT_ALLOWED,
            "$expr is not allowed in this context",
        )),
        Filter::And(children) | Filter::Or(children) | Filter::Nor(children) => {
            children.iter().try_for_each(refuse_expressions)
        }
        Filter::Not(child) => refuse_expressions(child),
        Filter::Field { .. } | Filter::SampleRate(_) | Filter::AlwaysTrue | Filter::AlwaysFalse => {
            Ok(())
        }
    }
}

/// What a partial index may ask of a document: conditions of which the planner
/// can tell that a query implies them.
pub(super) fn check_partial(filter: &Filter, depth: usize) -> Result<(), Error> {
    let unsupported = || {
        Err(cannot_create(format!(
            "Expression not supported in partial index: {}",
            document_quoted(filter.to_document().as_doc())
        )))
    };
    match filter {
        Filter::And(children) | Filter::Or(children) => {
            if depth >= PARTIAL_DEPTH_MAX {
                return Err(cannot_create(format!(
                    "partialFilterExpression depth may not exceed {PARTIAL_DEPTH_MAX}"
                )));
            }
            children
                .iter()
                .try_for_each(|child| check_partial(child, depth + 1))
        }
        Filter::Field { predicate, .. } => match predicate {
            Predicate::Compare(..) | Predicate::Exists | Predicate::Type(_) => Ok(()),
            // An `$in` over regular expressions included, as in MongoDB.
            Predicate::In(_) => Ok(()),
            Predicate::Regex(_)
            | Predicate::Size(_)
            | Predicate::Modulo { .. }
            | Predicate::Bits(..)
            | Predicate::ElementMatches(_)
            | Predicate::ElementPasses(_) => unsupported(),
        },
        Filter::Nor(_)
        | Filter::Not(_)
        | Filter::Expression { .. }
        | Filter::SampleRate(_)
        | Filter::AlwaysTrue
        | Filter::AlwaysFalse => unsupported(),
    }
}
