//! Expressions against what the real server answered.
//!
//! Each table is a text file of lines `expression ;; document ;; outcome`. The
//! outcome is a value, `missing`, `error N` for an error of parsing (which
//! includes folding constants), or `late N` for one that needs a document.
//! Values are JSON with MongoDB's extensions for other types.

mod json;

pub(crate) use json::parse as parse_json;

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
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn bulk() {
    if let Ok(path) = std::env::var("EXPRESSION_TABLE") {
        check(&std::fs::read_to_string(path).unwrap());
    }
}
