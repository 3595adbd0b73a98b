//! The picture of the header as a script, and many interleavings.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

type Merge = EventMerge<u32, &'static str>;

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn wait(names: &[&str], until: Option<u32>) -> Next<u32, &'static str> {
    Next::Wait {
        shards: names.iter().map(|name| shard(name)).collect(),
        until,
    }
}

fn merge(begin: Begin<u32>) -> Merge {
    Merge::new(["a", "b", "c"].map(shard), 0, begin)
}

/// All that can be delivered, and what comes then.
fn delivered(merge: &mut Merge) -> (Vec<&'static str>, Next<u32, &'static str>) {
    let mut events = Vec::new();
    loop {
        match merge.step() {
            Next::Deliver(_, event) => events.push(event),
            other => return (events, other),
        }
    }
}

#[test]
fn an_event_waits_for_those_that_may_precede_it() {
    let mut merge = merge(Begin::At(0));
    assert_eq!(merge.step(), wait(&["a", "b", "c"], None));
    merge
        .answered(&shard("a"), [(2, "a2"), (5, "a5")], 6)
        .unwrap();
    assert_eq!(merge.held_up(), Some((&2, vec![shard("b"), shard("c")])));
    assert_eq!(merge.step(), wait(&["b", "c"], Some(2)));
    merge
        .answered(&shard("b"), [(1, "b1"), (4, "b4")], 4)
        .unwrap();
    merge.answered(&shard("c"), [(3, "c3")], 3).unwrap();
    assert_eq!(
        delivered(&mut merge),
        (vec!["b1", "a2", "c3"], wait(&["c"], Some(4)))
    );
    assert_eq!(merge.place(), 3);
    // A mark at the event itself is enough.
    merge.answered(&shard("c"), [], 4).unwrap();
    assert_eq!(
        delivered(&mut merge),
        (vec!["b4"], wait(&["b", "c"], Some(5)))
    );
    merge.answered(&shard("c"), [], 9).unwrap();
    merge.answered(&shard("b"), [], 8).unwrap();
    assert_eq!(
        delivered(&mut merge),
        (vec!["a5"], wait(&["a", "b", "c"], None))
    );
    // Nothing is left: the least mark is where a client can go on.
    assert_eq!(merge.place(), 6);
}

#[test]
fn going_on_behind_an_event() {
    let mut found = merge(Begin::Behind(3));
    found
        .answered(&shard("a"), [(2, "a2"), (5, "a5")], 6)
        .unwrap();
    found
        .answered(&shard("b"), [(3, "b3"), (4, "b4")], 6)
        .unwrap();
    // Until the event is met, it is the place.
    assert_eq!(found.place(), 3);
    found.answered(&shard("c"), [], 6).unwrap();
    assert_eq!(delivered(&mut found).0, ["b4", "a5"]);

    let mut lost = merge(Begin::Behind(3));
    for name in ["a", "b"] {
        lost.answered(&shard(name), [(2, "2"), (4, "4")], 6)
            .unwrap();
    }
    assert_eq!(lost.step(), wait(&["c"], Some(2)));
    lost.answered(&shard("c"), [], 6).unwrap();
    assert_eq!(lost.step(), Next::PlaceLost);

    // Nobody but the shard that has passed it can say that it is lost.
    let mut early = merge(Begin::Behind(3));
    for name in ["a", "b", "c"] {
        early.answered(&shard(name), [], 2).unwrap();
    }
    assert_eq!(early.step(), wait(&["a", "b", "c"], None));
}

#[test]
fn equal_tokens_are_all_delivered() {
    let mut merge = merge(Begin::At(0));
    for (name, event) in [("c", "c1"), ("a", "a1"), ("b", "b1")] {
        merge.answered(&shard(name), [(1, event)], 1).unwrap();
    }
    assert_eq!(delivered(&mut merge).0, ["a1", "b1", "c1"]);
}

/// ⚑ What would have to be delivered before what was is refused.
#[test]
fn shards_keep_their_word() {
    let mut merge = merge(Begin::At(0));
    let out_of_order = Err(EventError::OutOfOrder { shard: shard("a") });
    assert_eq!(
        merge.answered(&shard("a"), [(2, ""), (1, "")], 3),
        out_of_order
    );
    assert_eq!(merge.answered(&shard("a"), [(2, "")], 1), out_of_order);
    merge.answered(&shard("a"), [(2, "a2")], 5).unwrap();
    assert_eq!(merge.answered(&shard("a"), [(5, "")], 6), out_of_order);
    assert_eq!(merge.answered(&shard("a"), [], 4), out_of_order);
    let unknown = Err(EventError::UnknownShard { shard: shard("x") });
    assert_eq!(merge.answered(&shard("x"), [], 4), unknown);

    for name in ["b", "c"] {
        merge.answered(&shard(name), [], 5).unwrap();
    }
    assert_eq!(delivered(&mut merge).0, ["a2"]);
    let late = Err(EventError::TooLate { shard: shard("d") });
    assert_eq!(merge.add(shard("d"), 1), late);
    assert_eq!(merge.place(), 5);
    // Nobody was told that place yet, and an event of the new shard may come before it.
    merge.add(shard("d"), 4).unwrap();
    assert_eq!(merge.place(), 4);
    assert_eq!(merge.next_token(), None);
    merge.answered(&shard("d"), [(5, "d5")], 6).unwrap();
    assert_eq!(merge.next_token(), Some(&5));
}

#[test]
fn a_shard_that_ended_holds_nobody_up() {
    let mut merge = merge(Begin::At(0));
    merge.answered(&shard("a"), [(1, "a1")], 1).unwrap();
    merge.answered(&shard("b"), [(2, "b2")], 2).unwrap();
    merge.ended(&shard("a"));
    merge.ended(&shard("c"));
    assert!(merge.answered(&shard("c"), [], 9).is_err());
    assert_eq!(
        delivered(&mut merge),
        (vec!["a1", "b2"], wait(&["b"], None))
    );
    merge.ended(&shard("b"));
    assert_eq!(merge.step(), Next::End);
}

/// The last mark of all.
const END: u32 = 1000;

/// A shard that has these events to tell.
struct Teller {
    times: VecDeque<u32>,
    /// How many events each batch brings, and how far the mark is ahead of them.
    batches: VecDeque<(usize, u32)>,
    mark: u32,
}

impl Teller {
    fn answer(&mut self) -> (Vec<u32>, u32) {
        let (count, ahead) = self.batches.pop_front().unwrap_or((usize::MAX, END));
        let count = count.min(self.times.len());
        let events: Vec<u32> = self.times.drain(..count).collect();
        let last = events.last().map_or(self.mark, |time| *time);
        let last = last.max(self.mark);
        // A mark may stand anywhere before the next event.
        let before_next = self.times.front().map_or(END, |next| next - 1);
        self.mark = (last + ahead).min(before_next).max(last);
        (events, self.mark)
    }
}

/// Many shards and what has come of them.
struct World {
    tellers: BTreeMap<ShardId, Teller>,
    merge: EventMerge<u32, ShardId>,
    expected: Vec<(u32, ShardId)>,
    found: Vec<(u32, ShardId)>,
}

impl World {
    fn answer(&mut self, shard: &ShardId) {
        let (events, mark) = self.tellers.get_mut(shard).expect("a shard").answer();
        let events = events.into_iter().map(|time| (time, shard.clone()));
        self.merge.answered(shard, events, mark).expect("in order");
    }

    /// Takes what can be delivered; whom it waits for then.
    fn take(&mut self) -> Vec<ShardId> {
        loop {
            match self.merge.step() {
                Next::Deliver(time, shard) => self.found.push((time, shard)),
                Next::Wait { shards, .. } => {
                    // Everything up to the place was delivered, and nothing behind it.
                    let place = self.merge.place();
                    let (before, behind) = self.expected.split_at(self.found.len());
                    assert!(before.iter().all(|(time, _)| *time <= place));
                    assert!(behind.iter().all(|(time, _)| *time > place));
                    return shards;
                }
                other @ (Next::PlaceLost | Next::End) => panic!("{other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However shards answer, all events come out once, in order, and every place
    /// that is named is one to go on from.
    #[test]
    fn all_interleavings(
        // Of each shard: gaps between its events, and its batches.
        shards in vec((vec(1..6u32, 0..12), vec((0..4usize, 0..4u32), 1..20)), 1..5),
        turns in vec(0..5usize, 0..60),
    ) {
        let mut tellers = BTreeMap::new();
        let mut expected = Vec::new();
        for (at, (gaps, batches)) in shards.iter().enumerate() {
            let mut time = 0;
            let times: VecDeque<u32> = gaps.iter().map(|gap| { time += gap; time }).collect();
            let shard = shard(&format!("s{at}"));
            expected.extend(times.iter().map(|time| (*time, shard.clone())));
            let batches = batches.iter().copied().collect();
            tellers.insert(shard, Teller { times, batches, mark: 0 });
        }
        expected.sort();
        let names: Vec<ShardId> = tellers.keys().cloned().collect();
        let merge = EventMerge::new(names.clone(), 0, Begin::At(0));
        let mut world = World { tellers, merge, expected, found: Vec::new() };
        for turn in turns {
            world.answer(&names[turn % names.len()]);
            world.take();
        }
        // Then only those are asked that are waited for, until all have said everything.
        loop {
            let waited_for = world.take();
            prop_assert!(!waited_for.is_empty());
            if world.merge.place() == END {
                break;
            }
            waited_for.iter().for_each(|shard| world.answer(shard));
        }
        prop_assert_eq!(world.found, world.expected);
    }
}
