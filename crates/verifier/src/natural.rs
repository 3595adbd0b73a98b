//! Partitioning by record id: documents in the order in which one node stores them.
//!
//! ```text
//! node N   1 ─────── 40 ───────── 97 ─────── 131        record ids
//!          [  first   ](  second  ](   last  ]          (after, until]
//! ```
//!
//! Reading along the index on `_id` fetches documents from all over the disk, if `_id`s are not in
//! the order of insertion; reading in stored order does not. The source is read so, and what each
//! batch holds is fetched by `_id` from the destination. What only the destination has would never
//! be seen, so that a pass over the `_id`s of both sides, which the index answers alone, is one more
//! task (see `Part::Ids`).
//!
//! Record ids belong to one node: a task names it, and is read from there by a direct connection.
//! A server resumes a scan behind a record only; there is no query for a range of records. If the record
//! is gone, servers with `$_startAt` go on behind it; for older ones a smaller id is tried, in
//! growing steps, down to the beginning, and what was read too early is passed over. The last
//! partition ends at the record that was the last when it was planned: what came later is a change,
//! and looked at as one.
//!
//! Where documents are stored in order of `_id`, the stored order is cut at sampled `_id`s, and both
//! sides are read along it, which finds what only the destination has as well: TernDB, whose records have
//! no ids, and clustered collections, whose record ids cannot be stepped down, without `$_startAt`.
//!
//! One task reads the whole collection where nothing of this works: sharded clusters, and servers before
//! 4.4.

use crate::cluster::{Cluster, code_of};
use crate::element::{Malformed, Value, ValueRef, elements, field, kind};
use crate::error::VerifyError;
use crate::merge::{Batch, Side};
use crate::partition::Sampling;
use crate::plan::Plan;
use crate::range_query::both;
use crate::reading::{Documents, Natural, SENT_DOCUMENT, SENT_RECORD};
use crate::record::Part;
use crate::scan::{Running, Shared, Task};
use crate::topology::Topology;
use bson::doc;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use tokio::sync::mpsc;

const KEY_NOT_FOUND: i32 = 211;
const RECORD_ID: &str = "$recordId";

/// The order of record ids, which are all numbers or all binary.
fn record_order(left: ValueRef<'_>, right: ValueRef<'_>) -> Ordering {
    match (number(left), number(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (_, _) => left.bytes.get(5..).cmp(&right.bytes.get(5..)),
    }
}

fn number(value: ValueRef<'_>) -> Option<i64> {
    match value.kind {
        kind::INT64 => value.bytes.first_chunk().map(|b| i64::from_le_bytes(*b)),
        kind::INT32 => value
            .bytes
            .first_chunk()
            .map(|b| i64::from(i32::from_le_bytes(*b))),
        _ => None,
    }
}

impl Shared {
    /// A connection to the node of a task; tasks share it.
    pub fn source_node(&self, node: Option<&str>) -> Result<Cluster, VerifyError> {
        let Some(node) = node else {
            return Ok(self.source.clone());
        };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get(node) {
            return Ok(known.clone());
        }
        let connected = self.source.node(node)?;
        nodes.insert(node.to_owned(), connected.clone());
        Ok(connected)
    }
}

impl Plan {
    /// The tasks of a collection that is read in stored order.
    pub async fn run_natural(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
    ) -> Result<(), VerifyError> {
        let source = &shared.source;
        if source.topology == Topology::Sharded || !source.has_sample_rate {
            self.emit_ids(shared, tasks).await?;
            return self.emit(shared, tasks, Part::WholeNatural).await;
        }
        if self.is_clustered && !source.has_start_at {
            return self.run_by_id(shared, tasks).await;
        }
        // Record ids of tasks that exist already are those of their node.
        let (node, after) = match self.last.take() {
            Some(Part::Natural { node, until, .. }) => (node, Some(until)),
            by_id @ Some(Part::Range { .. }) => {
                self.last = by_id;
                return self.run_by_id(shared, tasks).await;
            }
            Some(Part::Ids | Part::WholeNatural | Part::Series { .. }) | None => {
                (source.reading_node().await?, None)
            }
        };
        let cluster = shared.source_node(node.as_deref())?;
        let Some(top) = self.last_record(&cluster).await? else {
            return self.run_by_id(shared, tasks).await;
        };
        self.emit_ids(shared, tasks).await?;
        let mut after = after;
        if let Sampling::Rate(rate) = self.sampling {
            let sampling = self
                .sample_records(shared, tasks, &cluster, rate, (&node, &mut after, &top))
                .await;
            // Another failure makes the last partition larger, and shows there if it lasts.
            if let Err(error @ VerifyError::State { .. }) = sampling {
                return Err(error);
            }
        }
        let until = top;
        let part = Part::Natural { node, after, until };
        self.emit(shared, tasks, part).await
    }

    /// The pass over the `_id`s of both sides, before everything else.
    async fn emit_ids(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
    ) -> Result<(), VerifyError> {
        match self.next_task {
            0 => self.emit(shared, tasks, Part::Ids).await,
            // An earlier process planned it.
            _ => Ok(()),
        }
    }

    /// The last record; none of an empty collection, or where records have no ids.
    async fn last_record(&self, cluster: &Cluster) -> Result<Option<Value>, VerifyError> {
        let everything = crate::element::Writer::new().finish();
        let wanted = Natural::Ids { sampled: false };
        let name = &self.pair.source;
        let found = cluster.find_natural(name, &everything, 1, &wanted).await;
        let mut found = match found.map_err(|error| {
            let failed = cluster.failed(&format!("find the end of {name}"), &error);
            (code_of(&error), failed)
        }) {
            Ok(found) => found,
            // A server whose records have no ids; whatever else it may be, the task will show.
            Err((Some(_), VerifyError::Server { transient, .. })) if !transient => return Ok(None),
            Err((_, failed)) => return Err(failed),
        };
        match found.next().await? {
            Some(batch) => match batch.documents().next() {
                Some(document) => record_of(cluster, document).map(Some),
                None => Ok(None),
            },
            None => Ok(None),
        }
    }

    async fn sample_records(
        &mut self,
        shared: &Shared,
        tasks: &mpsc::Sender<Task>,
        cluster: &Cluster,
        rate: f64,
        (node, after, top): (&Option<String>, &mut Option<Value>, &Value),
    ) -> Result<(), VerifyError> {
        let filter = doc! {"$sampleRate": rate}.to_vec();
        let filter = filter.map_err(|_| cluster.malformed("sample documents"))?;
        let wanted = Natural::Ids { sampled: true };
        let name = self.pair.source.clone();
        let mut sampled = cluster
            .find_natural(&name, &filter, 0, &wanted)
            .await
            .map_err(|error| cluster.failed(&format!("sample {name}"), &error))?;
        while let Some(batch) = sampled.next().await? {
            for document in batch.documents() {
                let record = record_of(cluster, document)?;
                let behind = after.as_ref().is_none_or(|after| {
                    record_order(record.as_ref(), after.as_ref()) == Ordering::Greater
                });
                if !behind || record_order(record.as_ref(), top.as_ref()) != Ordering::Less {
                    continue;
                }
                let part = Part::Natural {
                    node: node.clone(),
                    after: after.replace(record.clone()),
                    until: record,
                };
                self.emit(shared, tasks, part).await?;
            }
        }
        Ok(())
    }
}

fn record_of(cluster: &Cluster, document: &[u8]) -> Result<Value, VerifyError> {
    let found = field(document, RECORD_ID).ok().flatten();
    found
        .map(ValueRef::to_value)
        .ok_or_else(|| cluster.malformed("tell the record id of a document"))
}

/// Where the stored document lies in what the server made of it (see [`Natural::Records`]), and its
/// record id.
fn unwrap_record(sent: &[u8]) -> Result<(Range<usize>, ValueRef<'_>), Malformed> {
    let (mut document, mut record) = (None, None);
    // Behind the length.
    let mut place = 4;
    for element in elements(sent)? {
        let element = element?;
        // Its type, and its name with a zero.
        let start = place + 1 + element.name.len() + 1;
        place = start + element.value.bytes.len();
        if element.name == SENT_DOCUMENT.as_bytes() && element.value.kind == kind::DOCUMENT {
            document = Some(start..place);
        } else if element.name == SENT_RECORD.as_bytes() {
            record = Some(element.value);
        }
    }
    Ok((document.ok_or(Malformed)?, record.ok_or(Malformed)?))
}

/// The stored order from somewhere on.
struct Scan {
    cluster: Cluster,
    documents: Documents,
    after: Option<Value>,
    until: Option<Value>,
}

impl Scan {
    /// The next documents, as a batch without record ids; none at the end.
    async fn next(&mut self) -> Result<Option<Batch>, VerifyError> {
        let Some(batch) = self.documents.next().await? else {
            return Ok(None);
        };
        let Some(until) = &self.until else {
            return Ok(Some(batch));
        };
        let malformed = |Malformed| self.cluster.malformed("read documents");
        let mut places = Vec::with_capacity(batch.len());
        for (sent_at, sent) in batch.placed() {
            let (stored, record) = unwrap_record(sent).map_err(malformed)?;
            let early = self
                .after
                .as_ref()
                .is_some_and(|after| record_order(record, after.as_ref()) != Ordering::Greater);
            if early {
                continue;
            }
            if record_order(record, until.as_ref()) == Ordering::Greater {
                if places.is_empty() {
                    return Ok(None);
                }
                break;
            }
            places.push(sent_at.start + stored.start..sent_at.start + stored.end);
        }
        Ok(Some(batch.narrowed(places)))
    }
}

impl Running<'_> {
    /// Compares a part that is read in stored order.
    pub async fn compare_natural(&mut self) -> Result<(), VerifyError> {
        let (lane, pair) = (self.lane.clone(), self.task.pair.clone());
        lane.enter_if_heavy(&pair.weight).await;
        let mut scan = self.open_scan().await?;
        let (sender, mut batches) = mpsc::channel(1);
        let reading = async move {
            while let Ok(room) = sender.reserve().await {
                let read = scan.next().await;
                if let Ok(Some(batch)) = &read {
                    pair.weight.saw(batch);
                }
                let more = matches!(read, Ok(Some(_)));
                room.send(read);
                if !more {
                    return;
                }
                lane.enter_if_heavy(&pair.weight).await;
            }
        };
        let reader = crate::scan::AbortOnDrop(tokio::spawn(reading));
        loop {
            let pair = self.task.pair.clone();
            let batch = match batches.recv().await {
                Some(read) => read?,
                None => return Err(self.shared.source.broke_off(&pair.source)),
            };
            let Some(batch) = batch else { break };
            self.count(Side::Source, &batch);
            self.pay(&batch).await;
            self.compare_fetched(&batch).await?;
        }
        drop(reader);
        self.look_again().await
    }

    async fn open_scan(&self) -> Result<Scan, VerifyError> {
        let filter = crate::element::Writer::new().finish();
        let filter = both(filter, self.shared.settings.filter.as_deref());
        let pair = &self.task.pair;
        let batch_documents = pair.size.batch_documents();
        let failed = |cluster: &Cluster, error| {
            cluster.failed(&format!("read {} in its stored order", pair.source), &error)
        };
        let Part::Natural { node, after, until } = &self.task.part else {
            let cluster = self.shared.source.clone();
            let documents = cluster
                .find_natural(&pair.source, &filter, batch_documents, &Natural::Whole)
                .await
                .map_err(|error| failed(&cluster, error))?;
            return Ok(Scan {
                cluster,
                documents,
                after: None,
                until: None,
            });
        };
        let cluster = self.shared.source_node(node.as_deref())?;
        let mut from = after.clone();
        let mut step = 1;
        let documents = loop {
            let wanted = Natural::Records {
                after: from.as_ref().map(Value::as_ref),
            };
            let opened = cluster
                .find_natural(&pair.source, &filter, batch_documents, &wanted)
                .await;
            match opened {
                Ok(documents) => break documents,
                Err(error) if code_of(&error) == Some(KEY_NOT_FOUND) && from.is_some() => {
                    let earlier = from.as_ref().and_then(|from| number(from.as_ref()));
                    let earlier = earlier.map(|number| number - step).filter(|id| *id > 0);
                    from = earlier.map(|id| Value {
                        kind: kind::INT64,
                        bytes: id.to_le_bytes().as_slice().into(),
                    });
                    step *= 2;
                }
                Err(error) => return Err(failed(&cluster, error)),
            }
        };
        Ok(Scan {
            cluster,
            documents,
            after: after.clone(),
            until: Some(until.clone()),
        })
    }
}

/// The nodes of the source that are connected to directly.
pub type Nodes = Arc<std::sync::Mutex<std::collections::HashMap<String, Cluster>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_taken_as_they_are_stored() {
        // With fields that look like what the server adds.
        let stored = doc! {"_id": 1, "r": 3, "$recordId": 5_i64, "d": {}};
        let binary = bson::Binary {
            subtype: bson::spec::BinarySubtype::Generic,
            bytes: vec![1, 2],
        };
        let (long, binary) = (bson::Bson::from(77_i64), bson::Bson::from(binary));
        for sent in [
            doc! {"d": stored.clone(), "r": long.clone()},
            doc! {"r": long, "d": stored.clone()},
            doc! {"d": stored.clone(), "r": binary},
        ] {
            let sent = sent.to_vec().unwrap();
            let (place, record) = unwrap_record(&sent).unwrap();
            assert_eq!(sent[place], stored.to_vec().unwrap());
            assert!(number(record) == Some(77) || record.kind == kind::BINARY);
        }
        for wrong in [doc! {"d": {}}, doc! {"r": 1_i64}, doc! {"d": 1, "r": 1_i64}] {
            assert!(unwrap_record(&wrong.to_vec().unwrap()).is_err());
        }
    }

    #[test]
    fn record_ids_have_an_order() {
        let value = |bytes: Vec<u8>, kind: u8| Value {
            kind,
            bytes: bytes.into(),
        };
        let long = |id: i64| value(id.to_le_bytes().to_vec(), kind::INT64);
        let order = |left: &Value, right: &Value| record_order(left.as_ref(), right.as_ref());
        assert_eq!(order(&long(255), &long(256)), Ordering::Less);
        let binary = |bytes: &[u8]| {
            let mut all = (bytes.len() as u32).to_le_bytes().to_vec();
            all.push(0);
            all.extend_from_slice(bytes);
            value(all, kind::BINARY)
        };
        assert_eq!(order(&binary(&[1, 2, 3]), &binary(&[2])), Ordering::Less);
        assert_eq!(order(&binary(&[2]), &binary(&[2])), Ordering::Equal);
    }
}
