//! Making a differing case small: take something away, keep it away if the case still differs.
//!
//! Documents go first, then fields of documents, then parts of the row. What makes the case invalid
//! on both servers makes it agree, so it is put back by itself.

use super::{Draft, as_table};
use crate::row::Row;
use crate::run::{Sessions, Verdict};
use crate::table::Setup;
use crate::value::{Fields, Value};

/// Enough for the small cases that are generated, and a bound for a server that is slow.
const ATTEMPTS_MAX: usize = 400;

/// The smallest case found that still differs, as text, with its differences.
pub fn shrink(
    sessions: &mut Sessions,
    documents: &[Fields],
    draft: &Draft,
    first: Verdict,
) -> (String, Verdict) {
    let (mut documents, mut draft, mut verdict) = (documents.to_vec(), draft.clone(), first);
    let mut attempts = 0;
    loop {
        let mut smaller = None;
        for (fewer, shorter) in candidates(&documents, &draft) {
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                return (as_table(&documents, &draft), verdict);
            }
            let Ok(row) = Row::parse(0, &shorter.text()) else {
                continue;
            };
            let again = sessions
                .run(&Setup::with_documents(fewer.clone()), &[&row])
                .pop();
            if let Some(again @ Verdict::Differs(_)) = again {
                smaller = Some((fewer, shorter, again));
                break;
            }
        }
        match smaller {
            Some((fewer, shorter, again)) => (documents, draft, verdict) = (fewer, shorter, again),
            None => return (as_table(&documents, &draft), verdict),
        }
    }
}

/// Every case with one thing less, the larger things first.
fn candidates(documents: &[Fields], draft: &Draft) -> Vec<(Vec<Fields>, Draft)> {
    let mut found = Vec::new();
    for index in 0..documents.len() {
        let mut fewer = documents.to_vec();
        fewer.remove(index);
        found.push((fewer, draft.clone()));
    }
    for index in 1..draft.pairs.len() {
        let mut shorter = draft.clone();
        shorter.pairs.remove(index);
        found.push((documents.to_vec(), shorter));
    }
    for (index, (_, values)) in draft.pairs.iter().enumerate() {
        for (position, value) in values.iter().enumerate() {
            for less in with_one_less(value) {
                let mut shorter = draft.clone();
                shorter.pairs[index].1[position] = less;
                found.push((documents.to_vec(), shorter));
            }
        }
    }
    for (index, document) in documents.iter().enumerate() {
        for less in with_one_less(&Value::Document(document.clone())) {
            if let Value::Document(fields) = less
                && fields.iter().any(|(name, _)| name == "_id")
            {
                let mut fewer = documents.to_vec();
                fewer[index] = fields;
                found.push((fewer, draft.clone()));
            }
        }
    }
    found
}

/// The value without one of its parts, at any depth.
fn with_one_less(value: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match value {
        Value::Document(fields) => {
            for index in 0..fields.len() {
                let mut fewer = fields.clone();
                fewer.remove(index);
                found.push(Value::Document(fewer));
            }
            for (index, (_, nested)) in fields.iter().enumerate() {
                for less in with_one_less(nested) {
                    let mut changed = fields.clone();
                    changed[index].1 = less;
                    found.push(Value::Document(changed));
                }
                // An operator may be replaced by its argument: {$abs: x} by x.
                if fields.len() == 1 && matches!(nested, Value::Document(_)) {
                    found.push(nested.clone());
                }
            }
        }
        Value::Array(items) => {
            for index in 0..items.len() {
                let mut fewer = items.clone();
                fewer.remove(index);
                found.push(Value::Array(fewer));
            }
            for (index, nested) in items.iter().enumerate() {
                for less in with_one_less(nested) {
                    let mut changed = items.clone();
                    changed[index] = less;
                    found.push(Value::Array(changed));
                }
            }
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{parse, print};

    #[test]
    fn each_part_is_left_out_once() {
        let check = |text: &str, expected: &[&str]| {
            let found: Vec<String> = with_one_less(&parse(text).unwrap())
                .iter()
                .map(print)
                .collect();
            assert_eq!(found, expected, "{text}");
        };
        check("5", &[]);
        check("{a: 1, b: 2}", &["{b: 2}", "{a: 1}"]);
        check("[1, [2]]", &["[[2]]", "[1]", "[1, []]"]);
        check("{a: {b: 1}}", &["{}", "{a: {}}", "{b: 1}"]);
    }
}
