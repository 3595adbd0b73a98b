//! `killOp` of one move, in each of its phases: what was decided stays, and nothing is blocked afterwards.

use super::waiting::{filled, is_in};
use super::world::{PATIENCE, World, outcome};
use crate::migration::running_moves;
use differential::value::{Fields, Value, get};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const RANGE: [&str; 2] = ["{x: 10}", "{x: 40}"];

/// What the shards of a world answer as soon as a condition holds.
async fn within<T>(awaited: impl Future<Output = T>) -> T {
    let awaited = tokio::time::timeout(PATIENCE, awaited).await;
    awaited.expect("it takes too long")
}

/// The operation by which a side of the only move is shown.
fn operation_of(world: &World, number: usize, side: &str) -> Option<i32> {
    let moves = running_moves(&world.on(number).shard);
    let shown = moves
        .iter()
        .find(|one| one.as_doc().get_str("desc") == Some(side))?;
    match shown.as_doc().get("opid") {
        Some(model::bson::ValueRef::Int32(id)) => Some(id),
        _ => None,
    }
}

/// The same, once it is shown: a recipient is, a moment after its donor copies.
async fn operation_shown(world: &World, number: usize, side: &str) -> i32 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(id) = operation_of(world, number, side) {
            return id;
        }
        assert!(Instant::now() < deadline, "{side} is not shown");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn kill(world: &World, number: usize, side: &str) {
    let id = operation_shown(world, number, side).await;
    let command = format!("admin {{killOp: 1, op: {id}}} => {{info: 'attempting to kill op'}}");
    world.on(number).check(&command).await;
}

/// Messages of a kind are lost from now on; nobody is told so.
fn silence(world: &World, command: &'static str) {
    let silences =
        move |body: model::bson::Doc<'_>| body.first().is_some_and(|first| first.key() == command);
    *world.network.silences.lock() = Some(Box::new(silences));
}

/// The same, and whoever sends them knows.
fn lose(world: &World, command: &'static str) {
    let loses = move |body: model::bson::Doc<'_>| {
        let first = body.first();
        first.is_some_and(|first| first.key() == command)
    };
    *world.network.loses.lock() = Some(Box::new(loses));
}

fn hear(world: &World) {
    *world.network.silences.lock() = None;
}

fn is_interrupted(reply: &Fields) {
    assert_eq!(outcome(reply), "aborted", "{reply:?}");
    let code = get(reply, "reasonCode");
    assert_eq!(code, Some(&Value::Int32(11601)), "{reply:?}");
}

/// Nothing was moved and nothing is blocked; then it is moved after all.
async fn goes_on(world: &World) {
    hear(world);
    assert_eq!(world.shown(0).await.len(), 50);
    let write = "{update: 'c', updates: [{q: {x: 15}, u: {$set: {y: 1}}}]} => {n: 1}";
    world.on(0).check(write).await;
    // The recipient of the killed one may still hear of it.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let moved = tokio::time::timeout(PATIENCE, world.moves(0, 1, RANGE[0], RANGE[1]));
        let reply = moved.await.unwrap_or_else(|_| {
            let moves = [0, 1].map(|number| running_moves(&world.on(number).shard));
            panic!("it does not end: {moves:?}")
        });
        match get(&reply, "outcome") {
            Some(Value::String(outcome)) if outcome == "committed" => break,
            _ => assert!(Instant::now() < deadline, "{reply:?}"),
        }
    }
    assert_eq!(world.shown(0).await.len(), 20);
    assert_eq!(world.shown(1).await.len(), 30);
    for number in [0, 1] {
        world.on(number).check_valid("c").await;
    }
}

/// ⚑ Before anything was asked of the config server it is aborted, however silent the recipient is.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_move_is_aborted() {
    for (silent, phase) in [
        ("_terndbReceive", "recipientBegins"),
        ("_terndbMoveCopy", "copying"),
        // Indexes are about to change, and it waits for that.
        ("nobody", "catchingUp"),
        ("_terndbMoveTail", "writesBlocked"),
        ("_terndbReceiveFinish", "writesBlocked"),
    ] {
        let world = filled().await;
        silence(&world, silent);
        let changes = &world.authority.changes;
        changes.store(silent == "nobody", Ordering::SeqCst);
        let command = world.command(0, 1, RANGE[0], RANGE[1]);
        let killed = async {
            is_in(&world, 0, phase).await;
            kill(&world, 0, "MoveRangeDonor").await;
        };
        let began = Instant::now();
        let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
        let (reply, ()) = within(both).await;
        is_interrupted(&reply);
        // Nobody waited for the one that is silent.
        assert!(began.elapsed() < Duration::from_secs(15), "{phase}");
        // ⚑ It is decided: who asks again does not begin it anew, whoever is the primary.
        assert_eq!(world.authority.is_decided(), 1, "{phase}");
        is_interrupted(&within(world.on(0).run("admin", &command)).await);
        changes.store(false, Ordering::SeqCst);
        goes_on(&world).await;
        world.close().await;
    }
}

/// ⚑ When the config server is asked, it has decided or it has not: what it says counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_being_decided_is_settled() {
    for is_decided in [false, true] {
        let world = filled().await;
        match is_decided {
            false => silence(&world, "_configsvrCommitMove"),
            // The recipient does not hear of it.
            true => lose(&world, "_terndbReceiveRelease"),
        }
        let command = world.command(0, 1, RANGE[0], RANGE[1]);
        let killed = async {
            match is_decided {
                false => is_in(&world, 0, "readsBlocked").await,
                true => is_in(&world, 0, "committed").await,
            }
            kill(&world, 0, "MoveRangeDonor").await;
            *world.network.loses.lock() = None;
        };
        let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
        let (reply, ()) = within(both).await;
        match is_decided {
            false => {
                is_interrupted(&reply);
                goes_on(&world).await;
            }
            true => {
                assert_eq!(outcome(&reply), "committed", "{reply:?}");
                assert_eq!(get(&reply, "reasonCode"), None);
                assert_eq!(world.shown(1).await.len(), 30);
            }
        }
        world.close().await;
    }
}

/// ⚑ An answer that was lost is no abort: the config server decided, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_outlives_a_kill() {
    let world = filled().await;
    let authority = world.authority.clone();
    let goes_away = Box::pin(async move {
        authority.answers_lost.store(u32::MAX, Ordering::SeqCst);
    });
    world.authority.before("_configsvrCommitMove", goes_away);
    let command = world.command(0, 1, RANGE[0], RANGE[1]);
    let killed = async {
        is_in(&world, 0, "readsBlocked").await;
        let deadline = Instant::now() + PATIENCE;
        while world.authority.is_decided() == 0 {
            assert!(Instant::now() < deadline, "nothing is decided");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        kill(&world, 0, "MoveRangeDonor").await;
        world.authority.answers_lost.store(0, Ordering::SeqCst);
    };
    let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
    let (reply, ()) = within(both).await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 20);
    assert_eq!(world.shown(1).await.len(), 30);
    world.close().await;
}

/// ⚑ Who kills a move whose commit waits for a change of indexes does not wait for that, and does not end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_indexes_outlives_a_killed_move() {
    let world = filled().await;
    lose(&world, "_terndbMoveCopy");
    let create = "{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y_1'}]}";
    let created = world.changes_indexes(create);
    world.authority.before("_configsvrCommitMove", created);
    let command = world.command(0, 1, RANGE[0], RANGE[1]);
    let killed = async {
        is_in(&world, 0, "copying").await;
        // The change is held up, because it needs the lock.
        let held = world.on(0).shard.ddl.lock().await;
        *world.network.loses.lock() = None;
        let deadline = Instant::now() + PATIENCE;
        while !world.authority.changes.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "the commit is never asked for");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        kill(&world, 0, "MoveRangeDonor").await;
        held
    };
    let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
    let (reply, held) = within(both).await;
    is_interrupted(&reply);
    assert!(world.authority.changes.load(Ordering::SeqCst));
    drop(held);
    goes_on(&world).await;
    assert_eq!(world.indexes(0).await.len(), 3);
    assert_eq!(world.indexes(0).await, world.indexes(1).await);
    world.close().await;
}

/// Who kills the command by which the config server waits means the move as well.
#[tokio::test(flavor = "multi_thread")]
async fn to_kill_who_waits_is_to_kill_the_move() {
    let world = filled().await;
    silence(&world, "_terndbMoveCopy");
    let command = world.command(0, 1, RANGE[0], RANGE[1]);
    let killed = async {
        is_in(&world, 0, "copying").await;
        let asked = "{currentOp: 1, 'command._terndbMoveRange': 1}";
        let shown = world.on(0).run("admin", asked).await;
        let shown = get(&shown, "inprog").and_then(Value::as_array);
        let id = shown
            .and_then(<[Value]>::first)
            .and_then(|one| one.get("opid"))
            .and_then(Value::as_number)
            .expect("it is shown");
        let command = format!("admin {{killOp: 1, op: {id}}} => {{ok: 1.0}}");
        world.on(0).check(&command).await;
    };
    let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
    let (reply, ()) = within(both).await;
    is_interrupted(&reply);
    goes_on(&world).await;
    world.close().await;
}

/// A recipient that is killed while it receives gives up, and the donor tells why.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_recipient_gives_up() {
    let world = filled().await;
    lose(&world, "_terndbMoveCopy");
    let command = world.command(0, 1, RANGE[0], RANGE[1]);
    let killed = async {
        is_in(&world, 0, "copying").await;
        kill(&world, 1, "MoveRangeRecipient").await;
    };
    let both = async { tokio::join!(world.on(0).run("admin", &command), killed) };
    let (reply, ()) = within(both).await;
    is_interrupted(&reply);
    *world.network.loses.lock() = None;
    goes_on(&world).await;
    world.close().await;
}

/// A move is shown once, and its operations as nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_shown_under_the_id_that_kills_it() {
    let world = filled().await;
    silence(&world, "_terndbMoveCopy");
    let command = world.command(0, 1, RANGE[0], RANGE[1]);
    let looked = async {
        is_in(&world, 0, "copying").await;
        for (number, side) in [(0, "MoveRangeDonor"), (1, "MoveRangeRecipient")] {
            let id = operation_shown(&world, number, side).await;
            let shown = world
                .on(number)
                .run("admin", &format!("{{currentOp: 1, opid: {id}}}"))
                .await;
            let shown = get(&shown, "inprog")
                .and_then(Value::as_array)
                .expect("a list");
            assert_eq!(shown.len(), 1, "{shown:?}");
            assert_eq!(shown[0].get("desc").and_then(Value::as_str), Some(side));
        }
        hear(&world);
        kill(&world, 0, "MoveRangeDonor").await;
    };
    let both = async { tokio::join!(world.on(0).run("admin", &command), looked) };
    within(both).await;
    world.close().await;
}
