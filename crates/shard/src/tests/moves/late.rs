//! Messages that come when the move they are of has ended.

use super::world::{PATIENCE, UUID, World, document, outcome};
use differential::value::{Value, get};
use model::Namespace;
use model::bson::{DocBuf, ValueRef};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::{Endpoint, InProcess, Request};

/// A world with a move that was aborted before its recipient heard of it, and the message by which the recipient
/// was to begin.
async fn with_a_late_beginning() -> (World, DocBuf) {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    world.on(0).insert(&["{_id: 1, x: 15}".to_owned()]).await;
    let late: Arc<Mutex<Option<DocBuf>>> = Arc::default();
    *world.network.loses.lock() = Some(Box::new({
        let late = late.clone();
        move |request| {
            let is_beginning = request.get("_terndbReceive").is_some();
            if is_beginning {
                late.lock().get_or_insert_with(|| request.to_owned());
            }
            is_beginning
        }
    }));
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    let moved = world.on(0).run("admin", &command);
    let aborted = async {
        let deadline = Instant::now() + PATIENCE;
        while late.lock().is_none() {
            assert!(Instant::now() < deadline, "the recipient is never asked");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let abort = format!("{{_terndbAbortMoves: 1, ns: 'test.c', uuid: {UUID}}}");
        world.on(0).check(&format!("admin {abort} => {{}}")).await;
    };
    let (reply, ()) = tokio::join!(moved, aborted);
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    *world.network.loses.lock() = None;
    let late = late.lock().take().expect("it was sent");
    (world, late)
}

fn id_of(message: &DocBuf) -> Vec<u8> {
    match message.get("id") {
        Some(ValueRef::Binary { bytes, .. }) => bytes.to_vec(),
        other => panic!("{other:?} is no id"),
    }
}

fn forget() -> DocBuf {
    document(&format!(
        "{{_terndbForgetPlacement: 1, ns: 'test.c', uuid: {UUID}, quietly: true, $db: 'admin'}}"
    ))
}

async fn deliver(world: &World, message: DocBuf) -> DocBuf {
    let handler = Arc::new(crate::ShardHandler(world.on(1).shard.clone()));
    let request = Request::from_parts(message, Vec::new()).expect("a command");
    let reply = InProcess::new(handler).call(request).await;
    reply.expect("an answer").into_document()
}

fn is_there(world: &World) -> bool {
    let name = Namespace::new("test", "c").expect("a name");
    world.on(1).shard.catalog.get(&name).is_some()
}

/// ⚑ A beginning that comes when its move has ended, and its collection was dropped, makes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_beginning_makes_no_dropped_collection() {
    let (world, late) = with_a_late_beginning().await;
    world.authority.abort(&id_of(&late));
    assert_eq!(
        deliver(&world, forget()).await.get("ok"),
        Some(ValueRef::Double(1.0))
    );
    let reply = deliver(&world, late.clone()).await;
    assert_eq!(reply.get("code"), Some(ValueRef::Int32(96)), "{reply:?}");
    assert!(!is_there(&world));
    world
        .on(1)
        .check("config {count: 'migrationRecipients'} => {n: 0}")
        .await;
    world.close().await;
}

/// ⚑ The same if it is settled and dropped after the recipient was told that the move runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_dropped_while_a_recipient_begins_is_not_made_again() {
    let (world, late) = with_a_late_beginning().await;
    let answered = Arc::new(AtomicU32::new(0));
    *world.authority.always.lock() = Some((
        "_configsvrOutcome",
        Box::new({
            let answered = answered.clone();
            move || {
                answered.fetch_add(1, Ordering::SeqCst);
                Box::pin(async {})
            }
        }),
    ));
    // Whoever drops comes for the lock first.
    let held = world.on(1).shard.ddl.lock().await;
    let mut drops = Box::pin(deliver(&world, forget()));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut drops).await;
    assert!(waits.is_err(), "{waits:?}");
    let begins = deliver(&world, late.clone());
    let settles = async {
        let deadline = Instant::now() + PATIENCE;
        // Once at first, and once when it is about to make the collection.
        while answered.load(Ordering::SeqCst) < 2 {
            assert!(Instant::now() < deadline, "it does not ask");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.authority.abort(&id_of(&late));
        drop(held);
    };
    let (reply, (), dropped) = tokio::join!(begins, settles, drops);
    assert_eq!(
        dropped.get("ok"),
        Some(ValueRef::Double(1.0)),
        "{dropped:?}"
    );
    assert_eq!(reply.get("code"), Some(ValueRef::Int32(96)), "{reply:?}");
    assert!(!is_there(&world));
    *world.authority.always.lock() = None;
    world.close().await;
}

/// A recipient that cannot ask whether the move runs begins later.
#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_waits_for_the_config_server() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    world.on(0).insert(&["{_id: 1, x: 15}".to_owned()]).await;
    world.authority.answers_lost.store(3, Ordering::SeqCst);
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)));
    world.close().await;
}
