//! `_terndbCommit`: several collections in one entry, under conditions.

use crate::testing::TestShard;
use differential::notation::print;
use differential::value::{Value, get};
use std::sync::Arc;

async fn prepared() -> TestShard {
    let shard = TestShard::open().await;
    shard
        .check(
            "{create: 'a'} => {}
             {create: 'b'} => {}
             {createIndexes: 'b', indexes: [{key: {k: 1}, name: 'k', unique: true}]} => {}",
        )
        .await;
    shard
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_commit_happen_together() {
    let shard = prepared().await;
    shard
        .check(
            "admin {_terndbCommit: 1, writes: [{ns: 'test.a', insert: {_id: 1, x: 1}}, {ns: 'test.b', insert: {_id: 1, k: 1}}, {ns: 'test.a', update: {q: {_id: 1}, u: {$inc: {x: 1}}}}, {ns: 'test.a', update: {q: {x: 7}, u: {$set: {y: 1}}, upsert: true}}]} => {writes: [{n: 1}, {n: 1}, {n: 1, nModified: 1}, {n: 1, nModified: 0}]}
             {find: 'a', filter: {_id: 1}} => {cursor: {firstBatch: [{_id: 1, x: 2}]}}
             {count: 'a', query: {x: 7, y: 1}} => {n: 1}
             # The second write fails, so the first did not happen.
             admin {_terndbCommit: 1, writes: [{ns: 'test.a', insert: {_id: 2}}, {ns: 'test.b', insert: {_id: 2, k: 1}}]} => 11000
             {count: 'a'} => {n: 2}
             # Later writes see earlier ones, found by a search or not.
             admin {_terndbCommit: 1, writes: [{ns: 'test.b', insert: {_id: 5, k: 5}}, {ns: 'test.b', delete: {q: {k: {$gt: 0}}, limit: 0}}, {ns: 'test.b', insert: {_id: 6, k: 5}}]} => {writes: [{n: 1}, {n: 2}, {n: 1}]}
             {find: 'b'} => {cursor: {firstBatch: [{_id: 6, k: 5}]}}
             admin {_terndbCommit: 1, writes: [{ns: 'test.none', insert: {_id: 1}}]} => 26
             admin {_terndbCommit: 1, writes: [{ns: 'local.oplog.rs', insert: {_id: 1}}]} => 73
             admin {_terndbCommit: 1, writes: [{ns: 'test.a', insert: {}, delete: {q: {}, limit: 0}}]} => 9
             admin {_terndbCommit: 1, writes: [{ns: 'test.a', delete: {q: {}, limit: 2}}]} => 9
             admin {_terndbCommit: 1, writes: [{ns: 'test.a', other: 1}]} => 40415
             admin {_terndbCommit: 1} => 40414
             admin {_terndbCommit: 1, writes: []} => {writes: []}
             {_terndbCommit: 1, writes: []} => 13",
        )
        .await;
    shard.check_valid("a").await;
    shard.check_valid("b").await;
    let shard = shard.reopen().await;
    shard
        .check("{find: 'b'} => {cursor: {firstBatch: [{_id: 6, k: 5}]}}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_does_not_hold_refuses_everything() {
    let shard = prepared().await;
    shard
        .check(
            "{insert: 'a', documents: [{_id: 1, v: 3, w: {z: 1}}]} => {n: 1}
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {_id: 1}, expect: {v: 3}}, {ns: 'test.b', query: {_id: 1}, expect: null}], writes: [{ns: 'test.b', insert: {_id: 1, k: 1}}]} => {}
             # Again: now there is one.
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {_id: 1}, expect: {v: 3}}, {ns: 'test.b', query: {_id: 1}, expect: null}], writes: [{ns: 'test.b', insert: {_id: 2, k: 2}}]} => {ok: 0.0, code: 117, codeName: 'ConflictingOperationInProgress', condition: 1}
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {_id: 1}, expect: {v: 4}}], writes: [{ns: 'test.b', delete: {q: {}, limit: 0}}]} => {ok: 0.0, condition: 0}
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {v: 3}, expect: null}], writes: [{ns: 'test.b', delete: {q: {}, limit: 0}}]} => 117
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {v: 4}, expect: {}}], writes: [{ns: 'test.b', delete: {q: {}, limit: 0}}]} => 117
             admin {_terndbCommit: 1, conditions: [{ns: 'test.a', query: {v: 3}, expect: {_id: 1, v: 3, w: {z: 1}}}], writes: [{ns: 'test.a', update: {q: {_id: 1}, u: {$set: {v: 4}}}}]} => {}
             {count: 'b'} => {n: 1}
             {find: 'a'} => {cursor: {firstBatch: [{_id: 1, v: 4}]}}",
        )
        .await;
}

/// ⚑ A search is true when its entry is appended: of many commits that each ask for
/// nobody before them, one is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_document_slips_in_behind_a_search() {
    let shard = Arc::new(prepared().await);
    for round in 0..20 {
        let attempts: Vec<_> = (0..8)
            .map(|attempt| {
                let shard = shard.clone();
                tokio::spawn(async move {
                    let commit = format!(
                        "{{_terndbCommit: 1,
                           conditions: [{{ns: 'test.a', query: {{round: {round}}}, expect: null}}],
                           writes: [{{ns: 'test.a', insert: {{_id: '{round}/{attempt}', round: {round}}}}},
                                    {{ns: 'test.b', insert: {{_id: '{round}/{attempt}', k: '{round}/{attempt}'}}}}]}}"
                    );
                    let reply = shard.run("admin", &commit).await;
                    get(&reply, "ok") == Some(&Value::Double(1.0))
                })
            })
            .collect();
        let mut won = 0;
        for attempt in attempts {
            won += usize::from(attempt.await.expect("no attempt panics"));
        }
        assert_eq!(won, 1, "round {round}");
    }
    shard
        .check("{count: 'a'} => {n: 20}\n{count: 'b'} => {n: 20}")
        .await;
}

/// Commits over two collections beside whoever takes gates: nobody waits in a circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_and_changes_of_the_catalog_do_not_wait_in_a_circle() {
    let shard = Arc::new(prepared().await);
    // In the order of names `a` comes first, in the order of ids `b` does.
    shard.check("{drop: 'a'} => {}\n{create: 'a'} => {}").await;
    let writers = (0..4).map(|writer| {
        let shard = shard.clone();
        tokio::spawn(async move {
            for at in 0..25 {
                let id = writer * 1000 + at;
                let (first, second) = if at % 2 == 0 { ("a", "b") } else { ("b", "a") };
                let search = if at % 3 == 0 { "{q: {n: 1}, limit: 0}" } else { "{q: {_id: -1}, limit: 1}" };
                let commit = format!(
                    "{{_terndbCommit: 1, writes: [{{ns: 'test.{first}', insert: {{_id: {id}, k: {id}}}}},
                       {{ns: 'test.{second}', delete: {search}}}]}}"
                );
                // Dropped by the other side at times.
                let reply = shard.run("admin", &commit).await;
                let code = get(&reply, "code");
                assert!(matches!(code, None | Some(Value::Int32(26 | 11000))), "{code:?}");
            }
        })
    });
    let ddl = {
        let shard = shard.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                shard
                    .check(
                        "admin {renameCollection: 'test.b', to: 'test.a', dropTarget: true} => {}
                         {create: 'b'} => {}
                         {dropDatabase: 1} => {}
                         {create: 'b'} => {}
                         {create: 'a'} => {}",
                    )
                    .await;
            }
        })
    };
    for task in writers.collect::<Vec<_>>().into_iter().chain([ddl]) {
        task.await.expect("no task panics");
    }
    shard.check_valid("a").await;
    shard.check_valid("b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_shows_a_commit_as_one_entry() {
    let shard = prepared().await;
    let opened = shard
        .run(
            "admin",
            "{aggregate: 1, pipeline: [{$changeStream: {allChangesForCluster: true}}], cursor: {}}",
        )
        .await;
    let id = match get(&opened, "cursor").and_then(|cursor| cursor.get("id")) {
        Some(Value::Int64(id)) => *id,
        _ => panic!("no cursor"),
    };
    shard
        .check(
            "admin {_terndbCommit: 1, writes: [{ns: 'test.a', insert: {_id: 1}}, {ns: 'test.b', insert: {_id: 2, k: 2}}, {ns: 'test.a', update: {q: {_id: 1}, u: {$set: {x: 1}}}}, {ns: 'test.b', delete: {q: {_id: 9}, limit: 1}}]} => {}",
        )
        .await;
    let found = shard
        .run(
            "local",
            "{find: 'oplog.rs', filter: {'o.applyOps': {$exists: true}}, projection: {'o.applyOps.ns': 1, 'o.applyOps.op': 1, 'o.applyOps.o': 1, _id: 0}}",
        )
        .await;
    let batch = get(&found, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    assert_eq!(
        batch.map(print).as_deref(),
        Some(
            "[{o: {applyOps: [{op: \"i\", ns: \"test.a\", o: {_id: 1, x: 1}}, {op: \"i\", ns: \"test.b\", o: {_id: 2, k: 2}}]}}]"
        )
    );
    let events = shard
        .run(
            "admin",
            &format!("{{getMore: {id}L, collection: '$cmd.aggregate'}}"),
        )
        .await;
    let batch = get(&events, "cursor")
        .and_then(|cursor| cursor.get("nextBatch"))
        .and_then(Value::as_array)
        .expect("a batch");
    let told: Vec<String> = batch
        .iter()
        .map(|event| {
            let part = |name| event.get(name).map(print).unwrap_or_default();
            format!(
                "{} {} {}",
                part("operationType"),
                part("ns"),
                part("documentKey")
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "\"insert\" {db: \"test\", coll: \"a\"} {_id: 1}",
            "\"insert\" {db: \"test\", coll: \"b\"} {_id: 2}"
        ]
    );
}
