//! Moves as the config server decides them, with a donor that copies nothing.

use crate::fake_donor::Manner;
use crate::testing::{Cluster, Wire};
use differential::notation::print;
use differential::value::{Fields, Value, get};
use model::number::Number;

/// A collection in three chunks of shard0: below 0, up to 10, and above.
const BIRDS: &str = "
    admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
    admin {shardCollection: 'test.birds', key: {a: 1}} => {}
    admin {split: 'test.birds', middle: {a: 0}} => {}
    admin {split: 'test.birds', middle: {a: 10}} => {}
    ";

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_moved() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster
        .check(
            "
            config! config {find: 'chunks', sort: {min: 1}} => {cursor: {firstBatch: [{shard: 'shard0', lastmod: Timestamp(2, 1)}, {lastmod: Timestamp(3, 1)}, {lastmod: Timestamp(3, 2)}]}}
            # A whole chunk, and what tells the donor's routers.
            admin {moveRange: 'test.birds', min: {a: 0}, max: {a: 10}, toShard: 'shard1'} => {}
            config! config {find: 'chunks', sort: {min: 1}} => {cursor: {firstBatch: [{shard: 'shard0', lastmod: Timestamp(4, 1)}, {shard: 'shard1', lastmod: Timestamp(4, 0), history: [{shard: 'shard1'}, {shard: 'shard0'}]}, {shard: 'shard0', lastmod: Timestamp(3, 2)}]}}
            # It is there already.
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => {}
            config! {_configsvrGetRouting: 'test.birds'} => {version: {v: Timestamp(4, 1)}}
            # A part of a chunk, whose bounds keep their types.
            admin {moveRange: 'test.birds', min: {a: 20.5}, max: {a: 30L}, toShard: 'shard1'} => {}
            config! config {find: 'chunks', filter: {min: {$gte: {a: 10}}}, sort: {min: 1}} => {cursor: {firstBatch: [{min: {a: 10}, max: {a: 20.5}, shard: 'shard0'}, {min: {a: 20.5}, max: {a: 30L}, shard: 'shard1'}, {min: {a: 30L}, max: {a: MaxKey}, shard: 'shard0'}]}}
            # From a bound to the end of its chunk, either way.
            admin {moveRange: 'test.birds', min: {a: 40}, toShard: 'shard1'} => {}
            admin {moveRange: 'test.birds', max: {a: -5}, toShard: 'shard1'} => {}
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 4}
            config! config {find: 'chunks', filter: {shard: 'shard1'}, sort: {min: 1}, limit: 1} => {cursor: {firstBatch: [{min: {a: MinKey}, max: {a: -5}}]}}
            # By a document, and by its bounds.
            admin {moveChunk: 'test.birds', find: {a: 5}, to: 'shard0'} => {}
            admin {moveChunk: 'test.birds', bounds: [{a: 20.5}, {a: 30}], to: 'shard0/shard0:1', _secondaryThrottle: true} => {}
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 2}
            # What it tells.
            config! config {count: 'changelog', query: {what: 'moveChunk.start'}} => {n: 6}
            config! config {count: 'changelog', query: {what: 'moveChunk.commit'}} => {n: 6}
            config! config {count: 'changelog', query: {what: 'moveChunk.from', 'details.note': 'success'}} => {n: 6}
            config! config {count: 'terndb_operations', query: {kind: {$ne: 'outcome'}}} => {n: 0}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'MissingLocalCollection'}]}}
            ",
        )
        .await;
    // Another primary reads the same.
    cluster.elect(Wire::whole()).await;
    cluster
        .check(
            "
            admin {moveRange: 'test.birds', max: {a: -5}, toShard: 'shard0'} => {}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'MissingLocalCollection'}]}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_moved_is_refused() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster
        .check(
            "
            test {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => 13
            admin {moveRange: 'test.plain', min: {a: 0}, toShard: 'shard1'} => 26
            admin {moveChunk: 'test.plain', find: {a: 0}, to: 'shard1'} => 118
            admin {moveRange: 'test.birds', min: {a: 0}} => 40414
            admin {moveRange: 'test.birds', toShard: 'shard1'} => 72
            admin {moveRange: 'test.birds', min: 1, toShard: 'shard1'} => 14
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1', often: true} => 40415
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'nowhere'} => 70
            admin {moveRange: 'test.birds', min: {b: 0}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {a: 0, b: 0}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', max: {b: 0}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {a: [1]}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', max: {a: []}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {a: /x/}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {a: undefined}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', max: 'far', toShard: 'shard1'} => 14
            admin {moveRange: 'test.birds', min: [{a: 0}], toShard: 'shard1'} => 14
            admin {moveRange: 'test.birds', min: {a: 4}, max: {a: 4}, toShard: 'shard1'} => 72
            admin {moveRange: 'test.birds', min: {a: MaxKey}, toShard: 'shard1'} => 72
            admin {moveRange: 'test.birds', max: {a: MinKey}, toShard: 'shard1'} => 72
            admin {moveRange: 'test.birds', min: {a: 8}, max: {a: 4}, toShard: 'shard1'} => 72
            # Of a hashed key bounds are hashes.
            admin {shardCollection: 'test.hashed', key: {a: 'hashed'}} => {}
            admin {moveRange: 'test.hashed', min: {a: 'text'}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.hashed', min: {a: 1.5}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.hashed', max: {a: null}, toShard: 'shard1'} => 2
            admin {moveRange: 'test.birds', min: {a: 5}, max: {a: 15}, toShard: 'shard1'} => 72
            admin {moveChunk: 'test.birds', find: {a: 5}} => 40414
            admin {moveChunk: 'test.birds', to: 'shard1'} => 72
            admin {moveChunk: 'test.birds', find: {a: 5}, bounds: [{a: 0}, {a: 10}], to: 'shard1'} => 72
            admin {moveChunk: 'test.birds', find: 5, to: 'shard1'} => 14
            # The whole shard key by equality, or nothing is found.
            admin {moveChunk: 'test.birds', find: {}, to: 'shard1'} => 656450
            admin {moveChunk: 'test.birds', find: {b: 5}, to: 'shard1'} => 656450
            admin {moveChunk: 'test.birds', find: {a: {$gt: 5}}, to: 'shard1'} => 656450
            admin {moveChunk: 'test.birds', find: {a: [5]}, to: 'shard1'} => 656450
            admin {moveChunk: 'test.birds', bounds: [{a: 0}, {b: 5}], to: 'shard1'} => 656451
            admin {moveChunk: 'test.birds', bounds: [{a: [0]}, {a: 10}], to: 'shard1'} => 656451
            admin {moveChunk: 'test.birds', bounds: [{a: 0}, {a: 5}], to: 'shard1'} => 656452
            admin {setAllowMigrations: 'test.birds', allowMigrations: 1} => 14
            admin {setAllowMigrations: 'test.birds', allowMigrations: false} => {}
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => 117
            admin {setAllowMigrations: 'test.birds', allowMigrations: true} => {}
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => {}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Refuses);
    cluster
        .check(
            "
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard0'} => 96
            config! config {count: 'changelog', query: {what: 'moveChunk.from', 'details.note': 'aborted'}} => {n: 1}
            ",
        )
        .await;
}

/// Who asked for a move that somebody killed is told so; ⚑ but if it was decided before, that it has moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_move_is_answered_by_what_was_decided() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster.donor.behaves(Manner::IsKilled);
    cluster
        .check(
            "
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => 11601
            admin {moveChunk: 'test.birds', find: {a: 5}, to: 'shard1'} => 11601
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 0}
            config! config {count: 'changelog', query: {what: 'moveChunk.from', 'details.note': 'aborted'}} => {n: 2}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::IsKilledLate);
    cluster
        .check(
            "
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => {}
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 1}
            ",
        )
        .await;
}

/// ⚑ An index that was made meanwhile would be missed on the recipient. That is no outcome: the donor says when it
/// gives up.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_knows_other_indexes_is_not_committed() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster.donor.behaves(Manner::CommitsWithOtherCatalog);
    cluster
        .check(
            "
            admin {moveRange: 'test.birds', min: {a: 0}, toShard: 'shard1'} => 96
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 0}
            ",
        )
        .await;
    assert_eq!(cluster.donor.was_put_off(), 1);
}

/// Indexes change while a range moves, under one primary or two: the move goes on, and is committed with the
/// indexes that stand.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_change_while_a_range_moves() {
    for elects in [false, true] {
        let cluster = Cluster::start(2).await;
        cluster.check(BIRDS).await;
        cluster.donor.behaves(Manner::Copies);
        let moving = cluster.run("admin", MOVE);
        let changing = async {
            cluster.donor.was_asked(1).await;
            cluster
                .check(
                    "
                    test {createIndexes: 'birds', indexes: [{key: {b: 1}, name: 'b'}, {key: {c: 1}, name: 'c'}]} => {}
                    test {dropIndexes: 'birds', index: 'c'} => {}
                    test {collMod: 'birds', index: {name: 'b', hidden: true}} => {}
                    config! config {find: 'collections'} => {cursor: {firstBatch: [{catalogVersion: 6L, catalogChanges: false}]}}
                    config! config {find: 'terndb_operations'} => {cursor: {firstBatch: [{kind: 'moveRange', ns: 'test.birds'}]}}
                    ",
                )
                .await;
            if elects {
                let electing = cluster.elect(Wire::whole());
                let meanwhile = async {
                    cluster.donor.was_asked(2).await;
                    cluster.donor.behaves(Manner::Commits);
                };
                tokio::join!(electing, meanwhile);
            } else {
                cluster.donor.behaves(Manner::Commits);
            }
            cluster.settled().await;
        };
        tokio::join!(moving, changing);
        assert!(cluster.donor.was_put_off() > 0);
        cluster
            .check(
                "
                config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 1}
                config! config {count: 'terndb_operations', query: {kind: {$ne: 'outcome'}}} => {n: 0}
                config! config {count: 'terndb_operations', query: {kind: 'outcome', aborted: true}} => {n: 0}
                config! {_configsvrCatalogVersion: 1, ns: 'test.birds', uuid: UUID(\"00000000-0000-4000-8000-000000000001\")} => 150
                config! {_configsvrCatalogVersion: 1, ns: 'test.none', uuid: UUID(\"00000000-0000-4000-8000-000000000001\")} => 118
                ",
            )
            .await;
    }
}

/// ⚑ Operations on indexes that follow each other without a gap do not put a move off for ever: it gets its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_gets_its_turn_among_operations_on_indexes() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster.donor.behaves(Manner::Copies);
    let moving = cluster.run("admin", MOVE);
    let changing = async {
        cluster.donor.was_asked(1).await;
        let find = "{find: 'terndb_operations', filter: {kind: 'moveRange'}}";
        let stored = first(&cluster.run("config! config", find).await);
        let of = |name: &str| print(stored.get(name).expect("a field"));
        let about_to_finish = format!(
            "config! {{_configsvrCatalogVersion: 1, ns: 'test.birds', uuid: {}, id: {}}} => {{changes: false}}",
            of("uuid"),
            of("_id")
        );
        // Whenever the donor could go on, the indexes have changed.
        for number in 0..4 {
            cluster.check(&about_to_finish).await;
            let create = format!(
                "test {{createIndexes: 'birds', indexes: [{{key: {{b{number}: 1}}, name: 'b{number}'}}]}} => {{}}"
            );
            cluster.check(&create).await;
        }
        cluster.check(&about_to_finish).await;
        // The new owner has nothing to drop it from: nobody has copied anything.
        let next = cluster.run("test", "{dropIndexes: 'birds', index: 'b0'}");
        let lets_go = async {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            cluster.donor.behaves(Manner::Commits);
        };
        tokio::join!(next, lets_go);
    };
    let (moved, ()) = tokio::join!(moving, changing);
    assert_eq!(get(&moved, "ok"), Some(&Value::Double(1.0)), "{moved:?}");
    let mut times = Vec::new();
    for what in ["moveChunk.from", "onOwners.start"] {
        let find = format!(
            "{{find: 'changelog', filter: {{what: '{what}'}}, sort: {{time: -1}}, limit: 1}}"
        );
        let last = first(&cluster.run("config! config", &find).await);
        match last.get("time") {
            Some(Value::Date(time)) => times.push(*time),
            _ => panic!("{last:?}"),
        }
    }
    assert!(times[0] <= times[1], "it began before the move had ended");
}

const BESIDE: &str = "{moveRange: 'test.birds', min: {a: 10}, max: {a: 20}, toShard: 'shard2'}";
const MOVE: &str = "{moveRange: 'test.birds', min: {a: 0}, max: {a: 10}, toShard: 'shard1'}";

#[tokio::test(flavor = "multi_thread")]
async fn moves_that_run_are_joined_or_excluded() {
    let cluster = Cluster::start(3).await;
    cluster.check(BIRDS).await;
    cluster.donor.behaves(Manner::Copies);
    let moving = cluster.run("admin", MOVE);
    // Another one of the same donor runs beside it.
    let beside = async {
        cluster.donor.was_asked(1).await;
        cluster.run("admin", BESIDE).await
    };
    let same = async {
        cluster.donor.was_asked(2).await;
        cluster
            .check(
                "
                # The same elsewhere, a part of it, another one that a shard has no hands for.
                admin {moveRange: 'test.birds', min: {a: 0}, max: {a: 10}, toShard: 'shard2'} => 117
                admin {moveRange: 'test.birds', min: {a: 5}, max: {a: 7}, toShard: 'shard1'} => 117
                admin {moveRange: 'test.birds', min: {a: 30}, toShard: 'shard2'} => 117
                # Cut in the middle it would be two chunks.
                admin {split: 'test.birds', middle: {a: 5}} => 117
                admin {split: 'test.birds', middle: {a: 20}} => {}
                config! config {find: 'terndb_operations', filter: {to: 'shard1'}} => {cursor: {firstBatch: [{kind: 'moveRange', ns: 'test.birds', min: {a: 0}, max: {a: 10}, from: 'shard0', to: 'shard1'}]}}
                config! config {count: 'terndb_operations', query: {kind: 'moveRange'}} => {n: 2}
                # One at a time, if that is wanted: the next one is refused while others run.
                config! config {insert: 'settings', documents: [{_id: 'maxConcurrentMigrationsPerShard', value: 1}]} => {n: 1}
                ",
            )
            .await;
        let joins = cluster.run("admin", MOVE);
        let let_go = async { cluster.donor.behaves(Manner::Commits) };
        let (joined, ()) = tokio::join!(joins, let_go);
        joined
    };
    let (moved, beside, joined) = tokio::join!(moving, beside, same);
    for reply in [moved, beside, joined] {
        assert_eq!(
            differential::value::get(&reply, "ok"),
            Some(&differential::value::Value::Double(1.0))
        );
    }
    cluster
        .check(
            "
            config! config {count: 'changelog', query: {what: 'moveChunk.commit'}} => {n: 2}
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 1}
            config! config {count: 'chunks', query: {shard: 'shard2'}} => {n: 1}
            # Versions are given once each.
            config! config {aggregate: 'chunks', pipeline: [{$group: {_id: '$lastmod', n: {$sum: 1}}}, {$match: {n: {$gt: 1}}}], cursor: {}} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// ⚑ What changes the collection as a whole ends its moves first, and for good.
#[tokio::test(flavor = "multi_thread")]
async fn moves_end_before_their_collection_changes() {
    for change in [
        "test {drop: 'birds'}",
        "test {dropDatabase: 1}",
        "admin {setAllowMigrations: 'test.birds', allowMigrations: false}",
    ] {
        let cluster = Cluster::start(2).await;
        cluster.check(BIRDS).await;
        cluster.donor.behaves(Manner::Copies);
        let moving = cluster.run("admin", MOVE);
        let script = format!("{change} => {{}}");
        let changing = async {
            cluster.donor.was_asked(1).await;
            cluster.check(&script).await;
        };
        let (moved, ()) = tokio::join!(moving, changing);
        assert_eq!(
            differential::value::get(&moved, "code"),
            Some(&differential::value::Value::Int32(96)),
            "{change}"
        );
        cluster
            .check(
                "
                config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 0}
                config! config {count: 'terndb_operations', query: {kind: {$ne: 'outcome'}}} => {n: 0}
                admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
                ",
            )
            .await;
    }
}

/// A move goes on under the next primary, and is joined there.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_primary_does_not_end_a_move() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster.donor.behaves(Manner::Copies);
    let moving = cluster.run("admin", MOVE);
    tokio::select! {
        _ = moving => panic!("it copies"),
        () = cluster.donor.was_asked(1) => {}
    }
    let electing = cluster.elect(Wire::whole());
    let meanwhile = async {
        // The one before waits for its last answer.
        cluster.donor.was_asked(2).await;
        cluster.donor.behaves(Manner::Commits);
    };
    tokio::join!(electing, meanwhile);
    cluster.settled().await;
    cluster
        .check(
            "
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'MissingLocalCollection'}]}}
            ",
        )
        .await;
}

/// ⚑ The time from which on a move counts is chosen once: the history of the chunk, the outcome and every answer
/// about it have the same, and it is later than the donor's block and than the owners before.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_counts_from_one_time() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    let mut before = (7, 7);
    for (to, elected) in [("shard1", false), ("shard0", true), ("shard1", true)] {
        let command =
            format!("{{moveRange: 'test.birds', min: {{a: 0}}, max: {{a: 10}}, toShard: '{to}'}}");
        let moved = cluster.run("admin", &command).await;
        assert_eq!(get(&moved, "ok"), Some(&Value::Double(1.0)), "{moved:?}");
        if elected {
            cluster.elect(Wire::whole()).await;
        }
        let find = "{find: 'chunks', filter: {min: {a: 0}}}";
        let chunk = first(&cluster.run("config! config", find).await);
        let history = chunk.get("history").and_then(Value::as_array);
        let latest = history
            .and_then(|history| history.first())
            .expect("an owner");
        let Some(Value::Timestamp(seconds, increment)) = latest.get("validAfter") else {
            panic!("{chunk:?}");
        };
        let time = (*seconds, *increment);
        assert!(time > before, "{time:?} is not behind {before:?}");
        before = time;
        let find = format!(
            "{{find: 'terndb_operations', filter: {{validAfter: Timestamp({seconds}, {increment})}}}}"
        );
        let outcome = first(&cluster.run("config! config", &find).await);
        let id = print(outcome.get("_id").expect("an id"));
        let settled = format!(
            "config! {{_configsvrSettle: 1, operation: {id}}} => {{outcome: 'committed', validAfter: Timestamp({seconds}, {increment})}}"
        );
        cluster.check(&settled).await;
    }
}

/// The first document of a reply.
fn first(reply: &Fields) -> Value {
    let cursor = get(reply, "cursor");
    let batch = cursor.and_then(|cursor| cursor.get("firstBatch"));
    let first = batch
        .and_then(Value::as_array)
        .and_then(|batch| batch.first());
    first.unwrap_or_else(|| panic!("{reply:?}")).clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn primaries_move_as_asked_or_not_at_all() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            test {movePrimary: 'test', to: 'shard1'} => 13
            admin {movePrimary: 'test'} => 40414
            admin {movePrimary: 'test', to: 1} => 14
            admin {movePrimary: 'test', to: ''} => 72
            admin {movePrimary: 'test', to: 'shard7'} => 70
            admin {movePrimary: 'none', to: 'shard1'} => 26
            admin {movePrimary: 'config', to: 'shard1'} => 72
            admin {movePrimary: 'test', to: 'shard1', from: 'shard0'} => 40415
            admin {movePrimary: 'test', to: 'shard0'} => {}
            config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard0', version: {lastMod: 1}}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Refuses);
    cluster
        .check(
            "
            admin {movePrimary: 'test', to: 'shard1'} => 96
            config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard0', version: {lastMod: 1}}
            config! config {count: 'locks'} => {n: 0}
            config! config {count: 'terndb_operations', query: {kind: 'outcome', aborted: true}} => {n: 1}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Commits);
    cluster
        .check(
            "
            admin {movePrimary: 'test', to: 'shard1/shard1:1'} => {}
            config! config {find: 'databases'} => {cursor: {firstBatch: [{_id: 'test', primary: 'shard1', version: {lastMod: 2}}]}}
            admin {removeShard: 'shard1'} => {state: 'started', dbsToMove: ['test']}
            admin {removeShard: 'shard1'} => {state: 'ongoing', dbsToMove: ['test'], remaining: {dbs: 1L}}
            admin {movePrimary: 'test', to: 'shard0'} => {}
            admin {removeShard: 'shard1'} => {state: 'completed'}
            admin {movePrimary: 'test', to: 'shard1'} => 70
            ",
        )
        .await;
}

/// ⚑ Who changes collections of a database does not wait for hours because its primary moves.
#[tokio::test(flavor = "multi_thread")]
async fn changes_wait_for_a_primary_no_longer_than_they_may() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            shard0! test {insert: 'c', documents: [{_id: 1}]} => {n: 1}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Copies);
    // Whoever asked for it is told that it takes longer, and it goes on.
    cluster
        .check("admin {movePrimary: 'test', to: 'shard1', maxTimeMS: 1000} => 50")
        .await;
    cluster.donor.was_asked(1).await;
    cluster
        .check(
            "
            {drop: 'c', maxTimeMS: 1} => 50
            {dropDatabase: 1, maxTimeMS: 1} => 50
            {drop: 'c', maxTimeMS: -1} => 2
            {drop: 'c', maxTimeMS: 'x'} => 2
            admin {shardCollection: 'test.d', key: {a: 1}, maxTimeMS: 1} => 50
            admin {moveRange: 'test.d', min: {a: 1}, toShard: 'shard1', maxTimeMS: 1} => 50
            admin {split: 'test.d', middle: {a: 1}, maxTimeMS: 1} => 50
            admin {renameCollection: 'test.c', to: 'test.e', maxTimeMS: 1} => 50
            admin {movePrimary: 'test', to: 'shard1', maxTimeMS: 1} => 50
            # Nothing of that waits for its turn any more, and others were not kept.
            admin {shardCollection: 'other.d', key: {a: 1}, maxTimeMS: 60000} => {}
            config! config {count: 'locks'} => {n: 1}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Commits);
    cluster.settled().await;
    cluster
        .check(
            "
            config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard1', version: {lastMod: 2}}
            shard0! test {count: 'c'} => {n: 1}
            {dropDatabase: 1, maxTimeMS: 60000} => {}
            ",
        )
        .await;
}

/// ⚑ Of two moves at once the one that is committed later counts from a later time, whatever was waited for before.
#[tokio::test(flavor = "multi_thread")]
async fn commits_have_times_in_their_order() {
    const ROUNDS: usize = 12;
    let cluster = Cluster::start(3).await;
    cluster.check(BIRDS).await;
    for round in 0..ROUNDS {
        let turned = round % 2 == 1;
        let there = |to: &str| if turned { "shard0" } else { to }.to_owned();
        let (one, other) = (
            MOVE.replace("shard1", &there("shard1")),
            BESIDE.replace("shard2", &there("shard2")),
        );
        cluster.donor.behaves(Manner::Copies);
        let let_go = async {
            cluster.donor.was_asked(2 * round + 2).await;
            cluster.donor.behaves(Manner::Commits);
        };
        let (one, other, ()) = tokio::join!(
            cluster.run("admin", &one),
            cluster.run("admin", &other),
            let_go
        );
        for reply in [one, other] {
            assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)), "{reply:?}");
        }
    }
    let outcomes = "{find: 'terndb_operations', filter: {validAfter: {$exists: true}}, sort: {'committed.v': 1}, batchSize: 1000}";
    let reply = cluster.run("config! config", outcomes).await;
    let found = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let found = found.and_then(Value::as_array).expect("a batch");
    let times: Vec<(u32, u32)> = found
        .iter()
        .map(|outcome| match outcome.get("validAfter") {
            Some(Value::Timestamp(seconds, increment)) => (*seconds, *increment),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(times.len(), 2 * ROUNDS);
    assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
}

/// Each side's entry in the log of changes has its own figures.
#[tokio::test(flavor = "multi_thread")]
async fn both_sides_are_told_apart_in_the_log_of_changes() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    cluster.check(&format!("admin {MOVE} => {{}}")).await;
    cluster.donor.behaves(Manner::Refuses);
    let back = MOVE.replace("shard1", "shard0");
    cluster.check(&format!("admin {back} => 96")).await;
    for (query, n) in [
        (
            "{what: 'moveChunk.from', 'details.clonedDocs': 5, 'details.commitMicros': 9}",
            1,
        ),
        (
            "{what: 'moveChunk.to', 'details.clonedDocs': 7, 'details.catchUpMillis': 3}",
            1,
        ),
        (
            "{what: 'moveChunk.to', 'details.commitMicros': {$exists: true}}",
            0,
        ),
        ("{what: 'moveChunk.to'}", 2),
    ] {
        let count = format!("config! config {{count: 'changelog', query: {query}}} => {{n: {n}}}");
        cluster.check(&count).await;
    }
}

/// ⚑ Whether a move runs is told without deciding anything.
#[tokio::test(flavor = "multi_thread")]
async fn whether_a_move_runs_is_told() {
    let cluster = Cluster::start(2).await;
    cluster.check(BIRDS).await;
    let outcome = |id: &str| format!("{{_configsvrOutcome: 1, operation: {id}}}");
    let stranger = outcome("UUID(\"00000000-0000-4000-8000-000000000001\")");
    cluster
        .check(&format!("config! {stranger} => {{outcome: 'unknown'}}"))
        .await;
    for (manner, ended) in [(Manner::Copies, "aborted"), (Manner::Commits, "committed")] {
        cluster.donor.behaves(Manner::Copies);
        let moving = cluster.run("admin", MOVE);
        let asking = async {
            let find = "{find: 'terndb_operations', filter: {kind: 'moveRange'}}";
            let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
            let id = loop {
                let reply = cluster.run("config! config", find).await;
                let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
                let found = batch.and_then(Value::as_array).and_then(|all| all.first());
                if let Some(id) = found.and_then(|found| found.get("_id")) {
                    break print(id);
                }
                assert!(tokio::time::Instant::now() < deadline, "it does not begin");
                tokio::task::yield_now().await;
            };
            let undecided = format!("config! {} => {{outcome: 'undecided'}}", outcome(&id));
            cluster.check(&undecided).await;
            cluster.check(&undecided).await;
            match manner {
                Manner::Copies => {
                    let stop = "admin {setAllowMigrations: 'test.birds', allowMigrations: false} => {}
                                admin {setAllowMigrations: 'test.birds', allowMigrations: true} => {}";
                    cluster.check(stop).await;
                }
                _ => cluster.donor.behaves(manner),
            }
            id
        };
        let (_, id) = tokio::join!(moving, asking);
        cluster
            .check(&format!(
                "config! {} => {{outcome: '{ended}'}}",
                outcome(&id)
            ))
            .await;
    }
}

/// ⚑ A move changes one chunk that its donor keeps, too. If that goes with another move, whose commit comes between
/// what is read of the bounds of chunks and the decision, they are read anew.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_read_anew_behind_another_commit() {
    let cluster = Cluster::start(3).await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    cluster.check(BIRDS).await;
    cluster
        .check(
            "
            admin {split: 'test.birds', middle: {a: -10}} => {}
            admin {split: 'test.birds', middle: {a: 20}} => {}
            ",
        )
        .await;
    cluster.donor.behaves(Manner::Copies);
    // The lowest chunk is what the other one's donor would keep.
    let lowest = "{moveRange: 'test.birds', max: {a: -10}, toShard: 'shard2'}";
    let one = "{moveRange: 'test.birds', min: {a: 10}, max: {a: 20}, toShard: 'shard1'}";
    let meanwhile = async {
        cluster.donor.was_asked(2).await;
        let release = wire.hold(Box::new(|message| {
            let filter = message.get_doc("filter");
            let min = filter.and_then(|filter| filter.get_doc("min"));
            let at = min.and_then(|min| min.get("a")).and_then(Number::of);
            message.get_str("find") == Some("chunks") && at.is_some_and(|at| at.to_f64() == 10.0)
        }));
        cluster.donor.behaves(Manner::Commits);
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        let moved = "{count: 'chunks', query: {shard: 'shard2'}}";
        while get(&cluster.run("config! config", moved).await, "n") != Some(&Value::Int32(1)) {
            assert!(tokio::time::Instant::now() < deadline, "the other one ends");
            tokio::task::yield_now().await;
        }
        release.add_permits(1);
    };
    let (one, lowest, ()) = tokio::join!(
        cluster.run("admin", one),
        cluster.run("admin", lowest),
        meanwhile
    );
    for reply in [one, lowest] {
        assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)), "{reply:?}");
    }
    cluster
        .check("config! config {find: 'chunks', filter: {shard: 'shard1'}} => {cursor: {firstBatch: [{min: {a: 10}, max: {a: 20}}]}}")
        .await;
}
