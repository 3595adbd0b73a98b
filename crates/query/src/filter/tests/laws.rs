//! Laws that hold for all filters and documents.

use crate::context::QueryContext;
use crate::filter::Filter;
use model::bson::{ArrayBuf, DocBuf, DocWriter, Value};
use proptest::collection::vec;
use proptest::prelude::*;

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        (-2..4i32).prop_map(Value::Int32),
        (-2..4i64).prop_map(Value::Int64),
        prop_oneof![Just(0.5), Just(1.0), Just(f64::NAN)].prop_map(Value::Double),
        "[ab]{0,2}".prop_map(Value::String),
        any::<bool>().prop_map(Value::Boolean),
        Just(Value::MinKey),
        Just(Value::MaxKey),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3)
                .prop_map(|items| Value::Array(items.into_iter().collect::<ArrayBuf>())),
            fields(inner).prop_map(Value::Document),
        ]
    })
}

fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = DocBuf> {
    vec((prop_oneof![Just("a"), Just("b"), Just("0")], value), 0..3).prop_map(|fields| {
        let mut out = DocWriter::new();
        for (at, (name, value)) in fields.iter().enumerate() {
            // The first field of a name is the one that counts; keep only it.
            if fields[..at].iter().all(|(earlier, _)| earlier != name) {
                out.append(name, value);
            }
        }
        out.finish()
    })
}

fn path() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("a"),
        Just("a.b"),
        Just("a.0"),
        Just("b"),
        Just("b.a.b")
    ]
}

fn operator() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("$eq"),
        Just("$gt"),
        Just("$gte"),
        Just("$lt"),
        Just("$lte")
    ]
}

/// `{name: value}`
fn one<'a>(name: &str, value: impl Into<model::bson::ValueRef<'a>>) -> DocBuf {
    DocWriter::new().with(name, value).finish()
}

fn list(docs: &[DocBuf]) -> ArrayBuf {
    docs.iter()
        .map(|doc| model::bson::ValueRef::Document(doc.as_doc()))
        .collect()
}

fn passes(filter: &DocBuf, doc: &DocBuf) -> bool {
    let parsed = Filter::parse(filter.as_doc(), &QueryContext::new(0)).expect("a valid filter");
    let passed = parsed.matches(doc.as_doc()).expect("no expression to fail");
    let normalized = parsed.normalized();
    assert_eq!(
        normalized.matches(doc.as_doc()).expect("no expression"),
        passed,
        "normalizing keeps the meaning"
    );
    let printed = normalized.to_document();
    let again = Filter::parse(printed.as_doc(), &QueryContext::new(0)).expect("it can be read");
    assert_eq!(
        again.matches(doc.as_doc()).expect("no expression"),
        passed,
        "printing keeps the meaning: {printed:?}"
    );
    passed
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn not_is_the_opposite(
        doc in fields(value()), path in path(), operator in operator(), value in value(),
    ) {
        let plain = one(path, &one(operator, &value));
        let negated = one(path, &one("$not", &one(operator, &value)));
        let nor = one("$nor", &list(std::slice::from_ref(&plain)));
        prop_assert_eq!(passes(&plain, &doc), !passes(&negated, &doc));
        prop_assert_eq!(passes(&plain, &doc), !passes(&nor, &doc));
    }

    #[test]
    fn in_is_a_disjunction_of_equalities(
        doc in fields(value()), path in path(), values in vec(value(), 1..4),
    ) {
        let set: ArrayBuf = values.iter().map(Value::as_ref).collect();
        let equalities: Vec<DocBuf> =
            values.iter().map(|value| one(path, &one("$eq", value))).collect();
        let is_in = passes(&one(path, &one("$in", &set)), &doc);
        prop_assert_eq!(is_in, passes(&one("$or", &list(&equalities)), &doc));
        prop_assert_eq!(is_in, !passes(&one(path, &one("$nin", &set)), &doc));
        let all = passes(&one(path, &one("$all", &set)), &doc);
        prop_assert_eq!(all, passes(&one("$and", &list(&equalities)), &doc));
    }

    #[test]
    fn de_morgan(
        doc in fields(value()), left in (path(), operator(), value()),
        right in (path(), operator(), value()),
    ) {
        let [left, right] = [left, right]
            .map(|(path, operator, value)| one(path, &one(operator, &value)));
        let both = list(&[left.clone(), right.clone()]);
        let negations = list(&[
            one("$nor", &list(&[left])),
            one("$nor", &list(&[right])),
        ]);
        prop_assert_eq!(
            passes(&one("$nor", &both), &doc),
            passes(&one("$and", &negations), &doc)
        );
        prop_assert_eq!(
            passes(&one("$and", &both), &doc),
            passes(&one("$nor", &negations), &doc)
        );
    }

    #[test]
    fn or_equal_is_a_disjunction(
        doc in fields(value()), path in path(), value in value(),
    ) {
        for (wide, strict) in [("$gte", "$gt"), ("$lte", "$lt")] {
            let either = list(&[
                one(path, &one(strict, &value)),
                one(path, &one("$eq", &value)),
            ]);
            prop_assert_eq!(
                passes(&one(path, &one(wide, &value)), &doc),
                passes(&one("$or", &either), &doc)
            );
        }
    }
}
