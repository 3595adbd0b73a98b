//! What can go wrong below the log.
//!
//! Three kinds of trouble, told apart by [`Error::disposition`]: the caller asked
//! for something that is not kept (ask differently), the directory cannot be
//! opened (tell the operator), or the store can no longer be trusted (stop).

use std::path::PathBuf;

use model::time::ClusterTime;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot access {path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the data directory {path} is in use by another process")]
    InUse { path: PathBuf },
    #[error("the data directory {path} has {found}, but this version reads format {expected}")]
    WrongFormat {
        path: PathBuf,
        found: String,
        expected: u32,
    },
    #[error("storage engine: {0}")]
    Engine(#[from] fjall::Error),
    /// Stored bytes that do not decode. `what` names the structure.
    #[error("damaged {what}")]
    Damaged { what: &'static str },
    /// A log entry's payload that does not decode; nothing of its batch was applied.
    #[error("damaged log entry at position {position}: {what}")]
    DamagedEntry { position: u64, what: &'static str },
    /// Entries must be handed over in the order of the log.
    #[error("log entry at position {position} has time {time}, not after {applied}")]
    TimeWentBack {
        position: u64,
        time: ClusterTime,
        applied: ClusterTime,
    },
    #[error("a stored key of {bytes} bytes is over the limit of {limit}")]
    KeyTooLong { bytes: usize, limit: usize },
    #[error("a read at {asked} is before the kept history, which begins at {oldest}")]
    SnapshotTooOld {
        asked: ClusterTime,
        oldest: ClusterTime,
    },
    #[error("a read at {asked} is after the last applied entry, {applied}")]
    TimeNotReached {
        asked: ClusterTime,
        applied: ClusterTime,
    },
}

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The request cannot be met as asked; the store is sound.
    Refused,
    /// The store could not be opened; a human has to look.
    CannotOpen,
    /// The store's state is unknown or damaged: stop using it.
    Fatal,
}

impl Error {
    pub fn disposition(&self) -> Disposition {
        match self {
            Error::KeyTooLong { .. }
            | Error::SnapshotTooOld { .. }
            | Error::TimeNotReached { .. } => Disposition::Refused,
            Error::InUse { .. } | Error::WrongFormat { .. } => Disposition::CannotOpen,
            Error::Io { .. }
            | Error::Engine(_)
            | Error::Damaged { .. }
            | Error::DamagedEntry { .. }
            | Error::TimeWentBack { .. } => Disposition::Fatal,
        }
    }

    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Error::Io {
            path: path.to_path_buf(),
            source,
        }
    }
}
