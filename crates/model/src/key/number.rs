//! Numbers in keys: one encoding for equal values of all four types.
//!
//! A number's magnitude is brought into one of these forms, which depends on
//! the value alone, never on the type; see the layout in the parent module.
//! Everything is exact: no step rounds.

use super::decode::Reader;
use super::type_bits::TypeBitsReader;
use super::{KeyError, TypeBits, tag};
use crate::bson::{Decimal128, Value, ValueRef};
use crate::decimal::{
    Decimal, MAX_COEFFICIENT, MAX_EXPONENT, MIN_EXPONENT, decompose, digit_count,
};
use crate::natural::Natural;

/// The largest magnitude of the integer form, and one.
const WHOLE_LIMIT: u64 = 1 << 63;
/// Binary digits kept before a decimal has to continue.
const MAX_BITS: u32 = 63;
/// Of the leading one of the smallest and largest doubles.
const MIN_BINARY_EXPONENT: i32 = -1074;
const MAX_BINARY_EXPONENT: i32 = 1023;
/// Lowest exponent that is written in one byte.
const SHORT_EXPONENT: i32 = -200;
const POWER_BIAS: i32 = 32768;
const CANONICAL_NAN: u64 = 0x7FF8_0000_0000_0000;

/// Binary digits behind the whole part or behind the leading one.
#[derive(Clone, Copy, Default)]
struct Bits {
    /// The first digit is the highest bit; the lowest is unused.
    digits: u64,
    /// The whole number as a decimal, where 63 binary digits do not hold it.
    rest: Option<Digits>,
}

/// A decimal magnitude without trailing zeros in its coefficient.
#[derive(Clone, Copy)]
struct Digits {
    coefficient: u128,
    exponent: i32,
}

/// A finite magnitude above zero.
enum Magnitude {
    /// Within 1 and 2^63.
    Integer { whole: u64, fraction: Bits },
    /// Below 1 or from 2^63, within the range of doubles.
    Scaled { exponent: i32, fraction: Bits },
    /// Outside the range of doubles.
    Beyond(Digits),
}

/// A number as its key tells it, without its type.
enum Parsed {
    NaN,
    Zero,
    Infinity {
        negative: bool,
    },
    Finite {
        negative: bool,
        magnitude: Magnitude,
    },
}

// Numbers in type bits, behind a one bit.
const INT32: u128 = 0b000;
const INT64: u128 = 0b001;
const DOUBLE: u128 = 0b010;
const DECIMAL: u128 = 0b011;
const ANY_DOUBLE: u128 = 0b100;
const ANY_DECIMAL: u128 = 0b101;
const NEGATIVE_ZERO: u128 = 0b110;
const DECIMAL_ZERO: u128 = 0b111;

pub(super) fn encode(out: &mut Vec<u8>, type_bits: &mut TypeBits, value: ValueRef<'_>) {
    match value {
        ValueRef::Int32(v) => {
            type_bits.push(false);
            encode_i64(out, v.into());
        }
        ValueRef::Int64(v) => {
            let usual = i32::try_from(v).is_err() && v != i64::MIN;
            mark(type_bits, usual, INT64);
            encode_i64(out, v);
        }
        ValueRef::Double(v) => encode_double(out, type_bits, v),
        ValueRef::Decimal128(v) => encode_decimal(out, type_bits, v),
        _ => unreachable!("the caller passes numbers only"),
    }
}

fn mark(type_bits: &mut TypeBits, usual: bool, number_type: u128) {
    type_bits.push(!usual);
    if !usual {
        type_bits.push_bits(number_type, 3);
    }
}

fn encode_i64(out: &mut Vec<u8>, value: i64) {
    if value == 0 {
        out.push(tag::ZERO);
        return;
    }
    let magnitude = match value.unsigned_abs() {
        WHOLE_LIMIT => Magnitude::Scaled {
            exponent: 63,
            fraction: Bits::default(),
        },
        whole => Magnitude::Integer {
            whole,
            fraction: Bits::default(),
        },
    };
    magnitude.write(out, value < 0);
}

fn encode_double(out: &mut Vec<u8>, type_bits: &mut TypeBits, value: f64) {
    if value.is_nan() {
        let usual = value.to_bits() == CANONICAL_NAN;
        mark(type_bits, usual, ANY_DOUBLE);
        if !usual {
            type_bits.push_bits(value.to_bits().into(), 64);
        }
        out.push(tag::NAN);
    } else if value.is_infinite() {
        type_bits.push(false);
        write_infinity(out, value < 0.0);
    } else if value == 0.0 {
        let zero_type = if value.is_sign_negative() {
            NEGATIVE_ZERO
        } else {
            DOUBLE
        };
        mark(type_bits, false, zero_type);
        out.push(tag::ZERO);
    } else {
        let magnitude = Magnitude::of_double(value.abs());
        mark(type_bits, !magnitude.is_whole(), DOUBLE);
        magnitude.write(out, value < 0.0);
    }
}

fn encode_decimal(out: &mut Vec<u8>, type_bits: &mut TypeBits, stored: Decimal128) {
    let decimal = Decimal::from_bits(stored);
    let canonical = decimal.to_bits() == stored;
    if !canonical {
        mark(type_bits, false, ANY_DECIMAL);
        type_bits.push_bits(u128::from_le_bytes(stored.0), 128);
    }
    match decimal {
        Decimal::NaN => {
            mark_decimal(type_bits, canonical, 0);
            out.push(tag::NAN);
        }
        Decimal::Infinity { negative } => {
            mark_decimal(type_bits, canonical, 0);
            write_infinity(out, negative);
        }
        Decimal::Finite {
            negative,
            coefficient: 0,
            exponent,
        } => {
            if canonical {
                mark(type_bits, false, DECIMAL_ZERO);
                type_bits.push(negative);
                type_bits.push_bits((exponent - MIN_EXPONENT) as u128, 14);
            }
            out.push(tag::ZERO);
        }
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } => {
            let digits = Digits::stripped(coefficient, exponent);
            mark_decimal(type_bits, canonical, (digits.exponent - exponent) as u128);
            Magnitude::of_decimal(digits).write(out, negative);
        }
    }
}

fn mark_decimal(type_bits: &mut TypeBits, canonical: bool, trailing_zeros: u128) {
    if canonical {
        mark(type_bits, false, DECIMAL);
        type_bits.push_bits(trailing_zeros, 6);
    }
}

fn write_infinity(out: &mut Vec<u8>, negative: bool) {
    out.push(if negative {
        tag::ZERO - tag::INFINITE
    } else {
        tag::INFINITY
    });
}

impl Digits {
    fn stripped(mut coefficient: u128, mut exponent: i32) -> Self {
        while coefficient != 0 && coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent += 1;
        }
        Self {
            coefficient,
            exponent,
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        let count = digit_count(self.coefficient);
        let power = self.exponent + count as i32 - 1 + POWER_BIAS;
        out.extend_from_slice(&(power as u16).to_be_bytes());
        let even = if count.is_multiple_of(2) {
            self.coefficient
        } else {
            self.coefficient * 10
        };
        for pair in (0..count.div_ceil(2)).rev() {
            out.push((even / 100u128.pow(pair) % 100) as u8 + 1);
        }
        out.push(0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, KeyError> {
        let power = i32::from(u16::from_be_bytes(reader.array()?)) - POWER_BIAS;
        let mut coefficient: u128 = 0;
        let mut count = 0;
        loop {
            match reader.byte()? {
                0 => break,
                _ if count >= 34 => return Err(KeyError::Malformed("decimal of over 34 digits")),
                pair @ 1..=100 => coefficient = coefficient * 100 + u128::from(pair - 1),
                _ => return Err(KeyError::Malformed("digit pair over 99")),
            }
            count += 2;
        }
        if coefficient == 0 {
            return Err(KeyError::Malformed("decimal without digits"));
        }
        Ok(Self::stripped(coefficient, power - count + 1))
    }

    fn to_decimal(self, negative: bool, trailing_zeros: u32) -> Option<Decimal> {
        let coefficient = 10u128
            .checked_pow(trailing_zeros)?
            .checked_mul(self.coefficient)
            .filter(|coefficient| *coefficient <= MAX_COEFFICIENT)?;
        let exponent = self.exponent - trailing_zeros as i32;
        (MIN_EXPONENT..=MAX_EXPONENT)
            .contains(&exponent)
            .then_some(Decimal::Finite {
                negative,
                coefficient,
                exponent,
            })
    }
}

impl Bits {
    fn is_none(&self) -> bool {
        self.digits == 0 && self.rest.is_none()
    }

    fn write(self, out: &mut Vec<u8>) {
        let mut left = self.digits;
        for group in 1..=9 {
            let bits = (left >> 57) as u8;
            left <<= 7;
            let more = match group {
                9 => self.rest.is_some(),
                _ => left != 0 || self.rest.is_some(),
            };
            out.push(bits << 1 | u8::from(more));
            if !more {
                return;
            }
        }
        if let Some(rest) = self.rest {
            rest.write(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, KeyError> {
        let mut digits = 0;
        for group in 1..=9 {
            let byte = reader.byte()?;
            digits |= u64::from(byte >> 1) << (64 - 7 * group);
            if byte & 1 == 0 {
                return Ok(Self { digits, rest: None });
            }
        }
        let rest = Some(Digits::read(reader)?);
        Ok(Self { digits, rest })
    }
}

impl Magnitude {
    fn of_double(value: f64) -> Self {
        let (mantissa, exponent) = decompose(value);
        let length = bit_length(mantissa);
        let leading = exponent + length as i32 - 1;
        if (0..63).contains(&leading) {
            let whole = value.trunc();
            // Both steps are exact: at most 52 binary digits are left.
            let digits = ((value - whole) * 2f64.powi(64)) as u64;
            return Magnitude::Integer {
                whole: whole as u64,
                fraction: Bits { digits, rest: None },
            };
        }
        Magnitude::Scaled {
            exponent: leading,
            fraction: Bits {
                digits: mantissa.checked_shl(65 - length).unwrap_or(0),
                rest: None,
            },
        }
    }

    fn of_decimal(digits: Digits) -> Self {
        if let Some(integer) = Self::integer_of(digits) {
            return integer;
        }
        let power = digits.exponent + digit_count(digits.coefficient) as i32 - 1;
        // Doubles lie within 10^-324 and 10^309.
        if !(-325..=309).contains(&power) {
            return Magnitude::Beyond(digits);
        }
        let mut numerator = Natural::new(digits.coefficient);
        let mut denominator = Natural::new(1);
        if digits.exponent >= 0 {
            numerator.scale_by_ten(digits.exponent.unsigned_abs());
        } else {
            denominator.scale_by_ten(digits.exponent.unsigned_abs());
        }
        // Scale by two so that the quotient is from 1 to below 2.
        let mut exponent = numerator.bit_length() as i32 - denominator.bit_length() as i32;
        if exponent >= 0 {
            denominator.shift_left(exponent.unsigned_abs());
        } else {
            numerator.shift_left(exponent.unsigned_abs());
        }
        if numerator < denominator {
            numerator.shift_left(1);
            exponent -= 1;
        }
        if !(MIN_BINARY_EXPONENT..=MAX_BINARY_EXPONENT).contains(&exponent) {
            return Magnitude::Beyond(digits);
        }
        numerator.subtract(&denominator);
        let mut bits = 0;
        for at in 0..MAX_BITS {
            numerator.shift_left(1);
            if numerator >= denominator {
                numerator.subtract(&denominator);
                bits |= WHOLE_LIMIT >> at;
            }
        }
        Magnitude::Scaled {
            exponent,
            fraction: Bits {
                digits: bits,
                rest: (!numerator.is_zero()).then_some(digits),
            },
        }
    }

    /// The integer form, for a decimal from 1 to below 2^63.
    fn integer_of(digits: Digits) -> Option<Self> {
        let scale = 10u128.checked_pow(digits.exponent.unsigned_abs())?;
        let (whole, mut remainder) = if digits.exponent >= 0 {
            (digits.coefficient.checked_mul(scale)?, 0)
        } else {
            (digits.coefficient / scale, digits.coefficient % scale)
        };
        let whole = u64::try_from(whole)
            .ok()
            .filter(|whole| (1..WHOLE_LIMIT).contains(whole))?;
        let mut bits = 0;
        for at in 0..MAX_BITS {
            if remainder == 0 {
                break;
            }
            remainder *= 2;
            if remainder >= scale {
                remainder -= scale;
                bits |= WHOLE_LIMIT >> at;
            }
        }
        Some(Magnitude::Integer {
            whole,
            fraction: Bits {
                digits: bits,
                rest: (remainder != 0).then_some(digits),
            },
        })
    }

    /// A whole number in the integer form: the usual type is an integer.
    fn is_whole(&self) -> bool {
        matches!(self, Magnitude::Integer { fraction, .. } if fraction.is_none())
    }

    fn write(self, out: &mut Vec<u8>, negative: bool) {
        let start = out.len();
        out.push(0);
        let class = match self {
            Magnitude::Integer { whole, fraction } => {
                let shifted = whole << 1 | u64::from(!fraction.is_none());
                let length = bit_length(shifted).div_ceil(8) as usize;
                out.extend_from_slice(&shifted.to_be_bytes()[8 - length..]);
                if !fraction.is_none() {
                    fraction.write(out);
                }
                tag::INTEGER + length as u8 - 1
            }
            Magnitude::Scaled { exponent, fraction } => {
                let class = write_exponent(out, exponent);
                fraction.write(out);
                class
            }
            Magnitude::Beyond(digits) => {
                digits.write(out);
                if digits.exponent > 0 {
                    tag::HUGE
                } else {
                    tag::TINY
                }
            }
        };
        if negative {
            out[start] = tag::ZERO - class;
            for byte in &mut out[start + 1..] {
                *byte = !*byte;
            }
        } else {
            out[start] = tag::ZERO + class;
        }
    }
}

fn write_exponent(out: &mut Vec<u8>, exponent: i32) -> u8 {
    if exponent >= 0 {
        out.extend_from_slice(&(exponent as u16).to_be_bytes());
        return tag::LARGE;
    }
    if exponent >= SHORT_EXPONENT {
        out.push((1 - SHORT_EXPONENT + exponent) as u8);
    } else {
        out.push(0);
        out.extend_from_slice(&((exponent + POWER_BIAS) as u16).to_be_bytes());
    }
    tag::FRACTION
}

fn read_exponent(reader: &mut Reader<'_>, class: u8) -> Result<i32, KeyError> {
    let exponent = if class == tag::LARGE {
        let exponent = i32::from(u16::from_be_bytes(reader.array()?));
        (63..=MAX_BINARY_EXPONENT)
            .contains(&exponent)
            .then_some(exponent)
    } else {
        match reader.byte()? {
            0 => {
                let exponent = i32::from(u16::from_be_bytes(reader.array()?)) - POWER_BIAS;
                (MIN_BINARY_EXPONENT..SHORT_EXPONENT)
                    .contains(&exponent)
                    .then_some(exponent)
            }
            short => Some(i32::from(short) - 1 + SHORT_EXPONENT).filter(|exponent| *exponent < 0),
        }
    };
    exponent.ok_or(KeyError::Malformed("exponent out of range"))
}

fn parse(reader: &mut Reader<'_>, tag: u8) -> Result<Parsed, KeyError> {
    let negative = tag < tag::ZERO;
    let class = tag.abs_diff(tag::ZERO);
    if tag == tag::NAN {
        return Ok(Parsed::NaN);
    }
    if negative {
        reader.invert();
    }
    let magnitude = match class {
        0 => return Ok(Parsed::Zero),
        tag::INFINITE => {
            if negative {
                reader.invert();
            }
            return Ok(Parsed::Infinity { negative });
        }
        tag::TINY | tag::HUGE => Magnitude::Beyond(Digits::read(reader)?),
        tag::FRACTION | tag::LARGE => Magnitude::Scaled {
            exponent: read_exponent(reader, class)?,
            fraction: Bits::read(reader)?,
        },
        tag::INTEGER..tag::LARGE => {
            let mut shifted = 0;
            for _ in tag::INTEGER..=class {
                shifted = shifted << 8 | u64::from(reader.byte()?);
            }
            let fraction = if shifted & 1 == 1 {
                Bits::read(reader)?
            } else {
                Bits::default()
            };
            let whole = shifted >> 1;
            if whole == 0 {
                return Err(KeyError::Malformed("integer form of zero"));
            }
            Magnitude::Integer { whole, fraction }
        }
        _ => return Err(KeyError::UnknownTag(tag)),
    };
    if negative {
        reader.invert();
    }
    Ok(Parsed::Finite {
        negative,
        magnitude,
    })
}

/// Passes over a number.
pub(super) fn skip(reader: &mut Reader<'_>, tag: u8) -> Result<(), KeyError> {
    parse(reader, tag).map(drop)
}

const MISFIT: KeyError = KeyError::TypeBits("the type cannot hold the number");

pub(super) fn decode(
    reader: &mut Reader<'_>,
    tag: u8,
    type_bits: &mut TypeBitsReader<'_>,
) -> Result<Value, KeyError> {
    let parsed = parse(reader, tag)?;
    if !type_bits.next() {
        return usual(parsed);
    }
    match type_bits.next_bits(3) {
        INT32 => match parsed.to_i64().map(i32::try_from) {
            Some(Ok(value)) => Ok(Value::Int32(value)),
            _ => Err(MISFIT),
        },
        INT64 => parsed.to_i64().map(Value::Int64).ok_or(MISFIT),
        DOUBLE => parsed.to_f64().map(Value::Double).ok_or(MISFIT),
        DECIMAL => {
            let trailing_zeros = type_bits.next_bits(6) as u32;
            let decimal = parsed.to_decimal(trailing_zeros).ok_or(MISFIT)?;
            Ok(Value::Decimal128(decimal.to_bits()))
        }
        ANY_DOUBLE => Ok(Value::Double(
            f64::from_bits(type_bits.next_bits(64) as u64),
        )),
        ANY_DECIMAL => Ok(Value::Decimal128(Decimal128(
            type_bits.next_bits(128).to_le_bytes(),
        ))),
        NEGATIVE_ZERO => match parsed {
            Parsed::Zero => Ok(Value::Double(-0.0)),
            _ => Err(MISFIT),
        },
        DECIMAL_ZERO => {
            let negative = type_bits.next();
            let exponent = type_bits.next_bits(14) as i32 + MIN_EXPONENT;
            match parsed {
                Parsed::Zero if exponent <= MAX_EXPONENT => {
                    let zero = Decimal::Finite {
                        negative,
                        coefficient: 0,
                        exponent,
                    };
                    Ok(Value::Decimal128(zero.to_bits()))
                }
                _ => Err(MISFIT),
            }
        }
        _ => unreachable!("three bits are below eight"),
    }
}

fn usual(parsed: Parsed) -> Result<Value, KeyError> {
    match parsed {
        Parsed::NaN => Ok(Value::Double(f64::from_bits(CANONICAL_NAN))),
        Parsed::Zero => Ok(Value::Int32(0)),
        Parsed::Finite { ref magnitude, .. }
            if magnitude.is_whole()
                && let Some(value) = parsed.to_i64() =>
        {
            Ok(i32::try_from(value).map_or(Value::Int64(value), Value::Int32))
        }
        // What only decimals hold has no type of its own that is more usual.
        other => match other.to_f64() {
            Some(value) => Ok(Value::Double(value)),
            None => match other.to_decimal(0) {
                Some(decimal) => Ok(Value::Decimal128(decimal.to_bits())),
                None => Err(MISFIT),
            },
        },
    }
}

impl Parsed {
    fn to_i64(&self) -> Option<i64> {
        match self {
            Parsed::Zero => Some(0),
            Parsed::Finite {
                negative,
                magnitude: Magnitude::Integer { whole, fraction },
            } if fraction.is_none() => {
                let whole = i64::try_from(*whole).ok()?;
                Some(if *negative { -whole } else { whole })
            }
            Parsed::Finite {
                negative: true,
                magnitude:
                    Magnitude::Scaled {
                        exponent: 63,
                        fraction,
                    },
            } if fraction.is_none() => Some(i64::MIN),
            Parsed::NaN | Parsed::Infinity { .. } | Parsed::Finite { .. } => None,
        }
    }

    fn to_f64(&self) -> Option<f64> {
        match self {
            Parsed::NaN => None,
            Parsed::Zero => Some(0.0),
            Parsed::Infinity { negative: false } => Some(f64::INFINITY),
            Parsed::Infinity { negative: true } => Some(f64::NEG_INFINITY),
            Parsed::Finite {
                negative,
                magnitude,
            } => {
                let (mantissa, exponent) = magnitude.odd_mantissa()?;
                if mantissa >> 53 != 0 {
                    return None;
                }
                let scale = match exponent {
                    -1074..=-1023 => f64::from_bits(1 << (exponent + 1074)),
                    -1022..=1023 => f64::from_bits(((exponent + 1023) as u64) << 52),
                    _ => return None,
                };
                let value = mantissa as f64 * scale;
                value
                    .is_finite()
                    .then_some(if *negative { -value } else { value })
            }
        }
    }

    fn to_decimal(&self, trailing_zeros: u32) -> Option<Decimal> {
        match self {
            Parsed::NaN => Some(Decimal::NaN),
            Parsed::Zero => None,
            Parsed::Infinity { negative } => Some(Decimal::Infinity {
                negative: *negative,
            }),
            Parsed::Finite {
                negative,
                magnitude,
            } => magnitude.digits()?.to_decimal(*negative, trailing_zeros),
        }
    }
}

impl Magnitude {
    /// The value as `mantissa * 2^exponent`, unless a decimal continues it.
    fn odd_mantissa(&self) -> Option<(u128, i32)> {
        let (leading, fraction, exponent) = match self {
            Magnitude::Integer { whole, fraction } => (*whole, fraction, 0),
            Magnitude::Scaled { exponent, fraction } => (1, fraction, *exponent),
            Magnitude::Beyond(_) => return None,
        };
        if fraction.rest.is_some() {
            return None;
        }
        let mantissa = u128::from(leading) << 64 | u128::from(fraction.digits);
        let zeros = mantissa.trailing_zeros();
        Some((mantissa >> zeros, exponent - 64 + zeros as i32))
    }

    /// The value as a decimal, if 34 digits hold it.
    fn digits(&self) -> Option<Digits> {
        let rest = match self {
            Magnitude::Integer { fraction, .. } | Magnitude::Scaled { fraction, .. } => {
                fraction.rest
            }
            Magnitude::Beyond(digits) => Some(*digits),
        };
        if rest.is_some() {
            return rest;
        }
        let (mantissa, exponent) = self.odd_mantissa()?;
        let mut natural = Natural::new(mantissa);
        let mut decimal_exponent = 0;
        if exponent >= 0 {
            natural.shift_left(exponent.unsigned_abs());
        } else {
            // More digits behind the point than a decimal has cannot come from one.
            let places = exponent.unsigned_abs();
            if places > 128 {
                return None;
            }
            natural.scale_by_five(places);
            decimal_exponent = exponent;
        }
        loop {
            let mut tenth = natural.clone();
            if tenth.divide_small(10) != 0 {
                break;
            }
            natural = tenth;
            decimal_exponent += 1;
        }
        let coefficient = natural.to_u128()?;
        Some(Digits {
            coefficient,
            exponent: decimal_exponent,
        })
    }
}

fn bit_length(value: u64) -> u32 {
    64 - value.leading_zeros()
}
