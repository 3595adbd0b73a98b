//! The sum of any number of numbers, as `$sum`, `$add` and `$avg` make it.
//!
//! Whole numbers and doubles are kept in a pair of doubles (the sum and what it
//! lost to rounding), decimals apart from them; the two meet only in the end.
//! The result has the widest type that was added: int32 widens to int64 and
//! int64 to double where it does not fit.

use super::Number;
use crate::bson::{Array, ArrayBuf, ArrayWriter, ValueRef};
use crate::decimal::{Decimal, Rounding};

#[derive(Clone, Copy, Debug)]
pub struct Sum {
    widest: Widest,
    /// Whole numbers alone, exact: used as long as nothing else was added. Only a
    /// forged partial can bring it to the ends of its range, where it stays.
    whole: i128,
    high: f64,
    low: f64,
    /// The plain sum: what remains meaningful once an infinity was added.
    plain: f64,
    decimals: Option<Decimal>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Widest {
    Int32,
    Int64,
    Double,
    Decimal,
}

impl Default for Sum {
    fn default() -> Self {
        Self::new()
    }
}

impl Sum {
    pub fn new() -> Self {
        Self {
            widest: Widest::Int32,
            whole: 0,
            high: 0.0,
            low: 0.0,
            plain: 0.0,
            decimals: None,
        }
    }

    pub fn add(&mut self, number: Number) {
        match number {
            Number::Int32(v) => {
                self.whole = self.whole.saturating_add(v.into());
                self.add_double(v.into());
            }
            Number::Int64(v) => {
                self.widest = self.widest.max(Widest::Int64);
                self.add_whole(v);
            }
            Number::Double(v) => {
                self.widest = self.widest.max(Widest::Double);
                self.add_double(v);
            }
            Number::Decimal(v) => {
                self.widest = Widest::Decimal;
                self.decimals = Some(self.decimals.map_or(v, |sum| sum.add(v)));
            }
        }
    }

    /// Adds another sum, made over other numbers.
    pub fn merge(&mut self, other: &Sum) {
        if self.is_untouched() {
            *self = *other;
            return;
        }
        self.widest = self.widest.max(other.widest);
        self.whole = self.whole.saturating_add(other.whole);
        if other.plain.is_finite() {
            self.add_double(other.low);
            self.add_double(other.high);
        } else {
            self.add_double(other.plain);
        }
        if let Some(decimals) = other.decimals {
            self.decimals = Some(self.decimals.map_or(decimals, |sum| sum.add(decimals)));
        }
    }

    /// Whether the doubles say no more than the whole number does.
    fn is_small_and_whole(&self) -> bool {
        self.widest <= Widest::Int64
            && self.whole.unsigned_abs() <= 1 << 53
            && self.high == self.whole as f64
            && self.plain == self.high
            && self.low == 0.0
    }

    /// Whether nothing but int32 zeros was added.
    fn is_untouched(&self) -> bool {
        self.widest == Widest::Int32 && self.whole == 0 && self.is_small_and_whole()
    }

    pub fn total(&self) -> Number {
        match self.widest {
            Widest::Int32 => match (i32::try_from(self.whole), i64::try_from(self.whole)) {
                (Ok(small), _) => Number::Int32(small),
                (_, Ok(large)) => Number::Int64(large),
                _ => Number::Double(self.double()),
            },
            Widest::Int64 => match i64::try_from(self.whole) {
                Ok(large) => Number::Int64(large),
                Err(_) => Number::Double(self.double()),
            },
            Widest::Double => Number::Double(self.double()),
            Widest::Decimal => Number::Decimal(self.decimal()),
        }
    }

    /// The total as a 64-bit whole number, rounded the way a date takes it: what
    /// remains of the larger double after rounding is added to the smaller one
    /// and rounded again, which takes exact halves towards zero as long as one
    /// double holds the sum. `None` if it does not fit; a decimal that does not
    /// fit is the least whole number, as the real server has it.
    pub fn rounded_i64(&self) -> Option<i64> {
        match self.widest {
            Widest::Int32 | Widest::Int64 => i64::try_from(self.whole).ok(),
            Widest::Double => {
                let high = self.double();
                let whole = Number::Double(high.round()).to_i64_exact()?;
                let rest = high - high.round() + self.low;
                whole.checked_add(rest.round() as i64)
            }
            Widest::Decimal => {
                let rounded = self.decimal().round_to_place(0, Rounding::HalfEven);
                Some(rounded.to_i64_exact().unwrap_or(i64::MIN))
            }
        }
    }

    /// The total divided by how many were added: a double or a decimal.
    pub fn average(&self, count: u64) -> Number {
        if self.widest == Widest::Decimal {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            return Number::Decimal(self.decimal().divide(Decimal::from_i64(count)));
        }
        Number::Double(self.double() / count as f64)
    }

    /// Everything that [`Self::from_partial`] needs to make the same sum again: what
    /// is stored or sent of it.
    ///
    /// ```text
    ///   [widest, whole]                                only whole numbers, and small
    ///   [widest, whole, high, low, plain]              the doubles say something else
    ///   [widest, whole, high, low, plain, decimal]     decimals among them
    ///
    ///   widest  int32: 0 int32, 1 int64, 2 double, 3 decimal
    ///   whole   int64, or where it does not fit [upper half, lower half]
    /// ```
    pub fn partial(&self) -> ArrayBuf {
        let mut out = ArrayWriter::new();
        out.push(self.widest as i32);
        match i64::try_from(self.whole) {
            Ok(whole) => out.push(whole),
            Err(_) => {
                let mut halves = ArrayWriter::new();
                halves.push((self.whole >> 64) as i64);
                halves.push(self.whole as i64);
                out.push(&halves.finish())
            }
        };
        if !self.is_small_and_whole() {
            out.push(self.high).push(self.low).push(self.plain);
            if let Some(decimals) = self.decimals {
                out.push(&Number::Decimal(decimals).to_value());
            }
        }
        out.finish()
    }

    /// Reads what [`Self::partial`] wrote; `None` if it is something else.
    pub fn from_partial(partial: Array<'_>) -> Option<Sum> {
        let mut parts = partial.iter();
        let widest = match parts.next()? {
            ValueRef::Int32(0) => Widest::Int32,
            ValueRef::Int32(1) => Widest::Int64,
            ValueRef::Int32(2) => Widest::Double,
            ValueRef::Int32(3) => Widest::Decimal,
            _ => return None,
        };
        let whole = match parts.next()? {
            ValueRef::Int64(whole) => i128::from(whole),
            ValueRef::Array(halves) => match (halves.get(0), halves.get(1), halves.count()) {
                (Some(ValueRef::Int64(upper)), Some(ValueRef::Int64(lower)), 2) => {
                    i128::from(upper) << 64 | i128::from(lower as u64)
                }
                _ => return None,
            },
            _ => return None,
        };
        let mut sum = Sum {
            widest,
            whole,
            ..Sum::new()
        };
        if partial.count() == 2 {
            (sum.high, sum.plain) = (whole as f64, whole as f64);
            return sum.is_small_and_whole().then_some(sum);
        }
        let mut double = || match parts.next()? {
            ValueRef::Double(value) => Some(value),
            _ => None,
        };
        (sum.high, sum.low, sum.plain) = (double()?, double()?, double()?);
        sum.decimals = match (parts.next().map(Number::of), widest) {
            (Some(Some(Number::Decimal(decimals))), Widest::Decimal) => Some(decimals),
            (None, Widest::Int32 | Widest::Int64 | Widest::Double) => None,
            _ => return None,
        };
        parts.next().is_none().then_some(sum)
    }

    fn double(&self) -> f64 {
        if self.high.is_nan() {
            self.plain
        } else {
            self.high
        }
    }

    fn decimal(&self) -> Decimal {
        let others = if self.high.is_finite() {
            Decimal::from_f64_exact(self.high).add(Decimal::from_f64_exact(self.low))
        } else {
            Decimal::from_f64_exact(self.plain)
        };
        match self.decimals {
            Some(sum) => sum.add(others),
            None => others,
        }
    }

    fn add_whole(&mut self, value: i64) {
        self.whole = self.whole.saturating_add(value.into());
        // Two halves that are doubles exactly.
        let low = value % (1 << 32);
        self.add_double(low as f64);
        self.add_double((value - low) as f64);
    }

    fn add_double(&mut self, value: f64) {
        self.plain += value;
        let (value, lost_low) = two_sum(value, self.low);
        let (high, lost_high) = two_sum(self.high, value);
        self.high = high;
        self.low = lost_high + lost_low;
    }
}

/// The rounded sum and exactly what rounding lost.
fn two_sum(left: f64, right: f64) -> (f64, f64) {
    let sum = left + right;
    let right_part = sum - left;
    let left_part = sum - right_part;
    (sum, (left - left_part) + (right - right_part))
}
