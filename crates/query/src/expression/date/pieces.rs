//! What the letters in the forms of dates take from a text.
//!
//! | letter | takes |
//! | --- | --- |
//! | `Y` `C` `y` | a year of four digits, of two, of one to four |
//! | `n` | a sign of the year, or nothing |
//! | `M` `m` | a month of two digits, of one or two |
//! | `B` `b` | the name of a month (long, short, Roman), the short name alone |
//! | `D` `d` | a day of two digits, of one or two and maybe `st`, `nd`, `rd`, `th` |
//! | `j` `w` `u` | day of the year, ISO week, ISO weekday |
//! | `H` `h` `g` | an hour of two digits, of one or two, one from 1 to 12 |
//! | `I` `i` `S` `s` | minutes and seconds, of two digits, of one or two |
//! | `f` | digits of a fraction of a second |
//! | `p` | `am`, `P.M.`, with the space or the end behind it |
//! | `o` `z` | an offset, a zone's name |
//! | `t` | `t`, `T` or nothing |
//! | `;` | `:` or `.` |
//! | `_` `~` | any number of blanks; of blanks, points and hyphens |
//! | `,` | what may stand behind a day, at least once |
//! | `[…]` | one of these characters |
//!
//! All else stands for itself. A letter may take more or less of the same text (`24` as an
//! hour, or its first digit); all ways are tried, and the longest match counts.

use super::zone_names::zone_offset_s;
use std::ops::RangeInclusive;

/// What one part of a text says.
#[derive(Clone, Copy, Default)]
pub(super) struct Fields {
    pub(super) year: Option<i64>,
    pub(super) month: Option<i64>,
    pub(super) day: Option<i64>,
    pub(super) week: Option<i64>,
    pub(super) week_day: Option<i64>,
    pub(super) hour: Option<i64>,
    pub(super) minute: i64,
    second: i64,
    millisecond: i64,
    is_afternoon: Option<bool>,
    is_before_christ: bool,
    pub(super) offset_ms: Option<i64>,
}

impl Fields {
    pub(super) fn has_date(&self) -> bool {
        self.year.is_some() || self.month.is_some() || self.day.is_some()
    }

    /// Milliseconds of the day; `None` for a time that no day has.
    pub(super) fn time_ms(&self) -> Option<i64> {
        let hour = match (self.hour?, self.is_afternoon) {
            (hour, None) => hour,
            (hour, Some(false)) => hour % 12,
            (hour, Some(true)) => hour % 12 + 12,
        };
        let is_valid = hour < 24 && self.second < 60;
        is_valid.then(|| ((hour * 60 + self.minute) * 60 + self.second) * 1000 + self.millisecond)
    }

    /// Two digits mean the years from 1970 to 2069.
    fn set_short_year(&mut self, year: i64) {
        self.set_year(year + if year < 70 { 2000 } else { 1900 });
    }

    fn set_year(&mut self, year: i64) {
        self.year = Some(if self.is_before_christ { -year } else { year });
    }
}

/// How much of a text a form takes from a place on, and what it says.
pub(super) fn take(form: &str, text: &str, at: usize, fields: Fields) -> Option<(usize, Fields)> {
    let Some(letter) = form.chars().next() else {
        let mut whole = fields;
        if whole.week.is_some() || (whole.year.is_some() && whole.month.is_some()) {
            whole.month = whole.month.or(Some(1));
            whole.day = whole.day.or(Some(1));
        } else if whole.year.is_some() && whole.day.is_some() {
            whole.month = Some(1);
        }
        return Some((at, whole));
    };
    let (set, behind) = match letter {
        '[' => form[1..].split_once(']')?,
        _ => form.split_at(letter.len_utf8()),
    };
    let mut longest: Option<(usize, Fields)> = None;
    let rest = &text[at..];
    let mut ways = Ways {
        text: rest,
        fields,
        attempt: &mut |length, fields| {
            if let Some(found) = take(behind, text, at + length, fields)
                && longest.is_none_or(|(end, _)| found.0 > end)
            {
                longest = Some(found);
            }
        },
    };
    ways.of_letter(letter, set);
    longest
}

/// Tries each length that a letter may take.
struct Ways<'a> {
    text: &'a str,
    fields: Fields,
    attempt: &'a mut dyn FnMut(usize, Fields),
}

impl Ways<'_> {
    fn of_letter(&mut self, letter: char, set: &str) {
        match letter {
            'Y' => self.number(4, 4, 0..=9999, Fields::set_year),
            'C' => self.number(2, 2, 0..=99, Fields::set_short_year),
            'y' => {
                self.number(1, 3, 0..=99, Fields::set_short_year);
                self.number(3, 3, 100..=999, Fields::set_year);
                self.number(4, 4, 0..=9999, Fields::set_year);
            }
            'n' => {
                self.attempt(0);
                match self.text.as_bytes().first() {
                    Some(b'+') => self.attempt(1),
                    Some(b'-') => self.with(1, |fields| fields.is_before_christ = true),
                    _ => {}
                }
            }
            'M' => self.number(2, 2, 0..=12, |fields, month| fields.month = Some(month)),
            'm' => self.number(1, 2, 0..=12, |fields, month| fields.month = Some(month)),
            'B' | 'b' => {
                for (length, month) in months(self.text, letter == 'B') {
                    self.with(length, |fields| fields.month = Some(month));
                }
            }
            'D' => self.number(2, 2, 0..=31, |fields, day| fields.day = Some(day)),
            'd' => self.day(),
            'j' => self.number(3, 3, 1..=366, |fields, day| fields.day = Some(day)),
            'w' => self.number(2, 2, 1..=53, |fields, week| fields.week = Some(week)),
            'u' => self.number(1, 1, 0..=7, |fields, day| fields.week_day = Some(day)),
            'H' => self.number(2, 2, 0..=24, |fields, hour| fields.hour = Some(hour)),
            'h' => self.number(1, 2, 0..=24, |fields, hour| fields.hour = Some(hour)),
            'g' => self.number(1, 2, 1..=12, |fields, hour| fields.hour = Some(hour)),
            'I' => self.number(2, 2, 0..=59, |fields, minute| fields.minute = minute),
            'i' => self.number(1, 2, 0..=59, |fields, minute| fields.minute = minute),
            'S' => self.number(2, 2, 0..=60, |fields, second| fields.second = second),
            's' => self.number(1, 2, 0..=60, |fields, second| fields.second = second),
            'f' => self.fraction(),
            'p' => {
                if let Some((length, is_afternoon)) = meridian(self.text.as_bytes()) {
                    self.with(length, |fields| fields.is_afternoon = Some(is_afternoon));
                }
            }
            'o' => {
                for (length, offset_ms) in offsets(self.text) {
                    self.with(length, |fields| fields.offset_ms = Some(offset_ms));
                }
            }
            'z' => {
                if let Some((length, offset_ms)) = zone_name(self.text) {
                    self.with(length, |fields| fields.offset_ms = Some(offset_ms));
                }
            }
            't' => self.characters("tT", 0..=1),
            ';' => self.characters(":.", 1..=1),
            '_' => self.characters(" \t", 0..=usize::MAX),
            '~' => self.characters(" \t.-", 0..=usize::MAX),
            ',' => self.characters(",.stndrh\t ", 1..=usize::MAX),
            _ => self.characters(set, 1..=1),
        }
    }

    fn attempt(&mut self, length: usize) {
        (self.attempt)(length, self.fields);
    }

    fn with(&mut self, length: usize, set: impl FnOnce(&mut Fields)) {
        let mut fields = self.fields;
        set(&mut fields);
        (self.attempt)(length, fields);
    }

    fn characters(&mut self, set: &str, how_many: RangeInclusive<usize>) {
        let there = self.text.chars().take_while(|c| set.contains(*c)).count();
        for length in *how_many.start()..=there.min(*how_many.end()) {
            self.attempt(length);
        }
    }

    fn digits(&self) -> usize {
        self.text.bytes().take_while(u8::is_ascii_digit).count()
    }

    fn number(
        &mut self,
        least: usize,
        most: usize,
        range: RangeInclusive<i64>,
        set: impl Fn(&mut Fields, i64),
    ) {
        for length in least..=most.min(self.digits()) {
            let number = self.text[..length].parse().unwrap_or(-1);
            if range.contains(&number) {
                self.with(length, |fields| set(fields, number));
            }
        }
    }

    fn day(&mut self) {
        for length in 1..=2.min(self.digits()) {
            let day = self.text[..length].parse().unwrap_or(-1);
            if !(0..=31).contains(&day) {
                continue;
            }
            self.with(length, |fields| fields.day = Some(day));
            let suffix = self.text.get(length..length + 2).unwrap_or("");
            if ["st", "nd", "rd", "th"].contains(&suffix) {
                self.with(length + 2, |fields| fields.day = Some(day));
            }
        }
    }

    fn fraction(&mut self) {
        let digits = self.digits();
        if digits > 0 {
            let padded = self.text[..digits].chars().chain("000".chars());
            let millisecond = padded.take(3).collect::<String>().parse().unwrap_or(0);
            self.with(digits, |fields| fields.millisecond = millisecond);
        }
    }
}

/// The names of months at the start of a text, with their lengths.
fn months(text: &str, all: bool) -> Vec<(usize, i64)> {
    const LONG: [&str; 12] = [
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
    const ROMAN: [&str; 12] = [
        "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII",
    ];
    let starts = |name: &str| {
        let start = text.get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    let mut found = Vec::new();
    for (month, long) in (1..).zip(LONG) {
        if starts(&long[..3]) {
            found.push((3, month));
        }
        if all && long.len() > 3 && starts(long) {
            found.push((long.len(), month));
        }
    }
    if starts("sept") {
        found.push((4, 9));
    }
    for (month, roman) in (1..).zip(ROMAN) {
        if all && text.starts_with(roman) {
            found.push((roman.len(), month));
        }
    }
    found
}

/// `am`, `A.M.`, `p.m`, with a blank or the end behind it.
fn meridian(text: &[u8]) -> Option<(usize, bool)> {
    let is_afternoon = match text.first()?.to_ascii_lowercase() {
        b'a' => false,
        b'p' => true,
        _ => return None,
    };
    let mut at = 1;
    at += usize::from(text.get(at) == Some(&b'.'));
    if !text.get(at)?.eq_ignore_ascii_case(&b'm') {
        return None;
    }
    at += 1;
    at += usize::from(text.get(at) == Some(&b'.'));
    matches!(text.get(at)?, b'\0' | b'\t' | b' ').then_some((at + 1, is_afternoon))
}

/// `+1`, `-0130`, `GMT+1:30`, `+01:30:00`: each way to end it.
fn offsets(text: &str) -> Vec<(usize, i64)> {
    let prefix = if text.starts_with("GMT") { 3 } else { 0 };
    let sign = match text.as_bytes().get(prefix) {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Vec::new(),
    };
    let start = prefix + 1;
    let mut found = Vec::new();
    // Hours, minutes, seconds: one or two digits, then maybe a colon before two more.
    for form in ["h", "hi", "h:i", "HIS", "H:I:S"] {
        if let Some((end, _)) = take(form, text, start, Fields::default()) {
            found.push((end, sign * 1000 * offset_s(&text[start..end])));
        }
    }
    found
}

/// What the digits of an offset mean goes by how many there are: `25` is hours.
fn offset_s(text: &str) -> i64 {
    let number = |digits: &str| digits.parse::<i64>().unwrap_or(0);
    let parts: Vec<&str> = match text.contains(':') {
        true => text.split(':').collect(),
        false => match text.len() {
            1 | 2 => vec![text],
            3 => vec![&text[..1], &text[1..]],
            4 => vec![&text[..2], &text[2..]],
            _ => vec![&text[..2], &text[2..4], &text[4..]],
        },
    };
    let weighed = parts.iter().zip([3600, 60, 1]);
    weighed.map(|(part, weight)| number(part) * weight).sum()
}

/// `EST` or `(EST)`, if it is a zone that is known.
fn zone_name(text: &str) -> Option<(usize, i64)> {
    let opened = usize::from(text.starts_with('('));
    let letters = text[opened..].bytes().take_while(u8::is_ascii_alphabetic);
    let end = opened + letters.take(6).count();
    let offset = zone_offset_s(&text[opened..end])?;
    let closed = usize::from(text[end..].starts_with(')'));
    Some((end + closed, offset * 1000))
}
