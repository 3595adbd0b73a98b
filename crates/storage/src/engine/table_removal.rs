//! Tables that nobody needs any more leave the disk where nobody waits for it.
//!
//! ```text
//!   merge ends ─► the engine removes the file of each old table, where a reader lets go of it last
//!                                   └─ its name is gone: microseconds
//!   here, a second later:           the last handle is closed: its pages and blocks go
//! ```
//!
//! The system frees a file's memory and its place on the disk when its last handle is closed. Without a handle
//! of ours that was the engine's, in the hands of whichever reader let go of the last version that had the table:
//! in traces of moves a shard answered nothing for 60 to 100 ms while a worker did that (docs/decisions/0030-*).
//!
//! Disk space comes back a second later for it, or when the merge that is under way has ended. Who does not look any
//! more has to say so ([`TableRemoval::stop`]), or it would never come back.
//!
//! A folder may have more tables than a process should have files open. The latest [`HELD_MAX`] of them are held,
//! which are those that are merged most often; others are removed as ever.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Advice, fadvise};

/// Handles that are held. Tables have 32 MB each.
const HELD_MAX: usize = 128;
const RELEASE_STEP: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();

/// Handles of the tables in a folder.
pub(super) struct TableRemoval {
    folder: PathBuf,
    /// When the folder was read, by its own time of change.
    read: Option<SystemTime>,
    held: HashMap<u64, File>,
    has_stopped: bool,
}

impl TableRemoval {
    pub(super) fn new(folder: PathBuf) -> Self {
        let mut removal = Self {
            folder,
            read: None,
            held: HashMap::new(),
            has_stopped: false,
        };
        removal.look();
        removal
    }

    /// Takes handles of tables that are new, and lets go of those whose names are gone.
    pub(super) fn look(&mut self) {
        if self.has_stopped {
            return;
        }
        let changed = match modified(&self.folder) {
            Ok(changed) => changed,
            Err(_) => return self.held.clear(),
        };
        // ⚑ The time has a grain: what changes within it, behind this look, is found if the folder is read again.
        if self.read == Some(changed) && !is_recent(changed) {
            return;
        }
        match latest(&self.folder) {
            Ok(tables) => {
                self.hold(&tables);
                self.read = Some(changed);
            }
            // Perhaps for want of handles.
            Err(_) => self.held.clear(),
        }
    }

    /// Nobody looks any more: tables are removed as ever.
    pub(super) fn stop(&mut self) {
        self.has_stopped = true;
        self.held.clear();
    }

    fn hold(&mut self, tables: &[u64]) {
        for (_, handle) in self.held.extract_if(|table, _| !tables.contains(table)) {
            // One that is only not among the latest any more is read like others.
            if is_removed(&handle) {
                release_memory(&handle);
            }
        }
        for &table in tables {
            if self.held.contains_key(&table) {
                continue;
            }
            if let Ok(handle) = File::open(self.folder.join(table.to_string())) {
                self.held.insert(table, handle);
            }
        }
    }
}

/// The tables that were made last: they are numbered.
fn latest(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        tables.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    tables.sort_unstable_by_key(|&table| Reverse(table));
    tables.truncate(HELD_MAX);
    Ok(tables)
}

/// Whether the file has no name any more.
fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|about| about.nlink() == 0)
}

/// Gives the memory of a file back in steps, before it goes with its handle. Who waits for the processor comes first
/// after each of them; all at once took milliseconds for a table, and as long for whoever was next.
fn release_memory(file: &File) {
    let bytes = file.metadata().map_or(0, |about| about.len());
    for offset in (0..bytes).step_by(RELEASE_STEP.get() as usize) {
        // Only advice: what stays goes with the handle.
        let _ = fadvise(file, offset, Some(RELEASE_STEP), Advice::DontNeed);
        std::thread::yield_now();
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

    /// Others are still read, and stay in memory.
    #[test]
    fn memory_is_given_back_of_removed_tables_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("1");
        std::fs::write(&path, b"table").expect("writes");
        let handle = File::open(&path).expect("opens");
        assert!(!is_removed(&handle));
        std::fs::remove_file(&path).expect("removes");
        assert!(is_removed(&handle));
    }

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
            let handle = removal.held.get(&1)?;
            Some(handle.metadata().expect("metadata").nlink())
        };
        assert_eq!(links(&removal), Some(0), "the last handle is ours");
        removal.look();
        assert_eq!(links(&removal), None);
        assert_eq!(removal.held.len(), 1);
    }

    /// ⚑ However many there are, and whichever were held before.
    #[test]
    fn the_latest_tables_are_held() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |tables: std::ops::Range<u64>| {
            for table in tables {
                std::fs::write(folder.path().join(table.to_string()), []).expect("is written");
            }
        };
        let most = HELD_MAX as u64;
        write(0..most);
        let mut removal = TableRemoval::new(folder.path().to_owned());
        assert_eq!(removal.held.len(), HELD_MAX);
        write(most..2 * most);
        removal.look();
        assert_eq!(removal.held.len(), HELD_MAX);
        assert!(removal.held.keys().all(|&table| table >= most));
        removal.stop();
        removal.look();
        assert!(removal.held.is_empty(), "space comes back without looks");
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut removal = TableRemoval::new(folder.path().join("none"));
        removal.look();
        assert!(removal.held.is_empty());
    }
}
