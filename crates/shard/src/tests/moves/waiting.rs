//! What a move holds while it waits for others: as little as it can.

use super::world::{PATIENCE, World, outcome};
use crate::migration::{keep_log, running_moves};
use differential::value::{Value, get};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) async fn filled() -> World {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..50).map(|x| format!("{{_id: {x}, x: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    world
}

/// Waits until the only move of a shard is so far.
pub(super) async fn is_in(world: &World, number: usize, phase: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let moves = running_moves(&world.on(number).shard);
        if moves
            .iter()
            .any(|one| one.as_doc().get_str("phase") == Some(phase))
        {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "it never comes to {phase}: {moves:?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the donor has blocked reads, and nothing is kept.
async fn keeps_nothing(world: &World) {
    is_in(world, 0, "readsBlocked").await;
    let shard = &world.on(0).shard;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // What members keep they look at now and then.
        keep_log(shard);
        let kept = (shard.log.pinned(), shard.store.pinned_history());
        if kept == (None, None) {
            return;
        }
        assert!(Instant::now() < deadline, "{kept:?} is kept");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// ⚑ Neither log nor history are kept while the config server does not say what was decided; by the next primary
/// neither.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_while_the_config_server_is_away() {
    let mut world = filled().await;
    let authority = world.authority.clone();
    let goes_away = Box::pin(async move {
        authority.answers_lost.store(u32::MAX, Ordering::SeqCst);
    });
    world.authority.before("_configsvrCommitMove", goes_away);
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    for restarts in [false, true] {
        if restarts {
            world.restart(0).await;
        }
        match restarts {
            false => tokio::select! {
                reply = world.on(0).run("admin", &command) => panic!("{reply:?}"),
                () = keeps_nothing(&world) => {}
            },
            true => keeps_nothing(&world).await,
        }
    }
    world.authority.answers_lost.store(0, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = world.on(0).run("admin", &command).await;
        // Its background has only just begun.
        if get(&reply, "outcome").is_some() {
            assert_eq!(outcome(&reply), "committed", "{reply:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(world.shown(1).await.len(), 30);
    world.close().await;
}

/// ⚑ A recipient that prepares is one that gets on: it says what it has done.
#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_prepares_says_so() {
    let world = filled().await;
    let recipient = &world.on(1).shard;
    let held = recipient.ddl.lock().await;
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    let id = command
        .split("id: ")
        .nth(1)
        .and_then(|rest| rest.split(", ns").next());
    let question = format!("{{_terndbReceive: 1, id: {}}}", id.expect("an id"));
    let moved = world.on(0).run("admin", &command);
    let asked = async {
        let deadline = Instant::now() + PATIENCE;
        for prepared in [0, 7] {
            let count = recipient.counters.preparation();
            recipient
                .counters
                .indexed_records
                .fetch_add(prepared - count, Ordering::SeqCst);
            loop {
                let reply = world.on(1).run("admin", &question).await;
                // Before it begins it is asked for more than that.
                if let Some(Value::Int64(found)) = get(&reply, "prepared") {
                    assert_eq!(*found, prepared as i64);
                    break;
                }
                assert!(Instant::now() < deadline, "{reply:?}");
                tokio::task::yield_now().await;
            }
        }
        drop(held);
    };
    let (reply, ()) = tokio::join!(moved, asked);
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world.close().await;
}

/// ⚑ Nobody waits with a change of the catalog for a config server that a recipient asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_asks_keeps_nobody_from_the_catalog() {
    let world = filled().await;
    // A recipient that has the collection asks before it begins.
    let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let is_free = Arc::new(AtomicBool::new(false));
    let recipient = world.on(1).shard.clone();
    world.authority.before("_configsvrCatalogVersion", {
        let is_free = is_free.clone();
        Box::pin(async move {
            // Others may have it for a moment.
            while !recipient.ddl.is_free() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            is_free.store(true, Ordering::SeqCst);
        })
    });
    let reply = world.moves(0, 1, "{x: 20}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert!(is_free.load(Ordering::SeqCst), "it is held for the answer");
    world.close().await;
}

/// ⚑ Others may change the recipient's catalog without a pause: the move gets its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_is_overtaken_again_and_again_gets_its_turn() {
    let world = filled().await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let recipient = world.on(1).shard.clone();
    *world.authority.always.lock() = Some((
        "_configsvrCatalogVersion",
        Box::new(move || {
            let recipient = recipient.clone();
            Box::pin(async move {
                // Whoever asks may hold it.
                let held = tokio::time::timeout(Duration::from_millis(300), recipient.ddl.lock());
                drop(held.await);
            })
        }),
    ));
    let moved = world.moves(0, 1, "{x: 20}", "{x: 40}");
    let reply = tokio::time::timeout(PATIENCE, moved).await;
    assert_eq!(outcome(&reply.expect("it ends")), "committed");
    *world.authority.always.lock() = None;
    world.close().await;
}

/// ⚑ What a recipient has written down of itself is not forgotten by what it writes later: a new primary would
/// begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_remembers_that_it_began_with_nothing() {
    let world = filled().await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check("config {find: 'migrationRecipients'} => {cursor: {firstBatch: [{cleared: true}]}}")
        .await;
    world.close().await;
}

/// ⚑ Writes wait no longer than they may for a recipient that says nothing: neither that it is ready, nor that it
/// is not there.
#[tokio::test(flavor = "multi_thread")]
async fn writes_do_not_wait_for_a_silent_recipient() {
    let world = filled().await;
    *world.network.silences.lock() = Some(Box::new(|request| {
        request.get("_terndbReceiveFinish").is_some()
    }));
    let moved = world.moves(0, 1, "{x: 10}", "{x: 40}");
    let written = async {
        is_in(&world, 0, "writesBlocked").await;
        let began = Instant::now();
        world
            .on(0)
            .check("{update: 'c', updates: [{q: {_id: 15, x: 15}, u: {$set: {n: 1}}}]} => {n: 1}")
            .await;
        began.elapsed()
    };
    let (reply, waited) = tokio::join!(moved, written);
    // A question that nobody answers is given up after twenty seconds.
    assert!(waited < Duration::from_secs(18), "{waited:?}");
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    *world.network.silences.lock() = None;
    world.close().await;
}
