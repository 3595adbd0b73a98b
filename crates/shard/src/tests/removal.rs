//! ⚑ How dead records go: into history while somebody could read them, without a trace afterwards.

use crate::sharding::range_deletion::RangeDeletion;
use crate::sharding::whole;
use crate::testing::TestShard;
use crate::tests::range_deletion::{delete_all, deletion, give_away, stored, with_documents};
use crate::tests::transitions::{MOVE, change, collection, ownership, range, receive, received};
use model::Code;
use model::bson::DocWriter;
use model::time::ClusterTime;
use query::index::parse_specification;
use std::sync::Arc;
use storage::entry::{Entry, Operation};
use storage::{Direction, Engine, EngineSnapshot, KeyRange};

/// Lets the window of history pass.
pub(super) fn pass_window(shard: &TestShard) {
    let store = &shard.shard.store;
    let applied = store.applied_time();
    let later = ClusterTime::new(applied.seconds() + 100_000, 0);
    store.maintain(later, 1000).expect("maintained");
    assert!(store.history_start() >= applied);
}

/// Versions in history of the collection.
fn in_history(shard: &TestShard) -> usize {
    let prefix = storage::layout::histories(collection(shard).id);
    let snapshot = shard.shard.store.engine().snapshot();
    let pairs = snapshot.scan(KeyRange::ALL, Direction::Forward);
    let keys = pairs.map(|pair| pair.expect("sound").0);
    keys.filter(|key| key.starts_with(&prefix)).count()
}

fn at(time: ClusterTime) -> String {
    format!(
        "readConcern: {{level: 'snapshot', atClusterTime: Timestamp({}, {})}}",
        time.seconds(),
        time.increment()
    )
}

/// Documents that are stored, whoever owns them.
fn seen(snapshot: &crate::Snapshot, shard: &TestShard) -> usize {
    let id = collection(shard).id;
    let records = snapshot.scan_records(id, KeyRange::ALL, Direction::Forward);
    records.filter(Result::is_ok).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_spared_what_nobody_can_read() {
    for passes in [false, true] {
        let shard = with_documents().await;
        shard
            .check("admin {setParameter: 1, rangeDeleterBatchSize: 4} => {was: 2147483647}")
            .await;
        let owned = shard.shard.store.applied_time();
        let open = shard.shard.store.snapshot();
        let given = deletion(&shard, 1, 10, 20);
        give_away(&shard, &given).await.expect("is registered");
        if passes {
            pass_window(&shard);
        }
        let earlier = format!(
            "{{aggregate: 'c', pipeline: [{{$count: 'n'}}], cursor: {{}}, {}}}",
            at(owned)
        );
        let found = match passes {
            false => "{cursor: {firstBatch: [{n: 30}]}}",
            true => "239",
        };
        // The same before and after.
        shard.check(&format!("{earlier} => {found}")).await;
        delete_all(&shard).await.expect("is removed");
        shard.check(&format!("{earlier} => {found}")).await;
        assert_eq!(in_history(&shard), 0, "it lies where it was");
        assert_eq!(seen(&open, &shard), 30, "an open snapshot has all of it");
        assert_eq!(stored(&shard), 20);
        assert!(!ownership(&shard).orphans);
        shard
            .check(
                "config {count: 'rangeDeletions'} => {n: 0}
                 {count: 'c'} => {n: 20}
                 {find: 'c', filter: {y: 112}} => {cursor: {firstBatch: []}}
                 {find: 'c', filter: {y: 109}} => {cursor: {firstBatch: [{_id: 9}]}}
                 {serverStatus: 1} => {shardingStatistics: {countDocsDeletedByRangeDeleter: 10L, countRangeDeletions: 1L, rangeDeleterTasks: 0L}}",
            )
            .await;
        shard.check_valid("c").await;
        // What is in the log says the same again.
        drop(open);
        let shard = shard.reopen().await;
        assert_eq!(stored(&shard), 20);
        shard.check_valid("c").await;
    }
}

/// ⚑ A client's write waits behind one short entry, however many records go.
#[tokio::test(flavor = "multi_thread")]
async fn records_go_in_short_entries() {
    for passes in [false, true] {
        let shard = with_documents().await;
        let given = deletion(&shard, 1, 10, 19);
        give_away(&shard, &given).await.expect("is registered");
        if passes {
            pass_window(&shard);
        }
        let before = shard.shard.log.last_applied();
        delete_all(&shard).await.expect("is removed");
        let id = collection(&shard).id;
        let is_removal = |operation: &Operation<'_>| match operation {
            Operation::DeleteRecord { collection, .. }
            | Operation::ForgetRecord { collection, .. } => *collection == id,
            _ => false,
        };
        let entries = shard.shard.log.read(before, 1 << 20).expect("is read");
        let removed = entries.iter().map(|entry| {
            let entry = Entry::decode(&entry.payload).expect("sound");
            let operations = entry
                .operations()
                .map(|operation| operation.expect("sound"));
            operations.filter(is_removal).count()
        });
        let removed: Vec<_> = removed.filter(|count| *count > 0).collect();
        assert_eq!(removed, [4, 4, 1]);
        assert_eq!(stored(&shard), 21);
    }
}

/// ⚑ What is owned again is not forgotten, however long ago it was given away.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_owned_is_forgotten() {
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    let back = change(&shard, |known| Ok(known.gaining(given.range.clone()))).await;
    back.expect("is applied");
    pass_window(&shard);
    let removed = delete_all(&shard).await.map_err(|error| error.code);
    assert_eq!(removed, Err(Code::CONFLICTING_OPERATION_IN_PROGRESS));
    assert_eq!(stored(&shard), 30);
    shard.check("{count: 'c'} => {n: 30}").await;
}

/// Change streams and the view of the log have nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_forgotten_is_told_to_nobody() {
    let shard = with_documents().await;
    let stream = "{aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}}";
    let (stream, _) = shard.batch(stream).await;
    let logged = "{count: 'oplog.rs', query: {ns: 'test.c'}}";
    let before = shard.run("local", logged).await;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    pass_window(&shard);
    delete_all(&shard).await.expect("is removed");
    assert_eq!(in_history(&shard), 0);
    let n = |reply| differential::value::get(reply, "n").cloned();
    assert_eq!(n(&shard.run("local", logged).await), n(&before));
    shard
        .check("{insert: 'c', documents: [{_id: 50, x: 50}]} => {n: 1}")
        .await;
    let more = format!("{{getMore: {stream}L, collection: 'c'}}");
    let (_, events) = shard.batch(&more).await;
    assert_eq!(events.len(), 1, "{events:?}");
}

/// ⚑ An index build adds the entries of what it has read under a latch. While one runs, records
/// go under their latches too.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_forgotten_under_an_index_build() {
    let shard = with_documents().await;
    let key = DocWriter::new().with("z", 1).finish();
    let specification = DocWriter::new()
        .with("key", &key)
        .with("name", "z")
        .finish();
    let definition = parse_specification(specification.as_doc(), false).expect("a definition");
    let known = collection(&shard);
    let begun = shard.shard.begin_indexes(&known, vec![definition]).await;
    let build = begun.expect("begins").expect("is to be built");
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    pass_window(&shard);
    delete_all(&shard).await.expect("is removed");
    assert_eq!(in_history(&shard), 10);
    let connection = Arc::new(wire::ConnectionInfo::in_process(-1));
    let operation = shard
        .shard
        .operations
        .begin(&connection, key.into_bytes().into());
    let built = shard.shard.build_indexes(&build, &operation).await;
    built.expect("is built");
    shard.check_valid("c").await;
    assert_eq!(stored(&shard), 20);
}

/// Where nothing but dead records is left of a collection it begins anew, and can be filled again.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_of_dead_records_begins_anew() {
    for passes in [false, true] {
        let shard = with_documents().await;
        let before = collection(&shard);
        let all = RangeDeletion {
            range: whole(&ownership(&shard).pattern),
            ..deletion(&shard, 1, 0, 100)
        };
        let owned = shard.shard.store.applied_time();
        give_away(&shard, &all).await.expect("is registered");
        if passes {
            pass_window(&shard);
        }
        delete_all(&shard).await.expect("is removed");
        let after = collection(&shard);
        assert_eq!(after.id != before.id, passes);
        assert_eq!(
            (&after.uuid, &after.options),
            (&before.uuid, &before.options)
        );
        assert_eq!(after.clustering, before.clustering);
        assert_eq!(stored(&shard), 0);
        assert!(!ownership(&shard).orphans && ownership(&shard).owned.is_empty());
        assert_eq!(in_history(&shard), 0);
        if passes {
            // ⚑ Whatever a member's history holds: of earlier times nothing is known.
            assert!(ownership(&shard).at(owned).is_err());
        }
        let shard = shard.reopen().await;
        shard
            .check(
                "config {count: 'rangeDeletions'} => {n: 0}
                 {listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'x_1'}, {name: 'y', key: {y: 1}}]}}
                 {serverStatus: 1} => {shardingStatistics: {rangeDeleterTasks: 0L}}",
            )
            .await;
        shard.check_valid("c").await;
        // It comes back.
        let part = range(&shard, 10, 20);
        let begun = change(&shard, |known| known.with_receiving(MOVE, part.clone())).await;
        begun.expect("is applied");
        receive(&shard, &[received(&shard, 12, 12)])
            .await
            .expect("is stored");
        let owned = change(&shard, |known| {
            Ok(known.without_receiving(MOVE).gaining(part.clone()))
        });
        owned.await.expect("is applied");
        shard
            .check("{find: 'c'} => {cursor: {firstBatch: [{_id: 12, x: 12}]}}")
            .await;
        shard.check_valid("c").await;
    }
}

/// ⚑ Not while a part of it is owned or comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_in_use_does_not_begin_anew() {
    let shard = with_documents().await;
    let before = collection(&shard).id;
    let most = deletion(&shard, 1, 0, 30);
    give_away(&shard, &most).await.expect("is registered");
    pass_window(&shard);
    delete_all(&shard).await.expect("is removed");
    assert_eq!((collection(&shard).id, stored(&shard)), (before, 1));
    let shard = with_documents().await;
    let before = collection(&shard).id;
    let all = whole(&ownership(&shard).pattern);
    let given = change(&shard, |known| Ok(known.losing(all.clone()))).await;
    given.expect("is applied");
    let comes = range(&shard, 40, 50);
    let removed = shard.shard.remove_dead(&collection(&shard), &comes).await;
    removed.expect("is removed");
    let begun = change(&shard, |known| known.with_receiving(MOVE, comes.clone())).await;
    begun.expect("is applied");
    pass_window(&shard);
    let most = range(&shard, 0, 30);
    let removed = shard.shard.remove_dead(&collection(&shard), &most).await;
    removed.expect("is removed");
    assert_eq!((collection(&shard).id, stored(&shard)), (before, 1));
    assert_eq!(in_history(&shard), 0);
}

/// ⚑ A range that was forgotten at once comes back while its records are still stored: with other documents
/// under the same keys. Nothing of before is seen, by whatever plan, and nothing that is new goes when the rest
/// is removed; a restart in between changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_range_comes_back_before_its_bytes_have_gone() {
    let shard = with_documents().await;
    let id = collection(&shard).id;
    let given = deletion(&shard, 1, 10, 20);
    give_away(&shard, &given).await.expect("is registered");
    pass_window(&shard);
    // By every way that leaves something in memory.
    shard
        .check(
            "{aggregate: 'c', pipeline: [{$match: {y: {$gte: 0}}}, {$count: 'n'}], cursor: {}, readConcern: {level: 'available'}} => {cursor: {firstBatch: [{n: 30}]}}
             {find: 'c', filter: {_id: 12}, readConcern: {level: 'available'}} => {cursor: {firstBatch: [{_id: 12}]}}",
        )
        .await;
    delete_all(&shard).await.expect("is removed");
    let store = &shard.shard.store;
    assert_eq!((store.forgotten_ranges(id), stored(&shard)), (1, 20));
    shard.check_valid("c").await;
    let part = range(&shard, 10, 20);
    let begun = change(&shard, |known| known.with_receiving(MOVE, part.clone())).await;
    begun.expect("is applied");
    let mut came = received(&shard, 12, 12);
    let document = DocWriter::new().with("_id", 12).with("x", 12).with("y", 7);
    came.document = Some(document.finish());
    receive(&shard, &[came]).await.expect("is stored");
    let owned = change(&shard, |known| {
        Ok(known.without_receiving(MOVE).gaining(part.clone()))
    });
    owned.await.expect("is applied");
    let check = async |shard: &TestShard| {
        shard
            .check(
                "{find: 'c', filter: {x: {$gte: 10, $lt: 20}}} => {cursor: {firstBatch: [{_id: 12, x: 12, y: 7}]}}
                 {find: 'c', filter: {_id: 12}} => {cursor: {firstBatch: [{_id: 12, x: 12, y: 7}]}}
                 {find: 'c', filter: {y: {$in: [12, 112, 15]}}} => {cursor: {firstBatch: []}}
                 {find: 'c', filter: {y: 7}, sort: {_id: 1}} => {cursor: {firstBatch: [{_id: 7}, {_id: 12}]}}
                 {distinct: 'c', key: '_id', query: {y: {$gte: 110}}} => {values: [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]}
                 {count: 'c', query: {y: {$gte: 0}}} => {n: 21}
                 {count: 'c'} => {n: 21}",
            )
            .await;
        assert_eq!(stored(shard), 21);
        shard.check_valid("c").await;
    };
    check(&shard).await;
    let shard = shard.reopen().await;
    check(&shard).await;
    let store = &shard.shard.store;
    let later = ClusterTime::new(store.applied_time().seconds() + 100_000, 0);
    for _ in 0..100 {
        store.maintain(later, 3).expect("maintained");
    }
    assert_eq!(store.forgotten_ranges(id), 0);
    check(&shard).await;
    store.compact().expect("compacted");
    check(&shard).await;
    let shard = shard.reopen().await;
    check(&shard).await;
}

/// ⚑ A range comes back moments after it was given away, several times. What is left of it is forgotten at once, and
/// still there for reads at the times at which it was owned: under the documents that came since, after a restart,
/// on a member that got a copy, until the window has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_comes_back_at_once_is_forgotten_and_stays_readable() {
    let shard = with_documents().await;
    let id = collection(&shard).id;
    let part = range(&shard, 10, 20);
    // When, how many documents there were, and what one of the range was then.
    let first = "[{_id: 10, x: 10, y: [10, 110]}]".to_owned();
    let mut seen_then = vec![(shard.shard.store.applied_time(), 30, first)];
    for round in 1..4 {
        let given = deletion(&shard, round, 10, 20);
        give_away(&shard, &given).await.expect("is registered");
        let away = shard.shard.store.applied_time();
        let removed = shard.shard.remove_dead(&collection(&shard), &part).await;
        removed.expect("is removed");
        let marks = usize::from(round.min(2));
        assert_eq!(
            shard.shard.store.forgotten_ranges(id),
            marks,
            "few go one by one"
        );
        assert_eq!(stored(&shard), 20);
        let begun = change(&shard, |known| known.with_receiving(MOVE, part.clone())).await;
        begun.expect("is applied");
        let count = if round == 1 { 10 } else { 1 };
        let comes = |x: i32| {
            let mut came = received(&shard, x, x);
            let y = 1000 * i32::from(round) + x;
            let document = DocWriter::new().with("_id", x).with("x", x).with("y", y);
            came.document = Some(document.finish());
            came
        };
        let all: Vec<_> = (10..10 + count).map(comes).collect();
        receive(&shard, &all).await.expect("is stored");
        let gained = change(&shard, |known| {
            Ok(known.without_receiving(MOVE).gaining(part.clone()))
        });
        gained.await.expect("is applied");
        seen_then.push((away, 20, "[]".to_owned()));
        let now = shard.shard.store.applied_time();
        let y = 1000 * i32::from(round) + 10;
        seen_then.push((now, 20 + count, format!("[{{_id: 10, x: 10, y: {y}}}]")));
    }
    let check = async |shard: &TestShard| {
        for (time, count, first) in &seen_then {
            let time = at(*time);
            let find = format!("find: 'c', filter: {{_id: 10, x: 10}}, {time}");
            let counted = "pipeline: [{$count: 'n'}], cursor: {}";
            shard
                .check(&format!(
                    "{{aggregate: 'c', {counted}, {time}}} => {{cursor: {{firstBatch: [{{n: {count}}}]}}}}
                     {{{find}}} => {{cursor: {{firstBatch: {first}}}}}"
                ))
                .await;
        }
        shard
            .check(
                "{find: 'c', filter: {x: {$gte: 10, $lt: 20}}} => {cursor: {firstBatch: [{_id: 10, y: 3010}]}}
                 {find: 'c', filter: {y: {$in: [110, 112, 1010, 1012, 2010]}}} => {cursor: {firstBatch: []}}
                 {find: 'c', filter: {y: {$gt: 999}}} => {cursor: {firstBatch: [{_id: 10, y: 3010}]}}
                 {count: 'c'} => {n: 21}",
            )
            .await;
        assert_eq!(stored(shard), 21);
        shard.check_valid("c").await;
    };
    check(&shard).await;
    // Neither compactions nor sweeps take what can still be read.
    let store = &shard.shard.store;
    let soon = ClusterTime::new(store.applied_time().seconds() + 1, 0);
    store.maintain(soon, 1000).expect("maintained");
    store.compact().expect("compacted");
    check(&shard).await;
    let later = ClusterTime::new(store.applied_time().seconds() + 100_000, 0);
    for _ in 0..100 {
        store.maintain(later, 1000).expect("maintained");
    }
    assert_eq!(store.forgotten_ranges(id), 0);
    store.compact().expect("compacted");
    let shard = shard.reopen().await;
    shard
        .check("{count: 'c', query: {y: {$gte: 0}}} => {n: 21}")
        .await;
    shard.check_valid("c").await;
}

/// Few records go one by one.
#[tokio::test(flavor = "multi_thread")]
async fn few_records_leave_no_mark() {
    let shard = with_documents().await;
    let given = deletion(&shard, 1, 10, 15);
    give_away(&shard, &given).await.expect("is registered");
    pass_window(&shard);
    delete_all(&shard).await.expect("is removed");
    let id = collection(&shard).id;
    assert_eq!(shard.shard.store.forgotten_ranges(id), 0);
    assert_eq!((stored(&shard), in_history(&shard)), (25, 0));
    shard.check_valid("c").await;
}
