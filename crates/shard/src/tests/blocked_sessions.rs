//! ⚑ Who waits for a blocked range does not keep its session, and looks its statement up again when it goes on.

use crate::session::{Arriving, SessionKey};
use crate::sharding::BlockLevel;
use crate::testing::TestShard;
use crate::tests::blocked::{blocked, code, filled};
use crate::tests::leadership::session_id;
use crate::tests::transitions::{MOVE, change};
use bytes::Bytes;
use differential::value::{Fields, Value, get};
use model::bson::DocWriter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::ConnectionInfo;

/// Commands with a statement for what is blocked, and a filter whose count tells whether they were carried out once.
const COMMANDS: [(&str, &str); 7] = [
    (
        "insert: 'c', documents: [{_id: 20, x: 2, z: 1}, {_id: 40, x: 4, z: 1}]",
        "{z: 1}",
    ),
    (
        "update: 'c', updates: [{q: {x: 4}, u: {$inc: {z: 1}}}]",
        "{z: 1}",
    ),
    (
        "update: 'c', updates: [{q: {x: 2}, u: {$inc: {z: 1}}}, {q: {x: 4}, u: {$inc: {z: 1}}}]",
        "{z: 1}",
    ),
    (
        "update: 'c', updates: [{q: {_id: 25, x: 2.5}, u: {$inc: {z: 1}}, upsert: true}, {q: {_id: 45, x: 4.5}, u: {$inc: {z: 1}}, upsert: true}]",
        "{z: 1}",
    ),
    (
        "delete: 'c', deletes: [{q: {x: 2}, limit: 1}, {q: {x: 4}, limit: 1}]",
        "{x: {$in: [2, 4]}}",
    ),
    (
        "findAndModify: 'c', query: {x: 5}, update: {$inc: {z: 1}}, new: true",
        "{z: 1}",
    ),
    ("findAndModify: 'c', query: {x: 5}, remove: true", "{x: 5}"),
];

fn retryable(command: &str) -> String {
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}";
    format!("{{{command}, {session}, txnNumber: 1L}}")
}

async fn waited_for(shard: &TestShard, count: u64, command: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while shard.shard.counters.waits_for_moves.load(Ordering::Relaxed) < count {
        assert!(Instant::now() < deadline, "{command} does not wait");
        tokio::task::yield_now().await;
    }
}

async fn lift(shard: &TestShard) {
    let lifted = change(shard, |known| Ok(known.without_block(MOVE))).await;
    lifted.expect("is lifted");
}

async fn count(shard: &TestShard, filter: &str) -> Option<Value> {
    let command = format!("{{count: 'c', query: {filter}}}");
    get(&shard.run("test", &command).await, "n").cloned()
}

/// The history that a shard has of the session comes to another one.
async fn arrives(from: &TestShard, to: &TestShard) {
    let stored = |key: &[u8]| from.shard.store.get_meta(key).expect("can be read");
    let document = stored(&SessionKey::session(session_id())).expect("it has written");
    let image = stored(&SessionKey::image(session_id()));
    let arriving = Arriving {
        session: session_id(),
        document: &document,
        overflow: Vec::new(),
        image: image.as_deref(),
    };
    let connection = Arc::new(ConnectionInfo::in_process(7));
    let command = DocWriter::new().with("moves", 1).finish();
    let command = Bytes::copy_from_slice(command.as_bytes());
    let operation = to.shard.operations.begin(&connection, command);
    let taken = to.shard.take_over_history(&arriving, &MOVE.0, &operation);
    let taken = tokio::time::timeout(Duration::from_secs(20), taken).await;
    taken.expect("the session is free").expect("is taken over");
}

/// Without what only tells that it was a retry, or when.
fn essence(mut reply: Fields) -> Fields {
    let kept = [
        "n",
        "nModified",
        "upserted",
        "value",
        "lastErrorObject",
        "writeErrors",
        "code",
    ];
    reply.retain(|(name, _)| kept.contains(&name.as_str()));
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn history_arrives_while_a_statement_waits_and_answers_it() {
    for (command, done) in COMMANDS {
        for level in [BlockLevel::Writes, BlockLevel::Reads] {
            let elsewhere = filled().await;
            let expected = essence(elsewhere.run("test", &retryable(command)).await);
            let shard = blocked(level).await;
            let beside = shard.shard.counters.waits_for_moves.load(Ordering::Relaxed);
            let before = count(&shard, "{x: {$gte: 3, $lt: 6}}");
            let before = match level {
                BlockLevel::Writes => before.await,
                BlockLevel::Reads => Some(Value::Int32(3)),
            };
            let asked = retryable(command);
            let meanwhile = async {
                waited_for(&shard, beside + 1, command).await;
                arrives(&elsewhere, &shard).await;
                lift(&shard).await;
            };
            let (reply, ()) = tokio::join!(shard.run("test", &asked), meanwhile);
            assert_eq!(code(&reply), None, "{command}: {reply:?}");
            assert_eq!(essence(reply), expected, "{command}");
            // Nothing of the blocked range was written here.
            let after = count(&shard, "{x: {$gte: 3, $lt: 6}, z: null}").await;
            assert_eq!(after, before, "{command}: {done}");
            shard.check_valid("c").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_waits_beside_its_first_attempt_writes_nothing_more() {
    for (command, done) in COMMANDS {
        let elsewhere = filled().await;
        let expected = essence(elsewhere.run("test", &retryable(command)).await);
        let shard = blocked(BlockLevel::Writes).await;
        let beside = shard.shard.counters.waits_for_moves.load(Ordering::Relaxed);
        let asked = retryable(command);
        let both_wait = async {
            waited_for(&shard, beside + 2, command).await;
            lift(&shard).await;
        };
        let (first, second, ()) = tokio::join!(
            shard.run("test", &asked),
            shard.run("test", &asked),
            both_wait
        );
        assert_eq!(essence(first), expected, "{command}");
        assert_eq!(essence(second), expected, "{command}");
        let here = count(&shard, done).await;
        assert_eq!(here, count(&elsewhere, done).await, "{command}");
        shard.check_valid("c").await;
    }
}
