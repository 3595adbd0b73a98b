//! What moving, splitting and merging do to a routing table.
//!
//! Each function says which chunks come to be; [`RoutingTable::with_changes`] takes
//! them over, on the config server as on everybody who refreshes. `C` is the version
//! of the collection before, `S` that of the shard:
//!
//! | change | versions |
//! | --- | --- |
//! | first chunks | 1\|0, 1\|1, … |
//! | move of a chunk or a part of one | what moves: C.major+1\|0; what is left of its chunk: the same major, 1, 2, …; if nothing is left: another chunk of the donor gets C.major+1\|1 |
//! | split | if S = C then C.major+1, else C.major; minor grows by one for each piece |
//! | merge | C.major+1\|0 |
//! | refine the key | unchanged, in a new incarnation |
//!
//! ⚑ A move always changes the donor's shard version, because a chunk that stays gets
//! a new one: a router that knows only the old version is told so by the donor as well
//! as by the recipient. Only a donor that owns nothing more has no chunk for that; its
//! shard version becomes zero, which is a change too.

use super::chunk::{Chunk, History, ShardId};
use super::refresh::ChunkWithEnd;
use super::table::{ChunkView, RoutingTable};
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation};
use std::sync::Arc;

/// Why a change cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("the range is not within one chunk")]
    NotOneChunk(KeyRange),
    #[error("{0} owns the range already")]
    AlreadyThere(ShardId),
    #[error("the key is not inside the chunk, between its ends")]
    BadSplitPoint(KeyBound),
    #[error("the range does not begin and end at bounds of chunks")]
    NotAtBounds(KeyRange),
    #[error("there are not two chunks or more in the range")]
    NothingToMerge(KeyRange),
    #[error("the chunks of the range are not all on one shard")]
    SeveralShards(KeyRange),
    #[error("the new key does not begin with the fields of the old one")]
    NotAnExtension,
}

/// The first chunks of a collection: the bounds between them, and their owners in turn.
pub fn initial_chunks(
    pattern: &ShardKeyPattern,
    bounds: &[KeyBound],
    owners: &[ShardId],
    since: ClusterTime,
) -> Vec<ChunkWithEnd> {
    assert!(!owners.is_empty(), "somebody must own the first chunks");
    let least = KeyBound::new(&pattern.least());
    let end = KeyBound::after_all();
    let begins = [&least].into_iter().chain(bounds);
    let ends = bounds.iter().chain([&end]);
    let mut version = ChunkVersion::FIRST;
    begins
        .zip(ends)
        .zip(owners.iter().cycle())
        .map(|((min, max), owner)| {
            let chunk = Chunk::new(min.clone(), owner.clone(), version, since);
            version = version.next_minor();
            (chunk, max.clone())
        })
        .collect()
}

impl RoutingTable {
    /// Gives a range that lies within one chunk to another shard, with the usual history.
    pub fn moving(
        &self,
        range: &KeyRange,
        to: &ShardId,
        since: ClusterTime,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        self.moving_with(range, to, since, History::default())
    }

    /// The same with a history of another length.
    pub fn moving_with(
        &self,
        range: &KeyRange,
        to: &ShardId,
        since: ClusterTime,
        history: History,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        let mut changes = self.giving(range, to, since, history)?;
        changes.extend(self.advancing(&changes));
        Ok(changes)
    }

    /// What moves, and what is left of its chunk.
    pub(super) fn giving(
        &self,
        range: &KeyRange,
        to: &ShardId,
        since: ClusterTime,
        history: History,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        let from = self.chunk_around(range)?;
        if from.chunk.shard == *to {
            return Err(ChangeError::AlreadyThere(to.clone()));
        }
        let mut version = self.version().chunk.next_major();
        let within = from.chunk.within(range, version);
        let moved = within.moved(to, version, since, history);
        let mut changes = vec![(moved, range.max.clone())];
        let mut next_version = || {
            version = version.next_minor();
            version
        };
        if from.chunk.min < range.min {
            let left = KeyRange::new(from.chunk.min.clone(), range.min.clone());
            let chunk = from.chunk.within(&left, next_version());
            changes.push((chunk, left.max));
        }
        if range.max < *from.max {
            let right = KeyRange::new(range.max.clone(), from.max.clone());
            let chunk = from.chunk.within(&right, next_version());
            changes.push((chunk, right.max));
        }
        Ok(changes)
    }

    /// ⚑ The chunk of the donor that gets a new version where nothing is left of the one that moves.
    fn advancing(&self, given: &[ChunkWithEnd]) -> Option<ChunkWithEnd> {
        let [(moved, _)] = given else {
            return None;
        };
        let from = self.find(moved.min.as_bytes());
        let mut others = self.chunks();
        let stays = others.find(|view| {
            view.chunk.shard == from.chunk.shard && view.chunk.min != from.chunk.min
        })?;
        let version = moved.version.next_minor();
        let advanced = stays.chunk.within(&stays.range(), version);
        Some((advanced, stays.max.clone()))
    }

    /// Cuts the chunk of the first point at all points, which ascend.
    pub fn splitting(&self, points: &[KeyBound]) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        let Some(first) = points.first() else {
            return Ok(Vec::new());
        };
        let split = self.find(first.as_bytes());
        let mut previous = &split.chunk.min;
        for point in points {
            if point <= previous || point >= split.max {
                return Err(ChangeError::BadSplitPoint(point.clone()));
            }
            previous = point;
        }
        let collection = self.version().chunk;
        let shard = self.shard_version(&split.chunk.shard).chunk;
        let mut version = if shard == collection {
            collection.next_major()
        } else {
            collection
        };
        let begins = [&split.chunk.min].into_iter().chain(points);
        let ends = points.iter().chain([split.max]);
        let pieces = begins.zip(ends).map(|(min, max)| {
            version = version.next_minor();
            let piece = KeyRange::new(min.clone(), max.clone());
            (split.chunk.within(&piece, version), piece.max)
        });
        Ok(pieces.collect())
    }

    /// Makes one chunk of all those in a range, with the usual history. They must be neighbours on one shard.
    pub fn merging(
        &self,
        range: &KeyRange,
        now: ClusterTime,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        self.merging_with(range, now, History::default())
    }

    /// The same with a history of another length.
    pub fn merging_with(
        &self,
        range: &KeyRange,
        now: ClusterTime,
        history: History,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        let views: Vec<ChunkView<'_>> = self.overlapping(range).collect();
        let (Some(first), Some(last)) = (views.first(), views.last()) else {
            return Err(ChangeError::NothingToMerge(range.clone()));
        };
        if first.chunk.min != range.min || *last.max != range.max {
            return Err(ChangeError::NotAtBounds(range.clone()));
        }
        if views.len() < 2 {
            return Err(ChangeError::NothingToMerge(range.clone()));
        }
        let shard = &first.chunk.shard;
        if views.iter().any(|view| view.chunk.shard != *shard) {
            return Err(ChangeError::SeveralShards(range.clone()));
        }
        let chunks: Vec<&Chunk> = views.iter().map(|view| view.chunk).collect();
        let version = self.version().chunk.next_major();
        let merged = Chunk::merged(&chunks, version, now, history);
        Ok(vec![(merged, range.max.clone())])
    }

    /// The same chunks under a key with more fields. A bound of the old key is the
    /// least key of those that begin with it; the end of all stays the end.
    pub fn refined(
        &self,
        pattern: Arc<ShardKeyPattern>,
        incarnation: Incarnation,
    ) -> Result<Vec<ChunkWithEnd>, ChangeError> {
        if !pattern.extends(&self.pattern) || pattern == self.pattern {
            return Err(ChangeError::NotAnExtension);
        }
        debug_assert_ne!(incarnation, self.incarnation);
        let added = &pattern.least()[self.pattern.least().len()..];
        let extended = |bound: &KeyBound| {
            if bound == self.end() {
                return bound.clone();
            }
            let mut bytes = bound.as_bytes().to_vec();
            bytes.extend_from_slice(added);
            KeyBound::new(&bytes)
        };
        let chunks = self.chunks().map(|view| {
            let chunk = view.chunk.renamed(extended);
            (chunk, extended(view.max))
        });
        Ok(chunks.collect())
    }

    fn chunk_around(&self, range: &KeyRange) -> Result<ChunkView<'_>, ChangeError> {
        let view = self.find(range.min.as_bytes());
        if range.is_empty() || view.chunk.min > range.min || *view.max < range.max {
            return Err(ChangeError::NotOneChunk(range.clone()));
        }
        Ok(view)
    }
}
