//! Dates: their parts, arithmetic, text.
//!
//! A date is milliseconds since 1970 in UTC, any 64-bit number of them. The
//! calendar is computed here over that whole range; only a named zone's offsets
//! come from the time zone database, which knows the years up to 9999.

mod arithmetic;
mod calendar;
mod difference;
mod distance;
mod format;
mod from_parts;
mod parts;
mod pieces;
mod spelling;
mod text;
mod truncate;
mod unit;
mod zone;
mod zone_names;

pub(super) use arithmetic::{date_add, date_subtract};
pub(super) use difference::date_diff;
pub(super) use format::{c_time, date_to_string, iso_text};
pub(super) use from_parts::{date_from_parts, parse_from_parts};
pub(super) use parts::{
    date_to_parts, day_of_month, day_of_week, day_of_year, hour, iso_day_of_week, iso_week,
    iso_week_year, millisecond, minute, month, parse_part, second, week, year,
};
pub(super) use text::{date_from_string, parse_text};
pub(super) use truncate::date_trunc;

use super::node::Evaluated;
use model::Error;
use model::bson::ValueRef;

/// What counts as a date: a date, or what begins with one.
fn millis(value: &Evaluated<'_>) -> Option<i64> {
    match value.as_value()? {
        ValueRef::DateTime(millis) => Some(millis),
        ValueRef::Timestamp(time) => Some(i64::from(time.seconds) * 1000),
        ValueRef::ObjectId(id) => Some(super::convert::object_id_millis(id)),
        _ => None,
    }
}

fn expect_date(value: &Evaluated<'_>) -> Result<i64, Error> {
    millis(value).ok_or_else(|| {
        Error::location(
            16006,
            format!("can't convert from BSON type {} to Date", value.type_name()),
        )
    })
}
