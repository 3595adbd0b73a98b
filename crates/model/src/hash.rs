//! Hashes of values: one for tables in memory, one that clients can see.
//!
//! [`hash_value`] is for `$group`, `$addToSet` and `distinct`: values that
//! compare equal hash equal, whatever their types. It is never stored.
//!
//! [`hashed_index_key`] is the server's hash for hashed indexes and shard keys.
//! It must stay what it is on every version and every platform:
//!
//! ```text
//!   first 8 bytes, little endian, of md5( seed 0 (4) | value )
//!   value     = type (4, little endian) content      type: of the bracket
//!   content   of a number: as int64, little endian; doubles are cut off,
//!               decimals rounded, both saturate, NaN is 0
//!             of a document or an array: field* 0 (4)
//!             of code with scope: code NUL field* 0 (4)
//!             of all others: the bytes of the BSON value
//!   field     = type (4) name NUL content
//! ```
//!
//! So 3, 3.0 and 3.7 hash alike: a hashed index has them as candidates only,
//! and refuses to order them.
//!
//! A statement about one document hashes the same value several times: to find its shard, to
//! check who owns it, to find its record, and for the index. So each thread remembers the short
//! value that it hashed last.

use crate::bson::{Decimal128, Doc, Kind, ValueRef};
use crate::decimal::{Decimal, Rounding};
use crate::number::Number;
use crate::order::bracket;
use foldhash::fast::FixedState;
use md5::{Digest, Md5};
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};

/// MD5 over documents, one after the other, as `dbHash` shows it.
#[derive(Default)]
pub struct DocumentsHash(Md5);

impl DocumentsHash {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// In hexadecimal digits.
    pub fn finish(self) -> String {
        let digest = self.0.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A hash with: compare equal, hash equal.
pub fn hash_value(value: ValueRef<'_>) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    feed(&mut hasher, value);
    hasher.finish()
}

/// Several values as one key of a table.
pub fn hash_values<'a>(values: impl IntoIterator<Item = ValueRef<'a>>) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    for value in values {
        feed(&mut hasher, value);
    }
    hasher.finish()
}

fn feed(hasher: &mut impl Hasher, value: ValueRef<'_>) {
    hasher.write_u8(bracket(value.kind()));
    match value {
        ValueRef::Int32(v) => hasher.write_i64(v.into()),
        ValueRef::Int64(v) => hasher.write_i64(v),
        ValueRef::Double(v) => feed_number(hasher, Number::Double(v)),
        ValueRef::Decimal128(v) => feed_number(hasher, Number::Decimal(Decimal::from_bits(v))),
        ValueRef::String(text) | ValueRef::Symbol(text) | ValueRef::JavaScript(text) => {
            feed_text(hasher, text.as_bytes());
        }
        ValueRef::Document(doc) => feed_fields(hasher, doc),
        ValueRef::Array(array) => {
            for element in array.iter() {
                feed(hasher, element);
            }
            hasher.write_u8(u8::MAX);
        }
        ValueRef::Binary { subtype, bytes } => {
            hasher.write_u8(subtype);
            feed_text(hasher, bytes);
        }
        ValueRef::ObjectId(id) => hasher.write(&id.0),
        ValueRef::Boolean(v) => hasher.write_u8(v.into()),
        ValueRef::DateTime(v) => hasher.write_i64(v),
        ValueRef::Timestamp(v) => {
            hasher.write_u32(v.seconds);
            hasher.write_u32(v.increment);
        }
        ValueRef::Regex { pattern, options } => {
            feed_text(hasher, pattern.as_bytes());
            feed_text(hasher, options.as_bytes());
        }
        ValueRef::DbPointer { namespace, id } => {
            feed_text(hasher, namespace.as_bytes());
            hasher.write(&id.0);
        }
        ValueRef::JavaScriptWithScope { code, scope } => {
            feed_text(hasher, code.as_bytes());
            feed_fields(hasher, scope);
        }
        ValueRef::MinKey | ValueRef::Undefined | ValueRef::Null | ValueRef::MaxKey => {}
    }
}

/// The normal form of a number: an int64 if it is one, else the nearest double.
/// Unequal decimals may share a double; equal numbers always do.
fn feed_number(hasher: &mut impl Hasher, number: Number) {
    if let Some(whole) = number.to_i64_exact() {
        hasher.write_i64(whole);
        return;
    }
    let double = number.to_f64();
    hasher.write_u64(if double.is_nan() {
        f64::NAN.to_bits()
    } else {
        double.to_bits()
    });
}

fn feed_text(hasher: &mut impl Hasher, bytes: &[u8]) {
    hasher.write_usize(bytes.len());
    hasher.write(bytes);
}

fn feed_fields(hasher: &mut impl Hasher, doc: Doc<'_>) {
    for element in doc.iter() {
        feed_text(hasher, element.key_bytes());
        feed(hasher, element.value());
    }
    hasher.write_u8(u8::MAX);
}

/// The server's 64-bit hash of a value, for hashed indexes and hashed shard keys.
pub fn hashed_index_key(value: ValueRef<'_>) -> i64 {
    let mut content = Content::default();
    content.update(&HASH_SEED.to_le_bytes());
    content.update(&canonical_type(value).to_le_bytes());
    put_content(&mut content, value);
    content.hash()
}

/// What is hashed, gathered while it is short.
#[derive(Default)]
struct Content {
    short: Short,
    /// Once it is longer than that.
    digest: Option<Md5>,
}

/// All of one block of MD5, with what the algorithm adds to it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Short {
    bytes: [u8; Short::BYTES_MAX],
    length: usize,
}

thread_local! {
    /// A short content and its hash. An empty one is nobody's.
    static LAST: Cell<(Short, i64)> = Cell::new((Short::default(), 0));
}

impl Short {
    const BYTES_MAX: usize = 55;

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Default for Short {
    fn default() -> Self {
        Self {
            bytes: [0; Short::BYTES_MAX],
            length: 0,
        }
    }
}

impl Content {
    fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.digest {
            return digest.update(bytes);
        }
        let end = self.short.length + bytes.len();
        match self.short.bytes.get_mut(self.short.length..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.short.length = end;
            }
            None => {
                let digest = Md5::new_with_prefix(self.short.as_bytes());
                self.digest = Some(digest.chain_update(bytes));
            }
        }
    }

    fn hash(self) -> i64 {
        if let Some(digest) = self.digest {
            return first_bytes(digest);
        }
        let (last, hash) = LAST.get();
        if last == self.short {
            return hash;
        }
        let hash = first_bytes(Md5::new_with_prefix(self.short.as_bytes()));
        LAST.set((self.short, hash));
        hash
    }
}

fn first_bytes(digest: Md5) -> i64 {
    let hash: [u8; 16] = digest.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    i64::from_le_bytes(first)
}

const HASH_SEED: i32 = 0;
const END_OF_FIELDS: i32 = 0;

/// The number by which the server's hash knows a type bracket.
fn canonical_type(value: ValueRef<'_>) -> i32 {
    match value.kind() {
        Kind::MinKey => -1,
        Kind::Undefined => 0,
        Kind::Null => 5,
        Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128 => 10,
        Kind::String | Kind::Symbol => 15,
        Kind::Document => 20,
        Kind::Array => 25,
        Kind::Binary => 30,
        Kind::ObjectId => 35,
        Kind::Boolean => 40,
        Kind::DateTime => 45,
        Kind::Timestamp => 47,
        Kind::Regex => 50,
        Kind::DbPointer => 55,
        Kind::JavaScript => 60,
        Kind::JavaScriptWithScope => 65,
        Kind::MaxKey => 127,
    }
}

fn put_content(content: &mut Content, value: ValueRef<'_>) {
    match value {
        ValueRef::Int32(v) => content.update(&i64::from(v).to_le_bytes()),
        ValueRef::Int64(v) | ValueRef::DateTime(v) => content.update(&v.to_le_bytes()),
        // The cast saturates and takes NaN to zero, as the server does.
        ValueRef::Double(v) => content.update(&(v as i64).to_le_bytes()),
        ValueRef::Decimal128(v) => content.update(&decimal_to_i64(v).to_le_bytes()),
        ValueRef::String(text) | ValueRef::Symbol(text) | ValueRef::JavaScript(text) => {
            put_string(content, text);
        }
        ValueRef::Document(doc) => put_fields(content, doc),
        ValueRef::Array(array) => put_fields(content, array.as_doc()),
        ValueRef::Binary { subtype, bytes } => {
            content.update(&(bytes.len() as i32).to_le_bytes());
            content.update(&[subtype]);
            content.update(bytes);
        }
        ValueRef::ObjectId(id) => content.update(&id.0),
        ValueRef::Boolean(v) => content.update(&[u8::from(v)]),
        ValueRef::Timestamp(v) => {
            content.update(&v.increment.to_le_bytes());
            content.update(&v.seconds.to_le_bytes());
        }
        ValueRef::Regex { pattern, options } => {
            for text in [pattern, options] {
                content.update(text.as_bytes());
                content.update(&[0]);
            }
        }
        ValueRef::DbPointer { namespace, id } => {
            put_string(content, namespace);
            content.update(&id.0);
        }
        ValueRef::JavaScriptWithScope { code, scope } => {
            content.update(code.as_bytes());
            content.update(&[0]);
            put_fields(content, scope);
        }
        ValueRef::MinKey | ValueRef::Undefined | ValueRef::Null | ValueRef::MaxKey => {}
    }
}

fn put_string(content: &mut Content, text: &str) {
    content.update(&(text.len() as i32 + 1).to_le_bytes());
    content.update(text.as_bytes());
    content.update(&[0]);
}

fn put_fields(content: &mut Content, doc: Doc<'_>) {
    for element in doc.iter() {
        let value = element.value();
        content.update(&canonical_type(value).to_le_bytes());
        content.update(element.key_bytes());
        content.update(&[0]);
        put_content(content, value);
    }
    content.update(&END_OF_FIELDS.to_le_bytes());
}

/// Unlike doubles, decimals are rounded, half to even.
fn decimal_to_i64(stored: Decimal128) -> i64 {
    let decimal = Decimal::from_bits(stored);
    if decimal.is_nan() {
        return 0;
    }
    let limit = if decimal.is_negative() {
        i64::MIN
    } else {
        i64::MAX
    };
    decimal
        .round_to_place(0, Rounding::HalfEven)
        .to_i64_truncated()
        .unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::hashed_index_key;
    use crate::bson::{DocBuf, DocWriter, ValueRef};
    use crate::decimal::Decimal;

    fn check(value: ValueRef<'_>, expected: i64) {
        assert_eq!(hashed_index_key(value), expected, "{value:?}");
    }

    fn check_decimal(text: &str, expected: i64) {
        let decimal = Decimal::parse(text).expect("the table holds decimals");
        check(ValueRef::Decimal128(decimal.to_bits()), expected);
    }

    fn one_field(write: impl FnOnce(&mut DocWriter)) -> DocBuf {
        let mut writer = DocWriter::new();
        write(&mut writer);
        writer.finish()
    }

    /// What was hashed before decides about nothing, be it short, long, or the beginning of another.
    #[test]
    fn a_hash_does_not_depend_on_the_one_before() {
        let texts: Vec<String> = (0..130).map(|length| "x".repeat(length)).collect();
        let alone = |text: &String| {
            let text = text.clone();
            let hashed = std::thread::spawn(move || hashed_index_key(ValueRef::String(&text)));
            hashed.join().expect("hashing does not panic")
        };
        let expected: Vec<i64> = texts.iter().map(alone).collect();
        for (text, expected) in texts.iter().zip(&expected).rev() {
            for _ in 0..2 {
                check(ValueRef::String(text), *expected);
                check(ValueRef::Symbol(text), *expected);
            }
        }
        let distinct: std::collections::BTreeSet<_> = expected.iter().collect();
        assert_eq!(distinct.len(), expected.len());
    }

    /// Every number here was answered by `$toHashedIndexKey` of `mongod` 6.0.5.
    #[test]
    fn hashes_as_the_server_does() {
        use crate::bson::{ObjectId, Timestamp};
        check(ValueRef::Int32(5), 4470791281878691347);
        check(ValueRef::Int64(5), 4470791281878691347);
        check(ValueRef::Double(5.0), 4470791281878691347);
        check(ValueRef::Double(5.7), 4470791281878691347);
        check(ValueRef::Double(-5.7), -1180238566395260968);
        check(ValueRef::Double(f64::NAN), 4854801880128277513);
        check(ValueRef::Double(f64::INFINITY), 921523596458303250);
        check(ValueRef::Double(-1e20), 4532067210535695462);
        for (text, expected) in [
            ("5", 4470791281878691347),
            ("5.2", 4470791281878691347),
            ("5.7", -6504342592125989714),
            ("5.5", -6504342592125989714),
            ("4.5", 2433984061343616404),
            ("-5.7", -4682066552107256369),
            ("NaN", 4854801880128277513),
            ("Infinity", 921523596458303250),
            ("-1e40", 4532067210535695462),
            ("9223372036854775807.4", 921523596458303250),
        ] {
            check_decimal(text, expected);
        }
        check(ValueRef::Null, 2338878944348059895);
        check(ValueRef::Undefined, 40158834000849533);
        check(ValueRef::MinKey, 7961148599568647290);
        check(ValueRef::MaxKey, 5504842513779440750);
        check(ValueRef::String("abc"), 8478485326885698097);
        check(ValueRef::Symbol("abc"), 8478485326885698097);
        check(ValueRef::JavaScript("abc"), -7453543509645499566);
        check(ValueRef::ObjectId(ObjectId([0; 12])), -4293118519463489418);
        check(ValueRef::Boolean(true), 6405873908747105701);
        check(ValueRef::DateTime(-5), 978633222057449729);
        let time = Timestamp {
            seconds: 0,
            increment: 7,
        };
        check(ValueRef::Timestamp(time), 8444957696929486647);
        let (pattern, options) = ("a", "i");
        check(ValueRef::Regex { pattern, options }, -1736204118293582337);
        let pointer = ValueRef::DbPointer {
            namespace: "n.s",
            id: ObjectId([0; 12]),
        };
        check(pointer, -3957615004894547625);
        for (subtype, bytes, expected) in [
            (5, &b"abc"[..], 5646896599097355253),
            (2, b"\x03\0\0\0abc", 9201357337759527400),
        ] {
            check(ValueRef::Binary { subtype, bytes }, expected);
        }
        let a_is_one = one_field(|writer| {
            writer.append("a", 1);
        });
        check(ValueRef::from(&a_is_one), -8705610352600103477);
        let with_scope = ValueRef::JavaScriptWithScope {
            code: "abc",
            scope: a_is_one.as_doc(),
        };
        check(with_scope, -3496656925519721149);
        let nested = one_field(|writer| {
            writer.begin_document("a").begin_array("b");
            writer.push(1).push("x").push(ValueRef::Null);
            writer.end().end();
        });
        check(ValueRef::from(&nested), 902207936210285912);
        let array = crate::bson::ArrayBuf::from_iter([ValueRef::Int32(1)]);
        check(ValueRef::from(&array), 2057342063119257436);
    }
}
