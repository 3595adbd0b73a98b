//! A difference applied to the version before gives the version after; and the
//! differences that a real `mongod` 6.0 wrote into its log.

use super::{between, describe, documents};
use crate::context::QueryContext;
use crate::filter::tests::notation::documents as read;
use crate::update::{Update, UpdateMoment};
use model::bson::{Array, ArrayBuf, Doc, DocBuf, DocWriter, Timestamp, Value, ValueRef};
use proptest::prelude::*;

/// A naive reading of a difference.
fn apply(before: Doc<'_>, difference: Doc<'_>) -> DocBuf {
    let section = |name| difference.get_doc(name).unwrap_or(Doc::EMPTY);
    let (deleted, updated, inserted) = (section("d"), section("u"), section("i"));
    let mut out = DocWriter::new();
    for field in before.iter() {
        let name = field.key();
        if deleted.get(name).is_some() || inserted.get(name).is_some() {
            continue;
        }
        if let Some(new) = updated.element(name) {
            out.append_element(&new);
        } else if let Some(nested) = difference.get_doc(&format!("s{name}")) {
            out.append(name, &value(field.value(), nested));
        } else {
            out.append_element(&field);
        }
    }
    for field in inserted.iter() {
        out.append_element(&field);
    }
    out.finish()
}

fn value(before: ValueRef<'_>, difference: Doc<'_>) -> Value {
    match before {
        ValueRef::Document(before) => Value::Document(apply(before, difference)),
        ValueRef::Array(before) => Value::Array(array(before, difference)),
        _ => panic!("{before:?} has no parts"),
    }
}

fn array(before: Array<'_>, difference: Doc<'_>) -> ArrayBuf {
    assert_eq!(difference.get("a"), Some(ValueRef::Boolean(true)));
    let mut elements: Vec<Value> = before.iter().map(|value| value.to_owned()).collect();
    if let Some(ValueRef::Int32(length)) = difference.get("l") {
        elements.truncate(length as usize);
    }
    for change in difference.iter().filter(|e| !matches!(e.key(), "a" | "l")) {
        let (kind, index) = change.key().split_at(1);
        let index: usize = index.parse().expect("an index");
        if elements.len() <= index {
            elements.resize(index + 1, Value::Null);
        }
        elements[index] = match (kind, change.value()) {
            ("u", new) => new.to_owned(),
            ("s", ValueRef::Document(nested)) => value(elements[index].as_ref(), nested),
            (kind, _) => panic!("unknown change {kind}"),
        };
    }
    elements.into_iter().collect()
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0..3i32).prop_map(Value::Int32),
        (0..3i64).prop_map(Value::Int64),
        "[a-c]{0,40}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5)
                .prop_map(|values| Value::Array(values.into_iter().collect::<ArrayBuf>())),
            fields(inner).prop_map(Value::Document),
        ]
    })
}

/// Documents whose few names come in any order, each at most once.
fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = DocBuf> {
    let names = Just(vec!["a", "b", "c", "d"]).prop_shuffle();
    (names, prop::collection::vec(value, 0..4)).prop_map(|(names, values)| {
        let mut out = DocWriter::new();
        for (name, value) in names.iter().zip(&values) {
            out.append(name, value);
        }
        out.finish()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn applied_to_before_it_gives_after(
        before in fields(any_value()), after in fields(any_value()),
    ) {
        let difference = documents(before.as_doc(), after.as_doc());
        prop_assert!(DocBuf::from_bytes(difference.as_bytes().to_vec()).is_ok());
        let found = apply(before.as_doc(), difference.as_doc());
        prop_assert_eq!(found, after, "{:?}", difference);
        // Any difference can be described.
        describe(difference.as_doc());
    }

    #[test]
    fn equal_versions_differ_in_nothing(doc in fields(any_value())) {
        prop_assert!(documents(doc.as_doc(), doc.as_doc()).as_doc().is_empty());
    }

    #[test]
    fn what_modifiers_did_gives_after(
        before in fields(any_value()),
        operator in prop::sample::select(vec![
            "$set", "$unset", "$inc", "$push", "$addToSet", "$pull", "$pop", "$rename",
        ]),
        path in "[a-d](\\.([a-d]|[0-3]|\\$\\[\\])){0,2}",
        second in "[a-d](\\.([a-d]|[0-3]|\\$\\[\\])){0,2}",
        operand in any_value(),
    ) {
        let mut out = DocWriter::new();
        out.begin_document(operator);
        match operator {
            "$rename" => out.append(&path, second.as_str()),
            "$inc" | "$pop" => out.append(&path, 1),
            _ => out.append(&path, &operand),
        };
        if second != path && matches!(operator, "$set" | "$unset" | "$push") {
            out.append(&second, &operand);
        }
        out.end();
        check_update(before.as_doc(), out.finish().as_doc());
    }
}

const MOMENT: UpdateMoment<'static> = UpdateMoment {
    matched: None,
    is_insert: false,
    timestamp: Timestamp {
        seconds: 1,
        increment: 1,
    },
};

/// Applies an update and its difference; `None` if it is refused or does nothing.
fn check_update(before: Doc<'_>, update: Doc<'_>) -> Option<Option<DocBuf>> {
    let context = QueryContext::new(0);
    let update = match update.get_array("pipeline") {
        Some(stages) => ValueRef::Array(stages),
        None => ValueRef::Document(update),
    };
    let update = Update::parse(update, None, &context).ok()?;
    let after = update.apply(before, MOMENT, &context).ok()??;
    let difference = update.difference(before, after.as_doc(), MOMENT);
    if let Some(difference) = &difference {
        let found = apply(before, difference.as_doc());
        assert_eq!(found, after, "{before:?} {difference:?}");
    }
    Some(difference)
}

#[test]
fn as_a_real_server_logs_it() {
    for line in include_str!("logged.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (input, expected) = line.split_once(" => ").expect("a row has an expectation");
        let input = read(input);
        let found = check_update(input[0].as_doc(), input[1].as_doc())
            .unwrap_or_else(|| panic!("{line}: nothing was done"));
        let expected = match expected {
            "whole" => None,
            document => Some(read(document).remove(0)),
        };
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn descriptions_name_paths() {
    fn check(difference: &str, expected: &str) {
        let found = describe(read(difference)[0].as_doc());
        assert_eq!(found, read(expected)[0], "{difference}");
    }
    check(
        r#"{"d":{"g":false},"u":{"x":1},"i":{"y":2},"so":{"u":{"a":3},"d":{"b":false}}}"#,
        r#"{"updatedFields":{"x":1,"y":2,"o.a":3},"removedFields":["g","o.b"],
            "truncatedArrays":[]}"#,
    );
    check(
        r#"{"sa":{"a":true,"l":3,"u1":7,"s2":{"u":{"k":1}}}}"#,
        r#"{"updatedFields":{"a.1":7,"a.2.k":1},"removedFields":[],
            "truncatedArrays":[{"field":"a","newSize":3}]}"#,
    );
    check(
        r#"{"so":{"u":{"b.c":1,"0":2}}}"#,
        r#"{"updatedFields":{"o.b.c":1,"o.0":2},"removedFields":[],"truncatedArrays":[]}"#,
    );
}

#[test]
fn a_difference_longer_than_the_document_is_none() {
    let before = read(r#"{"_id":1,"a":1}"#).remove(0);
    let after = read(r#"{"_id":1,"q":1}"#).remove(0);
    assert_eq!(between(before.as_doc(), after.as_doc()), None);
}
