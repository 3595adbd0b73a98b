//! The config server: the one place where the cluster's placements are decided.
//!
//! ```text
//!   router, shard ── _configsvr… ──► server ─► tenure ──┬─ state     what is known, in memory
//!                                                       ├─ queue     one operation per name at a time
//!   anything else ── handed through ──┐                 ├─ operation what takes several steps
//!                                     ▼                 └─ commit ── one entry of the log
//!                              document server ◄─────────────┘
//!                              config.shards, config.chunks, …
//! ```
//!
//! It stands in front of the document server of its group, which it knows as an [`Endpoint`] only: what it
//! keeps are real collections of the database `config`, with MongoDB's shapes, replicated like any other.
//! Only the member that leads the group decides (`tenure.rs`); what it decides on is the pure
//! `cluster::authority`.
//!
//! | module | part |
//! | --- | --- |
//! | `server` | leadership, commands |
//! | `role` | what the set's configuration says of it |
//! | `tenure` | one period as primary; how a decision becomes an entry |
//! | `state`, `documents`, `schema` | what is known, how it is stored |
//! | `queue` | who may run when |
//! | `ticket` | commands that are asked again get their first answer |
//! | `operation` | long operations, one file each |
//! | `moves` | ranges that go from shard to shard |
//! | `balancer`, `zones`, `remove_shard` | which ones should, and what is said about that |
//! | `routing`, `database` | what routers and shards ask for |
//! | `history` | how long it is known who owned what before |
//! | `sessions` | the collection in which the cluster keeps its sessions |
//! | `chunks`, `rename`, `settle` | what is decided in one entry |
//! | `consistency` | whether it all fits together |

mod balancer;
mod chunks;
mod collection;
mod commit;
mod consistency;
mod database;
mod documents;
mod error;
#[cfg(test)]
mod fake_donor;
mod history;
mod middle;
mod moves;
mod operation;
mod placement;
mod queue;
mod remove_shard;
mod role;
mod routing;
mod rules;
mod schema;
mod server;
mod sessions;
mod settle;
mod state;
mod store;
mod tenure;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod ticket;
mod zones;

pub use role::ConfigRole;
pub use server::{ConfigHandler, ConfigServer};

use std::sync::Arc;
use wire::Endpoint;

/// How a shard is reached: by its name and the connection string of `config.shards`.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;
