//! From decisions of the authority to the documents of one entry, and to what shards are told.

use crate::commit::{Commit, by};
use crate::documents::{self, CHUNKS, COLLECTIONS, CollectionEntry, as_time, uuid_value};
use crate::error::Fault;
use crate::state::Effect;
use cluster::authority::{Answer, Decision};
use cluster::routing::{ChunkWithEnd, RoutingTable, ShardId};
use model::bson::{DocBuf, DocWriter};
use model::range::KeyBound;
use model::{Code, Namespace};
use std::collections::BTreeMap;

/// Bounds as they are to be stored, where they are known better than their order.
pub(crate) type Bounds = BTreeMap<KeyBound, DocBuf>;

/// What is to be written of an answer; of our own operations none was decided before.
pub(crate) fn decision(answer: Answer<Namespace>) -> Result<Decision<Namespace>, Fault> {
    match answer {
        Answer::Write(decision) => Ok(decision),
        Answer::Decided(_) => Err(Fault::new(
            Code::CONFLICTING_OPERATION_IN_PROGRESS,
            "the operation was decided before",
        )),
    }
}

/// The condition that a collection is as it was when something was decided about it.
pub(crate) fn expect_unchanged(commit: &mut Commit, entry: &CollectionEntry) {
    let id = by("_id", entry.namespace.as_str());
    commit.expect(COLLECTIONS, id.as_doc(), entry.document.as_doc());
}

/// All chunks of a table, as new documents.
pub(crate) fn insert_chunks(commit: &mut Commit, table: &RoutingTable) -> Result<(), Fault> {
    for document in chunk_documents(table)? {
        commit.insert(CHUNKS, document.as_doc());
    }
    Ok(())
}

pub(crate) fn chunk_documents(table: &RoutingTable) -> Result<Vec<DocBuf>, Fault> {
    let mut all = Vec::with_capacity(table.chunk_count());
    for view in table.chunks() {
        let min = documents::bound(&table.pattern, view.chunk.min.as_bytes())?;
        let max = documents::bound(&table.pattern, view.max.as_bytes())?;
        let id = documents::new_object_id();
        all.push(documents::chunk(
            id,
            table,
            view.chunk,
            min.as_doc(),
            max.as_doc(),
        )?);
    }
    Ok(all)
}

/// Chunks that replace others: one that begins where another began takes its document over.
pub(crate) fn replace_chunks(
    commit: &mut Commit,
    table: &RoutingTable,
    changes: &[ChunkWithEnd],
    bounds: &Bounds,
) -> Result<(), Fault> {
    let stored = |bound: &KeyBound| match bounds.get(bound) {
        Some(known) => Ok(known.clone()),
        None => documents::bound(&table.pattern, bound.as_bytes()),
    };
    let place = |min: &DocBuf| {
        DocWriter::new()
            .with("uuid", uuid_value(&table.uuid))
            .with("min", min)
            .finish()
    };
    // First what is gone, so that no version or bound is there twice.
    for (chunk, max) in changes {
        let range = model::range::KeyRange::new(chunk.min.clone(), max.clone());
        for replaced in table.overlapping(&range) {
            let begins = &replaced.chunk.min;
            if !changes.iter().any(|(new, _)| new.min == *begins) {
                commit.delete(CHUNKS, place(&stored(begins)?).as_doc());
            }
        }
    }
    for (chunk, max) in changes {
        let (min, max) = (stored(&chunk.min)?, stored(max)?);
        let there = table.find(chunk.min.as_bytes()).chunk.min == chunk.min;
        if !there {
            let id = documents::new_object_id();
            let document = documents::chunk(id, table, chunk, min.as_doc(), max.as_doc())?;
            commit.insert(CHUNKS, document.as_doc());
            continue;
        }
        let mut change = DocWriter::new();
        change.begin_document("$set");
        change
            .append("max", &max)
            .append("shard", chunk.shard.as_str())
            .append("lastmod", as_time(chunk.version));
        documents::owners(&mut change, &table.pattern, chunk)?;
        change.end();
        if chunk.parts().is_empty() {
            change.begin_document("$unset").append("parts", "").end();
        }
        commit.change(CHUNKS, place(&min).as_doc(), change.finish().as_doc());
    }
    Ok(())
}

/// Removes a sharded collection's document: without it, its chunks mean nothing.
pub(crate) fn remove(commit: &mut Commit, entry: &CollectionEntry) {
    commit.delete(COLLECTIONS, by("_id", entry.namespace.as_str()).as_doc());
}

/// A decision about a collection that stays sharded.
pub(crate) fn keeps(decision: Decision<Namespace>, entry: CollectionEntry) -> Effect {
    Effect::Placement(Box::new(decision), Some(entry))
}

/// What a shard is told of a collection: the end of `_terndbCreateSharded` and `_terndbSetPlacement`.
pub(crate) fn tell(
    mut command: DocWriter,
    entry: &CollectionEntry,
    table: &RoutingTable,
    shard: &ShardId,
) -> Result<DocBuf, Fault> {
    command
        .append("ns", entry.namespace.as_str())
        .append("uuid", uuid_value(&entry.uuid))
        .append("key", &entry.key)
        .append("unique", entry.unique);
    for (name, version) in [
        ("placement", table.shard_version(shard)),
        ("collectionVersion", table.version()),
    ] {
        command.begin_document(name);
        version.append_to(&mut command);
        command.end();
    }
    command.begin_array("owned");
    for range in table.ranges_of(shard).iter() {
        command
            .push_document()
            .append(
                "min",
                &documents::bound(&table.pattern, range.min.as_bytes())?,
            )
            .append(
                "max",
                &documents::bound(&table.pattern, range.max.as_bytes())?,
            )
            .end();
    }
    command.end();
    Ok(command.finish())
}

/// `_terndbSetPlacement` for one shard.
pub(crate) fn set_placement(
    entry: &CollectionEntry,
    table: &RoutingTable,
    shard: &ShardId,
) -> Result<DocBuf, Fault> {
    tell(
        DocWriter::new().with("_terndbSetPlacement", 1),
        entry,
        table,
        shard,
    )
}

/// `_terndbForgetPlacement`; of several shards one tells it to change streams.
pub(crate) fn forget(namespace: &str, uuid: &model::ids::Uuid, quietly: bool) -> DocBuf {
    DocWriter::new()
        .with("_terndbForgetPlacement", 1)
        .with("ns", namespace)
        .with("uuid", uuid_value(uuid))
        .with("quietly", quietly)
        .finish()
}
