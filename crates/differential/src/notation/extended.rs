//! The explicit forms of extended JSON, recognised after a document was read.
//!
//! Only the names that no query operator has are taken: `{$regex: …, $options: …}` stays a
//! document, because in a filter it is one.

use super::parse::{date, decimal, hexadecimal, object_id};
use crate::value::{Fields, Value};

/// The value that an extended form stands for, or the document itself.
pub(super) fn from_extended(fields: Fields) -> Result<Value, String> {
    let Some((name, value)) = fields.first() else {
        return Ok(Value::Document(fields));
    };
    let text = value.as_str();
    let found = match (name.as_str(), text) {
        ("$numberInt", Some(text)) => Value::Int32(text.parse().map_err(|_| not(text, "int32"))?),
        ("$numberLong", Some(text)) => Value::Int64(text.parse().map_err(|_| not(text, "int64"))?),
        ("$numberDouble", Some(text)) => {
            Value::Double(text.parse().map_err(|_| not(text, "double"))?)
        }
        ("$numberDecimal", Some(text)) => decimal(text)?,
        ("$oid", Some(text)) => Value::ObjectId(object_id(text)?),
        ("$uuid", Some(text)) => Value::Binary(4, hexadecimal(&text.replace('-', ""))?),
        ("$symbol", Some(text)) => Value::Symbol(text.to_owned()),
        ("$date", Some(text)) => Value::Date(date(text)?),
        ("$date", None) => match value {
            Value::Int32(millis) => Value::Date(i64::from(*millis)),
            Value::Int64(millis) => Value::Date(*millis),
            _ => return Err("$date takes a string or milliseconds".to_owned()),
        },
        ("$code", Some(text)) => match fields.get(1) {
            Some((scope, Value::Document(variables))) if scope == "$scope" => {
                Value::CodeWithScope(text.to_owned(), variables.clone())
            }
            Some(_) | None => Value::Code(text.to_owned()),
        },
        ("$timestamp", None) => {
            let part = |name: &str| {
                value
                    .get(name)
                    .and_then(Value::as_number)
                    .map(|number| number as u32)
            };
            match (part("t"), part("i")) {
                (Some(seconds), Some(increment)) => Value::Timestamp(seconds, increment),
                _ => return Err("$timestamp takes t and i".to_owned()),
            }
        }
        ("$binary", None) => {
            let part = |name: &str| value.get(name).and_then(Value::as_str);
            match (part("base64"), part("subType")) {
                (Some(base64), Some(subtype)) => Value::Binary(
                    u8::from_str_radix(subtype, 16).map_err(|_| not(subtype, "subtype"))?,
                    from_base64(base64)?,
                ),
                _ => return Err("$binary takes base64 and subType".to_owned()),
            }
        }
        ("$regularExpression", None) => {
            let part = |name: &str| {
                value
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            Value::Regex(part("pattern"), part("options"))
        }
        ("$dbPointer", None) => match (value.get("$ref"), value.get("$id")) {
            (Some(Value::String(namespace)), Some(Value::ObjectId(id))) => {
                Value::DbPointer(namespace.clone(), *id)
            }
            _ => return Err("$dbPointer takes $ref and $id".to_owned()),
        },
        ("$minKey", None) => Value::MinKey,
        ("$maxKey", None) => Value::MaxKey,
        ("$undefined", None) => Value::Undefined,
        _ => return Ok(Value::Document(fields)),
    };
    Ok(found)
}

fn not(text: &str, what: &str) -> String {
    format!("{text} is not a {what}")
}

fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(not(text, "base64 text")),
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Ok(bytes)
}
