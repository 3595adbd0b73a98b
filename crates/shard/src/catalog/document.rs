//! Catalog documents as they are stored.
//!
//! ```text
//!   meta key  "catalog/collection/" + id as 8 hex digits
//!   value     { ns: string, uuid: binary(4), options: document,
//!               clustering: document (absent: by _id),
//!               indexes: [ { id: int (absent for _id), spec: document,
//!                            state: "ready" | "building" } ] }
//!   meta key  "catalog/since/" + collection id as 8 hex digits
//!   value     { changedAt: Timestamp }    since then the name means this collection
//!   meta key  "catalog/next-id"
//!   value     { collection: int, index: int }    the next ids to give
//! ```
//!
//! The time of a name is that of the entry that gave it, which does not know it while it is encoded; so it
//! has a document of its own, into which it is filled in. Earlier versions did not store it.

use super::{Clustering, Collection, Index, Multikey};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::{CollectionId, IndexId, Uuid};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use query::index::IndexDefinition;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use tokio::sync::RwLock;

const COLLECTION_PREFIX: &str = "catalog/collection/";
const SINCE_PREFIX: &str = "catalog/since/";
const NEXT_ID: &str = "catalog/next-id";

/// Whether an index has all entries yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IndexState {
    /// Every write maintains it; no query may use it.
    Building,
    Ready,
}

/// The keys of catalog documents in the meta space.
pub(crate) struct CatalogKey;

impl CatalogKey {
    pub(crate) const COLLECTIONS: &'static [u8] = COLLECTION_PREFIX.as_bytes();
    pub(crate) const NEXT_ID: &'static [u8] = NEXT_ID.as_bytes();

    pub(crate) fn collection(id: CollectionId) -> Vec<u8> {
        format!("{COLLECTION_PREFIX}{:08x}", id.0).into_bytes()
    }

    /// Where the time of a collection's name is.
    pub(crate) fn since(id: CollectionId) -> Vec<u8> {
        format!("{SINCE_PREFIX}{:08x}", id.0).into_bytes()
    }

    /// The collection a meta key stands for, if it is a catalog document's.
    pub(crate) fn parse(key: &[u8]) -> Option<CollectionId> {
        hexadecimal(key.strip_prefix(Self::COLLECTIONS)?).map(CollectionId)
    }
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Ids that were never given to anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextIds {
    pub(crate) collection: u32,
    pub(crate) index: u32,
}

impl NextIds {
    pub(crate) const FIRST: NextIds = NextIds {
        collection: 1,
        index: 1,
    };

    pub(crate) fn to_document(self) -> DocBuf {
        DocWriter::new()
            .with("collection", i64::from(self.collection))
            .with("index", i64::from(self.index))
            .finish()
    }

    pub(crate) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let number = |name| match doc.get(name) {
            Some(ValueRef::Int64(number)) => u32::try_from(number).ok(),
            _ => None,
        };
        match (number("collection"), number("index")) {
            (Some(collection), Some(index)) => Ok(Self { collection, index }),
            _ => Err(damaged("next ids")),
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a catalog document is damaged: {what}"),
    )
}

impl Collection {
    pub(crate) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("ns", self.namespace.as_str())
            .append(
                "uuid",
                ValueRef::Binary {
                    subtype: 4,
                    bytes: &self.uuid.0,
                },
            )
            .append("options", &self.options);
        if let Some(clustering) = &self.clustering {
            writer.append("clustering", &clustering.key);
        }
        writer.begin_array("indexes");
        for index in &self.indexes {
            writer.push_document();
            if let Some(id) = index.id {
                writer.append("id", i64::from(id.0));
            }
            writer
                .append("spec", &index.definition.spec)
                .append(
                    "state",
                    match index.state {
                        IndexState::Building => "building",
                        IndexState::Ready => "ready",
                    },
                )
                .end();
        }
        writer.end();
        writer.finish()
    }

    /// Reads a stored catalog document. `now_ms` starts the access counters.
    pub(crate) fn from_document(
        id: CollectionId,
        doc: Doc<'_>,
        now_ms: i64,
    ) -> Result<Self, Error> {
        let namespace = doc.get_str("ns").ok_or_else(|| damaged("ns"))?;
        let uuid = match doc.get("uuid") {
            Some(ValueRef::Binary { bytes, .. }) => bytes.try_into().ok(),
            _ => None,
        };
        let mut indexes = Vec::new();
        for index in doc
            .get_array("indexes")
            .ok_or_else(|| damaged("indexes"))?
            .iter()
        {
            let ValueRef::Document(index) = index else {
                return Err(damaged("index"));
            };
            indexes.push(Arc::new(Index::from_document(index, now_ms)?));
        }
        let clustering = match doc.get_doc("clustering") {
            Some(key) => Clustering::by(key)?.map(Arc::new),
            None => None,
        };
        Ok(Self {
            id,
            clustering,
            uuid: Uuid(uuid.ok_or_else(|| damaged("uuid"))?),
            namespace: Namespace::parse(namespace)?,
            options: doc
                .get_doc("options")
                .ok_or_else(|| damaged("options"))?
                .to_owned(),
            indexes,
            ownership: None,
            since: ClusterTime::ZERO,
            gate: Arc::new(RwLock::new(())),
            name: OnceLock::new(),
            made: None,
        })
    }
}

impl Index {
    pub(crate) fn new(
        id: Option<IndexId>,
        definition: IndexDefinition,
        state: IndexState,
        now_ms: i64,
    ) -> Self {
        Self {
            id,
            definition,
            state,
            multikey: Arc::new(Multikey::default()),
            accesses: Arc::new(AtomicU64::new(0)),
            accesses_since_ms: now_ms,
        }
    }

    fn from_document(doc: Doc<'_>, now_ms: i64) -> Result<Self, Error> {
        let id = match doc.get("id") {
            None => None,
            Some(ValueRef::Int64(id)) => {
                Some(IndexId(u32::try_from(id).map_err(|_| damaged("index id"))?))
            }
            Some(_) => return Err(damaged("index id")),
        };
        let spec = doc.get_doc("spec").ok_or_else(|| damaged("index spec"))?;
        let state = match doc.get_str("state") {
            Some("ready") => IndexState::Ready,
            Some("building") => IndexState::Building,
            _ => return Err(damaged("index state")),
        };
        Ok(Self::new(
            id,
            IndexDefinition::from_stored(spec)?,
            state,
            now_ms,
        ))
    }
}
