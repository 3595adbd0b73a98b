//! What can be set for a group.

use crate::error::Error;
use crate::group_buffer::PIECE_BYTES;
use crate::member::{MEMBERS_MAX, MemberId};
use crate::segment::{ENTRY_HEADER_BYTES, GroupId, HEADER_BYTES};

#[derive(Clone, Debug)]
pub struct Options {
    pub group: GroupId,
    /// Which member this is.
    pub member: MemberId,
    /// How a member begins that has no log yet. Meaningless once it has one.
    pub beginning: Beginning,
    /// How often the loop looks at the time, in groups of several members.
    pub tick_ms: u64,
    /// A follower that hears nothing for so many ticks (or up to half as many again)
    /// asks for votes; a leader that hears of no majority for so long steps down.
    pub election_ticks: usize,
    /// How often a leader tells others that it is there.
    pub heartbeat_ticks: usize,
    /// How much of the log one message carries at most (an entry may be larger).
    pub message_bytes_max: u64,
    /// How many messages wait to be looked at before more are thrown away.
    pub inbox_messages_max: usize,
    /// Decides election timeouts in a simulation, instead of chance.
    pub election_seed: Option<u64>,
    /// Rules switched off, for tests that must notice it.
    #[doc(hidden)]
    pub faults: Faults,
    /// The size of a segment file; an entry that needs more gets a larger one.
    pub segment_bytes: u64,
    /// Entries are kept while the log is smaller than this …
    pub window_bytes: u64,
    /// … or while they are younger than this.
    pub window_ms: i64,
    /// A proposal is refused as busy while this much waits to be written. One entry
    /// may go over it, so that every entry has a chance.
    pub queue_bytes_max: usize,
    pub queue_entries_max: usize,
    /// How much of the newest entries stays in memory for readers.
    pub tail_bytes_max: usize,
    /// The largest payload of one entry.
    pub payload_bytes_max: usize,
    /// How soon the sync follows a buffered write.
    pub sync_delay_ms: u64,
    /// From so many bytes on, a group that must be synced is written in whole blocks, which
    /// the disk then writes past the system's memory.
    pub direct_bytes_min: u64,
    /// How many syncs in a row say how the log is written.
    pub syncs_looked_at: u64,
    /// From so many bytes on, a part of a group is written before the rest of it is appended.
    pub piece_bytes: u64,
    /// How far ahead of the wall clock a time from outside may be.
    pub drift_seconds_max: u32,
}

/// How a member begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With these voters, the same list on each of them.
    Voters(Vec<MemberId>),
    /// Empty: it waits until a leader that was told of it sends it everything.
    Joining,
}

/// Rules that a test can switch off, to see that it finds out.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A leader serves before it has applied an entry of its own term.
    pub lead_at_once: bool,
    /// A read barrier asks nobody.
    pub barrier_without_quorum: bool,
    /// Entries are acknowledged to the leader (and count for it) before their sync.
    pub acknowledge_unsynced: bool,
    /// A group is written through although entries before it are not synced.
    pub sync_over_unsynced: bool,
    /// Votes are not remembered over a restart.
    pub forget_votes: bool,
    /// Times are given by the wall clock alone.
    pub time_from_wall: bool,
    /// Entries leave the log whether the state was synced past them or not.
    pub trim_unsynced: bool,
    /// The hint at what is committed names what was only appended.
    pub hint_appended: bool,
    /// A read before the start of the log begins where the log begins.
    pub read_over_gaps: bool,
}

impl Options {
    /// A sole member, number 1.
    pub fn new(group: GroupId) -> Self {
        let me = MemberId::new(1);
        Self {
            group,
            member: me,
            beginning: Beginning::Voters(vec![me]),
            tick_ms: 100,
            election_ticks: 10,
            heartbeat_ticks: 2,
            message_bytes_max: 1 << 20,
            inbox_messages_max: 4096,
            election_seed: None,
            faults: Faults::default(),
            segment_bytes: 64 << 20,
            window_bytes: 1 << 30,
            window_ms: 0,
            queue_bytes_max: 64 << 20,
            queue_entries_max: 16_384,
            tail_bytes_max: 16 << 20,
            payload_bytes_max: 512 << 20,
            sync_delay_ms: 100,
            direct_bytes_min: 0,
            syncs_looked_at: 256,
            piece_bytes: PIECE_BYTES,
            drift_seconds_max: 365 * 24 * 3600,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |name, detail| Err(Error::Option { name, detail });
        if self.segment_bytes < HEADER_BYTES + 4 * ENTRY_HEADER_BYTES as u64 {
            return refuse("segment_bytes", "too small for a few entries");
        }
        if !self.segment_bytes.is_multiple_of(HEADER_BYTES) {
            return refuse("segment_bytes", "must be a multiple of 512");
        }
        if self.payload_bytes_max > (1 << 31) {
            return refuse("payload_bytes_max", "must not be over 2 GiB");
        }
        if self.queue_bytes_max == 0 || self.queue_entries_max == 0 {
            return refuse("queue_bytes_max", "an empty queue accepts nothing");
        }
        if self.tick_ms == 0 || self.heartbeat_ticks == 0 {
            return refuse("tick_ms", "time must pass");
        }
        if self.election_ticks < 2 * self.heartbeat_ticks {
            return refuse("election_ticks", "must cover at least two heartbeats");
        }
        if let Beginning::Voters(voters) = &self.beginning {
            if voters.is_empty() || voters.len() > MEMBERS_MAX {
                return refuse("beginning", "too few or too many voters");
            }
            if !voters.is_sorted() || !voters.contains(&self.member) {
                return refuse("beginning", "must be in order and name this member");
            }
        }
        Ok(())
    }
}
