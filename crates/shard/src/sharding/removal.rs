//! How the records of a dead range go.
//!
//! ```text
//!   many                              counted ─► the range is forgotten, by one entry (`forgetting.rs`)
//!   few, within history's window      read by key, latched, evaluated ─► into history, entry by entry
//!   few that nobody can read          scanned once ─► forgotten, entry by entry
//!   and nothing else is left here     the collection begins anew, empty: one entry
//! ```
//!
//! **Into history.** Reads at a time before the range was lost find them there. It is what every
//! deletion does, and costs more than storing the documents did.
//!
//! **Forgotten, one by one.** Reads at the time at which the range was lost and later do not see it, and times
//! before the start of history cannot be read. So when history begins there or later, one scan
//! gives what an entry needs: keys, lengths, index entries. ⚑ The entry names that time, and each
//! member judges by its own history whether it may leave the versions out (`storage::entry`).
//! Nobody else writes to a dead range: it is not owned, and not received. What was written before
//! it was lost is applied, because the entry by which it was lost was. So no latches are taken, and
//! the scan needs no gate; ⚑ the entry is appended, under the gate, only if the collection is the
//! very one that was scanned, with the same ranges and the same indexes, and only in the same
//! term. Where records of other ranges could have the same keys (the collection is not clustered by
//! its shard key), or an index is being built, whose entries are added under latches, records, however
//! many, go into history.
//!
//! **Anew.** Where the shard owns and receives nothing of the collection, everything that is stored
//! is dead. Under the gate the collection gets other ids, as an empty one of the same name, UUID
//! and indexes; the old ids are dropped, and their files go as a whole where that is possible
//! (`storage/src/store/maintain.rs`). Reads at earlier times are refused from then on. Ids are never
//! given twice, so that this is done for many records only.
//!
//! ⚑ Nothing that is owned or received goes in any of these ways: it is checked for the whole range
//! when each entry is appended, and for each document where keys do not tell.
//!
//! Left out: where a collection is not clustered by its shard key,
//! all of its records are looked at.

use super::forgetting::Whole;
use super::moving::Moving;
use super::ownership::Ownership;
use crate::Shard;
use crate::catalog::Collection;
use crate::command::envelope::WriteConcern;
use crate::ddl::{New, Order, Telling};
use crate::primary_services::Tenure;
use crate::rules::Rule;
use crate::write::Companion;
use model::Error;
use model::bson::Doc;
use model::ids::{CollectionId, Uuid};
use model::key::RecordKey;
use model::range::{KeyRange, RangeSet};
use model::time::ClusterTime;
use replication::{Durability, ProposeError, Term};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::Direction;
use storage::entry::{Encoder, Header, IndexAction, IndexChange};
use storage::layout::check_user_key;

/// Records that are removed at most before a pause.
const BATCH_RECORDS: usize = 1000;
/// Records that one entry removes at most. ⚑ Clients' writes wait behind an entry while the log's thread applies it,
/// and so do the entries by which a move blocks and frees writes: of a whole batch for ten milliseconds and more.
const ENTRY_RECORDS: usize = if cfg!(test) { 4 } else { 128 };
/// Records that a batch looks at.
const BATCH_LOOKS: usize = 20_000;
/// What an entry that forgets records may weigh before it takes no more.
const BATCH_BYTES: usize = 4 << 20;
/// From so many records on a collection is begun anew.
const ANEW_RECORDS_MIN: u64 = if cfg!(test) { 25 } else { 10_000 };

/// Records that were looked at together.
#[derive(Default)]
struct Batch {
    removed: u64,
    /// Where the next batch goes on; `None` at the end.
    last: Option<RecordKey>,
}

/// Records that look dead.
#[derive(Default)]
struct Dead {
    keys: Vec<RecordKey>,
    last: Option<RecordKey>,
}

/// An entry that forgets records.
#[derive(Default)]
struct Forgetting {
    payload: Vec<u8>,
    records: u64,
    last: Option<RecordKey>,
}

impl Shard {
    /// Removes the records of a dead range, and says which id the collection has now; `None` if
    /// the tenure ended first. Without one there are no pauses.
    pub(super) async fn remove_range(
        &self,
        collection: &Arc<Collection>,
        origin: Uuid,
        range: &KeyRange,
        tenure: Option<&Tenure>,
    ) -> Result<Option<CollectionId>, Error> {
        if let Some(anew) = self.begin_anew(collection, range).await? {
            return Ok(Some(anew));
        }
        let id = collection.id;
        match self.forget_range(id, origin, range, tenure).await? {
            Whole::Forgotten => return Ok(Some(id)),
            Whole::TenureOver => return Ok(None),
            Whole::NotWorthIt => {}
        }
        let mut after = None;
        loop {
            let settings = self.parameters.current();
            let records_max = match usize::try_from(settings.range_deleter_batch_size) {
                Ok(size) if size > 0 => size.min(BATCH_RECORDS),
                _ => BATCH_RECORDS,
            };
            let batch = self
                .remove_some(id, origin, range, after.as_ref(), records_max)
                .await?;
            let counter = &self.counters.range_deleted_documents;
            counter.fetch_add(batch.removed, Ordering::Relaxed);
            let Some(last) = batch.last else {
                return Ok(Some(id));
            };
            after = Some(last);
            if batch.removed > 0
                && let Err(error) = self.count_down(origin, batch.removed).await
            {
                tracing::debug!("what is left of a range is not noted: {error}");
            }
            if let Some(tenure) = tenure {
                let pause = u64::try_from(settings.range_deleter_batch_delay_ms).unwrap_or(0);
                tokio::select! {
                    () = tenure.ended() => return Ok(None),
                    () = tokio::time::sleep(Duration::from_millis(pause)) => {}
                }
            }
        }
    }

    /// Removes records until there are as many as a batch has, in short entries.
    async fn remove_some(
        &self,
        id: CollectionId,
        origin: Uuid,
        range: &KeyRange,
        after: Option<&RecordKey>,
        records_max: usize,
    ) -> Result<Batch, Error> {
        let mut batch = Batch {
            removed: 0,
            last: after.cloned(),
        };
        let mut left = records_max;
        loop {
            let entry_max = left.min(ENTRY_RECORDS);
            let after = batch.last.as_ref();
            let forgotten = self.forget_batch(id, origin, range, after, entry_max);
            let entry = match forgotten.await? {
                Some(entry) => entry,
                None => {
                    let removed = self.remove_batch(id, origin, range, after, entry_max);
                    removed.await?
                }
            };
            batch.removed += entry.removed;
            batch.last = entry.last;
            let removed = usize::try_from(entry.removed).unwrap_or(left);
            left = left.saturating_sub(removed);
            // Fewer than asked for: many were looked at, which is worth a pause too.
            if left == 0 || removed < entry_max || batch.last.is_none() {
                return Ok(batch);
            }
        }
    }

    // Into history.

    async fn remove_batch(
        &self,
        collection: CollectionId,
        origin: Uuid,
        range: &KeyRange,
        after: Option<&RecordKey>,
        records_max: usize,
    ) -> Result<Batch, Error> {
        let dead = tokio::task::block_in_place(|| {
            self.dead_records(collection, range, after, records_max)
        })?;
        let mut batch = Batch {
            removed: 0,
            last: dead.last,
        };
        if dead.keys.is_empty() {
            return Ok(batch);
        }
        let keys = &dead.keys;
        let concern = WriteConcern::Applied;
        let written = self.write(collection, concern, keys, |evaluator| {
            if let Some(ownership) = &evaluator.collection().ownership {
                self.check_dead(range, ownership)?;
            }
            evaluator.set_origin(&origin.0);
            let mut removed = 0;
            for key in keys {
                removed += u64::from(evaluator.remove_dead(key, range)?);
            }
            Ok(removed)
        });
        batch.removed = written.await?.unwrap_or(0);
        Ok(batch)
    }

    /// Records of a range that look dead, from a position on.
    fn dead_records(
        &self,
        collection: CollectionId,
        range: &KeyRange,
        after: Option<&RecordKey>,
        records_max: usize,
    ) -> Result<Dead, Error> {
        let mut dead = Dead::default();
        let Some(known) = self.catalog.by_id(collection) else {
            return Ok(dead);
        };
        let Some(ownership) = &known.ownership else {
            return Ok(dead);
        };
        let is_one_place = known.record_keys_follow(&ownership.pattern);
        let low = match (after, is_one_place) {
            (Some(after), _) => Bound::Excluded(after.as_bytes()),
            (None, true) => Bound::Included(range.min.as_bytes()),
            (None, false) => Bound::Unbounded,
        };
        let high = match is_one_place {
            true => Bound::Excluded(range.max.as_bytes()),
            false => Bound::Unbounded,
        };
        let snapshot = self.store.snapshot();
        let stretch = storage::KeyRange::new(low, high);
        let mut looked_at = 0;
        for record in snapshot.scan_records(known.id, stretch, Direction::Forward) {
            let record = record.map_err(crate::error::from_storage)?;
            looked_at += 1;
            let key = RecordKey::from_bytes(record.key());
            if ownership.is_dead(range, Doc::from_validated(record.document())) {
                dead.keys.push(key.clone());
            }
            if dead.keys.len() >= records_max || looked_at >= BATCH_LOOKS {
                dead.last = Some(key);
                break;
            }
        }
        Ok(dead)
    }

    // Forgotten.

    /// `None` if records have to be removed the other way.
    async fn forget_batch(
        &self,
        collection: CollectionId,
        origin: Uuid,
        range: &KeyRange,
        after: Option<&RecordKey>,
        records_max: usize,
    ) -> Result<Option<Batch>, Error> {
        loop {
            // What is scanned from here on holds only while this member leads.
            let term = self.log.leading().map_err(crate::error::from_log)?;
            let Some(known) = self.catalog.by_id(collection) else {
                return Ok(Some(Batch::default()));
            };
            let Some(since) = self.may_forget(&known, range)? else {
                return Ok(None);
            };
            let forgetting = tokio::task::block_in_place(|| {
                self.forgetting(&known, origin, since, range, after, records_max)
            })?;
            let batch = Batch {
                removed: forgetting.records,
                last: forgetting.last,
            };
            if batch.removed == 0 {
                return Ok(Some(batch));
            }
            let payload = forgetting.payload;
            if self.propose_unchanged(&known, term, payload).await? {
                return Ok(Some(batch));
            }
        }
    }

    /// Proposes what was worked out for a collection as it was known then, in the term that was read before.
    /// `false` if it has changed since, or the log had no room: it is to be worked out again.
    pub(super) async fn propose_unchanged(
        &self,
        known: &Arc<Collection>,
        term: Term,
        payload: Vec<u8>,
    ) -> Result<bool, Error> {
        let gate = known.gate.read().await;
        let current = self.catalog.by_id(known.id);
        if !current.is_some_and(|current| Arc::ptr_eq(&current, known)) {
            return Ok(false);
        }
        let log = &self.log;
        let proposed = log.propose_in(term, Durability::Buffered, payload, |_, _, _| {
            Companion::empty()
        });
        drop(gate);
        match proposed {
            Ok(pending) => {
                pending.await.map_err(crate::error::from_log)?;
                Ok(true)
            }
            Err(ProposeError::Busy) => {
                self.log.ready().await.map_err(crate::error::from_log)?;
                Ok(false)
            }
            Err(error) => Err(crate::error::from_log(error)),
        }
    }

    /// Since when nobody sees what is dead in a range, if no time is left at which somebody could. ⚑ Refused
    /// for what is anybody's.
    fn may_forget(
        &self,
        collection: &Collection,
        range: &KeyRange,
    ) -> Result<Option<ClusterTime>, Error> {
        let since = self.unseen_since(collection, range)?;
        Ok(since.filter(|since| *since <= self.history_start()))
    }

    /// Since when nobody sees what is dead in a range, if keys tell what that is and nobody adds entries of indexes.
    /// ⚑ Refused for what is anybody's.
    pub(super) fn unseen_since(
        &self,
        collection: &Collection,
        range: &KeyRange,
    ) -> Result<Option<ClusterTime>, Error> {
        let Some(ownership) = &collection.ownership else {
            return Ok(None);
        };
        self.check_dead(range, ownership)?;
        let since = ownership
            .moving
            .unseen_since(&RangeSet::of([range.clone()]));
        let since = match self.rules.hold(Rule::AwaitWindow) {
            true => since,
            false => ClusterTime::ZERO,
        };
        let is_told_by_key =
            !ownership.unsharded && collection.record_keys_follow(&ownership.pattern);
        Ok((is_told_by_key && all_ready(collection)).then_some(since))
    }

    fn forgetting(
        &self,
        collection: &Collection,
        origin: Uuid,
        since: ClusterTime,
        range: &KeyRange,
        after: Option<&RecordKey>,
        records_max: usize,
    ) -> Result<Forgetting, Error> {
        let fault = crate::error::from_storage;
        let header = Header {
            origin: Some(&origin.0),
            names: Some(collection.name()),
            unseen_since: Some(since),
            ..Header::default()
        };
        let mut forgetting = Forgetting::default();
        let mut encoder = Encoder::with_header(&mut forgetting.payload, header);
        let low = match after {
            Some(after) => Bound::Excluded(after.as_bytes()),
            None => Bound::Included(range.min.as_bytes()),
        };
        let stretch = storage::KeyRange::new(low, Bound::Excluded(range.max.as_bytes()));
        let snapshot = self.store.snapshot();
        let mut entries = Vec::new();
        for record in snapshot.scan_records_once(collection.id, stretch) {
            let record = record.map_err(fault)?;
            let document = Doc::from_validated(record.document());
            entries.clear();
            for (id, index) in collection.secondary_indexes() {
                for key in index.definition.keys(document)?.keys {
                    check_user_key(key.fields.len() + record.key().len()).map_err(fault)?;
                    entries.push((id, key.fields));
                }
            }
            let changes: Vec<IndexChange<'_>> = entries
                .iter()
                .map(|(index, fields)| IndexChange {
                    index: *index,
                    fields,
                    action: IndexAction::Remove,
                })
                .collect();
            let bytes = record.document().len() as u64;
            encoder.forget_record(collection.id, record.key(), bytes, &changes);
            forgetting.records += 1;
            if forgetting.records >= records_max as u64 || encoder.position() >= BATCH_BYTES {
                forgetting.last = Some(RecordKey::from_bytes(record.key()));
                break;
            }
        }
        Ok(forgetting)
    }

    // Anew.

    /// Begins a collection anew of which only dead records are left, and says which id it has
    /// then; `None` if it is not like that.
    async fn begin_anew(
        &self,
        collection: &Arc<Collection>,
        range: &KeyRange,
    ) -> Result<Option<CollectionId>, Error> {
        if !self.is_all_forgettable(collection) {
            return Ok(None);
        }
        let _ddl = self.ddl.lock().await;
        let gate = collection.gate.write().await;
        self.wait_for_proposed().await?;
        // ⚑ What holds now holds until the gate is let go.
        let Some(known) = self.catalog.by_id(collection.id) else {
            return Ok(None);
        };
        let Some(ownership) = known.ownership.as_ref() else {
            return Ok(None);
        };
        self.check_dead(range, ownership)?;
        if !self.is_all_forgettable(&known) {
            return Ok(None);
        }
        let records = self.store.collection_counter(known.id).items;
        // ⚑ A member whose history begins earlier has no versions of these times any more.
        let everything = RangeSet::of([super::whole(&ownership.pattern)]);
        let moving = Moving {
            known_since: Some(ownership.moving.unseen_since(&everything)),
            ..Moving::default()
        };
        let indexes = known.indexes.iter().filter(|it| !it.definition.is_id());
        let clustering = known.clustering.as_ref();
        let anew = New {
            uuid: known.uuid,
            options: known.options.clone(),
            indexes: indexes.map(|index| index.definition.clone()).collect(),
            ownership: Some(Ownership {
                orphans: false,
                moving: Arc::new(moving),
                ..Ownership::clone(ownership)
            }),
            replaces: Some(known.clone()),
            order: Order::Like(clustering.map(|clustering| clustering.key.clone())),
            telling: Telling::Aloud,
            term: None,
        };
        let created = self.create_new(&known.namespace, anew).await?;
        drop(gate);
        let counter = &self.counters.range_deleted_documents;
        counter.fetch_add(records, Ordering::Relaxed);
        Ok(Some(created.id))
    }

    /// Whether nothing is stored of a collection but what may be forgotten, and a lot of it.
    fn is_all_forgettable(&self, collection: &Collection) -> bool {
        let Some(ownership) = &collection.ownership else {
            return false;
        };
        let moving = &ownership.moving;
        let everything = RangeSet::of([super::whole(&ownership.pattern)]);
        !ownership.unsharded
            && ownership.owned.is_empty()
            && moving.receiving.is_empty()
            && moving.blocks.is_empty()
            && all_ready(collection)
            && moving.unseen_since(&everything) <= self.history_start()
            && self.store.collection_counter(collection.id).items >= ANEW_RECORDS_MIN
    }
}

fn all_ready(collection: &Collection) -> bool {
    collection.indexes.iter().all(|index| index.is_ready())
}
