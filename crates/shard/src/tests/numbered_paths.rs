//! Numbers in paths that values are read along: behind an array they are indexes and nothing else.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn numbers_behind_an_array_are_indexes() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, a: [1, 2]}, {_id: 2, a: {"0": 5}}, {_id: 3, a: [{"0": 1}, 3]}, {_id: 4, a: [[3, 4]]}, {_id: 7, a: [[{b: 3}]]}]} => {n: 5}
            {distinct: "c", key: "a.0"} => {values: [1, 3, 4, 5, {"0": 1}, {b: 3}]}
            {distinct: "c", key: "a.0", query: {_id: 3}} => {values: [{"0": 1}]}
            {aggregate: "c", cursor: {}, pipeline: [{$lookup: {from: "c", localField: "a.0", foreignField: "_id", as: "r"}}, {$project: {r: "$r._id"}}]} => {cursor: {firstBatch: [{_id: 1, r: [1]}, {_id: 2, r: []}, {_id: 3, r: []}, {_id: 4, r: [3, 4]}, {_id: 7, r: []}]}}
            {aggregate: "c", cursor: {}, pipeline: [{$lookup: {from: "c", localField: "a.0.b", foreignField: "_id", as: "r"}}, {$project: {r: "$r._id"}}, {$match: {_id: 7}}]} => {cursor: {firstBatch: [{_id: 7, r: [3]}]}}
            {aggregate: "c", cursor: {}, pipeline: [{$match: {_id: 4}}, {$graphLookup: {from: "c", startWith: "$_id", connectFromField: "a.0", connectToField: "_id", as: "r"}}, {$project: {n: {$size: "$r"}}}]} => {cursor: {firstBatch: [{_id: 4, n: 2}]}}
            "#,
        )
        .await;
}
