//! ⚑ Each rule is switched off once, and what was written for it must notice.

use crate::rules::Rule;
use crate::testing::Cluster;
use differential::value::{Fields, Value, get};
use std::time::SystemTime;

/// A scenario says whether what the rule is for was kept.
async fn check(rule: Rule, is_kept: impl AsyncFn(Cluster) -> bool) {
    assert!(is_kept(Cluster::start(2).await).await, "{rule:?} holds");
    let without = Cluster::start(2).await;
    without.switch_off(rule);
    assert!(!is_kept(without).await, "nobody misses {rule:?}");
}

/// Since when the only chunk of the collection is where it is, in seconds.
fn owned_since(chunks: &Fields) -> Option<u32> {
    let batch = get(chunks, "cursor")?.get("firstBatch")?.as_array()?;
    let history = batch.first()?.get("history")?.as_array()?;
    match history.first()?.get("validAfter")? {
        Value::Timestamp(seconds, _) => Some(*seconds),
        _ => None,
    }
}

/// Also where the donor's clock is ahead: what that means to readers is told by the shards' tests
/// (`shard/src/tests/moves/switched_off.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn the_recipient_owns_later_than_the_donor_has_blocked() {
    check(Rule::DecideBehindBlock, async |cluster| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.expect("a time behind 1970").as_secs();
        let ahead = u32::try_from(now + 1000).expect("a time before 2106");
        cluster.donor.blocks_at(ahead);
        cluster
            .check(
                "
                admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
                admin {shardCollection: 'test.birds', key: {a: 1}} => {}
                admin {moveRange: 'test.birds', min: {a: MinKey}, toShard: 'shard1'} => {}
                ",
            )
            .await;
        let chunks = cluster.run("config! config", "{find: 'chunks'}").await;
        owned_since(&chunks).expect("it has a history") >= ahead
    })
    .await;
}
