//! Laws of updates over random documents and values.

use super::MOMENT;
use crate::context::QueryContext;
use crate::update::Update;
use model::bson::{ArrayBuf, Doc, DocBuf, DocWriter, Value, ValueRef};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        (-3..4i32).prop_map(Value::Int32),
        (-3..4i64).prop_map(Value::Int64),
        (-3..4i32).prop_map(|number| Value::Double(f64::from(number) / 2.0)),
        "[a-c]{0,2}".prop_map(Value::String),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|values| Value::Array(values.into_iter().collect::<ArrayBuf>())),
            fields(inner).prop_map(Value::Document),
        ]
    })
}

fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = DocBuf> {
    prop::collection::btree_map("[a-c]", value, 0..4).prop_map(|fields| {
        let mut out = DocWriter::new();
        for (name, value) in &fields {
            out.append(name, value);
        }
        out.finish()
    })
}

fn document() -> impl Strategy<Value = DocBuf> {
    fields(value()).prop_map(|fields| {
        let mut out = DocWriter::new();
        out.append("_id", 7);
        for field in fields.iter() {
            out.append_element(&field);
        }
        out.finish()
    })
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            Just("a"),
            Just("b"),
            Just("c"),
            Just("0"),
            Just("2"),
            Just("$[]")
        ],
        0..3,
    )
    .prop_flat_map(|rest| {
        prop_oneof![Just("a"), Just("b"), Just("d")].prop_map(move |first| {
            let mut names = vec![first];
            names.extend(&rest);
            names.join(".")
        })
    })
}

fn operator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "$set",
        "$unset",
        "$inc",
        "$mul",
        "$min",
        "$max",
        "$push",
        "$addToSet",
        "$pull",
        "$pop",
    ])
}

fn update(operator: &str, path: &str, value: &Value) -> DocBuf {
    let mut out = DocWriter::new();
    out.begin_document(operator).append(path, value).end();
    out.finish()
}

/// The document after an update; `None` if the update is refused.
fn applied(doc: Doc<'_>, update: &DocBuf) -> Option<(DocBuf, bool)> {
    let context = QueryContext::new(0);
    let update = Update::parse(ValueRef::Document(update.as_doc()), None, &context).ok()?;
    match update.apply(doc, MOMENT, &context).ok()? {
        None => Some((doc.to_owned(), false)),
        Some(after) => Some((after, true)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn results_are_valid_and_keep_their_id(
        doc in document(), operator in operator(), path in path(), value in value(),
    ) {
        if let Some((after, _)) = applied(doc.as_doc(), &update(operator, &path, &value)) {
            let read = DocBuf::from_bytes(after.as_bytes().to_vec());
            prop_assert!(read.is_ok(), "{after:?}: {read:?}");
            prop_assert_eq!(after.get("_id"), doc.get("_id"));
        }
    }

    #[test]
    fn no_change_means_the_same_bytes(
        doc in document(), operator in operator(), path in path(), value in value(),
    ) {
        if let Some((after, is_changed)) = applied(doc.as_doc(), &update(operator, &path, &value))
            // An element that is unset becomes null, and a push is a push,
            // whatever was there before.
            && !matches!(operator, "$push" | "$unset")
        {
            prop_assert_eq!(is_changed, after != doc, "{:?}", after);
        }
    }

    #[test]
    fn what_settles_settles_at_once(
        doc in document(),
        operator in prop::sample::select(vec!["$set", "$unset", "$min", "$max", "$addToSet", "$pull"]),
        path in path(),
        value in value(),
    ) {
        let update = update(operator, &path, &value);
        if let Some((once, _)) = applied(doc.as_doc(), &update) {
            let again = applied(once.as_doc(), &update);
            prop_assert_eq!(again.map(|(again, _)| again), Some(once));
        }
    }

    #[test]
    fn what_is_set_is_there_and_what_is_unset_is_not(
        doc in document(), name in "[a-d]", value in value(),
    ) {
        let (set, _) = applied(doc.as_doc(), &update("$set", &name, &value)).unwrap();
        prop_assert_eq!(set.get(&name), Some(value.as_ref()));
        let (unset, _) = applied(set.as_doc(), &update("$unset", &name, &value)).unwrap();
        prop_assert_eq!(unset.get(&name), None);
        // Everything else stays where it was.
        let others = |doc: &DocBuf| -> Vec<Value> {
            doc.iter().filter(|f| f.key() != name).map(|f| f.value().to_owned()).collect()
        };
        prop_assert_eq!(others(&unset), others(&doc));
    }
}
