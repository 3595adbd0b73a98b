//! `arrayFilters`: which elements the identifiers of `$[name]` stand for.
//!
//! Each filter speaks of one identifier, which is the first component of all
//! its paths.

use super::parse::failed_to_parse;
use super::parse_array::parse_filter;
use crate::context::QueryContext;
use crate::filter::Filter;
use model::bson::{Array, Doc, ValueRef};
use model::{Code, Error};
use std::collections::BTreeMap;

pub(super) fn parse(
    filters: Option<Array<'_>>,
    context: &QueryContext,
) -> Result<BTreeMap<String, Filter>, Error> {
    let mut parsed = BTreeMap::new();
    let Some(filters) = filters else {
        return Ok(parsed);
    };
    for filter in filters.iter() {
        let ValueRef::Document(document) = filter else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "arrayFilters must be documents",
            ));
        };
        let filter = parse_filter(document, context).map_err(|error| {
            let message = format!(
                "Error parsing array filter :: caused by :: {}",
                error.message
            );
            Error { message, ..error }
        })?;
        let mut identifiers = Vec::new();
        identifiers_of(document, &mut identifiers);
        identifiers.dedup();
        let name = match identifiers.as_slice() {
            [name] => name.clone(),
            [] => {
                return Err(failed_to_parse(
                    "Cannot use an expression without a top-level field name in arrayFilters",
                ));
            }
            [first, second, ..] => {
                return Err(failed_to_parse(format!(
                    "Error parsing array filter :: caused by :: Expected a single top-level field name, found '{first}' and '{second}'"
                )));
            }
        };
        let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        if !valid {
            return Err(Error::bad_value(format!(
                "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string beginning with a lowercase letter, found '{name}'"
            )));
        }
        if parsed.insert(name.clone(), filter).is_some() {
            return Err(failed_to_parse(format!(
                "Found multiple array filters with the same top-level field name {name}"
            )));
        }
    }
    Ok(parsed)
}

/// The first path components that a filter mentions, in order.
fn identifiers_of(filter: Doc<'_>, found: &mut Vec<String>) {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            ("$and" | "$or" | "$nor", ValueRef::Array(clauses)) => {
                for clause in clauses.iter() {
                    if let ValueRef::Document(clause) = clause {
                        identifiers_of(clause, found);
                    }
                }
            }
            (name, _) if name.starts_with('$') => {}
            (name, _) => {
                let first = name.split('.').next().unwrap_or(name);
                found.push(first.to_owned());
            }
        }
    }
}
