//! What scans had left in memory on the donor.

use super::world::{PATIENCE, World, outcome};
use crate::testing::TestShard;
use crate::tests::transitions::collection;
use std::time::Instant;
use storage::KeyRange;

const DOCUMENTS: i32 = 2000;
/// Scans need not leave all of it.
const MOST: usize = 1500;

/// How many records of the collection scans find in memory.
fn kept(server: &TestShard) -> usize {
    let snapshot = server.shard.store.snapshot();
    let mut records = snapshot.scan_records_once(collection(server).id, KeyRange::ALL);
    let mut kept = 0;
    while let Some(record) = records.next() {
        record.expect("sound");
        kept += usize::from(records.is_kept());
    }
    kept
}

/// They find it there when it has come, though nobody waits for that.
#[tokio::test(flavor = "multi_thread")]
async fn what_scans_have_left_comes_along() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    let deadline = Instant::now() + PATIENCE;
    while kept(world.on(0)) < MOST {
        assert!(Instant::now() < deadline, "scans leave nothing");
        // In the order in which they lie there.
        let (id, _) = world.on(0).batch("{find: 'c', batchSize: 100}").await;
        world.on(0).rest(id, 100_000).await;
    }
    let reply = world.moves(0, 1, "{x: MinKey}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let deadline = Instant::now() + PATIENCE;
    while kept(world.on(1)) < MOST {
        assert!(Instant::now() < deadline, "it is not read");
        tokio::task::yield_now().await;
    }
    world.close().await;
}
