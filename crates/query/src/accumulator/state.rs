//! What an accumulator has gathered for one group: adding to it, and the result.
//!
//! A state keeps count of the memory that its values take, so that whoever holds many
//! groups knows when it is too much without looking at each.
//!
//! Missing and null are told apart when a value is added; which of the two counts, and
//! whether null itself does, is each accumulator's own. What leaves this process before
//! it is finished is in [`super::partial`].

use super::Ties;
use super::numeric::{Deviation, Extreme, Mean};
use super::ranked::Ranking;
use crate::expression::{Merged, not_mergeable};
use model::bson::{ArrayBuf, Value, ValueRef};
use model::hash::hash_value;
use model::number::{Number, Sum};
use model::{Code, Error, order};
use std::collections::{HashMap, VecDeque};

/// See the module's header for how states are used.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) gathered: Gathered,
    /// What the values kept take on the heap, about.
    bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Gathered {
    Sum(Sum),
    Mean(Mean),
    Extreme(Extreme, Ties, Option<Value>),
    First(Option<Value>),
    Last(Option<Value>),
    Push(Vec<Value>),
    Set(ValueSet),
    Merged(Merged),
    Deviation {
        deviation: Deviation,
        sample: bool,
    },
    FirstN(usize, Vec<Value>),
    LastN(usize, VecDeque<Value>),
    /// In order, the most extreme first.
    ExtremeN(Extreme, usize, Vec<Value>),
    Ranked {
        ranking: Ranking,
        /// `None` for `$top` and `$bottom`.
        limit: Option<usize>,
        entries: Vec<(ArrayBuf, Value)>,
    },
}

/// Values that compare unequal, in the order they came.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueSet {
    values: Vec<Value>,
    /// Places by hash; equal values have equal hashes.
    places: HashMap<u64, Vec<u32>, foldhash::fast::FixedState>,
}

impl ValueSet {
    fn insert(&mut self, value: ValueRef<'_>) -> bool {
        let places = self.places.entry(hash_value(value)).or_default();
        let known = places
            .iter()
            .any(|at| order::compare(self.values[*at as usize].as_ref(), value).is_eq());
        if !known {
            places.push(self.values.len() as u32);
            self.values.push(value.to_owned());
        }
        !known
    }
}

impl State {
    pub(super) fn new(gathered: Gathered) -> State {
        State { gathered, bytes: 0 }
    }

    pub(super) fn sum() -> State {
        Self::new(Gathered::Sum(Sum::new()))
    }

    pub(super) fn mean() -> State {
        Self::new(Gathered::Mean(Mean::default()))
    }

    pub(super) fn extreme(which: Extreme, ties: Ties) -> State {
        Self::new(Gathered::Extreme(which, ties, None))
    }

    pub(super) fn first() -> State {
        Self::new(Gathered::First(None))
    }

    pub(super) fn last() -> State {
        Self::new(Gathered::Last(None))
    }

    pub(super) fn push() -> State {
        Self::new(Gathered::Push(Vec::new()))
    }

    pub(super) fn set() -> State {
        Self::new(Gathered::Set(ValueSet::default()))
    }

    pub(super) fn merged() -> State {
        Self::new(Gathered::Merged(Merged::default()))
    }

    pub(super) fn deviation(sample: bool) -> State {
        Self::new(Gathered::Deviation {
            deviation: Deviation::default(),
            sample,
        })
    }

    pub(super) fn first_n(n: usize) -> State {
        Self::new(Gathered::FirstN(n, Vec::new()))
    }

    pub(super) fn last_n(n: usize) -> State {
        Self::new(Gathered::LastN(n, VecDeque::new()))
    }

    pub(super) fn extreme_n(which: Extreme, n: usize) -> State {
        Self::new(Gathered::ExtremeN(which, n, Vec::new()))
    }

    pub(super) fn ranked(ranking: Ranking, limit: Option<usize>) -> State {
        Self::new(Gathered::Ranked {
            ranking,
            limit,
            entries: Vec::new(),
        })
    }

    /// About how much memory the state takes.
    pub fn memory_bytes(&self) -> usize {
        std::mem::size_of::<State>() + self.bytes
    }

    /// Adds one value; `None` is a missing one.
    pub fn add(&mut self, value: Option<ValueRef<'_>>) -> Result<(), Error> {
        let bytes = &mut self.bytes;
        match &mut self.gathered {
            Gathered::Sum(sum) => {
                if let Some(number) = value.and_then(Number::of) {
                    sum.add(number);
                }
            }
            Gathered::Mean(mean) => value.into_iter().for_each(|value| mean.add(value)),
            Gathered::Deviation { deviation, .. } => {
                value.into_iter().for_each(|value| deviation.add(value));
            }
            Gathered::Extreme(which, ties, best) => {
                if let Some(value) = value.filter(|value| !value.is_nullish()) {
                    let better = match best {
                        Some(best) => match ties {
                            Ties::First => which.replaces(value, best.as_ref()),
                            Ties::Latest => which.replaces_or_equals(value, best.as_ref()),
                        },
                        None => true,
                    };
                    if better {
                        *bytes = size(value);
                        *best = Some(value.to_owned());
                    }
                }
            }
            Gathered::First(first) => {
                if first.is_none() {
                    let value = value.unwrap_or(ValueRef::Null);
                    *bytes = size(value);
                    *first = Some(value.to_owned());
                }
            }
            Gathered::Last(last) => {
                let value = value.unwrap_or(ValueRef::Null);
                *bytes = size(value);
                *last = Some(value.to_owned());
            }
            Gathered::Push(values) => {
                if let Some(value) = value {
                    *bytes += size(value);
                    values.push(value.to_owned());
                }
            }
            Gathered::Set(set) => {
                if let Some(value) = value
                    && set.insert(value)
                {
                    *bytes += size(value) + 16;
                }
            }
            Gathered::Merged(merged) => match value {
                Some(ValueRef::Document(doc)) => {
                    *bytes += size(ValueRef::Document(doc));
                    merged.merge(doc);
                }
                None | Some(ValueRef::Null | ValueRef::Undefined) => {}
                Some(other) => return Err(not_mergeable(other)),
            },
            Gathered::FirstN(n, values) => {
                if values.len() < *n {
                    let value = value.unwrap_or(ValueRef::Null);
                    *bytes += size(value);
                    values.push(value.to_owned());
                }
            }
            Gathered::LastN(n, values) => {
                let value = value.unwrap_or(ValueRef::Null);
                *bytes += size(value);
                values.push_back(value.to_owned());
                if values.len() > *n
                    && let Some(oldest) = values.pop_front()
                {
                    *bytes -= size(oldest.as_ref());
                }
            }
            Gathered::ExtremeN(which, n, values) => {
                if let Some(value) = value.filter(|value| !value.is_nullish()) {
                    *bytes += size(value);
                    if let Some(out) = which.insert(values, *n, value.to_owned(), Value::as_ref) {
                        *bytes -= size(out.as_ref());
                    }
                }
            }
            Gathered::Ranked { .. } => {
                return Err(broken("a ranked state takes a value with its rank"));
            }
        }
        Ok(())
    }

    pub(super) fn add_ranked(
        &mut self,
        key: ArrayBuf,
        value: Option<ValueRef<'_>>,
    ) -> Result<(), Error> {
        let Gathered::Ranked {
            ranking,
            limit,
            entries,
        } = &mut self.gathered
        else {
            return Err(broken("only a ranked state takes ranks"));
        };
        let value = value.unwrap_or(ValueRef::Null).to_owned();
        ranking.insert(entries, limit.unwrap_or(1), key, value);
        self.bytes = entries
            .iter()
            .map(|(key, value)| key.as_array().as_bytes().len() + size(value.as_ref()))
            .sum();
        Ok(())
    }

    /// The result.
    pub fn finish(self) -> Value {
        let all = |values: Vec<Value>| Value::Array(values.into_iter().collect());
        match self.gathered {
            Gathered::Sum(sum) => sum.total().to_value(),
            Gathered::Mean(mean) => mean.finish(),
            Gathered::Extreme(_, _, value) | Gathered::First(value) | Gathered::Last(value) => {
                value.unwrap_or(Value::Null)
            }
            Gathered::Push(values)
            | Gathered::FirstN(_, values)
            | Gathered::ExtremeN(_, _, values) => all(values),
            Gathered::Set(set) => all(set.values),
            Gathered::Merged(merged) => Value::Document(merged.finish()),
            Gathered::Deviation {
                deviation,
                sample: true,
            } => deviation.sample(),
            Gathered::Deviation {
                deviation,
                sample: false,
            } => deviation.population(),
            Gathered::LastN(_, values) => all(values.into()),
            Gathered::Ranked { limit, entries, .. } => {
                let mut values = entries.into_iter().map(|(_, value)| value);
                match limit {
                    Some(_) => all(values.collect()),
                    None => values.next().unwrap_or(Value::Null),
                }
            }
        }
    }
}

pub(super) fn broken(message: &str) -> Error {
    Error::new(Code::INTERNAL_ERROR, message)
}

/// What a value takes, about.
fn size(value: ValueRef<'_>) -> usize {
    std::mem::size_of::<Value>() + value.heap_bytes()
}
