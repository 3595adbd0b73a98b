//! Order-preserving key encoding, format version 1 (stable: stored on disk).
//!
//! A value becomes bytes such that comparing the bytes of two values compares
//! the values as [`crate::order::compare`] does. Values that are equal but not
//! the same (the int32 5 and the double 5.0) become the same bytes; what tells
//! them apart goes into [`TypeBits`], so that a key can be decoded exactly.
//!
//! Each encoding delimits itself and none is a prefix of another. So values can
//! be put one behind the other, a tuple compares field by field, and whatever
//! follows an encoded value cannot change how it compares. A descending field
//! is the same encoding with every byte inverted.
//!
//! ```text
//!   value     = tag payload            tag is never 00, 01, FE or FF
//!
//!   tag  value                         payload
//!   04   MinKey
//!   08   undefined
//!   0C   null
//!   10   NaN
//!   11   -infinity
//!   12   negative beyond the doubles   ~decimal
//!   13   -2^63 and below               ~(exponent bits)
//!   14…1B negative, n = 8…1 bytes      ~integer
//!   1C   above -1                      ~(exponent bits)
//!   1D   negative below the doubles    ~decimal
//!   1E   zero
//!   1F   positive below the doubles    decimal
//!   20   below 1                       exponent bits
//!   21…28 positive, n = 1…8 bytes      integer
//!   29   2^63 and above                exponent bits
//!   2A   positive beyond the doubles   decimal
//!   2B   infinity
//!   30   string, symbol                text
//!   34   document                      field* 00
//!   38   array                         value* 00
//!   3C   binary                        length subtype(1) byte*
//!   40   ObjectId                      12 bytes
//!   44   false
//!   45   true
//!   48   date                          8 bytes, big endian, sign bit inverted
//!   4C   timestamp                     seconds(4) increment(4), big endian
//!   50   regular expression            pattern 00 options 00
//!   54   DBPointer                     length(4) namespace 12 bytes
//!   58   code                          text
//!   5C   code with scope               text field* 00
//!   F8   MaxKey
//!
//!   text      = byte* 00               within: 00 as 01 01, and 01 as 01 02
//!   field     = bracket(1) name 00 value
//!               bracket: the value's type bracket + 1, because fields compare
//!               by bracket before they compare by name
//!   length    = 1 byte below FF, else FF and 4 bytes big endian
//!
//!   integer   = n bytes big endian: the whole part shifted left by one; the
//!               freed bit says that a fraction follows: bits
//!   exponent  = of the leading binary one. Below 1: one byte 201 + e for
//!               e >= -200, else 00 and 2 bytes e + 32768. From 2^63: 2 bytes e.
//!   bits      = the binary digits that follow, seven to a byte, in its upper
//!               bits; the lowest bit says that something not zero follows:
//!               more bits, after nine bytes a decimal
//!   decimal   = power(2) digit pairs: the power of ten of the leading digit
//!               + 32768, then two digits to a byte as 1 + 10 a + b, then 00
//! ```
//!
//! An ObjectId takes 13 bytes, an integer below 128 two, below 32768 three, a
//! string two more than its text. A double needs at most 8 bytes of bits, so only
//! decimals that are no finite binary fraction ever carry a decimal.
//!
//! Left out: the keys of array elements. They are "0", "1", … by convention,
//! are ignored by the order, and are written that way by decoding.

mod decode;
mod encode;
mod number;
mod record;
mod type_bits;

pub use decode::{decode, decode_value, skip_value};
pub use encode::{KeyBuilder, encode_into, prefix_end};
pub use record::RecordKey;
pub use type_bits::TypeBits;

/// The version of this format, stored beside the data that uses it.
pub const FORMAT_VERSION: u32 = 1;

/// Which way a field of a key sorts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    Ascending,
    Descending,
}

impl Direction {
    pub const fn reversed(self) -> Self {
        match self {
            Direction::Ascending => Direction::Descending,
            Direction::Descending => Direction::Ascending,
        }
    }

    /// What every byte is combined with.
    const fn mask(self) -> u8 {
        match self {
            Direction::Ascending => 0x00,
            Direction::Descending => 0xFF,
        }
    }
}

/// Why stored bytes are not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    #[error("key ends in the middle of a value")]
    Truncated,
    #[error("key has an unknown tag {0:#04x}")]
    UnknownTag(u8),
    #[error("key is malformed: {0}")]
    Malformed(&'static str),
    #[error("key is nested too deep")]
    TooDeep,
    #[error("type bits do not fit the key: {0}")]
    TypeBits(&'static str),
    #[error("key has bytes behind its last field")]
    TrailingBytes,
}

/// First bytes of encoded values.
mod tag {
    pub(super) const MIN_KEY: u8 = 0x04;
    pub(super) const UNDEFINED: u8 = 0x08;
    pub(super) const NULL: u8 = 0x0C;
    pub(super) const NAN: u8 = 0x10;
    pub(super) const ZERO: u8 = 0x1E;
    pub(super) const INFINITY: u8 = 0x2B;
    pub(super) const STRING: u8 = 0x30;
    pub(super) const DOCUMENT: u8 = 0x34;
    pub(super) const ARRAY: u8 = 0x38;
    pub(super) const BINARY: u8 = 0x3C;
    pub(super) const OBJECT_ID: u8 = 0x40;
    pub(super) const FALSE: u8 = 0x44;
    pub(super) const TRUE: u8 = 0x45;
    pub(super) const DATE_TIME: u8 = 0x48;
    pub(super) const TIMESTAMP: u8 = 0x4C;
    pub(super) const REGEX: u8 = 0x50;
    pub(super) const DB_POINTER: u8 = 0x54;
    pub(super) const JAVA_SCRIPT: u8 = 0x58;
    pub(super) const JAVA_SCRIPT_WITH_SCOPE: u8 = 0x5C;
    pub(super) const MAX_KEY: u8 = 0xF8;

    // How far a number's magnitude class is from zero: added to or taken from ZERO.
    pub(super) const TINY: u8 = 1;
    pub(super) const FRACTION: u8 = 2;
    /// Plus the number of bytes, less one.
    pub(super) const INTEGER: u8 = 3;
    pub(super) const LARGE: u8 = 11;
    pub(super) const HUGE: u8 = 12;
    pub(super) const INFINITE: u8 = 13;
}
