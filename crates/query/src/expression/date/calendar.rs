//! The proleptic Gregorian calendar over all of 64-bit milliseconds.

pub(super) const DAY_MS: i64 = 86_400_000;

/// A moment's fields in some zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Civil {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) hour: i64,
    pub(super) minute: i64,
    pub(super) second: i64,
    pub(super) millisecond: i64,
}

/// The day number of a date, 1970-01-01 being 0. The month is 1 to 12.
pub(super) fn day_number(year: i64, month: i64, day: i64) -> i64 {
    // Years are counted from March, so that the leap day is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a day number.
pub(super) fn date_of(day_number: i64) -> (i64, i64, i64) {
    let shifted = day_number + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

pub(super) fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub(super) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Civil {
    /// The fields of local milliseconds.
    pub(super) fn of(local_ms: i64) -> Civil {
        let (year, month, day) = date_of(local_ms.div_euclid(DAY_MS));
        let in_day = local_ms.rem_euclid(DAY_MS);
        Civil {
            year,
            month,
            day,
            hour: in_day / 3_600_000,
            minute: in_day / 60_000 % 60,
            second: in_day / 1000 % 60,
            millisecond: in_day % 1000,
        }
    }

    pub(super) fn day_number(&self) -> i64 {
        day_number(self.year, self.month, self.day)
    }

    pub(super) fn in_day_ms(&self) -> i64 {
        ((self.hour * 60 + self.minute) * 60 + self.second) * 1000 + self.millisecond
    }

    /// 1 on January 1st.
    pub(super) fn day_of_year(&self) -> i64 {
        self.day_number() - day_number(self.year, 1, 1) + 1
    }

    /// 0 on Sundays.
    pub(super) fn weekday(&self) -> i64 {
        (self.day_number() + 4).rem_euclid(7)
    }

    /// 1 on Mondays, 7 on Sundays.
    pub(super) fn iso_weekday(&self) -> i64 {
        (self.weekday() + 6) % 7 + 1
    }

    /// Weeks begin on Sundays; days before the first Sunday are in week 0.
    pub(super) fn week(&self) -> i64 {
        (self.day_of_year() + 6 - self.weekday()) / 7
    }

    /// The ISO week and the year it belongs to.
    pub(super) fn iso_week(&self) -> (i64, i64) {
        // The week belongs to the year that holds its Thursday.
        let thursday = self.day_number() + 4 - self.iso_weekday();
        let (year, _, _) = date_of(thursday);
        ((thursday - day_number(year, 1, 1)) / 7 + 1, year)
    }
}

/// The day number of an ISO week date; fields out of range carry over.
pub(super) fn iso_day_number(year: i64, week: i64, weekday: i64) -> i64 {
    let fourth = day_number(year, 1, 4);
    let monday = fourth - (fourth + 3).rem_euclid(7);
    monday + (week - 1) * 7 + weekday - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse() {
        for day in (-1_000_000..1_000_000).step_by(97) {
            let (year, month, of_month) = date_of(day);
            assert_eq!(day_number(year, month, of_month), day);
        }
        assert_eq!(date_of(0), (1970, 1, 1));
        assert_eq!(date_of(-1), (1969, 12, 31));
    }

    #[test]
    fn the_ends_of_time_have_dates() {
        assert_eq!(Civil::of(i64::MAX).year, 292_278_994);
        assert_eq!(Civil::of(i64::MIN).year, -292_275_055);
    }
}
