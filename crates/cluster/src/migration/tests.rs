//! Every interleaving of a small world: two shards, the authority, a client, one range
//! that moves and moves back, messages that are lost, repeated and late, primaries that
//! change at any moment.
//!
//! Messages are never taken out of the network: whatever was sent once may be delivered
//! at any later time, any number of times, or never. States that were seen are not
//! visited again, so the search is complete.
//!
//! In a second world, with one move and one write, an index is created at some time: the authority says so,
//! tells whoever owns the range then, and says that it is over.

use super::donor::{self, Donor};
use super::recipient::{self, Recipient, Standing};
use super::*;
use model::bson::ObjectId;
use model::ids::Uuid;
use model::range::KeyBound;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::collections::{HashMap, HashSet, VecDeque};

/// The rules that can be switched off, to see that something then finds out.
#[derive(Clone, Copy)]
struct Rules {
    blocks_are_durable: bool,
    reads_are_blocked: bool,
    ready_means_all_of_it: bool,
    ready_recipient_never_aborts: bool,
    donor_settles: bool,
    outcomes_are_final: bool,
    owned_ranges_are_not_received: bool,
    owned_ranges_are_not_deleted: bool,
    old_commits_are_told_by_version: bool,
    commits_compare_catalogs: bool,
    changing_catalogs_stop_commits: bool,
    readiness_is_of_one_attempt: bool,
    copies_are_durable: bool,
    history_comes_too: bool,
}

const ALL_RULES: Rules = Rules {
    blocks_are_durable: true,
    reads_are_blocked: true,
    ready_means_all_of_it: true,
    ready_recipient_never_aborts: true,
    donor_settles: true,
    outcomes_are_final: true,
    owned_ranges_are_not_received: true,
    owned_ranges_are_not_deleted: true,
    old_commits_are_told_by_version: true,
    commits_compare_catalogs: true,
    changing_catalogs_stop_commits: true,
    readiness_is_of_one_attempt: true,
    copies_are_durable: true,
    history_comes_too: true,
};

const SHARDS: usize = 2;
const MOVES: usize = 2;

/// How much happens in a world.
#[derive(Clone, Copy)]
struct Extent {
    moves: usize,
    writes: u8,
    /// Whether an index is created at some time.
    indexes: bool,
}

const MOVES_ALONE: Extent = Extent {
    moves: MOVES,
    writes: 2,
    indexes: false,
};
const WITH_INDEXES: Extent = Extent {
    moves: 1,
    writes: 1,
    indexes: true,
};

/// The catalog's versions: before the index, while it is created, and from then on.
const BEFORE: u64 = 0;
const CHANGING: u64 = 1;
const CHANGED: u64 = 2;

/// A shard's durable state, as far as the range is concerned.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Shard {
    owns: bool,
    /// One bit for each write that it has.
    data: u8,
    /// One bit for each write whose retry it would answer.
    history: u8,
    /// Writes to the range in its log.
    position: LogPosition,
    /// A range deletion is registered: what is here is not live.
    has_deletion: bool,
    /// Counts the commits up to the newest that it has learned of.
    known: u32,
    has_index: bool,
    donor: Option<Donor>,
    recipients: [Option<Recipient>; MOVES],
}

impl Shard {
    /// Becoming the owner, a shard learns the version of the commit.
    fn learn(&mut self, transition: &Transition<Recipient>, commits: u32) {
        if transition.next.as_ref().is_some_and(Recipient::owns) {
            self.known = self.known.max(commits);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    shards: [Shard; SHARDS],
    begun: usize,
    outcomes: [Option<Outcome>; MOVES],
    authority_owner: usize,
    commits: u32,
    catalog: u64,
    /// Owners have the index that is being created.
    owners_told: bool,
    /// By number in the list of all messages ever seen.
    network: u128,
    written: u8,
    acknowledged: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Message {
    Sent(Send),
    Decided(usize, Outcome),
    Refused(usize),
    CatalogChanged(usize, u64, u64),
}

/// The first move goes from shard 0 to 1, the second one back.
fn movement(number: usize) -> Move {
    let shard = |number: usize| ShardId::new(if number == 0 { "A" } else { "B" });
    Move {
        id: Uuid([number as u8; 16]),
        range: KeyRange::new(KeyBound::new(&[1]), KeyBound::new(&[2])),
        from: shard(number % 2),
        to: shard((number + 1) % 2),
        catalog: BEFORE,
    }
}

fn number_of(id: OperationId) -> usize {
    id.0[0].into()
}

fn giver(number: usize) -> usize {
    number % 2
}

fn taker(number: usize) -> usize {
    (number + 1) % 2
}

fn digest(data: u8) -> Digest {
    Digest {
        documents: data.count_ones().into(),
        sum: data.into(),
    }
}

/// The version after so many commits.
fn version(commits: u32) -> PlacementVersion {
    PlacementVersion {
        incarnation: Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::ZERO,
        },
        chunk: ChunkVersion::new(commits, 0),
    }
}

fn commits(outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Committed { version, .. } => version.chunk.major,
        Outcome::Aborted => 0,
    }
}

/// What happened, for the story of a fault.
type Step = String;

struct Search {
    rules: Rules,
    extent: Extent,
    messages: Vec<Message>,
    numbers: HashMap<Message, usize>,
}

impl Search {
    fn number(&mut self, message: Message) -> u128 {
        let next = self.messages.len();
        let number = *self.numbers.entry(message.clone()).or_insert(next);
        if number == next {
            self.messages.push(message);
            assert!(
                next < 128,
                "more kinds of messages than the network has room for"
            );
        }
        1 << number
    }

    fn send(&mut self, world: &mut World, send: Vec<Send>) {
        for message in send {
            world.network |= self.number(Message::Sent(message));
        }
    }

    /// Everything that can happen next.
    fn successors(&mut self, world: &World) -> Vec<(Step, World)> {
        let mut next = Vec::new();
        self.begin(world, &mut next);
        self.index(world, &mut next);
        for number in 0..self.messages.len() {
            if world.network & (1 << number) != 0 {
                self.deliver(world, number, &mut next);
            }
        }
        for shard in 0..SHARDS {
            self.donor_events(world, shard, &mut next);
            self.recipient_events(world, shard, &mut next);
            self.client(world, shard, &mut next);
            self.deletion(world, shard, &mut next);
        }
        next
    }

    fn begin(&mut self, world: &World, next: &mut Vec<(Step, World)>) {
        let number = world.begun;
        if number == self.extent.moves || world.catalog == CHANGING {
            return;
        }
        let from = &world.shards[giver(number)];
        if from.owns && from.donor.is_none() {
            let mut after = world.clone();
            after.begun += 1;
            let moved = Move {
                catalog: world.catalog,
                ..movement(number)
            };
            let transition = Donor::begin(moved, from.position);
            self.apply_donor(&mut after, giver(number), transition);
            next.push((format!("move {number} begins"), after));
        }
    }

    /// The operation that creates an index takes its next step.
    fn index(&mut self, world: &World, next: &mut Vec<(Step, World)>) {
        if !self.extent.indexes || world.catalog == CHANGED {
            return;
        }
        let mut after = world.clone();
        let step = match (world.catalog, world.owners_told) {
            (BEFORE, _) => {
                after.catalog = CHANGING;
                "an index is announced"
            }
            (_, false) => {
                after.shards[world.authority_owner].has_index = true;
                after.owners_told = true;
                "the owner creates the index"
            }
            (_, true) => {
                after.catalog = CHANGED;
                "the index is there"
            }
        };
        next.push((step.to_owned(), after));
    }

    /// The version that the authority calls the standing one.
    fn standing(&self, world: &World) -> Option<u64> {
        let stands = world.catalog != CHANGING || !self.rules.changing_catalogs_stop_commits;
        stands.then_some(world.catalog)
    }

    fn donor_events(&mut self, world: &World, shard: usize, next: &mut Vec<(Step, World)>) {
        let Some(donor) = &world.shards[shard].donor else {
            return;
        };
        let here = &world.shards[shard];
        let drained = donor::Event::Drained {
            at: here.position,
            digest: digest(here.data),
        };
        let almost = donor::Event::AlmostCaughtUp;
        let mut events = vec![almost, drained, donor::Event::Timer, donor::Event::Abort];
        let standing = self.standing(world);
        events.extend(standing.map(|catalog| donor::Event::CatalogStands { catalog }));
        for event in events {
            let mut after = world.clone();
            let step = format!("donor {shard}: {event:?}");
            if event == donor::Event::Abort && !self.rules.donor_settles && donor.blocks_reads() {
                let aborted = Donor {
                    phase: donor::Phase::Aborted,
                    ..donor.clone()
                };
                after.shards[shard].donor = Some(aborted);
                next.push((step, after));
            } else if let Some(transition) = donor.step(event) {
                self.apply_donor(&mut after, shard, transition);
                next.push((step, after));
            }
        }
        if !self.rules.blocks_are_durable && donor.blocks_writes() {
            let mut after = world.clone();
            after.shards[shard].donor = Some(Donor {
                phase: donor::Phase::Copying,
                since: 0,
                ..donor.clone()
            });
            next.push((format!("donor {shard} restarts and has forgotten"), after));
        }
    }

    fn recipient_events(&mut self, world: &World, shard: usize, next: &mut Vec<(Step, World)>) {
        for number in 0..MOVES {
            let Some(recipient) = &world.shards[shard].recipients[number] else {
                continue;
            };
            let source = &world.shards[giver(number)];
            let here_owns = world.shards[shard].owns;
            let is_donor = |donor: &Donor| {
                number_of(donor.moved.id) == number
                    && !donor.has_given_away()
                    && donor.phase != donor::Phase::Aborted
            };
            if matches!(recipient.phase, recipient::Phase::Receiving { .. })
                && source.donor.as_ref().is_some_and(is_donor)
            {
                let mut after = world.clone();
                after.shards[shard].data = source.data;
                if self.rules.history_comes_too {
                    after.shards[shard].history |= source.history;
                }
                let event = recipient::Event::Copied {
                    up_to: source.position,
                    digest: digest(source.data),
                };
                if let Some(transition) = recipient.step(event, self.known(world, shard)) {
                    self.apply_recipient(&mut after, shard, number, transition);
                    next.push((format!("recipient {shard} copies"), after));
                }
            }
            if !self.rules.copies_are_durable && !here_owns && world.shards[shard].data != 0 {
                let mut after = world.clone();
                after.shards[shard].data = 0;
                next.push((format!("recipient {shard} restarts and has less"), after));
            }
            // It looks at what the donor has once the version stands, and asks whether it still does.
            let catalog = recipient.moved.catalog;
            let may_align = Some(catalog) == self.standing(world)
                && (catalog != CHANGING || !self.rules.changing_catalogs_stop_commits);
            if may_align && recipient.aligned != Some(catalog) {
                let event = recipient::Event::Aligned { catalog };
                if let Some(transition) = recipient.step(event, self.known(world, shard)) {
                    let mut after = world.clone();
                    after.shards[shard].has_index = source.has_index;
                    self.apply_recipient(&mut after, shard, number, transition);
                    next.push((format!("recipient {shard} aligns with {catalog}"), after));
                }
            }
            for event in [recipient::Event::Timer, recipient::Event::Failed] {
                let mut after = world.clone();
                let step = format!("recipient {shard}: {event:?}");
                let alone = !self.rules.ready_recipient_never_aborts
                    && recipient.phase == recipient::Phase::Ready
                    && event == recipient::Event::Failed;
                if alone {
                    let aborted = Recipient {
                        phase: recipient::Phase::Aborted,
                        ..recipient.clone()
                    };
                    let transition = Transition::to(aborted, []);
                    self.apply_recipient(&mut after, shard, number, transition);
                    next.push((step, after));
                } else if let Some(transition) = recipient.step(event, self.known(world, shard)) {
                    self.apply_recipient(&mut after, shard, number, transition);
                    next.push((step, after));
                }
            }
            // Forgotten once the donor is done with it, although messages may be late.
            let ended = matches!(
                recipient.phase,
                recipient::Phase::Owner | recipient::Phase::Aborted
            );
            let donor_is_done = source
                .donor
                .as_ref()
                .is_none_or(|donor| number_of(donor.moved.id) != number);
            if ended && donor_is_done {
                let mut after = world.clone();
                after.shards[shard].recipients[number] = None;
                next.push((format!("recipient {shard} forgets move {number}"), after));
            }
        }
    }

    fn client(&mut self, world: &World, shard: usize, next: &mut Vec<(Step, World)>) {
        if world.written < self.extent.writes && self.serves_writes(world, shard) {
            let mut after = world.clone();
            let bit = 1 << after.written;
            after.written += 1;
            after.acknowledged |= bit;
            after.shards[shard].data |= bit;
            after.shards[shard].history |= bit;
            after.shards[shard].position += 1;
            next.push((format!("write {bit} on {shard}"), after));
        }
    }

    fn deletion(&mut self, world: &World, shard: usize, next: &mut Vec<(Step, World)>) {
        let here = &world.shards[shard];
        if !here.has_deletion || here.owns && self.rules.owned_ranges_are_not_deleted {
            return;
        }
        let mut after = world.clone();
        after.shards[shard].data = 0;
        after.shards[shard].has_deletion = false;
        next.push((format!("range deletion on {shard}"), after));
    }

    fn deliver(&mut self, world: &World, number: usize, next: &mut Vec<(Step, World)>) {
        let message = self.messages[number].clone();
        let step = format!("arrives: {message:?}");
        let mut after = world.clone();
        match message {
            Message::Sent(Send::Recipient(message)) => self.recipient_hears(&mut after, message),
            Message::Sent(Send::Donor(message)) => {
                let (id, event) = match message {
                    // When writes are blocked is the donor's choice: see `donor_events`.
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
            Message::Decided(number, outcome) => {
                self.donor_hears(&mut after, number, donor::Event::Decided(outcome));
                // Whoever asked may be the recipient.
                let mut elsewhere = world.clone();
                self.decided_for_recipient(&mut elsewhere, number, outcome);
                if elsewhere != *world {
                    next.push((format!("{step}, at the recipient"), elsewhere));
                }
            }
            Message::Refused(number) => {
                self.donor_hears(&mut after, number, donor::Event::CommitRefused);
            }
            Message::CatalogChanged(number, known, now) => {
                let event = donor::Event::CatalogChanged { known, now };
                self.donor_hears(&mut after, number, event);
            }
        }
        if after != *world {
            next.push((step, after));
        }
    }

    /// The version of the catalog that a donor is at.
    fn attempt(&self, world: &World, id: OperationId) -> u64 {
        let donor = world.shards[giver(number_of(id))].donor.as_ref();
        donor.map_or(BEFORE, |donor| donor.moved.catalog)
    }

    fn donor_hears(&mut self, world: &mut World, number: usize, event: donor::Event) {
        let shard = giver(number);
        let transition = world.shards[shard]
            .donor
            .as_ref()
            .filter(|donor| number_of(donor.moved.id) == number)
            .and_then(|donor| donor.step(event));
        if let Some(transition) = transition {
            self.apply_donor(world, shard, transition);
        }
    }

    fn decided_for_recipient(&mut self, world: &mut World, number: usize, outcome: Outcome) {
        let shard = taker(number);
        let known = self.known(world, shard);
        let event = recipient::Event::Decided(outcome);
        let recipient = world.shards[shard].recipients[number].as_ref();
        if let Some(transition) = recipient.and_then(|recipient| recipient.step(event, known)) {
            world.shards[shard].learn(&transition, commits(outcome));
            self.apply_recipient(world, shard, number, transition);
        }
    }

    fn recipient_hears(&mut self, world: &mut World, message: ToRecipient) {
        let id = match &message {
            ToRecipient::Receive { moved, .. } => moved.id,
            ToRecipient::Finish { id, .. } | ToRecipient::Release { id, .. } => *id,
        };
        let number = number_of(id);
        let shard = taker(number);
        let known = self.known(world, shard);
        let mut decided = 0;
        let here = &world.shards[shard];
        let transition = match (&here.recipients[number], message) {
            (None, ToRecipient::Receive { moved, since }) => {
                let standing = if here.owns && self.rules.owned_ranges_are_not_received {
                    Standing::Owns
                } else if here.has_deletion {
                    Standing::HoldsDeadData
                } else {
                    Standing::Empty
                };
                Recipient::begin(moved, since, standing)
            }
            // Of a move that is forgotten here: it has ended.
            (None, ToRecipient::Release { .. }) => Some(Transition {
                next: None,
                send: vec![Send::Donor(ToDonor::Released { id })],
            }),
            (None, ToRecipient::Finish { .. }) => Some(Transition {
                next: None,
                send: vec![Send::Donor(ToDonor::Cannot { id })],
            }),
            (
                Some(recipient),
                ToRecipient::Finish {
                    catalog,
                    up_to,
                    digest: wanted,
                    ..
                },
            ) => {
                let found = digest(here.data);
                let catalog = match self.rules.readiness_is_of_one_attempt {
                    true => catalog,
                    false => recipient.moved.catalog,
                };
                let event = match self.rules.ready_means_all_of_it {
                    true => recipient::Event::Finish {
                        catalog,
                        up_to,
                        wanted,
                        found,
                    },
                    false => recipient::Event::Finish {
                        catalog,
                        up_to: 0,
                        wanted: found,
                        found,
                    },
                };
                recipient.step(event, known)
            }
            (Some(recipient), message) => {
                if let ToRecipient::Release { outcome, .. } = &message {
                    decided = commits(*outcome);
                }
                recipient.step(recipient::Event::Message(message), known)
            }
        };
        if let Some(transition) = transition {
            world.shards[shard].learn(&transition, decided);
            self.apply_recipient(world, shard, number, transition);
        }
    }

    fn known(&self, world: &World, shard: usize) -> PlacementVersion {
        match self.rules.old_commits_are_told_by_version {
            true => version(world.shards[shard].known),
            false => version(0),
        }
    }

    /// The authority of `crate::authority`, as small as it can be.
    fn authority_hears(&mut self, world: &mut World, message: ToAuthority) {
        let (number, answer) = match message {
            ToAuthority::Settle { id } => {
                let number = number_of(id);
                let outcome = *world.outcomes[number].get_or_insert(Outcome::Aborted);
                (number, Message::Decided(number, outcome))
            }
            ToAuthority::Commit { moved } => {
                let number = number_of(moved.id);
                match world.outcomes[number] {
                    Some(outcome @ Outcome::Committed { .. }) => {
                        (number, Message::Decided(number, outcome))
                    }
                    Some(Outcome::Aborted) if self.rules.outcomes_are_final => {
                        (number, Message::Refused(number))
                    }
                    _ if world.authority_owner != giver(number) => {
                        (number, Message::Refused(number))
                    }
                    _ if self.rules.commits_compare_catalogs
                        && self.standing(world) != Some(moved.catalog) =>
                    {
                        let known = moved.catalog;
                        let changed = Message::CatalogChanged(number, known, world.catalog);
                        (number, changed)
                    }
                    _ => {
                        world.authority_owner = taker(number);
                        world.commits += 1;
                        let committed = Outcome::Committed {
                            version: version(world.commits),
                            since: ClusterTime::new(world.commits, 0),
                        };
                        world.outcomes[number] = Some(committed);
                        (number, Message::Decided(number, committed))
                    }
                }
            }
        };
        debug_assert!(number < MOVES);
        world.network |= self.number(answer);
    }

    fn apply_donor(&mut self, world: &mut World, shard: usize, transition: Transition<Donor>) {
        let here = &mut world.shards[shard];
        let gave_away = |donor: &Option<Donor>| donor.as_ref().is_some_and(Donor::has_given_away);
        let before = gave_away(&here.donor);
        if transition.next.is_some() || here.donor.is_some() {
            here.donor = transition.next;
        }
        if gave_away(&here.donor) && !before {
            // In the same entry: not owned any more, and to be deleted.
            here.owns = false;
            here.has_deletion = true;
            if let Some(donor::Phase::Committed(outcome)) = here.donor.as_ref().map(|d| d.phase) {
                here.known = here.known.max(commits(outcome));
            }
        }
        self.send(world, transition.send);
    }

    fn apply_recipient(
        &mut self,
        world: &mut World,
        shard: usize,
        number: usize,
        transition: Transition<Recipient>,
    ) {
        let here = &mut world.shards[shard];
        let before = here.recipients[number]
            .as_ref()
            .map(|recipient| recipient.phase);
        if transition.next.is_some() {
            here.recipients[number] = transition.next;
        }
        let after = here.recipients[number]
            .as_ref()
            .map(|recipient| recipient.phase);
        if before != after {
            match after {
                Some(recipient::Phase::Owner) => here.owns = true,
                Some(recipient::Phase::Aborted) => here.has_deletion = true,
                Some(recipient::Phase::Receiving { .. } | recipient::Phase::Ready) | None => {}
            }
        }
        self.send(world, transition.send);
    }

    fn serves_writes(&self, world: &World, shard: usize) -> bool {
        let here = &world.shards[shard];
        here.owns && !here.donor.as_ref().is_some_and(Donor::blocks_writes)
    }

    fn serves_reads(&self, world: &World, shard: usize) -> bool {
        let here = &world.shards[shard];
        let blocked = here.donor.as_ref().is_some_and(Donor::blocks_reads);
        here.owns && !(blocked && self.rules.reads_are_blocked)
    }

    /// What is wrong with a state, if anything.
    fn fault(&self, world: &World) -> Option<String> {
        let writers = (0..SHARDS).filter(|shard| self.serves_writes(world, *shard));
        if writers.count() > 1 {
            return Some("two shards accept writes".to_owned());
        }
        let kept = world.shards.iter().filter(|shard| !shard.has_deletion);
        let missing = world.acknowledged & !kept.fold(0, |all, shard| all | shard.data);
        if missing != 0 {
            return Some(format!("no shard keeps write {missing}"));
        }
        for shard in 0..SHARDS {
            let lost = world.acknowledged & !world.shards[shard].data;
            if self.serves_reads(world, shard) && lost != 0 {
                return Some(format!("a read on {shard} misses write {lost}"));
            }
            // Whoever got no answer to a write asks again.
            let forgotten = world.acknowledged & !world.shards[shard].history;
            if self.serves_writes(world, shard) && forgotten != 0 {
                return Some(format!("a retry of {forgotten} on {shard} writes again"));
            }
            let has_index = world.shards[shard].has_index;
            if self.serves_reads(world, shard) && world.catalog == CHANGED && !has_index {
                return Some(format!("the index is missing on {shard}"));
            }
        }
        None
    }
}

/// Visits every state; the story that leads to a fault, if there is one, and how many
/// states there are.
fn explore(rules: Rules, extent: Extent) -> (Option<Vec<Step>>, usize) {
    let mut search = Search {
        rules,
        extent,
        messages: Vec::new(),
        numbers: HashMap::new(),
    };
    let mut first = World {
        shards: Default::default(),
        begun: 0,
        outcomes: [None; MOVES],
        authority_owner: 0,
        commits: 0,
        catalog: BEFORE,
        owners_told: false,
        network: 0,
        written: 0,
        acknowledged: 0,
    };
    first.shards[0].owns = true;
    let mut seen: HashSet<World> = HashSet::from([first.clone()]);
    let mut states: Vec<(World, usize, Step)> = vec![(first, 0, "the beginning".to_owned())];
    let mut queue = VecDeque::from([0]);
    while let Some(at) = queue.pop_front() {
        let world = states[at].0.clone();
        if let Some(fault) = search.fault(&world) {
            let mut story = vec![fault];
            let mut place = at;
            while place != 0 {
                story.push(states[place].2.clone());
                place = states[place].1;
            }
            story.reverse();
            return (Some(story), seen.len());
        }
        for (step, next) in search.successors(&world) {
            if seen.insert(next.clone()) {
                states.push((next, at, step));
                queue.push_back(states.len() - 1);
            }
        }
    }
    (None, seen.len())
}

#[test]
fn nothing_is_lost_or_owned_twice_in_any_interleaving() {
    for extent in [MOVES_ALONE, WITH_INDEXES] {
        let (fault, states) = explore(ALL_RULES, extent);
        assert_eq!(fault, None);
        assert!(states > 10_000, "only {states} states were visited");
    }
}

/// ⚑ Each rule is needed: without it some interleaving goes wrong.
#[test]
fn every_rule_is_needed() {
    let check_in = |extent: Extent, name: &str, rules: Rules| {
        let (fault, states) = explore(rules, extent);
        assert!(
            fault.is_some(),
            "nothing noticed in {states} states without: {name}"
        );
    };
    let check = |name: &str, rules: Rules| check_in(MOVES_ALONE, name, rules);
    check(
        "blocks are durable",
        Rules {
            blocks_are_durable: false,
            ..ALL_RULES
        },
    );
    check(
        "reads are blocked before the decision is asked for",
        Rules {
            reads_are_blocked: false,
            ..ALL_RULES
        },
    );
    check(
        "ready means all of it",
        Rules {
            ready_means_all_of_it: false,
            ..ALL_RULES
        },
    );
    check(
        "a ready recipient never aborts alone",
        Rules {
            ready_recipient_never_aborts: false,
            ..ALL_RULES
        },
    );
    check(
        "a donor settles",
        Rules {
            donor_settles: false,
            ..ALL_RULES
        },
    );
    check(
        "outcomes are final",
        Rules {
            outcomes_are_final: false,
            ..ALL_RULES
        },
    );
    check(
        "old commits are told by their version",
        Rules {
            old_commits_are_told_by_version: false,
            ..ALL_RULES
        },
    );
    check(
        "what was copied survives the recipient's primary",
        Rules {
            copies_are_durable: false,
            ..ALL_RULES
        },
    );
    check(
        "the history of retryable writes comes with the range",
        Rules {
            history_comes_too: false,
            ..ALL_RULES
        },
    );
    // Either of these two is enough; without both, a late message deletes live data.
    check(
        "owned ranges are neither received nor deleted",
        Rules {
            owned_ranges_are_not_received: false,
            owned_ranges_are_not_deleted: false,
            ..ALL_RULES
        },
    );
    check_in(
        WITH_INDEXES,
        "commits compare versions of the catalog",
        Rules {
            commits_compare_catalogs: false,
            ..ALL_RULES
        },
    );
    check_in(
        WITH_INDEXES,
        "nothing is committed while the catalog changes",
        Rules {
            changing_catalogs_stop_commits: false,
            ..ALL_RULES
        },
    );
    check_in(
        WITH_INDEXES,
        "readiness is of one attempt",
        Rules {
            readiness_is_of_one_attempt: false,
            ..ALL_RULES
        },
    );
}
