//! Cutting a collection into tasks, while the first of them are already being worked on.
//!
//! The source is sampled in one pass along the index on `_id`; each sampled value ends a partition,
//! which is handed to the workers at once. Sampling only makes tasks smaller: if it fails, whatever
//! is left becomes one partition, and nothing is skipped.

use crate::error::VerifyError;
use crate::merge::id_of;
use crate::partition::{Cutter, Partition, Sampling};
use crate::scan::{Pair, Shared, Task};
use bson::doc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A collection to be cut.
pub struct Planned {
    pub pair: Arc<Pair>,
    pub sampling: Sampling,
}

impl Planned {
    /// Hands the collection's tasks to the workers, as they come.
    pub async fn run(&self, shared: &Shared, tasks: &mpsc::Sender<Task>) {
        let mut cutter = Cutter::new();
        // A failure makes the last partition larger, and shows there if it lasts.
        let _ = self.sample(shared, tasks, &mut cutter).await;
        self.emit(shared, tasks, cutter.finish()).await;
        shared.tally.task_closed(self.pair.position);
    }

    async fn sample(
        &self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
        cutter: &mut Cutter,
    ) -> Result<(), VerifyError> {
        let only_id = doc! {"$project": {"_id": 1}};
        let in_order = doc! {"$sort": {"_id": 1}};
        let stages = match self.sampling {
            Sampling::None => return Ok(()),
            // Sorted first, which the index does, so that the first bounds come at once.
            Sampling::Rate(rate) => vec![in_order, doc! {"$match": {"$sampleRate": rate}}, only_id],
            Sampling::Count(count) => {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                vec![doc! {"$sample": {"size": count}}, only_id, in_order]
            }
        };
        let source = &shared.source;
        let mut sampled = source.aggregate(&self.pair.source, &stages).await?;
        while let Some(batch) = sampled.next().await? {
            for document in batch.documents() {
                let id = id_of(document).map_err(|_| source.malformed("sample documents"))?;
                if let Some(partition) = cutter.cut(id.to_value()) {
                    self.emit(shared, tasks, partition).await;
                }
            }
        }
        Ok(())
    }

    async fn emit(&self, shared: &Shared, tasks: &mpsc::Sender<Task>, partition: Partition) {
        shared.tally.task_opened(self.pair.position);
        let pair = self.pair.clone();
        // Closed only when all workers are gone, which is reported where they end.
        let _ = tasks.send(Task { pair, partition }).await;
    }
}
