//! Removing what is left of ranges that are not owned.
//!
//! ```text
//!   config.rangeDeletions
//!     { _id: UUID, nss, collectionUuid: UUID, donorShardId, range: {min, max}, whenToClean: "now" | "delayed",
//!       pending: true, numOrphanDocs: long, timestamp: Timestamp, encoded: {min: binary, max: binary} }
//!
//!   put by a move's entry ─► pending no more ─► due ─► batches: latest version, still dead? ─► removed,
//!     through the log ─► one entry: the range is not dead any more, the document is gone
//! ```
//!
//! The documents are MongoDB's, except for `encoded`: bounds as bytes stay bounds when the shard
//! key is refined. `pending` is absent once the range may be removed; `timestamp` says since when.
//! `numOrphanDocs` becomes less batch by batch, each time a little after the batch: a crash in between leaves
//! it too high until the document goes. What a move is bringing is counted by its recipient.
//!
//! ⚑ A deletion of anything that is owned or received is refused when it is registered and when
//! it is carried out (`removal.rs`): documents in `config.rangeDeletions` may come from anywhere.
//!
//! What is removed goes into history while the window of history lasts, so reads at an earlier
//! time, and snapshots that are open, find it on every member. That is why nobody has to be waited
//! for; a deletion is *delayed* (`orphanCleanupDelaySecs`) only to spare history the copies.
//!
//! A service of the primary carries deletions out, one after the other, driven by the documents
//! alone; what a failover interrupts is begun again, and finds less. A recipient of a range that
//! still holds dead data does not wait for the service: [`Shard::remove_dead`].

use super::moving::damaged;
use super::ownership::Ownership;
use super::transition::{Expectation, StateChange, StateWrite, Transition};
use crate::Shard;
use crate::catalog::Collection;
use crate::operation::Operation;
use crate::primary_services::Tenure;
use crate::rules::Rule;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::Direction;
use tokio::sync::Notify;

/// When a range may be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenToClean {
    Now,
    Delayed,
}

/// A document of `config.rangeDeletions`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RangeDeletion {
    pub(crate) id: Uuid,
    pub(crate) namespace: Namespace,
    pub(crate) collection: Uuid,
    pub(crate) donor: String,
    pub(crate) range: KeyRange,
    /// The bounds, as people read them.
    pub(crate) min: DocBuf,
    pub(crate) max: DocBuf,
    pub(crate) when: WhenToClean,
    /// Whether it waits for the decision of a move.
    pub(crate) pending: bool,
    pub(crate) documents: i64,
    pub(crate) since: ClusterTime,
}

/// What those who wait for each other share.
#[derive(Default)]
pub(crate) struct RangeDeleter {
    /// There may be something to do.
    wake: Notify,
    /// A deletion has come to its end.
    ended: Notify,
    /// One deletion at a time.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// Documents that are no range deletions and of which the log has told, by their record keys.
    told: Mutex<BTreeSet<Box<[u8]>>>,
}

/// So many are told once; where there are more, all are told again.
const TOLD_MAX: usize = 1_000;

impl RangeDeleter {
    /// ⚑ Whoever wrote it: nothing is removed because of it. The documents are read often.
    fn passes_over(&self, key: &[u8], document: Doc<'_>, error: &Error) {
        let mut told = self.told.lock();
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        if told.insert(key.into()) {
            let id = document.get("_id").map(model::text::value_quoted);
            let id = id.unwrap_or_default();
            tracing::warn!("config.rangeDeletions: {id} is passed over, it is none: {error}");
        }
    }
}

fn uuid(doc: Doc<'_>, name: &'static str) -> Result<Uuid, Error> {
    match doc.get(name) {
        Some(ValueRef::Binary { subtype: 4, bytes }) => {
            bytes.try_into().map(Uuid).map_err(|_| damaged(name))
        }
        _ => Err(damaged(name)),
    }
}

fn uuid_value(uuid: &Uuid) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 4,
        bytes: &uuid.0,
    }
}

impl RangeDeletion {
    pub(crate) fn namespace_of_documents() -> Result<Namespace, Error> {
        Namespace::new("config", "rangeDeletions")
    }

    pub(crate) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("_id", uuid_value(&self.id))
            .append("nss", self.namespace.as_str())
            .append("collectionUuid", uuid_value(&self.collection))
            .append("donorShardId", self.donor.as_str())
            .begin_document("range")
            .append("min", &self.min)
            .append("max", &self.max)
            .end();
        let when = match self.when {
            WhenToClean::Now => "now",
            WhenToClean::Delayed => "delayed",
        };
        writer.append("whenToClean", when);
        if self.pending {
            writer.append("pending", true);
        }
        let bound = |bound: &'_ KeyBound| bound.as_bytes().to_vec();
        writer
            .append("numOrphanDocs", self.documents)
            .append("timestamp", self.since)
            .begin_document("encoded");
        for (name, bound) in [
            ("min", bound(&self.range.min)),
            ("max", bound(&self.range.max)),
        ] {
            let bytes = &bound[..];
            writer.append(name, ValueRef::Binary { subtype: 0, bytes });
        }
        writer.end();
        writer.finish()
    }

    pub(crate) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let text = |name| doc.get_str(name).ok_or_else(|| damaged(name));
        let range = doc.get_doc("range").ok_or_else(|| damaged("range"))?;
        let encoded = doc.get_doc("encoded").ok_or_else(|| damaged("encoded"))?;
        let bound = |name| match encoded.get(name) {
            Some(ValueRef::Binary { bytes, .. }) => Ok(KeyBound::new(bytes)),
            _ => Err(damaged(name)),
        };
        let shown = |name| range.get_doc(name).ok_or_else(|| damaged(name));
        Ok(Self {
            id: uuid(doc, "_id")?,
            namespace: Namespace::parse(text("nss")?)?,
            collection: uuid(doc, "collectionUuid")?,
            donor: text("donorShardId")?.to_owned(),
            range: KeyRange::new(bound("min")?, bound("max")?),
            min: shown("min")?.to_owned(),
            max: shown("max")?.to_owned(),
            when: match text("whenToClean")? {
                "now" => WhenToClean::Now,
                "delayed" => WhenToClean::Delayed,
                _ => return Err(damaged("whenToClean")),
            },
            pending: doc.get("pending") == Some(ValueRef::Boolean(true)),
            documents: match doc.get("numOrphanDocs") {
                Some(ValueRef::Int64(count)) => count,
                _ => 0,
            },
            since: match doc.get("timestamp") {
                Some(ValueRef::Timestamp(time)) => ClusterTime::new(time.seconds, time.increment),
                _ => ClusterTime::ZERO,
            },
        })
    }

    /// For a transition.
    pub(crate) fn put(&self) -> Result<StateWrite, Error> {
        Ok(StateWrite {
            namespace: Self::namespace_of_documents()?,
            change: StateChange::Put(self.to_document()),
        })
    }

    pub(crate) fn delete(id: Uuid) -> Result<StateWrite, Error> {
        Ok(StateWrite {
            namespace: Self::namespace_of_documents()?,
            change: StateChange::Delete(uuid_value(&id).to_owned()),
        })
    }

    /// Whether it is of some of a range, in bounds of the key by which the collection is sharded now.
    fn meets(&self, range: &KeyRange, ownership: &Ownership) -> bool {
        let own = self.range_by(ownership);
        own.min < range.max && range.min < own.max
    }

    /// ⚑ The range in bounds of the key by which the collection is sharded now. It may have got further fields
    /// since: as bytes, shorter bounds lie before the longer ones that mean the same, and would meet a
    /// neighbour's.
    fn range_by(&self, ownership: &Ownership) -> KeyRange {
        let fields = ownership.pattern.fields().len();
        let least = ownership.pattern.least();
        // MinKey takes as many bytes in each field.
        let known = least.len() / fields * self.min.as_doc().iter().count().min(fields);
        let extended = |bound: &KeyBound| match *bound == KeyBound::after_all() {
            true => bound.clone(),
            false => KeyBound::new(&[bound.as_bytes(), &least[known..]].concat()),
        };
        KeyRange::new(extended(&self.range.min), extended(&self.range.max))
    }
}

impl Ownership {
    /// ⚑ Refuses to remove documents of a range that is anybody's.
    pub(crate) fn check_dead(&self, range: &KeyRange) -> Result<(), Error> {
        let range = RangeSet::of([range.clone()]);
        let alive = self.owned.union(&self.moving.received());
        match range.intersection(&alive).is_empty() {
            true => Ok(()),
            false => Err(Error::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "a range that is owned or received must not be removed",
            )),
        }
    }

    /// The same for one document: whether it lies in the range and is nobody's.
    pub(crate) fn is_dead(&self, range: &KeyRange, document: Doc<'_>) -> bool {
        // It goes as a whole.
        if self.unsharded {
            return false;
        }
        match self.pattern.key_of(document) {
            Ok(key) => {
                range.contains(&key)
                    && !self.owned.contains(&key)
                    && !self.is_received_except(None, document)
            }
            Err(_) => false,
        }
    }
}

impl Shard {
    /// ⚑ Refuses to carry out a removal of what is anybody's.
    pub(super) fn check_dead(&self, range: &KeyRange, ownership: &Ownership) -> Result<(), Error> {
        match self.rules.hold(Rule::RemoveUnowned) {
            true => ownership.check_dead(range),
            false => Ok(()),
        }
    }
}

/// Runs while this member is the primary.
pub(crate) async fn run(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut settings = shard.parameters.watch();
    // Deletions that failed are tried again when something has changed.
    let mut failed = BTreeSet::new();
    loop {
        settings.borrow_and_update();
        let next = match shard.next_range_deletion(&failed) {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!("the range deletions cannot be read: {error}");
                None
            }
        };
        let wait = match next {
            Some((deletion, Duration::ZERO)) => {
                let id = deletion.id;
                if let Err(error) = shard.delete_range(&deletion, Some(tenure)).await {
                    tracing::warn!("a range of {} is not removed: {error}", deletion.namespace);
                    failed.insert(id);
                }
                if tenure.is_over() {
                    return;
                }
                continue;
            }
            Some((_, wait)) => wait,
            None => Duration::from_secs(3600),
        };
        tokio::select! {
            () = tenure.ended() => return,
            () = tokio::time::sleep(wait) => {}
            () = shard.range_deleter.wake.notified() => failed.clear(),
            changed = settings.changed() => {
                failed.clear();
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

impl Shard {
    /// Tells the service that documents of `config.rangeDeletions` may have changed.
    pub(crate) fn wake_range_deleter(&self) {
        self.range_deleter.wake.notify_one();
        self.range_deleter.ended.notify_waiters();
    }

    /// All range deletions, those of moves that are under way too.
    pub(crate) fn range_deletions(&self) -> Result<Vec<RangeDeletion>, Error> {
        let namespace = RangeDeletion::namespace_of_documents()?;
        let Some(collection) = self.catalog.get(&namespace) else {
            return Ok(Vec::new());
        };
        let snapshot = self.store.snapshot();
        let everything = storage::KeyRange::new(Bound::Unbounded, Bound::Unbounded);
        let mut all = Vec::new();
        for record in snapshot.scan_records(collection.id, everything, Direction::Forward) {
            let record = record.map_err(crate::error::from_storage)?;
            let read = RangeDeletion::from_document(Doc::from_validated(record.document()));
            match read {
                Ok(deletion) => all.push(deletion),
                Err(error) => {
                    let document = Doc::from_validated(record.document());
                    self.range_deleter
                        .passes_over(record.key(), document, &error);
                }
            }
        }
        Ok(all)
    }

    /// How many documents of a collection are here that this shard does not own.
    pub(crate) fn orphan_documents(&self, collection: &Collection) -> u64 {
        if collection.ownership.is_none() {
            return 0;
        }
        let all = self.range_deletions().unwrap_or_default().into_iter();
        let orphans = all
            .filter(|deletion| deletion.collection == collection.uuid)
            .map(|deletion| match deletion.pending {
                true => self.migrations.received(deletion.id),
                false => u64::try_from(deletion.documents).unwrap_or(0),
            });
        orphans.sum()
    }

    /// Notes that so many documents of a deletion are gone.
    pub(super) async fn count_down(&self, id: Uuid, removed: u64) -> Result<(), Error> {
        let all = self.range_deletions()?.into_iter();
        let Some(mut deletion) = all.into_iter().find(|deletion| deletion.id == id) else {
            return Ok(());
        };
        let namespace = RangeDeletion::namespace_of_documents()?;
        let Some(documents) = self.catalog.get(&namespace) else {
            return Ok(());
        };
        let removed = i64::try_from(removed).unwrap_or(i64::MAX);
        deletion.documents = deletion.documents.saturating_sub(removed).max(0);
        let counted = Transition {
            documents: vec![deletion.put()?],
            // Whoever removes the document by hand does not get it back.
            expect: vec![Expectation {
                namespace,
                id: uuid_value(&id).to_owned(),
                holds: Box::new(|found| found.is_some()),
            }],
            ..Transition::default()
        };
        self.transition(documents.id, &counted).await.map(|_| ())
    }

    /// The one that is due first, and how long that takes.
    fn next_range_deletion(
        &self,
        failed: &BTreeSet<Uuid>,
    ) -> Result<Option<(RangeDeletion, Duration)>, Error> {
        let delay = self.parameters.current().orphan_cleanup_delay_secs;
        let now_s = u64::try_from(self.clock.now_ms() / 1000).unwrap_or(0);
        let due = |deletion: &RangeDeletion| match deletion.when {
            WhenToClean::Now => Duration::ZERO,
            WhenToClean::Delayed => {
                let due_s = u64::from(deletion.since.seconds()) + u64::from(delay.unsigned_abs());
                Duration::from_secs(due_s.saturating_sub(now_s))
            }
        };
        let all = self.range_deletions()?.into_iter();
        let ready = all.filter(|deletion| !deletion.pending && !failed.contains(&deletion.id));
        let timed = ready.map(|deletion| {
            let due = due(&deletion);
            (deletion, due)
        });
        Ok(timed.min_by_key(|(_, due)| *due))
    }

    /// Removes the range of a deletion, then its document. Without a tenure it does not pause.
    pub(crate) async fn delete_range(
        &self,
        deletion: &RangeDeletion,
        tenure: Option<&Tenure>,
    ) -> Result<(), Error> {
        let _one = self.range_deleter.one_at_a_time.lock().await;
        // Another may have been first.
        let is_same = |other: &RangeDeletion| {
            let documents = deletion.documents;
            let other = RangeDeletion {
                documents,
                ..other.clone()
            };
            other == *deletion
        };
        if !self.range_deletions()?.iter().any(is_same) {
            return Ok(());
        }
        loop {
            let collection = self.catalog.get(&deletion.namespace);
            let Some(collection) = collection.filter(|known| known.uuid == deletion.collection)
            else {
                // With its collection the range is gone as well.
                let removal = vec![RangeDeletion::delete(deletion.id)?];
                return self.forget_deletion(removal).await;
            };
            let range = match &collection.ownership {
                Some(ownership) => deletion.range_by(ownership),
                None => deletion.range.clone(),
            };
            let removed = self.carry_out(deletion, &collection, &range, tenure).await;
            let removed = removed.map_err(|error| self.refused(deletion, error));
            let now = self.catalog.get(&deletion.namespace);
            let key = |known: &Collection| Some(known.ownership.as_ref()?.pattern.clone());
            let is_by_another_key = now.is_some_and(|now| key(&now) != key(&collection));
            if removed.is_ok() || !is_by_another_key {
                return removed;
            }
        }
    }

    /// Counts one that would have removed what is not dead, and says which one it was.
    fn refused(&self, deletion: &RangeDeletion, error: Error) -> Error {
        if error.code != Code::CONFLICTING_OPERATION_IN_PROGRESS {
            return error;
        }
        self.counters
            .refused_range_deletions
            .fetch_add(1, Ordering::Relaxed);
        let (id, why) = (deletion.id, &error.message);
        let message = format!("{why}: config.rangeDeletions has it under the _id {id}");
        Error::new(error.code, message)
    }

    async fn carry_out(
        &self,
        deletion: &RangeDeletion,
        collection: &Arc<Collection>,
        range: &KeyRange,
        tenure: Option<&Tenure>,
    ) -> Result<(), Error> {
        let removal = vec![RangeDeletion::delete(deletion.id)?];
        let removed = self.remove_range(collection, deletion.id, range, tenure);
        let Some(collection) = removed.await? else {
            return Ok(());
        };
        let ended = Transition {
            ownership: Some(Box::new(|known: &Ownership| {
                self.check_dead(range, known)?;
                Ok(known.without_dead(range.clone()))
            })),
            documents: removal,
            ..Transition::default()
        };
        self.transition(collection, &ended).await?;
        self.counters
            .range_deletions
            .fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a document whose collection is gone.
    async fn forget_deletion(&self, removal: Vec<StateWrite>) -> Result<(), Error> {
        let namespace = RangeDeletion::namespace_of_documents()?;
        let Some(documents) = self.catalog.get(&namespace) else {
            return Ok(());
        };
        let forgotten = Transition {
            documents: removal,
            ..Transition::default()
        };
        self.transition(documents.id, &forgotten).await?;
        Ok(())
    }

    /// Removes what is dead in a range, at once, for a move that brings the range anew.
    pub(crate) async fn remove_dead(
        &self,
        collection: &Arc<Collection>,
        range: &KeyRange,
    ) -> Result<(), Error> {
        let Some(ownership) = &collection.ownership else {
            return Ok(());
        };
        for deletion in self.range_deletions()? {
            let is_met = deletion.collection == collection.uuid && deletion.meets(range, ownership);
            if is_met && !deletion.pending {
                match self.delete_range(&deletion, None).await {
                    // It would remove more than what is dead, so it is none of a move. What is dead goes all the same.
                    Err(error) if error.code == Code::CONFLICTING_OPERATION_IN_PROGRESS => {
                        tracing::warn!("a range deletion is passed over: {error}");
                    }
                    removed => removed?,
                }
            }
        }
        let Some(mut known) = self.catalog.by_id(collection.id) else {
            return Ok(());
        };
        let Some(ownership) = &known.ownership else {
            return Ok(());
        };
        let wanted = RangeSet::of([range.clone()]);
        let all_dead = ownership.moving.dead.intersection(&wanted);
        if all_dead.is_empty() {
            // Deletions of other ranges may take long.
            return Ok(());
        }
        let _one = self.range_deleter.one_at_a_time.lock().await;
        for dead in all_dead {
            let nobody = Uuid([0; 16]);
            let removed = self.remove_range(&known, nobody, &dead, None);
            let Some(collection) = removed.await? else {
                return Ok(());
            };
            // It may have begun anew, under another id.
            match self.catalog.by_id(collection) {
                Some(current) => known = current,
                None => return Ok(()),
            }
            let removed = Transition {
                ownership: Some(Box::new(|known: &Ownership| {
                    self.check_dead(&dead, known)?;
                    Ok(known.without_dead(dead.clone()))
                })),
                ..Transition::default()
            };
            self.transition(collection, &removed).await?;
        }
        Ok(())
    }

    /// Waits until no deletion of a collection is left, or none that meets a range.
    pub(crate) async fn await_range_deletions(
        &self,
        collection: Uuid,
        range: Option<&KeyRange>,
        operation: &Operation,
    ) -> Result<(), Error> {
        loop {
            let mut ended = std::pin::pin!(self.range_deleter.ended.notified());
            ended.as_mut().enable();
            // By now, too: the key may be refined while it is waited for.
            let catalog = self.catalog.current();
            let known = (catalog.collections()).find(|known| known.uuid == collection);
            let ownership = known.and_then(|known| known.ownership.as_ref());
            let is_meant = |deletion: &RangeDeletion| {
                let meets = |range| ownership.is_some_and(|it| deletion.meets(range, it));
                deletion.collection == collection && range.is_none_or(meets)
            };
            if !self.range_deletions()?.iter().any(is_meant) {
                return Ok(());
            }
            let deadline = async {
                match operation.deadline() {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => {}
                () = deadline => {}
                () = operation.interrupted() => {}
                () = operation.connection.closed() => {}
                () = self.shutdown_begun() => {}
            }
            operation.check()?;
            if !self.replica_set.is_primary() {
                return Err(Error::new(
                    Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                    "this member is not the primary any more",
                ));
            }
        }
    }
}

/// ⚑ Refuses state documents that would remove what is owned.
pub(super) fn check_registered(
    documents: &[StateWrite],
    collection: &Collection,
    following: &Ownership,
) -> Result<(), Error> {
    for write in documents {
        if write.namespace.as_str() != "config.rangeDeletions" {
            continue;
        }
        if let StateChange::Put(document) = &write.change {
            let deletion = RangeDeletion::from_document(document.as_doc())?;
            if deletion.collection == collection.uuid && !deletion.pending {
                following.check_dead(&deletion.range_by(following))?;
            }
        }
    }
    Ok(())
}
