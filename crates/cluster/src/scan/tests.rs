//! The worked example of the specification, all small worlds, and many large ones.
//!
//! ⚑ Each rule was switched off once, in a world that does without it; the search, or a scenario, finds what
//! goes wrong then:
//!
//! | rule | without it | test |
//! | --- | --- | --- |
//! | a document comes at its first entry only | it comes again | `rules::a_document_comes_at_its_first_entry_only` |
//! | a shard answers for a range as a whole: what it says it owns is of the snapshot it reads | a range that has just gone is lost | `rules::ownership_is_of_the_snapshot` |
//! | what moved goes on from where its stream was *before* the batch | what lies before the batch's end is lost | `rules::what_moved_goes_on_from_before_the_batch` |
//! | a token stands behind what was delivered | what was fetched only is lost | `rules::tokens_stand_behind_what_was_delivered` |
//! | merged chunks remember who owned which part of them | tokens from before are refused | `rules::merged_chunks_remember_their_owners` |
//! | a token holds what is left of skip and limit | both count again | `rules::tokens_hold_what_is_left_of_the_window` |
//! | later batches read at or after earlier ones | a member that lags loses what was there | `lagging::later_batches_read_later` |
//! | a token holds that time | the same on another router | `lagging::tokens_hold_the_time_floor` |
//! | ranges are asked for by name only at or after the base placement | a range that came back is read as it was before | `lagging::named_ranges_are_read_at_the_base_placement_or_later` |
//! | what lies before the floor and was counted by a shard's limit is asked for again | results are missing | `what_a_limit_counted_in_vain_is_asked_for_again` |
//! | ranges join no stream that was answered | its cursor does not know them | `ranges_do_not_join_a_stream_that_was_answered` |
//! | ranges are named in the words of the shard key that the shard has in its snapshot | a document of a bound is lost | `refining::ranges_are_named_by_the_key_that_is_read_with` |
//! | nothing of a whole scan is delivered before all has ended | it cannot begin anew, or counts twice | `a_whole_scan_delivers_nothing_before_its_end`, `whole::partial_results_are_delivered_when_all_streams_have_ended` |
//! | of a partial result that is lost nothing counts | documents count twice | `whole::partial_results_count_when_their_stream_has_ended` |

mod example;
mod lagging;
mod many_ranges;
mod refining;
mod rules;
mod search;
mod whole;
mod worlds;

use super::*;
use crate::routing::{ChangeError, ChunkWithEnd, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

type Position = Vec<u8>;

/// One document: its shard key, and its entries in the scanned index, the first one first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Document {
    slot: usize,
    positions: Vec<Position>,
}

/// Where a shard yields a document that has several entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emission {
    /// At the first of them, recomputed from the document.
    First,
    /// At the first that a batch comes by: what a set of seen ids would do that does not
    /// outlive its batch.
    FirstSeen,
}

/// What a shard says that it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// In the snapshot that the batch reads.
    OfSnapshot,
    /// Before the last thing that happened.
    OfBefore,
}

/// Ranges of a shard key, who owns them now, and the documents, by id.
#[derive(Clone, Debug)]
struct World {
    owners: Vec<&'static str>,
    owners_before: Vec<&'static str>,
    telling: Telling,
    documents: BTreeMap<u32, Document>,
    emission: Emission,
    /// The shard key has another field by now.
    is_refined: bool,
    /// Shards that know.
    refined: BTreeSet<&'static str>,
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
            owners_before: owners.to_vec(),
            telling: Telling::OfSnapshot,
            documents: BTreeMap::new(),
            emission: Emission::First,
            is_refined: false,
            refined: BTreeSet::new(),
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
        let table = RoutingTable::full(Uuid([1; 16]), incarnation, pattern().clone(), chunks);
        match self.is_refined {
            true => refining::refined(&table.unwrap()),
            false => table.unwrap(),
        }
    }

    /// What a shard answers: as the header of the module demands it.
    fn serve(&self, question: &Question, base: &RoutingTable, batch_max: usize) -> Batch<u32> {
        let slots = self.owners.len();
        let asked = match &question.asked {
            Asked::AsInBase => base.ranges_of(&question.shard),
            Asked::These(ranges) => ranges.clone(),
        };
        let mut moved = Vec::new();
        let told = match self.telling {
            Telling::OfSnapshot => &self.owners,
            Telling::OfBefore => &self.owners_before,
        };
        for (slot, owner) in told.iter().enumerate() {
            if *owner != question.shard.as_str() {
                let range = self.in_words_of(&question.shard, &slot_range(slot, slots));
                let ranges = asked.intersection(&range).into_iter();
                moved.extend(ranges.map(|range| (range, ShardId::new(owner))));
            }
        }
        let mut found: Vec<(Position, u32)> = Vec::new();
        for (id, document) in &self.documents {
            let key = self.key_on(&question.shard, *id, document.slot);
            if self.owners[document.slot] != question.shard.as_str() || !asked.contains(&key) {
                continue;
            }
            let is_left = |position: &&Position| question.after.as_ref() < Some(*position);
            let yielded = match self.emission {
                Emission::First => document.positions.first().filter(is_left),
                Emission::FirstSeen => document.positions.iter().find(is_left),
            };
            found.extend(yielded.map(|position| (position.clone(), *id)));
        }
        found.sort();
        let ended = found.len() <= batch_max;
        found.truncate(batch_max);
        Batch {
            reached: found.last().map(|(position, _)| position.clone()),
            entries: found
                .into_iter()
                .map(|(position, id)| Entry {
                    // The last four bytes tell apart what is sorted alike.
                    sort: position[..position.len().saturating_sub(4)].to_vec(),
                    place: Some(position),
                    value: id,
                })
                .collect(),
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

fn begin(world: &World, order: Order) -> Scan<u32> {
    Scan::begin(Arc::new(world.table()), everything(), order)
}

#[test]
fn answers_that_cannot_be_true_change_nothing() {
    let world = World::new(&["A", "B"]);
    let mut scan = begin(&world, Order::Sorted);
    let questions = scan.questions();
    let id = questions[0].stream;
    let whole = KeyRange::new(KeyBound::new(&[]), KeyBound::after_all());
    let check = |scan: &mut Scan<u32>, batch: Batch<u32>, expected: BatchError| {
        let before = format!("{:?}", scan.streams().collect::<Vec<_>>());
        assert_eq!(scan.answered(id, batch), Err(expected));
        assert_eq!(format!("{:?}", scan.streams().collect::<Vec<_>>()), before);
        // It may be asked again.
        assert_eq!(scan.questions().len(), 1);
    };
    let empty = || Batch {
        entries: Vec::new(),
        reached: None,
        ended: false,
        moved: Vec::new(),
    };
    let entry = |sort: u8, value: u32| Entry {
        sort: vec![sort],
        place: None,
        value,
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
            entries: vec![entry(2, 1), entry(1, 2)],
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

/// ⚑ Partial results count as a whole: until all streams have ended, virtual ones too, nothing is taken, and
/// everybody who has not answered is asked.
#[test]
fn a_whole_scan_delivers_nothing_before_its_end() {
    let mut world = World::new(&["A", "B", "C"]);
    for id in 0..3u32 {
        let document = Document {
            slot: id as usize,
            positions: vec![id.to_be_bytes().to_vec()],
        };
        world.documents.insert(id, document);
    }
    let base = world.table();
    let mut scan = begin(&world, Order::Whole);
    world.owners[1] = "C";
    let questions = scan.questions();
    assert_eq!(questions.len(), 3);
    for question in questions {
        scan.answered(question.stream, world.serve(&question, &base, 10))
            .unwrap();
        assert_eq!(scan.peek(), None);
        assert_eq!(scan.token(ClusterTime::ZERO), None, "nobody can go on");
    }
    let [virtual_one] = &scan.questions()[..] else {
        panic!("what was found elsewhere is asked for");
    };
    scan.answered(virtual_one.stream, world.serve(virtual_one, &base, 10))
        .unwrap();
    let found: Vec<u32> = std::iter::from_fn(|| scan.deliver())
        .map(|entry| entry.value)
        .collect();
    assert_eq!(found, [0, 2, 1]);
    assert!(scan.has_ended());
}

#[test]
fn many_moves_make_few_streams() {
    let mut world = World::new(&["A"; 20]);
    let base = world.table();
    let mut scan = begin(&world, Order::Unsorted);
    for slot in (0..20).step_by(2) {
        world.owners[slot] = "B";
    }
    let question = scan.questions().remove(0);
    scan.answered(question.stream, world.serve(&question, &base, 10))
        .unwrap();
    let open: Vec<(&str, bool)> = scan
        .streams()
        .filter(|stream| !stream.has_ended)
        .map(|stream| (stream.shard.as_str(), stream.is_virtual))
        .collect();
    assert_eq!(open, [("B", true)]);
}

/// ⚑ A stream that was answered may have a cursor on its shard, for the ranges it had then: ranges that
/// come later from the same place get a stream of their own.
#[test]
fn ranges_do_not_join_a_stream_that_was_answered() {
    let world = World::new(&["A", "B", "C"]);
    let mut scan = begin(&world, Order::Sorted);
    let streams: Vec<StreamId> = scan.questions().iter().map(|one| one.stream).collect();
    let batch = |slots: &[usize], ended| Batch {
        entries: Vec::new(),
        reached: None,
        ended,
        moved: slots
            .iter()
            .map(|slot| (slot_range(*slot, 3), ShardId::new("C")))
            .collect(),
    };
    scan.answered(streams[0], batch(&[0], false)).unwrap();
    let opened = scan.questions();
    assert_eq!(opened.len(), 1);
    // A batch of none: the shard keeps a cursor.
    scan.answered(opened[0].stream, batch(&[], false)).unwrap();
    scan.answered(streams[1], batch(&[1], false)).unwrap();
    let asked: Vec<Asked> = scan.questions().into_iter().map(|one| one.asked).collect();
    let slot = |slot| Asked::These(RangeSet::of([slot_range(slot, 3)]));
    assert_eq!(asked, [slot(0), slot(1)]);
}

/// A shard whose version is not the base's any more is asked for its ranges by name.
#[test]
fn ranges_are_named_when_versions_do_not_say_them() {
    let world = World::new(&["A", "B", "A"]);
    let mut scan = begin(&world, Order::Unsorted);
    let questions = scan.questions();
    assert!(questions.iter().all(|one| one.asked == Asked::AsInBase));
    assert_eq!(questions.len(), 2, "all base streams open at once");
    scan.name_ranges(questions[0].stream);
    let again = scan.questions();
    let named = RangeSet::of([slot_range(0, 3), slot_range(2, 3)]);
    assert_eq!(again[0].asked, Asked::These(named));
}

#[test]
fn tokens_are_small_and_checked() {
    let mut world = World::new(&["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"]);
    for id in 0..200u32 {
        let document = Document {
            slot: id as usize % 10,
            positions: vec![id.to_be_bytes().to_vec()],
        };
        world.documents.insert(id, document);
    }
    let base = world.table();
    let mut scan = begin(&world, Order::Sorted);
    for question in scan.questions() {
        scan.answered(question.stream, world.serve(&question, &base, 5))
            .unwrap();
    }
    scan.deliver();
    let token = scan.token(ClusterTime::new(9, 9)).unwrap();
    let bytes = token.encode();
    assert!(bytes.len() < 300, "{} bytes for ten shards", bytes.len());
    assert_eq!(ScanToken::decode(&bytes).unwrap(), token);
    assert_eq!(token.not_before, ClusterTime::new(9, 9));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(ScanToken::decode(&damaged).is_err(), "byte {at}");
        assert!(ScanToken::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let mut other = World::new(&["A", "B"]).table();
    other.incarnation.epoch = ObjectId([2; 12]);
    let resumed = Scan::<u32>::resume(token, Arc::new(other), everything());
    assert_eq!(resumed.unwrap_err(), TokenError::OtherIncarnation);
}

/// ⚑ A token's stream stands behind what it has delivered, which may be before the floor. What came to be in between is
/// no result; but the shard has counted it, and ended with it.
#[test]
fn what_a_limit_counted_in_vain_is_asked_for_again() {
    let world = World::new(&["A", "B"]);
    let entry = |sort: u8| Entry {
        sort: vec![sort],
        place: Some(vec![sort]),
        value: u32::from(sort),
    };
    let batch = |sorts: &[u8], ended| Batch {
        entries: sorts.iter().map(|sort| entry(*sort)).collect(),
        reached: None,
        ended,
        moved: Vec::new(),
    };
    let mut scan = begin(&world, Order::Sorted).with_window(0, Some(6));
    for (question, sorts) in scan.questions().iter().zip([[10, 50], [20, 30]]) {
        scan.answered(question.stream, batch(&sorts, false))
            .unwrap();
    }
    let found: Vec<u32> = (0..3)
        .filter_map(|_| scan.deliver())
        .map(|one| one.value)
        .collect();
    assert_eq!(found, [10, 20, 30]);
    let token = scan.token(ClusterTime::ZERO).unwrap();
    let mut scan = Scan::<u32>::resume(token, Arc::new(world.table()), everything()).unwrap();
    // Three are wanted. Meanwhile A has got two more behind 10.
    let questions = scan.questions();
    scan.answered(questions[0].stream, batch(&[12, 14, 50], true))
        .unwrap();
    scan.answered(questions[1].stream, batch(&[], true))
        .unwrap();
    assert_eq!(scan.deliver().map(|one| one.value), Some(50));
    let again = scan.questions();
    assert_eq!(again.len(), 1, "A has more");
    assert_eq!(again[0].after, Some(vec![50]));
    scan.answered(again[0].stream, batch(&[60, 70], true))
        .unwrap();
    let found: Vec<u32> = std::iter::from_fn(|| scan.deliver())
        .map(|one| one.value)
        .collect();
    assert_eq!(found, [60, 70]);
    assert!(scan.has_ended());
}

/// The base placement is found again in a later one, for as long as its chunks remember.
#[test]
fn a_token_outlives_moves_as_long_as_they_are_remembered() {
    let world = World::new(&["A", "A", "B"]);
    let base = world.table();
    let token = || begin(&world, Order::Unsorted).token(ClusterTime::ZERO);
    let moves = base
        .moving(
            &slot_range(1, 3),
            &ShardId::new("B"),
            ClusterTime::new(50, 0),
        )
        .unwrap();
    let later = Arc::new(base.with_changes(moves).unwrap());
    assert!(token().unwrap().is_told_by(&later));
    let of_later = Scan::<u32>::begin(later.clone(), everything(), Order::Unsorted);
    let of_later = of_later.token(ClusterTime::ZERO).unwrap();
    assert!(
        !of_later.is_told_by(&base),
        "an earlier placement does not know"
    );
    let mut scan = Scan::<u32>::resume(token().unwrap(), later.clone(), everything()).unwrap();
    let questions = scan.questions();
    let of_a = RangeSet::of([slot_range(0, 3), slot_range(1, 3)]);
    assert_eq!(questions[0].asked, Asked::These(of_a));
    let forgetful: Vec<ChunkWithEnd> = later
        .chunks()
        .map(|view| {
            let chunk = view.chunk.clone().with_past(Vec::new());
            (chunk, view.max.clone())
        })
        .collect();
    let forgetful =
        RoutingTable::full(later.uuid, later.incarnation, pattern().clone(), forgetful).unwrap();
    let resumed = Scan::<u32>::resume(token().unwrap(), Arc::new(forgetful), everything());
    assert_eq!(resumed.unwrap_err(), TokenError::TooOld);
}
