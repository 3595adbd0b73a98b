//! `$dateDiff`: how many boundaries of a unit lie between two moments.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::DAY_MS;
use super::millis;
use super::unit::{Unit, start_of_week, unit_value};
use super::zone::{TimeZone, zone_argument};
use model::{Code, Error};

pub(in super::super) fn date_diff<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let start = arguments[0].evaluate(frame)?;
    let end = arguments[1].evaluate(frame)?;
    let unit = arguments[2].evaluate(frame)?;
    if start.is_nullish() || end.is_nullish() || unit.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(zone) = zone_argument(&arguments[3], frame)? else {
        return Ok(Evaluated::null());
    };
    let start = moment(&start, "startDate")?;
    let end = moment(&end, "endDate")?;
    let unit = named_unit(&unit, "$dateDiff")?;
    let first_weekday = if unit == Unit::Week {
        match start_of_week(&arguments[4], frame, "$dateDiff")? {
            Some(day) => day,
            None => return Ok(Evaluated::null()),
        }
    } else {
        7
    };
    let boundaries = boundary(end, unit, &zone, first_weekday)
        .checked_sub(boundary(start, unit, &zone, first_weekday))
        .ok_or_else(|| Error::new(Code::DURATION_OVERFLOW, "Overflow in $dateDiff"))?;
    // Hours are counted as they pass: a change of the clock is not one of them.
    let jumped = match unit {
        Unit::Hour => (zone.offset_ms(end) - zone.offset_ms(start)) / 3_600_000,
        Unit::Year
        | Unit::Quarter
        | Unit::Month
        | Unit::Week
        | Unit::Day
        | Unit::Minute
        | Unit::Second
        | Unit::Millisecond => 0,
    };
    Ok((boundaries - jumped).into())
}

/// A unit where a wrong name has a code of its own.
pub(super) fn named_unit(value: &Evaluated<'_>, operator: &str) -> Result<Unit, Error> {
    match unit_value(value, operator, 5439013) {
        Ok(Some(unit)) => Ok(unit),
        Err(error) if error.code == Code::FAILED_TO_PARSE => {
            Err(Error::location(5439014, error.message))
        }
        Err(error) => Err(error),
        Ok(None) => Err(Error::location(
            5439013,
            format!("{operator} requires 'unit'"),
        )),
    }
}

fn moment(value: &Evaluated<'_>, name: &str) -> Result<i64, Error> {
    millis(value).ok_or_else(|| {
        Error::location(
            5166307,
            format!(
                "$dateDiff requires '{name}' to be a date, but got {}",
                value.type_name()
            ),
        )
    })
}

/// The number of the unit that a moment is in.
fn boundary(utc_ms: i64, unit: Unit, zone: &TimeZone, first_weekday: i64) -> i64 {
    let civil = || zone.civil(utc_ms);
    match unit {
        Unit::Year => civil().year,
        Unit::Quarter => civil().year * 4 + (civil().month - 1) / 3,
        Unit::Month => civil().year * 12 + civil().month,
        // Day 0 was a Thursday, weekday 4.
        Unit::Week => (zone.local_ms(utc_ms).div_euclid(DAY_MS) + 4 - first_weekday).div_euclid(7),
        Unit::Day => zone.local_ms(utc_ms).div_euclid(DAY_MS),
        Unit::Hour => zone.local_ms(utc_ms).div_euclid(3_600_000),
        Unit::Minute => utc_ms.div_euclid(60_000),
        Unit::Second => utc_ms.div_euclid(1000),
        Unit::Millisecond => utc_ms,
    }
}
