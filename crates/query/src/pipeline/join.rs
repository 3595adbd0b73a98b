//! What `$lookup` and `$graphLookup` join by: the values along a path, and the
//! filter that finds them elsewhere.

use crate::filter::{Filter, ValueSet};
use crate::path::Path;
use model::bson::{Array, Doc, Value, ValueRef};

/// Calls with every value that a path leads to; the elements of an array at its
/// end count instead of the array. Names that are numbers are names.
pub(super) fn visit_values<'a>(
    doc: Doc<'a>,
    path: &[Box<str>],
    visit: &mut dyn FnMut(ValueRef<'a>),
) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let Some(value) = doc.get(name) else {
        return;
    };
    visit_behind(value, rest, visit);
}

fn visit_behind<'a>(value: ValueRef<'a>, rest: &[Box<str>], visit: &mut dyn FnMut(ValueRef<'a>)) {
    match (value, rest) {
        (ValueRef::Array(array), []) => array.iter().for_each(visit),
        (value, []) => visit(value),
        (ValueRef::Document(doc), _) => visit_values(doc, rest, visit),
        (ValueRef::Array(array), _) => visit_array(array, rest, visit),
        (_, _) => {}
    }
}

fn visit_array<'a>(array: Array<'a>, rest: &[Box<str>], visit: &mut dyn FnMut(ValueRef<'a>)) {
    for element in array.iter() {
        if let ValueRef::Document(doc) = element {
            visit_values(doc, rest, visit);
        }
    }
}

/// Documents whose field equals one of the values.
pub(super) fn any_of(field: &str, mut values: Vec<Value>) -> Filter {
    let path = Path::new(field);
    match values.pop() {
        Some(only) if values.is_empty() => Filter::equal(path, only),
        Some(last) => {
            values.push(last);
            // A regular expression in a set would be a pattern; here it is a value.
            if values
                .iter()
                .any(|value| matches!(value, Value::Regex { .. }))
            {
                return Filter::Or(
                    values
                        .into_iter()
                        .map(|value| Filter::equal(path.clone(), value))
                        .collect(),
                );
            }
            Filter::Field {
                path,
                predicate: crate::filter::Predicate::In(ValueSet::new(values, Vec::new())),
            }
        }
        None => Filter::AlwaysFalse,
    }
}
