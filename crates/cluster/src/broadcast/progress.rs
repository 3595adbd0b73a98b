//! What a shard keeps of its part in a write over several shards: see the header of the module.

use crate::scan::Place;
use model::range::RangeSet;
use model::time::ClusterTime;

/// Ranges that were left because they were not owned, and the place up to which they are done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    pub ranges: RangeSet,
    pub after: Option<Place>,
}

/// How far one stream has come on its shard. `F` says why it failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress<F> {
    pub number: u64,
    /// When its request was first sent.
    pub sent: ClusterTime,
    /// All of the ranges that are not left is done up to here.
    pub after: Option<Place>,
    pub left: Vec<Left>,
    pub matched: u64,
    pub modified: u64,
    pub ended: bool,
    pub fault: Option<F>,
}

/// The name of a request: which operation of its slot, and when it was sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub number: u64,
    pub at: ClusterTime,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwanted {
    /// A later operation has taken the slot: whoever sent this one does not wait for it any more.
    Superseded,
    /// It was first sent so long ago that what became of it may have been forgotten.
    Forgotten,
}

impl<F> Progress<F> {
    /// Where a request finds its stream: where an earlier attempt came to, or at its beginning. What was
    /// first sent at the `horizon` or before may have been forgotten.
    pub fn begin(
        sent: Sent,
        after: Option<Place>,
        stored: Option<Progress<F>>,
        horizon: Option<ClusterTime>,
    ) -> Result<Self, Unwanted> {
        match stored {
            Some(stored) if stored.number == sent.number => Ok(stored),
            Some(stored) if stored.number > sent.number => Err(Unwanted::Superseded),
            _ if horizon.is_some_and(|horizon| sent.at <= horizon) => Err(Unwanted::Forgotten),
            Some(_) | None => Ok(Self {
                number: sent.number,
                sent: sent.at,
                after,
                left: Vec::new(),
                matched: 0,
                modified: 0,
                ended: false,
                fault: None,
            }),
        }
    }

    /// What is still to be done of the ranges that were asked for.
    pub fn remaining(&self, asked: &RangeSet) -> RangeSet {
        let mut remaining = asked.clone();
        for left in &self.left {
            remaining = remaining.difference(&left.ranges);
        }
        remaining
    }

    /// Leaves what is not owned; true if that is something, or if nothing is left to do.
    pub fn meet(&mut self, asked: &RangeSet, owned: &RangeSet) -> bool {
        let remaining = self.remaining(asked);
        let ranges = remaining.difference(owned);
        if ranges.is_empty() {
            return false;
        }
        self.left.push(Left {
            ranges,
            after: self.after.clone(),
        });
        true
    }

    /// A batch was walked, up to this place.
    pub fn advance(&mut self, to: Option<Place>, matched: u64, modified: u64) {
        if to.is_some() {
            self.after = to;
        }
        self.matched += matched;
        self.modified += modified;
    }

    pub fn end(&mut self) {
        self.ended = true;
    }

    pub fn fail(&mut self, fault: F) {
        self.fault = Some(fault);
        self.ended = true;
    }
}
