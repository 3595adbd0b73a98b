//! What `$rename` takes along: read before anything is written.
//!
//! Neither its source nor its destination may lie in an array.

use super::path::parse_index;
use model::bson::{Doc, ValueRef};
use model::{Code, Error, text};

/// The value at the source path, if it is there. What is not there may lie in an array: nothing is taken along.
pub(super) fn source<'d>(doc: Doc<'d>, path: &str) -> Result<Option<ValueRef<'d>>, Error> {
    let mut current = ValueRef::Document(doc);
    let mut before = "";
    let mut array = None;
    for name in path.split('.') {
        let inner = match (current, parse_index(name)) {
            (ValueRef::Document(inner), _) => inner.get(name),
            (ValueRef::Array(elements), Some(index)) => {
                array = Some(before);
                elements.get(index)
            }
            (other, _) => {
                return Err(Error::new(
                    Code::PATH_NOT_VIABLE,
                    format!(
                        "cannot use the part ({before} of {path}) to traverse the element ({{{before}: {}}})",
                        text::value_quoted(other)
                    ),
                ));
            }
        };
        let Some(inner) = inner else {
            return Ok(None);
        };
        (current, before) = (inner, name);
    }
    match array {
        Some(array) => Err(in_array(doc, "source", path, array)),
        None => Ok(Some(current)),
    }
}

/// Refuses a destination inside an array.
pub(super) fn check_destination(doc: Doc<'_>, path: &str) -> Result<(), Error> {
    let mut current = doc;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        match current.get(name) {
            Some(ValueRef::Document(inner)) => current = inner,
            Some(ValueRef::Array(_)) if names.peek().is_some() => {
                return Err(in_array(doc, "destination", path, name));
            }
            Some(_) | None => return Ok(()),
        }
    }
    Ok(())
}

fn in_array(doc: Doc<'_>, side: &str, path: &str, array: &str) -> Error {
    let id = match doc.get("_id") {
        Some(id) => format!("_id: {}", text::value_quoted(id)),
        None => "no id".to_owned(),
    };
    Error::bad_value(format!(
        "The {side} field cannot be an array element, '{path}' in doc with {id} has an array field called '{array}'"
    ))
}
