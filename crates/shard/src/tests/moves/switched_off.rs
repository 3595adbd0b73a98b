//! ⚑ Rules of ownership are switched off one by one, and a scenario that is about each notices.

use super::times::count;
use super::waiting::{filled, is_in};
use super::world::{PATIENCE, World, outcome};
use crate::rules::Rule;
use crate::sharding::{BlockLevel, Moving};
use crate::testing::TestShard;
use crate::tests::blocked::{self, code};
use crate::tests::copying::hand_over;
use crate::tests::owned::with_orphans;
use crate::tests::range_deletion::{delete_all, deletion, give_away, register, with_documents};
use crate::tests::sharding::version;
use crate::tests::transitions::{MOVE, change, range};
use differential::value::{Fields, Value, get};
use model::time::ClusterTime;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a scenario does to its shards.
#[derive(Clone, Copy)]
pub(super) struct Without(Option<Rule>);

impl Without {
    pub(super) fn on(self, server: &TestShard) {
        if let Some(rule) = self.0 {
            server.shard.rules.switch_off(rule);
        }
    }
}

/// A scenario says whether what the rule is for was kept.
pub(super) async fn check(rule: Rule, is_kept: impl AsyncFn(Without) -> bool) {
    assert!(is_kept(Without(None)).await, "{rule:?} holds");
    assert!(
        !is_kept(Without(Some(rule))).await,
        "nobody misses {rule:?}"
    );
}

pub(super) const TIME_IS_OVER: Option<Value> = Some(Value::Int32(50));
const STALE: Option<Value> = Some(Value::Int32(13388));

/// The documents of a first batch; none if it was refused.
pub(super) fn documents(reply: &Fields) -> usize {
    let batch = get(reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    batch.and_then(Value::as_array).map_or(0, <[Value]>::len)
}

async fn counted(server: &TestShard) -> Option<Value> {
    get(&server.run("test", "{count: 'c'}").await, "n").cloned()
}

pub(super) fn timestamp(time: ClusterTime) -> String {
    format!("Timestamp({}, {})", time.seconds(), time.increment())
}

/// A search for all documents as of a time.
fn find_at(time: ClusterTime) -> String {
    let time = timestamp(time);
    format!(
        "{{find: 'c', batchSize: 1000, readConcern: {{level: 'snapshot', atClusterTime: {time}}}}}"
    )
}

// Requests without a version.

/// A document that another shard has is shown to nobody, whatever came with the request.
#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_version_reads_what_is_owned() {
    check(Rule::CheckUnversionedReads, async |without| {
        let server = with_orphans().await;
        without.on(&server);
        let routed = format!(
            "{{find: 'c', filter: {{_id: 12}}, shardVersion: {}}}",
            version(2, 0)
        );
        assert_eq!(documents(&server.run("test", &routed).await), 0);
        let shown = server.run("test", "{find: 'c', filter: {_id: 12}}").await;
        documents(&shown) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_version_waits_to_read_what_is_blocked() {
    check(Rule::CheckUnversionedReads, async |without| {
        let server = blocked::blocked(BlockLevel::Reads).await;
        without.on(&server);
        let find = "find: 'c', filter: {x: 4}, maxTimeMS: 5";
        let routed = format!("{{{find}, shardVersion: {}}}", version(1, 0));
        assert_eq!(code(&server.run("test", &routed).await), TIME_IS_OVER);
        code(&server.run("test", &format!("{{{find}}}")).await) == TIME_IS_OVER
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_version_writes_what_is_owned() {
    check(Rule::CheckUnversionedWrites, async |without| {
        let server = with_orphans().await;
        without.on(&server);
        let insert = "insert: 'c', documents: [{_id: 100, x: 15}]";
        let routed = format!("{{{insert}, shardVersion: {}}}", version(2, 0));
        assert_eq!(code(&server.run("test", &routed).await), STALE);
        code(&server.run("test", &format!("{{{insert}}}")).await) == STALE
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_version_waits_to_write_what_is_blocked() {
    check(Rule::CheckUnversionedWrites, async |without| {
        let server = blocked::blocked(BlockLevel::Writes).await;
        without.on(&server);
        let insert = "insert: 'c', documents: [{_id: 40, x: 4}], maxTimeMS: 5";
        let routed = format!("{{{insert}, shardVersion: {}}}", version(1, 0));
        assert_eq!(code(&server.run("test", &routed).await), TIME_IS_OVER);
        code(&server.run("test", &format!("{{{insert}}}")).await) == TIME_IS_OVER
    })
    .await;
}

// Reads at a time.

/// Whoever asks the owner of a time gets all that it owned then.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_at_a_time_is_answered_by_the_owner_of_that_time() {
    check(Rule::OwnerAtTime, async |without| {
        let world = filled().await;
        without.on(world.on(0));
        without.on(world.on(1));
        let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        let since = world.authority.times()[0].to_u64();
        let mut shown = Vec::new();
        for time in [since - 1, since] {
            let time = ClusterTime::from_u64(time);
            shown.push((world.count_at(0, time).await, world.count_at(1, time).await));
        }
        world.close().await;
        shown == [(50, 0), (40, 10)]
    })
    .await;
}

/// What was owned at a time is not guessed from what is owned now.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_of_which_nothing_is_known_is_refused() {
    check(Rule::OwnerAtTime, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let began = server.shard.store.applied_time();
        let given = range(&server, 10, 20);
        let lost = change(&server, |known| Ok(known.losing(given.clone()))).await;
        let lost = lost.expect("is applied");
        let forgotten = change(&server, |known| {
            let mut known = known.clone();
            let mut moving = Moving::clone(&known.moving);
            moving.past.clear();
            moving.known_since = Some(lost.time);
            known.moving = Arc::new(moving);
            Ok(known)
        });
        forgotten.await.expect("is applied");
        let reply = server.run("test", &find_at(began)).await;
        get(&reply, "codeName") == Some(&Value::String("StaleChunkHistory".to_owned()))
    })
    .await;
}

/// Whoever did not know that a range had gone before the time that it reads at is told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_at_a_time_is_refused_for_what_had_gone_by_then() {
    check(Rule::KnownPast, async |without| {
        let world = filled().await;
        without.on(world.on(0));
        let known = world.on(0).shard.store.applied_time().to_u64();
        let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        let since = world.authority.times()[0].to_u64();
        let earlier = world.on(0).run("test", &count(1, known, since - 1)).await;
        assert_eq!(documents(&earlier), 1, "{earlier:?}");
        let reply = world.on(0).run("test", &count(1, known, since)).await;
        world.close().await;
        code(&reply) == STALE
    })
    .await;
}

/// A range that is the recipient's from an earlier time on than its donor has blocked it at is not there at that
/// time: not on the donor any more, nor yet on the recipient.
#[tokio::test(flavor = "multi_thread")]
async fn the_recipient_owns_later_than_the_donor_has_blocked() {
    for is_late in [true, false] {
        let world = filled().await;
        let reply = world.moves(0, 1, "{x: 10}", "{x: 20}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        let early = world.on(0).shard.store.applied_time();
        if !is_late {
            *world.authority.counts_from.lock() = Some(early);
        }
        let reply = world.moves(0, 1, "{x: 20}", "{x: 30}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        let since = world.authority.times()[1];
        assert_eq!(since == early, !is_late);
        let shown = (
            world.count_at(0, since).await,
            world.count_at(1, since).await,
        );
        assert_eq!(shown == (30, 20), is_late, "{shown:?}");
        world.close().await;
    }
}

// Blocks.

/// It was decided, the recipient has heard of it and takes writes, and the donor has not heard.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_blocked_reads_does_not_show_what_the_recipient_has_changed() {
    check(Rule::BlockReads, async |without| {
        let world = filled().await;
        without.on(world.on(0));
        let authority = world.authority.clone();
        let is_silent = Box::pin(async move {
            authority.answers_lost.store(u32::MAX, Ordering::SeqCst);
        });
        world.authority.before("_configsvrCommitMove", is_silent);
        let command = world.command(0, 1, "{x: 10}", "{x: 20}");
        tokio::select! {
            reply = world.on(0).run("admin", &command) => panic!("{reply:?}"),
            () = is_decided(&world) => {}
        }
        let id = command.split("id: ").nth(1);
        let id = id.and_then(|rest| rest.split(", ns").next()).expect("an id");
        let since = timestamp(world.authority.times()[0]);
        world
            .on(1)
            .check(&format!(
                "admin {{_terndbReceiveRelease: 1, id: {id}, outcome: 'committed', version: {}, validAfter: {since}}} => {{}}
                 {{update: 'c', updates: [{{q: {{x: 15}}, u: {{$set: {{n: 1}}}}}}]}} => {{n: 1}}",
                super::world::version(2, 1)
            ))
            .await;
        let find = "{find: 'c', filter: {x: 15}, maxTimeMS: 5}";
        let reply = world.on(0).run("test", find).await;
        world.close().await;
        // Else it is what it was before the recipient changed it.
        assert!(documents(&reply) == 1 || code(&reply) == TIME_IS_OVER);
        documents(&reply) == 0
    })
    .await;
}

async fn is_decided(world: &World) {
    is_in(world, 0, "readsBlocked").await;
    let deadline = Instant::now() + PATIENCE;
    while world.authority.is_decided() == 0 {
        assert!(Instant::now() < deadline, "it is never decided");
        tokio::task::yield_now().await;
    }
}

/// Shows neither what is blocked nor what was given away.
async fn keeps_away(server: &TestShard) -> bool {
    let find = "{find: 'c', filter: {x: 4}, maxTimeMS: 5}";
    let blocked = server.run("test", find).await;
    let given = server.run("test", "{find: 'c', filter: {x: 8}}").await;
    code(&blocked) == TIME_IS_OVER && documents(&given) == 0
}

/// A shard that has blocked a range and given away another.
async fn with_a_past(without: Without) -> TestShard {
    let server = blocked::filled().await;
    without.on(&server);
    let (moving, given) = (range(&server, 3, 6), range(&server, 7, 9));
    let changed = change(&server, |known| {
        let known = known.losing(given.clone());
        Ok(known.with_block(MOVE, moving.clone(), BlockLevel::Reads))
    });
    changed.await.expect("is applied");
    assert!(keeps_away(&server).await);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_and_blocks_outlive_the_process() {
    check(Rule::StoreOwnership, async |without| {
        let server = with_a_past(without).await.reopen().await;
        keeps_away(&server).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_and_blocks_are_in_a_copy_of_the_state() {
    check(Rule::StoreOwnership, async |without| {
        let server = with_a_past(without).await;
        let receiver = TestShard::open().await;
        hand_over(&server, &receiver);
        keeps_away(&receiver).await
    })
    .await;
}

// Removal.

#[tokio::test(flavor = "multi_thread")]
async fn no_removal_is_registered_of_what_is_owned() {
    check(Rule::RegisterUnowned, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let _ = register(&server, &deletion(&server, 1, 10, 20)).await;
        server.shard.range_deletions().expect("are read").is_empty()
    })
    .await;
}

/// Of a range that has come back since its removal was registered.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_that_is_owned_by_now() {
    check(Rule::RemoveUnowned, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let given = deletion(&server, 1, 10, 20);
        give_away(&server, &given).await.expect("is registered");
        let back = change(&server, |known| Ok(known.gaining(given.range.clone())));
        back.await.expect("is applied");
        let _ = delete_all(&server).await;
        counted(&server).await == Some(Value::Int32(30))
    })
    .await;
}

/// Everything that may go goes.
fn tidy(server: &TestShard, later_s: u32) {
    let store = &server.shard.store;
    let later = ClusterTime::new(store.applied_time().seconds() + later_s, 0);
    store.maintain(later, 1000).expect("maintained");
    store.compact().expect("compacted");
}

/// What a shard shows as of a time at which it owned a range that it has given away, and removed.
async fn shown_at(server: &TestShard, time: ClusterTime) -> usize {
    let given = deletion(server, 1, 10, 20);
    give_away(server, &given).await.expect("is registered");
    delete_all(server).await.expect("is removed");
    tidy(server, 1);
    documents(&server.run("test", &find_at(time)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_records_stay_until_the_window_has_passed() {
    check(Rule::AwaitWindow, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let owned = server.shard.store.applied_time();
        shown_at(&server, owned).await == 30
    })
    .await;
}

/// Whoever reads at a time for long keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn dead_records_stay_as_long_as_somebody_reads_at_their_time() {
    check(Rule::AwaitWindow, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let owned = server.shard.store.applied_time();
        let _kept = server.shard.store.pin_history(owned).expect("it is there");
        tidy(&server, 100_000);
        shown_at(&server, owned).await == 30
    })
    .await;
}

/// Who has begun to read at a time gets all of it, or is told that it cannot be had any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_at_a_time_misses_no_dead_records() {
    const TOO_OLD: Option<Value> = Some(Value::Int32(239));
    check(Rule::AwaitWindow, async |without| {
        let server = with_documents().await;
        without.on(&server);
        let find = "{find: 'c', batchSize: 3, readConcern: {level: 'snapshot'}}";
        let ((soon, _), (late, _)) = (server.batch(find).await, server.batch(find).await);
        let given = deletion(&server, 1, 10, 20);
        give_away(&server, &given).await.expect("is registered");
        delete_all(&server).await.expect("is removed");
        tidy(&server, 1);
        let rest = server.rest(soon, 1000).await;
        tidy(&server, 100_000);
        let more = format!("{{getMore: {late}L, collection: 'c'}}");
        assert_eq!(code(&server.run("test", &more).await), TOO_OLD);
        rest.len() == 27
    })
    .await;
}
