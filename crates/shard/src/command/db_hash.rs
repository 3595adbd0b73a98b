//! `dbHash`: one hash for each collection of a database, by which members are compared.
//!
//! The hash is MongoDB's: MD5 of the documents in the order of their `_id`s, one after the other; that of
//! the database is made of the collections' in the order of their names. All of it on one snapshot.

use super::{Answer, Invocation, bare_failure, finish};
use model::Error;
use model::bson::ValueRef;
use model::hash::DocumentsHash;
use std::time::Instant;
use storage::{Direction, KeyRange};
use wire::Reply;

/// How often the walk asks whether it should go on.
const CHECK_INTERVAL: usize = 256;

pub(crate) fn db_hash(invocation: &Invocation<'_>) -> Answer {
    let began = Instant::now();
    let mut chosen: Option<Vec<&str>> = None;
    if let Some(listed) = invocation.request.body().get_array("collections") {
        let mut names = Vec::new();
        for name in listed.iter() {
            match name {
                ValueRef::String(name) => names.push(name),
                _ => return bare_failure("collections entries have to be strings"),
            }
        }
        chosen = (!names.is_empty()).then_some(names);
    }
    let shard = invocation.shard;
    let database = invocation.request.database();
    // The catalog first: a collection that is dropped meanwhile is empty in the snapshot.
    let catalog = shard.catalog.current();
    let snapshot = shard.store.snapshot();
    let mut collections: Vec<_> = catalog
        .collections()
        .filter(|collection| collection.namespace.database() == database)
        .filter(|collection| {
            let name = collection.namespace.collection();
            chosen.as_ref().is_none_or(|chosen| chosen.contains(&name))
        })
        .cloned()
        .collect();
    collections.sort_by(|a, b| a.namespace.as_str().cmp(b.namespace.as_str()));
    let mut hashes = Vec::new();
    let hashed = tokio::task::block_in_place(|| -> Result<(), Error> {
        for collection in &collections {
            let mut hash = DocumentsHash::new();
            let records = snapshot.scan_records(collection.id, KeyRange::ALL, Direction::Forward);
            for (at, record) in records.enumerate() {
                if at % CHECK_INTERVAL == 0 {
                    invocation.operation.check()?;
                }
                hash.add(record.map_err(crate::error::from_storage)?.document());
            }
            hashes.push(hash.finish());
        }
        Ok(())
    });
    hashed?;
    let mut all = DocumentsHash::new();
    let mut writer = Reply::writer();
    writer
        .append("host", shard.replica_set.host())
        .begin_document("collections");
    for (collection, hash) in collections.iter().zip(&hashes) {
        all.add(hash.as_bytes());
        writer.append(collection.namespace.collection(), hash.as_str());
    }
    writer
        .end()
        .begin_array("capped")
        .end()
        .begin_document("uuids");
    for collection in &collections {
        let uuid = ValueRef::Binary {
            subtype: 4,
            bytes: &collection.uuid.0,
        };
        writer.append(collection.namespace.collection(), uuid);
    }
    let elapsed = i32::try_from(began.elapsed().as_millis()).unwrap_or(i32::MAX);
    writer
        .end()
        .append("md5", all.finish().as_str())
        .append("timeMillis", elapsed);
    finish(writer)
}
