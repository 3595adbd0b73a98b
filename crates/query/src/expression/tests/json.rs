//! JSON with MongoDB's extensions, read and written: enough for tables.
//!
//! A number without point or exponent is an int32; all other types are written
//! as documents with one key, `{"$numberLong": "1"}` and so on.

use model::bson::{ArrayWriter, DocWriter, ObjectId, Timestamp, Value, ValueRef};
use model::decimal::Decimal;
use std::fmt::Write;

pub(crate) fn parse(text: &str) -> Value {
    let mut reader = Reader {
        bytes: text.as_bytes(),
        at: 0,
    };
    let value = reader.value();
    reader.blanks();
    assert_eq!(reader.at, text.len(), "nothing follows the value in {text}");
    value
}

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        while self.bytes.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> u8 {
        self.blanks();
        *self.bytes.get(self.at).expect("the text goes on")
    }

    fn expect(&mut self, wanted: u8) {
        let found = self.peek();
        assert_eq!(found as char, wanted as char, "at {}", self.at);
        self.at += 1;
    }

    fn value(&mut self) -> Value {
        match self.peek() {
            b'{' => self.document(),
            b'[' => {
                self.at += 1;
                let mut array = ArrayWriter::new();
                while self.peek() != b']' {
                    array.push(&self.value());
                    if self.peek() == b',' {
                        self.at += 1;
                    }
                }
                self.at += 1;
                array.finish().into()
            }
            b'"' => Value::String(self.string()),
            _ => {
                let start = self.at;
                while self
                    .bytes
                    .get(self.at)
                    .is_some_and(|byte| !matches!(byte, b',' | b']' | b'}' | b' '))
                {
                    self.at += 1;
                }
                let word = std::str::from_utf8(&self.bytes[start..self.at]).expect("text");
                match word {
                    "null" => Value::Null,
                    "true" => Value::Boolean(true),
                    "false" => Value::Boolean(false),
                    number if number.contains(['.', 'e']) => {
                        Value::Double(number.parse().expect("a double"))
                    }
                    number => Value::Int32(number.parse().expect("an int32")),
                }
            }
        }
    }

    fn document(&mut self) -> Value {
        self.expect(b'{');
        let mut fields = Vec::new();
        while self.peek() != b'}' {
            let name = self.string();
            self.expect(b':');
            fields.push((name, self.value()));
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        if let [(name, value)] = &fields[..]
            && let Some(special) = special(name, value)
        {
            return special;
        }
        let mut writer = DocWriter::new();
        for (name, value) in &fields {
            writer.append(name, value);
        }
        writer.finish().into()
    }

    fn string(&mut self) -> String {
        self.expect(b'"');
        let mut bytes = Vec::new();
        loop {
            let byte = self.bytes[self.at];
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => {
                    let escape = self.bytes[self.at];
                    self.at += 1;
                    match escape {
                        b'n' => bytes.push(b'\n'),
                        b't' => bytes.push(b'\t'),
                        b'r' => bytes.push(b'\r'),
                        b'b' => bytes.push(8),
                        b'f' => bytes.push(12),
                        b'u' => {
                            let digits = std::str::from_utf8(&self.bytes[self.at..self.at + 4]);
                            let code = u32::from_str_radix(digits.expect("text"), 16);
                            self.at += 4;
                            let c = char::from_u32(code.expect("hex")).expect("a character");
                            bytes.extend(c.to_string().bytes());
                        }
                        other => bytes.push(other),
                    }
                }
                byte => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).expect("text")
    }
}

/// A value of a type that JSON lacks.
fn special(name: &str, value: &Value) -> Option<Value> {
    let text = match value {
        Value::String(text) => text.as_str(),
        _ => "",
    };
    Some(match (name, value.as_ref()) {
        ("$numberLong", _) => Value::Int64(text.parse().expect("an int64")),
        ("$numberDouble", _) => Value::Double(text.parse().expect("a double")),
        ("$numberDecimal", _) => {
            Value::Decimal128(Decimal::parse(text).expect("a decimal").to_bits())
        }
        ("$date", _) => Value::DateTime(text.parse().expect("milliseconds")),
        ("$oid", _) => {
            let mut id = [0; 12];
            for (at, byte) in id.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex");
            }
            Value::ObjectId(ObjectId(id))
        }
        ("$timestamp", ValueRef::Array(parts)) => match (parts.get(0), parts.get(1)) {
            (Some(ValueRef::Int32(seconds)), Some(ValueRef::Int32(increment))) => {
                Value::Timestamp(Timestamp {
                    seconds: seconds as u32,
                    increment: increment as u32,
                })
            }
            _ => return None,
        },
        ("$regularExpression", ValueRef::Array(parts)) => match (parts.get(0), parts.get(1)) {
            (Some(ValueRef::String(pattern)), Some(ValueRef::String(options))) => Value::Regex {
                pattern: pattern.to_owned(),
                options: options.to_owned(),
            },
            _ => return None,
        },
        ("$binary", _) => Value::Binary {
            subtype: 0,
            bytes: text.as_bytes().to_vec(),
        },
        ("$code", _) => Value::JavaScript(text.to_owned()),
        ("$symbol", _) => Value::Symbol(text.to_owned()),
        ("$undefined", _) => Value::Undefined,
        ("$minKey", _) => Value::MinKey,
        ("$maxKey", _) => Value::MaxKey,
        _ => return None,
    })
}

pub(crate) fn print(value: ValueRef<'_>) -> String {
    let mut text = String::new();
    write(&mut text, value);
    text
}

fn write(text: &mut String, value: ValueRef<'_>) {
    let mut tagged = |name: &str, value: String| {
        write!(text, "{{\"${name}\": \"{value}\"}}").expect("a string takes all");
    };
    match value {
        ValueRef::Int64(number) => tagged("numberLong", number.to_string()),
        ValueRef::Double(number) if number.is_nan() => tagged("numberDouble", "NaN".to_owned()),
        ValueRef::Decimal128(number) => {
            tagged("numberDecimal", Decimal::from_bits(number).to_string());
        }
        ValueRef::DateTime(millis) => tagged("date", millis.to_string()),
        ValueRef::ObjectId(id) => tagged("oid", id.to_string()),
        ValueRef::Document(doc) => {
            text.push('{');
            for (at, element) in doc.iter().enumerate() {
                if at > 0 {
                    text.push_str(", ");
                }
                write!(text, "{:?}: ", element.key()).expect("a string takes all");
                write(text, element.value());
            }
            text.push('}');
        }
        ValueRef::Array(array) => {
            text.push('[');
            for (at, value) in array.iter().enumerate() {
                if at > 0 {
                    text.push_str(", ");
                }
                write(text, value);
            }
            text.push(']');
        }
        other => write!(text, "{other:?}").expect("a string takes all"),
    }
}
