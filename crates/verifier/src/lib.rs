//! The verifier: whether two clusters hold the same collections and documents.
//!
//! It talks to both clusters through the official driver alone, TernDB or MongoDB on either side,
//! and shares no code with what it judges: storage, routing, queries, not even the order of BSON
//! values. Where order decides something, the servers sort and compare (with their own collations);
//! where we look at order ourselves it is a hint that cannot change a verdict (see `order`).
//!
//! ```text
//! pure                                        shells
//! element      BSON as slices                 cluster, topology, reading  connections and requests
//! order        groups of types, a hint        store, record      what outlives the process
//! partition    cutting the order of _id       survey, sharding   what both sides have
//! range_query  filters for a partition        plan, scan         tasks: two readers, one comparator
//!                                             identity           whether both are one cluster
//!                                             history            whether a side went back in time
//!                                             late               measurements after writes off
//!                                             hashing            what to hash documents with
//!                                             natural, series    tasks of other kinds
//! merge        the comparator                 recheck            documents looked up by _id
//! compare      same or not, verdicts          follow, tail, queue  changes, and what they lead to
//! event, oplog changes as servers tell them   ledger             documents that differ
//! difference   paths and values for people
//! namespace, metadata, time, pace,            beginning, generation, run  everything, in its order
//! report, html, settings                      status, progress, api  how it is doing
//! ```
//!
//! **Nothing is missed**: partitions cover MinKey to MaxKey, their filters are exact across types, and
//! every document that a filter returns is either settled against equal bytes or looked up again.
//! **Nothing is invented**: a mismatch is reported only after a second look by `_id` on both sides.
//!
//! While clusters are written, changes of both sides are followed and looked at again; why nothing
//! slips through is in `run`.
//!
//! Left out: users and roles. What is asked for and cannot be compared makes the outcome *unknown*,
//! never *equal*.

mod api;
mod beginning;
pub mod cluster;
mod collections;
pub mod compare;
mod conclusion;
pub mod difference;
mod digest;
pub mod element;
pub mod error;
mod event;
mod follow;
mod generation;
pub mod hashing;
mod history;
mod html;
mod identity;
mod lane;
mod late;
mod ledger;
pub mod merge;
pub mod metadata;
pub mod namespace;
mod natural;
mod oplog;
pub mod order;
mod pace;
pub mod partition;
mod plan;
mod progress;
mod queue;
pub mod range_query;
pub mod reading;
mod recheck;
pub mod record;
mod repeated;
pub mod report;
mod run;
mod scan;
mod series;
pub mod settings;
mod sharding;
pub mod status;
pub mod store;
mod survey;
mod tail;
pub mod time;
mod topology;

pub use error::VerifyError;
pub use report::{Outcome, Report};
pub use run::{verify, verify_controlled};
pub use settings::{Display, Settings, Writes};
pub use status::Control;
pub use store::Place;
