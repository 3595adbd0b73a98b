//! What a router or shard knows of placements, and when it asks again.
//!
//! One state per namespace. The cache is lazy: it asks its source only when
//! somebody needs what it does not have, or what it was told is out of date.
//!
//! ```text
//!               look_up                       fetched
//!   nothing ───────────────► being fetched ───────────────► known
//!                               ▲    │ failed: again, twice     │
//!                               └────┘                          │ stale_shard, stale
//!            look_up of what is stale                           ▼
//!            ◄────────────────────────────────────────── known, in part stale
//! ```
//!
//! Invariants:
//! - **One question at a time for a namespace.** Whoever comes while it is being
//!   answered waits for the same answer. But an answer that was asked for before
//!   something was marked stale does not clear that mark: it may be older. ⚑
//! - **Who is not concerned does not wait.** A mark names a shard, or everything; a
//!   request for other shards goes on with the table there is.
//! - **Incremental where it can be.** The question names the version known here;
//!   where nothing is known, the collection was dropped or its incarnation differs,
//!   everything is asked for. Changes that do not fit the table lead to a full fetch.
//! - **Never backwards.** An answer that is older than what is known (from a member
//!   of the source that lags behind) is not taken over; it counts as a failure.
//! - A fetch that fails is tried twice more; then those who wait are told, and keep
//!   what was known before, if anything: versions will tell whether it was enough.
//!
//! The shell carries out [`Fetch`], reports to [`RoutingCache::fetched`], and wakes
//! whoever waits. Databases are cached in the same way and are not here yet.

use crate::routing::{ChunkWithEnd, RefreshError, RoutingTable, ShardId};
use model::version::{Age, ChunkVersion, PlacementVersion};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

#[cfg(test)]
mod tests;

/// How often a failed fetch is tried again.
const RETRIES: u32 = 2;

/// What is known of a collection. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Placement {
    /// It is not sharded, or does not exist: the database's primary shard answers for it.
    Unsharded,
    Sharded(RoutingTable),
}

impl Placement {
    pub fn version(&self) -> PlacementVersion {
        match self {
            Placement::Unsharded => PlacementVersion::UNSHARDED,
            Placement::Sharded(table) => table.version(),
        }
    }
}

/// A question for the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetch {
    Everything,
    /// The chunks that changed at or after a version, if that incarnation still is.
    Since(PlacementVersion),
}

/// The source's answer.
#[derive(Clone, Debug)]
pub enum Fetched {
    Unsharded,
    /// All chunks, of whatever incarnation there is now.
    Everything(RoutingTable),
    /// To a question for changes: those of the same incarnation.
    Changes(Vec<ChunkWithEnd>),
}

/// What somebody who needs a placement has to do.
#[derive(Clone, Debug)]
pub enum LookUp {
    Ready(Placement),
    /// Carry out this question, then wait as others do.
    Ask(Fetch),
    /// The question is under way.
    Wait,
}

/// What came of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Wake those who wait: they look again.
    Updated,
    /// Carry out this question; nobody is woken yet.
    Ask(Fetch),
    /// Wake those who wait with this reason; what was known before stays.
    GaveUp(String),
}

/// Placements by name.
#[derive(Debug)]
pub struct RoutingCache<N> {
    entries: HashMap<N, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    known: Option<Placement>,
    stale: Stale,
    /// Counts marks, so that one can be told from another of the same shard.
    marks: u64,
    asked: Option<Asked>,
}

/// Which part of what is known must not be used any more.
#[derive(Debug, Default)]
struct Stale {
    everything: Option<Mark>,
    shards: BTreeMap<ShardId, Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u64,
    /// What the shard has, if it said so: knowing that is enough.
    wanted: Option<PlacementVersion>,
}

impl Stale {
    fn concerns(&self, shards: Option<&[ShardId]>) -> bool {
        self.everything.is_some()
            || shards.is_some_and(|shards| {
                let is_stale = |shard| self.shards.contains_key(shard);
                shards.iter().any(is_stale)
            })
    }
}

/// A question under way.
#[derive(Debug)]
struct Asked {
    failures: u32,
    /// The last mark when it was asked: later ones it may know nothing of.
    marks: u64,
}

impl<N: Eq + Hash + Clone> Default for RoutingCache<N> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
        }
    }
}

impl<N: Eq + Hash + Clone> RoutingCache<N> {
    /// What is known of a collection, if it may be used for these shards. `None`
    /// asks for whatever is known, before it is clear which shards are concerned.
    pub fn look_up(&mut self, name: &N, shards: Option<&[ShardId]>) -> LookUp {
        let entry = self.entries.entry(name.clone()).or_default();
        if let Some(known) = &entry.known
            && !entry.stale.concerns(shards)
        {
            return LookUp::Ready(known.clone());
        }
        match entry.asked {
            Some(_) => LookUp::Wait,
            None => LookUp::Ask(entry.ask(0)),
        }
    }

    /// What is known of a collection, if none of it is stale.
    pub fn fresh(&self, name: &N) -> Option<&Placement> {
        let entry = self.entries.get(name)?;
        let is_stale = entry.stale.everything.is_some() || !entry.stale.shards.is_empty();
        entry.known.as_ref().filter(|_| !is_stale)
    }

    /// A shard said that a request was routed by an old version. `wanted` is what it
    /// has itself, if it knows.
    pub fn stale_shard(&mut self, name: &N, shard: &ShardId, wanted: Option<PlacementVersion>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let Some(known) = &entry.known else {
            return;
        };
        let of_shard = shard_version(known, shard);
        // Somebody else may have brought this news already.
        if wanted.is_some_and(|wanted| includes(of_shard, wanted)) {
            return;
        }
        let only_the_shard = wanted.is_none_or(|wanted| wanted.incarnation == of_shard.incarnation);
        let mark = entry.next_mark(wanted);
        if only_the_shard {
            entry.stale.shards.insert(shard.clone(), mark);
        } else {
            entry.stale.everything = Some(mark);
        }
    }

    /// A cache of one collection that was known and has to be asked for: whoever looks beside another cache keeps
    /// nobody there waiting.
    pub fn beside(name: N, known: Placement) -> Self {
        let mut cache = Self::default();
        let entry = Entry {
            known: Some(known),
            ..Entry::default()
        };
        cache.entries.insert(name.clone(), entry);
        cache.stale(&name);
        cache
    }

    /// Nothing that is known of a collection may be used any more.
    pub fn stale(&mut self, name: &N) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.stale.everything = Some(entry.next_mark(None));
        }
    }

    /// What is known of a collection, whether it may be used or not.
    pub fn known(&self, name: &N) -> Option<&Placement> {
        self.entries.get(name)?.known.as_ref()
    }

    /// Every name that something is known of, or asked for.
    pub fn names(&self) -> Vec<N> {
        self.entries.keys().cloned().collect()
    }

    /// Forgets a collection, unless a question is under way: then what it brings
    /// counts as stale.
    pub fn forget(&mut self, name: &N) {
        if let Some(entry) = self.entries.get_mut(name) {
            if entry.asked.is_none() {
                self.entries.remove(name);
            } else {
                entry.known = None;
                entry.stale.everything = Some(entry.next_mark(None));
            }
        }
    }

    /// Takes the answer to a question that [`LookUp::Ask`] or [`Outcome::Ask`] gave.
    pub fn fetched(&mut self, name: &N, answer: Result<Fetched, String>) -> Outcome {
        let entry = self.entries.entry(name.clone()).or_default();
        let Some(asked) = entry.asked.take() else {
            return Outcome::Updated;
        };
        match answer.and_then(|fetched| entry.take_over(fetched)) {
            Ok(Taken::Placement(placement)) => {
                entry.known = Some(placement);
                entry.take_back_marks(asked.marks);
                Outcome::Updated
            }
            Ok(Taken::DoesNotFit) => {
                entry.known = None;
                Outcome::Ask(entry.ask(asked.failures))
            }
            Err(_) if asked.failures < RETRIES => Outcome::Ask(entry.ask(asked.failures + 1)),
            Err(reason) => Outcome::GaveUp(reason),
        }
    }
}

fn shard_version(placement: &Placement, shard: &ShardId) -> PlacementVersion {
    match placement {
        Placement::Unsharded => PlacementVersion::UNSHARDED,
        Placement::Sharded(table) => table.shard_version(shard),
    }
}

/// Whether who knows `known` of a shard knows that the shard has `wanted`. A shard
/// that gave away its last chunk is at zero: older by number, and yet news.
fn includes(known: PlacementVersion, wanted: PlacementVersion) -> bool {
    match wanted.age(known) {
        Age::Same => true,
        Age::Older => wanted.incarnation != known.incarnation || wanted.chunk != ChunkVersion::ZERO,
        Age::Newer | Age::Unknown => false,
    }
}

enum Taken {
    Placement(Placement),
    /// The changes leave holes: something was missed before.
    DoesNotFit,
}

impl Entry {
    fn ask(&mut self, failures: u32) -> Fetch {
        self.asked = Some(Asked {
            failures,
            marks: self.marks,
        });
        match &self.known {
            Some(Placement::Sharded(table)) => Fetch::Since(table.version()),
            Some(Placement::Unsharded) | None => Fetch::Everything,
        }
    }

    fn take_over(&self, fetched: Fetched) -> Result<Taken, String> {
        let taken = match (fetched, &self.known) {
            (Fetched::Unsharded, _) => Placement::Unsharded,
            (Fetched::Everything(table), _) => Placement::Sharded(table),
            (Fetched::Changes(changes), Some(Placement::Sharded(table))) => {
                match table.with_changes(changes) {
                    Ok(table) => Placement::Sharded(table),
                    Err(
                        RefreshError::Gap { .. }
                        | RefreshError::Overlap { .. }
                        | RefreshError::Empty
                        | RefreshError::EmptyChunk { .. }
                        | RefreshError::BadParts { .. },
                    ) => return Ok(Taken::DoesNotFit),
                }
            }
            (Fetched::Changes(_), _) => return Ok(Taken::DoesNotFit),
        };
        if let Some(known) = &self.known
            && taken.version().age(known.version()) == Age::Older
        {
            return Err(format!(
                "the source answered with version {} and {} is known",
                taken.version().chunk,
                known.version().chunk
            ));
        }
        Ok(Taken::Placement(taken))
    }

    fn next_mark(&mut self, wanted: Option<PlacementVersion>) -> Mark {
        self.marks += 1;
        Mark {
            number: self.marks,
            wanted,
        }
    }

    /// Takes back the marks that an answer has dealt with: those that were there when
    /// it was asked for, and those that ask for no more than it has brought.
    fn take_back_marks(&mut self, asked_at: u64) {
        let Some(known) = &self.known else {
            return;
        };
        let dealt_with = |mark: &Mark, version: PlacementVersion| {
            let brought =
                |wanted: PlacementVersion| matches!(wanted.age(version), Age::Same | Age::Older);
            mark.number <= asked_at || mark.wanted.is_some_and(brought)
        };
        self.stale
            .everything
            .take_if(|mark| dealt_with(mark, known.version()));
        self.stale
            .shards
            .retain(|shard, mark| !dealt_with(mark, shard_version(known, shard)));
    }
}
