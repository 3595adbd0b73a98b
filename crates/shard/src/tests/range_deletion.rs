//! ⚑ What is not owned is removed, and nothing else ever.

use crate::sharding::range_deletion::{RangeDeletion, WhenToClean};
use crate::sharding::{BlockLevel, Ownership, Transition};
use crate::testing::TestShard;
use crate::tests::sharding::{WHOLE, member_of_cluster, placed, sharded};
use crate::tests::transitions::{MOVE, change, collection, ownership, range, receive, received};
use differential::value::get;
use model::bson::DocWriter;
use model::ids::Uuid;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use std::sync::Arc;

pub(super) fn deletion(shard: &TestShard, id: u8, min: i32, max: i32) -> RangeDeletion {
    let bound = |x: i32| DocWriter::new().with("x", x).finish();
    RangeDeletion {
        id: Uuid([id; 16]),
        namespace: Namespace::new("test", "c").expect("a name"),
        collection: collection(shard).uuid,
        donor: "shard0".to_owned(),
        range: range(shard, min, max),
        min: bound(min),
        max: bound(max),
        when: WhenToClean::Now,
        pending: false,
        documents: 3,
        since: ClusterTime::new(5, 1),
    }
}

/// Gives a range away and registers its removal, in one entry.
pub(super) async fn give_away(shard: &TestShard, deletion: &RangeDeletion) -> Result<(), Error> {
    let range = deletion.range.clone();
    let transition = Transition {
        ownership: Some(Box::new(move |known| Ok(known.losing(range.clone())))),
        documents: vec![deletion.put()?],
        ..Transition::default()
    };
    let id = collection(shard).id;
    shard.shard.transition(id, &transition).await.map(|_| ())
}

pub(super) async fn register(shard: &TestShard, deletion: &RangeDeletion) -> Result<(), Error> {
    let transition = Transition {
        documents: vec![deletion.put()?],
        ..Transition::default()
    };
    let id = collection(shard).id;
    shard.shard.transition(id, &transition).await.map(|_| ())
}

pub(super) async fn delete_all(shard: &TestShard) -> Result<(), Error> {
    for deletion in shard.shard.range_deletions()? {
        if !deletion.pending {
            shard.shard.delete_range(&deletion, None).await?;
        }
    }
    Ok(())
}

pub(super) async fn with_documents() -> TestShard {
    let shard = sharded(WHOLE).await;
    fill(&shard).await;
    shard
}

async fn fill(shard: &TestShard) {
    shard
        .check("{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}]} => {}")
        .await;
    let documents: Vec<String> = (1..=30)
        .map(|x| format!("{{_id: {x}, x: {x}, y: [{x}, {}]}}", x + 100))
        .collect();
    shard.insert(&documents).await;
}

pub(super) fn stored(shard: &TestShard) -> u64 {
    let id = collection(shard).id;
    shard.shard.store.collection_counter(id).items
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_removed_with_its_index_entries() {
    let by_id = async {
        let shard = member_of_cluster().await;
        fill(&shard).await;
        shard
            .check("{createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x_1'}]} => {}")
            .await;
        let uuid = format!("UUID(\"{}\")", collection(&shard).uuid);
        let create = placed("_terndbCreateSharded", (1, 0), (1, 2), WHOLE);
        let create = create.replace(crate::tests::sharding::UUID, &uuid);
        shard.check(&format!("admin {create} => {{}}")).await;
        shard
    };
    for shard in [with_documents().await, by_id.await] {
        shard
            .check("admin {setParameter: 1, rangeDeleterBatchSize: 4} => {was: 2147483647}")
            .await;
        let deletion = deletion(&shard, 1, 10, 20);
        give_away(&shard, &deletion).await.expect("is registered");
        let before = shard.shard.store.applied_time();
        assert!(ownership(&shard).orphans);
        assert_eq!(stored(&shard), 30);
        shard
            .check(
                "config {find: 'rangeDeletions'} => {cursor: {firstBatch: [{nss: 'test.c', donorShardId: 'shard0', range: {min: {x: 10}, max: {x: 20}}, whenToClean: 'now', numOrphanDocs: 3L}]}}
                 {count: 'c'} => {n: 20}
                 {serverStatus: 1} => {shardingStatistics: {rangeDeleterTasks: 1L}}",
            )
            .await;
        // A restart forgets nothing.
        let shard = shard.reopen().await;
        delete_all(&shard).await.expect("is removed");
        assert_eq!(stored(&shard), 20);
        assert!(!ownership(&shard).orphans);
        assert!(ownership(&shard).moving.dead.is_empty());
        shard
            .check(
                "config {count: 'rangeDeletions'} => {n: 0}
                 {count: 'c'} => {n: 20}
                 {find: 'c', filter: {y: 112}} => {cursor: {firstBatch: []}}
                 {find: 'c', filter: {y: 109}} => {cursor: {firstBatch: [{_id: 9}]}}
                 {serverStatus: 1} => {shardingStatistics: {countDocsDeletedByRangeDeleter: 10L, countRangeDeletions: 1L, rangeDeleterTasks: 0L}}
                 admin {cleanupOrphaned: 'test.c'} => {ok: 1.0}
                 admin {cleanupOrphaned: 'test.none'} => {ok: 1.0}",
            )
            .await;
        shard.check_valid("c").await;
        // Who reads at an earlier time finds it: it is in history.
        let then = ownership(&shard).at(before);
        assert!(then.is_ok());
    }
}

/// ⚑ Refused for what is owned or received, when it is registered.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_owned_is_registered() {
    let shard = with_documents().await;
    let refused = Err(Code::CONFLICTING_OPERATION_IN_PROGRESS);
    let owned = deletion(&shard, 1, 10, 20);
    let registered = register(&shard, &owned).await;
    assert_eq!(registered.map_err(|error| error.code), refused);
    // Before the decision of a move it may be.
    let pending = RangeDeletion {
        pending: true,
        ..owned.clone()
    };
    register(&shard, &pending).await.expect("is registered");
    delete_all(&shard).await.expect("is passed over");
    assert_eq!(stored(&shard), 30);
    let begun = change(&shard, |known| {
        let given = known.losing(owned.range.clone());
        Ok(given.without_dead(owned.range.clone()))
    });
    begun.await.expect("is applied");
    delete_all(&shard).await.expect("is passed over");
    shard
        .shard
        .remove_dead(&collection(&shard), &owned.range)
        .await
        .expect("is removed");
    let begun = change(&shard, |known| {
        known.with_receiving(MOVE, owned.range.clone())
    })
    .await;
    begun.expect("is applied");
    let registered = register(&shard, &owned).await;
    assert_eq!(registered.map_err(|error| error.code), refused);
}

/// ⚑ And when it is carried out, wherever the document came from.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_owned_is_removed() {
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    // The range comes back by another way, or somebody writes what he likes.
    let back = change(&shard, |known| Ok(known.gaining(given.range.clone()))).await;
    back.expect("is applied");
    let removed = delete_all(&shard).await.map_err(|error| error.code);
    assert_eq!(removed, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    assert_eq!(stored(&shard), 30);
    shard.check("{count: 'c'} => {n: 30}").await;
    // Half of it is owned: nothing of it is touched.
    let half = range(&shard, 10, 15);
    let given = change(&shard, |known| Ok(known.losing(half.clone()))).await;
    given.expect("is applied");
    let removed = delete_all(&shard).await.map_err(|error| error.code);
    assert_eq!(removed, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    assert_eq!(stored(&shard), 30);
    // What is not one of these documents at all removes nothing.
    shard
        .check(
            "config {delete: 'rangeDeletions', deletes: [{q: {}, limit: 0}]} => {n: 1}
             config {insert: 'rangeDeletions', documents: [{_id: 1, nss: 'test.c'}]} => {n: 1}",
        )
        .await;
    delete_all(&shard).await.expect("is passed over");
    assert_eq!(stored(&shard), 30);
}

/// One that would remove more than what is dead is refused, and keeps nobody from what is.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_deletion_keeps_no_range_away() {
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    let back = range(&shard, 10, 15);
    let back = change(&shard, |known| {
        Ok(known.without_dead(back.clone()).gaining(back.clone()))
    });
    back.await.expect("is applied");
    let wanted = range(&shard, 15, 20);
    let removed = shard.shard.remove_dead(&collection(&shard), &wanted).await;
    removed.expect("what is dead is removed");
    assert_eq!(stored(&shard), 25);
    shard
        .check(
            "{count: 'c'} => {n: 25}
             {serverStatus: 1} => {shardingStatistics: {countRangeDeletionsRefused: 1L, rangeDeleterTasks: 1L}}",
        )
        .await;
    let refused = delete_all(&shard).await.expect_err("it is refused");
    let named = format!("config.rangeDeletions has it under the _id {}", given.id);
    assert!(refused.message.contains(&named), "{refused}");
}

/// ⚑ A range that comes back before its removal begins with nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_comes_back_is_empty() {
    let shard = with_documents().await;
    let given = RangeDeletion {
        when: WhenToClean::Delayed,
        ..deletion(&shard, 1, 10, 20)
    };
    give_away(&shard, &given).await.expect("is registered");
    let part = range(&shard, 12, 14);
    let begin = || change(&shard, |known| known.with_receiving(MOVE, part.clone()));
    let refused = begin().await.map_err(|error| error.code);
    assert_eq!(refused, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    let removed = shard.shard.remove_dead(&collection(&shard), &part).await;
    removed.expect("is removed");
    shard
        .check("config {count: 'rangeDeletions'} => {n: 0}")
        .await;
    begin().await.expect("is applied");
    receive(&shard, &[received(&shard, 12, 12)])
        .await
        .expect("is stored");
    let owned = change(&shard, |known| {
        Ok(known.without_receiving(MOVE).gaining(part.clone()))
    });
    owned.await.expect("is applied");
    shard
        .check("{find: 'c', filter: {x: {$gte: 9, $lt: 21}}} => {cursor: {firstBatch: [{_id: 9}, {_id: 12, x: 12}, {_id: 20}]}}")
        .await;
    shard.check_valid("c").await;
}

/// An open snapshot and a change stream notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn removals_are_seen_by_nobody() {
    let shard = with_documents().await;
    let moving = range(&shard, 10, 20);
    let stream = shard
        .batch("{aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}}")
        .await
        .0;
    let before = shard.shard.store.applied_time();
    let blocked = change(&shard, |known| {
        Ok(known.with_block(MOVE, moving.clone(), BlockLevel::Reads))
    });
    blocked.await.expect("is applied");
    let given = change(&shard, |known| Ok(known.without_block(MOVE))).await;
    given.expect("is applied");
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    delete_all(&shard).await.expect("is removed");
    shard
        .check(&format!(
            "{{find: 'c', filter: {{x: {{$gte: 19}}}}, limit: 2, readConcern: {{level: 'snapshot', atClusterTime: Timestamp({}, {})}}}} => {{cursor: {{firstBatch: [{{_id: 19}}, {{_id: 20}}]}}}}
             {{insert: 'c', documents: [{{_id: 50, x: 50}}]}} => {{n: 1}}",
            before.seconds(),
            before.increment()
        ))
        .await;
    let more = format!("{{getMore: {stream}L, collection: 'c'}}");
    let (_, events) = shard.batch(&more).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event.get("operationType"))
        .collect();
    assert_eq!(kinds.len(), 1, "{kinds:?}");
    let reply = shard.run("test", "{serverStatus: 1}").await;
    assert!(get(&reply, "shardingStatistics").is_some());
}

/// The service is woken by what is registered, and by its parameters; who waits is told.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_removes_what_is_due() {
    let shard = with_documents().await;
    let background = shard.shard.spawn_background();
    let now = deletion(&shard, 1, 10, 20);
    give_away(&shard, &now).await.expect("is registered");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while ownership(&shard).orphans {
        assert!(std::time::Instant::now() < deadline, "nothing is removed");
        tokio::task::yield_now().await;
    }
    let delayed = RangeDeletion {
        when: WhenToClean::Delayed,
        since: shard.shard.log.latest_time(),
        ..deletion(&shard, 2, 20, 25)
    };
    give_away(&shard, &delayed).await.expect("is registered");
    shard
        .check("admin {cleanupOrphaned: 'test.c', maxTimeMS: 5} => 50")
        .await;
    assert!(ownership(&shard).orphans);
    let (waited, ()) = tokio::join!(
        shard.run("admin", "{cleanupOrphaned: 'test.c'}"),
        shard.check("admin {setParameter: 1, orphanCleanupDelaySecs: 0} => {was: 900}"),
    );
    assert_eq!(
        get(&waited, "ok"),
        Some(&differential::value::Value::Double(1.0))
    );
    assert!(!ownership(&shard).orphans);
    assert_eq!(stored(&shard), 15);
    shard.check_valid("c").await;
    shard.shard.begin_shutdown();
    background.await.expect("the task ends with the shutdown");
}

/// ⚑ Documents that were dead at an earlier time stay unseen at that time when they have been removed: given away by a
/// move, or left behind by one that was aborted.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_dead_is_not_seen_at_an_earlier_time() {
    let count_at = |time: ClusterTime, n: i32| {
        format!(
            "{{aggregate: 'c', pipeline: [{{$count: 'n'}}], cursor: {{}}, readConcern: {{level: 'snapshot', atClusterTime: Timestamp({}, {})}}}} => {{cursor: {{firstBatch: [{{n: {n}}}]}}}}",
            time.seconds(),
            time.increment()
        )
    };
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 20);
    let owned = shard.shard.store.applied_time();
    give_away(&shard, &given).await.expect("is registered");
    let dead = shard.shard.store.applied_time();
    delete_all(&shard).await.expect("is removed");
    assert!(!ownership(&shard).orphans);
    shard.check(&count_at(owned, 30)).await;
    shard.check(&count_at(dead, 20)).await;
    let begun = change(&shard, |known| {
        known.with_receiving(MOVE, given.range.clone())
    });
    begun.await.expect("is applied");
    receive(&shard, &[received(&shard, 12, 12)])
        .await
        .expect("is stored");
    let copied = shard.shard.store.applied_time();
    let aborted = change(&shard, |known| Ok(known.without_receiving(MOVE)));
    aborted.await.expect("is applied");
    shard
        .shard
        .remove_dead(&collection(&shard), &given.range)
        .await
        .expect("is removed");
    assert!(!ownership(&shard).orphans);
    shard.check(&count_at(copied, 20)).await;
}

/// The shard key gets a further field.
async fn refine(shard: &TestShard) {
    let key = DocWriter::new().with("x", 1).with("z", 1).finish();
    let refined = change(shard, |known| {
        let pattern = ShardKeyPattern::parse(key.as_doc())?;
        Ok(Ownership {
            owned: Arc::new(known.owned_by(&pattern)),
            key: key.clone(),
            pattern,
            ..known.clone()
        })
    });
    refined.await.expect("is applied");
}

/// ⚑ A deletion that was registered before the shard key got further fields is not taken for one of the
/// neighbour's range, whose bound is longer by now: nobody carries it out before its time, or waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refined_key_does_not_make_deletions_meet_their_neighbours() {
    let shard = with_documents().await;
    let given = RangeDeletion {
        when: WhenToClean::Delayed,
        ..deletion(&shard, 1, 10, 20)
    };
    give_away(&shard, &given).await.expect("is registered");
    refine(&shard).await;
    let range = |min: i32, max: i32| {
        let bound = |x: i32| {
            let bound = DocWriter::new().with("x", x);
            bound.with("z", model::bson::ValueRef::MinKey).finish()
        };
        let pattern = &ownership(&shard).pattern;
        let range = pattern.range_of(bound(min).as_doc(), bound(max).as_doc());
        range.expect("bounds")
    };
    let connection = Arc::new(wire::ConnectionInfo::in_process(-1));
    let command = DocWriter::new().with("cleanupOrphaned", "test.c").finish();
    let operation = (shard.shard.operations).begin(&connection, command.into_bytes().into());
    for (min, max, left) in [(1, 10, 1), (20, 30, 1), (19, 30, 0)] {
        let (known, range) = (collection(&shard), range(min, max));
        let removed = shard.shard.remove_dead(&known, &range);
        removed.await.expect("is looked at");
        let deletions = shard.shard.range_deletions().expect("documents");
        assert_eq!(deletions.len(), left, "[{min}, {max})");
        let waited = (shard.shard).await_range_deletions(known.uuid, Some(&range), &operation);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), waited).await;
        waited.expect("nobody waits").expect("there is none");
    }
    assert_eq!(stored(&shard), 20);
}

/// ⚑ A deletion that was registered before the shard key got further fields is carried out: bounds of before
/// do not meet the neighbour that the shard owns.
#[tokio::test(flavor = "multi_thread")]
async fn a_refined_key_does_not_stop_a_deletion() {
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    let later = deletion(&shard, 2, 10, 15);
    refine(&shard).await;
    // One more, as a move leaves it that began before.
    register(&shard, &later).await.expect("is registered");
    delete_all(&shard).await.expect("is removed");
    assert_eq!(stored(&shard), 20);
    assert!(!ownership(&shard).orphans);
    shard
        .check("config {count: 'rangeDeletions'} => {n: 0}")
        .await;
    shard.check_valid("c").await;
}
