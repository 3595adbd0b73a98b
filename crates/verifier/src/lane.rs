//! A bound to the memory that large documents take, over all workers.
//!
//! Batches are sized by the average document, up to 2 MB. Where documents are large a batch is up to
//! 16 MB, and a task holds six at most: for each side one in the comparator, one in its queue, and a
//! copy while the driver receives one. One such task fits, four do not. So whoever reads heavy
//! batches reads in the *lane*, where one task is at a time; all others go on beside it.
//!
//! ```text
//! task of light batches ─────────────────────────────► reads on
//! heavy by its average, or by a batch that was seen ──► waits for the lane, keeps it to its end
//! ```
//!
//! **No deadlock.** A task asks for the lane once, for both its readers together ([`TaskLane`]), so
//! neither waits for what the other holds. Whoever has it waits for the servers only, never for
//! another task: tasks share nothing else that is waited for, and batches that others hold while
//! they wait are not taken from a common stock. So it ends, or is dropped, and gives the lane back.
//! Looks by `_id` have a lane of their own, because a task makes them while it has this one; a look
//! asks for nothing more once it is in, so the order is always task, then look.
//!
//! What is not known beforehand is read once: a task meets its first heavy batch outside the lane.

use crate::merge::Batch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// Batches from here on are heavy: twice what they are meant to hold.
const HEAVY_BATCH_BYTES: u64 = 4 * 1024 * 1024;

/// The lanes of a run.
pub struct Lanes {
    tasks: Arc<Semaphore>,
    looks: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            tasks: Arc::new(Semaphore::new(1)),
            looks: Arc::new(Semaphore::new(1)),
        }
    }
}

/// The largest that was seen of a collection.
pub struct Weight {
    batch_bytes: AtomicU64,
    document_bytes: AtomicU64,
}

impl Weight {
    pub fn new(average_document_bytes: u64) -> Weight {
        Weight {
            batch_bytes: AtomicU64::new(average_document_bytes),
            document_bytes: AtomicU64::new(average_document_bytes),
        }
    }

    pub fn saw(&self, batch: &Batch) {
        let largest = batch.documents().map(<[u8]>::len).max().unwrap_or(0);
        self.batch_bytes
            .fetch_max(batch.document_bytes(), Ordering::Relaxed);
        self.document_bytes
            .fetch_max(largest as u64, Ordering::Relaxed);
    }

    /// How many documents can be held at once, were they all as large as the largest.
    pub fn held_at_once(&self) -> u64 {
        let largest = self.document_bytes.load(Ordering::Relaxed).max(1);
        (HEAVY_BATCH_BYTES / largest).max(1)
    }

    fn is_heavy(&self) -> bool {
        self.batch_bytes.load(Ordering::Relaxed) >= HEAVY_BATCH_BYTES
    }
}

/// A task's place in the lane, which both its readers share.
#[derive(Clone)]
pub struct TaskLane {
    lane: Arc<Semaphore>,
    taken: Arc<OnceCell<OwnedSemaphorePermit>>,
}

impl TaskLane {
    /// Waits for the lane if what is read next is likely to be heavy.
    pub async fn enter_if_heavy(&self, weight: &Weight) {
        if weight.is_heavy() {
            self.taken.get_or_init(|| enter(&self.lane)).await;
        }
    }
}

impl Lanes {
    pub fn for_task(&self) -> TaskLane {
        TaskLane {
            lane: self.tasks.clone(),
            taken: Arc::default(),
        }
    }

    /// Waits for the lane of looks if documents are large; the value is held during the look.
    pub async fn enter_look_if_heavy(&self, weight: &Weight) -> Option<OwnedSemaphorePermit> {
        match weight.is_heavy() {
            true => Some(enter(&self.looks).await),
            false => None,
        }
    }
}

async fn enter(lane: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let entered = lane.clone().acquire_owned().await;
    entered.expect("lanes are never closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn one_heavy_task_at_a_time_and_light_ones_beside_it() {
        let (heavy, light) = (Weight::new(HEAVY_BATCH_BYTES), Weight::new(100));
        let lanes = Lanes::default();
        let (first, second) = (lanes.for_task(), lanes.for_task());
        let enters = |lane: &TaskLane, weight| lane.enter_if_heavy(weight).now_or_never().is_some();
        assert!(enters(&first, &heavy));
        assert!(enters(&first.clone(), &heavy), "its other reader is in");
        assert!(!enters(&second, &heavy));
        assert!(enters(&second, &light));
        // A task that has the lane can still look.
        let look = lanes.enter_look_if_heavy(&heavy).now_or_never();
        assert!(look.flatten().is_some());
        drop(first);
        assert!(enters(&second, &heavy));
    }

    #[test]
    fn a_collection_is_as_heavy_as_the_heaviest_batch() {
        let weight = Weight::new(100);
        weight.saw(&Batch::of_bytes(vec![0; 300], vec![0..100, 100..300]));
        assert!(!weight.is_heavy());
        assert_eq!(weight.held_at_once(), HEAVY_BATCH_BYTES / 200);
        let bytes = HEAVY_BATCH_BYTES as usize;
        weight.saw(&Batch::of_bytes(
            vec![0; bytes],
            std::iter::once(0..bytes).collect(),
        ));
        assert!(weight.is_heavy());
        assert_eq!(weight.held_at_once(), 1);
    }
}
