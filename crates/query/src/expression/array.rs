//! `$arrayElemAt`, `$first`, `$last`, `$size`, `$in`, `$isArray`,
//! `$concatArrays`, `$indexOfArray`, `$reverseArray`.

use super::node::{Evaluated, Frame, Node};
use super::rounding::exact_i32;
use super::size::check_computed;
use model::bson::{Array, ArrayBuf, ArrayWriter, ValueRef};
use model::{Error, order};

/// The array, if it is one.
pub(super) fn as_array<'v>(value: &'v Evaluated<'_>) -> Option<Array<'v>> {
    match value.as_value() {
        Some(ValueRef::Array(array)) => Some(array),
        _ => None,
    }
}

/// One element, borrowed where the array is borrowed.
fn element<'a>(array: &Evaluated<'a>, pick: impl Fn(Array<'_>) -> Option<usize>) -> Evaluated<'a> {
    if let Evaluated::Borrowed(ValueRef::Array(array)) = array {
        return match pick(*array).and_then(|at| array.get(at)) {
            Some(value) => Evaluated::Borrowed(value),
            None => Evaluated::Missing,
        };
    }
    let found = as_array(array)
        .and_then(|array| pick(array).and_then(|at| array.get(at)))
        .map(|value| value.to_owned());
    match found {
        Some(value) => Evaluated::Owned(value),
        None => Evaluated::Missing,
    }
}

pub(super) fn element_at<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let array = arguments[0].evaluate(frame)?;
    let index = arguments[1].evaluate(frame)?;
    if array.is_nullish() || index.is_nullish() {
        return Ok(Evaluated::null());
    }
    if as_array(&array).is_none() {
        return Err(Error::location(
            28689,
            format!(
                "$arrayElemAt's first argument must be an array, but is {}",
                array.type_name()
            ),
        ));
    }
    let number = index.as_value().filter(|value| value.is_number());
    let Some(number) = number else {
        return Err(Error::location(
            28690,
            format!(
                "$arrayElemAt's second argument must be a numeric value, but is {}",
                index.type_name()
            ),
        ));
    };
    let Some(at) = exact_i32(number) else {
        return Err(Error::location(
            28691,
            "$arrayElemAt's second argument must be representable as a 32-bit integer",
        ));
    };
    Ok(element(&array, |array| {
        if at >= 0 {
            Some(at as usize)
        } else {
            array.count().checked_sub(at.unsigned_abs() as usize)
        }
    }))
}

fn end<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    name: &str,
    pick: impl Fn(Array<'_>) -> Option<usize>,
) -> Result<Evaluated<'a>, Error> {
    let array = arguments[0].evaluate(frame)?;
    if array.is_nullish() {
        return Ok(Evaluated::null());
    }
    if as_array(&array).is_none() {
        return Err(Error::location(
            28689,
            format!(
                "{name}'s argument must be an array, but is {}",
                array.type_name()
            ),
        ));
    }
    Ok(element(&array, pick))
}

pub(super) fn first<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    end(arguments, frame, "$first", |_| Some(0))
}

pub(super) fn last<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    end(arguments, frame, "$last", |array| {
        array.count().checked_sub(1)
    })
}

pub(super) fn size<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let array = arguments[0].evaluate(frame)?;
    match as_array(&array) {
        Some(array) => Ok((array.count() as i32).into()),
        None => Err(Error::location(
            17124,
            format!(
                "The argument to $size must be an array, but was of type: {}",
                array.type_name()
            ),
        )),
    }
}

pub(super) fn is_array<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    Ok(as_array(&arguments[0].evaluate(frame)?).is_some().into())
}

pub(super) fn is_in<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let wanted = arguments[0].evaluate(frame)?;
    let array = arguments[1].evaluate(frame)?;
    let Some(values) = as_array(&array) else {
        return Err(Error::location(
            40081,
            format!(
                "$in requires an array as a second argument, found: {}",
                array.type_name()
            ),
        ));
    };
    let found = match wanted.as_value() {
        Some(wanted) => values
            .iter()
            .any(|value| order::compare(value, wanted).is_eq()),
        None => false,
    };
    Ok(found.into())
}

pub(super) fn concat_arrays<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut output = ArrayWriter::new();
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        let Some(array) = as_array(&value) else {
            return Err(Error::location(
                28664,
                format!(
                    "$concatArrays only supports arrays, not {}",
                    value.type_name()
                ),
            ));
        };
        check_computed(output.bytes() + array.as_bytes().len())?;
        for value in array.iter() {
            output.push(value);
        }
    }
    Ok(output.finish().into())
}

pub(super) fn reverse<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    if value.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            34435,
            format!(
                "The argument to $reverseArray must be an array, but was of type: {}",
                value.type_name()
            ),
        ));
    };
    let values: Vec<_> = array.iter().collect();
    let reversed: ArrayBuf = values.into_iter().rev().collect();
    Ok(reversed.into())
}

pub(super) fn index_of_array<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let array = arguments[0].evaluate(frame)?;
    if array.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(values) = as_array(&array) else {
        return Err(Error::location(
            40090,
            format!(
                "$indexOfArray requires an array as a first argument, found: {}",
                array.type_name()
            ),
        ));
    };
    let start = match arguments.get(2) {
        Some(node) => index_argument(&node.evaluate(frame)?, "$indexOfArray", "starting")?,
        None => 0,
    };
    let end = match arguments.get(3) {
        Some(node) => index_argument(&node.evaluate(frame)?, "$indexOfArray", "ending")?,
        None => usize::MAX,
    };
    // What is looked for is evaluated last, as the real server does it.
    let wanted = arguments[1].evaluate(frame)?;
    let found = values
        .iter()
        .enumerate()
        .take(end)
        .skip(start)
        .find(|(_, value)| {
            super::comparison::compare_values(Some(*value), wanted.as_value()).is_eq()
        });
    Ok(found.map_or(-1, |(at, _)| at as i32).into())
}

/// A start or end index: a whole number that is not negative.
pub(super) fn index_argument(
    value: &Evaluated<'_>,
    operator: &str,
    which: &str,
) -> Result<usize, Error> {
    let Some(number) = value.as_value().and_then(exact_i32) else {
        return Err(Error::location(
            40096,
            format!(
                "{operator} requires an integral {which} index, found a value of type: {}",
                value.type_name()
            ),
        ));
    };
    usize::try_from(number).map_err(|_| {
        Error::location(
            40097,
            format!("{operator} requires a nonnegative {which} index, found: {number}"),
        )
    })
}
