//! A member that leads, leads no longer, and leads again: what must not go on over the break.
//!
//! Nothing here tells clients (or the placement of commands) of the change: the shard believes to be
//! the primary, as one does that was paused. What is refused is refused by the log.

use crate::command::envelope::WriteConcern;
use crate::session::{Retryable, SessionId};
use crate::sharding::{StateChange, StateWrite, Transition};
use crate::testing::TestShard;
use crate::tests::transitions;
use crate::write::{Pending, Received, ReceivedEntry};
use bytes::Bytes;
use differential::notation::print_fields;
use differential::value::{Fields, Value, get};
use model::bson::{DocWriter, ValueRef};
use model::key::RecordKey;
use model::time::ClusterTime;
use model::{Code, Namespace};
use std::sync::Arc;
use std::time::Duration;
use storage::Record;
use wire::ConnectionInfo;

const SESSION: &str = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}";

pub(super) fn session_id() -> SessionId {
    let mut id = [0; 16];
    id[6] = 0x40;
    id[8] = 0x80;
    id[15] = 1;
    SessionId::new(id)
}

/// Leads no longer, until [`lead_again`].
pub(super) async fn step_down(server: &TestShard) {
    let log = &server.shard.log;
    log.rest(Duration::from_secs(600));
    log.step_down().await.expect("it led");
    assert!(server.shard.replica_set.is_primary(), "nobody has told it");
}

pub(super) async fn lead_again(server: &TestShard) {
    let log = &server.shard.log;
    log.rest(Duration::ZERO);
    log.campaign();
    let mut role = log.role();
    let leads = role.wait_for(|role| role.is_leader());
    let waited = tokio::time::timeout(Duration::from_secs(60), leads).await;
    assert!(waited.is_ok_and(|role| role.is_ok()), "it leads again");
}

/// ⚑ Linearizable reads confirm leadership by a quorum, never by a clock (or by what is believed).
#[tokio::test(flavor = "multi_thread")]
async fn a_linearizable_read_asks_the_log() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1}]} => {n: 1}
            {find: "c", readConcern: {level: "linearizable"}} => {cursor: {firstBatch: [{_id: 1}]}}
            "#,
        )
        .await;
    step_down(&server).await;
    server
        .check(
            r#"
            {find: "c", readConcern: {level: "majority"}} => {cursor: {firstBatch: [{_id: 1}]}}
            {find: "c", readConcern: {level: "linearizable"}} => 10107
            {insert: "c", documents: [{_id: 2}]} => 10107
            "#,
        )
        .await;
    lead_again(&server).await;
    server
        .check(
            r#"
            {find: "c", readConcern: {level: "linearizable"}} => {cursor: {firstBatch: [{_id: 1}]}}
            {insert: "c", documents: [{_id: 2}]} => {n: 1}
            "#,
        )
        .await;
}

/// ⚑ A refusal is told after the change that it is for: its number is greater than any that called
/// this member the primary.
#[tokio::test(flavor = "multi_thread")]
async fn clients_hear_of_another_role_before_they_are_refused() {
    let server = TestShard::open().await;
    server.check(r#"{create: "c"} => {}"#).await;
    let version = |reply: &Fields| match get(reply, "topologyVersion") {
        Some(Value::Document(version)) => get(version, "counter").cloned(),
        _ => None,
    };
    let hello = server.run("admin", "{hello: 1}").await;
    step_down(&server).await;
    let shard = &server.shard;
    let tells = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        shard.replica_set.took_role(*shard.log.role().borrow());
    };
    let insert = server.run("test", r#"{insert: "c", documents: [{_id: 1}]}"#);
    let (refusal, ()) = tokio::join!(insert, tells);
    assert_eq!(get(&refusal, "code"), Some(&Value::Int32(10107)));
    let Some(Value::Int64(before)) = version(&hello) else {
        panic!("no version in {}", print_fields(&hello));
    };
    assert_eq!(version(&refusal), Some(Value::Int64(before + 1)));
}

/// The first part of a shutdown: a `hello` that waits hears of it, and new work is refused in a way that
/// drivers know.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_about_to_stop_says_so_and_takes_no_more_work() {
    let server = TestShard::open().await;
    server
        .check("{insert: 'c', documents: [{_id: 1}, {_id: 2}]} => {n: 2}")
        .await;
    let hello = server.run("admin", "{hello: 1}").await;
    let version = get(&hello, "topologyVersion").expect("it is there");
    let wait = format!(
        "{{hello: 1, topologyVersion: {}, maxAwaitTimeMS: 600000}}",
        differential::notation::print(version)
    );
    let shard = &server.shard;
    let (heard, ()) = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::join!(server.run("admin", &wait), async {
            let limit = Duration::from_secs(30);
            shard.begin_quiesce(Duration::ZERO, limit).await;
        })
    })
    .await
    .expect("it is heard long before the wait is over");
    assert_eq!(get(&heard, "code"), Some(&Value::Int32(91)));
    assert!(get(&heard, "topologyVersion").is_some());
    let left = get(&heard, "remainingQuiesceTimeMillis");
    assert!(matches!(left, Some(Value::Int64(1..=30_000))), "{left:?}");
    server
        .check(
            "{insert: 'c', documents: [{_id: 3}]} => 91
             {find: 'c'} => 91
             admin {hello: 1} => 91
             admin {ping: 1} => {}",
        )
        .await;
    let retryable = format!("{{insert: 'c', documents: [{{_id: 3}}], {SESSION}, txnNumber: 1L}}");
    let refused = server.run("test", &retryable).await;
    assert!(get(&refused, "errorLabels").is_some(), "drivers retry it");
}

/// ⚑ An entry with a session's document is refused unless this member has led without a break since
/// the session was checked out: another leader may have gone on with the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_writes_only_while_its_member_leads_without_a_break() {
    let server = TestShard::open().await;
    server.check(r#"{create: "c"} => {}"#).await;
    let shard = &server.shard;
    let connection = Arc::new(ConnectionInfo::in_process(2));
    let command = DocWriter::new().with("insert", "c").finish();
    let command = Bytes::copy_from_slice(command.as_bytes());
    let operation = shard.operations.begin(&connection, command);
    let namespace = Namespace::new("test", "c").expect("a name");
    let collection = shard.catalog.get(&namespace).expect("it exists").id;
    let write = async |retryable: &Retryable, id: i32| {
        let document = DocWriter::new().with("_id", id).finish();
        let key = RecordKey::from_id(ValueRef::Int32(id));
        let keys = [key.clone()];
        shard
            .write_statements(
                collection,
                WriteConcern::Majority,
                Some(retryable),
                None,
                &keys,
                |evaluator| evaluator.insert(key.clone(), document.clone()),
            )
            .await
            .map_err(|error| error.code)
    };
    let retryable = shard.begin_retryable(session_id(), 1, &operation).await;
    let retryable = retryable.expect("it leads");
    assert_eq!(write(&retryable, 1).await, Ok(Some(())));
    step_down(&server).await;
    assert_eq!(write(&retryable, 2).await, Err(Code::NOT_WRITABLE_PRIMARY));
    lead_again(&server).await;
    assert_eq!(write(&retryable, 3).await, Err(Code::NOT_WRITABLE_PRIMARY));
    drop(retryable);
    let retryable = shard.begin_retryable(session_id(), 2, &operation).await;
    assert_eq!(write(&retryable.expect("it leads"), 4).await, Ok(Some(())));
    server.check(r#"{count: "c"} => {n: 2}"#).await;
}

/// ⚑ When leadership is lost, what was only appended is forgotten: it may never happen.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_only_appended_is_forgotten_with_leadership() {
    let server = TestShard::open().await;
    server.check(r#"{create: "c"} => {}"#).await;
    let shard = &server.shard;
    let namespace = Namespace::new("test", "c").expect("a name");
    let collection = shard.catalog.get(&namespace).expect("it exists").id;
    // As if an entry with this document were under way, which no majority will confirm.
    let document = DocWriter::new().with("_id", 1).finish();
    let appended = Pending {
        position: u64::MAX,
        record: Some(Record::draft(document.as_bytes()).committed_at(ClusterTime::new(1, 1))),
    };
    let key = RecordKey::from_id(ValueRef::Int32(1));
    shard.overlay.put_record(collection, key, appended);
    server
        .check(r#"{insert: "c", documents: [{_id: 1}]} => 11000"#)
        .await;
    step_down(&server).await;
    lead_again(&server).await;
    server
        .check(r#"{insert: "c", documents: [{_id: 1}]} => {n: 1}"#)
        .await;
}

/// ⚑ What a move writes is of the term in which it read what that follows from: another primary may have gone on
/// with the move in between, or ended it.
#[tokio::test(flavor = "multi_thread")]
async fn moves_write_only_while_their_member_leads_without_a_break() {
    let server = crate::tests::sharding::sharded(crate::tests::sharding::HIGH).await;
    let range = transitions::range(&server, 0, 5);
    let begun = transitions::change(&server, |known| {
        known.with_receiving(transitions::MOVE, range.clone())
    });
    begun.await.expect("it begins to come");
    let shard = &server.shard;
    let collection = transitions::collection(&server);
    let term = shard.log.leading().expect("it leads");
    let put = |id: i32| StateWrite {
        namespace: Namespace::new("config", "migrationRecipients").expect("a name"),
        change: StateChange::Put(DocWriter::new().with("_id", id).finish()),
    };
    // In all ways; how many were taken.
    let write = async |term, x: i32| {
        let mut taken = 0;
        let document = DocWriter::new().with("_id", x).with("x", x).finish();
        let received = Received {
            key: collection.record_key(document.as_doc()).expect("a key"),
            before: None,
            after: Some(Record::draft(document.as_bytes())),
        };
        let origin = &transitions::MOVE.0;
        let entry = ReceivedEntry::new(&collection, origin, vec![received]);
        match shard.append_received(term, entry.expect("it fits")) {
            Ok(Some(pending)) => {
                pending.await.expect("is applied");
                taken += 1;
            }
            Ok(None) => panic!("the log is busy"),
            Err(_) => {}
        }
        let changes = [transitions::received(&server, x + 1, x + 1)];
        let documents = [put(x)];
        let (id, concern) = (collection.id, WriteConcern::Majority);
        let written =
            shard.write_received(term, id, transitions::MOVE, &changes, &documents, concern);
        taken += i32::from(written.await.is_ok());
        let transition = Transition {
            documents: vec![put(x + 1)],
            term: Some(term),
            ..Transition::default()
        };
        taken += i32::from(shard.transition(id, &transition).await.is_ok());
        taken
    };
    assert_eq!(write(term, 1).await, 3);
    step_down(&server).await;
    lead_again(&server).await;
    assert_eq!(write(term, 3).await, 0);
    assert_eq!(shard.store.collection_counter(collection.id).items, 2);
    let term = shard.log.leading().expect("it leads");
    assert_eq!(write(term, 3).await, 3);
}

/// Who waits for a session when leadership is lost is told to look for the new primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_session_ends_with_leadership() {
    let server = Arc::new(TestShard::open().await);
    let held = server.shard.sessions.try_check_out(session_id(), 0);
    let held = held.expect("nobody has it");
    let waiting = tokio::spawn({
        let server = server.clone();
        async move {
            let insert =
                format!("{{insert: 'c', documents: [{{_id: 1}}], {SESSION}, txnNumber: 1L}}");
            server.run("test", &insert).await
        }
    });
    while !server
        .shard
        .operations
        .all()
        .iter()
        .any(|o| o.is_numbered())
    {
        tokio::task::yield_now().await;
    }
    step_down(&server).await;
    let reply = waiting.await.expect("it ends");
    let printed = print_fields(&reply);
    let code = get(&reply, "code");
    let labels = get(&reply, "errorLabels").and_then(Value::as_array);
    // It was interrupted, or came late and was refused.
    assert!(
        [Some(&Value::Int32(11602)), Some(&Value::Int32(10107))].contains(&code),
        "{printed}"
    );
    assert_eq!(labels.map(<[Value]>::len), Some(1), "{printed}");
    drop(held);
}

/// Records, entries and counters are compared wherever the collection is, leader or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_lead_validates() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}]} => {}
            {insert: "c", documents: [{_id: 1, a: [1, 2]}, {_id: 2}]} => {n: 2}
            "#,
        )
        .await;
    step_down(&server).await;
    server
        .check(r#"{validate: "c"} => {valid: true, nrecords: 2, keysPerIndex: {_id_: 2, a: 3}}"#)
        .await;
}
