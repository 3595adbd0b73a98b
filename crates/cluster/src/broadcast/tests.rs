//! All small worlds: two shards, two ranges, three documents whose record keys take turns between the
//! ranges, and every order of batches, moves (twice, and back), crashes, lost replies, repeated and late
//! requests, progress that is forgotten at any moment, and a second operation in the same slot. Each document
//! is changed once by each operation that says it has ended, and never twice.
//!
//! Each rule that the module's header marks is switched off in turn, and missed.

use super::*;
use crate::routing::{ChunkWithEnd, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

const SHARDS: [&str; 2] = ["A", "B"];
const RANGES: usize = 2;
const DOCUMENTS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Writes and progress are one entry.
    OneEntry,
    /// Who answers a repeated request leaves that in the log first.
    Fence,
    /// A range goes on from where it was left.
    CarryPlace,
    /// What has no reply is asked for again, under the same name.
    NeverGuess,
    /// Ranges are compared when a batch is written.
    OwnedWhenWritten,
    /// Progress of another operation is not this one's.
    Numbers,
    /// Ranges that come to a shard belong to other streams.
    OnlyAsked,
    /// What was first sent before something was forgotten is not carried out without its progress.
    Horizon,
    /// The horizon is as late as anything that was forgotten.
    HorizonOfAll,
    /// Who repeats a request names it as before.
    SameTime,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    moves: u8,
    crashes: u8,
    resends: u8,
    operations: u64,
    forgets: u8,
}

fn pattern() -> &'static Arc<ShardKeyPattern> {
    static PATTERN: LazyLock<Arc<ShardKeyPattern>> = LazyLock::new(|| {
        let pattern = DocWriter::new().with("k", 1).finish();
        Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap())
    });
    &PATTERN
}

fn bound(at: usize) -> KeyBound {
    let bound = DocWriter::new().with("k", at as i32).finish();
    KeyBound::new(&pattern().key_of_bound(bound.as_doc()).unwrap())
}

fn range(at: usize) -> &'static KeyRange {
    static ALL: LazyLock<Vec<KeyRange>> = LazyLock::new(|| (0..RANGES).map(new_range).collect());
    &ALL[at]
}

fn new_range(at: usize) -> KeyRange {
    let min = match at {
        0 => KeyBound::new(&pattern().least()),
        _ => bound(at),
    };
    let max = match at + 1 == RANGES {
        true => KeyBound::after_all(),
        false => bound(at + 1),
    };
    KeyRange::new(min, max)
}

fn table(owners: &[usize; RANGES]) -> RoutingTable {
    let bounds: Vec<KeyBound> = (1..RANGES).map(bound).collect();
    let owners: Vec<ShardId> = owners.iter().map(|at| ShardId::new(SHARDS[*at])).collect();
    let chunks: Vec<ChunkWithEnd> = initial_chunks(pattern(), &bounds, &owners, ClusterTime::ZERO);
    let incarnation = Incarnation {
        epoch: ObjectId([1; 12]),
        began: ClusterTime::new(1, 0),
    };
    RoutingTable::full(Uuid([1; 16]), incarnation, pattern().clone(), chunks).unwrap()
}

/// The range that a document lies in: record keys take turns.
fn range_of(document: usize) -> usize {
    document % RANGES
}

/// A request on its way, or carried out.
#[derive(Clone, Hash, Debug)]
struct Request {
    number: u64,
    stream: u32,
    shard: usize,
    /// `None`: what the version says.
    ranges: Option<Vec<usize>>,
    version: u32,
    after: Option<Place>,
    sent: u64,
    again: bool,
    /// Only the reply to the last one is waited for.
    attempt: u32,
}

#[derive(Clone, Debug)]
struct Attempt {
    request: Request,
    progress: Progress<()>,
    asked: RangeSet,
    /// Seen when it began, for whoever does not look again.
    owned: RangeSet,
    /// Of a batch that was written and not noted.
    unnoted: Option<Progress<()>>,
}

#[derive(Clone, Debug)]
struct Reply {
    request: Request,
    said: Said,
}

#[derive(Clone, Debug)]
enum Said {
    Answer(Answer),
    /// The version was another.
    Stale,
    /// It may have been carried out before, and nobody knows.
    Forgotten,
}

#[derive(Clone)]
struct World {
    off: Option<Rule>,
    is_forgetful: bool,
    owners: [usize; RANGES],
    /// How often ranges have moved, and how often they had when the operation began.
    version: u32,
    base_version: u32,
    operation: Broadcast,
    number: u64,
    attempts: Vec<u32>,
    under_way: Vec<Request>,
    running: Vec<Attempt>,
    replies: Vec<Reply>,
    stored: [Vec<(u32, Progress<()>)>; 2],
    horizons: [Option<ClusterTime>; 2],
    /// How often something was sent, if that matters.
    now: u64,
    /// By operation.
    changed: Vec<[u8; DOCUMENTS]>,
    left: Bounds,
}

impl World {
    fn new(bounds: Bounds, off: Option<Rule>) -> World {
        let owners = [0, 1];
        let mut world = World {
            off,
            is_forgetful: bounds.forgets > 0,
            owners,
            version: 0,
            base_version: 0,
            operation: Broadcast::begin(Arc::new(table(&owners)), RangeSet::new(), Vec::new()),
            number: 0,
            attempts: Vec::new(),
            under_way: Vec::new(),
            running: Vec::new(),
            replies: Vec::new(),
            stored: [Vec::new(), Vec::new()],
            horizons: [None; 2],
            now: 0,
            changed: Vec::new(),
            left: bounds,
        };
        world.next_operation();
        world
    }

    fn holds(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    fn next_operation(&mut self) {
        let base = Arc::new(table(&self.owners));
        let wanted = RangeSet::of((0..RANGES).map(range).cloned());
        let shards = base.targets(wanted.as_slice());
        self.operation = Broadcast::begin(base, wanted, shards);
        self.base_version = self.version;
        self.number += 1;
        self.attempts.clear();
        self.changed.push([0; DOCUMENTS]);
        self.send();
    }

    /// Sends all that the router asks.
    fn send(&mut self) {
        self.now += u64::from(self.is_forgetful);
        for question in self.operation.questions(ClusterTime::from_u64(self.now)) {
            let at = question.stream as usize;
            if self.attempts.len() <= at {
                self.attempts.resize(at + 1, 0);
            }
            self.attempts[at] += 1;
            let ranges = match &question.asked {
                Asked::AsInBase => None,
                Asked::These(ranges) => Some(
                    (0..RANGES)
                        .filter(|at| ranges.contains(range(*at).min.as_bytes()))
                        .collect(),
                ),
            };
            self.under_way.push(Request {
                number: self.number,
                stream: question.stream,
                shard: SHARDS
                    .iter()
                    .position(|name| *name == question.shard.as_str())
                    .unwrap(),
                ranges,
                version: self.base_version,
                after: question.after,
                sent: match self.holds(Rule::SameTime) {
                    true => question.sent.to_u64(),
                    false => self.now,
                },
                again: question.again,
                attempt: self.attempts[at],
            });
        }
    }

    fn owned(&self, shard: usize) -> RangeSet {
        RangeSet::of(
            (0..RANGES)
                .filter(|at| self.owners[*at] == shard)
                .map(range)
                .cloned(),
        )
    }

    /// What may happen next.
    fn successors(&self) -> Vec<World> {
        let mut all = Vec::new();
        let mut add = |next: World| all.push(next);
        if self.left.moves > 0 {
            // The first range; the other one is there to be disturbed.
            let mut next = self.clone();
            next.left.moves -= 1;
            next.owners[0] = 1 - next.owners[0];
            next.version += 1;
            add(next);
        }
        if self.left.crashes > 0 {
            for shard in 0..SHARDS.len() {
                let mut next = self.clone();
                next.left.crashes -= 1;
                next.running
                    .retain(|attempt| attempt.request.shard != shard);
                add(next);
            }
        }
        for at in 0..self.under_way.len() {
            if let Some(next) = self.delivered(at) {
                add(next);
            }
        }
        for at in 0..self.running.len() {
            add(self.stepped(at));
        }
        for at in 0..self.replies.len() {
            add(self.replied(at));
        }
        if self.left.resends > 0 {
            for stream in 0..self.operation.streams.len() {
                if self.operation.streams[stream].state == State::Asked {
                    add(self.given_up(stream as u32));
                }
            }
        }
        if self.left.forgets > 0 {
            for shard in 0..SHARDS.len() {
                for at in 0..self.stored[shard].len() {
                    all.extend(self.forgetting(shard, at));
                }
            }
        }
        if self.operation.has_ended() && self.number < self.left.operations {
            let mut next = self.clone();
            next.next_operation();
            all.push(next);
        }
        all
    }

    /// A shard removes progress that nobody works on.
    fn forgetting(&self, shard: usize, at: usize) -> Option<World> {
        let mut next = self.clone();
        next.left.forgets -= 1;
        let (stream, progress) = next.stored[shard].remove(at);
        let is_held =
            |attempt: &Attempt| attempt.request.shard == shard && attempt.request.stream == stream;
        if self.running.iter().any(is_held) {
            return None;
        }
        let horizon = &mut next.horizons[shard];
        *horizon = match self.holds(Rule::HorizonOfAll) {
            true => (*horizon).max(Some(progress.sent)),
            false => horizon.or(Some(progress.sent)),
        };
        Some(next)
    }

    /// A request arrives.
    fn delivered(&self, at: usize) -> Option<World> {
        let mut next = self.clone();
        let request = next.under_way.remove(at);
        let is_held = |attempt: &Attempt| {
            attempt.request.shard == request.shard && attempt.request.stream == request.stream
        };
        if self.running.iter().any(is_held) {
            return None;
        }
        if request.ranges.is_none() && self.version != request.version {
            let said = Said::Stale;
            next.replies.push(Reply { request, said });
            return Some(next);
        }
        let stored = next.stored[request.shard].iter();
        let mut stored = stored.filter(|(stream, _)| *stream == request.stream);
        let mut stored = stored.next().map(|(_, progress)| progress.clone());
        if !self.holds(Rule::Numbers)
            && let Some(stored) = &mut stored
        {
            stored.number = request.number;
        }
        let sent = Sent {
            number: request.number,
            at: ClusterTime::from_u64(request.sent),
        };
        let horizon = self.horizons[request.shard].filter(|_| self.holds(Rule::Horizon));
        let begun = Progress::begin(sent, request.after.clone(), stored, horizon);
        if begun == Err(Unwanted::Forgotten) {
            let said = Said::Forgotten;
            next.replies.push(Reply { request, said });
            return Some(next);
        }
        // Of one that is over nobody wants to know.
        if let Ok(progress) = begun {
            let owned = self.owned(request.shard);
            next.running.push(Attempt {
                asked: match &request.ranges {
                    Some(ranges) => RangeSet::of(ranges.iter().map(|at| range(*at).clone())),
                    None => owned.clone(),
                },
                owned,
                progress,
                request,
                unnoted: None,
            });
        }
        Some(next)
    }

    fn store(&mut self, request: &Request, progress: &Progress<()>) {
        let stored = &mut self.stored[request.shard];
        match stored
            .iter_mut()
            .find(|(stream, _)| *stream == request.stream)
        {
            Some((_, known)) => *known = progress.clone(),
            None => stored.push((request.stream, progress.clone())),
        }
    }

    /// A shard goes on with a request: one batch of one document, or the end.
    fn stepped(&self, at: usize) -> World {
        let mut next = self.clone();
        let attempt = &mut next.running[at];
        if let Some(noted) = attempt.unnoted.take() {
            let request = attempt.request.clone();
            next.store(&request, &noted);
            return next;
        }
        let request = attempt.request.clone();
        let asked = attempt.asked.clone();
        let owned = match self.holds(Rule::OwnedWhenWritten) {
            true => self.owned(request.shard),
            false => attempt.owned.clone(),
        };
        let progress = &mut attempt.progress;
        progress.meet(&asked, &owned);
        let here = match self.holds(Rule::OnlyAsked) {
            true => progress.remaining(&asked),
            false => owned,
        };
        let mut documents = 0..DOCUMENTS;
        let found = documents.find(|document| {
            let place = vec![*document as u8];
            here.contains(range(range_of(*document)).min.as_bytes())
                && progress.after.as_ref() < Some(&place)
        });
        match found {
            Some(document) if !progress.ended => {
                // A copy that is not owned any more is nobody's document.
                if self.owners[range_of(document)] == request.shard {
                    next.changed[request.number as usize - 1][document] += 1;
                }
                progress.advance(Some(vec![document as u8]), 1, 1);
                let noted = progress.clone();
                match self.holds(Rule::OneEntry) {
                    true => next.store(&request, &noted),
                    false => next.running[at].unnoted = Some(noted),
                }
            }
            _ => {
                progress.end();
                let ended = progress.clone();
                next.running.remove(at);
                if request.again && self.holds(Rule::Fence) {
                    next.store(&request, &ended);
                }
                next.replies.push(Reply {
                    request,
                    said: Said::Answer(Answer {
                        matched: ended.matched,
                        modified: ended.modified,
                        fault: None,
                        left: ended.left,
                    }),
                });
            }
        }
        next
    }

    /// A reply arrives, if somebody waits for it.
    fn replied(&self, at: usize) -> World {
        let mut next = self.clone();
        let Reply { request, said } = next.replies.remove(at);
        let waits = request.number == self.number
            && self.attempts[request.stream as usize] == request.attempt;
        if !waits {
            return next;
        }
        match said {
            Said::Stale => next.operation.name_ranges(request.stream),
            Said::Forgotten => {
                // If not, nobody can tell how far the operation came.
                let _is_sent_anew = next.operation.forgotten(request.stream);
            }
            Said::Answer(mut answer) => {
                if !self.holds(Rule::CarryPlace) {
                    answer.left.iter_mut().for_each(|left| left.after = None);
                }
                next.operation.answered(request.stream, answer);
            }
        }
        next.go_on();
        next
    }

    /// The router waits no longer for a reply.
    fn given_up(&self, stream: u32) -> World {
        let mut next = self.clone();
        next.left.resends -= 1;
        let is_of =
            |reply: &Reply| reply.request.number == self.number && reply.request.stream == stream;
        next.replies.retain(|reply| !is_of(reply));
        match self.holds(Rule::NeverGuess) {
            true => next.operation.unanswered(stream, true),
            false => {
                let asked = match &self.operation.streams[stream as usize].part {
                    Part::Base { .. } => {
                        let shard = &self.operation.streams[stream as usize].shard;
                        self.operation.base().ranges_of(shard)
                    }
                    Part::These(ranges) => ranges.clone(),
                };
                next.operation.answered(
                    stream,
                    Answer {
                        left: vec![Left {
                            ranges: asked,
                            after: self.operation.streams[stream as usize].after.clone(),
                        }],
                        ..Answer::default()
                    },
                );
            }
        }
        next.go_on();
        next
    }

    /// Finds what was left, and asks.
    fn go_on(&mut self) {
        while !self.operation.homeless().is_empty() {
            let owners =
                (0..RANGES).map(|at| (range(at).clone(), ShardId::new(SHARDS[self.owners[at]])));
            self.operation.settle(owners.collect());
        }
        self.send();
    }

    fn check(&self) -> Result<(), String> {
        for (at, changed) in self.changed.iter().enumerate() {
            if changed.iter().any(|times| *times > 1) {
                return Err(format!("operation {} changed {changed:?}", at + 1));
            }
        }
        if self.operation.has_ended() {
            let changed = &self.changed[self.number as usize - 1];
            let totals = self.operation.totals();
            if *changed != [1; DOCUMENTS] || totals.matched != DOCUMENTS as u64 {
                return Err(format!("ended with {changed:?} and {totals:?}"));
            }
        }
        Ok(())
    }

    /// The same for worlds that differ in the order of what is on its way alone.
    fn fingerprint(&self) -> u64 {
        let left = self.left;
        let running = unordered(&self.running, |attempt| {
            let noted = attempt.unnoted.as_ref().map(progress_hash);
            let ranges = (bits(&attempt.asked), bits(&attempt.owned));
            hash(&(
                &attempt.request,
                progress_hash(&attempt.progress),
                ranges,
                noted,
            ))
        });
        let replies = unordered(&self.replies, |reply| match &reply.said {
            Said::Answer(answer) => {
                hash(&(&reply.request, (answer.matched, left_hash(&answer.left))))
            }
            Said::Stale => hash(&(&reply.request, 1)),
            Said::Forgotten => hash(&(&reply.request, 2)),
        });
        let stored = self.stored.each_ref().map(|stored| {
            unordered(stored, |(stream, progress)| {
                hash(&(stream, progress_hash(progress)))
            })
        });
        let streams: Vec<u64> = (self.operation.streams.iter())
            .map(|stream| {
                let part = match &stream.part {
                    Part::Base { by_version } => (u8::from(*by_version), 0),
                    Part::These(ranges) => (2, bits(ranges)),
                };
                let state = stream.state as u8;
                hash(&(
                    stream.shard.as_str(),
                    part,
                    &stream.after,
                    state,
                    (stream.sent.map(ClusterTime::to_u64), stream.again),
                ))
            })
            .collect();
        hash(&(
            (self.owners, self.version, self.base_version, self.number),
            (&self.attempts, &self.changed, streams),
            (left.moves, left.crashes, left.resends, left.forgets),
            (
                self.horizons.map(|it| it.map(ClusterTime::to_u64)),
                self.now,
            ),
            (unordered(&self.under_way, hash), running, replies, stored),
        ))
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn unordered<T>(items: &[T], of: impl Fn(&T) -> u64) -> Vec<u64> {
    let mut hashes: Vec<u64> = items.iter().map(of).collect();
    hashes.sort_unstable();
    hashes
}

/// Which of the ranges these are.
fn bits(ranges: &RangeSet) -> u8 {
    let is_in = |at: &usize| ranges.contains(range(*at).min.as_bytes());
    (0..RANGES).filter(is_in).map(|at| 1 << at).sum()
}

fn left_hash(left: &[Left]) -> Vec<(u8, &Option<Place>)> {
    let of = |left: &Left| bits(&left.ranges);
    left.iter().map(|left| (of(left), &left.after)).collect()
}

fn progress_hash(progress: &Progress<()>) -> u64 {
    hash(&(
        (progress.number, progress.sent.to_u64()),
        &progress.after,
        left_hash(&progress.left),
        (progress.matched, progress.modified, progress.ended),
    ))
}

/// Goes through everything that can happen; the first fault, or how many states there are.
fn search(bounds: Bounds, off: Option<Rule>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(bounds, off)];
    while let Some(world) = open.pop() {
        world.check()?;
        for next in world.successors() {
            if seen.insert(next.fingerprint()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

const MOVES: Bounds = Bounds {
    moves: 2,
    crashes: 0,
    resends: 0,
    operations: 1,
    forgets: 0,
};
/// A range can come back while a request is late.
const LATE: Bounds = Bounds {
    moves: 2,
    crashes: 0,
    resends: 1,
    operations: 1,
    forgets: 0,
};
const CRASHES: Bounds = Bounds {
    moves: 1,
    crashes: 1,
    resends: 1,
    operations: 1,
    forgets: 0,
};
const REUSE: Bounds = Bounds {
    moves: 1,
    crashes: 0,
    resends: 1,
    operations: 2,
    forgets: 0,
};
/// Progress goes while requests are repeated.
const FORGETFUL: Bounds = Bounds {
    moves: 1,
    crashes: 0,
    resends: 1,
    operations: 1,
    forgets: 1,
};
const VERY_FORGETFUL: Bounds = Bounds {
    forgets: 2,
    ..FORGETFUL
};

#[test]
fn every_document_is_changed_once() {
    for bounds in [MOVES, LATE, CRASHES, REUSE, FORGETFUL] {
        let states = search(bounds, None).unwrap_or_else(|fault| panic!("{bounds:?}: {fault}"));
        println!("{bounds:?}: {states} states");
        assert!(states > 1000, "{bounds:?}: {states} states");
    }
}

#[test]
fn each_rule_is_missed() {
    for (rule, bounds) in [
        (Rule::OneEntry, CRASHES),
        (Rule::Fence, LATE),
        (Rule::CarryPlace, MOVES),
        (Rule::NeverGuess, CRASHES),
        (Rule::OwnedWhenWritten, MOVES),
        (Rule::Numbers, REUSE),
        (Rule::OnlyAsked, MOVES),
        (Rule::Horizon, FORGETFUL),
        (Rule::HorizonOfAll, VERY_FORGETFUL),
        (Rule::SameTime, FORGETFUL),
    ] {
        let found = search(bounds, Some(rule));
        assert!(found.is_err(), "{rule:?} can be switched off: {found:?}");
    }
}
