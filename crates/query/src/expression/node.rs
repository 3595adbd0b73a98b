//! The parsed tree, what evaluating it yields, and the frame it runs in.
//!
//! Every operator is a function over its unevaluated arguments, so that an
//! operator decides by itself in which order it evaluates them and which not
//! at all. Operators that take their arguments by name have them put in fixed
//! positions by the parser; one that was not given is [`Node::Absent`].

use super::array_order::SortOrder;
use super::field_path::FieldPath;
use super::regex::Pattern;
use super::scope::{Filter, Let, Map, Reduce};
use super::size::check_computed;
use super::table::Operator;
use crate::context::Interrupts;
use model::Error;
use model::bson::{ArrayWriter, Doc, DocWriter, Value, ValueRef};
use std::cmp::Ordering;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Constant(Value),
    /// `$$REMOVE`.
    Missing,
    /// An argument by name that was left out.
    Absent,
    /// `$$ROOT`.
    Root,
    Field(FieldPath),
    Variable {
        slot: usize,
        path: Option<FieldPath>,
    },
    /// `$$CLUSTER_TIME` and its like where the server has none: an error only
    /// if a document is evaluated.
    Unavailable(&'static str),
    Object(Box<[(Box<str>, Node)]>),
    Array(Box<[Node]>),
    Call {
        operator: &'static Operator,
        arguments: Box<[Node]>,
    },
    Let(Box<Let>),
    Map(Box<Map>),
    Filter(Box<Filter>),
    Reduce(Box<Reduce>),
    /// The checked `sortBy` of `$sortArray`: read by that operator only.
    SortOrder(Box<SortOrder>),
    /// A constant regular expression: read by the regular expression operators.
    Pattern(Box<Pattern>),
}

/// What an expression yields.
#[derive(Clone, Debug, Default)]
pub enum Evaluated<'a> {
    #[default]
    Missing,
    /// A part of the document or a constant of the expression.
    Borrowed(ValueRef<'a>),
    Owned(Value),
    /// A computed value that a variable also holds.
    Shared(Rc<Value>),
}

impl<'a> Evaluated<'a> {
    /// `None` if missing.
    #[inline]
    pub fn as_value(&self) -> Option<ValueRef<'_>> {
        match self {
            Evaluated::Missing => None,
            Evaluated::Borrowed(value) => Some(*value),
            Evaluated::Owned(value) => Some(value.as_ref()),
            Evaluated::Shared(value) => Some(value.as_ref().as_ref()),
        }
    }

    /// Null, undefined or missing.
    #[inline]
    pub fn is_nullish(&self) -> bool {
        self.as_value().is_none_or(|value| value.is_nullish())
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Evaluated::Missing)
    }

    /// `None` if missing; copies what was borrowed.
    pub fn into_value(self) -> Option<Value> {
        match self {
            Evaluated::Missing => None,
            Evaluated::Borrowed(value) => Some(value.to_owned()),
            Evaluated::Owned(value) => Some(value),
            Evaluated::Shared(value) => Some(Rc::unwrap_or_clone(value)),
        }
    }

    /// The type's name as messages give it.
    pub(super) fn type_name(&self) -> &'static str {
        self.as_value()
            .map_or("missing", |value| value.kind().name())
    }

    pub(super) fn null() -> Evaluated<'a> {
        Evaluated::Borrowed(ValueRef::Null)
    }

    /// The size of what was computed and may be large; 0 for what was not copied.
    fn computed_bytes(&self) -> usize {
        match self {
            Evaluated::Owned(Value::String(text)) => text.len(),
            Evaluated::Owned(Value::Array(array)) => array.as_array().as_bytes().len(),
            Evaluated::Owned(Value::Document(document)) => document.as_bytes().len(),
            Evaluated::Missing
            | Evaluated::Borrowed(_)
            | Evaluated::Owned(_)
            | Evaluated::Shared(_) => 0,
        }
    }

    /// Ready to be read many times at no cost.
    pub(super) fn into_shared(self) -> Evaluated<'a> {
        match self {
            Evaluated::Owned(
                value @ (Value::String(_)
                | Value::Document(_)
                | Value::Array(_)
                | Value::Binary { .. }
                | Value::Regex { .. }
                | Value::DbPointer { .. }
                | Value::JavaScript(_)
                | Value::Symbol(_)
                | Value::JavaScriptWithScope { .. }),
            ) => Evaluated::Shared(Rc::new(value)),
            other => other,
        }
    }
}

impl<'a, T: Into<Value>> From<T> for Evaluated<'a> {
    fn from(value: T) -> Self {
        Evaluated::Owned(value.into())
    }
}

/// MongoDB's notion of true: everything but false, zero, null and missing.
pub(crate) fn truthy(evaluated: &Evaluated<'_>) -> bool {
    match evaluated.as_value() {
        None => false,
        Some(value) => truthy_value(value),
    }
}

pub(super) fn truthy_value(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Null | ValueRef::Undefined => false,
        ValueRef::Boolean(flag) => flag,
        ValueRef::Int32(number) => number != 0,
        ValueRef::Int64(number) => number != 0,
        ValueRef::Double(number) => number != 0.0,
        ValueRef::Decimal128(number) => !model::decimal::Decimal::from_bits(number).is_zero(),
        _ => true,
    }
}

/// The document and the variables of one evaluation.
pub(super) struct Frame<'a> {
    pub(super) root: Doc<'a>,
    slots: Vec<Evaluated<'a>>,
    /// Who may end the evaluation; nobody while a list of constants is put in one piece.
    pub(super) interrupts: Option<&'a Interrupts>,
    steps: u32,
}

/// Steps between two looks at the interruption. Few, because one step may copy
/// an array of many megabytes.
const STEPS: u32 = 16;

/// Elements that are sorted between two steps.
const SORTED_RUN: usize = 1024;

/// A value of this size was as dear as a step.
const BYTES_PER_STEP: usize = 16 * 1024;

impl<'a> Frame<'a> {
    pub(super) fn new(
        root: Doc<'a>,
        late: &'a [Option<Value>],
        late_count: usize,
        slots: usize,
    ) -> Frame<'a> {
        // Without variables nothing is allocated.
        let mut frame = Frame {
            root,
            slots: Vec::with_capacity(slots),
            interrupts: None,
            steps: 0,
        };
        for at in 0..late_count {
            frame.slots.push(match late.get(at) {
                Some(Some(value)) => Evaluated::Borrowed(value.as_ref()),
                Some(None) | None => Evaluated::Missing,
            });
        }
        frame.slots.resize_with(slots, Evaluated::default);
        frame
    }

    pub(super) fn bind(&mut self, slot: usize, value: Evaluated<'a>) {
        self.slots[slot] = value.into_shared();
    }

    /// Called by loops over elements: ends an evaluation that was interrupted.
    #[inline]
    pub(super) fn step(&mut self) -> Result<(), Error> {
        self.spend(1)
    }

    /// Called where values are made: large ones count as many steps, so that
    /// neither one long loop nor a few huge copies go unnoticed.
    #[inline]
    pub(super) fn made(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes < BYTES_PER_STEP {
            return Ok(());
        }
        self.spend(
            u32::try_from(bytes / BYTES_PER_STEP)
                .unwrap_or(STEPS)
                .min(STEPS),
        )
    }

    /// A stable sort that can be interrupted: runs, and then merges of runs.
    pub(super) fn sort<T: Copy>(
        &mut self,
        values: &mut Vec<T>,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> Result<(), Error> {
        for run in values.chunks_mut(SORTED_RUN) {
            run.sort_by(&compare);
            self.step()?;
        }
        let mut width = SORTED_RUN;
        while width < values.len() {
            let mut merged = Vec::with_capacity(values.len());
            for pair in values.chunks(2 * width) {
                let (mut left, mut right) = pair.split_at(width.min(pair.len()));
                while let ([first, after @ ..], [second, behind @ ..]) = (left, right) {
                    if compare(second, first).is_lt() {
                        merged.push(*second);
                        right = behind;
                    } else {
                        merged.push(*first);
                        left = after;
                    }
                    if merged.len().is_multiple_of(SORTED_RUN) {
                        self.step()?;
                    }
                }
                merged.extend_from_slice(left);
                merged.extend_from_slice(right);
            }
            *values = merged;
            width *= 2;
        }
        Ok(())
    }

    #[inline]
    fn spend(&mut self, steps: u32) -> Result<(), Error> {
        self.steps += steps;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        self.interrupts.map_or(Ok(()), Interrupts::check)
    }
}

impl Node {
    pub(super) fn evaluate<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
        match self {
            Node::Constant(value) => Ok(Evaluated::Borrowed(value.as_ref())),
            Node::Missing | Node::Absent => Ok(Evaluated::Missing),
            Node::Root => Ok(Evaluated::Borrowed(ValueRef::Document(frame.root))),
            Node::Field(path) => Ok(path.evaluate(frame.root)),
            Node::Variable { slot, path } => Ok(variable(&frame.slots[*slot], path.as_ref())),
            Node::Unavailable(name) => Err(Error::location(
                51144,
                format!("Builtin variable '$${name}' is not available"),
            )),
            Node::Object(fields) => {
                let mut writer = DocWriter::new();
                for (name, node) in fields {
                    if let Some(value) = node.evaluate(frame)?.as_value() {
                        writer.append(name, value);
                        check_computed(writer.len())?;
                    }
                }
                Ok(writer.finish().into())
            }
            Node::Array(nodes) => {
                let mut writer = ArrayWriter::new();
                for node in nodes {
                    let value = node.evaluate(frame)?;
                    // A missing element would shift the others: it becomes null.
                    writer.push(value.as_value().unwrap_or(ValueRef::Null));
                    check_computed(writer.bytes())?;
                }
                Ok(writer.finish().into())
            }
            Node::Call {
                operator,
                arguments,
            } => {
                let value = (operator.evaluate)(arguments, frame)?;
                frame.made(value.computed_bytes())?;
                Ok(value)
            }
            Node::Let(node) => node.evaluate(frame),
            Node::Map(node) => node.evaluate(frame),
            Node::Filter(node) => node.evaluate(frame),
            Node::Reduce(node) => node.evaluate(frame),
            Node::SortOrder(_) | Node::Pattern(_) => Ok(Evaluated::Missing),
        }
    }

    pub(super) fn is_constant(&self) -> bool {
        // A missing value counts: `$$REMOVE` never depends on the document.
        matches!(self, Node::Constant(_) | Node::Missing | Node::Absent)
    }

    /// An argument by name that was not given.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Node::Absent)
    }
}

fn variable<'a>(value: &Evaluated<'a>, path: Option<&FieldPath>) -> Evaluated<'a> {
    let Some(path) = path else {
        return value.clone();
    };
    match value {
        Evaluated::Missing => Evaluated::Missing,
        Evaluated::Borrowed(value) => path.evaluate_in(*value),
        Evaluated::Owned(value) => detach(path.evaluate_in(value.as_ref())),
        Evaluated::Shared(value) => detach(path.evaluate_in(value.as_ref().as_ref())),
    }
}

/// Copies what is borrowed from a variable, which may be bound anew.
fn detach<'a>(value: Evaluated<'_>) -> Evaluated<'a> {
    match value.into_value() {
        Some(value) => Evaluated::Owned(value),
        None => Evaluated::Missing,
    }
}
