//! Words in dates: `noon`, weekdays, seconds since 1970 as `@1234`, and distances such as
//! `+2 days`, `next month`, `1 week ago`.

use super::calendar::{day_number, days_in_month};

/// How far the date meant is from the one that is spelled.
#[derive(Default)]
pub(super) struct Distance {
    pub(super) years: i64,
    pub(super) months: i64,
    pub(super) days: i64,
    pub(super) ms: i64,
    /// 0 for Sunday: on this weekday, or on the next one.
    pub(super) week_day: Option<i64>,
    pub(super) first_day: bool,
    pub(super) last_day: bool,
}

impl Distance {
    pub(super) fn add(&mut self, other: Distance) {
        self.years = self.years.saturating_add(other.years);
        self.months = self.months.saturating_add(other.months);
        self.days = self.days.saturating_add(other.days);
        self.ms = self.ms.saturating_add(other.ms);
    }

    pub(super) fn turn_back(&mut self) {
        self.years = self.years.saturating_neg();
        self.months = self.months.saturating_neg();
        self.days = self.days.saturating_neg();
        self.ms = self.ms.saturating_neg();
    }

    /// The day that is so far from a date, milliseconds left out. Days that a month does
    /// not have are counted on into the next one.
    pub(super) fn from(&self, year: i64, month: i64, day: i64) -> i64 {
        // Farther than any date can be; further up nothing overflows.
        const FAR: i64 = 4_000_000_000_000;
        let clamp = |number: i64| number.clamp(-FAR, FAR);
        let months = clamp(month - 1 + clamp(self.months));
        let year = year + clamp(self.years).clamp(-FAR / 1000, FAR / 1000) + months.div_euclid(12);
        let month = months.rem_euclid(12) + 1;
        let day = match (self.first_day, self.last_day) {
            (_, true) => days_in_month(year, month),
            (true, false) => 1,
            (false, false) => day,
        };
        let day = day_number(year, month, 1) + day - 1 + clamp(self.days);
        match self.week_day {
            // Day 0 was a Thursday.
            Some(wanted) => day + (wanted - (day + 4)).rem_euclid(7),
            None => day,
        }
    }
}

pub(super) enum Word {
    Now,
    Noon,
    /// The start of the day that is so many days off.
    Days(i64),
    WeekDay(i64),
    Distance(Distance),
    /// What was said so far counts backwards.
    Ago,
    FirstDay,
    LastDay,
    /// After the start of 1970.
    Seconds {
        ms: i64,
    },
}

impl Word {
    /// The word at the start of a text, and its length.
    pub(super) fn read(text: &str) -> Option<(usize, Word)> {
        if let Some(seconds) = text.strip_prefix('@') {
            let (length, ms) = since_1970(seconds)?;
            return Some((length + 1, Word::Seconds { ms }));
        }
        for (phrase, word) in [
            ("first day of", Word::FirstDay),
            ("last day of", Word::LastDay),
        ] {
            let start = text.get(..phrase.len());
            if start.is_some_and(|start| start.eq_ignore_ascii_case(phrase)) {
                return Some((phrase.len(), word));
            }
        }
        if let Some(found) = distance(text) {
            return Some(found);
        }
        let (length, name) = name(text);
        let word = match name.as_str() {
            "now" => Word::Now,
            "noon" => Word::Noon,
            "midnight" | "today" => Word::Days(0),
            "tomorrow" => Word::Days(1),
            "yesterday" => Word::Days(-1),
            "ago" => Word::Ago,
            other => Word::WeekDay(week_day(other)?),
        };
        Some((length, word))
    }
}

fn name(text: &str) -> (usize, String) {
    let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    (letters, text[..letters].to_ascii_lowercase())
}

/// `1234`, `-1234`, `1234.5`.
fn since_1970(text: &str) -> Option<(usize, i64)> {
    let digits_of = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let sign = usize::from(text.starts_with('-'));
    let digits = digits_of(&text[sign..]);
    let whole = sign + digits;
    let seconds: i64 = text[..whole].parse().ok()?;
    let ms = seconds.checked_mul(1000)?;
    let Some(fraction) = text[whole..].strip_prefix('.') else {
        return Some((whole, ms));
    };
    let length = digits_of(fraction).min(6);
    let padded: String = fraction[..length]
        .chars()
        .chain("000".chars())
        .take(3)
        .collect();
    let part: i64 = padded.parse().ok()?;
    let ms = if sign == 1 {
        ms.checked_sub(part)?
    } else {
        ms.checked_add(part)?
    };
    Some((whole + 1 + length, ms))
}

/// `+2 days`, `-1week`, `next month`.
fn distance(text: &str) -> Option<(usize, Word)> {
    const ORDINALS: [&str; 12] = [
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
        "tenth", "eleventh", "twelfth",
    ];
    let signs = text.bytes().take_while(|byte| b"+-".contains(byte)).count();
    let behind = text[signs..].trim_start_matches([' ', '\t']);
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    let (count, rest) = if (1..=13).contains(&digits) {
        let minuses = text[..signs].bytes().filter(|byte| *byte == b'-').count();
        let number: i64 = behind[..digits].parse().ok()?;
        let sign = if minuses % 2 == 1 { -1 } else { 1 };
        (sign * number, &behind[digits..])
    } else {
        let (length, name) = name(text);
        let count = match name.as_str() {
            "next" => 1,
            "last" | "previous" => -1,
            "this" => 0,
            other => 1 + ORDINALS.iter().position(|ordinal| *ordinal == other)? as i64,
        };
        // Words stand apart.
        text[length..]
            .starts_with([' ', '\t'])
            .then_some((count, &text[length..]))?
    };
    let rest = rest.trim_start_matches([' ', '\t']);
    let (length, unit) = name(rest);
    let mut distance = Distance::default();
    let ms = |each: i64| count.saturating_mul(each);
    match unit.as_str() {
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => distance.ms = ms(1),
        "sec" | "secs" | "second" | "seconds" => distance.ms = ms(1000),
        "min" | "mins" | "minute" | "minutes" => distance.ms = ms(60_000),
        "hour" | "hours" => distance.ms = ms(3_600_000),
        "day" | "days" => distance.days = count,
        "week" | "weeks" => distance.days = count.saturating_mul(7),
        "fortnight" | "fortnights" | "forthnight" | "forthnights" => {
            distance.days = count.saturating_mul(14);
        }
        "month" | "months" => distance.months = count,
        "year" | "years" => distance.years = count,
        _ => return None,
    }
    let taken = text.len() - rest.len() + length;
    Some((taken, Word::Distance(distance)))
}

/// 0 for Sunday.
fn week_day(name: &str) -> Option<i64> {
    const DAYS: [&str; 7] = [
        "sunday",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
    ];
    let is_meant = |day: &&str| **day == *name || day[..3] == *name;
    let day = DAYS.iter().position(is_meant)?;
    Some(day as i64)
}
