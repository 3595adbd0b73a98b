//! Ranges whose records are gone although they are still stored.
//!
//! A shard that has given a range away removes it, at the latest when it comes back. Removing each
//! record and each index entry costs more than storing them did. Instead one entry of the log
//! *forgets* the range: it leaves a mark, by which everybody tells what belongs to it, and the
//! bytes go when nobody can read them at any time and that costs little.
//!
//! ```text
//!   apply     [mark: collection, low..high, forgotten at T, unseen since, indexes] in the entry's batch
//!               │ from here on no read finds a record or an index entry that the mark covers
//!   maintain    ├─ synced ─► the engine's compactions leave out what it covers
//!               ├─ whole tables inside low..high released, unless something was stored there since
//!               └─ after a while: what is left removed key by key, with the last of it the mark
//! ```
//!
//! **What a mark covers.** A record from `low` to before `high` that was committed at T or earlier;
//! an entry of one of its indexes whose record key lies there and that was added at T or earlier.
//! Records have their commit time in front. Index entries have none, so those that are added for a
//! record key inside a mark get one; all others are older. So a range may come back at any
//! moment: what is stored then is later than T, and neither hidden nor removed. An index that was made later is
//! not among the mark's, and has nothing of before.
//!
//! **Invariants.**
//! - Marks are data: put by an entry's batch, copied to other members with everything else. Which
//!   bytes are still there differs from member to member; what can be read does not.
//! - A mark goes only with, or after, the last key that it covers, and when no compaction to come goes by it. It is *ripe* when history begins at
//!   the time since which nobody has seen the records; before, nothing of it is removed.
//! - A read at a time before T does not see the mark. Where something is stored over what an unripe mark covers,
//!   that goes into history first, as if it had been deleted at T.
//! - Readers look at marks before and after they take a snapshot, and heed both: of one that went in between a
//!   snapshot may still hold something. ⚑ But not one that came later than the snapshot: the range may have been
//!   somebody's then, because it may be forgotten moments after it was given away.
//! - The record cache is not told of what a mark covers. Whoever finds such a value in it asks the
//!   engine; before a mark goes, they are taken out, after all who may still put one in have done so.
//! - ⚑ Tables are released only while nothing was stored in the range since (the mark says so, durably, in
//!   the batch that stores it), and such a batch waits for a release under way. A table may hold removals,
//!   and what they removed comes back with it gone: the mark covers that too, because releases come before
//!   keys are removed one by one.
//!
//! **Crashes.** Nothing is removed before the mark's batch is synced; after a crash the marks that are found
//! belong to what is found with them, and all that follows is done again.

use std::collections::HashMap;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use parking_lot::Mutex;

use super::snapshot::scan_prefix;
use crate::engine::{EngineSnapshot, Slice};
use crate::error::{Error, Result};
use crate::layout::{self, IndexValue, StoredKey, Subject};
use crate::varint;

const IS_WRITTEN: u8 = 1;

/// A range that was forgotten.
#[derive(Debug)]
pub(super) struct Mark {
    pub collection: CollectionId,
    /// When it was forgotten.
    pub time: ClusterTime,
    pub number: u32,
    /// Nobody sees the records at this time and later.
    pub unseen_since: ClusterTime,
    /// Record keys from here
    pub low: Box<[u8]>,
    /// to before here.
    pub high: Box<[u8]>,
    pub indexes: Vec<IndexId>,
    /// Something was stored in the range since. Set under `releasing`, by the one who applies.
    is_written: AtomicBool,
    /// Held while whole tables are released: whether that is done, since the store was opened.
    pub releasing: Mutex<bool>,
}

// Its lock is never held while anything could unwind.
impl RefUnwindSafe for Mark {}

impl Mark {
    pub fn new(
        (collection, time, number): (CollectionId, ClusterTime, u32),
        unseen_since: ClusterTime,
        (low, high): (&[u8], &[u8]),
        indexes: Vec<IndexId>,
    ) -> Self {
        Self {
            collection,
            time,
            number,
            unseen_since,
            low: low.into(),
            high: high.into(),
            indexes,
            is_written: AtomicBool::new(false),
            releasing: Mutex::default(),
        }
    }

    pub fn key(&self) -> StoredKey {
        layout::forgotten(self.collection, self.time, self.number)
    }

    /// `[unseen since 8][flags 1][low][high][index varint]*`
    pub fn value(&self) -> Slice {
        let mut value = layout::time_bytes(self.unseen_since).to_vec();
        value.push(if self.is_written() { IS_WRITTEN } else { 0 });
        varint::put_bytes(&mut value, &self.low);
        varint::put_bytes(&mut value, &self.high);
        for index in &self.indexes {
            varint::put(&mut value, u64::from(index.0));
        }
        value.into()
    }

    fn from_stored(rest: &[u8], value: &[u8]) -> Option<Self> {
        let name = layout::parse_forgotten(rest)?;
        let unseen_since = layout::value_time(value).ok()?;
        let (&flags, mut rest) = value[layout::TIME_BYTES..].split_first()?;
        let low = varint::take_bytes(&mut rest)?;
        let high = varint::take_bytes(&mut rest)?;
        let mut indexes = Vec::new();
        while !rest.is_empty() {
            let id = u32::try_from(varint::take(&mut rest)?).ok()?;
            indexes.push(IndexId(id));
        }
        let mark = Self::new(name, unseen_since, (low, high), indexes);
        mark.is_written
            .store(flags & IS_WRITTEN != 0, Ordering::Release);
        Some(mark)
    }

    pub fn contains(&self, record_key: &[u8]) -> bool {
        *self.low <= *record_key && *record_key < *self.high
    }

    pub fn is_ripe(&self, history_start: ClusterTime) -> bool {
        self.unseen_since <= history_start
    }

    pub fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }

    /// Before something is stored in the range; whether it is the first time. Waits for a release under way.
    pub fn note_written(&self) -> bool {
        if self.is_written() {
            return false;
        }
        let _releasing = self.releasing.lock();
        !self.is_written.swap(true, Ordering::AcqRel)
    }

    /// What it is about: the collection, and the indexes.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let indexes = self.indexes.iter().copied().map(Subject::Index);
        indexes.chain([Subject::Collection(self.collection)])
    }

    /// Where its records lie, as stored keys.
    pub fn records(&self) -> (Vec<u8>, Vec<u8>) {
        let stored = |key: &[u8]| layout::record(self.collection, key).to_vec();
        (stored(&self.low), stored(&self.high))
    }
}

/// All marks of a store, or those of some moment.
#[derive(Clone, Default, Debug)]
pub(super) struct Marks {
    all: Vec<Arc<Mark>>,
    by_subject: HashMap<Subject, Vec<Arc<Mark>>, foldhash::fast::RandomState>,
}

impl PartialEq for Marks {
    /// The very same ones.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.all.iter().zip(&other.all);
        self.all.len() == other.all.len() && { pairs }.all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl Marks {
    pub fn load(state: &impl EngineSnapshot) -> Result<Self> {
        let mut marks = Self::default();
        let prefix = layout::all_forgotten();
        for pair in scan_prefix(state, &prefix) {
            let (key, value) = pair?;
            let mark = Mark::from_stored(&key[prefix.len()..], &value).ok_or(Error::Damaged {
                what: "forgotten range",
            })?;
            marks.add(Arc::new(mark));
        }
        Ok(marks)
    }

    pub fn add(&mut self, mark: Arc<Mark>) {
        for subject in mark.subjects() {
            let marks = self.by_subject.entry(subject).or_default();
            marks.push(Arc::clone(&mark));
        }
        self.all.push(mark);
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn all(&self) -> &[Arc<Mark>] {
        &self.all
    }

    pub fn of(&self, subject: Subject) -> &[Arc<Mark>] {
        self.by_subject.get(&subject).map_or(&[], Vec::as_slice)
    }

    /// Those for which something holds.
    pub fn only(&self, keep: impl Fn(&Mark) -> bool) -> Self {
        let mut some = Self::default();
        for mark in self.all.iter().filter(|mark| keep(mark)) {
            some.add(Arc::clone(mark));
        }
        some
    }

    /// These and others.
    pub fn with(&self, others: &Marks) -> Self {
        let mut both = self.clone();
        for mark in &others.all {
            if !self.all.iter().any(|known| Arc::ptr_eq(known, mark)) {
                both.add(Arc::clone(mark));
            }
        }
        both
    }

    /// All but others.
    pub fn without(&self, others: &Marks) -> Self {
        let is_other = |mark: &Mark| others.all.iter().any(|it| std::ptr::eq(&**it, mark));
        self.only(|mark| !is_other(mark))
    }

    /// Whether a stored record is gone.
    pub fn covers_record(&self, collection: CollectionId, key: &[u8], value: &[u8]) -> bool {
        covers_record(self.of(Subject::Collection(collection)), key, value)
    }

    /// Whether a stored pair is gone; the value is asked for where it matters.
    pub fn covers_stored(&self, key: &[u8], value: &dyn Fn() -> Option<Slice>) -> bool {
        match layout::owner(key) {
            Some(layout::Owner::Record(collection, key)) => {
                let marks = self.of(Subject::Collection(collection));
                marks.iter().any(|mark| mark.contains(key))
                    && value().is_some_and(|value| covers_record(marks, key, &value))
            }
            Some(layout::Owner::Index(index, rest)) => {
                let marks = self.of(Subject::Index(index));
                !marks.is_empty() && value().is_some_and(|value| covers_entry(marks, rest, &value))
            }
            Some(layout::Owner::History(..) | layout::Owner::Meta) | None => false,
        }
    }
}

fn covers_record(marks: &[Arc<Mark>], key: &[u8], value: &[u8]) -> bool {
    !marks.is_empty()
        && layout::value_time(value).is_ok_and(|committed| {
            { marks.iter() }.any(|mark| committed <= mark.time && mark.contains(key))
        })
}

/// `rest` are fields and record key.
fn covers_entry(marks: &[Arc<Mark>], rest: &[u8], value: &[u8]) -> bool {
    let Some(IndexValue {
        key_bytes, added, ..
    }) = layout::split_index_value(value)
    else {
        return false;
    };
    let Some(at) = rest.len().checked_sub(key_bytes) else {
        return false;
    };
    { marks.iter() }.any(|mark| added <= mark.time && mark.contains(&rest[at..]))
}

/// Leaves out what is gone of one collection or index.
pub(super) struct Sieve {
    marks: Vec<Arc<Mark>>,
    prefix: usize,
    is_index: bool,
}

impl Sieve {
    /// None where nothing has to be left out.
    pub fn new(marks: &Marks, subject: Subject) -> Option<Self> {
        let of_subject = marks.of(subject);
        (!of_subject.is_empty()).then(|| Self {
            marks: of_subject.to_vec(),
            prefix: layout::all_of(subject).len(),
            is_index: matches!(subject, Subject::Index(_)),
        })
    }

    pub fn passes(&self, key: &[u8], value: &[u8]) -> bool {
        let rest = &key[self.prefix..];
        let is_covered = match self.is_index {
            true => covers_entry(&self.marks, rest, value),
            false => covers_record(&self.marks, rest, value),
        };
        !is_covered
    }
}
