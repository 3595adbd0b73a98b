//! How values are written in tables and in reports.
//!
//! JSON with the liberties of the shell, every BSON type in one short form:
//!
//! ```text
//! 5  5L  5.0  1e3  1.50m          int32 (int64 when too large), int64, double, double, decimal128
//! NaN  Infinity  -Infinity  -0.0  doubles; NaNm, Infinitym and -Infinitym are decimals
//! "text"  'text'                  escapes: \n \t \r \0 \\ \" \' \/ \u0041 \u{1F600}
//! {a: 1, "b.c": 2}  [1, 2]        documents keep field order and duplicates
//! /pattern/ims                    regular expression
//! Date("2024-01-31T12:00:00Z")    or Date(milliseconds)
//! Timestamp(5, 1)  ObjectId("65…")  oid(7)  UUID("…")  Binary(0, "00ff")  hexadecimal bytes
//! Code("f")  Code("f", {x: 1})  Symbol("s")  DBPointer("db.c", oid(1))
//! null  undefined  true  false  MinKey  MaxKey
//! Repeat("ab", 3)  Range(0, 5)    "ababab", [0, 1, 2, 3, 4]
//! Nest(3)                         {n: {n: {n: 1}}}
//! Many(150)                       150 documents {_id: 1.., a: _id % 10, s: "s<_id>"}
//! ```
//!
//! Extended JSON's explicit forms (`{$numberLong: "5"}`, `{$date: …}`, …) are read too.
//! `print` writes what `parse` reads, so a printed case is a table row.

mod extended;
mod parse;
mod print;

pub use parse::{Cursor, NotationError, parse};
pub use print::{print, print_fields};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Value, decode, encode, field};

    /// Reads the text, and expects it to survive BSON and to print as `printed`.
    fn check(text: &str, printed: &str) {
        let value = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(print(&value), printed, "{text}");
        assert_eq!(parse(printed).unwrap(), value, "{printed}");
        let bytes = encode(&vec![field("v", value.clone())]);
        assert_eq!(decode(&bytes).unwrap(), vec![field("v", value)], "{text}");
    }

    #[test]
    fn every_type_is_read_and_printed() {
        for same in [
            "5",
            "-5",
            "5L",
            "5.0",
            "-0.0",
            "1.5",
            "NaN",
            "Infinity",
            "-Infinity",
            "1.50m",
            "-0m",
            "NaNm",
            "Infinitym",
            "-Infinitym",
            "1E+3m",
            "\"a\\nb\"",
            "{a: 1, \"b.c\": 2, a: 3}",
            "[1, [], {}]",
            "/a\\/b/im",
            "Date(\"2024-01-31T12:00:00Z\")",
            "Date(-1)",
            "Timestamp(5, 1)",
            "ObjectId(\"65f000000000000000000001\")",
            "oid(7)",
            "Binary(0, \"00ff\")",
            "Binary(2, \"ff\")",
            "UUID(\"00112233-4455-6677-8899-aabbccddeeff\")",
            "Code(\"f\")",
            "Code(\"f\", {x: 1})",
            "Symbol(\"s\")",
            "DBPointer(\"d.c\", oid(1))",
            "null",
            "undefined",
            "true",
            "false",
            "MinKey",
            "MaxKey",
            "{$gt: 1}",
        ] {
            check(same, same);
        }
        check("9223372036854775807", "9223372036854775807L");
        check("2147483648", "2147483648L");
        check("1e3", "1000.0");
        check("1e300", "1e300");
        check("'it\\'s \\u{1F600}'", "\"it's 😀\"");
        check("Range(0, 3)", "[0, 1, 2]");
        check("Repeat('ab', 2)", "\"abab\"");
    }

    #[test]
    fn extended_json_is_read() {
        for (text, printed) in [
            ("{$numberLong: '5'}", "5L"),
            ("{$numberInt: '5'}", "5"),
            ("{$numberDouble: '-0.0'}", "-0.0"),
            ("{$numberDouble: 'NaN'}", "NaN"),
            ("{$numberDecimal: '1.0'}", "1.0m"),
            ("{$oid: '000000000000000000000007'}", "oid(7)"),
            (
                "{$date: '1970-01-01T00:00:00Z'}",
                "Date(\"1970-01-01T00:00:00Z\")",
            ),
            ("{$date: {$numberLong: '-5'}}", "Date(-5)"),
            ("{$timestamp: {t: 1, i: 2}}", "Timestamp(1, 2)"),
            (
                "{$binary: {base64: 'AP8=', subType: '80'}}",
                "Binary(128, \"00ff\")",
            ),
            ("{$regularExpression: {pattern: 'a', options: 'i'}}", "/a/i"),
            ("{$minKey: 1}", "MinKey"),
            ("{$maxKey: 1}", "MaxKey"),
            ("{$undefined: true}", "undefined"),
            ("{$symbol: 's'}", "Symbol(\"s\")"),
            ("{$code: 'f', $scope: {}}", "Code(\"f\", {})"),
            ("{$code: 'f'}", "Code(\"f\")"),
            (
                "{$uuid: '00112233-4455-6677-8899-aabbccddeeff'}",
                "UUID(\"00112233-4455-6677-8899-aabbccddeeff\")",
            ),
        ] {
            check(text, printed);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for text in [
            "",
            "{",
            "{a 1}",
            "[1 2",
            "'a",
            "foo",
            "Date('x')",
            "5x",
            "oid(-1)",
            "{$oid: 'x'}",
            "1.2.3m",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn broken_bytes_are_errors() {
        let bytes = encode(&vec![field(
            "a",
            Value::Array(vec![Value::Int32(1), Value::from("x")]),
        )]);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
    }
}
