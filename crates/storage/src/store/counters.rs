//! Counts and sizes per collection and index, exact after any crash.
//!
//! Writing a counter's key in every batch would cost one more engine insert for
//! each write. Instead the value of the *applied* key, which every batch writes
//! anyway, carries the absolute values of all counters that changed since the last
//! checkpoint. When that list grows long, a batch writes the counters to keys of
//! their own and the list begins anew. Since the list travels in the same batch as
//! the changes it counts, any prefix of batches has counters that fit its records.

use std::collections::{BTreeMap, BTreeSet};

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;

use super::snapshot::scan_prefix;
use crate::engine::{EngineSnapshot, Slice, WriteBatch};
use crate::error::{Error, Result};
use crate::layout::{self, Subject, TIME_BYTES};
use crate::varint;

/// How many counters ride along before they are written out.
const CHECKPOINT_AFTER: usize = 16;

const KIND_COLLECTION: u8 = 0;
const KIND_INDEX: u8 = 1;

/// Items (documents or index entries) and their bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counter {
    pub items: u64,
    pub bytes: u64,
}

/// A change to one counter.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Delta {
    pub items: i64,
    pub bytes: i64,
}

impl Counter {
    fn plus(self, delta: Delta) -> Self {
        Self {
            items: self.items.saturating_add_signed(delta.items),
            bytes: self.bytes.saturating_add_signed(delta.bytes),
        }
    }
}

#[derive(Default, Debug)]
pub(super) struct Counters {
    values: BTreeMap<Subject, Counter>,
    /// Those whose own key is out of date.
    since_checkpoint: BTreeSet<Subject>,
}

/// What a batch does to the counters, to be taken over once it is committed.
pub(super) struct Next {
    changed: Vec<(Subject, Counter)>,
    dropped: Vec<Subject>,
    checkpoint: bool,
}

impl Counters {
    pub fn get(&self, subject: Subject) -> Counter {
        self.values.get(&subject).copied().unwrap_or_default()
    }

    pub fn total_bytes(&self) -> u64 {
        self.values
            .values()
            .fold(0, |sum, counter| sum.saturating_add(counter.bytes))
    }

    /// Adds the applied position and the counters to `batch`.
    pub fn prepare(
        &self,
        batch: &mut WriteBatch,
        (position, time): (u64, ClusterTime),
        deltas: &[(Subject, Delta)],
        dropped: &[Subject],
    ) -> Next {
        let changed: Vec<(Subject, Counter)> = deltas
            .iter()
            .filter(|(subject, _)| !dropped.contains(subject))
            .map(|&(subject, delta)| (subject, self.get(subject).plus(delta)))
            .collect();
        let is_changed = |subject: &Subject| changed.iter().any(|(other, _)| other == subject);
        let older: Vec<(Subject, Counter)> = self
            .since_checkpoint
            .iter()
            .filter(|subject| !is_changed(subject) && !dropped.contains(subject))
            .map(|&subject| (subject, self.get(subject)))
            .collect();
        let checkpoint = changed.len() + older.len() > CHECKPOINT_AFTER;
        let mut value = Vec::with_capacity(64);
        value.extend_from_slice(&position.to_be_bytes());
        value.extend_from_slice(&layout::time_bytes(time));
        for &(subject, counter) in changed.iter().chain(&older) {
            if checkpoint {
                let mut own = Vec::with_capacity(12);
                put_counter(&mut own, counter);
                batch.put(layout::counter(subject).to_slice(), Slice::from(own));
            } else {
                let (kind, id) = match subject {
                    Subject::Collection(id) => (KIND_COLLECTION, id.0),
                    Subject::Index(id) => (KIND_INDEX, id.0),
                };
                value.push(kind);
                varint::put(&mut value, u64::from(id));
                put_counter(&mut value, counter);
            }
        }
        for &subject in dropped {
            batch.remove(layout::counter(subject).to_slice());
        }
        batch.put(layout::applied().to_slice(), Slice::from(value));
        Next {
            changed,
            dropped: dropped.to_vec(),
            checkpoint,
        }
    }

    /// Takes over what a committed batch said.
    pub fn commit(&mut self, next: Next) {
        if next.checkpoint {
            self.since_checkpoint.clear();
        }
        for (subject, counter) in next.changed {
            self.values.insert(subject, counter);
            if !next.checkpoint {
                self.since_checkpoint.insert(subject);
            }
        }
        for subject in next.dropped {
            self.values.remove(&subject);
            self.since_checkpoint.remove(&subject);
        }
    }
}

fn put_counter(out: &mut Vec<u8>, counter: Counter) {
    varint::put(out, counter.items);
    varint::put(out, counter.bytes);
}

fn take_counter(input: &mut &[u8]) -> Option<Counter> {
    Some(Counter {
        items: varint::take(input)?,
        bytes: varint::take(input)?,
    })
}

/// The applied position and time, and all counters.
pub(super) fn load(state: &impl EngineSnapshot) -> Result<(u64, ClusterTime, Counters)> {
    let mut counters = Counters::default();
    let prefix = layout::counters();
    for pair in scan_prefix(state, &prefix) {
        let (key, value) = pair?;
        let subject = layout::parse_subject(&key[prefix.len()..])?;
        let counter = take_counter(&mut &value[..]).ok_or(Error::Damaged { what: "counter" })?;
        counters.values.insert(subject, counter);
    }
    let Some(value) = state.get(&layout::applied())? else {
        return Ok((0, ClusterTime::ZERO, counters));
    };
    let (position, time, mut rest) = split_applied(&value)?;
    while let Some((&kind, after)) = rest.split_first() {
        rest = after;
        let id = varint::take(&mut rest).and_then(|id| u32::try_from(id).ok());
        let (Some(id), Some(counter)) = (id, take_counter(&mut rest)) else {
            return Err(DAMAGED);
        };
        let subject = match kind {
            KIND_COLLECTION => Subject::Collection(CollectionId(id)),
            KIND_INDEX => Subject::Index(IndexId(id)),
            _ => return Err(DAMAGED),
        };
        counters.values.insert(subject, counter);
        counters.since_checkpoint.insert(subject);
    }
    Ok((position, time, counters))
}

const DAMAGED: Error = Error::Damaged {
    what: "applied position",
};

/// Position, time, and the counters behind them.
fn split_applied(value: &[u8]) -> Result<(u64, ClusterTime, &[u8])> {
    let (position, rest) = value.split_first_chunk::<8>().ok_or(DAMAGED)?;
    let time = layout::value_time(rest)?;
    Ok((u64::from_be_bytes(*position), time, &rest[TIME_BYTES..]))
}

/// The time of the last entry that a state contains.
pub(super) fn applied_time(state: &impl EngineSnapshot) -> Result<ClusterTime> {
    match state.get(&layout::applied())? {
        Some(value) => split_applied(&value).map(|(_, time, _)| time),
        None => Ok(ClusterTime::ZERO),
    }
}
