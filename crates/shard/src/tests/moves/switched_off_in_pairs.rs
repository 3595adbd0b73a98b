//! ⚑ The same for rules about shards of several members.

use super::pair::Pair;
use super::switched_off::{TIME_IS_OVER, Without, check, documents, timestamp};
use super::world::{PATIENCE, World, become_shard};
use crate::rules::Rule;
use crate::sharding::BlockLevel;
use crate::testing::TestShard;
use crate::tests::blocked::code;
use crate::tests::sharding::{WHOLE, placed};
use crate::tests::transitions::{MOVE, change, ownership, range};
use differential::value::{Value, get};
use model::time::ClusterTime;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinHandle;

/// A shard of one member that runs.
async fn alone() -> (TestShard, JoinHandle<()>) {
    let shard = TestShard::open().await;
    let background = shard.shard.spawn_background();
    (shard, background)
}

async fn fill(world: &World) {
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..50).map(|x| format!("{{_id: {x}, x: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}, txnNumber: 1L";
    world
        .on(0)
        .check(&format!(
            "{{update: 'c', updates: [{{q: {{x: 15}}, u: {{$inc: {{n: 1}}}}}}], {session}}} => {{n: 1}}"
        ))
        .await;
}

/// Begins a move of a range, and waits until it is committed or a shard's primary leads no longer.
async fn is_committed(world: &World, deposed: usize) -> bool {
    let command = world.command(0, 1, "{x: 10}", "{x: 30}");
    let moved = world.on(0).run("admin", &command);
    let over = async {
        let deadline = Instant::now() + PATIENCE;
        let role = world.on(deposed).shard.log.role();
        while world.authority.times().is_empty() && role.borrow().is_leader() {
            assert!(Instant::now() < deadline, "neither committed nor deposed");
            tokio::task::yield_now().await;
        }
    };
    tokio::pin!(over);
    tokio::select! {
        _ = moved => over.await,
        () = &mut over => {}
    }
    let is_committed = !world.authority.times().is_empty();
    // What it cannot get a majority for any more ends now.
    let _ = world.on(deposed).shard.log.step_down().await;
    is_committed
}

/// The donor's other member hears nothing of the block, and could lead next.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_before_a_majority_blocks_reads() {
    check(Rule::CommitBlock, async |without| {
        let (pair, primary) = Pair::open().await;
        let world = World::of("{x: 1}", [primary, alone().await]).await;
        without.on(world.on(0));
        fill(&world).await;
        let is_deaf = pair.is_deaf.clone();
        *world.network.tamper.lock() = Some(Box::new(move |command, reply| {
            let is_ready = reply.as_doc().get_str("phase") == Some("ready");
            if command == "_terndbReceiveFinish" && is_ready {
                is_deaf.store(true, Ordering::SeqCst);
            }
            reply
        }));
        let is_committed = is_committed(&world, 0).await;
        assert!(pair.is_deaf.load(Ordering::SeqCst), "it came so far");
        // That of writes it has, and may not have heard that it was committed.
        let known = ownership(&pair.secondary);
        let blocks = &known.moving.blocks;
        assert!(blocks.iter().all(|it| it.level == BlockLevel::Writes));
        world.close().await;
        pair.close().await;
        !is_committed
    })
    .await;
}

/// The recipient's other member hears nothing of what came last, and could lead next.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_before_a_majority_of_the_recipient_is_ready() {
    check(Rule::CommitReadiness, async |without| {
        let (pair, primary) = Pair::open().await;
        let world = World::of("{x: 1}", [alone().await, primary]).await;
        without.on(world.on(1));
        fill(&world).await;
        let is_deaf = pair.is_deaf.clone();
        *world.network.loses.lock() = Some(Box::new(move |message| {
            let name = message.first().map(|first| first.key());
            if name == Some("_terndbReceiveFinish") {
                is_deaf.store(true, Ordering::SeqCst);
            }
            false
        }));
        let is_committed = is_committed(&world, 1).await;
        assert!(pair.is_deaf.load(Ordering::SeqCst), "it came so far");
        let documents = "{find: 'migrationRecipients', $readPreference: {mode: 'secondary'}}";
        let known = pair.secondary.run("config", documents).await;
        let known = get(&known, "cursor").and_then(|cursor| cursor.get("firstBatch"));
        let known = known.and_then(Value::as_array).expect("documents");
        let phase = known.first().and_then(|known| known.get("phase")).cloned();
        assert_ne!(phase, Some(Value::String("ready".to_owned())));
        world.close().await;
        pair.close().await;
        !is_committed
    })
    .await;
}

/// Whether a secondary shows a document of a range that the primary has blocked for reads: as of now, of the time of
/// the block, and of the moment before.
async fn shows(is_for_secondary: bool, without: Without) -> [bool; 3] {
    let (pair, (primary, background)) = Pair::open().await;
    without.on(match is_for_secondary {
        true => &pair.secondary,
        false => &primary,
    });
    become_shard(0, &primary).await;
    let create = placed("_terndbCreateSharded", (1, 0), (1, 2), WHOLE);
    primary.check(&format!("admin {create} => {{}}")).await;
    for x in [4, 40] {
        primary.insert(&[format!("{{_id: {x}, x: {x}}}")]).await;
    }
    let moving = range(&primary, 3, 6);
    let blocked = change(&primary, |known| {
        Ok(known.with_block(MOVE, moving.clone(), BlockLevel::Reads))
    });
    let blocked = blocked.await.expect("is applied").time;
    pair.follows(&primary).await;
    let before = ClusterTime::from_u64(blocked.to_u64() - 1);
    let mut shown = [false; 3];
    for (shown, at) in shown.iter_mut().zip([None, Some(blocked), Some(before)]) {
        let concern = at.map_or("level: 'local'".to_owned(), |at| {
            let at = timestamp(at);
            format!("level: 'snapshot', atClusterTime: {at}")
        });
        let find = format!(
            "{{find: 'c', filter: {{x: 4}}, maxTimeMS: 100, readConcern: {{{concern}}}, $readPreference: {{mode: 'secondary'}}}}"
        );
        let reply = pair.secondary.run("test", &find).await;
        *shown = documents(&reply) == 1;
        assert!(*shown || code(&reply) == TIME_IS_OVER, "{reply:?}");
    }
    primary.shard.begin_shutdown();
    background.await.expect("it ends");
    pair.close().await;
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secondary_shows_nothing_of_what_is_blocked() {
    check(Rule::BlockReads, async |without| {
        shows(true, without).await == [false, false, true]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secondary_has_the_blocks_of_its_primary() {
    check(Rule::StoreOwnership, async |without| {
        shows(false, without).await == [false, false, true]
    })
    .await;
}
