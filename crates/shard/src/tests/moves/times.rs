//! ⚑ Reads at a time find one owner, whatever the clocks of the shards and of the config server say.

use super::world::{World, document, outcome, version};
use crate::sharding::Routed;
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

fn timestamp(time: u64) -> String {
    let time = ClusterTime::from_u64(time);
    format!("Timestamp({}, {})", time.seconds(), time.increment())
}

/// A count at a time, by a version that tells who owned what until another one.
pub(super) fn count(major: u32, known: u64, at: u64) -> String {
    let version = version(major, 0);
    let stated = version.trim_end_matches('}');
    format!(
        "{{aggregate: 'c', pipeline: [{{$count: 'n'}}], cursor: {{}}, \
         shardVersion: {stated}, known: {}}}, \
         readConcern: {{level: 'snapshot', atClusterTime: {}}}}}",
        timestamp(known),
        timestamp(at)
    )
}

/// ⚑ A read of the past is refused for what came or went before its time and was not known, and for nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_moved_later_does_not_concern_a_read() {
    let world = World::new("{x: 1}").await;
    world.create("").await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    let before = world.on(0).shard.store.applied_time().to_u64();
    // Checked before anything moves, and looked at again when it has.
    let counting = count(1, before, before);
    let counting = counting.strip_suffix('}').expect("a document");
    let counting = document(&format!("{counting}, $db: 'test'}}"));
    let request = wire::Request::from_parts(counting, Vec::new());
    let request = request.expect("a request");
    let mut routed = Routed::default();
    let version = request.body().get("shardVersion").expect("a version");
    routed.read("shardVersion", version).expect("well-formed");
    routed.reads_at(ClusterTime::from_u64(before));
    let shard = &world.on(0).shard;
    let checked = shard.check_routed(&request, &routed).expect("it agrees");
    let checked = checked.expect("with ranges");
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let reply = world.moves(from, to, "{x: 10}", "{x: 20}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    let name = checked.namespace().expect("of a collection");
    let now = shard.catalog.get(name);
    let looked_at = checked.check(&shard.sharding, "test", now.as_deref());
    looked_at.expect("nothing has changed for its time");

    let mut times: Vec<u64> = world
        .authority
        .times()
        .iter()
        .map(|it| it.to_u64())
        .collect();
    times.sort_unstable();
    let [first, second, third] = times[..] else {
        panic!("three moves have three times");
    };
    let stale = "13388".to_owned();
    let counts = |n: u32| format!("{{cursor: {{firstBatch: [{{n: {n}}}]}}}}");
    for (number, major, known, at, expected) in [
        (0, 1, before, first - 1, counts(40)),
        (0, 1, before, first, stale.clone()),
        (0, 2, first, first, counts(30)),
        (0, 2, first, second - 1, counts(30)),
        (0, 2, first, second, stale.clone()),
        (0, 3, second, third - 1, counts(40)),
        (0, 3, second, third, stale.clone()),
        // Who knows what is known here is believed whatever else it says.
        (0, 4, second, third, counts(30)),
        // What is newer than all that is known here may be from before the time.
        (0, 5, third + 1, first, stale.clone()),
        (1, 2, first, second - 1, counts(10)),
        (1, 2, first, second, stale.clone()),
    ] {
        let command = count(major, known, at);
        let on = world.on(number);
        on.check(&format!("{command} => {expected}")).await;
    }
    world.close().await;
}
