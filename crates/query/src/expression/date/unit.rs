//! The units of date arithmetic.

use super::super::node::{Evaluated, Frame, Node};
use model::bson::ValueRef;
use model::{Code, Error};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
}

impl Unit {
    fn parse(name: &str) -> Option<Unit> {
        Some(match name {
            "year" => Unit::Year,
            "quarter" => Unit::Quarter,
            "month" => Unit::Month,
            "week" => Unit::Week,
            "day" => Unit::Day,
            "hour" => Unit::Hour,
            "minute" => Unit::Minute,
            "second" => Unit::Second,
            "millisecond" => Unit::Millisecond,
            _ => return None,
        })
    }

    /// Units whose length never changes, in milliseconds.
    pub(super) fn fixed_ms(self) -> Option<i64> {
        match self {
            Unit::Hour => Some(3_600_000),
            Unit::Minute => Some(60_000),
            Unit::Second => Some(1000),
            Unit::Millisecond => Some(1),
            Unit::Year | Unit::Quarter | Unit::Month | Unit::Week | Unit::Day => None,
        }
    }

    pub(super) fn months(self) -> Option<i64> {
        match self {
            Unit::Year => Some(12),
            Unit::Quarter => Some(3),
            Unit::Month => Some(1),
            Unit::Week
            | Unit::Day
            | Unit::Hour
            | Unit::Minute
            | Unit::Second
            | Unit::Millisecond => None,
        }
    }
}

/// `None` stands for a null unit.
pub(super) fn unit_value(
    value: &Evaluated<'_>,
    operator: &str,
    code: i32,
) -> Result<Option<Unit>, Error> {
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(None),
        Some(ValueRef::String(name)) => Unit::parse(name).map(Some).ok_or_else(|| {
            Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "{operator} parameter 'unit' value cannot be recognized as a time unit: {name}"
                ),
            )
        }),
        Some(other) => Err(Error::location(
            code,
            format!(
                "{operator} requires 'unit' to be a string, but got {}",
                other.kind().name()
            ),
        )),
    }
}

/// The weekday weeks begin with, 1 for Monday; Sunday unless given. `None`
/// stands for null.
pub(super) fn start_of_week<'a>(
    node: &'a Node,
    frame: &mut Frame<'a>,
    operator: &str,
) -> Result<Option<i64>, Error> {
    if node.is_absent() {
        return Ok(Some(7));
    }
    let value = node.evaluate(frame)?;
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(None),
        Some(ValueRef::String(name)) => {
            let lower = name.to_ascii_lowercase();
            let day = match lower.as_str() {
                "monday" | "mon" => 1,
                "tuesday" | "tue" => 2,
                "wednesday" | "wed" => 3,
                "thursday" | "thu" => 4,
                "friday" | "fri" => 5,
                "saturday" | "sat" => 6,
                "sunday" | "sun" => 7,
                _ => {
                    return Err(Error::location(
                        5439016,
                        format!(
                            "{operator} parameter 'startOfWeek' value cannot be recognized as a day of a week: {name}"
                        ),
                    ));
                }
            };
            Ok(Some(day))
        }
        Some(other) => Err(Error::location(
            5439015,
            format!(
                "{operator} requires 'startOfWeek' to be a string, but got {}",
                other.kind().name()
            ),
        )),
    }
}
