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
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::key::RecordKey;
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

    fn record_key(&self, document: Doc<'_>) -> Result<RecordKey, Error> {
        let fields = self.pattern.key_of(document)?;
        let id = document.get("_id").unwrap_or(ValueRef::Null);
        Ok(RecordKey::clustered(fields, id))
    }
}

impl Collection {
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
            Some(clustering) if clustering.by_id_alone => {
                let document = DocWriter::new().with("_id", id).finish();
                clustering.record_key(document.as_doc()).ok()
            }
            Some(_) => None,
        }
    }
}
