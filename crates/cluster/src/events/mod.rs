//! Change streams over several shards: events of all of them, in the order of their
//! tokens.
//!
//! Every shard has its own log, and tells its events in order. A batch of a shard ends
//! with a *mark*: nothing at or before it will come from there any more. An event may be
//! delivered once every other shard has told a later event or a mark that passed it:
//!
//! ```text
//!   tokens      1    2    3    4    5    6    7    8
//!   shard a          a2             a5                    mark 6
//!   shard b     b1             b4                         mark 4
//!   shard c               c3                              mark 3
//!                            ▲
//!   delivered   b1   a2   c3 │  b4 waits for c, whose next event may be before it
//! ```
//!
//! - ⚑ **What was delivered is never preceded by what comes later.** The token of the last
//!   event, or where nothing is left the least mark, is a place from which a client can
//!   go on: all events up to it were delivered, of every shard.
//! - **Bounded**: only shards that have nothing waiting are asked, so at most one batch
//!   of each is kept. [`Next::Wait`] names them.
//! - A shard whose log is at rest holds up all others, since its mark does not move by
//!   itself. [`Next::Wait`] says what it has to be moved past.
//! - What a shard answers is checked: an event before its mark, or out of order, is an
//!   error, since delivering it would break the promise.
//!
//! **Going on** behind an event that a client has seen: the shards are asked from the
//! time of its token on, since only one of them knows the event itself; what was seen is
//! left out here. If all shards pass the place without showing the event, its history is
//! lost and the client is told, not left with a hole.
//!
//! Tokens are any ordered type; the shell compares those of events as their bytes.
//! Events of equal tokens (documents of the same `_id` on two shards, changed at the same
//! cluster time) are delivered in the order of shards; who goes on behind the first of
//! them does not see the second.
//!
//! Left out: which shards there are. A shard that joins is added with the mark it begins
//! at, which no event that was delivered has passed. Whoever tells clients a place must
//! know of all shards up to it.

#[cfg(test)]
mod tests;

use crate::routing::ShardId;
use std::collections::{BTreeMap, VecDeque};
use thiserror::Error;

/// Where a merged stream begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin<T> {
    /// Behind a mark.
    At(T),
    /// Behind this event, which some shard must show.
    Behind(T),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<T, E> {
    Deliver(T, E),
    /// These shards have to answer first. If an event waits for them, `until` is its
    /// token: a shard whose log is at rest has to be moved past it, by an entry that
    /// means nothing (`appendOplogNote` with the token's time as `$clusterTime`).
    Wait {
        shards: Vec<ShardId>,
        until: Option<T>,
    },
    /// The event to go on behind is nowhere.
    PlaceLost,
    /// There are no shards any more.
    End,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EventError {
    #[error("{shard} is none of the shards that are watched")]
    UnknownShard { shard: ShardId },
    #[error("{shard} told an event out of order")]
    OutOfOrder { shard: ShardId },
    #[error("{shard} comes too late: events behind its place were delivered")]
    TooLate { shard: ShardId },
}

#[derive(Clone, Debug)]
struct Stream<T, E> {
    waiting: VecDeque<(T, E)>,
    /// Nothing at or before it will come any more.
    mark: T,
    /// Nothing at all will come any more.
    ended: bool,
}

impl<T: Ord, E> Stream<T, E> {
    fn new(mark: T) -> Self {
        Self {
            waiting: VecDeque::new(),
            mark,
            ended: false,
        }
    }

    fn head(&self) -> Option<&T> {
        self.waiting.front().map(|(token, _)| token)
    }

    /// Whether nothing at or before this token is left to come, nor waits.
    fn has_passed(&self, token: &T) -> bool {
        match self.head() {
            Some(head) => head > token,
            None => self.ended || self.mark >= *token,
        }
    }
}

/// The events of several shards on their way to one client.
#[derive(Clone, Debug)]
pub struct EventMerge<T, E> {
    streams: BTreeMap<ShardId, Stream<T, E>>,
    /// Where the merged stream begins: what is at or before it was seen.
    begin: T,
    /// The event to go on behind, until some shard shows it.
    behind: Option<T>,
    /// The last event that was delivered.
    delivered: Option<T>,
}

impl<T: Ord + Clone, E> EventMerge<T, E> {
    /// `from` is the mark that all shards are asked from. It is not behind the place
    /// where the merged stream begins.
    pub fn new(shards: impl IntoIterator<Item = ShardId>, from: T, begin: Begin<T>) -> Self {
        let (begin, behind) = match begin {
            Begin::At(mark) => (mark, None),
            Begin::Behind(event) => (event.clone(), Some(event)),
        };
        Self {
            streams: shards
                .into_iter()
                .map(|shard| (shard, Stream::new(from.clone())))
                .collect(),
            begin,
            behind,
            delivered: None,
        }
    }

    /// A shard's batch, and the mark behind it.
    pub fn answered(
        &mut self,
        shard: &ShardId,
        events: impl IntoIterator<Item = (T, E)>,
        mark: T,
    ) -> Result<(), EventError> {
        let stream = match self.streams.get_mut(shard) {
            Some(stream) if !stream.ended => stream,
            _ => {
                return Err(EventError::UnknownShard {
                    shard: shard.clone(),
                });
            }
        };
        let out_of_order = || EventError::OutOfOrder {
            shard: shard.clone(),
        };
        let mut batch = VecDeque::new();
        let mut last = stream.mark.clone();
        for (token, event) in events {
            if token <= last {
                return Err(out_of_order());
            }
            last = token.clone();
            batch.push_back((token, event));
        }
        if mark < last {
            return Err(out_of_order());
        }
        stream.mark = mark;
        stream.waiting.append(&mut batch);
        Ok(())
    }

    /// A shard that is watched from now on. Nothing of it comes at or before `from`.
    pub fn add(&mut self, shard: ShardId, from: T) -> Result<(), EventError> {
        if from < *self.reached() {
            return Err(EventError::TooLate { shard });
        }
        self.streams.entry(shard).or_insert(Stream::new(from));
        Ok(())
    }

    /// A shard that tells nothing any more. What it has told is still delivered.
    pub fn ended(&mut self, shard: &ShardId) {
        if let Some(stream) = self.streams.get_mut(shard) {
            stream.ended = true;
        }
    }

    /// The token of the next event, wherever it is and whatever it waits for.
    pub fn next_token(&self) -> Option<&T> {
        self.streams.values().filter_map(Stream::head).min()
    }

    fn reached(&self) -> &T {
        self.delivered.as_ref().unwrap_or(&self.begin)
    }

    /// The place up to which everything was delivered: what a client goes on from.
    pub fn place(&self) -> T {
        let reached = self.reached();
        let told = self
            .streams
            .values()
            .filter(|stream| !stream.ended && stream.waiting.is_empty())
            .map(|stream| &stream.mark)
            .min()
            // An event that was seen before is shown by some shard, or lost.
            .filter(|_| self.behind.is_none())
            .filter(|mark| *mark > reached)
            .filter(|mark| self.streams.values().all(|stream| stream.has_passed(mark)));
        told.unwrap_or(reached).clone()
    }

    /// The least event that waits for shards, and for which.
    pub fn held_up(&self) -> Option<(&T, Vec<ShardId>)> {
        let token = self.next_token()?;
        let shards = self.silent(Some(token));
        (!shards.is_empty()).then_some((token, shards))
    }

    /// The next thing to do.
    pub fn step(&mut self) -> Next<T, E> {
        loop {
            self.streams
                .retain(|_, stream| !stream.ended || !stream.waiting.is_empty());
            if let Some(place) = &self.behind
                && self.streams.values().all(|stream| stream.has_passed(place))
            {
                return Next::PlaceLost;
            }
            if self.streams.is_empty() {
                return Next::End;
            }
            // The least event; of equals, that of the first shard.
            let first = self
                .streams
                .iter()
                .filter_map(|(shard, stream)| Some((stream.head()?, shard)))
                .min()
                .map(|(token, shard)| (token.clone(), shard.clone()));
            let Some((token, shard)) = first else {
                return Next::Wait {
                    shards: self.silent(None),
                    until: None,
                };
            };
            let held_up_by = self.silent(Some(&token));
            if !held_up_by.is_empty() {
                return Next::Wait {
                    shards: held_up_by,
                    until: Some(token),
                };
            }
            let taken = self
                .streams
                .get_mut(&shard)
                .and_then(|stream| stream.waiting.pop_front());
            if self.behind.as_ref() == Some(&token) {
                self.behind = None;
            }
            if let Some((token, event)) = taken
                && token > self.begin
            {
                self.delivered = Some(token.clone());
                return Next::Deliver(token, event);
            }
        }
    }

    /// The shards with nothing waiting that may still tell something before this event.
    fn silent(&self, before: Option<&T>) -> Vec<ShardId> {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.waiting.is_empty())
            .filter(|(_, stream)| before.is_none_or(|token| stream.mark < *token))
            .map(|(shard, _)| shard.clone())
            .collect()
    }
}
