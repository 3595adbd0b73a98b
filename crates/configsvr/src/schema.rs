//! The collections and indexes of the `config` database, made when a config server starts for the
//! first time.
//!
//! All of it is idempotent: a primary that fell half-way is followed by one that does it again.

use crate::commit::by;
use crate::documents::{
    ANSWERS, CHANGELOG, CHUNKS, COLLECTIONS, DATABASES, LOCKS, OPERATIONS, SHARDS, TAGS, VERSION,
    new_object_id,
};
use crate::error::Fault;
use crate::store::Store;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};

const ALL: [&str; 12] = [
    VERSION,
    SHARDS,
    DATABASES,
    COLLECTIONS,
    CHUNKS,
    TAGS,
    "settings",
    "mongos",
    LOCKS,
    CHANGELOG,
    OPERATIONS,
    ANSWERS,
];

/// Collection, fields, unique.
const INDEXES: [(&str, &[&str], bool); 6] = [
    (CHUNKS, &["uuid", "min"], true),
    (CHUNKS, &["uuid", "shard", "min"], true),
    (CHUNKS, &["uuid", "lastmod"], true),
    (SHARDS, &["host"], true),
    (TAGS, &["ns", "min"], true),
    (TAGS, &["ns", "tag"], false),
];

/// Makes what is not there yet; the id of the cluster.
pub(crate) async fn prepare(store: &Store) -> Result<ObjectId, Fault> {
    // Written last: if it is there, so is everything else.
    if let Some(version) = store.find_one(VERSION, Doc::EMPTY).await? {
        return cluster_id(&version);
    }
    for name in ALL {
        create(store, name).await?;
    }
    for (collection, fields, unique) in INDEXES {
        store.run(index(collection, fields, unique)).await?;
    }
    // Tools take no document for "on".
    let mut off = DocWriter::new().with("update", "settings");
    off.begin_array("updates").push_document();
    off.append("q", &by("_id", "balancer"));
    off.begin_document("u").begin_document("$setOnInsert");
    off.append("mode", "off")
        .append("stopped", true)
        .end()
        .end();
    off.append("upsert", true).end().end();
    store.run(off).await?;
    let id = new_object_id();
    let document = DocWriter::new()
        .with("_id", 1)
        .with("minCompatibleVersion", 5)
        .with("currentVersion", 6)
        .with("clusterId", id)
        .finish();
    let mut insert = DocWriter::new().with("insert", VERSION);
    insert.begin_array("documents").push(&document).end();
    store.run(insert).await?;
    Ok(id)
}

async fn create(store: &Store, name: &str) -> Result<(), Fault> {
    let made = store.run(DocWriter::new().with("create", name)).await;
    match made {
        Err(fault) if fault.code() != Some(Code::NAMESPACE_EXISTS) => Err(fault),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes what clusters lack that were made by an earlier version.
pub(crate) async fn complete(store: &Store) -> Result<(), Fault> {
    create(store, ANSWERS).await
}

fn cluster_id(version: &DocBuf) -> Result<ObjectId, Fault> {
    match version.get("clusterId") {
        Some(ValueRef::ObjectId(id)) => Ok(id),
        _ => Err(Fault::new(
            Code::INTERNAL_ERROR,
            "config.version has no clusterId",
        )),
    }
}

fn index(collection: &str, fields: &[&str], unique: bool) -> DocWriter {
    let mut command = DocWriter::new().with("createIndexes", collection);
    command.begin_array("indexes").push_document();
    command.begin_document("key");
    for field in fields {
        command.append(field, 1);
    }
    command.end();
    let name: Vec<String> = fields.iter().map(|field| format!("{field}_1")).collect();
    command.append("name", name.join("_").as_str());
    if unique {
        command.append("unique", true);
    }
    command.end().end();
    command
}
