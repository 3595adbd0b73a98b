//! What the records of a collection are ordered by.
//!
//! ```text
//!   by _id          record key = encoded _id                     the index on _id is the records
//!   by shard key    record key = encoded shard key, encoded _id  the index on _id has entries
//! ```
//!
//! A collection that is sharded while it is empty is clustered by its shard key, so that a
//! range of it is one place. Its index on `_id` is an index like others, with an id of its own
//! and unique; orphans do not count in it, because one of them and an owned document may have
//! the same `_id`. The clustering belongs to the collection for its life: refining the shard
//! key does not change it.

use super::Collection;
use model::Error;
use model::bson::{Doc, DocBuf, ValueRef};
use model::key::{Direction, RecordKey, skip_value};
use model::shard_key::ShardKeyPattern;

/// The fields before `_id` in record keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Clustering {
    pattern: ShardKeyPattern,
    /// Whether `_id` alone says where a record is.
    by_id_alone: bool,
    /// The pattern as it is stored.
    pub(crate) key: DocBuf,
}

impl Clustering {
    /// The clustering by a shard key; none if that is the order of `_id`s.
    pub(crate) fn by(key: Doc<'_>) -> Result<Option<Self>, Error> {
        let pattern = ShardKeyPattern::parse(key)?;
        let fields = pattern.fields();
        if fields[0].path.as_ref() == "_id" && !fields[0].hashed {
            return Ok(None);
        }
        Ok(Some(Self {
            by_id_alone: fields.iter().all(|field| field.path.as_ref() == "_id"),
            key: key.to_owned(),
            pattern,
        }))
    }

    pub(crate) fn pattern(&self) -> &ShardKeyPattern {
        &self.pattern
    }

    /// Whether a document that was changed stays where it is: `_id` never changes, and what it is clustered
    /// by besides is as it was.
    fn keeps_place(&self, before: Doc<'_>, after: Doc<'_>) -> bool {
        self.by_id_alone || is_untouched(&self.pattern, before, after)
    }

    fn record_key(&self, document: Doc<'_>) -> Result<RecordKey, Error> {
        let fields = self.pattern.key_of(document)?;
        let id = document.get("_id").unwrap_or(ValueRef::Null);
        Ok(RecordKey::clustered(fields, id))
    }
}

/// Whether all fields of a shard key are what they were.
fn is_untouched(pattern: &ShardKeyPattern, before: Doc<'_>, after: Doc<'_>) -> bool {
    let mut fields = pattern.fields().iter();
    fields.all(|field| query::index::is_untouched(&field.path, before, after))
}

impl Collection {
    /// Where a document goes that was changed; `None` if it stays.
    pub(crate) fn other_place(
        &self,
        key: &RecordKey,
        before: Doc<'_>,
        after: Doc<'_>,
    ) -> Result<Option<RecordKey>, Error> {
        match &self.clustering {
            Some(clustering) if !clustering.keeps_place(before, after) => {
                let place = clustering.record_key(after)?;
                Ok((place != *key).then_some(place))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// The shard key that a record's key begins with, if records are ordered by it and it is still the
    /// document's: that spares a look at the document, and its hash.
    pub(crate) fn shard_key_in<'k>(
        &self,
        key: &'k RecordKey,
        pattern: &ShardKeyPattern,
        before: Doc<'_>,
        after: Doc<'_>,
    ) -> Option<&'k [u8]> {
        let clustering = self.clustering.as_ref()?;
        if clustering.pattern != *pattern || !is_untouched(pattern, before, after) {
            return None;
        }
        let bytes = key.as_bytes();
        let mut end = 0;
        for _ in pattern.fields() {
            end += skip_value(&bytes[end..], Direction::Ascending).ok()?;
        }
        Some(&bytes[..end])
    }

    /// Where a document is stored. An error if its shard key has an array.
    pub(crate) fn record_key(&self, document: Doc<'_>) -> Result<RecordKey, Error> {
        match &self.clustering {
            Some(clustering) => clustering.record_key(document),
            None => {
                let id = document.get("_id").unwrap_or(ValueRef::Null);
                Ok(RecordKey::from_id(id))
            }
        }
    }

    /// The same for an insert: what has no place is told so when it is evaluated, by the
    /// check of what is owned.
    pub(crate) fn record_key_to_insert(&self, document: Doc<'_>) -> RecordKey {
        self.record_key(document)
            .unwrap_or_else(|_| RecordKey::from_id(document.get("_id").unwrap_or(ValueRef::Null)))
    }

    /// Whether records are ordered by this shard key before anything else, so that its ranges
    /// are ranges of records.
    pub(crate) fn record_keys_follow(&self, shard_key: &ShardKeyPattern) -> bool {
        match &self.clustering {
            Some(clustering) => clustering.pattern == *shard_key,
            None => {
                let fields = shard_key.fields();
                fields.len() == 1 && fields[0].path.as_ref() == "_id" && !fields[0].hashed
            }
        }
    }

    /// Whether an `_id` says where its record is: then the record's key is as unique.
    pub(crate) fn is_found_by_id(&self) -> bool {
        match &self.clustering {
            None => true,
            Some(clustering) => clustering.by_id_alone,
        }
    }

    /// Where the document with this `_id` is stored, if that says it.
    pub(crate) fn record_key_of_id(&self, id: ValueRef<'_>) -> Option<RecordKey> {
        match &self.clustering {
            None => Some(RecordKey::from_id(id)),
            // An array has no place in a shard key.
            Some(clustering) if clustering.by_id_alone && !matches!(id, ValueRef::Array(_)) => {
                let fields = clustering.pattern.fields().iter().map(|_| id);
                let fields = clustering.pattern.key_of_values(fields);
                Some(RecordKey::clustered(fields, id))
            }
            Some(_) => None,
        }
    }
}
