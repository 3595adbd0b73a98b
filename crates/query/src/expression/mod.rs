//! Aggregation expressions: parsed once, evaluated per document.
//!
//! ```text
//!   BSON value --parse--> Node tree --evaluate(document, variables)--> Evaluated
//! ```
//!
//! Parsing resolves operators through one table (`table.rs`), variables to slots
//! and constant subexpressions to their values; an error in a constant
//! subexpression is therefore an error of parsing, as it is with MongoDB, which
//! reports it even if no document is ever looked at.
//!
//! Evaluating borrows wherever it can: a field path or a constant costs a lookup
//! and no copy, and only what an operator computes is owned ([`Evaluated`]).
//!
//! Each family of operators has a file of its own. Left out, and refused by
//! name: JavaScript (`$function`), text scores (`$meta`) and collations.

mod arithmetic;
mod array;
mod array_order;
mod boolean;
mod comparison;
mod conditional;
mod convert;
mod date;
mod field_path;
mod fold;
mod identifier;
mod logarithm;
mod node;
mod object;
mod parse;
mod range;
mod regex;
mod rounding;
mod scope;
mod set;
mod size;
mod statistics;
mod string;
mod substring;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod trigonometry;
mod trim;

pub(crate) use array_order::check_n;
pub use field_path::FieldPath;
pub use identifier::check_user_variable;
pub use node::Evaluated;
pub(crate) use node::truthy;
pub(crate) use object::{Merged, not_mergeable};
pub use table::is_commutative;
#[cfg(test)]
pub(crate) use tests::{parse_json, print_json};

use crate::context::{Interrupts, QueryContext};
use crate::filter::Comparison;
use model::Error;
use model::bson::{Doc, Value, ValueRef};
use node::{Frame, Node};
use std::sync::Arc;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    node: Node,
    /// How many variables are in scope at the deepest point.
    slots: usize,
    /// How many of them come with each evaluation.
    late_variables: usize,
    /// Their values, unless an evaluation brings others.
    late_values: Arc<[Option<Value>]>,
    reads_document: bool,
    interrupts: Interrupts,
}

impl Expression {
    pub fn parse(value: ValueRef<'_>, context: &QueryContext) -> Result<Expression, Error> {
        let mut parser = parse::Parser::new(context);
        let node = parser.parse(value)?;
        Ok(Expression {
            node,
            slots: parser.slots(),
            late_variables: context.late_variables.len(),
            late_values: context.late_values.clone(),
            reads_document: parser.reads_document(),
            interrupts: context.interrupts.clone(),
        })
    }

    /// An expression that is one value, whatever the document.
    pub fn constant(value: Value) -> Expression {
        Expression {
            node: Node::Constant(value),
            slots: 0,
            late_variables: 0,
            late_values: Arc::new([]),
            reads_document: false,
            interrupts: Interrupts::default(),
        }
    }

    /// The value if it does not depend on the document.
    pub fn as_constant(&self) -> Option<ValueRef<'_>> {
        match &self.node {
            Node::Constant(value) => Some(value.as_ref()),
            _ => None,
        }
    }

    /// The path if the expression is just a field of the document, `"$a.b"`.
    pub fn as_field_path(&self) -> Option<&FieldPath> {
        match &self.node {
            Node::Field(path) => Some(path),
            _ => None,
        }
    }

    /// Whether the expression as it was written refers to the document, even
    /// where that cannot matter.
    pub fn reads_document(&self) -> bool {
        self.reads_document
    }

    /// True for `"$$ROOT"`.
    pub fn is_root(&self) -> bool {
        matches!(self.node, Node::Root)
    }

    /// The comparisons of a field with a constant that must hold if the expression
    /// does: the path, and how the field compares with the value.
    pub fn comparisons(&self) -> Vec<(String, Comparison, Value)> {
        let mut found = Vec::new();
        comparison::necessary(&self.node, &self.late_values, &mut found);
        found
    }

    /// `None` is the missing value.
    pub fn evaluate(&self, root: Doc<'_>) -> Result<Option<Value>, Error> {
        Ok(self.evaluate_ref(root)?.into_value())
    }

    /// [`Self::evaluate`] without copying what is merely referred to.
    pub fn evaluate_ref<'a>(&'a self, root: Doc<'a>) -> Result<Evaluated<'a>, Error> {
        self.evaluate_with(root, &[])
    }

    /// Evaluates with values for the context's `late_variables`, in their
    /// order; those not given are missing.
    pub fn evaluate_with<'a>(
        &'a self,
        root: Doc<'a>,
        late: &'a [Option<Value>],
    ) -> Result<Evaluated<'a>, Error> {
        match &self.node {
            Node::Constant(value) => Ok(Evaluated::Borrowed(value.as_ref())),
            Node::Field(path) => Ok(path.evaluate(root)),
            node => {
                let late = if late.is_empty() {
                    &self.late_values
                } else {
                    late
                };
                let mut frame = Frame::new(root, late, self.late_variables, self.slots);
                frame.interrupts = Some(&self.interrupts);
                node.evaluate(&mut frame)
            }
        }
    }

    /// Whether the expression holds: MongoDB's notion of true.
    pub fn is_true(&self, root: Doc<'_>) -> Result<bool, Error> {
        Ok(truthy(&self.evaluate_ref(root)?))
    }
}
