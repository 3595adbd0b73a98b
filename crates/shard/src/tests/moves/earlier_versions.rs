//! State documents as the versions before this one wrote them: whoever takes over goes on with them.

use super::world::{PATIENCE, World, outcome};
use differential::value::get;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

async fn filled() -> World {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..50).map(|x| format!("{{_id: {x}, x: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    world
}

/// Waits until the document of a side says so.
async fn says(world: &World, number: usize, collection: &str, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    let count = format!("{{count: '{collection}', query: {what}}}");
    loop {
        let reply = world.on(number).run("config", &count).await;
        if get(&reply, "n") == Some(&differential::value::Value::Int32(1)) {
            return;
        }
        assert!(Instant::now() < deadline, "it never says {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Takes fields away that came with later versions.
async fn older(world: &World, number: usize, collection: &str, fields: &str) {
    let update = format!(
        "config {{update: '{collection}', updates: [{{q: {{}}, u: {{$unset: {fields}}}}}]}} => {{n: 1}}"
    );
    world.on(number).check(&update).await;
}

/// Asks for the move again until it has ended; its outcome.
async fn ends(world: &World, command: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = world.on(0).run("admin", command).await;
        if get(&reply, "outcome").is_some() {
            return outcome(&reply).to_owned();
        }
        assert!(Instant::now() < deadline, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// ⚑ A donor that is undecided, and a recipient that is ready, are what they were: the decision is asked for, and
/// holds on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn an_undecided_move_of_an_earlier_version_is_decided() {
    let mut world = filled().await;
    let authority = world.authority.clone();
    let goes_away = Box::pin(async move {
        authority.answers_lost.store(u32::MAX, Ordering::SeqCst);
    });
    world.authority.before("_configsvrCommitMove", goes_away);
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    tokio::select! {
        reply = world.on(0).run("admin", &command) => panic!("{reply:?}"),
        () = says(&world, 0, "migrationCoordinators", "{phase: 'readsBlocked'}") => {}
    }
    says(&world, 1, "migrationRecipients", "{phase: 'ready'}").await;
    older(
        &world,
        0,
        "migrationCoordinators",
        "{documents: 1, described: 1}",
    )
    .await;
    older(
        &world,
        1,
        "migrationRecipients",
        "{alignedWith: 1, cleared: 1}",
    )
    .await;
    world.restart(0).await;
    world.restart(1).await;
    world.authority.answers_lost.store(0, Ordering::SeqCst);
    assert_eq!(ends(&world, &command).await, "committed");
    assert_eq!(world.shown(0).await.len(), 20);
    let deadline = Instant::now() + PATIENCE;
    while world.shown(1).await.len() != 30 {
        assert!(Instant::now() < deadline, "it never hears of the commit");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    world.close().await;
}

/// One that was still copied begins anew on the recipient, and ends one way or the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_of_an_earlier_version_that_copies_goes_on() {
    let mut world = filled().await;
    world.authority.changes.store(true, Ordering::SeqCst);
    let command = world.command(0, 1, "{x: 10}", "{x: 40}");
    tokio::select! {
        reply = world.on(0).run("admin", &command) => panic!("{reply:?}"),
        () = says(&world, 1, "migrationRecipients", "{phase: 'receiving', cleared: true}") => {}
    }
    older(
        &world,
        0,
        "migrationCoordinators",
        "{documents: 1, described: 1}",
    )
    .await;
    older(
        &world,
        1,
        "migrationRecipients",
        "{alignedWith: 1, cleared: 1}",
    )
    .await;
    world.restart(0).await;
    world.restart(1).await;
    world.authority.changes.store(false, Ordering::SeqCst);
    assert_eq!(ends(&world, &command).await, "committed");
    assert_eq!(world.shown(0).await.len(), 20);
    assert_eq!(world.shown(1).await.len(), 30);
    world.close().await;
}

/// A range deletion without what later versions count is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_deletion_of_an_earlier_version_is_carried_out() {
    let mut world = filled().await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    older(
        &world,
        0,
        "rangeDeletions",
        "{numOrphanDocs: 1, timestamp: 1}",
    )
    .await;
    world.restart(0).await;
    world
        .on(0)
        .check("admin {setParameter: 1, orphanCleanupDelaySecs: 0} => {}")
        .await;
    let deadline = Instant::now() + PATIENCE;
    let count = "{count: 'rangeDeletions'}";
    loop {
        let reply = world.on(0).run("config", count).await;
        if get(&reply, "n") == Some(&differential::value::Value::Int32(0)) {
            break;
        }
        assert!(Instant::now() < deadline, "it is never removed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(world.shown(0).await.len(), 20);
    world.close().await;
}
