//! `$dateAdd`, `$dateSubtract`.
//!
//! Days and longer units are added on the calendar of the zone, so that a day
//! is a day across a change of the clock; shorter ones are plain durations. A
//! month that is too short takes its last day.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::{Civil, DAY_MS, day_number, days_in_month};
use super::millis;
use super::unit::{Unit, unit_value};
use super::zone::{TimeZone, zone_argument};
use model::bson::Value;
use model::number::Number;
use model::{Code, Error};

pub(in super::super) fn date_add<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    change(arguments, frame, "$dateAdd", Some)
}

pub(in super::super) fn date_subtract<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    change(arguments, frame, "$dateSubtract", i64::checked_neg)
}

fn change<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    operator: &str,
    signed: fn(i64) -> Option<i64>,
) -> Result<Evaluated<'a>, Error> {
    let start = arguments[0].evaluate(frame)?;
    let unit = arguments[1].evaluate(frame)?;
    let amount = arguments[2].evaluate(frame)?;
    if start.is_nullish() || unit.is_nullish() || amount.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(zone) = zone_argument(&arguments[3], frame)? else {
        return Ok(Evaluated::null());
    };
    let Some(start_ms) = millis(&start) else {
        return Err(Error::location(
            5166403,
            format!("{operator} requires startDate to be convertible to a date"),
        ));
    };
    let unknown = |_| Error::new(Code::FAILED_TO_PARSE, "unknown time unit value");
    let unit = match unit.as_value() {
        Some(model::bson::ValueRef::String(_)) => {
            unit_value(&unit, operator, 5166404).map_err(unknown)?
        }
        _ => unit_value(&unit, operator, 5166404)?,
    };
    let Some(unit) = unit else {
        return Ok(Evaluated::null());
    };
    let whole = amount
        .as_value()
        .and_then(Number::of)
        .and_then(Number::to_i64_exact);
    let Some(whole) = whole else {
        return Err(Error::location(
            5166405,
            format!("{operator} expects integer amount of time units"),
        ));
    };
    let invalid = || {
        Error::location(
            5976500,
            format!("invalid {operator} 'amount' parameter value: {whole} {unit:?}"),
        )
    };
    let amount = signed(whole).ok_or_else(|| {
        Error::location(
            6045000,
            format!("invalid {operator} 'amount' parameter value: {whole}"),
        )
    })?;
    let mut result = add(start_ms, unit, amount, &zone, invalid)?;
    // The real server loses a second here, and so must we: for dates before
    // 1970 that are not on a full second, in every unit but milliseconds.
    if start_ms < 0 && start_ms % 1000 != 0 && unit != Unit::Millisecond {
        result = result.saturating_sub(1000);
    }
    Ok(Evaluated::Owned(Value::DateTime(result)))
}

fn overflow() -> Error {
    Error::new(Code::DURATION_OVERFLOW, "Overflow while adding to a date")
}

fn add(
    start_ms: i64,
    unit: Unit,
    amount: i64,
    zone: &TimeZone,
    invalid: impl Fn() -> Error,
) -> Result<i64, Error> {
    if let Some(length) = unit.fixed_ms() {
        let duration = amount.checked_mul(length).ok_or_else(&invalid)?;
        return start_ms.checked_add(duration).ok_or_else(overflow);
    }
    let local = zone.local_ms(start_ms);
    let civil = Civil::of(local);
    let day = match unit.months() {
        Some(months) => {
            // More than this many months leave the 64-bit milliseconds.
            const MOST: i64 = 600_000_000 * 12;
            let months = amount
                .checked_mul(months)
                .filter(|months| months.abs() <= MOST)
                .ok_or_else(&invalid)?;
            let month = civil.month - 1 + months;
            let (year, month) = (civil.year + month.div_euclid(12), month.rem_euclid(12) + 1);
            day_number(year, month, civil.day.min(days_in_month(year, month)))
        }
        None => {
            let days = if unit == Unit::Week { 7 } else { 1 };
            let days = amount
                .checked_mul(days)
                .filter(|days| days.checked_mul(DAY_MS).is_some())
                .ok_or_else(&invalid)?;
            civil.day_number() + days
        }
    };
    let local = day
        .checked_mul(DAY_MS)
        .and_then(|local| local.checked_add(civil.in_day_ms()))
        .ok_or_else(overflow)?;
    Ok(zone.utc_ms(local))
}
