//! `$add`, `$subtract`, `$multiply`, `$divide`, `$mod`, `$rand`.
//!
//! Types are promoted along int32, int64, double, decimal; an int32 result that
//! does not fit becomes an int64, an int64 one a double. `$add` sums with
//! compensation, so that ten times 0.1 is 1.

use super::node::{Evaluated, Frame, Node};
use model::bson::{Value, ValueRef};
use model::number::{self, Number, Sum};
use model::{Code, Error};

pub(super) fn add<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut sum = Sum::new();
    let mut has_date = false;
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        let Some(value) = value.as_value() else {
            return Ok(Evaluated::null());
        };
        match value {
            ValueRef::DateTime(millis) => {
                if has_date {
                    return Err(Error::location(
                        16612,
                        "only one date allowed in an $add expression",
                    ));
                }
                has_date = true;
                sum.add(Number::Int64(millis));
            }
            ValueRef::Null | ValueRef::Undefined => return Ok(Evaluated::null()),
            value => match Number::of(value) {
                Some(number) => sum.add(number),
                None => {
                    return Err(Error::location(
                        16554,
                        format!(
                            "$add only supports numeric or date types, not {}",
                            value.kind().name()
                        ),
                    ));
                }
            },
        }
    }
    if has_date {
        return match sum.rounded_i64() {
            Some(millis) => Ok(Evaluated::Owned(Value::DateTime(millis))),
            None => Err(Error::new(Code::OVERFLOW, "date overflow in $add")),
        };
    }
    Ok(Evaluated::Owned(sum.total().to_value()))
}

pub(super) fn subtract<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    // The real server evaluates the right side first, which shows in errors.
    let right = arguments[1].evaluate(frame)?;
    let left = arguments[0].evaluate(frame)?;
    if left.is_nullish() || right.is_nullish() {
        return Ok(Evaluated::null());
    }
    let refused = || {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "can't $subtract {} from {}",
                right.type_name(),
                left.type_name()
            ),
        )
    };
    let (Some(minuend), Some(subtrahend)) = (left.as_value(), right.as_value()) else {
        return Ok(Evaluated::null());
    };
    if let ValueRef::DateTime(millis) = minuend {
        let overflow = || {
            Error::new(
                Code::DURATION_OVERFLOW,
                "Overflow while subtracting from a date",
            )
        };
        if let ValueRef::DateTime(other) = subtrahend {
            // The real server lets this one wrap around.
            return Ok(millis.wrapping_sub(other).into());
        }
        if !subtrahend.is_number() {
            return Err(refused());
        }
        let date = millis
            .checked_sub(super::rounding::to_long(&right)?)
            .ok_or_else(overflow)?;
        return Ok(Evaluated::Owned(Value::DateTime(date)));
    }
    match (Number::of(minuend), Number::of(subtrahend)) {
        (Some(left), Some(right)) => Ok(Evaluated::Owned(
            number::subtract_widening(left, right).to_value(),
        )),
        _ => Err(refused()),
    }
}

pub(super) fn multiply<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut product = Number::Int32(1);
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        let Some(value) = value.as_value().filter(|value| !value.is_nullish()) else {
            return Ok(Evaluated::null());
        };
        let Some(factor) = Number::of(value) else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "$multiply only supports numeric types, not {}",
                    value.kind().name()
                ),
            ));
        };
        product = number::multiply_widening(product, factor);
    }
    Ok(Evaluated::Owned(product.to_value()))
}

/// Both operands as numbers; `None` if either is null.
fn two_numbers(
    left: &Evaluated<'_>,
    right: &Evaluated<'_>,
    refused: impl FnOnce(&str, &str) -> Error,
) -> Result<Option<(Number, Number)>, Error> {
    if left.is_nullish() || right.is_nullish() {
        return Ok(None);
    }
    let number = |value: &Evaluated<'_>| value.as_value().and_then(Number::of);
    match (number(left), number(right)) {
        (Some(left), Some(right)) => Ok(Some((left, right))),
        _ => Err(refused(left.type_name(), right.type_name())),
    }
}

pub(super) fn divide<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    // The real server evaluates the right side first, as in `$subtract`.
    let right = arguments[1].evaluate(frame)?;
    let left = arguments[0].evaluate(frame)?;
    let numbers = two_numbers(&left, &right, |left, right| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!("$divide only supports numeric types, not {left} and {right}"),
        )
    })?;
    let Some((left, right)) = numbers else {
        return Ok(Evaluated::null());
    };
    if right.is_zero() {
        return Err(Error::bad_value("can't $divide by zero"));
    }
    Ok(Evaluated::Owned(number::divide(left, right).to_value()))
}

pub(super) fn modulo<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let left = arguments[0].evaluate(frame)?;
    let right = arguments[1].evaluate(frame)?;
    let numbers = two_numbers(&left, &right, |left, right| {
        Error::location(
            16611,
            format!("$mod only supports numeric types, not {left} and {right}"),
        )
    })?;
    let Some((left, right)) = numbers else {
        return Ok(Evaluated::null());
    };
    if right.is_zero() {
        let decimal = matches!(left, Number::Decimal(_)) || matches!(right, Number::Decimal(_));
        let code = if decimal { 5733415 } else { 16610 };
        return Err(Error::location(code, "can't $mod by zero"));
    }
    // A double divisor that is a small whole number does not widen the result.
    let right = match (left, right) {
        (Number::Int32(_) | Number::Int64(_), Number::Double(divisor))
            if divisor.trunc() == divisor && divisor.abs() <= f64::from(i32::MAX) =>
        {
            Number::Int32(divisor as i32)
        }
        (_, right) => right,
    };
    Ok(Evaluated::Owned(number::remainder(left, right).to_value()))
}

pub(super) fn rand<'a>(_: &'a [Node], _: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
    Ok(fastrand::f64().into())
}
