//! Shards and databases.

use crate::testing::{Cluster, Wire};

/// ⚑ A member that has come less far than whoever asks was deposed, and tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_seen_more_is_not_answered() {
    let cluster = Cluster::start(1).await;
    let made = "{_configsvrCreateDatabase: 1, db: 'a'}";
    let reply = cluster.run("config!", made).await;
    let told = reply.iter().find(|(name, _)| name == "$configTime");
    let Some((_, differential::value::Value::Timestamp(seconds, increment))) = told else {
        panic!("{reply:?} tells no config time");
    };
    let later = seconds + 3600;
    cluster
        .check(&format!(
            "config! {{_configsvrGetDatabase: 1, db: 'a', $configTime: Timestamp({seconds}, {increment})}} => {{primary: 'shard0'}}
             config! {{_configsvrGetDatabase: 1, db: 'a', $configTime: Timestamp({later}, 1)}} => 10107
             config! {{_configsvrGetRouting: 'a.x', $configTime: Timestamp({later}, 1)}} => 10107"
        ))
        .await;
    // Whoever comes next has come as far.
    cluster.elect(Wire::whole()).await;
    cluster
        .check(&format!(
            "config! {{_configsvrGetDatabase: 1, db: 'a', $configTime: Timestamp({seconds}, {increment})}} => {{primary: 'shard0'}}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_added_once() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            config! config {find: 'shards', sort: {_id: 1}, projection: {_id: 1, host: 1, state: 1}} => {cursor: {firstBatch: [{_id: 'shard0', host: 'shard0/shard0:1', state: 1}, {_id: 'shard1'}]}}
            config! config {find: 'version'} => {cursor: {firstBatch: [{_id: 1, minCompatibleVersion: 5, currentVersion: 6}]}}
            # The same again is no mistake, another shard of the same name or set is.
            admin {addShard: 'shard0/shard0:1'} => {shardAdded: 'shard0'}
            admin {addShard: 'shard0/shard0:1', name: 'other'} => 20
            admin {addShard: 'other/other:1', name: 'shard0'} => 20
            admin {addShard: 'h:1'} => 96
            admin {addShard: ''} => 9
            admin {addShard: 'x/'} => 9
            admin {addShard: 1} => 14
            admin {addShard: 'a/b:1', name: 'config'} => 2
            # Nothing is left of operations that have ended.
            config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}
            config! config {find: 'locks'} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_made_where_the_least_data_is() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            config! {_configsvrGetDatabase: 1, db: 'a'} => 26
            config! {_configsvrCreateDatabase: 1, db: 'a'} => {primary: 'shard0', version: {lastMod: 1}}
            config! {_configsvrGetDatabase: 1, db: 'a'} => {primary: 'shard0'}
            config! {_configsvrCreateDatabase: 1, db: 'a'} => {primary: 'shard0'}
            config! {_configsvrCreateDatabase: 1, db: 'A'} => 13297
            config! {_configsvrCreateDatabase: 1, db: 'b'} => {primary: 'shard1'}
            config! {_configsvrCreateDatabase: 1, db: 'x y'} => 73
            config! {_configsvrCreateDatabase: 1, db: 'config'} => {primary: 'config', version: {lastMod: 0}}
            admin {enableSharding: 'c', primaryShard: 'shard1'} => {}
            admin {enableSharding: 'c', primaryShard: 'shard1'} => {}
            admin {enableSharding: 'c', primaryShard: 'shard0'} => 48
            admin {enableSharding: 'd', primaryShard: 'shard9'} => 70
            admin {enableSharding: 'd', primaryShard: 5} => 14
            # A shard by its host, and by its connection string.
            admin {enableSharding: 'c', primaryShard: 'shard1:1'} => {}
            admin {enableSharding: 'c', primaryShard: 'shard0:1'} => 48
            admin {enableSharding: 'c', primaryShard: 'shard1/shard1:1'} => {}
            admin {movePrimary: 'c', to: 'shard1:1'} => {}
            admin {movePrimary: 'c', to: 'shard1:2'} => 70
            admin {enableSharding: 'admin'} => 72
            config! config {find: 'databases', sort: {_id: 1}, projection: {_id: 1, primary: 1, partitioned: 1}} => {cursor: {firstBatch: [{_id: 'a', primary: 'shard0', partitioned: false}, {_id: 'b', primary: 'shard1'}, {_id: 'c', primary: 'shard1'}]}}
            config! {_configsvrGetRouting: 'a.x'} => {sharded: false}
            config! {_configsvrUnheardOf: 1} => 59
            ",
        )
        .await;
    // Another primary knows the same.
    cluster.elect(Wire::whole()).await;
    cluster
        .check("config! {_configsvrGetDatabase: 1, db: 'b'} => {primary: 'shard1', version: {lastMod: 1}}")
        .await;
    cluster.depose().await;
}

/// A shard that was removed is added again, with what it still has of the cluster's sessions collection.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_left_comes_back() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            # Without ranges: they went when it was emptied.
            shard1! admin {_terndbCreateSharded: 1, ns: 'config.system.sessions', uuid: UUID(\"00000000-0000-4000-8000-000000000005\"), key: {_id: 1}, placement: {e: ObjectId(\"00000000000000000000000a\"), t: Timestamp(5, 0), v: Timestamp(0, 0)}, collectionVersion: {e: ObjectId(\"00000000000000000000000a\"), t: Timestamp(5, 0), v: Timestamp(3, 0)}, owned: []} => {}
            shard1! config {drop: 'system.sessions'} => 20
            # Of a collection of the cluster, too; it is dropped while the shard is away.
            admin {shardCollection: 'test.c', key: {_id: 1}} => {}
            shard1! admin {_terndbCreateSharded: 1, ns: 'test.c', uuid: UUID(\"00000000-0000-4000-8000-000000000006\"), key: {_id: 1}, placement: {e: ObjectId(\"00000000000000000000000b\"), t: Timestamp(5, 0), v: Timestamp(0, 0)}, collectionVersion: {e: ObjectId(\"00000000000000000000000b\"), t: Timestamp(5, 0), v: Timestamp(3, 0)}, owned: []} => {}
            # By the name of its set, by its host.
            admin {removeShard: 'shard1/shard1:1'} => {state: 'started', shard: 'shard1'}
            admin {removeShard: 'shard1:1'} => {state: 'completed', shard: 'shard1'}
            admin {removeShard: 'shard1:1'} => 70
            admin {removeShard: 'shard1'} => 70
            config! config {count: 'shards'} => {n: 1}
            test {drop: 'c'} => {}
            # ⚑ What it says to be its own is not forgotten.
            shard1! admin {_terndbCreateSharded: 1, ns: 'test.d', uuid: UUID(\"00000000-0000-4000-8000-000000000007\"), key: {_id: 1}, placement: {e: ObjectId(\"00000000000000000000000c\"), t: Timestamp(5, 0), v: Timestamp(3, 0)}, collectionVersion: {e: ObjectId(\"00000000000000000000000c\"), t: Timestamp(5, 0), v: Timestamp(3, 0)}, owned: [{min: {_id: MinKey}, max: {_id: MaxKey}}]} => {}
            admin {addShard: 'shard1/shard1:1'} => 117
            shard1! admin {_terndbForgetPlacement: 1, ns: 'test.d', uuid: UUID(\"00000000-0000-4000-8000-000000000007\")} => {}
            admin {addShard: 'shard1/shard1:1'} => {shardAdded: 'shard1'}
            config! config {count: 'shards', query: {_id: 'shard1', state: 1, draining: {$exists: false}}} => {n: 1}
            # It is as good as any other.
            shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
            admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
            admin {enableSharding: 'back', primaryShard: 'shard1'} => {}
            shard1! back {insert: 'c', documents: [{_id: 1}]} => {n: 1}
            admin {shardCollection: 'back.h', key: {_id: 'hashed'}} => {}
            config! config {count: 'chunks', query: {shard: 'shard1'}} => {n: 4}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// A collection that nobody looks for where it lies is told.
#[tokio::test(flavor = "multi_thread")]
async fn misplaced_collections_are_found() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {shardCollection: 'test.s', key: {_id: 'hashed'}} => {}
            shard0! test {insert: 'c', documents: [{_id: 1}]} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            # By hand: a shard makes none for itself where it is not at home.
            shard1! test {insert: 'c', documents: [{_id: 1}]} => 249
            shard1! admin {_terndbSetDatabase: 1, db: 'test', version: {uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp(4000000000, 0), lastMod: 1}, primary: true} => {}
            shard1! test {insert: 'c', documents: [{_id: 1}]} => {n: 1}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'MisplacedCollection', details: {namespace: 'test.c', shard: 'shard1', primary: 'shard0'}}]}}
            test {checkMetadataConsistency: 1} => {cursor: {firstBatch: [{type: 'MisplacedCollection'}]}}
            other {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// What the engine has not written out yet counts as well.
#[tokio::test(flavor = "multi_thread")]
async fn new_documents_count_when_a_database_is_placed() {
    let cluster = Cluster::start(2).await;
    let text = "x".repeat(10_000);
    cluster
        .check(&format!(
            "
            admin {{enableSharding: 'big', primaryShard: 'shard0'}} => {{}}
            admin {{enableSharding: 'small', primaryShard: 'shard1'}} => {{}}
            admin {{enableSharding: 'smaller', primaryShard: 'shard1'}} => {{}}
            shard0! big {{insert: 'c', documents: [{{_id: '{text}'}}]}} => {{n: 1}}
            shard1! small {{insert: 'c', documents: [{{_id: 1}}]}} => {{n: 1}}
            config! {{_configsvrCreateDatabase: 1, db: 'next'}} => {{primary: 'shard1'}}
            "
        ))
        .await;
}

/// ⚑ It could be given data, and never be emptied.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_cannot_reach_others_is_not_added() {
    let cluster = Cluster::start(1).await;
    let loner = cluster.loner().await;
    let add = format!("{{addShard: '{loner}/{loner}:1'}}");
    for (command, code, said) in [
        (
            add.as_str(),
            96,
            "start each of its members with --config-servers",
        ),
        ("{addShard: 'x'}", 96, "\"x\" does not name a replica set"),
        ("{addShard: ''}", 9, "empty string"),
    ] {
        let reply = cluster.run("admin", command).await;
        let fields = differential::notation::print_fields(&reply);
        assert!(fields.contains(&format!("code: {code}")), "{fields}");
        let message = reply.iter().find(|(name, _)| name == "errmsg");
        let Some((_, differential::value::Value::String(message))) = message else {
            panic!("{command} answers {fields}");
        };
        assert!(message.contains(said), "{message}");
    }
    cluster
        .check(&format!(
            "
            {loner}! admin {{shardingState: 1}} => {{enabled: false, reachesOtherShards: false}}
            config! config {{count: 'shards'}} => {{n: 1}}
            config! config {{find: 'terndb_operations'}} => {{cursor: {{firstBatch: []}}}}
            config! config {{find: 'locks'}} => {{cursor: {{firstBatch: []}}}}
            "
        ))
        .await;
}
