//! Writes documents front to back into one buffer.
//!
//! Nested documents and arrays are opened and closed in place: their length is
//! patched when they end, so that nothing is copied. An unclosed one at
//! `finish` is our bug and asserted.

use super::doc::{ArrayBuf, Doc, DocBuf, Element};
use super::value::{Kind, ValueRef};

/// Writes a document.
pub struct DocWriter {
    buffer: Vec<u8>,
    /// Where each open document begins, and for arrays the next index.
    open: Vec<Open>,
}

struct Open {
    start: usize,
    next_index: Option<u32>,
}

impl DocWriter {
    pub fn new() -> Self {
        Self::with_buffer(Vec::with_capacity(128))
    }

    /// Continues behind the bytes already in `buffer` (a message header, say).
    pub fn with_buffer(mut buffer: Vec<u8>) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&[0; 4]);
        Self {
            buffer,
            open: vec![Open {
                start,
                next_index: None,
            }],
        }
    }

    /// Goes on behind the fields of a document, in a copy of it with room for so many bytes more.
    pub fn continuing(doc: Doc<'_>, room: usize) -> Self {
        let bytes = doc.as_bytes();
        let mut buffer = Vec::with_capacity(bytes.len() + room);
        buffer.extend_from_slice(&bytes[..bytes.len() - 1]);
        Self {
            buffer,
            open: vec![Open {
                start: 0,
                next_index: None,
            }],
        }
    }

    /// Appends a field to the innermost open document.
    pub fn append<'a>(&mut self, key: &str, value: impl Into<ValueRef<'a>>) -> &mut Self {
        let value = value.into();
        self.key(value.kind(), key.as_bytes());
        write_value(&mut self.buffer, value);
        self
    }

    /// `append` for building a document in one expression.
    pub fn with<'a>(mut self, key: &str, value: impl Into<ValueRef<'a>>) -> Self {
        self.append(key, value);
        self
    }

    /// Copies a field as it stands.
    pub fn append_element(&mut self, element: &Element<'_>) -> &mut Self {
        self.key(element.kind(), element.key_bytes());
        self.buffer.extend_from_slice(element.value_bytes());
        self
    }

    /// Copies fields that are encoded already.
    pub fn append_encoded(&mut self, elements: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(elements);
        self
    }

    /// Copies a field's value under another name.
    pub fn append_renamed(&mut self, key: &str, element: &Element<'_>) -> &mut Self {
        self.key(element.kind(), key.as_bytes());
        self.buffer.extend_from_slice(element.value_bytes());
        self
    }

    pub fn begin_document(&mut self, key: &str) -> &mut Self {
        self.begin(Kind::Document, key, None)
    }

    pub fn begin_array(&mut self, key: &str) -> &mut Self {
        self.begin(Kind::Array, key, Some(0))
    }

    /// Appends to the innermost open array under its next index.
    pub fn push<'a>(&mut self, value: impl Into<ValueRef<'a>>) -> &mut Self {
        let value = value.into();
        self.index_key(value.kind());
        write_value(&mut self.buffer, value);
        self
    }

    /// Puts the elements of an array, encoded, into the innermost open array, which must be
    /// empty: so their indices are right. `count` is how many they are.
    pub fn push_all(&mut self, elements: &[u8], count: u32) -> &mut Self {
        let open = self.open.last_mut().expect("the root is open until finish");
        assert_eq!(
            open.next_index,
            Some(0),
            "push_all() writes into an empty array"
        );
        open.next_index = Some(count);
        // What usually follows a long array fits as well, without a copy of it all.
        self.buffer.reserve(elements.len() + 512);
        self.buffer.extend_from_slice(elements);
        self
    }

    /// Goes on in another buffer, without a copy: in the open array, which is empty here, and has `count`
    /// elements up to `until` there. The buffer must begin with what was written here; what lies in front of
    /// the document does not matter, and lengths are written when documents end. Otherwise it is given back,
    /// and else the one that was written until now.
    pub fn go_on_in(
        &mut self,
        mut buffer: Vec<u8>,
        until: usize,
        count: u32,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let (Some(first), Some(last)) = (self.open.first(), self.open.last()) else {
            return Err(buffer);
        };
        let begins_alike = || {
            let mut at = first.start;
            for open in &self.open {
                let before = at..open.start;
                if self.buffer.get(before.clone()) != buffer.get(before) {
                    return false;
                }
                at = open.start + 4;
            }
            at == self.buffer.len() && at <= until && until <= buffer.len()
        };
        if last.next_index != Some(0) || !begins_alike() {
            return Err(buffer);
        }
        buffer.truncate(until);
        if let Some(array) = self.open.last_mut() {
            array.next_index = Some(count);
        }
        Ok(std::mem::replace(&mut self.buffer, buffer))
    }

    pub fn push_document(&mut self) -> &mut Self {
        self.index_key(Kind::Document);
        self.open_here(None);
        self
    }

    pub fn push_array(&mut self) -> &mut Self {
        self.index_key(Kind::Array);
        self.open_here(Some(0));
        self
    }

    /// Closes the innermost open document or array.
    pub fn end(&mut self) -> &mut Self {
        assert!(self.open.len() > 1, "end() closes what begin_*() opened");
        self.close();
        self
    }

    /// Bytes written so far, the buffer's earlier content included.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.len() == self.open[0].start + 4
    }

    pub fn finish(self) -> DocBuf {
        DocBuf::from_validated(self.finish_buffer())
    }

    /// Closes the document and returns the whole buffer, earlier content included.
    pub fn finish_buffer(mut self) -> Vec<u8> {
        assert_eq!(self.open.len(), 1, "every begin_*() has its end()");
        self.close();
        self.buffer
    }

    fn begin(&mut self, kind: Kind, key: &str, next_index: Option<u32>) -> &mut Self {
        self.key(kind, key.as_bytes());
        self.open_here(next_index);
        self
    }

    fn open_here(&mut self, next_index: Option<u32>) {
        self.open.push(Open {
            start: self.buffer.len(),
            next_index,
        });
        self.buffer.extend_from_slice(&[0; 4]);
    }

    fn close(&mut self) {
        let open = self.open.pop().expect("the root is open until finish");
        self.buffer.push(0);
        let length = (self.buffer.len() - open.start) as i32;
        self.buffer[open.start..open.start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn key(&mut self, kind: Kind, key: &[u8]) {
        debug_assert!(!key.contains(&0), "a key has no NUL byte");
        self.buffer.push(kind.tag());
        self.buffer.extend_from_slice(key);
        self.buffer.push(0);
    }

    fn index_key(&mut self, kind: Kind) {
        let open = self.open.last_mut().expect("the root is open until finish");
        let index = open.next_index.expect("push() writes into an array");
        open.next_index = Some(index + 1);
        if index > INDEX_SHORT_MAX {
            self.buffer.push(kind.tag());
            push_decimal(&mut self.buffer, index);
            self.buffer.push(0);
            return;
        }
        // In front of each document of a batch: eight bytes at once and some of them taken back cost less than
        // a copy of a few whose number is not known before.
        let (mut bytes, mut length, mut rest) = (0u64, 2, index);
        loop {
            bytes = bytes << 8 | u64::from(b'0' + (rest % 10) as u8);
            length += 1;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        bytes = bytes << 8 | u64::from(kind.tag());
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&bytes.to_le_bytes());
        self.buffer.truncate(start + length);
    }
}

/// With the kind and the end, its digits take eight bytes.
const INDEX_SHORT_MAX: u32 = 999_999;

impl Default for DocWriter {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes an array on its own.
pub struct ArrayWriter(DocWriter);

impl ArrayWriter {
    pub fn new() -> Self {
        let mut writer = DocWriter::new();
        writer.open[0].next_index = Some(0);
        Self(writer)
    }

    pub fn push<'a>(&mut self, value: impl Into<ValueRef<'a>>) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn len(&self) -> usize {
        self.0.open[0].next_index.unwrap_or(0) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes so far.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    pub fn finish(self) -> ArrayBuf {
        ArrayBuf::from_validated(self.0.finish_buffer())
    }
}

impl Default for ArrayWriter {
    fn default() -> Self {
        Self::new()
    }
}

fn push_decimal(buffer: &mut Vec<u8>, number: u32) {
    let mut digits = [0u8; 10];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    buffer.extend_from_slice(&digits[at..]);
}

fn write_value(buffer: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Double(v) => buffer.extend_from_slice(&v.to_le_bytes()),
        ValueRef::String(v) | ValueRef::JavaScript(v) | ValueRef::Symbol(v) => {
            write_string(buffer, v)
        }
        ValueRef::Document(v) => buffer.extend_from_slice(v.as_bytes()),
        ValueRef::Array(v) => buffer.extend_from_slice(v.as_bytes()),
        ValueRef::Binary { subtype, bytes } => {
            buffer.extend_from_slice(&(bytes.len() as i32).to_le_bytes());
            buffer.push(subtype);
            buffer.extend_from_slice(bytes);
        }
        ValueRef::Undefined | ValueRef::Null | ValueRef::MinKey | ValueRef::MaxKey => {}
        ValueRef::ObjectId(v) => buffer.extend_from_slice(&v.0),
        ValueRef::Boolean(v) => buffer.push(v as u8),
        ValueRef::DateTime(v) | ValueRef::Int64(v) => buffer.extend_from_slice(&v.to_le_bytes()),
        ValueRef::Regex { pattern, options } => {
            write_c_str(buffer, pattern);
            write_c_str(buffer, options);
        }
        ValueRef::DbPointer { namespace, id } => {
            write_string(buffer, namespace);
            buffer.extend_from_slice(&id.0);
        }
        ValueRef::JavaScriptWithScope { code, scope } => {
            let length = 4 + 4 + code.len() + 1 + scope.len();
            buffer.extend_from_slice(&(length as i32).to_le_bytes());
            write_string(buffer, code);
            buffer.extend_from_slice(scope.as_bytes());
        }
        ValueRef::Int32(v) => buffer.extend_from_slice(&v.to_le_bytes()),
        ValueRef::Timestamp(v) => {
            buffer.extend_from_slice(&v.increment.to_le_bytes());
            buffer.extend_from_slice(&v.seconds.to_le_bytes());
        }
        ValueRef::Decimal128(v) => buffer.extend_from_slice(&v.0),
    }
}

fn write_string(buffer: &mut Vec<u8>, text: &str) {
    buffer.extend_from_slice(&(text.len() as i32 + 1).to_le_bytes());
    buffer.extend_from_slice(text.as_bytes());
    buffer.push(0);
}

fn write_c_str(buffer: &mut Vec<u8>, text: &str) {
    debug_assert!(!text.as_bytes().contains(&0), "a cstring has no NUL byte");
    buffer.extend_from_slice(text.as_bytes());
    buffer.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{cursor: {<name>: [..` behind some room.
    fn begun(room: u8, first: &str, name: &str) -> DocWriter {
        let mut writer = DocWriter::with_buffer(vec![room; 21]);
        writer.begin_document(first).begin_array(name);
        writer
    }

    fn finished(mut writer: DocWriter) -> Vec<u8> {
        writer.push("last");
        writer.end().append("id", 7_i64).end().append("ok", 1.0);
        writer.finish_buffer()
    }

    #[test]
    fn elements_of_arrays_are_numbered() {
        let numbers = [0, 9, 10, 99, 100, 12_345, 999_999, 1_000_000, u32::MAX - 2];
        for number in numbers {
            let mut writer = begun(0, "a", "b");
            writer.open.last_mut().expect("the array").next_index = Some(number);
            let start = writer.len();
            writer.push(true).push(7);
            let next = number + 1;
            let expected = format!("\x08{number}\0\x01\x10{next}\0\x07\0\0\0");
            assert_eq!(writer.buffer[start..], *expected.as_bytes());
        }
    }

    #[test]
    fn a_writer_goes_on_where_another_one_began_alike() {
        let mut other = begun(9, "cursor", "nextBatch");
        other.push(1).push("two");
        let until = other.len();
        other.end().append("scan", "elsewhere").end();
        let other = other.finish_buffer();

        let mut expected = begun(9, "cursor", "nextBatch");
        expected.push(1).push("two");
        let mut writer = begun(0, "cursor", "nextBatch");
        let former = writer.go_on_in(other.clone(), until, 2);
        assert_eq!(
            former.map(|it| it[..21].to_vec()),
            Ok(vec![0; 21]),
            "its own"
        );
        assert_eq!(finished(writer), finished(expected));

        let mut not_empty = begun(0, "cursor", "nextBatch");
        not_empty.push(1);
        for mut unlike in [
            begun(0, "cursor", "firstBatch"),
            begun(0, "Cursor", "nextBatch"),
            not_empty,
            DocWriter::with_buffer(vec![0; 21]),
            DocWriter::new(),
        ] {
            let given_back = unlike.go_on_in(other.clone(), until, 2).err();
            assert_eq!(given_back.as_ref(), Some(&other));
        }
        let mut writer = begun(0, "cursor", "nextBatch");
        for until in [0, writer.len() - 1, other.len() + 1] {
            assert!(writer.go_on_in(other.clone(), until, 2).is_err(), "{until}");
        }
    }
}
