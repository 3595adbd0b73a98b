//! ⚑ Who needs a range that is blocked waits, and goes on with the ownership that holds then.

use crate::sharding::{BlockLevel, Ownership, Transition};
use crate::testing::TestShard;
use crate::tests::sharding::{LOW, WHOLE, member_of_cluster, placed, sharded, version};
use crate::tests::transitions::{MOVE, change, collection, ownership, range, receive, received};
use differential::value::{Fields, Value, get};
use model::bson::DocWriter;
use model::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Ten documents by `x`.
pub(super) async fn filled() -> TestShard {
    let shard = sharded(WHOLE).await;
    let documents: Vec<String> = (1..=10)
        .map(|x| format!("{{_id: {x}, x: {x}, y: {}}}", x % 2))
        .collect();
    shard.insert(&documents).await;
    shard
        .check("{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}, {key: {y: 1, x: 1}, name: 'yx'}]} => {}")
        .await;
    shard
}

/// The same, those from 3 on and below 6 blocked.
pub(super) async fn blocked(level: BlockLevel) -> TestShard {
    let shard = filled().await;
    let moving = range(&shard, 3, 6);
    let set = change(&shard, |known| {
        Ok(known.with_block(MOVE, moving.clone(), level))
    });
    set.await.expect("is blocked");
    shard
}

/// Runs a command that has to wait, and the change that it waits for.
async fn waiting_for(
    shard: &TestShard,
    command: &str,
    then: impl Fn(&Ownership) -> Result<Ownership, Error> + Send + Sync,
) -> Fields {
    let before = shard.shard.counters.waits_for_moves.load(Ordering::Relaxed);
    let lift = once_waited_for(shard, command, before, then);
    let (reply, ()) = tokio::join!(shard.run("test", command), lift);
    reply
}

/// Makes a change once somebody waits for one.
async fn once_waited_for(
    shard: &TestShard,
    command: &str,
    before: u64,
    then: impl Fn(&Ownership) -> Result<Ownership, Error> + Send + Sync,
) {
    is_waited_for(shard, command, before).await;
    change(shard, then).await.expect("is applied");
}

async fn is_waited_for(shard: &TestShard, command: &str, before: u64) {
    let counter = &shard.shard.counters.waits_for_moves;
    let deadline = Instant::now() + Duration::from_secs(60);
    while counter.load(Ordering::Relaxed) == before {
        assert!(Instant::now() < deadline, "{command} does not wait");
        tokio::task::yield_now().await;
    }
}

pub(super) fn code(reply: &Fields) -> Option<Value> {
    let errors = get(reply, "writeErrors").and_then(Value::as_array);
    let first = errors.and_then(|errors| errors.first());
    first
        .and_then(|error| error.get("code"))
        .or(get(reply, "code"))
        .cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_wait_for_their_range() {
    let table = [
        "{insert: 'c', documents: [{_id: 40, x: 4}]}",
        "{update: 'c', updates: [{q: {x: 4}, u: {$set: {z: 1}}}]}",
        "{update: 'c', updates: [{q: {}, u: {$set: {z: 1}}, multi: true}]}",
        "{update: 'c', updates: [{q: {x: 41}, u: {$set: {z: 1}}, upsert: true}, {q: {x: 4.5}, u: {$set: {z: 1}}, upsert: true}]}",
        "{delete: 'c', deletes: [{q: {_id: 4}, limit: 1}]}",
        "{delete: 'c', deletes: [{q: {y: 0}, limit: 0}]}",
        "{findAndModify: 'c', query: {x: 5}, update: {$set: {z: 2}}}",
    ];
    for command in table {
        for level in [BlockLevel::Writes, BlockLevel::Reads] {
            let shard = blocked(level).await;
            // Others are not in the way.
            shard
                .check(
                    "{insert: 'c', documents: [{_id: 60, x: 6}]} => {n: 1}
                     {update: 'c', updates: [{q: {x: 2}, u: {$set: {z: 1}}}]} => {n: 1}",
                )
                .await;
            let reply = waiting_for(&shard, command, |known| Ok(known.without_block(MOVE))).await;
            assert_eq!(code(&reply), None, "{command}: {reply:?}");
            shard.check_valid("c").await;
        }
    }
}

/// ⚑ What was waited for and is gone is another shard's: the request is stale.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_was_given_away_is_not_written() {
    let routed = format!(", shardVersion: {}", version(1, 0));
    let table = [
        "{insert: 'c', documents: [{_id: 40, x: 4}]ROUTED}",
        "{update: 'c', updates: [{q: {x: 4}, u: {$set: {z: 1}}}]ROUTED}",
        "{delete: 'c', deletes: [{q: {x: 4}, limit: 1}]ROUTED}",
        "{findAndModify: 'c', query: {x: 5}, update: {$set: {z: 2}}ROUTED}",
        "{find: 'c', filter: {x: 4}ROUTED}",
        "{aggregate: 'c', pipeline: [{$match: {x: 4}}], cursor: {}ROUTED}",
    ];
    for command in table {
        let shard = blocked(BlockLevel::Reads).await;
        let moving = range(&shard, 3, 6);
        let command = command.replace("ROUTED", &routed);
        let reply = waiting_for(&shard, &command, |known| {
            Ok(known.without_block(MOVE).losing(moving.clone()))
        });
        let reply = reply.await;
        assert_eq!(code(&reply), Some(Value::Int32(13388)), "{command}");
        shard
            .check("{find: 'c', filter: {x: {$lt: 7}}, sort: {x: 1}} => {cursor: {firstBatch: [{_id: 1}, {_id: 2}, {_id: 6}]}}")
            .await;
    }
}

/// ⚑ A `$merge` is begun again by whoever routed it only as long as it has written nothing: what it has
/// joined would be joined twice. Records by `_id` are joined in portions, others one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_has_written_is_killed_when_its_target_goes() {
    let source = |from: usize| {
        let documents = (from..1003).map(|at| format!("{{_id: {at}, x: {at}}}"));
        documents.collect::<Vec<String>>().join(", ")
    };
    let merge = "{aggregate: 's', pipeline: [{$sort: {_id: 1}}, {$merge: {into: 'c', whenMatched: [{$set: {n: {$add: ['$n', 1]}}}]}}], cursor: {}}";
    for key in ["_id", "x"] {
        // The first portion is joined, or nothing.
        for (first, expected, joined) in [
            (0, Code::QUERY_PLAN_KILLED, 2),
            (1000, Code::STALE_CONFIG, 1),
        ] {
            let shard = member_of_cluster().await;
            let create = placed("_terndbCreateSharded", (1, 0), (1, 2), WHOLE)
                .replace("{x: ", &format!("{{{key}: "))
                .replace(
                    "owned:",
                    &format!("indexes: [{{key: {{{key}: 1}}, name: '{key}_1'}}], owned:"),
                );
            shard.check(&format!("admin {create} => {{}}")).await;
            shard
                .check(&format!(
                    "{{insert: 'c', documents: [{{_id: 0, x: 0, n: 1}}]}} => {{n: 1}}
                     {{insert: 's', documents: [{}]}} => {{n: {}}}",
                    source(first),
                    1003 - first
                ))
                .await;
            let bound = |at: i32| DocWriter::new().with(key, at).finish();
            let pattern = ownership(&shard).pattern.clone();
            let moving = pattern.range_of(bound(1000).as_doc(), bound(2000).as_doc());
            let moving = moving.expect("bounds");
            let set = change(&shard, |known| {
                Ok(known.with_block(MOVE, moving.clone(), BlockLevel::Writes))
            });
            set.await.expect("is blocked");
            // What computes for long keeps its task to itself.
            let shard = Arc::new(shard);
            let lost = tokio::spawn({
                let (shard, moving) = (shard.clone(), moving.clone());
                async move {
                    once_waited_for(&shard, merge, 0, |known| {
                        Ok(known.without_block(MOVE).losing(moving.clone()))
                    })
                    .await;
                }
            });
            let reply = shard.run("test", merge).await;
            lost.await.expect("it is lost");
            assert_eq!(
                code(&reply),
                Some(Value::Int32(expected.0)),
                "{key}: {reply:?}"
            );
            shard
                .check(&format!("{{find: 'c', filter: {{_id: 0}}}} => {{cursor: {{firstBatch: [{{_id: 0, n: {joined}}}]}}}}"))
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_time_of_the_operation() {
    let shard = blocked(BlockLevel::Reads).await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 40, x: 4}], maxTimeMS: 5} => 50
             {find: 'c', filter: {x: 4}, maxTimeMS: 5} => 50
             {count: 'c', maxTimeMS: 5} => 50",
        )
        .await;
}

/// A change stream reads the log. What it is given to wait for news it does not spend on waiting for
/// a range.
#[tokio::test(flavor = "multi_thread")]
async fn change_streams_do_not_wait() {
    let shard = blocked(BlockLevel::Reads).await;
    let opened = shard
        .run(
            "test",
            "{aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}}",
        )
        .await;
    let cursor = get(&opened, "cursor").and_then(|cursor| cursor.get("id"));
    let Some(Value::Int64(id)) = cursor else {
        panic!("{opened:?}");
    };
    let more = format!("{{getMore: {id}L, collection: 'c', maxTimeMS: 1}}");
    let reply = shard.run("test", &more).await;
    assert_eq!(code(&reply), None, "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_wait_for_a_range_that_is_blocked_for_reads() {
    let table = [
        "{find: 'c', filter: {x: 4}}",
        "{find: 'c', filter: {_id: 4}}",
        "{find: 'c', filter: {_id: 400}}",
        "{find: 'c', filter: {y: {$ne: 7}}}",
        "{find: 'c', filter: {$or: [{x: 1}, {x: 5}]}}",
        "{find: 'c', filter: {y: 1}, projection: {_id: 0, y: 1}, hint: 'yx'}",
        "{count: 'c'}",
        "{count: 'c', query: {y: 1}}",
        "{distinct: 'c', key: 'y'}",
        "{aggregate: 'c', pipeline: [{$group: {_id: null, n: {$sum: 1}}}], cursor: {}}",
    ];
    for command in table {
        let shard = blocked(BlockLevel::Reads).await;
        let moving = range(&shard, 3, 6);
        let reply = waiting_for(&shard, command, |known| {
            Ok(known.without_block(MOVE).losing(moving.clone()))
        });
        let reply = reply.await;
        assert_eq!(code(&reply), None, "{command}");
        // Another answer than at the beginning, from the ranges that are left.
        assert_eq!(reply_of(&shard, command).await, answer(&reply), "{command}");
    }
    let shard = blocked(BlockLevel::Reads).await;
    shard
        .check(
            "{find: 'c', filter: {x: 2}} => {cursor: {firstBatch: [{_id: 2}]}}
             {find: 'c', filter: {$or: [{x: 1}, {x: 7}]}} => {cursor: {firstBatch: [{_id: 1}, {_id: 7}]}}
             {count: 'c', query: {x: {$gte: 6}}} => {n: 5}
             {count: 'c', readConcern: {level: 'available'}} => {n: 10}",
        )
        .await;
    let shard = blocked(BlockLevel::Writes).await;
    shard
        .check(
            "{find: 'c', filter: {x: 4}} => {cursor: {firstBatch: [{_id: 4}]}}
             {count: 'c'} => {n: 10}",
        )
        .await;
}

fn answer(reply: &Fields) -> Option<Value> {
    let found = ["cursor", "values", "n"];
    found.iter().find_map(|name| get(reply, name).cloned())
}

async fn reply_of(shard: &TestShard, command: &str) -> Option<Value> {
    answer(&shard.run("test", command).await)
}

/// ⚑ A read at an earlier time sees the ranges of that time.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_time_has_its_ranges() {
    let shard = blocked(BlockLevel::Writes).await;
    let moving = range(&shard, 3, 6);
    let time = |time: model::time::ClusterTime| {
        format!("Timestamp({}, {})", time.seconds(), time.increment())
    };
    let count = |at: &str, n: i32| {
        format!(
            "{{aggregate: 'c', pipeline: [{{$count: 'n'}}], cursor: {{}}, readConcern: {{level: 'snapshot', atClusterTime: {at}}}}} => {{cursor: {{firstBatch: [{{n: {n}}}]}}}}"
        )
    };
    let began = shard.shard.store.applied_time();
    let before = time(began);
    let waits = change(&shard, |known| {
        Ok(known.with_block(MOVE, moving.clone(), BlockLevel::Reads))
    });
    let blocked = waits.await.expect("is applied");
    // No need to wait for the decision.
    shard.check(&count(&before, 10)).await;
    shard
        .check("{insert: 'c', documents: [{_id: 70, x: 70}]} => {n: 1}")
        .await;
    let decided = shard.shard.store.applied_time();
    shard
        .check("{insert: 'c', documents: [{_id: 71, x: 71}]} => {n: 1}")
        .await;
    let lost = Transition {
        ownership: Some(Box::new(|known: &Ownership| {
            Ok(known.without_block(MOVE).losing(moving.clone()))
        })),
        counts_from: Some(decided),
        ..Transition::default()
    };
    let given = shard.shard.transition(collection(&shard).id, &lost).await;
    let given = given.expect("is applied");
    drop(lost);
    let earlier = time(model::time::ClusterTime::from_u64(decided.to_u64() - 1));
    let check = async |shard: &TestShard| {
        shard.check(&count(&before, 10)).await;
        // Lost from the time on that was decided, not from the block nor from the entry.
        shard.check(&count(&time(blocked.time), 10)).await;
        shard.check(&count(&earlier, 10)).await;
        shard.check(&count(&time(decided), 8)).await;
        shard.check(&count(&time(given.time), 9)).await;
    };
    check(&shard).await;
    let kept = (ownership(&shard).at(blocked.time)).map(|then| then.owned.as_slice().to_vec());
    let shard = shard.reopen().await;
    let read = (ownership(&shard).at(blocked.time)).map(|then| then.owned.as_slice().to_vec());
    assert_eq!(read, kept);
    let whole = ownership(&shard)
        .at(began)
        .map(|then| then.owned.iter().len());
    assert_eq!(whole, Ok(1));
    let unknown = change(&shard, |known| {
        let mut changed = known.clone();
        let mut moving = crate::sharding::Moving::clone(&known.moving);
        moving.known_since = Some(blocked.time);
        changed.moving = std::sync::Arc::new(moving);
        Ok(changed)
    });
    unknown.await.expect("is applied");
    let code = ownership(&shard).at(began).map(|_| ());
    let code = code.map_err(|error| error.code);
    assert_eq!(code, Err(model::Code::STALE_CHUNK_HISTORY));
}

/// ⚑ Between two batches documents may come that are not owned.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_does_not_meet_what_is_received() {
    let shard = sharded(LOW).await;
    shard
        .check("{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}]} => {}")
        .await;
    let documents: Vec<String> = (1..=9)
        .map(|x| format!("{{_id: {x}, x: {x}, y: 1}}"))
        .collect();
    shard.insert(&documents).await;
    let mut cursors = Vec::new();
    for command in [
        "{find: 'c', batchSize: 2}",
        "{find: 'c', filter: {y: {$gte: 0}}, hint: 'y', batchSize: 2}",
        "{find: 'c', filter: {$or: [{y: 1}, {x: {$gt: 0}}]}, batchSize: 2}",
        "{find: 'c', filter: {y: 1}, projection: {_id: 0, y: 1}, hint: 'y', batchSize: 2}",
        "{aggregate: 'c', pipeline: [{$match: {y: 1}}, {$project: {_id: 0, y: 1}}], cursor: {batchSize: 2}}",
    ] {
        cursors.push((command, shard.batch(command).await.0));
    }
    let arriving = range(&shard, 10, 20);
    let begun = change(&shard, |known| known.with_receiving(MOVE, arriving.clone())).await;
    begun.expect("is applied");
    let documents: Vec<_> = (10..20)
        .map(|x| {
            let mut came = received(&shard, 100 + x, x);
            let document = model::bson::DocWriter::new()
                .with("_id", 100 + x)
                .with("x", x)
                .with("y", 1);
            came.document = Some(document.finish());
            came
        })
        .collect();
    receive(&shard, &documents).await.expect("is stored");
    for (command, cursor) in cursors {
        assert_eq!(shard.rest(cursor, 3).await.len(), 7, "{command}");
    }
    shard
        .check(
            "{count: 'c'} => {n: 9}
             {count: 'c', readConcern: {level: 'available'}} => {n: 19}
             {distinct: 'c', key: 'x', query: {x: {$gt: 7}}} => {values: [8, 9]}
             {find: 'c', filter: {x: {$gt: 17}}, readConcern: {level: 'available'}} => {cursor: {firstBatch: [{x: 18}, {x: 19}]}}",
        )
        .await;
}

/// ⚑ A unique index is built over what is owned.
#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_in_no_ones_way_when_a_unique_index_is_built() {
    let shard = sharded(WHOLE).await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1, u: 1}}, {{_id: 2, x: 12, u: 2}}, {{_id: 3, x: 12, u: 2}}]}} => {{n: 3}}
             {{createIndexes: 'c', indexes: [{{key: {{x: 1, u: 1}}, name: 'u', unique: true}}]}} => 11000
             admin {} => {{}}
             {{createIndexes: 'c', indexes: [{{key: {{x: 1, u: 1}}, name: 'u', unique: true}}]}} => {{}}
             {{insert: 'c', documents: [{{_id: 4, x: 1, u: 1}}]}} => 11000",
            placed("_terndbSetPlacement", (2, 0), (2, 1), LOW)
        ))
        .await;
}

/// ⚑ What it waits for may need its session: the history that comes with a range is written there.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_version_does_not_keep_its_session() {
    let shard = sharded(LOW).await;
    let arriving = range(&shard, 10, 20);
    let begun = change(&shard, |known| known.with_receiving(MOVE, arriving.clone())).await;
    begun.expect("is applied");
    let mut newer = ownership(&shard).placement;
    newer.chunk = model::version::ChunkVersion::new(2, 0);
    let insert = |document: &str, rest: String| {
        let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}";
        format!("{{insert: 'c', documents: [{document}], {session}, {rest}}}")
    };
    let rest = format!("txnNumber: 2L, shardVersion: {}", version(2, 0));
    let waiting = insert("{_id: 1, x: 12}", rest);
    let before = shard.shard.counters.waits_for_moves.load(Ordering::Relaxed);
    let meanwhile = async {
        is_waited_for(&shard, &waiting, before).await;
        let other = insert("{_id: 2, x: 1}", "txnNumber: 1L".to_owned());
        let written = tokio::time::timeout(Duration::from_secs(20), shard.run("test", &other));
        let decided = change(&shard, |known| {
            let gained = known.without_receiving(MOVE).gaining(arriving.clone());
            Ok(gained.with_versions(newer, newer))
        });
        let written = written.await;
        decided.await.expect("is applied");
        written.expect("the session is free")
    };
    let (waited, written) = tokio::join!(shard.run("test", &waiting), meanwhile);
    assert_eq!((code(&waited), code(&written)), (None, None));
}

/// A request that knows of a decision before the shard does waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_version_is_waited_for() {
    let shard = sharded(LOW).await;
    let arriving = range(&shard, 10, 20);
    let begun = change(&shard, |known| known.with_receiving(MOVE, arriving.clone())).await;
    begun.expect("is applied");
    receive(&shard, &[received(&shard, 1, 12)])
        .await
        .expect("is stored");
    let newer = {
        let known = ownership(&shard);
        let mut newer = known.placement;
        newer.chunk = model::version::ChunkVersion::new(2, 0);
        newer
    };
    let find = format!(
        "{{find: 'c', filter: {{x: 12}}, shardVersion: {}}}",
        version(2, 0)
    );
    let reply = waiting_for(&shard, &find, |known| {
        let gained = known.without_receiving(MOVE).gaining(arriving.clone());
        Ok(gained.with_versions(newer, newer))
    });
    let reply = reply.await;
    assert_eq!(code(&reply), None, "{reply:?}");
    assert!(!collection(&shard).may_hold_orphans());
}
