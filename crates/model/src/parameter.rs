//! Values of server parameters, as `setParameter` and the command line take them, with MongoDB's words for those that
//! it refuses.

use crate::bson::ValueRef;
use crate::error::Error;
use crate::number::Number;

/// A value as somebody typed it.
pub fn typed(text: &str) -> ValueRef<'_> {
    match (text, text.parse()) {
        ("true", _) => ValueRef::Boolean(true),
        ("false", _) => ValueRef::Boolean(false),
        (_, Ok(number)) => ValueRef::Int64(number),
        (text, Err(_)) => ValueRef::String(text),
    }
}

/// Whole numbers; fractions are cut off.
pub fn integer(name: &str, value: ValueRef<'_>) -> Result<i64, Error> {
    let number = Number::of(value).ok_or_else(|| {
        Error::bad_value(format!(
            "Failed validating {name}: Unable to coerce value to integral type"
        ))
    })?;
    number.to_i64_truncated().ok_or_else(|| out_of_bounds(name))
}

pub fn integer32(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    i32::try_from(integer(name, value)?).map_err(|_| out_of_bounds(name))
}

pub fn not_negative<N: Copy + Into<i64>>(name: &str, number: N) -> Result<N, Error> {
    check(name, number, 0, "greater than or equal to 0")
}

pub fn positive<N: Copy + Into<i64>>(name: &str, number: N) -> Result<N, Error> {
    check(name, number, 1, "greater than 0")
}

/// `logLevel`, which takes any number and cuts it to what there is.
pub fn log_level(value: ValueRef<'_>) -> Result<i32, Error> {
    let level = Number::of(value).ok_or_else(|| {
        let shown = crate::text::value_quoted(value);
        Error::bad_value(format!("Invalid value for logLevel: logLevel: {shown}"))
    })?;
    Ok((level.to_f64() as i32).clamp(0, 5))
}

fn out_of_bounds(name: &str) -> Error {
    Error::bad_value(format!(
        "Failed validating {name}: Out of bounds coercing to integral value"
    ))
}

fn check<N: Copy + Into<i64>>(name: &str, number: N, least: i64, rule: &str) -> Result<N, Error> {
    let given = number.into();
    match given >= least {
        true => Ok(number),
        false => Err(Error::bad_value(format!(
            "Invalid value for parameter {name}: {given} is not {rule}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_coerced_and_checked() {
        assert_eq!(typed("true"), ValueRef::Boolean(true));
        assert_eq!(typed("-7"), ValueRef::Int64(-7));
        assert_eq!(typed("seven"), ValueRef::String("seven"));
        assert_eq!(integer("p", ValueRef::Double(7.9)).ok(), Some(7));
        let refused = |error: Option<Error>, words: &str| {
            let error = error.expect("is refused");
            assert!(error.message.contains(words), "{error:?}");
        };
        refused(integer("p", typed("seven")).err(), "coerce value");
        refused(
            integer32("p", ValueRef::Int64(1 << 40)).err(),
            "Out of bounds",
        );
        refused(integer("p", ValueRef::Double(1e300)).err(), "Out of bounds");
        assert_eq!(not_negative("p", 0).ok(), Some(0));
        refused(
            not_negative("p", -1).err(),
            "-1 is not greater than or equal to 0",
        );
        assert_eq!(positive("p", 1i64).ok(), Some(1));
        refused(positive("p", 0i64).err(), "0 is not greater than 0");
        assert_eq!(log_level(ValueRef::Int32(9)).ok(), Some(5));
        refused(log_level(typed("loud")).err(), "logLevel");
    }
}
