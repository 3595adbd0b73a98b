//! One task: the documents of a partition, compared, and what differed looked at again.
//!
//! ```text
//! source ──► reader ─┐ one batch ahead each
//!                    ├─► Merge ──► suspects ──► second look by _id ──► ledger, queue
//! dest. ───► reader ─┘
//! ```
//!
//! A task that fails is run again from the start. Mismatches are noted as they are found, which can
//! be done twice; the counts are handed out when the task ends. Its queues hold one batch, and a
//! reader waits with reading while its queue is full.

use crate::cluster::{Cluster, CollectionSize};
use crate::digest::FastMap;
use crate::element::{Malformed, Value, ValueRef};
use crate::error::VerifyError;
use crate::history::Historians;
use crate::lane::{Lanes, TaskLane, Weight};
use crate::ledger::{Judged, Ledger};
use crate::merge::{Batch, Merge, Need, Side, id_of};
use crate::namespace::Namespace;
use crate::natural::Nodes;
use crate::pace::Pace;
use crate::partition::Partition;
use crate::progress::{CollectionTally, Tally};
use crate::queue::Queue;
use crate::range_query::{both, ids_filter, partition_filter};
use crate::reading::{Documents, Reading};
use crate::record::{Part, Recheck};
use crate::report::{Counts, MismatchKind};
use crate::settings::{Settings, Writes};
use crate::status::Status;
use crate::store::Store;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Suspects that are gathered before they are looked at again.
const SUSPECTS_MAX: usize = 10_000;

/// What everybody who works on a run shares.
pub struct Shared {
    pub source: Cluster,
    pub destination: Cluster,
    pub settings: Settings,
    /// What documents are hashed with, if hashes are compared.
    pub hash: Option<bson::Document>,
    pub pace: Pace,
    pub tally: Tally,
    pub store: Store,
    pub ledger: Ledger,
    pub queue: Queue,
    pub status: Status,
    /// When this process began to work on it.
    pub started: Instant,
    pub nodes: Nodes,
    pub lanes: Lanes,
    pub historians: Historians,
}

/// A collection on both sides.
pub struct Pair {
    pub source: Namespace,
    pub destination: Namespace,
    /// Of the source; what batches are sized by.
    pub size: CollectionSize,
    pub weight: Weight,
    /// The number of its record.
    pub collection: u32,
    /// Whether its documents can be looked up by `_id`.
    pub has_ids: bool,
    /// The fields of its shard key, on the first side that has one and tells it.
    pub shard_key: Vec<String>,
    pub tally: Arc<CollectionTally>,
}

/// A part of a collection, to be compared.
pub struct Task {
    pub pair: Arc<Pair>,
    pub number: u32,
    pub part: Part,
}

/// What a reader hands over: batches, and at the very end `None`. A queue that closes before that
/// belongs to a reader that broke off, which must never pass for the end of a collection.
type Read = Result<Option<Batch>, VerifyError>;

/// Something that runs beside; it ends with this value.
pub struct AbortOnDrop(pub JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Reader {
    batches: mpsc::Receiver<Read>,
    _running: AbortOnDrop,
}

impl Shared {
    pub fn side(&self, side: Side) -> &Cluster {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    /// Keeps what a look showed, and has what differs looked at again if it may still change.
    pub async fn note(&self, pair: &Pair, judged: &[Judged]) -> Result<(), VerifyError> {
        let namespace = pair.source.to_string();
        self.ledger.note(&self.store, &namespace, judged).await?;
        if self.settings.writes == Writes::Off {
            return Ok(());
        }
        let differing = judged.iter().filter(|one| one.kind.is_some());
        let rechecks: Vec<Recheck> = differing
            .map(|one| Recheck {
                namespace: namespace.clone(),
                id: one.id.clone(),
                changed_ms: one.changed_ms,
            })
            .collect();
        self.queue.add(&self.store, &rechecks, Vec::new()).await
    }
}

impl Pair {
    pub fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }
}

/// What a look at an `_id` showed that is there on both sides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Same,
    Different,
}

/// A task under way.
pub struct Running<'a> {
    pub task: &'a Task,
    pub shared: &'a Arc<Shared>,
    suspects: Vec<Value>,
    /// Those that are counted as equal already, and whose `_id` somebody has twice.
    repeated: Vec<Value>,
    /// Those that were found on both sides: where the order of two streams is not the one we
    /// think, a document can be a suspect once from each.
    seen: HashMap<u64, Seen>,
    pub lane: TaskLane,
    pub counts: Counts,
}

impl Task {
    /// Compares the part.
    pub async fn run(&self, shared: &Arc<Shared>) -> Result<Counts, VerifyError> {
        let mut running = Running {
            task: self,
            shared,
            suspects: Vec::new(),
            repeated: Vec::new(),
            seen: HashMap::new(),
            lane: shared.lanes.for_task(),
            counts: Counts::default(),
        };
        let whole = match &shared.hash {
            Some(hash) => Reading::Hashes(hash.clone()),
            None => Reading::Whole,
        };
        match &self.part {
            Part::Range { lower, upper } => {
                let partition = Partition::between(lower.clone(), upper.clone());
                running.compare(&partition, whole).await?;
            }
            Part::Ids => running.compare(&Partition::whole(), Reading::Ids).await?,
            Part::Natural { .. } | Part::WholeNatural => running.compare_natural().await?,
            Part::Series { time_field } => running.compare_series(time_field).await?,
        }
        Ok(running.counts)
    }
}

impl Running<'_> {
    /// Compares what lies between two `_id`s, side by side.
    async fn compare(
        &mut self,
        partition: &Partition,
        reading: Reading,
    ) -> Result<(), VerifyError> {
        let mut source = self.start_reader(Side::Source, partition, &reading);
        let mut destination = self.start_reader(Side::Destination, partition, &reading);
        let pair = self.task.pair.clone();
        let mut merge = Merge::new(self.shared.settings.comparison);
        loop {
            let need = merge
                .advance(&mut self.suspects)
                .map_err(|Malformed| self.malformed())?;
            if self.suspects.len() >= SUSPECTS_MAX {
                self.look_again().await?;
            }
            let (side, reader) = match need {
                Need::Nothing => break,
                Need::Batch(Side::Source) => (Side::Source, &mut source),
                Need::Batch(Side::Destination) => (Side::Destination, &mut destination),
            };
            let batch = match reader.batches.recv().await {
                Some(read) => read?,
                None => return Err(self.shared.side(side).broke_off(pair.namespace(side))),
            };
            match (&batch, &reading) {
                (Some(batch), Reading::Whole | Reading::Hashes(_)) => self.count(side, batch),
                // The documents themselves are counted where they are compared.
                (Some(_), Reading::Ids) | (None, _) => {}
            }
            merge.feed(side, batch);
        }
        self.look_again().await?;
        if reading != Reading::Ids {
            self.counts.equal += merge.settled();
        }
        Ok(())
    }

    fn start_reader(&self, side: Side, partition: &Partition, reading: &Reading) -> Reader {
        let cluster = self.shared.side(side).clone();
        let pair = self.task.pair.clone();
        let reading = reading.clone();
        let filter = partition_filter(partition, cluster.across_types);
        let filter = both(filter, self.shared.settings.filter.as_deref());
        let shared = self.shared.clone();
        let lane = self.lane.clone();
        let (sender, batches) = mpsc::channel(1);
        let running = tokio::spawn(async move {
            let batch_documents = pair.size.batch_documents();
            // `_id`s and hashes are small, whatever they stand for.
            let lane = (reading == Reading::Whole).then_some((&lane, &pair.weight));
            if let Some((lane, weight)) = lane {
                lane.enter_if_heavy(weight).await;
            }
            let opened = cluster
                .find_sorted(pair.namespace(side), &filter, batch_documents, &reading)
                .await;
            match opened {
                Ok(documents) => read_all(documents, &shared.pace, &sender, lane).await,
                // Nobody listens any more if the task has ended; then nobody need know.
                Err(error) => drop(sender.send(Err(error)).await),
            }
        });
        Reader {
            batches,
            _running: AbortOnDrop(running),
        }
    }

    /// Waits as long as the rate limit wants it for a batch.
    pub async fn pay(&self, batch: &Batch) {
        let bytes = batch.document_bytes();
        tokio::time::sleep(self.shared.pace.charge(bytes, Instant::now())).await;
    }

    pub fn count(&mut self, side: Side, batch: &Batch) {
        let (documents, bytes) = (batch.len() as u64, batch.document_bytes());
        let (tally, pair) = (&self.shared.tally, &self.task.pair);
        match side {
            Side::Source => {
                self.counts.source_documents += documents;
                self.counts.source_bytes += bytes;
                tally.add(&pair.tally, documents, bytes);
            }
            Side::Destination => {
                self.counts.destination_documents += documents;
                self.counts.destination_bytes += bytes;
                tally.add(&pair.tally, 0, bytes);
            }
        }
    }

    /// Compares documents of the source with what the destination has under their `_id`s.
    ///
    /// The destination's documents come in any order and are compared as they come. One that comes
    /// twice, or does not come, or differs, makes its `_id` a suspect.
    pub async fn compare_fetched(&mut self, batch: &Batch) -> Result<(), VerifyError> {
        let pair = self.task.pair.clone();
        let documents: Vec<&[u8]> = batch.documents().collect();
        for chunk in documents.chunks(Shared::looked_up_at_once(&pair)) {
            let ids = chunk.iter().map(|document| id_of(document));
            let ids: Vec<ValueRef<'_>> = ids
                .collect::<Result<_, _>>()
                .map_err(|Malformed| self.malformed())?;
            let mut fetched_with = vec![0; ids.len()];
            let mut same = vec![false; ids.len()];
            let mut places: FastMap<ValueRef<'_>, usize> = FastMap::default();
            places.reserve(ids.len());
            // Where the same `_id` stood before, as it can only on another shard.
            let mut before = vec![None; ids.len()];
            for (place, id) in ids.iter().enumerate() {
                before[place] = places.insert(*id, place);
            }
            let places_of = |last: usize| std::iter::successors(Some(last), |at| before[*at]);
            let filter = both(ids_filter(&ids), self.shared.settings.filter.as_deref());
            let destination = &self.shared.destination;
            let mut fetched = destination
                .find(&pair.destination, &filter, ids.len())
                .await?;
            while let Some(others) = fetched.next().await? {
                self.pay(&others).await;
                for other in others.documents() {
                    let id = id_of(other).map_err(|Malformed| self.malformed())?;
                    // Where types compare equal, more is found than was asked for.
                    let Some(&last) = places.get(&id) else {
                        continue;
                    };
                    // Of the destination's documents those count that have counterparts here: others, on
                    // other shards of the source, count there.
                    if fetched_with[last] < places_of(last).count() {
                        self.counts.destination_documents += 1;
                        self.counts.destination_bytes += other.len() as u64;
                    }
                    let comparison = self.shared.settings.comparison;
                    let mut paired = false;
                    for place in places_of(last) {
                        fetched_with[place] += 1;
                        if !paired && !same[place] {
                            paired = comparison
                                .same_document(chunk[place], other)
                                .map_err(|Malformed| self.malformed())?;
                            same[place] = paired;
                        }
                    }
                }
            }
            for (place, id) in ids.iter().enumerate() {
                self.counts.equal += u64::from(same[place]);
                let is_single =
                    fetched_with[place] == 1 && places[id] == place && before[place].is_none();
                if !same[place] {
                    self.suspects.push(id.to_value());
                } else if !is_single {
                    // It counts already; what is to be said of its `_id` is not known.
                    self.repeated.push(id.to_value());
                }
            }
            if self.suspects.len() + self.repeated.len() >= SUSPECTS_MAX {
                self.look_again().await?;
            }
        }
        Ok(())
    }

    /// Looks suspects up on both sides, and notes those that differ.
    pub async fn look_again(&mut self) -> Result<(), VerifyError> {
        // By record id each of them is a document of the source; by `_id` it stands for all that have it.
        let by_record = matches!(self.task.part, Part::Natural { .. } | Part::WholeNatural);
        let mut documents: HashMap<Value, u64> = HashMap::with_capacity(self.suspects.len());
        let (seen, equal) = (&mut self.seen, &mut self.counts.equal);
        self.suspects.retain(|id| match seen.get(&hash(id)) {
            Some(known) => {
                *equal += u64::from(by_record && *known == Seen::Same);
                false
            }
            None => {
                let count = documents.entry(id.clone()).or_default();
                *count += 1;
                *count == 1
            }
        });
        for id in std::mem::take(&mut self.repeated) {
            if !seen.contains_key(&hash(&id)) && !documents.contains_key(&id) {
                documents.insert(id.clone(), 0);
                self.suspects.push(id);
            }
        }
        self.counts.rechecked += self.suspects.len() as u64;
        let pair = &self.task.pair;
        for ids in self.suspects.chunks(Shared::looked_up_at_once(pair)) {
            let mut differing = Vec::new();
            for looked in self.shared.look(pair, ids).await? {
                // By record id the pass over the `_id`s counts them, once each.
                if !by_record && looked.on_source.max(looked.on_destination) > 1 {
                    self.counts.duplicates += 1;
                }
                let here = documents.get(&looked.judged.id).copied().unwrap_or(0);
                self.counts.equal += match (&self.task.part, looked.judged.kind) {
                    (Part::Ids, _) => 0,
                    (_, None) if by_record => here.min(looked.on_source),
                    (_, Some(_)) if by_record => 0,
                    (_, _) => looked.pairs,
                };
                match looked.judged.kind {
                    None => {
                        seen.insert(hash(&looked.judged.id), Seen::Same);
                        continue;
                    }
                    Some(MismatchKind::Content | MismatchKind::Repeated) => {
                        seen.insert(hash(&looked.judged.id), Seen::Different);
                    }
                    Some(MismatchKind::Missing | MismatchKind::Extra) => {}
                }
                differing.push(looked.judged);
            }
            self.shared.note(pair, &differing).await?;
        }
        self.suspects.clear();
        Ok(())
    }

    /// Either side may have sent it: what is compared was already mixed.
    fn malformed(&self) -> VerifyError {
        self.shared
            .source
            .malformed(&format!("read documents of {}", self.task.pair.source))
    }
}

async fn read_all(
    mut documents: Documents,
    pace: &Pace,
    sender: &mpsc::Sender<Read>,
    lane: Option<(&TaskLane, &Weight)>,
) {
    // Only when there is room for it: a batch that waited beside its queue would be one more to hold.
    // A closed queue means that the task has ended.
    while let Ok(room) = sender.reserve().await {
        let read = documents.next().await;
        let bytes = match &read {
            Ok(Some(batch)) => {
                if let Some((_, weight)) = lane {
                    weight.saw(batch);
                }
                Some(batch.document_bytes())
            }
            Ok(None) | Err(_) => None,
        };
        room.send(read);
        let Some(bytes) = bytes else {
            return;
        };
        if let Some((lane, weight)) = lane {
            lane.enter_if_heavy(weight).await;
        }
        tokio::time::sleep(pace.charge(bytes, Instant::now())).await;
    }
}

fn hash(id: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
