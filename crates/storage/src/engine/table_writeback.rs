//! Tables go to the disk while they are written, not all at once when they are synced.
//!
//! ```text
//!   engine    write ─ write ─ write ─ write ─ … ─ sync     of a table, which has 32 MB
//!   here         └─ to disk ─┘ └─ to disk ─┘        └─ the rest
//! ```
//!
//! The system keeps what is written in memory until somebody syncs it, or for half a minute. A table that is
//! synced as a whole keeps the disk busy for 20 ms or more, and whoever syncs a few hundred bytes of a log
//! meanwhile, on this shard or on another one with the same disk, waits as long (decision 25).
//!
//! The engine has no place to ask for anything else, so this looks from outside: while tables are being written, a
//! thread looks every few milliseconds which files of the folder have grown, and asks the system to begin with what
//! is new. `POSIX_FADV_DONTNEED` does that, without waiting: pages that are not on the disk yet are not dropped, but
//! sent (those that are there a moment later may be dropped, and have to be read if a merge wants them). Only
//! advice: whatever becomes of it, the engine syncs its files itself.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Advice, fadvise};

use super::asked_thread::{Asked, AskedThread};

/// How often it looks while tables are written.
const LOOK: Duration = Duration::from_millis(4);
/// When no file has grown for so long, nobody writes.
const QUIET: Duration = Duration::from_secs(1);
/// What is worth a request.
const BYTES_MIN: u64 = 512 << 10;
/// A page that is not full yet is written again.
const PAGE_BYTES: u64 = 4096;

/// Ends its thread when it is dropped.
pub(super) struct TableWriteback(AskedThread);

impl TableWriteback {
    /// For the tables in a folder; without a thread tables are written as ever.
    pub(super) fn start(folder: PathBuf) -> Self {
        let without = "tables are written back when they are synced";
        let run = move |asked: &Asked| while asked.wait() && watch(asked, &folder) {};
        Self(AskedThread::start("table-writeback", without, run))
    }

    /// Tables are about to be written.
    pub(super) fn begin(&self) {
        self.0.ask();
    }
}

/// Looks at a folder until nobody writes; false if that is over.
fn watch(asked: &Asked, folder: &Path) -> bool {
    let mut growing = Growing::new(folder);
    let mut grown = Instant::now();
    while grown.elapsed() < QUIET {
        if growing.look(folder) > 0 {
            grown = Instant::now();
        }
        match asked.wait_for(LOOK) {
            None => return false,
            Some(true) => grown = Instant::now(),
            Some(false) => {}
        }
    }
    true
}

/// The files of a folder that grow. Those that were there before, or are finished, are only known by name: a folder
/// may have thousands of them, so it is read only when a file has come or gone.
struct Growing {
    /// When the folder was read, by its own time of change.
    read: Option<SystemTime>,
    others: HashSet<OsString>,
    growing: HashMap<OsString, Growth>,
}

struct Growth {
    file: File,
    /// The system was asked to write what is before this.
    asked_bytes: u64,
    asked: Instant,
}

impl Growing {
    fn new(folder: &Path) -> Self {
        Self {
            read: None,
            others: names(folder),
            growing: HashMap::new(),
        }
    }

    /// Asks for what is new; how many bytes that is.
    fn look(&mut self, folder: &Path) -> u64 {
        // A file that comes at the same moment may be missed until the next one comes: that costs advice, and
        // nothing else.
        let changed = std::fs::metadata(folder).and_then(|folder| folder.modified());
        if let Ok(changed) = changed
            && self.read != Some(changed)
        {
            self.read = Some(changed);
            self.find(folder);
        }
        let mut asked = 0;
        let others = &mut self.others;
        self.growing.retain(|name, growth| {
            asked += growth.ask();
            let grows = growth.asked.elapsed() < QUIET;
            if !grows {
                others.insert(name.clone());
            }
            grows
        });
        asked
    }

    /// Which files there are now. ⚑ A handle is not kept of what is gone: it would keep its bytes on the disk.
    fn find(&mut self, folder: &Path) {
        let names = names(folder);
        self.others.retain(|name| names.contains(name));
        self.growing.retain(|name, _| names.contains(name));
        for name in names {
            if self.others.contains(&name) || self.growing.contains_key(&name) {
                continue;
            }
            if let Ok(file) = File::open(folder.join(&name)) {
                let growth = Growth {
                    file,
                    asked_bytes: 0,
                    asked: Instant::now(),
                };
                self.growing.insert(name, growth);
            }
        }
    }
}

impl Growth {
    fn ask(&mut self) -> u64 {
        let bytes = self.file.metadata().map_or(0, |metadata| metadata.len());
        let from = self.asked_bytes;
        let Some(length) = worth_asking(from, bytes) else {
            return 0;
        };
        let _ = fadvise(&self.file, from, Some(length), Advice::DontNeed);
        self.asked_bytes += length.get();
        self.asked = Instant::now();
        length.get()
    }
}

fn names(folder: &Path) -> HashSet<OsString> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return HashSet::new();
    };
    entries.flatten().map(|entry| entry.file_name()).collect()
}

/// How much of a file of so many bytes is to be asked for behind `asked`: whole pages.
fn worth_asking(asked: u64, bytes: u64) -> Option<NonZeroU64> {
    let new = (bytes - bytes % PAGE_BYTES).checked_sub(asked)?;
    NonZeroU64::new(new).filter(|new| new.get() >= BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_asked_for_when_they_are_worth_it() {
        let check = |asked: u64, bytes: u64, expected: Option<u64>| {
            let found = worth_asking(asked, bytes).map(NonZeroU64::get);
            assert_eq!(found, expected, "{asked} of {bytes}");
        };
        check(0, 0, None);
        check(0, BYTES_MIN - 1, None);
        check(0, BYTES_MIN, Some(BYTES_MIN));
        check(0, BYTES_MIN + PAGE_BYTES - 1, Some(BYTES_MIN));
        check(BYTES_MIN, BYTES_MIN + PAGE_BYTES, None);
        check(BYTES_MIN, 3 * BYTES_MIN, Some(2 * BYTES_MIN));
        // A file that was made anew under the same name.
        check(BYTES_MIN, 0, None);
    }

    #[test]
    fn new_files_are_followed_and_old_ones_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let write = |name: &str, bytes: u64| {
            let content = vec![7; bytes as usize];
            std::fs::write(path.join(name), content).expect("is written");
        };
        write("1", BYTES_MIN);
        let mut growing = Growing::new(path);
        assert_eq!(growing.look(path), 0);
        write("2", BYTES_MIN);
        // Whatever the folder's time of change has for a grain.
        growing.find(path);
        assert_eq!(growing.look(path), BYTES_MIN);
        assert_eq!(growing.look(path), 0);
        write("1", 3 * BYTES_MIN);
        write("2", 4 * BYTES_MIN);
        assert_eq!(growing.look(path), 3 * BYTES_MIN);
        std::fs::remove_file(path.join("2")).expect("is removed");
        growing.find(path);
        assert_eq!(growing.look(path), 0);
        assert!(growing.growing.is_empty(), "what is gone is let go");
        assert_eq!(growing.others.len(), 1);
    }

    #[test]
    fn what_does_not_grow_any_more_is_let_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mut growing = Growing::new(path);
        std::fs::write(path.join("1"), vec![7; BYTES_MIN as usize]).expect("is written");
        growing.find(path);
        assert_eq!(growing.look(path), BYTES_MIN);
        let growth = growing.growing.values_mut().next().expect("it is followed");
        growth.asked = Instant::now().checked_sub(QUIET).expect("a moment ago");
        assert_eq!(growing.look(path), 0);
        growing.find(path);
        assert!(growing.growing.is_empty(), "and not taken for a new one");
    }

    #[test]
    fn its_thread_ends_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let writeback = TableWriteback::start(folder.path().to_owned());
        writeback.begin();
        // Waits for it, also while it looks.
        drop(writeback);
    }
}
