//! Tables of updates with MongoDB's answers, and laws that hold for all of them.
//!
//! Every expectation in the `.txt` files is what a real `mongod` 6.0 answered:
//!
//! ```text
//!   doc {..}                                       the document from here on
//!   update {u} {q, arrayFilters}? => {changed fields} without a b
//!                                  | whole {..} | unchanged | unmatched | error 40
//!   upsert {q} {u} {arrayFilters}? => {..} | error 54
//! ```
//!
//! A changed document is written as the fields that changed or are new. `whole`
//! stands before all of it, for replacements and where fields changed places.
//! An `_id` that the server would make up is left out.

mod laws;

use super::{Update, UpdateMoment};
use crate::context::QueryContext;
use crate::filter::Filter;
use crate::filter::tests::notation::documents;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, Timestamp, Value, ValueRef};

const MOMENT: UpdateMoment<'static> = UpdateMoment {
    matched: None,
    is_insert: false,
    timestamp: Timestamp {
        seconds: 1,
        increment: 1,
    },
};

#[test]
fn updates_of_documents() {
    check(include_str!("update.txt"));
}

#[test]
fn upserts() {
    check(include_str!("upsert.txt"));
}

/// Runs one table and reports all rows that differ.
fn check(table: &str) {
    let mut doc = DocBuf::new();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in table.lines() {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if verb == "doc" {
            doc = documents(rest).remove(0);
            continue;
        }
        let (input, expected) = rest.split_once(" => ").expect("a row has an expectation");
        let arguments = documents(input);
        let found = match verb {
            "update" => update(&doc, &arguments),
            "upsert" => upsert(&arguments),
            other => panic!("unknown verb {other}"),
        };
        let found = found.unwrap_or_else(|error| format!("error {}", error.code.0));
        let expected = read(expected);
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

/// An expectation with its document in the form in which ours is printed.
fn read(expected: &str) -> String {
    let (prefix, rest) = match expected.strip_prefix("whole ") {
        Some(rest) => ("whole ", rest),
        None => ("", expected),
    };
    if !rest.starts_with('{') {
        return expected.to_owned();
    }
    let (shown, without) = match rest.rsplit_once(" without ") {
        Some((shown, names)) => (shown, format!(" without {names}")),
        None => (rest, String::new()),
    };
    format!("{prefix}{:?}{without}", documents(shown)[0])
}

fn parse(update: &DocBuf, options: Option<&DocBuf>) -> Result<Update, Error> {
    let array_filters = options.and_then(|options| options.as_doc().get_array("arrayFilters"));
    Update::parse(
        ValueRef::Document(update.as_doc()),
        array_filters,
        &QueryContext::new(0),
    )
}

fn update(doc: &DocBuf, arguments: &[DocBuf]) -> Result<String, Error> {
    let context = QueryContext::new(0);
    let options = arguments.get(1);
    let update = parse(&arguments[0], options)?;
    let filter = options
        .and_then(|options| options.as_doc().get_doc("q"))
        .unwrap_or(Doc::EMPTY);
    let filter = Filter::parse(filter, &context)?.normalized();
    let Some(matched) = filter.matches_with_position(doc.as_doc())? else {
        return Ok("unmatched".to_owned());
    };
    let position = matched.position.map(|at| at.to_string());
    let moment = UpdateMoment {
        matched: position.as_deref(),
        ..MOMENT
    };
    let Some(after) = update.apply(doc.as_doc(), moment, &context)? else {
        return Ok("unchanged".to_owned());
    };
    DocBuf::from_bytes(after.as_bytes().to_vec()).expect("the result is valid BSON");
    let is_replacement = matches!(update, Update::Replacement(_));
    Ok(reduced(doc.as_doc(), after.as_doc(), is_replacement))
}

fn reduced(before: Doc<'_>, after: Doc<'_>, is_replacement: bool) -> String {
    let is_in = |doc: Doc<'_>, name: &str| doc.element(name).is_some();
    let in_place = before
        .iter()
        .filter(|field| is_in(after, field.key()))
        .chain(after.iter().filter(|field| !is_in(before, field.key())));
    if is_replacement || !after.iter().map(|f| f.key()).eq(in_place.map(|f| f.key())) {
        return format!("whole {after:?}");
    }
    let mut changed = DocWriter::new();
    for field in after.iter() {
        if before.element(field.key()) != Some(field) {
            changed.append_element(&field);
        }
    }
    let without: String = before
        .iter()
        .filter(|field| !is_in(after, field.key()))
        .map(|field| format!(" {}", field.key()))
        .collect();
    let without = match without.as_str() {
        "" => String::new(),
        names => format!(" without{names}"),
    };
    format!("{:?}{without}", changed.finish())
}

fn upsert(arguments: &[DocBuf]) -> Result<String, Error> {
    let context = QueryContext::new(0);
    let update = parse(&arguments[1], arguments.get(2))?;
    let filter = Filter::parse(arguments[0].as_doc(), &context)?.normalized();
    let inserted = update.upsert(&filter, MOMENT, &context)?;
    // Inserting puts `_id` first.
    let mut out = DocWriter::new();
    let (ids, others): (Vec<_>, Vec<_>) = inserted.iter().partition(|field| field.key() == "_id");
    if let Some(id) = ids.first() {
        super::check_id(id.value())?;
    }
    for field in ids.into_iter().chain(others) {
        out.append_element(&field);
    }
    Ok(format!("{:?}", out.finish()))
}

#[test]
fn results_are_no_deeper_than_what_is_stored() {
    let nested = |levels: usize| {
        (0..levels).fold(Value::Int32(1), |inner, _| {
            Value::Document(DocWriter::new().with("a", &inner).finish())
        })
    };
    let path = |names: usize| vec!["a"; names].join(".");
    let cases = [
        (path(180), nested(0), true),
        (path(181), nested(0), false),
        (path(255), nested(0), false),
        (path(1), nested(179), true),
        (path(1), nested(180), false),
        (path(80), nested(100), true),
        (path(80), nested(101), false),
    ];
    for (path, value, is_stored) in cases {
        let mut update = DocWriter::new();
        update.begin_document("$set").append(&path, &value).end();
        let doc = DocWriter::new().with("_id", 1).finish();
        let found = parse(&update.finish(), None)
            .and_then(|update| update.apply(doc.as_doc(), MOMENT, &QueryContext::new(0)));
        let names = path.split('.').count();
        match found {
            Ok(_) => assert!(is_stored, "{names} names"),
            Err(error) => {
                assert!(!is_stored, "{names} names");
                assert_eq!(error.code, model::Code::OVERFLOW);
            }
        }
    }
}

/// Who changes many documents reads in the message which one it was.
#[test]
fn messages_say_which_document_is_of_the_wrong_type() {
    for (doc, change, expected) in [
        (
            r#"{"_id": 1, "a": "x"}"#,
            r#"{"$push": {"a": 1}}"#,
            "The field 'a' must be an array but is of type string in document {_id: 1}",
        ),
        (
            r#"{"_id": {"k": 1}, "n": [{"m": "x"}]}"#,
            r#"{"$inc": {"n.0.m": 1}}"#,
            "Cannot apply $inc to a value of non-numeric type. {_id: { k: 1 }} has the field 'm' of \
             non-numeric type string",
        ),
        (
            r#"{"a": {}}"#,
            r#"{"$mul": {"a": 2}}"#,
            "Cannot apply $mul to a value of non-numeric type. {no id} has the field 'a' of \
             non-numeric type object",
        ),
        (
            r#"{"_id": 1, "a": 1.5}"#,
            r#"{"$bit": {"a": {"or": 1}}}"#,
            "Cannot apply $bit to a value of non-integral type. {_id: 1} has the field 'a' of \
             non-integer type double",
        ),
        (
            r#"{"_id": 1, "a": {"$numberLong": "9223372036854775807"}}"#,
            r#"{"$inc": {"a": 1}}"#,
            "Failed to apply $inc operations to current value ((NumberLong)9223372036854775807) \
             for document {_id: 1}",
        ),
    ] {
        let doc = documents(doc).remove(0);
        let change = documents(change).remove(0);
        let context = QueryContext::new(0);
        let change = Update::parse(ValueRef::from(&change), None, &context).expect("an update");
        let refused = change.apply(doc.as_doc(), MOMENT, &context);
        assert_eq!(refused.expect_err(expected).message, expected);
    }
}
