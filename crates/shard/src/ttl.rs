//! Expiry of documents: indexes with `expireAfterSeconds`.
//!
//! ```text
//!   every ttlMonitorSleepSecs, and when a parameter changes:
//!     each such index ─► its entries between the first date and now - seconds, in batches
//!       ─► latch ─► is the latest version still expired? ─► removed, through the log
//! ```
//!
//! The index itself knows which documents expire: values that are no dates lie
//! outside of the scanned stretch, an array has one entry for each of its dates,
//! and a partial index has no entries for the rest. Whether a document is still
//! expired when its turn comes is asked in the same way, of its latest version.
//!
//! Clocks decide only *when* a document goes, never whether replicas agree: the
//! removal is an entry of the log like any other.
//!
//! A pass looks for a shutdown between batches; what was appended is applied.

use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::command::envelope::WriteConcern;
use crate::primary_services::Tenure;
use model::Error;
use model::bson::ValueRef;
use model::ids::{CollectionId, IndexId};
use model::key::{Direction as KeyDirection, KeyBuilder, RecordKey};
use query::index::FieldKind;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::{Direction, KeyRange};

/// Documents that one entry of the log removes.
const BATCH_DOCUMENTS: usize = 500;

/// An index whose entries expire, with the stretch that has.
struct Expiring {
    collection: CollectionId,
    index: IndexId,
    name: String,
    /// Encoded fields.
    expired: RangeInclusive<Vec<u8>>,
}

/// Runs while this member is the primary.
pub(crate) async fn run(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut settings = shard.parameters.watch();
    loop {
        let now = *settings.borrow_and_update();
        let sleep = Duration::from_secs(now.ttl_sleep_secs.max(1).unsigned_abs().into());
        tokio::select! {
            () = tenure.ended() => return,
            () = tokio::time::sleep(sleep) => {}
            changed = settings.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        if settings.borrow().ttl_enabled {
            shard.expire_documents().await;
        }
    }
}

impl Shard {
    /// One pass over all indexes that expire documents.
    pub(crate) async fn expire_documents(self: &Arc<Self>) {
        for expiring in self.expiring_indexes() {
            match self.expire(&expiring).await {
                Ok(removed) if removed > 0 => {
                    tracing::debug!("{removed} documents expired by index {}", expiring.name);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(
                        "documents of index {} do not expire: {error}",
                        expiring.name
                    );
                }
            }
            if self.is_shutting_down() {
                return;
            }
        }
        self.counters.ttl_passes.fetch_add(1, Ordering::Relaxed);
    }

    fn expiring_indexes(&self) -> Vec<Expiring> {
        let now_ms = self.clock.now_ms();
        let catalog = self.catalog.current();
        let mut found = Vec::new();
        for collection in catalog.collections() {
            for (id, index) in collection.secondary_indexes() {
                if let Some(expired) = expired_stretch(index, now_ms) {
                    found.push(Expiring {
                        collection: collection.id,
                        index: id,
                        name: format!("{}.{}", collection.namespace, index.definition.name),
                        expired,
                    });
                }
            }
        }
        found
    }

    async fn expire(self: &Arc<Self>, expiring: &Expiring) -> Result<u64, Error> {
        let mut removed = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (keys, position) =
                tokio::task::block_in_place(|| self.expired_batch(expiring, after.as_deref()))?;
            let Some(position) = position else {
                return Ok(removed);
            };
            after = Some(position);
            let keys: Vec<RecordKey> = keys.into_iter().collect();
            let written = self
                .write(
                    expiring.collection,
                    WriteConcern::Applied,
                    &keys,
                    |evaluator| {
                        let mut count = 0;
                        for key in &keys {
                            let Some(version) = evaluator.latest(key)? else {
                                continue;
                            };
                            let current = evaluator.collection();
                            if still_expired(current, expiring, version.doc())? {
                                evaluator.remove(key.clone(), &version)?;
                                count += 1;
                            }
                        }
                        Ok(count)
                    },
                )
                .await?;
            let Some(count) = written else {
                return Ok(removed);
            };
            removed += count;
            self.counters
                .ttl_deleted
                .fetch_add(count, Ordering::Relaxed);
            self.counters.deleted(count as i64);
            if self.is_shutting_down() {
                return Ok(removed);
            }
        }
    }

    /// Records of the next expired entries, and the position behind them;
    /// none at the end of the stretch.
    fn expired_batch(
        &self,
        expiring: &Expiring,
        after: Option<&[u8]>,
    ) -> Result<(BTreeSet<RecordKey>, Option<Vec<u8>>), Error> {
        let end = model::key::prefix_end(expiring.expired.end());
        let range = KeyRange::new(
            after.map_or(
                Bound::Included(&expiring.expired.start()[..]),
                Bound::Excluded,
            ),
            end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
        );
        let snapshot = self.store.snapshot();
        let mut keys = BTreeSet::new();
        let mut position = None;
        for entry in snapshot
            .scan_index(expiring.index, range, Direction::Forward)
            .take(BATCH_DOCUMENTS)
        {
            let entry = entry.map_err(crate::error::from_storage)?;
            keys.insert(RecordKey::from_bytes(entry.record_key()));
            position = Some(entry.fields_and_record_key().to_vec());
        }
        Ok((keys, position))
    }
}

/// Where the expired entries of an index lie, if it expires any.
fn expired_stretch(index: &Index, now_ms: i64) -> Option<RangeInclusive<Vec<u8>>> {
    let seconds = index.definition.expire_after_seconds?;
    let [field] = &index.definition.fields[..] else {
        return None;
    };
    if !index.is_ready() || seconds < 0 {
        return None;
    }
    let encoded = |time_ms: i64, direction: KeyDirection| {
        let mut builder = KeyBuilder::new();
        builder.push(ValueRef::DateTime(time_ms), direction);
        builder.finish().0
    };
    let latest_ms = now_ms.checked_sub(seconds.checked_mul(1000)?)?;
    match field.kind {
        FieldKind::Ascending => {
            let direction = KeyDirection::Ascending;
            Some(encoded(i64::MIN, direction)..=encoded(latest_ms, direction))
        }
        FieldKind::Descending => {
            let direction = KeyDirection::Descending;
            Some(encoded(latest_ms, direction)..=encoded(i64::MIN, direction))
        }
        // Hashes have no order: nothing ever expires by them.
        FieldKind::Hashed => None,
    }
}

/// Whether a version still has an expired entry. An index that was changed
/// meanwhile is left for the next pass.
fn still_expired(
    collection: &Collection,
    expiring: &Expiring,
    doc: model::bson::Doc<'_>,
) -> Result<bool, Error> {
    let Some((_, index)) = collection
        .secondary_indexes()
        .find(|(id, _)| *id == expiring.index)
    else {
        return Ok(false);
    };
    let keys = index.definition.keys(doc)?;
    Ok(keys
        .keys
        .iter()
        .any(|key| expiring.expired.contains(&key.fields)))
}
