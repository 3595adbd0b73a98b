//! The half of a pipeline that a router sends.

use crate::testing::TestShard;

/// What a router puts beside the same of others says whose it is.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_name_the_shard_where_a_router_asks() {
    let shard = TestShard::open().await;
    shard
        .check(
            r#"
            {insert: "c", documents: [{_id: 1}]} => {n: 1}
            admin {_terndbBecomeShard: 1, shard: "shard0", clusterId: ObjectId("0000000000000000000000ff")} => {}
            {aggregate: "c", pipeline: [{$collStats: {}}, {$project: {shard: 1}}], cursor: {}, fromMongos: true, needsMerge: true} => {cursor: {firstBatch: [{shard: "shard0"}]}}
            {aggregate: "c", pipeline: [{$indexStats: {}}, {$project: {shard: 1}}], cursor: {}, fromMongos: true, needsMerge: true} => {cursor: {firstBatch: [{shard: "shard0"}]}}
            admin {aggregate: 1, pipeline: [{$currentOp: {}}, {$match: {shard: "shard0", opid: {$regex: "^shard0:[0-9]+$"}, client: {$exists: false}}}, {$limit: 1}, {$count: "n"}], cursor: {}, fromMongos: true, needsMerge: true} => {cursor: {firstBatch: [{n: 1}]}}
            {aggregate: "c", pipeline: [{$indexStats: {}}, {$match: {shard: {$exists: true}}}], cursor: {}} => {cursor: {firstBatch: []}}
            {aggregate: "c", pipeline: [{$collStats: {}}, {$match: {shard: {$exists: true}}}], cursor: {}} => {cursor: {firstBatch: []}}
            "#,
        )
        .await;
}

/// ⚑ Only who says that it merges gets states instead of results, and internal stages
/// are unknown to everybody else.
#[tokio::test(flavor = "multi_thread")]
async fn halves_are_for_those_who_merge() {
    let shard = TestShard::open().await;
    shard
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, a: 1}, {_id: 2, a: 1}, {_id: 3, a: 2}]} => {n: 3}
            {aggregate: "c", pipeline: [{$_terndbGroup: {version: 1, group: {_id: "$a", n: {$sum: 1}}}}], cursor: {}, fromMongos: true, needsMerge: true} => {cursor: {firstBatch: [{_id: 1, s: [[0, 2L]]}, {_id: 2, s: [[0, 1L]]}]}}
            {aggregate: "c", pipeline: [{$sort: {a: 1}}, {$limit: 1}], cursor: {}, fromMongos: true, needsMerge: true} => {cursor: {firstBatch: [{_id: 1}]}}
            {aggregate: "c", pipeline: [{$group: {_id: "$a", n: {$sum: 1}}}], cursor: {}, fromMongos: true} => {cursor: {firstBatch: [{_id: 1, n: 2}, {_id: 2, n: 1}]}}
            {aggregate: "c", pipeline: [{$_terndbGroup: {version: 1, group: {_id: "$a"}}}], cursor: {}} => 40324
            {aggregate: "c", pipeline: [{$_terndbGroup: {version: 1, group: {_id: "$a"}}}], cursor: {}, fromMongos: true} => 40324
            {aggregate: "c", pipeline: [{$_terndbGroup: {version: 2, group: {_id: "$a"}}}], cursor: {}, fromMongos: true, needsMerge: true} => 9
            {aggregate: "c", pipeline: [], cursor: {}, needsMerge: true} => 9
            # All shards are told the same time.
            {aggregate: "c", pipeline: [{$limit: 1}, {$project: {_id: 0, now: "$$NOW", time: "$$CLUSTER_TIME"}}], cursor: {}, runtimeConstants: {localNow: Date(1000), clusterTime: Timestamp(7, 1)}} => {cursor: {firstBatch: [{now: Date(1000), time: Timestamp(7, 1)}]}}
            {find: "c", filter: {$expr: {$eq: ["$$NOW", Date(1000)]}}, runtimeConstants: {localNow: Date(1000)}} => {cursor: {firstBatch: [{_id: 1}, {_id: 2}, {_id: 3}]}}
            {find: "c", runtimeConstants: 1} => 14
            {find: "c", runtimeConstants: {}} => 40414
            {count: "c", runtimeConstants: {localNow: Date(1000)}} => 40415
            "#,
        )
        .await;
}
