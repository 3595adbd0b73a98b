//! A shard: owns documents and answers commands about them.
//!
//! This is the async shell around the store, the log and the query language:
//! it carries commands out and decides nothing that those decide.
//!
//! | module | part |
//! | --- | --- |
//! | `command` | one file per command or family: parse, run, reply |
//! | `change_stream` | the log, told as events |
//! | `catalog` | collections and indexes, and who may change them when |
//! | `write` | latches, overlay, evaluation, and the way into the log |
//! | `session` | logical sessions, and what retried writes are answered from |
//! | `read` | running plans over snapshots, resumable by position |
//! | `oplog` | the log as clients know it |
//! | `sharding` | the shard's place in a cluster: ranges, databases, versions |
//! | `migration` | ranges that move from shard to shard |
//! | `replica_set` | the set as clients see it: configuration, cluster time |
//! | `operation` | what runs right now, deadlines, kills |
//!
//! The path of one write: `command/update.rs` → `read` finds candidates →
//! `write/append.rs` takes gate and latches → `write/evaluator.rs` → log →
//! `write/append.rs` (`Applier`) → reply.

mod aggregate;
mod aside;
mod background;
mod broadcast;
mod catalog;
mod change_stream;
mod clock;
mod command;
mod counters;
mod cursor;
mod ddl;
mod error;
mod host;
mod index_build;
mod latency;
mod migration;
mod operation;
mod oplog;
mod parameters;
mod primary_services;
mod process;
mod quiesce;
mod read;
mod recent_log;
mod replica_set;
mod rules;
mod serving;
mod session;
mod shard;
mod sharding;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod ttl;
mod write;

pub use clock::{Clock, SystemClock};
pub use migration::Connect;
pub use recent_log::RecentLog;
pub use replica_set::waiting_room::{Doorway, WaitingRoom};
pub use replica_set::{MemberNumber, Membership, ReplicaSetOptions};
pub use shard::{LogWindow, OpenError, Shard, ShardHandler, ShardOptions, check_parameters};
pub use storage::ScanMemory;

/// The store this shard runs on.
pub(crate) type Store = storage::Store<storage::FjallEngine>;
pub(crate) type Snapshot = storage::Snapshot<<storage::FjallEngine as storage::Engine>::Snapshot>;
