//! The log: at the same time write-ahead log, replication log and oplog of one shard
//! (or of the config server).
//!
//! A [`Group`] is one replicated log, as one of its members holds it. A proposal gets its
//! position and time, waits in a bounded queue, is written with all the others that
//! wait, synced once here and by a majority of the members, applied to the
//! [`StateMachine`] and answered:
//!
//! ```text
//!  propose ─► sequencer ─► queue ═► the log's thread: raft ─► write ─► sync ─► apply ─► answer
//!             position,                       │        ▲ │              └► tail in memory ─► read
//!             time                            ▼        │ ▼
//!                                     log-….seg …    other members (Transport, receive)
//!                                     ◄─ trimmed, recycled by the maintenance thread
//! ```
//!
//! Where to read on, in the order of a write:
//! `group.rs` (the handle: propose, wait, read, members, close) · `sequencer.rs` (position,
//! time, queue) · `commit.rs` (the loop) · `turns.rs` (on whose thread) · `ready.rs` (what `raft` wants done, in order) ·
//! `append.rs` (into the segment) · `segment.rs` (every byte) · `leadership.rs`, `election.rs`,
//! `membership.rs`, `member.rs` · `message/` (what members say to each other) ·
//! `copying.rs`, `install.rs` (a state for those who are too far behind) · `truncate.rs` · `read.rs` · `trim.rs` · `member_file.rs`, `commit_hint.rs`, `recovery.rs` (opening) ·
//! `disk.rs`, `simulated_disk.rs`.
//!
//! What a server needs of it:
//! - [`Group::role`] tells when this member leads; [`Group::leading`] gives the term in which
//!   to evaluate, and [`Group::propose_in`] refuses what was evaluated in another.
//! - [`Group::members`] and [`Group::watch_members`]: who belongs to the group and how far
//!   each is synced and has applied, for write concerns and for people.
//! - [`Group::read_barrier`] before a linearizable read; [`Group::transfer`] before closing;
//!   [`Group::change_members`]; [`Group::rest`] and [`Group::step_down`] for who must not lead.
//! - a [`Transport`] that carries packets, and [`Group::receive`] for those that arrive.
//!
//! Invariants:
//! - ⚑ Nothing is applied before its entry is synced here and by a majority, except, with a
//!   sole member, a group of proposals that are all [`Durability::Buffered`].
//! - ⚑ A leader serves only after it has applied an entry of its own term; a read barrier
//!   asks a majority, never a clock.
//! - ⚑ A vote is stable before it is told. Nothing that was applied is cut off.
//! - ⚑ Times increase along the log, whoever led when they were given.
//! - ⚑ A sync that failed is never tried again: the group stops for good, and proposals
//!   under way have an unknown outcome.
//! - ⚑ An entry leaves the log only when the state machine was synced past it. Reading
//!   before the start of the log, or across a gap, is an error.
//!
//! What is deliberately missing: the log does not know what is in a payload, nor where
//! other members are.

mod append;
mod clock;
mod commit;
mod commit_hint;
mod copying;
pub mod disk;
mod election;
mod entry;
mod error;
mod group;
mod group_buffer;
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
mod syncs;
mod transport;
mod trim;
mod truncate;
mod turns;
mod work;

pub use clock::{SystemClock, WallClock};
pub use commit::Driver;
pub use election::{CastVote, ElectionCount, ElectionReason, Elections, Seen, WonElection};
pub use entry::{Applied, Committed, Durability, Entry, EntryKind, LogPosition, Term};
pub use error::{
    BoxError, ChangeError, DriftError, Error, LeaderError, ProposeError, ReadError, ReceiveError,
};
pub use group::{Group, LogBytes, Pending};
pub use log_state::Progress;
pub use member::{
    Configuration, ConfigurationChange, MEMBERS_MAX, MemberId, MemberProgress, MemberStep, Members,
    Role,
};
pub use options::{Beginning, Faults, Options};
pub use segment::GroupId;
pub use state_machine::{CopyId, Resume, Resumed, StateInstall, StateMachine, StateParts, Syncer};
pub use transport::{NoTransport, Transport};
pub use trim::Pin;
