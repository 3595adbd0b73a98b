//! Collections that are clustered by their shard key: everything that finds a document by
//! `_id`, and whatever depends on where it is stored.

use crate::testing::TestShard;
use crate::tests::sharding::{LOW, UUID, WHOLE, member_of_cluster, placed, sharded, version};
use differential::notation::print;
use differential::value::{Value, get};

/// Natural order is the order of the shard key, so documents are where ranges are.
#[tokio::test(flavor = "multi_thread")]
async fn records_lie_in_the_order_of_the_shard_key() {
    let shard = sharded(WHOLE).await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1, x: 30}, {_id: 2, x: 10}, {_id: 3, x: 20}, {_id: 0, x: 10}]} => {n: 4}
             {find: 'c'} => {cursor: {firstBatch: [{_id: 0, x: 10}, {_id: 2, x: 10}, {_id: 3, x: 20}, {_id: 1, x: 30}]}}
             {find: 'c', sort: {_id: 1}} => {cursor: {firstBatch: [{_id: 0}, {_id: 1}, {_id: 2}, {_id: 3}]}}
             {listIndexes: 'c'} => {cursor: {firstBatch: [{v: 2, key: {_id: 1}, name: '_id_'}, {name: 'x_1'}]}}
             {dropIndexes: 'c', index: '_id_'} => 72
             {dropIndexes: 'c', index: '*'} => {nIndexesWas: 2}
             {listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}]}}",
        )
        .await;
    shard.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_found_by_id() {
    let shard = sharded(WHOLE).await;
    let documents: Vec<String> = (1..=300)
        .map(|id| format!("{{_id: {id}, x: {}, y: {id}}}", 1000 - id))
        .collect();
    shard.insert(&documents).await;
    let check = async |shard: &TestShard| {
        shard
            .check(
                "{find: 'c', filter: {_id: 7}} => {cursor: {firstBatch: [{_id: 7, x: 993}]}}
                 {find: 'c', filter: {_id: 7}, projection: {y: 1}} => {cursor: {firstBatch: [{_id: 7, y: 7}]}}
                 {find: 'c', filter: {_id: {$in: [5, 3, 900]}}} => {cursor: {firstBatch: [{_id: 3}, {_id: 5}]}}
                 {find: 'c', filter: {_id: {$gte: 299}}, sort: {_id: -1}} => {cursor: {firstBatch: [{_id: 300}, {_id: 299}]}}
                 {find: 'c', filter: {_id: 7}, hint: {_id: 1}} => {cursor: {firstBatch: [{_id: 7}]}}
                 {find: 'c', filter: {_id: 7}, hint: {$natural: 1}} => {cursor: {firstBatch: [{_id: 7}]}}
                 {find: 'c', filter: {_id: 7.0}} => {cursor: {firstBatch: [{_id: 7}]}}
                 {find: 'c', filter: {_id: 1000}} => {cursor: {firstBatch: []}}
                 {find: 'c', filter: {_id: 7}, min: {_id: 1}, max: {_id: 9}, hint: {_id: 1}} => {cursor: {firstBatch: [{_id: 7}]}}
                 {count: 'c', query: {_id: {$lt: 10}}} => {n: 9}
                 {distinct: 'c', key: '_id', query: {_id: {$lt: 4}}} => {values: [1, 2, 3]}
                 {aggregate: 'c', pipeline: [{$match: {_id: 4}}], cursor: {}} => {cursor: {firstBatch: [{_id: 4}]}}
                 {aggregate: 'c', pipeline: [{$match: {_id: 4}}, {$lookup: {from: 'c', localField: 'y', foreignField: '_id', as: 'm'}}, {$project: {m: '$m.x'}}], cursor: {}} => {cursor: {firstBatch: [{_id: 4, m: [996]}]}}
                 {explain: {find: 'c', filter: {_id: 7}}, verbosity: 'executionStats'} => {executionStats: {nReturned: 1, totalKeysExamined: 1, totalDocsExamined: 1}}
                 {find: 'c', filter: {_id: 7}, readConcern: {level: 'snapshot'}} => {cursor: {firstBatch: [{_id: 7}]}}
                 {dbHash: 1} => {}
                 {collStats: 'c'} => {count: 300, nindexes: 2}",
            )
            .await;
    };
    check(&shard).await;
    shard.check_valid("c").await;
    let shard = shard.reopen().await;
    check(&shard).await;
    let (id, mut all) = shard.batch("{find: 'c', batchSize: 7}").await;
    all.extend(shard.rest(id, 50).await);
    assert_eq!(all.len(), 300, "batch after batch, by position");
    let (id, mut all) = shard
        .batch("{find: 'c', sort: {_id: 1}, batchSize: 7}")
        .await;
    all.extend(shard.rest(id, 50).await);
    assert_eq!(all.len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_find_documents_by_id() {
    let shard = sharded(WHOLE).await;
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-00000000000f\")}";
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1}}, {{_id: 2, x: 2}}, {{_id: 3, x: 3}}]}} => {{n: 3}}
             # The same _id under another shard key is the same _id.
             {{insert: 'c', documents: [{{_id: 1, x: 5}}]}} => {{n: 0, writeErrors: [{{code: 11000, keyPattern: {{_id: 1}}, keyValue: {{_id: 1}}}}]}}
             {{insert: 'c', documents: [{{_id: 4, x: 4}}, {{_id: 4, x: 5}}, {{_id: 5, x: 5}}], ordered: false}} => {{n: 2, writeErrors: [{{index: 1, code: 11000}}]}}
             {{insert: 'c', documents: [{{_id: 6, x: [1]}}]}} => 61
             {{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{y: 1}}}}}}]}} => {{n: 1, nModified: 1}}
             {{update: 'c', updates: [{{q: {{y: 1}}, u: {{x: 1, z: 1}}}}]}} => {{n: 1, nModified: 1}}
             {{update: 'c', updates: [{{q: {{_id: {{$gte: 3}}}}, u: {{$set: {{w: 1}}}}, multi: true}}]}} => {{n: 3, nModified: 3}}
             {{update: 'c', updates: [{{q: {{_id: 9, x: 9}}, u: {{$set: {{y: 9}}}}, upsert: true}}]}} => {{n: 1, upserted: [{{_id: 9}}]}}
             {{update: 'c', updates: [{{q: {{_id: 9, x: 8}}, u: {{$set: {{y: 9}}}}, upsert: true}}]}} => 11000
             {{update: 'c', updates: [{{q: {{_id: 9}}, u: {{$set: {{y: 10}}}}, upsert: true}}]}} => {{n: 1, nModified: 1}}
             {{findAndModify: 'c', query: {{_id: 9}}, update: {{$inc: {{y: 1}}}}, new: true}} => {{value: {{_id: 9, x: 9, y: 11}}}}
             {{findAndModify: 'c', query: {{}}, sort: {{y: -1}}, update: {{$inc: {{y: 1}}}}, new: true}} => {{value: {{_id: 9, y: 12}}}}
             {{findAndModify: 'c', query: {{_id: 2}}, remove: true, {session}, txnNumber: 1L}} => {{value: {{_id: 2}}}}
             {{findAndModify: 'c', query: {{_id: 2}}, remove: true, {session}, txnNumber: 1L}} => {{value: {{_id: 2}}}}
             {{delete: 'c', deletes: [{{q: {{_id: 3}}, limit: 1}}]}} => {{n: 1}}
             {{insert: 'c', documents: [{{_id: 3, x: 30}}]}} => {{n: 1}}
             {{find: 'c', filter: {{_id: 3}}}} => {{cursor: {{firstBatch: [{{_id: 3, x: 30}}]}}}}
             admin {{_terndbCommit: 1, conditions: [{{ns: 'test.c', query: {{_id: 3}}, expect: {{x: 30}}}}], writes: [{{ns: 'test.c', update: {{q: {{_id: 3}}, u: {{$set: {{y: 3}}}}}}}}, {{ns: 'test.c', insert: {{_id: 33, x: 33}}}}]}} => {{}}
             {{aggregate: 'c', pipeline: [{{$match: {{_id: 33}}}}, {{$set: {{y: 33}}}}, {{$merge: 'c'}}], cursor: {{}}}} => {{}}
             {{find: 'c', filter: {{_id: 33}}}} => {{cursor: {{firstBatch: [{{_id: 33, x: 33, y: 33}}]}}}}
             {{aggregate: 'c', pipeline: [{{$out: 'c'}}], cursor: {{}}}} => 28769
             {{delete: 'c', deletes: [{{q: {{}}, limit: 0}}]}} => {{n: 6}}
             {{count: 'c'}} => {{n: 0}}"
        ))
        .await;
    shard.check_valid("c").await;
}

/// ⚑ An orphan and an owned document may share an `_id`; only the owned one counts.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_unique_among_owned_documents() {
    let shard = sharded(WHOLE).await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 15}}]}} => {{n: 1}}
             admin {} => {{}}
             {{insert: 'c', documents: [{{_id: 1, x: 5}}]}} => {{n: 1}}
             {{insert: 'c', documents: [{{_id: 1, x: 6}}]}} => 11000
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, x: 5}}]}}}}
             {{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{y: 1}}}}}}]}} => {{n: 1, nModified: 1}}
             {{delete: 'c', deletes: [{{q: {{_id: 1}}, limit: 1}}]}} => {{n: 1}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: []}}}}",
            placed("_terndbSetPlacement", (2, 0), (2, 1), LOW)
        ))
        .await;
    shard.check_valid("c").await;
}

/// A shard key that changes moves the record; for readers of the log it is one update.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_moves_is_one_update() {
    let shard = sharded(WHOLE).await;
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-00000000000f\")}";
    shard
        .check("{collMod: 'c', changeStreamPreAndPostImages: {enabled: true}} => {}")
        .await;
    let opened = shard
        .run(
            "test",
            "{aggregate: 'c', pipeline: [{$changeStream: {fullDocument: 'updateLookup', fullDocumentBeforeChange: 'required'}}], cursor: {}}",
        )
        .await;
    let Some(Value::Int64(id)) = get(&opened, "cursor").and_then(|cursor| cursor.get("id")) else {
        panic!("no cursor");
    };
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 5, y: 1}}, {{_id: 2, x: 6}}]}} => {{n: 2}}
             {{update: 'c', updates: [{{q: {{_id: 1, x: 5}}, u: {{$set: {{x: 7}}}}}}], {session}, txnNumber: 1L}} => {{nModified: 1}}
             {{update: 'c', updates: [{{q: {{_id: 1, x: 5}}, u: {{$set: {{x: 7}}}}}}], {session}, txnNumber: 1L}} => {{nModified: 1, retriedStmtIds: [0]}}
             {{find: 'c'}} => {{cursor: {{firstBatch: [{{_id: 2, x: 6}}, {{_id: 1, x: 7, y: 1}}]}}}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, x: 7}}]}}}}
             {{find: 'c', filter: {{x: 5}}}} => {{cursor: {{firstBatch: []}}}}
             {{insert: 'c', documents: [{{_id: 1, x: 5}}]}} => 11000
             {{delete: 'c', deletes: [{{q: {{_id: 1}}, limit: 1}}]}} => {{n: 1}}"
        ))
        .await;
    shard.check_valid("c").await;
    let events = shard
        .run("test", &format!("{{getMore: {id}L, collection: 'c'}}"))
        .await;
    let batch = get(&events, "cursor")
        .and_then(|cursor| cursor.get("nextBatch"))
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("{events:?}"));
    let told: Vec<String> = batch
        .iter()
        .map(|event| {
            let part = |name| event.get(name).map(print).unwrap_or_default();
            format!(
                "{} {} before {}",
                part("operationType"),
                part("documentKey"),
                part("fullDocumentBeforeChange")
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "\"insert\" {x: 5, _id: 1} before ",
            "\"insert\" {x: 6, _id: 2} before ",
            "\"update\" {x: 7, _id: 1} before {_id: 1, x: 5, y: 1}",
            "\"delete\" {x: 7, _id: 1} before {_id: 1, x: 7, y: 1}",
        ]
    );
}

/// A hashed `_id` says where its record is: no second look.
#[tokio::test(flavor = "multi_thread")]
async fn a_hashed_id_is_looked_up_directly() {
    let shard = member_of_cluster().await;
    let create = placed(
        "_terndbCreateSharded",
        (1, 0),
        (1, 2),
        "{min: {_id: MinKey}, max: {_id: MaxKey}}",
    )
    .replace(
        "key: {x: 1}",
        "key: {_id: 'hashed'}, indexes: [{key: {_id: 'hashed'}, name: '_id_hashed'}]",
    );
    shard
        .check(&format!(
            "admin {create} => {{}}
             {{insert: 'c', documents: [{{_id: 1}}, {{_id: 2}}, {{_id: 3}}, {{_id: 'a'}}], shardVersion: {v}}} => {{n: 4}}
             {{find: 'c', filter: {{_id: 2}}, shardVersion: {v}}} => {{cursor: {{firstBatch: [{{_id: 2}}]}}}}
             {{find: 'c', filter: {{_id: 2.0}}, projection: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 2}}]}}}}
             {{explain: {{find: 'c', filter: {{_id: 2}}}}}} => {{queryPlanner: {{winningPlan: {{stage: 'SHARDING_FILTER', inputStage: {{stage: 'IDHACK'}}}}}}}}
             {{insert: 'c', documents: [{{_id: 2.0}}]}} => 11000
             {{update: 'c', updates: [{{q: {{_id: 'a'}}, u: {{$set: {{y: 1}}}}}}]}} => {{nModified: 1}}
             {{delete: 'c', deletes: [{{q: {{_id: 'a'}}, limit: 1}}]}} => {{n: 1}}
             {{count: 'c'}} => {{n: 3}}",
            v = version(1, 0)
        ))
        .await;
    shard.check_valid("c").await;
}

/// An empty collection gets the order of its shard key when it is sharded; everybody else
/// sees the same collection.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_collection_is_put_into_order() {
    let shard = member_of_cluster().await;
    shard
        .check(
            "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}, {key: {z: 1}, name: 'z'}]} => {}
             {insert: 'c', documents: [{_id: 1, x: 1}]} => {n: 1}
             {delete: 'c', deletes: [{q: {}, limit: 0}]} => {n: 1}",
        )
        .await;
    let listed = shard.run("test", "{listCollections: 1}").await;
    let text = differential::notation::print_fields(&listed);
    let uuid = text
        .split_once("uuid: ")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(uuid, _)| format!("{uuid})"))
        .expect("a uuid");
    let create = placed("_terndbCreateSharded", (1, 0), (1, 0), WHOLE).replace(UUID, &uuid);
    shard
        .check(&format!(
            "admin {create} => {{}}
             admin {create} => {{}}
             {{insert: 'c', documents: [{{_id: 1, x: 9}}, {{_id: 2, x: 8}}]}} => {{n: 2}}
             {{find: 'c'}} => {{cursor: {{firstBatch: [{{_id: 2}}, {{_id: 1}}]}}}}
             {{listIndexes: 'c'}} => {{cursor: {{firstBatch: [{{name: '_id_'}}, {{name: 'x_1'}}, {{name: 'z'}}]}}}}"
        ))
        .await;
    let again = shard.run("test", "{listCollections: 1}").await;
    assert!(differential::notation::print_fields(&again).contains(&uuid));
    shard.check_valid("c").await;
    let shard = shard.reopen().await;
    shard
        .check("{find: 'c', filter: {_id: 1}} => {cursor: {firstBatch: [{_id: 1, x: 9}]}}")
        .await;
    shard.check_valid("c").await;
}
