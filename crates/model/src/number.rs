//! Numbers across BSON's four numeric types: order, conversion, arithmetic.
//!
//! Order is by exact value, whatever the types: 2^53 + 1 as an int64 is above
//! 2^53 as a double, and the double 0.1 is above the decimal 0.1. NaN equals
//! itself and is below all other numbers; the zeros are equal.
//!
//! Arithmetic promotes as the server does, along int32, int64, double, decimal.
//! An int32 result that overflows becomes an int64. An int64 result that
//! overflows is refused by an update operator (the `_checked` functions) and
//! goes on in doubles in an expression (the `_widening` ones). Sums of many
//! numbers go through [`Sum`].

use crate::bson::{Value, ValueRef};
use crate::decimal::Decimal;
use std::cmp::Ordering;

mod sum;

pub use sum::Sum;

/// A number taken out of its value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    Int32(i32),
    Int64(i64),
    Double(f64),
    Decimal(Decimal),
}

impl Number {
    pub fn of(value: ValueRef<'_>) -> Option<Number> {
        match value {
            ValueRef::Int32(v) => Some(Number::Int32(v)),
            ValueRef::Int64(v) => Some(Number::Int64(v)),
            ValueRef::Double(v) => Some(Number::Double(v)),
            ValueRef::Decimal128(v) => Some(Number::Decimal(Decimal::from_bits(v))),
            _ => None,
        }
    }

    pub fn to_value(self) -> Value {
        match self {
            Number::Int32(v) => Value::Int32(v),
            Number::Int64(v) => Value::Int64(v),
            Number::Double(v) => Value::Double(v),
            Number::Decimal(v) => Value::Decimal128(v.to_bits()),
        }
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Int32(v) => v.into(),
            Number::Int64(v) => v as f64,
            Number::Double(v) => v,
            Number::Decimal(v) => v.to_f64(),
        }
    }

    /// As a decimal; a double keeps 15 digits.
    pub fn to_decimal(self) -> Decimal {
        match self {
            Number::Int32(v) => Decimal::from_i64(v.into()),
            Number::Int64(v) => Decimal::from_i64(v),
            Number::Double(v) => Decimal::from_f64(v),
            Number::Decimal(v) => v,
        }
    }

    /// The same whole number, if it is one and fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Number::Int32(v) => Some(v.into()),
            Number::Int64(v) => Some(v),
            Number::Double(v) => double_to_i64_exact(v),
            Number::Decimal(v) => v.to_i64_exact(),
        }
    }

    /// The whole part, if it fits: NaN and infinities do not.
    pub fn to_i64_truncated(self) -> Option<i64> {
        match self {
            Number::Int32(v) => Some(v.into()),
            Number::Int64(v) => Some(v),
            Number::Double(v) => double_to_i64_exact(v.trunc()),
            Number::Decimal(v) => v.to_i64_truncated(),
        }
    }

    pub fn is_integral(self) -> bool {
        match self {
            Number::Int32(_) | Number::Int64(_) => true,
            Number::Double(v) => v.is_finite() && v.trunc() == v,
            Number::Decimal(v) => v.is_integral(),
        }
    }

    pub fn is_nan(self) -> bool {
        match self {
            Number::Int32(_) | Number::Int64(_) => false,
            Number::Double(v) => v.is_nan(),
            Number::Decimal(v) => v.is_nan(),
        }
    }

    pub fn is_zero(self) -> bool {
        match self {
            Number::Int32(v) => v == 0,
            Number::Int64(v) => v == 0,
            Number::Double(v) => v == 0.0,
            Number::Decimal(v) => v.is_zero(),
        }
    }

    pub fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Int32(a), Number::Int32(b)) => a.cmp(&b),
            (Number::Int64(a), Number::Int64(b)) => a.cmp(&b),
            (Number::Int32(a), Number::Int64(b)) => i64::from(a).cmp(&b),
            (Number::Int64(a), Number::Int32(b)) => a.cmp(&b.into()),
            (Number::Double(a), Number::Double(b)) => compare_doubles(a, b),
            (Number::Int32(a), Number::Double(b)) => compare_doubles(a.into(), b),
            (Number::Double(a), Number::Int32(b)) => compare_doubles(a, b.into()),
            (Number::Int64(a), Number::Double(b)) => compare_i64_to_double(a, b),
            (Number::Double(a), Number::Int64(b)) => compare_i64_to_double(b, a).reverse(),
            (Number::Decimal(a), Number::Decimal(b)) => a.compare(b),
            (Number::Decimal(a), Number::Double(b)) => a.compare_f64(b),
            (Number::Double(a), Number::Decimal(b)) => b.compare_f64(a).reverse(),
            (Number::Decimal(a), Number::Int32(b)) => a.compare(Decimal::from_i64(b.into())),
            (Number::Decimal(a), Number::Int64(b)) => a.compare(Decimal::from_i64(b)),
            (Number::Int32(a), Number::Decimal(b)) => Decimal::from_i64(a.into()).compare(b),
            (Number::Int64(a), Number::Decimal(b)) => Decimal::from_i64(a).compare(b),
        }
    }
}

/// Compares two numbers by value; `None` if either is not a number.
#[inline]
pub fn compare(left: ValueRef<'_>, right: ValueRef<'_>) -> Option<Ordering> {
    match (left, right) {
        (ValueRef::Int32(a), ValueRef::Int32(b)) => Some(a.cmp(&b)),
        (ValueRef::Int64(a), ValueRef::Int64(b)) => Some(a.cmp(&b)),
        (ValueRef::Double(a), ValueRef::Double(b)) => Some(compare_doubles(a, b)),
        _ => Some(Number::of(left)?.compare(Number::of(right)?)),
    }
}

/// Whether a value counts as true where a boolean is asked for: all but false,
/// null, undefined and the zeros.
pub fn is_truthy(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Boolean(v) => v,
        ValueRef::Null | ValueRef::Undefined => false,
        other => Number::of(other).is_none_or(|number| !number.is_zero()),
    }
}

fn compare_doubles(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right)
        .unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
}

fn compare_i64_to_double(left: i64, right: f64) -> Ordering {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if right.is_nan() || right < -LIMIT {
        return Ordering::Greater;
    }
    if right >= LIMIT {
        return Ordering::Less;
    }
    // The whole part is exact in 64 bits now; equal whole parts leave the fraction to decide.
    let whole = right.trunc();
    left.cmp(&(whole as i64))
        .then_with(|| compare_doubles(whole, right))
}

fn double_to_i64_exact(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let whole = value.trunc() == value && (-LIMIT..LIMIT).contains(&value);
    whole.then_some(value as i64)
}

/// How two operands meet: the wider of their types.
enum Pair {
    Int32(i32, i32),
    Int64(i64, i64),
    Double(f64, f64),
    Decimal(Decimal, Decimal),
}

fn promote(left: Number, right: Number) -> Pair {
    match (left, right) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Pair::Decimal(left.to_decimal(), right.to_decimal())
        }
        (Number::Double(_), _) | (_, Number::Double(_)) => {
            Pair::Double(left.to_f64(), right.to_f64())
        }
        (Number::Int32(a), Number::Int32(b)) => Pair::Int32(a, b),
        (Number::Int64(a), Number::Int64(b)) => Pair::Int64(a, b),
        (Number::Int32(a), Number::Int64(b)) => Pair::Int64(a.into(), b),
        (Number::Int64(a), Number::Int32(b)) => Pair::Int64(a, b.into()),
    }
}

fn from_i64_small(value: i64) -> Number {
    i32::try_from(value).map_or(Number::Int64(value), Number::Int32)
}

/// `left + right`; `None` if an int64 overflows.
pub fn add_checked(left: Number, right: Number) -> Option<Number> {
    Some(match promote(left, right) {
        Pair::Int32(a, b) => from_i64_small(i64::from(a) + i64::from(b)),
        Pair::Int64(a, b) => Number::Int64(a.checked_add(b)?),
        Pair::Double(a, b) => Number::Double(a + b),
        Pair::Decimal(a, b) => Number::Decimal(a.add(b)),
    })
}

/// `left - right`; `None` if an int64 overflows.
pub fn subtract_checked(left: Number, right: Number) -> Option<Number> {
    Some(match promote(left, right) {
        Pair::Int32(a, b) => from_i64_small(i64::from(a) - i64::from(b)),
        Pair::Int64(a, b) => Number::Int64(a.checked_sub(b)?),
        Pair::Double(a, b) => Number::Double(a - b),
        Pair::Decimal(a, b) => Number::Decimal(a.subtract(b)),
    })
}

/// `left * right`; `None` if an int64 overflows.
pub fn multiply_checked(left: Number, right: Number) -> Option<Number> {
    Some(match promote(left, right) {
        Pair::Int32(a, b) => from_i64_small(i64::from(a) * i64::from(b)),
        Pair::Int64(a, b) => Number::Int64(a.checked_mul(b)?),
        Pair::Double(a, b) => Number::Double(a * b),
        Pair::Decimal(a, b) => Number::Decimal(a.multiply(b)),
    })
}

/// `left - right`, in doubles where an int64 overflows.
pub fn subtract_widening(left: Number, right: Number) -> Number {
    subtract_checked(left, right).unwrap_or_else(|| Number::Double(left.to_f64() - right.to_f64()))
}

/// `left * right`, in doubles where an int64 overflows.
pub fn multiply_widening(left: Number, right: Number) -> Number {
    multiply_checked(left, right).unwrap_or_else(|| Number::Double(left.to_f64() * right.to_f64()))
}

/// `left + right`, in doubles where an int64 overflows. A sum of more than two
/// is not the same as repeated calls: see [`Sum`].
pub fn add_widening(left: Number, right: Number) -> Number {
    add_checked(left, right).unwrap_or_else(|| Number::Double(left.to_f64() + right.to_f64()))
}

/// `left / right`: a double, or a decimal if either is one. The divisor is not zero.
pub fn divide(left: Number, right: Number) -> Number {
    match promote(left, right) {
        Pair::Decimal(a, b) => Number::Decimal(a.divide(b)),
        Pair::Int32(..) | Pair::Int64(..) | Pair::Double(..) => {
            Number::Double(left.to_f64() / right.to_f64())
        }
    }
}

/// The remainder of truncated division. The divisor is not zero.
pub fn remainder(left: Number, right: Number) -> Number {
    match promote(left, right) {
        Pair::Int32(a, b) => Number::Int32(a.checked_rem(b).unwrap_or(0)),
        Pair::Int64(a, b) => Number::Int64(a.checked_rem(b).unwrap_or(0)),
        Pair::Double(a, b) => Number::Double(a % b),
        Pair::Decimal(a, b) => Number::Decimal(a.remainder(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Number, Sum, multiply_widening, remainder, subtract_widening};
    use crate::decimal::Decimal;

    const I32: fn(i32) -> Number = Number::Int32;
    const I64: fn(i64) -> Number = Number::Int64;
    const F64: fn(f64) -> Number = Number::Double;

    fn dec(text: &str) -> Number {
        Number::Decimal(Decimal::parse(text).expect("the tables hold decimals"))
    }

    fn check(result: Number, expected: Number) {
        assert_eq!(format!("{result:?}"), format!("{expected:?}"));
    }

    /// As `$add` of `mongod` 6.0.5 answered.
    #[test]
    fn sums_are_the_servers() {
        for (numbers, expected) in [
            (vec![], I32(0)),
            (vec![I32(i32::MAX), I32(1)], I64(2147483648)),
            (vec![I32(1), I64(1)], I64(2)),
            (vec![I64(i64::MAX), I32(1)], F64(9.223372036854776e18)),
            (vec![I64(i64::MAX), I32(1), I32(-1)], I64(i64::MAX)),
            (
                vec![I64(i64::MAX), I64(i64::MAX), I64(i64::MIN)],
                I64(9223372036854775806),
            ),
            (vec![F64(0.1), F64(0.2)], F64(0.30000000000000004)),
            (vec![F64(0.1), F64(0.2), F64(0.3)], F64(0.6)),
            (vec![F64(1e100), I32(1), F64(-1e100)], F64(0.0)),
            (vec![F64(1e100), I32(1), F64(-1e100), dec("0")], dec("1")),
            (
                vec![F64(1e308), F64(1e308), F64(-1e308)],
                F64(f64::INFINITY),
            ),
            (vec![F64(f64::INFINITY), I32(1)], F64(f64::INFINITY)),
            (
                vec![F64(f64::INFINITY), F64(f64::NEG_INFINITY)],
                F64(f64::NAN),
            ),
            (
                vec![I64(i64::MAX), I64(i64::MAX), dec("0")],
                dec("18446744073709551614"),
            ),
            (
                vec![F64(0.1), dec("1")],
                dec("1.100000000000000005551115123125783"),
            ),
            (
                vec![F64(0.1), F64(0.2), dec("0")],
                dec("0.3000000000000000166533453693773481"),
            ),
            (vec![I64((1 << 53) + 1), F64(0.5)], F64(9007199254740994.0)),
        ] {
            let mut sum = Sum::new();
            numbers.iter().for_each(|number| sum.add(*number));
            check(sum.total(), expected);
        }
        let mut sum = Sum::new();
        for number in [0.1, 0.2, 0.3] {
            sum.add(F64(number));
        }
        check(sum.average(3), F64(0.19999999999999998));
        let mut sum = Sum::new();
        sum.add(I32(1));
        sum.add(dec("2"));
        check(sum.average(2), dec("1.5"));
    }

    #[test]
    fn overflow_widens() {
        check(multiply_widening(I32(65536), I32(65536)), I64(1 << 32));
        check(multiply_widening(I64(1 << 62), I32(4)), F64(2f64.powi(64)));
        check(
            subtract_widening(I64(i64::MIN), I32(1)),
            F64(-(2f64.powi(63))),
        );
        check(
            subtract_widening(F64(0.1), dec("0")),
            dec("0.100000000000000"),
        );
        check(remainder(I64(i64::MIN), I32(-1)), I64(0));
        check(remainder(I32(i32::MIN), I32(-1)), I32(0));
        check(remainder(F64(5.7), I32(3)), F64(2.7));
        check(remainder(I32(-7), I32(3)), I32(-1));
    }
}
