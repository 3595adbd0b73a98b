//! BSON values as the tests see them: exact, ordered, duplicates included.
//!
//! `bson::Document` is a map, so it hides a field that a reply carries twice and compares documents
//! without regard to field order. Both are things this crate must notice, hence its own value type
//! with its own codec. A document is a list of pairs; equality is by type and bytes, except that
//! every NaN of one type equals every other.
//!
//! Decoding checks every length: bytes come from a server that may be wrong.

/// A list of fields in order, duplicates allowed.
pub type Fields = Vec<(String, Value)>;

#[derive(Debug, Clone)]
pub enum Value {
    Double(f64),
    String(String),
    Document(Fields),
    Array(Vec<Value>),
    Binary(u8, Vec<u8>),
    Undefined,
    ObjectId([u8; 12]),
    Bool(bool),
    /// Milliseconds since 1970.
    Date(i64),
    Null,
    Regex(String, String),
    DbPointer(String, [u8; 12]),
    Code(String),
    Symbol(String),
    CodeWithScope(String, Fields),
    Int32(i32),
    /// Seconds and increment.
    Timestamp(u32, u32),
    Int64(i64),
    /// Little-endian BID bytes, as stored.
    Decimal([u8; 16]),
    MinKey,
    MaxKey,
}

#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("BSON ends early or a length is wrong, at byte {0}")]
    Truncated(usize),
    #[error("unknown BSON type {0:#04x}")]
    UnknownType(u8),
    #[error("a string is not UTF-8")]
    NotUtf8,
    #[error("documents are nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
}

/// Deeper than any reply may be; keeps the recursion bounded.
const DEPTH_MAX: usize = 300;

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        use Value::*;
        match (self, other) {
            (Double(a), Double(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Decimal(a), Decimal(b)) => a == b || (is_decimal_nan(a) && is_decimal_nan(b)),
            (String(a), String(b)) | (Code(a), Code(b)) | (Symbol(a), Symbol(b)) => a == b,
            (Document(a), Document(b)) => a == b,
            (Array(a), Array(b)) => a == b,
            (Binary(s, a), Binary(t, b)) => s == t && a == b,
            (ObjectId(a), ObjectId(b)) => a == b,
            (Bool(a), Bool(b)) => a == b,
            (Date(a), Date(b)) | (Int64(a), Int64(b)) => a == b,
            (Int32(a), Int32(b)) => a == b,
            (Regex(a, o), Regex(b, p)) => a == b && o == p,
            (DbPointer(a, i), DbPointer(b, j)) => a == b && i == j,
            (CodeWithScope(a, s), CodeWithScope(b, t)) => a == b && s == t,
            (Timestamp(a, i), Timestamp(b, j)) => a == b && i == j,
            (Undefined, Undefined) | (Null, Null) | (MinKey, MinKey) | (MaxKey, MaxKey) => true,
            // Different types are different values here, even if the server compares them equal.
            (_, _) => false,
        }
    }
}

fn is_decimal_nan(bytes: &[u8; 16]) -> bool {
    bytes[15] & 0x7c == 0x7c
}

impl Value {
    /// The field of a document, the first of that name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Document(fields) => get(fields, name),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_document(&self) -> Option<&Fields> {
        match self {
            Value::Document(fields) => Some(fields),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Any numeric type as a double, for flags and counters of replies.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Value::Double(number) => Some(*number),
            Value::Int32(number) => Some(f64::from(*number)),
            Value::Int64(number) => Some(*number as f64),
            _ => None,
        }
    }

    pub fn is_truthy(&self) -> bool {
        match self {
            Value::Bool(flag) => *flag,
            other => other.as_number().is_some_and(|number| number != 0.0),
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Document(_) => "object",
            Value::Array(_) => "array",
            Value::Binary(..) => "binData",
            Value::Undefined => "undefined",
            Value::ObjectId(_) => "objectId",
            Value::Bool(_) => "bool",
            Value::Date(_) => "date",
            Value::Null => "null",
            Value::Regex(..) => "regex",
            Value::DbPointer(..) => "dbPointer",
            Value::Code(_) => "javascript",
            Value::Symbol(_) => "symbol",
            Value::CodeWithScope(..) => "javascriptWithScope",
            Value::Int32(_) => "int",
            Value::Timestamp(..) => "timestamp",
            Value::Int64(_) => "long",
            Value::Decimal(_) => "decimal",
            Value::MinKey => "minKey",
            Value::MaxKey => "maxKey",
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Value {
        Value::Int32(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Bool(flag)
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Value {
        Value::Document(fields)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Value {
        Value::Array(items)
    }
}

/// The first field of that name.
pub fn get<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    fields
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value)
}

/// One field, for building commands.
pub fn field(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

pub fn encode(fields: &Fields) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    encode_document(
        fields.iter().map(|(name, value)| (name.as_str(), value)),
        &mut out,
    );
    out
}

fn encode_document<'a>(fields: impl Iterator<Item = (&'a str, &'a Value)>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for (name, value) in fields {
        let type_at = out.len();
        out.push(0);
        // A zero byte cannot be written inside a field name; the name ends there.
        out.extend(name.bytes().take_while(|byte| *byte != 0));
        out.push(0);
        out[type_at] = encode_value(value, out);
    }
    out.push(0);
    let length = ((out.len() - start) as i32).to_le_bytes();
    out[start..start + 4].copy_from_slice(&length);
}

/// Writes the value's bytes and returns its type byte.
fn encode_value(value: &Value, out: &mut Vec<u8>) -> u8 {
    let string = |text: &str, out: &mut Vec<u8>| {
        out.extend_from_slice(&(text.len() as i32 + 1).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    };
    match value {
        Value::Double(number) => {
            out.extend_from_slice(&number.to_le_bytes());
            0x01
        }
        Value::String(text) => {
            string(text, out);
            0x02
        }
        Value::Document(fields) => {
            encode_document(
                fields.iter().map(|(name, value)| (name.as_str(), value)),
                out,
            );
            0x03
        }
        Value::Array(items) => {
            let names: Vec<String> = (0..items.len()).map(|index| index.to_string()).collect();
            encode_document(names.iter().map(String::as_str).zip(items), out);
            0x04
        }
        Value::Binary(subtype, bytes) => {
            // Subtype 2 repeats its length inside.
            let nested = *subtype == 2;
            let length = bytes.len() as i32;
            out.extend_from_slice(&(if nested { length + 4 } else { length }).to_le_bytes());
            out.push(*subtype);
            if nested {
                out.extend_from_slice(&length.to_le_bytes());
            }
            out.extend_from_slice(bytes);
            0x05
        }
        Value::Undefined => 0x06,
        Value::ObjectId(bytes) => {
            out.extend_from_slice(bytes);
            0x07
        }
        Value::Bool(flag) => {
            out.push(u8::from(*flag));
            0x08
        }
        Value::Date(millis) => {
            out.extend_from_slice(&millis.to_le_bytes());
            0x09
        }
        Value::Null => 0x0a,
        Value::Regex(pattern, options) => {
            for text in [pattern, options] {
                out.extend(text.bytes().take_while(|byte| *byte != 0));
                out.push(0);
            }
            0x0b
        }
        Value::DbPointer(namespace, id) => {
            string(namespace, out);
            out.extend_from_slice(id);
            0x0c
        }
        Value::Code(text) => {
            string(text, out);
            0x0d
        }
        Value::Symbol(text) => {
            string(text, out);
            0x0e
        }
        Value::CodeWithScope(text, scope) => {
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            string(text, out);
            encode_document(
                scope.iter().map(|(name, value)| (name.as_str(), value)),
                out,
            );
            let length = ((out.len() - start) as i32).to_le_bytes();
            out[start..start + 4].copy_from_slice(&length);
            0x0f
        }
        Value::Int32(number) => {
            out.extend_from_slice(&number.to_le_bytes());
            0x10
        }
        Value::Timestamp(seconds, increment) => {
            out.extend_from_slice(&increment.to_le_bytes());
            out.extend_from_slice(&seconds.to_le_bytes());
            0x11
        }
        Value::Int64(number) => {
            out.extend_from_slice(&number.to_le_bytes());
            0x12
        }
        Value::Decimal(bytes) => {
            out.extend_from_slice(bytes);
            0x13
        }
        Value::MaxKey => 0x7f,
        Value::MinKey => 0xff,
    }
}

pub fn decode(bytes: &[u8]) -> Result<Fields, DecodeError> {
    Reader { bytes, at: 0 }.document(0)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let end = self
            .at
            .checked_add(count)
            .ok_or(DecodeError::Truncated(self.at))?;
        let taken = self
            .bytes
            .get(self.at..end)
            .ok_or(DecodeError::Truncated(self.at))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let at = self.at;
        self.take(N)?
            .try_into()
            .map_err(|_| DecodeError::Truncated(at))
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        let at = self.at;
        usize::try_from(i32::from_le_bytes(self.array()?)).map_err(|_| DecodeError::Truncated(at))
    }

    fn cstring(&mut self) -> Result<String, DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(DecodeError::Truncated(self.at))?;
        self.at += length + 1;
        String::from_utf8(rest[..length].to_vec()).map_err(|_| DecodeError::NotUtf8)
    }

    fn string(&mut self) -> Result<String, DecodeError> {
        let length = self.length()?;
        let at = self.at;
        match self.take(length)? {
            [text @ .., 0] => String::from_utf8(text.to_vec()).map_err(|_| DecodeError::NotUtf8),
            _ => Err(DecodeError::Truncated(at)),
        }
    }

    fn document(&mut self, depth: usize) -> Result<Fields, DecodeError> {
        if depth > DEPTH_MAX {
            return Err(DecodeError::TooDeep);
        }
        let start = self.at;
        let length = self.length()?;
        let mut fields = Vec::new();
        loop {
            let [type_byte] = self.array()?;
            if type_byte == 0 {
                break;
            }
            let name = self.cstring()?;
            let value = self.value(type_byte, depth)?;
            fields.push((name, value));
        }
        if self.at - start != length {
            return Err(DecodeError::Truncated(start));
        }
        Ok(fields)
    }

    fn value(&mut self, type_byte: u8, depth: usize) -> Result<Value, DecodeError> {
        Ok(match type_byte {
            0x01 => Value::Double(f64::from_le_bytes(self.array()?)),
            0x02 => Value::String(self.string()?),
            0x03 => Value::Document(self.document(depth + 1)?),
            0x04 => Value::Array(
                self.document(depth + 1)?
                    .into_iter()
                    .map(|(_, value)| value)
                    .collect(),
            ),
            0x05 => {
                let length = self.length()?;
                let [subtype] = self.array()?;
                let bytes = self.take(length)?;
                let bytes = if subtype == 2 {
                    bytes.get(4..).unwrap_or_default()
                } else {
                    bytes
                };
                Value::Binary(subtype, bytes.to_vec())
            }
            0x06 => Value::Undefined,
            0x07 => Value::ObjectId(self.array()?),
            0x08 => Value::Bool(self.array::<1>()?[0] != 0),
            0x09 => Value::Date(i64::from_le_bytes(self.array()?)),
            0x0a => Value::Null,
            0x0b => Value::Regex(self.cstring()?, self.cstring()?),
            0x0c => Value::DbPointer(self.string()?, self.array()?),
            0x0d => Value::Code(self.string()?),
            0x0e => Value::Symbol(self.string()?),
            0x0f => {
                self.length()?;
                Value::CodeWithScope(self.string()?, self.document(depth + 1)?)
            }
            0x10 => Value::Int32(i32::from_le_bytes(self.array()?)),
            0x11 => {
                let increment = u32::from_le_bytes(self.array()?);
                Value::Timestamp(u32::from_le_bytes(self.array()?), increment)
            }
            0x12 => Value::Int64(i64::from_le_bytes(self.array()?)),
            0x13 => Value::Decimal(self.array()?),
            0x7f => Value::MaxKey,
            0xff => Value::MinKey,
            unknown => return Err(DecodeError::UnknownType(unknown)),
        })
    }
}
