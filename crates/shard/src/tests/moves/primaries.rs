//! The primary of a database moves, with the collections that are not sharded.

use super::world::{PATIENCE, World, outcome};
use differential::value::{Value, get};
use model::bson::{DocBuf, DocWriter, ValueRef};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MOVE: &str = "{_terndbMovePrimary: 1, id: UUID(\"00000000-0000-4000-8000-200000000000\"), db: 'test', version: {uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp(3, 0), lastMod: 1}, to: 'shard1', toHost: 'shard1'}";

/// The id of that move.
const ID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0x20, 0, 0, 0, 0, 0];

/// What becomes of `test.c` if it is changed like this before the donor's next primary goes on with a copy that
/// was begun.
async fn change_between_primaries(before: &str, change: &str, after: &str) {
    let mut world = World::new("{x: 1}").await;
    world.on(0).check(before).await;
    let documents: Vec<String> = (0..40).map(|x| format!("{{_id: {x}, x: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    // The recipient has made its collection; the donor has not heard of it.
    world.network.cut_behind(1);
    tokio::select! {
        reply = world.on(0).run("admin", MOVE) => panic!("it has ended: {reply:?}"),
        () = world.network.was_cut.notified() => {}
    }
    let donor = world.reopen(0).await;
    donor.check(change).await;
    world.enter(0, donor);
    world.network.mend();
    let deadline = Instant::now() + PATIENCE;
    let moved = loop {
        let asked = tokio::time::timeout(PATIENCE, world.on(0).run("admin", MOVE));
        let reply = asked.await.expect("it ends");
        match get(&reply, "codeName") {
            // Its background has only just begun.
            Some(Value::String(name)) if name == "NotWritablePrimary" => {
                assert!(Instant::now() < deadline, "the shard does not lead");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            _ => break reply,
        }
    };
    assert_eq!(outcome(&moved), "committed", "{moved:?}");
    world.on(1).check(after).await;
    assert_eq!(world.shown(1).await.len(), 40);
    world.on(1).check_valid("c").await;
    world.close().await;
}

/// ⚑ A collection is moved as it is, not as it was when an earlier primary began to copy it.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_before_a_new_primary_goes_on_is_moved_too() {
    change_between_primaries(
        "{create: 'c'} => {}",
        "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}]} => {}",
        "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'x_1'}]}}",
    )
    .await;
    change_between_primaries(
        "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}]} => {}",
        "{dropIndexes: 'c', index: 'x_1'} => {}",
        "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}]}}",
    )
    .await;
    change_between_primaries(
        "{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1', expireAfterSeconds: 3600}]} => {}",
        "{collMod: 'c', index: {name: 'x_1', expireAfterSeconds: 7200}} => {}",
        "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'x_1', expireAfterSeconds: 7200}]}}",
    )
    .await;
}

/// ⚑ A part that does not say what its collection was begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_an_earlier_release_begins_anew() {
    change_between_primaries(
        "{create: 'c'} => {}",
        "config {update: 'migrationCoordinators', updates: [{q: {described: {$exists: true}}, u: {$unset: {described: 1}}}]} => {nModified: 1}
         {createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}]} => {}",
        "{listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'x_1'}]}}",
    )
    .await;
}

/// The times before a move that is aborted can be read as before.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_move_leaves_what_was_read_of_earlier_times() {
    let world = World::new("{x: 1}").await;
    let documents: Vec<String> = (0..40).map(|x| format!("{{_id: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    let before = world.on(0).shard.log.latest_time();
    world.on(0).insert(&["{_id: 40}".to_owned()]).await;
    assert_eq!(world.count_at(0, before).await, 40);
    world.authority.abort(&ID);
    let moved = world.on(0).run("admin", MOVE).await;
    assert_eq!(outcome(&moved), "aborted", "{moved:?}");
    assert_eq!(world.count_at(0, before).await, 40);
    assert_eq!(world.shown(0).await.len(), 41);
    world.close().await;
}

/// ⚑ What a collection was before it came with its database is not known here, nor after a restart: its copy was
/// not complete then.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_has_come_is_not_read_at_earlier_times() {
    let mut world = World::new("{x: 1}").await;
    let documents: Vec<String> = (0..40).map(|x| format!("{{_id: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    let moved = world.on(0).run("admin", MOVE).await;
    assert_eq!(outcome(&moved), "committed", "{moved:?}");
    let namespace = model::Namespace::parse("test.c").expect("a name");
    let deadline = Instant::now() + PATIENCE;
    while (world.on(1).shard.catalog.get(&namespace)).is_none_or(|it| it.ownership.is_some()) {
        assert!(Instant::now() < deadline, "it stays between two shards");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let since = (world.on(1).shard.catalog.get(&namespace)).map(|it| it.since);
    world.restart(1).await;
    let stored = (world.on(1).shard.catalog.get(&namespace)).map(|it| it.since);
    assert_eq!(stored, since);
    assert_eq!(world.shown(1).await.len(), 40);
    world.close().await;
}

/// What the donor hears of one part.
#[derive(Default)]
struct Reports {
    heard: AtomicUsize,
    /// It is told that the recipient still copies.
    copies: AtomicBool,
}

impl Reports {
    fn pass(&self, report: DocBuf) -> DocBuf {
        self.heard.fetch_add(1, Ordering::SeqCst);
        if !self.copies.load(Ordering::SeqCst) {
            return report;
        }
        let mut writer = DocWriter::new();
        for element in report.iter() {
            match element.key() {
                "scanned" => writer.append("scanned", false),
                _ => writer.append_element(&element),
            };
        }
        writer.finish()
    }

    /// So many more are heard.
    async fn more(&self, count: usize) {
        let wanted = self.heard.load(Ordering::SeqCst) + count;
        let deadline = Instant::now() + PATIENCE;
        while self.heard.load(Ordering::SeqCst) < wanted {
            assert!(Instant::now() < deadline, "nothing is heard any more");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// ⚑ A part that had caught up, and has to copy again while others still do, has not caught up: the database
/// stays open for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_falls_behind_again_keeps_the_database_open() {
    let world = World::new("{x: 1}").await;
    world
        .on(0)
        .check(
            "{insert: 'u', documents: [{_id: 1}, {_id: 2}]} => {n: 2}
             {insert: 'v', documents: [{_id: 1}, {_id: 2}, {_id: 3}]} => {n: 3}",
        )
        .await;
    let (u, v) = (Arc::new(Reports::default()), Arc::new(Reports::default()));
    v.copies.store(true, Ordering::SeqCst);
    let told = (u.clone(), v.clone());
    let tamper = move |command: &str, reply: DocBuf| match (command, reply.get("documents")) {
        ("_terndbReceive", Some(ValueRef::Int64(2))) => told.0.pass(reply),
        ("_terndbReceive", Some(ValueRef::Int64(3))) => told.1.pass(reply),
        _ => reply,
    };
    *world.network.tamper.lock() = Some(Box::new(tamper));
    let moved = world.on(0).run("admin", MOVE);
    let looks = async {
        // One has caught up, then it has not; only then has the other.
        u.more(12).await;
        u.copies.store(true, Ordering::SeqCst);
        u.more(5).await;
        v.copies.store(false, Ordering::SeqCst);
        v.more(12).await;
        let known = world.on(0).shard.sharding.database("test");
        assert!(known.is_some_and(|known| known.moving.is_none()));
        u.copies.store(false, Ordering::SeqCst);
    };
    let (reply, ()) = tokio::join!(moved, looks);
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("{count: 'u'} => {n: 2}\n{count: 'v'} => {n: 3}")
        .await;
    world.close().await;
}
