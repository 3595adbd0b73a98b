//! Documents as large as they can be, and how many of them are under way at once.

use super::world::{PATIENCE, World, outcome};
use crate::migration::running_moves;
use differential::value::{Value, get};
use model::bson::{DocBuf, DocWriter, MAX_DOCUMENT_BYTES, ValueRef};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Endpoint, InProcess, Request};

/// A document of exactly so many bytes.
fn weighing(id: i32, bytes: usize) -> DocBuf {
    let with_text = |text: &str| {
        let writer = DocWriter::new().with("_id", id).with("x", id);
        writer.with("t", text).finish()
    };
    let room = bytes - with_text("").as_bytes().len();
    let document = with_text(&"t".repeat(room));
    assert_eq!(document.as_bytes().len(), bytes);
    document
}

async fn send(world: &World, body: DocWriter) -> DocBuf {
    let handler = Arc::new(crate::ShardHandler(world.on(0).shard.clone()));
    let body = body.with("$db", "test").finish();
    let request = Request::from_parts(body, Vec::new()).expect("a command");
    let reply = InProcess::new(handler).call(request).await;
    reply.expect("an answer").into_document()
}

async fn insert(world: &World, document: &DocBuf) {
    let mut body = DocWriter::new().with("insert", "c");
    body.begin_array("documents").push(document).end();
    let reply = send(world, body).await;
    assert_eq!(reply.as_doc().get_array("writeErrors"), None);
}

/// The greatest documents there can be come with the scan, and through the log.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_sixteen_mebibytes_move() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    for id in [1, 2] {
        insert(&world, &weighing(id, MAX_DOCUMENT_BYTES)).await;
    }
    insert(&world, &weighing(3, 100)).await;
    // One that is replaced, one that is new, when the scan is over: the recipient is behind until then.
    let config = world.authority.clone();
    config
        .changes
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let command = world.command(0, 1, "{x: MinKey}", "{x: MaxKey}");
    let moved = world.on(0).run("admin", &command);
    let written = async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let moves = running_moves(&world.on(1).shard);
            let documents =
                |one: &DocBuf| one.as_doc().get("documents") == Some(ValueRef::Int64(3));
            if moves.iter().any(documents) {
                break;
            }
            assert!(Instant::now() < deadline, "they never come: {moves:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        insert(&world, &weighing(4, MAX_DOCUMENT_BYTES)).await;
        world
            .on(0)
            .check("{delete: 'c', deletes: [{q: {_id: 3, x: 3}, limit: 1}]} => {n: 1}")
            .await;
        insert(&world, &weighing(3, MAX_DOCUMENT_BYTES)).await;
        config
            .changes
            .store(false, std::sync::atomic::Ordering::SeqCst);
    };
    let (reply, ()) = tokio::join!(moved, written);
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let name = model::Namespace::new("test", "c").expect("a name");
    let shard = &world.on(1).shard;
    let collection = shard.catalog.get(&name).expect("it is there");
    let counter = shard.store.collection_counter(collection.id);
    assert_eq!(
        (counter.items, counter.bytes),
        (4, 4 * MAX_DOCUMENT_BYTES as u64)
    );
    world.on(1).check_valid("c").await;
    world.close().await;
}

/// With `secondaryThrottle` each batch is applied, by a majority, before the next is written; what the recipient
/// tells of its side is its own.
#[tokio::test(flavor = "multi_thread")]
async fn secondary_throttle_leaves_nothing_under_way() {
    for throttle in [true, false] {
        let world = World::new("{x: 1}").await;
        world.create("{key: {x: 1}, name: 'x_1'}").await;
        for id in 0..20 {
            insert(&world, &weighing(id, 500_000)).await;
        }
        // Clients do not slow it down, either way.
        for number in 0..2 {
            world
                .on(number)
                .check("admin {setParameter: 1, movePacingEnabled: false} => {}")
                .await;
        }
        let command = world.command(0, 1, "{x: MinKey}", "{x: MaxKey}");
        let command = match throttle {
            true => command.replace("secondaryThrottle: false", "secondaryThrottle: true"),
            false => command,
        };
        let reply = world.on(0).run("admin", &command).await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        let to = get(&reply, "stats").and_then(|stats| stats.get("to"));
        let to = to.expect("the recipient's side");
        assert_eq!(to.get("clonedDocs"), Some(&Value::Int64(20)));
        let Some(Value::Int64(in_flight)) = to.get("entriesInFlight") else {
            panic!("{to:?}");
        };
        assert_eq!(*in_flight == 0, throttle, "{to:?}");
        world
            .on(1)
            .check(&format!(
                "config {{count: 'migrationRecipients', query: {{secondaryThrottle: {throttle}}}}} => {{n: 1}}"
            ))
            .await;
        world.close().await;
    }
}
