//! Laws: however documents are distributed, the halves together are the whole.
//!
//! Pipelines are put together from parts whose result does not depend on the order of
//! documents, or that follow a total sort. What a `$push` or a set lists is compared
//! without its order.

use super::*;
use crate::expression::tests::print_json;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Look at one document at a time.
const STREAMING: &[&str] = &[
    r#"{"$match": {"a": {"$gte": 1}}}"#,
    r#"{"$match": {"$or": [{"b": "x"}, {"n": {"$lt": 3}}, {"t": {"$elemMatch": {"$gt": 1}}}]}}"#,
    r#"{"$match": {"$expr": {"$ne": ["$a", 2]}, "b": {"$nin": [null, "y"]}}}"#,
    r#"{"$match": {"b": {"$not": {"$regex": "^x", "$options": "i"}}}}"#,
    r#"{"$project": {"a": 1, "n": 1, "k": 1, "b": {"$ifNull": ["$b", "none"]}}}"#,
    r#"{"$addFields": {"c": {"$add": ["$a", 1]}, "d": {"a": "$a"}}}"#,
    r#"{"$unset": ["t"]}"#,
    r#"{"$unwind": {"path": "$t", "preserveNullAndEmptyArrays": true}}"#,
    r#"{"$unwind": {"path": "$t", "includeArrayIndex": "i"}}"#,
    r#"{"$redact": {"$cond": [{"$eq": ["$a", 3]}, "$$PRUNE", "$$KEEP"]}}"#,
    r#"{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"z": 1}]}}"#,
];

/// See all documents, in whatever order they come.
const GATHERING: &[&str] = &[
    r#"{"$group": {"_id": "$a", "n": {"$sum": "$n"}, "m": {"$avg": "$n"}, "c": {"$count": {}}}}"#,
    r#"{"$group": {"_id": {"a": "$a", "b": "$b"}, "all": {"$push": "$n"}, "set": {"$addToSet": "$b"}}}"#,
    r#"{"$group": {"_id": {"b": "$b"}, "low": {"$min": "$_id"}, "high": {"$max": "$_id"}}}"#,
    r#"{"$group": {"_id": "$k", "low": {"$minN": {"n": 2, "input": "$_id"}}, "top": {"$topN": {"n": 2, "sortBy": {"_id": -1}, "output": "$_id"}}, "bottom": {"$bottom": {"sortBy": {"_id": 1}, "output": ["$_id", "$n"]}}}}"#,
    r#"{"$group": {"_id": null, "n": {"$sum": {"$multiply": ["$n", 3]}}, "none": {"$max": "$nowhere"}}}"#,
    r#"{"$group": {"_id": {"k": "$k", "a": "$a"}, "n": {"$sum": 1}}}"#,
    r#"{"$count": "n"}"#,
    r#"{"$bucket": {"groupBy": "$a", "boundaries": [0, 2, 3], "default": "other", "output": {"n": {"$sum": "$n"}}}}"#,
    r#"{"$bucketAuto": {"groupBy": "$_id", "buckets": 3}}"#,
    r#"{"$sample": {"size": 1000}}"#,
    r#"{"$unionWith": {"coll": "f", "pipeline": [{"$match": {"a": 1}}]}}"#,
    r#"{"$lookup": {"from": "f", "localField": "a", "foreignField": "a", "as": "f"}}"#,
    r#"{"$facet": {"x": [{"$match": {"a": 1}}, {"$count": "n"}], "y": [{"$group": {"_id": "$a"}}]}}"#,
    r#"{"$skip": 1000}"#,
    r#"{"$limit": 1000}"#,
];

/// What may follow a sort by `_id`, in its order.
const ORDERED: &[&str] = &[
    r#"{"$limit": 3}"#,
    r#"{"$skip": 2}"#,
    r#"{"$project": {"a": 1, "_id": 1}}"#,
    r#"{"$match": {"a": {"$ne": 1}}}"#,
    r#"{"$group": {"_id": null, "first": {"$first": "$n"}, "last": {"$last": "$_id"}, "m": {"$mergeObjects": "$d"}, "all": {"$push": "$_id"}, "some": {"$firstN": {"n": 2, "input": "$a"}}, "ends": {"$lastN": {"n": 2, "input": "$a"}}}}"#,
];

fn document() -> impl Strategy<Value = String> {
    // Equal values of one field have one type, so that it cannot show which of them
    // came first; numbers that are only added may be anything that one double holds the
    // sum of: beyond that the last digits depend on the order, on one server, too.
    let fields = (
        select(
            &[
                "",
                r#", "a": 0"#,
                r#", "a": 1"#,
                r#", "a": 2"#,
                r#", "a": 3"#,
            ][..],
        ),
        select(
            &[
                "",
                r#", "b": null"#,
                r#", "b": "x""#,
                r#", "b": "y""#,
                r#", "b": 2.5"#,
                r#", "b": {"c": 1}"#,
            ][..],
        ),
        select(
            &[
                "",
                r#", "n": 1"#,
                r#", "n": 2147483647"#,
                r#", "n": {"$numberLong": "4000000000000"}"#,
                r#", "n": {"$numberLong": "-3000000000000"}"#,
                r#", "n": -7.25"#,
                r#", "n": {"$numberDecimal": "0.5"}"#,
                r#", "n": "no number""#,
            ][..],
        ),
        select(
            &[
                "",
                r#", "t": []"#,
                r#", "t": [1, 2]"#,
                r#", "t": [3]"#,
                r#", "t": 5"#,
            ][..],
        ),
        select(
            &[
                "",
                r#", "k": 1"#,
                r#", "k": 2"#,
                r#", "k": "k""#,
                r#", "k": null"#,
            ][..],
        ),
    );
    fields.prop_map(|(a, b, n, t, k)| format!("{a}{b}{n}{t}{k}"))
}

fn with_id(at: usize, fields: &str) -> DocBuf {
    match parse_json(&format!(r#"{{"_id": {at}{fields}}}"#)) {
        Value::Document(document) => document,
        other => panic!("{other:?} is no document"),
    }
}

/// As text, with the elements of arrays in an order of their own.
fn canonical(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Array(array) => {
            let mut elements: Vec<String> = array.iter().map(canonical).collect();
            elements.sort();
            format!("[{}]", elements.join(", "))
        }
        ValueRef::Document(doc) => {
            let fields: Vec<String> = doc
                .iter()
                .map(|field| format!("{}: {}", field.key(), canonical(field.value())))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        scalar => print_json(scalar),
    }
}

fn compared(outcome: Result<Vec<DocBuf>, Error>, ordered: bool) -> Vec<String> {
    match outcome {
        Err(error) => vec![format!("error {}", error.code.0)],
        Ok(documents) => {
            let mut lines: Vec<String> = documents
                .iter()
                .map(|document| match ordered {
                    true => print_json(ValueRef::from(document)),
                    false => canonical(ValueRef::from(document)),
                })
                .collect();
            if !ordered {
                lines.sort();
            }
            lines
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn halves_together_are_the_whole(
        documents in vec((document(), 0..4usize), 0..24),
        foreign in vec(document(), 0..4),
        shards in 1..5usize,
        head in vec(select(STREAMING), 0..3),
        gathering in vec(select(GATHERING), 0..3),
        middle in vec(select(STREAMING), 0..2),
        ordered in prop::option::of(vec(select(ORDERED), 0..4)),
        by_key in any::<bool>(),
        halts in prop::option::of(any::<u32>()),
        memory_bytes_max in prop_oneof![Just(usize::MAX), Just(600)],
    ) {
        let mut pipeline: Vec<&str> = head.clone();
        // Stages between would depend on what a gathering stage left over.
        match gathering.as_slice() {
            [] => pipeline.extend(&middle),
            [first, rest @ ..] => {
                pipeline.push(first);
                pipeline.extend(&middle);
                pipeline.extend(rest);
            }
        }
        let is_ordered = ordered.is_some() && gathering.is_empty() && !pipeline.iter().any(|stage| stage.contains("$unwind"));
        if let Some(ordered) = ordered.filter(|_| is_ordered) {
            pipeline.push(r#"{"$sort": {"_id": 1}}"#);
            pipeline.extend(ordered);
        }
        let pipeline = format!("[{}]", pipeline.join(", "));
        let stages = stages(&pipeline);

        let shard_key = DocWriter::new().with("k", 1).finish();
        let shard_key = ShardKeyPattern::parse(shard_key.as_doc()).expect("a shard key");
        let mut all = Vec::new();
        let mut parts = vec![Vec::new(); shards];
        for (at, (fields, place)) in documents.iter().enumerate() {
            let document = with_id(at, fields);
            let place = match by_key {
                false => *place,
                true => {
                    let key = shard_key.key_of(document.as_doc()).expect("a shard key");
                    key.iter().map(|byte| usize::from(*byte)).sum()
                }
            };
            parts[place % shards].push(document.clone());
            all.push(document);
        }
        let foreign: Vec<DocBuf> = foreign
            .iter()
            .enumerate()
            .map(|(at, fields)| with_id(1000 + at, fields))
            .collect();
        let whole = Arc::new(World {
            collections: HashMap::from([("c".to_owned(), all), ("f".to_owned(), foreign.clone())]),
            may_spill: true,
            memory_bytes_max,
            ..World::default()
        });
        let merging = Arc::new(World {
            collections: HashMap::from([("f".to_owned(), foreign)]),
            may_spill: true,
            memory_bytes_max,
            ..World::default()
        });
        let mut cluster = Cluster::new(parts, "c", &merging);
        cluster.halts = halts;
        cluster.shard_key = by_key.then_some(shard_key);
        let expected = compared(run(&whole, "c", stages.as_array()), is_ordered);
        let found = compared(cluster.run("c", stages.as_array()), is_ordered);
        prop_assert_eq!(found, expected, "{}", pipeline);
    }

    /// Of all shards together, and none twice.
    #[test]
    fn samples(size in 0..20usize, counts in vec(0..10usize, 1..4)) {
        let mut next = 0;
        let parts: Vec<Vec<DocBuf>> = counts
            .iter()
            .map(|count| (0..*count).map(|_| { next += 1; with_id(next, "") }).collect())
            .collect();
        let world = Arc::new(World { memory_bytes_max: usize::MAX, ..World::default() });
        let cluster = Cluster::new(parts, "c", &world);
        let stages = stages(&format!(r#"[{{"$sample": {{"size": {size}}}}}]"#));
        let found = cluster.run("c", stages.as_array()).expect("a sample");
        let mut lines = compared(Ok(found), false);
        prop_assert_eq!(lines.len(), size.min(next));
        lines.dedup();
        prop_assert_eq!(lines.len(), size.min(next));
    }
}

/// Which shard a document lies on says nothing about whether it is chosen.
#[test]
fn samples_are_fair() {
    let parts = vec![
        vec![with_id(0, "")],
        (1..10).map(|at| with_id(at, "")).collect(),
    ];
    let world = Arc::new(World {
        memory_bytes_max: usize::MAX,
        ..World::default()
    });
    let cluster = Cluster::new(parts, "c", &world);
    let stages = stages(r#"[{"$sample": {"size": 1}}]"#);
    let rounds = 2000;
    let lonely = (0..rounds)
        .filter(|_| {
            let found = cluster.run("c", stages.as_array()).expect("a sample");
            found[0] == with_id(0, "")
        })
        .count();
    // A tenth of them; an even choice between shards would be a half.
    assert!((100..350).contains(&lonely), "{lonely} of {rounds}");
}
