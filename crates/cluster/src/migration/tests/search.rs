//! A small world of shards, and everything that can happen in it.
//!
//! Documents of donors and recipients are kept once and named by numbers, and so are messages: a state of the
//! world is a few dozen bytes, and what a document makes of an event is worked out once.

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
                flags | u64::from(part.data) << 2 | u64::from(part.history) << 4
            });
            one | other << 6 | u64::from(shard.known) << 12
        });
        let shards = a | b << 15 | c << 30 | u64::from(self.written) << 45;
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

    fn begin(&mut self, world: &World, next: &mut Next<'_>) {
        if world.catalog == CHANGING {
            return;
        }
        for number in 0..self.moves() {
            let Movement { range, from, .. } = self.movement(number);
            // Those of one range in their order: to and fro.
            let earlier = (0..number).filter(|earlier| self.movement(*earlier).range == range);
            let follows = earlier.fold(true, |all, earlier| {
                all && world.begun & (1 << earlier) != 0
            });
            let here = world.shards[from].parts[range];
            let is_free = self.donor_on(world, from, range).is_none();
            if world.begun & (1 << number) != 0 || !follows || !here.owns || !is_free {
                continue;
            }
            let mut after = *world;
            after.begun |= 1 << number;
            let moved = self.moved(number, world.catalog);
            let transition = Donor::begin(moved, here.position.into());
            let led = self.led_donor(transition);
            self.apply_donor(&mut after, number, led);
            next.push(after, || format!("move {number} begins"));
        }
    }

    /// The operation that creates an index takes its next step.
    fn index(&mut self, world: &World, next: &mut Next<'_>) {
        if !self.extent.indexes || world.catalog == CHANGED {
            return;
        }
        let mut after = *world;
        let step = match (world.catalog, world.owners_told) {
            (BEFORE, _) => {
                after.catalog = CHANGING;
                "an index is announced"
            }
            (_, false) => {
                for range in 0..self.ranges() {
                    after.shards[self.owner_at(world, range, world.commits)].has_index = true;
                }
                after.owners_told = true;
                "the owner creates the index"
            }
            (_, true) => {
                after.catalog = CHANGED;
                "the index is there"
            }
        };
        next.push(after, || step.to_owned());
    }

    /// The version that the authority calls the standing one.
    fn standing(&self, world: &World) -> Option<u64> {
        let stands = world.catalog != CHANGING || !self.rules.changing_catalogs_stop_commits;
        stands.then_some(world.catalog.into())
    }

    /// Whether somebody may be impatient or give up once more.
    fn may_disturb(&self, world: &World) -> bool {
        let most = self.extent.disturbances;
        most.is_none_or(|most| world.disturbances < most)
    }

    /// Counts it, if it had any effect.
    fn disturbed(&self, world: &World, after: &mut World) {
        if self.extent.disturbances.is_some() && after != world {
            after.disturbances += 1;
        }
    }

    fn donor_events(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let Some(donor) = self.donor(world, number) else {
            return;
        };
        let (blocks_writes, blocks_reads) = (donor.blocks_writes(), donor.blocks_reads());
        let Movement { range, from, .. } = self.movement(number);
        let here = world.shards[from].parts[range];
        let drained = donor::Event::Drained {
            at: here.position.into(),
            digest: digest(here.data),
        };
        let almost = donor::Event::AlmostCaughtUp;
        let mut events = vec![almost, drained, donor::Event::Timer, donor::Event::Abort];
        let standing = self.standing(world);
        events.extend(standing.map(|catalog| donor::Event::CatalogStands { catalog }));
        for event in events {
            let mut after = *world;
            let step = || format!("donor of {number}: {event:?}");
            let disturbs = event == donor::Event::Abort;
            if disturbs && !self.may_disturb(world) {
                continue;
            }
            if disturbs && !self.rules.donor_settles && blocks_reads {
                let phase = donor::Phase::Aborted;
                let aborted = self.donor(world, number).cloned();
                let aborted = aborted.map(|donor| Donor { phase, ..donor });
                after.donors[number] = self.donors.number(aborted);
                next.push(after, step);
            } else if let Some(led) = self.donor_step(world.donors[number], event.clone()) {
                self.apply_donor(&mut after, number, led);
                if disturbs {
                    self.disturbed(world, &mut after);
                }
                next.push(after, step);
            }
        }
        if !self.rules.blocks_are_durable && blocks_writes {
            let mut after = *world;
            let (phase, since) = (donor::Phase::Copying, 0);
            let donor = self.donor(world, number).cloned();
            let forgotten = donor.map(|donor| Donor {
                phase,
                since,
                ..donor
            });
            after.donors[number] = self.donors.number(forgotten);
            next.push(after, || {
                format!("donor of {number} restarts and has forgotten")
            });
        }
    }

    fn recipient_events(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let Some(recipient) = self.recipient(world, number) else {
            return;
        };
        let (phase, aligned) = (recipient.phase, recipient.aligned);
        let catalog = recipient.moved.catalog;
        let Movement { range, from, to } = self.movement(number);
        let known = self.known(world, number);
        let source = world.shards[from].parts[range];
        let gives = self
            .donor(world, number)
            .is_some_and(|donor| !donor.has_given_away() && donor.phase != donor::Phase::Aborted);
        if matches!(phase, recipient::Phase::Receiving { .. }) && gives {
            let mut after = *world;
            let part = &mut after.shards[to].parts[range];
            part.data = source.data;
            if self.rules.history_comes_too {
                part.history |= source.history;
            }
            let event = recipient::Event::Copied {
                up_to: source.position.into(),
                digest: digest(source.data),
            };
            if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, || format!("recipient of {number} copies"));
            }
        }
        let here = world.shards[to].parts[range];
        if !self.rules.copies_are_durable && !here.owns && here.data != 0 {
            let mut after = *world;
            after.shards[to].parts[range].data = 0;
            next.push(after, || {
                format!("recipient of {number} restarts and has less")
            });
        }
        // It looks at what the donor has once the version stands, and asks whether it still does.
        let may_align = Some(catalog) == self.standing(world)
            && (catalog != u64::from(CHANGING) || !self.rules.changing_catalogs_stop_commits);
        if may_align && aligned != Some(catalog) {
            let event = recipient::Event::Aligned { catalog };
            if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
                let mut after = *world;
                after.shards[to].has_index = world.shards[from].has_index;
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, || {
                    format!("recipient of {number} aligns with {catalog}")
                });
            }
        }
        for event in [recipient::Event::Timer, recipient::Event::Failed] {
            if !self.may_disturb(world) {
                continue;
            }
            let mut after = *world;
            let step = || format!("recipient of {number}: {event:?}");
            let alone = !self.rules.ready_recipient_never_aborts
                && phase == recipient::Phase::Ready
                && event == recipient::Event::Failed;
            if alone {
                let phase = recipient::Phase::Aborted;
                let aborted = self.recipient(world, number).cloned();
                let aborted = aborted.map(|recipient| Recipient { phase, ..recipient });
                let led = Led {
                    next: self.recipients.number(aborted),
                    send: 0,
                };
                self.apply_recipient(&mut after, number, led, 0);
                next.push(after, step);
            } else if let Some(led) =
                self.recipient_step(world.recipients[number], event.clone(), known)
            {
                self.apply_recipient(&mut after, number, led, 0);
                self.disturbed(world, &mut after);
                next.push(after, step);
            }
        }
        // Forgotten once the donor is done with it, although messages may be late.
        let ended = matches!(phase, recipient::Phase::Owner | recipient::Phase::Aborted);
        if ended && world.donors[number] == 0 {
            let mut after = *world;
            after.recipients[number] = 0;
            after.known_at_begin[number] = 0;
            next.push(after, || format!("recipient of {number} forgets it"));
        }
    }

    fn client(&mut self, world: &World, shard: usize, range: usize, next: &mut Next<'_>) {
        if world.written < self.extent.writes && self.serves_writes(world, shard, range) {
            let mut after = *world;
            let bit = 1 << after.written;
            after.written += 1;
            after.acknowledged[range] |= bit;
            let part = &mut after.shards[shard].parts[range];
            part.data |= bit;
            part.history |= bit;
            part.position += 1;
            next.push(after, || format!("write {bit} to range {range} on {shard}"));
        }
    }

    fn deletion(&mut self, world: &World, shard: usize, range: usize, next: &mut Next<'_>) {
        let here = world.shards[shard].parts[range];
        if !here.has_deletion || here.owns && self.rules.owned_ranges_are_not_deleted {
            return;
        }
        let mut after = *world;
        let part = &mut after.shards[shard].parts[range];
        part.data = 0;
        part.has_deletion = false;
        next.push(after, || format!("deletion of range {range} on {shard}"));
    }

    fn deliver(&mut self, world: &World, number: usize, next: &mut Next<'_>) {
        let message = self.messages[number].clone();
        let step = || format!("arrives: {message:?}");
        let mut after = *world;
        match &*message {
            Message::Sent(Send::Recipient(message)) => {
                self.recipient_hears(&mut after, number, message);
            }
            Message::Sent(Send::Donor(message)) => {
                let (id, event) = match *message {
                    ToDonor::Progress { .. } => return,
                    ToDonor::Ready { id, catalog } => {
                        let catalog = match self.rules.readiness_is_of_one_attempt {
                            true => catalog,
                            false => self.attempt(world, id),
                        };
                        (id, donor::Event::RecipientReady { catalog })
                    }
                    ToDonor::Cannot { id } => (id, donor::Event::RecipientCannot),
                    ToDonor::Released { id } => (id, donor::Event::RecipientReleased),
                };
                self.donor_hears(&mut after, number_of(id), event);
            }
            Message::Sent(Send::Authority(message)) => self.authority_hears(&mut after, message),
            &Message::Decided(number, outcome) => {
                if !self.waits_for_earlier(world, self.movement(number).from, outcome) {
                    self.donor_hears(&mut after, number, donor::Event::Decided(outcome));
                }
                // Whoever asked may be the recipient.
                let mut elsewhere = *world;
                let event = recipient::Event::Decided(outcome);
                self.decided_for_recipient(&mut elsewhere, number, event, outcome);
                if elsewhere != *world {
                    next.push(elsewhere, || format!("{}, at the recipient", step()));
                }
            }
            &Message::Refused(number) => {
                self.donor_hears(&mut after, number, donor::Event::CommitRefused);
            }
            &Message::CatalogChanged(number, known, now) => {
                let event = donor::Event::CatalogChanged { known, now };
                self.donor_hears(&mut after, number, event);
            }
        }
        if after != *world {
            next.push(after, step);
        }
    }

    /// ⚑ Whether a shard that hears of a commit has to learn of an earlier one first: of a range that it has
    /// said to be ready for. It asks the authority about those. What is undecided then will be decided later,
    /// with a newer version, so that asking and writing need not be one step.
    fn waits_for_earlier(&self, world: &World, shard: usize, outcome: Outcome) -> bool {
        let learned = commits(outcome);
        self.rules.commits_are_learned_in_order
            && (0..self.moves()).any(|other| {
                let is_ready = |it: &Recipient| it.phase == recipient::Phase::Ready;
                self.movement(other).to == shard
                    && self.recipient(world, other).is_some_and(is_ready)
                    && matches!(world.fates[other], Fate::Committed(earlier) if earlier < learned)
            })
    }

    /// The version of the catalog that a donor is at.
    fn attempt(&self, world: &World, id: OperationId) -> u64 {
        let donor = self.donor(world, number_of(id));
        donor.map_or(BEFORE.into(), |donor| donor.moved.catalog)
    }

    fn donor_hears(&mut self, world: &mut World, number: usize, event: donor::Event) {
        if let Some(led) = self.donor_step(world.donors[number], event) {
            self.apply_donor(world, number, led);
        }
    }

    fn decided_for_recipient(
        &mut self,
        world: &mut World,
        number: usize,
        event: recipient::Event,
        outcome: Outcome,
    ) {
        if self.waits_for_earlier(world, self.movement(number).to, outcome) {
            return;
        }
        let known = self.known(world, number);
        if let Some(led) = self.recipient_step(world.recipients[number], event, known) {
            self.apply_recipient(world, number, led, commits(outcome));
        }
    }

    /// `place` is that of the message among all messages.
    fn recipient_hears(&mut self, world: &mut World, place: usize, message: &ToRecipient) {
        let id = match message {
            ToRecipient::Receive { moved, .. } => moved.id,
            ToRecipient::Finish { id, .. } | ToRecipient::Release { id, .. } => *id,
        };
        let number = number_of(id);
        let Movement { range, to, .. } = self.movement(number);
        let here = world.shards[to].parts[range];
        let known = self.known(world, number);
        let there = self.recipient(world, number);
        let attempt = there.map(|recipient| recipient.moved.catalog);
        let led = match (attempt, message) {
            (None, ToRecipient::Receive { moved, since }) => {
                let standing = if here.owns && self.rules.owned_ranges_are_not_received {
                    Standing::Owns
                } else if here.has_deletion {
                    Standing::HoldsDeadData
                } else {
                    Standing::Empty
                };
                let begun = Recipient::begin(moved.clone(), *since, standing);
                if begun.as_ref().is_some_and(|begun| begun.next.is_some()) {
                    world.known_at_begin[number] = world.shards[to].known;
                }
                begun.map(|begun| self.led_recipient(begun))
            }
            // Of a move that is forgotten here: it has ended.
            (None, ToRecipient::Release { .. }) => {
                let send = self.sent(vec![Send::Donor(ToDonor::Released { id })]);
                Some(Led { next: 0, send })
            }
            (None, ToRecipient::Finish { .. }) => {
                let send = self.sent(vec![Send::Donor(ToDonor::Cannot { id })]);
                Some(Led { next: 0, send })
            }
            (
                Some(attempt),
                &ToRecipient::Finish {
                    catalog,
                    up_to,
                    digest: wanted,
                    ..
                },
            ) => {
                let found = digest(here.data);
                let catalog = match self.rules.readiness_is_of_one_attempt {
                    true => catalog,
                    false => attempt,
                };
                let (up_to, wanted) = match self.rules.ready_means_all_of_it {
                    true => (up_to, wanted),
                    false => (0, found),
                };
                let event = recipient::Event::Finish {
                    catalog,
                    up_to,
                    wanted,
                    found,
                };
                self.recipient_step(world.recipients[number], event, known)
            }
            (Some(_), &ToRecipient::Release { id, outcome }) => {
                let event = recipient::Event::Message(ToRecipient::Release { id, outcome });
                return self.decided_for_recipient(world, number, event, outcome);
            }
            (Some(_), ToRecipient::Receive { .. }) => {
                let key = (world.recipients[number], place, known);
                match self.received_steps.get(&key) {
                    Some(led) => *led,
                    None => {
                        let event = recipient::Event::Message(message.clone());
                        let led = self.recipient_step(key.0, event, known);
                        self.received_steps.insert(key, led);
                        led
                    }
                }
            }
        };
        if let Some(led) = led {
            self.apply_recipient(world, number, led, 0);
        }
    }

    /// What a recipient goes by to tell an old commit.
    fn known(&self, world: &World, number: usize) -> u8 {
        match self.rules.old_commits_are_told_by_version {
            true => world.known_at_begin[number],
            false => 0,
        }
    }

    /// Who owns a range after so many commits.
    fn owner_at(&self, world: &World, range: usize, commits: u8) -> usize {
        let mut owner = (0, self.extent.owners[range]);
        for (number, moved) in self.extent.moves.iter().enumerate() {
            match world.fates[number] {
                Fate::Committed(at) if moved.range == range && at <= commits && at > owner.0 => {
                    owner = (at, moved.to);
                }
                Fate::Committed(_) | Fate::Aborted | Fate::Undecided => {}
            }
        }
        owner.1
    }

    /// The authority of `crate::authority`, as small as it can be.
    fn authority_hears(&mut self, world: &mut World, message: &ToAuthority) {
        let (number, answer) = match message {
            ToAuthority::Settle { id } => {
                let number = number_of(*id);
                if world.fates[number] == Fate::Undecided {
                    world.fates[number] = Fate::Aborted;
                }
                (number, None)
            }
            ToAuthority::Commit { moved } => {
                let number = number_of(moved.id);
                let Movement { range, from, .. } = self.movement(number);
                let owner = self.owner_at(world, range, world.commits);
                let answer = match world.fates[number] {
                    Fate::Committed(_) => None,
                    Fate::Aborted if self.rules.outcomes_are_final => {
                        Some(Message::Refused(number))
                    }
                    _ if owner != from => Some(Message::Refused(number)),
                    _ if self.rules.commits_compare_catalogs
                        && self.standing(world) != Some(moved.catalog) =>
                    {
                        let (known, now) = (moved.catalog, world.catalog.into());
                        Some(Message::CatalogChanged(number, known, now))
                    }
                    Fate::Undecided | Fate::Aborted => {
                        world.commits += 1;
                        world.fates[number] = Fate::Committed(world.commits);
                        None
                    }
                };
                (number, answer)
            }
        };
        let answer = answer.or_else(|| {
            let outcome = outcome(world.fates[number]);
            outcome.map(|outcome| Message::Decided(number, outcome))
        });
        if let Some(answer) = answer {
            world.network |= self.message(answer);
        }
    }

    fn apply_donor(&mut self, world: &mut World, number: usize, led: Led) {
        let Movement { range, from, .. } = self.movement(number);
        let gave_away = |donor: Option<&Donor>| donor.is_some_and(Donor::has_given_away);
        let before = gave_away(self.donor(world, number));
        world.donors[number] = led.next;
        if let Some(Donor {
            phase: donor::Phase::Committed(outcome),
            ..
        }) = self.donor(world, number)
            && !before
        {
            // In the same entry: not owned any more, and to be deleted.
            let here = &mut world.shards[from];
            here.parts[range].owns = false;
            here.parts[range].has_deletion = true;
            here.known = here.known.max(commits(*outcome));
        }
        world.network |= led.send;
    }

    /// `learned` counts the commits of the decision that this was about.
    fn apply_recipient(&mut self, world: &mut World, number: usize, led: Led, learned: u8) {
        let Movement { range, to, .. } = self.movement(number);
        let phase = |world: &World| self.recipient(world, number).map(|it| it.phase);
        let before = phase(world);
        if led.next != 0 {
            world.recipients[number] = led.next;
        }
        let after = phase(world);
        if before != after {
            let here = &mut world.shards[to];
            match after {
                Some(recipient::Phase::Owner) => {
                    here.parts[range].owns = true;
                    here.known = here.known.max(learned);
                }
                Some(recipient::Phase::Aborted) => here.parts[range].has_deletion = true,
                Some(recipient::Phase::Receiving { .. } | recipient::Phase::Ready) | None => {}
            }
        }
        world.network |= led.send;
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
