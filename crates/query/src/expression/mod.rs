//! Aggregation expressions: parsed once, evaluated per document.

use crate::context::QueryContext;
use model::Error;
use model::bson::{Doc, Value, ValueRef};

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    _private: (),
}

impl Expression {
    pub fn parse(_value: ValueRef<'_>, _context: &QueryContext) -> Result<Expression, Error> {
        Ok(Expression { _private: () })
    }

    /// `None` is the missing value.
    pub fn evaluate(&self, _root: Doc<'_>) -> Result<Option<Value>, Error> {
        Ok(None)
    }
}
