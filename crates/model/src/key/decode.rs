//! Key bytes back into values. The bytes come from disk: everything is checked.

use super::type_bits::TypeBitsReader;
use super::{Direction, KeyError, TypeBits, number, tag};
use crate::bson::{
    ArrayWriter, DocBuf, DocWriter, MAX_DEPTH, ObjectId, Timestamp, Value, ValueRef,
};

/// The fields of the innermost document that validation lets in.
const DEEPEST_VALUE: usize = MAX_DEPTH + 1;

/// Walks over a key, undoing the inversion of descending fields.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    mask: u8,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], direction: Direction) -> Self {
        Self {
            bytes,
            at: 0,
            mask: direction.mask(),
        }
    }

    /// From here on bytes are inverted once more.
    pub(super) fn invert(&mut self) {
        self.mask = !self.mask;
    }

    pub(super) fn byte(&mut self) -> Result<u8, KeyError> {
        let byte = *self.bytes.get(self.at).ok_or(KeyError::Truncated)?;
        self.at += 1;
        Ok(byte ^ self.mask)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], KeyError> {
        let mut array = *self.raw(N)?.first_chunk().ok_or(KeyError::Truncated)?;
        for byte in &mut array {
            *byte ^= self.mask;
        }
        Ok(array)
    }

    /// The next bytes as they are stored.
    fn raw(&mut self, count: usize) -> Result<&'a [u8], KeyError> {
        let rest = &self.bytes[self.at..];
        let raw = rest.get(..count).ok_or(KeyError::Truncated)?;
        self.at += count;
        Ok(raw)
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, KeyError> {
        let mask = self.mask;
        Ok(self.raw(count)?.iter().map(|byte| byte ^ mask).collect())
    }

    /// The bytes before the next terminator, as they are stored.
    fn raw_until_zero(&mut self) -> Result<&'a [u8], KeyError> {
        let rest = &self.bytes[self.at..];
        let length = memchr::memchr(self.mask, rest).ok_or(KeyError::Truncated)?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    /// A name or pattern: no escapes.
    fn c_str(&mut self) -> Result<String, KeyError> {
        let mask = self.mask;
        let bytes = self.raw_until_zero()?;
        utf8(bytes.iter().map(|byte| byte ^ mask).collect())
    }

    fn text(&mut self) -> Result<String, KeyError> {
        let mask = self.mask;
        let mut bytes = self.raw_until_zero()?.iter().map(|byte| byte ^ mask);
        let mut text = Vec::with_capacity(bytes.len());
        while let Some(byte) = bytes.next() {
            text.push(match byte {
                1 => match bytes.next() {
                    Some(escaped @ 1..=2) => escaped - 1,
                    _ => return Err(KeyError::Malformed("unknown escape")),
                },
                other => other,
            });
        }
        utf8(text)
    }

    fn binary_length(&mut self) -> Result<usize, KeyError> {
        Ok(match self.byte()? {
            0xFF => u32::from_be_bytes(self.array()?) as usize,
            short => short.into(),
        })
    }
}

fn utf8(bytes: Vec<u8>) -> Result<String, KeyError> {
    String::from_utf8(bytes).map_err(|_| KeyError::Malformed("text is not UTF-8"))
}

/// Decodes a whole key, one field for each direction.
pub fn decode(
    bytes: &[u8],
    type_bits: &TypeBits,
    directions: &[Direction],
) -> Result<Vec<Value>, KeyError> {
    let mut bits = type_bits.reader();
    let mut values = Vec::with_capacity(directions.len());
    let mut rest = bytes;
    for direction in directions {
        let mut reader = Reader::new(rest, *direction);
        values.push(read_value(&mut reader, &mut bits, 0)?);
        rest = &rest[reader.at..];
    }
    if !rest.is_empty() {
        return Err(KeyError::TrailingBytes);
    }
    bits.finish()?;
    Ok(values)
}

/// Decodes the first value and says how many bytes it took.
pub fn decode_value(
    bytes: &[u8],
    type_bits: &TypeBits,
    direction: Direction,
) -> Result<(Value, usize), KeyError> {
    let mut reader = Reader::new(bytes, direction);
    let value = read_value(&mut reader, &mut type_bits.reader(), 0)?;
    Ok((value, reader.at))
}

/// How many bytes the first encoded value takes.
pub fn skip_value(bytes: &[u8], direction: Direction) -> Result<usize, KeyError> {
    let mut reader = Reader::new(bytes, direction);
    let tag = reader.byte()?;
    skip_payload(&mut reader, tag, 0)?;
    Ok(reader.at)
}

fn skip_payload(reader: &mut Reader<'_>, tag: u8, depth: usize) -> Result<(), KeyError> {
    if depth > DEEPEST_VALUE {
        return Err(KeyError::TooDeep);
    }
    match tag {
        tag::NAN..=tag::INFINITY => return number::skip(reader, tag),
        tag::MIN_KEY | tag::UNDEFINED | tag::NULL | tag::FALSE | tag::TRUE | tag::MAX_KEY => {}
        tag::STRING | tag::JAVA_SCRIPT => {
            reader.raw_until_zero()?;
        }
        tag::OBJECT_ID => {
            reader.raw(12)?;
        }
        tag::DATE_TIME | tag::TIMESTAMP => {
            reader.raw(8)?;
        }
        tag::BINARY => {
            let length = reader.binary_length()?;
            reader.raw(1)?;
            reader.raw(length)?;
        }
        tag::REGEX => {
            reader.raw_until_zero()?;
            reader.raw_until_zero()?;
        }
        tag::DB_POINTER => {
            let length = u32::from_be_bytes(reader.array()?) as usize;
            reader.raw(length)?;
            reader.raw(12)?;
        }
        tag::ARRAY => loop {
            match reader.byte()? {
                0 => break,
                element => skip_payload(reader, element, depth + 1)?,
            }
        },
        tag::DOCUMENT => skip_fields(reader, depth)?,
        tag::JAVA_SCRIPT_WITH_SCOPE => {
            reader.raw_until_zero()?;
            skip_fields(reader, depth)?;
        }
        unknown => return Err(KeyError::UnknownTag(unknown)),
    }
    Ok(())
}

fn skip_fields(reader: &mut Reader<'_>, depth: usize) -> Result<(), KeyError> {
    while reader.byte()? != 0 {
        reader.raw_until_zero()?;
        let tag = reader.byte()?;
        skip_payload(reader, tag, depth + 1)?;
    }
    Ok(())
}

fn read_value(
    reader: &mut Reader<'_>,
    bits: &mut TypeBitsReader<'_>,
    depth: usize,
) -> Result<Value, KeyError> {
    let tag = reader.byte()?;
    read_payload(reader, bits, tag, depth)
}

fn read_payload(
    reader: &mut Reader<'_>,
    bits: &mut TypeBitsReader<'_>,
    tag: u8,
    depth: usize,
) -> Result<Value, KeyError> {
    if depth > DEEPEST_VALUE {
        return Err(KeyError::TooDeep);
    }
    Ok(match tag {
        tag::NAN..=tag::INFINITY => return number::decode(reader, tag, bits),
        tag::MIN_KEY => Value::MinKey,
        tag::UNDEFINED => Value::Undefined,
        tag::NULL => Value::Null,
        tag::FALSE => Value::Boolean(false),
        tag::TRUE => Value::Boolean(true),
        tag::MAX_KEY => Value::MaxKey,
        tag::STRING => {
            let text = reader.text()?;
            if bits.next() {
                Value::Symbol(text)
            } else {
                Value::String(text)
            }
        }
        tag::JAVA_SCRIPT => Value::JavaScript(reader.text()?),
        tag::OBJECT_ID => Value::ObjectId(ObjectId(reader.array()?)),
        tag::DATE_TIME => Value::DateTime(i64::from_be_bytes(reader.array()?) ^ i64::MIN),
        tag::TIMESTAMP => Value::Timestamp(Timestamp {
            seconds: u32::from_be_bytes(reader.array()?),
            increment: u32::from_be_bytes(reader.array()?),
        }),
        tag::BINARY => {
            let length = reader.binary_length()?;
            Value::Binary {
                subtype: reader.byte()?,
                bytes: reader.take(length)?,
            }
        }
        tag::REGEX => Value::Regex {
            pattern: reader.c_str()?,
            options: reader.c_str()?,
        },
        tag::DB_POINTER => {
            let length = u32::from_be_bytes(reader.array()?) as usize;
            Value::DbPointer {
                namespace: utf8(reader.take(length)?)?,
                id: ObjectId(reader.array()?),
            }
        }
        tag::ARRAY => {
            let mut writer = ArrayWriter::new();
            loop {
                match reader.byte()? {
                    0 => break,
                    tag => writer.push(&read_payload(reader, bits, tag, depth + 1)?),
                };
            }
            Value::Array(writer.finish())
        }
        tag::DOCUMENT => Value::Document(read_fields(reader, bits, depth)?),
        tag::JAVA_SCRIPT_WITH_SCOPE => Value::JavaScriptWithScope {
            code: reader.text()?,
            scope: read_fields(reader, bits, depth)?,
        },
        unknown => return Err(KeyError::UnknownTag(unknown)),
    })
}

fn read_fields(
    reader: &mut Reader<'_>,
    bits: &mut TypeBitsReader<'_>,
    depth: usize,
) -> Result<DocBuf, KeyError> {
    let mut writer = DocWriter::new();
    while reader.byte()? != 0 {
        let name = reader.c_str()?;
        let value = read_value(reader, bits, depth + 1)?;
        writer.append(&name, ValueRef::from(&value));
    }
    Ok(writer.finish())
}
