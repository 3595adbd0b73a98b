//! Only documents that belong to this shard are yielded.
//!
//! A snapshot is read with the ownership that holds in it. Entries that change ownership end
//! their batch (see `sharding/mod.rs`), so it is enough that memory shows the same ranges
//! before and after the snapshot was taken. Documents are looked at one by one only where
//! some may belong to others.
//!
//! A cursor whose collection has other ranges in its next batch ends with an error: what it
//! returned so far and what it would return now are not parts of one answer.

use super::{Execution, Found, Query};
use crate::catalog::Collection;
use crate::{Shard, Snapshot};
use model::{Code, Error};
use query::path::Path;
use std::sync::Arc;

/// A snapshot, and the collection with the ownership that holds in it.
pub(super) fn snapshot_of(
    shard: &Shard,
    collection: &Arc<Collection>,
) -> (Arc<Collection>, Snapshot) {
    let mut collection = collection.clone();
    loop {
        let snapshot = shard.store.snapshot();
        if collection.ownership.is_none() {
            return (collection, snapshot);
        }
        match shard.catalog.by_id(collection.id) {
            Some(now) if !now.owns_the_same(&collection) => collection = now,
            _ => return (collection, snapshot),
        }
    }
}

/// A query that can be answered from an index alone needs the shard key too, where
/// documents have to be told apart by it.
pub(super) fn with_shard_key(mut query: Query, collection: &Collection) -> Query {
    if let (Some(needed), Some(ownership)) = (&mut query.needed, &collection.ownership)
        && ownership.orphans
    {
        for field in ownership.pattern.fields() {
            let path = Path::new(&field.path);
            if !needed.contains(&path) {
                needed.push(path);
            }
        }
    }
    query
}

impl Execution {
    /// Whether a document belongs to another shard; it is counted then.
    pub(super) fn hides(&mut self, found: &Found) -> bool {
        let hidden = match &self.collection.ownership {
            Some(ownership) => ownership.hides(found.document()),
            None => false,
        };
        if hidden {
            self.statistics.hidden += 1;
            self.statistics.matched -= 1;
        }
        hidden
    }

    /// Whether a record that was looked up must be looked up again, with other ranges.
    pub(super) fn ownership_changed(&mut self) -> bool {
        if self.collection.ownership.is_none() {
            return false;
        }
        match self.shard.catalog.by_id(self.collection.id) {
            Some(now) if !now.owns_the_same(&self.collection) => {
                self.collection = now;
                true
            }
            _ => false,
        }
    }

    /// The error for a batch with other ranges than the batches before.
    pub(super) fn check_ownership(&self) -> Result<(), Error> {
        if self.collection.ownership.is_none() {
            return Ok(());
        }
        match self.shard.catalog.by_id(self.collection.id) {
            Some(now) if !now.owns_the_same(&self.collection) => Err(Error::new(
                Code::QUERY_PLAN_KILLED,
                format!(
                    "the ranges of {} that belong to this shard changed",
                    self.collection.namespace
                ),
            )),
            _ => Ok(()),
        }
    }
}
