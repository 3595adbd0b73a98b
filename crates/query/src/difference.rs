//! What leads from one version of a document to the next, in the shape that
//! MongoDB writes into its log (`{$v: 2, diff: ..}`, without the wrapper).
//!
//! ```text
//!   of a document   {d: {gone: false, ..}, u: {changed: value, ..}, i: {new: value, ..},
//!                    s<field>: difference of the nested document or array, ..}
//!   of an array     {a: true, l: length if it became shorter,
//!                    u<index>: value | s<index>: difference, ..}
//! ```
//!
//! New fields come last in the new version; a field that changed its place is new.
//! Invariant: applied to the version before, a difference gives the version after,
//! unless a document has two fields of one name, which no difference can tell apart.
//!
//! [`between`] compares whole versions: what a pipeline did. What modifiers did is
//! said by [`crate::update::Update::difference`], which looks only where they point.
//! Equal values are compared as bytes and never decoded.
//!
//! [`describe`] turns a difference into the `updateDescription` of a change event.

mod describe;
#[cfg(test)]
mod tests;

pub use describe::describe;

use model::bson::{Array, Doc, DocBuf, DocWriter, Element, ValueRef};

/// What a difference costs in a log beyond its own bytes, as MongoDB reckons.
const WRAPPER_BYTES: usize = 15;

/// The difference of two versions, or `None` where the new version is no longer
/// than it: then it says more by itself.
pub fn between(before: Doc<'_>, after: Doc<'_>) -> Option<DocBuf> {
    let difference = documents(before, after);
    (difference.as_bytes().len() + WRAPPER_BYTES < after.len()).then_some(difference)
}

fn documents(before: Doc<'_>, after: Doc<'_>) -> DocBuf {
    let mut changes = Changes::default();
    let mut old = before.iter();
    // What follows the first field that is new is new, too: fields are only appended.
    for new in after.iter() {
        loop {
            match old.next() {
                None => {
                    changes.inserted.push(new);
                    break;
                }
                Some(old) if old.key_bytes() == new.key_bytes() => {
                    changes.compare(&old, &new);
                    break;
                }
                Some(old) => changes.deleted.push(old),
            }
        }
    }
    changes.deleted.extend(old);
    let inserted = &changes.inserted;
    // A field that changed its place is not gone.
    changes.deleted.retain(|old| {
        !inserted
            .iter()
            .any(|new| new.key_bytes() == old.key_bytes())
    });
    changes.finish()
}

fn arrays(before: Array<'_>, after: Array<'_>) -> DocBuf {
    let mut changes = ArrayChanges::default();
    let mut old = before.elements();
    let mut count = 0;
    for (index, new) in after.elements().enumerate() {
        count += 1;
        match old.next() {
            None => changes.put(index, new),
            Some(old) if same(&old, &new) => {}
            Some(old) => match nested(&old, &new) {
                Some(difference) => changes.nest(index, difference),
                None => changes.put(index, new),
            },
        }
    }
    if old.next().is_some() {
        changes.length = Some(count);
    }
    changes.finish()
}

/// Whether two fields have the same value, bit by bit.
pub(crate) fn same(old: &Element<'_>, new: &Element<'_>) -> bool {
    old.kind() == new.kind() && old.value_bytes() == new.value_bytes()
}

/// The difference of two values that both hold others, if it is shorter than the
/// new one.
fn nested(old: &Element<'_>, new: &Element<'_>) -> Option<DocBuf> {
    let difference = match (old.value(), new.value()) {
        (ValueRef::Document(old), ValueRef::Document(new)) => documents(old, new),
        (ValueRef::Array(old), ValueRef::Array(new)) => arrays(old, new),
        _ => return None,
    };
    (difference.as_bytes().len() < new.value_bytes().len()).then_some(difference)
}

/// A difference of documents in the making.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub(crate) deleted: Vec<Element<'a>>,
    pub(crate) updated: Vec<Element<'a>>,
    pub(crate) inserted: Vec<Element<'a>>,
    pub(crate) nested: Vec<(&'a str, DocBuf)>,
}

impl<'a> Changes<'a> {
    fn compare(&mut self, old: &Element<'a>, new: &Element<'a>) {
        if same(old, new) {
            return;
        }
        match nested(old, new) {
            Some(difference) => self.nested.push((new.key(), difference)),
            None => self.updated.push(*new),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.deleted.is_empty()
            && self.updated.is_empty()
            && self.inserted.is_empty()
            && self.nested.is_empty()
    }

    pub(crate) fn finish(self) -> DocBuf {
        let mut out = DocWriter::new();
        if !self.deleted.is_empty() {
            out.begin_document("d");
            for element in &self.deleted {
                out.append(element.key(), false);
            }
            out.end();
        }
        for (name, elements) in [("u", &self.updated), ("i", &self.inserted)] {
            if elements.is_empty() {
                continue;
            }
            out.begin_document(name);
            for element in elements {
                out.append_element(element);
            }
            out.end();
        }
        let mut name = String::new();
        for (field, difference) in &self.nested {
            name.clear();
            name.push('s');
            name.push_str(field);
            out.append(&name, difference);
        }
        out.finish()
    }
}

enum ArrayChange<'a> {
    Put(Element<'a>),
    Nest(DocBuf),
}

/// A difference of arrays in the making.
#[derive(Default)]
pub(crate) struct ArrayChanges<'a> {
    length: Option<usize>,
    elements: Vec<(usize, ArrayChange<'a>)>,
}

impl<'a> ArrayChanges<'a> {
    pub(crate) fn put(&mut self, index: usize, element: Element<'a>) {
        self.elements.push((index, ArrayChange::Put(element)));
    }

    pub(crate) fn nest(&mut self, index: usize, difference: DocBuf) {
        self.elements.push((index, ArrayChange::Nest(difference)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.elements.is_empty() && self.length.is_none()
    }

    pub(crate) fn finish(self) -> DocBuf {
        let mut out = DocWriter::new();
        out.append("a", true);
        if let Some(length) = self.length {
            out.append("l", i32::try_from(length).unwrap_or(i32::MAX));
        }
        for (index, change) in &self.elements {
            match change {
                ArrayChange::Put(element) => {
                    out.append_renamed(&format!("u{index}"), element);
                }
                ArrayChange::Nest(difference) => {
                    out.append(&format!("s{index}"), difference);
                }
            }
        }
        out.finish()
    }
}
