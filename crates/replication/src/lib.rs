//! The log: at the same time write-ahead log, replication log and oplog of one shard
//! (or of the config server).
//!
//! A [`Group`] is one replicated log with its members; for now there is one member.
//! A proposal gets its position and time, waits in a bounded queue, is written with
//! all the others that wait, synced once, applied to the [`StateMachine`] and answered:
//!
//! ```text
//!  propose ─► sequencer ─► queue ═► the log's thread: write ─► sync ─► apply ─► answer
//!             position,                       │                 └► tail in memory ─► read
//!             time                            ▼
//!                                     log-….seg  log-….seg  …  spare-….seg
//!                                     ◄─ trimmed, recycled by the maintenance thread
//! ```
//!
//! Where to read on, in the order of a write:
//! `group.rs` (the handle: propose, wait, pin, close) · `sequencer.rs` (position, time,
//! queue) · `commit.rs` (the loop) · `append.rs` (into the segment) · `segment.rs` (every
//! byte) · `read.rs` · `trim.rs` · `recovery.rs` (opening) · `disk.rs`, `simulated_disk.rs`.
//!
//! Invariants:
//! - ⚑ Nothing is applied before its entry is synced, except a group of proposals that
//!   are all [`Durability::Buffered`].
//! - ⚑ A sync that failed is never tried again: the group stops for good, and proposals
//!   under way have an unknown outcome.
//! - ⚑ An entry leaves the log only when the state machine was synced past it. Reading
//!   before the start of the log, or across a gap, is an error.
//!
//! What is not here yet: several members. Entries carry their term for that, and the
//! place where it fits in is between `append` and `apply` in `commit.rs`: what is
//! applied there becomes what a quorum has synced. Nor does the log know what is in a
//! payload.

mod append;
mod clock;
mod commit;
pub mod disk;
mod entry;
mod error;
mod group;
mod install;
mod leadership;
mod log_state;
mod member;
mod member_file;
mod membership;
mod message;
mod options;
mod raft_entry;
mod raft_store;
mod read;
mod ready;
mod recovery;
mod segment;
mod sequencer;
pub mod simulated_disk;
mod state_machine;
mod transport;
mod trim;
mod truncate;

pub use clock::{SystemClock, WallClock};
pub use commit::Driver;
pub use entry::{Applied, Committed, Durability, Entry, EntryKind, LogPosition, Term};
pub use error::{
    BoxError, ChangeError, DriftError, Error, LeaderError, ProposeError, ReadError, ReceiveError,
};
pub use group::{Group, Pending};
pub use log_state::Progress;
pub use member::{
    Configuration, ConfigurationChange, MEMBERS_MAX, MemberId, MemberProgress, MemberStep, Members,
    Role,
};
pub use options::{Beginning, Faults, Options};
pub use segment::GroupId;
pub use state_machine::{StateMachine, Syncer};
pub use transport::{NoTransport, Transport};
pub use trim::Pin;
