//! Lengths: `$strLenBytes`, `$strLenCP`, `$binarySize`, `$bsonSize`; and the
//! two halves of a timestamp.

use super::node::{Evaluated, Frame, Node};
use model::bson::{MAX_DOCUMENT_BYTES, Timestamp, ValueRef};
use model::{Code, Error};

/// The most bytes that one computed value may take.
const MAX_COMPUTED_BYTES: usize = 64 * 1024 * 1024;

/// Stops an expression that would fill the memory, such as one that doubles a
/// string again and again.
pub(super) fn check_computed(bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_COMPUTED_BYTES {
        return Ok(());
    }
    Err(Error::location(
        13548,
        format!("a computed value grew to {bytes} bytes, past the 64MB limit"),
    ))
}

/// Refuses a computed string that no document could hold.
pub(super) fn check_text(bytes: usize) -> Result<(), Error> {
    if bytes < MAX_DOCUMENT_BYTES {
        return Ok(());
    }
    Err(Error::location(
        16493,
        "Tried to create string longer than 16MB",
    ))
}

fn text_length<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    code: i32,
    length: fn(&str) -> usize,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    match value.as_value() {
        Some(ValueRef::String(text)) => Ok((length(text) as i32).into()),
        _ => Err(Error::location(
            code,
            format!(
                "{operator} requires a string argument, found: {}",
                value.type_name()
            ),
        )),
    }
}

pub(super) fn length_bytes<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    text_length(arguments, frame, "$strLenBytes", 34473, str::len)
}

pub(super) fn length_code_points<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    text_length(arguments, frame, "$strLenCP", 34471, |text| {
        text.chars().count()
    })
}

pub(super) fn binary_size<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(Evaluated::null()),
        Some(ValueRef::String(text)) => Ok((text.len() as i32).into()),
        Some(ValueRef::Binary { bytes, .. }) => Ok((bytes.len() as i32).into()),
        Some(other) => Err(Error::location(
            51276,
            format!(
                "$binarySize requires a string or BinData argument, found: {}",
                other.kind().name()
            ),
        )),
    }
}

pub(super) fn bson_size<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(Evaluated::null()),
        Some(ValueRef::Document(doc)) if doc.len() > MAX_DOCUMENT_BYTES + 16 * 1024 => {
            Err(Error::new(
                Code::BSON_OBJECT_TOO_LARGE,
                format!("BSONObj size: {} is invalid", doc.len()),
            ))
        }
        Some(ValueRef::Document(doc)) => Ok((doc.len() as i32).into()),
        Some(other) => Err(Error::location(
            31393,
            format!(
                "$bsonSize requires a document input, found: {}",
                other.kind().name()
            ),
        )),
    }
}

fn timestamp_part<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    code: i32,
    part: fn(Timestamp) -> u32,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(Evaluated::null()),
        Some(ValueRef::Timestamp(time)) => Ok(i64::from(part(time)).into()),
        Some(other) => Err(Error::location(
            code,
            format!(
                " Argument to {operator} must be a timestamp, but is {}",
                other.kind().name()
            ),
        )),
    }
}

pub(super) fn timestamp_second<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    timestamp_part(arguments, frame, "$tsSecond", 5687301, |time| time.seconds)
}

pub(super) fn timestamp_increment<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    timestamp_part(arguments, frame, "$tsIncrement", 5687302, |time| {
        time.increment
    })
}
