//! `$sin` and its like, and the two angle conversions.
//!
//! A decimal argument gives a decimal with 34 digits, any other a double.

use super::node::{Evaluated, Frame, Node};
use super::rounding::one_number;
use model::Error;
use model::decimal::Decimal;
use model::number::Number;

/// What a function accepts.
#[derive(Clone, Copy)]
enum Domain {
    Any,
    Finite,
    /// Both ends included.
    Between(f64, f64),
}

impl Domain {
    /// Decimals are compared as they are: as doubles they may be infinite, or one.
    fn holds(self, argument: Number) -> bool {
        if argument.is_nan() {
            return true;
        }
        match self {
            Domain::Any => true,
            Domain::Finite => match argument {
                Number::Decimal(decimal) => !decimal.is_infinite(),
                other => other.to_f64().is_finite(),
            },
            Domain::Between(least, most) => {
                argument.compare(Number::Double(least)).is_ge()
                    && argument.compare(Number::Double(most)).is_le()
            }
        }
    }
}

fn apply<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    domain: Domain,
    function: fn(f64) -> f64,
    decimal_function: fn(Decimal) -> Decimal,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, operator, |number| {
        let argument = number.to_f64();
        if !domain.holds(number) {
            return Err(Error::location(
                50989,
                format!("cannot apply {operator} to {argument}, value out of range"),
            ));
        }
        Ok(match number {
            Number::Decimal(number) => Number::Decimal(decimal_function(number)),
            _ => Number::Double(function(argument)),
        })
    })
}

macro_rules! functions {
    ($($name:ident $operator:literal $domain:expr, $function:expr;)*) => {$(
        pub(super) fn $name<'a>(
            arguments: &'a [Node],
            frame: &mut Frame<'a>,
        ) -> Result<Evaluated<'a>, Error> {
            apply(arguments, frame, $operator, $domain, $function, Decimal::$name)
        }
    )*};
}

functions! {
    sin "$sin" Domain::Finite, f64::sin;
    cos "$cos" Domain::Finite, f64::cos;
    tan "$tan" Domain::Finite, f64::tan;
    asin "$asin" Domain::Between(-1.0, 1.0), f64::asin;
    acos "$acos" Domain::Between(-1.0, 1.0), f64::acos;
    atan "$atan" Domain::Any, f64::atan;
    sinh "$sinh" Domain::Any, f64::sinh;
    cosh "$cosh" Domain::Any, f64::cosh;
    tanh "$tanh" Domain::Any, f64::tanh;
    asinh "$asinh" Domain::Any, far_asinh;
    acosh "$acosh" Domain::Between(1.0, f64::INFINITY), far_acosh;
    atanh "$atanh" Domain::Between(-1.0, 1.0), f64::atanh;
}

/// Beyond this the square of a double may be infinite, and one beside it does not show.
const FAR: f64 = 1e150;

fn far_asinh(value: f64) -> f64 {
    if value.is_finite() && value.abs() > FAR {
        return (value.abs().ln() + std::f64::consts::LN_2).copysign(value);
    }
    value.asinh()
}

fn far_acosh(value: f64) -> f64 {
    if value.is_finite() && value > FAR {
        return value.ln() + std::f64::consts::LN_2;
    }
    value.acosh()
}

pub(super) fn atan2<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut values = Vec::with_capacity(2);
    for argument in arguments {
        values.push(argument.evaluate(frame)?);
    }
    let mut numbers = [None; 2];
    for (at, value) in values.iter().enumerate() {
        // Whatever the other one is.
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        let Some(number) = value.as_value().and_then(Number::of) else {
            return Err(Error::location(
                51044 + at as i32,
                format!(
                    "$atan2 only supports numeric types, not {}",
                    value.type_name()
                ),
            ));
        };
        numbers[at] = Some(number);
    }
    let [Some(y), Some(x)] = numbers else {
        return Ok(Evaluated::null());
    };
    let decimal = matches!(y, Number::Decimal(_)) || matches!(x, Number::Decimal(_));
    let result = if decimal {
        Number::Decimal(y.to_decimal().atan2(x.to_decimal()))
    } else {
        Number::Double(y.to_f64().atan2(x.to_f64()))
    };
    Ok(Evaluated::Owned(result.to_value()))
}

fn scale<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    convert: fn(f64) -> f64,
    decimal_factor: &str,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, operator, |number| {
        Ok(match number {
            // One rounded factor, as the real server has it: the last digit shows.
            Number::Decimal(number) => {
                let factor = Decimal::parse(decimal_factor).unwrap_or(Decimal::NaN);
                Number::Decimal(number.multiply(factor))
            }
            other => Number::Double(convert(other.to_f64())),
        })
    })
}

pub(super) fn degrees_to_radians<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    scale(
        arguments,
        frame,
        "$degreesToRadians",
        |degrees| degrees * (std::f64::consts::PI / 180.0),
        "0.01745329251994329576923690768488613",
    )
}

pub(super) fn radians_to_degrees<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    scale(
        arguments,
        frame,
        "$radiansToDegrees",
        |radians| radians * (180.0 / std::f64::consts::PI),
        "57.29577951308232087679815481410517",
    )
}
