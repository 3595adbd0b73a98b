//! One task: the documents of a partition, compared, and what differed looked at again.
//!
//! ```text
//! source ──► reader ─┐ one batch ahead each
//!                    ├─► Merge ──► suspects ──► second look by _id ──► counts, mismatches
//! dest. ───► reader ─┘
//! ```
//!
//! A task that fails has no effect: its findings are handed out when it ends, so that it can be run
//! again from the start. Its queues hold one batch, and a reader waits while its queue is full.

use crate::cluster::{Cluster, CollectionSize, Documents};
use crate::compare::{Comparison, Verdict, judge};
use crate::difference::{differences, show};
use crate::element::{Malformed, Value};
use crate::error::VerifyError;
use crate::merge::{Batch, Merge, Need, Side, id_of};
use crate::namespace::Namespace;
use crate::pace::Pace;
use crate::partition::Partition;
use crate::progress::Tally;
use crate::range_query::{both, ids_filter, partition_filter};
use crate::report::{Counts, DocumentMismatch, MismatchKind};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Suspects that are gathered before they are looked at again.
const SUSPECTS_MAX: usize = 10_000;
const LOOKED_UP_DOCUMENTS_MAX: u64 = 500;

/// What all tasks share.
pub struct Shared {
    pub source: Cluster,
    pub destination: Cluster,
    pub comparison: Comparison,
    pub filter: Option<Vec<u8>>,
    pub described_max: usize,
    pub pace: Pace,
    pub tally: Tally,
}

/// A collection on both sides.
pub struct Pair {
    pub source: Namespace,
    pub destination: Namespace,
    /// Of the source; what batches are sized by.
    pub size: CollectionSize,
    /// Its place among the collections that are compared.
    pub position: usize,
}

/// A partition of a collection, to be compared.
pub struct Task {
    pub pair: Arc<Pair>,
    pub partition: Partition,
}

#[derive(Default)]
pub struct Findings {
    pub counts: Counts,
    pub mismatches: Vec<DocumentMismatch>,
}

/// What a reader hands over: batches, and at the very end `None`. A queue that closes before that
/// belongs to a reader that broke off, which must never pass for the end of a collection.
type Read = Result<Option<Batch>, VerifyError>;

/// A running reader; it ends with this value.
struct Reader {
    batches: mpsc::Receiver<Read>,
    running: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Shared {
    fn side(&self, side: Side) -> &Cluster {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }
}

impl Pair {
    fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }
}

impl Task {
    /// Compares the partition.
    pub async fn run(&self, shared: &Arc<Shared>) -> Result<Findings, VerifyError> {
        let mut source = self.start_reader(shared, Side::Source);
        let mut destination = self.start_reader(shared, Side::Destination);
        let mut merge = Merge::new(shared.comparison);
        let mut findings = Findings::default();
        let mut suspects = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let need = merge
                .advance(&mut suspects)
                .map_err(|Malformed| self.malformed(shared))?;
            if suspects.len() >= SUSPECTS_MAX {
                self.look_again(shared, &mut suspects, &mut seen, &mut findings)
                    .await?;
            }
            let (side, reader) = match need {
                Need::Nothing => break,
                Need::Batch(Side::Source) => (Side::Source, &mut source),
                Need::Batch(Side::Destination) => (Side::Destination, &mut destination),
            };
            let batch = match reader.batches.recv().await {
                Some(read) => read?,
                None => return Err(shared.side(side).broke_off(self.pair.namespace(side))),
            };
            if let Some(batch) = &batch {
                self.count(shared, side, batch, &mut findings.counts);
            }
            merge.feed(side, batch);
        }
        self.look_again(shared, &mut suspects, &mut seen, &mut findings)
            .await?;
        findings.counts.equal += merge.settled();
        Ok(findings)
    }

    fn start_reader(&self, shared: &Arc<Shared>, side: Side) -> Reader {
        let cluster = shared.side(side).clone();
        let namespace = self.pair.namespace(side).clone();
        let filter = partition_filter(&self.partition, cluster.across_types);
        let filter = both(filter, shared.filter.as_deref());
        let batch_documents = self.pair.size.batch_documents();
        let shared = shared.clone();
        let (sender, batches) = mpsc::channel(1);
        let running = tokio::spawn(async move {
            let opened = cluster
                .find_sorted(&namespace, &filter, batch_documents)
                .await;
            match opened {
                Ok(documents) => read_all(documents, &shared.pace, &sender).await,
                // Nobody listens any more if the task has ended; then nobody need know.
                Err(error) => drop(sender.send(Err(error)).await),
            }
        });
        Reader { batches, running }
    }

    fn count(&self, shared: &Shared, side: Side, batch: &Batch, counts: &mut Counts) {
        let (documents, bytes) = (batch.len() as u64, batch.document_bytes());
        match side {
            Side::Source => {
                counts.source_documents += documents;
                counts.source_bytes += bytes;
                shared.tally.add(self.pair.position, documents, bytes);
            }
            Side::Destination => {
                counts.destination_documents += documents;
                counts.destination_bytes += bytes;
                shared.tally.add(self.pair.position, 0, bytes);
            }
        }
    }

    /// Looks suspects up on both sides, and notes those that differ.
    ///
    /// `seen` holds those that were found on both sides: where the order of two streams is not the
    /// one we think, a document can be a suspect once from each.
    async fn look_again(
        &self,
        shared: &Arc<Shared>,
        suspects: &mut Vec<Value>,
        seen: &mut HashSet<u64>,
        findings: &mut Findings,
    ) -> Result<(), VerifyError> {
        let mut distinct = HashSet::with_capacity(suspects.len());
        suspects.retain(|id| !seen.contains(&hash(id)) && distinct.insert(id.clone()));
        findings.counts.rechecked += suspects.len() as u64;
        let at_once = self
            .pair
            .size
            .batch_documents()
            .min(LOOKED_UP_DOCUMENTS_MAX);
        for ids in suspects.chunks(usize::try_from(at_once).unwrap_or(1)) {
            let (source, destination) = tokio::try_join!(
                self.look_up(shared, Side::Source, ids),
                self.look_up(shared, Side::Destination, ids),
            )?;
            for id in ids {
                let (one, other) = (found(&source, id), found(&destination, id));
                let noted = note(self, shared, id, (one, other), seen, findings);
                noted.map_err(|Malformed| self.malformed(shared))?;
            }
        }
        suspects.clear();
        Ok(())
    }

    async fn look_up(
        &self,
        shared: &Arc<Shared>,
        side: Side,
        ids: &[Value],
    ) -> Result<HashMap<Value, Vec<Vec<u8>>>, VerifyError> {
        let cluster = shared.side(side);
        let filter = both(ids_filter(ids), shared.filter.as_deref());
        let mut documents = cluster.find(self.pair.namespace(side), &filter).await?;
        let mut found: HashMap<Value, Vec<Vec<u8>>> = HashMap::new();
        while let Some(batch) = documents.next().await? {
            for document in batch.documents() {
                let id =
                    id_of(document).map_err(|Malformed| cluster.malformed("look up documents"))?;
                found
                    .entry(id.to_value())
                    .or_default()
                    .push(document.to_vec());
            }
        }
        Ok(found)
    }

    /// Either side may have sent it: what is compared was already mixed.
    fn malformed(&self, shared: &Shared) -> VerifyError {
        shared
            .source
            .malformed(&format!("read documents of {}", self.pair.source))
    }
}

async fn read_all(mut documents: Documents, pace: &Pace, sender: &mpsc::Sender<Read>) {
    loop {
        let read = documents.next().await;
        let bytes = match &read {
            Ok(Some(batch)) => Some(batch.document_bytes()),
            Ok(None) | Err(_) => None,
        };
        // A closed queue means that the task has ended.
        let sent = sender.send(read).await;
        let (Ok(()), Some(bytes)) = (sent, bytes) else {
            return;
        };
        tokio::time::sleep(pace.charge(bytes, Instant::now())).await;
    }
}

fn found<'a>(documents: &'a HashMap<Value, Vec<Vec<u8>>>, id: &Value) -> &'a [Vec<u8>] {
    documents.get(id).map_or(&[], Vec::as_slice)
}

fn hash(id: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Judges what both sides hold for an `_id`, and counts and describes it.
fn note(
    task: &Task,
    shared: &Shared,
    id: &Value,
    (source, destination): (&[Vec<u8>], &[Vec<u8>]),
    seen: &mut HashSet<u64>,
    findings: &mut Findings,
) -> Result<(), Malformed> {
    let kind = match judge(shared.comparison, source, destination)? {
        Verdict::Same => {
            findings.counts.equal += source.len() as u64;
            seen.insert(hash(id));
            return Ok(());
        }
        Verdict::Missing => MismatchKind::Missing,
        Verdict::Extra => MismatchKind::Extra,
        Verdict::Content => MismatchKind::Content,
        Verdict::Repeated => MismatchKind::Repeated,
    };
    if matches!(kind, MismatchKind::Content | MismatchKind::Repeated) {
        seen.insert(hash(id));
    }
    findings.counts.count(kind);
    if findings.mismatches.len() < shared.described_max {
        let differences = match (kind, source, destination) {
            (MismatchKind::Content, [one], [other]) => differences(shared.comparison, one, other)?,
            (_, _, _) => Vec::new(),
        };
        findings.mismatches.push(DocumentMismatch {
            namespace: task.pair.source.to_string(),
            kind,
            id: show(id.as_ref()),
            differences,
        });
    }
    Ok(())
}
