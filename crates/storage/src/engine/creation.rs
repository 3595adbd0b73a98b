//! Clears away an engine whose creation was cut off.
//!
//! fjall makes `lock`, `keyspaces/`, `0.jnl` and last `version`, and takes a directory
//! without `version` for a new one; but then it trips over the journal that is already
//! there, and never gets further. A process that dies in that moment of its first start
//! (or a power cut that leaves `version` empty) would leave a directory that cannot be
//! opened again.
//!
//! Nothing is removed unless no keyspace was ever made: with anything in `keyspaces/`,
//! or a file that is not from the list above, a missing `version` is damage, and
//! the engine's own error stands.

use std::fs;
use std::io;
use std::path::Path;

const VERSION: &str = "version";
/// "FJL" and a number.
const VERSION_BYTES: u64 = 4;
const KEYSPACES: &str = "keyspaces";
const MADE_BEFORE: [&str; 4] = ["lock", KEYSPACES, "0.jnl", VERSION];

pub fn clear_unfinished(engine: &Path) -> io::Result<()> {
    match fs::metadata(engine.join(VERSION)) {
        Ok(version) if version.len() >= VERSION_BYTES => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let entries = match fs::read_dir(engine) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let known = MADE_BEFORE.iter().any(|name| entry.file_name() == *name);
        let empty = entry.file_name() != KEYSPACES || fs::read_dir(entry.path())?.next().is_none();
        if !known || !empty {
            return Ok(());
        }
    }
    fs::remove_dir_all(engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FjallEngine, FjallOptions};

    fn check(prepare: impl Fn(&Path), opens: bool) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // A store whose engine was never made.
        drop(crate::engine::directory::Directory::open(directory.path()).expect("opens"));
        let engine = directory.path().join("engine");
        fs::create_dir_all(engine.join(KEYSPACES)).expect("made");
        fs::write(engine.join("lock"), b"").expect("made");
        fs::write(engine.join("0.jnl"), vec![0; 4096]).expect("made");
        prepare(&engine);
        let opened = FjallEngine::open(directory.path(), &FjallOptions::default());
        assert_eq!(opened.is_ok(), opens);
        assert!(
            opens || engine.join("0.jnl").exists(),
            "damage is left as it is"
        );
    }

    #[test]
    fn creation_that_was_cut_off_is_done_again() {
        check(|_| {}, true);
        check(|engine| fs::write(engine.join(VERSION), b"").unwrap(), true);
        check(
            |engine| fs::remove_file(engine.join("0.jnl")).unwrap(),
            true,
        );
        check(
            |engine| fs::create_dir(engine.join(KEYSPACES).join("0")).unwrap(),
            false,
        );
        check(
            |engine| fs::write(engine.join("1.jnl"), b"x").unwrap(),
            false,
        );
    }
}
