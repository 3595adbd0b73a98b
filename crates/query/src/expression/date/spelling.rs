//! The spellings of dates that are read without a format.
//!
//! A text is a row of parts, in any order: dates, times, zones, weekdays, words such as
//! `noon`, and distances such as `+2 days`. Each part is the longest that one of the
//! [`FORMS`] takes from the place reached; of two that take as much, the one further up
//! counts. So `12.1.24` is a time and `12.1.2024` a date. Date, time and zone may each be
//! given once. Afterwards year, month and day must be known; distances count from them.
//!
//! ```text
//!   Tue  Jan 2 10:00:00  2024  EST
//!   │    │               │     └ zone
//!   │    │               └ four digits behind a time: a year
//!   │    └ month, day, time
//!   └ on this weekday or the next one
//! ```
//!
//! What the pieces of forms take is in `pieces.rs`, words and distances in `distance.rs`.
//! Left out: `back of 7pm`, `first monday of`, distances in weekdays.

use super::calendar::{DAY_MS, day_number, days_in_month, iso_day_number};
use super::distance::{Distance, Word};
use super::pieces::{Fields, take};

/// What was read: local time, and the offset if there was one.
pub(super) struct Found {
    pub(super) local_ms: i64,
    pub(super) offset_ms: Option<i64>,
}

/// What a part of the text means.
#[derive(Clone, Copy, PartialEq)]
enum Meaning {
    /// What its pieces say.
    Fields,
    /// Hour and minute; behind a time a year.
    FourDigits,
    Year,
}

use Meaning::{FourDigits, Year};
const FIELDS: Meaning = Meaning::Fields;

/// In the order in which they count; `pieces.rs` says what the letters mean.
const FORMS: &[(Meaning, &str)] = &[
    (FIELDS, "g_p"),
    (FIELDS, "g;I_p"),
    (FIELDS, "g;i;S_p"),
    (FIELDS, "g:I:S;fp"),
    (FIELDS, "[tT]h"),
    (FIELDS, "th;i"),
    (FIELDS, "th;i;s"),
    (FIELDS, "th;i;s.f"),
    (FIELDS, "th;i;S_o"),
    (FIELDS, "th;i;S_z"),
    (FourDigits, "tHI"),
    (FIELDS, "tHIS"),
    (FIELDS, "m/d"),
    (FIELDS, "m/d/y"),
    (FIELDS, "nY-M-D"),
    (FIELDS, "Y/m/d"),
    (FIELDS, "Y/m/d/"),
    (FIELDS, "C-M-D"),
    (FIELDS, "Y-m"),
    (FIELDS, "y-m-d"),
    (FIELDS, "d~B~y"),
    (FIELDS, "d[.\t-]m[.-]Y"),
    (FIELDS, "d[.\t]m.C"),
    (FIELDS, "B~Y"),
    (FIELDS, "Y~B"),
    (FIELDS, "B~d,y"),
    (FIELDS, "B~d,"),
    (FIELDS, "B~d\0"),
    (FIELDS, "d~B"),
    (FIELDS, "YMD"),
    (FIELDS, "YMDTh:I:S"),
    (FIELDS, "YMD[tT]hIS"),
    (FIELDS, "Y-M-DTH:I:S.f"),
    (FIELDS, "Y-M-DTH:I:S.fo"),
    (FIELDS, "Y-m-dTh:i:s"),
    (FIELDS, "Y:M:D H:I:S"),
    // The day of the year, which MongoDB takes for one of January.
    (FIELDS, "Yj"),
    (FIELDS, "Y.j"),
    (FIELDS, "YWwu"),
    (FIELDS, "Y-Wwu"),
    (FIELDS, "YWw-u"),
    (FIELDS, "Y-Ww-u"),
    (FIELDS, "YWw"),
    (FIELDS, "Y-Ww"),
    (FIELDS, "b-D-y"),
    (FIELDS, "y-b-D"),
    (FIELDS, "d/b/Y:H:I:S[ \t]_o"),
    (Year, "Y"),
    (FIELDS, "B"),
    (FIELDS, "o"),
    (FIELDS, "z"),
    (FIELDS, "B~d,g;I_p"),
    (FIELDS, "B~d,g;i;S_p"),
    (FIELDS, "B~d,th;i"),
    (FIELDS, "B~d,th;i;s"),
    (FIELDS, "B~d,th;i;S_o"),
    (FIELDS, "B~d,th;i;S_z"),
];

/// What all parts together say.
#[derive(Default)]
struct Date {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    has_date: bool,
    /// Milliseconds of the day, once there is a time.
    time_ms: Option<i64>,
    offset_ms: Option<i64>,
    distance: Distance,
}

pub(super) fn read(text: &str) -> Result<Found, String> {
    let failed = || format!("Error parsing date string '{text}'");
    let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    if trimmed.is_empty() {
        return Err(failed());
    }
    // Some forms want to see the end.
    let ended = format!("{trimmed}\0");
    let mut date = Date::default();
    let mut at = 0;
    while at < ended.len() {
        let rest = &ended[at..];
        if rest.starts_with([' ', '\t', '.', ',', '\n', '\0']) {
            at += 1;
            continue;
        }
        at += date.part(rest).ok_or_else(failed)?;
    }
    date.finish(text)
}

impl Date {
    /// Takes one part from the start of a text, and answers how long it is.
    fn part(&mut self, text: &str) -> Option<usize> {
        let mut longest: Option<(usize, Meaning, Fields)> = None;
        for (meaning, form) in FORMS {
            if let Some((length, fields)) = take(form, text, 0, Fields::default())
                && longest.is_none_or(|(most, _, _)| length > most)
            {
                longest = Some((length, *meaning, fields));
            }
        }
        let word = Word::read(text);
        let of_word = word.as_ref().map_or(0, |(length, _)| *length);
        match (longest, word) {
            (Some((length, meaning, fields)), _) if length > of_word => {
                self.say(meaning, fields)?;
                // The end is left for the next part to see.
                let ends = text[..length].ends_with('\0');
                Some(length - usize::from(ends))
            }
            (_, Some((length, word))) => {
                self.say_word(word);
                Some(length)
            }
            (_, None) => None,
        }
    }

    fn say(&mut self, meaning: Meaning, fields: Fields) -> Option<()> {
        match meaning {
            FourDigits if self.time_ms.is_some() => {
                self.year = Some(fields.hour? * 100 + fields.minute);
                return Some(());
            }
            Meaning::Year => {
                self.year = fields.year;
                return Some(());
            }
            FourDigits | Meaning::Fields => {}
        }
        if let (Some(week), Some(year)) = (fields.week, fields.year) {
            let day = iso_day_number(year, week, fields.week_day.unwrap_or(1));
            self.distance.days += day - day_number(year, 1, 1);
        }
        if fields.has_date() {
            // A month alone may be followed by the rest.
            let is_month = fields.year.is_none() && fields.day.is_none();
            if self.has_date {
                return None;
            }
            self.has_date = true;
            self.month = fields.month;
            if !is_month {
                self.year = fields.year.or(self.year);
                self.day = fields.day;
            }
        }
        if fields.hour.is_some() {
            if self.time_ms.is_some() {
                return None;
            }
            let mut time = fields.time_ms()?;
            if meaning == FourDigits {
                // MongoDB takes the fraction that it has not read for a number.
                time -= 100;
            }
            self.time_ms = Some(time);
        }
        if let Some(offset) = fields.offset_ms {
            if self.offset_ms.is_some() {
                return None;
            }
            self.offset_ms = Some(offset);
        }
        Some(())
    }

    fn say_word(&mut self, word: Word) {
        match word {
            Word::Now => {}
            Word::Noon => self.time_ms = Some(DAY_MS / 2),
            Word::Days(days) => {
                self.time_ms = None;
                self.distance.days += days;
            }
            Word::WeekDay(day) => {
                self.time_ms = None;
                self.distance.week_day = Some(day);
            }
            Word::Distance(distance) => self.distance.add(distance),
            Word::Ago => self.distance.turn_back(),
            Word::FirstDay => self.distance.first_day = true,
            Word::LastDay => self.distance.last_day = true,
            Word::Seconds { ms } => {
                (self.year, self.month, self.day) = (Some(1970), Some(1), Some(1));
                self.offset_ms = Some(0);
                self.distance.ms = self.distance.ms.saturating_add(ms);
            }
        }
    }

    fn finish(self, text: &str) -> Result<Found, String> {
        let (Some(year), Some(month), Some(day)) = (self.year, self.month, self.day) else {
            return Err(format!(
                "an incomplete date/time string has been found, with elements missing: \"{text}\""
            ));
        };
        let is_valid = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        if !is_valid {
            return Err(format!(
                "Error parsing date string '{text}': The parsed date was invalid"
            ));
        }
        let local_ms = self
            .distance
            .from(year, month, day)
            .checked_mul(DAY_MS)
            .and_then(|ms| ms.checked_add(self.time_ms.unwrap_or(0)))
            .and_then(|ms| ms.checked_add(self.distance.ms))
            .ok_or_else(|| format!("Error parsing date string '{text}'"))?;
        Ok(Found {
            local_ms,
            offset_ms: self.offset_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    /// As the real server answered.
    #[test]
    fn spellings_are_read_as_the_real_server_reads_them() {
        let table = include_str!("spellings.txt");
        let rows = table.lines().filter(|line| !line.starts_with('#'));
        let mut wrong = Vec::new();
        for row in rows.filter(|line| !line.is_empty()) {
            let (text, expected) = row.rsplit_once('|').expect("a row has two columns");
            let text = text.strip_suffix(' ').unwrap_or(text).trim_end();
            let text = text.replace("\\t", "\t").replace("\\n", "\n");
            let found = read(&text).map(|found| found.local_ms - found.offset_ms.unwrap_or(0));
            let found = found.map_or("-".to_owned(), |ms: i64| ms.to_string());
            if found != expected.trim() {
                wrong.push(format!("{text:?}: {found}, expected {}", expected.trim()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn anything_is_answered() {
        let alphabet = [
            "1",
            "24",
            "2024",
            "-",
            "+",
            ":",
            ".",
            " ",
            "T",
            "Jan",
            "II",
            "pm",
            "é",
            "@",
            "day",
            "9999999999999",
            "\0",
        ];
        for first in alphabet {
            for second in alphabet {
                for third in alphabet {
                    let _ = read(&format!("{first}{second}{third}"));
                }
            }
        }
    }
}
