//! Updates: modifiers, replacements and pipelines, parsed once and applied to
//! each document.
//!
//! ```text
//!   {$set: {"a.b": 1}, $inc: {c: 2}}  ─parse─►  a ─ b: $set 1
//!                                               c: $inc 2      (one tree, conflicts found)
//!   document ─walk─► untouched fields copied as bytes, the others changed on the way
//! ```
//!
//! Invariant: `_id` never changes. `None` means that nothing was to be done, in
//! MongoDB's sense: `$set` to the same bytes is nothing, `$push` with `$sort` is
//! a change even if the array was sorted before.

mod apply;
mod array_filters;
mod array_modifier;
mod difference;
mod modifier;
mod parse;
mod parse_array;
mod path;
mod rename;
#[cfg(test)]
mod tests;
mod tree;
mod upsert;

pub use modifier::check_id;
pub use upsert::upsert_base;

use crate::context::QueryContext;
use crate::filter::Filter;
use crate::pipeline::Transform;
use apply::Run;
use model::bson::{Doc, DocBuf, DocWriter, Kind, MAX_STORED_DEPTH, Timestamp, nesting_depth};
use model::{Code, Error, text};
use modifier::Application;
use path::At;
use std::collections::BTreeMap;
use tree::UpdateNode;

/// A parsed update.
#[derive(Clone, Debug)]
pub enum Update {
    /// The whole document but for its `_id`.
    Replacement(DocBuf),
    Modifiers(Modifiers),
    Pipeline(Transform),
}

#[derive(Clone, Debug)]
pub struct Modifiers {
    root: UpdateNode,
    array_filters: BTreeMap<String, Filter>,
    /// Source and destination of each `$rename`.
    renames: Vec<(String, String)>,
    uses_position: bool,
    /// Whether a result has to be looked at for its depth.
    may_be_too_deep: bool,
    /// Top-level names that a document that is there may not get.
    dollar_fields: Vec<String>,
}

/// What an update needs to know of the moment it is applied.
#[derive(Clone, Copy, Debug)]
pub struct UpdateMoment<'a> {
    /// The key of the array element that the filter matched.
    pub matched: Option<&'a str>,
    /// Whether the document is about to be inserted by an upsert.
    pub is_insert: bool,
    /// For `$currentDate` and zero timestamps.
    pub timestamp: Timestamp,
}

impl Update {
    /// Whether the filter must say which array element it matched.
    pub fn uses_position(&self) -> bool {
        match self {
            Update::Modifiers(modifiers) => modifiers.uses_position,
            Update::Replacement(_) | Update::Pipeline(_) => false,
        }
    }

    /// The changed document, or `None` if nothing changed.
    pub fn apply(
        &self,
        doc: Doc<'_>,
        moment: UpdateMoment<'_>,
        context: &QueryContext,
    ) -> Result<Option<DocBuf>, Error> {
        match self {
            Update::Replacement(replacement) => {
                // A replacement without `_id` counts as a change even if all
                // else is equal.
                if replacement.as_bytes() == doc.as_bytes() {
                    return Ok(None);
                }
                // Only what is there already is held to these names, not what is inserted.
                if !moment.is_insert {
                    check_dollar_fields(replacement.as_doc())?;
                }
                let result = replace(doc, replacement.as_doc(), moment.timestamp);
                check_same_id(doc, result.as_doc())?;
                Ok(Some(result))
            }
            Update::Modifiers(modifiers) => modifiers.apply(doc, moment, context),
            Update::Pipeline(transform) => {
                let result = transform.apply(doc)?;
                if result.as_bytes() == doc.as_bytes() {
                    return Ok(None);
                }
                let result = with_id(doc, result);
                check_depth(result.as_doc())?;
                check_same_id(doc, result.as_doc())?;
                Ok(Some(result))
            }
        }
    }
}

impl Modifiers {
    fn apply(
        &self,
        doc: Doc<'_>,
        moment: UpdateMoment<'_>,
        context: &QueryContext,
    ) -> Result<Option<DocBuf>, Error> {
        let UpdateNode::Fields(children) = &self.root else {
            unreachable!("the root holds fields");
        };
        let mut renamed = Vec::with_capacity(self.renames.len());
        for (source, destination) in &self.renames {
            if let Some(value) = rename::source(doc, source)? {
                rename::check_destination(doc, destination)?;
                let is_id = destination == "_id" || destination.starts_with("_id.");
                if is_id && doc.element("_id").is_some() {
                    return Err(id_is_immutable());
                }
                renamed.push((source.as_str(), value));
            }
        }
        let run = Run {
            application: Application {
                context,
                is_insert: moment.is_insert,
                timestamp: moment.timestamp,
            },
            matched: moment.matched,
            array_filters: &self.array_filters,
            renamed,
        };
        let mut out = DocWriter::with_buffer(Vec::with_capacity(doc.len() + 64));
        if !run.fields(children, doc, &At::of(doc), &mut out)? {
            return Ok(None);
        }
        let result = out.finish();
        // These names come before `_id` in the order in which fields are changed, and so do their
        // errors. What is inserted may have them.
        let mut dollar_fields = self.dollar_fields.iter().filter(|_| !moment.is_insert);
        if let Some(name) = dollar_fields.find(|name| result.get(name).is_some()) {
            return Err(dollar_field(name));
        }
        check_identical_id(doc, result.as_doc())?;
        if self.may_be_too_deep {
            check_depth(result.as_doc())?;
        }
        Ok(Some(result))
    }
}

/// The replacement with `_id` in front: its own, else the original's. A zero
/// timestamp among its fields stands for now.
fn replace(original: Doc<'_>, replacement: Doc<'_>, now: Timestamp) -> DocBuf {
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(replacement.len() + 32));
    if let Some(id) = replacement.element("_id").or(original.element("_id")) {
        writer.append_element(&id);
    }
    for element in replacement.iter().filter(|e| e.key_bytes() != b"_id") {
        let is_zero_timestamp =
            element.kind() == Kind::Timestamp && element.value_bytes().iter().all(|b| *b == 0);
        if is_zero_timestamp {
            writer.append(element.key(), now);
        } else {
            writer.append_element(&element);
        }
    }
    writer.finish()
}

/// A pipeline that drops `_id` leaves it in place.
fn with_id(original: Doc<'_>, result: DocBuf) -> DocBuf {
    match (original.element("_id"), result.get("_id")) {
        (Some(id), None) => {
            let mut writer = DocWriter::new();
            writer.append_element(&id);
            for element in result.iter() {
                writer.append_element(&element);
            }
            writer.finish()
        }
        (Some(_), Some(_)) | (None, _) => result,
    }
}

/// Modifiers may not touch `_id`, not even to make 1.0 of 1.
fn check_identical_id(before: Doc<'_>, after: Doc<'_>) -> Result<(), Error> {
    match (before.element("_id"), after.element("_id")) {
        (Some(old), Some(new)) if old == new => Ok(()),
        (Some(_), _) => Err(id_is_immutable()),
        (None, Some(new)) => check_id(new.value()),
        (None, None) => Ok(()),
    }
}

fn id_is_immutable() -> Error {
    Error::new(
        Code::IMMUTABLE_FIELD,
        "Performing an update on the path '_id' would modify the immutable field '_id'",
    )
}

/// A new whole document may write `_id` differently, as long as it is equal.
fn check_same_id(before: Doc<'_>, after: Doc<'_>) -> Result<(), Error> {
    let Some(new) = after.get("_id") else {
        return Ok(());
    };
    check_id(new)?;
    match before.get("_id") {
        Some(old) if model::order::compare(old, new).is_ne() => Err(Error::new(
            Code::IMMUTABLE_FIELD,
            format!(
                "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {}",
                text::value_quoted(new)
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Refuses what is nested deeper than MongoDB stores.
fn check_depth(doc: Doc<'_>) -> Result<(), Error> {
    if nesting_depth(doc) < MAX_STORED_DEPTH {
        return Ok(());
    }
    Err(Error::new(
        Code::OVERFLOW,
        format!("Document exceeds maximum nesting depth of {MAX_STORED_DEPTH}"),
    ))
}

/// Refuses top-level names with a dollar, unless they are those of a reference in their order.
fn check_dollar_fields(doc: Doc<'_>) -> Result<(), Error> {
    let mut before = "";
    let mut fields = doc.iter().peekable();
    while let Some(field) = fields.next() {
        let (name, is_string) = (field.key(), field.kind() == Kind::String);
        let fits = match name {
            "$ref" => is_string && fields.peek().is_some_and(|next| next.key() == "$id"),
            "$id" => before == "$ref",
            "$db" => is_string && before == "$id",
            other => !other.starts_with('$'),
        };
        if !fits {
            return Err(dollar_field(name));
        }
        before = name;
    }
    Ok(())
}

/// A top-level field whose name a document may not get by an update.
fn dollar_field(name: &str) -> Error {
    match name {
        "$ref" | "$id" | "$db" => Error::new(
            Code::INVALID_DB_REF,
            format!("Found {name} field outside of a DBRef, which is invalid."),
        ),
        _ => Error::new(
            Code::DOLLAR_PREFIXED_FIELD_NAME,
            format!(
                "The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith."
            ),
        ),
    }
}
