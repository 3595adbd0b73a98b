//! Indexes built while writes go on.

use crate::index_build::Build;
use crate::operation::Operation;
use crate::testing::TestShard;
use differential::value::{Value, get};
use model::Namespace;
use model::bson::{DocBuf, DocWriter};
use query::index::parse_specification;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::operation::Registered;

const DOCUMENTS: usize = 3000;

async fn filled() -> Arc<TestShard> {
    let server = TestShard::open().await;
    for from in (0..DOCUMENTS).step_by(500) {
        let documents: Vec<String> = (from..from + 500)
            .map(|id| format!("{{_id: {id}, x: {}, a: [{id}, {}]}}", id % 97, id + 1))
            .collect();
        let insert = format!("{{insert: 'c', documents: [{}]}}", documents.join(", "));
        server.check(&format!("{insert} => {{n: 500}}")).await;
    }
    Arc::new(server)
}

/// Inserts, updates and deletes all over the collection until it is told to stop.
async fn write_until(server: Arc<TestShard>, stop: Arc<AtomicBool>, writer: usize) -> usize {
    let mut random = fastrand::Rng::with_seed(writer as u64);
    let mut writes = 0;
    while !stop.load(Ordering::Acquire) {
        let id = random.usize(0..DOCUMENTS + 500);
        let x = random.usize(0..97);
        let command = match random.usize(0..4) {
            0 => format!("{{insert: 'c', documents: [{{_id: {id}, x: {x}, a: {x}}}]}}"),
            1 => format!("{{delete: 'c', deletes: [{{q: {{_id: {id}}}, limit: 1}}]}}"),
            2 => format!(
                "{{update: 'c', updates: [{{q: {{_id: {id}}}, u: {{$set: {{a: [{x}, {id}]}}}}}}]}}"
            ),
            _ => format!(
                "{{update: 'c', updates: [{{q: {{_id: {id}}}, u: {{$set: {{x: {x}}}}}, upsert: true}}]}}"
            ),
        };
        let reply = server.run("test", &command).await;
        assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)));
        writes += 1;
    }
    writes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_build_and_writes_end_in_agreement() {
    let server = filled().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| tokio::spawn(write_until(server.clone(), stop.clone(), writer)))
        .collect();
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {x: 1, _id: -1}, name: "x"}, {key: {a: 1}, name: "a"}, {key: {x: "hashed"}, name: "h"}]} => {numIndexesAfter: 4}
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "p", partialFilterExpression: {x: {$lt: 40}}}]} => {numIndexesAfter: 5}
            "#,
        )
        .await;
    // Consistent while writes go on, too.
    server.check_valid("c").await;
    stop.store(true, Ordering::Release);
    for writer in writers {
        assert!(writer.await.expect("the writer ends") > 0);
    }
    let reply = server.check_valid("c").await;
    assert_eq!(get(&reply, "nIndexes"), Some(&Value::Int32(5)));
    let server = Arc::into_inner(server).expect("the writers have ended");
    server.reopen().await.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_that_want_the_same_index_build_it_once() {
    let server = filled().await;
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move {
                let create = "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}]}";
                server
                    .check(&format!("{create} => {{numIndexesAfter: 2}}"))
                    .await;
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("both succeed");
    }
    server.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropping_ends_a_build() {
    for drop in [
        "{drop: 'c'} => {}",
        "{dropIndexes: 'c', index: '*'} => {}",
        "{dropDatabase: 1} => {}",
    ] {
        let server = filled().await;
        let builder = {
            let server = server.clone();
            tokio::spawn(async move {
                let create = "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}]}";
                server.run("test", create).await
            })
        };
        // Before, in the middle or behind the build: all three are right.
        server.check(drop).await;
        let reply = builder.await.expect("the build ends");
        let code = get(&reply, "code");
        assert!(
            code.is_none() || code == Some(&Value::Int32(276)),
            "{reply:?}"
        );
        let created = server.run("test", "{listIndexes: 'c'}").await;
        if get(&created, "cursor").is_some() {
            server.check_valid("c").await;
        }
    }
}

/// Enters an index into the catalog without building it.
async fn begun(server: &TestShard, specification: &DocBuf) -> Build {
    let shard = &server.shard;
    let namespace = Namespace::new("test", "c").expect("a namespace");
    let collection = shard.catalog.get(&namespace).expect("a collection");
    let definition = parse_specification(specification.as_doc(), false).expect("a definition");
    let build = {
        let _ddl = shard.ddl.lock().await;
        shard.begin_indexes(&collection, vec![definition]).await
    };
    build.expect("begins").expect("is to be built")
}

/// One that may build an index of the collection.
fn operation(server: &TestShard) -> Registered<'_, Operation> {
    let connection = Arc::new(wire::ConnectionInfo::in_process(-1));
    let command = DocWriter::new()
        .with("createIndexes", "c")
        .with("$db", "test");
    let command = command.finish().into_bytes();
    server.shard.operations.begin(&connection, command.into())
}

fn specification(field: &str, unique: bool) -> DocBuf {
    let key = DocWriter::new().with(field, 1).finish();
    let specification = DocWriter::new().with("key", &key).with("name", field);
    specification.with("unique", unique).finish()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn current_op_shows_how_far_a_build_is() {
    let server = filled().await;
    let build = begun(&server, &specification("x", false)).await;
    let operation = operation(&server);
    let none = "admin {currentOp: 1, msg: {$exists: true}} => {inprog: []}";
    server.check(none).await;
    server
        .check("{insert: 'c', documents: [{_id: -1}]} => {n: 1}")
        .await;
    let built = server.shard.build_indexes(&build, &operation).await;
    built.expect("is built");
    let message =
        "Index Build: scanning collection Index Build: scanning collection: 3001/3001 100%";
    server
        .check(&format!(
            "admin {{currentOp: 1, msg: {{$exists: true}}}} => {{inprog: [{{op: 'command', ns: 'test.c', msg: '{message}', progress: {{done: 3001, total: 3001}}}}]}}"
        ))
        .await;
    drop(operation);
    server.check(none).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failed_build_leaves_nothing() {
    let server = filled().await;
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {x: 1}, name: "x", unique: true}, {key: {a: 1}, name: "a"}]} => 11000
            {listIndexes: "c"} => {cursor: {firstBatch: [{name: "_id_"}]}}
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}]} => {numIndexesAfter: 2}
            "#,
        )
        .await;
    server.check_valid("c").await;
}
