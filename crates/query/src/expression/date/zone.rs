//! Time zones by Olson name or by offset.

use super::super::node::{Evaluated, Frame, Node};
use super::calendar::Civil;
use jiff::Timestamp;
use jiff::civil::DateTime;
use model::Error;
use model::bson::ValueRef;

#[derive(Clone, Debug)]
pub(super) enum TimeZone {
    Utc,
    /// Milliseconds east of Greenwich.
    Fixed(i64),
    Named(jiff::tz::TimeZone),
}

impl TimeZone {
    pub(super) fn parse(name: &str) -> Option<TimeZone> {
        if matches!(name, "UTC" | "GMT") {
            return Some(TimeZone::Utc);
        }
        if name.starts_with(['+', '-']) {
            return parse_offset(name).map(TimeZone::Fixed);
        }
        // The database ignores case where the real server does not.
        let zone = jiff::tz::TimeZone::get(name).ok()?;
        let exact = zone.iana_name().is_some_and(|known| known == name);
        exact.then_some(TimeZone::Named(zone))
    }

    /// How far local time is ahead of UTC at a moment, in milliseconds.
    pub(super) fn offset_ms(&self, utc_ms: i64) -> i64 {
        match self {
            TimeZone::Utc => 0,
            TimeZone::Fixed(offset) => *offset,
            TimeZone::Named(zone) => {
                let at = utc_ms.clamp(
                    Timestamp::MIN.as_millisecond(),
                    Timestamp::MAX.as_millisecond(),
                );
                match Timestamp::from_millisecond(at) {
                    Ok(at) => i64::from(zone.to_offset(at).seconds()) * 1000,
                    Err(_) => 0,
                }
            }
        }
    }

    pub(super) fn local_ms(&self, utc_ms: i64) -> i64 {
        utc_ms.saturating_add(self.offset_ms(utc_ms))
    }

    pub(super) fn civil(&self, utc_ms: i64) -> Civil {
        Civil::of(self.local_ms(utc_ms))
    }

    /// The moment that has this local time. In a gap the clock has moved on,
    /// in a fold the earlier one is meant.
    pub(super) fn utc_ms(&self, local_ms: i64) -> i64 {
        match self {
            TimeZone::Utc => local_ms,
            TimeZone::Fixed(offset) => local_ms.saturating_sub(*offset),
            TimeZone::Named(zone) => {
                let civil = Civil::of(local_ms);
                let known = i16::try_from(civil.year).ok().and_then(|year| {
                    let local = DateTime::new(
                        year,
                        civil.month as i8,
                        civil.day as i8,
                        civil.hour as i8,
                        civil.minute as i8,
                        civil.second as i8,
                        civil.millisecond as i32 * 1_000_000,
                    )
                    .ok()?;
                    let at = zone.to_ambiguous_timestamp(local).compatible().ok()?;
                    Some(at.as_millisecond())
                });
                known.unwrap_or_else(|| local_ms.saturating_sub(self.offset_ms(local_ms)))
            }
        }
    }

    /// `+hhmm`.
    pub(super) fn offset_text(&self, utc_ms: i64) -> String {
        let minutes = self.offset_ms(utc_ms) / 60_000;
        let sign = if minutes < 0 { '-' } else { '+' };
        format!("{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
    }
}

/// `+hh`, `+hhmm` or `+hh:mm`, in milliseconds.
pub(super) fn parse_offset(text: &str) -> Option<i64> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = match rest.len() {
        2 => (rest, "0"),
        4 => rest.split_at_checked(2)?,
        5 => rest.split_once(':').filter(|(hours, _)| hours.len() == 2)?,
        _ => return None,
    };
    let digits = |text: &str| -> Option<i64> {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())
            .flatten()
    };
    Some(sign * (digits(hours)? * 60 + digits(minutes)?) * 60_000)
}

/// The zone an argument names; UTC if there is no argument. `None` stands for a
/// null zone, which makes the result null.
pub(super) fn zone_argument<'a>(
    node: &'a Node,
    frame: &mut Frame<'a>,
) -> Result<Option<TimeZone>, Error> {
    if node.is_absent() {
        return Ok(Some(TimeZone::Utc));
    }
    let value = node.evaluate(frame)?;
    zone_value(&value)
}

fn zone_value(value: &Evaluated<'_>) -> Result<Option<TimeZone>, Error> {
    match value.as_value() {
        None | Some(ValueRef::Null | ValueRef::Undefined) => Ok(None),
        Some(ValueRef::String(name)) => TimeZone::parse(name).map(Some).ok_or_else(|| {
            Error::location(
                40485,
                format!("unrecognized time zone identifier: \"{name}\""),
            )
        }),
        Some(other) => Err(Error::location(
            40517,
            format!(
                "timezone must evaluate to a string, found {}",
                other.kind().name()
            ),
        )),
    }
}
