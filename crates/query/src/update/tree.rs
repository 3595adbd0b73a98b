//! The modifiers of an update as one tree of paths.
//!
//! Children are kept in the order in which fields are created. Two modifiers of
//! one path, or of a path and its prefix, are found as a conflict when the tree
//! is built. `$`, `$[]` and `$[name]` can only be resolved against a document:
//! where several of them mean the same element, their subtrees are merged then,
//! with the same check.

use super::modifier::Modifier;
use super::path::Component;
use model::{Code, Error};
use std::cmp::Ordering;

#[derive(Clone, Debug)]
pub(super) enum UpdateNode {
    Leaf(Modifier),
    /// Steps by name or index, `$` among them.
    Fields(Vec<(Component, UpdateNode)>),
    /// `$[]` and `$[name]`: steps into the elements of an array.
    Elements(Vec<(Component, UpdateNode)>),
}

impl UpdateNode {
    pub(super) fn empty() -> Self {
        UpdateNode::Fields(Vec::new())
    }

    /// Adds a modifier at a path; `full` is the path for messages.
    pub(super) fn insert(
        &mut self,
        path: &[Component],
        modifier: Modifier,
        full: &str,
    ) -> Result<(), Error> {
        let conflict = |walked: &[Component]| {
            let at: Vec<String> = walked.iter().map(Component::to_string).collect();
            Error::new(
                Code::CONFLICTING_UPDATE_OPERATORS,
                format!(
                    "Updating the path '{full}' would create a conflict at '{}'",
                    at.join(".")
                ),
            )
        };
        let mut node = self;
        for (depth, component) in path.iter().enumerate() {
            if component.is_array_step()
                && let UpdateNode::Fields(children) = node
                && children.is_empty()
            {
                *node = UpdateNode::Elements(Vec::new());
            }
            let children = match (node, component.is_array_step()) {
                (UpdateNode::Fields(children), false) => children,
                (UpdateNode::Elements(children), true) => children,
                // One container is stepped into either by name or by filter.
                (UpdateNode::Leaf(_), _)
                | (UpdateNode::Fields(_), true)
                | (UpdateNode::Elements(_), false) => return Err(conflict(&path[..depth])),
            };
            let at = match position(children, component) {
                Some(at) => at,
                None => insert_ordered(children, component.clone(), UpdateNode::empty()),
            };
            node = &mut children[at].1;
        }
        match node {
            UpdateNode::Fields(children) if children.is_empty() => {
                *node = UpdateNode::Leaf(modifier);
                Ok(())
            }
            UpdateNode::Fields(_) | UpdateNode::Elements(_) | UpdateNode::Leaf(_) => {
                Err(conflict(path))
            }
        }
    }

    /// One node that does what both do; `path` is for the message.
    pub(super) fn merge(&self, other: &UpdateNode, path: &str) -> Result<UpdateNode, Error> {
        match (self, other) {
            (UpdateNode::Fields(left), UpdateNode::Fields(right)) => {
                merge_children(left, right, path).map(UpdateNode::Fields)
            }
            (UpdateNode::Elements(left), UpdateNode::Elements(right)) => {
                merge_children(left, right, path).map(UpdateNode::Elements)
            }
            (
                UpdateNode::Leaf(_) | UpdateNode::Fields(_) | UpdateNode::Elements(_),
                UpdateNode::Leaf(_) | UpdateNode::Fields(_) | UpdateNode::Elements(_),
            ) => Err(Error::new(
                Code::CONFLICTING_UPDATE_OPERATORS,
                format!("Update created a conflict at '{path}'"),
            )),
        }
    }

    /// Whether a step into the elements of an array lies somewhere below.
    pub(super) fn has_array_step(&self) -> bool {
        match self {
            UpdateNode::Leaf(_) => false,
            UpdateNode::Fields(children) => {
                children.iter().any(|(_, child)| child.has_array_step())
            }
            UpdateNode::Elements(_) => true,
        }
    }
}

fn merge_children(
    left: &[(Component, UpdateNode)],
    right: &[(Component, UpdateNode)],
    path: &str,
) -> Result<Vec<(Component, UpdateNode)>, Error> {
    let mut merged = left.to_vec();
    for (component, node) in right {
        merge_child(&mut merged, component.clone(), node, path)?;
    }
    Ok(merged)
}

/// Adds one child, merging it with what is at the same step.
pub(super) fn merge_child(
    children: &mut Vec<(Component, UpdateNode)>,
    component: Component,
    node: &UpdateNode,
    path: &str,
) -> Result<(), Error> {
    match position(children, &component) {
        Some(at) => {
            let inner = match path {
                "" => component.to_string(),
                path => format!("{path}.{component}"),
            };
            children[at].1 = children[at].1.merge(node, &inner)?;
        }
        None => {
            insert_ordered(children, component, node.clone());
        }
    }
    Ok(())
}

fn position(children: &[(Component, UpdateNode)], component: &Component) -> Option<usize> {
    children.iter().position(|(known, _)| known == component)
}

fn insert_ordered(
    children: &mut Vec<(Component, UpdateNode)>,
    component: Component,
    node: UpdateNode,
) -> usize {
    let at = children
        .iter()
        .position(|(known, _)| component.compare(known) == Ordering::Less)
        .unwrap_or(children.len());
    children.insert(at, (component, node));
    at
}
