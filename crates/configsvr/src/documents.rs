//! The documents of the `config` database: MongoDB's shapes, so that `sh.status()` and tools that
//! read them work.
//!
//! ```text
//!   shards       {_id, host: "set/host,host", state: 1, topologyTime}
//!   databases    {_id, primary, partitioned: false, version: {uuid, timestamp, lastMod}}
//!   collections  {_id: namespace, lastmodEpoch, lastmod, timestamp, uuid, key, unique, catalogVersion, catalogChanges}
//!   chunks       {_id, uuid, min, max, shard, lastmod: Timestamp(major, minor), onCurrentShardSince,
//!                 history: [{validAfter, shard}, ..],   the latest owner first
//!                 parts: [{min, history}, ..]}          of one that was merged from parts with other owners
//! ```
//!
//! `parts` is ours: where it is given, it says who owned what before, and `history` only who owns the whole.
//! `catalogVersion` is ours: it counts changes of options and indexes, before and after each; in between
//! `catalogChanges` is true.

use crate::error::Fault;
use cluster::authority::{Catalog, DatabasePlacement};
use cluster::routing::{
    Chunk, ChunkWithEnd, MergedPart, PastOwner, RefreshError, RoutingTable, ShardId,
};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::number::Number;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::text::document_quoted;
use model::time::ClusterTime;
use model::version::{ChunkVersion, DatabaseVersion, Incarnation};
use model::{Code, Namespace};
use std::sync::Arc;

pub(crate) const SHARDS: &str = "shards";
pub(crate) const DATABASES: &str = "databases";
pub(crate) const COLLECTIONS: &str = "collections";
pub(crate) const CHUNKS: &str = "chunks";
pub(crate) const TAGS: &str = "tags";
pub(crate) const LOCKS: &str = "locks";
pub(crate) const CHANGELOG: &str = "changelog";
pub(crate) const VERSION: &str = "version";
pub(crate) const OPERATIONS: &str = "terndb_operations";
pub(crate) const ANSWERS: &str = "terndb_answers";

pub(crate) fn new_uuid() -> Uuid {
    let mut bytes = fastrand::u128(..).to_be_bytes();
    // Version 4, variant 1: a random UUID.
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid(bytes)
}

/// Random beyond its seconds: nobody counts on the order within one.
pub(crate) fn new_object_id() -> ObjectId {
    let mut bytes = [0; 12];
    fastrand::fill(&mut bytes);
    let seconds = (now_ms() / 1000) as u32;
    bytes[..4].copy_from_slice(&seconds.to_be_bytes());
    ObjectId(bytes)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}

pub(crate) fn uuid_value(uuid: &Uuid) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &uuid.0,
    }
}

pub(crate) fn as_time(version: ChunkVersion) -> ClusterTime {
    ClusterTime::new(version.major, version.minor)
}

/// What makes a stored document unusable: a type of inconsistency, and what is wrong.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Damage {
    pub(crate) kind: &'static str,
    pub(crate) why: String,
}

impl Damage {
    pub(crate) fn new(kind: &'static str, why: String) -> Self {
        Self { kind, why }
    }
}

/// A field that a chunk lacks.
impl From<Fault> for Damage {
    fn from(fault: Fault) -> Self {
        Damage::new("CorruptedChunk", fault.to_string())
    }
}

/// Reads fields of one document, naming what is missing.
pub(crate) struct Fields<'a> {
    collection: &'static str,
    pub(crate) doc: Doc<'a>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(collection: &'static str, doc: Doc<'a>) -> Self {
        Self { collection, doc }
    }

    /// The document, as a message names it.
    fn named(&self) -> String {
        let id = match self.doc.get("_id") {
            Some(ValueRef::String(id)) => format!("{id:?}"),
            Some(ValueRef::ObjectId(id)) => id.to_string(),
            Some(other) => format!("{other:?}"),
            None => "without _id".to_owned(),
        };
        format!("the document {id} of config.{}", self.collection)
    }

    fn unusable(&self, name: &str) -> String {
        format!("{} has no usable field {name}", self.named())
    }

    fn missing(&self, name: &str) -> Fault {
        Fault::new(Code::INTERNAL_ERROR, self.unusable(name))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str, Fault> {
        self.doc.get_str(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn doc(&self, name: &str) -> Result<Doc<'a>, Fault> {
        self.doc.get_doc(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn uuid(&self, name: &str) -> Result<Uuid, Fault> {
        match self.doc.get(name) {
            Some(ValueRef::Binary { subtype: 4, bytes }) => {
                bytes.try_into().map(Uuid).map_err(|_| self.missing(name))
            }
            _ => Err(self.missing(name)),
        }
    }

    pub(crate) fn object_id(&self, name: &str) -> Result<ObjectId, Fault> {
        match self.doc.get(name) {
            Some(ValueRef::ObjectId(id)) => Ok(id),
            _ => Err(self.missing(name)),
        }
    }

    pub(crate) fn time(&self, name: &str) -> Result<ClusterTime, Fault> {
        match self.doc.get(name) {
            Some(ValueRef::Timestamp(time)) => Ok(ClusterTime::new(time.seconds, time.increment)),
            _ => Err(self.missing(name)),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, Fault> {
        let number = self.doc.get(name).and_then(Number::of);
        number
            .map(|number| number.to_f64())
            .filter(|number| *number >= 0.0)
            .map(|number| number as u64)
            .ok_or_else(|| self.missing(name))
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.doc.get(name) == Some(ValueRef::Boolean(true))
    }
}

pub(crate) fn database_version(writer: &mut DocWriter, name: &str, version: DatabaseVersion) {
    writer.begin_document(name);
    version.append_to(writer);
    writer.end();
}

pub(crate) fn database(name: &str, placement: &DatabasePlacement) -> DocBuf {
    let mut writer = DocWriter::new()
        .with("_id", name)
        .with("primary", placement.primary.as_str())
        .with("partitioned", false);
    database_version(&mut writer, "version", placement.version);
    writer.finish()
}

pub(crate) fn read_database(doc: Doc<'_>) -> Result<(String, DatabasePlacement), Fault> {
    let fields = Fields::of(DATABASES, doc);
    let version = DatabaseVersion::from_document(fields.doc("version")?)?;
    let placement = DatabasePlacement {
        primary: ShardId::new(fields.text("primary")?),
        version,
    };
    Ok((fields.text("_id")?.to_owned(), placement))
}

/// A sharded collection, apart from its chunks.
#[derive(Clone, Debug)]
pub(crate) struct CollectionEntry {
    pub(crate) namespace: Namespace,
    pub(crate) uuid: Uuid,
    pub(crate) incarnation: Incarnation,
    /// As it was given.
    pub(crate) key: DocBuf,
    pub(crate) pattern: Arc<ShardKeyPattern>,
    pub(crate) unique: bool,
    pub(crate) catalog: Catalog,
    /// As it is stored.
    pub(crate) document: DocBuf,
}

impl CollectionEntry {
    pub(crate) fn new(
        namespace: Namespace,
        uuid: Uuid,
        incarnation: Incarnation,
        key: Doc<'_>,
        unique: bool,
    ) -> Result<Self, Fault> {
        let mut entry = Self {
            namespace,
            uuid,
            incarnation,
            key: key.to_owned(),
            pattern: Arc::new(ShardKeyPattern::parse(key)?),
            unique,
            catalog: Catalog::default(),
            document: DocBuf::new(),
        };
        entry.document = entry.to_document();
        Ok(entry)
    }

    fn to_document(&self) -> DocBuf {
        DocWriter::new()
            .with("_id", self.namespace.as_str())
            .with("lastmodEpoch", self.incarnation.epoch)
            .with("lastmod", ValueRef::DateTime(now_ms()))
            .with("timestamp", self.incarnation.began)
            .with("uuid", uuid_value(&self.uuid))
            .with("key", &self.key)
            .with("unique", self.unique)
            .with("noBalance", false)
            .with("catalogVersion", self.catalog.version as i64)
            .finish()
    }

    pub(crate) fn read(document: DocBuf) -> Result<Self, Fault> {
        let fields = Fields::of(COLLECTIONS, document.as_doc());
        let key = fields.doc("key")?;
        Ok(Self {
            namespace: Namespace::parse(fields.text("_id")?)?,
            uuid: fields.uuid("uuid")?,
            incarnation: Incarnation {
                epoch: fields.object_id("lastmodEpoch")?,
                began: fields.time("timestamp")?,
            },
            key: key.to_owned(),
            pattern: Arc::new(ShardKeyPattern::parse(key)?),
            unique: fields.flag("unique"),
            catalog: Catalog {
                version: fields.number("catalogVersion").unwrap_or(0),
                changes: fields.flag("catalogChanges"),
            },
            document,
        })
    }

    /// The same with other contents of some fields; what else is stored stays.
    pub(crate) fn with(&self, changes: Doc<'_>) -> Result<Self, Fault> {
        let mut writer = DocWriter::new();
        for element in self.document.iter() {
            match changes.element(element.key()) {
                Some(changed) => writer.append_element(&changed),
                None => writer.append_element(&element),
            };
        }
        for element in changes.iter() {
            if self.document.get(element.key()).is_none() {
                writer.append_element(&element);
            }
        }
        Self::read(writer.finish())
    }
}

/// Bounds as documents, for the routing tables that only know their order.
pub(crate) fn bound(pattern: &ShardKeyPattern, key: &[u8]) -> Result<DocBuf, Fault> {
    Ok(pattern.bound_of_key(key)?)
}

/// Who owns a chunk, and who did.
pub(crate) fn owners(
    writer: &mut DocWriter,
    pattern: &ShardKeyPattern,
    chunk: &Chunk,
) -> Result<(), Fault> {
    writer.append("onCurrentShardSince", chunk.since);
    history(writer, &chunk.shard, chunk.since, chunk.past());
    if chunk.parts().is_empty() {
        return Ok(());
    }
    writer.begin_array("parts");
    for part in chunk.parts() {
        let min = bound(pattern, part.min.as_bytes())?;
        writer.push_document().append("min", &min);
        history(writer, &chunk.shard, part.since, &part.past);
        writer.end();
    }
    writer.end();
    Ok(())
}

fn history(writer: &mut DocWriter, shard: &ShardId, since: ClusterTime, past: &[PastOwner]) {
    let past = past.iter().map(|owner| (owner.since, &owner.shard));
    writer.begin_array("history");
    for (since, shard) in [(since, shard)].into_iter().chain(past) {
        writer
            .push_document()
            .append("validAfter", since)
            .append("shard", shard.as_str())
            .end();
    }
    writer.end();
}

/// A chunk's document, with bounds as they are to be stored.
pub(crate) fn chunk(
    id: ObjectId,
    table: &RoutingTable,
    chunk: &Chunk,
    min: Doc<'_>,
    max: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let mut writer = DocWriter::new()
        .with("_id", id)
        .with("uuid", uuid_value(&table.uuid))
        .with("min", min)
        .with("max", max)
        .with("shard", chunk.shard.as_str())
        .with("lastmod", as_time(chunk.version));
    owners(&mut writer, &table.pattern, chunk)?;
    Ok(writer.finish())
}

/// A bound from before the key got further fields is the least of its value by the key of now; the end of
/// all keys stays the end.
fn refined(pattern: &ShardKeyPattern, bound: Doc<'_>) -> DocBuf {
    let is_end = bound.iter().all(|field| field.value() == ValueRef::MaxKey);
    let added = match is_end {
        true => ValueRef::MaxKey,
        false => ValueRef::MinKey,
    };
    let mut writer = DocWriter::new();
    for field in bound.iter() {
        writer.append_element(&field);
    }
    for field in pattern.fields().iter().skip(bound.iter().count()) {
        writer.append(&field.path, added);
    }
    writer.finish()
}

fn read_bound(
    pattern: &ShardKeyPattern,
    fields: &Fields<'_>,
    name: &str,
) -> Result<KeyBound, Damage> {
    let given = fields.doc(name)?;
    let bound = match given.iter().count() == pattern.fields().len() {
        true => pattern.bound(given),
        false => pattern.bound(refined(pattern, given).as_doc()),
    };
    bound.map_err(|error| {
        let shown = document_quoted(given);
        let why = format!("{} {name} {shown}: {}", fields.named(), error.message);
        Damage::new("CorruptedChunkShardKey", why)
    })
}

pub(crate) fn read_chunk(pattern: &ShardKeyPattern, doc: Doc<'_>) -> Result<ChunkWithEnd, Damage> {
    let fields = Fields::of(CHUNKS, doc);
    let min = read_bound(pattern, &fields, "min")?;
    let max = read_bound(pattern, &fields, "max")?;
    let version = fields.time("lastmod")?;
    let version = ChunkVersion::new(version.seconds(), version.increment());
    let shard = ShardId::new(fields.text("shard")?);
    let (since, past) = read_history(&fields, doc)?;
    let chunk = Chunk::new(min, shard, version, since);
    let mut parts = Vec::new();
    for part in doc
        .get_array("parts")
        .into_iter()
        .flat_map(|all| all.iter())
    {
        let ValueRef::Document(part) = part else {
            return Err(Damage::new(
                "CorruptedChunkHistory",
                fields.unusable("parts"),
            ));
        };
        let min = read_bound(pattern, &Fields::of(CHUNKS, part), "min")?;
        let (since, past) = read_history(&fields, part)?;
        parts.push(MergedPart { min, since, past });
    }
    match parts.is_empty() {
        true => Ok((chunk.with_past(past), max)),
        false => Ok((chunk.with_parts(parts), max)),
    }
}

/// Since when a chunk, or a part of it, is with its owner, and who owned it before.
fn read_history(chunk: &Fields<'_>, doc: Doc<'_>) -> Result<(ClusterTime, Vec<PastOwner>), Damage> {
    let bad_history = || Damage::new("CorruptedChunkHistory", chunk.unusable("history"));
    let mut owners = Vec::new();
    let listed = doc.get_array("history").into_iter();
    for owner in listed.flat_map(|all| all.iter()) {
        let ValueRef::Document(owner) = owner else {
            return Err(bad_history());
        };
        let owner = Fields::of(CHUNKS, owner);
        let (since, shard) = (owner.time("validAfter"), owner.text("shard"));
        owners.push(PastOwner {
            since: since.map_err(|_| bad_history())?,
            shard: ShardId::new(shard.map_err(|_| bad_history())?),
        });
    }
    let since = match owners.is_empty() {
        true => ClusterTime::ZERO,
        false => owners.remove(0).since,
    };
    Ok((since, owners))
}

/// A table from the documents of its chunks.
pub(crate) fn read_table(
    entry: &CollectionEntry,
    documents: &[DocBuf],
) -> Result<RoutingTable, Damage> {
    let chunks = documents
        .iter()
        .map(|doc| read_chunk(&entry.pattern, doc.as_doc()))
        .collect::<Result<Vec<_>, _>>()?;
    table_of(entry, chunks)
}

/// The same from its chunks, in any order.
pub(crate) fn table_of(
    entry: &CollectionEntry,
    chunks: Vec<ChunkWithEnd>,
) -> Result<RoutingTable, Damage> {
    let pattern = entry.pattern.clone();
    RoutingTable::full(entry.uuid, entry.incarnation, pattern, chunks)
        .map_err(|error| no_table(&entry.pattern, &error))
}

/// Why chunks that can be read do not make a table, with bounds as they are stored.
fn no_table(pattern: &ShardKeyPattern, error: &RefreshError) -> Damage {
    let shown = |key: &KeyBound| match bound(pattern, key.as_bytes()) {
        Ok(bound) => document_quoted(bound.as_doc()).to_string(),
        Err(_) => format!("{key:?}"),
    };
    match error {
        RefreshError::Empty => Damage::new(
            "MissingRoutingTable",
            "config.chunks has no chunk of it".to_owned(),
        ),
        RefreshError::Gap { from, to } => Damage::new(
            "RoutingTableRangeGap",
            format!(
                "config.chunks has no chunk from {} to {}",
                shown(from),
                shown(to)
            ),
        ),
        RefreshError::Overlap { from, to } => Damage::new(
            "RoutingTableRangeOverlap",
            format!(
                "config.chunks has two chunks from {} to {}",
                shown(from),
                shown(to)
            ),
        ),
        RefreshError::BadParts { min } => Damage::new(
            "CorruptedChunkHistory",
            format!(
                "the parts of the chunk of config.chunks that begins at {} are not in order within it",
                shown(min)
            ),
        ),
        RefreshError::EmptyChunk { min } => Damage::new(
            "CorruptedChunkShardKey",
            format!(
                "the chunk of config.chunks that begins at {} does not end behind that",
                shown(min)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::routing::initial_chunks;
    use model::range::{KeyBound, KeyRange};

    fn pattern(fields: &[&str]) -> Arc<ShardKeyPattern> {
        let mut key = DocWriter::new();
        for field in fields {
            key.append(field, 1);
        }
        Arc::new(ShardKeyPattern::parse(key.finish().as_doc()).unwrap())
    }

    /// ⚑ What a merged chunk remembers outlives the primary that merged it, and a key that gets further fields.
    #[test]
    fn merged_chunks_are_stored_with_their_parts() {
        let incarnation = Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::new(5, 0),
        };
        let short = pattern(&["k"]);
        let bound = DocWriter::new().with("k", 10).finish();
        let ten = short.bound(bound.as_doc()).unwrap();
        let (a, b) = (ShardId::new("A"), ShardId::new("B"));
        let time = |seconds| ClusterTime::new(seconds, 0);
        let owners = [a.clone(), b];
        let chunks = initial_chunks(&short, std::slice::from_ref(&ten), &owners, time(5));
        let table = RoutingTable::full(Uuid([7; 16]), incarnation, short.clone(), chunks).unwrap();
        let behind = KeyRange::new(ten, KeyBound::after_all());
        let moved = table.moving(&behind, &a, time(6)).unwrap();
        let table = table.with_changes(moved).unwrap();
        let merged = table.merging(&table.whole(), time(7)).unwrap();
        let [(merged, _)] = &merged[..] else {
            panic!("{merged:?}");
        };
        assert_eq!(merged.parts().len(), 2);
        let ends = [ValueRef::MinKey, ValueRef::MaxKey];
        let [min, max] = ends.map(|end| DocWriter::new().with("k", end).finish());
        let id = ObjectId([3; 12]);
        let stored = chunk(id, &table, merged, min.as_doc(), max.as_doc()).unwrap();
        let (read, end) = read_chunk(&short, stored.as_doc()).unwrap();
        assert_eq!((&read, end), (merged, KeyBound::after_all()));
        let long = pattern(&["k", "l"]);
        let (refined, _) = read_chunk(&long, stored.as_doc()).unwrap();
        for (key, owner) in [(9, "A"), (10, "B")] {
            let key = DocWriter::new().with("k", key).with("l", 0).finish();
            let key = long.key_of(key.as_doc()).unwrap();
            assert_eq!(refined.owner_at(&key, time(5)), Some(&ShardId::new(owner)));
        }
    }
}
