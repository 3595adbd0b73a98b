//! Documents out of a fuzzer's bytes.
//!
//! Random bytes are almost never BSON, and random BSON is almost never a filter.
//! So the bytes choose among words: field names that documents share, operators
//! of the language under test, values at the edges of every type. The fuzzer's
//! mutations then change queries and documents instead of breaking them.

use model::bson::{ArrayWriter, DocBuf, DocWriter, ObjectId, Timestamp, Value, ValueRef};

/// Nesting beyond this adds time, not findings.
const DEPTH_MAX: usize = 6;
const FIELDS_MAX: u8 = 4;

const NAMES: &[&str] = &["a", "b", "c", "a.b", "a.0", "a.b.c", "_id", "", "0", "a.$", "a.$[]", "a.$[x].b", "x", "x.b"];

const STRINGS: &[&str] = &["", "a", "abc", "é", "a\u{0}b", "^a", "(", "$a", "$$ROOT", "$$NOW", "$a.b", "date", "1970-01-01", "int"];

/// What is left of the fuzzer's bytes.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.byte() as usize % from.len()]
    }

    /// A document whose field names are the common ones and `words`.
    pub fn document(&mut self, words: &[&str]) -> DocBuf {
        self.document_at(words, 0)
    }

    fn document_at(&mut self, words: &[&str], depth: usize) -> DocBuf {
        let mut writer = DocWriter::new();
        for _ in 0..self.byte() % FIELDS_MAX {
            let name = if words.is_empty() || self.byte() % 2 == 0 {
                self.choose(NAMES)
            } else {
                self.choose(words)
            };
            let value = self.value(words, depth + 1);
            writer.append(name, &value);
        }
        writer.finish()
    }

    /// An array of documents with one word each: stages of a pipeline.
    pub fn stages(&mut self, words: &[&str], inner: &[&str]) -> model::bson::ArrayBuf {
        let mut writer = ArrayWriter::new();
        for _ in 0..1 + self.byte() % FIELDS_MAX {
            let name = self.choose(words);
            let value = self.value(inner, 1);
            let stage = DocWriter::new().with(name, &value).finish();
            writer.push(&stage);
        }
        writer.finish()
    }

    pub fn value(&mut self, words: &[&str], depth: usize) -> Value {
        let kinds = if depth >= DEPTH_MAX { 14 } else { 20 };
        match self.byte() % kinds {
            0 => Value::Int32(self.choose(&[0, 1, -1, 2, i32::MAX, i32::MIN])),
            1 => Value::Int64(self.choose(&[0, 1, -1, 1 << 53, i64::MAX, i64::MIN])),
            2 => Value::Double(self.choose(&[0.0, -0.0, 1.5, f64::NAN, f64::INFINITY, 1e300, -1e-300])),
            3 | 4 => Value::String(self.choose(STRINGS).to_owned()),
            5 => Value::Null,
            6 => Value::Boolean(self.byte() % 2 == 0),
            7 => Value::DateTime(self.choose(&[0, 1, -1, i64::MAX, i64::MIN, 1_700_000_000_000])),
            8 => Value::ObjectId(ObjectId([self.byte(); 12])),
            9 => Value::Timestamp(Timestamp { seconds: self.byte().into(), increment: 1 }),
            10 => Value::Binary { subtype: self.byte(), bytes: vec![self.byte(); usize::from(self.byte() % 9)] },
            11 => self.choose(&[ValueRef::MinKey, ValueRef::MaxKey, ValueRef::Undefined]).to_owned(),
            12 => {
                let mut bytes = [0; 16];
                bytes.fill_with(|| self.byte());
                Value::Decimal128(model::bson::Decimal128(bytes))
            }
            13 => {
                let pattern = self.choose(STRINGS).replace('\0', "");
                Value::Regex { pattern, options: self.choose(&["", "i", "x", "ms"]).to_owned() }
            }
            14 | 15 => {
                let mut writer = ArrayWriter::new();
                for _ in 0..self.byte() % FIELDS_MAX {
                    let value = self.value(words, depth + 1);
                    writer.push(&value);
                }
                Value::Array(writer.finish())
            }
            _ => Value::Document(self.document_at(words, depth + 1)),
        }
    }
}
