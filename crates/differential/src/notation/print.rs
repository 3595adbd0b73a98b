//! Values to text, in the form that `parse` reads.

use std::fmt::Write;

use crate::value::{Fields, Value};

pub fn print(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

pub fn print_fields(fields: &Fields) -> String {
    let mut out = String::new();
    write_document(fields, &mut out);
    out
}

fn write_document(fields: &Fields, out: &mut String) {
    out.push('{');
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        let plain = !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_alphanumeric() || c == '_' || c == '$');
        if plain {
            out.push_str(name);
        } else {
            write_string(name, out);
        }
        out.push_str(": ");
        write_value(value, out);
    }
    out.push('}');
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            c if c.is_control() => push(out, format_args!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writing into a string cannot fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Double(number) if number.is_nan() => out.push_str("NaN"),
        Value::Double(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            });
        }
        Value::Double(number) => push(out, format_args!("{number:?}")),
        Value::String(text) => write_string(text, out),
        Value::Document(fields) => write_document(fields, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Binary(4, bytes) if bytes.len() == 16 => {
            let hex = hexadecimal(bytes);
            let (a, b, c, d, e) = (
                &hex[..8],
                &hex[8..12],
                &hex[12..16],
                &hex[16..20],
                &hex[20..],
            );
            push(out, format_args!("UUID(\"{a}-{b}-{c}-{d}-{e}\")"));
        }
        Value::Binary(subtype, bytes) => {
            push(
                out,
                format_args!("Binary({subtype}, \"{}\")", hexadecimal(bytes)),
            );
        }
        Value::Undefined => out.push_str("undefined"),
        Value::ObjectId(bytes) => write_object_id(bytes, out),
        Value::Bool(flag) => push(out, format_args!("{flag}")),
        Value::Date(millis) => match bson::DateTime::from_millis(*millis).try_to_rfc3339_string() {
            // Small numbers stay numbers: they come from arithmetic, not from a calendar.
            Ok(text) if *millis == 0 || millis.unsigned_abs() >= 1000 => {
                push(out, format_args!("Date(\"{text}\")"));
            }
            Ok(_) | Err(_) => push(out, format_args!("Date({millis})")),
        },
        Value::Null => out.push_str("null"),
        Value::Regex(pattern, options) => {
            push(
                out,
                format_args!("/{}/{options}", pattern.replace('/', "\\/")),
            );
        }
        Value::DbPointer(namespace, id) => {
            out.push_str("DBPointer(");
            write_string(namespace, out);
            out.push_str(", ");
            write_object_id(id, out);
            out.push(')');
        }
        Value::Code(text) | Value::Symbol(text) => {
            out.push_str(if matches!(value, Value::Code(_)) {
                "Code("
            } else {
                "Symbol("
            });
            write_string(text, out);
            out.push(')');
        }
        Value::CodeWithScope(text, scope) => {
            out.push_str("Code(");
            write_string(text, out);
            out.push_str(", ");
            write_document(scope, out);
            out.push(')');
        }
        Value::Int32(number) => push(out, format_args!("{number}")),
        Value::Timestamp(seconds, increment) => {
            push(out, format_args!("Timestamp({seconds}, {increment})"))
        }
        Value::Int64(number) => push(out, format_args!("{number}L")),
        Value::Decimal(bytes) => push(
            out,
            format_args!("{}m", bson::Decimal128::from_bytes(*bytes)),
        ),
        Value::MinKey => out.push_str("MinKey"),
        Value::MaxKey => out.push_str("MaxKey"),
    }
}

fn write_object_id(bytes: &[u8; 12], out: &mut String) {
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => {
            push(
                out,
                format_args!("oid({})", u32::from_be_bytes([*a, *b, *c, *d])),
            );
        }
        _ => push(out, format_args!("ObjectId(\"{}\")", hexadecimal(bytes))),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        push(&mut text, format_args!("{byte:02x}"));
    }
    text
}
