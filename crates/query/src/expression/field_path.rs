//! A dotted path as aggregation reads it.
//!
//! A step into a document takes the field; a step into an array takes the field
//! of each element that is a document and yields an array of those found.
//! Arrays directly inside arrays are passed over, and names that are numbers
//! are names, never positions. (Filters and updates have rules of their own.)

use super::node::Evaluated;
use model::Error;
use model::bson::{Array, ArrayWriter, Doc, ValueRef};

/// A checked path with at least one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath {
    names: Box<[Box<str>]>,
}

/// Paths longer than this are refused, as deep as documents may nest.
pub(super) const MAX_NAMES: usize = 200;

impl FieldPath {
    /// Checks and splits `a.b.c`.
    pub fn parse(path: &str) -> Result<FieldPath, Error> {
        if path.is_empty() {
            return Err(Error::location(
                40352,
                "FieldPath cannot be constructed with empty string",
            ));
        }
        if path.ends_with('.') {
            return Err(Error::location(40353, "FieldPath must not end with a '.'."));
        }
        let names = path
            .split('.')
            .map(|name| {
                check_field_name(name)?;
                Ok(name.into())
            })
            .collect::<Result<Box<[Box<str>]>, Error>>()?;
        if names.len() > MAX_NAMES {
            return Err(Error::new(model::Code::OVERFLOW, "FieldPath is too long"));
        }
        Ok(FieldPath { names })
    }

    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The path as it was written.
    pub fn dotted(&self) -> String {
        self.names.join(".")
    }

    pub fn evaluate<'a>(&self, root: Doc<'a>) -> Evaluated<'a> {
        in_document(&self.names, root)
    }

    /// The path taken from a value; only documents and arrays have fields.
    pub(super) fn evaluate_in<'a>(&self, value: ValueRef<'a>) -> Evaluated<'a> {
        match value {
            ValueRef::Document(doc) => in_document(&self.names, doc),
            ValueRef::Array(array) => in_array(&self.names, array),
            _ => Evaluated::Missing,
        }
    }
}

/// Checks the name of one field of a computed document or of a path.
pub(super) fn check_field_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::location(
            15998,
            "FieldPath field names may not be empty strings.",
        ));
    }
    if name.starts_with('$') {
        return Err(Error::location(
            16410,
            "FieldPath field names may not start with '$'. Consider using $getField or $setField.",
        ));
    }
    if name.contains('\0') {
        return Err(Error::location(
            16411,
            "FieldPath field names may not contain '\\0'.",
        ));
    }
    if name.contains('.') {
        return Err(Error::location(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    Ok(())
}

fn in_document<'a>(names: &[Box<str>], mut doc: Doc<'a>) -> Evaluated<'a> {
    let (last, steps) = names.split_last().expect("a path has a name");
    for (at, name) in steps.iter().enumerate() {
        match doc.get(name) {
            Some(ValueRef::Document(inner)) => doc = inner,
            Some(ValueRef::Array(array)) => return in_array(&names[at + 1..], array),
            _ => return Evaluated::Missing,
        }
    }
    match doc.get(last) {
        Some(value) => Evaluated::Borrowed(value),
        None => Evaluated::Missing,
    }
}

fn in_array<'a>(names: &[Box<str>], array: Array<'a>) -> Evaluated<'a> {
    let mut found = ArrayWriter::new();
    for value in array.iter() {
        if let ValueRef::Document(doc) = value
            && let Some(value) = in_document(names, doc).as_value()
        {
            found.push(value);
        }
    }
    Evaluated::Owned(found.finish().into())
}
