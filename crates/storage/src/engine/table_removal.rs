//! Tables that nobody needs any more leave the disk where nobody waits for it.
//!
//! ```text
//!   merge ends ─► the engine removes the file of each old table, under the lock that every reader needs
//!                                   └─ its name is gone: microseconds
//!   here, a second later:           the last handle is closed: its pages and blocks go, 1 to 3 ms for each 10 MB
//! ```
//!
//! The system frees a file's memory and its place on the disk when its last handle is closed. Without a handle
//! of ours that was the engine's, in the hands of whichever reader let go of the last version that had the table:
//! reads of the whole shard stood still for 60 to 100 ms whenever a merge had ended.
//!
//! Disk space comes back a second later for it. A folder may have more tables than a process should have files open:
//! those above [`HELD_MAX`] are removed as ever.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Handles that are held. Tables have 32 MB each.
const HELD_MAX: usize = 1024;

/// Handles of the tables in a folder.
pub(super) struct TableRemoval {
    folder: PathBuf,
    /// When the folder was read, by its own time of change.
    read: Option<SystemTime>,
    held: HashMap<OsString, File>,
}

impl TableRemoval {
    pub(super) fn new(folder: PathBuf) -> Self {
        let mut removal = Self {
            folder,
            read: None,
            held: HashMap::new(),
        };
        removal.look();
        removal
    }

    /// Takes handles of tables that are new, and lets go of those whose names are gone.
    pub(super) fn look(&mut self) {
        let Ok(changed) = modified(&self.folder) else {
            return;
        };
        // ⚑ The time has a grain: what changes within it, behind this look, is found if the folder is read again.
        let is_settled = self.read == Some(changed);
        self.read = Some(changed);
        if !is_settled || is_recent(changed) {
            self.find();
        }
    }

    fn find(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let mut held = HashMap::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let handle = match self.held.remove(&name) {
                Some(handle) => Some(handle),
                None if held.len() < HELD_MAX => File::open(entry.path()).ok(),
                None => None,
            };
            if let Some(handle) = handle {
                held.insert(name, handle);
            }
        }
        // What is left there is gone; here it takes its time.
        self.held = held;
    }
}

fn modified(folder: &Path) -> std::io::Result<SystemTime> {
    std::fs::metadata(folder)?.modified()
}

/// Whether that was so lately that another change may have the same time.
fn is_recent(changed: SystemTime) -> bool {
    let Ok(passed) = changed.elapsed() else {
        return true;
    };
    passed.as_secs() < 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// ⚑ The engine removes a name, and its bytes stay until the next look.
    #[test]
    fn a_table_is_held_until_the_look_behind_its_removal() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("1");
        std::fs::write(&path, [7; 4096]).expect("is written");
        let mut removal = TableRemoval::new(folder.path().to_owned());
        std::fs::write(folder.path().join("2"), [7; 4096]).expect("is written");
        removal.look();
        assert_eq!(removal.held.len(), 2);
        std::fs::remove_file(&path).expect("is removed");
        let links = |removal: &TableRemoval| {
            let handle = removal.held.get(&OsString::from("1"))?;
            Some(handle.metadata().expect("metadata").nlink())
        };
        assert_eq!(links(&removal), Some(0), "the last handle is ours");
        removal.look();
        assert_eq!(links(&removal), None);
        assert_eq!(removal.held.len(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut removal = TableRemoval::new(folder.path().join("none"));
        removal.look();
        assert!(removal.held.is_empty());
    }
}
