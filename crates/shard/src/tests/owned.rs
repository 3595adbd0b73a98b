//! ⚑ Only what a shard owns is visible and can be written, with a version or without.

use crate::testing::TestShard;
use crate::tests::sharding::{HIGH, LOW, UUID, WHOLE, placed, sharded, version};
use differential::value::Value;

/// Documents 1 to 20 by `x`, of which those from 10 on were given away.
pub(super) async fn with_orphans() -> TestShard {
    let shard = sharded(WHOLE).await;
    let documents: Vec<String> = (1..=20)
        .map(|x| format!("{{_id: {x}, x: {x}, y: {}, z: {}}}", x % 3, 100 - x))
        .collect();
    shard.insert(&documents).await;
    shard
        .check(&format!(
            "{{createIndexes: 'c', indexes: [{{key: {{y: 1}}, name: 'y'}}, {{key: {{y: 1, x: 1}}, name: 'yx'}}, {{key: {{z: 1}}, name: 'z'}}], shardVersion: {v}}} => {{}}
             admin {} => {{}}",
            placed("_terndbSetPlacement", (2, 0), (2, 1), LOW),
            v = version(1, 0),
        ))
        .await;
    shard
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_see_only_what_is_owned() {
    let shard = with_orphans().await;
    let check = async |shard: &TestShard| {
        shard
        .check(
            "{find: 'c', filter: {_id: 9}} => {cursor: {firstBatch: [{_id: 9}]}}
             {find: 'c', filter: {_id: 10}} => {cursor: {firstBatch: []}}
             {find: 'c', filter: {_id: 10}, projection: {y: 1}} => {cursor: {firstBatch: []}}
             {find: 'c', filter: {_id: {$in: [9, 10, 11]}}} => {cursor: {firstBatch: [{_id: 9}]}}
             {find: 'c', filter: {_id: {$gt: 7}}} => {cursor: {firstBatch: [{_id: 8}, {_id: 9}]}}
             {find: 'c', filter: {z: {$lt: 92}}, sort: {z: 1}} => {cursor: {firstBatch: [{_id: 9}]}}
             {find: 'c', filter: {z: {$lt: 94}}, sort: {z: 1}, skip: 1} => {cursor: {firstBatch: [{_id: 8}, {_id: 7}]}}
             {find: 'c', filter: {y: 1}, hint: 'y', skip: 1} => {cursor: {firstBatch: [{_id: 4}, {_id: 7}]}}
             {find: 'c', filter: {y: 1}, projection: {_id: 0, y: 1}, hint: 'y'} => {cursor: {firstBatch: [{y: 1}, {y: 1}, {y: 1}]}}
             {find: 'c', filter: {y: 1}, projection: {_id: 0, y: 1}, hint: 'yx'} => {cursor: {firstBatch: [{y: 1}, {y: 1}, {y: 1}]}}
             {find: 'c', filter: {$or: [{y: 1}, {z: 80}]}, sort: {y: 1}} => {cursor: {firstBatch: [{_id: 1}, {_id: 4}, {_id: 7}]}}
             {find: 'c', filter: {$or: [{_id: 10}, {x: 9}, {x: 11}]}} => {cursor: {firstBatch: [{_id: 9}]}}
             {find: 'c', filter: {y: {$ne: 1}}, sort: {_id: 1}} => {cursor: {firstBatch: [{_id: 2}, {_id: 3}, {_id: 5}, {_id: 6}, {_id: 8}, {_id: 9}]}}
             {find: 'c', filter: {y: {$ne: 1}}, hint: 'y', projection: {_id: 0, y: 1}} => {cursor: {firstBatch: [{y: 0}, {y: 0}, {y: 0}, {y: 2}, {y: 2}, {y: 2}]}}
             {count: 'c', query: {x: {$ne: 5}}} => {n: 8}
             {count: 'c', query: {$or: [{y: {$ne: 1}}, {z: {$ne: 80}}]}} => {n: 9}
             {count: 'c'} => {n: 9}
             {count: 'c', query: {y: 1}} => {n: 3}
             {count: 'c', query: {y: 1}, hint: 'y'} => {n: 3}
             {count: 'c', skip: 2, limit: 20} => {n: 7}
             {distinct: 'c', key: 'z'} => {values: [91, 92, 93, 94, 95, 96, 97, 98, 99]}
             {distinct: 'c', key: 'x', query: {y: 0}} => {values: [3, 6, 9]}
             {aggregate: 'c', pipeline: [{$match: {y: 2}}, {$sort: {x: 1}}, {$project: {x: 1}}], cursor: {}} => {cursor: {firstBatch: [{_id: 2, x: 2}, {_id: 5, x: 5}, {_id: 8, x: 8}]}}
             {aggregate: 'c', pipeline: [{$group: {_id: null, n: {$sum: 1}}}], cursor: {}} => {cursor: {firstBatch: [{n: 9}]}}
             {aggregate: 'c', pipeline: [{$count: 'n'}], cursor: {}} => {cursor: {firstBatch: [{n: 9}]}}
             {aggregate: 'other', pipeline: [{$lookup: {from: 'c', localField: 'x', foreignField: 'x', as: 'found'}}], cursor: {}} => {cursor: {firstBatch: [{_id: 1, found: []}, {_id: 2, found: [{_id: 5}]}]}}",
        )
        .await;
    };
    shard
        .check("{insert: 'other', documents: [{_id: 1, x: 15}, {_id: 2, x: 5}]} => {n: 2}")
        .await;
    check(&shard).await;
    let shard = shard.reopen().await;
    check(&shard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_filter() {
    let shard = with_orphans().await;
    shard
        .check(
            "{explain: {find: 'c', filter: {y: 1}, hint: 'y'}, verbosity: 'executionStats'} => {executionStats: {nReturned: 3, executionStages: {stage: 'SHARDING_FILTER', chunkSkips: 4, inputStage: {stage: 'FETCH'}}}}
             {explain: {find: 'c', filter: {_id: 11}}, verbosity: 'executionStats'} => {executionStats: {nReturned: 0, executionStages: {stage: 'SHARDING_FILTER', chunkSkips: 1, inputStage: {stage: 'FETCH', inputStage: {indexName: '_id_'}}}}}
             {explain: {count: 'c'}, verbosity: 'executionStats'} => {executionStats: {executionStages: {stage: 'COUNT', nCounted: 9, inputStage: {stage: 'SHARDING_FILTER'}}}}
             {explain: {find: 'other'}} => {queryPlanner: {winningPlan: {stage: 'EOF'}}}",
        )
        .await;
}

/// ⚑ What lies between owned ranges is not looked at where records lie in the order of the shard key, in either
/// direction and from batch to batch.
#[tokio::test(flavor = "multi_thread")]
async fn scans_go_from_one_owned_range_to_the_next() {
    const PARTS: &str =
        "{min: {x: 3}, max: {x: 5}}, {min: {x: 8}, max: {x: 9}}, {min: {x: 18}, max: {x: MaxKey}}";
    let shard = with_orphans().await;
    let placed = placed("_terndbSetPlacement", (3, 0), (3, 1), PARTS);
    shard.check(&format!("admin {placed} => {{}}")).await;
    shard
        .check(
            "{find: 'c'} => {cursor: {firstBatch: [{_id: 3}, {_id: 4}, {_id: 8}, {_id: 18}, {_id: 19}, {_id: 20}]}}
             {find: 'c', hint: {$natural: -1}} => {cursor: {firstBatch: [{_id: 20}, {_id: 19}, {_id: 18}, {_id: 8}, {_id: 4}, {_id: 3}]}}
             {find: 'c', filter: {z: {$lte: 96}}, hint: {$natural: 1}, skip: 1} => {cursor: {firstBatch: [{_id: 8}, {_id: 18}, {_id: 19}, {_id: 20}]}}
             {find: 'c', sort: {y: 1, _id: 1}, hint: {$natural: 1}} => {cursor: {firstBatch: [{_id: 3}, {_id: 18}, {_id: 4}, {_id: 19}, {_id: 8}, {_id: 20}]}}
             {count: 'c', query: {z: {$ne: 80}}, hint: {$natural: 1}} => {n: 5}
             {explain: {find: 'c'}, verbosity: 'executionStats'} => {executionStats: {nReturned: 6, totalDocsExamined: 6, executionStages: {stage: 'SHARDING_FILTER', chunkSkips: 0}}}",
        )
        .await;
    for (natural, ids) in [(1, [3, 4, 8, 18, 19, 20]), (-1, [20, 19, 18, 8, 4, 3])] {
        for batch in 1..=6 {
            let find = format!("{{find: 'c', hint: {{$natural: {natural}}}, batchSize: {batch}}}");
            let (id, mut found) = shard.batch(&find).await;
            found.extend(shard.rest(id, batch).await);
            let found: Vec<_> = found.iter().map(|found| found.get("_id")).collect();
            let ids = ids.map(Value::Int32);
            let expected: Vec<_> = ids.iter().map(Some).collect();
            assert_eq!(found, expected, "batches of {batch}");
        }
    }
}

/// ⚑ Among very many ranges a scan goes through all that lies there, and looks at each document.
#[tokio::test(flavor = "multi_thread")]
async fn scans_of_very_many_ranges_tell_documents_apart() {
    let ranges: Vec<String> = (0..300)
        .map(|at| format!("{{min: {{x: {}}}, max: {{x: {}}}}}", 2 * at, 2 * at + 1))
        .collect();
    let shard = with_orphans().await;
    let placed = placed("_terndbSetPlacement", (3, 0), (3, 1), &ranges.join(", "));
    shard.check(&format!("admin {placed} => {{}}")).await;
    shard
        .check(
            "{find: 'c', filter: {z: {$gt: 90}}, hint: {$natural: 1}} => {cursor: {firstBatch: [{_id: 2}, {_id: 4}, {_id: 6}, {_id: 8}]}}
             {find: 'c', hint: {$natural: -1}, limit: 3} => {cursor: {firstBatch: [{_id: 20}, {_id: 18}, {_id: 16}]}}
             {count: 'c', hint: {$natural: 1}} => {n: 10}
             {explain: {find: 'c'}, verbosity: 'executionStats'} => {executionStats: {nReturned: 10, executionStages: {stage: 'SHARDING_FILTER', chunkSkips: 10}}}",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_touch_only_what_is_owned() {
    let shard = with_orphans().await;
    let stale = "{index: 0, code: 13388}";
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 100, x: 15}}]}} => {{n: 0, writeErrors: [{stale}]}}
             {{insert: 'c', documents: [{{_id: 100, x: 15}}, {{_id: 101, x: 5}}], ordered: false}} => {{n: 1, writeErrors: [{stale}]}}
             {{insert: 'c', documents: [{{_id: 102, x: 5}}], shardVersion: {v}}} => {{n: 1}}
             {{insert: 'c', documents: [{{_id: 103, x: [5]}}]}} => {{n: 0, writeErrors: [{{code: 61}}]}}
             {{insert: 'c', documents: [{{_id: 104}}]}} => {{n: 1}}
             {{update: 'c', updates: [{{q: {{_id: 12}}, u: {{$set: {{w: 1}}}}}}]}} => {{n: 0, nModified: 0}}
             {{update: 'c', updates: [{{q: {{y: 1}}, u: {{$set: {{w: 1}}}}, multi: true}}]}} => {{n: 3, nModified: 3}}
             {{delete: 'c', deletes: [{{q: {{_id: 12}}, limit: 1}}]}} => {{n: 0}}
             {{delete: 'c', deletes: [{{q: {{y: 1}}, limit: 0}}]}} => {{n: 3}}
             {{findAndModify: 'c', query: {{_id: 12}}, remove: true}} => {{value: null}}
             {{findAndModify: 'c', query: {{x: 12}}, update: {{$set: {{w: 1}}}}}} => {{value: null}}
             {{update: 'c', updates: [{{q: {{x: 12}}, u: {{$set: {{w: 1}}}}, upsert: true}}]}} => {{n: 0, writeErrors: [{stale}]}}
             {{update: 'c', updates: [{{q: {{x: 7}}, u: {{$set: {{w: 1}}}}, upsert: true}}]}} => {{n: 1, nModified: 0}}
             admin {{_terndbCommit: 1, writes: [{{ns: 'test.c', insert: {{_id: 200, x: 12}}}}]}} => 13388
             admin {{_terndbCommit: 1, conditions: [{{ns: 'test.c', query: {{_id: 13}}, expect: null}}], writes: []}} => {{}}
             # Given back, what was hidden is as it was.
             admin {} => {{}}
             {{find: 'c', filter: {{x: 12}}}} => {{cursor: {{firstBatch: [{{_id: 12, x: 12, y: 0, z: 88}}]}}}}
             {{count: 'c', query: {{x: {{$gte: 10}}}}}} => {{n: 11}}
             {{count: 'c', query: {{w: 1}}}} => {{n: 1}}",
            placed("_terndbSetPlacement", (3, 0), (3, 1), WHOLE),
            v = version(2, 0),
        ))
        .await;
    shard.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_in_nobodys_way() {
    let shard = with_orphans().await;
    shard
        .check(&format!(
            "{{createIndexes: 'c', indexes: [{{key: {{x: 1, u: 1}}, name: 'u', unique: true}}], shardVersion: {}}} => {{}}",
            version(2, 0)
        ))
        .await;
    shard
        .check(
            "# The _id of an orphan, and the only entry of it in any index, are taken over.
             {insert: 'c', documents: [{_id: 15, x: 3, u: 9, y: 7, z: 7}]} => {n: 1}
             {find: 'c', filter: {y: 7}} => {cursor: {firstBatch: [{_id: 15, x: 3}]}}
             {find: 'c', filter: {_id: 15}} => {cursor: {firstBatch: [{_id: 15, x: 3}]}}
             {insert: 'c', documents: [{_id: 15, x: 3}]} => 11000
             {count: 'c'} => {n: 10}
             {find: 'c', filter: {z: 85}, hint: 'z'} => {cursor: {firstBatch: []}}",
        )
        .await;
    shard.check_valid("c").await;
}

/// A unique key that only an orphan has is free.
#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_are_counted_among_owned_documents() {
    let shard = sharded(WHOLE).await;
    // Clients are not given such an index; one may have been there before.
    let unique = placed("_terndbCreateSharded", (1, 1), (1, 3), WHOLE).replace(
        "key: {x: 1}",
        "key: {x: 1}, indexes: [{key: {u: 1}, name: 'u', unique: true, sparse: true}]",
    );
    shard
        .check(&format!(
            "admin {unique} => {{}}
             {{insert: 'c', documents: [{{_id: 1, x: 5, u: 1}}, {{_id: 2, x: 15, u: 2}}]}} => {{n: 2}}
             admin {} => {{}}
             {{insert: 'c', documents: [{{_id: 3, x: 6, u: 1}}]}} => 11000
             {{insert: 'c', documents: [{{_id: 4, x: 6, u: 2}}]}} => {{n: 1}}
             {{insert: 'c', documents: [{{_id: 5, x: 6, u: 2}}]}} => 11000",
            placed("_terndbSetPlacement", (2, 0), (2, 1), LOW)
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_checked_by_the_ranges_it_was_routed_by() {
    let shard = sharded(LOW).await;
    // The encoded 3 and 4, and the end of everything.
    let encoded = |x: i32| {
        let doc = model::bson::DocWriter::new().with("x", x).finish();
        let key = model::bson::DocWriter::new().with("x", 1).finish();
        let pattern = model::shard_key::ShardKeyPattern::parse(key.as_doc()).expect("a pattern");
        let key = pattern.key_of(doc.as_doc()).expect("a key");
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("Binary(0, \"{hex}\")")
    };
    let (v, low, middle, high) = (version(1, 0), encoded(3), encoded(4), encoded(12));
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 3}}]}} => {{n: 1}}
             {{find: 'c', shardVersion: {v}, routedBy: [{{min: {low}, max: {middle}}}]}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             {{find: 'c', shardVersion: {v}, routedBy: [{{min: {low}, max: {high}}}]}} => 13388
             {{delete: 'c', deletes: [{{q: {{}}, limit: 0}}], shardVersion: {v}, routedBy: [{{min: {low}, max: {high}}}]}} => {{n: 0, writeErrors: [{{code: 13388}}]}}
             {{delete: 'c', deletes: [{{q: {{}}, limit: 0}}], shardVersion: {v}, routedBy: [{{min: {low}, max: {middle}}}]}} => {{n: 1}}
             {{find: 'c', shardVersion: {v}, routedBy: 1}} => 14
             {{find: 'c', shardVersion: {v}, routedBy: [{{min: 1}}]}} => 2"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shard_keys_change_by_the_rules() {
    let shard = sharded(LOW).await;
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-00000000000f\")}";
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1, y: 1}}, {{_id: 2, x: 2}}]}} => {{n: 2}}
             # Not a change.
             {{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{x: 1, y: 2}}}}}}]}} => {{nModified: 1}}
             {{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{x: 3}}}}}}]}} => 31025
             {{update: 'c', updates: [{{q: {{x: 1}}, u: {{$set: {{x: 3}}}}}}]}} => 20
             {{update: 'c', updates: [{{q: {{x: 1}}, u: {{$set: {{x: 3}}}}, multi: true}}]}} => 72
             {{update: 'c', updates: [{{q: {{x: 1}}, u: {{$set: {{x: [3]}}}}}}]}} => 54
             {{update: 'c', updates: [{{q: {{x: 1}}, u: {{$set: {{x: 3}}}}}}], {session}, txnNumber: 1L}} => {{nModified: 1}}
             {{update: 'c', updates: [{{q: {{x: 3}}, u: {{$set: {{x: 30}}}}}}], {session}, txnNumber: 2L}} => 283
             {{update: 'c', updates: [{{q: {{x: 3}}, u: {{y: 1}}}}], {session}, txnNumber: 3L}} => {{nModified: 1}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, y: 1}}]}}}}
             {{findAndModify: 'c', query: {{x: 2}}, update: {{$set: {{x: 50}}}}, {session}, txnNumber: 4L}} => 283
             {{findAndModify: 'c', query: {{x: 2}}, update: {{$set: {{x: 4}}}}, {session}, txnNumber: 5L}} => {{value: {{_id: 2, x: 2}}}}
             # What is not a number stays what it is.
             {{insert: 'c', documents: [{{_id: 5, x: NaN}}, {{_id: 6, x: Decimal('NaN')}}]}} => {{n: 2}}
             {{update: 'c', updates: [{{q: {{}}, u: {{$set: {{z: 1}}}}, multi: true}}]}} => {{n: 4}}
             {{update: 'c', updates: [{{q: {{_id: 5}}, u: {{$set: {{x: NaN, z: 2}}}}}}]}} => {{nModified: 1}}
             {{update: 'c', updates: [{{q: {{_id: 5}}, u: {{$set: {{x: 1}}}}}}]}} => 31025
             # What was looked for here, and would be elsewhere.
             {{update: 'c', updates: [{{q: {{x: 7}}, u: {{$set: {{x: 70}}}}, upsert: true}}]}} => 283
             {{update: 'c', updates: [{{q: {{x: 70}}, u: {{$set: {{y: 1}}}}, upsert: true}}]}} => 13388"
        ))
        .await;
    shard.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_does_not_outlive_its_ranges() {
    let shard = with_orphans().await;
    let (id, first) = shard.batch("{find: 'c', batchSize: 2}").await;
    assert_eq!(first.len(), 2);
    shard
        .check(&format!(
            "admin {} => {{}}
             {{getMore: {id}L, collection: 'c', batchSize: 2}} => {{}}
             admin {} => {{}}
             {{getMore: {id}L, collection: 'c', batchSize: 2}} => 175
             admin {{_terndbForgetPlacement: 1, ns: 'test.c', uuid: {UUID}}} => {{}}",
            // Split: the same ranges under another version.
            placed("_terndbSetPlacement", (2, 5), (2, 5), LOW),
            placed("_terndbSetPlacement", (3, 0), (3, 1), HIGH),
        ))
        .await;
}
