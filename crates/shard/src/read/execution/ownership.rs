//! Only documents that belong to this shard are yielded.
//!
//! A snapshot is read with the ownership that holds in it. Entries that change ownership end
//! their batch (see `sharding/mod.rs`), so it is enough that memory shows the same ownership
//! before and after the snapshot was taken. Documents are looked at one by one only where
//! some may belong to others. A read at an earlier time uses the ranges of that time ⚑.
//!
//! ⚑ A read that may need documents of a range that is blocked for reads keeps no snapshot: it
//! waits and begins again (`sharding/waiting.rs`). One that has its snapshot goes on.
//!
//! Between two batches of a cursor documents may have come that are not owned. So whatever is
//! read from an index alone has the shard key with it, and what has not, and is not counted at
//! once, ends with an error.
//!
//! A cursor whose collection has other ranges in its next batch ends with an error: what it
//! returned so far and what it would return now are not parts of one answer. A router whose scan it
//! was a part of asks again, from the place where it stood. What was sorted already was read from one
//! snapshot and stays an answer.

use super::super::scan::Windows;
use super::{Execution, Found, Query, Stage};
use crate::catalog::Collection;
use crate::rules::Rule;
use crate::sharding::{Ownership, read_again, stale_config};
use crate::{Shard, Snapshot};
use model::bson::Doc;
use model::range::{KeyRange, RangeSet};
use model::time::ClusterTime;
use model::{Code, Error};
use query::path::Path;
use query::plan::{Access, shard_key_ranges};
use std::sync::Arc;

/// Ranges that a scan goes to one after the other. Among more of them it would seek more than it scans: there it
/// looks at what lies between them too.
const WINDOWS_MAX: usize = 256;

/// A snapshot, and the collection with the ownership that a query reads it with.
pub(super) fn snapshot_of(
    shard: &Shard,
    collection: &Arc<Collection>,
    query: &Query,
) -> Result<(Arc<Collection>, Snapshot), Error> {
    let mut collection = collection.clone();
    loop {
        let snapshot = shard.store.snapshot();
        let Some(ownership) = &collection.ownership else {
            return Ok((collection, snapshot));
        };
        match shard.catalog.by_id(collection.id) {
            Some(now) if !now.has_the_same_ownership(&collection) => collection = now,
            _ => {
                check_words(shard, &collection, ownership, query)?;
                if waits(shard, ownership, query) {
                    return Err(read_again(&collection.namespace));
                }
                let read_with = match query.at {
                    Some(time) if shard.rules.hold(Rule::OwnerAtTime) => {
                        collection.owned_at(time)?
                    }
                    Some(_) | None => collection.clone(),
                };
                return Ok((read_with, snapshot));
            }
        }
    }
}

/// ⚑ The error for ranges that are named by another shard key than the one that is read with.
fn check_words(
    shard: &Shard,
    collection: &Collection,
    ownership: &Ownership,
    query: &Query,
) -> Result<(), Error> {
    let part = query.part.as_ref();
    let named_by = part.and_then(|part| part.of_another_life(ownership.placement));
    match named_by {
        Some(received) => Err(stale_config(
            &shard.sharding,
            &collection.namespace,
            received,
            Some(ownership.placement),
        )),
        None => Ok(()),
    }
}

/// Whether a query may need documents that are blocked.
fn waits(shard: &Shard, ownership: &Ownership, query: &Query) -> bool {
    let asked = query.part.as_ref().and_then(|part| part.ranges.as_ref());
    !query.sees_orphans
        && shard.rules.hold(Rule::BlockReads)
        && ownership.keeps_away(&query.filter, asked, query.at)
}

impl Collection {
    /// The collection with what this shard owned of it at a time.
    fn owned_at(self: &Arc<Self>, time: ClusterTime) -> Result<Arc<Self>, Error> {
        let Some(ownership) = &self.ownership else {
            return Ok(self.clone());
        };
        let mut collection = self.copy();
        collection.ownership = Some(Arc::new(ownership.at(time)?));
        Ok(Arc::new(collection))
    }
}

/// A query that can be answered from an index alone needs the shard key too, where
/// documents have to be told apart by it.
pub(super) fn with_shard_key(mut query: Query, collection: &Collection) -> Query {
    if let (Some(needed), Some(ownership)) = (&mut query.needed, &collection.ownership)
        && (ownership.orphans
            || !needed.is_empty()
            || query.part.as_ref().is_some_and(|part| part.is_restricted()))
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
                (!self.query.sees_orphans && ownership.hides(document))
                    || outside(self.restriction.as_ref(), ownership, document)
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
        if self.collection.ownership.is_none() || self.query.at.is_some() {
            return false;
        }
        match self.shard.catalog.by_id(self.collection.id) {
            Some(now) if !now.has_the_same_ownership(&self.collection) => {
                self.collection = now;
                self.restrict();
                true
            }
            _ => false,
        }
    }

    /// Looks which documents a part of a scan is about, given what is owned.
    pub(super) fn restrict(&mut self) {
        let Some(ownership) = &self.collection.ownership else {
            return;
        };
        let part = self.query.part.as_ref();
        let Some(part) = part.filter(|part| part.is_restricted()) else {
            if !self.query.sees_orphans && self.scans_records() {
                let ownership = ownership.clone();
                self.look_through(&ownership.owned);
            }
            return;
        };
        // No other key matches.
        let wanted = shard_key_ranges(&self.query.filter, &ownership.pattern);
        let shown = ownership.owned.intersection(&wanted);
        let here = part.of(&shown);
        if here.is_empty() {
            self.stage = Stage::Ended;
        }
        self.look_through(&here);
        self.restriction = (here != shown).then_some(here);
    }

    /// Looks at records of these ranges only, if it is known where they lie.
    fn look_through(&mut self, ranges: &RangeSet) {
        self.windows = self.windows_of(ranges);
        let windows = self.windows.as_deref();
        self.windows_decide = windows.is_some_and(|windows| windows == ranges.as_slice());
    }

    /// Where records of these ranges lie, if that is known. ⚑ What lies between them is not looked at: it may be as
    /// much as what is owned, and dead, or just coming.
    fn windows_of(&self, ranges: &RangeSet) -> Option<Windows> {
        let ownership = self.collection.ownership.as_ref()?;
        if ownership.unsharded || !self.collection.record_keys_follow(&ownership.pattern) {
            return None;
        }
        Some(match ranges.as_slice() {
            [first, .., last] if ranges.as_slice().len() > WINDOWS_MAX => {
                [KeyRange::new(first.min.clone(), last.max.clone())].into()
            }
            ranges => ranges.into(),
        })
    }

    fn scans_records(&self) -> bool {
        matches!(self.planned.plan.access, Access::Records { .. })
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

    /// ⚑ The error for a record that was looked up, or was not found, where it must be waited for.
    pub(super) fn check_readable(&self, found: Option<Doc<'_>>) -> Result<(), Error> {
        let Some(ownership) = &self.collection.ownership else {
            return Ok(());
        };
        let keeps_away = match found {
            _ if self.query.sees_orphans => false,
            Some(document) => {
                self.shard.rules.hold(Rule::BlockReads)
                    && ownership.blocks_reads(document, self.query.at)
            }
            None => waits(&self.shard, ownership, &self.query),
        };
        match keeps_away {
            true => Err(read_again(&self.collection.namespace)),
            false => Ok(()),
        }
    }

    /// The error for a batch with other ranges than the batches before. What came to be stored
    /// without being owned is told apart from now on.
    pub(super) fn check_ownership(&mut self) -> Result<(), Error> {
        let is_sorted = matches!(self.stage, Stage::Sorted(_));
        let is_read =
            is_sorted && (self.query.part.is_some() || self.collection.ownership.is_none());
        self.check_not_given_away()?;
        if self.query.at.is_some() || is_read {
            return Ok(());
        }
        let Some(now) = self.shard.catalog.by_id(self.collection.id) else {
            return Ok(());
        };
        let is_as_before = match (&self.collection.ownership, now.sharded_ownership()) {
            (None, None) => return Ok(()),
            // ⚑ It was sharded meanwhile. As long as all of it is here nothing else has changed.
            (None, Some(now)) => now.owns_everything(),
            (Some(_), _) => now.owns_the_same(&self.collection),
        };
        let killed = |why| {
            let message = format!("the ranges of {} {why}", self.collection.namespace);
            Err(Error::new(Code::QUERY_PLAN_KILLED, message))
        };
        if !is_as_before {
            return killed("that belong to this shard changed");
        }
        if let Some(ownership) = &now.ownership
            && ownership.orphans
            && let Some(needed) = &self.query.needed
            && !self.query.sees_orphans
            && !(ownership.pattern.fields().iter())
                .all(|field| needed.contains(&Path::new(&field.path)))
        {
            return killed("that do not belong to this shard cannot be told apart by this plan");
        }
        if !now.has_the_same_ownership(&self.collection) {
            let mut collection = self.collection.copy();
            collection.ownership = now.ownership.clone();
            self.collection = Arc::new(collection);
        }
        Ok(())
    }
}

impl Execution {
    /// ⚑ The error for a cursor on a collection that has gone to another shard with its database: what is
    /// still stored is not what is there now.
    fn check_not_given_away(&self) -> Result<(), Error> {
        let Some(now) = self.shard.catalog.by_id(self.collection.id) else {
            return Ok(());
        };
        match &now.ownership {
            Some(now) if now.unsharded && now.owned.is_empty() => Err(Error::new(
                Code::QUERY_PLAN_KILLED,
                format!(
                    "{} has moved to another shard with its database",
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
