//! The log as `raft` reads it.
//!
//! `raft` asks for terms and entries here; it is told of new ones by the loop, after
//! they were written. What it may see is the part without gaps.
//!
//! Two kinds of questions for entries must be told apart:
//! - for sending them to others: whole, and an error makes the leader send a copy of the
//!   state instead;
//! - for knowing what is committed: only positions, terms and kinds count, because the
//!   loop reads what it applies itself. An error would be fatal to `raft`, so there is
//!   none; if the disk cannot be read, the loop finds out when it applies.

use std::sync::Arc;

use raft::eraftpb::{ConfState, Entry as RaftEntry, EntryType, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::entry::{Entry, EntryKind, LogPosition, Term};
use crate::error::ReadError;
use crate::log_state::LogState;
use crate::raft_entry::to_raft;

pub(crate) struct RaftStore {
    pub log: Arc<LogState>,
    pub initial: RaftState,
    /// What a copy of the state would contain now, if one can be made.
    pub copyable: Option<(LogPosition, Term)>,
    pub configuration: ConfState,
}

fn outline(entry: &Entry) -> RaftEntry {
    let mut raft = RaftEntry {
        index: entry.position.get(),
        term: entry.term.get(),
        ..RaftEntry::default()
    };
    if matches!(entry.kind, EntryKind::Configuration(_)) {
        raft.set_entry_type(EntryType::EntryConfChangeV2);
    }
    raft
}

impl RaftStore {
    fn read(&self, low: u64, high: u64, bytes_max: u64) -> Result<Vec<Entry>, ReadError> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let after = LogPosition::new(low).previous();
        let until = LogPosition::new(high).previous();
        self.log.read_until(after, until, bytes_max)
    }
}

impl Storage for RaftStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        if low < self.log.unbroken_first().get() {
            return Err(StorageError::Compacted.into());
        }
        // Only what is asked for in order to be sent can be waited for.
        if context.can_async() {
            return match self.read(low, high, bytes_max) {
                Ok(entries) => Ok(entries.iter().map(to_raft).collect()),
                Err(ReadError::TooOld { .. }) => Err(StorageError::Compacted.into()),
                Err(_) => Err(StorageError::Unavailable.into()),
            };
        }
        let tail = self.log.tail.lock().outlines(low, high, bytes_max, outline);
        if let Some(outlines) = tail {
            return Ok(outlines);
        }
        match self.read(low, high, bytes_max) {
            Ok(entries) => Ok(entries.iter().map(outline).collect()),
            Err(_) => {
                let unread = RaftEntry {
                    index: low,
                    ..RaftEntry::default()
                };
                Ok(vec![unread])
            }
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let position = LogPosition::new(index);
        if position == LogPosition::BEFORE_FIRST {
            return Ok(0);
        }
        match self.log.term_at(position) {
            Ok(term) => Ok(term.get()),
            Err(ReadError::TooOld { .. }) => Err(StorageError::Compacted.into()),
            Err(_) => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.unbroken_first().get())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.appended().get())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let unavailable = || StorageError::SnapshotTemporarilyUnavailable.into();
        let (position, term) = self.copyable.ok_or_else(unavailable)?;
        if position.get() < request_index {
            return Err(unavailable());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = position.get();
        metadata.term = term.get();
        metadata.set_conf_state(self.configuration.clone());
        Ok(snapshot)
    }
}
