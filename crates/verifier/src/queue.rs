//! The documents that are to be looked at again, by generation.
//!
//! ```text
//! generation  g                 g + 1
//!             being worked off  open: changes and mismatches go here
//! ```
//!
//! Closing the open queue waits for everybody who is adding to it, and nobody adds to a closed one:
//! whoever works off a queue until it is empty has seen everything that was ever put into it.

use crate::error::VerifyError;
use crate::record::{Recheck, put, queue_key};
use crate::store::{Change, Store};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::RwLock;

pub struct Queue {
    /// The generation whose queue is open.
    open: RwLock<u64>,
    /// What was added to it, as far as this process knows: a hint that there is work.
    added: AtomicU64,
}

impl Queue {
    /// The queues of a run that is in this generation.
    pub fn new(generation: u64) -> Queue {
        Queue {
            open: RwLock::new(generation + 1),
            // What an earlier process added is not known, but may be there.
            added: AtomicU64::new(u64::from(generation > 0)),
        }
    }

    /// Adds documents to the open queue; `then` is written behind them.
    pub async fn add(
        &self,
        store: &Store,
        rechecks: &[Recheck],
        then: Vec<Change>,
    ) -> Result<(), VerifyError> {
        let open = self.open.read().await;
        let mut changes = Vec::with_capacity(rechecks.len() + then.len());
        for recheck in rechecks {
            let key = queue_key(*open, recheck);
            changes.push(put(key, recheck)?);
        }
        changes.extend(then);
        store.write(changes).await?;
        self.added
            .fetch_add(rechecks.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Closes the open queue, which is the next to be worked off, and opens another.
    pub async fn close(&self) -> u64 {
        let mut open = self.open.write().await;
        let closed = *open;
        *open += 1;
        self.added.store(0, Ordering::Relaxed);
        closed
    }

    pub fn has_work(&self) -> bool {
        self.added.load(Ordering::Relaxed) > 0
    }
}
