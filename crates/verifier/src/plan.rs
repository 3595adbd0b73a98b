//! Cutting a collection into tasks, while the first of them are already being worked on.
//!
//! The source is sampled in one pass along the index on `_id`; each sampled value ends a partition,
//! which is kept in the store and handed to the workers at once. Sampling only makes tasks smaller:
//! if it fails, whatever is left becomes one partition, and nothing is skipped. A plan that was cut
//! off is continued from the end of its last task.

use crate::error::VerifyError;
use crate::merge::id_of;
use crate::partition::{Cutter, Partition, Sampling};
use crate::range_query::partition_filter;
use crate::record::{CollectionRecord, Part, TaskRecord, collection_key, put, task_key};
use crate::scan::{Pair, Shared, Task};
use crate::settings::Partitioning;
use bson::{Document, RawDocumentBuf, doc};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// A collection to be cut.
pub struct Plan {
    pub pair: Arc<Pair>,
    pub record: CollectionRecord,
    pub sampling: Sampling,
    pub is_clustered: bool,
    pub time_field: Option<String>,
    /// The last of the tasks so far.
    pub last: Option<Part>,
    pub next_task: u32,
}

impl Plan {
    /// Keeps the collection's tasks and hands them to the workers, as they come.
    pub async fn run(
        mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
    ) -> Result<(), VerifyError> {
        match (self.time_field.clone(), shared.settings.partitioning) {
            (Some(time_field), _) => {
                self.emit(shared, tasks, Part::Series { time_field })
                    .await?;
            }
            (None, Partitioning::Id) => self.run_by_id(shared, tasks).await?,
            (None, Partitioning::Natural) => self.run_natural(shared, tasks).await?,
        }
        self.record.planned = true;
        let planned = put(collection_key(self.pair.collection), &self.record)?;
        shared.store.write(vec![planned]).await
    }

    pub async fn run_by_id(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
    ) -> Result<(), VerifyError> {
        let lower = match self.last.take() {
            Some(Part::Range { upper, .. }) => upper,
            Some(_) | None => None,
        };
        let mut cutter = Cutter::from(lower);
        // Another failure makes the last partition larger, and shows there if it lasts.
        if let Err(error @ VerifyError::State { .. }) =
            self.sample(shared, tasks, &mut cutter).await
        {
            return Err(error);
        }
        self.emit(shared, tasks, range(cutter.finish())).await
    }

    async fn sample(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
        cutter: &mut Cutter,
    ) -> Result<(), VerifyError> {
        let source = &shared.source;
        let rest = partition_filter(&cutter.rest(), source.across_types);
        let rest = RawDocumentBuf::from_bytes(rest)
            .and_then(|filter| Document::try_from(&*filter))
            .map_err(|_| source.malformed("sample documents"))?;
        let in_rest = doc! {"$match": rest};
        let only_id = doc! {"$project": {"_id": 1}};
        let in_order = doc! {"$sort": {"_id": 1}};
        let stages = match self.sampling {
            Sampling::None => return Ok(()),
            // Sorted first, which the index does, so that the first bounds come at once.
            Sampling::Rate(rate) => vec![
                in_rest,
                in_order,
                doc! {"$match": {"$sampleRate": rate}},
                only_id,
            ],
            // Of a part that is left, too many are taken: smaller partitions, nothing worse.
            Sampling::Count(count) => {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                vec![
                    in_rest,
                    doc! {"$sample": {"size": count}},
                    only_id,
                    in_order,
                ]
            }
        };
        let mut sampled = source.aggregate(&self.pair.source, &stages).await?;
        while let Some(batch) = sampled.next().await? {
            for document in batch.documents() {
                let id = id_of(document).map_err(|_| source.malformed("sample documents"))?;
                if let Some(partition) = cutter.cut(id.to_value()) {
                    self.emit(shared, tasks, range(partition)).await?;
                }
            }
        }
        Ok(())
    }

    /// Keeps a task, and hands it out.
    pub async fn emit(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
        part: Part,
    ) -> Result<(), VerifyError> {
        let number = self.next_task;
        self.next_task += 1;
        let record = TaskRecord {
            part: part.clone(),
            counts: None,
        };
        let key = task_key(self.pair.collection, number);
        shared.store.write(vec![put(key, &record)?]).await?;
        self.pair.tally.task_opened();
        shared.status.tasks_open.fetch_add(1, Ordering::Relaxed);
        let pair = self.pair.clone();
        let task = Task { pair, number, part };
        // Closed only when all workers are gone, which is reported where they end.
        let _ = tasks.send(task).await;
        Ok(())
    }
}

fn range(partition: Partition) -> Part {
    Part::Range {
        lower: partition.lower().cloned(),
        upper: partition.upper().cloned(),
    }
}
