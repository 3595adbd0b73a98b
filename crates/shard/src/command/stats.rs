//! `collStats`, `dbStats` and `dataSize`: counts and sizes.
//!
//! Counts and sizes of documents are exact, because the store counts them in
//! the same batch that changes them. Sizes on disk are shares of the engine's
//! total, since all collections live in one keyspace.

use super::arguments::{Argument, arguments};
use super::indexes::same_pattern;
use super::{Answer, Invocation, bare_failure, finish};
use crate::Shard;
use crate::catalog::{Collection, Index};
use model::bson::{Doc, DocWriter, ValueRef};
use model::key::{Direction as KeyDirection, KeyBuilder};
use model::number::Number;
use model::{Code, Error, Namespace};
use replication::LogBytes;
use std::ops::Bound;
use std::time::Instant;
use storage::layout::Subject;
use storage::{Direction, KeyRange};
use wire::Reply;

/// How often a long count asks whether it should go on.
const CHECK_INTERVAL: usize = 256;

/// A whole number in the smaller type that holds it, as MongoDB writes it.
pub(crate) fn append_count(writer: &mut DocWriter, name: &str, count: u64) {
    match i32::try_from(count) {
        Ok(count) => writer.append(name, count),
        Err(_) => writer.append(name, i64::try_from(count).unwrap_or(i64::MAX)),
    };
}

/// Sizes of one collection.
pub(crate) struct Sizes {
    pub(crate) documents: u64,
    pub(crate) data_bytes: u64,
    pub(crate) storage_bytes: u64,
    pub(crate) indexes: Vec<(String, u64)>,
}

impl Sizes {
    pub(crate) fn of(shard: &Shard, collection: &Collection) -> Self {
        let counter = shard.store.collection_counter(collection.id);
        let size = |index: &Index| match index.id {
            Some(id) => shard.store.storage_bytes_of(Subject::Index(id)),
            // Its entries are the records.
            None => 0,
        };
        Self {
            documents: counter.items,
            data_bytes: counter.bytes,
            storage_bytes: shard
                .store
                .storage_bytes_of(Subject::Collection(collection.id)),
            indexes: collection
                .indexes
                .iter()
                .map(|index| (index.definition.name.clone(), size(index)))
                .collect(),
        }
    }

    pub(crate) fn index_bytes(&self) -> u64 {
        self.indexes.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// `_terndbDataSize`: bytes of all documents that clients keep here, written out by the engine or not.
pub(crate) fn all_data(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let catalog = shard.catalog.current();
    // What every server has of its own says nothing of its load.
    let is_own = |name: &str| matches!(name, "admin" | "config" | "local");
    let bytes: u64 = catalog
        .collections()
        .filter(|collection| !is_own(collection.namespace.database()))
        .map(|collection| shard.store.collection_counter(collection.id).bytes)
        .sum();
    let mut writer = Reply::writer();
    writer.append("bytes", bytes as i64);
    finish(writer)
}

pub(crate) fn coll_stats(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace_of_check()?;
    let mut scale = 1;
    for argument in arguments("collStats", invocation.request.body()) {
        if argument.name() == "scale" && !argument.value().is_nullish() {
            scale = parse_scale(&argument)?;
        }
    }
    let shard = invocation.shard;
    let mut writer = Reply::writer();
    append_collection_stats(shard, &namespace, scale, &mut writer);
    finish(writer)
}

/// The fields of `collStats` and of the stage `$collStats: {storageStats: …}`.
pub(crate) fn append_collection_stats(
    shard: &Shard,
    namespace: &Namespace,
    scale: u64,
    writer: &mut DocWriter,
) {
    writer.append("ns", namespace.as_str());
    let made = shard.virtual_collection(namespace);
    if let Some(made) = made.and_then(|collection| collection.made.as_ref())
        && let Some(bytes) = made.bytes(shard)
    {
        return append_capped_stats(bytes, made.count(shard).unwrap_or(0), scale, writer);
    }
    let Some(collection) = shard.catalog.get(namespace) else {
        for name in [
            "size",
            "count",
            "numOrphanDocs",
            "storageSize",
            "totalSize",
            "nindexes",
            "totalIndexSize",
        ] {
            writer.append(name, 0);
        }
        writer
            .begin_document("indexDetails")
            .end()
            .begin_document("indexSizes")
            .end();
        append_count(writer, "scaleFactor", scale);
        return;
    };
    let sizes = Sizes::of(shard, &collection);
    append_count(writer, "size", sizes.data_bytes / scale);
    append_count(writer, "count", sizes.documents);
    if let Some(average) = sizes.data_bytes.checked_div(sizes.documents) {
        append_count(writer, "avgObjSize", average);
    }
    let orphans = shard.orphan_documents(&collection).min(sizes.documents);
    append_count(writer, "numOrphanDocs", orphans);
    append_count(writer, "storageSize", sizes.storage_bytes / scale);
    writer
        .append("freeStorageSize", 0)
        .append("capped", false)
        .append("nindexes", collection.indexes.len() as i32)
        .begin_document("indexDetails")
        .end()
        .begin_array("indexBuilds");
    for index in collection.indexes.iter().filter(|index| !index.is_ready()) {
        writer.push(index.definition.name.as_str());
    }
    writer.end();
    append_count(writer, "totalIndexSize", sizes.index_bytes() / scale);
    let total = sizes.storage_bytes + sizes.index_bytes();
    append_count(writer, "totalSize", total / scale);
    writer.begin_document("indexSizes");
    for (name, bytes) in &sizes.indexes {
        append_count(writer, name, bytes / scale);
    }
    writer.end();
    append_count(writer, "scaleFactor", scale);
}

/// The same for a collection that forgets its oldest documents.
fn append_capped_stats(bytes: LogBytes, count: u64, scale: u64, writer: &mut DocWriter) {
    append_count(writer, "size", bytes.stored / scale);
    append_count(writer, "count", count);
    if let Some(average) = bytes.stored.checked_div(count) {
        append_count(writer, "avgObjSize", average);
    }
    writer.append("numOrphanDocs", 0);
    append_count(writer, "storageSize", bytes.stored / scale);
    writer
        .append("freeStorageSize", 0)
        .append("capped", true)
        .append("max", 0);
    append_count(writer, "maxSize", bytes.window / scale);
    writer
        .append("nindexes", 0)
        .begin_document("indexDetails")
        .end()
        .begin_array("indexBuilds")
        .end()
        .append("totalIndexSize", 0);
    append_count(writer, "totalSize", bytes.stored / scale);
    writer.begin_document("indexSizes").end();
    append_count(writer, "scaleFactor", scale);
}

fn parse_scale(argument: &Argument<'_>) -> Result<u64, Error> {
    let Some(number) = Number::of(argument.value()).map(Number::to_f64) else {
        return Err(argument.wrong_type("[long, int, decimal, double]"));
    };
    let scale = number as i32;
    if scale < 1 {
        return Err(Error::location(
            51024,
            format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        ));
    }
    Ok(scale.unsigned_abs().into())
}

pub(crate) fn db_stats(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let database = invocation.request.database();
    if let Some(ValueRef::String(name)) = body.first().map(|element| element.value()) {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid db name: {database}.{name}"),
        ));
    }
    let mut scale = 1.0;
    let mut free_storage = false;
    for argument in arguments("dbStats", body) {
        match argument.name() {
            "scale" => match Number::of(argument.value()).map(Number::to_f64) {
                None => return bare_failure("scale has to be a number > 0"),
                Some(number) if number <= 0.0 => return bare_failure("scale has to be > 0"),
                Some(number) => scale = number,
            },
            "freeStorage" => free_storage = model::number::is_truthy(argument.value()),
            _ => {}
        }
    }
    let shard = invocation.shard;
    let catalog = shard.catalog.current();
    let sizes: Vec<Sizes> = catalog
        .database(database)
        .map(|collection| Sizes::of(shard, collection))
        .collect();
    let sum = |of: fn(&Sizes) -> u64| sizes.iter().map(of).sum::<u64>();
    let documents = sum(|each| each.documents);
    let data = sum(|each| each.data_bytes) as f64;
    let storage = sum(|each| each.storage_bytes) as f64;
    let indexes = sum(Sizes::index_bytes) as f64;
    let mut writer = Reply::writer();
    writer
        .append("db", database)
        .append("collections", sizes.len() as i32)
        .append("views", 0);
    append_count(&mut writer, "objects", documents);
    let average = if documents == 0 {
        0.0
    } else {
        data / documents as f64
    };
    let size = |writer: &mut DocWriter, name: &str, bytes: f64| {
        // A database that does not exist has sizes of another type.
        if sizes.is_empty() {
            writer.append(name, 0);
        } else {
            writer.append(name, bytes);
        }
    };
    size(&mut writer, "avgObjSize", average);
    size(&mut writer, "dataSize", data / scale);
    size(&mut writer, "storageSize", storage / scale);
    if free_storage {
        size(&mut writer, "freeStorageSize", 0.0);
    }
    append_count(
        &mut writer,
        "indexes",
        sum(|each| each.indexes.len() as u64),
    );
    size(&mut writer, "indexSize", indexes / scale);
    if free_storage {
        size(&mut writer, "indexFreeStorageSize", 0.0);
    }
    size(&mut writer, "totalSize", (storage + indexes) / scale);
    if free_storage {
        size(&mut writer, "totalFreeStorageSize", 0.0);
    }
    if sizes.is_empty() {
        writer.append("scaleFactor", 1);
    } else {
        writer.append("scaleFactor", scale);
    }
    let (used, total) = file_system_bytes(shard);
    size(&mut writer, "fsUsedSize", used / scale);
    size(&mut writer, "fsTotalSize", total / scale);
    finish(writer)
}

/// Used and total bytes of the file system that holds the data.
fn file_system_bytes(shard: &Shard) -> (f64, f64) {
    match rustix::fs::statvfs(&shard.scratch) {
        Ok(found) => {
            let total = found.f_blocks as f64 * found.f_frsize as f64;
            let free = found.f_bavail as f64 * found.f_frsize as f64;
            (total - free, total)
        }
        Err(_) => (0.0, 0.0),
    }
}

/// What `dataSize` was asked for.
#[derive(Default)]
struct Range<'a> {
    pattern: Option<Doc<'a>>,
    min: Option<Doc<'a>>,
    max: Option<Doc<'a>>,
    bytes_max: Option<u64>,
    documents_max: Option<u64>,
    estimate: bool,
}

pub(crate) fn data_size(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let namespace = match body.first().map(|element| element.value()) {
        Some(ValueRef::String(full)) => Namespace::parse(full)?,
        other => {
            let kind = other.map_or("missing", |value| value.kind().name());
            return Err(Error::bad_value(format!(
                "collection name has invalid type {kind}"
            )));
        }
    };
    let range = Range::parse(body)?;
    let started = Instant::now();
    let millis = |writer: &mut DocWriter| {
        append_count(writer, "millis", started.elapsed().as_millis() as u64);
    };
    let shard = invocation.shard;
    let mut writer = Reply::writer();
    let Some(collection) = shard.catalog.get(&namespace) else {
        writer.append("size", 0).append("numObjects", 0);
        millis(&mut writer);
        return finish(writer);
    };
    let counter = shard.store.collection_counter(collection.id);
    let whole = range.min.is_none() && range.bytes_max.is_none() && range.documents_max.is_none();
    let counted = if whole {
        Some(Counted {
            documents: counter.items,
            bytes: counter.bytes,
            max_reached: false,
        })
    } else {
        tokio::task::block_in_place(|| range.count(invocation, &collection))?
    };
    let Some(counted) = counted else {
        return bare_failure("couldn't find valid index containing key pattern");
    };
    writer.append("estimate", range.estimate);
    if counted.max_reached {
        writer.append("maxReached", true);
    }
    append_count(&mut writer, "size", counted.bytes);
    append_count(&mut writer, "numObjects", counted.documents);
    millis(&mut writer);
    finish(writer)
}

#[derive(Default)]
struct Counted {
    documents: u64,
    bytes: u64,
    max_reached: bool,
}

impl Counted {
    /// Counts a document; true if that was one too many.
    fn add(&mut self, bytes: usize, range: &Range<'_>) -> bool {
        self.documents += 1;
        self.bytes += bytes as u64;
        self.max_reached = range.bytes_max.is_some_and(|max| self.bytes > max)
            || range.documents_max.is_some_and(|max| self.documents > max);
        self.max_reached
    }
}

impl<'a> Range<'a> {
    fn parse(body: Doc<'a>) -> Result<Self, Error> {
        let mut range = Self::default();
        let limit = |argument: &Argument<'_>| {
            let number = Number::of(argument.value()).and_then(Number::to_i64_truncated);
            number
                .and_then(|number| u64::try_from(number).ok())
                .filter(|number| *number > 0)
        };
        for argument in arguments("dataSize", body) {
            match argument.name() {
                "keyPattern" => range.pattern = argument.optional_doc()?,
                "min" => range.min = argument.optional_doc()?,
                "max" => range.max = argument.optional_doc()?,
                "maxSize" => range.bytes_max = limit(&argument),
                "maxObjects" => range.documents_max = limit(&argument),
                "estimate" => range.estimate = model::number::is_truthy(argument.value()),
                _ => {}
            }
        }
        match (range.min, range.max) {
            (Some(_), None) => Err(Error::bad_value("max must be set if min is set")),
            (None, Some(_)) => Err(Error::bad_value("min must be set if max is set")),
            _ => Ok(range),
        }
    }

    /// Counts along the index that the bounds name; `None` if there is none.
    fn count(
        &self,
        invocation: &Invocation<'_>,
        collection: &Collection,
    ) -> Result<Option<Counted>, Error> {
        let fault = crate::error::from_storage;
        let (Some(min), Some(max)) = (self.min, self.max) else {
            return self
                .count_records(invocation, collection, KeyRange::ALL)
                .map(Some);
        };
        let Some(index) = self.index(collection, min) else {
            return Ok(None);
        };
        let directions = index.definition.directions();
        let (low, high) = (encoded(min, &directions), encoded(max, &directions));
        let bounds = KeyRange::new(Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        let Some(id) = index.id else {
            return self.count_records(invocation, collection, bounds).map(Some);
        };
        let snapshot = invocation.shard.store.snapshot();
        let mut counted = Counted::default();
        for (at, entry) in snapshot
            .scan_index(id, bounds, Direction::Forward)
            .enumerate()
        {
            if at % CHECK_INTERVAL == 0 {
                invocation.operation.check()?;
            }
            let entry = entry.map_err(fault)?;
            let record = snapshot
                .get(collection.id, entry.record_key())
                .map_err(fault)?;
            let bytes = record.map_or(0, |record| record.document().len());
            if counted.add(bytes, self) {
                break;
            }
        }
        Ok(Some(counted))
    }

    fn count_records(
        &self,
        invocation: &Invocation<'_>,
        collection: &Collection,
        bounds: KeyRange<'_>,
    ) -> Result<Counted, Error> {
        let snapshot = invocation.shard.store.snapshot();
        let mut counted = Counted::default();
        let records = snapshot.scan_records(collection.id, bounds, Direction::Forward);
        for (at, record) in records.enumerate() {
            if at % CHECK_INTERVAL == 0 {
                invocation.operation.check()?;
            }
            let record = record.map_err(crate::error::from_storage)?;
            if counted.add(record.document().len(), self) {
                break;
            }
        }
        Ok(counted)
    }

    /// The index of the key pattern, or the one whose fields `min` names.
    fn index<'c>(&self, collection: &'c Collection, min: Doc<'_>) -> Option<&'c Index> {
        let names_fields = |index: &Index| {
            let mut fields = min.iter().map(|element| element.key());
            let same = index
                .definition
                .fields
                .iter()
                .all(|field| fields.next() == Some(field.path.as_str()));
            same && fields.next().is_none()
        };
        collection
            .indexes
            .iter()
            .filter(|index| index.is_ready())
            .map(|index| &**index)
            .find(|index| match self.pattern {
                Some(pattern) => same_pattern(index.definition.key_pattern(), pattern),
                None => names_fields(index),
            })
    }
}

fn encoded(bound: Doc<'_>, directions: &[KeyDirection]) -> Vec<u8> {
    let mut builder = KeyBuilder::new();
    for (element, direction) in bound.iter().zip(directions) {
        builder.push(element.value(), *direction);
    }
    builder.finish().0
}
