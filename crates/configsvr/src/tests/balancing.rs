//! Zones, the balancer, and shards that leave; ranges are moved by a donor that copies nothing.

use crate::fake_donor::Manner;
use crate::testing::{Cluster, Wire};
use std::time::Duration;

/// Asks until a script's line holds.
async fn until(cluster: &Cluster, head: &str, command: &str, field: &str, value: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let reply = cluster.run(head, command).await;
        let printed = differential::value::get(&reply, field).map(differential::notation::print);
        if printed.as_deref() == Some(value) {
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{command} answers {}",
            differential::notation::print_fields(&reply)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zones_are_kept() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {addShardToZone: 'shard1', zone: 'north'} => {}
            admin {addShardToZone: 'shard1', zone: 'north'} => {}
            admin {addShardToZone: 'nowhere', zone: 'north'} => 70
            admin {addShardToZone: 'shard1'} => 4
            test {addShardToZone: 'shard1', zone: 'north'} => 13
            config! config {find: 'shards', filter: {_id: 'shard1'}} => {cursor: {firstBatch: [{tags: ['north']}]}}
            # Before the collection is there.
            admin {updateZoneKeyRange: 'test.birds', min: {a: 1}, max: {a: 5}, zone: 'north'} => {}
            admin {updateZoneKeyRange: 'test.birds', min: {a: 1}, max: {a: 5}, zone: 'north'} => {}
            admin {updateZoneKeyRange: 'test.birds', min: {a: 3}, max: {a: 8}, zone: 'north'} => 178
            admin {updateZoneKeyRange: 'test.birds', min: {a: 3}, max: {a: 2}, zone: 'north'} => 9
            admin {updateZoneKeyRange: 'test.birds', min: {a: 3}, max: {b: 8}, zone: 'north'} => 61
            admin {updateZoneKeyRange: 'test.birds', min: {a: 10}, max: {a: 12}, zone: 'south'} => 177
            admin {removeShardFromZone: 'shard1', zone: 'north'} => 163
            config! config {find: 'tags'} => {cursor: {firstBatch: [{_id: {ns: 'test.birds', min: {a: 1}}, ns: 'test.birds', min: {a: 1}, max: {a: 5}, tag: 'north'}]}}
            # Off until somebody starts it.
            admin {balancerStatus: 1} => {mode: 'off', inBalancerRound: false, numBalancerRounds: 0L}
            config! config {find: 'settings'} => {cursor: {firstBatch: [{_id: 'balancer', mode: 'off', stopped: true}]}}
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {shardCollection: 'test.birds', key: {a: 1}} => {}
            # It begins as its zones say: what lies between them goes to all shards in turn.
            config! config {find: 'chunks', sort: {min: 1}} => {cursor: {firstBatch: [{min: {a: MinKey}, max: {a: 1}, shard: 'shard0'}, {min: {a: 1}, max: {a: 5}, shard: 'shard1'}, {min: {a: 5}, max: {a: MaxKey}, shard: 'shard1'}]}}
            admin {balancerCollectionStatus: 'test.birds'} => {chunkSize: 128, balancerCompliant: true}
            # A zone that comes later is for the balancer.
            admin {updateZoneKeyRange: 'test.birds', min: {a: -5}, max: {a: -1}, zone: 'north'} => {}
            admin {balancerCollectionStatus: 'test.birds'} => {chunkSize: 128, balancerCompliant: false, firstComplianceViolation: 'zoneViolation'}
            admin {balancerCollectionStatus: 'test.none'} => 118
            admin {balancerStart: 1} => {}
            ",
        )
        .await;
    let moved = "{count: 'chunks', query: {shard: 'shard1', min: {a: -5}, max: {a: -1}}}";
    until(&cluster, "config! config", moved, "n", "1").await;
    cluster
        .check(
            "
            admin {balancerStatus: 1} => {mode: 'full'}
            admin {updateZoneKeyRange: 'test.birds', min: {a: 1}, max: {a: 5}, zone: null} => {}
            admin {updateZoneKeyRange: 'test.birds', min: {a: -5}, max: {a: -1}, zone: null} => {}
            admin {balancerStop: 1} => {}
            # Zones that are cut at hashes before there are data.
            admin {shardCollection: 'test.hashed', key: {land: 1, k: 'hashed'}, presplitHashedZones: true} => 72
            admin {shardCollection: 'test.hashed', key: {land: 1, k: 'hashed'}, presplitHashedZones: 1} => 14
            admin {updateZoneKeyRange: 'test.hashed', min: {land: 'a', k: MinKey}, max: {land: 'b', k: MinKey}, zone: 'north'} => {}
            admin {shardCollection: 'test.hashed', key: {land: 1, k: 'hashed'}, presplitHashedZones: true, numInitialChunks: 4} => {}
            config! config {count: 'chunks', query: {'min.land': 'a', shard: 'shard1'}} => {n: 2}
            test {drop: 'hashed'} => {}
            admin {removeShardFromZone: 'shard1', zone: 'north'} => {}
            ",
        )
        .await;
    cluster.elect(Wire::whole()).await;
    cluster
        .check("admin {balancerStatus: 1} => {mode: 'off'}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_leave_when_nothing_is_left_on_them() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {enableSharding: 'other', primaryShard: 'shard1'} => {}
            admin {shardCollection: 'test.h', key: {_id: 'hashed'}, numInitialChunks: 6} => {}
            admin {removeShard: 'nowhere'} => 70
            admin {removeShard: 'shard1'} => {msg: 'draining started successfully', state: 'started', shard: 'shard1', dbsToMove: ['other']}
            # It gets nothing any more, and the other one must stay.
            admin {moveRange: 'test.h', min: {_id: MinKey}, toShard: 'shard1'} => 70
            admin {removeShard: 'shard0'} => 20
            ",
        )
        .await;
    let left = "{count: 'chunks', query: {shard: 'shard1'}}";
    until(&cluster, "config! config", left, "n", "0").await;
    cluster.settled().await;
    cluster
        .check(
            "
            admin {removeShard: 'shard1'} => {state: 'ongoing', remaining: {chunks: 0L, dbs: 1L, jumboChunks: 0L}, dbsToMove: ['other']}
            other {dropDatabase: 1} => {}
            ",
        )
        .await;
    until(
        &cluster,
        "admin",
        "{removeShard: 'shard1'}",
        "state",
        "\"completed\"",
    )
    .await;
    cluster
        .check(
            "
            config! config {find: 'shards'} => {cursor: {firstBatch: [{_id: 'shard0'}]}}
            admin {moveRange: 'test.h', min: {_id: MinKey}, toShard: 'shard1'} => 70
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// A range that cannot be moved does not keep the others.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_takes_is_left_for_later() {
    let cluster = Cluster::start(3).await;
    cluster.donor.behaves(Manner::RefusesLowest);
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard1'} => {}
            admin {shardCollection: 'test.h', key: {_id: 'hashed'}, numInitialChunks: 9} => {}
            config! config {count: 'chunks', query: {shard: 'shard0'}} => {n: 3}
            admin {removeShard: 'shard0'} => {state: 'started'}
            ",
        )
        .await;
    let left = "{count: 'chunks', query: {shard: 'shard0'}}";
    until(&cluster, "config! config", left, "n", "1").await;
    cluster
        .check("admin {removeShard: 'shard0'} => {state: 'ongoing', remaining: {chunks: 1L}}")
        .await;
    cluster.donor.behaves(Manner::Commits);
    until(
        &cluster,
        "admin",
        "{removeShard: 'shard0'}",
        "state",
        "\"completed\"",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zones_of_a_collection_go_with_it() {
    let cluster = Cluster::start(1).await;
    let made = "
        admin {addShardToZone: 'shard0', zone: 'north'} => {}
        admin {shardCollection: 'test.birds', key: {a: 1}} => {}
        admin {updateZoneKeyRange: 'test.birds', min: {a: 1}, max: {a: 5}, zone: 'north'} => {}
        config! config {count: 'tags'} => {n: 1}
        ";
    // Of collections that are not sharded too.
    let beside = "
        admin {updateZoneKeyRange: 'test.later', min: {a: 1}, max: {a: 5}, zone: 'north'} => {}
        admin {updateZoneKeyRange: 'test2.later', min: {a: 1}, max: {a: 5}, zone: 'north'} => {}
        test {dropDatabase: 1} => {}
        config! config {find: 'tags'} => {cursor: {firstBatch: [{ns: 'test2.later'}]}}
        test2 {dropDatabase: 1} => {}
        config! config {count: 'tags'} => {n: 0}
        ";
    for gone in ["test {drop: 'birds'}", "test {dropDatabase: 1}"] {
        cluster.check(made).await;
        cluster
            .check(&format!(
                "{gone} => {{}}\nconfig! config {{count: 'tags'}} => {{n: 0}}"
            ))
            .await;
    }
    for name in ["test", "test2"] {
        let there = format!("admin {{enableSharding: '{name}'}} => {{}}");
        cluster.check(&there).await;
    }
    cluster.check(beside).await;
}

/// A shard that is emptied gives two ranges at once, where that is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn shards_take_part_in_as_many_moves_as_they_may() {
    for (limit, at_once) in [(1, 1), (2, 2), (3, 3)] {
        let cluster = Cluster::start(3).await;
        let set = format!(
            "{{update: 'settings', updates: [{{q: {{_id: 'maxConcurrentMigrationsPerShard'}}, u: {{$set: {{value: {limit}}}}}, upsert: true}}]}}"
        );
        cluster
            .check(&format!(
                "
                config! config {set} => {{n: 1}}
                admin {{enableSharding: 'test', primaryShard: 'shard0'}} => {{}}
                admin {{shardCollection: 'test.h', key: {{_id: 'hashed'}}, numInitialChunks: 12}} => {{}}
                "
            ))
            .await;
        cluster.donor.behaves(Manner::Copies);
        cluster
            .check("admin {removeShard: 'shard1'} => {state: 'started'}")
            .await;
        cluster.donor.was_asked(at_once).await;
        // Nothing else follows while they copy.
        let count = "{count: 'terndb_operations', query: {kind: 'moveRange'}}";
        let n = at_once.to_string();
        until(&cluster, "config! config", count, "n", &n).await;
        cluster.donor.behaves(Manner::Commits);
        let left = "{count: 'chunks', query: {shard: 'shard1'}}";
        until(&cluster, "config! config", left, "n", "0").await;
    }
}
