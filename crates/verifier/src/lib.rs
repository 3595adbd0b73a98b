//! The verifier: whether two clusters hold the same collections and documents.
//!
//! It talks to both clusters through the official driver alone, TernDB or MongoDB on either side,
//! and shares no code with what it judges: storage, routing, queries, not even the order of BSON
//! values. Where order decides something, the servers sort and compare (with their own collations);
//! where we look at order ourselves it is a hint that cannot change a verdict (see `order`).
//!
//! ```text
//!            pure                                       shells
//! element    BSON as slices                  cluster    connections and requests
//! order      groups of types, a hint         plan       sampling bounds while tasks run
//! partition  cutting the order of _id        scan       one task: two readers, one comparator
//! range_query  filters for a partition       verify     everything, with workers
//! merge      the comparator                  progress   bars and lines
//! compare    same or not, verdicts
//! difference paths and values for people
//! namespace, metadata, pace, report, settings
//! ```
//!
//! **Nothing is missed**: partitions cover MinKey to MaxKey, their filters are exact across types, and
//! every document that a filter returns is either settled against equal bytes or looked up again.
//! **Nothing is invented**: a mismatch is reported only after a second look by `_id` on both sides.
//!
//! Left out so far: clusters that are written to meanwhile (generations driven by change streams),
//! partitioning by record id, comparison by hash on the server, resuming after a crash, the HTTP
//! API, the HTML report, documents of time series collections, and shard keys. What is asked for
//! and cannot be compared makes the outcome *unknown*, never *equal*.

pub mod cluster;
pub mod compare;
pub mod difference;
pub mod element;
pub mod error;
pub mod merge;
pub mod metadata;
pub mod namespace;
pub mod order;
mod pace;
pub mod partition;
mod plan;
mod progress;
pub mod range_query;
pub mod report;
mod scan;
pub mod settings;
mod verify;

pub use error::VerifyError;
pub use report::{Outcome, Report};
pub use settings::{Display, Settings};
pub use verify::verify;
