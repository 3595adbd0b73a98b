//! What ends a move before it is decided, and what does not.

use super::world::{World, document, outcome, version};
use crate::tests::transitions;
use differential::value::{Value, get};
use model::bson::{DocWriter, ValueRef};
use std::sync::atomic::Ordering;
use std::time::Duration;

async fn filled(key: &'static str, documents: &[String]) -> World {
    let world = World::new(key).await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    if !documents.is_empty() {
        world.on(0).insert(documents).await;
    }
    world
}

fn ascending(count: i32) -> Vec<String> {
    (0..count)
        .map(|x| format!("{{_id: {x}, x: {x}, t: 'text'}}"))
        .collect()
}

async fn stays(world: &World, documents: usize) {
    assert_eq!(world.shown(0).await.len(), documents);
    assert_eq!(world.shown(1).await.len(), 0);
    // Nothing is blocked.
    world
        .on(0)
        .check("{insert: 'c', documents: [{_id: 'after', x: 7}]} => {n: 1}")
        .await;
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 'there', x: 7}]} => 13388")
        .await;
}

/// ⚑ Donor and recipient compare what they hold; a difference ends the move.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_did_not_arrive_is_noticed() {
    let world = filled("{x: 1}", &ascending(50)).await;
    *world.network.tamper.lock() = Some(Box::new(|command, reply| {
        if command != "_terndbMoveCopy" {
            return reply;
        }
        let mut writer = DocWriter::new();
        writer.begin_array("documents");
        let documents = reply.as_doc().get_array("documents").expect("documents");
        for document in documents.iter().skip(1) {
            writer.push(document);
        }
        writer.end();
        writer.append("next", ValueRef::Null).append("ok", 1.0);
        writer.finish()
    }));
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "aborted");
    let Some(Value::String(reason)) = get(&reply, "reason") else {
        panic!("{reply:?}");
    };
    assert!(
        reason.contains("do not hold the same documents"),
        "{reason}"
    );
    stays(&world, 50).await;
    world.close().await;
}

/// The same for bytes that arrive and are others.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_arrives_changed_is_noticed() {
    let world = filled("{x: 1}", &ascending(50)).await;
    *world.network.tamper.lock() = Some(Box::new(|command, reply| {
        if command != "_terndbMoveCopy" {
            return reply;
        }
        let mut bytes = reply.into_bytes();
        let place = bytes.windows(4).position(|part| part == b"text");
        if let Some(place) = place {
            bytes[place] = b'T';
        }
        model::bson::DocBuf::from_bytes(bytes).expect("still BSON")
    }));
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "aborted");
    stays(&world, 50).await;
    world.close().await;
}

/// ⚑ A lost answer to the commit is never taken for an abort.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_the_commit_is_asked_for_again() {
    let world = filled("{x: 1}", &ascending(50)).await;
    let authority = world.authority.clone();
    let loses = Box::pin(async move { authority.answers_lost.store(3, Ordering::SeqCst) });
    world.authority.before("_configsvrCommitMove", loses);
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed");
    assert_eq!(world.shown(1).await.len(), 30);
    assert_eq!(world.authority.is_decided(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_owned_is_not_moved() {
    let world = filled("{x: 1}", &ascending(50)).await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed");
    let again = world.command(0, 1, "{x: 20}", "{x: 60}");
    world.on(0).check(&format!("admin {again} => 20")).await;
    let from_recipient = world.command(1, 0, "{x: 0}", "{x: 20}");
    world
        .on(1)
        .check(&format!("admin {from_recipient} => 20"))
        .await;
    world.close().await;
}

/// The same move is answered again, and not carried out again.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_has_ended_is_answered_for() {
    let world = filled("{x: 1}", &ascending(50)).await;
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    for _ in 0..3 {
        let reply = world.on(0).run("admin", &command).await;
        assert_eq!(outcome(&reply), "committed");
    }
    let version = document(&version(2, 1));
    assert_eq!(world.authority.is_decided(), 1);
    assert!(!version.as_doc().is_empty());
    world.close().await;
}

/// Documents at the ends of the key's order, without the key, and with several types.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_key_moves() {
    let documents: Vec<String> = [
        "{_id: 1, x: MinKey}",
        "{_id: 2}",
        "{_id: 3, x: null}",
        "{_id: 4, x: 5.5}",
        "{_id: 5, x: 5L}",
        "{_id: 6, x: 'text'}",
        "{_id: 7, x: {a: 1}}",
        "{_id: 8, x: MaxKey}",
        "{_id: 9, x: true}",
    ]
    .map(str::to_owned)
    .to_vec();
    let world = filled("{x: 1}", &documents).await;
    let reply = world.moves(0, 1, "{x: MinKey}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 0);
    assert_eq!(world.shown(1).await.len(), 9);
    world.on(1).check_valid("c").await;
    world.close().await;
}

/// A key of fields within documents, some of which are not there.
#[tokio::test(flavor = "multi_thread")]
async fn keys_with_dotted_fields_move() {
    let world = World::new("{'a.b': 1, 'c.d.e': 1}").await;
    world
        .create("{key: {'a.b': 1, 'c.d.e': 1}, name: 'key'}")
        .await;
    let documents: Vec<String> = (0..100)
        .map(|x| match x % 4 {
            0 => format!("{{_id: {x}, a: {{b: {x}}}}}"),
            1 => format!("{{_id: {x}, a: {{b: {x}, c: 1}}, c: {{d: {{}}}}}}"),
            2 => format!("{{_id: {x}, a: {{b: {x}}}, c: {{d: {{e: {x}}}}}}}"),
            _ => format!("{{_id: {x}, c: {{d: {{e: {x}}}}}}}"),
        })
        .collect();
    world.on(0).insert(&documents).await;
    let bound = |x: i32, y: &str| format!("{{'a.b': {x}, 'c.d.e': {y}}}");
    let (low, high) = (bound(20, "MinKey"), bound(62, "62"));
    let reply = world.moves(0, 1, &low, &high).await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    // The last one is the range's end, and stays.
    let moved = (20..62).filter(|x| x % 4 != 3).count();
    assert_eq!(world.shown(1).await.len(), moved);
    assert_eq!(world.shown(0).await.len(), 100 - moved);
    for number in 0..2 {
        world.on(number).check_valid("c").await;
    }
    world
        .on(1)
        .check(
            "
            {update: 'c', updates: [{q: {'a.b': 21}, u: {$set: {seen: true}}}]} => {n: 1}
            {find: 'c', filter: {seen: {$ne: null}}} => {cursor: {firstBatch: [{_id: 21}]}}
            {insert: 'c', documents: [{_id: 'new', a: {b: 62}, c: {d: {e: 62}}}]} => 13388
            {insert: 'c', documents: [{_id: 'new', a: {b: 62}, c: {d: {e: 61}}}]} => {n: 1}
            ",
        )
        .await;
    world.close().await;
}

/// ⚑ An `_id` is unique among what is owned: also where a document that is not owned has it too.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_owned_is_met_behind_an_orphan() {
    let world = filled("{x: 1}", &["{_id: 1, x: 5}".to_owned()]).await;
    for (from, to) in [(0, 1), (1, 0)] {
        let reply = world.moves(from, to, "{x: 0}", "{x: 10}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    // An orphan with this `_id` is left there, and one that is owned comes behind it.
    let reply = world.moves(0, 1, "{x: 50}", "{x: 60}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 1, x: 50}]} => {n: 1}")
        .await;
    world
        .on(0)
        .check(
            "
            {delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}
            {insert: 'c', documents: [{_id: 1, x: 100}]} => {n: 1}
            ",
        )
        .await;
    let reply = world.moves(0, 1, "{x: 100}", "{x: 110}").await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    assert_eq!(world.shown(1).await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_range_moves() {
    let world = filled("{x: 1}", &[]).await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 1, x: 15}]} => {n: 1}")
        .await;
    world.close().await;
}

/// Ranges of hashes, up to the ends of 64 bits.
#[tokio::test(flavor = "multi_thread")]
async fn hashed_keys_move_at_the_borders_of_hashes() {
    let world = World::new("{x: \"hashed\"}").await;
    world.create("{key: {x: 'hashed'}, name: 'x_hashed'}").await;
    world.on(0).insert(&ascending(200)).await;
    let reply = world.moves(0, 1, "{x: 0L}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let (low, high) = (world.shown(0).await.len(), world.shown(1).await.len());
    assert!(low > 0 && high > 0 && low + high == 200, "{low} {high}");
    let reply = world
        .moves(0, 1, "{x: MinKey}", "{x: -9223372036854775807L}")
        .await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    // And back, with the greatest hash as a bound.
    for (min, max) in [
        ("{x: 9223372036854775807L}", "{x: MaxKey}"),
        ("{x: 0L}", "{x: 9223372036854775807L}"),
        ("{x: MinKey}", "{x: -9223372036854775807L}"),
    ] {
        let reply = world.moves(1, 0, min, max).await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    assert_eq!(world.shown(0).await.len(), 200);
    assert_eq!(world.shown(1).await.len(), 0);
    world.on(0).check_valid("c").await;
    world.on(1).check_valid("c").await;
    world.close().await;
}

/// ⚑ A collection in another order: documents are asked one by one, and one that would take
/// another's place ends the move.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_in_the_order_of_ids_moves_too() {
    let world = World::new("{x: 1}").await;
    world
        .on(0)
        .check("{insert: 'c', documents: [{_id: 0, x: -1}]} => {n: 1}")
        .await;
    let uuid = {
        let reply = world.on(0).run("test", "{listCollections: 1}").await;
        let Some(Value::Array(all)) = get(&reply, "cursor").and_then(|c| c.get("firstBatch"))
        else {
            panic!("{reply:?}");
        };
        let info = all[0].get("info").and_then(|info| info.get("uuid"));
        differential::notation::print(info.expect("a uuid"))
    };
    world.create_as(&uuid, "{key: {x: 1}, name: 'x_1'}").await;
    world
        .on(0)
        .insert(
            &(1..100)
                .map(|x| format!("{{_id: {x}, x: {}}}", 100 - x))
                .collect::<Vec<_>>(),
        )
        .await;
    let command = world
        .command(0, 1, "{x: 50}", "{x: MaxKey}")
        .replace(super::world::UUID, &uuid);
    let reply = world.on(0).run("admin", &command).await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 50);
    assert_eq!(world.shown(1).await.len(), 50);
    // An `_id` that is there under another key.
    world
        .on(0)
        .check("{insert: 'c', documents: [{_id: 7, x: 20}]} => {n: 1}")
        .await;
    let command = world
        .command(0, 1, "{x: 10}", "{x: 50}")
        .replace(super::world::UUID, &uuid);
    let reply = world.on(0).run("admin", &command).await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    assert_eq!(world.shown(1).await.len(), 50);
    world.on(1).check_valid("c").await;
    world.close().await;
}

/// ⚑ An `_id` that the recipient has in a range of its own ends the move.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_taken_on_the_recipient_ends_the_move() {
    let world = filled("{x: 1}", &ascending(50)).await;
    let reply = world.moves(0, 1, "{x: 30}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 5, x: 99}]} => {n: 1}")
        .await;
    let reply = world.moves(0, 1, "{x: 0}", "{x: 30}").await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 30);
    assert_eq!(world.shown(1).await.len(), 21);
    world.close().await;
}

/// ⚑ A copy that ends while more of it is on its way ends: nobody waits to hand over what nobody takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_many_answers_ends_with_its_first_fault() {
    let text = "t".repeat(100_000);
    let large = |x| format!("{{_id: {x}, x: {x}, t: '{text}'}}");
    let documents: Vec<String> = (0..40).map(large).collect();
    let world = filled("{x: 1}", &documents).await;
    let reply = world.moves(0, 1, "{x: 39}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 0, x: 99}]} => {n: 1}")
        .await;
    let reply = world.moves(0, 1, "{x: 0}", "{x: 39}").await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    // Services of the primary end with their tasks.
    let closed = tokio::time::timeout(Duration::from_secs(60), world.close()).await;
    closed.expect("everything ends");
}

/// ⚑ A database is forgotten only where nothing of it is owned, also if that changed while others had the lock.
#[tokio::test(flavor = "multi_thread")]
async fn what_begins_to_come_is_not_forgotten_with_its_database() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    for (from, to) in [(0, 1), (1, 0)] {
        let reply = world.moves(from, to, "{x: 0}", "{x: 10}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    let shard = world.on(1);
    let held = shard.shard.ddl.lock().await;
    let forget = "{_terndbForgetDatabase: 1, db: 'test', quietly: true, unlessOwned: true}";
    let mut forgets = Box::pin(shard.run("admin", forget));
    // It comes as far as the lock.
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut forgets).await;
    assert!(waits.is_err(), "{waits:?}");
    let range = transitions::range(shard, 20, 30);
    let changed = transitions::change(shard, |known| {
        known.with_receiving(transitions::MOVE, range.clone())
    });
    changed.await.expect("a range begins to come");
    drop(held);
    let reply = forgets.await;
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(117)), "{reply:?}");
    transitions::collection(shard);
    world.close().await;
}
