//! A shard that takes over the state of another answers like it.

use crate::testing::TestShard;
use crate::write::Applier;
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
    let (mut from, mut to) = (applier(&origin), applier(&receiver));
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
