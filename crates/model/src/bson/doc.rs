//! Documents and arrays as byte slices, and the walk over their elements.
//!
//! ```text
//!   i32 total length | element* | 0x00
//!   element: type byte | key bytes 0x00 | value bytes
//! ```
//! An array has the same layout; its keys are "0", "1", … and are not looked at.

use super::validate::{InvalidBson, MAX_INTERNAL_BYTES, validate};
use super::value::{Kind, Value, ValueRef, parse_value, value_len};

/// A validated document, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Doc<'a>(&'a [u8]);

/// A validated document, owned.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DocBuf(Vec<u8>);

/// An array, borrowed: a document whose keys are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Array<'a>(Doc<'a>);

/// An array, owned.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ArrayBuf(DocBuf);

const EMPTY: &[u8] = &[5, 0, 0, 0, 0];
const BROKEN: &str = "document bytes were validated before they became a Doc";

impl<'a> Doc<'a> {
    pub const EMPTY: Doc<'static> = Doc(EMPTY);

    /// Checks the bytes and borrows them.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, InvalidBson> {
        validate(bytes, MAX_INTERNAL_BYTES)?;
        Ok(Self(bytes))
    }

    /// Borrows bytes that were validated when they entered the system (from a
    /// stored record, a log entry, or a slice of a validated document).
    #[inline]
    pub fn from_validated(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() >= 5 && bytes[bytes.len() - 1] == 0, "{BROKEN}");
        Self(bytes)
    }

    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn is_empty(self) -> bool {
        self.0.len() == EMPTY.len()
    }

    #[inline]
    pub fn iter(self) -> Elements<'a> {
        Elements { rest: &self.0[4..] }
    }

    /// The elements from a place on where one begins, or the last one has ended.
    pub fn iter_from(self, at: usize) -> Elements<'a> {
        Elements {
            rest: &self.0[at..],
        }
    }

    /// The value of the first field of this name.
    #[inline]
    pub fn get(self, name: &str) -> Option<ValueRef<'a>> {
        self.element(name).map(|element| element.value())
    }

    /// Inlined, so that what is compared is worked out when this is compiled: most names are known then.
    #[inline]
    pub fn element(self, name: &str) -> Option<Element<'a>> {
        self.iter().named(&Sought::new(name.as_bytes()))
    }

    #[inline]
    pub fn first(self) -> Option<Element<'a>> {
        self.iter().next()
    }

    #[inline]
    pub fn get_str(self, name: &str) -> Option<&'a str> {
        match self.get(name) {
            Some(ValueRef::String(text)) => Some(text),
            _ => None,
        }
    }

    #[inline]
    pub fn get_doc(self, name: &str) -> Option<Doc<'a>> {
        match self.get(name) {
            Some(ValueRef::Document(doc)) => Some(doc),
            _ => None,
        }
    }

    #[inline]
    pub fn get_array(self, name: &str) -> Option<Array<'a>> {
        match self.get(name) {
            Some(ValueRef::Array(array)) => Some(array),
            _ => None,
        }
    }

    pub fn to_owned(self) -> DocBuf {
        DocBuf(self.0.to_vec())
    }

    /// The same bytes seen as an array.
    pub fn as_array(self) -> Array<'a> {
        Array(self)
    }
}

impl<'a> IntoIterator for Doc<'a> {
    type Item = Element<'a>;
    type IntoIter = Elements<'a>;
    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl DocBuf {
    pub fn new() -> Self {
        Self(EMPTY.to_vec())
    }

    /// Checks the bytes and takes them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidBson> {
        validate(&bytes, MAX_INTERNAL_BYTES)?;
        Ok(Self(bytes))
    }

    /// Takes bytes that were validated before; see [`Doc::from_validated`].
    pub fn from_validated(bytes: Vec<u8>) -> Self {
        Doc::from_validated(&bytes);
        Self(bytes)
    }

    pub fn as_doc(&self) -> Doc<'_> {
        Doc(&self.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn get(&self, name: &str) -> Option<ValueRef<'_>> {
        self.as_doc().get(name)
    }

    pub fn iter(&self) -> Elements<'_> {
        self.as_doc().iter()
    }
}

impl Default for DocBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Array<'a> {
    pub const EMPTY: Array<'static> = Array(Doc::EMPTY);

    pub fn iter(self) -> impl Iterator<Item = ValueRef<'a>> + Clone {
        self.0.iter().map(|element| element.value())
    }

    /// The elements with their stored keys.
    pub fn elements(self) -> Elements<'a> {
        self.0.iter()
    }

    pub fn get(self, index: usize) -> Option<ValueRef<'a>> {
        self.0.iter().nth(index).map(|element| element.value())
    }

    /// Number of elements: a walk, not a stored number.
    pub fn count(self) -> usize {
        self.0.iter().count()
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn as_doc(self) -> Doc<'a> {
        self.0
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_bytes()
    }

    pub fn to_owned(self) -> ArrayBuf {
        ArrayBuf(self.0.to_owned())
    }
}

impl ArrayBuf {
    pub fn new() -> Self {
        Self(DocBuf::new())
    }

    pub fn from_validated(bytes: Vec<u8>) -> Self {
        Self(DocBuf::from_validated(bytes))
    }

    pub fn as_array(&self) -> Array<'_> {
        Array(self.0.as_doc())
    }

    pub fn iter(&self) -> impl Iterator<Item = ValueRef<'_>> + Clone {
        self.as_array().iter()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

impl Default for ArrayBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> FromIterator<ValueRef<'a>> for ArrayBuf {
    fn from_iter<T: IntoIterator<Item = ValueRef<'a>>>(iter: T) -> Self {
        let mut writer = super::ArrayWriter::new();
        for value in iter {
            writer.push(value);
        }
        writer.finish()
    }
}

impl FromIterator<Value> for ArrayBuf {
    fn from_iter<T: IntoIterator<Item = Value>>(iter: T) -> Self {
        let mut writer = super::ArrayWriter::new();
        for value in iter {
            writer.push(value.as_ref());
        }
        writer.finish()
    }
}

/// One field of a document; its value is decoded only when asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    kind: Kind,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> Element<'a> {
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn key(&self) -> &'a str {
        std::str::from_utf8(self.key).expect(BROKEN)
    }

    #[inline]
    pub fn key_bytes(&self) -> &'a [u8] {
        self.key
    }

    pub fn value(&self) -> ValueRef<'a> {
        parse_value(self.kind, self.value)
    }

    /// The bytes of a string; `None` for every other kind. Comparing them needs no look
    /// at the characters, which [`Element::value`] takes.
    pub fn text_bytes(&self) -> Option<&'a [u8]> {
        match self.kind {
            Kind::String => Some(&self.value[4..self.value.len() - 1]),
            _ => None,
        }
    }

    /// The encoded value without type byte and key.
    #[inline]
    pub fn value_bytes(&self) -> &'a [u8] {
        self.value
    }
}

/// The walk over a document's elements.
#[derive(Clone)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.rest.split_first().expect(BROKEN);
        if tag == 0 {
            return None;
        }
        let kind = Kind::from_tag(tag).expect(BROKEN);
        let key_len = key_length(rest);
        let (key, rest) = (&rest[..key_len], &rest[key_len + 1..]);
        let (value, rest) = rest.split_at(value_len(kind, rest));
        self.rest = rest;
        Some(Element { kind, key, value })
    }
}

impl<'a> Elements<'a> {
    /// Where the next element begins in the document that these are of.
    pub fn place_in(&self, doc: Doc<'a>) -> usize {
        doc.len() - self.rest.len()
    }

    /// The next element of this name. Looking for one field is what queries do most: no
    /// element is made of the others, and the names are compared as numbers.
    fn named(mut self, sought: &Sought<'_>) -> Option<Element<'a>> {
        loop {
            let (&tag, rest) = self.rest.split_first().expect(BROKEN);
            if tag == 0 {
                return None;
            }
            let kind = Kind::from_tag(tag).expect(BROKEN);
            let (is_it, key_len) = sought.compare(rest);
            let (key, rest) = (&rest[..key_len], &rest[key_len + 1..]);
            let (value, rest) = rest.split_at(value_len(kind, rest));
            if is_it {
                return Some(Element { kind, key, value });
            }
            self.rest = rest;
        }
    }
}

/// A name that is looked for, with its first eight bytes as a number: the zero behind
/// it is one of them if the name is shorter.
struct Sought<'n> {
    name: &'n [u8],
    word: u64,
    mask: u64,
}

impl<'n> Sought<'n> {
    #[inline]
    fn new(name: &'n [u8]) -> Self {
        let mut first = [0; 8];
        let known = name.len().min(8);
        first[..known].copy_from_slice(&name[..known]);
        let word = u64::from_le_bytes(first);
        let mask = match name.len() {
            known @ 0..7 => (1 << ((known + 1) * 8)) - 1,
            _ => u64::MAX,
        };
        Self { name, word, mask }
    }

    /// Whether the key at the start of `bytes` is this name, and how long the key is.
    #[inline]
    fn compare(&self, bytes: &[u8]) -> (bool, usize) {
        let Some(first) = bytes.first_chunk() else {
            let length = key_length(bytes);
            return (bytes[..length] == *self.name, length);
        };
        let first = u64::from_le_bytes(*first);
        match first_zero(first) {
            // A name with a zero inside is none, whatever lies behind the key.
            Some(length) => {
                let is_it = first & self.mask == self.word && length == self.name.len();
                (is_it, length)
            }
            None => {
                let length = 8 + key_length(&bytes[8..]);
                (first == self.word && bytes[..length] == *self.name, length)
            }
        }
    }
}

/// Keys are short: eight bytes at a time beat a call into memchr.
#[inline]
fn key_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk() {
        if let Some(zero) = first_zero(u64::from_le_bytes(*word)) {
            return at + zero;
        }
        at += 8;
    }
    let rest = bytes[at..].iter().position(|&byte| byte == 0);
    at + rest.expect(BROKEN)
}

/// Which of the eight bytes is the first that is zero.
#[inline]
fn first_zero(word: u64) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    // The lowest bit is that of the first byte that is zero.
    let zeros = word.wrapping_sub(ONES) & !word & TOPS;
    (zeros != 0).then(|| zeros.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::super::DocWriter;
    use super::*;

    /// Names of every length around the eight bytes that are compared at once, which
    /// begin alike, end alike or hold what no key holds.
    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let names = [
            "",
            "a",
            "aaaaaa",
            "aaaaaaa",
            "aaaaaaaa",
            "aaaaaaaaa",
            "aaaaaaab",
            "aaaaaaaab",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "é",
            "z",
        ];
        let mut writer = DocWriter::new();
        for (number, name) in (0i32..).zip(names) {
            writer.append(name, number);
        }
        let doc = writer.finish();
        for (number, name) in (0i32..).zip(names) {
            assert_eq!(doc.get(name), Some(ValueRef::Int32(number)), "{name:?}");
        }
        for absent in [
            "b",
            "aa",
            "aaaaaaaaaa",
            "a\0",
            "a\0\u{1}",
            "aaaaaaaa\0",
            "\0",
            "aaaaaaac",
            "\u{e9}a",
        ] {
            assert_eq!(doc.get(absent), None, "{absent:?}");
        }
        // The bytes behind a short key may look like the rest of a name with a zero inside.
        let doc = DocWriter::new().with("a", i64::from_le_bytes(*b"b\0cdefgh"));
        assert_eq!(doc.finish().get("a\0b"), None);
    }
}
