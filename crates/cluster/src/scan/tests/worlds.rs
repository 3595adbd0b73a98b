//! Whatever happens between two batches, documents that stay as they are come once.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SHARDS: [&str; 3] = ["A", "B", "C"];

/// Something that happens between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A range goes to a shard.
    Move {
        slot: usize,
        to: usize,
    },
    /// All that a shard has goes to another.
    Drain {
        from: usize,
        to: usize,
    },
    Insert {
        id: u32,
        slot: usize,
        position: u8,
    },
    Delete {
        id: u32,
    },
    /// The scanned key changes.
    Reposition {
        id: u32,
        position: u8,
    },
    /// The scan goes on elsewhere, from its token.
    Resume,
}

/// A scan of a world that changes, and what has to be true of it.
struct Run {
    world: World,
    base: RoutingTable,
    scan: Scan<Position, u32>,
    order: Order,
    found: Vec<(Position, u32)>,
    /// Documents that were there all the time, unchanged.
    throughout: BTreeSet<u32>,
    batch_max: usize,
}

impl Run {
    fn new(world: World, order: Order, batch_max: usize) -> Self {
        let base = world.table();
        Self {
            scan: Scan::begin(&base, &everything(), order),
            throughout: world.documents.keys().copied().collect(),
            world,
            base,
            order,
            found: Vec::new(),
            batch_max,
        }
    }

    fn happen(&mut self, event: Event) {
        let slots = self.world.owners.len();
        match event {
            Event::Move { slot, to } => self.world.owners[slot % slots] = SHARDS[to],
            Event::Drain { from, to } => {
                for owner in &mut self.world.owners {
                    if *owner == SHARDS[from] {
                        *owner = SHARDS[to];
                    }
                }
            }
            Event::Insert { id, slot, position } => {
                let document = Document {
                    slot: slot % slots,
                    position: place(position, id),
                };
                self.world.documents.entry(id).or_insert(document);
            }
            Event::Delete { id } => {
                self.world.documents.remove(&id);
                self.throughout.remove(&id);
            }
            Event::Reposition { id, position } => {
                if let Some(document) = self.world.documents.get_mut(&id) {
                    document.position = place(position, id);
                    self.throughout.remove(&id);
                }
            }
            Event::Resume => {
                if let Some(token) = self.scan.token() {
                    let token = ScanToken::decode(&token.encode()).unwrap();
                    self.scan = Scan::resume(token, &self.base, &everything()).unwrap();
                }
            }
        }
    }

    /// One question answered, and all delivered that can be, but for `held_back`.
    fn step(&mut self, chosen: usize, held_back: usize) -> bool {
        let mut questions = self.scan.questions();
        if !questions.is_empty() {
            let question = questions.remove(chosen % questions.len());
            for other in questions {
                self.scan.unanswered(other.stream);
            }
            let batch = self.world.serve(&question, self.batch_max);
            self.scan.answered(question.stream, batch).unwrap();
        }
        for _ in 0..self.batch_max.saturating_sub(held_back).max(1) {
            self.found.extend(self.scan.deliver());
        }
        !self.scan.has_ended()
    }

    fn finish(&mut self) {
        let mut steps = 0;
        while self.step(0, 0) {
            steps += 1;
            assert!(steps < 10_000, "the scan does not end");
        }
        let mut times: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, id) in &self.found {
            *times.entry(*id).or_default() += 1;
        }
        for id in &self.throughout {
            let times = times.get(id).copied().unwrap_or(0);
            assert_eq!(times, 1, "document {id} came {times} times");
        }
        if self.order == Order::Sorted {
            assert!(self.found.is_sorted(), "out of order: {:?}", self.found);
        }
    }
}

/// An index key, and the id that makes it unique.
fn place(position: u8, id: u32) -> Position {
    let mut bytes = vec![position];
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes
}

fn world(owners: &[usize], documents: &[(usize, u8)]) -> World {
    let owners: Vec<&'static str> = owners.iter().map(|owner| SHARDS[*owner]).collect();
    let mut world = World::new(&owners);
    for (id, (slot, position)) in documents.iter().enumerate() {
        let document = Document {
            slot: slot % world.owners.len(),
            position: place(*position, id as u32),
        };
        world.documents.insert(id as u32, document);
    }
    world
}

/// Every order of up to four events between batches, in a world of three shards, four
/// ranges and six documents.
#[test]
fn all_small_worlds() {
    let documents = [(0, 10), (1, 20), (2, 30), (3, 40), (0, 50), (1, 60)];
    let mut events = vec![
        Event::Drain { from: 0, to: 2 },
        Event::Delete { id: 2 },
        Event::Reposition { id: 1, position: 5 },
        Event::Reposition {
            id: 1,
            position: 70,
        },
        Event::Resume,
    ];
    for to in 0..SHARDS.len() {
        for slot in 0..2 {
            events.push(Event::Move { slot, to });
        }
    }
    let choices = events.len() + 1;
    let mut runs = 0;
    for order in [Order::Sorted, Order::Unsorted] {
        // One event, or none, after each of the first four batches.
        for mut code in 0..choices.pow(4) {
            let mut run = Run::new(world(&[0, 1, 0, 1], &documents), order, 1);
            for step in 0..4 {
                run.step(step, 0);
                if let Some(event) = events.get(code % choices) {
                    run.happen(*event);
                }
                code /= choices;
            }
            run.finish();
            runs += 1;
        }
    }
    assert_eq!(runs, 2 * 12usize.pow(4));
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0usize..8, 0usize..3).prop_map(|(slot, to)| Event::Move { slot, to }),
        1 => (0usize..3, 0usize..3).prop_map(|(from, to)| Event::Drain { from, to }),
        1 => (40u32..60, 0usize..8, any::<u8>())
            .prop_map(|(id, slot, position)| Event::Insert { id, slot, position }),
        1 => (0u32..60).prop_map(|id| Event::Delete { id }),
        1 => (0u32..60, any::<u8>()).prop_map(|(id, position)| Event::Reposition { id, position }),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn large_worlds(
        sorted in any::<bool>(),
        owners in prop::collection::vec(0usize..3, 1..8),
        documents in prop::collection::vec((0usize..8, any::<u8>()), 0..40),
        happenings in prop::collection::vec((events(), 0usize..4, 0usize..3), 0..60),
        batch_max in 1usize..6,
    ) {
        let order = if sorted { Order::Sorted } else { Order::Unsorted };
        let mut run = Run::new(world(&owners, &documents), order, batch_max);
        for (event, chosen, held_back) in happenings {
            run.step(chosen, held_back);
            run.happen(event);
        }
        run.finish();
    }

    /// Skip and limit hold over all streams, and over tokens.
    #[test]
    fn windows(
        owners in prop::collection::vec(0usize..3, 1..8),
        documents in prop::collection::vec((0usize..8, any::<u8>()), 0..40),
        moves in prop::collection::vec((0usize..8, 0usize..3, any::<bool>()), 0..20),
        skip in 0u64..20,
        limit in prop::option::of(1u64..20),
    ) {
        let mut run = Run::new(world(&owners, &documents), Order::Sorted, 3);
        run.scan = Scan::begin(&run.base, &everything(), Order::Sorted).with_window(skip, limit);
        let mut expected: Vec<(Position, u32)> = run
            .world
            .documents
            .iter()
            .map(|(id, document)| (document.position.clone(), *id))
            .collect();
        expected.sort();
        let expected: Vec<_> = expected
            .into_iter()
            .skip(skip as usize)
            .take(limit.map_or(usize::MAX, |limit| limit as usize))
            .collect();
        for (slot, to, resume) in moves {
            run.step(0, 0);
            run.happen(Event::Move { slot, to });
            if resume {
                run.happen(Event::Resume);
            }
        }
        while run.step(0, 0) {}
        prop_assert_eq!(run.found, expected);
    }
}
