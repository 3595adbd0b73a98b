//! What was in memory on the donor is in memory here too when it arrives.
//!
//! ```text
//!   answers   ──kept──┬──kept──┬──not──┬──kept──►          what scans had left on the donor
//!   applied   ──────────────────────►                      by then it is still in the memtable
//!   read      ═══════════════            ═══               aside, as scans read it (`storage`: stretches)
//! ```
//!
//! A scan that finds a range in no cache pays more for it than for several that it does find. The range is not owned
//! yet, so that nobody else reads it; what is read here is what an ordinary scan would leave, while there is room for it.

use super::plan::Fields;
use super::stretch::Stretch;
use crate::Shard;
use crate::aside::aside;
use model::Error;
use model::bson::{Doc, ValueRef};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Warming {
    shard: Arc<Shard>,
    stretch: Stretch,
    /// Up to where everything was applied, and read if it was to be.
    after: Option<Vec<u8>>,
    /// Answers that have come, and are not known to be applied.
    coming: VecDeque<Arrival>,
}

/// An answer of the donor.
struct Arrival {
    kept: bool,
    /// Its last record; `None` of the last one.
    upto: Option<Vec<u8>>,
}

impl Warming {
    /// Of what comes behind a record, if a copy goes on.
    pub(super) fn new(shard: Arc<Shard>, stretch: Stretch, after: Option<Vec<u8>>) -> Self {
        Self {
            shard,
            stretch,
            after,
            coming: VecDeque::new(),
        }
    }

    /// An answer has come.
    pub(super) fn comes(&mut self, answer: Doc<'_>) {
        self.coming.push_back(Arrival {
            kept: answer.get("kept") == Some(ValueRef::Boolean(true)),
            upto: Fields(answer).bytes("next").map(<[u8]>::to_vec),
        });
    }

    /// All but the last so many answers are applied.
    pub(super) async fn applied(&mut self, but: usize) -> Result<(), Error> {
        while self.coming.len() > but
            && let Some(Arrival { kept, upto }) = self.coming.pop_front()
        {
            let after = std::mem::replace(&mut self.after, upto.clone());
            if kept {
                let (shard, stretch) = (self.shard.clone(), self.stretch.clone());
                aside(move || read(&shard, &stretch, after.as_deref(), upto.as_deref())).await?;
            }
        }
        Ok(())
    }
}

fn read(
    shard: &Shard,
    stretch: &Stretch,
    after: Option<&[u8]>,
    upto: Option<&[u8]>,
) -> Result<(), Error> {
    let range = stretch.records_between(after, upto);
    let snapshot = shard.store.snapshot();
    let read = snapshot.keep_in_memory(stretch.collection, range);
    read.map_err(crate::error::from_storage)
}
