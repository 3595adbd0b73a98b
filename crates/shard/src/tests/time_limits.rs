//! `maxTimeMS`: commands that write end as commands that read do, and a time
//! limit reaches into the evaluation of one expression over one document. Who waits
//! for another writer can be killed, and ends with its time too.

use crate::catalog::Collection;
use crate::testing::TestShard;
use differential::notation::print_fields;
use differential::value::{Fields, Value, get};
use model::Namespace;
use model::bson::ValueRef;
use model::key::RecordKey;
use std::sync::Arc;

/// An expression that would take hours over one document.
const ENDLESS: &str = "{$reduce: {input: {$range: [0, 100000]}, initialValue: 0, in: {$reduce: \
    {input: {$range: [0, 100000]}, initialValue: 0, in: {$add: ['$$value', '$$this', '$k']}}}}}";

/// The same by other loops.
const LOOPS: &[&str] = &[
    "{$size: {$map: {input: {$range: [0, 100000]}, in: {$size: {$map: {input: {$range: [0, 100000]}, in: '$k'}}}}}}",
    "{$size: {$filter: {input: {$range: [0, 100000]}, cond: {$size: {$filter: {input: {$range: [0, 100000]}, cond: '$$this'}}}}}}",
    "{$size: {$map: {input: {$range: [0, 100000]}, in: {$size: {$regexFindAll: {input: '$text', regex: 'a'}}}}}}",
];

fn check_expired(command: &str, reply: &Fields) {
    let printed = print_fields(reply);
    assert_eq!(
        get(reply, "ok"),
        Some(&Value::Double(0.0)),
        "{command}: {printed}"
    );
    assert_eq!(
        get(reply, "code"),
        Some(&Value::Int32(50)),
        "{command}: {printed}"
    );
    // The whole command fails, whatever was done before: no counts.
    assert_eq!(get(reply, "n"), None, "{command}: {printed}");
    assert_eq!(get(reply, "writeErrors"), None, "{command}: {printed}");
}

async fn expires(server: &TestShard, command: &str) {
    check_expired(command, &server.run("test", command).await);
}

async fn opened() -> TestShard {
    let server = TestShard::open().await;
    let text = "a".repeat(20_000);
    server
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, k: 1, text: '{text}'}}, {{_id: 2, k: 1, text: '{text}'}}]}} => {{n: 2}}"
        ))
        .await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_end_with_their_time() {
    let server = opened().await;
    let slow = format!("{{$expr: {{$gt: [{ENDLESS}, 0]}}}}");
    for ordered in [true, false] {
        let rest = format!("ordered: {ordered}, maxTimeMS: 20");
        for multi in [true, false] {
            expires(
                &server,
                &format!("{{update: 'c', updates: [{{q: {slow}, u: {{$set: {{n: 1}}}}, multi: {multi}}}], {rest}}}"),
            )
            .await;
            expires(
                &server,
                &format!("{{update: 'c', updates: [{{q: {{}}, u: [{{$set: {{n: {ENDLESS}}}}}], multi: {multi}}}], {rest}}}"),
            )
            .await;
        }
        expires(
            &server,
            &format!("{{delete: 'c', deletes: [{{q: {slow}, limit: 0}}], {rest}}}"),
        )
        .await;
    }
    expires(
        &server,
        &format!("{{findAndModify: 'c', query: {{_id: 1}}, update: [{{$set: {{n: {ENDLESS}}}}}], maxTimeMS: 20}}"),
    )
    .await;
    server
        .check("{count: 'c', query: {n: {$exists: false}}} => {n: 2}")
        .await;
}

/// What an insert did before its time was over stays, in order.
#[tokio::test(flavor = "multi_thread")]
async fn an_insert_ends_between_its_entries() {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..20_000).map(|id| format!("{{_id: {id}}}")).collect();
    let insert = format!(
        "{{insert: 'c', documents: [{}], maxTimeMS: 1}}",
        documents.join(", ")
    );
    expires(&server, &insert).await;
    let reply = server.run("test", "{count: 'c'}").await;
    let Some(Value::Int32(count)) = get(&reply, "n") else {
        panic!("{}", print_fields(&reply));
    };
    assert!(*count < 20_000);
    server
        .check(&format!(
            "{{count: 'c', query: {{_id: {{$lt: {count}}}}}}} => {{n: {count}}}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_expression_ends_with_its_time() {
    let server = opened().await;
    for expression in LOOPS.iter().chain([&ENDLESS]) {
        for command in [
            format!("{{find: 'c', filter: {{$expr: {{$gt: [{expression}, 0]}}}}, maxTimeMS: 20}}"),
            format!("{{find: 'c', projection: {{n: {expression}}}, maxTimeMS: 20}}"),
            format!("{{count: 'c', query: {{$expr: {{$gt: [{expression}, 0]}}}}, maxTimeMS: 20}}"),
            format!(
                "{{aggregate: 'c', pipeline: [{{$set: {{n: {expression}}}}}], cursor: {{}}, maxTimeMS: 20}}"
            ),
            format!(
                "{{aggregate: 'c', pipeline: [{{$group: {{_id: {expression}}}}}], cursor: {{}}, maxTimeMS: 20}}"
            ),
        ] {
            expires(&server, &command).await;
        }
    }
}

/// A cursor's expressions were parsed for the command that opened it, and end
/// with the getMore that runs them.
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_of_a_cursor_ends_with_the_get_more() {
    let server = opened().await;
    let second = format!("{{$cond: [{{$eq: ['$_id', 1]}}, 1, {ENDLESS}]}}");
    for command in [
        format!("{{find: 'c', filter: {{$expr: {second}}}, batchSize: 1, maxTimeMS: 2000}}"),
        format!(
            "{{aggregate: 'c', pipeline: [{{$set: {{n: {second}}}}}], cursor: {{batchSize: 1}}, maxTimeMS: 2000}}"
        ),
    ] {
        let (id, documents) = server.batch(&command).await;
        assert_eq!(documents.len(), 1, "{command}");
        expires(&server, &format!("{{getMore: {id}L, collection: 'c'}}")).await;
    }
}

/// A constant is computed while the command is parsed, and one long array is one step.
#[tokio::test(flavor = "multi_thread")]
async fn folding_ends_with_its_time() {
    let server = opened().await;
    let range = "{$size: {$range: [0, 13000000]}}";
    expires(
        &server,
        &format!("{{find: 'c', filter: {{$expr: {{$gt: [{range}, 0]}}}}, maxTimeMS: 5}}"),
    )
    .await;
}

/// One operator over one long array is noticed in the middle: a field is sorted,
/// joined and compared over and over, and a list of constants is folded.
#[tokio::test(flavor = "multi_thread")]
async fn one_sort_of_an_array_ends_with_its_time() {
    let server = opened().await;
    // As long as a document allows, and in no order.
    let numbers = "{$map: {input: {$range: [0, 600000]}, as: 'i', in: {$mod: [{$multiply: ['$$i', 7919]}, 600011]}}}";
    server
        .check(&format!(
            "{{update: 'c', updates: [{{q: {{_id: 1}}, u: [{{$set: {{long: {numbers}, text: ''}}}}]}}]}} => {{n: 1}}"
        ))
        .await;
    for expression in [
        "{$sortArray: {input: '$long', sortBy: -1}}",
        "{$setUnion: ['$long', {$range: [0, 600000]}]}",
        "{$setDifference: ['$long', [5]]}",
        "{$setIntersection: ['$long', '$long']}",
        "{$setEquals: ['$long', '$long']}",
    ] {
        let command = format!(
            "{{aggregate: 'c', pipeline: [{{$match: {{_id: 1}}}}, {{$project: {{n: {{$size: [{{$ifNull: [{expression}, []]}}]}}}}}}], \
             cursor: {{}}, maxTimeMS: 5}}"
        )
        .replace("{$size: [{$ifNull: [{$setEquals: ['$long', '$long']}, []]}]}", expression);
        expires(&server, &command).await;
    }
}

/// Commands that write the document with the `_id` 1, each in its own way.
const WRITES: &[&str] = &[
    "{insert: 'c', documents: [{_id: 1}]}",
    "{update: 'c', updates: [{q: {_id: 1}, u: {$set: {n: 1}}}]}",
    "{update: 'c', updates: [{q: {}, u: {$set: {n: 1}}, multi: true}], ordered: false}",
    "{delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]}",
    "{findAndModify: 'c', query: {_id: 1}, remove: true}",
    "{aggregate: 'd', pipeline: [{$merge: 'c'}], cursor: {}}",
];

/// Lets every write wait until its time is over, and until it is killed.
async fn check_waiting_ends(server: &Arc<TestShard>) {
    for write in WRITES {
        let limited = format!("{}, maxTimeMS: 20}}", &write[..write.len() - 1]);
        expires(server, &limited).await;
        let running = tokio::spawn({
            let (server, write) = (server.clone(), (*write).to_owned());
            async move { server.run("test", &write).await }
        });
        // Whether it already waits or has not come so far: killed, it ends.
        let operation = loop {
            match server.shard.operations.all().first() {
                Some(operation) => break operation.clone(),
                None => tokio::task::yield_now().await,
            }
        };
        operation.kill();
        let reply = running.await.expect("a write does not panic");
        let code = get(&reply, "code");
        assert_eq!(code, Some(&Value::Int32(11601)), "{write}: {reply:?}");
    }
}

async fn with_two_collections() -> Arc<TestShard> {
    let server = TestShard::open().await;
    server
        .check(
            "{insert: 'c', documents: [{_id: 1}]} => {n: 1}
             {insert: 'd', documents: [{_id: 1, n: 1}]} => {n: 1}",
        )
        .await;
    Arc::new(server)
}

fn collection_c(server: &TestShard) -> Arc<Collection> {
    let namespace = Namespace::new("test", "c").expect("a name");
    server
        .shard
        .catalog
        .get(&namespace)
        .expect("it was created")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_waits_for_the_gate_can_end() {
    let server = with_two_collections().await;
    let gate = collection_c(&server).gate.clone();
    let held = gate.write().await;
    check_waiting_ends(&server).await;
    drop(held);
    server
        .check("{find: 'c', filter: {n: null}} => {cursor: {firstBatch: [{_id: 1}]}}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_waits_for_a_latch_can_end() {
    let server = with_two_collections().await;
    let collection = collection_c(&server);
    let (held, is_held) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    // Latches are not held over an await: another thread has this one.
    let holder = std::thread::spawn({
        let server = server.clone();
        move || {
            let key = RecordKey::from_id(ValueRef::Int32(1));
            let stripe = server.shard.record_stripe(&collection, &key);
            let latch = server.shard.latches.hold(vec![stripe], || Ok(()));
            held.send(()).expect("the test waits");
            let _ = released.recv();
            drop(latch);
        }
    });
    tokio::task::block_in_place(|| is_held.recv()).expect("it is held");
    check_waiting_ends(&server).await;
    drop(release);
    tokio::task::block_in_place(|| holder.join()).expect("it ends");
    server
        .check("{find: 'c', filter: {n: null}} => {cursor: {firstBatch: [{_id: 1}]}}")
        .await;
}
