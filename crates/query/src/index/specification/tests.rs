//! One table: a specification, and its stored form or the code that refuses it.

use super::parse_specification;
use model::bson::{DocBuf, DocWriter, Value};
use model::text::document_quoted;

fn spec(key: &[(&str, Value)], options: &[(&str, Value)]) -> DocBuf {
    let mut fields = DocWriter::new();
    for (name, kind) in key {
        fields.append(name, kind);
    }
    let mut writer = DocWriter::new()
        .with("key", &fields.finish())
        .with("name", "n");
    for (name, value) in options {
        writer.append(name, value);
    }
    writer.finish()
}

fn check(key: &[(&str, Value)], options: &[(&str, Value)], expected: &str) {
    let sent = spec(key, options);
    let found = match parse_specification(sent.as_doc(), false) {
        Ok(definition) => document_quoted(definition.spec.as_doc()),
        Err(error) => error.code.0.to_string(),
    };
    assert_eq!(found, expected, "{sent:?}");
}

fn filter(name: &str, value: impl Into<Value>) -> Value {
    let value: Value = value.into();
    Value::Document(DocWriter::new().with(name, &value).finish())
}

#[test]
fn kinds_of_fields() {
    let one = |kind: Value, expected: &str| check(&[("x", kind)], &[], expected);
    one(1.into(), "{ v: 2, key: { x: 1 }, name: \"n\" }");
    one((-0.3).into(), "{ v: 2, key: { x: -0.3 }, name: \"n\" }");
    one(
        "hashed".into(),
        "{ v: 2, key: { x: \"hashed\" }, name: \"n\" }",
    );
    for refused in [
        0.into(),
        (-0.0).into(),
        f64::NAN.into(),
        true.into(),
        "".into(),
    ] {
        one(refused, "67");
    }
    for refused in ["text", "2d", "2dsphere", "geoHaystack", "columnstore", "1"] {
        one(refused.into(), "67");
    }
    one(Value::Null, "67");
}

#[test]
fn names_of_fields() {
    for refused in [
        "", "a.", ".a", "a..b", "$a", "a.$b", "$**", "a.$**", "$id", "_fts",
    ] {
        check(&[(refused, 1.into())], &[], "67");
    }
    for accepted in ["a.$id", "a.$ref", "a.$db.b", "a b"] {
        let stored = format!("{{ v: 2, key: {{ {accepted}: 1 }}, name: \"n\" }}");
        check(&[(accepted, 1.into())], &[], &stored);
    }
    check(&[], &[], "67");
    check(&[("x", 1.into()), ("x", 1.into())], &[], "2");
    let names: Vec<String> = (0..33).map(|at| format!("f{at}")).collect();
    let many: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), 1.into())).collect();
    check(&many, &[], "13103");
}

#[test]
fn options() {
    let one = |name: &str, value: Value, expected: &str| {
        let stored = format!("{{ v: 2, key: {{ x: 1 }}, name: \"n\"{expected} }}");
        let expected = if expected.is_empty() || expected.starts_with(',') {
            &stored
        } else {
            expected
        };
        check(&[("x", 1.into())], &[(name, value)], expected);
    };
    one("unique", true.into(), ", unique: true");
    one("unique", 1.5.into(), ", unique: true");
    one("unique", false.into(), "");
    one("unique", "x".into(), "14");
    one("unique", Value::Null, "14");
    one("sparse", 0.into(), ", sparse: false");
    one("hidden", true.into(), ", hidden: true");
    one("hidden", false.into(), "");
    one("hidden", 1.into(), "14");
    one("background", true.into(), ", background: true");
    one("ns", "a.b".into(), "");
    one("bogus", 1.into(), "197");
    one("v", 3.into(), "67");
    one("v", 1.5.into(), "2");
    one("v", "2".into(), "14");
    one("expireAfterSeconds", 5.7.into(), ", expireAfterSeconds: 5");
    one(
        "expireAfterSeconds",
        f64::NAN.into(),
        ", expireAfterSeconds: 2147483647",
    );
    one("expireAfterSeconds", (-1).into(), "67");
    one("expireAfterSeconds", 2_147_483_648i64.into(), "67");
    one("expireAfterSeconds", "x".into(), "67");
    one("collation", filter("locale", "simple"), "");
    one("collation", filter("locale", "fr"), "115");
    one("collation", Value::Document(DocBuf::new()), "2");
    one("wildcardProjection", 1.into(), "2");
    one("weights", 1.into(), "14");
}

#[test]
fn partial_filters() {
    let one = |filter: Value, expected: &str| {
        check(
            &[("x", 1.into())],
            &[("partialFilterExpression", filter)],
            expected,
        );
    };
    one(
        filter("x", filter("$gt", 5)),
        "{ v: 2, key: { x: 1 }, name: \"n\", partialFilterExpression: { x: { $gt: 5 } } }",
    );
    for refused in [
        filter("x", filter("$ne", 1)),
        filter("x", filter("$exists", false)),
        filter("x", filter("$size", 1)),
    ] {
        one(refused, "67");
    }
    one(filter("x", filter("$foo", 1)), "2");
    one(5.into(), "14");
    check(
        &[("x", 1.into())],
        &[
            ("partialFilterExpression", filter("x", 1)),
            ("sparse", true.into()),
        ],
        "67",
    );
}

#[test]
fn the_index_on_id() {
    let stored = "{ v: 2, key: { _id: 1 }, name: \"_id_\" }";
    check(&[("_id", 1.into())], &[], stored);
    check(&[("_id", 1.0.into())], &[], stored);
    check(&[("_id", (-1).into())], &[], "2");
    check(&[("_id", 1.into())], &[("unique", true.into())], "197");
    check(
        &[("_id", 1.into())],
        &[("expireAfterSeconds", 5.into())],
        "197",
    );
    check(
        &[("_id", 2.into())],
        &[],
        "{ v: 2, key: { _id: 2 }, name: \"n\" }",
    );
}

#[test]
fn hashed_and_expiring() {
    let hashed = || Value::from("hashed");
    check(&[("x", hashed()), ("y", hashed())], &[], "31303");
    check(
        &[("x", 1.into()), ("y", 1.into())],
        &[("expireAfterSeconds", 5.into())],
        "67",
    );
}
