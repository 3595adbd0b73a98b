//! `$dateFromString`, and dates read from text elsewhere.
//!
//! Without a format the usual spellings are read: see `spelling.rs`.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::{DAY_MS, day_number, days_in_month, iso_day_number};
use super::format::check;
use super::spelling::{Found, read};
use super::zone::{TimeZone, parse_offset, zone_argument};
use super::zone_names::zone_offset_s;
use model::bson::{Value, ValueRef};
use model::{Code, Error};

pub(in super::super) fn date_from_string<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let text = arguments[0].evaluate(frame)?;
    let given = arguments[1].evaluate(frame)?;
    let mut null_format = false;
    let pattern = match (&arguments[1], given.as_value()) {
        (Node::Absent, _) => None,
        (_, None | Some(ValueRef::Null | ValueRef::Undefined)) => {
            null_format = true;
            None
        }
        (_, Some(ValueRef::String(pattern))) => {
            check(pattern, b"dGHLmMSuVYzZ%")?;
            Some(pattern)
        }
        (_, Some(other)) => {
            return Err(Error::location(
                40684,
                format!(
                    "$dateFromString requires that 'format' be a string, found: {}",
                    other.kind().name()
                ),
            ));
        }
    };
    let zone = zone_argument(&arguments[2], frame)?;
    if text.is_nullish() {
        return if arguments[4].is_absent() {
            Ok(Evaluated::null())
        } else {
            arguments[4].evaluate(frame)
        };
    }
    let (Some(zone), false) = (zone, null_format) else {
        return Ok(Evaluated::null());
    };
    let zone = if arguments[2].is_absent() {
        None
    } else {
        Some(zone)
    };
    let parsed = match (text.as_value(), pattern) {
        (Some(ValueRef::String(text)), None) => read(text).and_then(|found| found.finish(zone)),
        (Some(ValueRef::String(text)), Some(pattern)) => {
            read_formatted(text, pattern).and_then(|found| found.finish(zone))
        }
        _ => Err(format!(
            "$dateFromString requires that 'dateString' be a string, found: {}",
            text.type_name()
        )),
    };
    match parsed {
        Ok(millis) => Ok(Evaluated::Owned(Value::DateTime(millis))),
        Err(why) if arguments[3].is_absent() => Err(Error::new(Code::CONVERSION_FAILURE, why)),
        Err(_) => arguments[3].evaluate(frame),
    }
}

/// Reads a date in any of the usual spellings.
pub(in super::super) fn parse_text(text: &str) -> Result<i64, String> {
    read(text)?.finish(None)
}

impl Found {
    fn finish(self, zone: Option<TimeZone>) -> Result<i64, String> {
        match (self.offset_ms, zone) {
            (Some(_), Some(_)) => Err(
                "you cannot pass in a date/time string with time zone information together with a timezone argument"
                    .to_owned(),
            ),
            (Some(offset), None) => Ok(self.local_ms - offset),
            (None, Some(zone)) => Ok(zone.utc_ms(self.local_ms)),
            (None, None) => Ok(self.local_ms),
        }
    }
}

/// A place in the text.
#[derive(Clone, Copy)]
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Up to `most` digits, at least `least`.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits = self.digits();
        let length = digits.min(most);
        if length < least {
            return None;
        }
        let (number, rest) = self.rest.split_at(length);
        self.rest = rest;
        number.parse().ok()
    }

    fn digits(&self) -> usize {
        self.rest.bytes().take_while(u8::is_ascii_digit).count()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }
}

fn checked_day(year: i64, month: i64, day: i64) -> Option<i64> {
    let valid = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    valid.then(|| day_number(year, month, day))
}

/// `Some(None)` if there is no zone, `None` if it is not understood.
fn read_offset(reader: &mut Reader<'_>) -> Option<Option<i64>> {
    if reader.rest.is_empty() {
        return Some(None);
    }
    if let Some(offset) = zone_offset_s(reader.rest) {
        reader.rest = "";
        return Some(Some(offset * 1000));
    }
    let text = reader.rest.strip_prefix("GMT").unwrap_or(reader.rest);
    let offset = parse_offset(text)?;
    reader.rest = "";
    Some(Some(offset))
}

/// Reads by a checked format.
fn read_formatted(text: &str, pattern: &str) -> Result<Found, String> {
    let failed = || format!("Error parsing date string '{text}'");
    let mut reader = Reader { rest: text };
    let mut date = [None; 3];
    let mut iso = [None; 3];
    let mut time = [0; 4];
    let mut offset_ms = None;
    let mut format = pattern.chars();
    while let Some(c) = format.next() {
        if c != '%' {
            reader.take(c).ok_or_else(failed)?;
            continue;
        }
        match format.next() {
            Some('Y') => date[0] = Some(reader.number(4, 4).ok_or_else(failed)?),
            Some('m') => date[1] = Some(reader.number(1, 2).ok_or_else(failed)?),
            Some('d') => date[2] = Some(reader.number(1, 2).ok_or_else(failed)?),
            Some('G') => iso[0] = Some(reader.number(4, 4).ok_or_else(failed)?),
            Some('V') => iso[1] = Some(reader.number(1, 2).ok_or_else(failed)?),
            Some('u') => iso[2] = Some(reader.number(1, 1).ok_or_else(failed)?),
            Some('H') => time[0] = reader.number(1, 2).ok_or_else(failed)?,
            Some('M') => time[1] = reader.number(1, 2).ok_or_else(failed)?,
            Some('S') => time[2] = reader.number(1, 2).ok_or_else(failed)?,
            Some('L') => {
                let digits = reader.digits().min(3);
                let number = reader.number(1, 3).ok_or_else(failed)?;
                time[3] = number * [100, 10, 1][digits - 1];
            }
            Some('z') => {
                let length = reader
                    .rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | ':')))
                    .unwrap_or(reader.rest.len());
                let (zone, rest) = reader.rest.split_at(length);
                let mut zone = Reader { rest: zone };
                offset_ms = read_offset(&mut zone).ok_or_else(failed)?;
                reader.rest = rest;
            }
            Some('Z') => {
                let sign = if reader.take('-').is_some() {
                    -1
                } else {
                    reader.take('+').ok_or_else(failed)?;
                    1
                };
                let minutes = reader.number(1, 4).ok_or_else(failed)?;
                offset_ms = Some(sign * minutes * 60_000);
            }
            Some(other) => reader.take(other).ok_or_else(failed)?,
            None => {}
        }
    }
    if !reader.rest.is_empty() {
        return Err(failed());
    }
    let day = match (date, iso) {
        ([Some(year), Some(month), Some(day)], _) => {
            checked_day(year, month, day).ok_or_else(failed)?
        }
        (_, [Some(year), week, weekday]) => {
            iso_day_number(year, week.unwrap_or(1), weekday.unwrap_or(1))
        }
        _ => {
            return Err(format!(
                "an incomplete date/time string has been found, with elements missing: \"{text}\""
            ));
        }
    };
    let [hour, minute, second, millisecond] = time;
    if hour > 24 || minute > 59 || second > 59 {
        return Err(failed());
    }
    Ok(Found {
        local_ms: day * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + millisecond,
        offset_ms,
    })
}
