//! `$abs`, `$ceil`, `$floor`, `$round`, `$trunc`.

use super::node::{Evaluated, Frame, Node};
use model::Error;
use model::bson::ValueRef;
use model::decimal::{Decimal, Rounding};
use model::number::Number;

/// The value as an int32, if it is a number that equals one.
pub(super) fn exact_i32(value: ValueRef<'_>) -> Option<i32> {
    let whole = Number::of(value)?.to_i64_exact()?;
    i32::try_from(whole).ok()
}

/// Applies a function to the one number; null stays null.
pub(super) fn one_number<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    apply: impl FnOnce(Number) -> Result<Number, Error>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    if value.is_nullish() {
        return Ok(Evaluated::null());
    }
    match value.as_value().and_then(Number::of) {
        Some(number) => Ok(Evaluated::Owned(apply(number)?.to_value())),
        None => Err(Error::location(
            28765,
            format!(
                "{operator} only supports numeric types, not {}",
                value.type_name()
            ),
        )),
    }
}

pub(super) fn abs<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$abs", |number| {
        Ok(match number {
            Number::Int32(v) => match v.checked_abs() {
                Some(v) => Number::Int32(v),
                None => Number::Int64(-i64::from(v)),
            },
            Number::Int64(v) => match v.checked_abs() {
                Some(v) => Number::Int64(v),
                None => {
                    return Err(Error::location(28680, "can't take $abs of long long min"));
                }
            },
            Number::Double(v) => Number::Double(v.abs()),
            Number::Decimal(v) => Number::Decimal(v.abs()),
        })
    })
}

pub(super) fn ceil<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$ceil", |number| {
        Ok(match number {
            Number::Double(v) => Number::Double(v.ceil()),
            Number::Decimal(v) => Number::Decimal(v.ceil()),
            whole => whole,
        })
    })
}

pub(super) fn floor<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$floor", |number| {
        Ok(match number {
            Number::Double(v) => Number::Double(v.floor()),
            Number::Decimal(v) => Number::Decimal(v.floor()),
            whole => whole,
        })
    })
}

pub(super) fn round<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    to_place(
        arguments,
        frame,
        "$round",
        Rounding::HalfEven,
        f64::round_ties_even,
    )
}

pub(super) fn trunc<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    to_place(arguments, frame, "$trunc", Rounding::TowardZero, f64::trunc)
}

fn to_place<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    rounding: Rounding,
    to_whole: fn(f64) -> f64,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    if value.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(number) = value.as_value().and_then(Number::of) else {
        return Err(Error::location(
            51081,
            format!(
                "{operator} only supports numeric types, not {}",
                value.type_name()
            ),
        ));
    };
    let place = match arguments.get(1) {
        Some(node) => {
            let place = node.evaluate(frame)?;
            if place.is_nullish() {
                return Ok(Evaluated::null());
            }
            check_place(&place, operator)?
        }
        None => 0,
    };
    let rounded = match number {
        Number::Double(number) if place == 0 || !number.is_finite() => {
            Number::Double(to_whole(number))
        }
        Number::Double(number) => {
            let exact = Decimal::from_f64_exact(number);
            Number::Double(exact.round_to_place(place, rounding).to_f64())
        }
        Number::Decimal(number) => Number::Decimal(number.round_to_place(place, rounding)),
        whole if place >= 0 => whole,
        whole => {
            let rounded = whole.to_decimal().round_to_place(place, rounding);
            let Some(result) = rounded.to_i64_exact() else {
                return Err(Error::location(
                    51080,
                    format!("invalid conversion from Decimal128 result in {operator}"),
                ));
            };
            match (whole, i32::try_from(result)) {
                (Number::Int32(_), Ok(small)) => Number::Int32(small),
                _ => Number::Int64(result),
            }
        }
    };
    Ok(Evaluated::Owned(rounded.to_value()))
}

/// A number cut to an int64, as the server does where it wants one.
pub(super) fn to_long(value: &Evaluated<'_>) -> Result<i64, Error> {
    let Some(number) = value.as_value().and_then(Number::of) else {
        return Err(Error::location(
            16004,
            format!("can't convert from BSON type {} to long", value.type_name()),
        ));
    };
    let whole = match number {
        Number::Decimal(decimal) => decimal.round_to_place(0, Rounding::HalfEven).to_i64_exact(),
        other => other.to_i64_truncated(),
    };
    whole.ok_or_else(|| {
        Error::location(
            31109,
            format!("Can't coerce out of range value {value:?} to long"),
        )
    })
}

fn check_place(place: &Evaluated<'_>, operator: &str) -> Result<i32, Error> {
    to_long(place)?;
    let Some(place) = place.as_value().and_then(exact_i32) else {
        return Err(Error::location(
            51082,
            format!("precision argument to  {operator} must be a integral value"),
        ));
    };
    if !(-20..=100).contains(&place) {
        return Err(Error::location(
            51083,
            format!(
                "cannot apply {operator} with precision value {place} value must be in [-20, 100]"
            ),
        ));
    }
    Ok(place)
}
