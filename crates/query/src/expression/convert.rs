//! `$convert`, its shorthands `$toInt` and so on, `$type`, `$isNumber`,
//! `$toHashedIndexKey`; and `$_internalBsonBytes`, which MongoDB does not have:
//! a value's type and bytes as stored, for `terndb verify` to hash.

use super::date;
use super::node::{Evaluated, Frame, Node, truthy_value};
use super::string::six_digits;
use model::bson::{DocWriter, Kind, ObjectId, Value, ValueRef};
use model::decimal::Decimal;
use model::hash::hashed_index_key;
use model::number::Number;
use model::{Code, Error};

/// What a value is converted to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Kind(Kind),
    /// `"missing"` is a type name, though nothing can become it.
    Missing,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Kind(kind) => kind.name(),
            Target::Missing => "missing",
        }
    }
}

fn failure(message: impl Into<String>) -> Error {
    Error::new(Code::CONVERSION_FAILURE, message)
}

pub(super) fn convert<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let to = arguments[1].evaluate(frame)?;
    let input = arguments[0].evaluate(frame)?;
    let target = to.as_value().filter(|to| !to.is_nullish()).map(target);
    let target = target.transpose()?;
    let Some(value) = input.as_value().filter(|value| !value.is_nullish()) else {
        return if arguments[3].is_absent() {
            Ok(Evaluated::null())
        } else {
            arguments[3].evaluate(frame)
        };
    };
    let Some(target) = target else {
        return Ok(Evaluated::null());
    };
    match converted(value, target) {
        Ok(value) => Ok(Evaluated::Owned(value)),
        // A date that has no text is an error of another kind, never caught.
        Err(error) if error.code != Code::CONVERSION_FAILURE => Err(error),
        Err(error) if arguments[2].is_absent() => Err(failure(format!(
            "{} in $convert with no onError value",
            error.message
        ))),
        Err(_) => arguments[2].evaluate(frame),
    }
}

/// A type by name or number.
fn target(to: ValueRef<'_>) -> Result<Target, Error> {
    if let ValueRef::String(name) = to {
        if name == "missing" {
            return Ok(Target::Missing);
        }
        let known = (0..=255u8)
            .filter_map(Kind::from_tag)
            .find(|kind| kind.name() == name);
        return known
            .map(Target::Kind)
            .ok_or_else(|| Error::bad_value(format!("Unknown type name: {name}")));
    }
    let Some(number) = Number::of(to) else {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "$convert's 'to' argument must be a string or number",
        ));
    };
    let whole = number
        .to_i64_exact()
        .and_then(|whole| i32::try_from(whole).ok());
    let Some(whole) = whole else {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "In $convert, numeric 'to' argument is not an integer",
        ));
    };
    let kind = match whole {
        0 => return Ok(Target::Missing),
        -1 => Some(Kind::MinKey),
        1..=127 => Kind::from_tag(whole as u8),
        _ => None,
    };
    kind.map(Target::Kind).ok_or_else(|| {
        Error::new(
            Code::FAILED_TO_PARSE,
            format!(
                "In $convert, numeric value for 'to' does not correspond to a BSON type: {whole}"
            ),
        )
    })
}

fn converted(value: ValueRef<'_>, target: Target) -> Result<Value, Error> {
    let unsupported = || {
        failure(format!(
            "Unsupported conversion from {} to {}",
            value.kind().name(),
            target.name()
        ))
    };
    let Target::Kind(kind) = target else {
        return Err(unsupported());
    };
    let result = match kind {
        Kind::Boolean => Some(Value::Boolean(truthy_value(value))),
        Kind::Int32 => to_whole(value, i32::MIN.into(), i32::MAX.into())?
            .map(|whole| Value::Int32(whole as i32)),
        Kind::Int64 => match value {
            ValueRef::DateTime(millis) => Some(Value::Int64(millis)),
            value => to_whole(value, i64::MIN, i64::MAX)?.map(Value::Int64),
        },
        Kind::Double => double(value)?.map(Value::Double),
        Kind::Decimal128 => decimal(value)?.map(|decimal| Value::Decimal128(decimal.to_bits())),
        Kind::DateTime => to_millis(value)?.map(Value::DateTime),
        Kind::ObjectId => match value {
            ValueRef::ObjectId(id) => Some(Value::ObjectId(id)),
            ValueRef::String(text) => Some(Value::ObjectId(object_id(text)?)),
            _ => None,
        },
        Kind::String => text(value)?.map(Value::String),
        _ => None,
    };
    result.ok_or_else(unsupported)
}

/// `None` where there is no conversion at all.
fn to_whole(value: ValueRef<'_>, least: i64, most: i64) -> Result<Option<i64>, Error> {
    let whole = match value {
        ValueRef::Boolean(flag) => i64::from(flag),
        ValueRef::String(text) => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            text.parse()
                .ok()
                .filter(|_| plain)
                .ok_or_else(|| failure(format!("Failed to parse number '{text}'")))?
        }
        value => {
            let Some(number) = Number::of(value) else {
                return Ok(None);
            };
            // A double is compared with the bounds before its fraction is cut,
            // a decimal after.
            if let Number::Double(double) = number
                && (double < least as f64 || double > most as f64)
            {
                return Err(failure("Conversion would overflow target type"));
            }
            number_to_whole(number)?
        }
    };
    if whole < least || whole > most {
        return Err(failure("Conversion would overflow target type"));
    }
    Ok(Some(whole))
}

fn number_to_whole(number: Number) -> Result<i64, Error> {
    if number.is_nan() {
        return Err(failure("Attempt to convert NaN value to integer type"));
    }
    number
        .to_i64_truncated()
        .ok_or_else(|| failure("Conversion would overflow target type"))
}

fn double(value: ValueRef<'_>) -> Result<Option<f64>, Error> {
    Ok(match value {
        ValueRef::Boolean(flag) => Some(f64::from(u8::from(flag))),
        ValueRef::DateTime(millis) => Some(millis as f64),
        ValueRef::String(text) => Some(parse_double(text)?),
        ValueRef::Decimal128(stored) => {
            let decimal = Decimal::from_bits(stored);
            let double = decimal.to_f64();
            // Numbers below all normal doubles are refused as those above are.
            let vanishes = double.abs() < f64::MIN_POSITIVE && !decimal.is_zero();
            if vanishes || (double.is_infinite() && !decimal.is_infinite()) {
                return Err(failure("Conversion would overflow target type"));
            }
            Some(double)
        }
        value => Number::of(value).map(Number::to_f64),
    })
}

fn parse_double(text: &str) -> Result<f64, Error> {
    let bad = || failure(format!("Failed to parse number '{text}'"));
    if text.chars().any(char::is_whitespace) {
        return Err(bad());
    }
    let double: f64 = text.parse().map_err(|_| bad())?;
    let spelled_out = text.to_ascii_lowercase().contains("inf");
    if double.is_infinite() && !spelled_out {
        return Err(failure("Out of range"));
    }
    Ok(double)
}

fn decimal(value: ValueRef<'_>) -> Result<Option<Decimal>, Error> {
    Ok(match value {
        ValueRef::Boolean(flag) => Some(Decimal::from_i64(i64::from(flag))),
        ValueRef::DateTime(millis) => Some(Decimal::from_i64(millis)),
        ValueRef::String(text) => Some(
            Decimal::parse(text)
                .map_err(|_| failure(format!("Failed to parse number '{text}'")))?,
        ),
        value => Number::of(value).map(Number::to_decimal),
    })
}

fn to_millis(value: ValueRef<'_>) -> Result<Option<i64>, Error> {
    Ok(match value {
        ValueRef::DateTime(millis) => Some(millis),
        ValueRef::Timestamp(time) => Some(i64::from(time.seconds) * 1000),
        ValueRef::ObjectId(id) => Some(object_id_millis(id)),
        ValueRef::Int64(_) | ValueRef::Double(_) | ValueRef::Decimal128(_) => {
            Number::of(value).map(number_to_whole).transpose()?
        }
        ValueRef::String(text) => Some(date::parse_text(text).map_err(failure)?),
        _ => None,
    })
}

/// An object id begins with its time, in seconds.
pub(super) fn object_id_millis(id: ObjectId) -> i64 {
    let [a, b, c, d, ..] = id.0;
    i64::from(i32::from_be_bytes([a, b, c, d])) * 1000
}

fn object_id(text: &str) -> Result<ObjectId, Error> {
    let bad = || failure(format!("Failed to parse objectId '{text}'"));
    if text.len() != 24 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(bad());
    }
    let mut id = [0; 12];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| bad())?;
    }
    Ok(ObjectId(id))
}

fn text(value: ValueRef<'_>) -> Result<Option<String>, Error> {
    Ok(match value {
        ValueRef::String(text) => Some(text.to_owned()),
        ValueRef::Boolean(flag) => Some(flag.to_string()),
        ValueRef::Int32(number) => Some(number.to_string()),
        ValueRef::Int64(number) => Some(number.to_string()),
        ValueRef::Double(number) if number.is_nan() => Some("NaN".to_owned()),
        ValueRef::Double(number) if number.is_infinite() => Some(
            if number > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            }
            .to_owned(),
        ),
        ValueRef::Double(number) => Some(six_digits(number)),
        ValueRef::Decimal128(number) => Some(Decimal::from_bits(number).to_string()),
        ValueRef::ObjectId(id) => Some(id.to_string()),
        ValueRef::DateTime(millis) => Some(date::iso_text(millis)?),
        _ => None,
    })
}

fn shorthand<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    kind: Kind,
) -> Result<Evaluated<'a>, Error> {
    let input = arguments[0].evaluate(frame)?;
    let Some(value) = input.as_value().filter(|value| !value.is_nullish()) else {
        return Ok(Evaluated::null());
    };
    match converted(value, Target::Kind(kind)) {
        Ok(value) => Ok(Evaluated::Owned(value)),
        Err(error) if error.code != Code::CONVERSION_FAILURE => Err(error),
        Err(error) => Err(failure(format!(
            "{} in $convert with no onError value",
            error.message
        ))),
    }
}

macro_rules! shorthands {
    ($($name:ident => $kind:expr;)*) => {$(
        pub(super) fn $name<'a>(
            arguments: &'a [Node],
            frame: &mut Frame<'a>,
        ) -> Result<Evaluated<'a>, Error> {
            shorthand(arguments, frame, $kind)
        }
    )*};
}

shorthands! {
    to_bool => Kind::Boolean;
    to_date => Kind::DateTime;
    to_decimal => Kind::Decimal128;
    to_double => Kind::Double;
    to_int => Kind::Int32;
    to_long => Kind::Int64;
    to_object_id => Kind::ObjectId;
    to_string => Kind::String;
}

pub(super) fn is_number<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    Ok(value
        .as_value()
        .is_some_and(|value| value.is_number())
        .into())
}

pub(super) fn type_of<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    Ok(Evaluated::Borrowed(ValueRef::String(value.type_name())))
}

pub(super) fn to_hashed_index_key<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    Ok(hashed_index_key(value.as_value().unwrap_or(ValueRef::Null)).into())
}

/// Two values have the same bytes only if they are the same to the bit.
pub(super) fn bson_bytes<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    let Some(value) = value.as_value() else {
        return Ok(Evaluated::Missing);
    };
    let bytes = DocWriter::new().with("", value).finish().into_bytes();
    Ok(Value::Binary { subtype: 0, bytes }.into())
}
