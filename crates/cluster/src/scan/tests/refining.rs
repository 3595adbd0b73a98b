//! The shard key gets another field while a scan goes on: shards hear of it one by one.
//!
//! In a world with a refined key a document of slot `s` has the key `(s, id)`, and the slot begins at `(s, MinKey)`; to
//! a shard that has not heard of it the key is `s`, which is where the slot begins.

use super::search::{Layout, search};
use super::worlds::{Answers, Broken, Event, Run, small_world};
use super::*;
use model::bson::ValueRef;
use model::key::{Direction, KeyBuilder};

fn longer_pattern() -> Arc<ShardKeyPattern> {
    let pattern = DocWriter::new().with("k", 1).with("l", 1).finish();
    Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap())
}

/// As the config server does it.
pub(super) fn refined(table: &RoutingTable) -> RoutingTable {
    let incarnation = Incarnation {
        epoch: ObjectId([2; 12]),
        began: ClusterTime::new(2, 0),
    };
    let chunks = table.refined(longer_pattern(), incarnation).unwrap();
    RoutingTable::full(table.uuid, incarnation, longer_pattern(), chunks).unwrap()
}

impl World {
    /// A slot's range in the words of the config server.
    pub(super) fn range(&self, slot: usize) -> KeyRange {
        let range = slot_range(slot, self.owners.len());
        match self.is_refined {
            true => completed(&range),
            false => range,
        }
    }

    pub(super) fn in_words_of(&self, shard: &ShardId, range: &KeyRange) -> RangeSet {
        RangeSet::of([match self.refined.contains(shard.as_str()) {
            true => completed(range),
            false => range.clone(),
        }])
    }

    /// The shard key of a document as a shard understands it.
    pub(super) fn key_on(&self, shard: &ShardId, id: u32, slot: usize) -> Vec<u8> {
        let mut key = slot_range(slot, self.owners.len()).min.as_bytes().to_vec();
        if self.refined.contains(shard.as_str()) {
            let mut further = KeyBuilder::new();
            further.push(ValueRef::Int32(id as i32), Direction::Ascending);
            key.extend(further.finish().0);
        }
        key
    }

    pub(super) fn tell(&mut self, shard: &'static str) {
        if self.is_refined {
            self.refined.insert(shard);
        }
    }

    /// Nothing moves before all have heard of it.
    pub(super) fn tell_all(&mut self) {
        for shard in ["A", "B", "C"] {
            self.tell(shard);
        }
    }
}

fn completed(range: &KeyRange) -> KeyRange {
    let pattern = longer_pattern();
    KeyRange::new(pattern.completed(&range.min), pattern.completed(&range.max))
}

impl Run {
    pub(super) fn refine(&mut self) {
        if !self.world.is_refined {
            self.world.is_refined = true;
            self.table = refined(&self.table);
        }
    }

    /// Whether the shard that is asked goes by the same key as the scan. One that knows less asks the config server.
    pub(super) fn has_the_same_key(&mut self, question: &Question) -> bool {
        if self.broken == Some(Broken::AnyWords) {
            return true;
        }
        let is_longer = self.scan.base().pattern.fields().len() > 1;
        if is_longer {
            for shard in ["A", "B", "C"] {
                if shard == question.shard.as_str() {
                    self.world.tell(shard);
                }
            }
        }
        self.world.refined.contains(question.shard.as_str()) == is_longer
    }

    /// Puts the ranges of an answer into the words of the scan.
    pub(super) fn complete(&self, batch: &mut Batch<u32>) {
        for (range, _) in &mut batch.moved {
            let pattern = &self.scan.base().pattern;
            *range = KeyRange::new(pattern.completed(&range.min), pattern.completed(&range.max));
        }
    }
}

/// Moves, merges, tokens and lost questions around a key that is refined before the first batch, or behind it: 6,000 to
/// 27,500 states each.
#[test]
fn all_small_worlds_of_a_refined_key() {
    let layout = Layout::Turns;
    let events = [layout.moves(), layout.others()].concat();
    for order in [Order::Sorted, Order::Unsorted] {
        for answers in [Answers::AtOnce, Answers::Ahead, Answers::Late] {
            for steps in 0..2 {
                let mut run = Run::new(layout.world(), order, 2).answering(answers);
                for _ in 0..steps {
                    run.step(0, 0);
                }
                run.happen(Event::Refine);
                let (states, _) =
                    search(&run, &events, 2).unwrap_or_else(|error| panic!("{error}"));
                assert!(states > 5_000, "{order:?} {answers:?} {steps}: {states}");
            }
        }
    }
}

/// A shard that has not heard of the longer key looks for `5` behind `(5, MinKey)`.
#[test]
fn ranges_are_named_by_the_key_that_is_read_with() {
    let check = |broken| {
        let mut run = Run::new(small_world(Emission::First), Order::Unsorted, 1);
        run.broken = broken;
        run.step(0, 0);
        run.happen(Event::Refine);
        // Another router names the ranges by the key that it knows.
        run.happen(Event::Resume);
        run.finish()
    };
    assert_eq!(check(None), Ok(()));
    let error = check(Some(Broken::AnyWords)).unwrap_err();
    assert!(error.contains("came 0 times"), "{error}");
}

/// Where nothing else has changed, versions still say what shards own: nobody names a range.
#[test]
fn a_refined_key_alone_needs_no_names() {
    let mut run = Run::new(small_world(Emission::First), Order::Sorted, 1);
    run.happen(Event::Refine);
    run.scan.refine(&run.table).unwrap();
    let questions = run.scan.questions();
    assert!(questions.iter().all(|one| one.asked == Asked::AsInBase));
    let version = |shard| run.scan.base().shard_version(&ShardId::new(shard));
    assert_eq!(version("A"), run.table.shard_version(&ShardId::new("A")));
}

/// Another collection of the same name, another key, and an earlier placement are none of the scan's.
#[test]
fn what_is_no_refinement_is_refused() {
    let world = World::new(&["A", "B"]);
    let table = world.table();
    let longer = refined(&table);
    let mut scan = begin(&world, Order::Sorted);
    let mut other = longer.clone();
    other.uuid = Uuid([9; 16]);
    assert_eq!(scan.refine(&other), Err(NotRefined));
    assert_eq!(scan.refine(&table), Ok(()));
    let of_before = scan.token(ClusterTime::ZERO).unwrap();
    assert!(of_before.is_told_by(&longer));
    assert!(!of_before.is_told_by(&other));
    assert_eq!(scan.refine(&longer), Ok(()));
    assert_eq!(scan.refine(&table), Err(NotRefined));
    let of_now = scan.token(ClusterTime::ZERO).unwrap();
    assert!(!of_now.is_told_by(&table), "it knows less than the token");
}

/// Scans that began with one placement go by one.
#[test]
fn a_refined_base_is_shared() {
    let world = World::new(&["A", "B"]);
    let table = world.table();
    let longer = refined(&table);
    let made = refined_base(&table, &longer).unwrap();
    let mut scan = Scan::<u32>::begin(Arc::new(table.clone()), everything(), Order::Sorted);
    assert_eq!(scan.refine(&longer), Ok(()));
    assert!(Arc::ptr_eq(scan.base(), &made));
    // Another table has its own, and so has another life of the collection.
    let other = refined_base(&world.table(), &longer).unwrap();
    assert!(!Arc::ptr_eq(&other, &made));
    assert!(table.refinement(table.incarnation).is_none());
    assert!(made.refinement(longer.incarnation).is_none());
}

/// Tokens of the format before say which incarnation they are of, and not of which collection.
#[test]
fn tokens_of_the_format_before_go_on_in_their_own_incarnation() {
    let world = World::new(&["A", "B"]);
    let token = begin(&world, Order::Sorted).token(ClusterTime::ZERO);
    let bytes = token.unwrap().encode();
    let mut before = bytes[..bytes.len() - 4].to_vec();
    before[0] = 3;
    before.drain(10..26);
    before.extend(crc32c::crc32c(&before).to_be_bytes());
    let token = || ScanToken::decode(&before).unwrap();
    let table = world.table();
    let longer = Arc::new(refined(&table));
    assert!(Scan::<u32>::resume(token(), Arc::new(table), everything()).is_ok());
    let refused = Scan::<u32>::resume(token(), longer, everything());
    assert_eq!(refused.unwrap_err(), TokenError::OtherIncarnation);
    assert_eq!(token().encode(), before);
}
