//! `$sin` and its like, and the two angle conversions.
//!
//! Decimal arguments are computed in doubles and keep 15 digits, where the real
//! server computes 34; the conversions are exact in both.

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
    fn holds(self, argument: f64) -> bool {
        if argument.is_nan() {
            return true;
        }
        match self {
            Domain::Any => true,
            Domain::Finite => argument.is_finite(),
            Domain::Between(least, most) => (least..=most).contains(&argument),
        }
    }
}

fn apply<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    domain: Domain,
    function: fn(f64) -> f64,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, operator, |number| {
        let argument = number.to_f64();
        if !domain.holds(argument) {
            return Err(Error::location(
                50989,
                format!("cannot apply {operator} to {argument}, value out of range"),
            ));
        }
        let result = function(argument);
        Ok(match number {
            Number::Decimal(_) => Number::Decimal(Decimal::from_f64(result)),
            _ => Number::Double(result),
        })
    })
}

macro_rules! functions {
    ($($name:ident $operator:literal $domain:expr => $function:expr;)*) => {$(
        pub(super) fn $name<'a>(
            arguments: &'a [Node],
            frame: &mut Frame<'a>,
        ) -> Result<Evaluated<'a>, Error> {
            apply(arguments, frame, $operator, $domain, $function)
        }
    )*};
}

functions! {
    sin "$sin" Domain::Finite => f64::sin;
    cos "$cos" Domain::Finite => f64::cos;
    tan "$tan" Domain::Finite => f64::tan;
    asin "$asin" Domain::Between(-1.0, 1.0) => f64::asin;
    acos "$acos" Domain::Between(-1.0, 1.0) => f64::acos;
    atan "$atan" Domain::Any => f64::atan;
    sinh "$sinh" Domain::Any => f64::sinh;
    cosh "$cosh" Domain::Any => f64::cosh;
    tanh "$tanh" Domain::Any => f64::tanh;
    asinh "$asinh" Domain::Any => f64::asinh;
    acosh "$acosh" Domain::Between(1.0, f64::INFINITY) => f64::acosh;
    atanh "$atanh" Domain::Between(-1.0, 1.0) => f64::atanh;
}

pub(super) fn atan2<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut numbers = [None; 2];
    for (at, argument) in arguments.iter().enumerate() {
        let value = argument.evaluate(frame)?;
        if value.is_nullish() {
            continue;
        }
        let Some(number) = value.as_value().and_then(Number::of) else {
            return Err(Error::location(
                51044 + at as i32,
                format!("$atan2 only supports numeric types, not {}", value.type_name()),
            ));
        };
        numbers[at] = Some(number);
    }
    let [Some(y), Some(x)] = numbers else {
        return Ok(Evaluated::null());
    };
    let angle = y.to_f64().atan2(x.to_f64());
    let decimal = matches!(y, Number::Decimal(_)) || matches!(x, Number::Decimal(_));
    let result = if decimal {
        Number::Decimal(Decimal::from_f64(angle))
    } else {
        Number::Double(angle)
    };
    Ok(Evaluated::Owned(result.to_value()))
}

fn scale<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    decimal_factor: &str,
    convert: fn(f64) -> f64,
) -> Result<Evaluated<'a>, Error> {
    one_number(arguments, frame, operator, |number| {
        Ok(match number {
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
        "0.01745329251994329576923690768488613",
        |degrees| degrees * (std::f64::consts::PI / 180.0),
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
        "57.29577951308232087679815481410517",
        |radians| radians * (180.0 / std::f64::consts::PI),
    )
}
