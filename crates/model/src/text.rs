//! Values as text, the way the server writes them for its users.
//!
//! There are two ways, and both are visible: [`double_short`] is what
//! `$toString` and conversion errors use, six significant digits; the others
//! are what messages use that quote a document, such as a duplicate key error.
//! `Debug` of a value is a third, for our own logs only.

use crate::bson::{Doc, ValueRef};
use crate::decimal::Decimal;
use std::fmt::Write;

/// A double as `$toString` gives it: 0.333333, 1e+21, 1, -0, NaN, Infinity.
pub fn double_short(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}Infinity")
    } else {
        general(value, 6)
    }
}

/// A double as messages quote it: 16 significant digits and always a point,
/// even where that is no number any more (`1e+21.0`, `nan.0`).
pub fn double_quoted(value: f64) -> String {
    let mut text = if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}inf")
    } else {
        general(value, 16)
    };
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

/// C's `%g`: so many significant digits, trailing zeros dropped, an exponent
/// where the number would be longer without one.
fn general(value: f64, digits: usize) -> String {
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("scientific notation has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = without_trailing_zeros(mantissa);
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let places = (digits as i32 - 1 - exponent).unsigned_abs() as usize;
    without_trailing_zeros(&format!("{value:.places$}")).to_owned()
}

fn without_trailing_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// What a message quotes of long content: all of it up to `whole` bytes, else
/// the first `kept` and three dots.
struct Quota {
    whole: usize,
    kept: usize,
}

const TEXT: Quota = Quota {
    whole: 159,
    kept: 150,
};
const CODE: Quota = Quota {
    whole: 79,
    kept: 70,
};
const BINARY: Quota = Quota {
    whole: 80,
    kept: 70,
};

/// A document as messages quote it: `{ a: 1, b: [ "x" ] }`.
pub fn document_quoted(doc: Doc<'_>) -> String {
    let mut out = String::new();
    write_document(&mut out, doc);
    out
}

/// A value as messages quote it.
pub fn value_quoted(value: ValueRef<'_>) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

fn write_document(out: &mut String, doc: Doc<'_>) {
    if doc.is_empty() {
        out.push_str("{}");
        return;
    }
    out.push_str("{ ");
    for (at, element) in doc.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        out.push_str(element.key());
        out.push_str(": ");
        write_value(out, element.value());
    }
    out.push_str(" }");
}

fn write_value(out: &mut String, value: ValueRef<'_>) {
    match value {
        ValueRef::Double(v) => out.push_str(&double_quoted(v)),
        ValueRef::String(text) | ValueRef::Symbol(text) => {
            out.push('"');
            write_shortened(out, text, &TEXT);
            out.push('"');
        }
        ValueRef::JavaScript(code) => write_shortened(out, code, &CODE),
        ValueRef::Document(doc) => write_document(out, doc),
        ValueRef::Array(array) if array.is_empty() => out.push_str("[]"),
        ValueRef::Array(array) => {
            out.push_str("[ ");
            for (at, element) in array.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                write_value(out, element);
            }
            out.push_str(" ]");
        }
        ValueRef::Binary { subtype: 4, bytes } if bytes.len() == 16 => {
            out.push_str("UUID(\"");
            for (at, byte) in bytes.iter().enumerate() {
                if matches!(at, 4 | 6 | 8 | 10) {
                    out.push('-');
                }
                write_formatted(out, format_args!("{byte:02x}"));
            }
            out.push_str("\")");
        }
        ValueRef::Binary { subtype, bytes } => {
            write_formatted(out, format_args!("BinData({subtype}, "));
            let long = bytes.len() > BINARY.whole;
            let kept = if long { &bytes[..BINARY.kept] } else { bytes };
            for byte in kept {
                write_formatted(out, format_args!("{byte:02X}"));
            }
            if long {
                out.push_str("...");
            }
            out.push(')');
        }
        ValueRef::Undefined => out.push_str("undefined"),
        ValueRef::ObjectId(id) => write_formatted(out, format_args!("ObjectId('{id}')")),
        ValueRef::Boolean(v) => write_formatted(out, format_args!("{v}")),
        ValueRef::DateTime(v) => write_formatted(out, format_args!("new Date({v})")),
        ValueRef::Null => out.push_str("null"),
        ValueRef::Regex { pattern, options } => {
            write_formatted(out, format_args!("/{pattern}/{options}"));
        }
        ValueRef::DbPointer { namespace, id } => {
            write_formatted(out, format_args!("DBRef('{namespace}',{id})"));
        }
        ValueRef::JavaScriptWithScope { code, scope } => {
            write_formatted(out, format_args!("CodeWScope( {code}, "));
            write_document(out, scope);
            out.push(')');
        }
        ValueRef::Int32(v) => write_formatted(out, format_args!("{v}")),
        ValueRef::Int64(v) => write_formatted(out, format_args!("{v}")),
        ValueRef::Timestamp(v) => write_formatted(out, format_args!("{v:?}")),
        ValueRef::Decimal128(v) => write_formatted(out, format_args!("{}", Decimal::from_bits(v))),
        ValueRef::MinKey => out.push_str("MinKey"),
        ValueRef::MaxKey => out.push_str("MaxKey"),
    }
}

fn write_formatted(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("a String takes all text");
}

fn write_shortened(out: &mut String, text: &str, quota: &Quota) {
    if text.len() <= quota.whole {
        out.push_str(text);
    } else {
        out.push_str(&text[..text.floor_char_boundary(quota.kept)]);
        out.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::{document_quoted, double_quoted, double_short, value_quoted};
    use crate::bson::{DocWriter, ObjectId, Timestamp, ValueRef};

    /// Both columns were answered by `mongod` 6.0.5.
    #[test]
    fn doubles_are_written_as_the_server_does() {
        for (double, short, quoted) in [
            (1.0, "1", "1.0"),
            (0.1, "0.1", "0.1"),
            (1.0 / 3.0, "0.333333", "0.3333333333333333"),
            (1e21, "1e+21", "1e+21.0"),
            (1e15, "1e+15", "1000000000000000.0"),
            (1e16, "1e+16", "1e+16.0"),
            (123456789.0, "1.23457e+08", "123456789.0"),
            (-0.0, "-0", "-0.0"),
            (f64::NAN, "NaN", "nan.0"),
            (f64::INFINITY, "Infinity", "inf.0"),
            (f64::NEG_INFINITY, "-Infinity", "-inf.0"),
            (5e-324, "4.94066e-324", "4.940656458412465e-324"),
            (f64::MAX, "1.79769e+308", "1.797693134862316e+308"),
            (0.1 + 0.2, "0.3", "0.3"),
            (1e-5, "1e-05", "1e-05.0"),
            (100000.0, "100000", "100000.0"),
            (1e6, "1e+06", "1000000.0"),
            (123456.789, "123457", "123456.789"),
            (9.99999e22, "9.99999e+22", "9.99999e+22"),
            (0.0001, "0.0001", "0.0001"),
        ] {
            assert_eq!(double_short(double), short);
            assert_eq!(double_quoted(double), quoted);
        }
    }

    #[test]
    fn values_are_quoted_as_the_server_does() {
        let inner = DocWriter::new().with("c", "x").finish();
        let mut writer = DocWriter::new();
        writer.append("a", 1).append("b", &inner);
        writer
            .begin_array("l")
            .push(1)
            .push("x")
            .push_array()
            .end()
            .end();
        assert_eq!(
            document_quoted(writer.finish().as_doc()),
            "{ a: 1, b: { c: \"x\" }, l: [ 1, \"x\", [] ] }"
        );
        let id = ObjectId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let long = "x".repeat(160);
        let shortened = format!("\"{}...\"", "x".repeat(150));
        let time = Timestamp {
            seconds: 5,
            increment: 7,
        };
        let (pattern, options) = ("a/b", "i");
        for (value, expected) in [
            (
                ValueRef::ObjectId(id),
                "ObjectId('000102030405060708090a0b')",
            ),
            (ValueRef::DateTime(-1), "new Date(-1)"),
            (ValueRef::Timestamp(time), "Timestamp(5, 7)"),
            (ValueRef::Regex { pattern, options }, "/a/b/i"),
            (ValueRef::String("a\"b"), "\"a\"b\""),
            (ValueRef::String(&long), &shortened),
            (ValueRef::String(&long[1..]), &format!("\"{}\"", &long[1..])),
            (ValueRef::JavaScript("a\"b"), "a\"b"),
            (ValueRef::MinKey, "MinKey"),
        ] {
            assert_eq!(value_quoted(value), expected);
        }
        let bytes = &[0xAB, 0xCD][..];
        assert_eq!(
            value_quoted(ValueRef::Binary { subtype: 0, bytes }),
            "BinData(0, ABCD)"
        );
    }
}
