//! Where two documents differ, and how that is shown to people.
//!
//! A difference is a path (`a.b.2`) and the two values there, one of which may be absent. Values are
//! shown as canonical extended JSON with their type, cut to a bounded length, so that a report stays
//! small whatever the documents hold. Where two values look the same but are not (the payload of a
//! NaN), their bytes are shown.

use crate::compare::{Comparison, sorted_fields};
use crate::element::{
    Element, LEVELS_MAX, Malformed, ValueRef, Writer, check_depth, elements, kind,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// How many differences of one document are listed.
const LISTED_MAX: usize = 20;
/// How much of one value is shown.
const SHOWN_CHARACTERS_MAX: usize = 200;
/// Larger values are shown as bytes: decoded, they can take many times the memory.
const DECODED_BYTES_MAX: usize = 64 * 1024;

/// Longer numbers are shown with an exponent.
const DOUBLE_DIGITS_MAX: usize = 24;

/// One place where two documents differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Which of several documents with one `_id`, by its shard key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<String>,
    /// The path of the field; empty for the document itself.
    pub path: String,
    /// What the source holds; None if the field is not there.
    pub source: Option<Shown>,
    pub destination: Option<Shown>,
}

impl Difference {
    /// Where it is, in words.
    pub fn place(&self) -> String {
        let path = match self.path.as_str() {
            "" => "the document",
            path => path,
        };
        match &self.copy {
            Some(copy) => format!("{path} (of the one with {copy})"),
            None => path.to_owned(),
        }
    }
}

/// A value as people read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    pub value: String,
}

/// The places where two documents differ, the first few of them.
pub fn differences(
    comparison: Comparison,
    source: &[u8],
    destination: &[u8],
) -> Result<Vec<Difference>, Malformed> {
    check_depth(source, LEVELS_MAX)?;
    check_depth(destination, LEVELS_MAX)?;
    let mut found = Vec::new();
    in_documents(comparison, "", source, destination, &mut found)?;
    Ok(found)
}

fn in_documents(
    comparison: Comparison,
    path: &str,
    source: &[u8],
    destination: &[u8],
    found: &mut Vec<Difference>,
) -> Result<(), Malformed> {
    let before = found.len();
    let (left, right) = (sorted_fields(source)?, sorted_fields(destination)?);
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    while found.len() < LISTED_MAX {
        let order = match (left.peek(), right.peek()) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(one), Some(other)) => one.name.cmp(other.name),
        };
        let one = order.is_le().then(|| left.next()).flatten();
        let other = order.is_ge().then(|| right.next()).flatten();
        in_fields(comparison, path, one, other, found)?;
    }
    let same_fields = found.len() == before;
    if same_fields && comparison == Comparison::Bytes && source != destination {
        found.push(Difference {
            copy: None,
            path: path.to_owned(),
            source: Some(field_order(source)?),
            destination: Some(field_order(destination)?),
        });
    }
    Ok(())
}

fn in_fields(
    comparison: Comparison,
    path: &str,
    one: Option<&Element<'_>>,
    other: Option<&Element<'_>>,
    found: &mut Vec<Difference>,
) -> Result<(), Malformed> {
    let Some(named) = one.or(other) else {
        return Ok(());
    };
    let name = String::from_utf8_lossy(named.name);
    let path = match path {
        "" => name.into_owned(),
        path => format!("{path}.{name}"),
    };
    if let (Some(one), Some(other)) = (one, other) {
        if comparison.same_value(one.value, other.value)? {
            return Ok(());
        }
        let kinds = (one.value.kind, other.value.kind);
        if matches!(
            kinds,
            (kind::DOCUMENT, kind::DOCUMENT) | (kind::ARRAY, kind::ARRAY)
        ) {
            return in_documents(comparison, &path, one.value.bytes, other.value.bytes, found);
        }
    }
    let mut source = one.map(|element| show(element.value));
    let mut destination = other.map(|element| show(element.value));
    if source == destination
        && let (Some(one), Some(other)) = (one, other)
    {
        source = Some(show_bytes(one.value));
        destination = Some(show_bytes(other.value));
    }
    found.push(Difference {
        copy: None,
        path,
        source,
        destination,
    });
    Ok(())
}

fn field_order(document: &[u8]) -> Result<Shown, Malformed> {
    let mut names = Vec::new();
    for element in elements(document)? {
        names.push(String::from_utf8_lossy(element?.name).into_owned());
    }
    Ok(Shown {
        kind: "order of fields".into(),
        value: shorten(names.join(", ")),
    })
}

/// A value as extended JSON, cut to a bounded length.
pub fn show(value: ValueRef<'_>) -> Shown {
    let small = Some(value).filter(|value| value.bytes.len() <= DECODED_BYTES_MAX);
    let decoded = small.and_then(decode).map(|decoded| match decoded {
        // Plain text reads better than escaped text in an object.
        bson::Bson::String(text) => format!("{text:?}"),
        decoded => {
            let mut json = decoded.into_canonical_extjson();
            abbreviate(&mut json);
            json.to_string()
        }
    });
    match decoded {
        Some(text) => Shown {
            kind: type_name(value.kind).into(),
            value: shorten(text),
        },
        None => show_bytes(value),
    }
}

/// Doubles that would be hundreds of digits are shown with an exponent.
fn abbreviate(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Array(items) => items.iter_mut().for_each(abbreviate),
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().map(|text| (text.len(), text.parse::<f64>())) {
                    Some((digits, Ok(number)))
                        if name == "$numberDouble" && digits > DOUBLE_DIGITS_MAX =>
                    {
                        *value = format!("{number:e}").into();
                    }
                    _ => abbreviate(value),
                }
            }
        }
        _ => {}
    }
}

/// A value as relaxed extended JSON, whole; as its bytes if it is not text that JSON can hold.
pub fn relaxed(value: ValueRef<'_>) -> serde_json::Value {
    match decode(value) {
        Some(decoded) => decoded.into_relaxed_extjson(),
        None => show_bytes(value).value.into(),
    }
}

/// The decoded value, unless it holds text that is not UTF-8.
fn decode(value: ValueRef<'_>) -> Option<bson::Bson> {
    let mut writer = Writer::new();
    writer.value("v", value);
    let bytes = writer.finish();
    check_depth(&bytes, LEVELS_MAX).ok()?;
    let document = bson::Document::from_reader(bytes.as_slice()).ok()?;
    document.into_iter().next().map(|(_, decoded)| decoded)
}

fn show_bytes(value: ValueRef<'_>) -> Shown {
    let mut text = String::from("bytes ");
    for byte in value.bytes.iter().take(SHOWN_CHARACTERS_MAX / 2) {
        text.push_str(&format!("{byte:02x}"));
    }
    if value.bytes.len() > SHOWN_CHARACTERS_MAX / 2 {
        text.push_str(&format!("… ({} bytes)", value.bytes.len()));
    }
    Shown {
        kind: type_name(value.kind).into(),
        value: text,
    }
}

fn shorten(text: String) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        None => text,
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}

/// The name that `$type` has for a type code.
pub fn type_name(code: u8) -> &'static str {
    match code {
        kind::DOUBLE => "double",
        kind::STRING => "string",
        kind::DOCUMENT => "object",
        kind::ARRAY => "array",
        kind::BINARY => "binData",
        kind::UNDEFINED => "undefined",
        kind::OBJECT_ID => "objectId",
        kind::BOOLEAN => "bool",
        kind::DATE => "date",
        kind::NULL => "null",
        kind::REGEX => "regex",
        kind::DB_POINTER => "dbPointer",
        kind::CODE => "javascript",
        kind::SYMBOL => "symbol",
        kind::CODE_WITH_SCOPE => "javascriptWithScope",
        kind::INT32 => "int",
        kind::TIMESTAMP => "timestamp",
        kind::INT64 => "long",
        kind::DECIMAL => "decimal",
        kind::MIN_KEY => "minKey",
        kind::MAX_KEY => "maxKey",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn check(comparison: Comparison, source: Document, destination: Document, expected: &[&str]) {
        let found = differences(
            comparison,
            &source.to_vec().unwrap(),
            &destination.to_vec().unwrap(),
        )
        .unwrap();
        let side = |shown: &Option<Shown>| match shown {
            None => "-".to_owned(),
            Some(shown) => format!("{} {}", shown.kind, shown.value),
        };
        let lines: Vec<String> = found
            .iter()
            .map(|one| {
                format!(
                    "{}: {} | {}",
                    one.path,
                    side(&one.source),
                    side(&one.destination)
                )
            })
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn long_numbers_have_an_exponent() {
        check(
            Comparison::Bytes,
            doc! {"a": 1e300, "b": [{"c": -2.5e-200}]},
            doc! {"a": 1.5, "b": 1e15},
            &[
                r#"a: double {"$numberDouble":"1e300"} | double {"$numberDouble":"1.5"}"#,
                r#"b: array [{"c":{"$numberDouble":"-2.5e-200"}}] | double {"$numberDouble":"1000000000000000.0"}"#,
            ],
        );
    }

    #[test]
    fn differences_name_path_and_values() {
        use Comparison::{Bytes, IgnoreFieldOrder};
        check(Bytes, doc! {"a": 1}, doc! {"a": 1}, &[]);
        check(
            Bytes,
            doc! {"a": 1, "b": {"c": [1, {"d": "x"}]}},
            doc! {"a": 1_i64, "b": {"c": [1, {"d": "y"}]}},
            &[
                r#"a: int {"$numberInt":"1"} | long {"$numberLong":"1"}"#,
                r#"b.c.1.d: string "x" | string "y""#,
            ],
        );
        check(
            Bytes,
            doc! {"a": 1, "b": true},
            doc! {"b": true, "c": null},
            &[r#"a: int {"$numberInt":"1"} | -"#, "c: - | null null"],
        );
        check(
            Bytes,
            doc! {"x": {"a": 1, "b": 2}},
            doc! {"x": {"b": 2, "a": 1}},
            &["x: order of fields a, b | order of fields b, a"],
        );
        check(
            IgnoreFieldOrder,
            doc! {"x": {"a": 1, "b": 2}, "y": 1},
            doc! {"x": {"b": 2, "a": 1}, "y": 2},
            &[r#"y: int {"$numberInt":"1"} | int {"$numberInt":"2"}"#],
        );
        let nan = |payload: u64| doc! {"a": f64::from_bits(0x7ff8_0000_0000_0000 | payload)};
        check(
            Bytes,
            nan(0),
            nan(1),
            &["a: double bytes 000000000000f87f | double bytes 010000000000f87f"],
        );
    }

    #[test]
    fn long_values_and_lists_are_cut() {
        let source = doc! {"a": "x".repeat(5000)}.to_vec().unwrap();
        let found = differences(Comparison::Bytes, &source, &doc! {}.to_vec().unwrap()).unwrap();
        let shown = &found[0].source.as_ref().unwrap().value;
        assert!(
            shown.chars().count() < 250 && shown.ends_with("(5002 bytes)"),
            "{shown}"
        );
        let many: Document = (0..100).map(|i| (i.to_string(), i.into())).collect();
        let found = differences(
            Comparison::Bytes,
            &many.to_vec().unwrap(),
            &doc! {}.to_vec().unwrap(),
        )
        .unwrap();
        assert_eq!(found.len(), LISTED_MAX);
        let large = doc! {"a": "x".repeat(DECODED_BYTES_MAX)}.to_vec().unwrap();
        let found = differences(Comparison::Bytes, &large, &doc! {}.to_vec().unwrap()).unwrap();
        let shown = &found[0].source.as_ref().unwrap();
        assert_eq!(shown.kind, "string");
        assert!(shown.value.starts_with("bytes ") && shown.value.ends_with("(65541 bytes)"));
    }
}
