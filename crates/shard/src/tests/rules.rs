//! ⚑ Each rule is switched off once, and what was written for it must notice.
//!
//! Rules of the log itself are switched off in `crates/sim/tests/rules.rs`, those of ownership and moves in
//! `moves/switched_off.rs` and `moves/switched_off_in_pairs.rs`.

use super::leadership::{lead_again, session_id, step_down};
use crate::command::envelope::WriteConcern;
use crate::rules::Rule;
use crate::testing::TestShard;
use crate::write::Pending;
use bytes::Bytes;
use differential::notation::print_fields;
use differential::value::{Value, get};
use model::Namespace;
use model::bson::{DocWriter, ValueRef};
use model::ids::CollectionId;
use model::key::RecordKey;
use model::time::ClusterTime;
use std::sync::Arc;
use storage::Record;
use wire::ConnectionInfo;

const SESSION: &str = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}, txnNumber: 1L";

/// A scenario says whether what the rule is for was kept.
async fn check(rule: Rule, is_kept: impl AsyncFn(TestShard) -> bool) {
    assert!(is_kept(TestShard::open().await).await, "{rule:?} holds");
    let without = TestShard::open().await;
    without.shard.rules.switch_off(rule);
    assert!(!is_kept(without).await, "nobody misses {rule:?}");
}

/// A collection with a document, and an entry under way that replaces it.
async fn with_an_entry_under_way(server: &TestShard) -> CollectionId {
    server
        .check("{insert: 'c', documents: [{_id: 1, n: 0}]} => {n: 1}")
        .await;
    let namespace = Namespace::new("test", "c").expect("a name");
    let collection = server.shard.catalog.get(&namespace).expect("it exists").id;
    let document = DocWriter::new().with("_id", 1).with("n", 5).finish();
    let appended = Pending {
        position: u64::MAX,
        record: Some(Record::draft(document.as_bytes()).committed_at(ClusterTime::new(1, 1))),
    };
    let key = RecordKey::from_id(ValueRef::Int32(1));
    server.shard.overlay.put_record(collection, key, appended);
    collection
}

async fn increment(server: &TestShard) -> Option<Value> {
    let increment = "{findAndModify: 'c', query: {_id: 1}, update: {$inc: {n: 1}}, new: true}";
    let reply = server.run("test", increment).await;
    let value = get(&reply, "value").unwrap_or_else(|| panic!("{}", print_fields(&reply)));
    value.get("n").cloned()
}

/// Who finds a key latched waits; here until its time is over, because it is held for longer.
#[tokio::test(flavor = "multi_thread")]
async fn who_evaluates_holds_the_latch() {
    check(Rule::HoldLatches, async |server| {
        server
            .check("{insert: 'c', documents: [{_id: 1, n: 0}]} => {n: 1}")
            .await;
        let shard = &server.shard;
        let namespace = Namespace::new("test", "c").expect("a name");
        let collection = shard.catalog.get(&namespace).expect("it exists");
        let key = RecordKey::from_id(ValueRef::Int32(1));
        let stripe = shard.record_stripe(&collection, &key);
        let _held = shard.latches.hold(vec![stripe], || Ok(())).expect("free");
        let update = "{update: 'c', updates: [{q: {_id: 1}, u: {$inc: {n: 1}}}], maxTimeMS: 3000}";
        let reply = server.run("test", update).await;
        get(&reply, "code") == Some(&Value::Int32(50))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluation_sees_what_earlier_entries_replace() {
    check(Rule::SeeAppended, async |server| {
        with_an_entry_under_way(&server).await;
        increment(&server).await == Some(Value::Int32(6))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_only_appended_is_forgotten_with_leadership() {
    check(Rule::ForgetAppended, async |server| {
        with_an_entry_under_way(&server).await;
        step_down(&server).await;
        lead_again(&server).await;
        increment(&server).await == Some(Value::Int32(1))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_writes_only_while_its_member_leads_without_a_break() {
    check(Rule::SessionsOfOneTerm, async |server| {
        server.check("{create: 'c'} => {}").await;
        let shard = &server.shard;
        let connection = Arc::new(ConnectionInfo::in_process(2));
        let command = DocWriter::new().with("insert", "c").finish();
        let command = Bytes::copy_from_slice(command.as_bytes());
        let operation = shard.operations.begin(&connection, command);
        let retryable = shard.begin_retryable(session_id(), 1, &operation).await;
        let retryable = retryable.expect("it leads");
        step_down(&server).await;
        lead_again(&server).await;
        let namespace = Namespace::new("test", "c").expect("a name");
        let collection = shard.catalog.get(&namespace).expect("it exists").id;
        let document = DocWriter::new().with("_id", 1).finish();
        let key = RecordKey::from_id(ValueRef::Int32(1));
        let keys = [key.clone()];
        let concern = WriteConcern::Majority;
        let written = shard
            .write_statements(
                collection,
                concern,
                Some(&retryable),
                None,
                &keys,
                |evaluator| evaluator.insert(key.clone(), document.clone()),
            )
            .await;
        written.is_err()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_after_a_time_has_an_entry_at_or_after_it() {
    check(Rule::ReachTime, async |server| {
        server
            .check("{insert: 'c', documents: [{_id: 1}]} => {n: 1}")
            .await;
        let later = server.shard.log.latest_time().seconds() + 500;
        let read = format!(
            "{{find: 'c', readConcern: {{afterClusterTime: Timestamp({later}, 1)}}, \
             $clusterTime: {{clusterTime: Timestamp({later}, 1), signature: \
             {{hash: Binary(0, \"0000000000000000000000000000000000000000\"), keyId: 0L}}}}}}"
        );
        let reply = server.run("test", &read).await;
        assert_eq!(
            get(&reply, "ok"),
            Some(&Value::Double(1.0)),
            "{}",
            print_fields(&reply)
        );
        server.shard.store.applied_time() >= ClusterTime::new(later, 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retries_are_answered_from_outlives_the_process() {
    check(Rule::StoreStatements, async |server| {
        server
            .check("{insert: 'c', documents: [{_id: 1, n: 0}]} => {n: 1}")
            .await;
        let update = format!(
            "{{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$inc: {{n: 1}}}}}}], {SESSION}}} => {{n: 1}}"
        );
        server.check(&update).await;
        let server = server.reopen().await;
        server.check(&update).await;
        increment(&server).await == Some(Value::Int32(2))
    })
    .await;
}
