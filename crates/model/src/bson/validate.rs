//! Checks bytes from outside before anything reads them.
//!
//! Every length is compared with what is really there, every string is UTF-8
//! and ends in NUL, every type byte is known, nesting is at most [`MAX_DEPTH`]
//! deep. The walk keeps its own stack of ends, so that hostile nesting cannot
//! exhaust the thread's.
//!
//! One difference from MongoDB, deliberate: a string that is not UTF-8 is
//! refused here; MongoDB stores it and fails later, in the client.

use super::doc::Doc;
use super::value::{Kind, ValueRef};
use thiserror::Error;

/// The largest document a user may store.
pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;
/// Commands and internal documents may exceed a stored document a little.
pub const MAX_INTERNAL_BYTES: usize = MAX_DOCUMENT_BYTES + 16 * 1024;
/// The deepest nesting that MongoDB accepts in any message: documents and arrays
/// below the outermost one.
pub const MAX_DEPTH: usize = 200;
/// The deepest nesting that MongoDB stores; see [`nesting_depth`].
pub const MAX_STORED_DEPTH: usize = 180;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidBson {
    #[error("document of {length} bytes ends after {available}")]
    Truncated { length: i64, available: usize },
    #[error("document of {length} bytes is larger than {limit}")]
    TooLarge { length: usize, limit: usize },
    #[error("unknown BSON type {tag:#04x} at offset {offset}")]
    UnknownType { tag: u8, offset: usize },
    #[error("malformed value at offset {offset}: {what}")]
    Malformed { offset: usize, what: &'static str },
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// An open document: where it ends, and what it is to whoever passes batches on.
struct Open {
    end: usize,
    role: Role,
}

/// What a document is in a reply whose batch is only passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Reply,
    Cursor,
    Batch,
    Other,
}

impl Role {
    /// What a value of this name and kind is in a document of this role.
    fn of_field(self, name: &[u8], kind: Kind) -> Role {
        match (self, kind, name) {
            (Role::Reply, Kind::Document, b"cursor") => Role::Cursor,
            (Role::Cursor, Kind::Array, b"firstBatch" | b"nextBatch") => Role::Batch,
            _ => Role::Other,
        }
    }
}

/// Checks that `bytes` is exactly one well-formed document of at most `limit` bytes.
pub fn validate(bytes: &[u8], limit: usize) -> Result<(), InvalidBson> {
    walk(bytes, limit, Role::Other)
}

/// Checks a reply whose batch nobody looks into: of the documents in `cursor.firstBatch` and
/// `cursor.nextBatch` only where they end, of everything else all that [`validate`] checks. What is
/// in them must not be read before it is validated.
pub fn validate_around_batch(bytes: &[u8], limit: usize) -> Result<(), InvalidBson> {
    walk(bytes, limit, Role::Reply)
}

fn walk(bytes: &[u8], limit: usize, role: Role) -> Result<(), InvalidBson> {
    if bytes.len() > limit {
        return Err(InvalidBson::TooLarge {
            length: bytes.len(),
            limit,
        });
    }
    let mut walk = Walk { bytes, at: 0 };
    let mut open: Vec<Open> = Vec::with_capacity(8);
    let root = walk.document_end(bytes.len())?;
    if root != bytes.len() {
        return Err(InvalidBson::Truncated {
            length: root as i64,
            available: bytes.len(),
        });
    }
    open.push(Open { end: root, role });

    while let Some(current) = open.last() {
        let (end, role) = (current.end, current.role);
        let tag = walk.byte(end)?;
        if tag == 0 {
            if walk.at != end {
                return Err(walk.malformed("document ends before its length"));
            }
            open.pop();
            continue;
        }
        let Some(kind) = Kind::from_tag(tag) else {
            return Err(InvalidBson::UnknownType {
                tag,
                offset: walk.at - 1,
            });
        };
        let name = walk.at;
        walk.c_string(end)?;
        let name = name..walk.at - 1;
        if let Some(nested_end) = walk.value(kind, end)? {
            if role == Role::Batch && kind == Kind::Document {
                walk.pass_over(nested_end)?;
                continue;
            }
            // The outermost document is open too and does not count as a level.
            if open.len() > MAX_DEPTH {
                return Err(InvalidBson::TooDeep);
            }
            let role = match role {
                Role::Other => Role::Other,
                role => role.of_field(&bytes[name], kind),
            };
            let end = nested_end;
            open.push(Open { end, role });
        }
    }
    Ok(())
}

/// How many documents and arrays below the outermost one enclose the deepest
/// value: an empty one adds no level of its own, as MongoDB counts.
pub fn nesting_depth(doc: Doc<'_>) -> usize {
    let mut deepest = 0;
    let mut open = vec![doc.iter()];
    while let Some(fields) = open.last_mut() {
        let Some(element) = fields.next() else {
            open.pop();
            continue;
        };
        deepest = deepest.max(open.len() - 1);
        // Text would be checked again on its way out: only containers are read.
        if !matches!(
            element.kind(),
            Kind::Document | Kind::Array | Kind::JavaScriptWithScope
        ) {
            continue;
        }
        match element.value() {
            ValueRef::Document(inner) | ValueRef::JavaScriptWithScope { scope: inner, .. } => {
                open.push(inner.iter());
            }
            ValueRef::Array(inner) => open.push(inner.elements()),
            _ => {}
        }
    }
    deepest
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn malformed(&self, what: &'static str) -> InvalidBson {
        InvalidBson::Malformed {
            offset: self.at,
            what,
        }
    }

    fn byte(&mut self, end: usize) -> Result<u8, InvalidBson> {
        Ok(self.take(1, end)?[0])
    }

    fn take(&mut self, count: usize, end: usize) -> Result<&[u8], InvalidBson> {
        if count > end - self.at {
            return Err(self.malformed("value runs past the end of its document"));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn length(&mut self, end: usize) -> Result<i32, InvalidBson> {
        let bytes = self.take(4, end)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a document's length and returns where it ends.
    fn document_end(&mut self, end: usize) -> Result<usize, InvalidBson> {
        let start = self.at;
        let length = self.length(end)?;
        if length < 5 || length as usize > end - start {
            return Err(InvalidBson::Truncated {
                length: length.into(),
                available: end - start,
            });
        }
        Ok(start + length as usize)
    }

    /// Goes to the end of a document without a look at what it holds.
    fn pass_over(&mut self, document_end: usize) -> Result<(), InvalidBson> {
        self.at = document_end;
        match self.bytes[document_end - 1] {
            0 => Ok(()),
            _ => Err(self.malformed("document without its final NUL")),
        }
    }

    fn c_string(&mut self, end: usize) -> Result<(), InvalidBson> {
        let rest = &self.bytes[self.at..end];
        let Some((length, is_ascii)) = name_length(rest) else {
            return Err(self.malformed("name without an end"));
        };
        if !is_ascii && std::str::from_utf8(&rest[..length]).is_err() {
            return Err(self.malformed("name is not UTF-8"));
        }
        self.at += length + 1;
        Ok(())
    }

    fn string(&mut self, end: usize) -> Result<(), InvalidBson> {
        let length = self.length(end)?;
        if length < 1 {
            return Err(self.malformed("string without its final NUL"));
        }
        let bytes = self.take(length as usize, end)?;
        let (last, text) = bytes.split_last().expect("length is at least one");
        let valid = *last == 0 && (is_ascii(text) || std::str::from_utf8(text).is_ok());
        if !valid {
            return Err(self.malformed("string is not UTF-8 with a final NUL"));
        }
        Ok(())
    }

    /// Passes over a value; a nested document is entered and its end returned.
    fn value(&mut self, kind: Kind, end: usize) -> Result<Option<usize>, InvalidBson> {
        match kind {
            Kind::Undefined | Kind::Null | Kind::MinKey | Kind::MaxKey => {}
            Kind::Boolean => {
                if self.byte(end)? > 1 {
                    return Err(self.malformed("boolean is neither 0 nor 1"));
                }
            }
            Kind::Int32 => {
                self.take(4, end)?;
            }
            Kind::Double | Kind::DateTime | Kind::Timestamp | Kind::Int64 => {
                self.take(8, end)?;
            }
            Kind::ObjectId => {
                self.take(12, end)?;
            }
            Kind::Decimal128 => {
                self.take(16, end)?;
            }
            Kind::String | Kind::JavaScript | Kind::Symbol => self.string(end)?,
            Kind::Document | Kind::Array => return self.document_end(end).map(Some),
            Kind::Binary => {
                let length = self.length(end)?;
                if length < 0 {
                    return Err(self.malformed("binary of negative length"));
                }
                self.byte(end)?;
                self.take(length as usize, end)?;
            }
            Kind::DbPointer => {
                self.string(end)?;
                self.take(12, end)?;
            }
            Kind::Regex => {
                self.c_string(end)?;
                self.c_string(end)?;
            }
            Kind::JavaScriptWithScope => {
                let start = self.at;
                let length = self.length(end)?;
                if length < 14 || length as usize > end - start {
                    return Err(self.malformed("code with scope of a wrong length"));
                }
                let whole_end = start + length as usize;
                self.string(whole_end)?;
                let scope_end = self.document_end(whole_end)?;
                if scope_end != whole_end {
                    return Err(self.malformed("scope of a wrong length"));
                }
                return Ok(Some(scope_end));
            }
        }
        Ok(None)
    }
}

/// Texts of documents are mostly short. The standard library looks at the last bytes of them one by
/// one; here the last eight are looked at together, some of them twice.
fn is_ascii(text: &[u8]) -> bool {
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let Some(last) = text.last_chunk::<8>() else {
        return text.is_ascii();
    };
    let (words, _) = text.as_chunks::<8>();
    let all = words.iter().fold(u64::from_le_bytes(*last), |all, word| {
        all | u64::from_le_bytes(*word)
    });
    all & HIGHEST == 0
}

/// How many bytes come before the first NUL, and whether all of them are ASCII. Names are
/// short: eight bytes at a time cost less here than calls of what is made for long texts.
fn name_length(bytes: &[u8]) -> Option<(usize, bool)> {
    const LOWEST: u64 = u64::from_le_bytes([1; 8]);
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut is_ascii = true;
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest bit that is set belongs to the first NUL; those above it may be wrong.
        let ends = word.wrapping_sub(LOWEST) & !word & HIGHEST;
        if ends != 0 {
            let before = ends.trailing_zeros() / 8;
            let name = word & !(u64::MAX << (8 * before));
            return Some((8 * at + before as usize, is_ascii && name & HIGHEST == 0));
        }
        is_ascii &= word & HIGHEST == 0;
    }
    let length = rest.iter().position(|byte| *byte == 0)?;
    Some((
        8 * words.len() + length,
        is_ascii && rest[..length].is_ascii(),
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        InvalidBson, MAX_DEPTH, is_ascii, name_length, nesting_depth, validate,
        validate_around_batch,
    };
    use crate::bson::Doc;

    const LIMIT: usize = 1 << 20;

    #[test]
    fn one_byte_that_is_not_ascii_is_found_wherever_it_is() {
        for length in 0..40 {
            assert!(is_ascii(&vec![0x7f; length]), "{length}");
            for odd in 0..length {
                let mut text = vec![0x7f; length];
                text[odd] = 0x80;
                assert!(!is_ascii(&text), "{odd} of {length}");
            }
        }
    }

    /// Against a search byte by byte, for every length, every place of the end, and a byte that
    /// is not ASCII before or behind it.
    #[test]
    fn names_are_measured_eight_bytes_at_a_time() {
        for length in 0..40 {
            for end in 0..=length {
                for odd in 0..=length {
                    let mut bytes = vec![b'a'; length];
                    if let Some(byte) = bytes.get_mut(odd) {
                        *byte = 0x80;
                    }
                    if let Some(byte) = bytes.get_mut(end) {
                        *byte = 0;
                    }
                    let expected = bytes.iter().position(|byte| *byte == 0);
                    let expected = expected.map(|end| (end, bytes[..end].is_ascii()));
                    assert_eq!(name_length(&bytes), expected, "{bytes:?}");
                    // What follows a NUL, a byte of one, is not taken for another.
                    if let Some(byte) = bytes.get_mut(end + 1) {
                        *byte = 1;
                    }
                    let expected = bytes.iter().position(|byte| *byte == 0);
                    let expected = expected.map(|end| (end, bytes[..end].is_ascii()));
                    assert_eq!(name_length(&bytes), expected, "{bytes:?}");
                }
            }
        }
    }

    fn wrap(elements: &[u8]) -> Vec<u8> {
        let mut bytes = (elements.len() as i32 + 5).to_le_bytes().to_vec();
        bytes.extend_from_slice(elements);
        bytes.push(0);
        bytes
    }

    fn nested(levels: usize) -> Vec<u8> {
        let mut bytes = wrap(&[]);
        for _ in 0..levels {
            let mut element = b"\x03a\0".to_vec();
            element.extend_from_slice(&bytes);
            bytes = wrap(&element);
        }
        bytes
    }

    fn check(element: &[u8], accepted: bool) {
        let result = validate(&wrap(element), LIMIT);
        assert_eq!(result.is_ok(), accepted, "{element:02x?}: {result:?}");
    }

    #[test]
    fn malformed_values_are_refused() {
        for (element, accepted) in [
            (&b"\x08v\0\x01"[..], true),
            (b"\x08v\0\x02", false),
            (b"\x08v\0", false),
            (b"\x02v\0\x02\0\0\0a\0", true),
            (b"\x02v\0\x00\0\0\0\0", false),
            (b"\x02v\0\x01\0\0\0a", false),
            (b"\x02v\0\xff\xff\xff\xff\0", false),
            (b"\x02v\0\x10\0\0\0a\0", false),
            (b"\x02v\0\x02\0\0\0\xff\0", false),
            (b"\x02\xff\0\x02\0\0\0a\0", false),
            (b"\x05v\0\x01\0\0\0\x00a", true),
            (b"\x05v\0\xff\xff\xff\xff\x00", false),
            (b"\x05v\0\xff\xff\xff\x7f\x00", false),
            (b"\x05v\0\x01\0\0\0", false),
            (b"\x20v\0", false),
            (b"\x10v", false),
            (b"\x10v\0\0\0\0", false),
            (b"\x0bv\0a\0i\0", true),
            (b"\x0bv\0a\0i", false),
            (b"\x03v\0\x05\0\0\0\0", true),
            (b"\x03v\0\x04\0\0\0\0", false),
            (b"\x03v\0\x06\0\0\0\0", false),
            (b"\x03v\0\x06\0\0\0\0\0", false),
            (b"\x03v\0\xff\xff\xff\xff\0", false),
            (b"\x04v\0\x05\0\0\0\x01", false),
            (b"\x0fv\0\x0f\0\0\0\x02\0\0\0a\0\x05\0\0\0\0", true),
            (b"\x0fv\0\x10\0\0\0\x02\0\0\0a\0\x05\0\0\0\0\0", false),
            (b"\x0fv\0\x0d\0\0\0\x01\0\0\0\0\x05\0\0\0", false),
            (b"\x0cv\0\x02\0\0\0a\x00123456789012", true),
            (b"\x0cv\0\x02\0\0\0a\x0012345678901", false),
            (b"\xffv\0\x7fw\0\x06x\0\x0ay\0", true),
            (b"\0", false),
        ] {
            check(element, accepted);
        }
    }

    /// A document that is not one, in a batch and in other places of a reply.
    #[test]
    fn batches_that_are_passed_on_are_checked_for_their_ends_only() {
        let broken = wrap(b"\x02v\0\x10\0\0\0a\0");
        let field =
            |kind: u8, name: &[u8], value: &[u8]| [&[kind][..], name, b"\0", value].concat();
        let reply = |cursor: &[u8], batch: &[u8], element: &[u8]| {
            let batch = field(4, batch, &wrap(element));
            wrap(&field(3, cursor, &wrap(&batch)))
        };
        let document = field(3, b"0", &broken);
        for (bytes, accepted) in [
            (reply(b"cursor", b"firstBatch", &document), true),
            (reply(b"cursor", b"nextBatch", &document), true),
            (reply(b"cursor", b"batch", &document), false),
            (reply(b"Cursor", b"nextBatch", &document), false),
            // An array is looked into.
            (
                reply(b"cursor", b"nextBatch", &field(4, b"0", &broken)),
                false,
            ),
            (wrap(&field(4, b"nextBatch", &wrap(&document))), false),
        ] {
            assert!(validate(&bytes, LIMIT).is_err(), "{bytes:02x?}");
            let passed = validate_around_batch(&bytes, LIMIT);
            assert_eq!(passed.is_ok(), accepted, "{bytes:02x?}: {passed:?}");
        }
        // Ends count.
        for end in [
            &b"\x06\0\0\0\0"[..],
            b"\x04\0\0\0\0",
            b"\x05\0\0\0\x01",
            b"\xff\xff\xff\xff\0",
            b"\xff\xff\xff\x7f\0",
        ] {
            let bytes = reply(b"cursor", b"nextBatch", &field(3, b"0", end));
            assert!(validate_around_batch(&bytes, LIMIT).is_err(), "{end:02x?}");
        }
    }

    #[test]
    fn documents_end_where_they_say() {
        for bytes in [
            &b""[..],
            b"\x05\0\0",
            b"\x05\0\0\0",
            b"\x05\0\0\0\x01",
            b"\x06\0\0\0\0",
            b"\x05\0\0\0\0\0",
            b"\xff\xff\xff\xff\0",
        ] {
            assert!(validate(bytes, LIMIT).is_err(), "{bytes:02x?}");
        }
        assert!(matches!(
            validate(&wrap(&[0; 100]), 50),
            Err(InvalidBson::TooLarge { .. })
        ));
    }

    #[test]
    fn nesting_is_bounded_as_on_the_server() {
        assert_eq!(validate(&nested(MAX_DEPTH), LIMIT), Ok(()));
        assert_eq!(
            validate(&nested(MAX_DEPTH + 1), LIMIT),
            Err(InvalidBson::TooDeep)
        );
        assert_eq!(validate(&nested(20_000), LIMIT), Err(InvalidBson::TooDeep));
        let bytes = nested(7);
        let doc = Doc::from_bytes(&bytes).expect("seven levels are valid");
        // The innermost one is empty: no value lies seven levels deep.
        assert_eq!(nesting_depth(doc), 6);
    }
}
