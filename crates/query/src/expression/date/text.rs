//! `$dateFromString`, and dates read from text elsewhere.
//!
//! Without a format the usual spellings are read: ISO 8601 (dates, ordinal and
//! week dates, times, offsets), `1/31/2020`, `31.1.2020`, `31-1-2020`, month
//! names before or after the day, a leading weekday, seconds as `@1234`. Left
//! out are relative times and the rarer spellings of the real server's parser.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::{DAY_MS, day_number, days_in_month, is_leap, iso_day_number};
use super::format::check;
use super::zone::{TimeZone, parse_offset, zone_argument};
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

/// What was read: local time, and the offset if there was one.
struct Found {
    local_ms: i64,
    offset_ms: Option<i64>,
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

    /// Exactly `count` digits with no further digit behind them.
    fn exactly(&mut self, count: usize) -> Option<i64> {
        if self.digits() != count {
            return None;
        }
        self.number(count, count)
    }

    fn digits(&self) -> usize {
        self.rest.bytes().take_while(u8::is_ascii_digit).count()
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\0']);
    }

    fn word(&mut self) -> &'t str {
        let length = self
            .rest
            .bytes()
            .take_while(u8::is_ascii_alphabetic)
            .count();
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        word
    }
}

fn read(text: &str) -> Result<Found, String> {
    // A NUL byte passes for a space.
    let mut reader = Reader {
        rest: text.trim_matches(|c: char| c.is_whitespace() || c == '\0'),
    };
    let failed = || format!("Error parsing date string '{text}'");
    if reader.rest.is_empty() {
        return Err(failed());
    }
    if let Some(seconds) = reader.rest.strip_prefix('@') {
        let seconds: i64 = seconds.parse().map_err(|_| failed())?;
        return Ok(Found {
            local_ms: seconds.checked_mul(1000).ok_or_else(failed)?,
            offset_ms: Some(0),
        });
    }
    let day = read_day(&mut reader).ok_or_else(failed)?;
    let had_separator = reader.rest.starts_with(['T', 't']);
    if had_separator {
        reader.rest = &reader.rest[1..];
    } else {
        reader.spaces();
    }
    let in_day = if reader.digits() > 0 {
        read_time(&mut reader).ok_or_else(failed)?
    } else if had_separator {
        return Err(failed());
    } else {
        0
    };
    reader.spaces();
    let offset_ms = read_offset(&mut reader).ok_or_else(failed)?;
    if !reader.rest.is_empty() {
        return Err(failed());
    }
    Ok(Found {
        local_ms: day * DAY_MS + in_day,
        offset_ms,
    })
}

fn read_day(reader: &mut Reader<'_>) -> Option<i64> {
    const FORMS: &[fn(&mut Reader<'_>) -> Option<i64>] = &[
        year_first,
        iso_week,
        ordinal,
        compact,
        month_slash_day,
        day_dot_month,
        named_month,
    ];
    for form in FORMS {
        let mut attempt = *reader;
        if let Some(day) = form(&mut attempt) {
            *reader = attempt;
            return Some(day);
        }
    }
    None
}

fn checked_day(year: i64, month: i64, day: i64) -> Option<i64> {
    let valid = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    valid.then(|| day_number(year, month, day))
}

/// `2020-01-31`, `2020/1/31`, `2020-01`.
fn year_first(reader: &mut Reader<'_>) -> Option<i64> {
    let year = reader.exactly(4)?;
    let separator = reader
        .rest
        .chars()
        .next()
        .filter(|c| matches!(c, '-' | '/'))?;
    reader.take(separator)?;
    if reader.digits() > 2 {
        return None;
    }
    let month = reader.number(1, 2)?;
    if reader.take(separator).is_none() {
        return (separator == '-')
            .then(|| checked_day(year, month, 1))
            .flatten();
    }
    checked_day(year, month, reader.number(1, 2)?)
}

/// `2020-W01-1` or `2020-W01`.
fn iso_week(reader: &mut Reader<'_>) -> Option<i64> {
    let year = reader.exactly(4)?;
    let _ = reader.take('-');
    reader.take('W')?;
    let week = reader.number(2, 2).filter(|week| (1..=53).contains(week))?;
    let weekday = match reader.take('-') {
        Some(()) => reader.number(1, 1)?,
        None => 1,
    };
    Some(iso_day_number(year, week, weekday))
}

/// `2020-366`.
fn ordinal(reader: &mut Reader<'_>) -> Option<i64> {
    let year = reader.exactly(4)?;
    reader.take('-')?;
    let day = reader.exactly(3)?;
    let most = if is_leap(year) { 366 } else { 365 };
    (1..=most).contains(&day).then(|| day_number(year, 1, day))
}

/// `20200131`.
fn compact(reader: &mut Reader<'_>) -> Option<i64> {
    let digits = reader.exactly(8)?;
    checked_day(digits / 10_000, digits / 100 % 100, digits % 100)
}

/// `1/31/2020`.
fn month_slash_day(reader: &mut Reader<'_>) -> Option<i64> {
    let month = reader.number(1, 2)?;
    reader.take('/')?;
    let day = reader.number(1, 2)?;
    reader.take('/')?;
    checked_day(reader.exactly(4)?, month, day)
}

/// `31.1.2020` or `31-1-2020`.
fn day_dot_month(reader: &mut Reader<'_>) -> Option<i64> {
    let day = reader.number(1, 2)?;
    let separator = reader
        .rest
        .chars()
        .next()
        .filter(|c| matches!(c, '-' | '.'))?;
    reader.take(separator)?;
    let month = reader.number(1, 2)?;
    reader.take(separator)?;
    checked_day(reader.exactly(4)?, month, day)
}

/// `Jan 31, 2020`, `31 January 2020`, `Fri, 31 Jan 2020`.
fn named_month(reader: &mut Reader<'_>) -> Option<i64> {
    let mut attempt = *reader;
    if is_weekday(attempt.word()) {
        let _ = attempt.take(',');
        attempt.spaces();
        *reader = attempt;
    }
    let separators: &[char] = &[' ', '-', ',', '.'];
    let (month, day);
    if reader.digits() > 0 {
        day = reader.number(1, 2)?;
        reader.rest = reader.rest.trim_start_matches(separators);
        month = month_number(reader.word())?;
    } else {
        month = month_number(reader.word())?;
        reader.rest = reader.rest.trim_start_matches(separators);
        day = reader.number(1, 2)?;
    }
    reader.rest = reader.rest.trim_start_matches(separators);
    checked_day(reader.exactly(4)?, month, day)
}

fn is_weekday(word: &str) -> bool {
    const DAYS: [&str; 7] = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    let word = word.to_ascii_lowercase();
    word.len() >= 3 && DAYS.iter().any(|day| *day == word || day[..3] == *word)
}

fn month_number(word: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    let word = word.to_ascii_lowercase();
    let at = MONTHS
        .iter()
        .position(|month| *month == word || month[..3] == *word)?;
    Some(at as i64 + 1)
}

/// `10:00`, `10:00:00.123`, `100000`, with `am` or `pm`.
fn read_time(reader: &mut Reader<'_>) -> Option<i64> {
    let (mut hour, minute, second);
    if reader.digits() >= 4 {
        (hour, minute) = (reader.number(2, 2)?, reader.number(2, 2)?);
        second = if reader.digits() >= 2 {
            reader.number(2, 2)?
        } else {
            0
        };
    } else {
        hour = reader.number(1, 2)?;
        reader.take(':')?;
        minute = reader.number(1, 2)?;
        second = match reader.take(':') {
            Some(()) => reader.number(1, 2)?,
            None => 0,
        };
    }
    let mut millisecond = 0;
    if reader.rest.starts_with(['.', ',']) {
        reader.rest = &reader.rest[1..];
        let digits = reader.digits();
        let (fraction, rest) = reader.rest.split_at(digits);
        reader.rest = rest;
        let padded: String = fraction.chars().chain("000".chars()).take(3).collect();
        millisecond = padded.parse().ok()?;
    }
    let mut attempt = *reader;
    attempt.spaces();
    match attempt.word().to_ascii_lowercase().as_str() {
        "am" if (1..=12).contains(&hour) => {
            hour %= 12;
            *reader = attempt;
        }
        "pm" if (1..=12).contains(&hour) => {
            hour = hour % 12 + 12;
            *reader = attempt;
        }
        _ => {}
    }
    let valid = hour <= 24 && minute <= 59 && second <= 59;
    valid.then(|| ((hour * 60 + minute) * 60 + second) * 1000 + millisecond)
}

/// `Some(None)` if there is no zone, `None` if it is not understood.
fn read_offset(reader: &mut Reader<'_>) -> Option<Option<i64>> {
    if reader.rest.is_empty() {
        return Some(None);
    }
    let hours = match reader.rest.to_ascii_uppercase().as_str() {
        "Z" | "UTC" | "GMT" => 0,
        "EDT" => -4,
        "EST" | "CDT" => -5,
        "CST" | "MDT" => -6,
        "MST" | "PDT" => -7,
        "PST" => -8,
        "CET" => 1,
        _ => {
            let text = reader.rest.strip_prefix("GMT").unwrap_or(reader.rest);
            let offset = parse_offset(text)?;
            reader.rest = "";
            return Some(Some(offset));
        }
    };
    reader.rest = "";
    Some(Some(hours * 3_600_000))
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
