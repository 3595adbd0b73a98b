//! Decimals as text, in the server's format, and back.
//!
//! Writing follows the scientific-string rules of IEEE decimals: plain notation
//! while the exponent is not positive and the number does not begin with more
//! than five zeros after the point; else one digit, the rest behind the point,
//! and `E` with a signed exponent. Trailing zeros are part of the number.

use super::{Decimal, MAX_DIGITS, MAX_EXPONENT, MIN_EXPONENT, digit_count};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseDecimalError {
    #[error("Empty string")]
    Empty,
    #[error("Failed to parse string to decimal")]
    Syntax,
    #[error("Conversion from string to decimal would overflow")]
    Overflow,
    #[error("Conversion from string to decimal would underflow")]
    Underflow,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (negative, coefficient, exponent) = match *self {
            Decimal::NaN => return f.write_str("NaN"),
            Decimal::Infinity { negative: false } => return f.write_str("Infinity"),
            Decimal::Infinity { negative: true } => return f.write_str("-Infinity"),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => (negative, coefficient, exponent),
        };
        if negative {
            f.write_str("-")?;
        }
        let digits = coefficient.to_string();
        let adjusted = exponent + digits.len() as i32 - 1;
        if exponent <= 0 && adjusted >= -6 {
            let point = digits.len() as i32 + exponent;
            return match (exponent, point) {
                (0, _) => f.write_str(&digits),
                (_, 1..) => {
                    let (whole, fraction) = digits.split_at(point as usize);
                    write!(f, "{whole}.{fraction}")
                }
                _ => write!(f, "0.{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
            };
        }
        let (first, rest) = digits.split_at(1);
        f.write_str(first)?;
        if !rest.is_empty() {
            write!(f, ".{rest}")?;
        }
        write!(f, "E{adjusted:+}")
    }
}

impl Decimal {
    /// Reads the server's format: digits with an optional point and exponent,
    /// `nan`, `inf`, `infinity` in any case. Digits beyond the 34th
    /// are dropped, as the server drops them.
    pub fn parse(text: &str) -> Result<Decimal, ParseDecimalError> {
        if text.is_empty() {
            return Err(ParseDecimalError::Empty);
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned.eq_ignore_ascii_case("nan") {
            return Ok(Decimal::NaN);
        }
        if unsigned.eq_ignore_ascii_case("inf") || unsigned.eq_ignore_ascii_case("infinity") {
            return Ok(Decimal::Infinity { negative });
        }
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], parse_exponent(&unsigned[at + 1..])?),
            None => (unsigned, 0),
        };
        let mut digits = Digits::default();
        let mut fraction_digits: i64 = 0;
        let mut seen_point = false;
        let mut seen_digit = false;
        for byte in mantissa.bytes() {
            match byte {
                b'0'..=b'9' => {
                    seen_digit = true;
                    fraction_digits += i64::from(seen_point);
                    digits.push(byte - b'0');
                }
                b'.' if !seen_point => seen_point = true,
                _ => return Err(ParseDecimalError::Syntax),
            }
        }
        if !seen_digit {
            return Err(ParseDecimalError::Syntax);
        }
        fit(
            negative,
            digits.kept,
            exponent - fraction_digits + digits.dropped,
        )
    }
}

fn parse_exponent(text: &str) -> Result<i64, ParseDecimalError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseDecimalError::Syntax);
    }
    // Beyond nine digits all exponents are equally out of range.
    let magnitude = digits.trim_start_matches('0');
    let magnitude = match magnitude.len() {
        0 => 0,
        1..=9 => magnitude.parse().map_err(|_| ParseDecimalError::Syntax)?,
        _ => 999_999_999,
    };
    Ok(if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    })
}

/// Collects digits; those beyond the 34th are dropped, not rounded.
#[derive(Default)]
struct Digits {
    kept: u128,
    count: u32,
    dropped: i64,
}

impl Digits {
    fn push(&mut self, digit: u8) {
        if self.count == MAX_DIGITS {
            self.dropped += 1;
            return;
        }
        self.kept = self.kept * 10 + u128::from(digit);
        if self.kept != 0 {
            self.count += 1;
        }
    }
}

/// Brings the exponent into range by moving zeros into or out of the coefficient.
fn fit(negative: bool, coefficient: u128, exponent: i64) -> Result<Decimal, ParseDecimalError> {
    let (low, high) = (i64::from(MIN_EXPONENT), i64::from(MAX_EXPONENT));
    let mut fitted = coefficient;
    if exponent > high && coefficient != 0 {
        let missing = exponent - high;
        if missing + i64::from(digit_count(coefficient)) > i64::from(MAX_DIGITS) {
            return Err(ParseDecimalError::Overflow);
        }
        fitted *= 10u128.pow(missing as u32);
    }
    if exponent < low && coefficient != 0 {
        let surplus = low - exponent;
        let divisor = u32::try_from(surplus)
            .ok()
            .and_then(|surplus| 10u128.checked_pow(surplus))
            .ok_or(ParseDecimalError::Underflow)?;
        if !coefficient.is_multiple_of(divisor) {
            return Err(ParseDecimalError::Underflow);
        }
        fitted /= divisor;
    }
    Ok(Decimal::Finite {
        negative,
        coefficient: fitted,
        exponent: exponent.clamp(low, high) as i32,
    })
}
