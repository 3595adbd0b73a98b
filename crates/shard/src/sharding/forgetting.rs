//! A dead range with many records is forgotten by one entry.
//!
//! ```text
//!   counted, a stretch at a time, with pauses ─► [forget range: bounds, documents, bytes, indexes]
//! ```
//!
//! When that is applied the range is empty for everybody who reads now, and its bytes go on each member when it
//! costs little (`storage/src/store/forgotten.rs`). So nothing is read for it but what is needed to keep
//! counts exact. Why a scan without gate and latches is enough is the
//! same as for single records (`removal.rs`); ⚑ what was counted holds only if the collection is
//! the very same when the entry is appended, with the same ranges and indexes, in the same term. It is
//! counted again if not, a few times; then records go one by one.
//!
//! **Within the window of history too.** The entry says since when nobody sees the records. Until history begins
//! there, each member keeps them for reads at earlier times, where they are; one that is stored over goes into
//! history then, and not before (decision 19). So a range that comes back moments after it was given away waits
//! for the count, and for nothing else.
//!
//! Reads heed all ranges of a collection that were forgotten and may still be stored: few of
//! them, or few records, are not worth one more.

use crate::Shard;
use crate::catalog::Collection;
use crate::primary_services::Tenure;
use model::Error;
use model::ids::{CollectionId, Uuid};
use model::range::KeyRange;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::entry::{Encoder, ForgottenIndex, Header};
use storage::layout::check_user_key;

/// A range of fewer records is not worth a mark.
const RECORDS_MIN: u64 = if cfg!(test) { 10 } else { 10_000 };
/// Ranges that may be forgotten and still stored, of one collection.
const RANGES_MAX: usize = 16;
/// Records that are counted without a pause.
const COUNTED_RECORDS: usize = if cfg!(test) { 4 } else { 20_000 };
/// How often a range is counted.
const ATTEMPTS: usize = 3;

/// What became of a range that was to be forgotten as a whole.
pub(super) enum Whole {
    Forgotten,
    /// Records have to go one by one.
    NotWorthIt,
    TenureOver,
}

/// Records of a range.
#[derive(Default)]
struct Counted {
    documents: u64,
    bytes: u64,
    /// Where the count goes on.
    last: Option<Vec<u8>>,
}

impl Shard {
    /// Forgets a dead range with all its records, if there are many.
    pub(super) async fn forget_range(
        &self,
        id: CollectionId,
        origin: Uuid,
        range: &KeyRange,
        tenure: Option<&Tenure>,
    ) -> Result<Whole, Error> {
        let bounds = [&range.min, &range.max].map(|bound| bound.as_bytes());
        let is_storable = bounds.iter().all(|key| check_user_key(key.len()).is_ok());
        for _ in 0..ATTEMPTS {
            // What is counted from here on holds only while this member leads.
            let term = self.log.leading().map_err(crate::error::from_log)?;
            let Some(known) = self.catalog.by_id(id) else {
                return Ok(Whole::NotWorthIt);
            };
            // ⚑ What was lost by an entry that is not applied has no time yet.
            let since = self.unseen_since(&known, range)?;
            let Some(since) = since.filter(|since| *since <= self.store.applied_time()) else {
                return Ok(Whole::NotWorthIt);
            };
            if !is_storable || self.store.forgotten_ranges(id) >= RANGES_MAX {
                return Ok(Whole::NotWorthIt);
            }
            let Some(counted) = self.count_range(&known, bounds, tenure).await? else {
                return Ok(Whole::TenureOver);
            };
            if counted.documents < RECORDS_MIN {
                return Ok(Whole::NotWorthIt);
            }
            let header = Header {
                origin: Some(&origin.0),
                names: Some(known.name()),
                unseen_since: Some(since),
                ..Header::default()
            };
            let mut payload = Vec::new();
            let mut encoder = Encoder::with_header(&mut payload, header);
            let indexes = self.entries_of_range(&known, counted.documents);
            let sums = (counted.documents, counted.bytes);
            encoder.forget_range(id, (bounds[0], bounds[1]), sums, &indexes);
            if self.propose_unchanged(&known, term, payload).await? {
                let counter = &self.counters.range_deleted_documents;
                counter.fetch_add(counted.documents, Ordering::Relaxed);
                return Ok(Whole::Forgotten);
            }
        }
        Ok(Whole::NotWorthIt)
    }

    /// Counts the records of a range; `None` if the tenure ended first.
    async fn count_range(
        &self,
        collection: &Collection,
        bounds: [&[u8]; 2],
        tenure: Option<&Tenure>,
    ) -> Result<Option<Counted>, Error> {
        let mut counted = Counted::default();
        loop {
            tokio::task::block_in_place(|| self.count_some(collection.id, bounds, &mut counted))?;
            if counted.last.is_none() {
                return Ok(Some(counted));
            }
            // Whoever waits for it sees that it goes on.
            let looked_at = &self.counters.counted_records;
            looked_at.fetch_add(COUNTED_RECORDS as u64, Ordering::Relaxed);
            if let Some(tenure) = tenure {
                let delay = self.parameters.current().range_deleter_batch_delay_ms;
                let pause = Duration::from_millis(u64::try_from(delay).unwrap_or(0));
                tokio::select! {
                    () = tenure.ended() => return Ok(None),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }

    fn count_some(
        &self,
        collection: CollectionId,
        [low, high]: [&[u8]; 2],
        counted: &mut Counted,
    ) -> Result<(), Error> {
        let after = counted.last.take();
        let low = match &after {
            Some(after) => Bound::Excluded(&after[..]),
            None => Bound::Included(low),
        };
        let stretch = storage::KeyRange::new(low, Bound::Excluded(high));
        let snapshot = self.store.snapshot();
        let records = snapshot.scan_records_once(collection, stretch);
        for (at, record) in records.enumerate() {
            let record = record.map_err(crate::error::from_storage)?;
            counted.documents += 1;
            counted.bytes += record.document().len() as u64;
            if at + 1 == COUNTED_RECORDS {
                counted.last = Some(record.key().to_vec());
                break;
            }
        }
        Ok(())
    }

    /// What goes from the indexes with so many documents: their fair share.
    fn entries_of_range(&self, collection: &Collection, documents: u64) -> Vec<ForgottenIndex> {
        let all = self.store.collection_counter(collection.id).items.max(1);
        let share = |number: u64| {
            let share = u128::from(number) * u128::from(documents.min(all)) / u128::from(all);
            u64::try_from(share).unwrap_or(number)
        };
        let indexes = collection.secondary_indexes().map(|(index, _)| {
            let counter = self.store.index_counter(index);
            ForgottenIndex {
                index,
                entries: share(counter.items),
                bytes: share(counter.bytes),
            }
        });
        indexes.collect()
    }
}
