//! `$substrBytes` (and `$substr`), `$substrCP`, `$indexOfBytes`, `$indexOfCP`.

use super::array::index_argument;
use super::node::{Evaluated, Frame, Node};
use super::rounding::exact_i32;
use super::string::coerce;
use model::Error;
use model::bson::ValueRef;
use model::number::Number;

pub(super) fn substr_bytes<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let text = arguments[0].evaluate(frame)?;
    let start = arguments[1].evaluate(frame)?;
    let length = arguments[2].evaluate(frame)?;
    let text = coerce(&text)?;
    let start = whole_part(&start, 16034, "starting index")?;
    let length = whole_part(&length, 16035, "length")?;
    let Ok(start) = usize::try_from(start) else {
        return Err(Error::location(
            50752,
            format!("$substrBytes:  starting index must be non-negative (got: {start})"),
        ));
    };
    if start > text.len() {
        return Ok(String::new().into());
    }
    if !text.is_char_boundary(start) {
        return Err(Error::location(
            28656,
            "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.",
        ));
    }
    // A negative length means the rest.
    let end = usize::try_from(length)
        .ok()
        .and_then(|length| start.checked_add(length))
        .map_or(text.len(), |end| end.min(text.len()));
    match text.get(start..end) {
        Some(part) => Ok(part.into()),
        None => Err(Error::location(
            28657,
            "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character.",
        )),
    }
}

fn whole_part(value: &Evaluated<'_>, code: i32, what: &str) -> Result<i64, Error> {
    let Some(number) = value.as_value().and_then(Number::of) else {
        return Err(Error::location(
            code,
            format!(
                "$substrBytes:  {what} must be a numeric type (is BSON type {})",
                value.type_name()
            ),
        ));
    };
    Ok(match number {
        Number::Double(number) => number as i64,
        other => other.to_i64_truncated().unwrap_or(i64::MIN),
    })
}

pub(super) fn substr_code_points<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let text = arguments[0].evaluate(frame)?;
    let start = arguments[1].evaluate(frame)?;
    let length = arguments[2].evaluate(frame)?;
    let text = coerce(&text)?;
    let start = code_points(&start, 34450, "starting index")?;
    let length = code_points(&length, 34452, "length")?;
    let Ok(length) = usize::try_from(length) else {
        return Err(Error::location(
            34454,
            "$substrCP: length must be a nonnegative integer.",
        ));
    };
    let Ok(start) = usize::try_from(start) else {
        return Err(Error::location(
            34455,
            "$substrCP: the starting index must be nonnegative integer.",
        ));
    };
    let part: String = text.chars().skip(start).take(length).collect();
    Ok(part.into())
}

fn code_points(value: &Evaluated<'_>, code: i32, what: &str) -> Result<i32, Error> {
    let Some(number) = value.as_value().filter(ValueRef::is_number) else {
        return Err(Error::location(
            code,
            format!(
                "$substrCP: {what} must be a numeric type (is BSON type {})",
                value.type_name()
            ),
        ));
    };
    exact_i32(number).ok_or_else(|| {
        Error::location(
            code + 1,
            format!("$substrCP: {what} cannot be represented as a 32-bit integral value"),
        )
    })
}

/// What both searches have in common; `None` stands for a null result.
fn search<'a, T>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    code: i32,
    find: impl FnOnce(&str, &str, usize, usize) -> T,
) -> Result<Option<T>, Error> {
    let text = arguments[0].evaluate(frame)?;
    if text.is_nullish() {
        return Ok(None);
    }
    let wrong = |code, which: &str, value: &Evaluated<'_>| {
        Error::location(
            code,
            format!(
                "{operator} requires a string as the {which} argument, found: {}",
                value.type_name()
            ),
        )
    };
    let Some(ValueRef::String(text)) = text.as_value() else {
        return Err(wrong(code, "first", &text));
    };
    let token = arguments[1].evaluate(frame)?;
    let Some(ValueRef::String(token)) = token.as_value() else {
        return Err(wrong(code + 1, "second", &token));
    };
    let start = match arguments.get(2) {
        Some(node) => index_argument(&node.evaluate(frame)?, operator, "starting")?,
        None => 0,
    };
    let end = match arguments.get(3) {
        Some(node) => index_argument(&node.evaluate(frame)?, operator, "ending")?,
        None => usize::MAX,
    };
    Ok(Some(find(text, token, start, end)))
}

fn index<'a>(found: Option<Option<usize>>) -> Evaluated<'a> {
    match found {
        None => Evaluated::null(),
        Some(at) => at.map_or(-1, |at| at as i32).into(),
    }
}

pub(super) fn index_of_bytes<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let found = search(
        arguments,
        frame,
        "$indexOfBytes",
        40091,
        |text, token, start, end| {
            let end = end.min(text.len());
            if start > end {
                return None;
            }
            let within = &text.as_bytes()[start..end];
            memchr::memmem::find(within, token.as_bytes()).map(|at| start + at)
        },
    )?;
    Ok(index(found))
}

pub(super) fn index_of_code_points<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let found = search(
        arguments,
        frame,
        "$indexOfCP",
        40093,
        |text, token, start, end| {
            // An empty text holds an empty one, though no place in it is searched.
            if text.is_empty() && token.is_empty() && start == 0 {
                return Some(0);
            }
            // The end says where a find may begin, not where it must end.
            text.char_indices()
                .enumerate()
                .take(end)
                .skip(start)
                .find(|(_, (byte, _))| text[*byte..].starts_with(token))
                .map(|(at, _)| at)
        },
    )?;
    Ok(index(found))
}
