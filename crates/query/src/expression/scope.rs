//! `$let`, `$map`, `$filter`, `$reduce`: operators that bind variables.
//!
//! A variable's slot is its depth in the scope, so that siblings share slots
//! and a body only ever sees bindings of the scopes around it.
//!
//! Their loops can be nested and so take very long over one document: each
//! element is a step at which the evaluation may be interrupted.

use super::identifier::check_user_variable;
use super::node::{Evaluated, Frame, Node, truthy};
use super::parse::{Parser, object};
use super::size::check_computed;
use super::table::Operator;
use model::Error;
use model::bson::{ArrayWriter, ValueRef};

/// Values are bound to the slots from `first_slot` on.
#[derive(Clone, Debug)]
pub(super) struct Let {
    first_slot: usize,
    values: Box<[Node]>,
    body: Node,
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    input: Node,
    slot: usize,
    each: Node,
}

#[derive(Clone, Debug)]
pub(super) struct Filter {
    input: Node,
    slot: usize,
    condition: Node,
    limit: Option<Node>,
}

#[derive(Clone, Debug)]
pub(super) struct Reduce {
    input: Node,
    initial: Node,
    /// `$$this`; `$$value` has the slot after it.
    this_slot: usize,
    body: Node,
}

pub(super) fn parse_let(
    parser: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$let", argument, 16874)?;
    let (mut vars, mut body) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "vars" => vars = Some(element.value()),
            "in" => body = Some(element.value()),
            other => {
                return Err(Error::location(
                    16875,
                    format!("Unrecognized parameter to $let: {other}"),
                ));
            }
        }
    }
    let vars = vars.ok_or_else(|| missing(16876, "vars", "$let"))?;
    let body = body.ok_or_else(|| missing(16877, "in", "$let"))?;
    let ValueRef::Document(vars) = vars else {
        return Err(Error::location(
            10065,
            "invalid parameter: expected an object (vars)",
        ));
    };
    let first_slot = parser.next_slot();
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for element in vars.iter() {
        let name = element.key();
        // CURRENT is the one system variable that may be bound.
        if name != "CURRENT" {
            check_user_variable(name)?;
        }
        names.push(name);
        values.push(parser.operand(element.value())?);
    }
    let body = parser.scoped(&names, |parser| parser.operand(body))?;
    Ok(Node::Let(Box::new(Let {
        first_slot,
        values: values.into(),
        body,
    })))
}

fn missing(code: i32, parameter: &str, operator: &str) -> Error {
    Error::location(
        code,
        format!("Missing '{parameter}' parameter to {operator}"),
    )
}

impl Let {
    pub(super) fn evaluate<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
        // The slots are free while the values are computed: a nested scope in
        // one of them would use the same ones, so none is bound before all are
        // known.
        if let [only] = &*self.values {
            let value = only.evaluate(frame)?;
            frame.bind(self.first_slot, value);
            return self.body.evaluate(frame);
        }
        let values = self
            .values
            .iter()
            .map(|node| node.evaluate(frame))
            .collect::<Result<Vec<_>, Error>>()?;
        for (at, value) in values.into_iter().enumerate() {
            frame.bind(self.first_slot + at, value);
        }
        self.body.evaluate(frame)
    }
}

/// The parameters `input`, `as`, and the one that is evaluated per element.
struct PerElement<'d> {
    input: ValueRef<'d>,
    name: &'d str,
    body: ValueRef<'d>,
    limit: Option<ValueRef<'d>>,
}

fn parse_per_element<'d>(
    operator: &str,
    argument: ValueRef<'d>,
    first_code: i32,
    body_name: &str,
) -> Result<PerElement<'d>, Error> {
    let doc = object(operator, argument, first_code)?;
    let (mut input, mut name, mut body, mut limit) = (None, None, None, None);
    for element in doc.iter() {
        match element.key() {
            "input" => input = Some(element.value()),
            "as" => name = Some(element.value()),
            "limit" if operator == "$filter" => limit = Some(element.value()),
            other if other == body_name => body = Some(element.value()),
            other => {
                return Err(Error::location(
                    first_code + 1,
                    format!("Unrecognized parameter to {operator}: {other}"),
                ));
            }
        }
    }
    let input = input.ok_or_else(|| missing(first_code + 2, "input", operator))?;
    let name = match name {
        None => "this",
        Some(ValueRef::String("CURRENT")) => "CURRENT",
        Some(ValueRef::String(name)) => {
            check_user_variable(name)?;
            name
        }
        Some(_) => {
            return Err(Error::new(
                model::Code::FAILED_TO_PARSE,
                "empty variable names are not allowed",
            ));
        }
    };
    let body = body.ok_or_else(|| missing(first_code + 4, body_name, operator))?;
    Ok(PerElement {
        input,
        name,
        body,
        limit,
    })
}

pub(super) fn parse_map(
    parser: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let parts = parse_per_element("$map", argument, 16878, "in")?;
    let slot = parser.next_slot();
    let input = parser.operand(parts.input)?;
    let each = parser.scoped(&[parts.name], |parser| parser.operand(parts.body))?;
    Ok(Node::Map(Box::new(Map { input, slot, each })))
}

impl Map {
    pub(super) fn evaluate<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
        let input = self.input.evaluate(frame)?;
        if input.is_nullish() {
            return Ok(Evaluated::null());
        }
        let mut output = ArrayWriter::new();
        for_each(&input, 16883, "$map", |value| {
            frame.step()?;
            frame.bind(self.slot, value);
            let mapped = self.each.evaluate(frame)?;
            output.push(mapped.as_value().unwrap_or(ValueRef::Null));
            check_computed(output.bytes())?;
            Ok(true)
        })?;
        Ok(output.finish().into())
    }
}

/// Calls with each element until `step` answers false. Elements are borrowed
/// where the array is.
fn for_each<'a>(
    input: &Evaluated<'a>,
    code: i32,
    operator: &str,
    mut step: impl FnMut(Evaluated<'a>) -> Result<bool, Error>,
) -> Result<(), Error> {
    match input {
        Evaluated::Borrowed(ValueRef::Array(array)) => {
            for value in array.iter() {
                if !step(Evaluated::Borrowed(value))? {
                    return Ok(());
                }
            }
            Ok(())
        }
        other => match other.as_value() {
            Some(ValueRef::Array(array)) => {
                for value in array.iter() {
                    if !step(Evaluated::Owned(value.to_owned()))? {
                        return Ok(());
                    }
                }
                Ok(())
            }
            _ => Err(Error::location(
                code,
                format!(
                    "input to {operator} must be an array not {}",
                    other.type_name()
                ),
            )),
        },
    }
}

pub(super) fn parse_filter(
    parser: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let parts = parse_per_element("$filter", argument, 28646, "cond")?;
    let slot = parser.next_slot();
    let input = parser.operand(parts.input)?;
    let condition = parser.scoped(&[parts.name], |parser| parser.operand(parts.body))?;
    let limit = parts.limit.map(|limit| parser.operand(limit)).transpose()?;
    Ok(Node::Filter(Box::new(Filter {
        input,
        slot,
        condition,
        limit,
    })))
}

impl Filter {
    pub(super) fn evaluate<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
        let input = self.input.evaluate(frame)?;
        if input.is_nullish() {
            return Ok(Evaluated::null());
        }
        if !matches!(input.as_value(), Some(ValueRef::Array(_))) {
            return Err(Error::location(
                28651,
                format!(
                    "input to $filter must be an array not {}",
                    input.type_name()
                ),
            ));
        }
        if matches!(input.as_value(), Some(ValueRef::Array(items)) if items.is_empty()) {
            return Ok(ArrayWriter::new().finish().into());
        }
        let limit = self.limit(frame)?;
        let mut output = ArrayWriter::new();
        for_each(&input, 28651, "$filter", |value| {
            frame.step()?;
            let value = value.into_shared();
            frame.bind(self.slot, value.clone());
            if truthy(&self.condition.evaluate(frame)?)
                && let Some(value) = value.as_value()
            {
                output.push(value);
            }
            Ok(limit.is_none_or(|limit| output.len() < limit))
        })?;
        Ok(output.finish().into())
    }

    fn limit<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Option<usize>, Error> {
        let Some(limit) = &self.limit else {
            return Ok(None);
        };
        let limit = limit.evaluate(frame)?;
        if limit.is_nullish() {
            return Ok(None);
        }
        let number = limit.as_value().and_then(super::rounding::exact_i32);
        match number {
            None => Err(Error::location(
                327391,
                "$filter: limit must be represented as a 32-bit integral value",
            )),
            Some(number) if number < 1 => Err(Error::location(
                327392,
                "$filter: limit must be greater than 0",
            )),
            Some(number) => Ok(Some(number as usize)),
        }
    }
}

pub(super) fn parse_reduce(
    parser: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$reduce", argument, 40075)?;
    let this_slot = parser.next_slot();
    let (mut input, mut initial, mut body) = (None, None, None);
    for element in doc.iter() {
        let value = element.value();
        match element.key() {
            "input" => input = Some(parser.operand(value)?),
            "initialValue" => initial = Some(parser.operand(value)?),
            "in" => {
                body = Some(parser.scoped(&["this", "value"], |parser| parser.operand(value))?);
            }
            other => {
                return Err(Error::location(
                    40076,
                    format!("$reduce found an unknown argument: {other}"),
                ));
            }
        }
    }
    Ok(Node::Reduce(Box::new(Reduce {
        input: input.ok_or_else(|| missing(40077, "input", "$reduce"))?,
        initial: initial.ok_or_else(|| missing(40078, "initialValue", "$reduce"))?,
        this_slot,
        body: body.ok_or_else(|| missing(40079, "in", "$reduce"))?,
    })))
}

impl Reduce {
    pub(super) fn evaluate<'a>(&'a self, frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
        let input = self.input.evaluate(frame)?;
        if input.is_nullish() {
            return Ok(Evaluated::null());
        }
        if !matches!(input.as_value(), Some(ValueRef::Array(_))) {
            return Err(Error::location(
                40080,
                format!(
                    "$reduce requires that 'input' be an array, found: {}",
                    input.type_name()
                ),
            ));
        }
        let mut accumulated = self.initial.evaluate(frame)?;
        for_each(&input, 40080, "$reduce", |value| {
            frame.step()?;
            frame.bind(self.this_slot, value);
            frame.bind(self.this_slot + 1, std::mem::take(&mut accumulated));
            accumulated = self.body.evaluate(frame)?;
            Ok(true)
        })?;
        Ok(accumulated)
    }
}
