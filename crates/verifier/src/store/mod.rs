//! Where a run is kept, so that it survives its process: keys and values, in order of the keys.
//!
//! ```text
//! Store ──► memory      nothing is kept: a run that ends with its process
//!       ├─► directory   an embedded engine, the default
//!       └─► database    a collection of any MongoDB-compatible server (`--meta`)
//! ```
//!
//! The contract is small enough for all three. [`Store::write`] makes its changes in the given
//! order; each is all or nothing, and a process that dies leaves a first part of them. Whoever
//! writes orders them so that every first part is sound (see `run`): no transactions are needed.

mod database;
mod directory;
mod lease;

pub use lease::is_ours;

use crate::error::VerifyError;
use database::DatabaseStore;
use directory::DirectoryStore;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Where runs are to be kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Place {
    #[default]
    Memory,
    Directory(PathBuf),
    Database {
        uri: String,
        name: String,
    },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Memory => f.write_str("memory"),
            Place::Directory(path) => write!(f, "{}", path.display()),
            Place::Database { uri, name } => {
                write!(f, "{}, database {name}", crate::cluster::shown_address(uri))
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

pub type Entry = (Vec<u8>, Vec<u8>);

pub enum Store {
    Memory(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>),
    Directory(DirectoryStore),
    Database(DatabaseStore),
}

impl Store {
    pub async fn open(place: &Place) -> Result<Store, VerifyError> {
        Ok(match place {
            Place::Memory => Store::Memory(Mutex::default()),
            Place::Directory(path) => Store::Directory(DirectoryStore::open(path)?),
            Place::Database { uri, name } => Store::Database(DatabaseStore::open(uri, name).await?),
        })
    }

    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, VerifyError> {
        match self {
            Store::Memory(map) => Ok(lock(map).get(key).cloned()),
            Store::Directory(directory) => directory.get(key),
            Store::Database(database) => database.get(key).await,
        }
    }

    /// The next entries whose keys begin with `prefix` and come after `after`.
    pub async fn page(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        entries_max: usize,
    ) -> Result<Vec<Entry>, VerifyError> {
        let low = match after {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(prefix),
        };
        match self {
            Store::Memory(map) => Ok(lock(map)
                .range::<[u8], _>((low, Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(prefix))
                .take(entries_max)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()),
            Store::Directory(directory) => directory.page(prefix, low, entries_max),
            Store::Database(database) => database.page(prefix, low, entries_max).await,
        }
    }

    /// Makes changes, in their order.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), VerifyError> {
        if changes.is_empty() {
            return Ok(());
        }
        match self {
            Store::Memory(map) => {
                let mut map = lock(map);
                for change in changes {
                    match change {
                        Change::Put(key, value) => drop(map.insert(key, value)),
                        Change::Delete(key) => drop(map.remove(&key)),
                    }
                }
                Ok(())
            }
            Store::Directory(directory) => directory.write(changes),
            Store::Database(database) => database.write(changes).await,
        }
    }

    /// Makes sure that all that was read belongs to a run which no other process had taken over by
    /// then. Between the last read and a verdict.
    pub async fn confirm(&self) -> Result<(), VerifyError> {
        match self {
            Store::Memory(_) | Store::Directory(_) => Ok(()),
            Store::Database(database) => database.lease().confirm().await,
        }
    }

    /// Waits until another process is known to have taken the run over.
    pub async fn until_lost(&self) -> VerifyError {
        match self {
            // Nobody can: one is ours alone, the other is locked.
            Store::Memory(_) | Store::Directory(_) => std::future::pending().await,
            Store::Database(database) => database.lease().until_lost().await,
        }
    }

    /// Removes everything whose key begins so.
    pub async fn clear(&self, prefix: &[u8]) -> Result<(), VerifyError> {
        const AT_ONCE: usize = 5000;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.page(prefix, after.as_deref(), AT_ONCE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            let deletes = page.into_iter().map(|(key, _)| Change::Delete(key));
            self.write(deletes.collect()).await?;
        }
    }
}

/// Removes a run that nobody needs any more.
pub async fn forget(place: &Place) -> Result<(), VerifyError> {
    match place {
        Place::Memory => Ok(()),
        Place::Directory(path) => directory::remove(path),
        Place::Database { uri, name } => DatabaseStore::remove(uri, name).await,
    }
}

fn lock<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Single changes of a map cannot be left half done.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What went wrong with the place where runs are kept.
fn failed(place: impl std::fmt::Display, detail: impl std::fmt::Display) -> VerifyError {
    VerifyError::State {
        place: place.to_string(),
        detail: detail.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(store: &Store) {
        let put = |key: &str, value: &str| Change::Put(key.into(), value.into());
        store
            .write(vec![
                put("a1", "x"),
                put("b2", "z"),
                put("b1", "y"),
                put("b3", "w"),
                put("c", ""),
                put("a1", "again"),
                Change::Delete(b"b3".to_vec()),
                Change::Delete(b"never".to_vec()),
            ])
            .await
            .unwrap();
        let got = store.get(b"a1").await.unwrap();
        assert_eq!(got.as_deref(), Some(b"again".as_slice()));
        assert_eq!(store.get(b"b3").await.unwrap(), None);
        let names = |page: Vec<Entry>| -> Vec<String> {
            page.into_iter()
                .map(|(key, _)| String::from_utf8(key).unwrap())
                .collect()
        };
        let page = |prefix: &'static str, after: Option<&'static str>, max| async move {
            let after = after.map(str::as_bytes);
            names(store.page(prefix.as_bytes(), after, max).await.unwrap())
        };
        assert_eq!(page("b", None, 9).await, ["b1", "b2"]);
        assert_eq!(page("b", None, 1).await, ["b1"]);
        assert_eq!(page("b", Some("b1"), 9).await, ["b2"]);
        assert_eq!(page("", None, 9).await, ["a1", "b1", "b2", "c"]);
        store.clear(b"b").await.unwrap();
        assert_eq!(page("", None, 9).await, ["a1", "c"]);
    }

    #[tokio::test]
    async fn entries_are_kept_in_order() {
        check(&Store::open(&Place::Memory).await.unwrap()).await;
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Directory(directory.path().join("run"));
        let store = Store::open(&place).await.unwrap();
        check(&store).await;
        let Err(error) = Store::open(&place).await else {
            panic!("two processes must not share a run");
        };
        assert!(error.to_string().contains("in use"), "{error}");
        drop(store);
        let store = Store::open(&place).await.unwrap();
        assert!(store.get(b"a1").await.unwrap().is_some());
    }
}
