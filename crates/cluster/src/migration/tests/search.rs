//! A small world of shards, and everything that can happen in it.
//!
//! Documents of donors and recipients are kept once and named by numbers, and so are messages: a state of the
//! world is a few dozen bytes, and what a document makes of an event is worked out once.

mod happening;
mod messages;

use super::super::donor::{self, Donor};
use super::super::recipient::{self, Recipient, Standing};
use super::super::*;
use super::{BEFORE, CHANGED, CHANGING, Extent, MOVES, Movement, RANGES, Rules, SHARDS};
use model::bson::ObjectId;
use model::ids::Uuid;
use model::range::KeyBound;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// What happened, for the story of a fault.
pub(super) type Step = String;

/// A shard's durable state, as far as one range is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Part {
    owns: bool,
    /// One bit for each write that it has.
    data: u8,
    /// One bit for each write whose retry it would answer.
    history: u8,
    /// Writes to the range in its log.
    position: u8,
    /// A range deletion is registered: what is here is not live.
    has_deletion: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Shard {
    parts: [Part; RANGES],
    /// Counts the commits up to the newest that it has learned of, which is the version it calls its own.
    known: u8,
    has_index: bool,
}

/// The number of a document among all that were ever seen; zero: there is none.
type Number = u16;

/// What became of a move: nothing yet, aborted, or so many commits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Fate {
    #[default]
    Undecided,
    Aborted,
    Committed(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct World {
    shards: [Shard; SHARDS],
    /// One bit for each move.
    begun: u8,
    donors: [Number; MOVES],
    recipients: [Number; MOVES],
    /// What each recipient's shard had learned when that recipient began. ⚑ Not what it has learned since: that
    /// may be of a move that was decided later.
    known_at_begin: [u8; MOVES],
    fates: [Fate; MOVES],
    commits: u8,
    catalog: u8,
    /// Owners have the index that is being created.
    owners_told: bool,
    /// By number in the list of all messages ever seen.
    network: u128,
    written: u8,
    acknowledged: [u8; RANGES],
    /// How often somebody was impatient, or gave up.
    disturbances: u8,
}

/// Of what differs most: millions of states are looked up.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let numbers = self.donors.into_iter().chain(self.recipients);
        let documents = numbers.fold(0, |all: u64, number| all << 10 ^ u64::from(number));
        let [a, b, c] = self.shards.map(|shard| {
            let [one, other] = shard.parts.map(|part| {
                let flags = u64::from(part.owns) | u64::from(part.has_deletion) << 1;
                flags | u64::from(part.data) << 2 | u64::from(part.history) << 5
            });
            one | other << 8 | u64::from(shard.known) << 16
        });
        let shards = a | b << 18 | c << 36 | u64::from(self.written) << 54;
        let network = self.network as u64 ^ (self.network >> 64) as u64;
        let mixed = [documents, shards, network]
            .into_iter()
            .fold(0, |all: u64, part| {
                (all.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
        state.write_u64(mixed);
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Message {
    Sent(Send),
    Decided(usize, Outcome),
    Refused(usize),
    CatalogChanged(usize, u64, u64),
}

fn number_of(id: OperationId) -> usize {
    id.0[0].into()
}

fn digest(data: u8) -> Digest {
    Digest {
        documents: data.count_ones().into(),
        sum: data.into(),
    }
}

/// The version after so many commits.
fn version(commits: u8) -> PlacementVersion {
    PlacementVersion {
        incarnation: Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::ZERO,
        },
        chunk: ChunkVersion::new(commits.into(), 0),
    }
}

fn outcome(fate: Fate) -> Option<Outcome> {
    match fate {
        Fate::Undecided => None,
        Fate::Aborted => Some(Outcome::Aborted),
        Fate::Committed(commits) => Some(Outcome::Committed {
            version: version(commits),
            since: ClusterTime::new(commits.into(), 0),
        }),
    }
}

fn commits(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Committed { version, .. } => version.chunk.major as u8,
        Outcome::Aborted => 0,
    }
}

/// Values by numbers, from one on.
struct Numbered<T> {
    values: Vec<T>,
    numbers: HashMap<T, Number>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    fn number(&mut self, value: Option<T>) -> Number {
        let Some(value) = value else { return 0 };
        let next = self.values.len() as Number + 1;
        let number = *self.numbers.entry(value.clone()).or_insert(next);
        if number == next {
            self.values.push(value);
        }
        number
    }

    fn get(&self, number: Number) -> Option<&T> {
        self.values.get(usize::from(number).checked_sub(1)?)
    }
}

/// What an event leads to, in numbers.
#[derive(Clone, Copy)]
struct Led {
    next: Number,
    send: u128,
}

pub(super) struct Search {
    rules: Rules,
    extent: &'static Extent,
    messages: Vec<Rc<Message>>,
    numbers: HashMap<Message, usize>,
    donors: Numbered<Donor>,
    recipients: Numbered<Recipient>,
    donor_steps: HashMap<(Number, donor::Event), Option<Led>>,
    recipient_steps: HashMap<(Number, recipient::Event, u8), Option<Led>>,
    /// The same by the place of a message.
    received_steps: HashMap<(Number, usize, u8), Option<Led>>,
}

impl Search {
    pub(super) fn new(rules: Rules, extent: &'static Extent) -> Self {
        Self {
            rules,
            extent,
            messages: Vec::new(),
            numbers: HashMap::new(),
            donors: Numbered::new(),
            recipients: Numbered::new(),
            donor_steps: HashMap::new(),
            recipient_steps: HashMap::new(),
            received_steps: HashMap::new(),
        }
    }

    pub(super) fn first(&self) -> World {
        let mut world = World::default();
        for (range, owner) in self.extent.owners.iter().enumerate() {
            let part = &mut world.shards[*owner].parts[range];
            part.owns = true;
            if self.extent.is_filled {
                let bit = 1 << world.written;
                world.written += 1;
                world.acknowledged[range] = bit;
                (part.data, part.history) = (bit, bit);
            }
        }
        world
    }

    fn movement(&self, number: usize) -> Movement {
        self.extent.moves[number]
    }

    fn moves(&self) -> usize {
        self.extent.moves.len()
    }

    fn ranges(&self) -> usize {
        self.extent.owners.len()
    }

    /// As the protocol is told of it.
    fn moved(&self, number: usize, catalog: u8) -> Move {
        let shard = |number: usize| ShardId::new(["A", "B", "C"][number]);
        let Movement { range, from, to } = self.movement(number);
        let bound = |number: usize| KeyBound::new(&[number as u8 + 1]);
        Move {
            id: Uuid([number as u8; 16]),
            range: KeyRange::new(bound(range), bound(range + 1)),
            from: shard(from),
            to: shard(to),
            catalog: catalog.into(),
        }
    }

    fn message(&mut self, message: Message) -> u128 {
        // Says nothing that a donor does not find out by itself here: see `donor_events`.
        if matches!(
            message,
            Message::Sent(Send::Donor(ToDonor::Progress { .. }))
        ) {
            return 0;
        }
        let next = self.messages.len();
        let number = *self.numbers.entry(message.clone()).or_insert(next);
        if number == next {
            self.messages.push(Rc::new(message));
            assert!(next < 128, "more messages than the network has room for");
        }
        1 << number
    }

    fn sent(&mut self, send: Vec<Send>) -> u128 {
        let sent = send.into_iter().map(Message::Sent);
        sent.fold(0, |all, message| all | self.message(message))
    }

    fn donor_step(&mut self, number: Number, event: donor::Event) -> Option<Led> {
        let key = (number, event);
        if let Some(known) = self.donor_steps.get(&key) {
            return *known;
        }
        let stepped = self.donors.get(number)?.step(key.1.clone());
        let led = stepped.map(|transition| self.led_donor(transition));
        self.donor_steps.insert(key, led);
        led
    }

    fn led_donor(&mut self, transition: Transition<Donor>) -> Led {
        Led {
            next: self.donors.number(transition.next),
            send: self.sent(transition.send),
        }
    }

    fn recipient_step(
        &mut self,
        number: Number,
        event: recipient::Event,
        known: u8,
    ) -> Option<Led> {
        let key = (number, event, known);
        if let Some(known) = self.recipient_steps.get(&key) {
            return *known;
        }
        let stepped = (self.recipients.get(number)?).step(key.1.clone(), version(known));
        let led = stepped.map(|transition| self.led_recipient(transition));
        self.recipient_steps.insert(key, led);
        led
    }

    fn led_recipient(&mut self, transition: Transition<Recipient>) -> Led {
        Led {
            next: self.recipients.number(transition.next),
            send: self.sent(transition.send),
        }
    }

    fn donor(&self, world: &World, number: usize) -> Option<&Donor> {
        self.donors.get(world.donors[number])
    }

    fn recipient(&self, world: &World, number: usize) -> Option<&Recipient> {
        self.recipients.get(world.recipients[number])
    }

    /// The donor of a range on a shard; it has one at most.
    fn donor_on(&self, world: &World, shard: usize, range: usize) -> Option<&Donor> {
        let here = |number: &usize| {
            let moved = self.movement(*number);
            moved.from == shard && moved.range == range
        };
        let mut all = (0..self.moves()).filter(here);
        all.find_map(|number| self.donor(world, number))
    }

    /// Everything that can happen next. Told what it is called only if somebody wants to know.
    pub(super) fn successors(
        &mut self,
        world: &World,
        next: &mut Vec<World>,
        mut told: Option<&mut Vec<Step>>,
    ) {
        let mut all = Next {
            next,
            told: told.take(),
        };
        self.begin(world, &mut all);
        self.index(world, &mut all);
        for number in 0..self.messages.len() {
            if world.network & (1 << number) != 0 {
                self.deliver(world, number, &mut all);
            }
        }
        for number in 0..self.moves() {
            self.donor_events(world, number, &mut all);
            self.recipient_events(world, number, &mut all);
        }
        for shard in 0..SHARDS {
            for range in 0..self.ranges() {
                self.client(world, shard, range, &mut all);
                self.deletion(world, shard, range, &mut all);
            }
        }
    }

    fn serves_writes(&self, world: &World, shard: usize, range: usize) -> bool {
        let donor = self.donor_on(world, shard, range);
        world.shards[shard].parts[range].owns && !donor.is_some_and(Donor::blocks_writes)
    }

    fn serves_reads(&self, world: &World, shard: usize, range: usize) -> bool {
        let donor = self.donor_on(world, shard, range);
        let blocked = donor.is_some_and(Donor::blocks_reads);
        world.shards[shard].parts[range].owns && !(blocked && self.rules.reads_are_blocked)
    }

    /// What is wrong with a state, if anything.
    pub(super) fn fault(&self, world: &World) -> Option<String> {
        for range in 0..self.ranges() {
            let writers = (0..SHARDS).filter(|shard| self.serves_writes(world, *shard, range));
            if writers.count() > 1 {
                return Some(format!("two shards accept writes to range {range}"));
            }
            let acknowledged = world.acknowledged[range];
            let parts = world.shards.iter().map(|shard| shard.parts[range]);
            let kept = parts.filter(|part| !part.has_deletion);
            let missing = acknowledged & !kept.fold(0, |all, part| all | part.data);
            if missing != 0 {
                return Some(format!("no shard keeps write {missing}"));
            }
            for shard in 0..SHARDS {
                let Shard {
                    parts,
                    known,
                    has_index,
                } = world.shards[shard];
                let lost = acknowledged & !parts[range].data;
                let serves_reads = self.serves_reads(world, shard, range);
                if serves_reads && lost != 0 {
                    return Some(format!("a read on {shard} misses write {lost}"));
                }
                // Whoever got no answer to a write asks again.
                let forgotten = acknowledged & !parts[range].history;
                if self.serves_writes(world, shard, range) && forgotten != 0 {
                    return Some(format!("a retry of {forgotten} on {shard} writes again"));
                }
                if serves_reads && world.catalog == CHANGED && !has_index {
                    return Some(format!("the index is missing on {shard}"));
                }
                // Routers name the version, not the ranges.
                if !parts[range].owns && self.owner_at(world, range, known) == shard {
                    return Some(format!(
                        "with version {known}, which {shard} calls its own, nobody finds range {range} there"
                    ));
                }
            }
        }
        None
    }
}

/// Where successors go.
struct Next<'a> {
    next: &'a mut Vec<World>,
    told: Option<&'a mut Vec<Step>>,
}

impl Next<'_> {
    fn push(&mut self, world: World, step: impl FnOnce() -> Step) {
        self.next.push(world);
        if let Some(told) = &mut self.told {
            told.push(step());
        }
    }
}
