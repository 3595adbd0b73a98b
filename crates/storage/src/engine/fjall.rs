//! The engine on disk: one fjall keyspace.
//!
//! Settings follow what was measured: a small memtable and journal keep restarts
//! short and commit stalls low, though 32 MiB instead of 16 halve how often the same
//! data is merged again (and a restart after kill -9 took 1.0 s instead of 0.5); blocks
//! of 16 KiB instead of 4 make the engine's own scan of 1 kB documents cheaper, of which
//! about a tenth is left in a whole `find`; batches are handed to the operating system but not
//! synced, because durability is the log's business and fjall holds its journal's
//! mutex through an fsync.
//!
//! Garbage (expired history, dropped collections) is removed by a compaction
//! filter. Its verdict is `Remove`, which leaves a tombstone until the last level:
//! `Destroy` would let an older version of the same key come back.
//!
//! fjall asserts on keys over 65,535 bytes; the store checks lengths before.

use std::panic::RefUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{
    AbstractTree, CompressionType, Database, Guard, Iter, Keyspace, KeyspaceCreateOptions,
    OwnedWriteBatch, PersistMode, Readable,
};
use parking_lot::RwLock;

use super::directory::Directory;
use super::{Direction, Engine, EngineSnapshot, GarbageRule, KeyRange, Pair, Slice, WriteBatch};
use super::{creation, journal};
use crate::error::{Error, Result};

const KEYSPACE: &str = "all";

/// Threads that flush and compact.
///
/// If there are several, fjall keeps the first one free for flushes, and that one
/// passes requests to compact on by putting them back into the queue: a busy loop while
/// all others compact. With two workers on two cores that took a fifth of a load's CPU,
/// with four still a tenth. One alone never spins; a flush then waits for the
/// compaction under way, for which four sealed memtables leave room (over a load of
/// 1.2 GB the longest batch took 0.1 s, with four workers 0.1 to 0.26 s). With more
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
    /// Block cache shared by everything the engine reads.
    pub cache_bytes: u64,
    pub memtable_bytes: u64,
    /// At least 64 MiB.
    pub journal_bytes: u64,
    /// How many flushed memtables gather before they are merged with what is below
    /// them. More of them make a load cheaper and reads dearer.
    pub level_zero_tables: u8,
    /// The size of a table on disk; level one holds `level_zero_tables` of them.
    pub table_bytes: u64,
    /// What is read, checked and decompressed at once.
    pub block_bytes: u32,
    /// Threads that flush and compact.
    pub workers: usize,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            memtable_bytes: 32 << 20,
            journal_bytes: 64 << 20,
            level_zero_tables: 4,
            table_bytes: 32 << 20,
            block_bytes: 16 << 10,
            workers: workers(),
        }
    }
}

/// An open store directory. Clones share it; the directory is free again when
/// the last clone, snapshot and scan are gone.
#[derive(Clone)]
pub struct FjallEngine(Arc<Open>);

struct Open {
    keyspace: Keyspace,
    database: Database,
    garbage: Arc<GarbageFactory>,
    // Last, so that the directory is unlocked after the engine's threads ended.
    _directory: Directory,
}

impl FjallEngine {
    pub fn open(path: &Path, options: &FjallOptions) -> Result<Self> {
        let directory = Directory::open(path)?;
        let engine_path = directory.engine_path();
        creation::clear_unfinished(&engine_path).map_err(|e| Error::io(path, e))?;
        journal::cut_torn_end(&engine_path).map_err(|e| Error::io(path, e))?;
        let garbage = Arc::new(GarbageFactory {
            rule: RwLock::new(Arc::new(|_: &[u8]| false)),
        });
        let for_filter = Arc::clone(&garbage);
        let database = Database::builder(directory.engine_path())
            .cache_size(options.cache_bytes)
            .journal_compression(CompressionType::None)
            .worker_threads(options.workers)
            .max_journaling_size(options.journal_bytes.max(64 << 20))
            .with_compaction_filter_factories(Arc::new(move |_| {
                Some(Arc::clone(&for_filter) as Arc<dyn Factory>)
            }))
            .open()
            .map_err(|e| open_error(path, e))?;
        let options = options.clone();
        let keyspace = database
            .keyspace(KEYSPACE, || {
                let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
                KeyspaceCreateOptions::default()
                    .max_memtable_size(options.memtable_bytes)
                    .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
                    .compaction_strategy(Arc::new(
                        Leveled::default()
                            .with_l0_threshold(options.level_zero_tables)
                            .with_table_target_size(options.table_bytes),
                    ))
                    .filter_policy(FilterPolicy::all(bloom))
                    .data_block_compression_policy(CompressionPolicy::new([
                        CompressionType::None,
                        CompressionType::Lz4,
                    ]))
            })
            .map_err(|e| open_error(path, e))?;
        Ok(Self(Arc::new(Open {
            keyspace,
            database,
            garbage,
            _directory: directory,
        })))
    }
}

fn open_error(path: &Path, error: fjall::Error) -> Error {
    match error {
        fjall::Error::Locked => Error::InUse {
            path: path.to_path_buf(),
        },
        fjall::Error::Io(source) => Error::io(path, source),
        fjall::Error::InvalidVersion(found) => Error::WrongFormat {
            path: path.to_path_buf(),
            found: format!("engine files of version {found:?}"),
            expected: super::directory::FORMAT_VERSION,
        },
        other => Error::Engine(other),
    }
}

impl Engine for FjallEngine {
    type Snapshot = FjallSnapshot;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        Ok(self.0.keyspace.get(key)?)
    }

    fn snapshot(&self) -> FjallSnapshot {
        FjallSnapshot {
            snapshot: self.0.database.snapshot(),
            open: Arc::clone(&self.0),
        }
    }

    fn write(&self, batch: WriteBatch) -> Result<()> {
        let mut out = OwnedWriteBatch::with_capacity(self.0.database.clone(), batch.len())
            .durability(Some(PersistMode::Buffer));
        for (key, value) in batch.into_changes() {
            match value {
                Some(value) => out.insert(&self.0.keyspace, key, value),
                None => out.remove(&self.0.keyspace, key),
            }
        }
        Ok(out.commit()?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.database.persist(PersistMode::SyncData)?)
    }

    fn approximate_size_bytes(&self) -> u64 {
        self.0.keyspace.disk_space()
    }

    fn set_garbage(&self, rule: GarbageRule) {
        *self.0.garbage.rule.write() = rule;
    }

    fn collect_garbage(&self, _budget: usize) -> Result<()> {
        Ok(())
    }

    fn release_stretch(&self, low: &[u8], high: &[u8]) -> Result<()> {
        self.0
            .keyspace
            .tree
            .drop_range::<&[u8], _>(low..high)
            .map_err(|e| Error::Engine(e.into()))
    }

    fn compact(&self) -> Result<()> {
        // What is still in memory would otherwise be left out.
        self.0.keyspace.rotate_memtable_and_wait()?;
        Ok(self.0.keyspace.major_compact()?)
    }
}

#[derive(Clone)]
pub struct FjallSnapshot {
    snapshot: fjall::Snapshot,
    open: Arc<Open>,
}

impl EngineSnapshot for FjallSnapshot {
    type Scan = FjallScan;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        Ok(self.snapshot.get(&self.open.keyspace, key)?)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction) -> FjallScan {
        let pairs = (!range.is_empty()).then(|| {
            self.snapshot
                .range::<&[u8], _>(&self.open.keyspace, (range.low, range.high))
        });
        FjallScan {
            pairs,
            direction,
            _open: Arc::clone(&self.open),
        }
    }
}

pub struct FjallScan {
    pairs: Option<Iter>,
    direction: Direction,
    // Keeps the directory locked while tables are still being read.
    _open: Arc<Open>,
}

impl Iterator for FjallScan {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let pairs = self.pairs.as_mut()?;
        let guard: Guard = match self.direction {
            Direction::Forward => pairs.next()?,
            Direction::Backward => pairs.next_back()?,
        };
        Some(guard.into_inner().map_err(Error::Engine))
    }
}

/// Hands the rule that holds at its beginning to each compaction.
struct GarbageFactory {
    rule: RwLock<GarbageRule>,
}

// The lock is never held while anything could unwind.
impl RefUnwindSafe for GarbageFactory {}

impl Factory for GarbageFactory {
    fn name(&self) -> &str {
        "garbage"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(GarbageFilter(Arc::clone(&self.rule.read())))
    }
}

struct GarbageFilter(GarbageRule);

impl CompactionFilter for GarbageFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        Ok(if (self.0)(item.key()) {
            Verdict::Remove
        } else {
            Verdict::Keep
        })
    }
}
