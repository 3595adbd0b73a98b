//! What a shard keeps of its part in a write over several shards: see the header of the module.

use crate::scan::Place;
use model::range::RangeSet;

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
    /// All of the ranges that are not left is done up to here.
    pub after: Option<Place>,
    pub left: Vec<Left>,
    pub matched: u64,
    pub modified: u64,
    pub ended: bool,
    pub fault: Option<F>,
}

/// A later operation has taken the slot: whoever sent this one does not wait for it any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superseded;

impl<F> Progress<F> {
    /// Where a request finds its stream: where an earlier attempt came to, or at its beginning.
    pub fn begin(
        number: u64,
        after: Option<Place>,
        stored: Option<Progress<F>>,
    ) -> Result<Self, Superseded> {
        match stored {
            Some(stored) if stored.number == number => Ok(stored),
            Some(stored) if stored.number > number => Err(Superseded),
            Some(_) | None => Ok(Self {
                number,
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
