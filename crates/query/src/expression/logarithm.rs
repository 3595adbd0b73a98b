//! `$exp`, `$ln`, `$log`, `$log10`, `$pow`, `$sqrt`.

use super::node::{Evaluated, Frame, Node};
use super::rounding::one_number;
use model::Error;
use model::decimal::Decimal;
use model::number::Number;

pub(super) fn exp<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$exp", |number| {
        Ok(match number {
            Number::Decimal(v) => Number::Decimal(v.exp()),
            other => Number::Double(other.to_f64().exp()),
        })
    })
}

/// Above zero, or not a number at all.
fn in_domain(number: Number) -> bool {
    number.is_nan() || number.compare(Number::Int32(0)).is_gt()
}

fn not_positive(code: i32, what: &str) -> Error {
    Error::location(code, format!("{what} must be a positive number"))
}

pub(super) fn ln<'a>(arguments: &'a [Node], frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$ln", |number| {
        if !in_domain(number) {
            return Err(not_positive(28766, "$ln's argument"));
        }
        Ok(match number {
            Number::Decimal(v) if !v.is_nan() => Number::Decimal(v.ln()),
            other => Number::Double(other.to_f64().ln()),
        })
    })
}

pub(super) fn log10<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$log10", |number| {
        if !in_domain(number) {
            return Err(not_positive(28761, "$log10's argument"));
        }
        Ok(match number {
            Number::Decimal(v) if !v.is_nan() => Number::Decimal(v.log10()),
            other => Number::Double(other.to_f64().log10()),
        })
    })
}

pub(super) fn sqrt<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, "$sqrt", |number| {
        if !number.is_nan() && number.compare(Number::Int32(0)).is_lt() {
            return Err(Error::location(
                28714,
                "$sqrt's argument must be greater than or equal to 0",
            ));
        }
        Ok(match number {
            Number::Decimal(v) => Number::Decimal(v.sqrt()),
            other => Number::Double(other.to_f64().sqrt()),
        })
    })
}

pub(super) fn log<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let argument = arguments[0].evaluate(frame)?;
    let base = arguments[1].evaluate(frame)?;
    if argument.is_nullish() || base.is_nullish() {
        return Ok(Evaluated::null());
    }
    let wrong = |code, what: &str, value: &Evaluated<'_>| {
        Error::location(
            code,
            format!("$log's {what} must be numeric, not {}", value.type_name()),
        )
    };
    let Some(number) = argument.as_value().and_then(Number::of) else {
        return Err(wrong(28756, "argument", &argument));
    };
    let Some(base_number) = base.as_value().and_then(Number::of) else {
        return Err(wrong(28757, "base", &base));
    };
    // Both are looked at as doubles: a decimal below all of them is zero here.
    if !in_domain(Number::Double(number.to_f64())) {
        return Err(not_positive(28758, "$log's argument"));
    }
    let one = !base_number.is_nan() && base_number.compare(Number::Int32(1)).is_eq();
    if !in_domain(Number::Double(base_number.to_f64())) || one {
        return Err(Error::location(
            28759,
            "$log's base must be a positive number not equal to 1",
        ));
    }
    if number.is_nan() || base_number.is_nan() {
        return Ok(f64::NAN.into());
    }
    let result = match (number, base_number) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal(decimal_log(number.to_decimal(), base_number.to_decimal()))
        }
        _ => Number::Double(number.to_f64().ln() / base_number.to_f64().ln()),
    };
    Ok(Evaluated::Owned(result.to_value()))
}

/// Logarithms of decimals as the real server answers them: right for the bases
/// 2 and 10; for any other base it divides by the base itself instead of the
/// base's logarithm.
fn decimal_log(number: Decimal, base: Decimal) -> Decimal {
    match base.to_i64_exact() {
        Some(2) => number.log(base),
        Some(10) => number.log10(),
        _ => number.ln().divide(base),
    }
}

pub(super) fn pow<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let base = arguments[0].evaluate(frame)?;
    let exponent = arguments[1].evaluate(frame)?;
    if base.is_nullish() || exponent.is_nullish() {
        return Ok(Evaluated::null());
    }
    let wrong = |code, what: &str, value: &Evaluated<'_>| {
        Error::location(
            code,
            format!("$pow's {what} must be numeric, not {}", value.type_name()),
        )
    };
    let Some(base) = base.as_value().and_then(Number::of) else {
        return Err(wrong(28762, "base", &base));
    };
    let Some(exponent) = exponent.as_value().and_then(Number::of) else {
        return Err(wrong(28763, "exponent", &exponent));
    };
    let decimal = matches!(base, Number::Decimal(_)) || matches!(exponent, Number::Decimal(_));
    // Of decimals the sign decides, also that of a zero.
    let is_negative = match decimal {
        true => exponent.to_decimal().is_negative(),
        false => exponent.compare(Number::Int32(0)).is_lt(),
    };
    if base.is_zero() && !exponent.is_nan() && is_negative {
        return Err(Error::location(
            28764,
            "$pow cannot take a base of 0 and a negative exponent",
        ));
    }
    let result = match (base, exponent) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal(base.to_decimal().pow(exponent.to_decimal()))
        }
        (Number::Double(_), _) | (_, Number::Double(_)) => {
            Number::Double(base.to_f64().powf(exponent.to_f64()))
        }
        (Number::Int32(_), Number::Int32(_)) => match whole_power(base, exponent) {
            Number::Int64(large) => match i32::try_from(large) {
                Ok(small) => Number::Int32(small),
                Err(_) => Number::Int64(large),
            },
            other => other,
        },
        _ => whole_power(base, exponent),
    };
    Ok(Evaluated::Owned(result.to_value()))
}

/// An int64 where it is exact, else a double.
fn whole_power(base: Number, exponent: Number) -> Number {
    let (Some(whole_base), Some(whole_exponent)) = (base.to_i64_exact(), exponent.to_i64_exact())
    else {
        return Number::Double(base.to_f64().powf(exponent.to_f64()));
    };
    let power = match whole_base {
        1 => Some(1),
        -1 => Some(if whole_exponent % 2 == 0 { 1 } else { -1 }),
        0 if whole_exponent > 0 => Some(0),
        _ => u32::try_from(whole_exponent)
            .ok()
            .and_then(|exponent| whole_base.checked_pow(exponent)),
    };
    match power {
        Some(power) => Number::Int64(power),
        None => Number::Double(base.to_f64().powf(exponent.to_f64())),
    }
}
