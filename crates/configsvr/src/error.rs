//! Why something was not done, and whether trying again may help.

use cluster::authority::Refusal;
use cluster::routing::{ChangeError, RefreshError};
use model::{Code, Error};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Fault {
    /// The answer is no; asking again would not change it.
    #[error("{0}")]
    Refused(Error),
    /// Nobody answered, or not now: the same may be asked again.
    #[error("{0}")]
    Unreachable(Error),
    /// It was asked for and may have happened.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// How a caller goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retry {
    AfterBackoff,
    Never,
}

/// Errors that pass: members change roles, start and stop.
const PASSING: [Code; 12] = [
    Code::NOT_WRITABLE_PRIMARY,
    Code::PRIMARY_STEPPED_DOWN,
    Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
    Code::NOT_PRIMARY_NO_SECONDARY_OK,
    Code::NOT_PRIMARY_OR_SECONDARY,
    Code::SHUTDOWN_IN_PROGRESS,
    Code::INTERRUPTED_AT_SHUTDOWN,
    Code::HOST_UNREACHABLE,
    Code::NETWORK_TIMEOUT,
    Code::EXCEEDED_TIME_LIMIT,
    Code::WRITE_CONFLICT,
    Code::LOCK_TIMEOUT,
];

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Fault::Refused(Error::new(code, message))
    }

    /// What a reply with `ok: 0` means.
    pub(crate) fn from_reply(error: Error) -> Self {
        match PASSING.contains(&error.code) {
            true => Fault::Unreachable(error),
            false => Fault::Refused(error),
        }
    }

    pub(crate) fn retry(&self) -> Retry {
        match self {
            Fault::Refused(_) => Retry::Never,
            Fault::Unreachable(_) | Fault::Unknown(_) => Retry::AfterBackoff,
        }
    }

    /// As a client is told.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Fault::Refused(error) | Fault::Unreachable(error) => error,
            Fault::Unknown(why) => Error::new(
                Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                format!("the outcome is unknown: {why}"),
            ),
        }
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Fault::Refused(error) | Fault::Unreachable(error) => Some(error.code),
            Fault::Unknown(_) => None,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Refused(error)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Aborted => Code::OPERATION_FAILED,
            Refusal::NotSharded => Code::NAMESPACE_NOT_SHARDED,
            Refusal::OtherIncarnation => Code::STALE_EPOCH,
            Refusal::CatalogChanged { .. } => Code::CONFLICTING_OPERATION_IN_PROGRESS,
            Refusal::NotTheOwner(_) => Code::OPERATION_FAILED,
            Refusal::OtherDatabase(_) => Code::STALE_DB_VERSION,
            Refusal::NoSuchShard(_) => Code::SHARD_NOT_FOUND,
            Refusal::AlreadySharded => Code::ALREADY_INITIALIZED,
            Refusal::Change(change) => match change {
                ChangeError::NotOneChunk(_)
                | ChangeError::AlreadyThere(_)
                | ChangeError::BadSplitPoint(_)
                | ChangeError::NotAtBounds(_)
                | ChangeError::NothingToMerge(_)
                | ChangeError::SeveralShards(_) => Code::OPERATION_FAILED,
                ChangeError::NotAnExtension => Code::INVALID_OPTIONS,
            },
            Refusal::Table(_) => Code::INTERNAL_ERROR,
        };
        Fault::new(code, refusal.to_string())
    }
}

impl From<RefreshError> for Fault {
    fn from(error: RefreshError) -> Self {
        Fault::new(
            Code::INTERNAL_ERROR,
            format!("the stored chunks are no routing table: {error}"),
        )
    }
}
