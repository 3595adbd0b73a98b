//! Groups of many shards: memory, and states that nobody should believe.

use super::*;
use crate::accumulator::Accumulator;
use proptest::prelude::*;

fn documents() -> Vec<DocBuf> {
    let text = "x".repeat(100);
    (0..6000)
        .map(|at| {
            DocWriter::new()
                .with("_id", at)
                .with("k", format!("{}{text}", at % 2900).as_str())
                .with("n", at)
                .finish()
        })
        .collect()
}

/// ⚑ Where partials are put together, memory is bounded as everywhere.
#[test]
fn merging_groups_spill_and_come_back_whole() {
    let stages = stages(
        r#"[{"$group": {"_id": "$k", "n": {"$sum": 1}, "first": {"$first": "$n"}, "all": {"$push": "$n"}}}, {"$sort": {"_id": 1}}]"#,
    );
    let whole = Arc::new(World {
        collections: HashMap::from([("c".to_owned(), documents())]),
        may_spill: false,
        memory_bytes_max: usize::MAX,
        ..World::default()
    });
    let expected = run(&whole, "c", stages.as_array()).expect("it fits");
    assert_eq!(expected.len(), 2900);
    for may_spill in [true, false] {
        let merging = Arc::new(World {
            may_spill,
            memory_bytes_max: 100_000,
            ..World::default()
        });
        let mut cluster = Cluster::new(portions(&documents(), 3), "c", &whole);
        cluster.merging = merging;
        let outcome = cluster.run("c", stages.as_array());
        match may_spill {
            true => assert!(outcome.expect("it spills") == expected),
            false => assert_eq!(outcome.unwrap_err().code.0, 292),
        }
    }
    // The shards' halves spill, too.
    let small = Arc::new(World {
        may_spill: true,
        memory_bytes_max: 100_000,
        ..World::default()
    });
    let cluster = Cluster::new(portions(&documents(), 3), "c", &small);
    let mut found = cluster.run("c", stages.as_array()).expect("it spills");
    assert_eq!(found.len(), expected.len());
    found.retain(|document| !expected.contains(document));
    assert_eq!(found, []);
}

const ACCUMULATORS: &[&str] = &[
    r#"{"$sum": "$n"}"#,
    r#"{"$avg": "$n"}"#,
    r#"{"$count": {}}"#,
    r#"{"$min": "$n"}"#,
    r#"{"$max": "$n"}"#,
    r#"{"$first": "$n"}"#,
    r#"{"$last": "$n"}"#,
    r#"{"$push": "$n"}"#,
    r#"{"$addToSet": "$n"}"#,
    r#"{"$mergeObjects": "$d"}"#,
    r#"{"$stdDevPop": "$n"}"#,
    r#"{"$stdDevSamp": "$n"}"#,
    r#"{"$firstN": {"n": 2, "input": "$n"}}"#,
    r#"{"$lastN": {"n": 2, "input": "$n"}}"#,
    r#"{"$minN": {"n": 2, "input": "$n"}}"#,
    r#"{"$maxN": {"n": 2, "input": "$n"}}"#,
    r#"{"$top": {"sortBy": {"n": 1}, "output": "$n"}}"#,
    r#"{"$topN": {"n": 2, "sortBy": {"n": 1}, "output": "$n"}}"#,
    r#"{"$bottom": {"sortBy": {"n": 1}, "output": "$n"}}"#,
    r#"{"$bottomN": {"n": 2, "sortBy": {"n": 1}, "output": "$n"}}"#,
];

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        Just(Value::Undefined),
        (0..5i32).prop_map(Value::Int32),
        any::<i64>().prop_map(Value::Int64),
        any::<f64>().prop_map(Value::Double),
        "[ab]{0,2}".prop_map(Value::String),
    ];
    scalar.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..7)
                .prop_map(|items| Value::Array(items.into_iter().collect())),
            prop::collection::vec(
                (
                    prop::sample::select(&["sum", "count", "m2", "mean", "s", "_id"][..]),
                    inner
                ),
                0..4
            )
            .prop_map(|fields| {
                let mut out = DocWriter::new();
                for (name, value) in &fields {
                    out.append(name, value);
                }
                Value::Document(out.finish())
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// ⚑ What comes from elsewhere is an error at worst.
    #[test]
    fn forged_states_never_panic(values in prop::collection::vec(value(), 1..4)) {
        for spec in ACCUMULATORS {
            let spec = parse_json(spec);
            let accumulator =
                Accumulator::parse("r", spec.as_ref(), &QueryContext::new(0)).expect("it parses");
            let mut state = accumulator.start(Doc::EMPTY).expect("a state");
            for value in &values {
                // Accepted or refused: either will do.
                let _ = state.merge(value.as_ref());
                let document = DocWriter::new().with("n", value).finish();
                let _ = accumulator.add(&mut state, document.as_doc());
            }
            state.clone().partial();
            state.finish();
        }
    }

    /// A state that was sent is the state that it was: what is added to it later
    /// makes the same of it, to the last bit.
    #[test]
    fn states_survive_being_sent(
        before in prop::collection::vec(value(), 0..6), after in prop::collection::vec(value(), 0..4),
    ) {
        for spec in ACCUMULATORS {
            let parsed = parse_json(spec);
            let accumulator =
                Accumulator::parse("r", parsed.as_ref(), &QueryContext::new(0)).expect("it parses");
            let add = |state: &mut _, values: &[Value]| {
                for value in values {
                    let document = DocWriter::new().with("n", value).finish();
                    accumulator.add(state, document.as_doc()).expect("any value will do");
                }
            };
            let mut kept = accumulator.start(Doc::EMPTY).expect("a state");
            add(&mut kept, &before);
            let mut sent = accumulator.start(Doc::EMPTY).expect("a state");
            sent.merge(kept.clone().partial().as_ref()).expect("its own partial");
            add(&mut kept, &after);
            add(&mut sent, &after);
            // NaN is not equal to itself, its bytes are.
            let bytes = |value: Value| DocWriter::new().with("", &value).finish().into_bytes();
            prop_assert_eq!(bytes(kept.finish()), bytes(sent.finish()), "{}", spec);
        }
    }

    #[test]
    fn forged_groups_never_panic(documents in prop::collection::vec(value(), 1..6)) {
        let documents: Vec<DocBuf> = documents
            .iter()
            .map(|value| match value {
                Value::Document(document) => document.clone(),
                other => DocWriter::new().with("_id", other).with("s", other).finish(),
            })
            .collect();
        for key in [r#""$a""#, r#"{"a": "$a"}"#, r#"{"a": "$a", "b": "$b"}"#, "null"] {
            let split = split(&format!(r#"[{{"$group": {{"_id": {key}, "n": {{"$push": "$n"}}}}}}]"#), None);
            let environment: Arc<dyn Environment> = Arc::new(World {
                memory_bytes_max: 200,
                may_spill: true,
                ..World::default()
            });
            let stream = Box::new(Documents::new(documents.clone()));
            let _ = split.merge(vec![stream], &environment).and_then(drain);
        }
    }
}
