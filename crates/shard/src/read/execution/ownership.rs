//! Only documents that belong to this shard are yielded.
//!
//! A snapshot is read with the ownership that holds in it. Entries that change ownership end
//! their batch (see `sharding/mod.rs`), so it is enough that memory shows the same ranges
//! before and after the snapshot was taken. Documents are looked at one by one only where
//! some may belong to others.
//!
//! A cursor whose collection has other ranges in its next batch ends with an error: what it
//! returned so far and what it would return now are not parts of one answer. A router whose scan it
//! was a part of asks again, from the place where it stood. What was sorted already was read from one
//! snapshot and stays an answer.

use super::{Execution, Found, Query, Stage};
use crate::catalog::Collection;
use crate::sharding::Ownership;
use crate::{Shard, Snapshot};
use model::bson::Doc;
use model::range::{KeyRange, RangeSet};
use model::{Code, Error};
use query::path::Path;
use query::plan::shard_key_ranges;
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
        && (ownership.orphans
            || query
                .part
                .as_ref()
                .is_some_and(|part| part.ranges.is_some()))
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
            Some(ownership) => {
                let document = found.document();
                ownership.hides(document) || outside(self.restriction.as_ref(), ownership, document)
            }
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
                self.restrict();
                true
            }
            _ => false,
        }
    }

    /// Looks which documents a part of a scan is about, given what is owned.
    pub(super) fn restrict(&mut self) {
        let part = self.query.part.as_ref();
        let (Some(asked), Some(ownership)) = (
            part.and_then(|part| part.ranges.as_ref()),
            &self.collection.ownership,
        ) else {
            return;
        };
        // No other key matches.
        let wanted = shard_key_ranges(&self.query.filter, &ownership.pattern);
        let shown = ownership.owned.intersection(&wanted);
        let here = shown.intersection(asked);
        if here.is_empty() {
            self.stage = Stage::Ended;
        }
        if self.collection.record_keys_follow(&ownership.pattern)
            && let (Some(first), Some(last)) = (here.as_slice().first(), here.as_slice().last())
        {
            self.window = Some(KeyRange::new(first.min.clone(), last.max.clone()));
        }
        self.restriction = (here != shown).then_some(here);
    }

    /// What of the ranges asked for is not owned in the snapshot that was read.
    pub(super) fn not_owned(&self) -> RangeSet {
        let part = self.query.part.as_ref();
        match (
            part.and_then(|part| part.ranges.as_ref()),
            &self.collection.ownership,
        ) {
            (Some(asked), Some(ownership)) => asked.difference(&ownership.owned),
            (Some(asked), None) => asked.clone(),
            (None, _) => RangeSet::new(),
        }
    }

    /// The error for a batch with other ranges than the batches before.
    pub(super) fn check_ownership(&self) -> Result<(), Error> {
        let is_read = self.query.part.is_some() && matches!(self.stage, Stage::Sorted(_));
        if self.collection.ownership.is_none() || is_read {
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

/// Whether a document is in none of the ranges that are asked for.
pub(super) fn outside(
    restriction: Option<&RangeSet>,
    ownership: &Ownership,
    document: Doc<'_>,
) -> bool {
    let Some(asked) = restriction else {
        return false;
    };
    match ownership.pattern.key_of(document) {
        Ok(key) => !asked.contains(&key),
        Err(_) => true,
    }
}
