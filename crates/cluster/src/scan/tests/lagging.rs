//! Members that lag behind: a shard answers as the world was some time ago.
//!
//! ```text
//!   time    0         1          2          3          4        │ the scan begins
//!   range 0 on A      on B       + one      back on A           │
//!   range 1 on B      on C       + one                          │
//!   range 2 on C                                       + one    │
//!   range 3 on A                                       + one    │
//! ```
//!
//! A member that stands at time 0 owns the first two ranges, without the documents that came later; one that stands at
//! time 3, when the base placement came to be, lacks the last two. Times are places in the world's history. Whoever is
//! asked to read at a time or later waits until it has come so far, and no longer.
//!
//! The promise is about what was there when the first answer was read, and at least when the base placement came to be.

use super::worlds::{place, world};
use super::*;
use std::collections::BTreeSet;

const SHARDS: [&str; 3] = ["A", "B", "C"];

/// What a router does without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    /// Later batches read at any time.
    Floor,
    /// A token does not hold the floor.
    TokenFloor,
    /// Ranges are asked for by name at any time, as long as nobody has answered.
    BaseTime,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Move {
        slot: usize,
        to: usize,
    },
    /// A chunk is split: the shard has another version.
    Split {
        shard: usize,
    },
    /// From now on the member that answers does not hear anything.
    Freeze {
        shard: usize,
    },
    /// From now on a member answers that stands where the base placement came to be.
    Lag {
        shard: usize,
    },
    Resume,
}

/// A moment: the world, and who has another version than in the base placement.
#[derive(Clone)]
struct Moment {
    world: World,
    changed: BTreeSet<&'static str>,
}

#[derive(Clone)]
struct Lagging {
    history: Vec<Arc<Moment>>,
    base: Arc<RoutingTable>,
    /// When the base placement came to be.
    base_time: usize,
    scan: Scan<u32>,
    /// How far members have come that lag.
    frozen: BTreeMap<&'static str, usize>,
    not_before: usize,
    without: Without,
    found: Vec<u32>,
    /// When the first answer was read.
    first: Option<usize>,
}

impl Lagging {
    /// `frozen` has not heard anything since the beginning.
    fn begin(order: Order, frozen: Option<&'static str>, without: Without) -> Lagging {
        let mut now = world(&[0, 1, 2, 0], &[(2, 30), (3, 40), (2, 50), (3, 60)]);
        let mut history = Vec::new();
        let mut happens = |change: &dyn Fn(&mut World)| {
            let (world, changed) = (now.clone(), BTreeSet::new());
            history.push(Arc::new(Moment { world, changed }));
            change(&mut now);
        };
        let insert = |world: &mut World, id: u32, slot, position| {
            let positions = vec![place(position, id)];
            world.documents.insert(id, Document { slot, positions });
        };
        happens(&|world| world.owners[..2].copy_from_slice(&["B", "C"]));
        happens(&|world| {
            insert(world, 10, 0, 45);
            insert(world, 11, 1, 55);
        });
        happens(&|world| world.owners[0] = "A");
        happens(&|world| {
            insert(world, 12, 2, 57);
            insert(world, 13, 3, 58);
        });
        happens(&|_| {});
        Lagging {
            base: Arc::new(now.table()),
            base_time: history.len() - 2,
            scan: begin(&now, order),
            frozen: frozen.map(|shard| (shard, 0)).into_iter().collect(),
            not_before: 0,
            without,
            found: Vec::new(),
            first: None,
            history,
        }
    }

    fn now(&self) -> &Moment {
        self.history.last().expect("there is always one")
    }

    fn happen(&mut self, event: Event) {
        let mut next = Moment::clone(self.now());
        match event {
            Event::Move { slot, to } => {
                let owner = &mut next.world.owners[slot];
                next.changed.extend([*owner, SHARDS[to]]);
                *owner = SHARDS[to];
            }
            Event::Split { shard } => {
                next.changed.insert(SHARDS[shard]);
            }
            Event::Freeze { shard } => {
                let now = self.history.len() - 1;
                self.frozen.entry(SHARDS[shard]).or_insert(now);
            }
            Event::Lag { shard } => {
                self.frozen.insert(SHARDS[shard], self.base_time);
            }
            Event::Resume => self.resume(),
        }
        self.history.push(Arc::new(next));
    }

    fn resume(&mut self) {
        let not_before = ClusterTime::new(self.not_before as u32, 0);
        if let Some(token) = self.scan.token(not_before) {
            let token = ScanToken::decode(&token.encode()).unwrap();
            self.not_before = match self.without {
                Without::TokenFloor => 0,
                _ => token.not_before.seconds() as usize,
            };
            self.scan = Scan::resume(token, self.base.clone(), everything()).unwrap();
        }
    }

    /// One question to whoever answers for the shard.
    fn ask(&mut self, question: &Question) {
        let shard = SHARDS
            .into_iter()
            .find(|name| *name == question.shard.as_str());
        let shard = shard.expect("one of ours");
        let names = matches!(question.asked, Asked::These(_));
        if names && self.without != Without::BaseTime {
            self.not_before = self.not_before.max(self.base_time);
        }
        // A version that is not known yet is waited for.
        let version = if names { 0 } else { self.base_time };
        let floor = match self.without {
            Without::Floor => version,
            _ => self.not_before.max(version),
        };
        let now = self.history.len() - 1;
        let time = self.frozen.get(shard).copied().unwrap_or(now).max(floor);
        let moment = &self.history[time];
        if !names && moment.changed.contains(shard) {
            return self.scan.name_ranges(question.stream);
        }
        let mut batch = moment.world.serve(question, &self.base, 1);
        let owners = &self.now().world.owners;
        for (range, owner) in &mut batch.moved {
            let slots = 0..owners.len();
            let holds = |slot: &usize| {
                let slot = RangeSet::of([slot_range(*slot, owners.len())]);
                slot.contains(range.min.as_bytes())
            };
            let slot = slots.into_iter().find(holds).expect("a range of the world");
            *owner = ShardId::new(owners[slot]);
        }
        if batch
            .moved
            .iter()
            .any(|(_, owner)| *owner == question.shard)
        {
            // It is said to be where it is not: the news are on their way.
            self.frozen.remove(shard);
            return self.scan.unanswered(question.stream);
        }
        self.scan.answered(question.stream, batch).unwrap();
        self.not_before = self.not_before.max(time);
        self.first.get_or_insert(time);
    }

    fn step(&mut self) -> bool {
        let mut questions = self.scan.questions();
        for other in questions.split_off(questions.len().min(1)) {
            self.scan.unanswered(other.stream);
        }
        if let Some(question) = questions.pop() {
            self.ask(&question);
        }
        self.found
            .extend(self.scan.deliver().map(|entry| entry.value));
        !self.scan.has_ended()
    }

    fn finish(mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1000, "the scan does not end");
        }
        let first = self.first.expect("an answer").max(self.base_time);
        let first = &self.history[first].world;
        for id in self.now().world.documents.keys() {
            let times = self.found.iter().filter(|found| *found == id).count();
            let may_be_new = !first.documents.contains_key(id);
            if times != 1 && !(may_be_new && times == 0) {
                return Err(format!("document {id} came {times} times"));
            }
        }
        Ok(())
    }
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::Resume];
    for to in 0..SHARDS.len() {
        events.extend((0..4).map(|slot| Event::Move { slot, to }));
        events.push(Event::Split { shard: to });
        events.push(Event::Freeze { shard: to });
        events.push(Event::Lag { shard: to });
    }
    events
}

fn all_from(run: &Lagging, depth: usize, events: &[Event]) -> Result<(), String> {
    if depth == 0 {
        return run.clone().finish();
    }
    let mut quiet = run.clone();
    quiet.step();
    all_from(&quiet, depth - 1, events)?;
    for event in events {
        // Before the next question, and so before the first one, too.
        let mut next = run.clone();
        next.happen(*event);
        next.step();
        let found = all_from(&next, depth - 1, events);
        found.map_err(|error| format!("{event:?}, then {error}"))?;
    }
    Ok(())
}

/// How many questions something may happen before. ⚑ As many as it takes to find out about each rule.
const DEPTH: usize = 3;

/// Everything that may happen before each of the first questions, whoever lags.
fn search(without: Without, depth: usize) -> Result<(), String> {
    let events = events();
    for order in [Order::Unsorted, Order::Sorted] {
        for frozen in [None, Some("A"), Some("B"), Some("C")] {
            let run = Lagging::begin(order, frozen, without);
            let found = all_from(&run, depth, &events);
            found.map_err(|error| format!("{order:?}, {frozen:?} lags: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn nothing_is_lost_while_members_lag() {
    assert_eq!(search(Without::Nothing, DEPTH), Ok(()));
}

/// What the search finds without a rule.
fn check_lost(without: Without) {
    let error = search(without, DEPTH).expect_err("nothing goes wrong without the rule");
    assert!(error.contains("came 0 times"), "{error}");
}

#[test]
fn later_batches_read_later() {
    check_lost(Without::Floor);
}

#[test]
fn tokens_hold_the_time_floor() {
    check_lost(Without::TokenFloor);
}

#[test]
fn named_ranges_are_read_at_the_base_placement_or_later() {
    check_lost(Without::BaseTime);
}
