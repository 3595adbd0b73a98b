//! A scan goes on when the shard key is refined.
//!
//! Refining gives the key more fields and the collection a new incarnation. Nothing moves by it, record keys stay what
//! they were, and so do places, which are made of them. What changes are words: the same ranges have longer bounds, and
//! versions speak of the new incarnation.
//!
//! ```text
//!   before   [5, 10)                     k
//!   after    [(5, MinKey), (10, MinKey)) k, l     what was moved and split since then may have bounds between
//! ```
//!
//! So the base placement is refined as the config server does it: the same chunks with the same versions, under longer
//! bounds. A shard that has seen nothing but the refinement is still asked by its version; another one is asked
//! for its ranges.
//!
//! ⚑ **Ranges are named in the words of one incarnation, and the shard has the same one in the snapshot that it reads.**
//! Otherwise a document would be looked for by a key of one length among bounds of another: `5` lies before
//! `(5, MinKey)`. Whoever is older learns of the other's key, and the question is put again.
//!
//! Making that placement takes a look at every chunk, so all scans that began with one placement share it: the base
//! knows what was made of it.
//!
//! Answers to questions in the old words may still be on their way: their ranges are put into the new ones when they
//! are taken ([`Scan::in_words`]).

use super::{Part, Scan};
use crate::routing::RoutingTable;
use model::range::RangeSet;
use std::sync::Arc;

/// A placement that is not of the same collection, or not under a key that continues the scan's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the placement is not that of the scanned collection under a refined key")]
pub struct NotRefined;

/// A base placement under the key of a later placement of the same collection, made once for all that have the base.
pub fn refined_base(
    base: &RoutingTable,
    now: &RoutingTable,
) -> Result<Arc<RoutingTable>, NotRefined> {
    // Whatever else gives it another incarnation gives it another identity too, but for a rename, which leaves the
    // key as it is and is refused below.
    if now.uuid != base.uuid || now.incarnation.began <= base.incarnation.began {
        return Err(NotRefined);
    }
    if let Some(known) = base.refinement(now.incarnation) {
        return Ok(known);
    }
    let chunks = base.refined(now.pattern.clone(), now.incarnation);
    let chunks = chunks.map_err(|_| NotRefined)?;
    let made = RoutingTable::full(now.uuid, now.incarnation, now.pattern.clone(), chunks);
    let made = Arc::new(made.map_err(|_| NotRefined)?);
    base.remember_refinement(&made);
    Ok(made)
}

impl<E> Scan<E> {
    /// Goes on with the key of a later placement of the same collection; nothing changes if it has the same one.
    pub fn refine(&mut self, now: &RoutingTable) -> Result<(), NotRefined> {
        if now.incarnation != self.base.incarnation {
            self.go_by(refined_base(&self.base, now)?);
        }
        Ok(())
    }

    /// Goes on with what [`refined_base`] has made of its base.
    pub fn go_by(&mut self, refined: Arc<RoutingTable>) {
        self.base = refined;
        self.wanted = self.in_words(&self.wanted);
        for at in 0..self.streams.len() {
            let part = match &self.streams[at].part {
                Part::Base {
                    without,
                    by_version,
                } => Part::Base {
                    without: self.in_words(without),
                    by_version: *by_version,
                },
                Part::These(ranges) => Part::These(self.in_words(ranges)),
            };
            self.streams[at].part = part;
        }
    }

    /// Ranges as bounds of the key that the scan goes by now.
    pub fn in_words(&self, ranges: &RangeSet) -> RangeSet {
        self.base.pattern.completed_ranges(ranges)
    }
}
