//! Cursors: collections and indexes that go away or change under them, and the
//! ways in which they end.

use crate::testing::TestShard;
use differential::value::{Value, get};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Commands that open a cursor, and what ends each: the collection, its index
/// `x`, or nothing any more because everything was read.
const OPENED: &[(&str, Needs)] = &[
    ("{find: 'c', batchSize: 1}", Needs::Collection),
    (
        "{find: 'c', filter: {_id: {$gte: 0}}, batchSize: 1}",
        Needs::Collection,
    ),
    ("{find: 'c', sort: {z: 1}, batchSize: 1}", Needs::Collection),
    (
        "{find: 'c', filter: {_id: 1}, batchSize: 0}",
        Needs::Collection,
    ),
    (
        "{find: 'c', filter: {x: {$gte: 0}}, hint: 'x', batchSize: 1}",
        Needs::Index,
    ),
    (
        "{find: 'c', filter: {x: {$gte: 0}}, hint: 'x', sort: {z: 1}, batchSize: 1}",
        Needs::Index,
    ),
    (
        "{aggregate: 'c', pipeline: [], cursor: {batchSize: 1}}",
        Needs::Collection,
    ),
    (
        "{aggregate: 'c', pipeline: [{$match: {x: {$gte: 0}}}], cursor: {batchSize: 1}}",
        Needs::Index,
    ),
    (
        "{aggregate: 'c', pipeline: [{$sort: {z: 1}}], cursor: {batchSize: 1}}",
        Needs::Collection,
    ),
    (
        "{aggregate: 'c', pipeline: [{$group: {_id: '$_id'}}], cursor: {batchSize: 1}}",
        Needs::Nothing,
    ),
];

/// Stages that look at every document for every pair of documents: they end
/// because they are told to.
const ENDLESS: &str = "[{$lookup: {from: 'c', as: 'a', let: {i: '$_id'}, pipeline: [{$lookup: \
    {from: 'c', as: 'b', let: {j: '$_id'}, pipeline: [{$match: {$expr: {$eq: ['$$i', '$$j']}}}]}}]}}]";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Needs {
    Nothing,
    Collection,
    Index,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_ends_with_what_it_reads() {
    for (changes, ends) in [
        ("{drop: 'c'} => {}", Needs::Collection),
        ("{dropDatabase: 1} => {}", Needs::Collection),
        (
            "admin {renameCollection: 'test.c', to: 'test.d'} => {}",
            Needs::Collection,
        ),
        (
            "admin {renameCollection: 'test.o', to: 'test.c', dropTarget: true} => {}",
            Needs::Collection,
        ),
        (
            "{drop: 'c'} => {}\n{insert: 'c', documents: [{_id: 1, x: 1}]} => {}",
            Needs::Collection,
        ),
        ("{dropIndexes: 'c', index: 'x'} => {}", Needs::Index),
        (
            "{dropIndexes: 'c', index: 'x'} => {}\n{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}]} => {}",
            Needs::Index,
        ),
        (
            "{collMod: 'c', index: {name: 'x', hidden: true}} => {}",
            Needs::Index,
        ),
    ] {
        let server = TestShard::open().await;
        server
            .check(
                r#"
                {insert: "c", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}, {_id: 3, x: 3}]} => {n: 3}
                {insert: "o", documents: [{_id: 1}]} => {n: 1}
                {createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}]} => {}
                "#,
            )
            .await;
        let mut cursors = Vec::new();
        for (command, needs) in OPENED {
            let (id, _) = server.batch(command).await;
            cursors.push((id, *needs, command));
        }
        server.check(changes).await;
        for (id, needs, command) in cursors {
            let expected = if needs >= ends { "175" } else { "{cursor: {}}" };
            let more = format!("{{getMore: {id}L, collection: 'c'}}");
            println!("{command} after {changes}");
            server.check(&format!("{more} => {expected}")).await;
            // What ended is gone.
            server.check(&format!("{more} => 43")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_cursors_time_out() {
    let server = TestShard::open().await;
    server
        .check("{insert: 'c', documents: [{_id: 1}, {_id: 2}, {_id: 3}]} => {n: 3}")
        .await;
    let (idle, _) = server.batch("{find: 'c', batchSize: 1}").await;
    let (endless, _) = server
        .batch("{find: 'c', batchSize: 1, noCursorTimeout: true}")
        .await;
    let cursors = &server.shard.cursors;
    let opened = Instant::now();
    cursors.close_idle(opened + Duration::from_secs(599));
    assert_eq!(cursors.counts().0, 2);
    cursors.close_idle(opened + Duration::from_secs(601));
    assert_eq!(cursors.counts().0, 1);
    server
        .check(&format!("{{getMore: {idle}L, collection: 'c'}} => 43"))
        .await;
    server
        .check(&format!("{{getMore: {endless}L, collection: 'c'}} => {{}}"))
        .await;
}

/// A getMore starts the time anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_cursor_is_not_idle() {
    let server = TestShard::open().await;
    server
        .check("{insert: 'c', documents: [{_id: 1}, {_id: 2}, {_id: 3}]} => {n: 3}")
        .await;
    let before = Instant::now();
    let (id, _) = server.batch("{find: 'c', batchSize: 1}").await;
    let more = format!("{{getMore: {id}L, collection: 'c', batchSize: 1}}");
    server.check(&format!("{more} => {{}}")).await;
    server
        .shard
        .cursors
        .close_idle(before + Duration::from_secs(600));
    server.check(&format!("{more} => {{}}")).await;
}

/// Kills a cursor while a getMore computes: the getMore ends, the cursor is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_busy_cursor_can_be_killed() {
    let server = Arc::new(TestShard::open().await);
    let documents: Vec<String> = (0..1000).map(|id| format!("{{_id: {id}}}")).collect();
    server.insert(&documents).await;
    let slow = format!("{{aggregate: 'c', cursor: {{batchSize: 0}}, pipeline: {ENDLESS}}}");
    let (id, _) = server.batch(&slow).await;
    let busy = {
        let server = server.clone();
        tokio::spawn(async move {
            let more = format!("{{getMore: {id}L, collection: 'c'}}");
            server.run("test", &more).await
        })
    };
    while server.shard.cursors.counts().1 == 0 {
        tokio::task::yield_now().await;
    }
    server
        .check(&format!("{{getMore: {id}L, collection: 'c'}} => 12051"))
        .await;
    server
        .check(&format!(
            "{{killCursors: 'c', cursors: [{id}L]}} => {{cursorsKilled: [{id}L]}}"
        ))
        .await;
    let reply = busy.await.expect("the getMore ends");
    assert!(
        matches!(get(&reply, "code"), Some(Value::Int32(237 | 11601))),
        "{reply:?}"
    );
    server
        .check(&format!("{{getMore: {id}L, collection: 'c'}} => 43"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limits_and_tailing() {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..2000).map(|id| format!("{{_id: {id}}}")).collect();
    server.insert(&documents).await;
    let (id, _) = server.batch("{find: 'c', batchSize: 1}").await;
    let more = format!("{{getMore: {id}L, collection: 'c', batchSize: 1");
    server
        .check(&format!(
            r#"
            {more}, maxTimeMS: 1000}} => 2
            {more}, maxTimeMS: -1}} => 2
            {more}}} => {{}}
            {{find: "c", tailable: true}} => 2
            {{find: "c", tailable: true, awaitData: true}} => 2
            {{find: "c", awaitData: true}} => 9
            "#
        ))
        .await;
    // What the command that opened it had left counts for all its batches.
    let slow =
        format!("{{aggregate: 'c', cursor: {{batchSize: 0}}, maxTimeMS: 50, pipeline: {ENDLESS}}}");
    let (id, _) = server.batch(&slow).await;
    server
        .check(&format!("{{getMore: {id}L, collection: 'c'}} => 50"))
        .await;
}

/// Writers insert, delete and change odd documents all the time; the even ones,
/// whose keys stay, come exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_does_not_change_comes_once_among_writers() {
    let server = Arc::new(TestShard::open().await);
    let documents: Vec<String> = (0..600)
        .map(|id| format!("{{_id: {id}, x: {}, a: [{}, {id}]}}", id % 17, id % 5))
        .collect();
    server.insert(&documents).await;
    server
        .check("{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}, {key: {a: 1}, name: 'a'}]} => {}")
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| tokio::spawn(write_odd(server.clone(), stop.clone(), writer)))
        .collect();
    for command in [
        "{find: 'c', batchSize: 7}",
        "{find: 'c', hint: {$natural: -1}, batchSize: 7}",
        "{find: 'c', filter: {_id: {$gte: 0}}, batchSize: 7}",
        "{find: 'c', filter: {x: {$gte: 0}}, hint: 'x', batchSize: 7}",
        "{find: 'c', sort: {x: -1}, hint: 'x', batchSize: 7}",
        "{find: 'c', filter: {a: {$gte: 0}}, hint: 'a', batchSize: 7}",
        "{find: 'c', filter: {$or: [{x: {$lte: 8}}, {a: {$gte: 0}}]}, batchSize: 7}",
        "{find: 'c', sort: {a: 1, x: 1}, batchSize: 7}",
        "{aggregate: 'c', pipeline: [{$match: {x: {$gte: 0}}}, {$addFields: {y: 1}}], cursor: {batchSize: 7}}",
        "{aggregate: 'c', pipeline: [{$group: {_id: '$_id', n: {$sum: 1}}}], cursor: {batchSize: 7}}",
    ] {
        let (id, mut documents) = server.batch(command).await;
        documents.extend(server.rest(id, 7).await);
        let mut found: Vec<i32> = documents
            .iter()
            .filter_map(|document| match document.get("_id") {
                Some(Value::Int32(id)) if id % 2 == 0 => Some(*id),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        let expected: Vec<i32> = (0..600).step_by(2).collect();
        assert_eq!(found, expected, "{command}");
    }
    stop.store(true, Ordering::Release);
    for writer in writers {
        writer.await.expect("a writer ends");
    }
    server.check_valid("c").await;
}

async fn write_odd(server: Arc<TestShard>, stop: Arc<AtomicBool>, writer: u64) {
    let mut random = fastrand::Rng::with_seed(writer);
    while !stop.load(Ordering::Acquire) {
        let id = random.i32(0..400) * 2 + 1;
        let x = random.i32(0..17);
        let command = match random.u8(0..4) {
            0 => format!("{{insert: 'c', documents: [{{_id: {id}, x: {x}, a: [{x}]}}]}}"),
            1 => format!("{{delete: 'c', deletes: [{{q: {{_id: {id}}}, limit: 1}}]}}"),
            2 => format!(
                "{{update: 'c', updates: [{{q: {{_id: {id}}}, u: {{$set: {{x: {x}, a: [{x}, {id}]}}}}}}]}}"
            ),
            _ => format!(
                "{{update: 'c', updates: [{{q: {{_id: {}}}, u: {{$set: {{z: {x}}}}}}}]}}",
                id - 1
            ),
        };
        server.run("test", &command).await;
    }
}

/// Every batch is a cursor of its own, which goes on from the token of the one before; the record that a token
/// stands at may be gone by then.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_with_another_cursor() {
    let server = TestShard::open().await;
    let documents: Vec<String> = (1..=9)
        .map(|id| format!("{{_id: {id}, x: {}}}", id % 2))
        .collect();
    server.insert(&documents).await;
    let ask = async |token: Option<&Value>, rest: &str| {
        let after = token.map_or_else(String::new, |token| {
            format!(", $_resumeAfter: {}", differential::notation::print(token))
        });
        let command = format!(
            "{{find: 'c', hint: {{$natural: 1}}, $_requestResumeToken: true{rest}{after}}}"
        );
        let reply = server.run("test", &command).await;
        let cursor = get(&reply, "cursor").unwrap_or_else(|| panic!("{command}: {reply:?}"));
        let batch = cursor
            .get("firstBatch")
            .and_then(Value::as_array)
            .expect("a batch");
        let ids: Vec<Value> = batch
            .iter()
            .filter_map(|one| one.get("_id").cloned())
            .collect();
        let token = cursor
            .get("postBatchResumeToken")
            .cloned()
            .expect("a token");
        let id = cursor.get("id").cloned().expect("an id");
        (ids, token, id)
    };
    let numbers = |ids: std::ops::RangeInclusive<i32>| ids.map(Value::Int32).collect::<Vec<_>>();
    let (ids, token, _) = ask(None, ", batchSize: 4, singleBatch: true").await;
    assert_eq!(ids, numbers(1..=4));
    server
        .check("{delete: 'c', deletes: [{q: {_id: 4}, limit: 1}]} => {n: 1}")
        .await;
    server
        .check("{insert: 'c', documents: [{_id: 3.5}, {_id: 4.5}]} => {n: 2}")
        .await;
    let (ids, token, id) = ask(Some(&token), ", batchSize: 2").await;
    assert_eq!(ids, [Value::Double(4.5), Value::Int32(5)]);
    // A getMore has a token, too.
    let Value::Int64(id) = id else {
        panic!("{id:?}")
    };
    let more = server
        .run(
            "test",
            &format!("{{getMore: {id}L, collection: 'c', batchSize: 1}}"),
        )
        .await;
    let later = get(&more, "cursor").and_then(|cursor| cursor.get("postBatchResumeToken").cloned());
    let (ids, _, _) = ask(later.as_ref(), "").await;
    assert_eq!(ids, numbers(7..=9));
    let (ids, last, id) = ask(Some(&token), "").await;
    assert_eq!((ids, id), (numbers(6..=9), Value::Int64(0)));
    // At the end it waits for what comes.
    assert_eq!(ask(Some(&last), "").await.0, []);
    server
        .check("{insert: 'c', documents: [{_id: 10}]} => {n: 1}")
        .await;
    assert_eq!(ask(Some(&last), "").await.0, numbers(10..=10));
    // Nothing was read yet.
    let (_, first, _) = ask(None, ", batchSize: 0").await;
    assert_eq!(differential::notation::print(&first), "{$recordId: null}");
    assert_eq!(ask(Some(&first), ", limit: 1").await.0, numbers(1..=1));
    let filtered = ask(None, ", filter: {x: 1}, batchSize: 2, singleBatch: true").await;
    let rest = ask(Some(&filtered.1), ", filter: {x: 1}").await;
    assert_eq!(rest.0, [5, 7, 9].map(Value::Int32));
    let damaged = differential::notation::print(&Value::Binary(0, vec![0; 3]));
    let refused = format!(
        "{{find: 'c', hint: {{$natural: 1}}, $_requestResumeToken: true, $_resumeAfter: {{$recordId: {damaged}}}}} => 2"
    );
    server.check(&refused).await;
    let natural = "find: 'c', hint: {$natural: 1}";
    let after = "$_resumeAfter: {$recordId: null}";
    let start_at = "$_startAt: {$recordId: null}";
    for (rest, code) in [
        (after.to_owned(), 2),
        (start_at.to_owned(), 2),
        (
            format!("$_requestResumeToken: true, {after}, {start_at}"),
            2,
        ),
        ("$_requestResumeToken: true, $_resumeAfter: 1".into(), 14),
        ("$_requestResumeToken: true, $_startAt: null".into(), 14),
    ] {
        let refused = format!("{{{natural}, {rest}}} => {code}");
        server.check(&refused).await;
    }
    // An empty document is no token.
    let begins = format!("{{{natural}, $_resumeAfter: {{}}, $_startAt: {{}}}} => {{ok: 1.0}}");
    server.check(&begins).await;
}
