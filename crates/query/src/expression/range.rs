//! `$range` and `$slice`.

use super::array::as_array;
use super::node::{Evaluated, Frame, Node};
use super::rounding::exact_i32;
use model::bson::{ArrayWriter, ValueRef};
use model::{Code, Error};

/// The most memory that one `$range` may fill.
const MAX_RANGE_BYTES: usize = 100 * 1024 * 1024;
/// Numbers between two steps at which the evaluation may be interrupted.
const PORTION: i64 = 4096;

pub(super) fn range<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let start = bound(
        &arguments[0].evaluate(frame)?,
        "a numeric starting value",
        34443,
    )?;
    let end = bound(
        &arguments[1].evaluate(frame)?,
        "a numeric ending value",
        34445,
    )?;
    let step = match arguments.get(2) {
        None => 1,
        Some(node) => {
            let step = bound(&node.evaluate(frame)?, "a numeric step value", 34447)?;
            if step == 0 {
                return Err(Error::location(
                    34449,
                    "$range requires a non-zero step value",
                ));
            }
            step
        }
    };
    let (mut at, end, step) = (i64::from(start), i64::from(end), i64::from(step));
    let count = if (step > 0) == (at < end) {
        (end - at).abs() / step.abs()
    } else {
        0
    };
    if count as usize > MAX_RANGE_BYTES / std::mem::size_of::<i64>() {
        return Err(Error::new(
            Code::EXCEEDED_MEMORY_LIMIT,
            "$range would use too much memory",
        ));
    }
    let mut output = ArrayWriter::new();
    while if step > 0 { at < end } else { at > end } {
        // A long range takes a while, and may be asked for many times.
        let portion_end = match step > 0 {
            true => end.min(at + step * PORTION),
            false => end.max(at + step * PORTION),
        };
        while if step > 0 {
            at < portion_end
        } else {
            at > portion_end
        } {
            output.push(at as i32);
            at += step;
        }
        frame.step()?;
    }
    Ok(output.finish().into())
}

/// `code` for what is not a number, the next one for what is no int32.
fn bound(value: &Evaluated<'_>, what: &str, code: i32) -> Result<i32, Error> {
    let Some(number) = value.as_value().filter(|value| value.is_number()) else {
        return Err(Error::location(
            code,
            format!(
                "$range requires {what}, found value of type: {}",
                value.type_name()
            ),
        ));
    };
    exact_i32(number).ok_or_else(|| {
        Error::location(
            code + 1,
            format!("$range requires {what} that can be represented as a 32-bit integer"),
        )
    })
}

pub(super) fn slice<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    let second = arguments[1].evaluate(frame)?;
    if value.is_nullish() || second.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            28724,
            format!(
                "First argument to $slice must be an array, but is of type: {}",
                value.type_name()
            ),
        ));
    };
    let second = part(&second, "Second", 28725)?;
    let length = array.count();
    let from_end = |back: i32| length.saturating_sub(back.unsigned_abs() as usize);
    let (start, count) = match arguments.get(2) {
        None if second >= 0 => (0, second as usize),
        None => (from_end(second), length),
        Some(third) => {
            let third = third.evaluate(frame)?;
            if third.is_nullish() {
                return Ok(Evaluated::null());
            }
            let start = if second >= 0 {
                (second as usize).min(length)
            } else {
                from_end(second)
            };
            let count = part(&third, "Third", 28727)?;
            if count <= 0 {
                return Err(Error::location(
                    28729,
                    format!("Third argument to $slice must be positive: {count}"),
                ));
            }
            (start, count as usize)
        }
    };
    if start == 0 && count >= length {
        return Ok(value);
    }
    let mut output = ArrayWriter::new();
    for value in array.iter().skip(start).take(count) {
        output.push(value);
    }
    Ok(output.finish().into())
}

fn part(value: &Evaluated<'_>, which: &str, code: i32) -> Result<i32, Error> {
    let number = value.as_value().filter(ValueRef::is_number);
    let Some(number) = number else {
        return Err(Error::location(
            code,
            format!(
                "{which} argument to $slice must be a numeric value, but is of type: {}",
                value.type_name()
            ),
        ));
    };
    exact_i32(number).ok_or_else(|| {
        Error::location(
            code + 1,
            format!("{which} argument to $slice can't be represented as a 32-bit integer"),
        )
    })
}
