//! The work of one generation: collections that are to be scanned, then documents that are to be
//! looked at again.
//!
//! ```text
//! records ──► open tasks, then plans ──tasks──► workers ──► counts into the task's record
//! queue   ──► pages ──► chunks of one collection, several at a time ──► ledger
//! ```
//!
//! Whatever fails for good is noted with the reason and stays to be done: a task stays open, a
//! document goes into the next queue. So the next generation tries again, and only what fails in the
//! last one is reported as not verified. A side that is out of reach ends the scan at once, because
//! every other part would wait for it in vain, and the run where no generation follows; it is kept.

use crate::cluster::CollectionSize;
use crate::collections::Records;
use crate::element::Value;
use crate::error::VerifyError;
use crate::lane::Weight;
use crate::namespace::Namespace;
use crate::partition::{Sampling, sampling};
use crate::plan::Plan;
use crate::record::{CollectionRecord, Part, Recheck, TaskRecord, decode, put, queue_prefix};
use crate::record::{task_key, task_prefix};
use crate::report::Counts;
use crate::scan::{Pair, Shared, Task};
use crate::store::Change;
use crate::survey::{Pairing, Survey};
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinSet;

/// Partitions that wait for a worker. When it is full, sampling waits; the limit is far above what
/// workers take on before the server would give up a waiting cursor.
const TASKS_WAITING_MAX: usize = 16 * 1024;
const TASK_ATTEMPTS: u32 = 4;
/// How often a task waits for a side that is out of reach, each time as long as for a first connection.
const UNREACHABLE_MAX: u32 = 2;
const RETRY_DELAY: Duration = Duration::from_millis(250);
const PAGE: usize = 1000;
const QUEUE_PAGE: usize = 10_000;

/// The collections that are compared in this generation, ready to be worked on.
#[derive(Default)]
pub struct Pairs {
    by_name: HashMap<String, Arc<Pair>>,
    /// Those of which nothing is left to scan, by the numbers of their records.
    finished: HashSet<u32>,
}

impl Pairs {
    /// Takes over a survey's pairs; what is known of unchanged ones is kept.
    pub async fn renew(&mut self, shared: &Shared, survey: &Survey, records: &Records) {
        let mut before = std::mem::take(&mut self.by_name);
        // The number of a record that went is given again: what comes under it was never scanned.
        let numbers: HashSet<u32> = records.values().map(|(number, _)| *number).collect();
        self.finished.retain(|number| numbers.contains(number));
        for pairing in &survey.pairs {
            let name = pairing.source.to_string();
            let Some((number, _)) = records.get(&name) else {
                continue;
            };
            let pair = match before.remove(&name) {
                Some(pair) if pair.collection == *number => pair,
                Some(_) | None => Arc::new(open_pair(shared, pairing, *number).await),
            };
            self.by_name.insert(name, pair);
        }
    }

    fn any(&self, name: &str) -> Option<&Arc<Pair>> {
        self.by_name.get(name)
    }

    /// The pair whose documents are looked up by `_id`, which measurements are not.
    fn get(&self, name: &str) -> Option<&Arc<Pair>> {
        self.any(name).filter(|pair| pair.has_ids)
    }
}

/// A collection of which something is left to scan.
struct Open {
    pair: Arc<Pair>,
    record: CollectionRecord,
    pairing: Pairing,
    sampling: Sampling,
}

async fn open_pair(shared: &Shared, pairing: &Pairing, collection: u32) -> Pair {
    // Without a size the collection is one task, which takes longer and proves as much.
    let size = shared
        .source
        .size(&pairing.source)
        .await
        .unwrap_or_default();
    Pair {
        source: pairing.source.clone(),
        destination: pairing.destination.clone(),
        size,
        weight: Weight::new(size.bytes / size.documents.max(1)),
        collection,
        has_ids: pairing.time_field.is_none(),
        shard_key: pairing.shard_key.clone(),
        tally: shared
            .tally
            .open(pairing.source.to_string(), size.documents),
    }
}

impl Shared {
    /// Plans and works at the same time, until every open task was tried. Says whether any was
    /// tried more than once.
    pub async fn scan(
        self: &Arc<Self>,
        survey: &Survey,
        records: &Records,
        pairs: &mut Pairs,
        is_last: bool,
    ) -> Result<bool, VerifyError> {
        let open: Vec<Open> = survey
            .pairs
            .iter()
            // What cannot be followed by changes is compared when there are no more.
            .filter(|pairing| is_last || pairing.time_field.is_none())
            .filter_map(|pairing| {
                let (number, record) = records.get(&pairing.source.to_string())?;
                let pair = pairs.any(&pairing.source.to_string())?.clone();
                (!pairs.finished.contains(number)).then(|| Open {
                    sampling: self.sampling(&pair.size, pairing.sorted_alike),
                    pair,
                    record: record.clone(),
                    pairing: pairing.clone(),
                })
            })
            .collect();
        if open.is_empty() {
            return Ok(false);
        }
        let numbers: Vec<u32> = open.iter().map(|one| one.pair.collection).collect();
        let (tasks, waiting) = mpsc::channel(TASKS_WAITING_MAX);
        let waiting = Arc::new(AsyncMutex::new(waiting));
        let mut running = JoinSet::new();
        for _ in 0..self.settings.workers {
            running.spawn(work(self.clone(), waiting.clone()));
        }
        // The workers hold it: were they all gone, planning would end as well.
        drop(waiting);
        running.spawn(feed(self.clone(), open, tasks));
        let mut again = false;
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Err(VerifyError::Interrupted(why))) if !is_last => {
                    // The rest is aborted with the set; the next generation tries again.
                    self.status.failed("everything".to_owned(), &why);
                    return Ok(again);
                }
                Ok(worked) => again |= worked?,
                Err(panicked) => self.status.failed(
                    "everything".to_owned(),
                    &VerifyError::settings(format!(
                        "a worker failed, which is a bug of the verifier: {panicked}"
                    )),
                ),
            }
        }
        for number in numbers {
            if !self.has_open_tasks(number).await? {
                pairs.finished.insert(number);
            }
        }
        Ok(again)
    }

    fn sampling(&self, size: &CollectionSize, sorted_alike: bool) -> Sampling {
        match sorted_alike {
            true => sampling(
                size.documents,
                size.bytes,
                self.settings.partition_bytes,
                self.source.has_sample_rate,
            ),
            // A bound would cut the two sides at different places.
            false => Sampling::None,
        }
    }

    async fn has_open_tasks(&self, collection: u32) -> Result<bool, VerifyError> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let prefix = task_prefix(collection);
            let page = self.store.page(&prefix, after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(false);
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                if decode::<TaskRecord>(bytes)?.counts.is_none() {
                    return Ok(true);
                }
            }
        }
    }

    /// Hands out the open tasks of a collection; returns the last of all, and the next number.
    async fn hand_out(
        &self,
        pair: &Arc<Pair>,
        tasks: &mpsc::Sender<Task>,
    ) -> Result<(Option<Part>, u32), VerifyError> {
        let mut end = None;
        let mut number = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let prefix = task_prefix(pair.collection);
            let page = self.store.page(&prefix, after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok((end, number));
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                let record: TaskRecord = decode(bytes)?;
                end = Some(record.part.clone());
                if record.counts.is_none() {
                    pair.tally.task_opened();
                    self.status.tasks_open.fetch_add(1, Ordering::Relaxed);
                    let task = Task {
                        pair: pair.clone(),
                        number,
                        part: record.part,
                    };
                    // As in `Plan`: closed only when all workers are gone.
                    let _ = tasks.send(task).await;
                }
                number += 1;
            }
        }
    }

    /// Works off the queue of a generation.
    pub async fn work_off(
        self: &Arc<Self>,
        generation: u64,
        survey: &Survey,
        pairs: &Pairs,
        is_last: bool,
    ) -> Result<(), VerifyError> {
        // Nobody adds to a closed queue, so that what was passed over stays empty.
        let mut after: Option<Vec<u8>> = None;
        loop {
            let prefix = queue_prefix(generation);
            let page = self
                .store
                .page(&prefix, after.as_deref(), QUEUE_PAGE)
                .await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            let mut by_name: BTreeMap<String, Vec<(Vec<u8>, Recheck)>> = BTreeMap::new();
            for (key, bytes) in page {
                let recheck: Recheck = decode(&bytes)?;
                let list = by_name.entry(recheck.namespace.clone()).or_default();
                list.push((key, recheck));
            }
            let mut chunks = Vec::new();
            for (name, mut list) in by_name {
                let pair = pairs.get(&name).cloned();
                let at_once = pair.as_deref().map_or(PAGE, Shared::looked_up_at_once);
                while !list.is_empty() {
                    let rest = list.split_off(list.len().min(at_once));
                    let chunk = std::mem::replace(&mut list, rest);
                    chunks.push((pair.clone(), chunk));
                }
            }
            let mut looking = futures_util::stream::iter(chunks)
                .map(|(pair, chunk)| async move {
                    match pair {
                        Some(pair) => self.look_at_chunk(&pair, chunk, is_last).await,
                        None => self.put_aside(survey, chunk).await,
                    }
                })
                .buffer_unordered(self.settings.workers);
            let mut done = Vec::new();
            while let Some(ended) = looking.next().await {
                done.extend(ended?);
            }
            self.cover().await?;
            let deletes = done.into_iter().map(Change::Delete);
            self.store.write(deletes.collect()).await?;
        }
    }

    /// Looks at documents of one collection; returns the keys of what is done.
    async fn look_at_chunk(
        &self,
        pair: &Pair,
        chunk: Vec<(Vec<u8>, Recheck)>,
        is_last: bool,
    ) -> Result<Vec<Vec<u8>>, VerifyError> {
        // One that changed and differed is there twice.
        let mut changed: HashMap<&Value, Option<i64>> = HashMap::new();
        for (_, one) in &chunk {
            let known = changed.entry(&one.id).or_default();
            *known = one.changed_ms.max(*known);
        }
        let ids: Vec<Value> = changed.keys().map(|id| (*id).clone()).collect();
        let count = ids.len() as u64;
        match self.look_with_retries(pair, &ids).await {
            Ok(looked) => {
                let judged: Vec<_> = looked
                    .into_iter()
                    .map(|mut looked| {
                        looked.judged.changed_ms =
                            changed.get(&looked.judged.id).copied().flatten();
                        looked.judged
                    })
                    .collect();
                self.note(pair, &judged).await?;
                self.status
                    .documents_rechecked
                    .fetch_add(count, Ordering::Relaxed);
            }
            Err(error @ VerifyError::State { .. }) => return Err(error),
            // The chunk stays in its queue.
            Err(error @ VerifyError::Unreachable { .. }) if is_last => {
                return Err(VerifyError::Interrupted(Box::new(error)));
            }
            Err(error) => {
                self.status.failed(pair.source.to_string(), &error);
                let again: Vec<Recheck> = chunk.iter().map(|(_, one)| one.clone()).collect();
                self.queue.add(&self.store, &again, Vec::new()).await?;
            }
        }
        Ok(keys(chunk))
    }

    /// Documents of collections that are not compared. If the survey does not know the name at
    /// all, it may be too old: the next one decides.
    async fn put_aside(
        &self,
        survey: &Survey,
        chunk: Vec<(Vec<u8>, Recheck)>,
    ) -> Result<Vec<Vec<u8>>, VerifyError> {
        let known = |one: &Recheck| {
            let name = one.namespace.split_once('.');
            name.is_some_and(|(database, collection)| {
                survey.knows(&Namespace::new(database, collection))
            })
        };
        let unknown: Vec<Recheck> = chunk
            .iter()
            .filter(|(_, one)| !known(one) && !survey.is_fresh)
            .map(|(_, one)| one.clone())
            .collect();
        if !unknown.is_empty() {
            self.queue.add(&self.store, &unknown, Vec::new()).await?;
            self.status.definitions_have_changed();
        }
        Ok(keys(chunk))
    }
}

fn keys(chunk: Vec<(Vec<u8>, Recheck)>) -> Vec<Vec<u8>> {
    chunk.into_iter().map(|(key, _)| key).collect()
}

async fn feed(
    shared: Arc<Shared>,
    open: Vec<Open>,
    tasks: mpsc::Sender<Task>,
) -> Result<bool, VerifyError> {
    for one in open {
        let pair = one.pair;
        let (last, next_task) = shared.hand_out(&pair, &tasks).await?;
        if !one.record.planned {
            let plan = Plan {
                pair: pair.clone(),
                record: one.record,
                sampling: one.sampling,
                is_clustered: one.pairing.is_clustered,
                time_field: one.pairing.time_field,
                last,
                next_task,
            };
            plan.run(&shared, &tasks).await?;
        }
        pair.tally.task_closed();
    }
    Ok(false)
}

async fn work(
    shared: Arc<Shared>,
    waiting: Arc<AsyncMutex<mpsc::Receiver<Task>>>,
) -> Result<bool, VerifyError> {
    let mut again = false;
    loop {
        let next = waiting.lock().await.recv().await;
        let Some(task) = next else { return Ok(again) };
        let ended = run_with_retries(&shared, &task, &mut again).await;
        task.pair.tally.task_closed();
        match ended {
            Ok(counts) => {
                let record = TaskRecord {
                    part: task.part.clone(),
                    counts: Some(counts),
                };
                let key = task_key(task.pair.collection, task.number);
                // What is kept as done must have seen nothing that can be put back unnoticed.
                shared.cover().await?;
                shared.store.write(vec![put(key, &record)?]).await?;
                shared.status.tasks_done.fetch_add(1, Ordering::Relaxed);
            }
            Err(error @ VerifyError::State { .. }) => return Err(error),
            Err(error @ VerifyError::Unreachable { .. }) => {
                return Err(VerifyError::Interrupted(Box::new(error)));
            }
            Err(error) => shared.status.failed(task.pair.source.to_string(), &error),
        }
    }
}

async fn run_with_retries(
    shared: &Arc<Shared>,
    task: &Task,
    again: &mut bool,
) -> Result<Counts, VerifyError> {
    let mut delay = RETRY_DELAY;
    let mut unreachable = 0;
    for _ in 1..TASK_ATTEMPTS {
        match task.run(shared).await {
            Err(error) if error.is_transient() => {
                unreachable += u32::from(matches!(error, VerifyError::Unreachable { .. }));
                if unreachable == UNREACHABLE_MAX {
                    return Err(error);
                }
                *again = true;
                tokio::time::sleep(delay).await;
                delay *= 4;
            }
            ended => return ended,
        }
    }
    task.run(shared).await
}
