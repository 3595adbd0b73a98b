//! The engine on disk: one fjall keyspace, without fjall's journal.
//!
//! ```text
//!  write ─► memtable ──full, or sync──► sealed ──flush, fsync──► tables
//!             lost with the process: the log replays what comes after the tables
//! ```
//!
//! Batches go into the memtable only. The log has them already, and it keeps every
//! entry until [`Engine::sync`] has put it into a table; a second journal would write
//! the same bytes again for nothing. So after a crash the engine holds what was flushed
//! last. That is a prefix of the batches, because
//!
//! - a memtable is sealed between two batches, never inside one: only [`Open::seal`]
//!   does it, under the lock that a batch holds;
//! - tables are flushed in order, and one rename of the manifest adds them.
//!
//! A full memtable is sealed and flushed by a thread of ours (`flusher.rs`); one that a writer or a sync has sealed, by
//! the engine's, or by ours if that comes first. Large batches of new keys lie beside the memtable until then
//! (`sheaves.rs`).
//!
//! fjall's own `commit` would show half of a batch to a snapshot: a flush or compaction
//! that ends meanwhile takes the next number and makes everything below it visible.
//! Here a batch is numbered so far ahead that these stay below it, and the counters
//! follow when it is complete.
//!
//! Settings follow what was measured: a small memtable keeps restarts
//! short and commit stalls low, though 32 MiB instead of 16 halve how often the same
//! data is merged again; blocks
//! of nearly 16 KiB instead of 4 make the engine's own scan of 1 kB documents cheaper, of which
//! about a tenth is left in a whole `find`.
//!
//! Merges. A flushed table spans all keys, so a merge of the first level rewrites all of
//! the next one. While memtables are sealed one after the other, many tables gather before
//! that ([`FjallOptions::level_zero_tables`]); when it has become quiet, [`Engine::tidy`]
//! merges what is left over, so that reads find few tables. Before that, large batches that lie beside
//! the memtable make way.
//!
//! Garbage (expired history, dropped collections) is removed by a compaction
//! filter. Its verdict is `Remove`, which leaves a tombstone until the last level:
//! `Destroy` would let an older version of the same key come back.
//!
//! fjall asserts on keys over 65,535 bytes; the store checks lengths before.
//!
//! This goes around fjall's front door (its hidden `tree` and `supervisor`), so its
//! version is pinned to 3.1 and the tests in `tests/engine_batches.rs` hold it to the
//! promises above.

mod snapshot;

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fjall::compaction::Leveled;
use fjall::compaction::filter::Factory;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PartitioningPolicy, PinningPolicy,
};
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, SeqNo,
};
use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64;

use super::creation;
use super::directory::Directory;
use super::engine_log;
use super::flush_without::{Stretches, Versions};
use super::flusher::Flusher;
use super::garbage::{Garbage, GarbageFactory};
use super::key_filter::KeyFilters;
use super::sheaves::{self, Sheaf, Sheaves};
use super::table_removal::TableRemoval;
use super::table_writeback::TableWriteback;
use super::{Engine, GarbageRule, Slice, WriteBatch};
use crate::error::{Error, Found, Result};
use crate::giving_way;

pub use snapshot::{FjallScan, FjallSnapshot};

const KEYSPACE: &str = "all";

/// How far ahead of the counter a batch is numbered: more than flushes and compactions
/// can end while one batch goes into the memtable.
const NUMBERS_AHEAD: u64 = 256;
/// A memtable that is larger than it should be by this part is sealed by whoever writes: nobody came to flush it.
const OVERFULL_SHARE: u64 = 4;
/// With the large batches beside it, it may be so many times as large: then whoever writes flushes it himself, or
/// waits for the flush that is under way.
const OVERFULL_TIMES: u64 = 2;
/// More large batches do not lie beside one memtable: each of them is asked for a key, and joined into a scan.
const SHEAVES_MAX: usize = 64;
/// When so many looks in a row have found no new ones, they make way for those who read.
const QUIET_LOOKS_OF_SHEAVES: u32 = 2;
/// They are flushed then, if what is not flushed is this part of a memtable's size, and put into the memtable if it is
/// less: a table for each of a few batches would have to be merged again and again.
const FLUSHED_SHARE: u64 = 2;
/// Writers wait while this many memtables are still to be flushed.
const SEALED_MEMTABLES_MAX: usize = 4;
/// Writers wait while reads would have to look into this many flushed tables.
const LEVEL_ZERO_RUNS_MAX: usize = 20;
/// When writers have become quiet, no more flushed tables than this are left to readers.
const LEVEL_ZERO_TABLES_AT_REST: u8 = 3;
/// Writers are quiet when so many looks in a row, a second apart, have found that they fill no
/// memtable. Not the time that has passed: a process that was stopped, or a machine that was
/// asleep, would find its writers quiet in the middle of a burst.
const QUIET_LOOKS: u32 = 5;
/// Who fills more than this part of a memtable from one look to the next is not quiet.
const QUIET_SHARE: u64 = 16;
/// What part of a memtable's size its key filter takes.
const FILTER_SHARE: usize = 64;
/// The engine looks for versions that nobody reads after so many snapshots.
const SNAPSHOTS_PER_LOOK: u32 = 10_000;
/// What was sealed is flushed so often before a memtable is, and then left to the engine.
const FLUSHES_MAX: u32 = 3;
const FLUSH_POLL: Duration = Duration::from_millis(2);

/// Threads that flush and compact.
///
/// If there are several, fjall keeps the first one free for flushes, and that one
/// passes requests to compact on by putting them back into the queue: a busy loop while
/// all others compact. With two workers on two cores that took a fifth of a load's CPU,
/// with four still a tenth. One alone never spins; its flushes then wait for the
/// compaction under way, for which four sealed memtables leave room (over a load of
/// 1.2 GB the longest batch took 0.1 s, with four workers 0.1 to 0.26 s). Full memtables are
/// flushed by a thread of ours, beside it (`flusher.rs`). With more
/// cores compactions may run side by side, and of three workers one is nearly always
/// free to empty the queue.
fn workers() -> usize {
    match std::thread::available_parallelism() {
        Ok(cores) if cores.get() > 2 => 4,
        Ok(_) | Err(_) => 1,
    }
}

#[derive(Clone, Debug)]
pub struct FjallOptions {
    /// Memory for blocks, shared by everything the engine reads.
    pub cache_bytes: u64,
    pub memtable_bytes: u64,
    /// How many flushed memtables gather before they are merged with what is below
    /// them. Each of them spans all keys (records, index entries, the store's own state), so
    /// that a merge rewrites all of level one: the more it brings along, the less often that
    /// happens. Reads ask the filters of all of them.
    pub level_zero_tables: u8,
    /// The size of a table on disk; level one holds `level_zero_tables` of them.
    pub table_bytes: u64,
    /// What is read, checked and decompressed at once ends with the pair that passes this. Those of a kilobyte
    /// leave it within 16 KiB, beyond which an allocator has no block before 20.
    pub block_bytes: u32,
    /// Threads that flush and compact.
    pub workers: usize,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            memtable_bytes: 32 << 20,
            level_zero_tables: 12,
            table_bytes: 32 << 20,
            block_bytes: 15_104,
            workers: workers(),
        }
    }
}

/// An open store directory. Clones share it; the directory is free again when
/// the last clone, snapshot and scan are gone.
#[derive(Clone)]
pub struct FjallEngine(Arc<Running>);

/// The engine while somebody may write.
struct Running {
    // First: its thread has ended when the rest is let go of.
    flusher: Flusher,
    open: Arc<Open>,
}

struct Open {
    writeback: TableWriteback,
    removal: Mutex<TableRemoval>,
    keyspace: Keyspace,
    database: Database,
    garbage: Garbage,
    memtable_bytes: u64,
    unflushed: KeyFilters,
    sheaves: Sheaves,
    /// Bytes of those beside the memtable that is written.
    sheaf_bytes: AtomicU64,
    /// What merges when writers are quiet.
    at_rest: Arc<Leveled>,
    /// Held while a batch goes into the memtable, and while that is sealed.
    sealed: Mutex<Sealed>,
    looks: Mutex<Looks>,
    // Last, so that the directory is unlocked after the engine's threads ended.
    _directory: Directory,
}

/// A memtable, whose type has no public name, or a sheaf.
type Memory = Arc<dyn Any + Send + Sync>;

/// Lets go of what nobody else refers to, where nobody waits for it.
fn drop_aside(unused: Vec<Memory>) {
    if !unused.is_empty() {
        let thread = std::thread::Builder::new().name("memtable-drop".to_owned());
        // Without a thread it happens here.
        let _ = thread.spawn(move || drop(unused));
    }
}

/// One change of a batch that is large, or beside large ones.
struct Change {
    key: Slice,
    /// `None` removes it.
    value: Option<Slice>,
    hash: u64,
    /// Whether a memtable or a sheaf may have the key.
    is_known: bool,
}

/// The memtables that were sealed.
#[derive(Default)]
struct Sealed {
    count: u64,
    /// Those that may still be in memory, with their sheaves. Giving back the memory of fifty thousand records takes 20 to 40 ms. The
    /// engine would do it wherever the last reference goes, under the lock that everybody needs to read: this one
    /// goes later, where nobody waits.
    memtables: Vec<Memory>,
    /// Those that belong to the memtable that is written, which is not empty if there are any.
    sheaves: Vec<Arc<Sheaf>>,
    /// How many there were ever.
    sheaves_made: u64,
    /// The engine's number when it was last asked to let go of some.
    asked_at: SeqNo,
}

impl Sealed {
    /// Those that nobody else refers to.
    fn take_unused(&mut self) -> Vec<Memory> {
        let all = std::mem::take(&mut self.memtables).into_iter();
        let (used, unused) = all.partition(|memtable| Arc::strong_count(memtable) > 1);
        self.memtables = used;
        unused
    }
}

/// What writers have done, as it was found time and again.
#[derive(Default)]
struct Looks {
    /// The memtables that were sealed, and the size of the one that is written.
    last: (u64, u64),
    /// How many in a row have found little that is new.
    quiet: u32,
    /// Writers were not quiet, and have not been for long enough since.
    in_burst: bool,
    /// The large batches that have come, and how many looks in a row have found no new one.
    sheaves: (u64, u32),
}

impl Looks {
    /// How many looks in a row have found writers quiet, with this one.
    fn look(&mut self, now: (u64, u64), memtable_bytes: u64) -> u32 {
        let grown = now.1.saturating_sub(self.last.1);
        let is_quiet = now.0 == self.last.0 && grown <= memtable_bytes / QUIET_SHARE;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.in_burst = !is_quiet || (self.in_burst && self.quiet < QUIET_LOOKS);
        self.last = now;
        self.quiet
    }

    /// How many looks in a row have found no new large batch, with this one.
    fn look_for_sheaves(&mut self, made: u64) -> u32 {
        let (last, quiet) = self.sheaves;
        let quiet = if made == last { quiet + 1 } else { 0 };
        self.sheaves = (made, quiet);
        quiet
    }
}

fn leveled(level_zero_tables: u8, table_bytes: u64) -> Arc<Leveled> {
    let leveled = Leveled::default()
        .with_l0_threshold(level_zero_tables)
        .with_table_target_size(table_bytes);
    Arc::new(leveled)
}

/// Merges earlier than the usual one, and lets levels grow as large: by their size, a level holds as many tables as
/// gather before a merge. With smaller levels it would push those down first, and take them apart again.
fn leveled_at_rest(options: &FjallOptions) -> Arc<Leveled> {
    let gather = LEVEL_ZERO_TABLES_AT_REST + 1;
    let level_bytes = options.table_bytes * u64::from(options.level_zero_tables);
    leveled(gather, level_bytes / u64::from(gather))
}

/// What blocks add up to that take so much memory: an allocator gives up to a quarter more than it was asked for.
fn blocks_in(memory_bytes: u64) -> u64 {
    memory_bytes / 8 * 7
}

impl FjallEngine {
    pub fn open(path: &Path, options: &FjallOptions) -> Result<Self> {
        engine_log::listen();
        let directory = Directory::open(path)?;
        let engine_path = directory.engine_path();
        creation::clear_unfinished(&engine_path).map_err(|e| Error::io(path, e))?;
        let garbage = Garbage::default();
        let for_filter = Arc::new(GarbageFactory(garbage.clone()));
        let database = Database::builder(directory.engine_path())
            .cache_size(blocks_in(options.cache_bytes))
            .worker_threads(options.workers)
            .with_compaction_filter_factories(Arc::new(move |_| {
                Some(Arc::clone(&for_filter) as Arc<dyn Factory>)
            }))
            .open()
            .map_err(|e| open_error(path, e))?;
        let memtable_bytes = options.memtable_bytes;
        let at_rest = leveled_at_rest(options);
        let options = options.clone();
        let keyspace = database
            .keyspace(KEYSPACE, || {
                let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
                KeyspaceCreateOptions::default()
                    .max_memtable_size(options.memtable_bytes)
                    .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
                    .compaction_strategy(leveled(options.level_zero_tables, options.table_bytes))
                    .filter_policy(FilterPolicy::all(bloom))
                    // ⚑ A filter of a whole table weighs a megabyte, and is read and checked as one block: where
                    // it is not in the cache (a part of which it may not even fit into), each look for a key
                    // costs as much. The few tables of the first levels keep theirs in memory; below, they
                    // are made of small parts.
                    .filter_block_pinning_policy(PinningPolicy::new([true, true, false]))
                    .filter_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
                    // What is merged again soon is not worth compressing: level one is
                    // as large as what gathers above it.
                    .data_block_compression_policy(CompressionPolicy::new([
                        CompressionType::None,
                        CompressionType::None,
                        CompressionType::Lz4,
                    ]))
            })
            .map_err(|e| open_error(path, e))?;
        let open = Arc::new(Open {
            writeback: TableWriteback::start(keyspace.path().join("tables")),
            removal: Mutex::new(TableRemoval::new(keyspace.path().join("tables"))),
            keyspace,
            database,
            garbage,
            memtable_bytes,
            unflushed: KeyFilters::new(memtable_bytes as usize / FILTER_SHARE),
            sheaves: Sheaves::default(),
            sheaf_bytes: AtomicU64::new(0),
            at_rest,
            sealed: Mutex::default(),
            looks: Mutex::default(),
            _directory: directory,
        });
        let to_flush = Arc::clone(&open);
        let flusher = Flusher::start(move || to_flush.flush_full(true));
        let engine = Self(Arc::new(Running { flusher, open }));
        // A journal that an earlier build left was read into a memtable, of whose keys
        // no filter knows.
        let tree = &engine.0.open.keyspace.tree;
        if tree.get_highest_memtable_seqno().is_some() {
            engine.sync()?;
        }
        Ok(engine)
    }
}

impl Open {
    /// The error that ended a flush or a compaction, if one did.
    fn check_workers(&self) -> Result<()> {
        // Asks nothing else of the journal, which has nothing to write.
        Ok(self.database.persist(PersistMode::Buffer)?)
    }

    /// Seals the memtable, unless it is empty, and has it flushed.
    fn rotate(&self, sealed: &mut Sealed) -> Result<()> {
        // ⚑ The engine's threads know of no sheaf.
        while self.spill_one(sealed) {}
        self.seal(sealed)
    }

    /// Puts one sheaf into the memtable that is written. False if there is none.
    fn spill_one(&self, sealed: &mut Sealed) -> bool {
        let Some(sheaf) = sealed.sheaves.pop() else {
            return false;
        };
        let memtable = self.keyspace.tree.active_memtable();
        for version in sheaf.versions() {
            memtable.insert(version);
        }
        self.sheaf_bytes.fetch_sub(sheaf.bytes(), Ordering::Relaxed);
        self.sheaves.remove(&[sheaf]);
        true
    }

    /// The sheaves of the memtable that is written; none are beside the next one.
    fn take_sheaves(&self, sealed: &mut Sealed) -> Vec<Arc<Sheaf>> {
        self.sheaf_bytes.store(0, Ordering::Relaxed);
        std::mem::take(&mut sealed.sheaves)
    }

    /// What the memtable and its sheaves take.
    fn unflushed_bytes(&self) -> u64 {
        self.keyspace.tree.active_memtable().size() + self.sheaf_bytes.load(Ordering::Relaxed)
    }

    /// Seals the memtable, unless it is empty. The caller sees to its sheaves.
    fn seal(&self, sealed: &mut Sealed) -> Result<()> {
        let memtable = self.keyspace.tree.active_memtable();
        if self.keyspace.rotate_memtable()? {
            sealed.count += 1;
            let unused = sealed.take_unused();
            sealed.memtables.push(memtable);
            drop_aside(unused);
            self.writeback.begin();
            // ⚑ The filter of a memtable stays until its sheaves are gone, too, which is a moment after it is flushed:
            // whoever overwrites a key of theirs meanwhile has to find that out.
            let beside = usize::from(!self.sheaves.is_empty());
            let unflushed = self.keyspace.tree.sealed_memtable_count();
            self.unflushed.sealed(unflushed + beside);
        }
        Ok(())
    }

    /// Of what is older than this, only the newest version is read by anybody.
    fn unread(&self) -> SeqNo {
        let tracker = &self.database.supervisor.snapshot_tracker;
        tracker.get_seqno_safe_to_gc()
    }

    /// Flushes the memtable if it is full, for [`Flusher`] or for a writer who waits for it; what was sealed before goes
    /// first.
    fn flush_full(&self, gives_way: bool) {
        let tree = &self.keyspace.tree;
        let is_full = || self.unflushed_bytes() > self.memtable_bytes;
        if !is_full() {
            return;
        }
        let flushing = tree.get_flush_lock();
        let unread = self.unread();
        let flushed = tree.flush(&flushing, unread).map_err(failed);
        let flushed = flushed.and_then(|_| {
            let sealed = self.sealed.lock();
            // Who has sealed it meanwhile has told the engine's threads.
            match is_full() && tree.sealed_memtable_count() == 0 {
                true => self.flush_active(&flushing, sealed, &[], gives_way),
                false => Ok(()),
            }
        });
        flushed.unwrap_or_else(|error| left_to_the_engine(&error));
    }

    /// Seals the memtable and flushes it here, without what lies in the stretches; then another rule holds for
    /// garbage, if one is given. False if writers fill one memtable after the other: the engine's threads should not
    /// wait for long.
    fn flush_now(
        &self,
        stretches: &[(Vec<u8>, Vec<u8>)],
        rule: Option<&GarbageRule>,
    ) -> Result<bool> {
        self.check_workers()?;
        let tree = &self.keyspace.tree;
        // The engine's threads wait for it, and have nothing left to flush then.
        let flushing = tree.get_flush_lock();
        let mut tries = 0..FLUSHES_MAX;
        let sealed = loop {
            if tries.next().is_none() {
                return Ok(false);
            }
            // ⚑ What was sealed before may hold no mark of what is dropped: it is flushed as it is.
            tree.flush(&flushing, self.unread()).map_err(failed)?;
            let sealed = self.sealed.lock();
            if tree.sealed_memtable_count() == 0 {
                break sealed;
            }
        };
        self.flush_active(&flushing, sealed, stretches, true)?;
        // Before the engine's threads go on: what they do next may be a merge.
        if let Some(rule) = rule {
            self.garbage.set(Arc::clone(rule));
        }
        Ok(true)
    }

    /// Seals the memtable, the only one that is not flushed, and flushes it with its sheaves, without what lies in the
    /// stretches.
    fn flush_active(
        &self,
        _flushing: &std::sync::MutexGuard<'_, ()>,
        mut sealed: MutexGuard<'_, Sealed>,
        stretches: &[(Vec<u8>, Vec<u8>)],
        gives_way: bool,
    ) -> Result<()> {
        let tree = &self.keyspace.tree;
        let memtable = tree.active_memtable();
        if memtable.is_empty() {
            return Ok(());
        }
        let sheaves = self.take_sheaves(&mut sealed);
        let is_sealed = self.seal(&mut sealed);
        drop(sealed);
        let is_flushed = is_sealed.and_then(|()| {
            let unread = self.unread();
            let mut left_out = Stretches::new(stretches);
            let mut versions = Versions::new(unread);
            let all = sheaves::with_sheaves(memtable.iter(), &sheaves);
            let kept = all.filter(|version| {
                if gives_way {
                    giving_way::look();
                }
                let key = &version.key;
                (key.is_tombstone() || !left_out.contain(&key.user_key))
                    && versions.keep(&key.user_key, key.seqno)
            });
            let Some((tables, _)) = tree.flush_to_tables(kept.map(Ok)).map_err(failed)? else {
                return Ok(false);
            };
            tree.register_tables(&tables, None, None, &[memtable.id()], unread)
                .map_err(failed)?;
            Ok(true)
        });
        if !matches!(is_flushed, Ok(true)) {
            // ⚑ The memtable is left to the engine's threads, which are let in behind this.
            for version in sheaves.iter().flat_map(|sheaf| sheaf.versions()) {
                memtable.insert(version);
            }
        }
        if !sheaves.is_empty() {
            self.sheaves.remove(&sheaves);
            let mut sealed = self.sealed.lock();
            let sheaves = sheaves.into_iter().map(|sheaf| sheaf as Memory);
            sealed.memtables.extend(sheaves);
            let unused = sealed.take_unused();
            drop(sealed);
            drop_aside(unused);
        }
        is_flushed.map(drop)
    }

    /// Of the changes of a large batch, in the order of their keys, what is new goes into a sheaf; the rest is
    /// returned. Nobody sees any of it before it is published, but who reads without a snapshot.
    fn set_aside(
        &self,
        changes: impl Iterator<Item = Change>,
        number: SeqNo,
        sealed: &mut Sealed,
    ) -> Vec<Change> {
        let mut left: Vec<Change> = Vec::new();
        let mut pairs = Vec::new();
        let mut hashes = Vec::new();
        let mut changes = changes.peekable();
        let mut last_was_equal = false;
        while let Some(change) = changes.next() {
            let is_equal = |next: &Change| next.key[..] == change.key[..];
            let next_is_equal = changes.peek().is_some_and(is_equal);
            let is_single = !next_is_equal && !last_was_equal;
            last_was_equal = next_is_equal;
            // The first one goes into the memtable: one that is empty is not flushed.
            match change.value {
                Some(value) if is_single && !change.is_known && !left.is_empty() => {
                    pairs.push((change.key, value));
                    hashes.push(change.hash);
                }
                _ => left.push(change),
            }
        }
        if !pairs.is_empty() {
            let sheaf = Arc::new(Sheaf::new(number, pairs, &hashes));
            self.sheaf_bytes.fetch_add(sheaf.bytes(), Ordering::Relaxed);
            sealed.sheaves.push(Arc::clone(&sheaf));
            sealed.sheaves_made += 1;
            self.sheaves.add(sheaf);
        }
        left
    }

    /// How many of the sealed memtables are tables by now: they are flushed in order.
    fn flushed(&self) -> u64 {
        // While this is locked none is added.
        let sealed = self.sealed.lock();
        sealed
            .count
            .saturating_sub(self.keyspace.tree.sealed_memtable_count() as u64)
    }

    /// One look at what writers do. Merges flushed tables once if there are more than readers
    /// should find and looks have found writers quiet for long enough. Beside the engine's own
    /// threads: what one of them merges is hidden from others.
    fn tidy(&self) -> Result<()> {
        self.let_go();
        self.removal.lock().look();
        let tree = &self.keyspace.tree;
        let tables = tree.level_table_count(0).unwrap_or(0);
        let found = || {
            let sealed = self.sealed.lock();
            ((sealed.count, self.unflushed_bytes()), sealed.sheaves_made)
        };
        let (written, sheaves_made) = found();
        let (quiet, quiet_of_sheaves) = {
            let mut looks = self.looks.lock();
            let quiet = looks.look(written, self.memtable_bytes);
            (quiet, looks.look_for_sheaves(sheaves_made))
        };
        if quiet_of_sheaves >= QUIET_LOOKS_OF_SHEAVES && !self.sheaves.is_empty() {
            self.clear_sheaves();
            // What this has done no writer did.
            self.looks.lock().last = found().0;
        }
        if tables <= usize::from(LEVEL_ZERO_TABLES_AT_REST) || quiet < QUIET_LOOKS {
            return Ok(());
        }
        let unread = self.unread();
        self.writeback.begin();
        tree.compact(Arc::clone(&self.at_rest) as _, unread)
            .inspect_err(|_| self.removal.lock().stop())
            .map_err(failed)
    }

    /// Flushes what lies beside the memtable, or puts it into it.
    fn clear_sheaves(&self) {
        if self.unflushed_bytes() < self.memtable_bytes / FLUSHED_SHARE {
            // Whoever writes meanwhile waits for one at most.
            while self.spill_one(&mut self.sealed.lock()) {}
        } else if let Err(error) = self.flush_now(&[], None) {
            left_to_the_engine(&error);
        }
    }

    /// Lets go of memtables that are tables by now and that no snapshot reads. Otherwise the last of a burst would
    /// stay in memory until the next one is sealed.
    fn let_go(&self) {
        let tree = &self.keyspace.tree;
        {
            let mut sealed = self.sealed.lock();
            let number = self.database.supervisor.seqno.get();
            // Versions are told apart by what is written after them: without that, asking again is in vain.
            let is_vain = sealed.asked_at == number;
            if is_vain || sealed.memtables.len() <= tree.sealed_memtable_count() {
                return;
            }
            sealed.asked_at = number;
        }
        if tree.version_free_list_len() > 0 {
            // Which versions are read by nobody is found out when so many snapshots were closed, or when a memtable
            // is sealed; there is no other way to ask for it. It takes a millisecond or two.
            for _ in 0..SNAPSHOTS_PER_LOOK {
                drop(self.database.snapshot());
            }
            let unread = self.unread();
            let mut versions = tree.get_version_history_lock();
            if let Err(error) = versions.maintenance(self.keyspace.path(), unread) {
                tracing::warn!(%error, "old versions of the engine's manifest stay");
            }
        }
        let unused = self.sealed.lock().take_unused();
        drop(unused);
    }

    /// Waits while flushes or compactions are far behind.
    fn wait_for_workers(&self) -> Result<()> {
        let tree = &self.keyspace.tree;
        while tree.sealed_memtable_count() >= SEALED_MEMTABLES_MAX
            || tree.l0_run_count() >= LEVEL_ZERO_RUNS_MAX
        {
            self.check_workers()?;
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }
}

/// How large a memtable becomes at most, but for its last batch.
fn overfull(memtable_bytes: u64) -> u64 {
    memtable_bytes + memtable_bytes / OVERFULL_SHARE
}

fn failed(error: fjall::LsmError) -> Error {
    Error::Engine(error.into())
}

/// The memtable stays sealed. The engine's threads try it, too, and if they fail nobody writes on.
fn left_to_the_engine(error: &Error) {
    tracing::warn!(%error, "a flush failed and is left to the engine");
}

fn open_error(path: &Path, error: fjall::Error) -> Error {
    match error {
        fjall::Error::Locked => Error::InUse {
            path: path.to_path_buf(),
        },
        fjall::Error::Io(source) => Error::io(path, source),
        fjall::Error::InvalidVersion(found) => Error::WrongFormat {
            path: path.to_path_buf(),
            found: Found::Engine(format!("{found:?}")),
        },
        other => Error::Engine(other),
    }
}

impl Engine for FjallEngine {
    type Snapshot = FjallSnapshot;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        let open = &*self.0.open;
        let hash = xxh3_64(key);
        if open.unflushed.may_contain(hash) {
            if !open.sheaves.is_empty()
                && let Some(found) = sheaves::get(&open.sheaves.list(), key, hash, SeqNo::MAX)
            {
                return Ok(Some(found));
            }
            return Ok(open.keyspace.get(key)?);
        }
        // The tables as they are now, asked for after the filters.
        let tables = open.keyspace.tree.current_version();
        let runs = tables.iter_levels().flat_map(|level| level.iter());
        for table in runs.filter_map(|run| run.get_for_key(key)) {
            let found = table.get(key, SeqNo::MAX, hash);
            if let Some(found) = found.map_err(failed)? {
                return Ok((!found.is_tombstone()).then_some(found.value));
            }
        }
        Ok(None)
    }

    fn snapshot(&self) -> FjallSnapshot {
        FjallSnapshot::new(&self.0.open)
    }

    fn write(&self, mut batch: WriteBatch) -> Result<()> {
        batch.order();
        let open = &*self.0.open;
        let supervisor = &open.database.supervisor;
        let tree = &open.keyspace.tree;
        let mut sealed = open.sealed.lock();
        open.check_workers()?;
        let number = supervisor.seqno.get() + NUMBERS_AHEAD;
        let gives_way = batch.gives_way;
        let is_bulk = batch.is_bulk && sealed.sheaves.len() < SHEAVES_MAX;
        let put = |key: Slice, value: Option<Slice>| {
            if gives_way {
                giving_way::look();
            }
            match value {
                Some(value) => tree.insert(key, value, number),
                None => tree.remove(key, number),
            };
        };
        let hashes = batch.keys().map(xxh3_64);
        let is_beside_sheaves = !open.sheaves.is_empty();
        if is_bulk || is_beside_sheaves {
            let known = open.unflushed.insert_and_tell(hashes);
            let changes = batch.into_changes().into_iter().zip(known);
            let changes = changes.map(|((key, value), (hash, is_known))| Change {
                key,
                value,
                hash,
                is_known,
            });
            let earlier = open.sheaves.list();
            let changes = match is_bulk {
                true => open.set_aside(changes, number, &mut sealed),
                false => changes.collect(),
            };
            for change in changes {
                let known = change.is_known.then(|| change.key.clone());
                put(change.key, change.value);
                if let Some(key) = known {
                    sheaves::overwrite(&earlier, &key, change.hash, number);
                }
            }
        } else {
            open.unflushed.insert(hashes);
            for (key, value) in batch.into_changes() {
                put(key, value);
            }
        }
        // In this order: whoever takes a number from now on comes after the batch.
        supervisor.seqno.fetch_max(number + 1);
        supervisor.snapshot_tracker.publish(number);
        let bytes = open.unflushed_bytes();
        let is_beside_sheaves = !sealed.sheaves.is_empty();
        if !is_beside_sheaves && bytes > overfull(open.memtable_bytes) {
            open.rotate(&mut sealed)?;
        }
        drop(sealed);
        if bytes > open.memtable_bytes {
            self.0.flusher.ask();
        }
        if is_beside_sheaves && bytes > OVERFULL_TIMES * open.memtable_bytes {
            open.flush_full(false);
        }
        open.wait_for_workers()
    }

    fn sync(&self) -> Result<()> {
        let open = &*self.0.open;
        if !open.sheaves.is_empty() {
            match open.flush_now(&[], None) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => left_to_the_engine(&error),
            }
        }
        let wanted = {
            let mut sealed = open.sealed.lock();
            open.rotate(&mut sealed)?;
            sealed.count
        };
        while open.flushed() < wanted {
            open.check_workers()?;
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }

    fn sync_without(&self, stretches: &[(Vec<u8>, Vec<u8>)], rule: GarbageRule) -> Result<()> {
        if !stretches.is_empty() {
            match self.0.open.flush_now(stretches, Some(&rule)) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => left_to_the_engine(&error),
            }
        }
        self.sync()?;
        self.set_garbage(rule);
        Ok(())
    }

    fn lets_writers_wait(&self) -> bool {
        let tree = &self.0.open.keyspace.tree;
        // The batch may fill a memtable itself.
        tree.sealed_memtable_count() + 1 >= SEALED_MEMTABLES_MAX
            || tree.l0_run_count() >= LEVEL_ZERO_RUNS_MAX
            || self.0.open.unflushed_bytes() > OVERFULL_TIMES * self.0.open.memtable_bytes / 4 * 3
    }

    fn approximate_size_bytes(&self) -> u64 {
        self.0.open.keyspace.disk_space()
    }

    fn set_garbage(&self, rule: GarbageRule) {
        self.0.open.garbage.set(rule);
    }

    fn collect_garbage(&self, _budget: usize) -> Result<()> {
        Ok(())
    }

    fn tidy(&self) -> Result<()> {
        self.0.open.tidy()
    }

    fn is_in_burst(&self) -> bool {
        self.0.open.looks.lock().in_burst
    }

    fn release_stretch(&self, low: &[u8], high: &[u8]) -> Result<()> {
        let tree = &self.0.open.keyspace.tree;
        // fjall would write its manifest anew, with its syncs, even if no table goes.
        let version = tree.current_version();
        let is_inside = |first: &[u8], last: &[u8]| low <= first && last < high;
        if !version.iter_tables().any(|table| {
            let keys = &table.metadata.key_range;
            is_inside(keys.min(), keys.max())
        }) {
            return Ok(());
        }
        tree.drop_range::<&[u8], _>(low..high).map_err(failed)
    }

    fn compact(&self) -> Result<()> {
        // What is still in memory would otherwise be left out.
        self.sync()?;
        Ok(self.0.open.keyspace.major_compact()?)
    }
}

#[cfg(test)]
mod tests;
