//! Batches of statements: waited for together, and each sees those before it.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn each_statement_sees_those_before_it() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "birds", documents: [{_id: 1, n: 0}, {_id: 2, n: 0}]} => {n: 2}
            # The same document again and again, one that a statement before made, and a search that sees all of it.
            {update: "birds", updates: [{q: {_id: 1}, u: {$inc: {n: 1}}}, {q: {_id: 1}, u: {$inc: {n: 1}}}, {q: {_id: 3}, u: {$inc: {n: 5}}, upsert: true}, {q: {_id: 3}, u: {$inc: {n: 1}}, upsert: true}, {q: {n: {$gte: 2}}, u: {$set: {seen: true}}, multi: true}, {q: {_id: 1, seen: true}, u: {$inc: {n: 1}}}]} => {n: 7, nModified: 6}
            {find: "birds", sort: {_id: 1}} => {cursor: {firstBatch: [{_id: 1, n: 3, seen: true}, {_id: 2, n: 0}, {_id: 3, n: 6, seen: true}]}}
            # Removed and made anew; a condition that holds no more.
            {delete: "birds", deletes: [{q: {_id: 1}, limit: 1}, {q: {_id: 1}, limit: 1}, {q: {_id: 2, n: 1}, limit: 1}, {q: {n: 0}, limit: 0}]} => {n: 2}
            {find: "birds", sort: {_id: 1}, projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 3}]}}
            # An error ends an ordered batch, and what came before it stays.
            {createIndexes: "birds", indexes: [{key: {ring: 1}, name: "ring", unique: true}]} => {}
            {insert: "birds", documents: [{_id: 4, ring: 4}, {_id: 5, ring: 5}, {_id: 6, ring: 6}]} => {n: 3}
            {update: "birds", updates: [{q: {_id: 4}, u: {$set: {ring: 7}}}, {q: {_id: 5}, u: {$set: {ring: 7}}}, {q: {_id: 6}, u: {$set: {ring: 8}}}]} => {n: 1, nModified: 1, writeErrors: [{index: 1, code: 11000}]}
            # The key that a statement before has given up is free.
            {update: "birds", updates: [{q: {_id: 4}, u: {$set: {ring: 9}}}, {q: {_id: 5}, u: {$set: {ring: 7}}}, {q: {_id: 6}, u: {$set: {ring: 5}}}], ordered: false} => {n: 3, nModified: 3}
            {find: "birds", filter: {ring: {$exists: true}}, sort: {_id: 1}} => {cursor: {firstBatch: [{_id: 4, ring: 9}, {_id: 5, ring: 7}, {_id: 6, ring: 5}]}}
            "#,
        )
        .await;
    server.check_valid("birds").await;
}

/// The retry of a batch is answered from history as far as it came, whatever was waited for together.
#[tokio::test(flavor = "multi_thread")]
async fn retried_batches_do_not_repeat_anything() {
    let server = TestShard::open().await;
    let ids = 0..700;
    let documents: Vec<String> = ids
        .clone()
        .map(|id| format!("{{_id: {id}, n: 0}}"))
        .collect();
    server.insert(&documents).await;
    let updates = ids
        .clone()
        .map(|id| format!("{{q: {{_id: {id}}}, u: {{$inc: {{n: 1}}}}}}"));
    let updates = updates.collect::<Vec<_>>().join(", ");
    let session = r#"{id: UUID("00112233-4455-6677-8899-aabbccddeeff")}"#;
    let command =
        format!("{{update: \"c\", updates: [{updates}], lsid: {session}, txnNumber: 1L}}");
    for (attempt, changed) in [(1, 700), (2, 700)] {
        let reply = server.run("test", &command).await;
        let reply = differential::notation::print_fields(&reply);
        assert!(
            reply.contains(&format!("nModified: {changed}")),
            "{attempt}: {reply:.200}"
        );
    }
    let server = server.reopen().await;
    server.run("test", &command).await;
    server
        .check(r#"{count: "c", query: {n: 1}} => {n: 700}"#)
        .await;
}
