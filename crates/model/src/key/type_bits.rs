//! What a key does not say: which of several equal values it was made from.
//!
//! One entry for each string and each number, in the order of encoding. The
//! usual type is a single zero bit, and zero bits at the end are not stored, so
//! the type bits of nearly all keys are empty.
//!
//! ```text
//!   string    0 string            1 symbol
//!   number    0 the usual type: int32 or int64 by size for whole numbers below
//!               2^63, double for all others; NaN the canonical one
//!             1000 int32          1001 int64          1010 double
//!             1011 decimal, then 6 bits: trailing zeros of the coefficient
//!             1100 any double, then its 64 bits
//!             1101 any decimal, then its 128 bits
//!             1110 the double -0.0
//!             1111 decimal zero, then sign(1) and exponent + 6176 (14)
//! ```
//!
//! Stored as bytes, the first bit the highest of the first byte.

use super::KeyError;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TypeBits {
    bytes: Vec<u8>,
    /// Bits written, trailing zeros included; `bytes` ends with the last one bit.
    length: usize,
}

impl TypeBits {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes stored bytes; they are checked while decoding.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            length: bytes.len() * 8,
        }
    }

    /// The bytes to store: empty if every value has its usual type.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`Self::as_bytes`].
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.length = 0;
    }

    pub(super) fn push(&mut self, bit: bool) {
        if bit {
            self.bytes.resize(self.length / 8 + 1, 0);
            self.bytes[self.length / 8] |= 0x80 >> (self.length % 8);
        }
        self.length += 1;
    }

    /// Appends the lowest `count` bits, highest first.
    pub(super) fn push_bits(&mut self, bits: u128, count: u32) {
        for at in (0..count).rev() {
            self.push(bits >> at & 1 == 1);
        }
    }

    pub(super) fn reader(&self) -> TypeBitsReader<'_> {
        TypeBitsReader {
            bytes: &self.bytes,
            at: 0,
        }
    }
}

/// Reads what was pushed; beyond the end there are only zero bits.
pub(super) struct TypeBitsReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl TypeBitsReader<'_> {
    pub(super) fn next(&mut self) -> bool {
        let byte = self.bytes.get(self.at / 8).copied().unwrap_or(0);
        let bit = byte & (0x80 >> (self.at % 8)) != 0;
        self.at += 1;
        bit
    }

    pub(super) fn next_bits(&mut self, count: u32) -> u128 {
        (0..count).fold(0, |bits, _| bits << 1 | u128::from(self.next()))
    }

    /// All bits that are set must have been read.
    pub(super) fn finish(&self) -> Result<(), KeyError> {
        let unread = self.bytes.get(self.at / 8..).unwrap_or(&[]);
        let Some((first, rest)) = unread.split_first() else {
            return Ok(());
        };
        let left = first & (0xFF >> (self.at % 8));
        if left == 0 && rest.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(KeyError::TypeBits("more of them than values"))
        }
    }
}
