//! 128-bit decimals: taking BSON's bytes apart and putting them together.
//!
//! BSON stores the binary integer form (BID) of IEEE 754, little endian:
//!
//! ```text
//!   bit 127   126..113            112..0
//!   sign      exponent + 6176     coefficient            (bits 126..125 not 11)
//!   sign      11110 …             infinity
//!   sign      11111 …             not a number
//!   sign      11 …                coefficient over 34 digits: reads as zero
//! ```
//!
//! [`Decimal`] is the same number taken apart. A coefficient over 34 digits is
//! not canonical and has the value zero, as the server treats it; its bytes are
//! kept wherever a value is only passed on.
//!
//! `text` reads and writes strings, `arithmetic` computes (on
//! libdecnumber), `trigonometry` sums up series, of angles that `angle` has made
//! small.

mod angle;
mod arithmetic;
mod text;
mod trigonometry;

pub use arithmetic::Rounding;
pub use text::ParseDecimalError;

use crate::bson::Decimal128;
use crate::natural::Natural;
use std::cmp::Ordering;

/// Most digits a coefficient has.
pub const MAX_DIGITS: u32 = 34;
pub const MAX_COEFFICIENT: u128 = 10u128.pow(MAX_DIGITS) - 1;
/// The exponents of the coefficient's last digit.
pub const MIN_EXPONENT: i32 = -6176;
pub const MAX_EXPONENT: i32 = 6111;

const BIAS: i32 = 6176;

/// A decimal taken apart: `(-1)^negative * coefficient * 10^exponent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decimal {
    Finite {
        negative: bool,
        /// At most [`MAX_COEFFICIENT`].
        coefficient: u128,
        /// Within [`MIN_EXPONENT`] and [`MAX_EXPONENT`].
        exponent: i32,
    },
    Infinity {
        negative: bool,
    },
    NaN,
}

impl Decimal {
    pub const ZERO: Decimal = Decimal::Finite {
        negative: false,
        coefficient: 0,
        exponent: 0,
    };

    pub const ONE: Decimal = Decimal::Finite {
        negative: false,
        coefficient: 1,
        exponent: 0,
    };

    pub fn from_bits(stored: Decimal128) -> Self {
        let bits = u128::from_le_bytes(stored.0);
        let negative = bits >> 127 == 1;
        match (bits >> 122) as u8 & 0b1_1111 {
            0b1_1111 => Decimal::NaN,
            0b1_1110 => Decimal::Infinity { negative },
            top if top >> 3 == 0b11 => Decimal::Finite {
                negative,
                coefficient: 0,
                exponent: clamp_exponent(((bits >> 111) as i32 & 0x3FFF) - BIAS),
            },
            _ => {
                let coefficient = bits & ((1 << 113) - 1);
                Decimal::Finite {
                    negative,
                    coefficient: if coefficient > MAX_COEFFICIENT {
                        0
                    } else {
                        coefficient
                    },
                    exponent: ((bits >> 113) as i32 & 0x3FFF) - BIAS,
                }
            }
        }
    }

    /// The canonical bytes of this number.
    pub fn to_bits(self) -> Decimal128 {
        let sign = |negative: bool| u128::from(negative) << 127;
        let bits = match self {
            Decimal::NaN => 0b1_1111 << 122,
            Decimal::Infinity { negative } => sign(negative) | (0b1_1110 << 122),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                assert!(
                    coefficient <= MAX_COEFFICIENT
                        && (MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent),
                    "a finite decimal stays within its 34 digits and exponents"
                );
                sign(negative) | (((exponent + BIAS) as u128) << 113) | coefficient
            }
        };
        Decimal128(bits.to_le_bytes())
    }

    pub fn from_i64(value: i64) -> Self {
        Decimal::Finite {
            negative: value < 0,
            coefficient: value.unsigned_abs().into(),
            exponent: 0,
        }
    }

    /// A double with 15 significant digits, trailing zeros kept: what the
    /// server makes of a double where it meets a decimal.
    pub fn from_f64(value: f64) -> Self {
        if value == 0.0 {
            return Decimal::Finite {
                negative: value.is_sign_negative(),
                coefficient: 0,
                exponent: 0,
            };
        }
        Self::from_f64_digits(value, 15)
    }

    /// A double's exact value rounded to 34 digits: what sums are made of.
    pub fn from_f64_exact(value: f64) -> Self {
        Self::from_f64_digits(value, MAX_DIGITS as usize).stripped()
    }

    fn from_f64_digits(value: f64, digits: usize) -> Self {
        if value.is_nan() {
            return Decimal::NaN;
        }
        if value.is_infinite() {
            return Decimal::Infinity {
                negative: value < 0.0,
            };
        }
        // Rust prints the exact expansion, correctly rounded to the digits asked for.
        let printed = format!("{value:.*e}", digits - 1);
        Self::parse(&printed).unwrap_or(Decimal::NaN)
    }

    /// The nearest double. A decimal beyond the doubles becomes infinite, one
    /// below them zero.
    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::NaN => f64::NAN,
            Decimal::Infinity { negative: false } => f64::INFINITY,
            Decimal::Infinity { negative: true } => f64::NEG_INFINITY,
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                // The standard library's parser rounds correctly.
                let magnitude: f64 = format!("{coefficient}e{exponent}")
                    .parse()
                    .expect("digits and an exponent are a number");
                if negative { -magnitude } else { magnitude }
            }
        }
    }

    /// The same whole number, if it is one and fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self.stripped() {
            Decimal::Finite { exponent, .. } if exponent < 0 => None,
            stripped => stripped.to_i64_truncated(),
        }
    }

    /// The whole part, if it fits.
    pub fn to_i64_truncated(self) -> Option<i64> {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return None;
        };
        let magnitude = if exponent <= 0 {
            let divisor = 10u128.checked_pow(exponent.unsigned_abs());
            divisor.map_or(0, |divisor| coefficient / divisor)
        } else if coefficient == 0 {
            0
        } else {
            10u128
                .checked_pow(exponent.unsigned_abs())?
                .checked_mul(coefficient)?
        };
        let value = i128::try_from(magnitude).ok()?;
        i64::try_from(if negative { -value } else { value }).ok()
    }

    pub fn is_integral(self) -> bool {
        match self.stripped() {
            Decimal::Finite { exponent, .. } => exponent >= 0,
            Decimal::Infinity { .. } | Decimal::NaN => false,
        }
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Decimal::Finite { coefficient: 0, .. })
    }

    pub fn is_nan(self) -> bool {
        matches!(self, Decimal::NaN)
    }

    pub fn is_infinite(self) -> bool {
        matches!(self, Decimal::Infinity { .. })
    }

    /// The sign bit; never set on NaN.
    pub fn is_negative(self) -> bool {
        match self {
            Decimal::Finite { negative, .. } | Decimal::Infinity { negative } => negative,
            Decimal::NaN => false,
        }
    }

    /// The same value without trailing zeros in its coefficient; zero becomes
    /// `0E0`, as far as the exponent range allows.
    pub fn stripped(self) -> Self {
        let Decimal::Finite {
            negative,
            mut coefficient,
            mut exponent,
        } = self
        else {
            return self;
        };
        if coefficient == 0 {
            exponent = 0;
        }
        while coefficient != 0 && coefficient.is_multiple_of(10) && exponent < MAX_EXPONENT {
            coefficient /= 10;
            exponent += 1;
        }
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        }
    }

    /// Orders by value: NaN equals itself and is below all else, the zeros are equal.
    pub fn compare(self, other: Decimal) -> Ordering {
        match (self.rank(), other.rank()) {
            (0, 0) => {}
            (left, right) => return left.cmp(&right),
        }
        let (
            Decimal::Finite {
                negative: left_negative,
                coefficient: left,
                exponent: left_exponent,
            },
            Decimal::Finite {
                negative: right_negative,
                coefficient: right,
                exponent: right_exponent,
            },
        ) = (self, other)
        else {
            return Ordering::Equal;
        };
        let left_sign = sign(left_negative, left);
        let signs = left_sign.cmp(&sign(right_negative, right));
        if signs.is_ne() || left_sign == 0 {
            return signs;
        }
        let magnitudes = compare_magnitudes(left, left_exponent, right, right_exponent);
        if left_negative {
            magnitudes.reverse()
        } else {
            magnitudes
        }
    }

    /// Orders a decimal against a double by exact value.
    pub fn compare_f64(self, double: f64) -> Ordering {
        if double.is_nan() {
            return if self.is_nan() {
                Ordering::Equal
            } else {
                Ordering::Greater
            };
        }
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return self.rank().cmp(&double_rank(double));
        };
        if double.is_infinite() {
            return 0.cmp(&double_rank(double));
        }
        let own_sign = sign(negative, coefficient);
        let double_sign = i8::from(double > 0.0) - i8::from(double < 0.0);
        if own_sign != double_sign || own_sign == 0 {
            return own_sign.cmp(&double_sign);
        }
        let magnitudes = compare_magnitude_to_double(coefficient, exponent, double.abs());
        if negative {
            magnitudes.reverse()
        } else {
            magnitudes
        }
    }

    /// NaN, minus infinity, the finite numbers, infinity.
    fn rank(self) -> i8 {
        match self {
            Decimal::NaN => -2,
            Decimal::Infinity { negative: true } => -1,
            Decimal::Finite { .. } => 0,
            Decimal::Infinity { negative: false } => 1,
        }
    }
}

impl std::fmt::Debug for Decimal128 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decimal128(\"{}\")", Decimal::from_bits(*self))
    }
}

fn double_rank(double: f64) -> i8 {
    if !double.is_infinite() {
        0
    } else if double > 0.0 {
        1
    } else {
        -1
    }
}

fn sign(negative: bool, coefficient: u128) -> i8 {
    match (coefficient, negative) {
        (0, _) => 0,
        (_, false) => 1,
        (_, true) => -1,
    }
}

fn clamp_exponent(exponent: i32) -> i32 {
    exponent.clamp(MIN_EXPONENT, MAX_EXPONENT)
}

/// Number of decimal digits; zero has one.
pub(crate) fn digit_count(coefficient: u128) -> u32 {
    coefficient.checked_ilog10().unwrap_or(0) + 1
}

fn compare_magnitudes(
    left: u128,
    left_exponent: i32,
    right: u128,
    right_exponent: i32,
) -> Ordering {
    let (left_digits, right_digits) = (digit_count(left), digit_count(right));
    let left_top = left_digits as i32 + left_exponent;
    let right_top = right_digits as i32 + right_exponent;
    if left_top != right_top {
        return left_top.cmp(&right_top);
    }
    // The same power of ten leads both: align the last digits, which at most
    // brings the shorter coefficient to the length of the longer.
    let digits = left_digits.max(right_digits);
    let align = |coefficient: u128, own: u32| coefficient * 10u128.pow(digits - own);
    align(left, left_digits).cmp(&align(right, right_digits))
}

fn compare_magnitude_to_double(coefficient: u128, exponent: i32, double: f64) -> Ordering {
    let top = digit_count(coefficient) as i32 + exponent;
    // All doubles lie in 10^-324 .. 10^309.
    if top > 309 {
        return Ordering::Greater;
    }
    if top < -323 {
        return Ordering::Less;
    }
    let (mantissa, binary_exponent) = decompose(double);
    let mut left = Natural::new(coefficient);
    let mut right = Natural::new(mantissa.into());
    match exponent {
        0.. => left.scale_by_ten(exponent.unsigned_abs()),
        _ => right.scale_by_ten(exponent.unsigned_abs()),
    }
    match binary_exponent {
        0.. => right.shift_left(binary_exponent.unsigned_abs()),
        _ => left.shift_left(binary_exponent.unsigned_abs()),
    }
    left.cmp(&right)
}

/// A finite double's magnitude as `mantissa * 2^exponent`.
pub(crate) fn decompose(double: f64) -> (u64, i32) {
    let bits = double.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52) as i32 & 0x7FF {
        0 => (fraction, -1074),
        biased => (fraction | (1 << 52), biased - 1075),
    }
}

#[cfg(test)]
mod tests;
