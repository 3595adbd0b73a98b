//! Updates: modifiers, replacements and pipelines, parsed once and applied to
//! each document.
//!
//! ```text
//!   {$set: {"a.b": 1}, $inc: {c: 2}}  ─parse─►  a ─ b: $set 1
//!                                               c: $inc 2      (one tree, conflicts found)
//!   document ─► fields opened along the paths ─► changed ─► written once
//! ```
//!
//! Invariants: `_id` never changes; a result equal to the original byte for byte
//! is reported as no change.

mod apply;
mod array_modifier;
mod modifier;
mod parse;
mod path;
mod tree;
mod upsert;

pub use modifier::check_id;
pub use upsert::upsert_base;

use crate::context::QueryContext;
use crate::filter::Filter;
use crate::pipeline::Transform;
use apply::{Run, UpdateNode};
use model::bson::{Doc, DocBuf, DocWriter, Timestamp, ValueRef};
use model::{Code, Error};
use modifier::Application;
use std::collections::BTreeMap;
use tree::Fields;

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
    /// Source paths of `$rename`.
    rename_sources: Vec<String>,
    uses_position: bool,
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
        let result = match self {
            Update::Replacement(replacement) => replace(doc, replacement.as_doc())?,
            Update::Modifiers(modifiers) => match modifiers.apply(doc, moment, context)? {
                Some(result) => result,
                None => return Ok(None),
            },
            Update::Pipeline(transform) => with_id(doc, transform.apply(doc)?),
        };
        check_id_unchanged(doc, result.as_doc())?;
        Ok((result.as_bytes() != doc.as_bytes()).then_some(result))
    }
}

impl Modifiers {
    fn apply(
        &self,
        doc: Doc<'_>,
        moment: UpdateMoment<'_>,
        context: &QueryContext,
    ) -> Result<Option<DocBuf>, Error> {
        let UpdateNode::Inner(children) = &self.root else {
            unreachable!("the root holds fields");
        };
        let mut renamed = BTreeMap::new();
        for source in &self.rename_sources {
            if let Some(value) = parse::rename_source(doc, source)? {
                renamed.insert(source.clone(), value);
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
        let mut fields = Fields::open(doc);
        if !run.fields(children, &mut fields, "")? {
            return Ok(None);
        }
        let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len() + 64));
        fields.write(&mut writer);
        Ok(Some(writer.finish()))
    }
}

/// The replacement with the original's `_id` in front.
fn replace(original: Doc<'_>, replacement: Doc<'_>) -> Result<DocBuf, Error> {
    let Some(id) = original.element("_id") else {
        return Ok(replacement.to_owned());
    };
    if let Some(given) = replacement.get("_id")
        && model::order::compare(given, id.value()).is_ne()
    {
        return Err(id_changed(given));
    }
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(replacement.len() + 32));
    writer.append_element(&id);
    for element in replacement.iter().filter(|e| e.key() != "_id") {
        writer.append_element(&element);
    }
    Ok(writer.finish())
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

fn check_id_unchanged(before: Doc<'_>, after: Doc<'_>) -> Result<(), Error> {
    match (before.get("_id"), after.get("_id")) {
        (Some(old), Some(new)) if model::order::compare(old, new).is_eq() => Ok(()),
        (Some(_), Some(new)) => Err(id_changed(new)),
        (Some(_), None) => Err(Error::new(
            Code::IMMUTABLE_FIELD,
            "Performing an update on the path '_id' would modify the immutable field '_id'",
        )),
        (None, Some(new)) => check_id(new),
        (None, None) => Ok(()),
    }
}

fn id_changed(to: ValueRef<'_>) -> Error {
    Error::new(
        Code::IMMUTABLE_FIELD,
        format!(
            "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {to:?}"
        ),
    )
}
