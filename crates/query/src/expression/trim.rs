//! `$trim`, `$ltrim`, `$rtrim`.

use super::node::{Evaluated, Frame, Node};
use model::Error;
use model::bson::ValueRef;

/// What is trimmed unless `chars` says otherwise: NUL and Unicode's spaces.
const BLANKS: &[char] = &[
    '\0', ' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{a0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}',
    '\u{200a}',
];

fn trimmed<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    cut: for<'t> fn(&'t str, &[char]) -> &'t str,
) -> Result<Evaluated<'a>, Error> {
    let input = arguments[0].evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(ValueRef::String(text)) = input.as_value() else {
        return Err(Error::location(
            50699,
            format!(
                "{operator} requires its input to be a string, got {}",
                input.type_name()
            ),
        ));
    };
    if arguments[1].is_absent() {
        return Ok(cut(text, BLANKS).into());
    }
    let chars = arguments[1].evaluate(frame)?;
    match chars.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(Evaluated::null()),
        Some(ValueRef::String(chars)) => {
            let chars: Vec<char> = chars.chars().collect();
            Ok(cut(text, &chars).into())
        }
        Some(other) => Err(Error::location(
            50700,
            format!(
                "{operator} requires 'chars' to be a string, got {}",
                other.kind().name()
            ),
        )),
    }
}

pub(super) fn trim<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    trimmed(arguments, frame, "$trim", |text, chars| {
        text.trim_matches(chars)
    })
}

pub(super) fn ltrim<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    trimmed(arguments, frame, "$ltrim", |text, chars| {
        text.trim_start_matches(chars)
    })
}

pub(super) fn rtrim<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    trimmed(arguments, frame, "$rtrim", |text, chars| {
        text.trim_end_matches(chars)
    })
}
