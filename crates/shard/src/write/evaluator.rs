//! One entry in the making.
//!
//! An evaluator holds the latches of the keys it was started with. It reads the
//! latest versions under them, collects changes, works out what each change
//! means for every index, and checks unique indexes. Which unique keys a change
//! touches is known only once it is evaluated; latches of theirs that are not held
//! yet are noted, and the evaluation, whatever it comes to, begins again with them
//! all. A record whose latch is not held ends it at once with [`Refusal::Latch`].
//! So the body of an evaluation must be able to run twice.
//!
//! Later changes of one evaluator see its earlier ones. One entry may change several
//! collections: [`Evaluator::select`] says which one is worked on next.

use super::latches::{Held, Latches, Stripe};
use super::overlay::Overlay;
use crate::Store;
use crate::catalog::multikey::MultikeyFound;
use crate::catalog::{Collection, Index};
use crate::index_build::DuplicateKeys;
use crate::session::{Effect, Executed, Image};
use crate::sharding::{OwnershipChange, ShardingState, not_owned, would_leave};
use foldhash::fast::FixedState;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::{CollectionId, IndexId, Uuid};
use model::key::RecordKey;
use model::range::KeyRange as Range;
use model::{Code, Error, Namespace};
use query::index::{DocumentKeys, EncodedKey};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use storage::layout::check_user_key;
use storage::{Direction, KeyRange, Record};

/// A version of a record.
#[derive(Clone, Debug)]
pub(crate) enum Version {
    /// Applied, or at least appended.
    Stored(Record),
    /// Put by an earlier change of the same entry: it has no time yet.
    Unit(Record),
}

impl Version {
    pub(crate) fn doc(&self) -> Doc<'_> {
        match self {
            Version::Stored(record) | Version::Unit(record) => {
                Doc::from_validated(record.document())
            }
        }
    }
}

/// Why an evaluation cannot go on.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// These latches are needed too.
    Latch(Vec<Stripe>),
    /// ⚑ A range that is to be written, or read, is blocked by a move: all of it begins again
    /// when ownership has changed.
    Blocked,
    Error(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Error(error)
    }
}

impl From<storage::Error> for Refusal {
    fn from(error: storage::Error) -> Self {
        Refusal::Error(crate::error::from_storage(error))
    }
}

/// One index entry that appears or goes.
#[derive(Clone, Debug)]
pub(crate) struct EntryChange {
    pub(crate) index: IndexId,
    pub(crate) key: EncodedKey,
    pub(crate) present: bool,
    /// Whether the overlay must know it.
    pub(crate) unique: bool,
}

/// How a record came to be what it is, for readers of the log.
#[derive(Clone, Debug)]
pub(crate) enum Description {
    Insert,
    Replace,
    Update(DocBuf),
    Delete,
    /// The document is put under another key right behind.
    Relocate,
}

impl Description {
    /// What became of a document; the difference of an update, if it is known.
    fn of(before: bool, after: bool, difference: Option<DocBuf>) -> Self {
        match (before, after, difference) {
            (_, false, _) => Description::Delete,
            (false, true, _) => Description::Insert,
            (true, true, None) => Description::Replace,
            (true, true, Some(difference)) => Description::Update(difference),
        }
    }
}

/// A record that changes.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) collection: CollectionId,
    pub(crate) key: RecordKey,
    /// What the entry replaces in the applied state or an earlier entry.
    pub(crate) before: Option<Version>,
    /// `None`: removed. A draft until the entry is appended.
    pub(crate) after: Option<Record>,
    pub(crate) description: Description,
    pub(crate) entries: Vec<EntryChange>,
}

pub(crate) struct Evaluator<'s> {
    store: &'s Store,
    overlay: &'s Overlay,
    latches: &'s Latches,
    duplicate_keys: &'s DuplicateKeys,
    sharding: &'s ShardingState,
    /// All that the entry may change, and the one that is worked on.
    pub(super) collections: &'s [Arc<Collection>],
    collection: &'s Collection,
    held: Held<'s>,
    pub(super) changes: Vec<Change>,
    /// Arrays at places of indexes where there were none before.
    pub(super) multikey: MultikeyFound,
    /// Statements of a retryable write that this entry executes, one for each
    /// change, in the same order.
    pub(super) executed: Vec<Executed>,
    /// What the statement returned, if its retry must return it again.
    pub(super) image: Option<Image>,
    /// What the shard owns of a collection from this entry on.
    pub(super) ownership: Option<OwnershipChange>,
    /// The move or range deletion that makes the entry.
    pub(super) origin: Option<Vec<u8>>,
    /// How far a write over several shards has come with this entry, and under which key.
    pub(super) progress: Option<(Vec<u8>, DocBuf)>,
    /// The move whose documents are stored.
    receiving: Option<Uuid>,
    /// Latches that a unique index needs and nobody holds yet.
    pub(super) missing: Vec<Stripe>,
    /// Changes that may have touched a key of a unique index.
    unique_keys: UniqueKeys,
    /// Where a record's change stands in `changes`.
    changed: Changed,
    /// The same for the collections that are not worked on now.
    changed_elsewhere: Vec<(CollectionId, Changed)>,
}

/// Which other records' keys matter.
#[derive(Clone, Copy)]
enum Others {
    /// Of those that are owned here, or just come.
    Counting,
    All,
}

type Changed = HashMap<RecordKey, usize, FixedState>;
type UniqueKeys = HashMap<(IndexId, Box<[u8]>), Vec<usize>, FixedState>;

impl<'s> Evaluator<'s> {
    pub(super) fn new(
        store: &'s Store,
        overlay: &'s Overlay,
        latches: &'s Latches,
        duplicate_keys: &'s DuplicateKeys,
        sharding: &'s ShardingState,
        collections: &'s [Arc<Collection>],
        held: Held<'s>,
    ) -> Self {
        Self {
            store,
            overlay,
            latches,
            duplicate_keys,
            sharding,
            collections,
            collection: &collections[0],
            // Mostly each latch is there for one change.
            changes: Vec::with_capacity(held.stripes().len()),
            changed: HashMap::with_capacity_and_hasher(
                held.stripes().len(),
                FixedState::with_seed(4),
            ),
            held,
            multikey: MultikeyFound::default(),
            executed: Vec::new(),
            image: None,
            ownership: None,
            origin: None,
            progress: None,
            receiving: None,
            changed_elsewhere: Vec::new(),
            missing: Vec::new(),
            unique_keys: HashMap::with_hasher(FixedState::with_seed(6)),
        }
    }

    /// Goes over to another one of the entry's collections.
    pub(crate) fn select(&mut self, namespace: &Namespace) -> Result<(), Refusal> {
        let mut all = self.collections.iter();
        let Some(collection) = all.find(|collection| collection.namespace == *namespace) else {
            return Err(Refusal::Error(Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("ns does not exist: {namespace}"),
            )));
        };
        let (from, to) = (self.collection.id, collection.id);
        if from == to {
            return Ok(());
        }
        let place = (self.changed_elsewhere.iter()).position(|(id, _)| *id == to);
        let known = match place {
            Some(place) => self.changed_elsewhere.swap_remove(place).1,
            None => HashMap::with_hasher(FixedState::with_seed(4)),
        };
        let left = std::mem::replace(&mut self.changed, known);
        self.changed_elsewhere.push((from, left));
        self.collection = collection;
        Ok(())
    }

    /// The records of the current collection that the entry changes so far.
    pub(crate) fn changed_keys(&self) -> impl Iterator<Item = &RecordKey> {
        self.changed.keys()
    }

    /// Notes which statement the latest change belongs to, and what it did.
    pub(crate) fn executed(&mut self, statement: i32, effect: Effect) {
        crate::session::join(&mut self.executed, Executed::one(statement, effect));
    }

    /// The entry also changes what the shard owns. The caller holds the collection's gate
    /// alone until it is applied.
    pub(crate) fn change_ownership(&mut self, change: OwnershipChange) {
        self.ownership = Some(change);
    }

    /// Marks the entry as made by a move or a range deletion: hidden from change streams.
    pub(crate) fn set_origin(&mut self, origin: &[u8]) {
        self.origin = Some(origin.to_vec());
    }

    /// The entry also says how far a write over several shards has come: `broadcast/`.
    pub(crate) fn keep_progress(&mut self, key: Vec<u8>, document: DocBuf) {
        self.progress = Some((key, document));
    }

    pub(crate) fn keep_image(&mut self, image: Image) {
        self.image = Some(image);
    }

    /// The collection with the indexes that hold for this entry.
    pub(crate) fn collection(&self) -> &'s Collection {
        self.collection
    }

    pub(super) fn held_stripes(&self) -> &[Stripe] {
        self.held.stripes()
    }

    fn require_latch(&self, stripe: Stripe) -> Result<(), Refusal> {
        if self.held.covers(stripe) {
            return Ok(());
        }
        Err(Refusal::Latch(vec![stripe]))
    }

    /// The latest version of a record, unless it belongs to another shard.
    pub(crate) fn latest(&self, key: &RecordKey) -> Result<Option<Version>, Refusal> {
        let version = self.latest_stored(key)?;
        Ok(version.filter(|version| !self.hides(version.doc())))
    }

    fn hides(&self, document: Doc<'_>) -> bool {
        let ownership = self.collection.ownership.as_ref();
        ownership.is_some_and(|ownership| ownership.hides(document))
    }

    /// ⚑ Whether a document waits for its range to be owned: nobody may put another in its place.
    fn is_received(&self, document: Doc<'_>) -> bool {
        let ownership = self.collection.ownership.as_ref();
        ownership.is_some_and(|ownership| ownership.is_received_except(None, document))
    }

    /// The latest version of a record: from this entry, else from one that is
    /// appended, else from the engine. In this order; see `overlay.rs`.
    fn latest_stored(&self, key: &RecordKey) -> Result<Option<Version>, Refusal> {
        let id = self.collection.id;
        if check_user_key(key.as_bytes().len()).is_err() {
            return Ok(None);
        }
        self.require_latch(record_stripe(self.latches, id.0, key))?;
        if let Some(&at) = self.changed.get(key) {
            let after = self.changes[at].after.clone();
            return Ok(after.map(Version::Unit));
        }
        self.latest_before(key)
    }

    fn latest_before(&self, key: &RecordKey) -> Result<Option<Version>, Refusal> {
        let id = self.collection.id;
        if let Some(pending) = self.overlay.record(id, key) {
            return Ok(pending.record.map(Version::Stored));
        }
        Ok(self.store.latest(id, key.as_bytes())?.map(Version::Stored))
    }

    /// Adds a document that must not be there yet.
    pub(crate) fn insert(&mut self, key: RecordKey, document: DocBuf) -> Result<(), Refusal> {
        self.insert_draft(key, Record::draft(document.as_doc().as_bytes()))
    }

    /// The same for a document that is in its stored form already.
    pub(crate) fn insert_draft(&mut self, key: RecordKey, draft: Record) -> Result<(), Refusal> {
        self.check_blocked(Doc::from_validated(draft.document()))?;
        // A document that belongs to another shard is in nobody's way, unless it has just come.
        let stored = self.latest_stored(&key)?;
        if let Some(version) = &stored
            && (!self.hides(version.doc()) || self.is_received(version.doc()))
        {
            let document = Doc::from_validated(draft.document());
            let id = document.get("_id").unwrap_or(ValueRef::Null);
            return Err(Refusal::Error(duplicate_id(self.collection, id)));
        }
        self.put(key, stored.as_ref(), Some(draft), None)
    }

    /// Replaces the version that [`Evaluator::latest`] returned. `difference` is
    /// what leads to the new one, if the log is to say so.
    pub(crate) fn replace(
        &mut self,
        key: RecordKey,
        before: &Version,
        document: Doc<'_>,
        difference: Option<DocBuf>,
    ) -> Result<(), Refusal> {
        let draft = Record::draft(document.as_bytes());
        let place = (self.collection).other_place(&key, before.doc(), document)?;
        if let Some(place) = place {
            return self.relocate(key, place, before, draft, difference);
        }
        self.put(key, Some(before), Some(draft), difference)
    }

    /// Replaces a version by one that is stored elsewhere, because what the collection is
    /// clustered by has changed. For readers of the log it is the same document.
    fn relocate(
        &mut self,
        from: RecordKey,
        to: RecordKey,
        before: &Version,
        draft: Record,
        difference: Option<DocBuf>,
    ) -> Result<(), Refusal> {
        self.check_owned(true, Doc::from_validated(draft.document()))?;
        let there = self.latest_stored(&to)?;
        if let Some(version) = &there
            && self.is_received(version.doc())
        {
            let id = version.doc().get("_id").unwrap_or(ValueRef::Null);
            return Err(Refusal::Error(duplicate_id(self.collection, id)));
        }
        self.put(from.clone(), Some(before), None, None)?;
        self.put(to.clone(), there.as_ref(), Some(draft), None)?;
        let described = |change: &Change, key: &RecordKey| {
            change.key == *key && change.collection == self.collection.id
        };
        let at = self.changes.len();
        // Both are new to the entry, or the log shows a removal and an insert.
        if let [.., left, came] = &mut self.changes[..at]
            && described(left, &from)
            && described(came, &to)
        {
            left.description = Description::Relocate;
            came.description = Description::of(true, true, difference);
        }
        Ok(())
    }

    /// Removes the version that [`Evaluator::latest`] returned.
    pub(crate) fn remove(&mut self, key: RecordKey, before: &Version) -> Result<(), Refusal> {
        self.put(key, Some(before), None, None)
    }

    /// Takes over what became of a record on the shard that a range comes from: see
    /// `sharding/received.rs`.
    pub(crate) fn receive(
        &mut self,
        operation: Uuid,
        key: &RecordKey,
        document: Option<&DocBuf>,
    ) -> Result<(), Refusal> {
        self.receiving = Some(operation);
        let stored = self.latest_stored(key)?;
        let is_received = |document: Doc<'_>| {
            let ownership = self.collection.ownership.as_ref();
            ownership.is_some_and(|ownership| ownership.receives(operation, document))
        };
        if let Some(document) = document
            && !is_received(document.as_doc())
        {
            return Err(Refusal::Error(Error::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                format!(
                    "a document of {} does not belong to a range that is received",
                    self.collection.namespace
                ),
            )));
        }
        let (in_the_way, before) = match &stored {
            Some(version) if is_received(version.doc()) => (false, Some(version)),
            Some(version) if self.hides(version.doc()) => (false, document.and(Some(version))),
            Some(_) => (true, None),
            None => (false, None),
        };
        match document {
            Some(document) if in_the_way => {
                let id = document.get("_id").unwrap_or(ValueRef::Null);
                Err(Refusal::Error(duplicate_id(self.collection, id)))
            }
            Some(document) => {
                let draft = Record::draft(document.as_bytes());
                self.put_unchecked(key.clone(), before, Some(draft), None, before.is_some())
            }
            None if before.is_some() => self.put_unchecked(key.clone(), before, None, None, true),
            None => Ok(()),
        }
    }

    /// Removes a record of a range that is nobody's; false if it is not there, or somebody's:
    /// see `sharding/range_deletion.rs`.
    pub(crate) fn remove_dead(&mut self, key: &RecordKey, range: &Range) -> Result<bool, Refusal> {
        let stored = self.latest_stored(key)?;
        let (Some(version), Some(ownership)) = (&stored, &self.collection.ownership) else {
            return Ok(false);
        };
        if !ownership.is_dead(range, version.doc()) {
            return Ok(false);
        }
        self.put_unchecked(key.clone(), Some(version), None, None, true)?;
        Ok(true)
    }

    fn put(
        &mut self,
        key: RecordKey,
        before: Option<&Version>,
        after: Option<Record>,
        difference: Option<DocBuf>,
    ) -> Result<(), Refusal> {
        let is_update = before.is_some_and(|version| !self.hides(version.doc()));
        if let (Some(version), true) = (before, is_update) {
            self.check_blocked(version.doc())?;
        }
        if let Some(draft) = &after {
            let document = Doc::from_validated(draft.document());
            self.check_blocked(document)?;
            let known = before.filter(|_| is_update);
            if !known.is_some_and(|version| self.stays_owned(&key, version.doc(), document)) {
                self.check_owned(is_update, document)?;
            }
        }
        self.put_unchecked(key, before, after, difference, is_update)
    }

    /// The same where it is known that the shard may store it.
    fn put_unchecked(
        &mut self,
        key: RecordKey,
        before: Option<&Version>,
        after: Option<Record>,
        difference: Option<DocBuf>,
        is_update: bool,
    ) -> Result<(), Refusal> {
        // Here and not when the entry is applied: an entry in the log must apply.
        check_user_key(key.as_bytes().len())?;
        let collection = self.collection;
        let mut entries = Vec::new();
        let mut multikey = MultikeyFound::default();
        for (id, index) in collection.secondary_indexes() {
            if let (Some(version), Some(draft)) = (before, &after) {
                let after = Doc::from_validated(draft.document());
                if index.definition.is_untouched(version.doc(), after) {
                    continue;
                }
            }
            let old = match before {
                Some(version) => keys_of(index, version.doc())?,
                None => None,
            };
            let new = match &after {
                Some(draft) => keys_of(index, Doc::from_validated(draft.document()))?,
                None => None,
            };
            if let Some(new) = &new {
                multikey.add(index, &new.multikey);
            }
            let unique = index.is_unique();
            let first_new = entries.len();
            key_changes(id, unique, old, new, &mut entries);
            for entry in &entries[first_new..] {
                check_user_key(entry.key.fields.len() + key.as_bytes().len())?;
            }
            let told_by_key = index.definition.is_id() && collection.is_found_by_id();
            if unique && !told_by_key {
                self.check_unique(index, id, &key, &entries[first_new..])?;
            }
        }
        self.multikey.append(multikey);
        match self.changed.get(&key) {
            None => {
                self.changed.insert(key.clone(), self.changes.len());
                note_unique(&mut self.unique_keys, self.changes.len(), &entries);
                self.changes.push(Change {
                    collection: self.collection.id,
                    key,
                    before: before.cloned(),
                    description: Description::of(is_update, after.is_some(), difference),
                    after,
                    entries,
                });
            }
            // The record changes twice in one entry: its entries are worked out
            // anew against what was there before the entry.
            Some(&at) => {
                let original = self.changes[at].before.clone();
                let mut entries = Vec::new();
                for (id, index) in collection.secondary_indexes() {
                    let old = match &original {
                        Some(version) => keys_of(index, version.doc())?,
                        None => None,
                    };
                    let new = match &after {
                        Some(draft) => keys_of(index, Doc::from_validated(draft.document()))?,
                        None => None,
                    };
                    key_changes(id, index.is_unique(), old, new, &mut entries);
                }
                let visible = original.as_ref();
                let visible = visible.filter(|version| !self.hides(version.doc()));
                let difference = match (visible, &after) {
                    (Some(before), Some(after)) => {
                        let after = Doc::from_validated(after.document());
                        query::difference::between(before.doc(), after)
                    }
                    _ => None,
                };
                self.changes[at].description =
                    Description::of(visible.is_some(), after.is_some(), difference);
                note_unique(&mut self.unique_keys, at, &entries);
                self.changes[at].after = after;
                self.changes[at].entries = entries;
            }
        }
        Ok(())
    }

    fn check_blocked(&self, document: Doc<'_>) -> Result<(), Refusal> {
        match &self.collection.ownership {
            Some(ownership) if ownership.blocks_writes(document) => Err(Refusal::Blocked),
            _ => Ok(()),
        }
    }

    /// Whether a change leaves a document where this shard may store it: told by the key of its record. Where it
    /// says no, [`Evaluator::check_owned`] is to be asked.
    fn stays_owned(&self, key: &RecordKey, before: Doc<'_>, after: Doc<'_>) -> bool {
        let Some(ownership) = self.collection.sharded_ownership() else {
            return false;
        };
        // Fields that come to the key are looked at in the document.
        if ownership.next_key.is_some() {
            return false;
        }
        let shard_key = (self.collection).shard_key_in(key, &ownership.pattern, before, after);
        shard_key.is_some_and(|shard_key| ownership.owned.contains(shard_key))
    }

    /// Refuses what another shard has to store.
    fn check_owned(&self, is_update: bool, document: Doc<'_>) -> Result<(), Refusal> {
        let Some(ownership) = &self.collection.ownership else {
            return Ok(());
        };
        let is_owned = match ownership.unsharded {
            true => !ownership.owned.is_empty(),
            false => {
                let key = ownership.pattern.key_of(document)?;
                if let Some(next) = &ownership.next_key {
                    next.pattern.key_of(document)?;
                }
                ownership.owned.contains(&key)
            }
        };
        if is_owned {
            return Ok(());
        }
        Err(Refusal::Error(match is_update && !ownership.unsharded {
            true => would_leave(),
            false => not_owned(self.sharding, &self.collection.namespace, ownership),
        }))
    }

    /// Whether a record with this key counts where a unique index is checked.
    fn counts(&self, key: &[u8]) -> Result<bool, Refusal> {
        let Some(ownership) = &self.collection.ownership else {
            return Ok(true);
        };
        if !ownership.orphans {
            return Ok(true);
        }
        let key = RecordKey::from_bytes(key);
        let version = match self.changed.get(&key) {
            Some(&at) => self.changes[at].after.clone().map(Version::Unit),
            None => self.latest_before(&key)?,
        };
        // What has just come counts, except for others of the same move: the copy of a
        // document that changed its place on the donor may still be there.
        Ok(version.is_some_and(|version| {
            let document = version.doc();
            ownership.owns(document) || ownership.is_received_except(self.receiving, document)
        }))
    }

    /// Refuses added keys that another record has. While the index is being built they are noted instead: it
    /// may never exist.
    fn check_unique(
        &mut self,
        index: &Index,
        id: IndexId,
        key: &RecordKey,
        entries: &[EntryChange],
    ) -> Result<(), Refusal> {
        let added = entries.iter().filter(|entry| entry.present);
        let missing: Vec<Stripe> = entries
            .iter()
            .map(|entry| index_stripe(self.latches, id, &entry.key.fields))
            .filter(|stripe| !self.held.covers(*stripe))
            .collect();
        if !missing.is_empty() {
            self.missing.extend(missing);
            return Ok(());
        }
        let is_built = !index.is_ready() && self.duplicate_keys.follows(id);
        let others = match is_built {
            true => Others::All,
            false => Others::Counting,
        };
        for entry in added {
            let is_taken = self.is_taken(id, key, &entry.key.fields, others)?;
            if is_taken && is_built {
                self.duplicate_keys.note(id, &entry.key);
            } else if is_taken {
                return Err(Refusal::Error(unique_violation(
                    self.collection,
                    index,
                    &entry.key,
                )));
            }
        }
        Ok(())
    }

    /// Whether another record has this key in a unique index: in this entry,
    /// in an appended one, or in the engine, where the nearer one wins.
    fn is_taken(
        &self,
        id: IndexId,
        key: &RecordKey,
        fields: &[u8],
        others: Others,
    ) -> Result<bool, Refusal> {
        let matters = |other: &[u8]| match others {
            _ if other == key.as_bytes() => Ok(false),
            Others::All => Ok(true),
            Others::Counting => self.counts(other),
        };
        let mut known: HashMap<Vec<u8>, bool, FixedState> =
            HashMap::with_hasher(FixedState::with_seed(5));
        let touched = self.unique_keys.get(&(id, Box::from(fields)));
        for &at in touched.into_iter().flatten() {
            let change = &self.changes[at];
            for entry in &change.entries {
                if entry.index == id && entry.key.fields == fields {
                    known.insert(change.key.as_bytes().to_vec(), entry.present);
                }
            }
        }
        for (record_key, present) in self.overlay.index_key(id, fields) {
            known.entry(record_key.into_vec()).or_insert(present);
        }
        for (record_key, present) in &known {
            if *present && matters(record_key)? {
                return Ok(true);
            }
        }
        let end = model::key::prefix_end(fields);
        let range = KeyRange::new(
            Bound::Included(fields),
            end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
        );
        let snapshot = self.store.snapshot();
        for entry in snapshot.scan_index(id, range, Direction::Forward) {
            let entry = entry?;
            let gone = known.get(entry.record_key()) == Some(&false);
            if !gone && matters(entry.record_key())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Remembers which unique keys the change at a place touches.
fn note_unique(known: &mut UniqueKeys, at: usize, entries: &[EntryChange]) {
    for entry in entries.iter().filter(|entry| entry.unique) {
        let key = (entry.index, Box::from(&entry.key.fields[..]));
        known.entry(key).or_default().push(at);
    }
}

pub(super) fn keys_of(index: &Index, doc: Doc<'_>) -> Result<Option<DocumentKeys>, Error> {
    index.definition.keys(doc).map(Some)
}

/// What changes between two sorted lists of keys.
pub(super) fn key_changes(
    index: IndexId,
    unique: bool,
    old: Option<DocumentKeys>,
    new: Option<DocumentKeys>,
    changes: &mut Vec<EntryChange>,
) {
    let old = old.map(|keys| keys.keys).unwrap_or_default();
    let new = new.map(|keys| keys.keys).unwrap_or_default();
    if old.is_empty() {
        changes.extend(new.into_iter().map(|key| EntryChange {
            index,
            key,
            present: true,
            unique,
        }));
        return;
    }
    let find = |keys: &[EncodedKey], key: &EncodedKey| {
        keys.binary_search_by(|other| other.fields.cmp(&key.fields))
            .ok()
    };
    for key in &old {
        if find(&new, key).is_none() {
            changes.push(EntryChange {
                index,
                key: key.clone(),
                present: false,
                unique,
            });
        }
    }
    for key in new {
        // Equal fields of another type keep the entry but change its type bits.
        let same = find(&old, &key).is_some_and(|at| old[at].type_bits == key.type_bits);
        if !same {
            changes.push(EntryChange {
                index,
                key,
                present: true,
                unique,
            });
        }
    }
}

pub(super) fn record_stripe(latches: &Latches, collection: u32, key: &RecordKey) -> Stripe {
    latches.stripe(u64::from(collection), key.as_bytes())
}

pub(super) fn index_stripe(latches: &Latches, index: IndexId, fields: &[u8]) -> Stripe {
    // Another number space than collections have.
    latches.stripe(u64::from(index.0) | 1 << 40, fields)
}

pub(crate) fn unique_violation(collection: &Collection, index: &Index, key: &EncodedKey) -> Error {
    let directions = index.definition.directions();
    let type_bits = model::key::TypeBits::from_bytes(&key.type_bits);
    let values = model::key::decode(&key.fields, &type_bits, &directions).unwrap_or_default();
    let mut key_value = DocWriter::new();
    for (value, field) in values.iter().zip(&index.definition.fields) {
        key_value.append(field.path.as_str(), value);
    }
    duplicate_key(
        collection,
        &index.definition.name,
        index.definition.key_pattern(),
        key_value.finish().as_doc(),
    )
}

fn duplicate_id(collection: &Collection, id: ValueRef<'_>) -> Error {
    let value = DocWriter::new().with("_id", id).finish();
    let pattern = DocWriter::new().with("_id", 1).finish();
    duplicate_key(collection, "_id_", pattern.as_doc(), value.as_doc())
}

fn duplicate_key(collection: &Collection, name: &str, pattern: Doc<'_>, value: Doc<'_>) -> Error {
    Error::new(
        Code::DUPLICATE_KEY,
        format!(
            "E11000 duplicate key error collection: {} index: {name} dup key: {}",
            collection.namespace,
            model::text::document_quoted(value)
        ),
    )
    .with_details(
        DocWriter::new()
            .with("keyPattern", pattern)
            .with("keyValue", value)
            .finish(),
    )
}
