//! Modifiers as a tree of paths, and how it changes a document.
//!
//! All modifiers of an update are merged into one tree, whose children are
//! sorted, so that fields are created in a defined order and two modifiers of
//! one path, or of a path and its prefix, are found as a conflict when the
//! update is parsed. `$`, `$[]` and `$[name]` can only be resolved against a
//! document: where several of them mean the same element their subtrees are
//! merged again, with the same check.

use super::modifier::{Application, Effect, Modifier};
use super::path::{Component, parse_index};
use super::tree::{Fields, Node};
use crate::filter::Filter;
use model::bson::{DocWriter, Value};
use model::{Code, Error};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The most elements an update may add to an array to reach an index.
const BACKFILL_MAX: usize = 1_500_000;

#[derive(Clone, Debug)]
pub(super) enum UpdateNode {
    Leaf(Modifier),
    /// Sorted by [`Component::compare`].
    Inner(Vec<(Component, UpdateNode)>),
}

impl UpdateNode {
    pub(super) fn empty() -> Self {
        UpdateNode::Inner(Vec::new())
    }

    /// Adds a modifier at a path; `full` is the path for messages.
    pub(super) fn insert(
        &mut self,
        path: &[Component],
        modifier: Modifier,
        full: &str,
    ) -> Result<(), Error> {
        let conflict = |at: &str| {
            Error::new(
                Code::CONFLICTING_UPDATE_OPERATORS,
                format!("Updating the path '{full}' would create a conflict at '{at}'"),
            )
        };
        let mut node = self;
        let mut walked = String::new();
        for component in path {
            let UpdateNode::Inner(children) = node else {
                return Err(conflict(&walked));
            };
            push_component(&mut walked, &component.to_string());
            let found = children.binary_search_by(|(other, _)| other.compare(component));
            let at = match found {
                Ok(at) => at,
                Err(at) => {
                    children.insert(at, (component.clone(), UpdateNode::empty()));
                    at
                }
            };
            node = &mut children[at].1;
        }
        match node {
            UpdateNode::Inner(children) if children.is_empty() => {
                *node = UpdateNode::Leaf(modifier);
                Ok(())
            }
            UpdateNode::Inner(_) | UpdateNode::Leaf(_) => Err(conflict(full)),
        }
    }

    fn creates(&self, is_insert: bool) -> bool {
        match self {
            UpdateNode::Leaf(modifier) => modifier.creates(is_insert),
            UpdateNode::Inner(children) => {
                children.iter().any(|(_, child)| child.creates(is_insert))
            }
        }
    }

    /// One node that does what both do.
    fn merge(&self, other: &UpdateNode, path: &str) -> Result<UpdateNode, Error> {
        let (UpdateNode::Inner(left), UpdateNode::Inner(right)) = (self, other) else {
            return Err(Error::new(
                Code::CONFLICTING_UPDATE_OPERATORS,
                format!("Update created a conflict at '{path}'"),
            ));
        };
        let mut merged = left.clone();
        for (component, node) in right {
            match merged.binary_search_by(|(other, _)| other.compare(component)) {
                Ok(at) => {
                    let mut inner = path.to_owned();
                    push_component(&mut inner, &component.to_string());
                    merged[at].1 = merged[at].1.merge(node, &inner)?;
                }
                Err(at) => merged.insert(at, (component.clone(), node.clone())),
            }
        }
        Ok(UpdateNode::Inner(merged))
    }
}

fn push_component(path: &mut String, component: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(component);
}

/// One run of the modifiers over one document.
pub(super) struct Run<'c> {
    pub(super) application: Application<'c>,
    /// The array element that the filter matched, for `$`.
    pub(super) matched: Option<&'c str>,
    pub(super) array_filters: &'c BTreeMap<String, Filter>,
    /// Values at the source paths of `$rename`, taken before anything changes.
    pub(super) renamed: BTreeMap<String, Value>,
}

impl<'c> Run<'c> {
    /// Applies the children of an inner node to a document's fields.
    pub(super) fn fields<'a>(
        &self,
        children: &[(Component, UpdateNode)],
        fields: &mut Fields<'a>,
        path: &str,
    ) -> Result<bool, Error> {
        let mut changed = false;
        for (name, node) in self.resolve(children, path)? {
            let mut at_path = path.to_owned();
            push_component(&mut at_path, &name);
            let existing = fields.position(&name);
            match (node.as_ref(), existing) {
                (UpdateNode::Leaf(modifier), _) => {
                    let current = existing.map(|at| &fields.entries[at].1);
                    match self.leaf(modifier, &at_path, current)? {
                        Effect::Keep => continue,
                        Effect::Put(node) => match existing {
                            Some(at) => fields.entries[at].1 = node,
                            None => fields.entries.push((Cow::Owned(name), node)),
                        },
                        Effect::Remove => match existing {
                            Some(at) => {
                                fields.entries.remove(at);
                            }
                            None => continue,
                        },
                    }
                    changed = true;
                }
                (inner @ UpdateNode::Inner(_), Some(at)) => {
                    changed |= self.inner(inner, &mut fields.entries[at].1, &at_path)?;
                }
                (inner @ UpdateNode::Inner(_), None) => {
                    if let Some(created) = self.create(inner, &at_path)? {
                        fields.entries.push((Cow::Owned(name), created));
                        changed = true;
                    }
                }
            }
        }
        Ok(changed)
    }

    fn leaf<'a>(
        &self,
        modifier: &Modifier,
        path: &str,
        current: Option<&Node<'a>>,
    ) -> Result<Effect<'a>, Error> {
        match modifier {
            Modifier::RenameFrom(source) => Ok(match self.renamed.get(source) {
                Some(value) => Effect::Put(Node::Owned(value.clone())),
                None => Effect::Keep,
            }),
            other => other.apply(path, current, &self.application),
        }
    }

    /// Goes into an existing value.
    fn inner(&self, node: &UpdateNode, value: &mut Node<'_>, path: &str) -> Result<bool, Error> {
        let UpdateNode::Inner(children) = node else {
            unreachable!("leaves are applied by their container");
        };
        let has_array_step = children.iter().any(|(step, _)| step.is_array_step());
        value.open();
        match value {
            Node::Document(_) | Node::Borrowed(_) | Node::Owned(_) if has_array_step => {
                let step = children
                    .iter()
                    .find(|(step, _)| step.is_array_step())
                    .map(|(step, _)| step.to_string());
                Err(Error::bad_value(format!(
                    "Cannot apply array updates to non-array element at path '{path}' ({})",
                    step.unwrap_or_default()
                )))
            }
            Node::Document(fields) => self.fields(children, fields, path),
            Node::Array(elements) => self.elements(children, elements, path),
            Node::Borrowed(_) | Node::Owned(_) => {
                if !node.creates(self.application.is_insert) {
                    return Ok(false);
                }
                Err(not_viable(children, path, value))
            }
        }
    }

    /// Makes the documents that lead to a field which is not there.
    fn create<'a>(&self, node: &UpdateNode, path: &str) -> Result<Option<Node<'a>>, Error> {
        let UpdateNode::Inner(children) = node else {
            unreachable!("leaves are applied by their container");
        };
        if children.iter().any(|(step, _)| step.is_array_step()) {
            return Err(Error::bad_value(format!(
                "The path '{path}' must exist in the document in order to apply array updates."
            )));
        }
        if !node.creates(self.application.is_insert) {
            return Ok(None);
        }
        let mut fields = Fields::default();
        let changed = self.fields(children, &mut fields, path)?;
        Ok(changed.then_some(Node::Document(fields)))
    }

    fn elements(
        &self,
        children: &[(Component, UpdateNode)],
        elements: &mut Vec<Node<'_>>,
        path: &str,
    ) -> Result<bool, Error> {
        // What each element gets: steps by index, by filter, and by `$[]`.
        let mut planned: BTreeMap<usize, UpdateNode> = BTreeMap::new();
        let mut plan = |at: usize, node: &UpdateNode| -> Result<(), Error> {
            let merged = match planned.get(&at) {
                None => node.clone(),
                Some(before) => before.merge(node, &format!("{path}.{at}"))?,
            };
            planned.insert(at, merged);
            Ok(())
        };
        for (step, node) in children {
            match step {
                Component::All => {
                    for at in 0..elements.len() {
                        plan(at, node)?;
                    }
                }
                Component::Filtered(name) => {
                    for (at, element) in elements.iter().enumerate() {
                        if self.accepts(name, element)? {
                            plan(at, node)?;
                        }
                    }
                }
                Component::Positional => plan(self.matched_index(path)?, node)?,
                Component::Field(name) => match parse_index(name) {
                    Some(at) => plan(at, node)?,
                    None if node.creates(self.application.is_insert) => {
                        let value = Node::Array(elements.clone());
                        return Err(not_viable(children, path, &value));
                    }
                    None => {}
                },
            }
        }
        let mut changed = false;
        for (at, node) in planned {
            changed |= self.element(&node, elements, at, path)?;
        }
        Ok(changed)
    }

    fn element(
        &self,
        node: &UpdateNode,
        elements: &mut Vec<Node<'_>>,
        at: usize,
        path: &str,
    ) -> Result<bool, Error> {
        let at_path = format!("{path}.{at}");
        match node {
            UpdateNode::Leaf(modifier) => {
                match self.leaf(modifier, &at_path, elements.get(at))? {
                    Effect::Keep => return Ok(false),
                    Effect::Put(node) => {
                        backfill(elements, at)?;
                        match elements.get_mut(at) {
                            Some(element) => *element = node,
                            None => elements.push(node),
                        }
                    }
                    // Removing an element would shift the others.
                    Effect::Remove => elements[at] = Node::Owned(Value::Null),
                }
                Ok(true)
            }
            UpdateNode::Inner(_) => match elements.get_mut(at) {
                Some(element) => self.inner(node, element, &at_path),
                None => match self.create(node, &at_path)? {
                    Some(created) => {
                        backfill(elements, at)?;
                        elements.push(created);
                        Ok(true)
                    }
                    None => Ok(false),
                },
            },
        }
    }

    fn accepts(&self, name: &str, element: &Node<'_>) -> Result<bool, Error> {
        let filter = &self.array_filters[name];
        let value = element.value();
        let shown = DocWriter::new().with(name, value.as_ref()).finish();
        filter.matches(shown.as_doc())
    }

    fn matched_index(&self, path: &str) -> Result<usize, Error> {
        self.matched
            .and_then(parse_index)
            .ok_or_else(|| no_match(path))
    }

    /// Children of a document with `$` replaced by what it stands for.
    fn resolve<'n>(
        &self,
        children: &'n [(Component, UpdateNode)],
        path: &str,
    ) -> Result<Vec<(String, Cow<'n, UpdateNode>)>, Error> {
        let mut resolved: Vec<(String, Cow<'n, UpdateNode>)> = Vec::with_capacity(children.len());
        for (step, node) in children {
            let name = match step {
                Component::Positional => self.matched.ok_or_else(|| no_match(path))?.to_owned(),
                Component::Field(name) => name.clone(),
                Component::All | Component::Filtered(_) => continue,
            };
            match resolved.iter_mut().find(|(other, _)| *other == name) {
                Some((_, before)) => *before = Cow::Owned(before.merge(node, &name)?),
                None => resolved.push((name, Cow::Borrowed(node))),
            }
        }
        Ok(resolved)
    }
}

fn no_match(path: &str) -> Error {
    Error::bad_value(format!(
        "The positional operator did not find the match needed from the query. Path: '{path}'"
    ))
}

fn not_viable(children: &[(Component, UpdateNode)], path: &str, value: &Node<'_>) -> Error {
    let field = children
        .first()
        .map(|(step, _)| step.to_string())
        .unwrap_or_default();
    Error::new(
        Code::PATH_NOT_VIABLE,
        format!(
            "Cannot create field '{field}' in element {{{path}: {:?}}}",
            value.value()
        ),
    )
}

/// Fills an array with nulls up to an index.
fn backfill(elements: &mut Vec<Node<'_>>, at: usize) -> Result<(), Error> {
    if at <= elements.len() {
        return Ok(());
    }
    if at - elements.len() > BACKFILL_MAX {
        return Err(Error::new(
            Code::CANNOT_BACKFILL_ARRAY,
            format!("can't backfill more than {BACKFILL_MAX} elements"),
        ));
    }
    elements.resize_with(at, || Node::Owned(Value::Null));
    Ok(())
}
