//! The routing table of one sharded collection.
//!
//! ```text
//!   least key                                                 after all
//!   ├── chunk ──┼── chunk ──┼──── chunk ────┼── … ──┼── chunk ──┤
//!     shard, version, since when; earlier owners
//! ```
//!
//! Chunks cover all keys without gap or overlap, always. A table never changes:
//! a change makes a new one that shares with the old what stayed the same, so
//! requests under way keep the table they began with, and a refresh costs in
//! proportion to what changed.
//!
//! Where to read on: `chunk.rs` (one range and its owners) · `table.rs` (the sorted
//! map), `heads.rs` · `refresh.rs` (taking over changes) · `change.rs` (what a move, split or
//! merge does to versions).

mod change;
mod chunk;
mod heads;
mod refresh;
mod table;

#[cfg(test)]
mod tests;

pub use change::{ChangeError, initial_chunks};
pub use chunk::{Chunk, History, MergedPart, PastOwner, ShardId};
pub use refresh::{ChunkWithEnd, RefreshError};
pub use table::{ChunkView, Owner, RoutingTable, ShardPlacement};
