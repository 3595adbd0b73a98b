//! Writes over several shards that change each document once, while ranges move, shards fail over
//! and replies get lost: an operation as a router drives it, and what a shard keeps of its part.
//!
//! ```text
//!   router   operation (slot, number)
//!              stream 0   shard A   what A had in the base placement     ─► ended
//!              stream 1   shard B   what B had                           ─► ended, left r behind place p
//!              stream 2   shard A   r, from behind p                     ─► asked, no reply: asked again
//!
//!   shard    progress of (slot, stream): number, place, what was left and where, counts, end
//!              each batch of writes and the progress behind it are ONE entry of the log
//! ```
//!
//! A *stream* is a set of ranges of the shard key on one shard, and one request, which may be sent any
//! number of times. The shard walks the ranges in the order of record keys, so that it never meets what
//! it has changed; its place is the last record key it has passed. What it does not own (any more) when
//! it wants to write it leaves, and says behind which place; the router opens a stream where the range
//! is then, from that place. Record keys are the same on every shard, so a place goes with its range,
//! however the collection is clustered.
//!
//! Why each document that matches throughout is changed exactly once:
//! - ⚑ **Every key is in one stream that has not ended, until that stream ends.** Ranges go from one
//!   stream to the next only by an answer, and never by a guess: a request without a reply is sent again,
//!   under the same name.
//! - ⚑ **Progress is part of the entry that makes it.** Whoever has the writes of a batch (a new primary,
//!   the same one after a crash) has the place behind it, and nobody else has.
//! - ⚑ **A batch is written only for ranges that are owned at its place in the log.** They are compared
//!   under the collection's gate. A range that goes has the place of the last batch before.
//! - ⚑ **Who answers a request that was sent before leaves that in the log first** (a *fence*): the earlier
//!   one may still be on its way, and arrive when its ranges have been elsewhere and come back.
//! - **A number replaces smaller ones of its slot.** Slots are used again and again by one operation at
//!   a time, so progress need not be removed: the next operation overwrites it. A late request of an
//!   earlier number is refused where a later one has written.
//! - ⚑ **What was forgotten is refused, never repeated.** A request says when it was first *sent*, however
//!   often it is sent. A shard that removes progress, because it believes that nobody asks any more, raises
//!   its *horizon* to that time in the same entry: `horizon >= sent` of all progress that was ever removed.
//!   A request without progress that was first sent at the horizon or before is not carried out. So no clock has to
//!   be right for a document to be changed once: one that jumps makes a shard forget early, and a
//!   repeated request is then answered with an error. A request that was sent only once and is refused so was
//!   not carried out; it gets a new time and is sent again.
//!
//! Crash windows: before a batch is appended nothing has happened; appended and lost, the same; applied
//! and not answered, the next attempt finds the progress. A batch that changes nothing writes nothing: it
//! may be walked again, and counts only then. If a router dies its operation ends where it stands, each
//! document changed at most once; the client does not know how far it came, as with any lost connection.
//!
//! What is left out: documents that begin to match, or whose record key changes, while the operation
//! runs. How far an operation came whose progress was forgotten. Which documents two *different* operations
//! meet first.
//!
//! The shell adds: asking, waiting, who owns a range that was left, deadlines.

use crate::bulk::WriteFault;
use crate::routing::{RoutingTable, ShardId};
use crate::scan::{Asked, Limits, Place};
use model::range::{KeyRange, RangeSet};
use model::time::ClusterTime;
use std::sync::Arc;

mod naming;
mod progress;
#[cfg(test)]
mod tests;

pub use naming::{Difference, PartNaming, part_naming};
pub use progress::{Left, Progress, Sent, Unwanted};

const LIMITS: Limits = Limits::OF_REQUESTS;

/// A request to a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    pub stream: u32,
    pub shard: ShardId,
    pub asked: Asked,
    /// `None`: from the beginning.
    pub after: Option<Place>,
    /// When it was first sent.
    pub sent: ClusterTime,
    /// It was sent before, and may arrive twice.
    pub again: bool,
}

/// What a shard says of a stream that has ended there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    pub matched: u64,
    pub modified: u64,
    pub fault: Option<WriteFault>,
    pub left: Vec<Left>,
}

/// What an operation came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub matched: u64,
    pub modified: u64,
    pub faults: Vec<WriteFault>,
}

/// Ranges that their shard left, and nobody has taken over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Homeless {
    pub from: ShardId,
    pub left: Left,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// What its shard has in the base placement; said by its version, as long as that agrees.
    Base {
        by_version: bool,
    },
    These(RangeSet),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Asked,
    Ended,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Stream {
    shard: ShardId,
    part: Part,
    after: Option<Place>,
    state: State,
    /// When its request was first sent, if it was.
    sent: Option<ClusterTime>,
    /// A request may be under way that nobody waits for.
    again: bool,
}

/// One operation under way.
#[derive(Clone, Debug)]
pub struct Broadcast {
    base: Arc<RoutingTable>,
    /// The keys that its filter can match.
    wanted: RangeSet,
    streams: Vec<Stream>,
    homeless: Vec<Homeless>,
    totals: Totals,
}

impl Broadcast {
    /// Begins with the placement that holds now, on these shards.
    pub fn begin(base: Arc<RoutingTable>, wanted: RangeSet, shards: Vec<ShardId>) -> Self {
        let streams = shards.into_iter().map(|shard| Stream {
            shard,
            part: Part::Base { by_version: true },
            after: None,
            state: State::Open,
            sent: None,
            again: false,
        });
        Self {
            streams: streams.collect(),
            base,
            wanted,
            homeless: Vec::new(),
            totals: Totals::default(),
        }
    }

    pub fn base(&self) -> &Arc<RoutingTable> {
        &self.base
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether any shard has answered: something may be changed.
    pub fn has_begun(&self) -> bool {
        let answered = |stream: &Stream| stream.state == State::Ended || stream.again;
        self.streams.iter().any(answered)
    }

    pub fn has_ended(&self) -> bool {
        let ended = |stream: &Stream| stream.state == State::Ended;
        self.homeless.is_empty() && self.streams.iter().all(ended)
    }

    /// All that can be asked now. Each is answered by [`Broadcast::answered`],
    /// [`Broadcast::unanswered`], [`Broadcast::forgotten`] or [`Broadcast::name_ranges`].
    pub fn questions(&mut self, now: ClusterTime) -> Vec<Question> {
        let mut questions = Vec::new();
        for at in 0..self.streams.len() {
            let stream = &mut self.streams[at];
            if stream.state != State::Open {
                continue;
            }
            let sent = *stream.sent.get_or_insert(now);
            questions.push(Question {
                stream: u32::try_from(at).unwrap_or(u32::MAX),
                shard: stream.shard.clone(),
                asked: match &stream.part {
                    Part::Base { by_version: true } => Asked::AsInBase,
                    Part::Base { by_version: false } => {
                        let owned = self.base.ranges_of(&stream.shard);
                        let wanted = owned.intersection(&self.wanted);
                        // What cannot match may be asked for too, as by version: all of it is said sooner.
                        Asked::These(match LIMITS.are_few(&wanted) {
                            true => wanted,
                            false => owned,
                        })
                    }
                    Part::These(ranges) => Asked::These(ranges.clone()),
                },
                after: stream.after.clone(),
                sent,
                again: stream.again,
            });
            stream.state = State::Asked;
        }
        questions
    }

    /// The shard has carried out what it could.
    pub fn answered(&mut self, stream: u32, answer: Answer) {
        let Some(stream) = self.asked(stream) else {
            return;
        };
        stream.state = State::Ended;
        let from = stream.shard.clone();
        self.totals.matched += answer.matched;
        self.totals.modified += answer.modified;
        self.totals.faults.extend(answer.fault);
        for left in answer.left {
            let ranges = left.ranges.intersection(&self.wanted);
            if !ranges.is_empty() {
                self.homeless.push(Homeless {
                    from: from.clone(),
                    left: Left { ranges, ..left },
                });
            }
        }
        // As with one shard: what fails goes no further.
        if !self.totals.faults.is_empty() {
            self.homeless.clear();
        }
    }

    /// There is no reply; `may_arrive` if that does not mean that the request is not carried out.
    pub fn unanswered(&mut self, stream: u32, may_arrive: bool) {
        if let Some(stream) = self.asked(stream) {
            stream.state = State::Open;
            stream.again |= may_arrive;
        }
    }

    /// The shard cannot know any more whether it has carried the request out. True if it was sent only this
    /// once, and so was not: it is sent as a new one.
    #[must_use]
    pub fn forgotten(&mut self, stream: u32) -> bool {
        let Some(stream) = self.asked(stream).filter(|stream| !stream.again) else {
            return false;
        };
        stream.state = State::Open;
        stream.sent = None;
        true
    }

    /// The shard did nothing, because it does not have what the base placement says: from now on
    /// the ranges are named.
    pub fn name_ranges(&mut self, stream: u32) {
        if let Some(stream) = self.asked(stream) {
            stream.state = State::Open;
            if let Part::Base { by_version } = &mut stream.part {
                *by_version = false;
            }
        }
    }

    fn asked(&mut self, stream: u32) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(stream as usize)?;
        (stream.state == State::Asked).then_some(stream)
    }

    /// What has to be found before the operation can go on.
    pub fn homeless(&self) -> &[Homeless] {
        &self.homeless
    }

    /// Opens streams for the first of what is homeless, where it is said to be now.
    pub fn settle(&mut self, owners: Vec<(KeyRange, ShardId)>) {
        if self.homeless.is_empty() {
            return;
        }
        let Homeless { left, .. } = self.homeless.remove(0);
        let mut by_shard: Vec<(ShardId, RangeSet)> = Vec::new();
        for (range, shard) in owners {
            let ranges = RangeSet::of([range]).intersection(&left.ranges);
            match by_shard.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, known)) => *known = known.union(&ranges),
                None => by_shard.push((shard, ranges)),
            }
        }
        let named = by_shard.into_iter().flat_map(|(shard, ranges)| {
            let pieces = naming::pieces(ranges, LIMITS).into_iter();
            pieces.map(move |piece| (shard.clone(), piece))
        });
        for (shard, ranges) in named {
            self.streams.push(Stream {
                shard,
                part: Part::These(ranges),
                after: left.after.clone(),
                state: State::Open,
                sent: None,
                again: false,
            });
        }
    }
}
