//! Reads at an earlier time see the state of that time, without any index.

use crate::testing::TestShard;
use differential::notation::print;
use differential::value::{Value, get};
use model::time::ClusterTime;

fn at(time: ClusterTime) -> String {
    let (seconds, increment) = (time.seconds(), time.increment());
    format!("readConcern: {{level: 'snapshot', atClusterTime: Timestamp({seconds}, {increment})}}")
}

async fn documents(server: &TestShard, command: &str) -> String {
    let (id, mut documents) = server.batch(command).await;
    documents.extend(server.rest(id, 1).await);
    let printed: Vec<String> = documents.iter().map(print).collect();
    printed.join(" ")
}

const BEFORE: &str = "{_id: 1, x: 1} {_id: 2, x: 2} {_id: 3, x: [3, 4]}";

/// Three documents, a moment, and then every kind of change.
async fn changed() -> (TestShard, ClusterTime) {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}, {_id: 3, x: [3, 4]}]} => {n: 3}
            {createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}]} => {}
            "#,
        )
        .await;
    let time = server.shard.store.applied_time();
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 0, x: 0}, {_id: 4, x: 4}]} => {n: 2}
            {update: "c", updates: [{q: {_id: 1}, u: {$set: {x: 50}}}]} => {nModified: 1}
            {update: "c", updates: [{q: {_id: 3}, u: {$set: {x: 3}}}]} => {nModified: 1}
            {delete: "c", deletes: [{q: {_id: 2}, limit: 1}]} => {n: 1}
            {insert: "c", documents: [{_id: 2, x: 99}]} => {n: 1}
            {delete: "c", deletes: [{q: {_id: 3}, limit: 1}]} => {n: 1}
            "#,
        )
        .await;
    (server, time)
}

/// The index holds only what is there now, so any use of it shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_at_an_earlier_time_never_uses_an_index() {
    let (server, time) = changed().await;
    let time = at(time);
    for (command, expected) in [
        ("{find: 'c', batchSize: 1", BEFORE),
        ("{find: 'c', batchSize: 2, filter: {x: {$gte: 0}}", BEFORE),
        (
            "{find: 'c', batchSize: 1, filter: {x: {$gte: 0}}, hint: 'x'",
            BEFORE,
        ),
        (
            "{find: 'c', filter: {x: {$gte: 0}}, hint: {x: 1}, sort: {x: 1}",
            BEFORE,
        ),
        ("{find: 'c', filter: {x: 1}", "{_id: 1, x: 1}"),
        ("{find: 'c', filter: {x: 4}", "{_id: 3, x: [3, 4]}"),
        ("{find: 'c', filter: {x: 99}", ""),
        (
            "{find: 'c', filter: {x: {$gte: 0}}, projection: {x: 1, _id: 0}, limit: 1",
            "{x: 1}",
        ),
        (
            "{find: 'c', filter: {$or: [{x: 1}, {x: 2}, {_id: 3}]}",
            BEFORE,
        ),
        (
            "{find: 'c', sort: {x: -1}, batchSize: 1",
            "{_id: 3, x: [3, 4]} {_id: 2, x: 2} {_id: 1, x: 1}",
        ),
        (
            "{find: 'c', filter: {_id: {$gt: 1}}, sort: {_id: -1}",
            "{_id: 3, x: [3, 4]} {_id: 2, x: 2}",
        ),
        // By key alone.
        ("{find: 'c', filter: {_id: 1}", "{_id: 1, x: 1}"),
        ("{find: 'c', filter: {_id: 2}", "{_id: 2, x: 2}"),
        ("{find: 'c', filter: {_id: 3}", "{_id: 3, x: [3, 4]}"),
        ("{find: 'c', filter: {_id: 4}", ""),
        (
            "{find: 'c', filter: {_id: {$in: [0, 1, 4]}}",
            "{_id: 1, x: 1}",
        ),
        (
            "{aggregate: 'c', pipeline: [], cursor: {batchSize: 1}",
            BEFORE,
        ),
        (
            "{aggregate: 'c', pipeline: [{$match: {_id: 2}}], cursor: {}",
            "{_id: 2, x: 2}",
        ),
        (
            "{aggregate: 'c', pipeline: [{$match: {x: {$gte: 0}}}], cursor: {}, hint: 'x'",
            BEFORE,
        ),
        (
            "{aggregate: 'c', pipeline: [{$group: {_id: null, n: {$sum: 1}}}], cursor: {}",
            "{_id: null, n: 3}",
        ),
        (
            "{aggregate: 'c', pipeline: [{$match: {_id: 1}}, {$lookup: {from: 'c', localField: 'x', \
             foreignField: '_id', as: 'y'}}], cursor: {}",
            "{_id: 1, x: 1, y: [{_id: 1, x: 1}]}",
        ),
    ] {
        let found = documents(&server, &format!("{command}, {time}}}")).await;
        assert_eq!(found, expected, "{command}");
    }
    let values = format!("{{distinct: 'c', key: 'x', {time}}} => {{values: [1, 2, 3, 4]}}");
    server.check(&values).await;
    let matching = format!("{{distinct: 'c', key: 'x', query: {{x: 4}}, {time}}}");
    server
        .check(&format!("{matching} => {{values: [3, 4]}}"))
        .await;
}

/// What is written between two batches does not show, and the cursor says its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_cursor_stays_at_its_time() {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..20).map(|id| format!("{{_id: {id}, x: 1}}")).collect();
    server.insert(&documents).await;
    for open in [
        "{find: 'c', batchSize: 3, readConcern: {level: 'snapshot'}}",
        "{aggregate: 'c', pipeline: [], cursor: {batchSize: 3}, readConcern: {level: 'snapshot'}}",
    ] {
        let reply = server.run("test", open).await;
        let cursor = get(&reply, "cursor").expect("a cursor");
        let time = cursor.get("atClusterTime").cloned();
        assert!(matches!(time, Some(Value::Timestamp(..))), "{open}");
        let Some(&Value::Int64(id)) = cursor.get("id") else {
            panic!("{open} opens a cursor");
        };
        server
            .check(
                r#"
                {update: "c", updates: [{q: {}, u: {$set: {x: 2}}, multi: true}]} => {nModified: 20}
                {delete: "c", deletes: [{q: {_id: {$gt: 10}}, limit: 0}]} => {n: 9}
                "#,
            )
            .await;
        let more = format!("{{getMore: {id}L, collection: 'c', batchSize: 1}}");
        let reply = server.run("test", &more).await;
        let seen = get(&reply, "cursor").and_then(|cursor| cursor.get("atClusterTime"));
        assert_eq!(seen, time.as_ref(), "{open}");
        let rest = server.rest(id, 4).await;
        let printed: Vec<String> = rest.iter().map(print).collect();
        assert_eq!(printed, documents[4..], "{open}");
        server
            .check(
                r#"
                {delete: "c", deletes: [{q: {}, limit: 0}]} => {}
                "#,
            )
            .await;
        server.insert(&documents).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_cannot_be_read_are_refused() {
    let (server, time) = changed().await;
    let now = server.shard.log.latest_time();
    let future = ClusterTime::new(now.seconds() + 100, 1);
    let bounded = "{find: 'c', hint: 'x', min: {x: 1}";
    for (command, concern, code) in [
        ("{find: 'c'", at(future), 72),
        ("{find: 'c', filter: {_id: 1}", at(future), 72),
        ("{aggregate: 'c', pipeline: [], cursor: {}", at(future), 72),
        ("{find: 'c'", at(ClusterTime::ZERO), 72),
        ("{find: 'c'", at(ClusterTime::new(1, 1)), 246),
        ("{count: 'c'", at(time), 72),
        ("{find: 'c', hint: 'none'", at(time), 2),
        (bounded, at(time), 115),
    ] {
        server
            .check(&format!("{command}, {concern}}} => {code}"))
            .await;
    }
    // A time that was given out, or heard of, is waited for.
    let heard = ClusterTime::new(now.seconds() + 1, 7);
    server
        .shard
        .log
        .observe(heard)
        .expect("a time close to now");
    let find = format!("{{find: 'c', filter: {{_id: 4}}, {}}}", at(heard));
    server.check(&format!("{find} => {{}}")).await;
    assert!(server.shard.store.applied_time() >= heard);

    let later = ClusterTime::new(now.seconds() + 100_000, 0);
    server
        .shard
        .store
        .maintain(later, 1000)
        .expect("maintained");
    for command in ["{find: 'c'", "{find: 'c', filter: {_id: 1}"] {
        server
            .check(&format!("{command}, {}}} => 239", at(time)))
            .await;
    }
}

/// Before a collection had its name, the name meant something else.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_time_does_not_show_a_later_collection() {
    let (server, time) = changed().await;
    let find = format!("{{find: 'c', {}}}", at(time));
    server
        .check(&format!(
            r#"
            {{drop: "c"}} => {{}}
            {{insert: "c", documents: [{{_id: 1}}]}} => {{n: 1}}
            {find} => 246
            {{insert: "d", documents: [{{_id: 1}}]}} => {{n: 1}}
            admin {{renameCollection: "test.d", to: "test.c", dropTarget: true}} => {{}}
            {find} => 246
            "#
        ))
        .await;
}

/// Since when a name means its collection is stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_time_can_be_read_after_a_restart() {
    let (server, time) = changed().await;
    let find = format!("{{find: 'c', {}}}", at(time));
    let server = server.reopen().await;
    assert_eq!(documents(&server, &find).await, BEFORE);
    // What changes an index keeps the name's time.
    server.check("{dropIndexes: 'c', index: 'x'} => {}").await;
    let server = server.reopen().await;
    assert_eq!(documents(&server, &find).await, BEFORE);
    server
        .check("admin {renameCollection: 'test.c', to: 'test.d'} => {}")
        .await;
    let renamed = server.shard.store.applied_time();
    server
        .check("{insert: 'd', documents: [{_id: 'later'}]} => {n: 1}")
        .await;
    let server = server.reopen().await;
    server
        .check(&format!("{{find: 'd', {}}} => 246", at(time)))
        .await;
    let find = format!("{{find: 'd', filter: {{x: {{$gt: 50}}}}, {}}}", at(renamed));
    assert_eq!(documents(&server, &find).await, "{_id: 2, x: 99}");
    let find = format!("{{find: 'd', filter: {{_id: 'later'}}, {}}}", at(renamed));
    assert_eq!(documents(&server, &find).await, "");
}
