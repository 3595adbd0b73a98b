//! How a tree of modifiers changes a document: one walk, written as it goes.
//!
//! ```text
//!   fields of the document, in its order:
//!       not named by the tree        copied as bytes
//!       a leaf of the tree           kept, replaced or left out
//!       an inner node of the tree    opened and walked the same way
//!   then the fields that are created, in the order of the tree
//! ```
//!
//! What a node would create is known before anything is written for it
//! ([`Run::creates`]), so that nothing is ever taken back. Whether anything
//! changed is the walk's result; if nothing did, what was written is dropped.

use super::modifier::{Application, Effect, Modifier};
use super::path::{At, Component, parse_index};
use super::tree::{UpdateNode, merge_child};
use crate::filter::Filter;
use model::bson::{Array, Doc, DocWriter, ValueRef};
use model::{Code, Error, text};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The most elements an update may add to an array to reach an index.
const BACKFILL_MAX: usize = 1_500_000;

type Children = [(Component, UpdateNode)];

/// Where a value goes.
#[derive(Clone, Copy)]
enum Slot<'k> {
    Field(&'k str),
    /// The next element of the open array.
    Element,
}

impl Slot<'_> {
    fn put(self, value: ValueRef<'_>, out: &mut DocWriter) {
        match self {
            Slot::Field(name) => out.append(name, value),
            Slot::Element => out.push(value),
        };
    }

    fn begin_document(self, out: &mut DocWriter) {
        match self {
            Slot::Field(name) => out.begin_document(name),
            Slot::Element => out.push_document(),
        };
    }

    fn begin_array(self, out: &mut DocWriter) {
        match self {
            Slot::Field(name) => out.begin_array(name),
            Slot::Element => out.push_array(),
        };
    }
}

/// One run of the modifiers over one document.
pub(super) struct Run<'c> {
    pub(super) application: Application<'c>,
    /// The array element that the filter matched, for `$`.
    pub(super) matched: Option<&'c str>,
    pub(super) array_filters: &'c BTreeMap<String, Filter>,
    /// What `$rename` takes along, by source path: values of the document as it
    /// was. Sources that are not there have no entry.
    pub(super) renamed: Vec<(&'c str, ValueRef<'c>)>,
}

impl<'c> Run<'c> {
    /// Writes the fields of a document as changed; true if they differ.
    pub(super) fn fields(
        &self,
        children: &Children,
        doc: Doc<'_>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        let children = self.resolve(children, at)?;
        let mut met = 0u64;
        let mut changed = false;
        let mut elements = doc.iter();
        // What stays as it is is copied in runs, from here on.
        let mut copied = elements.place_in(doc);
        loop {
            let here = elements.place_in(doc);
            let Some(element) = elements.next() else {
                out.append_encoded(&doc.as_bytes()[copied..here]);
                break;
            };
            let key = element.key_bytes();
            let child = children
                .iter()
                .position(|(step, _)| field_name(step).as_bytes() == key);
            let Some(child) = child else {
                continue;
            };
            out.append_encoded(&doc.as_bytes()[copied..here]);
            copied = elements.place_in(doc);
            if child < 64 {
                met |= 1 << child;
            }
            let name = element.key();
            let node = &children[child].1;
            let at = at.field(name);
            changed |= self.value(node, Slot::Field(name), element.value(), &at, out)?;
        }
        for (child, (step, node)) in children.iter().enumerate() {
            let name = field_name(step);
            let is_met = match child {
                0..64 => met & (1 << child) != 0,
                _ => doc.element(name).is_some(),
            };
            if !is_met {
                changed |= self.missing(node, Slot::Field(name), &at.field(name), out)?;
            }
        }
        Ok(changed)
    }

    /// Writes a value that is there, as its node changes it.
    fn value(
        &self,
        node: &UpdateNode,
        slot: Slot<'_>,
        value: ValueRef<'_>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        match node {
            UpdateNode::Leaf(modifier) => {
                match self.leaf(modifier, at, Some(value))? {
                    Effect::Keep => {
                        slot.put(value, out);
                        return Ok(false);
                    }
                    Effect::Put(new) => slot.put(new, out),
                    Effect::PutOwned(new) => slot.put(new.as_ref(), out),
                    Effect::Remove => {
                        // Removing an element would shift the others.
                        if let Slot::Element = slot {
                            out.push(ValueRef::Null);
                        }
                    }
                }
                Ok(true)
            }
            UpdateNode::Fields(children) => match value {
                ValueRef::Document(doc) => {
                    slot.begin_document(out);
                    let changed = self.fields(children, doc, at, out)?;
                    out.end();
                    Ok(changed)
                }
                ValueRef::Array(array) => {
                    slot.begin_array(out);
                    let changed = self.indexed(children, array, at, out)?;
                    out.end();
                    Ok(changed)
                }
                scalar => {
                    for (step, child) in self.resolve(children, at)?.iter() {
                        self.check_unreachable(child, field_name(step), scalar, at)?;
                    }
                    slot.put(scalar, out);
                    Ok(false)
                }
            },
            UpdateNode::Elements(children) => match value {
                ValueRef::Array(array) => {
                    slot.begin_array(out);
                    let changed = self.selected(children, array, at, out)?;
                    out.end();
                    Ok(changed)
                }
                other => Err(Error::bad_value(format!(
                    "Cannot apply array updates to non-array element {}: {}",
                    at.last(),
                    text::value_quoted(other)
                ))),
            },
        }
    }

    /// Writes what a node makes of a field or element that is not there.
    fn missing(
        &self,
        node: &UpdateNode,
        slot: Slot<'_>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        match node {
            UpdateNode::Leaf(modifier) => {
                match self.leaf(modifier, at, None)? {
                    Effect::Keep | Effect::Remove => return Ok(false),
                    Effect::Put(new) => slot.put(new, out),
                    Effect::PutOwned(new) => slot.put(new.as_ref(), out),
                }
                Ok(true)
            }
            UpdateNode::Fields(children) => {
                let children = self.resolve(children, at)?;
                for (step, child) in children.iter() {
                    refuse_array_steps(child, &at.field(field_name(step)))?;
                }
                if !children.iter().any(|(_, child)| self.creates(child)) {
                    return Ok(false);
                }
                slot.begin_document(out);
                for (step, child) in children.iter() {
                    let name = field_name(step);
                    self.missing(child, Slot::Field(name), &at.field(name), out)?;
                }
                out.end();
                Ok(true)
            }
            UpdateNode::Elements(_) => Err(must_exist(at)),
        }
    }

    /// Writes an array whose elements are named by index.
    fn indexed(
        &self,
        children: &Children,
        array: Array<'_>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        let children = self.resolve(children, at)?;
        let mut by_index: Vec<(usize, &UpdateNode)> = Vec::with_capacity(children.len());
        for (step, node) in children.iter() {
            let name = field_name(step);
            match parse_index(name) {
                Some(index) => by_index.push((index, node)),
                None => self.check_unreachable(node, name, ValueRef::Array(array), at)?,
            }
        }
        by_index.sort_by_key(|(index, _)| *index);
        let mut planned = by_index
            .chunk_by(|(left, _), (right, _)| left == right)
            .peekable();
        let mut changed = false;
        let mut length = 0;
        for value in array.iter() {
            match planned.next_if(|nodes| nodes[0].0 == length) {
                None => {
                    out.push(value);
                }
                Some(nodes) => {
                    changed |= self.chained(nodes, Some(value), &at.index(length), out)?;
                }
            }
            length += 1;
        }
        for nodes in planned {
            let index = nodes[0].0;
            for (_, node) in nodes {
                refuse_array_steps(node, &at.index(index))?;
            }
            if !nodes.iter().any(|(_, node)| self.creates(node)) {
                continue;
            }
            if index - length > BACKFILL_MAX {
                return Err(Error::new(
                    Code::CANNOT_BACKFILL_ARRAY,
                    format!("can't backfill more than {BACKFILL_MAX} elements"),
                ));
            }
            for _ in length..index {
                out.push(ValueRef::Null);
            }
            length = index + 1;
            changed |= self.chained(nodes, None, &at.index(index), out)?;
        }
        Ok(changed)
    }

    /// One element after the other, of those that mean the same index: `0`, `00`.
    fn chained(
        &self,
        nodes: &[(usize, &UpdateNode)],
        value: Option<ValueRef<'_>>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        let Some(((_, last), before)) = nodes.split_last() else {
            return Ok(false);
        };
        if before.is_empty() {
            return match value {
                Some(value) => self.value(last, Slot::Element, value, at, out),
                None => self.missing(last, Slot::Element, at, out),
            };
        }
        let mut so_far = DocWriter::new();
        so_far.begin_array("");
        let changed = self.chained(before, value, at, &mut so_far)?;
        so_far.end();
        let so_far = so_far.finish();
        let value = so_far
            .as_doc()
            .get_array("")
            .and_then(|elements| elements.get(0));
        Ok(self.chained(&nodes[nodes.len() - 1..], value, at, out)? || changed)
    }

    /// Writes an array whose elements are named by `$[]` and `$[name]`.
    fn selected(
        &self,
        children: &Children,
        array: Array<'_>,
        at: &At<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        let mut changed = false;
        for (index, value) in array.iter().enumerate() {
            let at = at.index(index);
            let mut planned: Option<Cow<'_, UpdateNode>> = None;
            for (step, node) in children {
                let is_selected = match step {
                    Component::All => true,
                    Component::Filtered(name) => self.accepts(name, value)?,
                    Component::Field(_) | Component::Positional => {
                        unreachable!("elements are selected by array steps")
                    }
                };
                if is_selected {
                    planned = Some(match planned {
                        None => Cow::Borrowed(node),
                        Some(before) => Cow::Owned(before.merge(node, &at.to_string())?),
                    });
                }
            }
            match planned {
                None => {
                    out.push(value);
                }
                Some(node) => changed |= self.value(&node, Slot::Element, value, &at, out)?,
            }
        }
        Ok(changed)
    }

    fn leaf<'m>(
        &'m self,
        modifier: &'m Modifier,
        at: &At<'_>,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'m>, Error> {
        match modifier {
            Modifier::RenameFrom(source) => Ok(match self.renamed(source) {
                Some(value) => Effect::Put(value),
                None => Effect::Keep,
            }),
            other => other.apply(at, current, &self.application),
        }
    }

    fn renamed(&self, source: &str) -> Option<ValueRef<'c>> {
        let found = self.renamed.iter().find(|(known, _)| *known == source);
        found.map(|(_, value)| *value)
    }

    /// Whether a node makes something where nothing is.
    fn creates(&self, node: &UpdateNode) -> bool {
        match node {
            UpdateNode::Leaf(Modifier::RenameFrom(source)) => self.renamed(source).is_some(),
            UpdateNode::Leaf(modifier) => modifier.creates(self.application.is_insert),
            UpdateNode::Fields(children) | UpdateNode::Elements(children) => {
                children.iter().any(|(_, child)| self.creates(child))
            }
        }
    }

    /// A node whose path leads through a value without fields: most modifiers
    /// refuse that, those that would do nothing anyway do not.
    fn check_unreachable(
        &self,
        node: &UpdateNode,
        name: &str,
        container: ValueRef<'_>,
        at: &At<'_>,
    ) -> Result<(), Error> {
        refuse_array_steps(node, &at.field(name))?;
        let element = || format!("{{{}: {}}}", at.last(), text::value_quoted(container));
        if self.creates(node) {
            return Err(Error::new(
                Code::PATH_NOT_VIABLE,
                format!("Cannot create field '{name}' in element {}", element()),
            ));
        }
        if takes_from_array(node) {
            return Err(Error::new(
                Code::PATH_NOT_VIABLE,
                format!(
                    "Cannot use the part ({name}) of ({}) to traverse the element ({})",
                    at.field(name),
                    element()
                ),
            ));
        }
        Ok(())
    }

    fn accepts(&self, name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
        let filter = self
            .array_filters
            .get(name)
            .expect("identifiers were looked up when the update was parsed");
        let shown = DocWriter::new().with(name, value).finish();
        filter.matches(shown.as_doc())
    }

    /// The children with `$` replaced by what it stands for.
    fn resolve<'n>(&self, children: &'n Children, at: &At<'_>) -> Result<Cow<'n, Children>, Error> {
        let positional = children
            .iter()
            .find(|(step, _)| *step == Component::Positional);
        let Some((_, node)) = positional else {
            return Ok(Cow::Borrowed(children));
        };
        let Some(matched) = self.matched else {
            return Err(Error::bad_value(
                "The positional operator did not find the match needed from the query.",
            ));
        };
        let mut resolved: Vec<(Component, UpdateNode)> = children
            .iter()
            .filter(|(step, _)| *step != Component::Positional)
            .cloned()
            .collect();
        let step = Component::Field(matched.to_owned());
        merge_child(&mut resolved, step, node, &at.to_string())?;
        Ok(Cow::Owned(resolved))
    }
}

/// The name of a resolved step.
fn field_name(step: &Component) -> &str {
    match step {
        Component::Field(name) => name,
        Component::Positional | Component::All | Component::Filtered(_) => {
            unreachable!("steps by name were resolved")
        }
    }
}

fn takes_from_array(node: &UpdateNode) -> bool {
    match node {
        UpdateNode::Leaf(modifier) => modifier.takes_from_array(),
        UpdateNode::Fields(children) | UpdateNode::Elements(children) => {
            children.iter().any(|(_, child)| takes_from_array(child))
        }
    }
}

/// Steps into elements need their array to exist.
fn refuse_array_steps(node: &UpdateNode, at: &At<'_>) -> Result<(), Error> {
    match node {
        UpdateNode::Leaf(_) => Ok(()),
        UpdateNode::Fields(children) => {
            if !node.has_array_step() {
                return Ok(());
            }
            children.iter().try_for_each(|(step, child)| {
                refuse_array_steps(child, &at.field(&step.to_string()))
            })
        }
        UpdateNode::Elements(_) => Err(must_exist(at)),
    }
}

fn must_exist(at: &At<'_>) -> Error {
    Error::bad_value(format!(
        "The path '{at}' must exist in the document in order to apply array updates."
    ))
}
