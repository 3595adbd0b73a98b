//! A shard of a cluster: what it is told, what it checks, what it shows.

use crate::sharding::{KnownDatabase, MovingDatabase};
use crate::testing::TestShard;
use differential::notation::print;
use differential::value::get;

pub(super) const UUID: &str = "UUID(\"00000000-0000-4000-8000-000000000001\")";
const EPOCH: &str = "ObjectId(\"00000000000000000000000a\")";

/// `{e, t, v}` of the incarnation that began at second 5.
pub(super) fn version(major: u32, minor: u32) -> String {
    format!("{{e: {EPOCH}, t: Timestamp(5, 0), v: Timestamp({major}, {minor})}}")
}

pub(super) fn placed(
    command: &str,
    shard: (u32, u32),
    collection: (u32, u32),
    owned: &str,
) -> String {
    format!(
        "{{{command}: 1, ns: 'test.c', uuid: {UUID}, key: {{x: 1}}, placement: {}, collectionVersion: {}, owned: [{owned}]}}",
        version(shard.0, shard.1),
        version(collection.0, collection.1),
    )
}

pub(super) const WHOLE: &str = "{min: {x: MinKey}, max: {x: MaxKey}}";
pub(super) const LOW: &str = "{min: {x: MinKey}, max: {x: 10}}";
pub(super) const HIGH: &str = "{min: {x: 10}, max: {x: MaxKey}}";

pub(super) async fn member_of_cluster() -> TestShard {
    let shard = TestShard::open().await;
    shard
        .check(
            "admin {_terndbBecomeShard: 1, shard: 'shard0', clusterId: ObjectId(\"0000000000000000000000ff\")} => {}
             admin {_terndbSetDatabase: 1, db: 'test', version: {uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp(3, 0), lastMod: 1}, primary: true} => {}",
        )
        .await;
    shard
}

pub(super) async fn sharded(owned: &str) -> TestShard {
    let shard = member_of_cluster().await;
    let create = placed("_terndbCreateSharded", (1, 0), (1, 2), owned).replace(
        "key: {x: 1}",
        "key: {x: 1}, indexes: [{key: {x: 1}, name: 'x_1'}]",
    );
    shard.check(&format!("admin {create} => {{}}")).await;
    shard
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_is_taken_once() {
    let shard = member_of_cluster().await;
    shard
        .check(
            "admin {_terndbBecomeShard: 1, shard: 'shard0', clusterId: ObjectId(\"0000000000000000000000ff\")} => {}
             admin {_terndbBecomeShard: 1, shard: 'shard1', clusterId: ObjectId(\"0000000000000000000000ff\")} => 23
             admin {_terndbBecomeShard: 1, shard: 'shard0', clusterId: ObjectId(\"0000000000000000000000fe\")} => 23
             admin {_terndbBecomeShard: 1, shard: 'shard0'} => 40414
             admin {shardingState: 1} => {enabled: true, shardName: 'shard0', clusterId: ObjectId(\"0000000000000000000000ff\")}",
        )
        .await;
    let shard = shard.reopen().await;
    shard
        .check("admin {shardingState: 1} => {enabled: true, shardName: 'shard0'}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_version_must_be_the_known_one() {
    let shard = member_of_cluster().await;
    let version = |began: u32, last: u32| {
        format!(
            "{{uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp({began}, 0), lastMod: {last}}}"
        )
    };
    let (first, second) = (version(3, 1), version(3, 2));
    shard
        .check(&format!(
            "admin {{getDatabaseVersion: 'test'}} => {{dbVersion: {first}}}
             admin {{getDatabaseVersion: 'none'}} => {{dbVersion: {{}}}}
             {{insert: 'u', documents: [{{_id: 1}}], databaseVersion: {first}}} => {{n: 1}}
             {{insert: 'u', documents: [{{_id: 2}}, {{_id: 3}}], databaseVersion: {second}}} => {{n: 0, writeErrors: [{{index: 0, code: 249, errInfo: {{db: 'test', vReceived: {second}, vWanted: {first}}}}}]}}
             {{insert: 'u', documents: [{{_id: 2}}, {{_id: 3}}], ordered: false, databaseVersion: {second}}} => {{n: 0, writeErrors: [{{index: 0, code: 249}}, {{index: 1, code: 249}}]}}
             {{find: 'u', databaseVersion: {second}}} => {{ok: 0.0, code: 249, codeName: 'StaleDbVersion', db: 'test', vReceived: {second}, vWanted: {first}}}
             {{find: 'u', databaseVersion: {first}}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             other {{find: 'u', databaseVersion: {first}}} => {{ok: 0.0, code: 249, db: 'other', vReceived: {first}}}
             # Config and admin never move.
             admin {{count: 'u', databaseVersion: {{uuid: UUID(\"00000000-0000-0000-0000-000000000000\"), timestamp: Timestamp(0, 0), lastMod: 0}}}} => {{n: 0}}
             # Old news, repeated late, changes nothing.
             admin {{_terndbSetDatabase: 1, db: 'test', version: {second}, primary: false}} => {{}}
             admin {{_terndbSetDatabase: 1, db: 'test', version: {first}, primary: true}} => {{}}
             admin {{_terndbSetDatabase: 1, db: 'test', version: {second}, primary: true}} => {{}}
             {{find: 'u', databaseVersion: {second}}} => 249
             # Without a version: what is not here cannot be created here.
             {{insert: 'v', documents: [{{_id: 1}}]}} => 249
             {{create: 'v'}} => 249
             elsewhere {{insert: 'v', documents: [{{_id: 1}}]}} => 249
             elsewhere {{createIndexes: 'v', indexes: [{{key: {{a: 1}}, name: 'a'}}]}} => 249
             {{find: 'u', databaseVersion: 1}} => 14"
        ))
        .await;
}

/// ⚑ What is left of a collection whose database has moved away is not changed any more: also by those who
/// were let in before and had to wait for others.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_others_finds_its_database_gone() {
    let version = |last: u32| {
        format!(
            "{{uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp(3, 0), lastMod: {last}}}"
        )
    };
    let first = version(1);
    for (database, command) in [
        ("test", "drop: 'u'"),
        ("test", "create: 'u'"),
        ("test", "dropIndexes: 'u', index: 'a'"),
        ("test", "dropIndexes: 'none', index: 'a'"),
        (
            "test",
            "createIndexes: 'u', indexes: [{key: {b: 1}, name: 'b'}]",
        ),
        (
            "test",
            "collMod: 'u', index: {name: 'a', expireAfterSeconds: 10}",
        ),
        ("admin", "renameCollection: 'test.u', to: 'test.v'"),
    ] {
        let shard = member_of_cluster().await;
        shard
            .check("{createIndexes: 'u', indexes: [{key: {a: 1}, name: 'a', expireAfterSeconds: 5}]} => {}")
            .await;
        let held = shard.shard.ddl.lock().await;
        let moved = format!(
            "admin {{_terndbSetDatabase: 1, db: 'test', version: {}, primary: false}} => {{}}",
            version(2)
        );
        let routed = match database {
            "admin" => format!("admin {{{command}}} => 249"),
            _ => format!("{{{command}, databaseVersion: {first}}} => 249"),
        };
        // They get the lock in this order.
        tokio::join!(shard.check(&moved), shard.check(&routed), async {
            drop(held)
        });
        shard
            .check("{listIndexes: 'u'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'a', expireAfterSeconds: 5}]}}")
            .await;
    }
}

/// ⚑ While it is being decided whether a database stays, its collections are not changed; who wants to does
/// not wait longer than it may.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_database_that_is_closed_end_in_time() {
    let shard = member_of_cluster().await;
    let known = shard.shard.sharding.database("test").expect("it is known");
    let version = known.version.moved();
    shard
        .check(
            "{createIndexes: 'u', indexes: [{key: {a: 1}, name: 'a'}]} => {}
             {insert: 'u', documents: [{_id: 1}]} => {n: 1}",
        )
        .await;
    let closed = KnownDatabase {
        version,
        primary: true,
        moving: Some(MovingDatabase {
            operation: model::ids::Uuid([7; 16]),
            reads: false,
        }),
    };
    let put = shard.shard.set_database("test", closed).await;
    put.expect("it is put");
    let open = KnownDatabase {
        version,
        primary: true,
        moving: None,
    };
    let put = shard.shard.set_database("other", open).await;
    put.expect("it is put");
    shard
        .check(
            "{create: 'v', maxTimeMS: 5} => 50
             {drop: 'u', maxTimeMS: 5} => 50
             {dropIndexes: 'u', index: 'a', maxTimeMS: 5} => 50
             {createIndexes: 'u', indexes: [{key: {b: 1}, name: 'b'}], maxTimeMS: 5} => 50
             {collMod: 'u', index: {name: 'a', hidden: true}, maxTimeMS: 5} => 50
             {insert: 'v', documents: [{_id: 1}], maxTimeMS: 5} => 50
             {aggregate: 'u', pipeline: [{$out: 'w'}], cursor: {}, maxTimeMS: 5} => 50
             admin {renameCollection: 'test.u', to: 'test.v', maxTimeMS: 5} => 50
             # Also where the other end is closed.
             other {insert: 'o', documents: [{_id: 1}]} => {n: 1}
             admin {renameCollection: 'other.o', to: 'test.o', maxTimeMS: 5} => 50
             {listIndexes: 'u'} => {cursor: {firstBatch: [{name: '_id_'}, {name: 'a'}]}}
             {listCollections: 1} => {cursor: {firstBatch: [{name: 'u'}]}}",
        )
        .await;
}

/// ⚑ A collection does not get a name where nobody would look for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_a_database_that_lives_elsewhere_is_refused() {
    let shard = member_of_cluster().await;
    shard
        .check(
            "{insert: 'u', documents: [{_id: 1}]} => {n: 1}
             admin {renameCollection: 'test.u', to: 'elsewhere.u'} => 249
             admin {_terndbSetDatabase: 1, db: 'elsewhere', version: {uuid: UUID(\"00000000-0000-4000-8000-0000000000dc\"), timestamp: Timestamp(3, 0), lastMod: 2}, primary: false} => {}
             admin {renameCollection: 'test.u', to: 'elsewhere.u'} => 249
             {count: 'u'} => {n: 1}
             admin {_terndbSetDatabase: 1, db: 'here', version: {uuid: UUID(\"00000000-0000-4000-8000-0000000000dd\"), timestamp: Timestamp(3, 0), lastMod: 1}, primary: true} => {}
             admin {renameCollection: 'test.u', to: 'here.u'} => {}",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_version_must_agree() {
    let shard = sharded(WHOLE).await;
    let (known, minor, older, newer) = (version(1, 0), version(1, 7), version(0, 1), version(2, 0));
    let other =
        "{e: ObjectId(\"00000000000000000000000b\"), t: Timestamp(6, 0), v: Timestamp(1, 0)}";
    let unsharded =
        "{e: ObjectId(\"000000000000000000000000\"), t: Timestamp(0, 0), v: Timestamp(0, 0)}";
    let ignored = "{e: ObjectId(\"ffffffffffffffffffffffff\"), t: Timestamp(4294967295, 4294967295), v: Timestamp(0, 0)}";
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1}}], shardVersion: {known}}} => {{n: 1}}
             {{find: 'c', shardVersion: {minor}}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             {{find: 'c', shardVersion: {ignored}}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             {{find: 'c'}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             {{find: 'c', shardVersion: {older}}} => {{ok: 0.0, code: 13388, codeName: 'StaleConfig', ns: 'test.c', vReceived: {older}, vWanted: {known}, shardId: 'shard0'}}
             {{find: 'c', shardVersion: {newer}}} => 13388
             {{find: 'c', shardVersion: {other}}} => 13388
             {{find: 'c', shardVersion: {unsharded}}} => 13388
             {{aggregate: 'c', pipeline: [], cursor: {{}}, shardVersion: {older}}} => 13388
             {{count: 'c', shardVersion: {older}}} => 13388
             {{distinct: 'c', key: 'x', shardVersion: {older}}} => 13388
             {{explain: {{find: 'c'}}, shardVersion: {older}}} => 13388
             {{findAndModify: 'c', query: {{x: 1}}, remove: true, shardVersion: {older}}} => 13388
             {{delete: 'c', deletes: [{{q: {{}}, limit: 0}}], shardVersion: {older}}} => {{n: 0, writeErrors: [{{index: 0, code: 13388, errInfo: {{ns: 'test.c', vReceived: {older}, vWanted: {known}, shardId: 'shard0'}}}}]}}
             {{update: 'c', updates: [{{q: {{}}, u: {{$set: {{y: 1}}}}}}, {{q: {{}}, u: {{$set: {{y: 1}}}}}}], ordered: false, shardVersion: {older}}} => {{n: 0, nModified: 0, writeErrors: [{{index: 0, code: 13388}}, {{index: 1, code: 13388}}]}}
             {{count: 'c', query: {{y: 1}}}} => {{n: 0}}
             # Nothing is known: no vWanted.
             {{find: 'd', shardVersion: {known}}} => {{ok: 0.0, code: 13388, ns: 'test.d', vReceived: {known}}}
             {{find: 'd', shardVersion: {unsharded}}} => {{cursor: {{firstBatch: []}}}}
             {{find: 'c', shardVersion: 1}} => 14
             {{find: 'c', shardVersion: {{}}}} => 40414
             admin {{getShardVersion: 'test.c'}} => {{inShardedMode: true, global: Timestamp(1, 0)}}
             admin {{getShardVersion: 'test.d'}} => {{global: 'UNSHARDED'}}"
        ))
        .await;
    let alone = TestShard::open().await;
    alone
        .check(&format!(
            "{{find: 'c', shardVersion: {known}}} => 203
             {{find: 'c', shardVersion: {unsharded}}} => {{}}
             admin {{shardingState: 1}} => {{enabled: false}}
             admin {{getDatabaseVersion: 'test'}} => 20
             admin {} => 203",
            placed("_terndbCreateSharded", (1, 0), (1, 2), WHOLE)
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placements_grow_newer_only() {
    let shard = sharded(WHOLE).await;
    let set = |shard, collection, owned| placed("_terndbSetPlacement", shard, collection, owned);
    shard
        .check(&format!(
            "admin {} => {{}}
             admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{global: Timestamp(1, 5), metadata: {{collVersion: Timestamp(1, 6), ranges: 1, mayHoldOrphans: false}}}}
             # Repeated, and late.
             admin {} => {{}}
             admin {} => {{}}
             admin {{getShardVersion: 'test.c'}} => {{global: Timestamp(1, 5)}}
             admin {} => {{}}
             admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{global: Timestamp(2, 1), metadata: {{ranges: 1, mayHoldOrphans: true}}}}
             admin {{_terndbSetPlacement: 1, ns: 'test.c', uuid: UUID(\"00000000-0000-4000-8000-000000000002\"), key: {{x: 1}}, placement: {v}, collectionVersion: {v}, owned: []}} => 207
             admin {{_terndbSetPlacement: 1, ns: 'test.none', uuid: {UUID}, key: {{x: 1}}, placement: {v}, collectionVersion: {v}, owned: []}} => 26",
            set((1, 5), (1, 6), WHOLE),
            set((1, 5), (1, 6), WHOLE),
            set((1, 3), (1, 4), WHOLE),
            set((2, 1), (2, 1), LOW),
            v = version(9, 0),
        ))
        .await;
    let shard = shard.reopen().await;
    shard
        .check(&format!(
            "admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{global: Timestamp(2, 1), metadata: {{ranges: 1, mayHoldOrphans: true}}}}
             # A collection created anew by a repeated message keeps what is known.
             admin {} => {{}}
             admin {{getShardVersion: 'test.c'}} => {{global: Timestamp(2, 1)}}
             admin {{_terndbForgetPlacement: 1, ns: 'test.c', uuid: UUID(\"00000000-0000-4000-8000-000000000009\")}} => {{}}
             admin {{getShardVersion: 'test.c'}} => {{global: Timestamp(2, 1)}}
             admin {{_terndbForgetPlacement: 1, ns: 'test.c', uuid: {UUID}}} => {{}}
             admin {{_terndbForgetPlacement: 1, ns: 'test.c', uuid: {UUID}}} => {{}}
             admin {{getShardVersion: 'test.c'}} => {{global: 'UNSHARDED'}}
             {{listCollections: 1}} => {{cursor: {{firstBatch: []}}}}",
            placed("_terndbCreateSharded", (1, 0), (1, 2), WHOLE)
        ))
        .await;
}

/// ⚑ Nobody changes one shard's part of a collection behind the cluster's back.
#[tokio::test(flavor = "multi_thread")]
async fn parts_are_changed_by_the_cluster_alone() {
    let shard = sharded(WHOLE).await;
    let v = version(1, 0);
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1}}]}} => {{n: 1}}
             {{insert: 'plain', documents: [{{_id: 1}}]}} => {{n: 1}}
             {{drop: 'c'}} => 20
             {{dropDatabase: 1}} => 20
             admin {{renameCollection: 'test.c', to: 'test.d'}} => 20
             admin {{renameCollection: 'test.plain', to: 'test.c', dropTarget: true}} => 20
             {{aggregate: 'plain', pipeline: [{{$out: 'c'}}], cursor: {{}}}} => 28769
             {{createIndexes: 'c', indexes: [{{key: {{u: 1}}, name: 'u', unique: true}}]}} => 67
             {{createIndexes: 'c', indexes: [{{key: {{y: 1}}, name: 'y'}}], shardVersion: {v}}} => {{}}
             {{createIndexes: 'c', indexes: [{{key: {{u: 1}}, name: 'u', unique: true}}], shardVersion: {v}}} => 67
             {{createIndexes: 'c', indexes: [{{key: {{x: 1, u: 1}}, name: 'xu', unique: true}}], shardVersion: {v}}} => {{}}
             {{count: 'c'}} => {{n: 1}}
             # What is not sharded is the shard's own.
             {{createIndexes: 'plain', indexes: [{{key: {{u: 1}}, name: 'u', unique: true}}]}} => {{}}
             admin {{renameCollection: 'test.plain', to: 'test.other'}} => {{}}
             {{drop: 'other'}} => {{}}"
        ))
        .await;
}

/// Told again, and to a shard that has only the name that is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_gets_the_name_that_the_cluster_has_decided() {
    let shard = sharded(LOW).await;
    let renamed = placed("_terndbRename", (1, 0), (1, 2), LOW)
        .replace("ns: 'test.c'", "from: 'test.c', ns: 'test.d'")
        .replace("Timestamp(5, 0)", "Timestamp(6, 0)");
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1}}]}} => {{n: 1}}
             {{insert: 'd', documents: [{{_id: 2}}]}} => {{n: 1}}
             admin {renamed} => {{}}
             admin {renamed} => {{}}
             {{find: 'd'}} => {{cursor: {{firstBatch: [{{_id: 1, x: 1}}]}}}}
             {{find: 'c'}} => {{cursor: {{firstBatch: []}}}}
             {{insert: 'd', documents: [{{_id: 3, x: 11}}]}} => {{n: 0, writeErrors: [{{code: 13388}}]}}
             admin {{getShardVersion: 'test.d', fullMetadata: true}} => {{global: Timestamp(1, 0), metadata: {{ranges: 1}}}}
             # Another collection gets the name: what has it here is gone.
             admin {{_terndbRename: 1, from: 'test.e', ns: 'test.d', uuid: UUID(\"00000000-0000-4000-8000-000000000009\"), quietly: true}} => {{}}
             {{listCollections: 1}} => {{cursor: {{firstBatch: []}}}}"
        ))
        .await;
}

/// Events name documents by shard key and `_id`, also where they are gone and when the collection is.
#[tokio::test(flavor = "multi_thread")]
async fn events_name_documents_by_their_shard_key() {
    let shard = sharded(WHOLE).await;
    let reply = shard.run("admin", "{ping: 1}").await;
    let time = get(&reply, "operationTime").map(print).expect("a time");
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1, y: 1}}]}} => {{n: 1}}
             {{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{y: 2}}}}}}]}} => {{n: 1}}
             {{delete: 'c', deletes: [{{q: {{_id: 1}}, limit: 1}}]}} => {{n: 1}}
             admin {{_terndbForgetPlacement: 1, ns: 'test.c', uuid: {UUID}, quietly: true}} => {{}}
             {{aggregate: 'c', pipeline: [{{$changeStream: {{startAtOperationTime: {time}}}}}, {{$project: {{operationType: 1, documentKey: 1}}}}], cursor: {{}}}} => {{cursor: {{firstBatch: [{{operationType: 'insert', documentKey: {{x: 1, _id: 1}}}}, {{operationType: 'update', documentKey: {{x: 1, _id: 1}}}}, {{operationType: 'delete', documentKey: {{x: 1, _id: 1}}}}]}}}}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_with_documents_is_sharded_where_it_is() {
    let shard = member_of_cluster().await;
    shard
        .check("{insert: 'c', documents: [{_id: 1, x: 1}, {_id: 2, x: 20}]} => {n: 2}")
        .await;
    let listed = shard.run("test", "{listCollections: 1}").await;
    let text = differential::notation::print_fields(&listed);
    let uuid = text
        .split_once("uuid: ")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(uuid, _)| format!("{uuid})"))
        .expect("a uuid");
    let create = placed("_terndbCreateSharded", (1, 0), (1, 0), WHOLE)
        .replace(UUID, &uuid)
        .replace(
            "key: {x: 1}",
            "key: {x: 1}, indexes: [{key: {x: 1}, name: 'x_1'}]",
        );
    shard
        .check(&format!(
            "admin {create} => {{}}
             admin {create} => {{}}
             {{listIndexes: 'c'}} => {{cursor: {{firstBatch: [{{name: '_id_'}}, {{name: 'x_1'}}]}}}}
             admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{metadata: {{mayHoldOrphans: false}}}}
             {{find: 'c', filter: {{x: 20}}, shardVersion: {}}} => {{cursor: {{firstBatch: [{{_id: 2, x: 20}}]}}}}",
            version(1, 0)
        ))
        .await;
}
