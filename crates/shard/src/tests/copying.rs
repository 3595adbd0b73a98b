//! A shard that takes over the state of another answers like it.

use crate::testing::TestShard;
use crate::tests::sharding::{LOW, sharded, version};
use crate::write::Applier;
use differential::value::Value;
use replication::{CopyId, LogPosition, MemberId, StateMachine, Term};
use std::sync::Arc;

fn applier(server: &TestShard) -> Applier {
    let shard = &server.shard;
    Applier {
        store: Arc::clone(&shard.store),
        catalog: Arc::clone(&shard.catalog),
        overlay: Arc::clone(&shard.overlay),
        sessions: shard.sessions.clone(),
        operations: shard.operations.clone(),
        watchers: shard.watchers.clone(),
        replica_set: Arc::clone(&shard.replica_set),
        sharding: shard.sharding.clone(),
        clock: Arc::clone(&shard.clock),
        data: server.path().to_owned(),
    }
}

/// Lets the receiver take over the origin's state.
pub(super) fn hand_over(origin: &TestShard, receiver: &TestShard) {
    let (mut from, mut to) = (applier(origin), applier(receiver));
    let mut copy = from.open_copy().expect("opens");
    let copied = CopyId {
        from: MemberId::new(2),
        leader_term: Term::new(3),
        position: LogPosition::new(origin.shard.store.applied()),
    };
    let mut install = to.begin_install(copied).expect("begins");
    while let Some(part) = copy.next_part(100).expect("reads") {
        install.add(&part).expect("adds");
    }
    let position = LogPosition::new(origin.shard.store.applied());
    let time = origin.shard.store.applied_time();
    to.install(install, position, time).expect("installs");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shard_owns_comes_with_its_state() {
    let origin = sharded(LOW).await;
    origin
        .check("{insert: 'c', documents: [{_id: 1, x: 9}, {_id: 2, x: 8}]} => {n: 2}")
        .await;
    let receiver = TestShard::open().await;
    receiver
        .check("{insert: 'c', documents: [{_id: 1, x: 30}]} => {n: 1}")
        .await;
    hand_over(&origin, &receiver);
    receiver
        .check(&format!(
            "admin {{shardingState: 1}} => {{enabled: true, shardName: 'shard0'}}
             admin {{getShardVersion: 'test.c'}} => {{global: Timestamp(1, 0)}}
             {{find: 'c', shardVersion: {}}} => {{cursor: {{firstBatch: [{{_id: 2}}, {{_id: 1}}]}}}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, x: 9}}]}}}}
             {{find: 'c', shardVersion: {}}} => 13388",
            version(1, 0),
            version(2, 0)
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_was_installed_answers_like_its_origin() {
    let origin = TestShard::open().await;
    origin
        .check(
            r#"
            {create: "gone"} => {}
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}]} => {}
            {insert: "c", documents: [{_id: 1, a: [1, 2]}, {_id: 2, a: 3}]} => {n: 2}
            {drop: "gone"} => {}
            {insert: "d", documents: [{_id: "x"}]} => {n: 1}
            "#,
        )
        .await;
    let receiver = TestShard::open().await;
    receiver
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}]} => {}
            {insert: "c", documents: [{_id: 1, a: 9}, {_id: 7, a: 9}]} => {n: 2}
            {insert: "old", documents: [{_id: 1}]} => {n: 1}
            {find: "c", filter: {_id: 7}} => {}
            "#,
        )
        .await;
    hand_over(&origin, &receiver);
    receiver
        .check(
            r#"
            {count: "c"} => {n: 2}
            {count: "old"} => {n: 0}
            {count: "d"} => {n: 1}
            {find: "c", filter: {_id: 7}} => {cursor: {firstBatch: []}}
            {find: "c", filter: {_id: 1}} => {cursor: {firstBatch: [{_id: 1, a: [1, 2]}]}}
            # The index is multikey now: both entries are of one document.
            {find: "c", filter: {a: {$gte: 1}}, hint: "a"} => {cursor: {firstBatch: [{_id: 1}, {_id: 2}]}}
            {listCollections: 1, nameOnly: true, filter: {name: "old"}} => {cursor: {firstBatch: []}}
            "#,
        )
        .await;
}

/// ⚑ Nobody is answered by a state that was being replaced when it began to be read, or was replaced since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_beside_an_installation_is_not_shown() {
    let origin = TestShard::open().await;
    origin
        .check("{insert: 'c', documents: [{_id: 1}, {_id: 2}, {_id: 3}]} => {n: 3}")
        .await;
    let receiver = TestShard::open().await;
    receiver
        .check("{insert: 'c', documents: [{_id: 7}, {_id: 8}]} => {n: 2}")
        .await;
    let installs = &receiver.shard.replica_set.installs;
    let (cursor, _) = receiver.batch("{find: 'c', batchSize: 1}").await;
    installs.begin();
    receiver
        .check(&format!(
            "{{find: 'c'}} => 13436
             {{aggregate: 'c', pipeline: [], cursor: {{}}}} => 13436
             {{count: 'c'}} => 13436
             {{listCollections: 1}} => 13436
             {{getMore: {cursor}L, collection: 'c'}} => 13436
             {{ping: 1}} => {{}}"
        ))
        .await;
    installs.end();
    receiver
        .check(&format!(
            "{{count: 'c'}} => {{n: 2}}
             {{getMore: {cursor}L, collection: 'c'}} => {{cursor: {{nextBatch: [{{_id: 8}}]}}}}"
        ))
        .await;
    // Who had begun before hears of it in the end, and its cursor does not go on behind what was not shown.
    let watch = "{aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}}";
    let (stream, _) = receiver.batch(watch).await;
    let more = format!("{{getMore: {stream}L, collection: 'c', maxTimeMS: 600000}}");
    let (reply, ()) = tokio::join!(receiver.run("test", &more), async {
        while receiver.shard.cursors.counts().1 == 0 {
            tokio::task::yield_now().await;
        }
        tokio::task::block_in_place(|| hand_over(&origin, &receiver));
    });
    let code = differential::value::get(&reply, "code");
    assert_eq!(code, Some(&Value::Int32(13436)), "{reply:?}");
    receiver
        .check(&format!(
            "{more} => 43
             {{count: 'c'}} => {{n: 3}}"
        ))
        .await;
}
