//! Every interleaving of small worlds: shards, the authority, a client, ranges that move, messages that are lost,
//! repeated and late, primaries that change at any moment.
//!
//! Messages are never taken out of the network: whatever was sent once may be delivered
//! at any later time, any number of times, or never. States that were seen are not
//! visited again, so the search is complete. Documents are durable, so that a new primary goes on from any state;
//! what it has forgotten is what the rules are about.
//!
//! | world | what happens |
//! | --- | --- |
//! | [`TO_AND_FRO`] | one range moves and moves back, two writes |
//! | [`WITH_INDEXES`] | one move and one write; an index is created at some time: the authority says so, tells whoever owns the range then, and says that it is over |
//! | [`TWO_AT_ONCE`] | two ranges of one collection move at once: from the same donor, to the same recipient, both, in a chain, or against each other |
//!
//! **What bounds the worlds with two moves.** Two moves that do not meet have as many states together as the
//! product of both. What they share is the version that a shard calls its own, and the order in which it learns of
//! decisions; both have messages that come in any order, any number of times. So each range has a document from the
//! beginning, and there is one write more, to either range, and one disturbance: somebody aborts, a copy fails, or a
//! recipient grows impatient and settles. That is 450,000 to 540,000 states for each way in which two moves can meet.
//! What two writes and any number of disturbances do to one move is searched in the first world.
//!
//! Beside these searches: `times.rs` searches reads and writes by cluster time, and `scripts.rs` tells single stories.

mod scripts;
mod search;
mod times;

use search::{Search, Step, World};
use std::collections::{HashSet, VecDeque};

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
    commits_are_learned_in_order: bool,
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
    commits_are_learned_in_order: true,
};

const SHARDS: usize = 3;
const RANGES: usize = 2;
const MOVES: usize = 2;

/// One move of a world, by numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Movement {
    range: usize,
    from: usize,
    to: usize,
}

const fn movement(range: usize, from: usize, to: usize) -> Movement {
    Movement { range, from, to }
}

/// How much happens in a world.
struct Extent {
    /// The first owner of each range.
    owners: &'static [usize],
    /// Moves of one range follow each other; those of others run beside them.
    moves: &'static [Movement],
    /// Whether each range has a document from the beginning.
    is_filled: bool,
    /// Those documents among them.
    writes: u8,
    /// Whether an index is created at some time.
    indexes: bool,
    /// How often somebody may abort, fail or grow impatient; `None`: as often as they like.
    disturbances: Option<u8>,
}

static TO_AND_FRO: Extent = Extent {
    owners: &[0],
    moves: &[movement(0, 0, 1), movement(0, 1, 0)],
    is_filled: false,
    writes: 2,
    indexes: false,
    disturbances: None,
};
static WITH_INDEXES: Extent = Extent {
    owners: &[0],
    moves: &[movement(0, 0, 1)],
    is_filled: false,
    writes: 1,
    indexes: true,
    disturbances: None,
};

/// Each range has a document; one more is written, to either, and one disturbance comes, to either.
const fn at_once(owners: &'static [usize], moves: &'static [Movement]) -> Extent {
    Extent {
        owners,
        moves,
        is_filled: true,
        writes: 3,
        indexes: false,
        disturbances: Some(1),
    }
}

/// From one donor to one recipient.
const TOGETHER: &[Movement] = &[movement(0, 0, 1), movement(1, 0, 1)];
/// From one donor to two.
const APART: &[Movement] = &[movement(0, 0, 1), movement(1, 0, 2)];
/// From two donors to one recipient.
const MEETING: &[Movement] = &[movement(0, 0, 2), movement(1, 1, 2)];
/// To a shard that gives another range away.
const CHAIN: &[Movement] = &[movement(0, 0, 1), movement(1, 1, 2)];
/// Against each other.
const EXCHANGE: &[Movement] = &[movement(0, 0, 1), movement(1, 1, 0)];

static TWO_AT_ONCE: [Extent; 5] = [
    at_once(&[0, 0], TOGETHER),
    at_once(&[0, 0], APART),
    at_once(&[0, 1], MEETING),
    at_once(&[0, 1], CHAIN),
    at_once(&[0, 1], EXCHANGE),
];

const fn undisturbed(owners: &'static [usize], moves: &'static [Movement]) -> Extent {
    Extent {
        disturbances: Some(0),
        ..at_once(owners, moves)
    }
}

/// Less happens where a fault is to be found.
static TWO_UNDISTURBED: [Extent; 4] = [
    undisturbed(&[0, 0], TOGETHER),
    undisturbed(&[0, 1], MEETING),
    undisturbed(&[0, 1], CHAIN),
    undisturbed(&[0, 1], EXCHANGE),
];

/// The catalog's versions: before the index, while it is created, and from then on.
const BEFORE: u8 = 0;
const CHANGING: u8 = 1;
const CHANGED: u8 = 2;

/// Visits every state; the story that leads to a fault, if there is one, and how many
/// states there are.
fn explore(rules: Rules, extent: &'static Extent) -> (Option<Vec<Step>>, usize) {
    let mut search = Search::new(rules, extent);
    let first = search.first();
    let mut seen: HashSet<World> = HashSet::from([first]);
    // With the place of the state that each one comes from.
    let mut states: Vec<(World, usize)> = vec![(first, 0)];
    let mut queue = VecDeque::from([0]);
    let mut next = Vec::new();
    while let Some(at) = queue.pop_front() {
        let world = states[at].0;
        if let Some(fault) = search.fault(&world) {
            return (Some(story(&mut search, &states, at, fault)), seen.len());
        }
        next.clear();
        search.successors(&world, &mut next, None);
        for world in &next {
            if seen.insert(*world) {
                states.push((*world, at));
                queue.push_back(states.len() - 1);
            }
        }
    }
    (None, seen.len())
}

/// What led to a state, step by step.
fn story(search: &mut Search, states: &[(World, usize)], at: usize, fault: String) -> Vec<Step> {
    let mut story = vec![fault];
    let mut place = at;
    while place != 0 {
        let (world, before) = states[place];
        let (mut next, mut told) = (Vec::new(), Vec::new());
        search.successors(&states[before].0, &mut next, Some(&mut told));
        let step = next.iter().position(|next| *next == world);
        story.extend(step.map(|step| told.swap_remove(step)));
        place = before;
    }
    story.reverse();
    story
}

#[test]
fn nothing_is_lost_or_owned_twice_in_any_interleaving() {
    for extent in [&TO_AND_FRO, &WITH_INDEXES] {
        let (fault, states) = explore(ALL_RULES, extent);
        assert_eq!(fault, None);
        assert!(states > 5_000, "only {states} states were visited");
    }
}

/// ⚑ The same with two moves at once, which is why `maxConcurrentMigrationsPerShard` may be two.
fn check_at_once(extents: &'static [Extent]) {
    for extent in extents {
        let (fault, states) = explore(ALL_RULES, extent);
        assert_eq!(fault, None);
        assert!(states > 400_000, "only {states} states were visited");
    }
}

#[test]
fn two_moves_from_or_to_one_shard_do_not_harm_each_other() {
    check_at_once(&TWO_AT_ONCE[..3]);
}

#[test]
fn a_shard_may_give_and_receive_at_once() {
    check_at_once(&TWO_AT_ONCE[3..]);
}

/// ⚑ What two moves at once need beside the rules for one, wherever one of them comes to a shard of the other.
#[test]
fn commits_have_to_be_learned_in_their_order() {
    let rules = Rules {
        commits_are_learned_in_order: false,
        ..ALL_RULES
    };
    for extent in &TWO_UNDISTURBED {
        let (fault, states) = explore(rules, extent);
        assert!(fault.is_some(), "nothing noticed in {states} states");
    }
}

/// ⚑ Each rule is needed: without it some interleaving goes wrong.
#[test]
fn every_rule_is_needed() {
    let check_in = |extent: &'static Extent, name: &str, rules: Rules| {
        let (fault, states) = explore(rules, extent);
        assert!(
            fault.is_some(),
            "nothing noticed in {states} states without: {name}"
        );
    };
    let check = |name: &str, rules: Rules| check_in(&TO_AND_FRO, name, rules);
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
        &WITH_INDEXES,
        "commits compare versions of the catalog",
        Rules {
            commits_compare_catalogs: false,
            ..ALL_RULES
        },
    );
    check_in(
        &WITH_INDEXES,
        "nothing is committed while the catalog changes",
        Rules {
            changing_catalogs_stop_commits: false,
            ..ALL_RULES
        },
    );
    check_in(
        &WITH_INDEXES,
        "readiness is of one attempt",
        Rules {
            readiness_is_of_one_attempt: false,
            ..ALL_RULES
        },
    );
}
