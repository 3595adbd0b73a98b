//! Reading: running plans over snapshots, resumable by position.
//!
//! ```text
//!   Query ──► planning (candidates, trial, cache) ──► Execution ──► documents, in batches
//!                                                       │ resume: snapshot, then multikey flags
//!                                                       │ next:   scan ─► bounds ─► fetch ─► filter ─► once?
//!                                                       │ suspend: keeps a position, drops the snapshot
//! ```
//!
//! | file | part |
//! | --- | --- |
//! | `query.rs` | what is asked |
//! | `planning.rs` | from a query to a plan; the trial where several compete |
//! | `execution.rs`, `execution/` | a plan under way: scan, sort, skip, limit |
//! | `merging.rs` | branches in the order of a sort, merged |
//! | `scan.rs` | one live scan within bounds, over records or index entries |
//! | `covered.rs` | documents put together from index keys |
//! | `distinct.rs` | the values of an index's first field |
//! | `candidates.rs` | record keys for updates and deletes |
//! | `part.rs` | a part of a scan over several shards, and places that any shard knows |
//! | `record_order.rs` | keys for writes over several shards, in their own order |
//! | `spill.rs` | sorted runs on disk |
//! | `stages.rs` | plans as explain shows them |
//! | `virtual_collection.rs` | collections whose documents are made, not stored |
//!
//! A cursor holds positions, never a snapshot. A snapshot is taken *before* the
//! multikey flags are read: a flag is set before the first such entry is
//! appended, so a snapshot without the flag has no document with two keys.

mod candidates;
mod covered;
mod distinct;
mod execution;
mod merging;
mod part;
mod planning;
mod query;
mod record_order;
mod scan;
mod spill;
pub(crate) mod stages;
mod virtual_collection;

pub(crate) use candidates::{Candidates, named_key};
pub(crate) use distinct::DistinctScan;
pub(crate) use execution::{Budget, Execution, Found, Step, Taken, Visited, append_ranges};
pub(crate) use part::{Place, ScanPart, ranges_of, record_is_gone};
pub(crate) use planning::{PlanCache, Planned, plan, query_hashes, trials};
pub(crate) use query::Query;
pub(crate) use record_order::{Further, RecordOrder, Sought};
pub(crate) use spill::spill_into;
pub(crate) use virtual_collection::{VirtualCollection, VirtualSource, virtual_collections};
