//! The shard's store below the log: records clustered by record key, index
//! entries, the history of replaced versions, and small documents ("meta").
//!
//! ```text
//!  the log ──► Store::apply(committed entries)        readers ──► Store::get      (record cache)
//!                    │ one engine batch                    └────► Store::snapshot ─► scans
//!                    ▼                                                 └─► Snapshot::at(time)
//!              Engine (fjall | memory): one ordered map of bytes
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`engine`] | the narrow port to an ordered map with snapshots, and its two implementations |
//! | [`layout`] | every stored key and value, byte by byte |
//! | [`entry`] | the payload of a log entry: physical operations, encoded and decoded without copies |
//! | [`store`] | applying, reading, reading in the past, counting, removing |
//! | [`background`] | the priority of threads that nobody waits for |
//!
//! ## Invariants
//!
//! - **One keyspace.** Everything lives in a single engine keyspace under prefixed
//!   keys. Several would flush their tables on their own, so one could be ahead of the
//!   other after a crash. With one keyspace, what is found then is a *prefix* of the
//!   applied batches, and the position stored inside each batch says which prefix: the
//!   log replays the rest.
//! - **Nothing is written here twice.** Durability is the log's. The engine commits
//!   into memory; [`store::Store::sync`] flushes it and is called before the log
//!   forgets entries.
//! - **Entries are physical and idempotent by position.** An entry at or below the
//!   applied position is skipped, so counters stay exact under replay.
//! - **Ids are never reused.** Dropping a collection or an index makes its data
//!   unreachable at once; bytes are removed later, and no reader ever iterates over
//!   the removed stretch.
//! - **Record keys are self-delimiting**: none is a prefix of another.
//!
//! What is deliberately missing: any knowledge of BSON, of the query language, of
//! namespaces and of the wire. Index entries have no history yet, so a view of the
//! past offers record scans only: see [`store::PastSnapshot`].

pub mod background;
pub mod engine;
pub mod entry;
pub mod error;
pub mod giving_way;
pub mod layout;
pub mod store;
pub mod varint;

pub use engine::fjall::{FjallEngine, FjallOptions};
pub use engine::memory::MemoryEngine;
pub use engine::{Direction, Engine, EngineSnapshot, KeyRange, Slice};
pub use error::{Disposition, Error, Found, Result};
pub use store::{
    Before, Committed, IndexEntry, PastSnapshot, Position, Record, ScanMemory, Snapshot,
    StagedState, StateCopy, Store, StoreOptions, StoredRecord, discard_staged, finish_install,
};
