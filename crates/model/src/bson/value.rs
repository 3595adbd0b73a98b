//! One BSON value, borrowed or owned, and how its bytes are laid out.
//!
//! ```text
//!   Element::value ─► ValueRef<'a>   scalars by value, everything longer borrowed
//!                       │ to_owned ▲ as_ref
//!                       ▼          │
//!                     Value          owns its bytes
//! ```
//!
//! Reading never allocates and never fails: the bytes behind a [`Doc`] were checked when
//! it was made. A value that is missing is no value: `Option<ValueRef>` says so, and null
//! is something else.
//!
//! Left out: comparing values, which is [`crate::order`], and telling how large their
//! encodings may be, which is the business of whoever writes them.

use super::doc::{Array, ArrayBuf, Doc, DocBuf};
use std::fmt;

/// The BSON types, with their numbers on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    Double = 0x01,
    String = 0x02,
    Document = 0x03,
    Array = 0x04,
    Binary = 0x05,
    Undefined = 0x06,
    ObjectId = 0x07,
    Boolean = 0x08,
    DateTime = 0x09,
    Null = 0x0A,
    Regex = 0x0B,
    DbPointer = 0x0C,
    JavaScript = 0x0D,
    Symbol = 0x0E,
    JavaScriptWithScope = 0x0F,
    Int32 = 0x10,
    Timestamp = 0x11,
    Int64 = 0x12,
    Decimal128 = 0x13,
    MinKey = 0xFF,
    MaxKey = 0x7F,
}

impl Kind {
    #[inline(always)]
    pub const fn from_tag(tag: u8) -> Option<Kind> {
        Some(match tag {
            0x01 => Kind::Double,
            0x02 => Kind::String,
            0x03 => Kind::Document,
            0x04 => Kind::Array,
            0x05 => Kind::Binary,
            0x06 => Kind::Undefined,
            0x07 => Kind::ObjectId,
            0x08 => Kind::Boolean,
            0x09 => Kind::DateTime,
            0x0A => Kind::Null,
            0x0B => Kind::Regex,
            0x0C => Kind::DbPointer,
            0x0D => Kind::JavaScript,
            0x0E => Kind::Symbol,
            0x0F => Kind::JavaScriptWithScope,
            0x10 => Kind::Int32,
            0x11 => Kind::Timestamp,
            0x12 => Kind::Int64,
            0x13 => Kind::Decimal128,
            0xFF => Kind::MinKey,
            0x7F => Kind::MaxKey,
            _ => return None,
        })
    }

    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// The name MongoDB uses in `$type` and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Double => "double",
            Kind::String => "string",
            Kind::Document => "object",
            Kind::Array => "array",
            Kind::Binary => "binData",
            Kind::Undefined => "undefined",
            Kind::ObjectId => "objectId",
            Kind::Boolean => "bool",
            Kind::DateTime => "date",
            Kind::Null => "null",
            Kind::Regex => "regex",
            Kind::DbPointer => "dbPointer",
            Kind::JavaScript => "javascript",
            Kind::Symbol => "symbol",
            Kind::JavaScriptWithScope => "javascriptWithScope",
            Kind::Int32 => "int",
            Kind::Timestamp => "timestamp",
            Kind::Int64 => "long",
            Kind::Decimal128 => "decimal",
            Kind::MinKey => "minKey",
            Kind::MaxKey => "maxKey",
        }
    }

    pub const fn is_number(self) -> bool {
        matches!(
            self,
            Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 12]);

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The BSON timestamp type: the stored form of a cluster time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub seconds: u32,
    pub increment: u32,
}

/// 128-bit decimal as BSON stores it: BID encoding, little endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal128(pub [u8; 16]);

/// A value that borrows from the document it was read in.
#[derive(Clone, Copy, PartialEq)]
pub enum ValueRef<'a> {
    Double(f64),
    String(&'a str),
    Document(Doc<'a>),
    Array(Array<'a>),
    Binary {
        subtype: u8,
        bytes: &'a [u8],
    },
    Undefined,
    ObjectId(ObjectId),
    Boolean(bool),
    /// Milliseconds since 1970.
    DateTime(i64),
    Null,
    Regex {
        pattern: &'a str,
        options: &'a str,
    },
    DbPointer {
        namespace: &'a str,
        id: ObjectId,
    },
    JavaScript(&'a str),
    Symbol(&'a str),
    JavaScriptWithScope {
        code: &'a str,
        scope: Doc<'a>,
    },
    Int32(i32),
    Timestamp(Timestamp),
    Int64(i64),
    Decimal128(Decimal128),
    MinKey,
    MaxKey,
}

/// A value that owns its bytes.
#[derive(Clone, PartialEq)]
pub enum Value {
    Double(f64),
    String(String),
    Document(DocBuf),
    Array(ArrayBuf),
    Binary { subtype: u8, bytes: Vec<u8> },
    Undefined,
    ObjectId(ObjectId),
    Boolean(bool),
    DateTime(i64),
    Null,
    Regex { pattern: String, options: String },
    DbPointer { namespace: String, id: ObjectId },
    JavaScript(String),
    Symbol(String),
    JavaScriptWithScope { code: String, scope: DocBuf },
    Int32(i32),
    Timestamp(Timestamp),
    Int64(i64),
    Decimal128(Decimal128),
    MinKey,
    MaxKey,
}

impl<'a> ValueRef<'a> {
    pub fn kind(&self) -> Kind {
        match self {
            ValueRef::Double(_) => Kind::Double,
            ValueRef::String(_) => Kind::String,
            ValueRef::Document(_) => Kind::Document,
            ValueRef::Array(_) => Kind::Array,
            ValueRef::Binary { .. } => Kind::Binary,
            ValueRef::Undefined => Kind::Undefined,
            ValueRef::ObjectId(_) => Kind::ObjectId,
            ValueRef::Boolean(_) => Kind::Boolean,
            ValueRef::DateTime(_) => Kind::DateTime,
            ValueRef::Null => Kind::Null,
            ValueRef::Regex { .. } => Kind::Regex,
            ValueRef::DbPointer { .. } => Kind::DbPointer,
            ValueRef::JavaScript(_) => Kind::JavaScript,
            ValueRef::Symbol(_) => Kind::Symbol,
            ValueRef::JavaScriptWithScope { .. } => Kind::JavaScriptWithScope,
            ValueRef::Int32(_) => Kind::Int32,
            ValueRef::Timestamp(_) => Kind::Timestamp,
            ValueRef::Int64(_) => Kind::Int64,
            ValueRef::Decimal128(_) => Kind::Decimal128,
            ValueRef::MinKey => Kind::MinKey,
            ValueRef::MaxKey => Kind::MaxKey,
        }
    }

    pub fn to_owned(&self) -> Value {
        match *self {
            ValueRef::Double(v) => Value::Double(v),
            ValueRef::String(v) => Value::String(v.to_owned()),
            ValueRef::Document(v) => Value::Document(v.to_owned()),
            ValueRef::Array(v) => Value::Array(v.to_owned()),
            ValueRef::Binary { subtype, bytes } => Value::Binary {
                subtype,
                bytes: bytes.to_vec(),
            },
            ValueRef::Undefined => Value::Undefined,
            ValueRef::ObjectId(v) => Value::ObjectId(v),
            ValueRef::Boolean(v) => Value::Boolean(v),
            ValueRef::DateTime(v) => Value::DateTime(v),
            ValueRef::Null => Value::Null,
            ValueRef::Regex { pattern, options } => Value::Regex {
                pattern: pattern.to_owned(),
                options: options.to_owned(),
            },
            ValueRef::DbPointer { namespace, id } => Value::DbPointer {
                namespace: namespace.to_owned(),
                id,
            },
            ValueRef::JavaScript(v) => Value::JavaScript(v.to_owned()),
            ValueRef::Symbol(v) => Value::Symbol(v.to_owned()),
            ValueRef::JavaScriptWithScope { code, scope } => Value::JavaScriptWithScope {
                code: code.to_owned(),
                scope: scope.to_owned(),
            },
            ValueRef::Int32(v) => Value::Int32(v),
            ValueRef::Timestamp(v) => Value::Timestamp(v),
            ValueRef::Int64(v) => Value::Int64(v),
            ValueRef::Decimal128(v) => Value::Decimal128(v),
            ValueRef::MinKey => Value::MinKey,
            ValueRef::MaxKey => Value::MaxKey,
        }
    }

    /// Null or undefined; a missing field is not a value at all.
    pub fn is_nullish(&self) -> bool {
        matches!(self, ValueRef::Null | ValueRef::Undefined)
    }

    pub fn is_number(&self) -> bool {
        self.kind().is_number()
    }

    /// What the value takes on the heap once it is owned, about.
    pub fn heap_bytes(&self) -> usize {
        match self {
            ValueRef::String(text) | ValueRef::JavaScript(text) | ValueRef::Symbol(text) => {
                text.len()
            }
            ValueRef::Document(doc) => doc.len(),
            ValueRef::Array(array) => array.as_bytes().len(),
            ValueRef::Binary { bytes, .. } => bytes.len(),
            ValueRef::Regex { pattern, options } => pattern.len() + options.len(),
            ValueRef::DbPointer { namespace, .. } => namespace.len(),
            ValueRef::JavaScriptWithScope { code, scope } => code.len() + scope.len(),
            ValueRef::Double(_)
            | ValueRef::Undefined
            | ValueRef::ObjectId(_)
            | ValueRef::Boolean(_)
            | ValueRef::DateTime(_)
            | ValueRef::Null
            | ValueRef::Int32(_)
            | ValueRef::Timestamp(_)
            | ValueRef::Int64(_)
            | ValueRef::Decimal128(_)
            | ValueRef::MinKey
            | ValueRef::MaxKey => 0,
        }
    }
}

impl Value {
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Double(v) => ValueRef::Double(*v),
            Value::String(v) => ValueRef::String(v),
            Value::Document(v) => ValueRef::Document(v.as_doc()),
            Value::Array(v) => ValueRef::Array(v.as_array()),
            Value::Binary { subtype, bytes } => ValueRef::Binary {
                subtype: *subtype,
                bytes,
            },
            Value::Undefined => ValueRef::Undefined,
            Value::ObjectId(v) => ValueRef::ObjectId(*v),
            Value::Boolean(v) => ValueRef::Boolean(*v),
            Value::DateTime(v) => ValueRef::DateTime(*v),
            Value::Null => ValueRef::Null,
            Value::Regex { pattern, options } => ValueRef::Regex { pattern, options },
            Value::DbPointer { namespace, id } => ValueRef::DbPointer { namespace, id: *id },
            Value::JavaScript(v) => ValueRef::JavaScript(v),
            Value::Symbol(v) => ValueRef::Symbol(v),
            Value::JavaScriptWithScope { code, scope } => ValueRef::JavaScriptWithScope {
                code,
                scope: scope.as_doc(),
            },
            Value::Int32(v) => ValueRef::Int32(*v),
            Value::Timestamp(v) => ValueRef::Timestamp(*v),
            Value::Int64(v) => ValueRef::Int64(*v),
            Value::Decimal128(v) => ValueRef::Decimal128(*v),
            Value::MinKey => ValueRef::MinKey,
            Value::MaxKey => ValueRef::MaxKey,
        }
    }

    pub fn kind(&self) -> Kind {
        self.as_ref().kind()
    }
}

macro_rules! from_impls {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Value { Value::$variant(value.into()) }
        }
    )*};
}
from_impls! { f64 => Double, &str => String, String => String, DocBuf => Document,
ArrayBuf => Array, ObjectId => ObjectId, bool => Boolean, i32 => Int32, i64 => Int64,
Timestamp => Timestamp, Decimal128 => Decimal128 }

macro_rules! from_impls_ref {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl<'a> From<$from> for ValueRef<'a> {
            fn from(value: $from) -> ValueRef<'a> { ValueRef::$variant(value) }
        }
    )*};
}
from_impls_ref! { f64 => Double, &'a str => String, Doc<'a> => Document, Array<'a> => Array,
ObjectId => ObjectId, bool => Boolean, i32 => Int32, i64 => Int64,
Timestamp => Timestamp, Decimal128 => Decimal128 }

impl<'a> From<&'a DocBuf> for ValueRef<'a> {
    fn from(value: &'a DocBuf) -> Self {
        ValueRef::Document(value.as_doc())
    }
}

impl<'a> From<&'a ArrayBuf> for ValueRef<'a> {
    fn from(value: &'a ArrayBuf) -> Self {
        ValueRef::Array(value.as_array())
    }
}

impl<'a> From<&'a Value> for ValueRef<'a> {
    fn from(value: &'a Value) -> Self {
        value.as_ref()
    }
}

impl<'a> From<&'a String> for ValueRef<'a> {
    fn from(value: &'a String) -> Self {
        ValueRef::String(value)
    }
}

impl From<crate::time::ClusterTime> for ValueRef<'_> {
    fn from(time: crate::time::ClusterTime) -> Self {
        ValueRef::Timestamp(Timestamp {
            seconds: time.seconds(),
            increment: time.increment(),
        })
    }
}

const BROKEN: &str = "value bytes were validated before they were read";

/// How many bytes the value at the start of `bytes` takes. Always inlined, as every step over a field asks.
#[inline(always)]
pub(super) fn value_len(kind: Kind, bytes: &[u8]) -> usize {
    match LAYOUTS[usize::from(kind.tag())] {
        REGEX => {
            let pattern = c_str(bytes).len() + 1;
            pattern + c_str(&bytes[pattern..]).len() + 1
        }
        layout if layout >= LENGTH_AHEAD => usize::from(layout - LENGTH_AHEAD) + length_at(bytes),
        fixed => fixed.into(),
    }
}

/// By type: how long a value is; or, [`LENGTH_AHEAD`] added, how much longer than the number says
/// that it begins with. A table because every step over a field asks for it.
const LAYOUTS: [u8; 256] = {
    let mut layouts = [0; 256];
    layouts[Kind::Boolean as usize] = 1;
    layouts[Kind::Int32 as usize] = 4;
    layouts[Kind::Double as usize] = 8;
    layouts[Kind::DateTime as usize] = 8;
    layouts[Kind::Timestamp as usize] = 8;
    layouts[Kind::Int64 as usize] = 8;
    layouts[Kind::ObjectId as usize] = 12;
    layouts[Kind::Decimal128 as usize] = 16;
    layouts[Kind::String as usize] = LENGTH_AHEAD + 4;
    layouts[Kind::JavaScript as usize] = LENGTH_AHEAD + 4;
    layouts[Kind::Symbol as usize] = LENGTH_AHEAD + 4;
    layouts[Kind::Document as usize] = LENGTH_AHEAD;
    layouts[Kind::Array as usize] = LENGTH_AHEAD;
    layouts[Kind::JavaScriptWithScope as usize] = LENGTH_AHEAD;
    layouts[Kind::Binary as usize] = LENGTH_AHEAD + 5;
    layouts[Kind::DbPointer as usize] = LENGTH_AHEAD + 4 + 12;
    layouts[Kind::Regex as usize] = REGEX;
    layouts
};
const LENGTH_AHEAD: u8 = 0x80;
/// Two names, each with its zero.
const REGEX: u8 = 0xFF;

/// Decodes a value whose bytes were validated.
#[inline]
pub(super) fn parse_value(kind: Kind, bytes: &[u8]) -> ValueRef<'_> {
    match kind {
        Kind::Double => ValueRef::Double(f64::from_le_bytes(fixed(bytes))),
        Kind::String => ValueRef::String(string_at(bytes)),
        Kind::Document => ValueRef::Document(Doc::from_validated(bytes)),
        Kind::Array => ValueRef::Array(Doc::from_validated(bytes).as_array()),
        Kind::Binary => ValueRef::Binary {
            subtype: bytes[4],
            bytes: &bytes[5..],
        },
        Kind::Undefined => ValueRef::Undefined,
        Kind::ObjectId => ValueRef::ObjectId(ObjectId(fixed(bytes))),
        Kind::Boolean => ValueRef::Boolean(bytes[0] != 0),
        Kind::DateTime => ValueRef::DateTime(i64::from_le_bytes(fixed(bytes))),
        Kind::Null => ValueRef::Null,
        Kind::Regex => {
            let pattern = c_str(bytes);
            ValueRef::Regex {
                pattern: text(pattern),
                options: text(c_str(&bytes[pattern.len() + 1..])),
            }
        }
        Kind::DbPointer => ValueRef::DbPointer {
            namespace: string_at(&bytes[..bytes.len() - 12]),
            id: ObjectId(fixed(&bytes[bytes.len() - 12..])),
        },
        Kind::JavaScript => ValueRef::JavaScript(string_at(bytes)),
        Kind::Symbol => ValueRef::Symbol(string_at(bytes)),
        Kind::JavaScriptWithScope => {
            let code_end = 8 + length_at(&bytes[4..]);
            ValueRef::JavaScriptWithScope {
                code: string_at(&bytes[4..code_end]),
                scope: Doc::from_validated(&bytes[code_end..]),
            }
        }
        Kind::Int32 => ValueRef::Int32(i32::from_le_bytes(fixed(bytes))),
        Kind::Timestamp => ValueRef::Timestamp(Timestamp {
            increment: u32::from_le_bytes(fixed(bytes)),
            seconds: u32::from_le_bytes(fixed(&bytes[4..])),
        }),
        Kind::Int64 => ValueRef::Int64(i64::from_le_bytes(fixed(bytes))),
        Kind::Decimal128 => ValueRef::Decimal128(Decimal128(fixed(bytes))),
        Kind::MinKey => ValueRef::MinKey,
        Kind::MaxKey => ValueRef::MaxKey,
    }
}

#[inline]
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect(BROKEN)
}

#[inline]
fn length_at(bytes: &[u8]) -> usize {
    usize::try_from(i32::from_le_bytes(fixed(bytes))).expect(BROKEN)
}

#[inline]
fn string_at(bytes: &[u8]) -> &str {
    text(&bytes[4..bytes.len() - 1])
}

#[inline]
fn c_str(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr::memchr(0, bytes).expect(BROKEN)]
}

#[inline]
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect(BROKEN)
}
