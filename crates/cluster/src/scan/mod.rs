//! Elastic scans: a query over all shards that loses nothing and repeats nothing while
//! ranges move.
//!
//! A scan is a value. It has one *stream* for each shard of the placement it began
//! with, and one for each range that was found to have moved since:
//!
//! ```text
//!   stream   shard     the one to ask
//!            ranges    the shard keys it answers for
//!            reached   the last position it has returned, in the order of the scan
//!
//!   ask(stream) ─► the shard, in one snapshot:
//!                    of the ranges it owns: entries after the position
//!                    of the others: where they went
//!               ─► answered: entries are buffered; what moved leaves this stream and
//!                  becomes a stream of its own there, from the position that this
//!                  one had *before* the batch
//! ```
//!
//! Why it is right:
//! - ⚑ **Every key is in exactly one stream that has not ended, until that stream ends.**
//!   Streams only ever give ranges to each other. A range may move any number of times,
//!   be split, come back, or go to a shard that is finished already.
//! - ⚑ **A shard answers for a range as a whole or not at all**, in the snapshot that
//!   the batch reads. So an entry at or before the position was returned, an entry after
//!   it was not, for every key of the stream.
//! - **A position means the same on every shard**: it is made of the scanned index key
//!   and the record key, never of a place in some shard's storage.
//!
//! The promise: every document whose scanned index key and record key did not change
//! during the scan is returned exactly once, in order if the scan is sorted.
//!
//! *Unsorted* scans finish one stream after the other, new ones last. *Sorted* scans
//! merge: nothing is delivered while a stream that has not ended has nothing to offer. So
//! when a position was delivered, all entries before it were, of every stream; it is the
//! *floor*, and nothing at or before it is asked for any more, even if a document has come
//! to be there since. A stream is asked only when all it had offered was delivered, so that
//! the position reached is also the position delivered, and a token for the client is
//! nothing but positions (see `token.rs`).
//!
//! What the shell adds: asking and waiting, deadlines, and that a shard must know at
//! least the base placement before it answers.

use crate::routing::{RoutingTable, ShardId};
use model::range::{KeyRange, RangeSet};
use model::version::PlacementVersion;
use std::collections::VecDeque;

mod token;

#[cfg(test)]
mod tests;

pub use token::{ScanToken, TokenError};

/// How far a stream has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reached<P> {
    Beginning,
    After(P),
    End,
}

impl<P: Ord + Clone> Reached<P> {
    fn raise_to(&mut self, floor: &P) {
        let below = match self {
            Reached::Beginning => true,
            Reached::After(position) => *position < *floor,
            Reached::End => false,
        };
        if below {
            *self = Reached::After(floor.clone());
        }
    }
}

/// Whether results come in the order of positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Sorted,
    Unsorted,
}

/// Names a stream of one scan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(usize);

/// A question for a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question<P> {
    pub stream: StreamId,
    pub shard: ShardId,
    pub ranges: RangeSet,
    /// `None`: from the beginning.
    pub after: Option<P>,
}

/// A shard's answer, from one snapshot.
#[derive(Clone, Debug)]
pub struct Batch<P, E> {
    /// After the position asked for, ascending, of ranges that the shard owns.
    pub entries: Vec<(P, E)>,
    /// There is nothing more after these.
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
    #[error("{0} answered with entries that are not after the position it was asked for")]
    OutOfOrder(ShardId),
}

#[derive(Clone, Debug)]
struct Stream<P, E> {
    shard: ShardId,
    ranges: RangeSet,
    reached: Reached<P>,
    buffer: VecDeque<(P, E)>,
    asked: bool,
    /// For a stream of the base placement: what it has given away of it.
    given_away: Option<RangeSet>,
}

/// A scan under way: `P` are positions, `E` what is returned.
#[derive(Clone, Debug)]
pub struct Scan<P, E> {
    base: PlacementVersion,
    order: Order,
    streams: Vec<Stream<P, E>>,
    /// The last position that was delivered by each stream, for tokens.
    delivered: Vec<Reached<P>>,
    /// The last position that was delivered by any: see the header.
    floor: Option<P>,
    skip: u64,
    limit: Option<u64>,
}

impl<P: Ord + Clone, E> Scan<P, E> {
    /// Begins with the placement that holds now, or held at the time that is read.
    /// `wanted` are the keys that the query can match.
    pub fn begin(base: &RoutingTable, wanted: &RangeSet, order: Order) -> Self {
        let streams: Vec<Stream<P, E>> = base
            .shards()
            .iter()
            .map(|placement| Stream {
                shard: placement.shard.clone(),
                ranges: base.ranges_of(&placement.shard).intersection(wanted),
                reached: Reached::Beginning,
                buffer: VecDeque::new(),
                asked: false,
                given_away: Some(RangeSet::new()),
            })
            .filter(|stream| !stream.ranges.is_empty())
            .collect();
        Self {
            base: base.version(),
            order,
            delivered: vec![Reached::Beginning; streams.len()],
            floor: None,
            streams,
            skip: 0,
            limit: None,
        }
    }

    /// Leaves out the first results, and ends after some more.
    #[must_use]
    pub fn with_window(mut self, skip: u64, limit: Option<u64>) -> Self {
        self.skip = skip;
        self.limit = limit;
        self
    }

    /// Whether everything was delivered.
    pub fn has_ended(&self) -> bool {
        self.limit == Some(0)
            || self
                .streams
                .iter()
                .all(|stream| stream.reached == Reached::End && stream.buffer.is_empty())
    }

    /// The shards to ask before anything more can be delivered. Each is asked once;
    /// its answer comes to [`Scan::answered`].
    pub fn questions(&mut self) -> Vec<Question<P>> {
        if self.has_ended() {
            return Vec::new();
        }
        let mut questions = Vec::new();
        let floor = match self.order {
            Order::Sorted => self.floor.as_ref(),
            Order::Unsorted => None,
        };
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if !stream.buffer.is_empty() {
                match self.order {
                    // There is something to deliver first.
                    Order::Unsorted => break,
                    Order::Sorted => continue,
                }
            }
            if let Some(floor) = floor {
                stream.reached.raise_to(floor);
            }
            let after = match &stream.reached {
                Reached::Beginning => None,
                Reached::After(position) => Some(position.clone()),
                Reached::End => continue,
            };
            if !stream.asked {
                stream.asked = true;
                questions.push(Question {
                    stream: StreamId(at),
                    shard: stream.shard.clone(),
                    ranges: stream.ranges.clone(),
                    after,
                });
            }
            if self.order == Order::Unsorted {
                break;
            }
        }
        questions
    }

    /// Says that a question was not answered: it will be asked again.
    pub fn unanswered(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.asked = false;
        }
    }

    /// Takes a shard's answer. After an error the scan is as it was before, and the
    /// question open again.
    pub fn answered(&mut self, id: StreamId, batch: Batch<P, E>) -> Result<(), BatchError> {
        let stream = match self.streams.get_mut(id.0) {
            Some(stream) if stream.asked => stream,
            _ => return Err(BatchError::NotAsked(format!("stream {}", id.0))),
        };
        stream.asked = false;
        check(stream, &batch)?;
        let before = stream.reached.clone();
        let mut gone = Vec::with_capacity(batch.moved.len());
        for (range, shard) in batch.moved {
            let ranges = RangeSet::of([range]).intersection(&stream.ranges);
            stream.ranges = stream.ranges.difference(&ranges);
            if let Some(given_away) = &mut stream.given_away {
                *given_away = given_away.union(&ranges);
            }
            gone.push((shard, ranges));
        }
        if let Some((last, _)) = batch.entries.last() {
            stream.reached = Reached::After(last.clone());
        }
        if batch.ended || stream.ranges.is_empty() {
            stream.reached = Reached::End;
        }
        stream.buffer.extend(batch.entries);
        for (shard, ranges) in gone {
            self.open(shard, ranges, before.clone());
        }
        Ok(())
    }

    /// The next result, if it is there. If it is not, ask [`Scan::questions`].
    pub fn deliver(&mut self) -> Option<(P, E)> {
        loop {
            if self.limit == Some(0) {
                return None;
            }
            let at = match self.order {
                Order::Unsorted => self.first_buffered()?,
                Order::Sorted => self.least_buffered()?,
            };
            let entry = self.streams[at].buffer.pop_front()?;
            self.delivered[at] = Reached::After(entry.0.clone());
            self.floor = Some(entry.0.clone());
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
            }
            return Some(entry);
        }
    }

    /// The shards that the scan has still to ask, with how many streams.
    pub fn open_streams(&self) -> impl Iterator<Item = (&ShardId, &RangeSet)> {
        let open = self
            .streams
            .iter()
            .filter(|stream| stream.reached != Reached::End || !stream.buffer.is_empty());
        open.map(|stream| (&stream.shard, &stream.ranges))
    }

    fn first_buffered(&self) -> Option<usize> {
        self.streams
            .iter()
            .position(|stream| !stream.buffer.is_empty())
    }

    /// The stream whose next entry is the least of all, if all that have not ended
    /// have one.
    fn least_buffered(&self) -> Option<usize> {
        let mut least: Option<(usize, &P)> = None;
        for (at, stream) in self.streams.iter().enumerate() {
            match stream.buffer.front() {
                Some((position, _)) => {
                    if least.is_none_or(|(_, other)| position < other) {
                        least = Some((at, position));
                    }
                }
                None if stream.reached == Reached::End => {}
                None => return None,
            }
        }
        least.map(|(at, _)| at)
    }

    /// Adds ranges that were found elsewhere: to a stream that is at the same place on
    /// the same shard, so that many moves do not make many streams, or to a new one.
    fn open(&mut self, shard: ShardId, ranges: RangeSet, reached: Reached<P>) {
        if ranges.is_empty() {
            return;
        }
        let joinable = self.streams.iter_mut().find(|stream| {
            let same_place = stream.shard == shard && stream.reached == reached;
            // One of the base placement is described by what it gave away; one that
            // was asked would answer for the ranges it had then.
            same_place && !stream.asked && stream.given_away.is_none() && stream.buffer.is_empty()
        });
        match joinable {
            Some(stream) => stream.ranges = stream.ranges.union(&ranges),
            None => {
                self.delivered.push(reached.clone());
                self.streams.push(Stream {
                    shard,
                    ranges,
                    reached,
                    buffer: VecDeque::new(),
                    asked: false,
                    given_away: None,
                });
            }
        }
    }
}

fn check<P: Ord, E>(stream: &Stream<P, E>, batch: &Batch<P, E>) -> Result<(), BatchError> {
    if batch.moved.iter().any(|(_, to)| *to == stream.shard) {
        return Err(BatchError::WentNowhere(stream.shard.clone()));
    }
    let mut entries = batch.entries.iter();
    let first_fits = match (&stream.reached, entries.next()) {
        (Reached::After(position), Some((first, _))) => first > position,
        (Reached::End, Some(_)) => false,
        (Reached::Beginning, _) | (_, None) => true,
    };
    if !first_fits || !batch.entries.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(BatchError::OutOfOrder(stream.shard.clone()));
    }
    Ok(())
}
