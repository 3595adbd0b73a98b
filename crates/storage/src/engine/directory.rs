//! The directory of one store: who holds it, and which format is inside.
//!
//! ```text
//!  <directory>/LOCK      locked while a process has the store open
//!  <directory>/FORMAT    "TernDB store format <n>\n" "crc32c <8 hex digits>\n"
//!  <directory>/engine/   the engine's own files
//! ```
//!
//! The lock is the operating system's (released when the process dies), so a
//! leftover file means nothing. `FORMAT` is written once, before the engine
//! creates its first file, and renamed into place: a directory with engine files
//! but no readable format is refused rather than guessed at.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Found, Result};

/// Raised whenever stored bytes change their meaning. Format 2 has ranges that are forgotten, which are gone
/// although they are stored.
pub const FORMAT_VERSION: u32 = 2;
/// What this format only adds to: such a directory becomes one of this format when it is opened.
const FORMAT_BEFORE: u32 = 1;

const LOCK: &str = "LOCK";
const FORMAT: &str = "FORMAT";
const UNFINISHED_FORMAT: &str = "FORMAT.new";
const ENGINE: &str = "engine";
/// Which member of a replica set the directory is for: written before anything else.
const MEMBER: &str = "member.bson";
const UNFINISHED_MEMBER: &str = "member.bson.new";

/// A directory that this process holds.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held for its lock only.
    _lock: File,
}

impl Directory {
    /// Creates the directory if needed, locks it and checks its format.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(file) = path.ancestors().find(|above| above.is_file()) {
            return Err(wrong_format(file, Found::File));
        }
        fs::create_dir_all(path).map_err(|e| Error::io(path, e))?;
        let is_new = |name: &str| !path.join(name).exists();
        if [LOCK, FORMAT, ENGINE].into_iter().all(is_new) {
            // Before anything of ours is put beside them.
            refuse_foreign(path)?;
        }
        let lock = lock(path)?;
        let format = path.join(FORMAT);
        match fs::read(&format) {
            Ok(bytes) if bytes == format_text(FORMAT_BEFORE).as_bytes() => {
                // Before anything is stored that the earlier format does not know.
                write_format(path, &format)?;
            }
            Ok(bytes) => check_format(path, &bytes)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if path.join(ENGINE).exists() {
                    return Err(wrong_format(path, Found::NoFormat));
                }
                refuse_foreign(path)?;
                write_format(path, &format)?;
            }
            Err(e) => return Err(Error::io(&format, e)),
        }
        Ok(Self {
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    /// Where the engine keeps its files.
    pub fn engine_path(&self) -> PathBuf {
        self.path.join(ENGINE)
    }
}

/// A directory that holds somebody else's files, another database's for one, is
/// left alone. A first start that was cut off leaves only names of our own.
fn refuse_foreign(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(|e| Error::io(path, e))? {
        let name = entry.map_err(|e| Error::io(path, e))?.file_name();
        let own = [
            LOCK,
            UNFINISHED_FORMAT,
            MEMBER,
            UNFINISHED_MEMBER,
            "lost+found",
        ];
        if !own.iter().any(|own| name == **own) {
            let found = Found::Foreign(name.to_string_lossy().into_owned());
            return Err(wrong_format(path, found));
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File> {
    let file_path = path.join(LOCK);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&file_path)
        .map_err(|e| Error::io(&file_path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse {
            path: path.to_path_buf(),
        }),
        Err(TryLockError::Error(e)) => Err(Error::io(&file_path, e)),
    }
}

fn format_text(version: u32) -> String {
    let first = format!("TernDB store format {version}\n");
    let checksum = crc32c::crc32c(first.as_bytes());
    format!("{first}crc32c {checksum:08x}\n")
}

fn check_format(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes == format_text(FORMAT_VERSION).as_bytes() {
        return Ok(());
    }
    let found = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.lines().next())
        .and_then(|line| line.strip_prefix("TernDB store format "))
        .and_then(|number| number.parse::<u32>().ok())
        .filter(|&version| format_text(version).as_bytes() == bytes)
        .map_or(Found::DamagedFormat, |found| Found::Format {
            found,
            expected: FORMAT_VERSION,
        });
    Err(wrong_format(path, found))
}

fn wrong_format(path: &Path, found: Found) -> Error {
    Error::WrongFormat {
        path: path.to_path_buf(),
        found,
    }
}

fn write_format(directory: &Path, format: &Path) -> Result<()> {
    let unfinished = directory.join(UNFINISHED_FORMAT);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(format_text(FORMAT_VERSION).as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, format)?;
        // The name itself must survive a power cut before engine files appear.
        File::open(directory)?.sync_all()
    };
    write().map_err(|e| Error::io(format, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prepare: impl Fn(&Path), expect: Option<Found>) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        prepare(dir.path());
        let outcome = match Directory::open(dir.path()) {
            Ok(_) => None,
            Err(Error::WrongFormat { found, .. }) => Some(found),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(outcome, expect);
    }

    #[test]
    fn format_is_checked() {
        check(|_| {}, None);
        check(|path| drop(Directory::open(path)), None);
        let write = |text: String| move |path: &Path| fs::write(path.join(FORMAT), &text).unwrap();
        check(write(format_text(FORMAT_VERSION)), None);
        check(write(format_text(FORMAT_BEFORE)), None);
        check(
            |path| {
                fs::write(path.join(FORMAT), format_text(FORMAT_BEFORE)).unwrap();
                drop(Directory::open(path));
                let after = fs::read(path.join(FORMAT)).unwrap();
                assert_eq!(after, format_text(FORMAT_VERSION).into_bytes());
            },
            None,
        );
        let newer = Found::Format {
            found: 7,
            expected: FORMAT_VERSION,
        };
        check(write(format_text(7)), Some(newer));
        check(
            write(format_text(7).replace('7', "1")),
            Some(Found::DamagedFormat),
        );
        check(write(String::new()), Some(Found::DamagedFormat));
        check(
            |path| fs::create_dir(path.join(ENGINE)).unwrap(),
            Some(Found::NoFormat),
        );
        check(
            |path| fs::write(path.join("WiredTiger"), "x").unwrap(),
            Some(Found::Foreign("WiredTiger".to_owned())),
        );
        let foreign = tempfile::tempdir().expect("a temporary directory");
        fs::write(foreign.path().join("WiredTiger"), "x").expect("writable");
        Directory::open(foreign.path()).expect_err("somebody else's");
        assert!(!foreign.path().join(LOCK).exists(), "nothing is left there");
        let file = foreign.path().join("WiredTiger");
        let refused = Directory::open(&file).expect_err("a file");
        let sentence = format!("{} is a file, and the data needs", file.display());
        assert!(refused.to_string().starts_with(&sentence), "{refused}");
        let below = Directory::open(&file.join("member-0")).expect_err("below a file");
        assert_eq!(below.to_string(), refused.to_string());
        // A first start that was cut off.
        check(
            |path| fs::write(path.join(UNFINISHED_FORMAT), "x").unwrap(),
            None,
        );
    }

    #[test]
    fn directory_in_use_is_refused_and_free_again_afterwards() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = Directory::open(dir.path()).expect("free");
        assert!(matches!(
            Directory::open(dir.path()),
            Err(Error::InUse { .. })
        ));
        drop(first);
        Directory::open(dir.path()).expect("free again");
    }
}
