//! The comparator: two streams of documents in order of `_id`, walked side by side.
//!
//! ```text
//! source       1  2  3     5          equal _id bytes ──► compare, advance both
//! destination  1  2' 3  4  5          different       ──► the one that sorts first is a suspect
//! ```
//!
//! It gives no verdicts. An `_id` is either *settled* (the same document on both sides) or a
//! *suspect*, which is looked up by `_id` on both sides before anything is reported. So it may err
//! on one side only: [`hint`] may choose the wrong stream to advance, which makes suspects of
//! documents that are equal, but a pair settles only by equal bytes. A document that repeats the
//! `_id` before it is a suspect too, and the one before is no longer settled.
//!
//! Memory is one batch for each side and the suspects since they were last taken.

use crate::compare::Comparison;
use crate::element::{Malformed, Value, documents_of_reply, elements, field};
use crate::order::hint;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Source,
    Destination,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Source, Side::Destination];

    pub fn other(self) -> Side {
        match self {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Destination => "destination",
        })
    }
}

/// Documents that arrived together.
pub struct Batch {
    /// The whole reply, held rather than copied.
    reply: Box<dyn AsRef<[u8]> + Send + Sync>,
    documents: Vec<Range<usize>>,
}

impl Batch {
    pub fn of_reply(reply: Box<dyn AsRef<[u8]> + Send + Sync>) -> Result<Batch, Malformed> {
        let documents = documents_of_reply((*reply).as_ref())?;
        Ok(Batch { reply, documents })
    }

    pub fn documents(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = (*self.reply).as_ref();
        self.documents.iter().map(|range| &bytes[range.clone()])
    }

    pub fn document_bytes(&self) -> u64 {
        self.documents.iter().map(|range| range.len() as u64).sum()
    }

    pub fn len(&self) -> usize {
        self.documents.len()
    }

    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Documents of our own making, one behind the other.
    pub fn of_bytes(bytes: Vec<u8>, documents: Vec<Range<usize>>) -> Batch {
        let reply = Box::new(bytes);
        Batch { reply, documents }
    }

    /// The same reply, of which only these places count.
    pub fn narrowed(self, documents: Vec<Range<usize>>) -> Batch {
        Batch { documents, ..self }
    }

    /// The documents with the places where they lie in the reply.
    pub fn placed(&self) -> impl Iterator<Item = (Range<usize>, &[u8])> {
        self.documents.iter().cloned().zip(self.documents())
    }

    pub fn get(&self, position: usize) -> Option<&[u8]> {
        let range = self.documents.get(position)?;
        Some(&(*self.reply).as_ref()[range.clone()])
    }
}

/// The `_id` of a document, which every stored document has.
pub fn id_of(document: &[u8]) -> Result<crate::element::ValueRef<'_>, Malformed> {
    // It is the first field of nearly every document.
    if let Some(Ok(first)) = elements(document)?.next()
        && first.name == b"_id"
    {
        return Ok(first.value);
    }
    field(document, "_id")?.ok_or(Malformed)
}

#[derive(Default)]
struct Stream {
    batch: Option<Batch>,
    position: usize,
    ended: bool,
}

impl Stream {
    fn head(&self) -> Option<&[u8]> {
        self.batch.as_ref()?.get(self.position)
    }

    fn wants(&self) -> bool {
        !self.ended && self.head().is_none()
    }
}

/// What the comparator waits for.
#[derive(Debug, PartialEq, Eq)]
pub enum Need {
    Batch(Side),
    /// Both streams have ended.
    Nothing,
}

pub struct Merge {
    comparison: Comparison,
    source: Stream,
    destination: Stream,
    /// The last `_id` that settled.
    settled_id: Value,
    settled: u64,
    /// Whether the document before settled, and nothing else with its `_id` came since.
    settled_last: bool,
}

impl Merge {
    pub fn new(comparison: Comparison) -> Merge {
        Merge {
            comparison,
            source: Stream::default(),
            destination: Stream::default(),
            // No document: its type code is none of BSON's.
            settled_id: Value {
                kind: 0,
                bytes: Box::default(),
            },
            settled: 0,
            settled_last: false,
        }
    }

    /// Pairs found equal so far.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Hands over what was asked for; `None` ends the stream.
    pub fn feed(&mut self, side: Side, batch: Option<Batch>) {
        let stream = match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        };
        assert!(
            stream.wants(),
            "a batch is handed over when it is asked for"
        );
        stream.ended = batch.is_none();
        stream.batch = batch;
        stream.position = 0;
    }

    /// Walks on until a side has nothing left to look at.
    pub fn advance(&mut self, suspects: &mut Vec<Value>) -> Result<Need, Malformed> {
        loop {
            if self.source.wants() {
                return Ok(Need::Batch(Side::Source));
            }
            if self.destination.wants() {
                return Ok(Need::Batch(Side::Destination));
            }
            match (self.source.head(), self.destination.head()) {
                (None, None) => return Ok(Need::Nothing),
                (Some(only), None) => {
                    let id = id_of(only)?.to_value();
                    self.source.position += 1;
                    self.suspect(id, suspects);
                }
                (None, Some(only)) => {
                    let id = id_of(only)?.to_value();
                    self.destination.position += 1;
                    self.suspect(id, suspects);
                }
                (Some(one), Some(other)) => {
                    let (one_id, other_id) = (id_of(one)?, id_of(other)?);
                    if one_id == other_id {
                        let again = one_id == self.settled_id.as_ref();
                        let settles = !again && self.comparison.same_document(one, other)?;
                        if settles {
                            self.settled += 1;
                        } else {
                            if again && self.settled_last {
                                // Whoever looks at the suspect counts all documents with its `_id`.
                                self.settled -= 1;
                            }
                            suspects.push(one_id.to_value());
                        }
                        self.settled_last = settles;
                        remember(&mut self.settled_id, one_id);
                        self.source.position += 1;
                        self.destination.position += 1;
                        continue;
                    }
                    let order = hint(one_id, other_id);
                    let one = (order != Ordering::Greater).then(|| one_id.to_value());
                    let other = (order != Ordering::Less).then(|| other_id.to_value());
                    self.source.position += usize::from(one.is_some());
                    self.destination.position += usize::from(other.is_some());
                    for id in one.into_iter().chain(other) {
                        self.suspect(id, suspects);
                    }
                }
            }
        }
    }

    /// A document that only one stream has here. If one with its `_id` has just settled, the `_id` is
    /// repeated: whoever looks at the suspect counts all documents with it.
    fn suspect(&mut self, id: Value, suspects: &mut Vec<Value>) {
        if self.settled_last && id == self.settled_id {
            self.settled -= 1;
            self.settled_last = false;
        }
        suspects.push(id);
    }
}

/// Replaces a value in place: nearly all `_id`s of a collection have one length.
fn remember(kept: &mut Value, id: crate::element::ValueRef<'_>) {
    kept.kind = id.kind;
    if kept.bytes.len() == id.bytes.len() {
        kept.bytes.copy_from_slice(id.bytes);
    } else {
        kept.bytes = id.bytes.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, Document, doc};

    fn batch(documents: &[Document]) -> Batch {
        let documents: Vec<Bson> = documents.iter().cloned().map(Bson::Document).collect();
        let reply = doc! {"cursor": {"firstBatch": documents}}.to_vec().unwrap();
        Batch::of_reply(Box::new(reply)).unwrap()
    }

    /// Runs both streams in batches of every size and expects the same each time.
    fn check(source: &[Document], destination: &[Document], settled: u64, suspects: &[Bson]) {
        for size in 1..=source.len().max(destination.len()).max(1) {
            let mut merge = Merge::new(Comparison::Bytes);
            let mut found = Vec::new();
            let (mut left, mut right) = (source.chunks(size), destination.chunks(size));
            loop {
                match merge.advance(&mut found).unwrap() {
                    Need::Batch(Side::Source) => merge.feed(Side::Source, left.next().map(batch)),
                    Need::Batch(Side::Destination) => {
                        merge.feed(Side::Destination, right.next().map(batch));
                    }
                    Need::Nothing => break,
                }
            }
            assert_eq!(merge.settled(), settled);
            let expected: Vec<Value> = suspects
                .iter()
                .map(|id| {
                    id_of(&doc! {"_id": id}.to_vec().unwrap())
                        .unwrap()
                        .to_value()
                })
                .collect();
            assert_eq!(found, expected);
        }
    }

    fn numbered(ids: impl IntoIterator<Item = i32>) -> Vec<Document> {
        ids.into_iter()
            .map(|id| doc! {"_id": id, "a": "x"})
            .collect()
    }

    #[test]
    fn suspects_are_what_does_not_pair() {
        check(&[], &[], 0, &[]);
        check(&numbered(0..9), &numbered(0..9), 9, &[]);
        check(&numbered(0..3), &[], 0, &[0.into(), 1.into(), 2.into()]);
        check(&[], &numbered(0..2), 0, &[0.into(), 1.into()]);
        check(
            &numbered([1, 2, 3, 5]),
            &numbered([1, 3, 4, 5]),
            3,
            &[2.into(), 4.into()],
        );
        let mut changed = numbered(0..5);
        changed[3].insert("a", "y");
        check(&numbered(0..5), &changed, 4, &[3.into()]);
        // One key to the order, two values to us.
        check(
            &[doc! {"_id": 1}],
            &[doc! {"_id": 1.0}],
            0,
            &[1.into(), 1.0.into()],
        );
        check(&numbered([1, 1]), &numbered([1, 1]), 0, &[1.into()]);
        check(
            &numbered([0, 1, 1, 1, 2]),
            &numbered([0, 1, 1, 1, 2]),
            2,
            &[1.into(), 1.into()],
        );
        // A repeated `_id` does not settle, whichever of its documents comes first.
        check(&numbered([1, 1, 2]), &numbered([1, 2]), 1, &[1.into()]);
        check(&numbered([1, 2]), &numbered([1, 1, 2]), 1, &[1.into()]);
        check(&numbered([0, 1, 1]), &numbered([0, 1]), 1, &[1.into()]);
        let other = doc! {"_id": 1, "a": "y"};
        let turned = [numbered([0]), vec![other], numbered([1, 2])].concat();
        check(&numbered(0..3), &turned, 2, &[1.into(), 1.into()]);
    }

    #[test]
    fn an_order_that_we_do_not_know_only_makes_suspects() {
        let collated: Vec<Document> = ["a", "B", "c", "D"]
            .iter()
            .map(|id| doc! {"_id": *id})
            .collect();
        check(&collated, &collated, 4, &[]);
        let without_a = &collated[1..];
        let mut merge = Merge::new(Comparison::Bytes);
        let mut suspects = Vec::new();
        let mut feeds = [Some(batch(&collated)), Some(batch(without_a))].map(Some);
        while let Need::Batch(side) = merge.advance(&mut suspects).unwrap() {
            merge.feed(side, feeds[side as usize].take().flatten());
        }
        let a = id_of(&collated[0].to_vec().unwrap()).unwrap().to_value();
        assert!(suspects.contains(&a));
    }

    #[test]
    fn an_id_anywhere_in_the_document_is_found() {
        let bytes = doc! {"a": 1, "_id": 7}.to_vec().unwrap();
        assert_eq!(id_of(&bytes).unwrap().bytes, 7_i32.to_le_bytes());
        assert_eq!(id_of(&doc! {"a": 1}.to_vec().unwrap()), Err(Malformed));
    }
}
