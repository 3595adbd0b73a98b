//! Fields of the documents that replica sets are described with, and MongoDB's words for what is
//! wrong with them.

use model::bson::ValueRef;
use model::number::Number;
use model::{Code, Error};

pub(super) fn missing(name: &str) -> Error {
    Error::new(
        Code::NO_SUCH_KEY,
        format!("Missing expected field \"{name}\""),
    )
}

pub(super) fn wrong_type(name: &str, expected: &str, found: ValueRef<'_>) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "\"{name}\" had the wrong type. Expected {expected}, found {}",
            found.kind().name()
        ),
    )
}

pub(super) fn number(name: &str, value: ValueRef<'_>) -> Result<f64, Error> {
    Number::of(value)
        .map(Number::to_f64)
        .ok_or_else(|| wrong_type(name, "number", value))
}

pub(super) fn integer(name: &str, value: ValueRef<'_>) -> Result<i64, Error> {
    Number::of(value)
        .and_then(|number| number.to_i64_truncated())
        .ok_or_else(|| wrong_type(name, "number", value))
}

pub(super) fn int32(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    i32::try_from(integer(name, value)?)
        .map_err(|_| Error::bad_value(format!("{name} field value is out of range")))
}

pub(super) fn boolean(name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
    match value {
        ValueRef::Boolean(truth) => Ok(truth),
        other => match Number::of(other) {
            Some(number) => Ok(number.to_f64() != 0.0),
            None => Err(wrong_type(name, "bool", other)),
        },
    }
}
