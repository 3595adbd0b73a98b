//! What an update did to a document, for the log: only the paths of its modifiers
//! are looked at, and what a modifier changed is told whole, as MongoDB does it.
//!
//! ```text
//!   $set: {a: {b: 1}}     u: {a: {b: 1}}, whatever a held before
//!   $set: {"a.b": 1}      sa: {u: {b: 1}}
//!   $push: {a: 1}         sa: {a: true, u3: 1}; the whole array if its elements moved
//!   $inc: {"a.$[]": 1}    sa: {a: true, u0: 2} if one element changed, else u: {a: ..}
//! ```

use super::array_modifier::Push;
use super::modifier::Modifier;
use super::path::{Component, parse_index};
use super::tree::UpdateNode;
use super::{Update, UpdateMoment};
use crate::difference::{ArrayChanges, Changes, between, same};
use model::bson::{Array, Doc, DocBuf, Element, ValueRef};

impl Update {
    /// The difference between a version and what [`Update::apply`] made of it, or
    /// `None` if the log is better told the whole new version.
    pub fn difference(
        &self,
        before: Doc<'_>,
        after: Doc<'_>,
        moment: UpdateMoment<'_>,
    ) -> Option<DocBuf> {
        match self {
            Update::Replacement(_) => None,
            Update::Pipeline(_) => between(before, after),
            Update::Modifiers(modifiers) => {
                let UpdateNode::Fields(children) = &modifiers.root else {
                    unreachable!("the root holds fields");
                };
                let look = Look {
                    matched: moment.matched,
                };
                Some(look.fields(children, before, after).finish())
            }
        }
    }
}

/// How to walk along the modifiers.
struct Look<'m> {
    matched: Option<&'m str>,
}

type Children = [(Component, UpdateNode)];

/// What became of one value.
enum Became<'a> {
    Same,
    New(Element<'a>),
    Nested(DocBuf),
}

impl Look<'_> {
    fn name<'n>(&'n self, step: &'n Component) -> Option<&'n str> {
        match step {
            Component::Field(name) => Some(name),
            Component::Positional => self.matched,
            Component::All | Component::Filtered(_) => None,
        }
    }

    fn fields<'a>(&self, children: &Children, before: Doc<'a>, after: Doc<'a>) -> Changes<'a> {
        let mut changes = Changes::default();
        for (step, node) in children {
            let Some(name) = self.name(step) else {
                continue;
            };
            match (before.element(name), after.element(name)) {
                (None, None) => {}
                (Some(old), None) => changes.deleted.push(old),
                (None, Some(new)) => changes.inserted.push(new),
                (Some(old), Some(new)) => match self.value(node, old, new) {
                    Became::Same => {}
                    Became::New(new) => changes.updated.push(new),
                    Became::Nested(difference) => changes.nested.push((new.key(), difference)),
                },
            }
        }
        changes
    }

    fn value<'a>(&self, node: &UpdateNode, old: Element<'a>, new: Element<'a>) -> Became<'a> {
        if same(&old, &new) {
            return Became::Same;
        }
        match (node, old.value(), new.value()) {
            (UpdateNode::Fields(children), ValueRef::Document(old), ValueRef::Document(new)) => {
                let changes = self.fields(children, old, new);
                match changes.is_empty() {
                    true => Became::Same,
                    false => Became::Nested(changes.finish()),
                }
            }
            (UpdateNode::Fields(children), ValueRef::Array(before), ValueRef::Array(after)) => {
                self.indexes(children, before, after)
            }
            (UpdateNode::Elements(_), ValueRef::Array(before), ValueRef::Array(after)) => {
                elements(before, after).unwrap_or(Became::New(new))
            }
            (
                UpdateNode::Leaf(Modifier::Push(push)),
                ValueRef::Array(before),
                ValueRef::Array(after),
            ) => appended(push, before, after).unwrap_or(Became::New(new)),
            _ => Became::New(new),
        }
    }

    /// Elements of an array that are stepped into by their index. Those before the
    /// last that an update had to fill in need no word: applying fills them too.
    fn indexes<'a>(&self, children: &Children, before: Array<'a>, after: Array<'a>) -> Became<'a> {
        let mut steps: Vec<(usize, &UpdateNode)> = children
            .iter()
            .filter_map(|(step, node)| Some((parse_index(self.name(step)?)?, node)))
            .collect();
        steps.sort_by_key(|(index, _)| *index);
        // `$` and an index may mean the same element: then it is told whole.
        let twice = |index: usize| steps.iter().filter(|(other, _)| *other == index).count() > 1;
        let mut changes = ArrayChanges::default();
        let mut last = None;
        for (index, node) in &steps {
            if last.replace(*index) == Some(*index) {
                continue;
            }
            let Some(new) = after.elements().nth(*index) else {
                continue;
            };
            match before.elements().nth(*index) {
                None => changes.put(*index, new),
                Some(old) if same(&old, &new) => {}
                Some(_) if twice(*index) => changes.put(*index, new),
                Some(old) => match self.value(node, old, new) {
                    Became::Same => {}
                    Became::New(new) => changes.put(*index, new),
                    Became::Nested(difference) => changes.nest(*index, difference),
                },
            }
        }
        match changes.is_empty() {
            true => Became::Same,
            false => Became::Nested(changes.finish()),
        }
    }
}

/// One element that changed is told by itself; `None` if there are more.
fn elements<'a>(before: Array<'a>, after: Array<'a>) -> Option<Became<'a>> {
    let mut changed = before
        .elements()
        .zip(after.elements())
        .enumerate()
        .filter(|(_, (old, new))| !same(old, new));
    let (index, (_, new)) = changed.next()?;
    if changed.next().is_some() {
        return None;
    }
    let mut changes = ArrayChanges::default();
    changes.put(index, new);
    Some(Became::Nested(changes.finish()))
}

/// Elements pushed behind others that stayed; `None` if that is not all.
fn appended<'a>(push: &Push, before: Array<'a>, after: Array<'a>) -> Option<Became<'a>> {
    let count = before.count();
    let behind = match push.position {
        None => true,
        Some(position) => usize::try_from(position).is_ok_and(|position| position > count),
    };
    if count == 0 || !behind || push.sort.is_some() {
        return None;
    }
    // Without its end, the array as it was is how the new one begins.
    let old = before.as_bytes();
    let kept = &old[4..old.len() - 1];
    if after.as_bytes()[4..].get(..kept.len()) != Some(kept)
        || after.count() != count + push.values.len()
    {
        return None;
    }
    let mut changes = ArrayChanges::default();
    for (index, new) in after.elements().enumerate().skip(count) {
        changes.put(index, new);
    }
    Some(Became::Nested(changes.finish()))
}
