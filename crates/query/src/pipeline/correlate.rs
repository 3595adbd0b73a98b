//! Lets an index serve the condition that joins a `$lookup` pipeline to its
//! document.
//!
//! `{$expr: {$eq: ["$field", "$$variable"]}}` compares stricter than the filter
//! `{field: value}`: whatever passes the one passes the other. So once the
//! variable's value is known, the filter is put beside the expression, and a
//! scan can use it.

use crate::filter::Filter;
use crate::path::Path;
use model::bson::{Doc, Value, ValueRef};

/// Adds to a filter what its expressions imply.
pub(super) fn with_implied(filter: Filter, names: &[String], values: &[Option<Value>]) -> Filter {
    let mut implied = Vec::new();
    collect(&filter, &Variables { names, values }, &mut implied);
    if implied.is_empty() {
        return filter;
    }
    implied.push(filter);
    Filter::And(implied).optimized()
}

struct Variables<'a> {
    names: &'a [String],
    values: &'a [Option<Value>],
}

impl Variables<'_> {
    /// The value of `"$$name"`, if it can be looked for by a filter.
    fn value(&self, operand: ValueRef<'_>) -> Option<Value> {
        let ValueRef::String(text) = operand else {
            return None;
        };
        let name = text.strip_prefix("$$")?;
        let at = self.names.iter().rposition(|known| known == name)?;
        let value = self.values.get(at)?.as_ref()?;
        let means_itself = !matches!(
            value,
            Value::Array(_) | Value::Undefined | Value::Regex { .. }
        );
        means_itself.then(|| value.clone())
    }
}

fn collect(filter: &Filter, variables: &Variables<'_>, implied: &mut Vec<Filter>) {
    match filter {
        Filter::And(parts) => parts
            .iter()
            .for_each(|part| collect(part, variables, implied)),
        Filter::Expression { source, .. } => {
            collect_operator(source.as_ref(), variables, implied);
        }
        Filter::Or(_)
        | Filter::Nor(_)
        | Filter::Not(_)
        | Filter::Field { .. }
        | Filter::SampleRate(_)
        | Filter::AlwaysTrue
        | Filter::AlwaysFalse => {}
    }
}

fn collect_operator(source: ValueRef<'_>, variables: &Variables<'_>, implied: &mut Vec<Filter>) {
    let ValueRef::Document(doc) = source else {
        return;
    };
    match only_operator(doc) {
        Some(("$and", ValueRef::Array(parts))) => parts
            .iter()
            .for_each(|part| collect_operator(part, variables, implied)),
        Some(("$eq", ValueRef::Array(operands))) => {
            let (Some(left), Some(right)) = (operands.get(0), operands.get(1)) else {
                return;
            };
            for (field, value) in [(left, right), (right, left)] {
                if let (Some(path), Some(value)) = (field_path(field), variables.value(value)) {
                    implied.push(Filter::equal(path, value));
                }
            }
        }
        _ => {}
    }
}

fn only_operator(doc: Doc<'_>) -> Option<(&str, ValueRef<'_>)> {
    let mut elements = doc.iter();
    match (elements.next(), elements.next()) {
        (Some(only), None) => Some((only.key(), only.value())),
        _ => None,
    }
}

fn field_path(operand: ValueRef<'_>) -> Option<Path> {
    match operand {
        ValueRef::String(text) => {
            let path = text.strip_prefix('$')?;
            (!path.starts_with('$')).then(|| Path::new(path))
        }
        _ => None,
    }
}
