//! Committed entries become one engine batch.
//!
//! For each record operation the replaced version is needed: it moves to history
//! and the counters depend on it. It is looked for where it costs least first: in
//! the batch being built, in what the evaluator hands over, in the record cache,
//! in the engine.
//!
//! A document is copied once, when it is evaluated: the value that is stored is the
//! one that the evaluator made, where it is still in memory. Only after a restart,
//! or on another member, is it copied out of the entry.
//!
//! A record that was not there before does not enter the record cache, and the cache
//! is not told: it cannot hold an earlier version (the removal of one was announced to
//! it), a reader that was too early finds nothing and fills in nothing, and what a
//! load writes is mostly not what is read next.
//!
//! Nothing of the store changes before the engine has committed: a damaged entry
//! anywhere in a group leaves the store as it was.
//!
//! History. The version that an operation at time `t` replaces is stored under
//! `(key, t)`, unless it is *forgotten* and no time is left at which it could be read here.
//! That is judged by this member's start of history, which is stored before it is seen
//! (`maintain.rs`): a batch that leaves a version out comes behind it in the engine. Several operations on one key at the same time leave only the first
//! replaced version: the others were never visible at any time of their own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::ids::CollectionId;
use model::time::ClusterTime;

use super::counters::Delta;
use super::forgotten::{Mark, Marks};
use super::{Record, Store};
use crate::engine::{Engine, Slice, WriteBatch};
use crate::entry::{Entry, ForgottenEntries, IndexAction, IndexChanges, Operation};
use crate::error::{Error, Result};
use crate::giving_way;
use crate::layout::{self, StoredKey, Subject, TIME_BYTES};

/// Entries of moves that are shorter come where clients are; longer ones, where nobody is, or to catch up.
const GIVES_WAY_BYTES_MAX: usize = 1 << 20;
/// A group of as much is a part of a load, or of a change of very many documents.
const BULK_BYTES_MIN: usize = 256 << 10;

/// How a group of entries is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    Usual,
    /// Others may have the core meanwhile: all entries come from elsewhere, and no client waits for one of them.
    GivesWay,
    /// Much at once.
    Bulk,
}

impl Manner {
    fn of(entries: &[Committed<'_>]) -> Self {
        let from_elsewhere = |entry: &Committed<'_>| {
            Entry::decode(entry.payload).is_ok_and(|entry| entry.header.origin.is_some())
        };
        let bytes: usize = entries.iter().map(|entry| entry.payload.len()).sum();
        if bytes < GIVES_WAY_BYTES_MAX && entries.iter().all(from_elsewhere) {
            Self::GivesWay
        } else if bytes < BULK_BYTES_MIN {
            Self::Usual
        } else {
            Self::Bulk
        }
    }
}

/// An entry that the log has committed.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    pub position: u64,
    pub time: ClusterTime,
    /// See [`crate::entry`].
    pub payload: &'a [u8],
    /// What the evaluator knows about the versions that are replaced, one for
    /// each put or delete of a record, in order. Missing ones are looked up.
    pub before: &'a [Before],
    /// The versions that the entry puts, one for each put of a record, in order, if
    /// the evaluator still has them. They must be the payload's documents at the
    /// entry's time. Missing ones are made from the payload.
    pub after: &'a [Record],
}

/// The version of a record before an operation.
#[derive(Clone, Debug, Default)]
pub enum Before {
    #[default]
    Unknown,
    /// There is none: an insert that found the key free.
    Absent,
    /// Not a view into something larger: it goes into history, which would keep all
    /// of that alive. [`Store::latest`] returns such versions.
    Present(Record),
}

/// A record key that a batch writes.
struct Written {
    key: Slice,
    /// What it holds afterwards.
    value: Option<Slice>,
    /// It is surely not in the record cache.
    is_new: bool,
}

/// What a batch has written so far. Loads never ask for it, so that the map is made
/// when somebody does.
#[derive(Default)]
struct WrittenKeys {
    all: Vec<Written>,
    /// The last of each key, among the first `mapped`.
    places: HashMap<Slice, usize, foldhash::fast::RandomState>,
    mapped: usize,
}

impl WrittenKeys {
    fn get(&mut self, key: &[u8]) -> Option<&Option<Slice>> {
        for (place, written) in self.all.iter().enumerate().skip(self.mapped) {
            self.places.insert(written.key.clone(), place);
        }
        self.mapped = self.all.len();
        let place = *self.places.get(key)?;
        Some(&self.all[place].value)
    }
}

/// A batch under construction.
struct Pending<'s, E: Engine> {
    store: &'s Store<E>,
    batch: WriteBatch,
    written: WrittenKeys,
    deltas: Vec<(Subject, Delta)>,
    dropped: Vec<Subject>,
    already_dropped: Arc<BTreeSet<Subject>>,
    /// All ranges that are gone: those of before, and those of this batch.
    marks: Option<Arc<Marks>>,
    forgotten: Vec<Arc<Mark>>,
    gives_way: bool,
}

impl<E: Engine> Store<E> {
    /// Applies entries in the order of the log, all in one batch. Entries that
    /// were applied before are skipped.
    ///
    /// After an error from the engine the store must not be used any more.
    pub fn apply(&self, entries: &[Committed<'_>]) -> Result<()> {
        let _writer = self.writer.lock();
        let manner = Manner::of(entries);
        let mut pending = Pending {
            store: self,
            batch: WriteBatch::default(),
            written: WrittenKeys::default(),
            deltas: Vec::new(),
            dropped: Vec::new(),
            already_dropped: self.shared.dropped(),
            marks: self.shared.forgotten(),
            forgotten: Vec::new(),
            gives_way: manner == Manner::GivesWay,
        };
        match manner {
            Manner::Usual => {}
            Manner::GivesWay => pending.batch.give_way(),
            Manner::Bulk => pending.batch.in_bulk(),
        }
        let before = self.applied();
        let (mut position, mut time) = (before, self.applied_time());
        for entry in entries {
            if entry.position <= position {
                continue;
            }
            // Strictly: a cached version is judged by its time, see `Snapshot::get`.
            if entry.time <= time && position > 0 {
                return Err(Error::TimeWentBack {
                    position: entry.position,
                    time: entry.time,
                    applied: time,
                });
            }
            pending.entry(entry)?;
            (position, time) = (entry.position, entry.time);
        }
        if position == before {
            return Ok(());
        }
        self.commit(pending, position, time)
    }

    fn commit(&self, pending: Pending<'_, E>, position: u64, time: ClusterTime) -> Result<()> {
        let Pending {
            mut batch,
            written,
            deltas,
            dropped,
            forgotten,
            ..
        } = pending;
        let next = self
            .counters
            .read()
            .prepare(&mut batch, (position, time), &deltas, &dropped);
        // Here, for those who look at all keys: those of one place then come one after the other.
        batch.order();
        let number = self.shared.commits_begun.fetch_add(1, Ordering::AcqRel) + 1;
        let subjects = deltas.iter().map(|(subject, _)| *subject);
        let scanned = batch.keys().filter(|key| layout::is_scanned(key));
        self.shared.stretches.changing(number, subjects, scanned);
        for mark in &forgotten {
            // Its records are one stretch; its index entries are spread over their indexes.
            let indexes = mark.indexes.iter().copied().map(Subject::Index);
            self.shared.stretches.changing_all(number, indexes);
            let (low, high) = mark.records();
            let collection = Subject::Collection(mark.collection);
            let stretches = &self.shared.stretches;
            stretches.changing_within(number, collection, (&low, &high));
        }
        let changing = || written.all.iter().filter(|written| !written.is_new);
        for written in changing() {
            self.shared.cache.mark_changing(&written.key);
        }
        self.engine.write(batch)?;
        if !forgotten.is_empty() {
            self.shared.change_forgotten(|marks| {
                let mut marks = marks.clone();
                forgotten.into_iter().for_each(|mark| marks.add(mark));
                marks
            });
        }
        for written in changing() {
            let value = written.value.clone();
            self.shared.cache.changed(written.key.clone(), value);
        }
        self.shared.commits_finished.fetch_add(1, Ordering::AcqRel);
        self.counters.write().commit(next);
        if !dropped.is_empty() {
            for subject in &dropped {
                self.shared.stretches.forget(*subject);
            }
            self.shared.change_dropped(|all| all.extend(dropped));
        }
        // The time first: who sees the position may ask for a read at its time.
        self.shared.time.store(time.to_u64(), Ordering::Release);
        self.shared.position.store(position, Ordering::Release);
        Ok(())
    }
}

impl<E: Engine> Pending<'_, E> {
    fn entry(&mut self, entry: &Committed<'_>) -> Result<()> {
        let damaged = |what| Error::DamagedEntry {
            position: entry.position,
            what,
        };
        let decoded = Entry::decode(entry.payload).map_err(damaged)?;
        let mut before = entry.before.iter();
        let mut after = entry.after.iter();
        for operation in decoded.operations() {
            if self.gives_way {
                giving_way::look();
            }
            match operation.map_err(damaged)? {
                Operation::PutRecord {
                    collection,
                    key,
                    document,
                    description: _,
                    index,
                } => {
                    let before = before.next().unwrap_or(&Before::Unknown);
                    let value = value_of(document, after.next(), entry.time);
                    self.record(collection, key, Some(value), before, entry.time)?;
                    self.index(key, index, entry.time)?;
                }
                Operation::DeleteRecord {
                    collection,
                    key,
                    document_key: _,
                    index,
                } => {
                    let before = before.next().unwrap_or(&Before::Unknown);
                    self.record(collection, key, None, before, entry.time)?;
                    self.index(key, index, entry.time)?;
                }
                Operation::IndexEntries {
                    collection: _,
                    key,
                    index,
                } => self.index(key, index, entry.time)?,
                Operation::PutMeta { key, value } => {
                    layout::check_user_key(key.len())?;
                    let key = layout::document(key).to_slice();
                    self.batch.put(key, Slice::new(value));
                }
                Operation::DeleteMeta { key } => {
                    layout::check_user_key(key.len())?;
                    self.batch.remove(layout::document(key).to_slice());
                }
                Operation::DropCollection { collection } => {
                    self.drop_subject(Subject::Collection(collection));
                }
                Operation::DropIndex { index } => self.drop_subject(Subject::Index(index)),
                Operation::Noop => {}
                Operation::ForgetRecord {
                    collection,
                    key,
                    document_bytes,
                    index,
                } => {
                    let unseen_since = decoded.header.unseen_since;
                    let history_start = self.store.shared.history_start();
                    if unseen_since.is_some_and(|since| since <= history_start) {
                        self.forget(collection, key, document_bytes)?;
                    } else {
                        // Here reads at earlier times still see it.
                        self.record(collection, key, None, &Before::Unknown, entry.time)?;
                    }
                    self.index(key, index, entry.time)?;
                }
                Operation::ForgetRange {
                    collection,
                    low,
                    high,
                    documents,
                    bytes,
                    indexes,
                } => {
                    let unseen_since = decoded.header.unseen_since.unwrap_or(entry.time);
                    let delta = less(documents, bytes);
                    let times = (entry.time, unseen_since);
                    self.forget_range(collection, (low, high), times, delta, indexes)?;
                }
            }
        }
        Ok(())
    }

    /// Deletes a record that is there and that nobody can read.
    fn forget(&mut self, collection: CollectionId, key: &[u8], document_bytes: u64) -> Result<()> {
        if self.is_dropped(Subject::Collection(collection)) {
            return Ok(());
        }
        layout::check_user_key(key.len())?;
        let stored = layout::record(collection, key);
        debug_assert!(
            self.replaced(collection, key, &stored, &Before::Unknown)
                .is_ok_and(
                    |found| found
                        .is_some_and(|found| u64::try_from(self::document_bytes(&found))
                            == Ok(document_bytes))
                ),
            "what is forgotten is there, and as long as it is said to be"
        );
        let stored = stored.to_slice();
        self.batch.remove(stored.clone());
        self.count(Subject::Collection(collection), less(1, document_bytes));
        self.written.all.push(Written {
            key: stored,
            value: None,
            is_new: false,
        });
        Ok(())
    }

    /// Leaves a mark by which a range is gone: see `forgotten.rs`.
    fn forget_range(
        &mut self,
        collection: CollectionId,
        (low, high): (&[u8], &[u8]),
        (time, unseen_since): (ClusterTime, ClusterTime),
        delta: Delta,
        indexes: ForgottenEntries<'_>,
    ) -> Result<()> {
        if self.is_dropped(Subject::Collection(collection)) || low >= high {
            return Ok(());
        }
        layout::check_user_key(low.len())?;
        layout::check_user_key(high.len())?;
        self.count(Subject::Collection(collection), delta);
        let mut ids = Vec::new();
        for forgotten in indexes {
            let subject = Subject::Index(forgotten.index);
            if !self.is_dropped(subject) {
                self.count(subject, less(forgotten.entries, forgotten.bytes));
                ids.push(forgotten.index);
            }
        }
        let name = (collection, time, self.forgotten.len() as u32);
        let mark = Arc::new(Mark::new(name, unseen_since, (low, high), ids));
        self.batch.put(mark.key().to_slice(), mark.value());
        let mut marks = self.marks.as_deref().cloned().unwrap_or_default();
        marks.add(Arc::clone(&mark));
        self.marks = Some(Arc::new(marks));
        self.forgotten.push(mark);
        Ok(())
    }

    /// Before something is stored under a record key, or leads to it: whether it lies in forgotten
    /// ranges. They have something new then.
    fn within_forgotten(&mut self, subject: Subject, key: &[u8]) -> bool {
        let Some(marks) = self.marks.clone() else {
            return false;
        };
        let mut is_within = false;
        for mark in marks.of(subject).iter().filter(|mark| mark.contains(key)) {
            is_within = true;
            if mark.note_written() {
                self.batch.put(mark.key().to_slice(), mark.value());
            }
        }
        is_within
    }

    /// A record is stored over what was forgotten: here reads at earlier times may still see that.
    fn keep_forgotten(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        stored: &StoredKey,
    ) -> Result<()> {
        let history_start = self.store.shared.history_start();
        let marks = self.marks.clone().unwrap_or_default();
        let marks = marks.of(Subject::Collection(collection)).iter();
        let marks: Vec<_> = marks.filter(|mark| mark.contains(key)).collect();
        if marks.iter().all(|mark| mark.is_ripe(history_start)) {
            return Ok(());
        }
        let found = match self.written.get(stored) {
            Some(value) => value.clone(),
            None => self.store.engine.get(stored)?,
        };
        let Some(found) = found else { return Ok(()) };
        let committed = layout::value_time(&found)?;
        let covering = marks.iter().filter(|mark| committed <= mark.time);
        if let Some(first) = covering.min_by_key(|mark| mark.time)
            && !first.is_ripe(history_start)
        {
            let key = layout::history(collection, key, first.time);
            self.batch.put(key.to_slice(), Slice::new(&found));
        }
        Ok(())
    }

    /// Puts a record (`Some`) or deletes it.
    fn record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        value: Option<Slice>,
        before: &Before,
        time: ClusterTime,
    ) -> Result<()> {
        if self.is_dropped(Subject::Collection(collection)) {
            return Ok(());
        }
        layout::check_user_key(key.len())?;
        let stored = layout::record(collection, key);
        if value.is_some() && self.within_forgotten(Subject::Collection(collection), key) {
            self.keep_forgotten(collection, key, &stored)?;
        }
        let replaced = self.replaced(collection, key, &stored, before)?;
        let stored = stored.to_slice();
        let mut delta = Delta::default();
        if let Some(replaced) = replaced {
            delta.items -= 1;
            delta.bytes -= document_bytes(&replaced);
            if layout::value_time(&replaced)? < time {
                let key = layout::history(collection, key, time);
                self.batch.put(key.to_slice(), replaced);
            }
        } else if value.is_none() {
            return Ok(());
        }
        match &value {
            Some(value) => {
                delta.items += 1;
                delta.bytes += document_bytes(value);
                self.batch.put(stored.clone(), value.clone());
            }
            None => self.batch.remove(stored.clone()),
        }
        self.count(Subject::Collection(collection), delta);
        self.written.all.push(Written {
            key: stored,
            value,
            is_new: matches!(before, Before::Absent),
        });
        Ok(())
    }

    fn replaced(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        stored: &StoredKey,
        before: &Before,
    ) -> Result<Option<Slice>> {
        let marks = self.marks.clone();
        let is_there = |value: &Slice| super::is_there(marks.as_deref(), collection, key, value);
        match before {
            Before::Absent => {
                debug_assert!(
                    match self.written.get(stored) {
                        Some(value) => !value.as_ref().is_some_and(is_there),
                        None =>
                            matches!(self.store.engine.get(stored), Ok(found) if !found.as_ref().is_some_and(is_there)),
                    },
                    "an evaluator saw no record where one is stored"
                );
                return Ok(None);
            }
            Before::Present(record) => return Ok(Some(record.stored().clone())),
            Before::Unknown => {}
        }
        if let Some(value) = self.written.get(stored) {
            return Ok(value.clone().filter(is_there));
        }
        if let Some(value) = self.store.shared.cache.get(stored).filter(is_there) {
            return Ok(Some(value));
        }
        // Copied, so that the memtable does not keep a whole block alive for it.
        let value = self.store.engine.get(stored)?.filter(is_there);
        Ok(value.map(|value| Slice::new(&value)))
    }

    fn index(&mut self, key: &[u8], changes: IndexChanges<'_>, time: ClusterTime) -> Result<()> {
        for change in changes {
            let subject = Subject::Index(change.index);
            if self.is_dropped(subject) {
                continue;
            }
            layout::check_user_key(change.fields.len() + key.len())?;
            let stored = layout::index_entry(change.index, change.fields, key).to_slice();
            // Type bits are left out of the size: a removal does not know them.
            let bytes = stored.len() as i64;
            match change.action {
                IndexAction::Add { type_bits } => {
                    // What was there before a range was forgotten has no time.
                    let added = self.within_forgotten(subject, key).then_some(time);
                    let value = layout::index_value(key.len(), added, type_bits);
                    self.batch.put(stored, value);
                    self.count(subject, Delta { items: 1, bytes });
                }
                IndexAction::Remove => {
                    self.batch.remove(stored);
                    let delta = Delta {
                        items: -1,
                        bytes: -bytes,
                    };
                    self.count(subject, delta);
                }
            }
        }
        Ok(())
    }

    fn drop_subject(&mut self, subject: Subject) {
        if self.is_dropped(subject) {
            return;
        }
        self.batch
            .put(layout::dropped(subject).to_slice(), Slice::new(&[]));
        self.dropped.push(subject);
    }

    /// Writes to something that is gone would never be removed again.
    fn is_dropped(&self, subject: Subject) -> bool {
        self.dropped.contains(&subject) || self.already_dropped.contains(&subject)
    }

    fn count(&mut self, subject: Subject, delta: Delta) {
        // A batch touches few collections, mostly one: a list is faster than a map.
        match self.deltas.iter_mut().find(|(other, _)| *other == subject) {
            Some((_, sum)) => {
                sum.items += delta.items;
                sum.bytes += delta.bytes;
            }
            None => self.deltas.push((subject, delta)),
        }
    }
}

/// What is stored for a document: what the evaluator made of it, or a copy.
fn value_of(document: &[u8], made: Option<&Record>, time: ClusterTime) -> Slice {
    match made {
        Some(made) => {
            assert!(
                made.time() == time && made.document().len() == document.len(),
                "an evaluator's version is that of its entry"
            );
            debug_assert_eq!(made.document(), document);
            made.stored().clone()
        }
        None => Record::new(time, document).into_stored(),
    }
}

/// What a counter loses.
fn less(items: u64, bytes: u64) -> Delta {
    let lost = |number| -i64::try_from(number).unwrap_or(i64::MAX);
    Delta {
        items: lost(items),
        bytes: lost(bytes),
    }
}

fn document_bytes(value: &Slice) -> i64 {
    value.len().saturating_sub(TIME_BYTES) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Encoder, Header};

    fn payload(origin: Option<&[u8]>, bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let header = Header {
            origin,
            ..Header::default()
        };
        Encoder::with_header(&mut out, header).put_meta(b"k", &vec![0; bytes]);
        out
    }

    /// ⚑ Whoever waits for an answer does not wait for others who were offered the core.
    #[test]
    fn only_what_comes_from_elsewhere_gives_way() {
        use Manner::{Bulk, GivesWay, Usual};
        let moved = payload(Some(b"a move"), 64 << 10);
        let written = payload(None, 100);
        let check = |payloads: &[&[u8]], expected: Manner| {
            let entries: Vec<Committed<'_>> = payloads
                .iter()
                .map(|payload| Committed {
                    position: 1,
                    time: ClusterTime::ZERO,
                    payload,
                    before: &[],
                    after: &[],
                })
                .collect();
            assert_eq!(Manner::of(&entries), expected, "{} entries", payloads.len());
        };
        check(&[&moved], GivesWay);
        check(&[&moved, &moved], GivesWay);
        check(&[&written], Usual);
        check(&[&moved, &written], Usual);
        check(&[&written, &moved], Usual);
        // Where nobody is, entries are long; who catches up has many.
        check(&[&payload(Some(b"a move"), GIVES_WAY_BYTES_MAX)], Bulk);
        check(&[&moved[..]; 16], Bulk);
        check(&[&moved[..], &moved, &moved, &moved, &written], Bulk);
        check(&[&payload(None, BULK_BYTES_MIN)], Bulk);
        check(&[&payload(None, BULK_BYTES_MIN / 2)], Usual);
    }
}
