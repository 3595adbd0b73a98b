//! The primary of either side is lost after each kind of answer of a move, first and second: the next one goes on,
//! settles, or aborts. Nothing is lost, nothing is there twice, and nobody stays blocked.

use super::world::{PATIENCE, World, outcome};
use crate::migration::{keep_log, kept_log, running_moves};
use differential::value::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const DOCUMENTS: i32 = 40;

/// Moves a range while a shard's primary is lost behind so many answers; false if the move ended
/// before that. An index is created when the move is to be committed, if somebody wants to know behind how
/// many answers that was.
async fn lose_primary(lost: usize, behind: u32, index: Option<&Arc<AtomicU32>>) -> bool {
    let mut world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    if let Some(told) = index.cloned() {
        let create = "{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y_1'}]}";
        let created = world.changes_indexes(create);
        let network = world.network.clone();
        let happens = Box::pin(async move {
            told.store(network.answered(), Ordering::SeqCst);
            created.await;
        });
        world.authority.before("_configsvrCommitMove", happens);
    }
    world.network.cut_behind(behind);
    let command = world.command(0, 1, "{x: 10}", "{x: 30}");
    let was_cut = {
        let donor = world.on(0);
        tokio::select! {
            reply = donor.run("admin", &command) => {
                assert_eq!(outcome(&reply), "committed", "{reply:?}");
                false
            }
            () = world.network.was_cut.notified() => true,
            () = tokio::time::sleep(PATIENCE) => panic!("behind {behind}: neither moved nor cut: {}", told(&world)),
        }
    };
    if was_cut {
        let restarted = tokio::time::timeout(PATIENCE, world.restart(lost)).await;
        assert!(
            restarted.is_ok(),
            "shard {lost} does not stop behind answer {behind}"
        );
    }
    world.network.mend();
    // The caller asks again, and moves the range anew if it was not moved.
    let mut answered = tokio::time::timeout(PATIENCE, world.on(0).run("admin", &command))
        .await
        .unwrap_or_else(|_| {
            panic!(
                "shard {lost} lost behind answer {behind}: no end: {}",
                told(&world)
            )
        });
    let deadline = Instant::now() + PATIENCE;
    while world.shown(1).await.len() < 20 {
        assert!(Instant::now() < deadline, "behind {behind}: {answered:?}");
        answered = tokio::time::timeout(PATIENCE, world.moves(0, 1, "{x: 10}", "{x: 30}"))
            .await
            .unwrap_or_else(|_| panic!("behind {behind}, moved anew: no end: {}", told(&world)));
    }
    check(&world, lost, behind).await;
    world.close().await;
    was_cut
}

/// What both shards say of their moves.
fn told(world: &World) -> String {
    let moves = [0, 1].map(|number| running_moves(&world.on(number).shard));
    format!("{moves:?}")
}

async fn check(world: &World, lost: usize, behind: u32) {
    let mut seen = BTreeSet::new();
    for (number, expected) in [(0, 20), (1, 20)] {
        let shown = world.shown(number).await;
        assert_eq!(
            shown.len(),
            expected,
            "shard {number}, {lost} lost behind {behind}"
        );
        for document in shown {
            let Some(Value::Int32(id)) = document.get("_id") else {
                panic!("{document:?}");
            };
            assert!(seen.insert(*id), "{id} twice, {lost} lost behind {behind}");
        }
        world.on(number).check_valid("c").await;
    }
    assert_eq!(seen.len(), DOCUMENTS as usize);
    let (given, received) = (world.indexes(0).await, world.indexes(1).await);
    assert_eq!(given, received, "{lost} lost behind {behind}");
    world.check_owners(&[5, 15]);
    // Nobody is blocked, and only the owner writes.
    let write = "{update: 'c', updates: [{q: {_id: 15, x: 15}, u: {$set: {y: 1}}}]}";
    world.on(1).check(&format!("{write} => {{n: 1}}")).await;
    let write = "{update: 'c', updates: [{q: {_id: 5, x: 5}, u: {$set: {y: 1}}}]}";
    world.on(0).check(&format!("{write} => {{n: 1}}")).await;
}

async fn lose_everywhere(lost: usize, index: bool) {
    let created_behind = Arc::new(AtomicU32::new(1));
    let index = index.then_some(&created_behind);
    if index.is_some() {
        // What comes before the index is created goes as it does without one.
        assert!(!lose_primary(lost, 0, index).await);
    }
    let mut behind = created_behind.load(Ordering::SeqCst).max(1);
    while lose_primary(lost, behind, index).await {
        behind += 1;
        assert!(
            behind < 60,
            "a move of so few documents needs fewer messages"
        );
    }
    assert!(behind > 5, "only {behind} answers were lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_primary_of_the_donor_ends_what_was_begun() {
    lose_everywhere(0, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_primary_of_the_recipient_ends_what_was_begun() {
    lose_everywhere(1, false).await;
}

/// An index is created when the range is to be given away: the move catches up, whoever leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_primary_of_the_donor_knows_of_changed_indexes() {
    lose_everywhere(0, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_primary_of_the_recipient_knows_of_changed_indexes() {
    lose_everywhere(1, true).await;
}

/// ⚑ A member keeps what a move needs of the log, whether it leads or not: the document of the move says what that is.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_kept_as_long_as_a_move_needs_it() {
    let world = World::new("{x: 1}").await;
    world.create("").await;
    world.on(0).insert(&["{_id: 1, x: 15}".to_owned()]).await;
    let before = world.on(0).shard.log.last_applied();
    let kept = || {
        keep_log(&world.on(0).shard);
        kept_log(&world.on(0).shard)
    };
    assert_eq!(kept(), []);
    world.network.cut_behind(1);
    let command = world.command(0, 1, "{x: 10}", "{x: 30}");
    let moved = world.on(0).run("admin", &command);
    let looked = async {
        world.network.was_cut.notified().await;
        let kept = kept();
        world.network.mend();
        kept
    };
    let (reply, kept_meanwhile) = tokio::join!(moved, looked);
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(kept_meanwhile.len(), 1);
    assert!(kept_meanwhile[0] >= before);
    assert_eq!(kept(), []);
    world.close().await;
}

/// ⚑ A recipient that stays away does not keep the donor's log for ever: the donor gives up, as long as it
/// may, and every member gives up what it kept.
async fn recipient_stays_away(limit: &str, writes: &[String], why: &str) {
    let world = World::new("{x: 1}").await;
    world.create("").await;
    world.on(0).insert(&["{_id: 1, x: 15}".to_owned()]).await;
    let kept = || {
        keep_log(&world.on(0).shard);
        kept_log(&world.on(0).shard).len()
    };
    world.network.cut_behind(1);
    let command = world.command(0, 1, "{x: 10}", "{x: 30}");
    let moved = world.on(0).run("admin", &command);
    let written = async {
        world.network.was_cut.notified().await;
        assert_eq!(kept(), 1);
        let set = format!("admin {{setParameter: 1, {limit}}} => {{}}");
        world.on(0).check(&set).await;
        if !writes.is_empty() {
            world.on(0).insert(writes).await;
        }
    };
    let both = async { tokio::join!(moved, written) };
    let (reply, ()) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .expect("it is given up");
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    assert!(format!("{reply:?}").contains(why), "{reply:?}");
    // The recipient has not heard of it yet, and nothing is kept for it.
    assert_eq!(kept(), 0);
    assert_eq!(world.on(0).shard.log.pinned(), None);
    world
        .on(0)
        .check("{find: 'c', filter: {x: 15}} => {cursor: {firstBatch: [{_id: 1}]}}")
        .await;
    world
        .on(0)
        .check("{insert: 'c', documents: [{_id: 2, x: 16}]} => {n: 1}")
        .await;
    world.network.mend();
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_stays_away_is_given_up() {
    recipient_stays_away("moveStallSecs: 1", &[], "moveStallSecs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_is_not_waited_for_when_the_log_grows_too_large() {
    let text = "x".repeat(100_000);
    let writes: Vec<String> = (100..110)
        .map(|id| format!("{{_id: {id}, x: 1, text: '{text}'}}"))
        .collect();
    let limit = "movePinnedLogBytesMax: 900000";
    recipient_stays_away(limit, &writes, "movePinnedLogBytesMax").await;
}

/// Who takes over from a recipient's primary goes on behind what is there, and counts it.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_primary_received_does_not_come_again() {
    let mut world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let text = "t".repeat(100_000);
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}, text: '{text}'}}"))
        .collect();
    world.on(0).insert(&documents).await;
    // The first answers are short: two of them do not hold all.
    let asked = AtomicUsize::new(0);
    *world.network.loses.lock() = Some(Box::new(move |body| {
        body.get("_terndbMoveCopy").is_some() && asked.fetch_add(1, Ordering::SeqCst) >= 2
    }));
    let command = world.command(0, 1, "{x: MinKey}", "{x: MaxKey}");
    let stored = |world: &World| {
        let name = model::Namespace::new("test", "c").expect("a name");
        let shard = &world.on(1).shard;
        // The collection comes with the move.
        let collection = shard.catalog.get(&name).map(|known| known.id);
        collection.map_or(0, |id| shard.store.collection_counter(id).items)
    };
    let has_begun = async |world: &World| {
        let deadline = Instant::now() + PATIENCE;
        while stored(world) == 0 {
            assert!(Instant::now() < deadline, "{}", told(world));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        reply = world.on(0).run("admin", &command) => panic!("it ended: {reply:?}"),
        () = has_begun(&world) => {}
    }
    world.restart(1).await;
    let received = stored(&world);
    assert!((1..DOCUMENTS as u64).contains(&received), "{received}");
    *world.network.loses.lock() = None;
    let reply = tokio::time::timeout(PATIENCE, world.on(0).run("admin", &command)).await;
    let reply = reply.unwrap_or_else(|_| panic!("no end: {}", told(&world)));
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(1).await.len(), DOCUMENTS as usize);
    let printed = differential::notation::print_fields(&reply);
    let all = format!("clonedDocs: {DOCUMENTS}L");
    assert!(printed.contains(&all), "{printed}");
    let came = DOCUMENTS as u64 - received;
    world
        .on(1)
        .check(&format!(
            "{{serverStatus: 1}} => {{shardingStatistics: {{countDocsClonedOnRecipient: {came}L}}}}"
        ))
        .await;
    world.close().await;
}
