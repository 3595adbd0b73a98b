//! Sharding, splitting, merging, refining and dropping collections.

use crate::testing::{Cluster, Wire};

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_sharded() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            # An empty collection with a hashed key is everywhere at once.
            admin {shardCollection: 'test.h', key: {_id: 'hashed'}} => {collectionsharded: 'test.h'}
            config! {_configsvrGetRouting: 'test.h'} => {sharded: true, unique: false, key: {_id: 'hashed'}, more: false, chunks: [{shard: 'shard0', lastmod: Timestamp(1, 0)}, {shard: 'shard0'}, {shard: 'shard1'}, {shard: 'shard1', lastmod: Timestamp(1, 3)}]}
            admin {shardCollection: 'test.n', key: {a: 'hashed', b: 1}, numInitialChunks: 3} => {}
            config! config {count: 'chunks'} => {n: 7}
            # Every other one begins with one chunk.
            admin {shardCollection: 'test.r', key: {a: 1, b: 1}, unique: true} => {}
            config! {_configsvrGetRouting: 'test.r'} => {unique: true, chunks: [{min: {a: MinKey, b: MinKey}, max: {a: MaxKey, b: MaxKey}, shard: 'shard0', lastmod: Timestamp(1, 0)}]}
            shard0! test {listIndexes: 'r'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'a_1_b_1', unique: true}]}}
            # The same again is no mistake.
            admin {shardCollection: 'test.r', key: {a: 1, b: 1}, unique: true} => {}
            admin {shardCollection: 'test.r', key: {a: 1}} => 23
            admin {shardCollection: 'test.r', key: {a: 1, b: 1}} => 23
            # Options.
            admin {shardCollection: 'test.x'} => 40414
            admin {shardCollection: 'test.x', key: {a: 2}} => 2
            admin {shardCollection: 'test.x', key: {a: 'hashed'}, unique: true} => 72
            admin {shardCollection: 'test.x', key: {a: 1}, numInitialChunks: 3} => 72
            admin {shardCollection: 'test.x', key: {a: 'hashed'}, numInitialChunks: 20000} => 72
            admin {shardCollection: 'test.x', key: {a: 1}, collation: {locale: 'de'}} => 2
            admin {shardCollection: 'config.x', key: {a: 1}} => 20
            admin {shardCollection: 'x', key: {a: 1}} => 73
            admin {shardCollection: 'test.$x', key: {a: 1}} => 73
            test {shardCollection: 'test.x', key: {a: 1}} => 13
            # Nothing stays behind.
            config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}
            config! config {find: 'locks'} => {cursor: {firstBatch: []}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
    cluster.elect(Wire::whole()).await;
    cluster
        .check(
            "
            config! {_configsvrGetRouting: 'test.r'} => {sharded: true}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_with_documents_are_sharded() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard1'} => {}
            shard1! test {insert: 'c', documents: [{_id: 1, a: 1}, {_id: 2, a: 2}, {_id: 3, b: [1]}]} => {n: 3}
            # An index is needed, not made.
            admin {shardCollection: 'test.c', key: {a: 1}} => 72
            shard1! test {createIndexes: 'c', indexes: [{key: {a: 1, x: 1}, name: 'ax'}, {key: {b: 1}, name: 'b'}]} => {}
            # Arrays have no place in the order of keys.
            admin {shardCollection: 'test.c', key: {b: 1}} => 96
            admin {shardCollection: 'test.c', key: {a: 'hashed'}} => 72
            # One index that does not begin with the key and is unique.
            shard1! test {createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true, sparse: true}]} => {}
            admin {shardCollection: 'test.c', key: {a: 1}} => 72
            shard1! test {dropIndexes: 'c', index: 'u'} => {}
            admin {shardCollection: 'test.c', key: {a: 1}} => {collectionsharded: 'test.c'}
            config! {_configsvrGetRouting: 'test.c'} => {chunks: [{shard: 'shard1'}]}
            shard1! test {count: 'c'} => {n: 3}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_split_and_merged() {
    let cluster = Cluster::start(1).await;
    cluster
        .check(
            "
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {split: 'test.c', middle: {a: 10}} => {}
            admin {split: 'test.c', middle: {a: 20.0}} => {}
            config! {_configsvrGetRouting: 'test.c'} => {chunks: [{min: {a: MinKey}, max: {a: 10}, lastmod: Timestamp(2, 1)}, {min: {a: 10}, max: {a: 20}, lastmod: Timestamp(3, 1)}, {min: {a: 20}, max: {a: MaxKey}, lastmod: Timestamp(3, 2)}]}
            # What is stored has the types that were given.
            config! config {find: 'chunks', sort: {min: 1}, projection: {_id: 0, min: 1, max: 1}} => {cursor: {firstBatch: [{min: {a: MinKey}, max: {a: 10}}, {min: {a: 10}, max: {a: 20.0}}, {min: {a: 20.0}, max: {a: MaxKey}}]}}
            admin {split: 'test.c', middle: {a: 10}} => 72
            admin {split: 'test.c', middle: {b: 10}} => 2
            admin {split: 'test.c'} => 72
            # No shard key is an array, undefined or a pattern.
            admin {split: 'test.c', middle: {a: [1]}} => 2
            admin {split: 'test.c', middle: {a: /x/}} => 2
            admin {split: 'test.c', middle: {a: undefined}} => 2
            admin {split: 'test.c', bounds: [{a: [1]}, {a: 20}]} => 2
            admin {mergeChunks: 'test.c', bounds: [{a: 10}, {a: [20]}]} => 2
            admin {split: 'test.c', middle: {a: 1}, find: {a: 1}} => 72
            admin {split: 'test.c', find: {b: 1}} => 72
            admin {split: 'test.none', middle: {a: 1}} => 118
            # Too few keys, then enough of them.
            admin {split: 'test.c', find: {a: 12}} => 87
            shard0! test {insert: 'c', documents: [{a: 11}, {a: 12}, {a: 13}, {a: 14}, {a: 30}]} => {n: 5}
            admin {split: 'test.c', find: {a: 12}} => {}
            admin {split: 'test.c', bounds: [{a: 13}, {a: 20}]} => {}
            admin {split: 'test.c', bounds: [{a: 13}, {a: 21}]} => 72
            config! config {count: 'chunks'} => {n: 5}
            admin {mergeChunks: 'test.c', bounds: [{a: 10}, {a: 20}]} => {}
            config! config {count: 'chunks'} => {n: 3}
            admin {mergeChunks: 'test.c', bounds: [{a: 10}, {a: 20}]} => 96
            admin {mergeChunks: 'test.c', bounds: [{a: 10}, {a: 15}]} => 96
            admin {mergeChunks: 'test.c', bounds: [{a: MinKey}, {a: MaxKey}]} => {}
            config! {_configsvrGetRouting: 'test.c'} => {chunks: [{min: {a: MinKey}, max: {a: MaxKey}}]}
            shard0! test {count: 'c'} => {n: 5}
            # Hashes are halved.
            admin {shardCollection: 'test.h', key: {k: 'hashed'}, numInitialChunks: 1} => {}
            admin {split: 'test.h', find: {k: 1}} => {}
            config! {_configsvrGetRouting: 'test.h'} => {chunks: [{max: {k: 0L}}, {min: {k: 0L}}]}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_refined_and_indexes_follow() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {split: 'test.c', middle: {a: 10}} => {}
            admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}} => 72
            admin {refineCollectionShardKey: 'test.c', key: {b: 1}} => 72
            admin {refineCollectionShardKey: 'test.c', key: 1} => 14
            admin {refineCollectionShardKey: 'test.c'} => 40414
            admin {refineCollectionShardKey: 'test.none', key: {b: 1}} => 118
            test {createIndexes: 'c', indexes: [{key: {a: 1, b: 1}, name: 'ab'}]} => {numIndexesAfter: 3, raw: {}}
            test {createIndexes: 'c', indexes: [{key: {z: 1}, name: 'z', unique: true}]} => 67
            # A concern that no shard can meet does not hold up what comes behind it.
            test {createIndexes: 'c', indexes: [{key: {q: 1}, name: 'q'}], writeConcern: {w: 2}} => {numIndexesAfter: 4}
            admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}} => {}
            admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}} => {}
            config! {_configsvrGetRouting: 'test.c'} => {key: {a: 1, b: 1}, chunks: [{min: {a: MinKey, b: MinKey}, max: {a: 10, b: MinKey}, lastmod: Timestamp(2, 1)}, {max: {a: MaxKey, b: MaxKey}}]}
            # The last index on the key stays.
            test {dropIndexes: 'c', index: 'ab'} => 72
            test {dropIndexes: 'c', index: '*'} => {}
            shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'ab'}]}}
            config! config {find: 'collections'} => {cursor: {firstBatch: [{catalogVersion: 6L}]}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_and_databases_are_dropped() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            test {drop: 'none'} => 26
            admin {shardCollection: 'test.h', key: {_id: 'hashed'}} => {}
            admin {shardCollection: 'test.r', key: {a: 1}} => {}
            shard0! test {insert: 'plain', documents: [{_id: 1}]} => {n: 1}
            test {drop: 'r'} => {nIndexesWas: 2, ns: 'test.r'}
            test {drop: 'plain'} => {nIndexesWas: 1, ns: 'test.plain'}
            test {drop: 'plain'} => 26
            config! {_configsvrGetRouting: 'test.r'} => {sharded: false}
            config! config {find: 'collections', projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 'test.h'}]}}
            # Sharded anew under another key.
            admin {shardCollection: 'test.r', key: {b: 1}} => {}
            test {dropDatabase: 1} => {ok: 1.0}
            test {dropDatabase: 1} => {}
            config {dropDatabase: 1} => 20
            config! config {find: 'collections'} => {cursor: {firstBatch: []}}
            config! config {find: 'chunks'} => {cursor: {firstBatch: []}}
            config! config {find: 'databases'} => {cursor: {firstBatch: []}}
            shard0! test {listCollections: 1} => {cursor: {firstBatch: []}}
            shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
            # And made again.
            admin {shardCollection: 'test.r', key: {b: 1}} => {}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_settled_once() {
    let cluster = Cluster::start(1).await;
    let settle = "config! {_configsvrSettle: 1, operation: UUID('00112233-4455-6677-8899-aabbccddeeff')} => {outcome: 'aborted'}";
    cluster.check(settle).await;
    cluster.elect(Wire::whole()).await;
    cluster.check(settle).await;
    cluster
        .check("config! config {count: 'terndb_operations', query: {kind: 'outcome'}} => {n: 1}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsharded_collections_are_renamed() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {enableSharding: 'other', primaryShard: 'shard1'} => {}
            shard0! test {insert: 'a', documents: [{_id: 1}]} => {n: 1}
            admin {addShardToZone: 'shard0', zone: 'north'} => {}
            admin {updateZoneKeyRange: 'test.a', min: {a: 0}, max: {a: 5}, zone: 'north'} => {}
            admin {updateZoneKeyRange: 'test.b', min: {a: 3}, max: {a: 9}, zone: 'north'} => {}
            admin {renameCollection: 'test.a', to: 'test.b'} => {}
            shard0! test {count: 'b'} => {n: 1}
            # Zones go with the name, and replace those that it had.
            config! config {find: 'tags'} => {cursor: {firstBatch: [{_id: {ns: 'test.b', min: {a: 0}}, ns: 'test.b', max: {a: 5}, tag: 'north'}]}}
            admin {renameCollection: 'test.b', to: 'other.b'} => 125
            # What is refused leaves no database behind; a new one is where the collection is.
            admin {renameCollection: 'test.none', to: 'fresh.b'} => 26
            admin {renameCollection: 'missing.b', to: 'fresh.b'} => 26
            config! config {count: 'databases', query: {_id: {$in: ['fresh', 'missing']}}} => {n: 0}
            shard1! other {insert: 'c', documents: [{_id: 1}]} => {n: 1}
            admin {renameCollection: 'other.c', to: 'fresh.c'} => {}
            config! config {find: 'databases', filter: {_id: 'fresh'}} => {cursor: {firstBatch: [{primary: 'shard1'}]}}
            shard1! fresh {count: 'c'} => {n: 1}
            # Also where what is replaced is sharded.
            admin {shardCollection: 'test.s', key: {a: 1}} => {}
            admin {renameCollection: 'test.s', to: 'nowhere.s'} => 125
            config! config {count: 'databases', query: {_id: 'nowhere'}} => {n: 0}
            admin {updateZoneKeyRange: 'test.s', min: {a: 0}, max: {a: 7}, zone: 'north'} => {}
            admin {renameCollection: 'test.b', to: 'test.s', dropTarget: true} => {}
            shard0! test {count: 's'} => {n: 1}
            config! config {find: 'tags'} => {cursor: {firstBatch: [{_id: {ns: 'test.s', min: {a: 0}}, ns: 'test.s', max: {a: 5}, tag: 'north'}]}}
            config! config {count: 'collections'} => {n: 0}
            ",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sharded_collections_are_renamed() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
            admin {enableSharding: 'other', primaryShard: 'shard0'} => {}
            admin {shardCollection: 'test.s', key: {a: 1}} => {}
            admin {split: 'test.s', middle: {a: 5}} => {}
            admin {addShardToZone: 'shard0', zone: 'north'} => {}
            admin {updateZoneKeyRange: 'test.s', min: {a: 0}, max: {a: 5}, zone: 'north'} => {}
            shard0! test {insert: 's', documents: [{_id: 1, a: 3}]} => {n: 1}
            admin {renameCollection: 'test.s', to: 'test.s'} => 20
            admin {renameCollection: 'test.s', to: 'test.$x'} => 20
            admin {renameCollection: 'test.s', to: 'other.s'} => 125
            admin {renameCollection: 'test.none', to: 'test.s', dropTarget: true} => 26
            admin {renameCollection: 'test.s', to: 'test.t'} => {}
            config! config {find: 'collections', projection: {_id: 1, key: 1}} => {cursor: {firstBatch: [{_id: 'test.t', key: {a: 1}}]}}
            config! {_configsvrGetRouting: 'test.t'} => {sharded: true, chunks: [{max: {a: 5}}, {min: {a: 5}}]}
            config! config {find: 'tags'} => {cursor: {firstBatch: [{_id: {ns: 'test.t', min: {a: 0}}, ns: 'test.t', tag: 'north'}]}}
            shard0! test {find: 't'} => {cursor: {firstBatch: [{_id: 1, a: 3}]}}
            shard0! test {find: 's'} => {cursor: {firstBatch: []}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            # Onto a collection that is there.
            admin {shardCollection: 'test.u', key: {_id: 'hashed'}} => {}
            admin {renameCollection: 'test.t', to: 'test.u'} => 48
            admin {renameCollection: 'test.t', to: 'test.u', dropTarget: true} => {}
            config! config {count: 'chunks'} => {n: 2}
            shard0! test {find: 'u'} => {cursor: {firstBatch: [{_id: 1, a: 3}]}}
            shard1! test {listCollections: 1} => {cursor: {firstBatch: []}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// A document with two arrays keeps its shard from building the index; the other one has built it by then.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_one_shard_refuses_is_on_none() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {shardCollection: 'test.c', key: {_id: 'hashed'}} => {}
            shard1! test {insert: 'c', ordered: false, documents: [{_id: 1, x: [1], y: [1]}, {_id: 2, x: [1], y: [1]}, {_id: 3, x: [1], y: [1]}, {_id: 4, x: [1], y: [1]}, {_id: 5, x: [1], y: [1]}, {_id: 6, x: [1], y: [1]}]} => {}
            test {createIndexes: 'c', indexes: [{key: {z: 1}, name: 'z'}]} => {}
            test {createIndexes: 'c', indexes: [{key: {z: 1}, name: 'z'}, {key: {x: 1, y: 1}, name: 'xy'}]} => 171
            shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'z'}]}}
            shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {}, {name: 'z'}]}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// ⚑ Until its shard has agreed, clients use the collection as one that is not sharded.
#[tokio::test(flavor = "multi_thread")]
async fn sharding_is_overtaken_by_clients() {
    const CREATED: &str = "_terndbCreateSharded";
    let cluster = Cluster::start(2).await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    let index = "{createIndexes: 'c', indexes: [{key: {b: 1}, name: 'b'}]}";
    let hashed = "{shardCollection: 'test.c', key: {_id: 'hashed'}}";
    let by_id = "{shardCollection: 'test.c', key: {_id: 1}}";
    let ranged = "{shardCollection: 'test.c', key: {a: 1}}";
    let one_chunk = "config! {_configsvrGetRouting: 'test.c'} => {chunks: [{shard: 'shard0'}]}
        shard0! test {count: 'c'} => {n: 1}";
    let four_chunks = "config! config {count: 'chunks'} => {n: 4}";
    let everywhere = "config! config {count: 'chunks'} => {n: 4}
        shard0! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {name: 'b'}, {}]}}
        shard1! test {listIndexes: 'c'} => {cursor: {firstBatch: [{}, {name: 'b'}, {}]}}";
    let insert = "{insert: 'c', documents: [{_id: 1, a: 1}]}";
    let empty = "test {create: 'c'} => {}";
    let filled = "test {insert: 'c', documents: [{_id: 1, a: 1}]} => {}
        test {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a'}]} => {}";
    let unsharded = "config! {_configsvrGetRouting: 'test.c'} => {sharded: false}";
    #[rustfmt::skip]
    let rows = [
        ("a collection is made by a write", "", insert, by_id, "{}", one_chunk),
        ("and lacks the index", "", insert, hashed, "72", unsharded),
        ("a collection is made", "", "{create: 'c'}", hashed, "{}", four_chunks),
        ("a collection is made with an index", "", index, hashed, "{}", everywhere),
        ("it gets its first document", empty, insert, hashed, "{}", one_chunk),
        ("the document has an array for a key", empty, "{insert: 'c', documents: [{a: [1]}]}", ranged, "96", unsharded),
        ("a filled one gets an array for a key", filled, "{insert: 'c', documents: [{_id: 2, a: [1]}]}", ranged, "96", unsharded),
        ("and one inside a path of the key", "test {insert: 'c', documents: [{a: {b: 1}}]} => {}\ntest {createIndexes: 'c', indexes: [{key: {'a.b': 1, c: 1}, name: 'abc'}]} => {}", "{insert: 'c', documents: [{a: [{b: 1}]}]}", "{shardCollection: 'test.c', key: {'a.b': 1}}", "96", unsharded),
        ("or only beside the key", &filled.replace("{a: 1}, name", "{a: 1, b: 1}, name"), "{insert: 'c', documents: [{_id: 2, a: 2, b: [1]}]}", ranged, "{}", "config! {_configsvrGetRouting: 'test.c'} => {sharded: true}"),
        ("it gets another index", empty, index, hashed, "{}", &everywhere.replace("[{}, {name: 'b'}, {}]", "[{}, {}, {name: 'b'}]")),
        ("it gets an index that no key keeps unique", empty, "{createIndexes: 'c', indexes: [{key: {u: 1}, name: 'u', unique: true}]}", hashed, "72", unsharded),
    ];
    for (what, before, overtaking, operation, expected, after) in rows {
        cluster
            .check(
                "test {dropDatabase: 1} => {}
                admin {enableSharding: 'test', primaryShard: 'shard0'} => {}",
            )
            .await;
        if !before.is_empty() {
            cluster
                .check(&before.replace("test {", "shard0! test {"))
                .await;
        }
        wire.overtake("shard0", CREATED, "test", overtaking);
        cluster
            .check(&format!("admin {operation} => {expected}"))
            .await;
        assert!(wire.has_overtaken(), "{what}");
        cluster.check(after).await;
        cluster
            .check(
                "admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
                config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}",
            )
            .await;
    }
}

/// ⚑ A document without a place among the new keys could be neither found nor moved.
#[tokio::test(flavor = "multi_thread")]
async fn no_array_comes_between_a_refined_key_and_its_owners() {
    let cluster = Cluster::start(2).await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    let array = "{insert: 'c', documents: [{_id: 7, a: 7, b: [1]}]}";
    let refine = "admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}}";
    let clean = "admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
        config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}";
    #[rustfmt::skip]
    let rows = [
        ("it came before", "", "", "96", "shard0! test {find: 'c', filter: {_id: 7}} => {cursor: {firstBatch: [{_id: 7, a: 7, b: [1]}]}}"),
        ("it came just in time", "_terndbSetNextKey", array, "96", "shard0! test {insert: 'c', documents: [{_id: 8, a: 8, b: [1]}]} => {n: 1}"),
        ("it comes between", "_terndbSetPlacement", array, "{}", "shard0! test {find: 'c', filter: {_id: 7}} => {cursor: {firstBatch: []}}"),
    ];
    for (what, message, overtaking, expected, after) in rows {
        cluster
            .check(
                "test {dropDatabase: 1} => {}
                admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
                admin {shardCollection: 'test.c', key: {a: 1}} => {}
                test {createIndexes: 'c', indexes: [{key: {a: 1, b: 1}, name: 'ab'}]} => {}
                shard0! test {insert: 'c', documents: [{_id: 1, a: 1, b: 1}]} => {n: 1}",
            )
            .await;
        match message {
            "" => {
                cluster
                    .check(&format!("shard0! test {array} => {{n: 1}}"))
                    .await
            }
            "_terndbSetPlacement" => wire.overtake_in_vain("shard0", message, "test", overtaking),
            message => wire.overtake("shard0", message, "test", overtaking),
        }
        cluster.check(&format!("{refine} => {expected}")).await;
        assert!(wire.has_overtaken(), "{what}");
        cluster.check(after).await;
        cluster.check(clean).await;
    }
}

/// ⚑ A client that does not know of the rename may create the target before the name is kept free.
#[tokio::test(flavor = "multi_thread")]
async fn a_rename_replaces_nothing_that_it_has_not_seen() {
    let cluster = Cluster::start(2).await;
    let wire = Wire::whole();
    cluster.elect(wire.clone()).await;
    let insert = "{insert: 'd', documents: [{_id: 7}]}";
    #[rustfmt::skip]
    let rows = [
        ("just in time", "_terndbCreateSharded", "48", "shard0! test {find: 'd'} => {cursor: {firstBatch: [{_id: 7}]}}
            config! {_configsvrGetRouting: 'test.c'} => {sharded: true}"),
        ("too late", "_terndbRename", "{}", "shard0! test {find: 'd'} => {cursor: {firstBatch: [{_id: 1, a: 1}]}}
            config! {_configsvrGetRouting: 'test.d'} => {sharded: true}
            shard0! test {listCollections: 1, nameOnly: true} => {cursor: {firstBatch: [{name: 'd'}]}}"),
    ];
    for (what, message, expected, after) in rows {
        cluster
            .check(
                "test {dropDatabase: 1} => {}
                admin {enableSharding: 'test', primaryShard: 'shard0'} => {}
                admin {shardCollection: 'test.c', key: {a: 1}} => {}
                shard0! test {insert: 'c', documents: [{_id: 1, a: 1}]} => {n: 1}",
            )
            .await;
        match what {
            "too late" => wire.overtake_in_vain("shard0", message, "test", insert),
            _ => wire.overtake("shard0", message, "test", insert),
        }
        let rename = "admin {renameCollection: 'test.c', to: 'test.d'}";
        cluster.check(&format!("{rename} => {expected}")).await;
        assert!(wire.has_overtaken(), "{what}");
        cluster.check(after).await;
        cluster
            .check(
                "admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
                config! config {find: 'terndb_operations'} => {cursor: {firstBatch: []}}",
            )
            .await;
    }
}

/// `sh.disableBalancing()` writes a collection's document beside the config server.
#[tokio::test(flavor = "multi_thread")]
async fn what_clients_write_into_the_config_database_counts() {
    let cluster = Cluster::start(1).await;
    cluster
        .check(
            "
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            config! config {update: 'collections', updates: [{q: {_id: 'test.c'}, u: {$set: {noBalance: true}}}]} => {nModified: 1}
            admin {setAllowMigrations: 'test.c', allowMigrations: false} => {}
            config! config {update: 'collections', updates: [{q: {_id: 'test.c'}, u: {$set: {noBalance: false}}}]} => {nModified: 1}
            admin {split: 'test.c', middle: {a: 5}} => {}
            config! config {update: 'collections', updates: [{q: {_id: 'test.c'}, u: {$set: {noBalance: true}}}]} => {nModified: 1}
            test {createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}]} => {}
            config! config {find: 'collections'} => {cursor: {firstBatch: [{_id: 'test.c', noBalance: true, permitMigrations: false}]}}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}

/// A bound that only a decimal can be is a bound like others.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_begin_at_decimals() {
    let cluster = Cluster::start(1).await;
    cluster
        .check(
            "
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {split: 'test.c', middle: {a: DECIMAL}} => {}
            config! {_configsvrGetRouting: 'test.c'} => {chunks: [{max: {a: DECIMAL}}, {min: {a: DECIMAL}}]}
            admin {addShardToZone: 'shard0', zone: 'z'} => {}
            admin {updateZoneKeyRange: 'test.z', min: {a: DECIMAL}, max: {a: MaxKey}, zone: 'z'} => {}
            admin {shardCollection: 'test.z', key: {a: 1}} => {}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            "
            .replace("DECIMAL", "19.99m")
            .as_str(),
        )
        .await;
}

/// Zones have the fields of the key, whatever becomes of it.
#[tokio::test(flavor = "multi_thread")]
async fn zones_follow_the_key() {
    let cluster = Cluster::start(2).await;
    cluster
        .check(
            "
            admin {addShardToZone: 'shard0', zone: 'low'} => {}
            admin {addShardToZone: 'shard1', zone: 'high'} => {}
            admin {shardCollection: 'test.c', key: {a: 1}} => {}
            admin {updateZoneKeyRange: 'test.c', min: {a: MinKey}, max: {a: 10}, zone: 'low'} => {}
            admin {updateZoneKeyRange: 'test.c', min: {a: 10}, max: {a: MaxKey}, zone: 'high'} => {}
            test {createIndexes: 'c', indexes: [{key: {a: 1, b: 1}, name: 'ab'}]} => {}
            admin {refineCollectionShardKey: 'test.c', key: {a: 1, b: 1}} => {}
            config! config {find: 'tags', sort: {min: 1}} => {cursor: {firstBatch: [{_id: {ns: 'test.c', min: {a: MinKey, b: MinKey}}, min: {a: MinKey, b: MinKey}, max: {a: 10, b: MinKey}, tag: 'low'}, {_id: {min: {a: 10, b: MinKey}}, max: {a: MaxKey, b: MaxKey}, tag: 'high'}]}}
            # Of a collection that is sharded only now they must have them.
            admin {updateZoneKeyRange: 'test.d', min: {a: 1}, max: {a: 5}, zone: 'low'} => {}
            admin {shardCollection: 'test.d', key: {x: 1}} => 72
            admin {shardCollection: 'test.d', key: {a: 1, b: 1}} => 72
            admin {shardCollection: 'test.d', key: {a: 1}} => {}
            admin {checkMetadataConsistency: 1} => {cursor: {firstBatch: []}}
            ",
        )
        .await;
}
