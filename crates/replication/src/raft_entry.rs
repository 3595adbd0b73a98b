//! Our entries as `raft` sees them, and back.
//!
//! ```text
//!   ours           raft: type      data                   context
//!   Data           Normal          the payload            [time 8][wall clock 8]
//!   Configuration  ConfChangeV2    protobuf of the steps  [time 8][wall clock 8]
//!   Noop           Normal          empty                  empty
//! ```
//!
//! `raft` looks into the data of a change of members when it is proposed, and it wants
//! protobuf there. These bytes are made here from our own encoding and read here only:
//! neither the disk nor the network ever holds them.

use bytes::Bytes;
use model::time::ClusterTime;
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Entry as RaftEntry,
    EntryType,
};

use crate::entry::{Entry, EntryKind, LogPosition, Term};
use crate::member::{ConfigurationChange, MemberId, MemberStep};

const CONTEXT_BYTES: usize = 16;

pub(crate) fn context(time: ClusterTime, wall_ms: i64) -> Bytes {
    let mut bytes = [0u8; CONTEXT_BYTES];
    bytes[..8].copy_from_slice(&time.to_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&wall_ms.to_le_bytes());
    Bytes::copy_from_slice(&bytes)
}

/// Time and wall clock, if this is an entry that was given them.
pub(crate) fn read_context(context: &[u8]) -> Option<(ClusterTime, i64)> {
    let bytes: &[u8; CONTEXT_BYTES] = context.try_into().ok()?;
    let (time, wall_ms) = bytes.split_first_chunk::<8>()?;
    Some((
        ClusterTime::from_u64(u64::from_le_bytes(*time)),
        i64::from_le_bytes(wall_ms.try_into().ok()?),
    ))
}

pub(crate) fn to_raft(entry: &Entry) -> RaftEntry {
    let mut raft = RaftEntry {
        index: entry.position.get(),
        term: entry.term.get(),
        ..RaftEntry::default()
    };
    match &entry.kind {
        EntryKind::Data => {
            raft.data = entry.payload.clone();
            raft.context = context(entry.time, entry.wall_ms);
        }
        EntryKind::Noop => {}
        EntryKind::Configuration(change) => {
            raft.set_entry_type(EntryType::EntryConfChangeV2);
            raft.data = change_data(change);
            raft.context = context(entry.time, entry.wall_ms);
        }
    }
    raft
}

/// An entry of the log again. The entry before it gives a no-op its time.
pub(crate) fn from_raft(
    raft: RaftEntry,
    previous_time: ClusterTime,
    previous_wall_ms: i64,
) -> Option<Entry> {
    let (time, wall_ms, kind, payload) = match read_context(&raft.context) {
        None if raft.context.is_empty() && raft.data.is_empty() => (
            previous_time.next(),
            previous_wall_ms,
            EntryKind::Noop,
            Bytes::new(),
        ),
        None => return None,
        Some((time, wall_ms)) => match raft.get_entry_type() {
            EntryType::EntryNormal => (time, wall_ms, EntryKind::Data, raft.data),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                let change = change_of(&raft.data)?;
                (
                    time,
                    wall_ms,
                    EntryKind::Configuration(change),
                    Bytes::new(),
                )
            }
        },
    };
    Some(Entry {
        position: LogPosition::new(raft.index),
        term: Term::new(raft.term),
        time,
        wall_ms,
        kind,
        payload,
    })
}

/// The change as `raft` carries it out. One step is done at once, several go through a
/// joint configuration. It is left by an entry of its own and not by itself, because an
/// entry that `raft` appended unasked would take a position that was already given.
pub(crate) fn to_conf_change(change: &ConfigurationChange) -> ConfChangeV2 {
    let singles = change.steps.iter().map(|step| {
        let (kind, member) = match step {
            MemberStep::Voter(member) => (ConfChangeType::AddNode, member),
            MemberStep::Learner(member) => (ConfChangeType::AddLearnerNode, member),
            MemberStep::Remove(member) => (ConfChangeType::RemoveNode, member),
        };
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = member.get();
        single
    });
    let mut raft = ConfChangeV2::default();
    raft.set_changes(singles.collect());
    raft.set_transition(if change.steps.len() > 1 {
        ConfChangeTransition::Explicit
    } else {
        ConfChangeTransition::Auto
    });
    raft
}

fn change_data(change: &ConfigurationChange) -> Bytes {
    let bytes = to_conf_change(change).write_to_bytes();
    Bytes::from(bytes.expect("a change of members has no required fields that could be missing"))
}

pub(crate) fn change_of(data: &[u8]) -> Option<ConfigurationChange> {
    let mut raft = ConfChangeV2::default();
    raft.merge_from_bytes(data).ok()?;
    let steps = raft.get_changes().iter().map(|single| {
        let member = MemberId::checked(single.node_id)?;
        Some(match single.get_change_type() {
            ConfChangeType::AddNode => MemberStep::Voter(member),
            ConfChangeType::AddLearnerNode => MemberStep::Learner(member),
            ConfChangeType::RemoveNode => MemberStep::Remove(member),
        })
    });
    Some(ConfigurationChange {
        steps: steps.collect::<Option<Vec<_>>>()?,
    })
}
