//! The elements of BSON documents as slices, without decoding them.
//!
//! A verifier must see what is stored, not what a decoder makes of it: two documents are compared
//! by bytes, an `_id` is matched by bytes, and a bound is sent back to a server with the bytes that
//! it came with, repeated field names and invalid UTF-8 included. So values stay slices here:
//!
//! ```text
//! document   [length: i32][element]*[0]
//! element    [kind: u8][field name][0][value]     a ValueRef is (kind, value)
//! ```
//!
//! Whatever comes from a server is checked against the bounds that it lies in; a document that does
//! not hold together is `Malformed`, never a panic. Decoding for people is in `render`.

use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::ops::Range;

/// The bytes that a server sent are not BSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are not valid BSON")]
pub struct Malformed;

/// The type codes of BSON.
pub mod kind {
    pub const DOUBLE: u8 = 0x01;
    pub const STRING: u8 = 0x02;
    pub const DOCUMENT: u8 = 0x03;
    pub const ARRAY: u8 = 0x04;
    pub const BINARY: u8 = 0x05;
    pub const UNDEFINED: u8 = 0x06;
    pub const OBJECT_ID: u8 = 0x07;
    pub const BOOLEAN: u8 = 0x08;
    pub const DATE: u8 = 0x09;
    pub const NULL: u8 = 0x0a;
    pub const REGEX: u8 = 0x0b;
    pub const DB_POINTER: u8 = 0x0c;
    pub const CODE: u8 = 0x0d;
    pub const SYMBOL: u8 = 0x0e;
    pub const CODE_WITH_SCOPE: u8 = 0x0f;
    pub const INT32: u8 = 0x10;
    pub const TIMESTAMP: u8 = 0x11;
    pub const INT64: u8 = 0x12;
    pub const DECIMAL: u8 = 0x13;
    pub const MAX_KEY: u8 = 0x7f;
    pub const MIN_KEY: u8 = 0xff;
}

/// A value where it lies: its type and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ValueRef<'a> {
    pub kind: u8,
    pub bytes: &'a [u8],
}

/// A value of its own. Equal means equal to the bit: `1` and `1.0` are different values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Value {
    pub kind: u8,
    pub bytes: Box<[u8]>,
}

/// The form in which a value is kept.
#[derive(Serialize, Deserialize)]
struct Stored {
    kind: u8,
    bytes: bson::Binary,
}

impl From<Stored> for Value {
    fn from(stored: Stored) -> Value {
        Value {
            kind: stored.kind,
            bytes: stored.bytes.bytes.into(),
        }
    }
}

impl From<Value> for Stored {
    fn from(value: Value) -> Stored {
        Stored {
            kind: value.kind,
            bytes: bson::Binary {
                subtype: bson::spec::BinarySubtype::Generic,
                bytes: value.bytes.into(),
            },
        }
    }
}

impl ValueRef<'_> {
    pub fn to_value(self) -> Value {
        Value {
            kind: self.kind,
            bytes: self.bytes.into(),
        }
    }
}

impl Value {
    pub fn as_ref(&self) -> ValueRef<'_> {
        ValueRef {
            kind: self.kind,
            bytes: &self.bytes,
        }
    }
}

/// A field of a document.
#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    pub name: &'a [u8],
    pub value: ValueRef<'a>,
}

/// The fields of a document, in their order.
pub struct Elements<'a> {
    /// What is left between the length and the closing zero.
    rest: &'a [u8],
}

/// Walks over the fields of a document (or of an array, whose names are "0", "1", …).
pub fn elements(document: &[u8]) -> Result<Elements<'_>, Malformed> {
    match (length_at(document), document.split_last()) {
        (Ok(length), Some((0, _))) if length == document.len() && length >= 5 => Ok(Elements {
            rest: &document[4..length - 1],
        }),
        _ => Err(Malformed),
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, after_kind) = self.rest.split_first()?;
        let parsed = parse_element(kind, after_kind);
        match parsed {
            Ok((element, rest)) => {
                self.rest = rest;
                Some(Ok(element))
            }
            Err(malformed) => {
                self.rest = &[];
                Some(Err(malformed))
            }
        }
    }
}

fn parse_element(kind: u8, after_kind: &[u8]) -> Result<(Element<'_>, &[u8]), Malformed> {
    let (name, after_name) = split_name(after_kind)?;
    let length = value_length(kind, after_name)?;
    if after_name.len() < length {
        return Err(Malformed);
    }
    let (bytes, rest) = after_name.split_at(length);
    let value = ValueRef { kind, bytes };
    Ok((Element { name, value }, rest))
}

fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// The little-endian length in front of `bytes`.
fn length_at(bytes: &[u8]) -> Result<usize, Malformed> {
    let (length, _) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
    usize::try_from(i32::from_le_bytes(*length)).map_err(|_| Malformed)
}

fn value_length(kind: u8, bytes: &[u8]) -> Result<usize, Malformed> {
    Ok(match kind {
        kind::UNDEFINED | kind::NULL | kind::MIN_KEY | kind::MAX_KEY => 0,
        kind::BOOLEAN => 1,
        kind::INT32 => 4,
        kind::DOUBLE | kind::DATE | kind::TIMESTAMP | kind::INT64 => 8,
        kind::OBJECT_ID => 12,
        kind::DECIMAL => 16,
        kind::STRING | kind::CODE | kind::SYMBOL => 4 + length_at(bytes)?,
        kind::DB_POINTER => 4 + length_at(bytes)? + 12,
        kind::BINARY => 4 + 1 + length_at(bytes)?,
        kind::DOCUMENT | kind::ARRAY | kind::CODE_WITH_SCOPE => length_at(bytes)?.max(4),
        kind::REGEX => {
            let (pattern, rest) = split_name(bytes)?;
            let (options, _) = split_name(rest)?;
            pattern.len() + options.len() + 2
        }
        _ => return Err(Malformed),
    })
}

/// The first field of that name, if there is one.
pub fn field<'a>(document: &'a [u8], name: &str) -> Result<Option<ValueRef<'a>>, Malformed> {
    for element in elements(document)? {
        let element = element?;
        if element.name == name.as_bytes() {
            return Ok(Some(element.value));
        }
    }
    Ok(None)
}

/// How deep documents may nest: servers store up to 200 levels.
pub const LEVELS_MAX: usize = 250;

/// Refuses a document that nests too deep for whoever walks it by recursion.
pub fn check_depth(document: &[u8], levels: usize) -> Result<(), Malformed> {
    for element in elements(document)? {
        let value = element?.value;
        if matches!(value.kind, kind::DOCUMENT | kind::ARRAY) {
            check_depth(value.bytes, levels.checked_sub(1).ok_or(Malformed)?)?;
        }
    }
    Ok(())
}

/// Where the documents of a cursor's reply lie within it.
pub fn documents_of_reply(reply: &[u8]) -> Result<Vec<Range<usize>>, Malformed> {
    let cursor = field(reply, "cursor")?.ok_or(Malformed)?.bytes;
    let batch = match field(cursor, "firstBatch")? {
        Some(batch) => batch,
        None => field(cursor, "nextBatch")?.ok_or(Malformed)?,
    };
    let mut found = Vec::new();
    for element in elements(batch.bytes)? {
        let value = element?.value;
        if value.kind != kind::DOCUMENT {
            return Err(Malformed);
        }
        // A slice of `reply`, so its place is the distance between the two.
        let start = value.bytes.as_ptr() as usize - reply.as_ptr() as usize;
        found.push(start..start + value.bytes.len());
    }
    Ok(found)
}

/// Writes a document, value bytes as they are.
pub struct Writer {
    bytes: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl Writer {
    pub fn new() -> Writer {
        Writer {
            bytes: vec![0, 0, 0, 0],
        }
    }

    pub fn value(&mut self, name: &str, value: ValueRef<'_>) -> &mut Writer {
        assert!(
            !name.as_bytes().contains(&0),
            "names of ours hold no zero byte"
        );
        self.bytes.push(value.kind);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.bytes.extend_from_slice(value.bytes);
        self
    }

    pub fn timestamp(&mut self, name: &str, time: bson::Timestamp) -> &mut Writer {
        let mut bytes = time.increment.to_le_bytes().to_vec();
        bytes.extend_from_slice(&time.time.to_le_bytes());
        let kind = kind::TIMESTAMP;
        self.value(
            name,
            ValueRef {
                kind,
                bytes: &bytes,
            },
        )
    }

    pub fn document(&mut self, name: &str, document: &[u8]) -> &mut Writer {
        let kind = kind::DOCUMENT;
        self.value(
            name,
            ValueRef {
                kind,
                bytes: document,
            },
        )
    }

    pub fn array<'v>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = ValueRef<'v>>,
    ) -> &mut Writer {
        let mut array = Writer::new();
        let mut place = String::new();
        for (position, value) in values.into_iter().enumerate() {
            place.clear();
            write!(place, "{position}").expect("a text grows as needed");
            array.value(&place, value);
        }
        let bytes = array.finish();
        self.value(
            name,
            ValueRef {
                kind: kind::ARRAY,
                bytes: &bytes,
            },
        )
    }

    pub fn documents(&mut self, name: &str, documents: &[Vec<u8>]) -> &mut Writer {
        self.array(
            name,
            documents.iter().map(|document| ValueRef {
                kind: kind::DOCUMENT,
                bytes: document,
            }),
        )
    }

    pub fn text(&mut self, name: &str, text: &str) -> &mut Writer {
        let bytes = text_bytes(text);
        self.value(
            name,
            ValueRef {
                kind: kind::STRING,
                bytes: &bytes,
            },
        )
    }

    pub fn int32(&mut self, name: &str, number: i32) -> &mut Writer {
        self.value(
            name,
            ValueRef {
                kind: kind::INT32,
                bytes: &number.to_le_bytes(),
            },
        )
    }

    pub fn boolean(&mut self, name: &str, given: bool) -> &mut Writer {
        self.value(
            name,
            ValueRef {
                kind: kind::BOOLEAN,
                bytes: &[u8::from(given)],
            },
        )
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        let length = i32::try_from(self.bytes.len()).expect("what we write is far below 2 GiB");
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        self.bytes
    }
}

/// The bytes of a string value.
pub fn text_bytes(text: &str) -> Vec<u8> {
    let length = i32::try_from(text.len() + 1).expect("what we write is far below 2 GiB");
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn every_cut_of_a_document_is_malformed_and_none_panics() {
        let whole = doc! {
            "a": 1, "b": "text", "c": {"d": [1, 2.5, null]}, "e": bson::oid::ObjectId::new(),
            "f": bson::Regex {
                pattern: "x".to_owned().try_into().unwrap(),
                options: "i".to_owned().try_into().unwrap(),
            },
        }
        .to_vec()
        .unwrap();
        assert!(elements(&whole).unwrap().all(|element| element.is_ok()));
        for end in 0..whole.len() {
            assert!(elements(&whole[..end]).is_err(), "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            if let Ok(walk) = elements(&changed) {
                let _ = walk.count();
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.int32("a", 5).text("b", "x").boolean("c", true);
        let expected = doc! {"a": 5, "b": "x", "c": true}.to_vec().unwrap();
        assert_eq!(writer.finish(), expected);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| {
            (0..levels).fold(Writer::new().finish(), |inner, _| {
                let mut outer = Writer::new();
                outer.document("a", &inner);
                outer.finish()
            })
        };
        assert_eq!(check_depth(&nested(200), LEVELS_MAX), Ok(()));
        assert_eq!(check_depth(&nested(5000), LEVELS_MAX), Err(Malformed));
    }

    #[test]
    fn the_documents_of_a_reply_are_found() {
        let reply = doc! {"cursor": {"id": 0_i64, "firstBatch": [{"a": 1}, {"b": 2}]}, "ok": 1.0}
            .to_vec()
            .unwrap();
        let found = documents_of_reply(&reply).unwrap();
        let shown: Vec<&[u8]> = found.iter().map(|range| &reply[range.clone()]).collect();
        let expected = [
            doc! {"a": 1}.to_vec().unwrap(),
            doc! {"b": 2}.to_vec().unwrap(),
        ];
        assert_eq!(shown, expected);
        assert_eq!(documents_of_reply(&reply[..9]), Err(Malformed));
    }
}
