//! Modifiers of arrays: `$push`, `$addToSet`, `$pop`, `$pull`, `$pullAll`.

use super::modifier::{Effect, put};
use crate::filter::Filter;
use crate::sort::SortPattern;
use model::bson::{ArrayBuf, DocWriter, Value, ValueRef};
use model::{Code, Error, order};
use std::cmp::Ordering;

#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) values: Vec<Value>,
    pub(super) position: Option<i64>,
    pub(super) slice: Option<i64>,
    pub(super) sort: Option<PushSort>,
}

/// How `$push` orders the array.
#[derive(Clone, Debug)]
pub(super) enum PushSort {
    /// Whole elements.
    Elements(Ordering),
    /// Fields of elements that are documents.
    Fields(SortPattern),
}

#[derive(Clone, Debug)]
pub(super) struct AddToSet {
    pub(super) values: Vec<Value>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Pop {
    First,
    Last,
}

/// Which elements `$pull` removes.
#[derive(Clone, Debug)]
pub(super) enum Pull {
    /// Equal to this value.
    Equal(Value),
    /// Accepted by operators on the element itself; the filter is on `v`.
    Element(Filter),
    /// Documents that match.
    Documents(Filter),
}

/// The name under which an element is shown to a filter on elements.
pub(super) const ELEMENT: &str = "v";

fn elements(path: &str, value: Option<ValueRef<'_>>) -> Result<Vec<Value>, Error> {
    match value {
        None => Ok(Vec::new()),
        Some(ValueRef::Array(array)) => Ok(array.iter().map(|v| v.to_owned()).collect()),
        Some(other) => Err(Error::bad_value(format!(
            "The field '{path}' must be an array but is of type {} in document",
            other.kind().name()
        ))),
    }
}

fn array<'a>(elements: Vec<Value>) -> Effect<'a> {
    put(Value::Array(elements.into_iter().collect::<ArrayBuf>()))
}

impl Push {
    pub(super) fn apply<'a>(
        &self,
        path: &str,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'a>, Error> {
        let mut all = elements(path, current)?;
        let at = match self.position {
            None => all.len(),
            Some(position) if position >= 0 => all.len().min(position as usize),
            Some(position) => all
                .len()
                .saturating_sub(position.unsigned_abs().try_into().unwrap_or(usize::MAX)),
        };
        all.splice(at..at, self.values.iter().cloned());
        match &self.sort {
            None => {}
            Some(PushSort::Elements(direction)) => {
                all.sort_by(|a, b| oriented(order::compare(a.as_ref(), b.as_ref()), *direction))
            }
            Some(PushSort::Fields(pattern)) => sort_by_fields(&mut all, pattern)?,
        }
        if let Some(slice) = self.slice {
            let keep = usize::try_from(slice.unsigned_abs()).unwrap_or(usize::MAX);
            if slice >= 0 {
                all.truncate(keep);
            } else if all.len() > keep {
                all.drain(..all.len() - keep);
            }
        }
        Ok(array(all))
    }
}

fn oriented(ordering: Ordering, direction: Ordering) -> Ordering {
    match direction {
        Ordering::Greater => ordering.reverse(),
        Ordering::Less | Ordering::Equal => ordering,
    }
}

/// Elements that are no documents count as documents without the fields.
fn sort_by_fields(all: &mut [Value], pattern: &SortPattern) -> Result<(), Error> {
    let mut failed = None;
    let empty = model::bson::DocBuf::new();
    all.sort_by(|a, b| {
        let document = |value: &Value| match value {
            Value::Document(doc) => doc.clone(),
            _ => empty.clone(),
        };
        match pattern.compare(document(a).as_doc(), document(b).as_doc()) {
            Ok(ordering) => ordering,
            Err(error) => {
                failed = Some(error);
                Ordering::Equal
            }
        }
    });
    failed.map_or(Ok(()), Err)
}

impl AddToSet {
    pub(super) fn apply<'a>(
        &self,
        path: &str,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'a>, Error> {
        let mut all = elements(path, current)?;
        let before = all.len();
        for value in &self.values {
            let known = all
                .iter()
                .any(|other| order::compare(other.as_ref(), value.as_ref()).is_eq());
            if !known {
                all.push(value.clone());
            }
        }
        // An empty $each on a missing field still creates the empty array.
        if all.len() == before && current.is_some() {
            return Ok(Effect::Keep);
        }
        Ok(array(all))
    }
}

impl Pop {
    pub(super) fn apply<'a>(
        self,
        path: &str,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'a>, Error> {
        let mut all: Vec<Value> = match current {
            None => return Ok(Effect::Keep),
            Some(ValueRef::Array(array)) => array.iter().map(|v| v.to_owned()).collect(),
            Some(other) => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "Path '{path}' contains an element of non-array type '{}'",
                        other.kind().name()
                    ),
                ));
            }
        };
        if all.is_empty() {
            return Ok(Effect::Keep);
        }
        match self {
            Pop::First => {
                all.remove(0);
            }
            Pop::Last => {
                all.pop();
            }
        }
        Ok(array(all))
    }
}

impl Pull {
    pub(super) fn apply<'a>(&self, current: Option<ValueRef<'_>>) -> Result<Effect<'a>, Error> {
        remove_matching("$pull", current, |element| self.matches(element))
    }

    fn matches(&self, element: ValueRef<'_>) -> Result<bool, Error> {
        match self {
            Pull::Equal(value) => Ok(order::compare(value.as_ref(), element).is_eq()),
            Pull::Element(filter) => {
                let shown = DocWriter::new().with(ELEMENT, element).finish();
                filter.matches(shown.as_doc())
            }
            Pull::Documents(filter) => match element {
                ValueRef::Document(doc) => filter.matches(doc),
                _ => Ok(false),
            },
        }
    }
}

pub(super) fn pull_all<'a>(
    current: Option<ValueRef<'_>>,
    unwanted: &[Value],
) -> Result<Effect<'a>, Error> {
    remove_matching("$pullAll", current, |element| {
        Ok(unwanted
            .iter()
            .any(|value| order::compare(value.as_ref(), element).is_eq()))
    })
}

fn remove_matching<'a>(
    name: &str,
    current: Option<ValueRef<'_>>,
    matches: impl Fn(ValueRef<'_>) -> Result<bool, Error>,
) -> Result<Effect<'a>, Error> {
    let all = match current {
        None => return Ok(Effect::Keep),
        Some(ValueRef::Array(array)) => array,
        Some(_) => {
            return Err(Error::bad_value(format!(
                "Cannot apply {name} to a non-array value"
            )));
        }
    };
    let mut kept = Vec::new();
    let mut removed = false;
    for element in all.iter() {
        if matches(element)? {
            removed = true;
        } else {
            kept.push(element.to_owned());
        }
    }
    Ok(if removed { array(kept) } else { Effect::Keep })
}
