//! Elastic scans: a query over all shards that loses nothing and repeats nothing while
//! ranges move.
//!
//! A scan is a value. It has one *stream* for each shard of the placement it began
//! with, and one for each range that was found to have moved since (a *virtual* stream):
//!
//! ```text
//!   stream   shard     the one to ask
//!            part      the shard keys it answers for: what the shard had in the base placement
//!                      without what it gave away, or these ranges
//!            reached   the place behind the last entry it has returned
//!
//!   ask(stream) ─► the shard, in one snapshot:
//!                    of the ranges it owns: entries behind the place
//!                    of the others: that it does not own them
//!               ─► answered: entries are buffered; what moved leaves this stream and
//!                  becomes a stream of its own there, from the place that this
//!                  one had *before* the batch
//! ```
//!
//! Why it is right:
//! - ⚑ **Every key is in exactly one stream that has not ended, until that stream ends.**
//!   Streams only ever give ranges to each other. A range may move any number of times,
//!   be split, come back, or go to a shard that is finished already.
//! - ⚑ **A shard answers for a range as a whole or not at all**, in the snapshot that
//!   the batch reads. So an entry at or before the place was returned, an entry behind
//!   it was not, for every key of the stream.
//! - **A place means the same on every shard**: it is made of the scanned index key
//!   and the record key, never of a position in some shard's storage. It also names the plan,
//!   which goes with the range. Here it is bytes that nobody looks into: streams that do not
//!   stem from each other may follow different plans.
//!
//! The promise: every document whose scanned index key and record key did not change
//! during the scan is returned exactly once, in order if the scan is sorted.
//!
//! *Unsorted* scans finish one stream after the other, new ones last; the streams of the base
//! placement are all asked for their first batch at once. *Sorted* scans
//! merge by the sort keys of entries: nothing is delivered while a stream that has not ended has
//! nothing to offer. So when a sort key was delivered, all entries before it were, of every stream;
//! it is the *floor*, and nothing before it is delivered any more, even if a document has come
//! to be there since. What is sorted alike comes in the order of streams.
//!
//! Partial results that count only as a whole (groups, counts) are batches with one answer:
//! `ended`, or not answered at all. ⚑ Scans of these (*whole* ones) deliver nothing before all streams
//! have ended: until then everything can begin anew, with another placement.
//!
//! *Asking ahead* ([`Scan::ask_ahead`]): a stream may be asked for its next batch while the one before
//! is still being delivered. It is the same question as it would be later, from the place behind all
//! that it has returned, so nothing above changes; tokens stand behind what was delivered.
//!
//! *One moment of the past* ([`Scan::of_past`]): whoever owned a range at a time owns it at that time for ever. Such a
//! scan has one stream for each owner of then, which never gives anything away; it only changes the member that it asks.
//! ⚑ Until all of them have answered by the base's version, and by the time at which it came to be, it is not known that
//! the base tells the owners of then.
//!
//! *A refined shard key* ([`Scan::refine`]) changes the words for ranges, and nothing else.
//!
//! What the shell adds: asking and waiting, deadlines, and who owns a range that a shard does
//! not own.

use crate::routing::{RoutingTable, ShardId};
use model::range::{KeyRange, RangeSet};
use std::collections::VecDeque;
use std::sync::Arc;

mod delivering;
mod naming;
mod refining;
mod token;

#[cfg(test)]
mod tests;

pub(crate) use naming::weight;
pub use naming::{Limits, Naming, naming};
pub use refining::{NotRefined, refined_base};
pub use token::{ScanToken, TokenError};

/// Where a stream stands, as shards understand it.
pub type Place = Vec<u8>;

/// How far a stream has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reached {
    Beginning,
    Behind(Place),
    End,
}

/// Whether results come in the order of sort keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Sorted,
    Unsorted,
    /// Stream by stream, when all of them have ended.
    Whole,
}

/// Names a stream of one scan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(usize);

impl StreamId {
    pub fn index(self) -> usize {
        self.0
    }
}

/// Which keys are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// All that the shard has in the base placement: its version says it in a word.
    AsInBase,
    These(RangeSet),
}

/// A question for a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    pub stream: StreamId,
    pub shard: ShardId,
    pub asked: Asked,
    /// `None`: from the beginning.
    pub after: Option<Place>,
}

/// One result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<E> {
    /// Empty if the scan is not sorted.
    pub sort: Vec<u8>,
    /// The place behind it, if it was asked for: for tokens.
    pub place: Option<Place>,
    pub value: E,
}

/// A shard's answer, from one snapshot.
#[derive(Clone, Debug)]
pub struct Batch<E> {
    /// Behind the place asked for, in the order of the scan, of ranges that the shard owns.
    pub entries: Vec<Entry<E>>,
    /// The place behind all of these; `None` if it is still where it was.
    pub reached: Option<Place>,
    /// There is nothing more behind these.
    pub ended: bool,
    /// What it does not own, and who does.
    pub moved: Vec<(KeyRange, ShardId)>,
}

/// An answer that cannot be true.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    #[error("{0} was not asked")]
    NotAsked(String),
    #[error("{0} says that a range went from it to itself")]
    WentNowhere(ShardId),
    #[error("{0} answered with entries that are not in order")]
    OutOfOrder(ShardId),
}

/// The keys that a stream answers for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// What its shard had in the base placement, without what it gave away.
    Base {
        without: RangeSet,
        by_version: bool,
    },
    These(RangeSet),
}

#[derive(Clone, Debug)]
struct Stream<E> {
    shard: ShardId,
    part: Part,
    reached: Reached,
    /// Behind the last entry that was delivered.
    delivered: Reached,
    buffer: VecDeque<Entry<E>>,
    asked: bool,
    /// It was answered: whoever goes on with it may have an open cursor for the ranges it had then.
    was_answered: bool,
    /// How often its ranges were found to have moved.
    hops: u32,
}

/// A scan under way; `E` is what is returned.
#[derive(Clone, Debug)]
pub struct Scan<E> {
    base: Arc<RoutingTable>,
    /// The keys that the query can match.
    wanted: RangeSet,
    order: Order,
    streams: Vec<Stream<E>>,
    /// The last sort key that was delivered by any: see the header.
    floor: Option<Vec<u8>>,
    skip: u64,
    limit: Option<u64>,
    /// Nothing moves any more.
    is_past: bool,
    /// Tells queries apart: a token goes on with its own only.
    query: u64,
}

/// A stream as `$currentOp` shows it.
#[derive(Clone, Copy, Debug)]
pub struct StreamView<'a> {
    pub id: StreamId,
    pub shard: &'a ShardId,
    /// It was opened for ranges that moved.
    pub is_virtual: bool,
    /// The ranges of a virtual stream.
    pub ranges: Option<&'a RangeSet>,
    pub reached: &'a Reached,
    pub hops: u32,
    /// All of it was delivered.
    pub has_ended: bool,
}

impl<E> Scan<E> {
    /// Begins with the placement that holds now. `wanted` are the keys that the query can match.
    pub fn begin(base: Arc<RoutingTable>, wanted: RangeSet, order: Order) -> Self {
        let shards = base.targets(wanted.as_slice());
        Self::over(shards, base, wanted, order, false)
    }

    /// Begins a scan of a moment of the past: these shards owned then what the query can match. `base` is the
    /// placement of now.
    pub fn of_past(base: Arc<RoutingTable>, shards: Vec<ShardId>, order: Order) -> Self {
        let wanted = RangeSet::of([base.whole()]);
        Self::over(shards, base, wanted, order, true)
    }

    fn over(
        shards: Vec<ShardId>,
        base: Arc<RoutingTable>,
        wanted: RangeSet,
        order: Order,
        is_past: bool,
    ) -> Self {
        let streams = shards.into_iter().map(|shard| {
            let part = Part::Base {
                without: RangeSet::new(),
                by_version: true,
            };
            Stream::at(shard, part, Reached::Beginning, 0)
        });
        Self {
            streams: streams.collect(),
            base,
            wanted,
            order,
            floor: None,
            skip: 0,
            limit: None,
            is_past,
            query: 0,
        }
    }

    /// Says which query it is, for tokens.
    #[must_use]
    pub fn with_query(mut self, query: u64) -> Self {
        self.query = query;
        self
    }

    /// Leaves out the first results, and ends after some more.
    #[must_use]
    pub fn with_window(mut self, skip: u64, limit: Option<u64>) -> Self {
        self.skip = skip;
        self.limit = limit;
        self
    }

    /// Ends after so many more results, or earlier if it would have.
    #[must_use]
    pub fn limited_to(mut self, limit: Option<u64>) -> Self {
        self.limit = match (self.limit, limit) {
            (Some(left), Some(limit)) => Some(left.min(limit)),
            (left, limit) => left.or(limit),
        };
        self
    }

    pub fn base(&self) -> &Arc<RoutingTable> {
        &self.base
    }

    /// How many results are still wanted of any stream: those to leave out, and the rest.
    pub fn wanted_results(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_add(self.skip))
    }

    /// What is left to leave out, and to return.
    pub fn window(&self) -> (u64, Option<u64>) {
        (self.skip, self.limit)
    }

    /// Whether everything was delivered.
    pub fn has_ended(&self) -> bool {
        self.limit == Some(0) || self.streams.iter().all(Stream::has_ended)
    }

    /// The shards to ask before anything more can be delivered. Each is asked once;
    /// its answer comes to [`Scan::answered`].
    pub fn questions(&mut self) -> Vec<Question> {
        if self.has_ended() {
            return Vec::new();
        }
        let mut questions = Vec::new();
        let mut is_first = true;
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            let opens =
                matches!(stream.part, Part::Base { .. }) && stream.reached == Reached::Beginning;
            let is_due = match self.order {
                Order::Sorted | Order::Whole => true,
                Order::Unsorted => is_first || opens,
            };
            is_first &= stream.has_ended();
            let ends = stream.reached == Reached::End;
            if ends || stream.asked || !is_due || !stream.buffer.is_empty() {
                continue;
            }
            questions.push(self.question(at));
        }
        questions
    }

    fn question(&mut self, at: usize) -> Question {
        let stream = &self.streams[at];
        let question = Question {
            stream: StreamId(at),
            shard: stream.shard.clone(),
            asked: match &stream.part {
                Part::Base {
                    by_version: true, ..
                } => Asked::AsInBase,
                Part::Base { .. } | Part::These(_) => Asked::These(self.ranges(at)),
            },
            after: match &stream.reached {
                Reached::Beginning | Reached::End => None,
                Reached::Behind(place) => Some(place.clone()),
            },
        };
        self.streams[at].asked = true;
        question
    }

    /// The question for what comes behind all that a stream has returned, while some of that is still
    /// to be delivered; `None` if it is not the stream's turn, or what is here is enough.
    pub fn ask_ahead(&mut self, stream: StreamId) -> Option<Question> {
        let at = stream.0;
        let is_due = match self.order {
            Order::Sorted | Order::Whole => true,
            Order::Unsorted => self.streams.iter().position(|other| !other.has_ended()) == Some(at),
        };
        let wanted = self.wanted_results();
        let stream = self.streams.get(at)?;
        let buffered = stream.buffer.len() as u64;
        let has_enough = wanted.is_some_and(|wanted| buffered >= wanted);
        let goes_on = matches!(stream.reached, Reached::Behind(_));
        let may = is_due && goes_on && buffered > 0 && !stream.asked && !has_enough;
        may.then(|| self.question(at))
    }

    /// The streams that were asked, and without whose answers nothing more can be delivered.
    pub fn awaited(&self) -> Vec<StreamId> {
        let is_dry = |stream: &Stream<E>| stream.asked && stream.buffer.is_empty();
        let streams = self.streams.iter().enumerate();
        let mut left = streams.filter(|(_, stream)| !stream.has_ended());
        match self.order {
            Order::Sorted | Order::Whole => {
                let dry = left.filter(|(_, stream)| is_dry(stream));
                dry.map(|(at, _)| StreamId(at)).collect()
            }
            Order::Unsorted => {
                let first = left.next().filter(|(_, stream)| is_dry(stream));
                first.map(|(at, _)| StreamId(at)).into_iter().collect()
            }
        }
    }

    /// The keys that a stream answers for.
    fn ranges(&self, at: usize) -> RangeSet {
        let stream = &self.streams[at];
        match &stream.part {
            Part::Base { without, .. } => {
                let owned = self.base.ranges_of(&stream.shard);
                owned.intersection(&self.wanted).difference(without)
            }
            Part::These(ranges) => ranges.clone(),
        }
    }

    /// Says that a question was not answered: it will be asked again.
    pub fn unanswered(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.asked = false;
        }
    }

    /// Says that a shard does not have what the base placement says any more: from now on its
    /// stream names its ranges. Of the past it is asked for what it had then, again.
    pub fn name_ranges(&mut self, stream: StreamId) {
        let is_past = self.is_past;
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.asked = false;
            if is_past {
                return;
            }
            if let Part::Base { by_version, .. } = &mut stream.part {
                *by_version = false;
            }
        }
    }

    /// Gives half of a stream's ranges to another stream at the same place: together they are too many
    /// for one question ([`Naming::TooLong`]). Both are asked again.
    pub fn divide(&mut self, stream: StreamId) {
        self.unanswered(stream);
        let at = stream.0;
        let Some(divided) = self.streams.get(at) else {
            return;
        };
        // What it has returned is of all its ranges: a token must not stand before that for some of them.
        let may = divided.buffer.is_empty() && divided.reached != Reached::End;
        let (shard, reached, hops) = (divided.shard.clone(), divided.reached.clone(), divided.hops);
        let ranges = self.ranges(at);
        let half = &ranges.as_slice()[ranges.iter().len().div_ceil(2)..];
        if !may || half.is_empty() {
            return;
        }
        let half = half.iter().map(|range| (range.clone(), shard.clone()));
        let given = self.give_away(at, half.collect());
        // It joins no other stream: the two could go on dividing and joining for ever.
        for (shard, ranges) in given {
            self.streams.push(Stream::at(
                shard,
                Part::These(ranges),
                reached.clone(),
                hops,
            ));
        }
    }

    /// Takes a shard's answer. After an error the scan is as it was before, and the
    /// question open again.
    pub fn answered(&mut self, id: StreamId, batch: Batch<E>) -> Result<(), BatchError> {
        let stream = match self.streams.get_mut(id.0) {
            Some(stream) if stream.asked => stream,
            _ => return Err(BatchError::NotAsked(format!("stream {}", id.0))),
        };
        stream.asked = false;
        check(stream, &batch)?;
        let before = stream.reached.clone();
        let hops = stream.hops + 1;
        stream.was_answered = true;
        let loses = !batch.moved.is_empty();
        let gone = match loses {
            true => self.give_away(id.0, batch.moved),
            false => Vec::new(),
        };
        let stream = &mut self.streams[id.0];
        if let Some(place) = batch.reached {
            stream.reached = Reached::Behind(place);
        }
        // Looked at only when ranges went: a base part may have very many.
        let nothing_left = loses && self.ranges(id.0).is_empty();
        let stream = &mut self.streams[id.0];
        if batch.ended || nothing_left {
            stream.reached = Reached::End;
        }
        let floor = match self.order {
            Order::Sorted => self.floor.as_ref(),
            Order::Unsorted | Order::Whole => None,
        };
        // What came to be before the floor since then is not a result any more.
        let too_early = floor.map_or(0, |floor| {
            let entries = &batch.entries;
            entries.partition_point(|entry| entry.sort < *floor)
        });
        // ⚑ It was counted as one all the same by a shard that returns no more than are wanted.
        let counted_in_vain = too_early > 0 && self.limit.is_some() && !nothing_left;
        let last = batch.entries.last();
        if let (true, Some(place)) = (counted_in_vain, last.and_then(|last| last.place.clone())) {
            stream.reached = Reached::Behind(place);
        }
        let entries = batch.entries.into_iter().skip(too_early);
        stream.buffer.extend(entries);
        if stream.buffer.is_empty() {
            stream.delivered = stream.reached.clone();
        }
        for (shard, ranges) in gone {
            self.open(shard, ranges, before.clone(), hops);
        }
        Ok(())
    }

    /// Takes ranges out of a stream.
    fn give_away(
        &mut self,
        at: usize,
        moved: Vec<(KeyRange, ShardId)>,
    ) -> Vec<(ShardId, RangeSet)> {
        let mut left = self.ranges(at);
        // Shard by shard: there may be very many ranges.
        let mut named: Vec<(ShardId, Vec<KeyRange>)> = Vec::new();
        for (range, shard) in moved {
            match named.iter_mut().find(|(known, _)| *known == shard) {
                Some((_, ranges)) => ranges.push(range),
                None => named.push((shard, vec![range])),
            }
        }
        let mut all_gone = RangeSet::new();
        let mut gone: Vec<(ShardId, RangeSet)> = Vec::with_capacity(named.len());
        for (shard, ranges) in named {
            let ranges = RangeSet::of(ranges).intersection(&left);
            left = left.difference(&ranges);
            all_gone = all_gone.union(&ranges);
            gone.push((shard, ranges));
        }
        match &mut self.streams[at].part {
            Part::Base {
                without,
                by_version,
            } => {
                *without = without.union(&all_gone);
                *by_version = false;
            }
            Part::These(ranges) => *ranges = left,
        }
        gone
    }

    /// All streams there ever were, in the order in which they were opened.
    pub fn streams(&self) -> impl Iterator<Item = StreamView<'_>> {
        let streams = self.streams.iter().enumerate();
        streams.map(|(at, stream)| StreamView {
            id: StreamId(at),
            shard: &stream.shard,
            is_virtual: matches!(stream.part, Part::These(_)),
            ranges: match &stream.part {
                Part::These(ranges) => Some(ranges),
                Part::Base { .. } => None,
            },
            reached: &stream.reached,
            hops: stream.hops,
            has_ended: stream.has_ended(),
        })
    }

    /// Adds ranges that were found elsewhere: to a stream that is at the same place on
    /// the same shard, so that many moves do not make many streams, or to a new one.
    fn open(&mut self, shard: ShardId, ranges: RangeSet, reached: Reached, hops: u32) {
        if ranges.is_empty() {
            return;
        }
        for stream in &mut self.streams {
            // ⚑ One that was asked, or has a cursor from an earlier answer, would answer for the ranges
            // it had then.
            let joins = stream.shard == shard
                && stream.reached == reached
                && !stream.asked
                && !stream.was_answered
                && stream.buffer.is_empty();
            if let (true, Part::These(known)) = (joins, &mut stream.part) {
                *known = known.union(&ranges);
                stream.hops = stream.hops.max(hops);
                return;
            }
        }
        let opened = Stream::at(shard, Part::These(ranges), reached, hops);
        self.streams.push(opened);
    }
}

impl<E> Stream<E> {
    /// One that was not asked yet.
    fn at(shard: ShardId, part: Part, reached: Reached, hops: u32) -> Self {
        Self {
            shard,
            part,
            delivered: reached.clone(),
            reached,
            buffer: VecDeque::new(),
            asked: false,
            was_answered: false,
            hops,
        }
    }

    fn has_ended(&self) -> bool {
        self.reached == Reached::End && self.buffer.is_empty()
    }
}

fn check<E>(stream: &Stream<E>, batch: &Batch<E>) -> Result<(), BatchError> {
    if batch.moved.iter().any(|(_, to)| *to == stream.shard) {
        return Err(BatchError::WentNowhere(stream.shard.clone()));
    }
    if !batch.entries.is_sorted_by(|a, b| a.sort <= b.sort) {
        return Err(BatchError::OutOfOrder(stream.shard.clone()));
    }
    Ok(())
}
