//! Reads documents in extended JSON, canonical form, with one difference:
//! binary data is written as hexadecimal digits.

use model::bson::{Decimal128, DocBuf, DocWriter, ObjectId, Timestamp, Value};
use model::decimal::Decimal;
use serde_json::Value as Json;

/// One document after the other.
pub(crate) fn documents(text: &str) -> Vec<DocBuf> {
    serde_json::Deserializer::from_str(text)
        .into_iter::<Json>()
        .map(|json| match json.expect("extended JSON") {
            Json::Object(fields) => document(&fields),
            other => panic!("not a document: {other}"),
        })
        .collect()
}

fn document(fields: &serde_json::Map<String, Json>) -> DocBuf {
    let mut out = DocWriter::new();
    for (name, json) in fields {
        out.append(name, &value(json));
    }
    out.finish()
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(bool) => Value::Boolean(*bool),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => match i32::try_from(whole) {
                Ok(small) => Value::Int32(small),
                Err(_) => Value::Int64(whole),
            },
            None => Value::Double(number.as_f64().expect("a double")),
        },
        Json::String(text) => Value::String(text.clone()),
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        Json::Object(fields) => typed(fields).unwrap_or_else(|| Value::Document(document(fields))),
    }
}

fn typed(fields: &serde_json::Map<String, Json>) -> Option<Value> {
    let (name, json) = fields.iter().next()?;
    if let ("$code", Some(Json::Object(scope))) = (name.as_str(), fields.get("$scope")) {
        return Some(Value::JavaScriptWithScope {
            code: json.as_str()?.to_owned(),
            scope: document(scope),
        });
    }
    if fields.len() != 1 {
        return None;
    }
    let text = json.as_str().unwrap_or_default();
    Some(match name.as_str() {
        "$numberLong" => Value::Int64(text.parse().ok()?),
        "$numberDouble" => Value::Double(text.parse().ok()?),
        "$numberDecimal" => Value::Decimal128(decimal(text)),
        "$undefined" => Value::Undefined,
        "$minKey" => Value::MinKey,
        "$maxKey" => Value::MaxKey,
        "$oid" => Value::ObjectId(ObjectId(hex(text).try_into().ok()?)),
        "$symbol" => Value::Symbol(text.to_owned()),
        "$code" => Value::JavaScript(text.to_owned()),
        "$date" => Value::DateTime(text.parse().ok()?),
        "$timestamp" => Value::Timestamp(Timestamp {
            seconds: json.get("t")?.as_u64()? as u32,
            increment: json.get("i")?.as_u64()? as u32,
        }),
        "$regularExpression" => Value::Regex {
            pattern: json.get("pattern")?.as_str()?.to_owned(),
            options: json.get("options")?.as_str()?.to_owned(),
        },
        "$binary" => Value::Binary {
            subtype: json.get("subType")?.as_u64()? as u8,
            bytes: hex(json.get("hex")?.as_str()?),
        },
        _ => return None,
    })
}

fn decimal(text: &str) -> Decimal128 {
    Decimal::parse(text).expect("a decimal").to_bits()
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hex digits"))
        .collect()
}
