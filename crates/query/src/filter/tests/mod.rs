//! Tables of filters, sorts and index keys with MongoDB's answers.
//!
//! Every expectation in the `.txt` files beside this one is what a real
//! `mongod` 6.0 answered. A line is one of
//!
//! ```text
//!   doc {..}                                  a document; its number is its place
//!   match {filter} => 0 3 5 | error 2         the documents that pass
//!   sort {pattern} => 3 0 5 | error 2         the documents in order
//!   parsed {filter} => {..}                   explain's parsedQuery
//!   position {doc} {filter} => update 1 projection none
//!   index {pattern} {doc} => 2 keys, multikey [["a"]] | error 171
//! ```
//!
//! A `doc` after anything else begins a new set of documents.

mod laws;
pub(crate) mod notation;

use crate::context::QueryContext;
use crate::filter::Filter;
use crate::index_keys::index_keys;
use crate::path::Path;
use crate::sort::SortPattern;
use model::Error;
use model::bson::{Doc, DocBuf};
use model::key::{Direction, KeyBuilder};
use notation::documents;
use std::collections::BTreeSet;

/// Runs one table and reports all rows that differ.
fn check(table: &str) {
    let mut docs: Vec<DocBuf> = Vec::new();
    let mut is_collecting = false;
    let mut rows = 0;
    let mut wrong = Vec::new();
    for line in table.lines() {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if verb == "doc" {
            if !is_collecting {
                docs.clear();
            }
            is_collecting = true;
            docs.extend(documents(rest));
            continue;
        }
        if verb.is_empty() || verb == "#" {
            continue;
        }
        is_collecting = false;
        let (input, expected) = rest.split_once(" =>").expect("a row has an expectation");
        let arguments = documents(input);
        let first = arguments[0].as_doc();
        let found = match verb {
            "match" => matching(first, &docs),
            "sort" => sorted(first, &docs),
            "parsed" => parsed(first).map(|doc| format!("{:?}", doc.as_doc())),
            "position" => position(first, arguments[1].as_doc()),
            "index" => index(first, arguments[1].as_doc()),
            other => panic!("unknown verb {other}"),
        };
        let found = found.unwrap_or_else(|error| format!("error {}", error.code.0));
        let expected = match verb {
            "parsed" if !expected.starts_with(" error") => {
                format!("{:?}", documents(expected)[0].as_doc())
            }
            _ => expected.trim().to_owned(),
        };
        rows += 1;
        if found != expected {
            wrong.push(format!(
                "{verb} {input}\n  expected {expected}\n  found    {found}"
            ));
        }
    }
    assert!(rows > 0, "the table has rows");
    assert!(
        wrong.is_empty(),
        "{} of {rows} rows differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn parse(filter: Doc<'_>) -> Result<Filter, Error> {
    Filter::parse(filter, &QueryContext::new(0))
}

fn join(numbers: impl IntoIterator<Item = usize>) -> String {
    let texts: Vec<String> = numbers.into_iter().map(|at| at.to_string()).collect();
    texts.join(" ")
}

/// All three forms of a filter must agree.
fn matching(filter: Doc<'_>, docs: &[DocBuf]) -> Result<String, Error> {
    let plain = parse(filter)?;
    let optimized = plain.clone().optimized();
    let normalized = plain.clone().normalized();
    let mut found = Vec::new();
    for (at, doc) in docs.iter().enumerate() {
        let passed = plain.matches(doc.as_doc())?;
        assert_eq!(
            passed,
            optimized.matches(doc.as_doc())?,
            "{filter:?} {doc:?}"
        );
        assert_eq!(
            passed,
            normalized.matches(doc.as_doc())?,
            "{filter:?} {doc:?}"
        );
        if passed {
            found.push(at);
        }
    }
    Ok(join(found))
}

fn sorted(pattern: Doc<'_>, docs: &[DocBuf]) -> Result<String, Error> {
    let pattern = SortPattern::parse(pattern)?;
    let mut keys = Vec::new();
    for (at, doc) in docs.iter().enumerate() {
        keys.push((pattern.key(doc.as_doc())?, at));
    }
    keys.sort();
    Ok(join(keys.into_iter().map(|(_, at)| at)))
}

fn parsed(filter: Doc<'_>) -> Result<DocBuf, Error> {
    Ok(parse(filter)?.normalized().to_document())
}

fn position(doc: Doc<'_>, filter: Doc<'_>) -> Result<String, Error> {
    let mut with_id = model::bson::DocWriter::new();
    with_id.append("_id", 1);
    for element in doc {
        with_id.append_element(&element);
    }
    let doc = with_id.finish();
    let show = |filter: Filter| -> Result<String, Error> {
        Ok(match filter.matches_with_position(doc.as_doc())? {
            None => "nomatch".to_owned(),
            Some(matched) => matched
                .position
                .map_or("none".to_owned(), |at| at.to_string()),
        })
    };
    Ok(format!(
        "update {} projection {}",
        show(parse(filter)?.normalized())?,
        show(parse(filter)?.optimized())?
    ))
}

fn index(pattern: Doc<'_>, doc: Doc<'_>) -> Result<String, Error> {
    let paths: Vec<Path> = pattern.iter().map(|field| Path::new(field.key())).collect();
    let found = index_keys(&paths, doc)?;
    let distinct: BTreeSet<Vec<u8>> = found
        .keys()
        .map(|key| {
            let mut encoded = KeyBuilder::new();
            for value in key.values {
                encoded.push(*value, Direction::Ascending);
            }
            encoded.finish().0
        })
        .collect();
    let multikey: Vec<Vec<String>> = paths
        .iter()
        .zip(found.multikey())
        .map(|(path, multikey)| {
            let names: Vec<&str> = path.as_str().split('.').collect();
            (0..names.len())
                .filter(|&at| multikey.contains(at))
                .map(|at| names[..=at].join("."))
                .collect()
        })
        .collect();
    Ok(format!("{} keys, multikey {multikey:?}", distinct.len()))
}

macro_rules! tables {
    ($($name:ident)*) => {
        mod tables {$(
            #[test]
            fn $name() {
                super::check(include_str!(concat!(stringify!($name), ".txt")));
            }
        )*}
    };
}

tables! { values paths errors bits regex parsed position index sort }

#[test]
fn expressions_decide_or_fail() {
    let docs = documents(r#"{"a": 2} {"a": 1} {}"#);
    let filters = documents(
        r#"{"$expr": {"$gt": ["$a", 1]}}
           {"$nor": [{"$expr": {"$gt": ["$a", 1]}}]}
           {"$or": [{"$expr": {"$divide": [1, {"$subtract": ["$a", 1]}]}}, {"a": 9}]}
           {"$expr": {"$noSuchOperator": 1}}"#,
    );
    let found: Vec<String> = filters
        .iter()
        .map(|filter| match matching(filter.as_doc(), &docs) {
            Ok(numbers) => numbers,
            Err(error) => format!("error {}", error.code.0),
        })
        .collect();
    // Dividing by zero is an error, although another branch could answer.
    assert_eq!(found, ["0", "1 2", "error 2", "error 168"]);
}

#[test]
fn equalities_are_what_every_match_shares() {
    let filter = &documents(
        r#"{"a": 1, "b": {"$gt": 1}, "$and": [{"c": {"$in": [2]}}, {"$or": [{"d": 3}]}],
            "e": {"$all": [4]}, "$nor": [{"f": 5}]}"#,
    )[0];
    let filter = parse(filter.as_doc()).expect("a valid filter").optimized();
    let found: Vec<String> = filter
        .equalities()
        .iter()
        .map(|(path, value)| format!("{}={value:?}", path.as_str()))
        .collect();
    assert_eq!(found, ["a=1", "c=2", "d=3", "e=4"]);
}
