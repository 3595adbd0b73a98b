//! ⚑ A primary that is lost after any message of any operation: another one goes on, and everything fits.
//!
//! Every message of the config server, to its documents and to shards, is numbered. The primary is cut off
//! after the first one, after the second, and so on until the operation needs no more of them; each time both
//! ways: the message did not arrive, or its answer did not. Then another primary takes over, and is asked the same with
//! the same id, as a router does: it gives the answer that the first one would have given, and does nothing twice.

use crate::testing::{Cluster, Loss, Wire, check_reply, without_times};
use differential::notation::{parse, print_fields};
use std::time::Duration;

/// More than any operation here needs.
const MESSAGES_MAX: i64 = 200;

/// What must come of an operation, however often it is asked for with one id.
#[derive(Clone, Copy)]
struct Expected<'a> {
    /// Of the reply.
    answer: &'a str,
    /// Of the changelog, the line that must be there once, with a name if there is one for each.
    once: &'a str,
    /// Of everything.
    after: &'a str,
}

/// Runs `operation` cut after each message, with `before` ahead of it.
async fn check(name: &str, before: &str, operation: &str, expected: Expected<'_>) {
    for loss in [Loss::Request, Loss::Reply] {
        let cluster = Cluster::start(2).await;
        let mut messages = 0;
        loop {
            cluster.check(before).await;
            if lose(&cluster, name, (messages, loss), operation, expected).await {
                break;
            }
            messages += 1;
            assert!(messages < MESSAGES_MAX, "{name} does not end");
        }
        assert!(messages > 0, "{name} needs no messages");
    }
}

/// Runs `operation` cut after so many messages; whether it needed no more.
async fn lose(
    cluster: &Cluster,
    name: &str,
    (messages, loss): (i64, Loss),
    operation: &str,
    expected: Expected<'_>,
) -> bool {
    let at = format!("{name}, {messages} messages, {loss:?}");
    let (head, command) = operation.split_at(operation.find('{').unwrap_or(0));
    // What is said to the config server itself has no id.
    let id = (!head.contains('!')).then(|| cluster.new_id());
    let ask = async || match id {
        Some(id) => cluster.run_as(id, head.trim(), command).await,
        None => cluster.run(head.trim(), command).await,
    };
    let lines = cluster.changes(expected.once).await;
    // The messages by which a primary begins are not those of the operation.
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    wire.cut_after(messages, loss);
    // It never ends by itself if the wire was cut in the middle.
    let ended = tokio::select! {
        ended = ask() => Some(ended),
        () = wire.cut() => None,
    };
    let ended = ended.filter(|_| !wire.is_cut());
    cluster.elect(Wire::whole()).await;
    // ⚑ Whatever became of it, and wherever it is now.
    let again = tokio::time::timeout(Duration::from_secs(60), ask()).await;
    let again = again.unwrap_or_else(|_| panic!("no answer after {at}"));
    let answer = parse(expected.answer).unwrap_or_else(|e| panic!("{name}: {e}"));
    check_reply(&at, &again, &answer);
    if let (Some(ended), Some(_)) = (&ended, id) {
        let [first, second] = [ended, &again].map(|reply| print_fields(&without_times(reply)));
        assert_eq!(first, second, "{at}");
    }
    let settled = tokio::time::timeout(Duration::from_secs(60), cluster.settled()).await;
    assert!(settled.is_ok(), "stuck after {at}");
    cluster
        .check("admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}")
        .await;
    if id.is_some() {
        let before = cluster.stored().await;
        let late = ask().await;
        let [second, third] = [&again, &late].map(|reply| print_fields(&without_times(reply)));
        assert_eq!(second, third, "{at}");
        assert_eq!(before, cluster.stored().await, "{at}");
    }
    if !expected.once.is_empty() {
        let now = cluster.changes(expected.once).await;
        assert_eq!(now, lines + 1, "{at}");
    }
    // It can be asked for again by somebody else.
    cluster.run(head.trim(), command).await;
    cluster.check(expected.after).await;
    ended.is_some()
}

/// The sessions collection is made once in the life of a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn while_making_the_sessions_collection() {
    const NAME: &str = "the sessions collection";
    for loss in [Loss::Request, Loss::Reply] {
        for messages in 0.. {
            assert!(messages < MESSAGES_MAX, "{NAME} is not made");
            let cluster = Cluster::start(2).await;
            // What a shard kept before it was asked.
            let kept =
                "shard1! config {insert: 'system.sessions', documents: [{_id: 1}]} => {n: 1}";
            cluster.check(kept).await;
            let operation = "config! {_configsvrSessionsCollection: 1, setUp: true}";
            let after = "
                config! {_configsvrSessionsCollection: 1, setUp: true} => {exists: true}
                config! {_configsvrSessionsCollection: 1} => {exists: true, timeoutMinutes: 30}
                config! {_configsvrGetRouting: 'config.system.sessions'} => {sharded: true, key: {_id: 1}}
                shard0! config {count: 'system.sessions'} => {n: 0}
                shard1! config {count: 'system.sessions'} => {n: 0}
                shard1! config {listIndexes: 'system.sessions'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'lsidTTLIndex', expireAfterSeconds: 1800}]}}
            ";
            let expected = Expected {
                answer: "{exists: true}",
                once: "shardCollection.end",
                after,
            };
            if lose(&cluster, NAME, (messages, loss), operation, expected).await {
                assert!(messages > 0, "{NAME} needs no messages");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_sharding() {
    check(
        "shardCollection",
        "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        ",
        "admin {shardCollection: 'test.c', key: {_id: 'hashed'}}",
        Expected {
            answer: "{collectionsharded: 'test.c'}",
            once: "shardCollection.end",
            after: "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: true, chunks: [{shard: 'shard0'}, {shard: 'shard0'}, {shard: 'shard1'}, {shard: 'shard1'}]}
        shard0! test {insert: 'plain', documents: [{}]} => {n: 1}
        admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_dropping() {
    check(
        "drop",
        "admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}",
        "test {drop: 'c'}",
        Expected {
            answer: "{nIndexesWas: 2, ns: 'test.c'}",
            once: "drop.end",
            after: "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: false}
        shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_dropping_a_database() {
    check(
        "dropDatabase",
        "
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        admin {shardCollection: 'test.d', key: {a: 1}} => {}
        ",
        "test {dropDatabase: 1}",
        Expected {
            answer: "{}",
            once: "dropDatabase.end",
            after: "
        config! config {find: 'databases'} => {cursor: {firstBatch: []}}
        config! config {find: 'chunks'} => {cursor: {firstBatch: []}}
        shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_refining() {
    check(
        "refineCollectionShardKey",
        "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {a: 1}} => {}
        admin {split: 'test.c', middle: {a: 10}} => {}
        test {createIndexes: 'c', indexes: [{key: {a: 1, b: 1}, name: 'ab'}]} => {}
        ",
        "admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}}",
        Expected {
            answer: "{}",
            once: "refineCollectionShardKey.end",
            after: "config! {_configsvrGetRouting: 'test.c'} => {key: {a: 1, b: 1}}",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_creating_indexes() {
    check(
        "createIndexes",
        "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        ",
        "test {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a'}]}",
        Expected {
            answer: "{numIndexesBefore: 2, numIndexesAfter: 3, createdCollectionAutomatically: false}",
            once: "onOwners.end",
            after: "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'a'}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'a'}]}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_dropping_indexes_and_modifying() {
    let before = "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        test {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a', expireAfterSeconds: 100}]} => {}
        ";
    check(
        "dropIndexes",
        before,
        "test {dropIndexes: 'c', index: 'a'}",
        Expected {
            answer: "{nIndexesWas: 3}",
            once: "onOwners.end",
            after: "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}]}}
        ",
        },
    )
    .await;
    check(
        "collMod",
        before,
        "test {collMod: 'c', index: {name: 'a', expireAfterSeconds: 200}}",
        Expected {
            answer: "{expireAfterSeconds_old: 100L, expireAfterSeconds_new: 200L}",
            once: "onOwners.end",
            after: "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {expireAfterSeconds: 200}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {expireAfterSeconds: 200}]}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_renaming() {
    check(
        "renameCollection",
        "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        admin {shardCollection: 'test.d', key: {a: 1}} => {}
        ",
        "admin {renameCollection: 'test.c', to: 'test.d', dropTarget: true}",
        Expected {
            answer: "{}",
            once: "renameCollection.end test.c",
            after: "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: false}
        config! {_configsvrGetRouting: 'test.d'} => {sharded: true, key: {_id: 'hashed'}}
        config! config {count: 'chunks'} => {n: 4}
        shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        shard1! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        ",
        },
    )
    .await;
    check(
        "renameCollection to a free name",
        "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        ",
        "admin {renameCollection: 'test.c', to: 'test.d'}",
        Expected {
            answer: "{}",
            once: "renameCollection.end test.c",
            after: "
        config! {_configsvrGetRouting: 'test.d'} => {sharded: true, key: {_id: 'hashed'}}
        config! config {count: 'chunks'} => {n: 4}
        shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        shard1! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        ",
        },
    )
    .await;
    check(
        "renameCollection of an unsharded one",
        "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        admin {shardCollection: 'test.d', key: {_id: 'hashed'}} => {}
        shard0! test {insert: 'c', documents: [{_id: 1}]} => {n: 1}
        ",
        "admin {renameCollection: 'test.c', to: 'test.d', dropTarget: true}",
        Expected {
            answer: "{}",
            once: "renameCollection.end test.c",
            after: "
        config! {_configsvrGetRouting: 'test.d'} => {sharded: false}
        config! config {count: 'chunks'} => {n: 0}
        shard0! test {find: 'd'} => {cursor: {firstBatch: [{_id: 1}]}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_splitting_and_merging() {
    let before = "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {a: 1}} => {}
        ";
    check(
        "split",
        before,
        "admin {split: 'test.c', middle: {a: 10}}",
        Expected {
            answer: "{}",
            once: "split",
            after: "config! config {count: 'chunks'} => {n: 2}",
        },
    )
    .await;
    check(
        "mergeChunks",
        &format!("{before}\nadmin {{split: 'test.c', middle: {{a: 10}}}} => {{}}"),
        "admin {mergeChunks: 'test.c', bounds: [{a: MinKey}, {a: MaxKey}]}",
        Expected {
            answer: "{}",
            once: "merge",
            after: "config! config {count: 'chunks'} => {n: 1}",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_making_a_database() {
    check(
        "enableSharding",
        "test {dropDatabase: 1} => {}",
        "admin {enableSharding: 'test', primaryShard: 'shard1'}",
        Expected {
            answer: "{}",
            once: "",
            after: "config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard1'}",
        },
    )
    .await;
}

/// As [`check`], in another cluster each time: who is a shard once stays one.
#[tokio::test(flavor = "multi_thread")]
async fn while_adding_shards() {
    for loss in [Loss::Request, Loss::Reply] {
        for messages in 0.. {
            assert!(messages < MESSAGES_MAX, "addShard does not end");
            let cluster = Cluster::start(0).await;
            let name = cluster.spare().await;
            let command = format!("{{addShard: '{name}/{name}:1'}}");
            let wire = Wire::whole();
            cluster.elect(wire.clone()).await;
            wire.cut_after(messages, loss);
            let id = cluster.new_id();
            let ended = tokio::select! {
                _ = cluster.run_as(id, "admin", &command) => true,
                () = wire.cut() => false,
            };
            let whole = ended && !wire.is_cut();
            cluster.elect(Wire::whole()).await;
            let again = cluster.run_as(id, "admin", &command).await;
            let added = parse(&format!("{{shardAdded: '{name}'}}")).expect("a pattern");
            check_reply("addShard", &again, &added);
            let settled = tokio::time::timeout(Duration::from_secs(60), cluster.settled()).await;
            assert!(settled.is_ok(), "stuck after {messages} messages, {loss:?}");
            cluster
                .check(&format!(
                    "
                    admin {command} => {{shardAdded: '{name}'}}
                    config! config {{count: 'shards', query: {{_id: '{name}'}}}} => {{n: 1}}
                    {name}! admin {{shardingState: 1}} => {{enabled: true, shardName: '{name}'}}
                    "
                ))
                .await;
            if whole {
                break;
            }
        }
    }
}

/// Only a shard that says no to what it must not refuse leads there, and the next primary tries again.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_finished_is_said_and_kept() {
    let cluster = Cluster::start(1).await;
    cluster
        .check("admin {shardCollection: 'test.c', key: {a: 1}} => {}")
        .await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    wire.refuse();
    cluster
        .check(
            "
            test {drop: 'c'} => 51
            admin {shardCollection: 'test.c', key: {a: 1}} => 51
            config! config {find: 'terndb_operations'} => {cursor: {firstBatch: [{kind: 'drop', decided: true}]}}
            ",
        )
        .await;
    cluster.elect(Wire::whole()).await;
    cluster.settled().await;
    cluster
        .check(
            "
            shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_moving_a_range() {
    check(
        "moveRange",
        "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        ",
        "admin {moveRange: 'test.c', min: {_id: MinKey}, toShard: 'shard1'}",
        Expected {
            answer: "{}",
            once: "moveChunk.commit",
            after: "
        config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 3}
        config! config {count: 'chunks'} => {n: 4}
        ",
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_moving_a_primary() {
    check(
        "movePrimary",
        "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        admin {shardCollection: 'test.c', key: {a: 1}} => {}
        ",
        "admin {movePrimary: 'test', to: 'shard1'}",
        Expected {
            answer: "{}",
            once: "movePrimary.commit",
            after: "
        config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard1', version: {lastMod: 2}}
        shard1! admin {getDatabaseVersion: 'test'} => {dbVersion: {lastMod: 2}}
        shard0! admin {getDatabaseVersion: 'test'} => {dbVersion: {lastMod: 2}}
        shard1! test {insert: 'plain', documents: [{}]} => {n: 1}
        shard1! test {listCollections: 1, filter: {name: 'c'}, nameOnly: true} => {cursor: {firstBatch: [{name: 'c'}]}}
        ",
        },
    )
    .await;
}

/// Where one shard does it alone.
#[tokio::test(flavor = "multi_thread")]
async fn while_dropping_and_renaming_what_is_not_sharded() {
    let before = "
        test {dropDatabase: 1} => {}
        other {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        admin {addShardToZone: 'shard0', zone: 'z'} => {}
        shard0! test {insert: 'c', documents: [{_id: 1}]} => {n: 1}
        shard0! test {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a'}]} => {}
        admin {updateZoneKeyRange: 'test.c', min: {a: 1}, max: {a: 2}, zone: 'z'} => {}
        ";
    check(
        "drop of an unsharded one",
        before,
        "test {drop: 'c'}",
        Expected {
            answer: "{nIndexesWas: 2, ns: 'test.c'}",
            once: "drop.end",
            after: "shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}",
        },
    )
    .await;
    check(
        "renameCollection, both unsharded",
        &format!("{before}\nshard0! test {{insert: 'd', documents: [{{}}]}} => {{n: 1}}"),
        "admin {renameCollection: 'test.c', to: 'test.d', dropTarget: true}",
        Expected {
            answer: "{}",
            once: "renameCollection.end test.c",
            after: "
                shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
                shard0! test {find: 'd'} => {cursor: {firstBatch: [{_id: 1}]}}
                config! config {find: 'tags'} => {cursor: {firstBatch: [{ns: 'test.d', tag: 'z'}]}}
                ",
        },
    )
    .await;
    check(
        "renameCollection into another database",
        before,
        "admin {renameCollection: 'test.c', to: 'other.d'}",
        Expected {
            answer: "{}",
            once: "renameCollection.end test.c",
            after: "
                shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
                shard0! other {find: 'd'} => {cursor: {firstBatch: [{_id: 1}]}}
                config! config {find: 'tags'} => {cursor: {firstBatch: [{ns: 'other.d', tag: 'z'}]}}
                ",
        },
    )
    .await;
}

/// ⚑ That an index is missing when a shard is asked again does not say that it was there.
#[tokio::test(flavor = "multi_thread")]
async fn while_dropping_an_index_that_is_not_there() {
    for begin in [
        "shard0! test {create: 'c'} => {}",
        "admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}",
    ] {
        let before = format!(
            "
            test {{dropDatabase: 1}} => {{}}
            admin {{enableSharding: 'test', primaryShard: 'shard0'}} => {{}}
            {begin}
            "
        );
        let expected = Expected {
            answer: "27",
            once: "onOwners.end",
            after: "",
        };
        let operation = "test {dropIndexes: 'c', index: 'none'}";
        check(begin, &before, operation, expected).await;
    }
}

/// A router that has not heard yet that a collection is sharded no more sends them here too.
#[tokio::test(flavor = "multi_thread")]
async fn while_changing_indexes_of_what_is_not_sharded() {
    let before = "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        shard0! test {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a', hidden: true}]} => {}
        ";
    for (name, operation, answer, indexes) in [
        (
            "dropIndexes of an unsharded one",
            "test {dropIndexes: 'c', index: 'a'}",
            "{nIndexesWas: 2}",
            "[{name: '_id_'}]",
        ),
        (
            "createIndexes of an unsharded one",
            "test {createIndexes: 'c', indexes: [{key: {b: 1}, name: 'b'}, {key: {a: 1}, name: 'a', hidden: true}]}",
            "{numIndexesBefore: 2, numIndexesAfter: 3, note: 'index already exists'}",
            "[{name: '_id_'}, {name: 'a'}, {name: 'b'}]",
        ),
        (
            "collMod of an unsharded one",
            "test {collMod: 'c', index: {name: 'a', hidden: false}}",
            "{hidden_old: true, hidden_new: false}",
            "[{name: '_id_'}, {name: 'a'}]",
        ),
    ] {
        let after =
            format!("shard0! test {{listIndexes: 'c'}} => {{cursor: {{firstBatch: {indexes}}}}}");
        let expected = Expected {
            answer,
            once: "onOwners.end",
            after: &after,
        };
        check(name, before, operation, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_something_is_said_about_balance() {
    let before = "
        test {dropDatabase: 1} => {}
        admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
        admin {shardCollection: 'test.c', key: {a: 1}} => {}
        admin {addShardToZone: 'shard0', zone: 'y'} => {}
        admin {removeShardFromZone: 'shard0', zone: 'z'} => {}
        admin {updateZoneKeyRange: 'test.c', min: {a: 1}, max: {a: 2}, zone: null} => {}
        admin {balancerStop: 1} => {}
        ";
    for (operation, after) in [
        (
            "admin {addShardToZone: 'shard0', zone: 'z'}",
            "config! config {find: 'shards', filter: {tags: 'z'}} => {cursor: {firstBatch: [{_id: 'shard0'}]}}",
        ),
        (
            "admin {removeShardFromZone: 'shard0', zone: 'y'}",
            "config! config {find: 'shards', filter: {tags: 'y'}} => {cursor: {firstBatch: []}}",
        ),
        (
            "admin {updateZoneKeyRange: 'test.c', min: {a: 1}, max: {a: 2}, zone: 'y'}",
            "config! config {find: 'tags'} => {cursor: {firstBatch: [{ns: 'test.c', tag: 'y'}]}}",
        ),
        (
            "admin {setAllowMigrations: 'test.c', allowMigrations: false}",
            "admin {moveRange: 'test.c', min: {a: 0}, toShard: 'shard1'} => 117",
        ),
        (
            "admin {balancerStart: 1}",
            "admin {balancerStatus: 1} => {mode: 'full'}",
        ),
    ] {
        let expected = Expected {
            answer: "{}",
            once: "",
            after,
        };
        check(operation, before, operation, expected).await;
    }
}

/// As [`check`], in another cluster each time.
#[tokio::test(flavor = "multi_thread")]
async fn while_removing_shards() {
    for loss in [Loss::Request, Loss::Reply] {
        for messages in 0.. {
            assert!(messages < MESSAGES_MAX, "removeShard does not end");
            let cluster = Cluster::start(2).await;
            let expected = Expected {
                answer: "{state: 'started', shard: 'shard1'}",
                once: "removeShard.start",
                after: "config! config {count: 'shards', query: {_id: 'shard1'}} => {n: 0}",
            };
            let operation = "admin {removeShard: 'shard1'}";
            if lose(&cluster, operation, (messages, loss), operation, expected).await {
                break;
            }
        }
    }
}
