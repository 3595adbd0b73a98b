//! Options that queries had before there were commands for them.

use model::{Code, Error};

/// The error for a command with a `$maxTimeMS`, unless it finds unknown fields by itself.
pub fn refuse_former_time_limit(command: &str) -> Result<(), Error> {
    if names_unknown_fields_first(command) {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_OPTIONS,
        "no such command option $maxTimeMs; use maxTimeMS instead",
    ))
}

/// Commands whose fields MongoDB reads before it looks at what all commands have: a `$maxTimeMS` is an
/// unknown field there like any other.
fn names_unknown_fields_first(command: &str) -> bool {
    matches!(
        command,
        "aggregate"
            | "insert"
            | "update"
            | "delete"
            | "findAndModify"
            | "findandmodify"
            | "getMore"
            | "killCursors"
            | "explain"
            | "ping"
            | "create"
            | "createIndexes"
            | "drop"
            | "dropDatabase"
            | "dropIndexes"
            | "deleteIndexes"
            | "listCollections"
            | "listDatabases"
            | "listIndexes"
            | "connectionStatus"
            | "endSessions"
            | "getCmdLineOpts"
            | "getDefaultRWConcern"
            | "hostInfo"
    )
}
