//! `$dateToString`, and dates as text elsewhere.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::Civil;
use super::expect_date;
use super::zone::{TimeZone, zone_argument};
use model::Error;
use model::bson::ValueRef;
use std::fmt::Write;

const ISO: &str = "%Y-%m-%dT%H:%M:%S.%LZ";

/// A date as ISO 8601 in UTC.
pub(in super::super) fn iso_text(utc_ms: i64) -> Result<String, Error> {
    format(ISO, utc_ms, &TimeZone::Utc)
}

/// `Jan  1 00:01:40`, in UTC.
pub(in super::super) fn c_time(seconds: i64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let civil = Civil::of(seconds.saturating_mul(1000));
    format!(
        "{} {:>2} {:02}:{:02}:{:02}",
        MONTHS[(civil.month - 1) as usize],
        civil.day,
        civil.hour,
        civil.minute,
        civil.second
    )
}

pub(in super::super) fn date_to_string<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let date = arguments[0].evaluate(frame)?;
    let given = arguments[1].evaluate(frame)?;
    let pattern = match (&arguments[1], given.as_value()) {
        (Node::Absent, _) => Some(ISO),
        (_, None | Some(ValueRef::Null | ValueRef::Undefined)) => None,
        (_, Some(ValueRef::String(pattern))) => {
            check(pattern, b"dGHjLmMSwuUVYzZ%")?;
            Some(pattern)
        }
        (_, Some(other)) => {
            return Err(Error::location(
                18533,
                format!(
                    "$dateToString requires that 'format' be a string, found: {}",
                    other.kind().name()
                ),
            ));
        }
    };
    let zone = zone_argument(&arguments[2], frame)?;
    if date.is_nullish() {
        return if arguments[3].is_absent() {
            Ok(Evaluated::null())
        } else {
            arguments[3].evaluate(frame)
        };
    }
    let (Some(zone), Some(pattern)) = (zone, pattern) else {
        return Ok(Evaluated::null());
    };
    Ok(format(pattern, expect_date(&date)?, &zone)?.into())
}

/// Every `%` is followed by one of `allowed`.
pub(super) fn check(pattern: &str, allowed: &[u8]) -> Result<(), Error> {
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            continue;
        }
        match rest.next() {
            None => {
                return Err(Error::location(
                    18535,
                    "Unmatched '%' at end of format string",
                ));
            }
            Some(c) if c.is_ascii() && allowed.contains(&(c as u8)) => {}
            Some(c) => {
                return Err(Error::location(
                    18536,
                    format!("Invalid format character '%{c}' in format string"),
                ));
            }
        }
    }
    Ok(())
}

fn format(pattern: &str, utc_ms: i64, zone: &TimeZone) -> Result<String, Error> {
    let civil = zone.civil(utc_ms);
    let mut text = String::with_capacity(pattern.len() + 12);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let written = match rest.next() {
            Some('Y') => write!(text, "{:04}", year(civil.year)?),
            Some('m') => write!(text, "{:02}", civil.month),
            Some('d') => write!(text, "{:02}", civil.day),
            Some('H') => write!(text, "{:02}", civil.hour),
            Some('M') => write!(text, "{:02}", civil.minute),
            Some('S') => write!(text, "{:02}", civil.second),
            Some('L') => write!(text, "{:03}", civil.millisecond),
            Some('j') => write!(text, "{:03}", civil.day_of_year()),
            Some('w') => write!(text, "{}", civil.weekday() + 1),
            Some('U') => write!(text, "{:02}", civil.week()),
            Some('G') => write!(text, "{:04}", year(civil.iso_week().1)?),
            Some('V') => write!(text, "{:02}", civil.iso_week().0),
            Some('u') => write!(text, "{}", civil.iso_weekday()),
            Some('z') => write!(text, "{}", zone.offset_text(utc_ms)),
            Some('Z') => write!(text, "{}", zone.offset_ms(utc_ms) / 60_000),
            Some('%') => {
                text.push('%');
                Ok(())
            }
            Some(_) | None => Ok(()),
        };
        written.expect("writing to a string cannot fail");
    }
    Ok(text)
}

fn year(year: i64) -> Result<i64, Error> {
    if (0..=9999).contains(&year) {
        return Ok(year);
    }
    Err(Error::location(
        18537,
        format!(
            "Could not convert date to string: date component was outside the supported range of 0-9999: {year}"
        ),
    ))
}
