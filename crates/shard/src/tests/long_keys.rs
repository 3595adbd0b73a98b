//! Keys that no engine takes are refused when a write is evaluated, and asked
//! for without harm. An entry that cannot be applied must never be in the log:
//! the shard could not be opened again.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_too_long_is_refused_before_the_log() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {s: 1}, name: "s_1"}]} => {numIndexesAfter: 2}
            {insert: "c", documents: [{_id: 1, s: "short"}]} => {n: 1}
            {insert: "c", documents: [{_id: 2, s: Repeat("x", 70000)}]} => {n: 0, writeErrors: [{code: 17280}]}
            {insert: "c", documents: [{_id: Repeat("x", 70000)}]} => {n: 0, writeErrors: [{code: 17280}]}
            {update: "c", updates: [{q: {_id: 1}, u: {$set: {s: Repeat("x", 70000)}}}]} => {n: 0, writeErrors: [{code: 17280}]}
            {insert: "c", documents: [{_id: 3, other: Repeat("x", 70000)}]} => {n: 1}
            {createIndexes: "c", indexes: [{key: {other: 1}, name: "other_1"}]} => 17280
            "#,
        )
        .await;
    let server = server.reopen().await;
    server
        .check(
            r#"
            {find: "c", filter: {s: Repeat("x", 70000)}} => {cursor: {firstBatch: []}}
            {find: "c", filter: {s: {$lt: Repeat("x", 70000)}}, projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 1}]}}
            {find: "c", filter: {s: {$gt: Repeat("x", 70000)}}} => {cursor: {firstBatch: []}}
            {find: "c", filter: {_id: {$gt: Repeat("x", 70000)}}} => {cursor: {firstBatch: []}}
            {find: "c", filter: {_id: {$in: [Repeat("x", 70000), 1]}}, projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 1}]}}
            {delete: "c", deletes: [{q: {_id: Repeat("x", 70000)}, limit: 1}]} => {n: 0}
            {count: "c", query: {s: {$gte: Repeat("x", 70000)}}} => {n: 0}
            "#,
        )
        .await;
    server.check_valid("c").await;
}
