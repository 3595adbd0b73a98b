//! Modifiers of arrays: `$push`, `$addToSet`, `$pop`, `$pull`, `$pullAll`.
//!
//! Elements are borrowed from the document and the update and copied once, into
//! the new array.

use super::modifier::Effect;
use super::path::At;
use crate::filter::Filter;
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
    Ascending,
    Descending,
    /// Fields of elements that are documents.
    Fields(Vec<SortField>),
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
    /// Accepted by operators on the element itself; the filter is on [`ELEMENT`].
    Element(Filter),
    /// Documents that match.
    Documents(Filter),
}

/// The name under which an element is shown to a filter on elements.
pub(super) const ELEMENT: &str = "v";

fn array<'m>(elements: &[ValueRef<'_>]) -> Effect<'m> {
    Effect::PutOwned(Value::Array(elements.iter().copied().collect::<ArrayBuf>()))
}

impl Push {
    pub(super) fn apply<'m>(
        &self,
        at: &At<'_>,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'m>, Error> {
        let before = match current {
            None => 0,
            Some(ValueRef::Array(array)) => array.count(),
            Some(other) => {
                return Err(Error::bad_value(format!(
                    "The field '{at}' must be an array but is of type {} in document {}",
                    other.kind().name(),
                    at.document()
                )));
            }
        };
        let mut all: Vec<ValueRef<'_>> = Vec::with_capacity(before + self.values.len());
        if let Some(ValueRef::Array(array)) = current {
            all.extend(array.iter());
        }
        let position = match self.position {
            None => all.len(),
            Some(position) => match usize::try_from(position) {
                Ok(from_start) => all.len().min(from_start),
                Err(_) => all.len().saturating_sub(magnitude(position)),
            },
        };
        all.splice(position..position, self.values.iter().map(Value::as_ref));
        match &self.sort {
            None => {}
            Some(PushSort::Ascending) => all.sort_by(|a, b| order::compare(*a, *b)),
            Some(PushSort::Descending) => all.sort_by(|a, b| order::compare(*b, *a)),
            Some(PushSort::Fields(fields)) => all.sort_by(|a, b| compare_by_fields(fields, *a, *b)),
        }
        if let Some(slice) = self.slice {
            let keep = magnitude(slice);
            if slice >= 0 {
                all.truncate(keep);
            } else if all.len() > keep {
                all.drain(..all.len() - keep);
            }
        }
        // MongoDB looks at what it was asked for, not at what came of it.
        // Sorting counts as a change even if nothing moves, unless there is nothing.
        let is_sorted = self.sort.is_some() && before > 0;
        let is_idle = self.values.is_empty() && !is_sorted && all.len() == before;
        if is_idle && current.is_some() {
            return Ok(Effect::Keep);
        }
        Ok(array(&all))
    }
}

fn magnitude(number: i64) -> usize {
    usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX)
}

/// A field that `$push` sorts by. Arrays compare as a whole here, unlike in a
/// query's sort.
#[derive(Clone, Debug)]
pub(super) struct SortField {
    pub(super) path: String,
    pub(super) is_descending: bool,
}

impl SortField {
    /// The value to sort by; null where there is none.
    fn key<'a>(&self, element: ValueRef<'a>) -> ValueRef<'a> {
        let ValueRef::Document(mut doc) = element else {
            return ValueRef::Null;
        };
        let mut names = self.path.split('.').peekable();
        while let Some(name) = names.next() {
            match doc.get(name) {
                Some(value) if names.peek().is_none() => return value,
                Some(ValueRef::Document(inner)) => doc = inner,
                // By index, which is the name that an element has as a field.
                Some(ValueRef::Array(array)) => doc = array.as_doc(),
                Some(_) | None => return ValueRef::Null,
            }
        }
        ValueRef::Null
    }
}

fn compare_by_fields(fields: &[SortField], left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    for field in fields {
        let ordering = order::compare(field.key(left), field.key(right));
        if ordering.is_ne() {
            return match field.is_descending {
                true => ordering.reverse(),
                false => ordering,
            };
        }
    }
    Ordering::Equal
}

impl AddToSet {
    pub(super) fn apply<'m>(
        &self,
        at: &At<'_>,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'m>, Error> {
        let mut all: Vec<ValueRef<'_>> = match current {
            None => Vec::new(),
            Some(ValueRef::Array(array)) => array.iter().collect(),
            Some(other) => {
                return Err(Error::bad_value(format!(
                    "Cannot apply $addToSet to non-array field. Field named '{}' has non-array type {}",
                    at.last(),
                    other.kind().name()
                )));
            }
        };
        let before = all.len();
        for value in self.values.iter().map(Value::as_ref) {
            if !all
                .iter()
                .any(|known| order::compare(*known, value).is_eq())
            {
                all.push(value);
            }
        }
        // An empty $each on a missing field still creates the empty array.
        if all.len() == before && current.is_some() {
            return Ok(Effect::Keep);
        }
        Ok(array(&all))
    }
}

impl Pop {
    pub(super) fn apply<'m>(
        self,
        at: &At<'_>,
        current: Option<ValueRef<'_>>,
    ) -> Result<Effect<'m>, Error> {
        let all: Vec<ValueRef<'_>> = match current {
            None => return Ok(Effect::Keep),
            Some(ValueRef::Array(array)) => array.iter().collect(),
            Some(other) => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "Path '{at}' contains an element of non-array type '{}'",
                        other.kind().name()
                    ),
                ));
            }
        };
        Ok(match (self, all.as_slice()) {
            (_, []) => Effect::Keep,
            (Pop::First, [_, rest @ ..]) => array(rest),
            (Pop::Last, [rest @ .., _]) => array(rest),
        })
    }
}

impl Pull {
    pub(super) fn apply<'m>(&self, current: Option<ValueRef<'_>>) -> Result<Effect<'m>, Error> {
        remove_matching(current, |element| self.matches(element))
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

pub(super) fn pull_all<'m>(
    current: Option<ValueRef<'_>>,
    unwanted: &[Value],
) -> Result<Effect<'m>, Error> {
    remove_matching(current, |element| {
        Ok(unwanted
            .iter()
            .any(|value| order::compare(value.as_ref(), element).is_eq()))
    })
}

fn remove_matching<'m>(
    current: Option<ValueRef<'_>>,
    matches: impl Fn(ValueRef<'_>) -> Result<bool, Error>,
) -> Result<Effect<'m>, Error> {
    let all = match current {
        None => return Ok(Effect::Keep),
        Some(ValueRef::Array(array)) => array,
        Some(_) => {
            return Err(Error::bad_value("Cannot apply $pull to a non-array value"));
        }
    };
    let mut kept = Vec::new();
    let mut is_removed = false;
    for element in all.iter() {
        if matches(element)? {
            is_removed = true;
        } else {
            kept.push(element);
        }
    }
    Ok(if is_removed {
        array(&kept)
    } else {
        Effect::Keep
    })
}
