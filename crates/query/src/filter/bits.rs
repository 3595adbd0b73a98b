//! `$bitsAllSet` and its kin: a mask of bit positions, asked of numbers and
//! binary data.
//!
//! Bit 0 is the least significant one; in binary data it is the lowest bit of
//! the first byte. Beyond its 64 bits a number continues with its sign, and
//! binary data continues with zeros. Doubles that are not whole never match,
//! nor does any number that does not fit 64 bits; decimals are rounded first.

use super::arguments::{describe, non_negative_int32, non_negative_integer};
use model::bson::ValueRef;
use model::decimal::Rounding;
use model::number::Number;
use model::{Code, Error};

/// Which bits, and how many of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitTest {
    AllSet,
    AllClear,
    AnySet,
    AnyClear,
}

/// The bits to look at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitMask {
    positions: Vec<u32>,
}

impl BitTest {
    pub fn operator(self) -> &'static str {
        match self {
            BitTest::AllSet => "$bitsAllSet",
            BitTest::AllClear => "$bitsAllClear",
            BitTest::AnySet => "$bitsAnySet",
            BitTest::AnyClear => "$bitsAnyClear",
        }
    }

    pub(super) fn accepts(self, mask: &BitMask, value: ValueRef<'_>) -> bool {
        if let ValueRef::Binary { bytes, .. } = value {
            return self.decide(mask, |position| {
                let byte = bytes.get((position / 8) as usize).copied().unwrap_or(0);
                byte >> (position % 8) & 1 == 1
            });
        }
        match Number::of(value).and_then(bits) {
            Some(number) => self.decide(mask, |position| number >> position.min(63) & 1 == 1),
            None => false,
        }
    }

    fn decide(self, mask: &BitMask, is_set: impl Fn(u32) -> bool) -> bool {
        let mut positions = mask.positions.iter().copied();
        match self {
            BitTest::AllSet => positions.all(is_set),
            BitTest::AllClear => positions.all(|position| !is_set(position)),
            BitTest::AnySet => positions.any(is_set),
            BitTest::AnyClear => positions.any(|position| !is_set(position)),
        }
    }
}

/// The number whose bits are asked for: decimals are rounded to one, and those that are none, or beyond
/// all, have the sign's bit alone.
fn bits(number: Number) -> Option<i64> {
    match number {
        Number::Decimal(decimal) => {
            let whole = decimal.round_to_place(0, Rounding::HalfEven);
            Some(whole.to_i64_exact().unwrap_or(i64::MIN))
        }
        Number::Int32(_) | Number::Int64(_) | Number::Double(_) => number.to_i64_exact(),
    }
}

impl BitMask {
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Reads a list of positions, a number or binary data.
    pub(super) fn parse(path: &str, operator: &str, value: ValueRef<'_>) -> Result<BitMask, Error> {
        match value {
            ValueRef::Array(list) => Self::from_positions(
                list.elements()
                    .map(|element| non_negative_int32(element.key(), element.value())),
            ),
            ValueRef::Binary { bytes, .. } => {
                let bits = u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX);
                Ok(Self {
                    positions: (0..bits)
                        .filter(|&at| bytes[(at / 8) as usize] >> (at % 8) & 1 == 1)
                        .collect(),
                })
            }
            number if number.kind().is_number() => {
                let mask = non_negative_integer(operator, number)
                    .map_err(|why| Error::new(Code::FAILED_TO_PARSE, why))?;
                Ok(Self {
                    positions: (0..64).filter(|at| mask >> at & 1 == 1).collect(),
                })
            }
            other => Err(Error::bad_value(format!(
                "{path} takes an Array, a number, or a BinData but received: {operator}: {}",
                describe(other)
            ))),
        }
    }

    fn from_positions(
        positions: impl Iterator<Item = Result<i32, String>>,
    ) -> Result<BitMask, Error> {
        let mut found = Vec::new();
        for position in positions {
            let position = position
                .map_err(|why| Error::bad_value(format!("Failed to parse bit position. {why}")))?;
            found.push(position.unsigned_abs());
        }
        Ok(Self { positions: found })
    }
}
