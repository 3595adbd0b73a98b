//! Runs in a directory, by an embedded engine.
//!
//! ```text
//! DIR/run        the engine's files
//! DIR/creating   an engine whose making was cut off, if anything
//! ```
//!
//! The engine is made under another name and then renamed, because it cannot be opened after its
//! own first start was cut off. Changes are handed to the operating system at once, which keeps
//! them through a kill -9; after a power cut the last seconds may be missing, and with them some
//! work, but nothing that later entries rely on: they are written in the same journal behind it.

use super::{Change, Entry, failed};
use crate::error::VerifyError;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use std::ops::Bound;
use std::path::{Path, PathBuf};

const MEMTABLE_BYTES: u64 = 8 << 20;
const CACHE_BYTES: u64 = 16 << 20;
const KEYSPACE: &str = "all";

pub struct DirectoryStore {
    path: PathBuf,
    database: Database,
    keyspace: Keyspace,
}

impl DirectoryStore {
    pub fn open(path: &Path) -> Result<DirectoryStore, VerifyError> {
        let in_place = path.join("run");
        if !in_place.exists() {
            let creating = path.join("creating");
            let wrong = |error| unusable(path, &error);
            if creating.exists() {
                std::fs::remove_dir_all(&creating).map_err(wrong)?;
            }
            std::fs::create_dir_all(path).map_err(wrong)?;
            let (database, keyspace) = open_engine(&creating, path)?;
            drop(keyspace);
            drop(database);
            std::fs::rename(&creating, &in_place).map_err(wrong)?;
        }
        let (database, keyspace) = open_engine(&in_place, path)?;
        Ok(DirectoryStore {
            path: path.to_owned(),
            database,
            keyspace,
        })
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, VerifyError> {
        let found = self.keyspace.get(key).map_err(|e| self.failed(e))?;
        Ok(found.map(|value| value.to_vec()))
    }

    pub fn page(
        &self,
        prefix: &[u8],
        low: Bound<&[u8]>,
        entries_max: usize,
    ) -> Result<Vec<Entry>, VerifyError> {
        let mut page = Vec::new();
        for guard in self.keyspace.range::<&[u8], _>((low, Bound::Unbounded)) {
            if page.len() >= entries_max {
                break;
            }
            let (key, value) = guard.into_inner().map_err(|e| self.failed(e))?;
            if !key.starts_with(prefix) {
                break;
            }
            page.push((key.to_vec(), value.to_vec()));
        }
        Ok(page)
    }

    pub fn write(&self, changes: Vec<Change>) -> Result<(), VerifyError> {
        let mut batch = OwnedWriteBatch::with_capacity(self.database.clone(), changes.len())
            .durability(Some(PersistMode::Buffer));
        for change in changes {
            match change {
                Change::Put(key, value) => batch.insert(&self.keyspace, key, value),
                Change::Delete(key) => batch.remove(&self.keyspace, key),
            }
        }
        batch.commit().map_err(|e| self.failed(e))
    }

    fn failed(&self, error: fjall::Error) -> VerifyError {
        engine_failed(&self.path, &error)
    }
}

/// A directory that cannot be made or changed.
fn unusable(path: &Path, error: &std::io::Error) -> VerifyError {
    let advice = "name a directory that can be written to with --state";
    failed(path.display(), format!("{error}: {advice}"))
}

fn engine_failed(path: &Path, error: &fjall::Error) -> VerifyError {
    let detail = match error {
        fjall::Error::Locked => {
            "it is in use by another process: wait for it, or name another directory with --state"
                .to_owned()
        }
        fjall::Error::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return unusable(path, error);
        }
        fjall::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            format!("{error}: make room, and start again with the same options to go on")
        }
        // Whatever else it is, files are not as the engine left them.
        damaged => format!(
            "its files are damaged ({damaged}): begin anew with --restart, or name another directory with --state"
        ),
    };
    failed(path.display(), detail)
}

fn open_engine(engine: &Path, shown: &Path) -> Result<(Database, Keyspace), VerifyError> {
    let wrong = |error: fjall::Error| engine_failed(shown, &error);
    let database = Database::builder(engine)
        .cache_size(CACHE_BYTES)
        .worker_threads(1)
        .open()
        .map_err(wrong)?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
    let keyspace = database.keyspace(KEYSPACE, options).map_err(wrong)?;
    Ok((database, keyspace))
}

/// Removes the run, and the directory if it held nothing else.
pub fn remove(path: &Path) -> Result<(), VerifyError> {
    let run = path.join("run");
    if run.exists() {
        // Not under another process. One whose files are damaged is removed, and nobody has that open.
        if let Err(fjall::Error::Locked) = Database::builder(&run).open() {
            return Err(engine_failed(path, &fjall::Error::Locked));
        }
        // Renamed first: what is half removed must not be taken for a run.
        let gone = path.join("creating");
        std::fs::rename(&run, &gone).map_err(|error| unusable(path, &error))?;
        std::fs::remove_dir_all(&gone).map_err(|error| unusable(path, &error))?;
    }
    // Fails if somebody keeps other things there, which is no harm.
    let _ = std::fs::remove_dir(path);
    Ok(())
}
