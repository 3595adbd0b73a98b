//! Whole numbers as arguments of operators, with MongoDB's complaints.

use model::bson::ValueRef;
use model::number::Number;

/// A value as it appears in a message.
pub(super) fn describe(value: ValueRef<'_>) -> String {
    format!("{value:?}")
}

/// A whole number that fits 64 bits, or why it is none.
pub(super) fn integer(name: &str, value: ValueRef<'_>) -> Result<i64, String> {
    let shown = || format!("{name}: {}", describe(value));
    let Some(number) = Number::of(value) else {
        return Err(format!("Expected a number in: {}", shown()));
    };
    if let Some(whole) = number.to_i64_exact() {
        return Ok(whole);
    }
    if number.is_nan() {
        return Err(format!(
            "Expected an integer, but found NaN in: {}",
            shown()
        ));
    }
    match number.to_i64_truncated() {
        Some(_) if matches!(value, ValueRef::Double(_)) => {
            Err(format!("Expected an integer: {}", shown()))
        }
        _ => Err(format!("Cannot represent as a 64-bit integer: {}", shown())),
    }
}

pub(super) fn non_negative_integer(name: &str, value: ValueRef<'_>) -> Result<i64, String> {
    match integer(name, value)? {
        negative if negative < 0 => Err(format!(
            "Expected a non-negative number in: {name}: {}",
            describe(value)
        )),
        whole => Ok(whole),
    }
}

/// Also at most 2^31 - 1.
pub(super) fn non_negative_int32(name: &str, value: ValueRef<'_>) -> Result<i32, String> {
    let whole = non_negative_integer(name, value)?;
    i32::try_from(whole)
        .map_err(|_| format!("Cannot represent {name}: {} in an int", describe(value)))
}

/// The whole part of a number, or why there is none.
pub(super) fn truncated(value: Number) -> Result<i64, &'static str> {
    if let Some(whole) = value.to_i64_truncated() {
        return Ok(whole);
    }
    if value.to_f64().is_finite() {
        Err("Out of bounds coercing to integral value")
    } else {
        Err("Unable to coerce NaN/Inf to integral type")
    }
}
