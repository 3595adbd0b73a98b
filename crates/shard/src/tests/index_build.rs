//! Indexes built while writes go on.

use crate::index_build::Build;
use crate::operation::Operation;
use crate::testing::TestShard;
use crate::tests::sharding::{LOW, sharded};
use crate::tests::transitions::{MOVE, change, range, receive, received};
use differential::value::{Value, get};
use model::bson::{DocBuf, DocWriter};
use model::{Code, Namespace};
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

const UNIQUE: &str = "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'u'}]}}";
const NONE: &str = "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}]}}";

/// Documents with different `u`, and a unique index of it that is in the catalog and not built yet.
async fn building_unique() -> (TestShard, Build) {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..700)
        .map(|id| format!("{{_id: {id}, u: {id}}}"))
        .collect();
    server.insert(&documents).await;
    let build = begun(&server, &specification("u", true)).await;
    (server, build)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_of_duplicates_are_accepted_and_fail_the_build() {
    for write in [
        // Of a document that the build reads later.
        "{insert: 'c', documents: [{_id: 1000, u: 5}]} => {n: 1}",
        "{update: 'c', updates: [{q: {_id: 1}, u: {$set: {u: 690}}}]} => {nModified: 1}",
        "{findAndModify: 'c', query: {_id: 1}, update: {$set: {u: [2, 3]}}} => {value: {_id: 1}}",
        // Of one that was written meanwhile too, and of one in the same entry.
        "{insert: 'c', documents: [{_id: 1000, u: 5.5}]} => {n: 1} {insert: 'c', documents: [{_id: 1001, u: 5.5}]} => {n: 1}",
        "{insert: 'c', documents: [{_id: 1000, u: 5.5}, {_id: 1001, u: 5.5}]} => {n: 2}",
        // Documents without the field have null.
        "{insert: 'c', documents: [{_id: 1000}, {_id: 1001}]} => {n: 2}",
    ] {
        let (server, build) = building_unique().await;
        let write = write.replace("} {", "}\n{");
        server.check(&write).await;
        let count = server.run("test", "{count: 'c'}").await;
        let built = server
            .shard
            .build_indexes(&build, &operation(&server))
            .await;
        assert_eq!(built.expect_err(&write).code, Code::DUPLICATE_KEY);
        server.check(NONE).await;
        let kept = server.run("test", "{count: 'c'}").await;
        assert_eq!(get(&kept, "n"), get(&count, "n"), "{write}");
        server.check_valid("c").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_that_are_gone_at_the_end_are_in_nobodys_way() {
    let (server, build) = building_unique().await;
    let inserted = "{insert: 'c', documents: [{_id: 1000, u: 5}, {_id: 1001, u: 6}, {_id: 1002, u: 7}]} => {n: 3}";
    server.check(inserted).await;
    // One goes before the build reads, one after it has read all, one gets another key.
    server
        .check("{delete: 'c', deletes: [{q: {_id: 1000}, limit: 1}]} => {n: 1}")
        .await;
    let operation = operation(&server);
    let read = server.shard.backfill(&build, &operation).await;
    read.expect("keys are only noted");
    server
        .check(
            r#"
            {delete: "c", deletes: [{q: {_id: 6}, limit: 1}]} => {n: 1}
            {update: "c", updates: [{q: {_id: 1002}, u: {$set: {u: 1002}}}]} => {nModified: 1}
            "#,
        )
        .await;
    let ended = server.shard.end_build(&build, Ok(())).await;
    ended.expect("no two documents have a key");
    drop(operation);
    server.check(UNIQUE).await;
    // From here on it refuses them.
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1000, u: 5}]} => {n: 0, writeErrors: [{code: 11000}]}
            {update: "c", updates: [{q: {_id: 1}, u: {$set: {u: 1002}}}]} => {n: 0, writeErrors: [{code: 11000}]}
            {insert: "c", documents: [{_id: 6, u: 1003}]} => {n: 1}
            "#,
        )
        .await;
    server.check_valid("c").await;
}

/// The last look at keys sees what was written after all records were read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_that_come_behind_the_scan_fail_the_build() {
    let (server, build) = building_unique().await;
    let operation = operation(&server);
    let read = server.shard.backfill(&build, &operation).await;
    read.expect("there are none");
    let inserted = "{insert: 'c', documents: [{_id: 1000, u: 5}]} => {n: 1}";
    server.check(inserted).await;
    let ended = server.shard.end_build(&build, Ok(())).await;
    assert_eq!(ended.expect_err("a duplicate").code, Code::DUPLICATE_KEY);
    server.check(NONE).await;
    server.check_valid("c").await;
}

/// What was noted is in memory only: a build does not outlive its primary, and its duplicates stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unique_build_that_a_restart_ends_leaves_nothing() {
    let (server, build) = building_unique().await;
    let inserted = "{insert: 'c', documents: [{_id: 1000, u: 5}]} => {n: 1}";
    server.check(inserted).await;
    let read = server.shard.backfill(&build, &operation(&server)).await;
    read.expect("keys are only noted");
    let server = server.reopen().await;
    server.check(NONE).await;
    server
        .check("{insert: 'c', documents: [{_id: 1001, u: 5}]} => {n: 1}")
        .await;
    let create = "{createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true}]}";
    server.check(&format!("{create} => 11000")).await;
    server
        .check(
            r#"
            {delete: "c", deletes: [{q: {_id: {$gte: 1000}}, limit: 0}]} => {n: 2}
            {createIndexes: "c", indexes: [{key: {u: 1}, name: "u", unique: true}]} => {numIndexesAfter: 2}
            "#,
        )
        .await;
    server.check_valid("c").await;
}

/// An index that nobody builds any more, and that is not discarded yet, refuses duplicates.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_build_that_was_given_up_lets_nothing_through() {
    let (server, build) = building_unique().await;
    let read = server.shard.backfill(&build, &operation(&server)).await;
    read.expect("there are none");
    drop(build);
    let inserted = "{insert: 'c', documents: [{_id: 1000, u: 5}]}";
    server
        .check(&format!(
            "{inserted} => {{n: 0, writeErrors: [{{code: 11000}}]}}"
        ))
        .await;
}

/// Writers that make duplicates and remove them again: whatever the build says is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unique_build_beside_writers_says_what_is_so() {
    for round in 0..12 {
        let server = Arc::new(building_documents().await);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (server, stop) = (server.clone(), stop.clone());
                tokio::spawn(
                    async move { make_duplicates(&server, &stop, round * 3 + writer).await },
                )
            })
            .collect();
        let create = "{createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true}]}";
        let reply = server.run("test", create).await;
        let is_built = get(&reply, "code").is_none();
        if !is_built {
            assert_eq!(get(&reply, "code"), Some(&Value::Int32(11000)), "{reply:?}");
        }
        stop.store(true, Ordering::Release);
        for writer in writers {
            writer.await.expect("the writer ends");
        }
        server.check(if is_built { UNIQUE } else { NONE }).await;
        if is_built {
            let twice = "{aggregate: 'c', pipeline: [{$group: {_id: '$u', n: {$sum: 1}}}, {$match: {n: {$gt: 1}}}], cursor: {}}";
            server
                .check(&format!("{twice} => {{cursor: {{firstBatch: []}}}}"))
                .await;
        }
        server.check_valid("c").await;
    }
}

async fn building_documents() -> TestShard {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..2000)
        .map(|id| format!("{{_id: {id}, u: {id}}}"))
        .collect();
    server.insert(&documents).await;
    server
}

/// Gives a document of its own another one's key, and takes it away again, mostly at once.
async fn make_duplicates(server: &TestShard, stop: &AtomicBool, writer: usize) {
    let mut random = fastrand::Rng::with_seed(writer as u64);
    let own = 10_000 + writer;
    while !stop.load(Ordering::Acquire) {
        let u = random.usize(0..2000);
        let insert = format!("{{insert: 'c', documents: [{{_id: {own}, u: {u}}}]}}");
        server.run("test", &insert).await;
        let delete = match random.usize(0..3) {
            // The other one goes, and comes back as the only one.
            0 => format!(
                "{{update: 'c', updates: [{{q: {{_id: {u}}}, u: {{$set: {{u: {}}}}}}}]}}",
                100_000 + writer * 100_000 + random.usize(0..100_000)
            ),
            _ => format!("{{delete: 'c', deletes: [{{q: {{_id: {own}}}, limit: 1}}]}}"),
        };
        server.run("test", &delete).await;
        let delete = format!("{{delete: 'c', deletes: [{{q: {{_id: {own}}}, limit: 1}}]}}");
        server.run("test", &delete).await;
    }
}

/// ⚑ Whether documents of a range that is received have equal keys is the donor's to know: one that changes its
/// place there is here twice for a moment. What is owned is looked at here.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unique_build_beside_a_received_range_looks_at_what_is_owned() {
    for (written, is_built) in [("x: 3, z: 7", false), ("x: 3, z: 8", true)] {
        let server = sharded(LOW).await;
        let owned: Vec<String> = (1..9)
            .map(|x| format!("{{_id: {x}, x: {x}, z: 7}}"))
            .collect();
        server.insert(&owned).await;
        let arriving = range(&server, 10, 20);
        let begun_move = change(&server, |known| {
            known.with_receiving(MOVE, arriving.clone())
        });
        begun_move.await.expect("is received");
        let key = DocWriter::new().with("x", 1).with("z", 1).finish();
        let specification = DocWriter::new().with("key", &key).with("name", "u");
        let specification = specification.with("unique", true).finish();
        // Before, and while it is built.
        receive(&server, &[received(&server, 100, 12)])
            .await
            .expect("is stored");
        let build = begun(&server, &specification).await;
        let twice = [received(&server, 101, 12), received(&server, 102, 12)];
        receive(&server, &twice).await.expect("is stored");
        server
            .check(&format!(
                "{{insert: 'c', documents: [{{_id: 50, {written}}}]}} => {{n: 1}}"
            ))
            .await;
        let built = server
            .shard
            .build_indexes(&build, &operation(&server))
            .await;
        match built {
            Ok(()) => assert!(is_built, "{written}"),
            Err(error) => assert!(!is_built && error.code == Code::DUPLICATE_KEY, "{error:?}"),
        }
    }
}
