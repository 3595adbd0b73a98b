//! `$dateTrunc`: the beginning of the bin that a moment is in.
//!
//! Bins are counted from the beginning of the year 2000 in the zone, weeks from
//! the first chosen weekday on or after it.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::{Civil, DAY_MS, day_number};
use super::difference::named_unit;
use super::millis;
use super::unit::{Unit, start_of_week};
use super::zone::{TimeZone, zone_argument};
use model::Error;
use model::bson::Value;
use model::number::Number;

/// 2000-01-01 as a day number; it was a Saturday.
const REFERENCE_DAY: i64 = 10_957;
const REFERENCE_WEEKDAY: i64 = 6;

pub(in super::super) fn date_trunc<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let date = arguments[0].evaluate(frame)?;
    let unit = arguments[1].evaluate(frame)?;
    let bin_size = match &arguments[2] {
        Node::Absent => Evaluated::from(1i32),
        node => node.evaluate(frame)?,
    };
    if date.is_nullish() || unit.is_nullish() || bin_size.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(zone) = zone_argument(&arguments[3], frame)? else {
        return Ok(Evaluated::null());
    };
    let Some(at) = millis(&date) else {
        return Err(Error::location(
            5439012,
            format!(
                "$dateTrunc requires 'date' to be a date, but got {}",
                date.type_name()
            ),
        ));
    };
    let unit = named_unit(&unit, "$dateTrunc")?;
    let first_weekday = if unit == Unit::Week {
        match start_of_week(&arguments[4], frame, "$dateTrunc")? {
            Some(day) => day,
            None => return Ok(Evaluated::null()),
        }
    } else {
        7
    };
    let bin_size = check_bin_size(&bin_size)?;
    let truncated = truncate(at, unit, bin_size, &zone, first_weekday)
        .ok_or_else(|| Error::location(5439006, "dateTrunc unsupported binSize value"))?;
    Ok(Evaluated::Owned(Value::DateTime(truncated)))
}

fn check_bin_size(value: &Evaluated<'_>) -> Result<i64, Error> {
    let size = value
        .as_value()
        .and_then(Number::of)
        .and_then(Number::to_i64_exact);
    match size {
        None => Err(Error::location(
            5439017,
            format!(
                "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value of type {}",
                value.type_name()
            ),
        )),
        Some(size) if size <= 0 => Err(Error::location(
            5439018,
            format!("$dateTrunc requires 'binSize' to be greater than 0, but got value {size}"),
        )),
        Some(size) => Ok(size),
    }
}

/// The start of `value`'s bin.
fn floor_to(value: i64, reference: i64, size: i64) -> Option<i64> {
    let distance = value.checked_sub(reference)?;
    distance
        .div_euclid(size)
        .checked_mul(size)?
        .checked_add(reference)
}

/// `None` if the bins are too large for 64-bit milliseconds.
fn truncate(
    at: i64,
    unit: Unit,
    bin_size: i64,
    zone: &TimeZone,
    first_weekday: i64,
) -> Option<i64> {
    if let Some(length) = unit.fixed_ms() {
        let reference = zone.utc_ms(REFERENCE_DAY * DAY_MS);
        return floor_to(at, reference, bin_size.checked_mul(length)?);
    }
    let local = zone.local_ms(at);
    let day = match unit.months() {
        Some(months) => {
            let civil = Civil::of(local);
            let month = civil.year * 12 + civil.month - 1;
            let month = floor_to(month, 2000 * 12, bin_size.checked_mul(months)?)?;
            day_number(month.div_euclid(12), month.rem_euclid(12) + 1, 1)
        }
        None => {
            let (length, reference) = match unit {
                Unit::Week => {
                    let ahead = (first_weekday - REFERENCE_WEEKDAY).rem_euclid(7);
                    (7, REFERENCE_DAY + ahead)
                }
                _ => (1, REFERENCE_DAY),
            };
            let size = bin_size.checked_mul(length)?;
            size.checked_mul(DAY_MS)?;
            floor_to(local.div_euclid(DAY_MS), reference, size)?
        }
    };
    Some(zone.utc_ms(day.checked_mul(DAY_MS)?))
}
