//! Values into key bytes.

use super::{Direction, TypeBits, number, tag};
use crate::bson::{Doc, ValueRef};
use crate::order;

/// Puts together a key of several fields.
#[derive(Default)]
pub struct KeyBuilder {
    bytes: Vec<u8>,
    type_bits: TypeBits,
}

impl KeyBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues behind bytes that are there already (an index id, say).
    pub fn with_prefix(prefix: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(prefix.len() + 32);
        bytes.extend_from_slice(prefix);
        Self {
            bytes,
            type_bits: TypeBits::new(),
        }
    }

    pub fn push(&mut self, value: ValueRef<'_>, direction: Direction) -> &mut Self {
        encode_into(&mut self.bytes, &mut self.type_bits, value, direction);
        self
    }

    /// Appends bytes as they are: a hash, or an encoded record key.
    pub fn push_raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn finish(self) -> (Vec<u8>, TypeBits) {
        (self.bytes, self.type_bits)
    }
}

/// The smallest byte string above all keys that begin with `prefix`; `None` if
/// there is none. Keys from `prefix` on and below this are exactly those with
/// the prefix, because every encoding delimits itself: `[p, end(p))` holds all
/// keys whose first fields are `p`, from `end(p)` on are those after them.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xFF)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Appends the encoding of one value.
pub fn encode_into(
    out: &mut Vec<u8>,
    type_bits: &mut TypeBits,
    value: ValueRef<'_>,
    direction: Direction,
) {
    let start = out.len();
    encode_ascending(out, type_bits, value);
    if direction == Direction::Descending {
        for byte in &mut out[start..] {
            *byte = !*byte;
        }
    }
}

fn encode_ascending(out: &mut Vec<u8>, type_bits: &mut TypeBits, value: ValueRef<'_>) {
    match value {
        ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Double(_) | ValueRef::Decimal128(_) => {
            number::encode(out, type_bits, value)
        }
        ValueRef::String(text) => {
            type_bits.push(false);
            out.push(tag::STRING);
            encode_text(out, text.as_bytes());
        }
        ValueRef::Symbol(text) => {
            type_bits.push(true);
            out.push(tag::STRING);
            encode_text(out, text.as_bytes());
        }
        ValueRef::ObjectId(id) => {
            out.push(tag::OBJECT_ID);
            out.extend_from_slice(&id.0);
        }
        ValueRef::Document(doc) => {
            out.push(tag::DOCUMENT);
            encode_fields(out, type_bits, doc);
        }
        ValueRef::Array(array) => {
            out.push(tag::ARRAY);
            for element in array.iter() {
                encode_ascending(out, type_bits, element);
            }
            out.push(0);
        }
        ValueRef::Binary { subtype, bytes } => {
            out.push(tag::BINARY);
            match u8::try_from(bytes.len()) {
                Ok(short) if short < 0xFF => out.push(short),
                _ => {
                    out.push(0xFF);
                    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                }
            }
            out.push(subtype);
            out.extend_from_slice(bytes);
        }
        ValueRef::Boolean(false) => out.push(tag::FALSE),
        ValueRef::Boolean(true) => out.push(tag::TRUE),
        ValueRef::DateTime(millis) => {
            out.push(tag::DATE_TIME);
            out.extend_from_slice(&(millis ^ i64::MIN).to_be_bytes());
        }
        ValueRef::Timestamp(time) => {
            out.push(tag::TIMESTAMP);
            out.extend_from_slice(&time.seconds.to_be_bytes());
            out.extend_from_slice(&time.increment.to_be_bytes());
        }
        ValueRef::Regex { pattern, options } => {
            out.push(tag::REGEX);
            for text in [pattern, options] {
                out.extend_from_slice(text.as_bytes());
                out.push(0);
            }
        }
        ValueRef::DbPointer { namespace, id } => {
            out.push(tag::DB_POINTER);
            out.extend_from_slice(&(namespace.len() as u32).to_be_bytes());
            out.extend_from_slice(namespace.as_bytes());
            out.extend_from_slice(&id.0);
        }
        ValueRef::JavaScript(code) => {
            out.push(tag::JAVA_SCRIPT);
            encode_text(out, code.as_bytes());
        }
        ValueRef::JavaScriptWithScope { code, scope } => {
            out.push(tag::JAVA_SCRIPT_WITH_SCOPE);
            encode_text(out, code.as_bytes());
            encode_fields(out, type_bits, scope);
        }
        ValueRef::MinKey => out.push(tag::MIN_KEY),
        ValueRef::Undefined => out.push(tag::UNDEFINED),
        ValueRef::Null => out.push(tag::NULL),
        ValueRef::MaxKey => out.push(tag::MAX_KEY),
    }
}

fn encode_fields(out: &mut Vec<u8>, type_bits: &mut TypeBits, doc: Doc<'_>) {
    for element in doc.iter() {
        out.push(order::bracket(element.kind()) + 1);
        out.extend_from_slice(element.key_bytes());
        out.push(0);
        encode_ascending(out, type_bits, element.value());
    }
    out.push(0);
}

fn encode_text(out: &mut Vec<u8>, text: &[u8]) {
    // All of them, without a branch for each: that is done for many at once.
    if text.iter().fold(true, |all, byte| all & (*byte > 1)) {
        out.extend_from_slice(text);
    } else {
        for byte in text {
            match byte {
                0 | 1 => out.extend_from_slice(&[1, byte + 1]),
                other => out.push(*other),
            }
        }
    }
    out.push(0);
}
