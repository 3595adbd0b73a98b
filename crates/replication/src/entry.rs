//! The nouns of the log: positions, terms, entries, and what applying needs.
//!
//! Invariants, for two entries `a` and `b` of one log:
//!
//! ```text
//!   a.position < b.position   ⇔   a.time < b.time
//!   a.position < b.position   ⇒   a.term ≤ b.term
//! ```
//!
//! Positions are dense: the first entry has position 1 and each next one adds
//! one. The only exception is a recorded gap (see `recovery.rs`). Wall time is
//! information for people and for the retention window; nothing is ordered by it.

use std::fmt;

use bytes::Bytes;
use model::time::ClusterTime;

use crate::member::ConfigurationChange;

/// The index of an entry in its log. The first entry has position 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(u64);

impl LogPosition {
    /// Before the first entry: reading *after* this position reads everything.
    pub const BEFORE_FIRST: LogPosition = LogPosition(0);

    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position of the entry that follows. Positions are given one by one,
    /// so that 64 bits last longer than any log.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The position before this one; stays where it is before the first entry.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Debug for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One period of leadership. A sole voter begins a new one every time it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(u64);

impl Term {
    pub const fn new(term: u64) -> Self {
        Self(term)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One entry of the log. Cloning it does not copy the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: LogPosition,
    pub term: Term,
    pub time: ClusterTime,
    pub wall_ms: i64,
    pub kind: EntryKind,
    /// What was proposed. Empty in entries that the log makes for itself.
    pub payload: Bytes,
}

/// Who made an entry, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A proposal: the payload means something to the state machine.
    Data,
    /// The first entry of a leader's term, or what has become of a change of members
    /// that was refused. Nobody proposes it, so nobody gives it a time: its time is the
    /// one right after that of the entry before it, on every member.
    Noop,
    /// Changes the members of the group.
    Configuration(ConfigurationChange),
}

/// An entry that is to be applied now.
#[derive(Debug)]
pub struct Committed<C> {
    pub entry: Entry,
    /// What the proposer handed over in memory; `None` when the entry was read
    /// back from the log.
    pub companion: Option<C>,
}

/// Where a proposal ended up. It has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub position: LogPosition,
    pub time: ClusterTime,
}

/// When a proposal may be applied and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the entry is on stable storage.
    Synced,
    /// At once; the sync follows within [`crate::Options::sync_delay_ms`]. A power
    /// cut before that may lose the entry. Only with a sole member: with several,
    /// everything is synced by a quorum before it is applied.
    Buffered,
}
