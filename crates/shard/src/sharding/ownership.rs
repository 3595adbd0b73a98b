//! The ranges of a sharded collection that this shard owns.
//!
//! ```text
//!   meta key  "sharding/ownership/" + collection id as 8 hex digits
//!   value     { key: document, unique: bool, placement: {e, t, v}, collectionVersion: {e, t, v},
//!               orphans: bool }
//!   meta key  "sharding/owned/" + collection id as 8 hex digits
//!   value     { ranges: [min, max, min, max, ..] }    encoded bounds as binary, ascending
//! ```
//!
//! Two documents: a split changes the versions and leaves the ranges alone, of which there
//! may be many.
//!
//! *Orphans* are documents that are stored here and not owned. There are none until ranges
//! are given away, because what is not owned cannot be written; as long as there are none,
//! nobody has to look at documents to know that they are owned.

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::CollectionId;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::version::PlacementVersion;
use model::{Code, Error};
use std::sync::Arc;

const OWNERSHIP_PREFIX: &str = "sharding/ownership/";
const OWNED_PREFIX: &str = "sharding/owned/";

/// What this shard owns of one sharded collection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ownership {
    pub(crate) pattern: ShardKeyPattern,
    /// The pattern as it was given.
    pub(crate) key: DocBuf,
    pub(crate) unique: bool,
    /// The highest version of this shard's chunks.
    pub(crate) placement: PlacementVersion,
    /// The highest of all chunks.
    pub(crate) collection_version: PlacementVersion,
    pub(crate) owned: Arc<RangeSet>,
    /// Whether documents may be stored here that are not owned.
    pub(crate) orphans: bool,
}

/// A change of the stored documents; ranges that are not mentioned stay.
pub(crate) struct OwnershipUpdate {
    pub(crate) head: Option<DocBuf>,
    pub(crate) ranges: Option<DocBuf>,
}

/// The keys of ownership documents in the meta space.
pub(crate) struct OwnershipKey;

impl OwnershipKey {
    pub(crate) fn head(id: CollectionId) -> Vec<u8> {
        format!("{OWNERSHIP_PREFIX}{:08x}", id.0).into_bytes()
    }

    pub(crate) fn ranges(id: CollectionId) -> Vec<u8> {
        format!("{OWNED_PREFIX}{:08x}", id.0).into_bytes()
    }

    /// The collection whose versions a meta key holds.
    pub(crate) fn parse_head(key: &[u8]) -> Option<CollectionId> {
        parse(key, OWNERSHIP_PREFIX)
    }

    /// The collection whose ranges a meta key holds.
    pub(crate) fn parse_ranges(key: &[u8]) -> Option<CollectionId> {
        parse(key, OWNED_PREFIX)
    }
}

fn parse(key: &[u8], prefix: &str) -> Option<CollectionId> {
    let digits = std::str::from_utf8(key.strip_prefix(prefix.as_bytes())?).ok()?;
    u32::from_str_radix(digits, 16).ok().map(CollectionId)
}

impl Ownership {
    /// Whether a document belongs to this shard. One whose key cannot be worked out has
    /// no place in any range.
    pub(crate) fn owns(&self, document: Doc<'_>) -> bool {
        match self.pattern.key_of(document) {
            Ok(key) => self.owned.contains(&key),
            Err(_) => false,
        }
    }

    /// Whether a document that is stored here must not be seen.
    pub(crate) fn hides(&self, document: Doc<'_>) -> bool {
        self.orphans && !self.owns(document)
    }

    pub(crate) fn owns_everything(&self) -> bool {
        let whole = KeyRange::new(KeyBound::new(&self.pattern.least()), KeyBound::after_all());
        RangeSet::of([whole]).difference(&self.owned).is_empty()
    }

    /// The same ranges as bounds of a key that has further fields behind this one's.
    pub(crate) fn owned_by(&self, refined: &ShardKeyPattern) -> RangeSet {
        let added = &refined.least()[self.pattern.least().len()..];
        let refine = |bound: &KeyBound| match *bound == KeyBound::after_all() {
            true => bound.clone(),
            false => KeyBound::new(&[bound.as_bytes(), added].concat()),
        };
        let ranges = self.owned.iter();
        RangeSet::of(ranges.map(|range| KeyRange::new(refine(&range.min), refine(&range.max))))
    }

    pub(crate) fn head_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("key", &self.key)
            .append("unique", self.unique)
            .begin_document("placement");
        self.placement.append_to(&mut writer);
        writer.end().begin_document("collectionVersion");
        self.collection_version.append_to(&mut writer);
        writer.end().append("orphans", self.orphans);
        writer.finish()
    }

    pub(crate) fn ranges_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer.begin_array("ranges");
        for range in self.owned.iter() {
            for bound in [&range.min, &range.max] {
                writer.push(ValueRef::Binary {
                    subtype: 0,
                    bytes: bound.as_bytes(),
                });
            }
        }
        writer.end();
        writer.finish()
    }

    pub(crate) fn from_documents(head: Doc<'_>, owned: Arc<RangeSet>) -> Result<Self, Error> {
        let version = |name| {
            let doc = head.get_doc(name).ok_or_else(|| damaged(name))?;
            PlacementVersion::from_document(doc)
        };
        let flag = |name| match head.get(name) {
            Some(ValueRef::Boolean(flag)) => Ok(flag),
            _ => Err(damaged(name)),
        };
        let key = head.get_doc("key").ok_or_else(|| damaged("key"))?;
        Ok(Self {
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            unique: flag("unique")?,
            placement: version("placement")?,
            collection_version: version("collectionVersion")?,
            orphans: flag("orphans")?,
            owned,
        })
    }

    /// The ownership behind an update of `before`.
    pub(crate) fn updated(
        before: Option<&Arc<Ownership>>,
        update: &OwnershipUpdate,
    ) -> Result<Option<Arc<Ownership>>, Error> {
        let Some(head) = &update.head else {
            return Ok(None);
        };
        let owned = match (&update.ranges, before) {
            (Some(ranges), _) => Arc::new(ranges_of(ranges.as_doc())?),
            (None, Some(before)) => before.owned.clone(),
            (None, None) => return Err(damaged("ranges")),
        };
        Self::from_documents(head.as_doc(), owned).map(|read| Some(Arc::new(read)))
    }
}

/// The ranges of a stored document.
pub(crate) fn ranges_of(doc: Doc<'_>) -> Result<RangeSet, Error> {
    let listed = doc.get_array("ranges").ok_or_else(|| damaged("ranges"))?;
    let mut bounds = listed.iter().map(|value| match value {
        ValueRef::Binary { bytes, .. } => Ok(KeyBound::new(bytes)),
        _ => Err(damaged("range")),
    });
    let mut ranges = Vec::new();
    while let Some(min) = bounds.next() {
        let max = bounds.next().ok_or_else(|| damaged("range"))?;
        ranges.push(KeyRange::new(min?, max?));
    }
    Ok(RangeSet::of(ranges))
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a stored ownership is damaged: {what}"),
    )
}
