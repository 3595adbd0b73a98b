//! `$concat`, `$toLower`, `$toUpper`, `$strcasecmp`, `$split`, `$replaceOne`,
//! `$replaceAll`, and values as text.
//!
//! Case is changed for ASCII letters only, as on the real server.

use super::date::iso_text;
use super::node::{Evaluated, Frame, Node};
use super::size::check_text;
use model::Error;
use model::bson::{ArrayWriter, ValueRef};
use model::decimal::Decimal;
use std::borrow::Cow;

pub(super) fn concat<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut text = String::new();
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        match value.as_value() {
            Some(ValueRef::String(part)) => {
                check_text(text.len() + part.len())?;
                text.push_str(part);
            }
            None | Some(ValueRef::Null | ValueRef::Undefined) => return Ok(Evaluated::null()),
            Some(other) => {
                return Err(Error::location(
                    16702,
                    format!("$concat only supports strings, not {}", other.kind().name()),
                ));
            }
        }
    }
    Ok(text.into())
}

/// A value as text where an operator takes "something like a string".
pub(super) fn coerce<'v>(value: &'v Evaluated<'_>) -> Result<Cow<'v, str>, Error> {
    let Some(value) = value.as_value() else {
        return Ok(Cow::Borrowed(""));
    };
    Ok(match value {
        ValueRef::Null | ValueRef::Undefined => Cow::Borrowed(""),
        ValueRef::String(text) | ValueRef::Symbol(text) | ValueRef::JavaScript(text) => {
            Cow::Borrowed(text)
        }
        ValueRef::Int32(number) => Cow::Owned(number.to_string()),
        ValueRef::Int64(number) => Cow::Owned(number.to_string()),
        ValueRef::Double(number) => Cow::Owned(six_digits(number)),
        ValueRef::Decimal128(number) => Cow::Owned(Decimal::from_bits(number).to_string()),
        ValueRef::DateTime(millis) => Cow::Owned(iso_text(millis)?),
        ValueRef::Timestamp(time) => Cow::Owned(format!(
            "{}:{}",
            super::date::c_time(i64::from(time.seconds)),
            time.increment
        )),
        ValueRef::Document(_)
        | ValueRef::Array(_)
        | ValueRef::Binary { .. }
        | ValueRef::ObjectId(_)
        | ValueRef::Boolean(_)
        | ValueRef::Regex { .. }
        | ValueRef::DbPointer { .. }
        | ValueRef::JavaScriptWithScope { .. }
        | ValueRef::MinKey
        | ValueRef::MaxKey => {
            return Err(Error::location(
                16007,
                format!(
                    "can't convert from BSON type {} to String",
                    value.kind().name()
                ),
            ));
        }
    })
}

/// A double with six significant digits, as C's `%g` prints it.
pub(super) fn six_digits(number: f64) -> String {
    general(number, 6)
}

/// C's `%.{digits}g`.
pub(super) fn general(number: f64, digits: usize) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| -> String {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{number:.decimals$}"))
}

pub(super) fn to_lower<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    Ok(coerce(&value)?.to_ascii_lowercase().into())
}

pub(super) fn to_upper<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    Ok(coerce(&value)?.to_ascii_uppercase().into())
}

pub(super) fn compare_ignoring_case<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let left = arguments[0].evaluate(frame)?;
    let right = arguments[1].evaluate(frame)?;
    let left = coerce(&left)?.to_ascii_uppercase();
    let right = coerce(&right)?.to_ascii_uppercase();
    Ok((left.cmp(&right) as i32).into())
}

pub(super) fn split<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let text = arguments[0].evaluate(frame)?;
    let separator = arguments[1].evaluate(frame)?;
    if text.is_nullish() || separator.is_nullish() {
        return Ok(Evaluated::null());
    }
    let wrong = |code, which: &str, value: &Evaluated<'_>| {
        Error::location(
            code,
            format!(
                "$split requires an expression that evaluates to a string as a {which} argument, found: {}",
                value.type_name()
            ),
        )
    };
    let Some(ValueRef::String(text)) = text.as_value() else {
        return Err(wrong(40085, "first", &text));
    };
    let Some(ValueRef::String(separator)) = separator.as_value() else {
        return Err(wrong(40086, "second", &separator));
    };
    if separator.is_empty() {
        return Err(Error::location(
            40087,
            "$split requires a non-empty separator",
        ));
    }
    let mut parts = ArrayWriter::new();
    for part in text.split(separator) {
        parts.push(part);
    }
    Ok(parts.finish().into())
}

fn replace<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    replaced: impl FnOnce(&str, &str, &str) -> String,
) -> Result<Evaluated<'a>, Error> {
    let values = [
        arguments[0].evaluate(frame)?,
        arguments[1].evaluate(frame)?,
        arguments[2].evaluate(frame)?,
    ];
    let mut texts = [None; 3];
    for (at, name) in ["input", "find", "replacement"].into_iter().enumerate() {
        match values[at].as_value() {
            Some(ValueRef::String(text)) => texts[at] = Some(text),
            None | Some(ValueRef::Null | ValueRef::Undefined) => {}
            Some(other) => {
                return Err(Error::location(
                    51746 - at as i32,
                    format!("{operator} requires that '{name}' be a string, found: {other:?}"),
                ));
            }
        }
    }
    match texts {
        [Some(input), Some(find), Some(replacement)] => {
            let most = match find.len() {
                0 => input.len() + 1,
                length => input.len() / length,
            };
            check_text(
                input
                    .len()
                    .saturating_add(most.saturating_mul(replacement.len())),
            )?;
            Ok(replaced(input, find, replacement).into())
        }
        _ => Ok(Evaluated::null()),
    }
}

pub(super) fn replace_one<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    replace(
        arguments,
        frame,
        "$replaceOne",
        |input, find, replacement| input.replacen(find, replacement, 1),
    )
}

pub(super) fn replace_all<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    replace(
        arguments,
        frame,
        "$replaceAll",
        |input, find, replacement| input.replace(find, replacement),
    )
}
