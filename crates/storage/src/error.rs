//! What can go wrong below the log.
//!
//! Three kinds of trouble, told apart by [`Error::disposition`]: the caller asked
//! for something that is not kept (ask differently), the directory cannot be
//! opened (tell the operator), or the store can no longer be trusted (stop).

use crate::engine::engine_log;
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
    #[error("{path} {found}")]
    WrongFormat { path: PathBuf, found: Found },
    /// Not its source: the engine's errors print themselves as code.
    #[error("storage engine: {}", reason(.0))]
    Engine(fjall::Error),
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

/// What is where a data directory should be, or is wrong with one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Found {
    #[error(
        "is a file, and the data needs a directory: name one that is empty, or that is not there yet"
    )]
    File,
    /// Named after one of its files.
    #[error(
        "is no data directory of TernDB: it has the file {0} of something else. Name a directory \
         that is empty, or that is not there yet"
    )]
    Foreign(String),
    #[error(
        "has data, but its file FORMAT is missing: put it back, or the whole directory from a \
         backup, or name an empty directory"
    )]
    NoFormat,
    #[error(
        "has data, but its file FORMAT is damaged: put it back, or the whole directory from a \
         backup, or name an empty directory"
    )]
    DamagedFormat,
    #[error(
        "has data of format {found}, and this version of TernDB reads formats up to {expected}: \
         open it with the version that wrote it"
    )]
    Format { found: u32, expected: u32 },
    /// The engine's own files are of another version than this one's.
    #[error("has data of an engine that this version of TernDB does not have: {0}")]
    Engine(String),
}

impl From<fjall::Error> for Error {
    fn from(error: fjall::Error) -> Self {
        Error::Engine(error)
    }
}

fn reason(error: &fjall::Error) -> String {
    reason_with(error, engine_log::last_words())
}

/// What the engine suffered from, for people: the operating system's words where it
/// was asked for something.
fn reason_with(error: &fjall::Error, last_words: Option<String>) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(io) = this.downcast_ref::<std::io::Error>() {
            return io.to_string();
        }
        cause = this.source();
    }
    match error {
        // The engine tells its own log why, and us only that it gave up.
        fjall::Error::Poisoned => match last_words {
            Some(words) => format!("a write in the background failed: {words}"),
            None => "a write in the background failed".to_owned(),
        },
        other => other.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn what_the_operating_system_said_comes_through() {
        let full = || io::Error::from_raw_os_error(28);
        for error in [
            fjall::Error::Io(full()),
            fjall::Error::Storage(full().into()),
        ] {
            let said = Error::from(error).to_string();
            assert_eq!(said, format!("storage engine: {}", full()));
        }
    }

    /// The engine says in its own log why it gave up, before anybody hears that it did.
    #[test]
    fn the_cause_of_a_failure_in_the_background_comes_through() {
        let words = "Worker #1 crashed: Io(Os { code: 28 })";
        for (words, expected) in [
            (None, "a write in the background failed".to_owned()),
            (
                Some(words.to_owned()),
                format!("a write in the background failed: {words}"),
            ),
        ] {
            assert_eq!(reason_with(&fjall::Error::Poisoned, words), expected);
        }
    }
}
