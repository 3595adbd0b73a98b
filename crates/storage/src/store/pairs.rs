//! Pairs in key order, from kept stretches where there are some and from the engine
//! between them; scans add to the stretches on their way (see [`super::stretches`]).
//!
//! ```text
//!   Kept ──at its end──► look around ──► Kept | Engine (up to the next stretch, or to the end)
//!   Engine: collects what it yields ──► stretches: a long scan's as it goes along, a short
//!           one's when it ends
//! ```
//!
//! What is collected shares the engine's blocks and is copied only when it becomes a
//! stretch. A scan of very few pairs leaves nothing.
//!
//! Scans that go backward always ask the engine.

use std::ops::Bound;
use std::sync::Arc;

use super::forgotten::Sieve;
use super::stretches::{Around, Stretch};
use super::{Direction, EngineSnapshot, KeyRange, Shared};
use crate::engine::Pair;
use crate::error::Result;
use crate::layout::Subject;

/// A stretch ends with the pair that passes this. Most pairs are shorter than what is left to 64 KiB, beyond
/// which an allocator has no block before 80.
const STRETCH_BYTES: usize = 62 << 10;
/// What may be collected before the scan is long: larger documents are not worth it.
const COLLECTED_BYTES_MAX: usize = 512 << 10;
/// A scan of fewer pairs leaves no stretches.
const SCAN_PAIRS_MIN: u64 = 8;

pub(super) struct Pairs<S: EngineSnapshot> {
    source: Source<S>,
    /// Absent if stretches are not for this scan.
    through: Option<Box<Through<S>>>,
    /// For what the engine yields; stretches have passed it.
    sieve: Option<Sieve>,
}

enum Source<S: EngineSnapshot> {
    Kept {
        stretch: Arc<Stretch>,
        at: usize,
        end: usize,
    },
    Engine(S::Scan),
    Ended,
}

/// What a scan reads.
pub(super) struct Origin<S: EngineSnapshot> {
    pub state: Arc<S>,
    /// The batches that were finished before the state was taken.
    pub commits_finished: u64,
    pub shared: Arc<Shared>,
    pub subject: Subject,
}

/// What it takes to go on behind the current source.
struct Through<S: EngineSnapshot> {
    origin: Origin<S>,
    /// Everything before this was yielded, or lies in the current source.
    next: Vec<u8>,
    /// Excluded.
    end: Vec<u8>,
    yielded: u64,
    /// Read from the engine since `collected_from`, which is where the first would lie.
    collected: Vec<Pair>,
    collected_from: Vec<u8>,
    collected_bytes: usize,
    collects: bool,
    /// Whether it may collect at all.
    leaves: Leaves,
}

/// Whether a scan leaves stretches of what the engine yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaves {
    Stretches,
    /// Of what nobody will read again.
    Nothing,
}

impl<S: EngineSnapshot> Pairs<S> {
    pub fn none() -> Self {
        Self {
            source: Source::Ended,
            through: None,
            sieve: None,
        }
    }

    /// Everything between two bounds.
    pub fn new(
        origin: Origin<S>,
        (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        direction: Direction,
        leaves: Leaves,
        sieve: Option<Sieve>,
    ) -> Self {
        let is_for_stretches = direction == Direction::Forward && !origin.shared.stretches.is_off();
        let interval = match (low, high) {
            (Bound::Included(low), Bound::Excluded(high)) => Ok((low, high)),
            (Bound::Included(low), Bound::Included(high)) => Ok((low, behind(&high))),
            (Bound::Excluded(low), Bound::Excluded(high)) => Ok((behind(&low), high)),
            (Bound::Excluded(low), Bound::Included(high)) => Ok((behind(&low), behind(&high))),
            other => Err(other),
        };
        let (low, high) = match interval {
            Ok((next, end)) if is_for_stretches => {
                let mut through = Box::new(Through {
                    origin,
                    next,
                    end,
                    yielded: 0,
                    collected: Vec::new(),
                    collected_from: Vec::new(),
                    collected_bytes: 0,
                    collects: false,
                    leaves,
                });
                return Self {
                    source: through.look_around(),
                    through: Some(through),
                    sieve,
                };
            }
            Ok((low, high)) => (Bound::Included(low), Bound::Excluded(high)),
            Err(bounds) => bounds,
        };
        Self::of_engine(&*origin.state, (low, high), direction, sieve)
    }

    /// The same from the engine alone.
    pub fn of_engine(
        state: &S,
        (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        direction: Direction,
        sieve: Option<Sieve>,
    ) -> Self {
        let range = KeyRange::new(
            low.as_ref().map(Vec::as_slice),
            high.as_ref().map(Vec::as_slice),
        );
        Self {
            source: Source::Engine(state.scan(range, direction)),
            through: None,
            sieve,
        }
    }
}

/// What becomes of a pair that a scan comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Take,
    Pass,
    /// Not taken, and the scan stops behind it.
    Stop,
}

impl<S: EngineSnapshot> Pairs<S> {
    /// The stretch that is walked over, the next place in it, and where the walk ends.
    pub fn kept(&mut self) -> Option<(&Arc<Stretch>, &mut usize, usize)> {
        match &mut self.source {
            Source::Kept { stretch, at, end } => Some((stretch, at, *end)),
            Source::Engine(_) | Source::Ended => None,
        }
    }

    /// Whether the last pair came out of a stretch.
    pub fn is_kept(&self) -> bool {
        matches!(self.source, Source::Kept { .. })
    }

    /// The next pair that is taken or stopped at, judged by its value. What is passed in
    /// a stretch is looked at where it lies.
    pub fn find(
        &mut self,
        mut judge: impl FnMut(&[u8]) -> Verdict,
    ) -> Option<Result<(Verdict, Pair)>> {
        loop {
            if let Source::Kept { stretch, at, end } = &mut self.source {
                while *at < *end {
                    let verdict = judge(stretch.value(*at));
                    *at += 1;
                    if verdict != Verdict::Pass {
                        return Some(Ok((verdict, stretch.pair(*at - 1))));
                    }
                }
            }
            let pair = match self.next()? {
                Ok(pair) => pair,
                Err(error) => return Some(Err(error)),
            };
            let verdict = judge(&pair.1);
            if verdict != Verdict::Pass {
                return Some(Ok((verdict, pair)));
            }
        }
    }
}

impl<S: EngineSnapshot> Through<S> {
    /// The source of what comes next.
    fn look_around(&mut self) -> Source<S> {
        if self.next >= self.end {
            return Source::Ended;
        }
        let stretches = &self.origin.shared.stretches;
        let upto = match stretches.around(&self.next, self.origin.commits_finished) {
            Around::Inside(stretch) => {
                let at = stretch.before(&self.next);
                let end = match stretch.to() > &self.end[..] {
                    true => stretch.before(&self.end),
                    false => stretch.len(),
                };
                self.next.clear();
                self.next.extend_from_slice(stretch.to());
                return Source::Kept { stretch, at, end };
            }
            Around::Before(Some(from)) if from[..] < self.end[..] => {
                self.collects = self.leaves == Leaves::Stretches;
                from.into()
            }
            Around::Before(_) => {
                self.collects = self.leaves == Leaves::Stretches;
                self.end.clone()
            }
            Around::Newer => {
                self.collects = false;
                self.end.clone()
            }
        };
        let range = KeyRange::new(Bound::Included(&self.next[..]), Bound::Excluded(&upto[..]));
        let scan = self.origin.state.scan(range, Direction::Forward);
        self.collected_from = std::mem::replace(&mut self.next, upto);
        Source::Engine(scan)
    }

    /// Whether the scan leaves stretches as it goes along.
    fn is_long(&self) -> bool {
        self.yielded >= self.origin.shared.long_scan_pairs
    }

    fn collect(&mut self, pair: &Pair) {
        self.yielded += 1;
        if !self.collects {
            return;
        }
        self.collected_bytes += pair.0.len() + pair.1.len();
        self.collected.push(pair.clone());
        if self.is_long() {
            if self.collected_bytes >= STRETCH_BYTES {
                let to = behind(&pair.0);
                self.keep_collected(to);
            }
        } else if self.collected_bytes > COLLECTED_BYTES_MAX {
            self.stop_collecting();
        }
    }

    fn stop_collecting(&mut self) {
        self.collects = false;
        self.collected = Vec::new();
    }

    /// Makes stretches of what was collected, which is everything before `to`.
    fn keep_collected(&mut self, to: Vec<u8>) {
        let Origin {
            shared,
            subject,
            commits_finished,
            ..
        } = &self.origin;
        let mut from = std::mem::replace(&mut self.collected_from, to.clone());
        if shared.stretches.wants(self.collected_bytes as u64) {
            let mut rest = &self.collected[..];
            loop {
                let mut bytes = 0;
                let full = rest.iter().position(|(key, value)| {
                    bytes += key.len() + value.len();
                    bytes >= STRETCH_BYTES
                });
                let (these, others) = rest.split_at(full.map_or(rest.len(), |at| at + 1));
                let upto = match these.last() {
                    Some((last, _)) if !others.is_empty() => behind(last),
                    Some(_) | None => to.clone(),
                };
                let stretch = Stretch::new(&upto, these, *commits_finished);
                shared.stretches.keep(*subject, &from, stretch);
                if others.is_empty() {
                    break;
                }
                (from, rest) = (upto, others);
            }
        }
        self.collected.clear();
        self.collected_bytes = 0;
    }

    /// Whether what was collected is worth keeping when a source or the scan ends.
    fn leaves_something(&self) -> bool {
        self.collects && self.yielded >= SCAN_PAIRS_MIN.min(self.origin.shared.long_scan_pairs)
    }

    /// The engine has nothing more before `next`.
    fn engine_ended(&mut self) {
        if self.leaves_something() {
            self.keep_collected(self.next.clone());
        }
        self.collected.clear();
        self.collected_bytes = 0;
    }
}

/// The first key that could come after `key`.
pub(super) fn behind(key: &[u8]) -> Vec<u8> {
    let mut behind = Vec::with_capacity(key.len() + 1);
    behind.extend_from_slice(key);
    behind.push(0);
    behind
}

impl<S: EngineSnapshot> Drop for Through<S> {
    /// A batch of a cursor ends somewhere; what it read so far is worth keeping too.
    fn drop(&mut self) {
        if self.leaves_something()
            && let Some((last, _)) = self.collected.last()
        {
            let to = behind(last);
            self.keep_collected(to);
        }
    }
}

impl<S: EngineSnapshot> Iterator for Pairs<S> {
    type Item = Result<Pair>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match &mut self.source {
                Source::Kept { stretch, at, end } if *at < *end => {
                    let pair = stretch.pair(*at);
                    *at += 1;
                    return Some(Ok(pair));
                }
                Source::Kept { stretch, .. } => {
                    let through = self.through.as_mut()?;
                    through.yielded += stretch.len() as u64;
                    self.source = through.look_around();
                }
                Source::Engine(scan) => {
                    let pair = scan.next();
                    if let (Some(sieve), Some(Ok((key, value)))) = (&self.sieve, &pair)
                        && !sieve.passes(key, value)
                    {
                        continue;
                    }
                    let Some(through) = &mut self.through else {
                        return pair;
                    };
                    match pair {
                        Some(Ok(pair)) => {
                            through.collect(&pair);
                            return Some(Ok(pair));
                        }
                        Some(Err(error)) => {
                            through.stop_collecting();
                            return Some(Err(error));
                        }
                        None => {
                            through.engine_ended();
                            self.source = through.look_around();
                        }
                    }
                }
                Source::Ended => return None,
            }
        }
    }
}
