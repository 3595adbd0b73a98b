//! A document with several index entries comes once, wherever batches end and
//! whatever of it changes besides its keys.

use crate::testing::TestShard;
use differential::value::Value;

/// Two indexes, one of them over arrays, and documents with several entries in
/// each of the queries below.
async fn filled() -> TestShard {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..40)
        .map(|id| {
            let (a, b) = (id % 7, id % 5);
            format!(
                "{{_id: {id}, a: [{a}, {}, {}], b: {b}, k: {}, z: 0}}",
                a + 1,
                a + 3,
                id % 3
            )
        })
        .collect();
    server.insert(&documents).await;
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}, {key: {b: 1}, name: "b"}, {key: {a: 1, b: -1}, name: "ab"}, {key: {b: 1, k: 1}, name: "bk"}]} => {}
            "#,
        )
        .await;
    server
}

fn id(document: &Value) -> i32 {
    match document.get("_id") {
        Some(Value::Int32(id)) => *id,
        other => panic!("an id: {other:?}"),
    }
}

const QUERIES: &[&str] = &[
    "filter: {a: {$gte: 0}}, hint: 'a'",
    "filter: {a: {$gte: 2, $lt: 6}}, hint: 'a'",
    "filter: {a: {$in: [1, 3, 4, 8]}}, hint: 'a'",
    "filter: {a: {$gte: 0}}, hint: 'a', sort: {a: -1}",
    "filter: {a: {$gte: 0}, b: {$gte: 1}}, hint: 'ab'",
    "filter: {$or: [{a: {$gte: 4}}, {b: {$lte: 2}}]}",
    "filter: {$or: [{b: {$lte: 2}}, {a: {$gte: 4}}, {b: {$gte: 2}}, {a: 1}]}",
    "filter: {$or: [{a: {$in: [1, 2]}, z: {$gte: 0}}, {a: {$in: [2, 3]}}]}",
    // Merged in the order of a sort.
    "filter: {b: {$in: [0, 2, 3]}}, hint: 'bk', sort: {k: 1}",
    "filter: {$or: [{b: 1}, {b: {$in: [1, 3]}, k: {$gte: 1}}]}, sort: {k: -1}",
];

/// The ids that a look at every document finds.
async fn expected(server: &TestShard, query: &str) -> Vec<i32> {
    let end = query.find(", hint").or(query.find(", sort"));
    let filter = &query[..end.unwrap_or(query.len())];
    let (_, documents) = server
        .batch(&format!("{{find: 'c', {filter}, hint: {{$natural: 1}}}}"))
        .await;
    documents.iter().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_document_comes_once_over_any_batches() {
    let server = filled().await;
    for query in QUERIES {
        let expected = expected(&server, query).await;
        assert!(!expected.is_empty(), "{query}");
        for batch_size in [1, 2, 3, 7, 100] {
            let find = format!("{{find: 'c', {query}, batchSize: {batch_size}}}");
            let (cursor, mut documents) = server.batch(&find).await;
            documents.extend(server.rest(cursor, batch_size).await);
            let mut found: Vec<i32> = documents.iter().map(id).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{query} in batches of {batch_size}");
        }
    }
}

/// Between any two batches one half of the documents changes its keys; the other
/// half keeps them but changes in every other field.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_keep_their_keys_come_once_while_others_change() {
    for query in QUERIES {
        let server = filled().await;
        let expected: Vec<i32> = expected(&server, query).await;
        let (mut cursor, mut documents) = server
            .batch(&format!("{{find: 'c', {query}, batchSize: 1}}"))
            .await;
        let mut round = 1;
        while cursor != 0 {
            // The array loses the entry that the scan may have come to, and gains others.
            let (low, high) = (round % 9, 9 - round % 9);
            let update = format!(
                "{{update: 'c', updates: [{{q: {{_id: {{$mod: [2, 1]}}}}, multi: true, \
                 u: {{$set: {{a: [{low}, {high}], b: {low}}}}}}}, \
                 {{q: {{_id: {{$mod: [2, 0]}}}}, multi: true, \
                 u: {{$set: {{z: {round}, y: [{low}]}}}}}}]}}"
            );
            server.check(&format!("{update} => {{n: 40}}")).await;
            let more = format!("{{getMore: {cursor}L, collection: 'c', batchSize: 1}}");
            let (next, found) = server.batch(&more).await;
            documents.extend(found);
            cursor = next;
            round += 1;
            assert!(round < 1000, "{query}: the scan does not end");
        }
        let mut found: Vec<i32> = documents.iter().map(id).filter(|id| id % 2 == 0).collect();
        found.sort_unstable();
        let kept: Vec<i32> = expected.into_iter().filter(|id| id % 2 == 0).collect();
        assert_eq!(found, kept, "{query}");
    }
}

/// A document in the bounds of two branches belongs to the first, though it only
/// begins to match that one when the scan has passed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_chosen_by_keys_and_not_by_what_matches() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, a: 1, b: 1, z: 0}, {_id: 2, a: 1, b: 1, z: 1}, {_id: 3, a: 2, b: 1, z: 0}]} => {n: 3}
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}, {key: {b: 1}, name: "b"}]} => {}
            "#,
        )
        .await;
    let find = "{find: 'c', filter: {$or: [{a: 1, z: 1}, {b: 1}]}, batchSize: 2}";
    let (cursor, mut documents) = server.batch(find).await;
    server
        .check("{update: 'c', updates: [{q: {_id: 1}, u: {$set: {z: 1}}}, {q: {_id: 2}, u: {$set: {z: 0}}}]} => {n: 2}")
        .await;
    documents.extend(server.rest(cursor, 1).await);
    let mut found: Vec<i32> = documents.iter().map(id).collect();
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3]);
}

/// An index gets its first array while a cursor that was planned without is open.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_may_become_multikey_under_a_cursor() {
    for projection in ["", "projection: {b: 1, _id: 0}, "] {
        let server = TestShard::open().await;
        let documents: Vec<String> = (0..10)
            .map(|id| format!("{{_id: {id}, b: {id}}}"))
            .collect();
        server.insert(&documents).await;
        server
            .check("{createIndexes: 'c', indexes: [{key: {b: 1}, name: 'b'}]} => {}")
            .await;
        let find = format!(
            "{{find: 'c', filter: {{b: {{$gte: 0}}}}, {projection}hint: 'b', batchSize: 2}}"
        );
        let (cursor, mut documents) = server.batch(&find).await;
        server
            .check("{insert: 'c', documents: [{_id: 50, b: [5, 6, 7]}]} => {n: 1}")
            .await;
        documents.extend(server.rest(cursor, 2).await);
        let arrays = documents
            .iter()
            .filter(|document| document.get("b").is_some_and(|b| b.as_array().is_some()))
            .count();
        assert_eq!((documents.len(), arrays), (11, 1), "{projection}");
    }
}
