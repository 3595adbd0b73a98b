//! `$sortArray`, `$firstN`, `$lastN`, `$maxN`, `$minN`, `$zip`.

use super::array::as_array;
use super::node::{Evaluated, Frame, Node};
use super::parse::{Parser, object, required_argument, unknown_argument};
use super::table::Operator;
use crate::accumulator::Extreme;
use model::bson::{ArrayBuf, ArrayWriter, Value, ValueRef};
use model::number::Number;
use model::{Error, order};
use std::cmp::Ordering;

/// How elements of an array are ordered: by themselves or by their fields.
#[derive(Clone, Debug)]
pub(super) enum SortOrder {
    Whole { descending: bool },
    Fields(Vec<(Vec<String>, bool)>),
}

/// Reads `1`, `-1` or `{field: 1, …}`.
pub(super) fn sort_order(value: ValueRef<'_>) -> Result<SortOrder, Error> {
    match value {
        ValueRef::Document(doc) => {
            let bad = |why: &str| Error::location(2942505, format!("BadValue: {why}"));
            if doc.is_empty() {
                return Err(bad(
                    "The sort pattern is empty when it should be a set of fields.",
                ));
            }
            let mut fields = Vec::new();
            for element in doc.iter() {
                let descending = direction(element.value())
                    .ok_or_else(|| bad("The sort element value must be either 1 or -1"))?;
                let name = element.key();
                if name.is_empty() {
                    return Err(bad("The sort field cannot be empty"));
                }
                if name.split('.').any(str::is_empty) {
                    return Err(bad(
                        "The sort field is a dotted field but has an empty part",
                    ));
                }
                fields.push((name.split('.').map(str::to_owned).collect(), descending));
            }
            Ok(SortOrder::Fields(fields))
        }
        number if number.is_number() => match direction(number) {
            Some(descending) => Ok(SortOrder::Whole { descending }),
            None => Err(Error::location(
                2942506,
                "The $sort element value must be either 1 or -1",
            )),
        },
        _ => Err(Error::location(
            2942507,
            "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
        )),
    }
}

/// True for descending; `None` for anything but 1 and -1.
fn direction(value: ValueRef<'_>) -> Option<bool> {
    match Number::of(value)?.to_i64_exact()? {
        1 => Some(false),
        -1 => Some(true),
        _ => None,
    }
}

impl SortOrder {
    pub(super) fn compare(&self, left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
        match self {
            SortOrder::Whole { descending } => directed(order::compare(left, right), *descending),
            SortOrder::Fields(fields) => {
                for (path, descending) in fields {
                    let by_field = order::compare(field(left, path), field(right, path));
                    if by_field.is_ne() {
                        return directed(by_field, *descending);
                    }
                }
                Ordering::Equal
            }
        }
    }
}

fn directed(ordering: Ordering, descending: bool) -> Ordering {
    if descending {
        ordering.reverse()
    } else {
        ordering
    }
}

/// The field an element is sorted by; null if there is none. Names step into
/// documents, numbers also into arrays.
fn field<'a>(value: ValueRef<'a>, path: &[String]) -> ValueRef<'a> {
    let mut value = value;
    for name in path {
        let inner = match value {
            ValueRef::Document(doc) => doc.get(name),
            ValueRef::Array(array) => array.as_doc().get(name),
            _ => None,
        };
        match inner {
            Some(inner) => value = inner,
            None => return ValueRef::Null,
        }
    }
    value
}

/// Arguments become `[input, order]`; the order was checked and is constant.
pub(super) fn parse_sort_array(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$sortArray", argument, 2942500)?;
    let (mut input, mut sort_by) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "input" => input = Some(parser.operand(element.value())?),
            "sortBy" => sort_by = Some(element.value()),
            other => {
                return Err(unknown_argument("$sortArray", other, 2942501));
            }
        }
    }
    let input = input.ok_or_else(|| required_argument("$sortArray", "input", 2942502))?;
    let sort_by = sort_by.ok_or_else(|| required_argument("$sortArray", "sortBy", 2942503))?;
    let sort_by = sort_order(sort_by)?;
    Ok(Node::Call {
        operator,
        arguments: Box::new([input, Node::SortOrder(Box::new(sort_by))]),
    })
}

pub(super) fn sort_array<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    if value.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            2942504,
            format!(
                "The input argument to $sortArray must be an array, but was of type: {}",
                value.type_name()
            ),
        ));
    };
    let Node::SortOrder(sort_by) = &arguments[1] else {
        return Ok(Evaluated::null());
    };
    let mut values: Vec<_> = array.iter().collect();
    frame.sort(&mut values, |left, right| sort_by.compare(*left, *right))?;
    Ok(values.into_iter().collect::<ArrayBuf>().into())
}

/// The `n` of `$firstN` and its like.
pub(crate) fn check_n(value: Option<ValueRef<'_>>) -> Result<usize, Error> {
    let number = value.and_then(Number::of);
    let Some(number) = number else {
        return Err(Error::location(
            5787902,
            format!("Value for 'n' must be of integral type, but found {value:?}"),
        ));
    };
    // A double beyond all whole numbers has a code of its own.
    if matches!(number, Number::Double(double) if !double.is_finite()) {
        return Err(Error::location(
            31109,
            format!("Can't coerce out of range value {value:?} to long"),
        ));
    }
    let Some(n) = number.to_i64_exact() else {
        return Err(Error::location(
            5787903,
            format!("Value for 'n' must be of integral type, but found {value:?}"),
        ));
    };
    if n <= 0 {
        return Err(Error::location(
            5787908,
            format!("'n' must be greater than 0, found {n}"),
        ));
    }
    Ok(usize::try_from(n).unwrap_or(usize::MAX))
}

fn n_of_array<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    pick: impl FnOnce(Vec<ValueRef<'_>>, usize) -> ArrayBuf,
) -> Result<Evaluated<'a>, Error> {
    let n = check_n(arguments[0].evaluate(frame)?.as_value())?;
    let input = arguments[1].evaluate(frame)?;
    let Some(array) = as_array(&input) else {
        return Err(Error::location(5788200, "Input must be an array"));
    };
    Ok(pick(array.iter().collect(), n).into())
}

pub(super) fn first_n<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    n_of_array(arguments, frame, |values, n| {
        values.into_iter().take(n).collect()
    })
}

pub(super) fn last_n<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    n_of_array(arguments, frame, |values, n| {
        let skipped = values.len().saturating_sub(n);
        values.into_iter().skip(skipped).collect()
    })
}

pub(super) fn max_n<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    n_of_array(arguments, frame, |values, n| {
        extremes(values, n, Extreme::Max)
    })
}

pub(super) fn min_n<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    n_of_array(arguments, frame, |values, n| {
        extremes(values, n, Extreme::Min)
    })
}

fn extremes(values: Vec<ValueRef<'_>>, n: usize, which: Extreme) -> ArrayBuf {
    let mut best = Vec::new();
    for value in values.into_iter().filter(|value| !value.is_nullish()) {
        which.insert(&mut best, n, value, |value| *value);
    }
    best.into_iter().collect()
}

/// Arguments become `[longest?, input…, default…]`, as many defaults as inputs
/// or none.
pub(super) fn parse_zip(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$zip", argument, 34460)?;
    let (mut inputs, mut defaults, mut longest) = (Vec::new(), Vec::new(), false);
    for element in doc.iter() {
        let value = element.value();
        match (element.key(), value) {
            ("inputs", ValueRef::Array(array)) => {
                for value in array.iter() {
                    inputs.push(parser.operand(value)?);
                }
            }
            ("inputs", other) => return Err(not_a_list(34461, "inputs", other)),
            ("defaults", ValueRef::Array(array)) => {
                for value in array.iter() {
                    defaults.push(parser.operand(value)?);
                }
            }
            ("defaults", other) => return Err(not_a_list(34462, "defaults", other)),
            ("useLongestLength", ValueRef::Boolean(flag)) => longest = flag,
            ("useLongestLength", _) => {
                return Err(Error::location(34463, "useLongestLength must be a bool"));
            }
            (other, _) => {
                return Err(unknown_argument("$zip", other, 34464));
            }
        }
    }
    if inputs.is_empty() {
        return Err(Error::location(
            34465,
            "$zip requires at least one input array",
        ));
    }
    if !defaults.is_empty() && !longest {
        return Err(Error::location(
            34466,
            "cannot specify defaults unless useLongestLength is true",
        ));
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        return Err(Error::location(
            34467,
            "defaults and inputs must have the same length",
        ));
    }
    let mut arguments = vec![
        Node::Constant(longest.into()),
        Node::Constant(Value::Int32(inputs.len() as i32)),
    ];
    arguments.extend(inputs);
    arguments.extend(defaults);
    Ok(Node::Call {
        operator,
        arguments: arguments.into(),
    })
}

fn not_a_list(code: i32, name: &str, found: ValueRef<'_>) -> Error {
    Error::location(
        code,
        format!(
            "{name} must be an array of expressions, found {}",
            found.kind().name()
        ),
    )
}

pub(super) fn zip<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let longest = matches!(arguments[0], Node::Constant(Value::Boolean(true)));
    let Node::Constant(Value::Int32(count)) = arguments[1] else {
        return Ok(Evaluated::null());
    };
    let (inputs, defaults) = arguments[2..].split_at(count as usize);
    let mut evaluated = Vec::with_capacity(inputs.len());
    for input in inputs {
        let value = input.evaluate(frame)?;
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        if as_array(&value).is_none() {
            return Err(Error::location(
                34468,
                format!(
                    "$zip found a non-array expression in input: {}",
                    value.type_name()
                ),
            ));
        }
        evaluated.push(value);
    }
    let columns: Vec<Vec<ValueRef<'_>>> = evaluated
        .iter()
        .filter_map(as_array)
        .map(|array| array.iter().collect())
        .collect();
    let lengths = columns.iter().map(Vec::len);
    let rows = if longest {
        lengths.max()
    } else {
        lengths.min()
    }
    .unwrap_or(0);
    let mut filler = Vec::with_capacity(inputs.len());
    // Where none is needed none is evaluated.
    let any_is_short = columns.iter().any(|column| column.len() < rows);
    for at in 0..columns.len() {
        filler.push(match defaults.get(at) {
            Some(node) if any_is_short => node.evaluate(frame)?,
            Some(_) | None => Evaluated::null(),
        });
    }
    let mut output = ArrayWriter::new();
    for row in 0..rows {
        let mut line = ArrayWriter::new();
        for (column, filler) in columns.iter().zip(&filler) {
            // A default that is missing leaves the line shorter.
            if let Some(value) = column.get(row).copied().or(filler.as_value()) {
                line.push(value);
            }
        }
        let line = line.finish();
        output.push(&line);
    }
    Ok(output.finish().into())
}
