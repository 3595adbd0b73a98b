//! ⚑ Reads at a time find one owner, whatever the clocks of the shards and of the config server say.

use super::world::{World, outcome};
use model::time::ClusterTime;
use std::sync::atomic::Ordering;

const DOCUMENTS: usize = 40;

/// Three moves of ten documents, there, back and there again, with clocks that are so many seconds
/// ahead, and decisions so far behind the blocks.
async fn moves_with_clocks(ahead: [u32; 2], later: u64) {
    let world = World::new("{x: 1}").await;
    world.create("").await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    world.authority.later.store(later, Ordering::SeqCst);
    for (number, seconds) in ahead.into_iter().enumerate() {
        let shard = &world.on(number).shard;
        let now = shard.cluster_time();
        let pushed = ClusterTime::new(now.seconds() + seconds, now.increment());
        shard.observe_time(pushed).expect("within the bound");
    }
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let reply = world.moves(from, to, "{x: 10}", "{x: 20}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        // What is written next is later than what was decided.
        world
            .on(to)
            .check("{update: 'c', updates: [{q: {x: 15}, u: {$inc: {n: 1}}}]} => {n: 1}")
            .await;
    }
    let mut shown = world.check_times(DOCUMENTS).await;
    let times = world.authority.times();
    assert_eq!((times.len(), shown.len()), (3, 9));
    // Before the first one counts, all is where it was, and then ten documents are elsewhere.
    shown.truncate(3);
    assert_eq!(shown, [(40, 0), (30, 10), (30, 10)]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_time_has_one_owner() {
    for (ahead, later) in [
        ([0, 0], 1),
        // The config server is ahead of both, by a moment or by seconds.
        ([0, 0], 1000),
        ([0, 0], 50 << 32),
        // The donor is behind what the recipient has received, and the other way round.
        ([0, 100], 1),
        ([100, 0], 1),
    ] {
        moves_with_clocks(ahead, later).await;
    }
}

/// ⚑ A commit whose answer was lost counts from the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_does_not_change_the_time() {
    let mut world = World::new("{x: 1}").await;
    world.create("").await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    world.authority.later.store(1000, Ordering::SeqCst);
    world.authority.answers_lost.store(2, Ordering::SeqCst);
    let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(
        world.check_times(DOCUMENTS).await,
        [(40, 0), (30, 10), (30, 10)]
    );
    // The next primaries know it.
    world.restart(0).await;
    world.restart(1).await;
    world.check_owners(&[5, 15]);
    world.close().await;
}
