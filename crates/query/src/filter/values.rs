//! The list of an `$in`: sorted once, searched by halves.

use crate::regex::Regex;
use model::bson::{Value, ValueRef};
use model::order;

/// The values and regular expressions of an `$in`.
#[derive(Clone, Debug)]
pub struct ValueSet {
    /// In BSON order, no two equal.
    values: Vec<Value>,
    regexes: Vec<Regex>,
    has_null: bool,
}

impl ValueSet {
    /// Of values that are equal, the first is kept.
    pub fn new(mut values: Vec<Value>, regexes: Vec<Regex>) -> Self {
        values.sort_by(|a, b| order::compare(a.as_ref(), b.as_ref()));
        values.dedup_by(|next, first| order::compare(next.as_ref(), first.as_ref()).is_eq());
        let has_null = values.iter().any(|value| matches!(value, Value::Null));
        Self {
            values,
            regexes,
            has_null,
        }
    }

    pub fn values(&self) -> &[Value] {
        &self.values
    }

    pub fn regexes(&self) -> &[Regex] {
        &self.regexes
    }

    pub fn has_null(&self) -> bool {
        self.has_null
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.regexes.is_empty()
    }

    pub fn into_parts(self) -> (Vec<Value>, Vec<Regex>) {
        (self.values, self.regexes)
    }

    pub(super) fn accepts(&self, candidate: Option<ValueRef<'_>>) -> bool {
        let Some(candidate) = candidate else {
            return self.has_null;
        };
        if self.has_null && matches!(candidate, ValueRef::Undefined) {
            return true;
        }
        self.values
            .binary_search_by(|value| order::compare(value.as_ref(), candidate))
            .is_ok()
            || self
                .regexes
                .iter()
                .any(|regex| regex.matches_value(candidate))
    }
}
