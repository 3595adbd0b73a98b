//! The store: what committed entries add up to.
//!
//! One writer (the log's apply loop) and any number of readers:
//!
//! ```text
//!  apply    entries ─► engine batch {records, index, history, meta, counters, applied position}
//!  get      record cache, else the engine: the latest applied version of one record
//!  snapshot everything as of one moment: scans over records and index entries
//!  at       a snapshot's records at an earlier cluster time: records merged with history
//!  maintain moves the start of history, removes what was dropped, in bounded steps
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `apply.rs` | entries into one engine batch |
//! | `cache.rs` | the record cache and how it stays coherent |
//! | `stretches.rs`, `pairs.rs` | what scans read, kept in memory for the next ones |
//! | `memory.rs` | the memory for that, of all stores of a process |
//! | `allocation.rs` | what bytes take when they are in memory |
//! | `joined.rs` | records beside the index entries that lead to them |
//! | `changes.rs` | what batches have written lately |
//! | `counters.rs` | document counts and sizes, exact after a crash |
//! | `snapshot.rs`, `past.rs` | scans now, scans in the past |
//! | `forgotten.rs` | ranges that are gone although they are stored |
//! | `maintain.rs`, `sweep.rs` | history's start, removal of dropped and forgotten data |
//! | `copy.rs` | all of it to another member, and replaced by another member's |
//!
//! A cursor holds positions (bytes), never a snapshot: a held snapshot pins every
//! memtable that was written since it was taken.

mod allocation;
mod apply;
mod cache;
mod changes;
mod copy;
mod counters;
mod forgotten;
mod joined;
mod maintain;
mod memory;
mod pairs;
mod past;
mod snapshot;
mod stretches;
mod sweep;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use parking_lot::{Mutex, RwLock};

pub use apply::{Before, Committed};
pub use copy::{StagedState, StateCopy, discard_staged, finish_install};
pub use counters::Counter;
pub use maintain::{HistoryPin, Maintained};
pub use memory::ScanMemory;
pub use pairs::Verdict;
pub use past::{PastScan, PastSnapshot};
pub use snapshot::{
    FoundEntry, IndexEntry, IndexScan, MetaScan, Position, Record, RecordScan, Snapshot,
    StoredRecord,
};

use crate::engine::{Direction, Engine, EngineSnapshot, KeyRange, Slice};
use crate::error::Result;
use crate::layout::{self, Subject};
use cache::RecordCache;
use counters::Counters;
use forgotten::Marks;
use stretches::Stretches;

#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory for whole records above the engine. Zero switches the cache off.
    pub record_cache_bytes: u64,
    /// Memory for what scans read, which other stores of the process may share.
    pub scan_memory: ScanMemory,
    /// From how many pairs on a scan leaves stretches before it ends.
    pub long_scan_pairs: u64,
    /// How far back reads at an earlier time may go.
    pub history_window_seconds: u32,
    /// How long what is left of a forgotten range is left to the engine's compactions, before it is removed
    /// key by key.
    pub sweep_after_seconds: u32,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            record_cache_bytes: 64 << 20,
            scan_memory: ScanMemory::of(32 << 20),
            long_scan_pairs: 256,
            history_window_seconds: 300,
            sweep_after_seconds: 900,
        }
    }
}

/// The data of one shard, as far as the log was applied.
pub struct Store<E: Engine> {
    engine: E,
    /// See [`StoreOptions::history_window_seconds`].
    history_window: AtomicU32,
    sweep_after_seconds: u32,
    shared: Arc<Shared>,
    counters: RwLock<Counters>,
    /// One apply at a time.
    writer: Mutex<()>,
    /// One maintenance step at a time. Apart from `writer`, because a step may
    /// wait for the engine's compactions while the log must go on.
    removals: Mutex<maintain::Removals>,
}

/// What snapshots and pins look at too.
struct Shared {
    cache: RecordCache,
    stretches: Stretches,
    long_scan_pairs: u64,
    /// Counts batches, from before they touch caches or engine.
    commits_begun: AtomicU64,
    /// Counts the same batches, when engine and cache have them.
    commits_finished: AtomicU64,
    position: AtomicU64,
    time: AtomicU64,
    /// Reads at this time and later find all they need.
    history_start: AtomicU64,
    /// Lock order: before changing `history_start`.
    pins: Mutex<maintain::Pins>,
    dropped: RwLock<Arc<BTreeSet<Subject>>>,
    /// Spares point reads the lock while nothing is dropped.
    has_dropped: AtomicBool,
    forgotten: RwLock<Arc<Marks>>,
    /// Spares all reads the lock while there is none.
    has_forgotten: AtomicBool,
}

impl Shared {
    fn time(&self) -> ClusterTime {
        ClusterTime::from_u64(self.time.load(Ordering::Acquire))
    }

    fn history_start(&self) -> ClusterTime {
        ClusterTime::from_u64(self.history_start.load(Ordering::Acquire))
    }

    fn dropped(&self) -> Arc<BTreeSet<Subject>> {
        Arc::clone(&self.dropped.read())
    }

    /// Ranges that are gone; `None` if there is none.
    fn forgotten(&self) -> Option<Arc<Marks>> {
        self.has_forgotten
            .load(Ordering::Acquire)
            .then(|| Arc::clone(&self.forgotten.read()))
    }

    /// Marks that were read before a state was taken, and those of now that it contains: see `forgotten.rs`.
    fn forgotten_in(
        &self,
        state: &impl EngineSnapshot,
        before: Option<Arc<Marks>>,
    ) -> Option<Arc<Marks>> {
        let Some(now) = self.forgotten() else {
            return before;
        };
        if before.as_ref().is_some_and(|it| Arc::ptr_eq(it, &now)) {
            return before;
        }
        // A disk that does not tell fails whoever reads on.
        let last = counters::applied_time(state).unwrap_or(ClusterTime::MAX);
        let contained = now.only(|mark| mark.time <= last);
        let before = before.as_deref().cloned().unwrap_or_default();
        Some(Arc::new(before.with(&contained)))
    }

    /// Marks that were read earlier, and those of now.
    fn and_forgotten(&self, before: Option<Arc<Marks>>) -> Option<Arc<Marks>> {
        match (before, self.forgotten()) {
            (Some(before), Some(after)) if Arc::ptr_eq(&before, &after) => Some(after),
            (Some(before), Some(after)) => Some(Arc::new(before.with(&after))),
            (before, after) => before.or(after),
        }
    }

    fn change_forgotten(&self, change: impl FnOnce(&Marks) -> Marks) {
        let mut forgotten = self.forgotten.write();
        *forgotten = Arc::new(change(&forgotten));
        self.has_forgotten
            .store(!forgotten.is_empty(), Ordering::Release);
    }

    fn change_dropped(&self, change: impl FnOnce(&mut BTreeSet<Subject>)) {
        let mut dropped = self.dropped.write();
        change(Arc::make_mut(&mut dropped));
        self.has_dropped
            .store(!dropped.is_empty(), Ordering::Release);
    }
}

/// What a store keeps in memory of the engine's own keys.
struct Loaded {
    position: u64,
    time: ClusterTime,
    counters: Counters,
    history_start: ClusterTime,
    dropped: BTreeSet<Subject>,
    forgotten: Marks,
}

impl Loaded {
    fn from(state: &impl EngineSnapshot) -> Result<Self> {
        let (position, time, counters) = counters::load(state)?;
        let history_start = match state.get(&layout::history_start())? {
            Some(value) => layout::value_time(&value)?,
            None => ClusterTime::ZERO,
        };
        let mut dropped = BTreeSet::new();
        let marker = layout::all_dropped();
        for pair in snapshot::scan_prefix(state, &marker) {
            let (key, _) = pair?;
            dropped.insert(layout::parse_subject(&key[marker.len()..])?);
        }
        Ok(Self {
            position,
            time,
            counters,
            history_start,
            dropped,
            forgotten: Marks::load(state)?,
        })
    }
}

impl<E: Engine> Store<E> {
    /// Takes over what the engine holds, which may be nothing yet.
    pub fn open(engine: E, options: StoreOptions) -> Result<Self> {
        let Loaded {
            position,
            time,
            counters,
            history_start,
            dropped,
            forgotten,
        } = Loaded::from(&engine.snapshot())?;
        let memory = options.scan_memory;
        let shared = Arc::new(Shared {
            cache: RecordCache::new(options.record_cache_bytes, memory.clone()),
            stretches: Stretches::new(memory.clone()),
            long_scan_pairs: options.long_scan_pairs,
            commits_begun: AtomicU64::new(0),
            commits_finished: AtomicU64::new(0),
            position: AtomicU64::new(position),
            time: AtomicU64::new(time.to_u64()),
            history_start: AtomicU64::new(history_start.to_u64()),
            pins: Mutex::default(),
            has_dropped: AtomicBool::new(!dropped.is_empty()),
            dropped: RwLock::new(Arc::new(dropped)),
            has_forgotten: AtomicBool::new(!forgotten.is_empty()),
            forgotten: RwLock::new(Arc::new(forgotten)),
        });
        memory.join(&shared);
        Ok(Self {
            counters: RwLock::new(counters),
            writer: Mutex::default(),
            removals: Mutex::default(),
            shared,
            engine,
            sweep_after_seconds: options.sweep_after_seconds,
            history_window: AtomicU32::new(options.history_window_seconds),
        })
    }

    /// The position of the last applied entry; zero before the first.
    pub fn applied(&self) -> u64 {
        self.shared.position.load(Ordering::Acquire)
    }

    /// Whether a few entries might be held up now until the engine has caught up.
    pub fn lets_writers_wait(&self) -> bool {
        self.engine.lets_writers_wait()
    }

    /// The time of the last applied entry.
    pub fn applied_time(&self) -> ClusterTime {
        self.shared.time()
    }

    /// Makes everything applied so far survive a power cut, and returns up to
    /// which position that surely holds.
    pub fn sync(&self) -> Result<u64> {
        let position = self.applied();
        self.engine.sync()?;
        Ok(position)
    }

    /// The latest applied version of one record.
    pub fn get(&self, collection: CollectionId, key: &[u8]) -> Result<Option<Record>> {
        // Nothing can be stored under a longer key, and engines do not take it.
        if layout::check_user_key(key.len()).is_err() {
            return Ok(None);
        }
        let stored = layout::record(collection, key);
        // Before the cache is asked: of a mark that goes meanwhile it may still hold something.
        let marks = self.shared.forgotten();
        let value = self.shared.cache.get_or_load(
            &stored,
            |value| is_there(marks.as_deref(), collection, key, value),
            || {
                let state = self.engine.snapshot();
                let marks = self.shared.forgotten_in(&state, marks.clone());
                let value = state.get(&stored)?;
                Ok(value.filter(|value| is_there(marks.as_deref(), collection, key, value)))
            },
            || true,
        )?;
        let Some(value) = value else { return Ok(None) };
        if self.is_dropped(Subject::Collection(collection)) {
            return Ok(None);
        }
        Record::from_stored(value).map(Some)
    }

    /// The same for a writer that holds the key's latch. The cache is asked but not
    /// filled: what the writer reads it will mostly replace. The version shares no
    /// memory with a block of the engine.
    ///
    /// No batch that writes the key may be under way: this may see one earlier than
    /// readers do.
    pub fn latest(&self, collection: CollectionId, key: &[u8]) -> Result<Option<Record>> {
        if self.is_dropped(Subject::Collection(collection)) {
            return Ok(None);
        }
        let stored = layout::record(collection, key);
        let marks = self.shared.forgotten();
        let cached = self.shared.cache.get(&stored);
        let value = match cached {
            Some(value) if is_there(marks.as_deref(), collection, key, &value) => Some(value),
            Some(_) | None => {
                let value = self.engine.get(&stored)?;
                let marks = self.shared.and_forgotten(marks);
                let value =
                    value.filter(|value| is_there(marks.as_deref(), collection, key, value));
                value.map(|value| Slice::new(&value))
            }
        };
        value.map(Record::from_stored).transpose()
    }

    /// Everything as of now. Keep it for one batch of a scan, not for a cursor's life.
    pub fn snapshot(&self) -> Snapshot<E::Snapshot> {
        // Read before the snapshot is taken: it contains at least these.
        let commits_finished = self.shared.commits_finished.load(Ordering::Acquire);
        let time = self.shared.time();
        let before = self.shared.forgotten();
        let state = self.engine.snapshot();
        let forgotten = self.shared.forgotten_in(&state, before);
        let shared = Arc::clone(&self.shared);
        Snapshot::new((state, forgotten), time, commits_finished, shared)
    }

    /// A document of the shard, as of now.
    pub fn get_meta(&self, key: &[u8]) -> Result<Option<Slice>> {
        self.engine.snapshot().get(&layout::document(key))
    }

    /// Document count and the sum of document sizes: exact.
    pub fn collection_counter(&self, collection: CollectionId) -> Counter {
        self.counters.read().get(Subject::Collection(collection))
    }

    /// A snapshot and what the counter says at the same moment. Waits for what is being applied.
    pub fn snapshot_and_counter(
        &self,
        collection: CollectionId,
    ) -> (Snapshot<E::Snapshot>, Counter) {
        let _writer = self.writer.lock();
        (self.snapshot(), self.collection_counter(collection))
    }

    /// Ranges of a collection that were forgotten and may still be stored.
    pub fn forgotten_ranges(&self, collection: CollectionId) -> usize {
        let marks = self.shared.forgotten();
        marks.map_or(0, |marks| marks.of(Subject::Collection(collection)).len())
    }

    /// Entry count and the sum of key and value sizes. Approximate: an entry that
    /// was added twice (by an index build and by a write) counts twice, and what goes
    /// with a forgotten range is estimated.
    pub fn index_counter(&self, index: IndexId) -> Counter {
        self.counters.read().get(Subject::Index(index))
    }

    /// Bytes on disk of everything together.
    pub fn storage_bytes(&self) -> u64 {
        self.engine.approximate_size_bytes()
    }

    /// A fair share of [`Self::storage_bytes`]: approximate.
    pub fn storage_bytes_of(&self, subject: Subject) -> u64 {
        let (own, total) = {
            let counters = self.counters.read();
            (counters.get(subject).bytes, counters.total_bytes())
        };
        if total == 0 {
            return 0;
        }
        let share = u128::from(self.storage_bytes()) * u128::from(own) / u128::from(total);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Bytes of memory that the record cache holds.
    pub fn record_cache_bytes(&self) -> u64 {
        self.shared.cache.weight()
    }

    /// Bytes of memory that kept stretches hold.
    pub fn stretch_bytes(&self) -> u64 {
        self.shared.stretches.memory_bytes()
    }

    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Syncs and lets go. The directory is free when the last snapshot is gone too.
    pub fn close(self) -> Result<()> {
        self.engine.sync()
    }

    fn is_dropped(&self, subject: Subject) -> bool {
        self.shared.has_dropped.load(Ordering::Acquire)
            && self.shared.dropped.read().contains(&subject)
    }
}

/// Whether a stored record is not gone.
fn is_there(marks: Option<&Marks>, collection: CollectionId, key: &[u8], value: &[u8]) -> bool {
    marks.is_none_or(|marks| !marks.covers_record(collection, key, value))
}
