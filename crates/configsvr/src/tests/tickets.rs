//! A command that is asked again with its id, while its first primary lives.

use crate::testing::{Cluster, Wire, check_reply, without_times};
use differential::notation::{parse, print_fields};
use differential::value::Fields;
use std::sync::Arc;

fn check(line: &str, reply: &Fields, expected: &str) {
    let expected = parse(expected).expect("a pattern");
    check_reply(line, reply, &expected);
}

fn same(first: &Fields, second: &Fields) {
    let [first, second] = [first, second].map(|reply| print_fields(&without_times(reply)));
    assert_eq!(first, second);
}

/// A cluster in which the next message of a name waits until it may go on.
async fn held(message: &'static str) -> (Arc<Cluster>, Arc<tokio::sync::Semaphore>) {
    let cluster = Arc::new(Cluster::start(2).await);
    cluster
        .check("admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}")
        .await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    let is_meant = move |body: model::bson::Doc<'_>| {
        let first = body.first();
        first.is_some_and(|first| first.key() == message)
    };
    let release = wire.hold(Box::new(is_meant));
    (cluster, release)
}

/// Completes when an operation of this kind has begun.
async fn has_begun(cluster: &Cluster, kind: &str) {
    let count = format!("{{count: 'terndb_operations', query: {{kind: '{kind}'}}}}");
    loop {
        let reply = cluster.run("config! config", &count).await;
        if print_fields(&reply).contains("n: 1,") {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_again_joins_what_runs() {
    let (cluster, release) = held("_terndbForgetPlacement").await;
    let id = cluster.new_id();
    let ask = |command: &'static str| {
        let cluster = cluster.clone();
        tokio::spawn(async move { cluster.run_as(id, "test", command).await })
    };
    let first = ask("{drop: 'c'}");
    has_begun(&cluster, "drop").await;
    // It says something else, and nothing comes of it.
    check("other", &ask("{drop: 'd'}").await.expect("ends"), "2");
    // Whose patience ends is told so; the limit is not what a command says.
    let hurried = ask("{drop: 'c', maxTimeMS: 1}").await.expect("ends");
    check("hurried", &hurried, "50");
    let second = ask("{drop: 'c', maxTimeMS: 60000}");
    release.add_permits(1);
    let first = first.await.expect("ends");
    check("first", &first, "{nIndexesWas: 2, ns: 'test.c'}");
    same(&first, &second.await.expect("ends"));
    same(&first, &ask("{drop: 'c'}").await.expect("ends"));
    check("other", &ask("{drop: 'd'}").await.expect("ends"), "2");
    assert_eq!(cluster.changes("drop.end").await, 1);
}

/// ⚑ What was answered stays the answer, whatever others did since, and nothing is done again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_stays_the_answer() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            shard0! test {insert: 'plain', documents: [{_id: 1}]} => {n: 1}
            shard0! test {insert: 'named', documents: [{_id: 2}]} => {n: 1}
            ",
        )
        .await;
    let commands = [
        (
            "test",
            "{drop: 'plain'}",
            "{ns: 'test.plain', nIndexesWas: 1}",
        ),
        (
            "admin",
            "{renameCollection: 'test.named', to: 'test.new'}",
            "{}",
        ),
        ("admin", "{split: 'test.c', middle: {a: 5}}", "{}"),
        (
            "admin",
            "{mergeChunks: 'test.c', bounds: [{a: MinKey}, {a: MaxKey}]}",
            "{}",
        ),
        ("test", "{drop: 'c'}", "{ns: 'test.c', nIndexesWas: 2}"),
        ("admin", "{addShardToZone: 'shard0', zone: 'z'}", "{}"),
        ("admin", "{removeShard: 'shard1'}", "{state: 'started'}"),
        ("admin", "{enableSharding: 'more'}", "{}"),
    ];
    let mut first = Vec::new();
    for (database, command, answer) in commands {
        let id = cluster.new_id();
        let reply = cluster.run_as(id, database, command).await;
        check(command, &reply, answer);
        first.push((id, reply));
    }
    cluster
        .check(
            "
            shard0! test {insert: 'plain', documents: [{_id: 3}]} => {n: 1}
            shard0! test {insert: 'named', documents: [{_id: 4}]} => {n: 1}
            test {drop: 'new'} => {}
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {removeShardFromZone: 'shard0', zone: 'z'} => {}
            more {dropDatabase: 1} => {}
            ",
        )
        .await;
    let stored = cluster.stored().await;
    for _ in 0..2 {
        for ((database, command, _), (id, reply)) in commands.iter().zip(&first) {
            same(reply, &cluster.run_as(*id, database, command).await);
        }
        assert_eq!(stored, cluster.stored().await);
        // The next primary knows it as well.
        cluster.elect(Wire::whole()).await;
    }
    cluster
        .check(
            "
            shard0! test {find: 'plain'} => {cursor: {firstBatch: [{_id: 3}]}}
            shard0! test {find: 'named'} => {cursor: {firstBatch: [{_id: 4}]}}
            config! {_configsvrGetRouting: 'test.c'} => {sharded: true}
            config! {_configsvrGetDatabase: 1, db: 'more'} => 26
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_an_answer_too() {
    let cluster = Cluster::start(2).await;
    cluster
        .check("admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}")
        .await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    // Begun, and then another client takes the name.
    let primary = "config! {_configsvrGetDatabase: 1, db: 'test'}";
    let (head, command) = primary.split_at(8);
    let told = print_fields(&cluster.run(head, command).await);
    let primary = if told.contains("shard0") {
        "shard0"
    } else {
        "shard1"
    };
    wire.overtake(primary, "_terndbCreateSharded", "test", "{create: 'd'}");
    let id = cluster.new_id();
    let rename = "{renameCollection: 'test.c', to: 'test.d'}";
    let first = cluster.run_as(id, "admin", rename).await;
    check(rename, &first, "48");
    cluster.check("test {drop: 'd'} => {}").await;
    same(&first, &cluster.run_as(id, "admin", rename).await);
    cluster.elect(Wire::whole()).await;
    same(&first, &cluster.run_as(id, "admin", rename).await);
    // What was refused before anything was written is looked at again.
    let id = cluster.new_id();
    let rename = "{renameCollection: 'test.none', to: 'test.e'}";
    check(rename, &cluster.run_as(id, "admin", rename).await, "26");
    let made = format!("{primary}! test {{create: 'none'}} => {{}}");
    cluster.check(&made).await;
    check(rename, &cluster.run_as(id, "admin", rename).await, "{}");
    cluster
        .check("config! {_configsvrDdl: 1, operation: 5, db: 'test', command: {drop: 'c'}} => 14")
        .await;
}

/// ⚑ A collection that is made while one of its name is looked for in vain stays: nobody has asked for its end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_meanwhile_stays() {
    let cluster = Cluster::start(1).await;
    cluster
        .check("admin {enableSharding: 'test', primaryShard: 'shard0'} => {}")
        .await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    for (message, database, command) in [
        ("drop", "test", "{drop: 'c'}"),
        (
            "renameCollection",
            "admin",
            "{renameCollection: 'test.c', to: 'test.d'}",
        ),
    ] {
        wire.overtake("shard0", message, "test", "{create: 'c'}");
        let id = cluster.new_id();
        check(command, &cluster.run_as(id, database, command).await, "26");
        assert!(wire.has_overtaken());
        cluster
            .check(
                "
                shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'c'}]}}
                test {drop: 'c'} => {}
                ",
            )
            .await;
    }
}
