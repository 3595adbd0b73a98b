//! How far the verification is: counted by the workers, shown on standard error.
//!
//! A terminal gets a bar for each collection that is being compared and one for everything, with
//! rates and the time left; a log gets a line now and then. The counts are for people: a task that
//! is run again counts again here. The report counts for itself.

use crate::settings::Display;
use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const BARS_INTERVAL: Duration = Duration::from_millis(200);
const LINES_INTERVAL: Duration = Duration::from_secs(10);

/// One collection's share.
pub struct CollectionTally {
    pub name: String,
    /// As the source estimates it.
    pub documents_expected: AtomicU64,
    documents: AtomicU64,
    /// Partitions handed out, and how many of them are done.
    tasks: AtomicU64,
    tasks_done: AtomicU64,
    planned: AtomicU64,
}

/// What was read so far.
#[derive(Default)]
pub struct Tally {
    collections: OnceLock<Vec<CollectionTally>>,
    bytes: AtomicU64,
}

impl Tally {
    pub fn new(names: impl IntoIterator<Item = String>) -> Tally {
        let collections = names.into_iter().map(|name| CollectionTally {
            name,
            documents_expected: AtomicU64::new(0),
            documents: AtomicU64::new(0),
            tasks: AtomicU64::new(0),
            tasks_done: AtomicU64::new(0),
            planned: AtomicU64::new(0),
        });
        Tally {
            collections: OnceLock::from(collections.collect::<Vec<_>>()),
            bytes: AtomicU64::new(0),
        }
    }

    pub fn collections(&self) -> &[CollectionTally] {
        self.collections.get().map_or(&[], Vec::as_slice)
    }

    /// Documents of the source that were read, and bytes of either side.
    pub fn add(&self, collection: usize, documents: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(tally) = self.collections().get(collection) {
            tally.documents.fetch_add(documents, Ordering::Relaxed);
        }
    }

    fn documents(&self) -> u64 {
        let read = self.collections().iter().map(|one| one.documents.load(Ordering::Relaxed));
        read.sum()
    }

    fn documents_expected(&self) -> u64 {
        let expected = self.collections().iter().map(|one| one.documents_expected.load(Ordering::Relaxed));
        expected.sum()
    }
}
