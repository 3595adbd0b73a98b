//! Which ranges to move so that shards have what they should: the policy, without clocks and messages.
//!
//! ```text
//!   1  what a shard that is being removed still owns          to the shard that has least
//!   2  what lies in a zone on a shard that is not of the zone to the shard of the zone that has least
//!   3  from the shard that has most to the one that has least, if they differ by three chunks' worth of bytes
//! ```
//!
//! A shard takes part in one move of a round; whoever calls says which are busy. What is proposed lies within
//! one chunk and within one zone, so it may be a part of a chunk. What was tried in vain goes to another shard, and
//! other ranges go first.
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

/// Moves that were tried in vain: where a range begins, and where it was to go.
pub type Refused = BTreeSet<(KeyBound, ShardId)>;

/// A part of a chunk that lies in one zone, or in none.
struct Piece<'a> {
    range: KeyRange,
    zone: Option<&'a str>,
    owner: &'a ShardId,
}

/// What should move now. Shards that take part are busy afterwards.
pub fn choose(
    table: &RoutingTable,
    loads: &[Load],
    zones: &[Zone],
    chunk_bytes: u64,
    refused: &Refused,
    busy: &mut BTreeSet<ShardId>,
) -> Vec<Proposal> {
    let choice = Choice {
        table,
        loads,
        zones,
        chunk_bytes,
        refused,
    };
    choice.proposals(busy)
}

/// Whether nothing has to move: the first reason why something has.
pub fn violation(
    table: &RoutingTable,
    loads: &[Load],
    zones: &[Zone],
    chunk_bytes: u64,
) -> Option<Reason> {
    let (none, mut busy) = (Refused::new(), BTreeSet::new());
    let proposals = choose(table, loads, zones, chunk_bytes, &none, &mut busy);
    proposals.first().map(|proposal| proposal.reason)
}

/// What is known when it is chosen.
struct Choice<'a> {
    table: &'a RoutingTable,
    loads: &'a [Load],
    zones: &'a [Zone],
    chunk_bytes: u64,
    refused: &'a Refused,
}

impl<'a> Choice<'a> {
    fn proposals(&self, busy: &mut BTreeSet<ShardId>) -> Vec<Proposal> {
        let loads = self.loads.iter().map(|load| (&load.shard, load));
        let by_name: BTreeMap<&ShardId, &Load> = loads.collect();
        let mut proposals = Vec::new();
        // What must move, before what could.
        for reason in [Reason::Draining, Reason::ZoneViolation] {
            for view in self.table.chunks() {
                let Some(load) = by_name.get(&view.chunk.shard) else {
                    continue;
                };
                if busy.contains(&load.shard) || (reason == Reason::Draining && !load.draining) {
                    continue;
                }
                let misplaced = pieces(view, self.zones)
                    .into_iter()
                    .filter(|piece| match reason {
                        Reason::Draining => true,
                        Reason::ZoneViolation | Reason::Imbalance => !may_own(load, piece.zone),
                    });
                let found = misplaced
                    .filter_map(|piece| {
                        let target = self.least(piece.zone, Some(&piece), busy)?;
                        (target.shard != *piece.owner).then_some((piece, target))
                    })
                    .next();
                if let Some((piece, target)) = found {
                    proposals.push(propose(&piece, &target.shard, reason, busy));
                }
            }
        }
        let zones = self.zones.iter().map(|zone| Some(zone.name.as_str()));
        let kinds: BTreeSet<Option<&str>> = zones.chain([None]).collect();
        for kind in kinds {
            self.even_out(kind, busy, &mut proposals);
        }
        proposals
    }

    fn even_out(
        &self,
        zone: Option<&str>,
        busy: &mut BTreeSet<ShardId>,
        proposals: &mut Vec<Proposal>,
    ) {
        let Some(target) = self.least(zone, None, busy) else {
            return;
        };
        let piece_of = |shard: &ShardId| {
            let chunks = self.table.chunks();
            let own = chunks.filter(|view| view.chunk.shard == *shard);
            own.flat_map(|view| pieces(view, self.zones))
                .find(|piece| piece.zone == zone && !self.is_refused(piece, target))
        };
        let mut donors: Vec<&Load> = self
            .loads
            .iter()
            .filter(|load| load.shard != target.shard && !busy.contains(&load.shard))
            .collect();
        donors.sort_by_key(|load| std::cmp::Reverse(load.bytes));
        for donor in donors {
            if donor.bytes.saturating_sub(target.bytes) < TOLERANCE * self.chunk_bytes {
                return;
            }
            if let Some(piece) = piece_of(&donor.shard) {
                proposals.push(propose(&piece, &target.shard, Reason::Imbalance, busy));
                return;
            }
        }
    }

    /// Who has least of those that may have more, and did not refuse the piece.
    fn least(
        &self,
        zone: Option<&str>,
        piece: Option<&Piece<'_>>,
        busy: &BTreeSet<ShardId>,
    ) -> Option<&'a Load> {
        let may = self.loads.iter().filter(|load| {
            may_own(load, zone)
                && !busy.contains(&load.shard)
                && !piece.is_some_and(|piece| self.is_refused(piece, load))
        });
        may.min_by_key(|load| (load.bytes, load.shard.clone()))
    }

    fn is_refused(&self, piece: &Piece<'_>, load: &Load) -> bool {
        !self.refused.is_empty()
            && (self.refused).contains(&(piece.range.min.clone(), load.shard.clone()))
    }
}

fn propose(
    piece: &Piece<'_>,
    to: &ShardId,
    reason: Reason,
    busy: &mut BTreeSet<ShardId>,
) -> Proposal {
    busy.extend([piece.owner.clone(), to.clone()]);
    Proposal {
        range: piece.range.clone(),
        from: piece.owner.clone(),
        to: to.clone(),
        reason,
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
