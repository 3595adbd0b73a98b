//! The sum of any number of numbers, as `$sum`, `$add` and `$avg` make it.
//!
//! Whole numbers and doubles are kept in a pair of doubles (the sum and what it
//! lost to rounding), decimals apart from them; the two meet only in the end.
//! The result has the widest type that was added: int32 widens to int64 and
//! int64 to double where it does not fit.

use super::Number;
use crate::decimal::{Decimal, Rounding};

#[derive(Clone, Copy, Debug)]
pub struct Sum {
    widest: Widest,
    /// Whole numbers alone, exact: used as long as nothing else was added.
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
                self.whole += i128::from(v);
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
        self.widest = self.widest.max(other.widest);
        self.whole += other.whole;
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

    /// Numbers that add up to this sum: what is stored or sent of it.
    pub fn parts(&self) -> Vec<Number> {
        match self.widest {
            Widest::Int32 | Widest::Int64 => {
                let mut parts = Vec::new();
                let mut rest = self.whole;
                loop {
                    match i64::try_from(rest) {
                        Ok(part) => {
                            parts.push(Number::Int64(part));
                            break;
                        }
                        Err(_) => {
                            let part = if rest > 0 { i64::MAX } else { i64::MIN };
                            parts.push(Number::Int64(part));
                            rest -= i128::from(part);
                        }
                    }
                }
                if let (Widest::Int32, [Number::Int64(only)]) = (self.widest, &parts[..])
                    && let Ok(small) = i32::try_from(*only)
                {
                    return vec![Number::Int32(small)];
                }
                parts
            }
            Widest::Double | Widest::Decimal => {
                let mut parts = if self.plain.is_finite() {
                    vec![Number::Double(self.low), Number::Double(self.high)]
                } else {
                    vec![Number::Double(self.plain)]
                };
                parts.extend(self.decimals.map(Number::Decimal));
                parts
            }
        }
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
        self.whole += i128::from(value);
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
