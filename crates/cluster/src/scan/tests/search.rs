//! Every interleaving, not only those behind the first batches.
//!
//! ```text
//!   state ─┬─ one of the answers that can arrive next     (whichever: each is tried)
//!          └─ one of the events, while some are left      (before the first batch, between any two, up to the end)
//! ```
//!
//! From each state all that may come next is tried, to the end of the scan, and each end is judged by
//! [`Run::check`]. Ways that lead to the same state are gone on with once. What a state is: the events so far (they
//! decide what the world and the config server hold, whenever they came, but for who has heard of a longer key), and what the scan, its questions under way
//! and its results are. Of results count how often each document came, and where the last one stood: the order is
//! judged on the way.
//!
//! Three shards, four ranges; four layouts of six documents and fewer ([`Layout`]). In one of them the ranges have
//! halves, which move alone, as they do after a split. The number of events is what bounds a search:
//!
//! ```text
//!   one of all kinds      every layout, order and way of answering, batches of 1 and 2, terse or not: 330 to 3,000 states
//!   two of all kinds      every layout, order and way of answering: 24,000 to 152,000 states
//!   three moves, drains   two layouts: 42,000 to 259,000 states
//!   four moves            of the two ranges with documents: 11,000 to 22,000 states
//! ```
//!
//! The orders here are those that deliver as they go; results that count as a whole are in `whole.rs`, with the same
//! worlds and events.

use super::worlds::*;
use super::*;
use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};

/// What is written is hashed instead of kept.
struct Hashed(DefaultHasher);

impl Write for Hashed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

struct Search<'a> {
    events: &'a [Event],
    seen: HashSet<u64>,
    /// Those on the way to the state that is looked at.
    path: HashSet<u64>,
    /// Scans that came to their end.
    ends: usize,
}

impl Search<'_> {
    /// All that may come, with so many more events; or what went wrong, and how it came to that.
    fn from(&mut self, run: &Run, left: usize, so_far: &mut Vec<Event>) -> Result<(), String> {
        let mut hashed = Hashed(DefaultHasher::new());
        write!(hashed, "{so_far:?}").expect("hashing does not fail");
        run.describe(&mut hashed).expect("hashing does not fail");
        // Before ways meet: they may have come in another order.
        if !run.is_in_order() {
            return Err(format!("{so_far:?}: out of order, {:?}", run.found));
        }
        let state = hashed.0.finish();
        if self.path.contains(&state) {
            return Err(format!("{so_far:?}: the scan does not end"));
        }
        if !self.seen.insert(state) {
            return Ok(());
        }
        self.path.insert(state);
        let found = self.next(run, left, so_far);
        self.path.remove(&state);
        found
    }

    fn next(&mut self, run: &Run, left: usize, so_far: &mut Vec<Event>) -> Result<(), String> {
        if run.has_ended() {
            self.ends += 1;
            return run.check().map_err(|error| format!("{so_far:?}: {error}"));
        }
        for choice in 0..run.choices() {
            let mut next = run.clone();
            next.step(choice, 0);
            self.from(&next, left, so_far)?;
        }
        if left > 0 {
            for event in self.events {
                if run.is_vain(*event) {
                    continue;
                }
                let mut next = run.clone();
                next.happen(*event);
                so_far.push(*event);
                self.from(&next, left - 1, so_far)?;
                so_far.pop();
            }
        }
        Ok(())
    }
}

/// Searches with up to so many events; how many states and ends there are.
pub(super) fn search(run: &Run, events: &[Event], most: usize) -> Result<(usize, usize), String> {
    let mut search = Search {
        events,
        seen: HashSet::new(),
        path: HashSet::new(),
        ends: 0,
    };
    search.from(run, most, &mut Vec::new())?;
    Ok((search.seen.len(), search.ends))
}

/// Where ranges and documents lie in the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Two shards in turns, and a document or two in each range; two of them have several entries.
    Turns,
    /// The same, and ranges have halves.
    Halves,
    /// All on one shard; all documents in the two middle ranges, some at one position.
    OneShard,
    /// All three shards; the documents at both ends, a range without any.
    Ends,
}

pub(super) const LAYOUTS: [Layout; 4] = [
    Layout::Turns,
    Layout::Halves,
    Layout::OneShard,
    Layout::Ends,
];

impl Layout {
    pub(super) fn world(self) -> World {
        match self {
            Layout::Turns => {
                let documents = [(0, 10), (1, 20), (2, 30), (3, 40), (0, 50), (1, 60)];
                with_several_entries(world(&[0, 1, 0, 1], &documents))
            }
            Layout::Halves => small_world(Emission::First),
            Layout::OneShard => {
                let documents = [(1, 30), (1, 30), (2, 30), (2, 10), (1, 50)];
                world(&[0, 0, 0, 0], &documents)
            }
            Layout::Ends => {
                let documents = [(0, 0), (3, 0), (0, 255), (3, 255), (1, 128)];
                world(&[0, 1, 1, 2], &documents)
            }
        }
    }

    /// Moves of every range (or half of one) to every shard, and drains of every shard to every other.
    pub(super) fn moves(self) -> Vec<Event> {
        let slots = self.world().owners.len();
        let shards = || 0..SHARDS.len();
        let moves = (0..slots).flat_map(|slot| shards().map(move |to| Event::Move { slot, to }));
        let drains = shards().flat_map(|from| shards().map(move |to| Event::Drain { from, to }));
        moves.chain(drains).collect()
    }

    /// What shards and routers notice without anything being moved.
    pub(super) fn others(self) -> Vec<Event> {
        let slots = self.world().owners.len();
        let splits = (0..SHARDS.len()).map(|shard| Event::Split { shard });
        let merges = (0..slots).map(|slot| Event::Merge { slot });
        let tells = (0..SHARDS.len()).map(|shard| Event::Tell { shard });
        let routers = [Event::Refine, Event::Forget, Event::Resume];
        splits.chain(merges).chain(tells).chain(routers).collect()
    }

    /// Inserts, deletes, and updates of other fields, of the scanned key, of the shard key, of arrays.
    fn writes(self) -> Vec<Event> {
        let world = self.world();
        let (slots, documents) = (world.owners.len(), world.documents.len() as u32);
        let mut writes = Vec::new();
        for (id, slot) in [(8, 0), (9, slots - 1)] {
            for position in [5, 35, 70] {
                writes.push(Event::Insert { id, slot, position });
            }
        }
        for id in [0, documents / 2, documents - 1] {
            writes.push(Event::Delete { id });
            writes.push(Event::Touch { id });
            for position in [5, 70] {
                writes.push(Event::Reposition { id, position });
                writes.push(Event::AddEntry { id, position });
            }
            for slot in [0, slots - 1] {
                writes.push(Event::Rekey { id, slot });
            }
        }
        writes
    }

    pub(super) fn all(self) -> Vec<Event> {
        [self.moves(), self.others(), self.writes()].concat()
    }
}

const ORDERS: [Order; 2] = [Order::Sorted, Order::Unsorted];
const ANSWERS: [Answers; 3] = [Answers::AtOnce, Answers::Ahead, Answers::Late];

/// Searches one kind of world. It must not become nothing unnoticed.
pub(super) fn all_of(run: &Run, events: &[Event], most: usize, at_least: usize, what: &str) {
    let found = search(run, events, most);
    let (states, ends) = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    eprintln!(
        "{what}, {most} of {} events: {states} states, {ends} ends",
        events.len()
    );
    assert!(
        states >= at_least && 2 * ends > events.len(),
        "{what}: {states} states, {ends} ends"
    );
}

/// Batches of one document and of two, requests as they are and as short as they can be.
#[test]
fn one_event_at_any_time() {
    for layout in LAYOUTS {
        for order in ORDERS {
            for answers in ANSWERS {
                for (batch_max, is_terse) in [(1, false), (1, true), (2, false), (2, true)] {
                    let mut run = Run::new(layout.world(), order, batch_max).answering(answers);
                    if is_terse {
                        run = run.terse();
                    }
                    let what = format!("{layout:?} {order:?} {answers:?} {batch_max} {is_terse}");
                    all_of(&run, &layout.all(), 1, 300, &what);
                }
            }
        }
    }
}

fn two_events(layout: Layout) {
    for order in ORDERS {
        for answers in ANSWERS {
            let run = Run::new(layout.world(), order, 2).answering(answers);
            let what = format!("{layout:?} {order:?} {answers:?}");
            all_of(&run, &layout.all(), 2, 10_000, &what);
        }
    }
}

#[test]
fn two_events_at_any_time_in_turns() {
    two_events(Layout::Turns);
}

#[test]
fn two_events_at_any_time_in_halves() {
    two_events(Layout::Halves);
}

#[test]
fn two_events_at_any_time_on_one_shard() {
    two_events(Layout::OneShard);
}

#[test]
fn two_events_at_any_time_at_the_ends() {
    two_events(Layout::Ends);
}

/// Ranges that move again, come back, and are drained.
#[test]
fn three_moves_at_any_time() {
    for order in ORDERS {
        for (layout, answers) in [
            (Layout::OneShard, Answers::Late),
            (Layout::OneShard, Answers::Ahead),
            (Layout::Turns, Answers::Late),
        ] {
            let run = Run::new(layout.world(), order, 2).answering(answers);
            let what = format!("{layout:?} {order:?} {answers:?}");
            all_of(&run, &layout.moves(), 3, 40_000, &what);
        }
    }
}

/// Two ranges that go wherever they can, and both that have documents.
#[test]
fn four_moves_of_two_ranges_at_any_time() {
    let shards = || 0..SHARDS.len();
    let moves = [1, 2].map(|slot| shards().map(move |to| Event::Move { slot, to }));
    let moves: Vec<Event> = moves.into_iter().flatten().collect();
    for order in ORDERS {
        for answers in ANSWERS {
            let layout = Layout::OneShard;
            let run = Run::new(layout.world(), order, 2).answering(answers);
            all_of(&run, &moves, 4, 5_000, &format!("{order:?} {answers:?}"));
        }
    }
}
