//! `$regexFind`, `$regexFindAll`, `$regexMatch`.
//!
//! A constant pattern is compiled when the expression is parsed. Positions are
//! counted in code points. These operators need captures, so all go to PCRE2.

use super::node::{Evaluated, Frame, Node};
use super::parse::Parser;
use super::size::check_computed;
use super::table::Operator;
use crate::regex::Options;
use model::Error;
use model::bson::{ArrayBuf, ArrayWriter, DocBuf, DocWriter, Value, ValueRef};
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::fmt;

/// Bounds the work of one match; an honest pattern stays far below.
const MATCH_LIMIT: u32 = 1_000_000;

/// A compiled constant; `None` where the pattern is null.
#[derive(Clone)]
pub(super) struct Pattern(Option<Regex>);

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(regex) => write!(f, "/{}/", regex.as_str()),
            None => f.write_str("null"),
        }
    }
}

/// Arguments become `[input, pattern]` if the pattern is constant, else
/// `[input, regex, options]`.
pub(super) fn parse(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let arguments = parser.named(
        operator.name,
        argument,
        51103,
        31024,
        &[
            ("input", Some(31022)),
            ("regex", Some(31023)),
            ("options", None),
        ],
    )?;
    let [input, regex, options] =
        <[Node; 3]>::try_from(arguments.into_vec()).expect("there are as many arguments as names");
    let arguments: Box<[Node]> = match (&regex, &options) {
        (Node::Constant(regex), Node::Absent) => {
            let compiled = compile(Some(regex.as_ref()), None, operator.name)?;
            Box::new([input, Node::Pattern(Box::new(Pattern(compiled)))])
        }
        (Node::Constant(regex), Node::Constant(options)) => {
            let compiled = compile(Some(regex.as_ref()), Some(options.as_ref()), operator.name)?;
            Box::new([input, Node::Pattern(Box::new(Pattern(compiled)))])
        }
        _ => Box::new([input, regex, options]),
    };
    Ok(Node::Call {
        operator,
        arguments,
    })
}

/// `None` if the pattern is null or missing.
fn compile(
    regex: Option<ValueRef<'_>>,
    options: Option<ValueRef<'_>>,
    operator: &str,
) -> Result<Option<Regex>, Error> {
    let (pattern, own_options) = match regex {
        None | Some(ValueRef::Null | ValueRef::Undefined) => (None, ""),
        Some(ValueRef::String(pattern)) => (Some(pattern), ""),
        Some(ValueRef::Regex { pattern, options }) => (Some(pattern), options),
        Some(_) => {
            return Err(Error::location(
                51105,
                format!("{operator} needs 'regex' to be of type string or regex"),
            ));
        }
    };
    let options = match options {
        None | Some(ValueRef::Null | ValueRef::Undefined) => own_options,
        Some(ValueRef::String(options)) => {
            if !own_options.is_empty() {
                return Err(Error::location(
                    51107,
                    format!(
                        "{operator}: found regex option(s) specified in both 'regex' and 'option' fields"
                    ),
                ));
            }
            options
        }
        Some(_) => {
            return Err(Error::location(
                51106,
                format!("{operator} needs 'options' to be of type string"),
            ));
        }
    };
    if pattern.is_some_and(|pattern| pattern.contains('\0')) {
        return Err(Error::location(
            51109,
            format!("{operator}: regular expression cannot contain an embedded null byte"),
        ));
    }
    if options.contains('\0') {
        return Err(Error::location(
            51110,
            format!("{operator}: regular expression options cannot contain an embedded null byte"),
        ));
    }
    let flags = Options::parse(options)?;
    let Some(pattern) = pattern else {
        return Ok(None);
    };
    RegexBuilder::new()
        .utf(true)
        .caseless(flags.case_insensitive)
        .multi_line(flags.multi_line)
        .dotall(flags.dot_matches_newline)
        .extended(flags.extended)
        .jit_if_available(true)
        .build(&format!("(*LIMIT_MATCH={MATCH_LIMIT}){pattern}"))
        .map(Some)
        .map_err(|error| Error::location(51111, format!("Invalid Regex in {operator}: {error}")))
}

fn check_input(input: &Evaluated<'_>, operator: &str) -> Result<(), Error> {
    match input.as_value() {
        None | Some(ValueRef::String(_) | ValueRef::Null | ValueRef::Undefined) => Ok(()),
        Some(_) => Err(Error::location(
            51104,
            format!("{operator} needs 'input' to be of type string"),
        )),
    }
}

/// Runs `search` on the input text; `None` if the input or the pattern is null.
fn with_match<'a, T>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    search: impl FnOnce(&Regex, &str, &mut Frame<'a>) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let input = arguments[0].evaluate(frame)?;
    let computed;
    let regex = match &arguments[1] {
        Node::Pattern(pattern) => pattern.0.as_ref(),
        node => {
            let regex = node.evaluate(frame)?;
            let options = match arguments.get(2) {
                Some(node) => node.evaluate(frame)?,
                None => Evaluated::Missing,
            };
            check_input(&input, operator)?;
            computed = compile(regex.as_value(), options.as_value(), operator)?;
            computed.as_ref()
        }
    };
    let text = match input.as_value() {
        Some(ValueRef::String(text)) => text,
        _ => {
            check_input(&input, operator)?;
            return Ok(None);
        }
    };
    regex.map(|regex| search(regex, text, frame)).transpose()
}

fn failed(operator: &str, error: &pcre2::Error) -> Error {
    Error::location(
        51156,
        format!("Error occurred while executing the regular expression in {operator}: {error}"),
    )
}

pub(super) fn is_match<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let found = with_match(arguments, frame, "$regexMatch", |regex, text, _| {
        regex
            .is_match(text.as_bytes())
            .map_err(|error| failed("$regexMatch", &error))
    })?;
    Ok(found.unwrap_or(false).into())
}

pub(super) fn find<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let found = with_match(arguments, frame, "$regexFind", |regex, text, _| {
        let mut captures = regex.capture_locations();
        let found = regex
            .captures_read_at(&mut captures, text.as_bytes(), 0)
            .map_err(|error| failed("$regexFind", &error))?;
        Ok(found.map(|found| {
            let before = text.get(..found.start()).unwrap_or_default();
            describe(&captures, text, before.chars().count())
        }))
    })?;
    Ok(match found.flatten() {
        Some(found) => Evaluated::Owned(Value::Document(found)),
        None => Evaluated::null(),
    })
}

pub(super) fn find_all<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let found = with_match(arguments, frame, "$regexFindAll", |regex, text, frame| {
        let mut output = ArrayWriter::new();
        let mut captures = regex.capture_locations();
        let mut start = 0;
        // Where the last match began, in bytes and in code points.
        let (mut counted, mut index) = (0, 0);
        loop {
            frame.step()?;
            let found = regex
                .captures_read_at(&mut captures, text.as_bytes(), start)
                .map_err(|error| failed("$regexFindAll", &error))?;
            let Some(found) = found else {
                break;
            };
            let between = text.get(counted..found.start()).unwrap_or_default();
            (counted, index) = (found.start(), index + between.chars().count());
            output.push(&describe(&captures, text, index));
            check_computed(output.bytes())?;
            start = found.end();
            if found.start() == found.end() {
                start += text[start..].chars().next().map_or(1, char::len_utf8);
            }
            // An empty match at the very end counts only in an empty text.
            if start >= text.len() {
                break;
            }
        }
        Ok(output.finish())
    })?;
    Ok(found.unwrap_or_else(ArrayBuf::new).into())
}

/// `{match, idx, captures}`, where the match begins at code point `index`.
fn describe(captures: &CaptureLocations, text: &str, index: usize) -> DocBuf {
    let span = |at: usize| {
        captures
            .get(at)
            .and_then(|(start, end)| text.get(start..end))
    };
    let mut writer = DocWriter::new();
    writer.append("match", span(0).unwrap_or_default());
    writer.append("idx", index as i32);
    writer.begin_array("captures");
    for at in 1..captures.len() {
        writer.push(span(at).map_or(ValueRef::Null, ValueRef::String));
    }
    writer.end();
    writer.finish()
}
