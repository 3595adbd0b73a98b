//! Several streams as one: in any order, or merged in a sort's order.
//!
//! In any order a stream that has nothing yet is passed over, and only when none has
//! anything is the result paused. In order every stream has to show its next document
//! before the least of them is known.

use super::Order;
use crate::pipeline::source::{Advance, Source};
use crate::sort::{SortKey, SortPattern};
use model::Error;
use model::bson::{Doc, DocBuf};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One source of all documents of the streams. Of documents that sort alike, those of
/// earlier streams come first.
pub fn merge_streams(mut streams: Vec<Box<dyn Source>>, order: &Order) -> Box<dyn Source> {
    match (order, streams.len()) {
        (_, 1) => streams.remove(0),
        (Order::Sorted(pattern), _) => Box::new(InOrder::new(streams, pattern.clone())),
        (Order::Any | Order::Events, _) => Box::new(AsTheyCome { streams, at: 0 }),
    }
}

struct AsTheyCome {
    /// Those that have not ended.
    streams: Vec<Box<dyn Source>>,
    /// The one that is asked next; it lends the current document.
    at: usize,
}

impl Source for AsTheyCome {
    fn advance(&mut self) -> Result<Advance, Error> {
        let mut paused = 0;
        while paused < self.streams.len() {
            if self.at >= self.streams.len() {
                self.at = 0;
            }
            match self.streams[self.at].advance()? {
                Advance::Document => return Ok(Advance::Document),
                Advance::Paused => {
                    paused += 1;
                    self.at += 1;
                }
                // The next one takes its place.
                Advance::End => {
                    self.streams.remove(self.at);
                }
            }
        }
        match self.streams.is_empty() {
            true => Ok(Advance::End),
            false => Ok(Advance::Paused),
        }
    }

    fn current(&self) -> Doc<'_> {
        match self.streams.get(self.at) {
            Some(stream) => stream.current(),
            None => Doc::EMPTY,
        }
    }

    fn take(&mut self) -> DocBuf {
        match self.streams.get_mut(self.at) {
            Some(stream) => stream.take(),
            None => DocBuf::new(),
        }
    }
}

struct InOrder {
    streams: Vec<Box<dyn Source>>,
    pattern: SortPattern,
    /// The next documents of the streams that have shown one; the least on top.
    heads: BinaryHeap<Reverse<(SortKey, usize)>>,
    /// The streams that have to show their next document.
    unread: Vec<usize>,
    current: usize,
}

impl InOrder {
    fn new(streams: Vec<Box<dyn Source>>, pattern: SortPattern) -> Self {
        Self {
            unread: (0..streams.len()).collect(),
            heads: BinaryHeap::with_capacity(streams.len()),
            streams,
            pattern,
            current: 0,
        }
    }
}

impl Source for InOrder {
    fn advance(&mut self) -> Result<Advance, Error> {
        while let Some(&at) = self.unread.last() {
            let stream = &mut self.streams[at];
            match stream.advance()? {
                Advance::Document => {
                    let key = self.pattern.key(stream.current())?;
                    self.heads.push(Reverse((key, at)));
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {}
            }
            self.unread.pop();
        }
        match self.heads.pop() {
            Some(Reverse((_, at))) => {
                self.current = at;
                self.unread.push(at);
                Ok(Advance::Document)
            }
            None => Ok(Advance::End),
        }
    }

    fn current(&self) -> Doc<'_> {
        match self.streams.get(self.current) {
            Some(stream) => stream.current(),
            None => Doc::EMPTY,
        }
    }

    fn take(&mut self) -> DocBuf {
        match self.streams.get_mut(self.current) {
            Some(stream) => stream.take(),
            None => DocBuf::new(),
        }
    }
}
