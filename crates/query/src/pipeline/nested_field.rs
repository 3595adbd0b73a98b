//! Sets or removes one field by its path, as stages do that put a value
//! somewhere: `$unwind`, `$lookup`, `$graphLookup`.
//!
//! A step into anything but a document replaces it by a new document; arrays
//! are not walked into.

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};

/// The document with `value` at the path; without one the field is removed.
pub(super) fn with_field(doc: Doc<'_>, path: &[Box<str>], value: Option<ValueRef<'_>>) -> DocBuf {
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len() + 32));
    write_with_field(&mut writer, doc, path, value);
    writer.finish()
}

/// [`with_field`] into an open document.
pub(super) fn write_with_field(
    writer: &mut DocWriter,
    doc: Doc<'_>,
    path: &[Box<str>],
    value: Option<ValueRef<'_>>,
) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let mut found = false;
    for element in doc.iter() {
        if found || element.key_bytes() != name.as_bytes() {
            writer.append_element(&element);
            continue;
        }
        found = true;
        match (rest.is_empty(), value) {
            (true, Some(value)) => {
                writer.append(name, value);
            }
            (true, None) => {}
            (false, _) => {
                let inner = match element.value() {
                    ValueRef::Document(inner) => inner,
                    // Nothing to remove inside of a value without fields.
                    _ if value.is_none() => {
                        writer.append_element(&element);
                        continue;
                    }
                    _ => Doc::EMPTY,
                };
                writer.begin_document(name);
                write_with_field(writer, inner, rest, value);
                writer.end();
            }
        }
    }
    if let (false, Some(value)) = (found, value) {
        append_new(writer, name, rest, value);
    }
}

fn append_new(writer: &mut DocWriter, name: &str, rest: &[Box<str>], value: ValueRef<'_>) {
    match rest.split_first() {
        None => {
            writer.append(name, value);
        }
        Some((next, rest)) => {
            writer.begin_document(name);
            append_new(writer, next, rest, value);
            writer.end();
        }
    }
}

/// The value at a path through documents only.
pub(super) fn plain_field<'a>(doc: Doc<'a>, path: &[Box<str>]) -> Option<ValueRef<'a>> {
    let (last, steps) = path.split_last()?;
    let mut doc = doc;
    for name in steps {
        match doc.get(name) {
            Some(ValueRef::Document(inner)) => doc = inner,
            _ => return None,
        }
    }
    doc.get(last)
}
