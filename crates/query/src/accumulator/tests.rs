//! Accumulators against what the real server answered, over one group.
//!
//! Lines are `accumulator ;; array of documents ;; outcome`, see the tests of
//! expressions. Each is computed in one go and again from partials over every
//! split of the documents in two.

use super::Accumulator;
use crate::context::QueryContext;
use crate::expression::{parse_json, print_json};
use model::Error;
use model::bson::{ArrayBuf, Doc, Value, ValueRef};

fn documents(array: &ArrayBuf) -> Vec<Doc<'_>> {
    array
        .iter()
        .map(|value| match value {
            ValueRef::Document(doc) => doc,
            other => panic!("{other:?} is no document"),
        })
        .collect()
}

fn run(accumulator: &Accumulator, first: &[Doc<'_>], second: &[Doc<'_>]) -> Result<Value, Error> {
    let mut partials = Vec::new();
    for part in [first, second] {
        let mut state = accumulator.start(Doc::EMPTY)?;
        for doc in part {
            accumulator.add(&mut state, *doc)?;
        }
        assert!(state.memory_bytes() > 0);
        partials.push(state.partial());
    }
    let mut merged = accumulator.start(Doc::EMPTY)?;
    for partial in &partials {
        merged.merge(partial.as_ref())?;
    }
    Ok(merged.finish())
}

fn check(table: &str) {
    for line in table.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.split(" ;; ").collect();
        let [spec, input, expected] = parts[..] else {
            panic!("not accumulator ;; documents ;; outcome: {line}");
        };
        let Value::Array(input) = parse_json(input) else {
            panic!("no documents: {line}");
        };
        let input = documents(&input);
        let spec = parse_json(spec);
        let parsed = Accumulator::parse("r", spec.as_ref(), &QueryContext::new(0));
        let accumulator = match parsed {
            Ok(accumulator) => accumulator,
            Err(error) => {
                assert_eq!(format!("error {}", error.code.0), expected, "{line}");
                continue;
            }
        };
        for split in 0..=input.len() {
            let (first, second) = input.split_at(split);
            let found = match run(&accumulator, first, second) {
                Ok(value) => print_json(value.as_ref()),
                Err(error) => format!("error {}", error.code.0),
            };
            let expected = match expected.starts_with("error") {
                true => expected.to_owned(),
                false => print_json(parse_json(expected).as_ref()),
            };
            assert!(
                found == expected || nearly_equal(&found, &expected),
                "{line} split at {split}: found {found}"
            );
        }
    }
}

/// Deviations of parts are merged with other roundings than one by one.
fn nearly_equal(found: &str, expected: &str) -> bool {
    match (found.parse::<f64>(), expected.parse::<f64>()) {
        (Ok(found), Ok(expected)) => (found - expected).abs() <= expected.abs().max(1.0) * 1e-12,
        _ => false,
    }
}

#[test]
fn accumulators_answer_as_the_real_server() {
    check(include_str!("tests/accumulators.txt"));
}
