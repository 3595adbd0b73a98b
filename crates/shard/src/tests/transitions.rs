//! Ownership changes by entries that also hold state documents; all of it survives.

use crate::catalog::Collection;
use crate::command::envelope::WriteConcern;
use crate::sharding::{
    BlockLevel, Expectation, Ownership, ReceivedChange, StateChange, StateWrite, Transition,
};
use crate::testing::TestShard;
use crate::tests::copying::hand_over;
use crate::tests::sharding::{HIGH, LOW, WHOLE, placed, sharded};
use model::bson::{DocBuf, DocWriter, Value};
use model::ids::Uuid;
use model::range::KeyRange;
use model::{Code, Error, Namespace};
use std::sync::Arc;

pub(super) const MOVE: Uuid = Uuid([7; 16]);

pub(super) fn collection(shard: &TestShard) -> Arc<Collection> {
    let namespace = Namespace::new("test", "c").expect("a name");
    shard.shard.catalog.get(&namespace).expect("is there")
}

pub(super) fn ownership(shard: &TestShard) -> Arc<Ownership> {
    collection(shard).ownership.clone().expect("is sharded")
}

/// Documents with `x` from one number on and below another.
pub(super) fn range(shard: &TestShard, min: i32, max: i32) -> KeyRange {
    let bound = |x: i32| DocWriter::new().with("x", x).finish();
    let pattern = &ownership(shard).pattern;
    let range = pattern.range_of(bound(min).as_doc(), bound(max).as_doc());
    range.expect("bounds")
}

pub(super) async fn change(
    shard: &TestShard,
    change: impl Fn(&Ownership) -> Result<Ownership, Error> + Send + Sync,
) -> Result<crate::sharding::Applied, Error> {
    let transition = Transition {
        ownership: Some(Box::new(change)),
        ..Transition::default()
    };
    let id = collection(shard).id;
    shard.shard.transition(id, &transition).await
}

fn state(id: i32, phase: &str) -> DocBuf {
    DocWriter::new()
        .with("_id", id)
        .with("phase", phase)
        .finish()
}

fn coordinators() -> Namespace {
    Namespace::new("config", "migrationCoordinators").expect("a name")
}

fn put(id: i32, phase: &str) -> StateWrite {
    StateWrite {
        namespace: coordinators(),
        change: StateChange::Put(state(id, phase)),
    }
}

pub(super) fn received(shard: &TestShard, id: i32, x: i32) -> ReceivedChange {
    let document = DocWriter::new().with("_id", id).with("x", x).finish();
    let key = collection(shard).record_key(document.as_doc());
    ReceivedChange {
        key: key.expect("a key"),
        document: Some(document),
    }
}

pub(super) async fn receive(shard: &TestShard, changes: &[ReceivedChange]) -> Result<(), Error> {
    let id = collection(shard).id;
    let term = shard.shard.log.leading().expect("it leads");
    let written = shard
        .shard
        .write_received(term, id, MOVE, changes, &[], WriteConcern::Majority);
    written.await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_and_documents_are_there_after_a_restart_and_in_a_copy() {
    let shard = sharded(WHOLE).await;
    let blocked = range(&shard, 3, 6);
    let transition = Transition {
        ownership: Some(Box::new(|known: &Ownership| {
            Ok(known.with_block(MOVE, blocked.clone(), BlockLevel::Reads))
        })),
        documents: vec![put(1, "blocked")],
        ..Transition::default()
    };
    let id = collection(&shard).id;
    let applied = shard.shard.transition(id, &transition).await;
    let applied = applied.expect("is applied");
    assert_eq!(shard.shard.store.applied(), applied.position.get());
    let check = async |shard: &TestShard| {
        let known = ownership(shard);
        let [block] = &known.moving.blocks[..] else {
            panic!("{:?}", known.moving);
        };
        assert_eq!(block.range, blocked);
        assert_eq!(block.level, BlockLevel::Reads);
        assert_eq!(block.since, Some(applied.time));
        shard
            .check("config {find: 'migrationCoordinators'} => {cursor: {firstBatch: [{_id: 1, phase: 'blocked'}]}}")
            .await;
    };
    check(&shard).await;
    let receiver = TestShard::open().await;
    hand_over(&shard, &receiver);
    check(&receiver).await;
    let shard = shard.reopen().await;
    check(&shard).await;
    // Repeated, it changes nothing.
    let before = ownership(&shard);
    let again = change(&shard, |known| {
        Ok(known.with_block(MOVE, blocked.clone(), BlockLevel::Reads))
    });
    again.await.expect("is fine");
    assert!(Arc::ptr_eq(&before, &ownership(&shard)));
    let lifted = change(&shard, |known| Ok(known.without_block(MOVE))).await;
    lifted.expect("is applied");
    assert!(ownership(&shard).moving.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_where_an_expectation_fails() {
    let shard = sharded(WHOLE).await;
    let expecting = |phase: Option<&'static str>| Expectation {
        namespace: coordinators(),
        id: Value::Int32(1),
        holds: Box::new(move |found| found.and_then(|doc| doc.get_str("phase")) == phase),
    };
    let id = collection(&shard).id;
    let table = [
        (None, "copying", true),
        (None, "late", false),
        (Some("copying"), "blocked", true),
        (Some("copying"), "late", false),
    ];
    for (expected, phase, holds) in table {
        let transition = Transition {
            documents: vec![put(1, phase)],
            expect: vec![expecting(expected)],
            ..Transition::default()
        };
        let written = shard.shard.transition(id, &transition).await;
        let code = written.map(|_| ()).map_err(|error| error.code);
        let refused = Err(Code::CONFLICTING_OPERATION_IN_PROGRESS);
        assert_eq!(code, if holds { Ok(()) } else { refused }, "{phase}");
    }
    shard
        .check("config {find: 'migrationCoordinators'} => {cursor: {firstBatch: [{_id: 1, phase: 'blocked'}]}}")
        .await;
    let removal = Transition {
        documents: vec![StateWrite {
            namespace: coordinators(),
            change: StateChange::Delete(Value::Int32(1)),
        }],
        ..Transition::default()
    };
    let removed = shard.shard.transition(id, &removal).await;
    removed.expect("is applied");
    shard
        .check("config {count: 'migrationCoordinators'} => {n: 0}")
        .await;
}

/// ⚑ What is received is stored and not seen, until its range is owned.
#[tokio::test(flavor = "multi_thread")]
async fn a_received_range_is_seen_when_it_is_owned() {
    let shard = sharded(LOW).await;
    shard
        .check("{insert: 'c', documents: [{_id: 1, x: 1}]} => {n: 1}")
        .await;
    let arriving = range(&shard, 10, 20);
    let documents = [received(&shard, 3, 12), received(&shard, 2, 13)];
    // Not registered yet.
    let refused = receive(&shard, &documents)
        .await
        .map_err(|error| error.code);
    assert_eq!(refused, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    let begun = change(&shard, |known| known.with_receiving(MOVE, arriving.clone())).await;
    begun.expect("is applied");
    receive(&shard, &documents).await.expect("is stored");
    let doubled = [received(&shard, 1, 15)];
    let refused = receive(&shard, &doubled).await.map_err(|error| error.code);
    assert_eq!(refused, Err(Code::DUPLICATE_KEY));
    // Outside of the range.
    let outside = [received(&shard, 4, 25)];
    let refused = receive(&shard, &outside).await.map_err(|error| error.code);
    assert_eq!(refused, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    let hidden = "{find: 'c'} => {cursor: {firstBatch: [{_id: 1, x: 1}]}}
         {find: 'c', filter: {_id: 2}} => {cursor: {firstBatch: []}}
         {count: 'c'} => {n: 1}
         {insert: 'c', documents: [{_id: 9, x: 14}]} => 13388
         {insert: 'c', documents: [{_id: 3, x: 4}]} => 11000
         {update: 'c', updates: [{q: {x: 12}, u: {$set: {y: 1}}, multi: true}]} => {n: 0}
         {delete: 'c', deletes: [{q: {_id: 3}, limit: 1}]} => {n: 0}
         # Not by the placement of a whole either: the move decides.
         admin PLACED => 117";
    let placed = placed("_terndbSetPlacement", (2, 0), (2, 1), WHOLE);
    shard.check(&hidden.replace("PLACED", &placed)).await;
    let shard = shard.reopen().await;
    shard.check(&hidden.replace("PLACED", &placed)).await;
    let gone = ReceivedChange {
        document: None,
        ..documents[1].clone()
    };
    receive(&shard, &[gone]).await.expect("is stored");
    let owned = change(&shard, |known| {
        Ok(known.without_receiving(MOVE).gaining(arriving.clone()))
    });
    owned.await.expect("is applied");
    assert!(!ownership(&shard).orphans);
    shard
        .check("{find: 'c'} => {cursor: {firstBatch: [{_id: 1, x: 1}, {_id: 3, x: 12}]}}")
        .await;
    shard.check_valid("c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_received_whole_is_dead() {
    let shard = sharded(LOW).await;
    let arriving = range(&shard, 10, 20);
    let begin = || change(&shard, |known| known.with_receiving(MOVE, arriving.clone()));
    begin().await.expect("is applied");
    receive(&shard, &[received(&shard, 1, 12)])
        .await
        .expect("is stored");
    let given_up = change(&shard, |known| Ok(known.without_receiving(MOVE))).await;
    given_up.expect("is applied");
    assert!(ownership(&shard).orphans);
    // ⚑ It has to be removed before the range comes again.
    let code = begin().await.map_err(|error| error.code);
    assert_eq!(code, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    let removed = change(&shard, |known| Ok(known.without_dead(arriving.clone())));
    removed.await.expect("is applied");
    begin().await.expect("is applied");
    let other = sharded(HIGH).await;
    let owned = change(&other, |known| known.with_receiving(MOVE, arriving.clone()));
    let code = owned.await.map_err(|error| error.code);
    assert_eq!(code, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
}

/// ⚑ Where documents are ordered by `_id` alone, nobody takes the place of one that has come.
#[tokio::test(flavor = "multi_thread")]
async fn a_received_document_keeps_its_place() {
    let shard = crate::tests::sharding::member_of_cluster().await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1, x: 1}]} => {n: 1}
             {createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}]} => {}",
        )
        .await;
    let uuid = format!("UUID(\"{}\")", collection(&shard).uuid);
    let create = placed("_terndbCreateSharded", (1, 0), (1, 2), LOW);
    let create = create.replace(crate::tests::sharding::UUID, &uuid);
    shard.check(&format!("admin {create} => {{}}")).await;
    let arriving = range(&shard, 10, 20);
    let begun = change(&shard, |known| {
        let empty = known.without_dead(arriving.clone());
        empty.with_receiving(MOVE, arriving.clone())
    });
    begun.await.expect("is applied");
    receive(&shard, &[received(&shard, 2, 12)])
        .await
        .expect("is stored");
    let taken = receive(&shard, &[received(&shard, 1, 13)]).await;
    assert_eq!(
        taken.map_err(|error| error.code),
        Err(Code::DUPLICATE_KEY),
        "the place is an owned document's"
    );
    shard
        .check(
            "{insert: 'c', documents: [{_id: 2, x: 5}]} => 11000
             {find: 'c'} => {cursor: {firstBatch: [{_id: 1, x: 1}]}}",
        )
        .await;
    shard.check_valid("c").await;
}
