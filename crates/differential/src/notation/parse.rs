//! Text to values: a recursive descent over characters.
//!
//! Values are self-delimiting, so that a table row can hold several of them without separators.

use super::extended::from_extended;
use crate::value::{Fields, Value, field};

#[derive(Debug, thiserror::Error)]
#[error("column {column}: {reason}")]
pub struct NotationError {
    /// Counted in characters from the beginning of the text, from 1.
    pub column: usize,
    pub reason: String,
}

/// Reads one value that makes up the whole text.
pub fn parse(text: &str) -> Result<Value, NotationError> {
    let mut cursor = Cursor::new(text);
    let value = cursor.value()?;
    cursor.skip_blanks();
    if cursor.is_at_end() {
        Ok(value)
    } else {
        Err(cursor.error("something follows the value"))
    }
}

/// A position in a text that holds values.
pub struct Cursor {
    text: Vec<char>,
    at: usize,
}

impl Cursor {
    pub fn new(text: &str) -> Cursor {
        Cursor {
            text: text.chars().collect(),
            at: 0,
        }
    }

    pub fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    pub fn error(&self, reason: impl Into<String>) -> NotationError {
        NotationError {
            column: self.at + 1,
            reason: reason.into(),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    /// Skips white space and comments, which begin with `//` and end with the line.
    pub fn skip_blanks(&mut self) {
        while let Some(next) = self.peek() {
            if next.is_whitespace() {
                self.at += 1;
            } else if next == '/' && self.text.get(self.at + 1) == Some(&'/') {
                while self.peek().is_some_and(|next| next != '\n') {
                    self.at += 1;
                }
            } else {
                return;
            }
        }
    }

    /// Skips blanks, then the token if it comes next.
    pub fn accept(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let found = token
            .chars()
            .enumerate()
            .all(|(i, expected)| self.text.get(self.at + i) == Some(&expected));
        if found {
            self.at += token.chars().count();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), NotationError> {
        if self.accept(token) {
            Ok(())
        } else {
            Err(self.error(format!("expected {token}")))
        }
    }

    /// A word of letters, digits, `_` and `$`, if one comes next.
    pub fn word(&mut self) -> Option<String> {
        self.skip_blanks();
        let start = self.at;
        while self
            .peek()
            .is_some_and(|next| next.is_alphanumeric() || next == '_' || next == '$')
        {
            self.at += 1;
        }
        (self.at > start).then(|| self.text[start..self.at].iter().collect())
    }

    /// A word followed by a colon, if that comes next; otherwise nothing is consumed.
    pub fn key(&mut self) -> Option<String> {
        let start = self.at;
        match self.word() {
            Some(word) if self.accept(":") => Some(word),
            Some(_) | None => {
                self.at = start;
                None
            }
        }
    }

    /// A word that no colon follows, if that comes next; otherwise nothing is consumed.
    pub fn flag(&mut self) -> Option<String> {
        let start = self.at;
        match self.word() {
            Some(word) if !self.accept(":") => Some(word),
            Some(_) | None => {
                self.at = start;
                None
            }
        }
    }

    pub fn value(&mut self) -> Result<Value, NotationError> {
        self.skip_blanks();
        match self.peek() {
            None => Err(self.error("expected a value")),
            Some('{') => {
                let fields = self.fields()?;
                from_extended(fields).map_err(|reason| self.error(reason))
            }
            Some('[') => Ok(Value::Array(self.items()?)),
            Some('"' | '\'') => Ok(Value::String(self.string()?)),
            Some('/') => self.regex(),
            Some(digit) if digit.is_ascii_digit() || digit == '-' || digit == '.' => self.number(),
            Some(_) => self.named(),
        }
    }

    fn fields(&mut self) -> Result<Fields, NotationError> {
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.accept("}") {
            let name = match self.peek() {
                Some('"' | '\'') => self.string()?,
                Some(_) | None => self
                    .word()
                    .ok_or_else(|| self.error("expected a field name"))?,
            };
            self.expect(":")?;
            fields.push((name, self.value()?));
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(fields)
    }

    fn items(&mut self) -> Result<Vec<Value>, NotationError> {
        self.expect("[")?;
        let mut items = Vec::new();
        while !self.accept("]") {
            items.push(self.value()?);
            if !self.accept(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(items)
    }

    fn string(&mut self) -> Result<String, NotationError> {
        let quote = self.next();
        let mut text = String::new();
        loop {
            let next = self
                .next()
                .ok_or_else(|| self.error("the string does not end"))?;
            if Some(next) == quote {
                return Ok(text);
            }
            if next != '\\' {
                text.push(next);
                continue;
            }
            let escape = self
                .next()
                .ok_or_else(|| self.error("the string does not end"))?;
            text.push(match escape {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                '\\' | '"' | '\'' | '/' => escape,
                'u' => self.unicode_escape()?,
                other => return Err(self.error(format!("unknown escape \\{other}"))),
            });
        }
    }

    fn unicode_escape(&mut self) -> Result<char, NotationError> {
        let braced = self.peek() == Some('{');
        let mut digits = String::new();
        if braced {
            self.at += 1;
            while let Some(next) = self.next().filter(|next| *next != '}') {
                digits.push(next);
            }
        } else {
            for _ in 0..4 {
                digits.extend(self.next());
            }
        }
        u32::from_str_radix(&digits, 16)
            .ok()
            .and_then(char::from_u32)
            .ok_or_else(|| self.error("not a Unicode character"))
    }

    fn regex(&mut self) -> Result<Value, NotationError> {
        self.at += 1;
        let mut pattern = String::new();
        loop {
            match self.next() {
                None => return Err(self.error("the regular expression does not end")),
                Some('/') => break,
                Some('\\') if self.peek() == Some('/') => {
                    pattern.push('/');
                    self.at += 1;
                }
                // An escaped character stays escaped: the server's engine reads it.
                Some('\\') => {
                    pattern.push('\\');
                    pattern.extend(self.next());
                }
                Some(other) => pattern.push(other),
            }
        }
        let mut options = String::new();
        while let Some(letter) = self.peek().filter(char::is_ascii_lowercase) {
            options.push(letter);
            self.at += 1;
        }
        Ok(Value::Regex(pattern, options))
    }

    fn number(&mut self) -> Result<Value, NotationError> {
        let start = self.at;
        if self.text[start..].starts_with(&['-', 'I']) {
            self.at += 1;
            return match self.word().as_deref() {
                Some("Infinity") => Ok(Value::Double(f64::NEG_INFINITY)),
                Some("Infinitym") => decimal("-Infinity").map_err(|reason| self.error(reason)),
                Some(_) | None => Err(self.error("not a number")),
            };
        }
        while let Some(next) = self.peek() {
            let after_exponent = matches!(self.text.get(self.at.wrapping_sub(1)), Some('e' | 'E'));
            let signed = matches!(next, '-' | '+') && (self.at == start || after_exponent);
            if !(signed || next.is_ascii_digit() || matches!(next, '.' | 'e' | 'E')) {
                break;
            }
            self.at += 1;
        }
        let text: String = self.text[start..self.at].iter().collect();
        let suffix = self.peek().filter(|next| next.is_alphabetic());
        if suffix.is_some() {
            self.at += 1;
        }
        let value = match suffix {
            Some('m') => decimal(&text).ok(),
            Some('L') => text.parse().ok().map(Value::Int64),
            Some(_) => None,
            None if text.contains(['.', 'e', 'E']) => text.parse().ok().map(Value::Double),
            None => match text.parse::<i32>() {
                Ok(number) => Some(Value::Int32(number)),
                Err(_) => text.parse().ok().map(Value::Int64),
            },
        };
        value.ok_or_else(|| self.error(format!("{text} is not a number")))
    }

    /// Constants and the forms that look like calls.
    fn named(&mut self) -> Result<Value, NotationError> {
        let Some(name) = self.word() else {
            return Err(self.error("expected a value"));
        };
        let constant = match name.as_str() {
            "null" => Some(Value::Null),
            "undefined" => Some(Value::Undefined),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "NaN" => Some(Value::Double(f64::NAN)),
            "Infinity" => Some(Value::Double(f64::INFINITY)),
            "NaNm" => decimal("NaN").ok(),
            "Infinitym" => decimal("Infinity").ok(),
            "MinKey" => Some(Value::MinKey),
            "MaxKey" => Some(Value::MaxKey),
            _ => None,
        };
        if let Some(constant) = constant {
            return Ok(constant);
        }
        if !self.accept("(") {
            return Err(self.error(format!("{name} is not a value")));
        }
        let mut arguments = Vec::new();
        while !self.accept(")") {
            arguments.push(self.value()?);
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        call(&name, &arguments).map_err(|reason| self.error(reason))
    }
}

fn call(name: &str, arguments: &[Value]) -> Result<Value, String> {
    use Value::{Int32, String as Text};
    Ok(match (name, arguments) {
        ("Date", [Text(text)]) => Value::Date(date(text)?),
        ("Date", [Int32(millis)]) => Value::Date(i64::from(*millis)),
        ("Date", [Value::Int64(millis)]) => Value::Date(*millis),
        ("Timestamp", [seconds, increment]) => {
            Value::Timestamp(unsigned(seconds)?, unsigned(increment)?)
        }
        ("ObjectId", [Text(text)]) => Value::ObjectId(object_id(text)?),
        ("oid", [number]) => {
            let mut bytes = [0; 12];
            bytes[8..].copy_from_slice(&unsigned(number)?.to_be_bytes());
            Value::ObjectId(bytes)
        }
        ("UUID", [Text(text)]) => Value::Binary(4, hexadecimal(&text.replace('-', ""))?),
        ("Binary", [subtype, Text(text)]) => {
            let subtype =
                u8::try_from(unsigned(subtype)?).map_err(|_| "the subtype is one byte")?;
            Value::Binary(subtype, hexadecimal(text)?)
        }
        ("Code", [Text(text)]) => Value::Code(text.clone()),
        ("Code", [Text(text), Value::Document(scope)]) => {
            Value::CodeWithScope(text.clone(), scope.clone())
        }
        ("Symbol", [Text(text)]) => Value::Symbol(text.clone()),
        ("DBPointer", [Text(namespace), Value::ObjectId(id)]) => {
            Value::DbPointer(namespace.clone(), *id)
        }
        ("Decimal", [Text(text)]) => decimal(text)?,
        ("Repeat", [Text(text), count]) => Text(text.repeat(unsigned(count)? as usize)),
        ("Range", [Int32(from), Int32(to)]) => Value::Array((*from..*to).map(Int32).collect()),
        ("Nest", [depth]) => {
            let wrap = |inner, _| Value::Document(vec![("n".to_owned(), inner)]);
            (0..unsigned(depth)?.min(NESTING_MAX)).fold(Int32(1), wrap)
        }
        ("Many", [Int32(count)]) => Value::Array((1..=*count).map(numbered_document).collect()),
        _ => return Err(format!("{name} does not exist or takes other arguments")),
    })
}

/// Deeper than any server accepts.
const NESTING_MAX: u32 = 1000;

/// One of many documents, for tests that need more of them than anyone would write down.
fn numbered_document(number: i32) -> Value {
    Value::Document(vec![
        field("_id", number),
        field("a", number % 10),
        field("s", Value::String(format!("s{number}"))),
    ])
}

fn unsigned(value: &Value) -> Result<u32, String> {
    match value {
        Value::Int32(number) => u32::try_from(*number).ok(),
        Value::Int64(number) => u32::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| "expected a whole number from 0 to 4294967295".to_owned())
}

pub(super) fn decimal(text: &str) -> Result<Value, String> {
    text.parse::<bson::Decimal128>()
        .map(|decimal| Value::Decimal(decimal.bytes()))
        .map_err(|error| format!("{text}: {error}"))
}

pub(super) fn date(text: &str) -> Result<i64, String> {
    bson::DateTime::parse_rfc3339_str(text)
        .map(bson::DateTime::timestamp_millis)
        .map_err(|error| format!("{text}: {error}"))
}

pub(super) fn object_id(text: &str) -> Result<[u8; 12], String> {
    hexadecimal(text)?
        .try_into()
        .map_err(|_| format!("{text} is not twelve bytes"))
}

pub(super) fn hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err(format!("{text} is not hexadecimal"));
    }
    (0..text.len())
        .step_by(2)
        .map(|at| {
            u8::from_str_radix(&text[at..at + 2], 16)
                .map_err(|_| format!("{text} is not hexadecimal"))
        })
        .collect()
}
