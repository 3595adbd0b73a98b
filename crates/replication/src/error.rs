//! What can go wrong, by what the caller was doing: opening, proposing, reading.
//!
//! The three are apart because their callers do different things next: a failed
//! opening ends the process, a proposal has an outcome that may be unknown, a
//! reader may have to start over from a snapshot.

use std::io;
use std::sync::Arc;

use crate::entry::LogPosition;
use crate::member::MemberId;

/// What a state machine may answer with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opening or closing a group failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{action}: {source}")]
    Disk {
        action: String,
        #[source]
        source: io::Error,
    },
    /// Bytes that were once synced are no longer what they were. Nothing was changed.
    #[error("the log is damaged: {file}: {detail}")]
    Corrupt { file: String, detail: String },
    #[error("{file} has log format version {found}, this program reads version {supported}")]
    FormatVersion {
        file: String,
        found: u32,
        supported: u32,
    },
    #[error("{file} belongs to another log group")]
    ForeignGroup { file: String },
    /// The engine holds data, and the log that led to it is gone.
    #[error("the state machine has applied up to {applied}, but there is no log")]
    LogMissing { applied: LogPosition },
    /// The log no longer holds what the engine needs next.
    #[error("the state machine needs the log after {applied}, which begins at {first}")]
    StateTooOld {
        applied: LogPosition,
        first: LogPosition,
    },
    #[error("the state machine failed: {0}")]
    StateMachine(#[source] BoxError),
    #[error("option {name}: {detail}")]
    Option {
        name: &'static str,
        detail: &'static str,
    },
    #[error("the log stopped: {reason}")]
    Stopped { reason: Arc<str> },
}

impl Error {
    pub(crate) fn disk(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let action = action.into();
        move |source| Error::Disk { action, source }
    }
}

/// A proposal was not applied, or nobody knows whether it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The queue is full. Nothing happened and the closure did not run: wait with
    /// [`crate::Group::ready`], then propose again.
    #[error("the log's queue is full")]
    Busy,
    /// Nothing was appended, though the closure did run.
    #[error("an entry of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// The group is closing. The closure did not run.
    #[error("the log is closed")]
    Closed,
    /// The group stopped before the entry reached the disk: it will never appear.
    #[error("the log stopped: {reason}")]
    Stopped { reason: Arc<str> },
    /// The entry may or may not be in the log after it is opened again.
    #[error("the outcome is unknown: {reason}")]
    OutcomeUnknown { reason: Arc<str> },
    /// This member does not lead, or no longer in the term asked for. Nothing was
    /// appended; if the closure ran, the state machine was told to forget what it did.
    #[error("this member is not the leader")]
    NotLeader { leader: Option<MemberId> },
    /// Another leader decides about the entry: the outcome is unknown.
    #[error("leadership was lost before the outcome was known")]
    LeadershipLost,
    /// The entry was appended and something else took its place: it will never appear.
    #[error("another leader's entry took its place")]
    NotApplied,
    /// Cluster time has reached its last value.
    #[error("cluster time is exhausted")]
    TimeExhausted,
}

/// The members were not changed, or nobody knows whether they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Another change is still under way: try again later.
    #[error("another change of members is under way")]
    Busy,
    #[error("{detail}")]
    Invalid { detail: &'static str },
    #[error(transparent)]
    Proposal(#[from] ProposeError),
}

/// Leadership could not be confirmed or handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaderError {
    #[error("this member is not the leader")]
    NotLeader { leader: Option<MemberId> },
    /// The member asked for cannot lead.
    #[error("member {0} is not a voter")]
    NotAVoter(MemberId),
    /// None of the others can be reached and may lead; this one leads on.
    #[error("no other member can lead")]
    Nobody,
    /// The other member did not take over in time; this one leads on.
    #[error("the other member did not take over in time")]
    TimedOut,
    #[error("the log stopped: {reason}")]
    Stopped { reason: Arc<str> },
}

/// Bytes that are not a message of a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    #[error("a message for another group")]
    ForeignGroup,
    #[error("a message for another member")]
    ForeignMember,
}

/// Entries could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The entry that follows `after` has left the log.
    #[error("position {after} is before the start of the log, which begins at {first}")]
    TooOld {
        after: LogPosition,
        first: LogPosition,
    },
    /// Entries that were applied without a sync were lost in a power cut.
    #[error("the entries after {after} and before {next} were lost in a power cut")]
    Gap {
        after: LogPosition,
        next: LogPosition,
    },
    /// The time asked for is older than the log.
    #[error("the log does not reach back to that time; it begins at position {first}")]
    TimeTooOld { first: LogPosition },
    #[error("the log is damaged: {file}: {detail}")]
    Corrupt { file: String, detail: String },
    #[error("reading {file}: {detail}")]
    Disk { file: String, detail: String },
    /// The group stopped or was closed while waiting.
    #[error("the log stopped: {reason}")]
    Stopped { reason: Arc<str> },
}

/// A time from outside lies too far in the future to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cluster time {seconds} s is more than {drift_seconds_max} s ahead of the wall clock at {wall_seconds} s"
)]
pub struct DriftError {
    pub seconds: u32,
    pub wall_seconds: u32,
    pub drift_seconds_max: u32,
}
