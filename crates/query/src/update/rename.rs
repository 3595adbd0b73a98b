//! What `$rename` takes along: read before anything is written.
//!
//! Neither its source nor its destination may lie in an array.

use model::bson::{Doc, ValueRef};
use model::{Code, Error, text};

/// The value at the source path, if it is there.
pub(super) fn source<'d>(doc: Doc<'d>, path: &str) -> Result<Option<ValueRef<'d>>, Error> {
    let mut current = doc;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let Some(value) = current.get(name) else {
            return Ok(None);
        };
        if names.peek().is_none() {
            return Ok(Some(value));
        }
        match value {
            ValueRef::Document(inner) => current = inner,
            ValueRef::Array(_) => return Err(in_array(doc, "source", path, name)),
            scalar => {
                return Err(Error::new(
                    Code::PATH_NOT_VIABLE,
                    format!(
                        "cannot use the part ({name} of {path}) to traverse the element ({{{name}: {}}})",
                        text::value_quoted(scalar)
                    ),
                ));
            }
        }
    }
    Ok(None)
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
