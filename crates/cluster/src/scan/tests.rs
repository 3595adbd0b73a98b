//! The worked example of the specification, all small worlds, and many large ones.

mod example;
mod worlds;

use super::*;
use crate::routing::{ChunkWithEnd, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

type Position = Vec<u8>;

/// One document: its shard key, and its place in the scanned index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    slot: usize,
    position: Position,
}

/// Ranges of a shard key, who owns them now, and the documents, by id.
#[derive(Clone, Debug)]
struct World {
    owners: Vec<&'static str>,
    documents: BTreeMap<u32, Document>,
}

/// The range of shard keys with number `slot`; the first and the last are open.
fn slot_range(slot: usize, slots: usize) -> KeyRange {
    let pattern = pattern();
    let min = match slot {
        0 => KeyBound::new(&pattern.least()),
        _ => slot_bound(slot),
    };
    let max = match slot + 1 == slots {
        true => KeyBound::after_all(),
        false => slot_bound(slot + 1),
    };
    KeyRange::new(min, max)
}

fn slot_bound(slot: usize) -> KeyBound {
    let bound = DocWriter::new().with("k", slot as i32).finish();
    KeyBound::new(&pattern().key_of_bound(bound.as_doc()).unwrap())
}

fn pattern() -> &'static Arc<ShardKeyPattern> {
    static PATTERN: LazyLock<Arc<ShardKeyPattern>> = LazyLock::new(|| {
        let pattern = DocWriter::new().with("k", 1).finish();
        Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap())
    });
    &PATTERN
}

impl World {
    fn new(owners: &[&'static str]) -> Self {
        Self {
            owners: owners.to_vec(),
            documents: BTreeMap::new(),
        }
    }

    fn table(&self) -> RoutingTable {
        let bounds: Vec<KeyBound> = (1..self.owners.len()).map(slot_bound).collect();
        let owners: Vec<ShardId> = self.owners.iter().map(|name| ShardId::new(name)).collect();
        let chunks: Vec<ChunkWithEnd> =
            initial_chunks(pattern(), &bounds, &owners, ClusterTime::ZERO);
        let incarnation = Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::new(1, 0),
        };
        RoutingTable::full(Uuid([1; 16]), incarnation, pattern().clone(), chunks).unwrap()
    }

    /// What a shard answers: as the header of the module demands it.
    fn serve(&self, question: &Question<Position>, batch_max: usize) -> Batch<Position, u32> {
        let slots = self.owners.len();
        let mut moved = Vec::new();
        for (slot, owner) in self.owners.iter().enumerate() {
            if *owner != question.shard.as_str() {
                let range = RangeSet::of([slot_range(slot, slots)]);
                let asked_for = question.ranges.intersection(&range);
                moved.extend(
                    asked_for
                        .into_iter()
                        .map(|range| (range, ShardId::new(owner))),
                );
            }
        }
        let mut entries: Vec<(Position, u32)> = self
            .documents
            .iter()
            .filter(|(_, document)| {
                self.owners[document.slot] == question.shard.as_str()
                    && question
                        .ranges
                        .contains(slot_range(document.slot, slots).min.as_bytes())
                    && question
                        .after
                        .as_ref()
                        .is_none_or(|after| document.position > *after)
            })
            .map(|(id, document)| (document.position.clone(), *id))
            .collect();
        entries.sort();
        let ended = entries.len() <= batch_max;
        entries.truncate(batch_max);
        Batch {
            entries,
            ended,
            moved,
        }
    }
}

fn everything() -> RangeSet {
    RangeSet::of([KeyRange::new(
        KeyBound::new(&pattern().least()),
        KeyBound::after_all(),
    )])
}

#[test]
fn answers_that_cannot_be_true_change_nothing() {
    let world = World::new(&["A", "B"]);
    let mut scan: Scan<Position, u32> = Scan::begin(&world.table(), &everything(), Order::Sorted);
    let questions = scan.questions();
    let id = questions[0].stream;
    let whole = KeyRange::new(KeyBound::new(&[]), KeyBound::after_all());
    let check =
        |scan: &mut Scan<Position, u32>, batch: Batch<Position, u32>, expected: BatchError| {
            let before = format!("{:?}", scan.open_streams().collect::<Vec<_>>());
            assert_eq!(scan.answered(id, batch), Err(expected));
            assert_eq!(
                format!("{:?}", scan.open_streams().collect::<Vec<_>>()),
                before
            );
            // It may be asked again.
            assert_eq!(scan.questions().len(), 1);
        };
    let empty = || Batch {
        entries: Vec::new(),
        ended: false,
        moved: Vec::new(),
    };
    check(
        &mut scan,
        Batch {
            moved: vec![(whole, ShardId::new("A"))],
            ..empty()
        },
        BatchError::WentNowhere(ShardId::new("A")),
    );
    check(
        &mut scan,
        Batch {
            entries: vec![(vec![2], 1), (vec![1], 2)],
            ..empty()
        },
        BatchError::OutOfOrder(ShardId::new("A")),
    );
    scan.answered(id, empty()).unwrap();
    assert!(matches!(
        scan.answered(id, empty()),
        Err(BatchError::NotAsked(_))
    ));
}

#[test]
fn many_moves_make_few_streams() {
    let mut world = World::new(&["A"; 20]);
    let mut scan: Scan<Position, u32> = Scan::begin(&world.table(), &everything(), Order::Unsorted);
    for slot in (0..20).step_by(2) {
        world.owners[slot] = "B";
    }
    let question = scan.questions().remove(0);
    scan.answered(question.stream, world.serve(&question, 10))
        .unwrap();
    let open: Vec<&str> = scan
        .open_streams()
        .map(|(shard, _)| shard.as_str())
        .collect();
    assert_eq!(open, ["B"]);
}

#[test]
fn tokens_are_small_and_checked() {
    let mut world = World::new(&["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"]);
    for id in 0..200u32 {
        let document = Document {
            slot: id as usize % 10,
            position: id.to_be_bytes().to_vec(),
        };
        world.documents.insert(id, document);
    }
    let base = world.table();
    let mut scan: Scan<Position, u32> = Scan::begin(&base, &everything(), Order::Sorted);
    for question in scan.questions() {
        scan.answered(question.stream, world.serve(&question, 5))
            .unwrap();
    }
    scan.deliver();
    let token = scan.token().unwrap();
    let bytes = token.encode();
    assert!(bytes.len() < 300, "{} bytes for ten shards", bytes.len());
    assert_eq!(ScanToken::decode(&bytes).unwrap(), token);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(ScanToken::decode(&damaged).is_err(), "byte {at}");
        assert!(ScanToken::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let other = World::new(&["A", "B"]).table();
    let resumed: Result<Scan<Position, u32>, TokenError> =
        Scan::resume(token, &other, &everything());
    assert_eq!(resumed.unwrap_err(), TokenError::OtherBase);
}
