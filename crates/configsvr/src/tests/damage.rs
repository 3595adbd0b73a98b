//! Documents of the `config` database that clients have broken: the damage stays with its collection or database,
//! is told by name, and goes when the documents are as they were.

use crate::testing::{Cluster, Wire};
use differential::notation::print;
use differential::value::{Value, get};
use std::sync::Arc;
use tokio::sync::Notify;

/// One document that is broken, and what `checkMetadataConsistency` says of it.
struct Broken {
    collection: &'static str,
    filter: &'static str,
    change: &'static str,
    found: &'static str,
}

const OF_A: &str = "max: {k: 20}";

const BROKEN: [Broken; 9] = [
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {max: {k: 15}}}",
        found: "[{type: 'RoutingTableRangeGap', description: 'test.a: config.chunks has no chunk from { k: 15 } to { k: 20 }', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {max: {k: 25}}}",
        found: "[{type: 'RoutingTableRangeOverlap', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {max: {k: 10}}}",
        found: "[{type: 'CorruptedChunkShardKey', description: 'test.a: the chunk of config.chunks that begins at { k: 10 } does not end behind that'}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {max: {z: 1}}}",
        found: "[{type: 'CorruptedChunkShardKey', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {history: [5]}}",
        found: "[{type: 'CorruptedChunkHistory', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$unset: {lastmod: 1}}",
        found: "[{type: 'CorruptedChunk', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "chunks",
        filter: OF_A,
        change: "{$set: {shard: 7}}",
        found: "[{type: 'CorruptedChunk', details: {namespace: 'test.a'}}]",
    },
    Broken {
        collection: "collections",
        filter: "_id: 'test.a'",
        change: "{$unset: {key: 1}}",
        found: "[{type: 'CorruptedCollection', details: {namespace: 'test.a'}}, {type: 'MissingRoutingTable'}]",
    },
    Broken {
        collection: "collections",
        filter: "_id: 'test.a'",
        change: "{$set: {uuid: UUID(\"00000000-0000-4000-8000-00000000000a\")}}",
        found: "[{type: 'MissingRoutingTable', details: {namespace: 'test.a'}}, {type: 'MissingRoutingTable'}]",
    },
];

async fn with_collections() -> Cluster {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {enableSharding: 'other', primaryShard: 'shard1'} => {}
            admin {shardCollection: 'test.a', key: {k: 1}} => {}
            admin {shardCollection: 'test.b', key: {k: 1}} => {}
            admin {shardCollection: 'other.c', key: {k: 1}} => {}
            admin {split: 'test.a', middle: {k: 10}} => {}
            admin {split: 'test.a', middle: {k: 20}} => {}
            shard0! test {insert: 'plain', documents: [{_id: 1}]} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
    cluster
}

/// The document that a filter finds, as text.
async fn stored(cluster: &Cluster, collection: &str, filter: &str) -> (String, String) {
    let find = format!("{{find: '{collection}', filter: {{{filter}}}}}");
    let reply = cluster.run("config! config", &find).await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let batch = batch.and_then(Value::as_array).expect("a batch");
    let id = batch[0].get("_id").expect("every document has one");
    (print(id), print(&batch[0]))
}

async fn message(cluster: &Cluster, head: &str, command: &str) -> String {
    let reply = cluster.run(head, command).await;
    match get(&reply, "errmsg") {
        Some(Value::String(message)) => message.clone(),
        other => panic!("{command} answers {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_stays_with_its_collection() {
    let cluster = with_collections().await;
    for (at, broken) in BROKEN.iter().enumerate() {
        let Broken {
            collection,
            filter,
            change,
            found,
        } = broken;
        let (id, before) = stored(&cluster, collection, filter).await;
        cluster
            .check(&format!(
                "config! config {{update: '{collection}', updates: [{{q: {{_id: {id}}}, u: {change}}}]}} => {{nModified: 1}}"
            ))
            .await;
        let damaged = format!(
            "
            config! {{_configsvrGetRouting: 'test.a'}} => 1
            config! {{_configsvrGetRouting: 'test.b'}} => {{sharded: true}}
            config! {{_configsvrGetRouting: 'test.plain'}} => {{sharded: false}}
            config! {{_configsvrGetRouting: 'other.c'}} => {{sharded: true}}
            config! {{_configsvrGetDatabase: 1, db: 'test'}} => {{primary: 'shard0'}}
            admin {{split: 'test.a', middle: {{k: 5}}}} => 1
            test {{createIndexes: 'a', indexes: [{{key: {{y: 1}}, name: 'y'}}]}} => 1
            admin {{shardCollection: 'test.a', key: {{k: 1}}}} => 1
            admin {{moveRange: 'test.a', min: {{k: 20}}, toShard: 'shard1'}} => 1
            admin {{movePrimary: 'test', to: 'shard1'}} => 1
            admin {{split: 'test.b', middle: {{k: {at}}}}} => {{}}
            admin {{checkMetadataConsistency: 1}} => {{cursor: {{firstBatch: {found}}}}}
            test {{checkMetadataConsistency: 'b'}} => {{cursor: {{firstBatch: []}}}}
            other {{checkMetadataConsistency: 'c'}} => {{cursor: {{firstBatch: []}}}}
            "
        );
        cluster.check(&damaged).await;
        let told = message(&cluster, "config!", "{_configsvrGetRouting: 'test.a'}").await;
        assert!(told.contains("test.a"), "{told}");
        // Another primary begins with it.
        cluster.elect(Wire::whole()).await;
        cluster
            .check(&format!(
                "
                config! {{_configsvrGetRouting: 'test.a'}} => 1
                config! {{_configsvrGetRouting: 'test.b'}} => {{sharded: true}}
                config! config {{update: '{collection}', updates: [{{q: {{_id: {id}}}, u: {before}}}]}} => {{nModified: 1}}
                config! {{_configsvrGetRouting: 'test.a'}} => {{sharded: true}}
                admin {{checkMetadataConsistency: 1}} => {{cursor: {{firstBatch: []}}}}
                "
            ))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_stays_with_its_database() {
    let cluster = with_collections().await;
    let (_, before) = stored(&cluster, "databases", "_id: 'other'").await;
    cluster
        .check(&format!(
            "
            config! config {{update: 'databases', updates: [{{q: {{_id: 'other'}}, u: {{$unset: {{version: 1}}}}}}]}} => {{nModified: 1}}
            config! {{_configsvrGetDatabase: 1, db: 'other'}} => 1
            config! {{_configsvrCreateDatabase: 1, db: 'other'}} => 1
            config! {{_configsvrGetRouting: 'other.c'}} => 1
            other {{drop: 'c'}} => 1
            other {{dropDatabase: 1}} => 1
            config! {{_configsvrGetDatabase: 1, db: 'test'}} => {{primary: 'shard0'}}
            config! {{_configsvrGetRouting: 'test.a'}} => {{sharded: true}}
            config! {{_configsvrCreateDatabase: 1, db: 'new'}} => {{version: {{lastMod: 1}}}}
            other {{checkMetadataConsistency: 1}} => {{cursor: {{firstBatch: [{{type: 'CorruptedDatabase', details: {{database: 'other'}}}}]}}}}
            test {{checkMetadataConsistency: 'a'}} => {{cursor: {{firstBatch: []}}}}
            config! config {{update: 'databases', updates: [{{q: {{_id: 'other'}}, u: {before}}}]}} => {{nModified: 1}}
            config! {{_configsvrGetDatabase: 1, db: 'other'}} => {{primary: 'shard1'}}
            admin {{checkMetadataConsistency: 1}} => {{cursor: {{firstBatch: []}}}}
            "
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_whose_chunks_are_damaged_is_dropped() {
    let cluster = with_collections().await;
    cluster
        .check(
            "
            config! config {delete: 'chunks', deletes: [{q: {max: {k: 20}}, limit: 1}]} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'RoutingTableRangeGap'}]}}
            test {drop: 'a'} => {}
            config! {_configsvrGetRouting: 'test.a'} => {sharded: false}
            shard0! test {listIndexes: 'a'} => 26
            config! config {count: 'chunks'} => {n: 2}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            admin {shardCollection: 'test.a', key: {k: 1}} => {}
            # With its database, too.
            config! config {update: 'chunks', updates: [{q: {}, u: {$set: {max: {k: 3}}}, multi: true}]} => {nModified: 3}
            test {dropDatabase: 1} => {}
            config! config {count: 'chunks'} => {n: 1}
            config! config {count: 'collections'} => {n: 1}
            config! {_configsvrGetDatabase: 1, db: 'test'} => 26
            ",
        )
        .await;
}

/// A chunk of a shard that is not there can be read: it is told, and nothing else is lost for it.
#[tokio::test(flavor = "multi_thread")]
async fn owners_that_are_no_shards_are_told() {
    let cluster = with_collections().await;
    cluster
        .check(
            "
            config! config {update: 'chunks', updates: [{q: {max: {k: 20}}, u: {$set: {shard: 'shard7'}}}]} => {nModified: 1}
            config! {_configsvrGetRouting: 'test.b'} => {sharded: true}
            ",
        )
        .await;
    let reply = cluster.run("admin", "{checkMetadataConsistency: 1}").await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let found = batch.map(print).unwrap_or_default();
    assert!(found.contains("UnknownShard"), "{reply:?}");
    cluster
        .check("config! config {update: 'chunks', updates: [{q: {max: {k: 20}}, u: {$set: {shard: 'shard0'}}}]} => {nModified: 1}
                admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}")
        .await;
}

/// ⚑ Of what cannot be understood, anything may be on a shard that is to go.
#[tokio::test(flavor = "multi_thread")]
async fn no_shard_goes_while_something_is_damaged() {
    let cluster = Cluster::start(2).await;
    cluster
        .check("admin {enableSharding: 'bare', primaryShard: 'shard1'} => {}")
        .await;
    let (_, before) = stored(&cluster, "databases", "_id: 'bare'").await;
    cluster
        .check(&format!(
            "
            config! config {{update: 'databases', updates: [{{q: {{_id: 'bare'}}, u: {{$set: {{primary: 1}}}}}}]}} => {{nModified: 1}}
            admin {{removeShard: 'shard1'}} => {{state: 'started'}}
            admin {{removeShard: 'shard1'}} => 1
            config! config {{update: 'databases', updates: [{{q: {{_id: 'bare'}}, u: {before}}}]}} => {{nModified: 1}}
            admin {{removeShard: 'shard1'}} => {{state: 'ongoing', remaining: {{dbs: 1L}}}}
            "
        ))
        .await;
}

/// ⚑ Of a shard: what is on it cannot be reached, and everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_shard_is_told_by_name() {
    let cluster = with_collections().await;
    cluster
        .check(
            "
            config! config {update: 'shards', updates: [{q: {_id: 'shard1'}, u: {$unset: {host: 1}}}]} => {n: 1}
            admin {split: 'test.b', middle: {k: 5}} => {}
            admin {addShard: 'shard1/shard1:1'} => 1
            admin {removeShard: 'shard0'} => 20
            ",
        )
        .await;
    for _ in 0..2 {
        cluster
            .check(
                "
                admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'CorruptedShard', description: 'config.shards/shard1: the document \"shard1\" of config.shards has no usable field host'}, {type: 'UnknownShard'}, {type: 'MissingPrimary'}]}}
                test {createIndexes: 'b', indexes: [{key: {x: 1}, name: 'x'}]} => {}
                test {drop: 'plain'} => {}
                shard0! test {insert: 'plain', documents: [{_id: 1}]} => {n: 1}
                other {dropIndexes: 'c', index: 'x'} => 1
                test {drop: 'b'} => 1
                test {dropDatabase: 1} => 1
                admin {renameCollection: 'test.b', to: 'test.other'} => 1
                admin {renameCollection: 'test.plain', to: 'test.b', dropTarget: true} => 1
                test {dropIndexes: 'b', index: 'x'} => {}
                ",
            )
            .await;
        cluster.elect(Wire::whole()).await;
    }
    cluster
        .check(
            "
            config! config {update: 'shards', updates: [{q: {_id: 'shard1'}, u: {$set: {host: 'shard1/shard1:1'}}}]} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            other {drop: 'c'} => {}
            ",
        )
        .await;
}

/// ⚑ Whoever was told that a document is written finds it in what the config server knows, also while that is being
/// read for somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_is_seen_while_somebody_decides() {
    let cluster = with_collections().await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    cluster
        .check("config! config {update: 'shards', updates: [{q: {_id: 'shard1'}, u: {$unset: {host: 1}}}]} => {n: 1}")
        .await;
    let reads = Arc::new(Notify::new());
    let tells = reads.clone();
    let release = wire.hold(Box::new(move |message| {
        let is_load = message.get_str("find") == Some("shards");
        if is_load {
            tells.notify_one();
        }
        is_load
    }));
    let deciding = cluster.check("admin {split: 'test.b', middle: {k: 5}} => {}");
    let asking = async {
        reads.notified().await;
        // It looks first, and the other goes on only then.
        let lets_go = async { release.add_permits(1) };
        let asked = cluster.run("admin", "{checkMetadataConsistency: 1}");
        let (reply, ()) = tokio::join!(asked, lets_go);
        let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
        let found = batch.map(print).unwrap_or_default();
        assert!(found.contains("CorruptedShard"), "{reply:?}");
    };
    tokio::join!(deciding, asking);
}

/// ⚑ Of an operation: its names are closed, and who is primary when the document is as it was goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_operation_closes_its_names() {
    let cluster = with_collections().await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    wire.refuse();
    cluster
        .check(
            "
            test {drop: 'a'} => 51
            config! config {update: 'terndb_operations', updates: [{q: {kind: 'drop'}, u: {$set: {kind: 'leap'}}}]} => {n: 1}
            config! config {insert: 'terndb_operations', documents: [{_id: 'odd'}]} => {n: 1}
            ",
        )
        .await;
    cluster.elect(Wire::whole()).await;
    cluster
        .check(
            "
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'CorruptedOperation'}, {type: 'CorruptedOperation', description: 'config.terndb_operations/odd: the document \"odd\" of config.terndb_operations has no usable field _id'}, {type: 'MissingRoutingTable'}]}}
            admin {shardCollection: 'test.a', key: {k: 1}} => 51
            admin {split: 'test.b', middle: {k: 5}} => {}
            config! config {update: 'terndb_operations', updates: [{q: {kind: 'leap'}, u: {$set: {kind: 'drop'}}}]} => {n: 1}
            config! config {delete: 'terndb_operations', deletes: [{q: {_id: 'odd'}, limit: 1}]} => {n: 1}
            ",
        )
        .await;
    cluster.elect(Wire::whole()).await;
    cluster.settled().await;
    cluster
        .check(
            "
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            admin {shardCollection: 'test.a', key: {k: 1}} => {}
            ",
        )
        .await;
}
