//! Evaluation never sees a version that an earlier entry has replaced: writers
//! in each other's way lose nothing and double nothing.

use crate::testing::TestShard;
use differential::notation::print_fields;
use differential::value::{Fields, Value, get};
use std::collections::BTreeSet;
use std::sync::Arc;

const WRITERS: usize = 8;
const WRITES_EACH: usize = 60;

/// Runs the same work in several tasks at once.
async fn together<F, T>(
    server: &Arc<TestShard>,
    work: impl Fn(Arc<TestShard>, usize) -> F,
) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(work(server.clone(), writer)))
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.expect("a writer ends"));
    }
    done
}

fn code(reply: &Fields) -> Option<&Value> {
    let first = get(reply, "writeErrors").and_then(Value::as_array);
    first
        .and_then(|errors| errors.first()?.get("code"))
        .or(get(reply, "code"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_increments_lose_nothing() {
    let server = Arc::new(TestShard::open().await);
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, k: 1, n: 0, list: []}]} => {n: 1}
            {createIndexes: "c", indexes: [{key: {k: 1}, name: "k"}, {key: {n: 1}, name: "n"}, {key: {list: 1}, name: "list"}]} => {}
            "#,
        )
        .await;
    together(&server, |server, writer| async move {
        for round in 0..WRITES_EACH {
            // By key, by an index, and by the very index that changes.
            let filter = match round % 3 {
                0 => "{_id: 1}",
                1 => "{k: 1}",
                _ => "{n: {$gte: 0}}",
            };
            let change = format!(
                "{{$inc: {{n: 1}}, $push: {{list: {}}}}}",
                writer * 1000 + round
            );
            let reply = match round % 2 {
                0 => {
                    let update =
                        format!("{{update: 'c', updates: [{{q: {filter}, u: {change}}}]}}");
                    server.run("test", &update).await
                }
                _ => {
                    let modify =
                        format!("{{findAndModify: 'c', query: {filter}, update: {change}}}");
                    server.run("test", &modify).await
                }
            };
            assert_eq!(code(&reply), None, "{}", print_fields(&reply));
        }
    })
    .await;
    let all = WRITERS * WRITES_EACH;
    let (_, documents) = server.batch("{find: 'c'}").await;
    assert_eq!(documents[0].get("n"), Some(&Value::Int32(all as i32)));
    let list = documents[0].get("list").and_then(Value::as_array);
    assert_eq!(list.map(|list| list.len()), Some(all));
    server.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unique_key_changes_hands_and_never_doubles() {
    let server = Arc::new(TestShard::open().await);
    let documents: Vec<String> = (0..WRITERS)
        .map(|id| format!("{{_id: {id}, u: {id}}}"))
        .collect();
    server.insert(&documents).await;
    server
        .check("{createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true}]} => {}")
        .await;
    let taken = together(&server, |server, writer| async move {
        let mut taken = 0;
        for _ in 0..WRITES_EACH {
            let take = format!("{{update: 'c', updates: [{{q: {{_id: {writer}}}, u: {{$set: {{u: 'token'}}}}}}]}}");
            let reply = server.run("test", &take).await;
            match code(&reply) {
                None => taken += 1,
                Some(Value::Int32(11000)) => continue,
                Some(_) => panic!("{}", print_fields(&reply)),
            }
            let (_, holders) = server.batch("{find: 'c', filter: {u: 'token'}}").await;
            assert_eq!(holders.len(), 1, "one holds it");
            assert_eq!(holders[0].get("_id"), Some(&Value::Int32(writer as i32)));
            // Give it back by removing and inserting again, or by another value.
            let back = match taken % 2 {
                0 => format!("{{update: 'c', updates: [{{q: {{_id: {writer}}}, u: {{$set: {{u: {writer}}}}}}}]}}"),
                _ => format!("{{delete: 'c', deletes: [{{q: {{_id: {writer}}}, limit: 1}}]}}"),
            };
            let reply = server.run("test", &back).await;
            assert_eq!(code(&reply), None, "{}", print_fields(&reply));
            if taken % 2 == 1 {
                server.insert(&[format!("{{_id: {writer}, u: {writer}}}")]).await;
            }
        }
        taken
    })
    .await;
    assert!(taken.iter().sum::<i32>() > 0);
    server.check_valid("c").await;
    server
        .check(&format!(
            "{{count: 'c', query: {{u: {{$type: 'int'}}}}}} => {{n: {WRITERS}}}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_document_of_a_queue_is_claimed_once() {
    let server = Arc::new(TestShard::open().await);
    let documents: Vec<String> = (0..200)
        .map(|id| format!("{{_id: {id}, state: 'new', at: {}}}", id % 13))
        .collect();
    server.insert(&documents).await;
    server
        .check("{createIndexes: 'c', indexes: [{key: {state: 1, at: 1}, name: 'state'}]} => {}")
        .await;
    let claimed = together(&server, |server, writer| async move {
        let mut claimed = Vec::new();
        loop {
            let claim = format!(
                "{{findAndModify: 'c', query: {{state: 'new'}}, sort: {{at: 1}}, \
                 update: {{$set: {{state: 'taken', by: {writer}}}}}}}"
            );
            let reply = server.run("test", &claim).await;
            assert_eq!(code(&reply), None, "{}", print_fields(&reply));
            match get(&reply, "value").and_then(|value| value.get("_id")) {
                Some(Value::Int32(id)) => claimed.push(*id),
                _ => return claimed,
            }
        }
    })
    .await;
    let all: Vec<i32> = claimed.into_iter().flatten().collect();
    let different: BTreeSet<i32> = all.iter().copied().collect();
    assert_eq!((all.len(), different.len()), (200, 200));
    server.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_upserts_make_one_document() {
    let server = Arc::new(TestShard::open().await);
    server
        .check("{createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true}]} => {}")
        .await;
    together(&server, |server, _| async move {
        for round in 0..WRITES_EACH {
            let key = round % 10;
            let upsert = format!(
                "{{update: 'c', updates: [{{q: {{u: {key}}}, u: {{$inc: {{n: 1}}}}, upsert: true}}]}}"
            );
            let reply = server.run("test", &upsert).await;
            assert_eq!(code(&reply), None, "{}", print_fields(&reply));
        }
    })
    .await;
    let (_, documents) = server.batch("{find: 'c', sort: {u: 1}}").await;
    let counts: Vec<Option<&Value>> = documents.iter().map(|document| document.get("n")).collect();
    let each = Value::Int32((WRITERS * WRITES_EACH / 10) as i32);
    assert_eq!(counts, vec![Some(&each); 10]);
    server.check_valid("c").await;
}

/// ⚑ A majority write that changes nothing was still told what it found: that must
/// not be lost with the power.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_changes_nothing_waits_for_the_sync_of_what_it_found() {
    let server = TestShard::open().await;
    let majority = "writeConcern: {w: 'majority'}";
    for (number, nothing) in [
        "{update: 'c', updates: [{q: {_id: 1}, u: {$set: {a: N}}}], W} => {n: 1, nModified: 0}",
        "{update: 'c', updates: [{q: {_id: 7}, u: {$set: {a: 1}}}], W} => {n: 0}",
        "{delete: 'c', deletes: [{q: {_id: 7}, limit: 1}], W} => {n: 0}",
        "{insert: 'c', documents: [{_id: 1}], W} => {n: 0}",
        "{findAndModify: 'c', query: {_id: 1}, update: {$set: {a: N}}, W} => {value: {a: N}}",
        "{findAndModify: 'c', query: {_id: 7}, remove: true, W} => {value: null}",
    ]
    .iter()
    .enumerate()
    {
        let nothing = nothing
            .replace('N', &number.to_string())
            .replace('W', majority);
        server
            .check(&format!(
                "{{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{a: {number}}}}}, upsert: true}}], \
                 writeConcern: {{w: 1}}}} => {{n: 1}}"
            ))
            .await;
        let written = server.shard.log.last_proposed();
        server.check(&nothing).await;
        assert!(server.shard.log.last_synced() >= written, "{nothing}");
    }
}
