//! Which ranges to move so that shards have what they should: the policy, without clocks and messages.
//!
//! ```text
//!   1  what a shard that is being removed still owns          to the shard that has least
//!   2  what lies in a zone on a shard that is not of the zone to the shard of the zone that has least
//!   3  from the shard that has most to the one that has least, if they differ by three chunks' worth of bytes
//! ```
//!
//! A shard takes part in so many moves of a round as it may in all ([`Busy`]); whoever calls says in how many it does
//! already. Each is chosen as if those before it had moved a chunk's worth of bytes, and never what one of them
//! moves. What is proposed lies within one chunk and within one zone, so it may be a part of a chunk. What was tried
//! in vain goes to another shard, and other ranges go first.
//!
//! Left out: how large single chunks are. The caller cuts a piece of the usual size out of a chunk that it
//! takes for larger.

use crate::routing::{ChunkView, RoutingTable, ShardId};
use model::range::{KeyBound, KeyRange};
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod tests;

/// How many chunks' worth of bytes two shards may differ by.
const TOLERANCE: u64 = 3;

/// What is known of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    pub shard: ShardId,
    /// Of the collection.
    pub bytes: u64,
    /// It is being removed: it must give and may not get.
    pub draining: bool,
    pub zones: Vec<String>,
}

/// Keys that belong on certain shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zone {
    pub range: KeyRange,
    pub name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    Draining,
    ZoneViolation,
    Imbalance,
}

/// A move that would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    pub range: KeyRange,
    pub from: ShardId,
    pub to: ShardId,
    pub reason: Reason,
}

/// In how many moves shards take part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    per_shard: usize,
    moves: BTreeMap<ShardId, usize>,
}

impl Busy {
    /// In none yet; each may take part in so many.
    pub fn new(per_shard: usize) -> Self {
        Self {
            per_shard,
            moves: BTreeMap::new(),
        }
    }

    fn has_room(&self, shard: &ShardId) -> bool {
        self.moves.get(shard).copied().unwrap_or(0) < self.per_shard
    }

    /// A move from one shard to another.
    pub fn take(&mut self, from: &ShardId, to: &ShardId) {
        for shard in [from, to] {
            *self.moves.entry(shard.clone()).or_insert(0) += 1;
        }
    }

    /// One that is not carried out.
    pub fn give_back(&mut self, proposal: &Proposal) {
        for shard in [&proposal.from, &proposal.to] {
            if let Some(moves) = self.moves.get_mut(shard) {
                *moves = moves.saturating_sub(1);
            }
        }
    }
}

/// Moves that were tried in vain: where a range begins, and where it was to go.
pub type Refused = BTreeSet<(KeyBound, ShardId)>;

/// A part of a chunk that lies in one zone, or in none.
struct Piece<'a> {
    range: KeyRange,
    zone: Option<&'a str>,
    owner: &'a ShardId,
}

/// What should move now. Shards that take part are so much busier afterwards.
pub fn choose(
    table: &RoutingTable,
    loads: &[Load],
    zones: &[Zone],
    chunk_bytes: u64,
    refused: &Refused,
    busy: &mut Busy,
) -> Vec<Proposal> {
    let mut choice = Choice {
        table,
        loads: loads.to_vec(),
        zones,
        chunk_bytes,
        refused,
        busy,
        proposals: Vec::new(),
    };
    choice.what_must_move();
    choice.what_could_move();
    choice.proposals
}

/// Whether nothing has to move: the first reason why something has.
pub fn violation(
    table: &RoutingTable,
    loads: &[Load],
    zones: &[Zone],
    chunk_bytes: u64,
) -> Option<Reason> {
    let (none, mut busy) = (Refused::new(), Busy::new(1));
    let proposals = choose(table, loads, zones, chunk_bytes, &none, &mut busy);
    proposals.first().map(|proposal| proposal.reason)
}

/// What is known when it is chosen.
struct Choice<'a> {
    table: &'a RoutingTable,
    /// As they would be behind what is proposed.
    loads: Vec<Load>,
    zones: &'a [Zone],
    chunk_bytes: u64,
    refused: &'a Refused,
    busy: &'a mut Busy,
    proposals: Vec<Proposal>,
}

impl<'a> Choice<'a> {
    /// What must move, before what could.
    fn what_must_move(&mut self) {
        for reason in [Reason::Draining, Reason::ZoneViolation] {
            for view in self.table.chunks() {
                let loads = &self.loads;
                let Some(load) = loads.iter().find(|load| load.shard == view.chunk.shard) else {
                    continue;
                };
                let is_meant = reason != Reason::Draining || load.draining;
                if !is_meant || !self.busy.has_room(&load.shard) {
                    continue;
                }
                let misplaced = pieces(view, self.zones)
                    .into_iter()
                    .filter(|piece| match reason {
                        Reason::Draining => true,
                        Reason::ZoneViolation | Reason::Imbalance => !may_own(load, piece.zone),
                    });
                let found = misplaced
                    .filter(|piece| !self.is_proposed(piece))
                    .filter_map(|piece| {
                        let target = self.least(piece.zone, Some(&piece))?;
                        (target.shard != *piece.owner).then(|| (piece, target.shard.clone()))
                    })
                    .next();
                if let Some((piece, target)) = found {
                    self.propose(&piece, &target, reason);
                }
            }
        }
    }

    fn what_could_move(&mut self) {
        let zones = self.zones.iter().map(|zone| Some(zone.name.as_str()));
        let kinds: BTreeSet<Option<&str>> = zones.chain([None]).collect();
        for kind in kinds {
            while self.evens_out(kind) {}
        }
    }

    /// Proposes what makes shards more even; false if nothing does.
    fn evens_out(&mut self, zone: Option<&str>) -> bool {
        let Some(target) = self.least(zone, None) else {
            return false;
        };
        let piece_of = |shard: &ShardId| {
            let chunks = self.table.chunks();
            let own = chunks.filter(|view| view.chunk.shard == *shard);
            own.flat_map(|view| pieces(view, self.zones))
                .filter(|piece| piece.zone == zone && !self.is_refused(piece, target))
                .find(|piece| !self.is_proposed(piece))
        };
        let mut donors: Vec<&Load> = self
            .loads
            .iter()
            .filter(|load| load.shard != target.shard && self.busy.has_room(&load.shard))
            .collect();
        donors.sort_by_key(|load| std::cmp::Reverse(load.bytes));
        let uneven = donors.into_iter().take_while(|donor| {
            donor.bytes.saturating_sub(target.bytes) >= TOLERANCE * self.chunk_bytes
        });
        let found = uneven.filter_map(|donor| piece_of(&donor.shard)).next();
        let Some(piece) = found else {
            return false;
        };
        let target = target.shard.clone();
        self.propose(&piece, &target, Reason::Imbalance);
        true
    }

    /// Who has least of those that may have more, and did not refuse the piece.
    fn least(&self, zone: Option<&str>, piece: Option<&Piece<'_>>) -> Option<&Load> {
        let may = self.loads.iter().filter(|load| {
            may_own(load, zone)
                && self.busy.has_room(&load.shard)
                && !piece.is_some_and(|piece| self.is_refused(piece, load))
        });
        may.min_by_key(|load| (load.bytes, load.shard.clone()))
    }

    fn is_refused(&self, piece: &Piece<'_>, load: &Load) -> bool {
        !self.refused.is_empty()
            && (self.refused).contains(&(piece.range.min.clone(), load.shard.clone()))
    }

    fn is_proposed(&self, piece: &Piece<'_>) -> bool {
        let mut all = self.proposals.iter();
        all.any(|proposal| proposal.range == piece.range)
    }

    fn propose(&mut self, piece: &Piece<'_>, to: &ShardId, reason: Reason) {
        self.busy.take(piece.owner, to);
        for load in &mut self.loads {
            if load.shard == *piece.owner {
                load.bytes = load.bytes.saturating_sub(self.chunk_bytes);
            } else if load.shard == *to {
                load.bytes += self.chunk_bytes;
            }
        }
        self.proposals.push(Proposal {
            range: piece.range.clone(),
            from: piece.owner.clone(),
            to: to.clone(),
            reason,
        });
    }
}

fn may_own(load: &Load, zone: Option<&str>) -> bool {
    !load.draining && zone.is_none_or(|zone| load.zones.iter().any(|name| name == zone))
}

/// A chunk cut at the bounds of zones.
fn pieces<'a>(view: ChunkView<'a>, zones: &'a [Zone]) -> Vec<Piece<'a>> {
    let whole = view.range();
    let mut all = Vec::new();
    let mut at: KeyBound = whole.min.clone();
    let mut overlapping: Vec<&Zone> = zones
        .iter()
        .filter(|zone| zone.range.min < whole.max && whole.min < zone.range.max)
        .collect();
    overlapping.sort_by(|one, other| one.range.min.cmp(&other.range.min));
    let mut add = |min: &KeyBound, max: &KeyBound, zone: Option<&'a str>| {
        let range = KeyRange::new(min.clone(), max.clone());
        if !range.is_empty() {
            all.push(Piece {
                range,
                zone,
                owner: &view.chunk.shard,
            });
        }
    };
    for zone in overlapping {
        let (min, max) = (
            zone.range.min.clone().max(at.clone()),
            zone.range.max.clone().min(whole.max.clone()),
        );
        add(&at, &min, None);
        add(&min, &max, Some(&zone.name));
        at = max;
    }
    add(&at, &whole.max, None);
    all
}
