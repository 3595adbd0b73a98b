//! `validate` finds what is wrong, and only that.

use crate::testing::TestShard;
use model::Namespace;
use model::bson::ValueRef;
use model::key::{Direction, KeyBuilder, RecordKey};
use storage::entry::{IndexAction, IndexChange};

fn fields(value: i32) -> Vec<u8> {
    let mut builder = KeyBuilder::new();
    builder.push(ValueRef::Int32(value), Direction::Ascending);
    builder.finish().0
}

/// Changes an index behind everybody's back.
async fn tamper(server: &TestShard, id: i32, value: i32, action: IndexAction<'_>) {
    let namespace = Namespace::new("test", "c").expect("a name");
    let collection = server
        .shard
        .catalog
        .get(&namespace)
        .expect("the collection");
    let (index, _) = collection.secondary_indexes().next().expect("the index");
    let key = RecordKey::from_id(ValueRef::Int32(id));
    server
        .shard
        .propose_catalog(|encoder| {
            let change = IndexChange {
                index,
                fields: &fields(value),
                action,
            };
            encoder.index_entries(collection.id, key.as_bytes(), &[change]);
        })
        .await
        .expect("an entry");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_named() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {validate: "c"} => 26
            {validate: 5} => 73
            {createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}]} => {}
            {insert: "c", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}]} => {n: 2}
            {validate: "c"} => {ns: "test.c", nInvalidDocuments: 0, nNonCompliantDocuments: 0, nrecords: 2, nIndexes: 2, keysPerIndex: {_id_: 2, x: 2}, indexDetails: {_id_: {valid: true}, x: {valid: true}}, valid: true, repaired: false, warnings: [], errors: [], extraIndexEntries: [], missingIndexEntries: [], corruptRecords: []}
            {validate: "c", full: true, background: true} => 72
            {validate: "c", repair: true} => 115
            "#,
        )
        .await;
    tamper(&server, 1, 1, IndexAction::Remove).await;
    server
        .check("{validate: 'c'} => {valid: false, indexDetails: {_id_: {valid: true}, x: {valid: false}}, missingIndexEntries: [{indexName: 'x', indexKey: {x: 1}}], extraIndexEntries: []}")
        .await;
    tamper(&server, 7, 9, IndexAction::Add { type_bits: &[] }).await;
    server
        .check("{validate: 'c'} => {valid: false, keysPerIndex: {x: 2}, missingIndexEntries: [{indexKey: {x: 1}}], extraIndexEntries: [{indexName: 'x', indexKey: {x: 9}}]}")
        .await;
}
