//! Faults of the layers below, as clients see them.

use model::{Code, Error};
use replication::ProposeError;

pub(crate) fn from_storage(error: storage::Error) -> Error {
    let code = match &error {
        storage::Error::SnapshotTooOld { .. } => Code::SNAPSHOT_TOO_OLD,
        storage::Error::TimeNotReached { .. } => Code::SNAPSHOT_UNAVAILABLE,
        storage::Error::KeyTooLong { .. } => Code(17280),
        storage::Error::Io { .. }
        | storage::Error::InUse { .. }
        | storage::Error::WrongFormat { .. }
        | storage::Error::Engine(_)
        | storage::Error::Damaged { .. }
        | storage::Error::DamagedEntry { .. }
        | storage::Error::TimeWentBack { .. } => Code::INTERNAL_ERROR,
    };
    Error::new(code, error.to_string())
}

/// What a client is told when the log did not take or did not confirm a write.
/// An unknown outcome has a code that drivers treat as such: the node steps or goes
/// down, the write may or may not be there.
pub(crate) fn from_log(error: ProposeError) -> Error {
    let code = match &error {
        ProposeError::NotLeader { .. } => Code::NOT_WRITABLE_PRIMARY,
        ProposeError::LeadershipLost | ProposeError::NotApplied => {
            Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
        }
        ProposeError::Busy
        | ProposeError::TooLarge { .. }
        | ProposeError::Closed
        | ProposeError::Stopped { .. }
        | ProposeError::OutcomeUnknown { .. }
        | ProposeError::TimeExhausted => Code::INTERRUPTED_AT_SHUTDOWN,
    };
    match code {
        Code::NOT_WRITABLE_PRIMARY => Error::new(code, "not primary"),
        code => Error::new(code, error.to_string()),
    }
}
