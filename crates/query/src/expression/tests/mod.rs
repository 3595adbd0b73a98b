//! Expressions against what the real server answered.
//!
//! Each table is a text file of lines `expression ;; document ;; outcome`. The
//! outcome is a value, `missing`, `error N` for an error of parsing (which
//! includes folding constants), or `late N` for one that needs a document.
//! Values are JSON with MongoDB's extensions for other types.

mod json;

pub(crate) use json::{parse as parse_json, print as print_json};

use super::Expression;
use crate::context::QueryContext;
use model::bson::{Doc, Value};

fn context() -> QueryContext {
    QueryContext::new(0)
}

/// The outcome as a table has it.
fn outcome(expression: &Value, document: Doc<'_>) -> String {
    let parsed = match Expression::parse(expression.as_ref(), &context()) {
        Ok(parsed) => parsed,
        Err(error) => return format!("error {}", error.code.0),
    };
    match parsed.evaluate(document) {
        Ok(Some(value)) => json::print(value.as_ref()),
        Ok(None) => "missing".to_owned(),
        Err(error) => format!("late {}", error.code.0),
    }
}

/// Checks every line of a table and reports all that differ.
fn check(table: &str) {
    let mut wrong = Vec::new();
    for (at, line) in table.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts: Vec<&str> = line.split(" ;; ").collect();
        let [expression, document, expected] = parts[..] else {
            panic!("line {} is not expression ;; document ;; outcome", at + 1);
        };
        let Value::Document(document) = json::parse(document) else {
            panic!("line {} has no document", at + 1);
        };
        let found = outcome(&json::parse(expression), document.as_doc());
        // Printed again, so that spelling does not matter.
        let expected = match expected.split(' ').next() {
            Some("error" | "late" | "missing") => expected.to_owned(),
            _ => json::print(json::parse(expected).as_ref()),
        };
        if found != expected {
            wrong.push(format!(
                "line {}: {expression} on {document:?}\n  expected {expected}\n  found    {found}",
                at + 1
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn operators_of_one_argument() {
    check(include_str!("one_argument.txt"));
}

#[test]
fn operators_of_two_arguments() {
    check(include_str!("two_arguments.txt"));
}

#[test]
fn how_arguments_are_written() {
    check(include_str!("arguments.txt"));
}

#[test]
fn paths_scopes_and_dates() {
    check(include_str!("paths_scopes_dates.txt"));
}

#[test]
fn nested_expressions() {
    check(include_str!("nested.txt"));
}

#[test]
fn computed_values_are_bounded() {
    let doubling = json::parse(
        r#"{"$reduce": {"input": {"$range": [0, 60]}, "initialValue": "x", "in": {"$concat": ["$$value", "$$value"]}}}"#,
    );
    assert_eq!(outcome(&doubling, Doc::EMPTY), "late 16493");
}

#[test]
fn expressions_and_states_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<Expression>();
    check::<crate::accumulator::Accumulator>();
    check::<crate::accumulator::State>();
}

#[test]
fn variables_of_the_context() {
    let context = QueryContext {
        variables: vec![("x".to_owned(), Value::Int32(1))],
        ..context()
    };
    let late = context.with_late_variable("y").with_late_variable("x");
    let expression = json::parse(
        r#"{"$let": {"vars": {"z": "$$y.a"}, "in": ["$$x", "$$z", "$$NOW", {"$ifNull": ["$$y.b", "$c"]}]}}"#,
    );
    let parsed = Expression::parse(expression.as_ref(), &late).expect("it parses");
    let Value::Document(root) = json::parse(r#"{"c": 7}"#) else {
        panic!("a document");
    };
    let values = [Some(json::parse(r#"{"a": [2]}"#)), Some(Value::Int32(3))];
    let found = parsed
        .evaluate_with(root.as_doc(), &values)
        .expect("it evaluates")
        .into_value();
    let expected = json::parse(r#"[3, [2], {"$date": "0"}, 7]"#);
    assert_eq!(found, Some(expected));
}

/// Which MongoDB does not have: values that differ at all have different bytes.
#[test]
fn the_bytes_of_a_value_show_every_difference() {
    let values = [
        "1",
        "1.0",
        r#"{"$numberLong": "1"}"#,
        "[1]",
        r#"{"0": 1}"#,
        "null",
        r#""1""#,
    ];
    let mut seen = std::collections::BTreeSet::new();
    for value in values {
        let Value::Document(document) = json::parse(&format!(r#"{{"v": {value}}}"#)) else {
            panic!("{value} makes a document");
        };
        let expression = json::parse(r#"{"$_internalBsonBytes": "$v"}"#);
        let bytes = outcome(&expression, document.as_doc());
        assert!(seen.insert(bytes.clone()), "{value}: {bytes}");
        assert_eq!(bytes, outcome(&expression, document.as_doc()));
    }
}
