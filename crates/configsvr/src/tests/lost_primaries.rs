//! ⚑ A primary that is lost after any message of any operation: another one goes on, and everything fits.
//!
//! Every message of the config server, to its documents and to shards, is numbered. The primary is cut off
//! after the first one, after the second, and so on until the operation needs no more of them; each time both
//! ways: the message did not arrive, or its answer did not. Then another primary takes over.

use crate::testing::{Cluster, Loss, Wire};
use std::time::Duration;

/// More than any operation here needs.
const MESSAGES_MAX: i64 = 200;

/// Runs `operation` cut after each message, with `before` ahead of it and `after` behind it.
async fn check(name: &str, before: &str, operation: &str, after: &str) {
    for loss in [Loss::Request, Loss::Reply] {
        let cluster = Cluster::start(2).await;
        let mut messages = 0;
        loop {
            cluster.check(before).await;
            if lose(&cluster, name, (messages, loss), operation, after).await {
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
    after: &str,
) -> bool {
    // The messages by which a primary begins are not those of the operation.
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    wire.cut_after(messages, loss);
    let (head, command) = operation.split_at(operation.find('{').unwrap_or(0));
    let ran = cluster.run(head.trim(), command);
    // It never ends by itself if the wire was cut in the middle.
    let ended = tokio::select! {
        _ = ran => true,
        () = wire.cut() => false,
    };
    let whole = ended && !wire.is_cut();
    cluster.elect(Wire::whole()).await;
    let settled = cluster.settled();
    let settled = tokio::time::timeout(Duration::from_secs(60), settled).await;
    assert!(
        settled.is_ok(),
        "{name}: stuck after {messages} messages, {loss:?}"
    );
    cluster
        .check("admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}")
        .await;
    // Whatever came of it, it can be asked for again.
    cluster.run(head.trim(), command).await;
    cluster.check(after).await;
    whole
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
            if lose(&cluster, NAME, (messages, loss), operation, after).await {
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
        "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: true, chunks: [{shard: 'shard0'}, {shard: 'shard0'}, {shard: 'shard1'}, {shard: 'shard1'}]}
        shard0! test {insert: 'plain', documents: [{}]} => {n: 1}
        admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
        ",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_dropping() {
    check(
        "drop",
        "admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}",
        "test {drop: 'c'}",
        "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: false}
        shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
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
        "
        config! config {find: 'databases'} => {cursor: {firstBatch: []}}
        config! config {find: 'chunks'} => {cursor: {firstBatch: []}}
        shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
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
        "config! {_configsvrGetRouting: 'test.c'} => {key: {a: 1, b: 1}}",
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
        "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'a'}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'a'}]}}
        ",
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
        "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}]}}
        ",
    )
    .await;
    check(
        "collMod",
        before,
        "test {collMod: 'c', index: {name: 'a', expireAfterSeconds: 200}}",
        "
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {expireAfterSeconds: 200}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {expireAfterSeconds: 200}]}}
        ",
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
        "
        config! {_configsvrGetRouting: 'test.c'} => {sharded: false}
        config! {_configsvrGetRouting: 'test.d'} => {sharded: true, key: {_id: 'hashed'}}
        config! config {count: 'chunks'} => {n: 4}
        shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        shard1! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        ",
    )
    .await;
    check(
        "renameCollection to a free name",
        "
        test {dropDatabase: 1} => {}
        admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
        ",
        "admin {renameCollection: 'test.c', to: 'test.d'}",
        "
        config! {_configsvrGetRouting: 'test.d'} => {sharded: true, key: {_id: 'hashed'}}
        config! config {count: 'chunks'} => {n: 4}
        shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        shard1! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}
        ",
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
        "
        config! {_configsvrGetRouting: 'test.d'} => {sharded: false}
        config! config {count: 'chunks'} => {n: 0}
        shard0! test {find: 'd'} => {cursor: {firstBatch: [{_id: 1}]}}
        shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
        ",
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
        "config! config {count: 'chunks'} => {n: 2}",
    )
    .await;
    check(
        "mergeChunks",
        &format!("{before}\nadmin {{split: 'test.c', middle: {{a: 10}}}} => {{}}"),
        "admin {mergeChunks: 'test.c', bounds: [{a: MinKey}, {a: MaxKey}]}",
        "config! config {count: 'chunks'} => {n: 1}",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_making_a_database() {
    check(
        "enableSharding",
        "test {dropDatabase: 1} => {}",
        "admin {enableSharding: 'test', primaryShard: 'shard1'}",
        "config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard1'}",
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
            let ended = tokio::select! {
                _ = cluster.run("admin", &command) => true,
                () = wire.cut() => false,
            };
            let whole = ended && !wire.is_cut();
            cluster.elect(Wire::whole()).await;
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
        "
        config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 3}
        config! config {count: 'chunks'} => {n: 4}
        ",
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
        "
        config! {_configsvrGetDatabase: 1, db: 'test'} => {primary: 'shard1', version: {lastMod: 2}}
        shard1! admin {getDatabaseVersion: 'test'} => {dbVersion: {lastMod: 2}}
        shard0! admin {getDatabaseVersion: 'test'} => {dbVersion: {lastMod: 2}}
        shard1! test {insert: 'plain', documents: [{}]} => {n: 1}
        shard1! test {listCollections: 1, filter: {name: 'c'}, nameOnly: true} => {cursor: {firstBatch: [{name: 'c'}]}}
        ",
    )
    .await;
}
