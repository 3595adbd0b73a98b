//! Reads and writes by cluster time while a range moves: every interleaving of a small world with clocks and members.
//!
//! ```text
//!   donor's log      ┄ w1 ┄┄┄ writes blocked ┄┄┄┄ reads blocked B ─┐           ┌─ given away L
//!                        ╲                      ╱                  └► S > B ───┤
//!   recipient's log  ┄┄┄┄ copied ┄ copied R, ready                             └─ owns, from S on ┄ G ┄ w2
//! ```
//!
//! What must be true of every state, on whatever member of either shard, if it answers at all:
//! - A read after the time of a write that was acknowledged finds that write or a later one.
//! - A read at a time finds exactly what was written up to that time.
//!
//! The documents are the real [`Donor`] and [`Recipient`], and they change by their real steps; each change is an entry
//! of that shard's log. Messages are never taken out of the network: they may arrive at any later time, again, or never.
//! The catalog may change once, so that blocks are lifted and the move goes on with another attempt.
//!
//! Modelled by hand:
//! - *Times.* Each shard has its own: an entry's is later than that of the entry before it, and than what the shard has
//!   noted before it writes. A block notes when the recipient was ready; whoever hears of a decision notes the time it
//!   counts from. What is noted is not remembered otherwise: that is the worst a change of primary can do. Clocks that
//!   are ahead are first entries that are late ([`CLOCKS`]). Now and then a shard hears of a time of the other and writes
//!   an entry then (a *jump*). A reader may have had one written, too, so that he need not wait: wherever it would stand
//!   before what the shard has written next.
//! - *Members.* A member that lags has applied some beginning of its shard's log, whichever; a primary has applied what
//!   is majority-committed. So each state is asked on every beginning of both logs, and nobody needs to remember how far
//!   a member has come. An entry is written and majority-committed in one step where nobody is told of it in between: what
//!   a change of primary loses then is as if it had never been. The block of reads comes to be committed in a step of
//!   its own, or is lost with its primary.
//! - *What is served* (`reads.rs`): ownership and blocks as the entries have them that a member has applied, and what
//!   was owned at an earlier time. It says what `shard/src/sharding/moving.rs` and `ownership.rs` do; that those do it
//!   is tested in `shard/src/tests/moves/times.rs`, `past.rs` and `blocked.rs`.
//! - *The authority*: undecided, or decided once and for all.
//!
//! There is one move and one document; how much happens is bounded by [`Extent`]. Somebody may give up twice, so that
//! the move is aborted from either side. A shard that has heard of the end of the move does not forget it, and what
//! happens later is searched without times in `search.rs`.

mod happening;
mod log;
mod reads;

use super::super::donor::{self, Donor};
use super::super::recipient::{self, Recipient, Standing};
use super::super::*;
use log::{Entry, Log};
use model::bson::ObjectId;
use model::ids::Uuid;
use model::range::KeyBound;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use reads::Reads;
use std::collections::{HashMap, HashSet, VecDeque};

/// The rules that can be switched off.
#[derive(Clone, Copy)]
struct Rules {
    /// The decision is asked for when the block of reads is majority-committed.
    blocks_are_committed_first: bool,
    /// The block is later than all that the recipient has received.
    blocks_follow_copies: bool,
    /// The recipient owns the range from a time on that is later than the block.
    ownership_follows_blocks: bool,
    /// Who hears of a decision writes nothing that is earlier than the time it counts from.
    decisions_are_noted: bool,
    /// A member that has applied the block serves nothing at its time or later.
    blocks_hold_reads: bool,
    /// A read at a time, or after one, waits for an applied entry at that time or later.
    reads_wait_for_their_time: bool,
    /// A read at a time is answered by who owned the range at that time, and by nobody else.
    earlier_times_have_their_owner: bool,
}

const ALL_RULES: Rules = Rules {
    blocks_are_committed_first: true,
    blocks_follow_copies: true,
    ownership_follows_blocks: true,
    decisions_are_noted: true,
    blocks_hold_reads: true,
    reads_wait_for_their_time: true,
    earlier_times_have_their_owner: true,
};

type Time = u8;

/// Of the first entries of donor and recipient, and of the config server.
type Clocks = [Time; 3];

/// Nobody is ahead, or one of them.
const CLOCKS: [Clocks; 4] = [[1, 1, 1], [8, 1, 1], [1, 8, 1], [1, 1, 8]];

const DONOR: usize = 0;
const RECIPIENT: usize = 1;

/// How many writes there are, with the one from the beginning.
const WRITES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Fate {
    #[default]
    Undecided,
    Aborted,
    /// The recipient owns it from this time on.
    Committed(Time),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    logs: [Log; 2],
    /// The donor's block of reads, as long as it may be lost with its primary.
    block: Entry,
    /// By number in the list of all messages ever sent.
    network: u64,
    fate: Fate,
    /// The config server's.
    time: Time,
    catalog: u8,
    jumps: u8,
    disturbances: u8,
    /// When each write was acknowledged to have happened.
    writes: [Time; WRITES],
    written: u8,
}

impl World {
    /// The latest time of any entry.
    fn latest(&self) -> Time {
        self.logs.iter().map(Log::time).max().unwrap_or(0)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Message {
    /// With the time that it carries: *ready* that of being ready, *commit* that of the block.
    Sent(Send, Time),
    Decided(Outcome),
    CatalogChanged(u64, u64),
}

/// For the story of a fault.
#[derive(Clone)]
enum Step {
    Begins,
    Arrives(Message, usize),
    DonorDoes(donor::Event),
    RecipientDoes(recipient::Event),
    RecipientCopies,
    BlockIsCommitted,
    BlockIsLost,
    CatalogChanges,
    Writes(usize),
    /// A reader of a shard knows a later time.
    Knows(usize),
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const WHO: [&str; 3] = ["donor", "recipient", "authority"];
        match self {
            Step::Begins => write!(f, "it begins"),
            Step::Arrives(message, to) => write!(f, "to the {}: {message:?}", WHO[*to]),
            Step::DonorDoes(event) => write!(f, "the donor: {event:?}"),
            Step::RecipientDoes(event) => write!(f, "the recipient: {event:?}"),
            Step::RecipientCopies => write!(f, "the recipient copies"),
            Step::BlockIsCommitted => write!(f, "the block of reads is majority-committed"),
            Step::BlockIsLost => write!(f, "the donor's other member takes over without the block"),
            Step::CatalogChanges => write!(f, "the catalog changes"),
            Step::Writes(shard) => write!(f, "a write at the {}", WHO[*shard]),
            Step::Knows(shard) => write!(f, "the {} hears of a later time", WHO[*shard]),
        }
    }
}

/// How much happens.
#[derive(Clone, Copy, Debug)]
struct Extent {
    clocks: Clocks,
    writes: u8,
    /// How often a shard hears of a later time of the other.
    jumps: u8,
    /// How often somebody gives up, or grows impatient.
    disturbances: u8,
    catalog_changes: bool,
}

struct Search {
    rules: Rules,
    extent: Extent,
    donors: Vec<Donor>,
    recipients: Vec<Recipient>,
    messages: Vec<Message>,
    numbers: HashMap<Message, usize>,
    /// What became of reads, so that it is known that they are answered at all.
    reads: Reads,
}

fn version(commits: u32) -> PlacementVersion {
    PlacementVersion {
        incarnation: Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::ZERO,
        },
        chunk: ChunkVersion::new(commits, 0),
    }
}

fn outcome(fate: Fate) -> Option<Outcome> {
    match fate {
        Fate::Undecided => None,
        Fate::Aborted => Some(Outcome::Aborted),
        Fate::Committed(since) => Some(Outcome::Committed {
            version: version(1),
            since: ClusterTime::new(since.into(), 0),
        }),
    }
}

fn digest(value: u8) -> Digest {
    Digest {
        documents: 1,
        sum: value.into(),
    }
}

/// The number of a value among all that were ever seen, from one on.
fn number<T: PartialEq>(all: &mut Vec<T>, value: T) -> u8 {
    let known = all.iter().position(|known| *known == value);
    let place = known.unwrap_or_else(|| {
        all.push(value);
        all.len() - 1
    });
    u8::try_from(place + 1).expect("there are few documents")
}

impl Search {
    /// The donor has the first write, and has begun the move.
    fn begin(rules: Rules, extent: Extent) -> (Search, World) {
        let clocks = extent.clocks;
        let mut search = Search {
            rules,
            extent,
            donors: Vec::new(),
            recipients: Vec::new(),
            messages: Vec::new(),
            numbers: HashMap::new(),
            reads: Reads::default(),
        };
        let mut world = World {
            time: clocks[2],
            written: 1,
            ..World::default()
        };
        world.writes[0] = clocks[DONOR];
        let value = 1;
        let mut first = |shard: usize, value| {
            let (time, state) = (clocks[shard], 0);
            let entry = Entry { time, value, state };
            world.logs[shard].push(entry);
        };
        first(DONOR, value);
        first(RECIPIENT, 0);
        let moved = Move {
            id: Uuid([1; 16]),
            range: KeyRange::new(KeyBound::new(&[1]), KeyBound::new(&[2])),
            from: ShardId::new("A"),
            to: ShardId::new("B"),
            catalog: 0,
        };
        let begun = Donor::begin(moved, world.logs[DONOR].position());
        search.donor_becomes(&mut world, begun, 0);
        (search, world)
    }

    fn donor(&self, world: &World) -> &Donor {
        let (number, _) = world.logs[DONOR].state();
        &self.donors[usize::from(number) - 1]
    }

    fn recipient(&self, world: &World) -> Option<&Recipient> {
        let (number, _) = world.logs[RECIPIENT].state();
        self.recipients.get(usize::from(number).checked_sub(1)?)
    }

    fn send(&mut self, world: &mut World, message: Message) {
        let next = self.messages.len();
        let number = *self.numbers.entry(message.clone()).or_insert(next);
        if number == next {
            self.messages.push(message);
            assert!(next < 64, "more messages than the network has room for");
        }
        world.network |= 1 << number;
    }

    /// `at`: the time of the entry that they tell of.
    fn send_all(&mut self, world: &mut World, sent: Vec<Send>, at: Time) {
        for send in sent {
            let at = match &send {
                Send::Donor(ToDonor::Ready { .. })
                | Send::Authority(ToAuthority::Commit { .. }) => at,
                // Nobody does anything upon that here.
                Send::Donor(ToDonor::Progress { .. } | ToDonor::Released { .. }) => continue,
                Send::Recipient(_)
                | Send::Donor(ToDonor::Cannot { .. })
                | Send::Authority(ToAuthority::Settle { .. }) => 0,
            };
            self.send(world, Message::Sent(send, at));
        }
    }

    /// Writes the donor's document, if it is another one, and then sends.
    fn donor_becomes(&mut self, world: &mut World, to: Transition<Donor>, noted: Time) {
        let donor = to
            .next
            .expect("nobody tells it that the recipient was released");
        let blocks_reads = donor.blocks_reads();
        let state = number(&mut self.donors, donor);
        let (before, since) = world.logs[DONOR].state();
        if state == before {
            return self.send_all(world, to.send, since);
        }
        let time = world.logs[DONOR].time().max(noted) + 1;
        let entry = Entry {
            time,
            value: 0,
            state,
        };
        if blocks_reads {
            world.block = entry;
            if self.rules.blocks_are_committed_first {
                return;
            }
        } else {
            world.logs[DONOR].push(entry);
        }
        self.send_all(world, to.send, time);
    }

    /// The same for the recipient; `value` is what was copied with it.
    fn recipient_becomes(
        &mut self,
        world: &mut World,
        to: Transition<Recipient>,
        value: u8,
        noted: Time,
    ) {
        let Some(recipient) = to.next else {
            return self.send_all(world, to.send, 0);
        };
        let state = number(&mut self.recipients, recipient);
        let log = &mut world.logs[RECIPIENT];
        if state != log.state().0 || value != 0 {
            let time = log.time().max(noted) + 1;
            log.push(Entry { time, value, state });
        }
        let (_, since) = log.state();
        self.send_all(world, to.send, since);
    }
}

/// Visits every state; the story of a fault, if there is one, and how many states there are.
fn explore(rules: Rules, extent: Extent) -> (Option<String>, usize, Reads) {
    let (mut search, first) = Search::begin(rules, extent);
    let mut seen = HashSet::from([first]);
    let mut states: Vec<(World, usize, Step)> = vec![(first, 0, Step::Begins)];
    let mut queue = VecDeque::from([0]);
    let mut next = Vec::new();
    while let Some(at) = queue.pop_front() {
        let before = states[at].0;
        search.successors(&before, &mut next);
        for (world, step) in next.drain(..) {
            if !seen.insert(world) {
                continue;
            }
            states.push((world, at, step));
            if let Err(fault) = search.check(&before, &world) {
                let story = story(&states);
                return (Some(format!("{story}{fault}")), seen.len(), search.reads);
            }
            queue.push_back(states.len() - 1);
        }
    }
    (None, seen.len(), search.reads)
}

/// How it came to the last of these states.
fn story(states: &[(World, usize, Step)]) -> String {
    let mut steps = Vec::new();
    let mut at = states.len() - 1;
    while at != 0 {
        let (_, before, step) = &states[at];
        steps.push(format!("{step}\n"));
        at = *before;
    }
    steps.into_iter().rev().collect()
}

/// ⚑ A read after a write, by cluster time, on any member of either shard, sees it.
#[test]
fn a_read_after_a_write_sees_it_on_every_member() {
    let mut all = Reads::default();
    let mut check = |extent: Extent, at_least: usize| {
        let (fault, states, reads) = explore(ALL_RULES, extent);
        assert!(fault.is_none(), "{extent:?}: {}", fault.unwrap_or_default());
        eprintln!("{extent:?}: {states} states, {reads:?}");
        assert!(states >= at_least, "{extent:?}: only {states} states");
        all.add(&reads);
    };
    for clocks in CLOCKS {
        let extent = Extent {
            clocks,
            writes: 3,
            jumps: 1,
            disturbances: 2,
            catalog_changes: true,
        };
        check(extent, 20_000);
    }
    let extent = Extent {
        clocks: CLOCKS[0],
        writes: 3,
        jumps: 2,
        disturbances: 1,
        catalog_changes: true,
    };
    check(extent, 100_000);
    all.check_that_all_kinds_came();
}

/// ⚑ Each rule is needed: without it some read does not see a write.
#[test]
fn every_rule_about_times_is_needed() {
    let check = |name: &str, expected: &str, rules: Rules| {
        let faults = CLOCKS.map(|clocks| {
            let extent = Extent {
                clocks,
                writes: 3,
                jumps: 1,
                disturbances: 1,
                catalog_changes: false,
            };
            explore(rules, extent).0
        });
        let mut faults = faults.into_iter().flatten();
        let fault = faults.next();
        let fault = fault.unwrap_or_else(|| panic!("nothing noticed without: {name}"));
        assert!(fault.contains(expected), "without: {name}\n{fault}");
    };
    check(
        "blocks are majority-committed before the decision is asked for",
        "After(8) of the donor's member that has applied 3 entries finds write 1, and not 2",
        Rules {
            blocks_are_committed_first: false,
            ..ALL_RULES
        },
    );
    check(
        "blocks are later than what was received",
        "At(5) of the recipient's member that has applied 5 entries finds write 0, and not 1",
        Rules {
            blocks_follow_copies: false,
            ..ALL_RULES
        },
    );
    check(
        "ownership begins later than the block",
        "At(2) of the recipient's member that has applied 5 entries finds write 0, and not 1",
        Rules {
            ownership_follows_blocks: false,
            ..ALL_RULES
        },
    );
    check(
        "who hears of a decision notes its time",
        "After(8) of the donor's member that has applied 1 entries finds write 1, and not 2",
        Rules {
            decisions_are_noted: false,
            ..ALL_RULES
        },
    );
    check(
        "who has applied the block serves nothing at its time or later",
        "After(8) of the donor's member that has applied 4 entries finds write 1, and not 2",
        Rules {
            blocks_hold_reads: false,
            ..ALL_RULES
        },
    );
    check(
        "reads wait for an entry at their time or later",
        "After(3) of the donor's member that has applied 1 entries finds write 1, and not 2",
        Rules {
            reads_wait_for_their_time: false,
            ..ALL_RULES
        },
    );
    check(
        "an earlier time is answered by its owner",
        "At(1) of the recipient's member that has applied 5 entries finds write 0, and not 1",
        Rules {
            earlier_times_have_their_owner: false,
            ..ALL_RULES
        },
    );
}
