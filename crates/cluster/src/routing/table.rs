//! The sorted map of chunks, in blocks that tables share.
//!
//! ```text
//!   table  ─► block block block …                           a few thousand for a million chunks
//!               │
//!               ▼
//!              chunk chunk chunk …                          up to BLOCK_MAX
//!              per shard: highest version, number of chunks
//! ```
//!
//! A lookup is two binary searches. A change copies the blocks it touches and the
//! list of blocks, nothing else. Each block sums up its shards, so that the
//! versions of shards need no walk over all chunks.

use super::chunk::{Chunk, ShardId};
use super::heads::Heads;
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::sync::{Arc, Mutex, PoisonError};

/// Small enough to copy for one change, large enough that the list of blocks of
/// a million chunks is copied in microseconds.
pub(super) const BLOCK_MAX: usize = 512;

/// What one shard has of the collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardPlacement {
    pub shard: ShardId,
    /// The highest version of its chunks.
    pub version: ChunkVersion,
    pub chunks: usize,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) chunks: Box<[Chunk]>,
    heads: Heads,
    shards: Box<[ShardPlacement]>,
    /// When the last of its chunks came to where it is.
    latest: ClusterTime,
}

impl Block {
    /// Where it begins. A block is never empty.
    pub(super) fn first(&self) -> &KeyBound {
        &self.chunks[0].min
    }
}

/// Which shard owns which keys of a collection.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    pub uuid: Uuid,
    pub incarnation: Incarnation,
    pub pattern: Arc<ShardKeyPattern>,
    pub(super) blocks: Arc<[Arc<Block>]>,
    heads: Arc<Heads>,
    sums: Arc<Sums>,
    end: KeyBound,
}

/// What is known of a table as a whole.
#[derive(Debug)]
struct Sums {
    /// By name.
    shards: Box<[ShardPlacement]>,
    came_to_be: ClusterTime,
    /// It lives as long as somebody may ask for it: who has this table.
    refined: Mutex<Option<Arc<RoutingTable>>>,
}

impl Sums {
    fn new(shards: Vec<ShardPlacement>, blocks: &[Arc<Block>]) -> Arc<Self> {
        let latest = blocks.iter().map(|block| block.latest).max();
        Arc::new(Self {
            shards: shards.into(),
            came_to_be: latest.unwrap_or(ClusterTime::ZERO),
            refined: Mutex::default(),
        })
    }
}

/// A chunk with its place.
#[derive(Clone, Copy, Debug)]
pub struct ChunkView<'a> {
    pub chunk: &'a Chunk,
    pub max: &'a KeyBound,
}

impl ChunkView<'_> {
    pub fn range(&self) -> KeyRange {
        KeyRange::new(self.chunk.min.clone(), self.max.clone())
    }
}

/// Who owned a key at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner<'a> {
    Shard(&'a ShardId),
    /// The history does not reach back that far.
    Forgotten,
}

impl RoutingTable {
    /// Blocks must cover all keys; see `refresh.rs`, which checks what comes from outside.
    pub(super) fn from_blocks(
        uuid: Uuid,
        incarnation: Incarnation,
        pattern: Arc<ShardKeyPattern>,
        blocks: Vec<Arc<Block>>,
    ) -> Self {
        let mut shards = Vec::new();
        for part in blocks.iter().flat_map(|block| block.shards.iter()) {
            add(&mut shards, &part.shard, part.version, part.chunks);
        }
        Self {
            uuid,
            incarnation,
            pattern,
            heads: Arc::new(Heads::new(blocks.iter().map(|block| block.first()))),
            sums: Sums::new(shards, &blocks),
            blocks: blocks.into(),
            end: KeyBound::after_all(),
        }
    }

    /// The same collection with other blocks. `removed` of this table are gone and
    /// `added` came; sums need no look at those that stayed, except for a shard that
    /// lost the chunk with its highest version.
    pub(super) fn with_blocks(
        &self,
        blocks: Vec<Arc<Block>>,
        removed: &[Arc<Block>],
        added: &[Arc<Block>],
    ) -> Self {
        let mut shards: Vec<ShardPlacement> = self.sums.shards.to_vec();
        for part in removed.iter().flat_map(|block| block.shards.iter()) {
            let at = place(&shards, &part.shard);
            let placement = &mut shards[at.expect("the sums hold what the blocks hold")];
            placement.chunks -= part.chunks;
            if placement.version == part.version {
                placement.version = ChunkVersion::ZERO;
            }
        }
        for part in added.iter().flat_map(|block| block.shards.iter()) {
            add(&mut shards, &part.shard, part.version, part.chunks);
        }
        shards.retain(|placement| placement.chunks > 0);
        for placement in &mut shards {
            let before = place(&self.sums.shards, &placement.shard)
                .map_or(ChunkVersion::ZERO, |at| self.sums.shards[at].version);
            if placement.version < before {
                placement.version = highest_of(&blocks, &placement.shard);
            }
        }
        Self {
            uuid: self.uuid,
            incarnation: self.incarnation,
            pattern: self.pattern.clone(),
            heads: Arc::new(Heads::new(blocks.iter().map(|block| block.first()))),
            sums: Sums::new(shards, &blocks),
            blocks: blocks.into(),
            end: self.end.clone(),
        }
    }

    pub fn chunk_count(&self) -> usize {
        self.sums.shards.iter().map(|shard| shard.chunks).sum()
    }

    /// What each shard has, by name.
    pub fn shards(&self) -> &[ShardPlacement] {
        &self.sums.shards
    }

    /// The version of the collection: the highest of all chunks.
    pub fn version(&self) -> PlacementVersion {
        let highest = self.sums.shards.iter().map(|shard| shard.version).max();
        self.placement(highest.unwrap_or(ChunkVersion::ZERO))
    }

    /// When the last chunk came to where it is. ⚑ Moves are decided one after the other, each at a later time: who
    /// owned what at this time and before is told by this table, and by every later one.
    pub fn came_to_be(&self) -> ClusterTime {
        self.sums.came_to_be
    }

    /// What was made of this table, or of a copy of it, when the shard key was refined.
    pub fn refinement(&self, to: Incarnation) -> Option<Arc<RoutingTable>> {
        let refined = self.sums.refined.lock();
        let refined = refined.unwrap_or_else(PoisonError::into_inner);
        refined.clone().filter(|table| table.incarnation == to)
    }

    pub fn remember_refinement(&self, made: &Arc<RoutingTable>) {
        let refined = self.sums.refined.lock();
        *refined.unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
    }

    /// The version of one shard; zero if it owns nothing.
    pub fn shard_version(&self, shard: &ShardId) -> PlacementVersion {
        let found = place(&self.sums.shards, shard);
        self.placement(found.map_or(ChunkVersion::ZERO, |at| self.sums.shards[at].version))
    }

    fn placement(&self, chunk: ChunkVersion) -> PlacementVersion {
        PlacementVersion {
            incarnation: self.incarnation,
            chunk,
        }
    }

    /// The chunk that a key belongs to.
    pub fn find(&self, key: &[u8]) -> ChunkView<'_> {
        let (block, chunk) = self.place_of(key);
        self.view(block, chunk)
    }

    /// All chunks that have keys in a range, in order.
    pub fn overlapping<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = ChunkView<'a>> {
        // Both ends are looked up: a chunk's own key would be one more walk into cold memory.
        let last = match range.is_empty() {
            true => None,
            false => self.last_before(range.max.as_bytes()),
        };
        let mut next = last.map(|_| self.place_of(range.min.as_bytes()));
        std::iter::from_fn(move || {
            let place @ (block, chunk) = next.take_if(|place| Some(*place) <= last)?;
            let ends = chunk + 1 == self.blocks[block].chunks.len();
            next = Some(if ends {
                (block + 1, 0)
            } else {
                (block, chunk + 1)
            });
            Some(self.view(place.0, place.1))
        })
    }

    /// Every chunk, in order.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkView<'_>> {
        self.blocks.iter().enumerate().flat_map(move |(at, block)| {
            (0..block.chunks.len()).map(move |chunk| self.view(at, chunk))
        })
    }

    /// The chunks that changed at or after a version, in order. Blocks in which nothing
    /// did are not looked into.
    pub fn changed_since(&self, version: ChunkVersion) -> impl Iterator<Item = ChunkView<'_>> {
        let changed = move |block: &Block| block.shards.iter().any(|part| part.version >= version);
        let blocks = self.blocks.iter().enumerate();
        blocks
            .filter(move |(_, block)| changed(block))
            .flat_map(move |(at, block)| {
                (0..block.chunks.len()).map(move |chunk| self.view(at, chunk))
            })
            .filter(move |view| view.chunk.version >= version)
    }

    /// The shards that own keys of any of these ranges, by name. Stops looking once
    /// every shard is among them.
    pub fn targets(&self, ranges: &[KeyRange]) -> Vec<ShardId> {
        let mut found: Vec<ShardId> = Vec::new();
        for range in ranges {
            for view in self.overlapping(range) {
                if let Err(at) = found.binary_search(&view.chunk.shard) {
                    found.insert(at, view.chunk.shard.clone());
                    if found.len() == self.sums.shards.len() {
                        return found;
                    }
                }
            }
        }
        found
    }

    /// Who owned a key at an earlier time.
    pub fn owner_at(&self, key: &[u8], time: ClusterTime) -> Owner<'_> {
        match self.find(key).chunk.owner_at(key, time) {
            Some(shard) => Owner::Shard(shard),
            None => Owner::Forgotten,
        }
    }

    /// Who owned what of a range at an earlier time, in order.
    pub fn owners_at<'a>(
        &'a self,
        range: &'a KeyRange,
        time: ClusterTime,
    ) -> impl Iterator<Item = (KeyRange, Owner<'a>)> {
        let chunks = self.overlapping(range);
        let parts = chunks.flat_map(move |view| {
            let begins = view.chunk.begins();
            let ends = view.chunk.begins().skip(1).chain([view.max]);
            begins.zip(ends).map(move |(min, max)| {
                let owner = match view.chunk.owner_at(min.as_bytes(), time) {
                    Some(shard) => Owner::Shard(shard),
                    None => Owner::Forgotten,
                };
                (min, max, owner)
            })
        });
        parts.filter_map(move |(min, max, owner)| {
            let min = min.max(&range.min).clone();
            let part = KeyRange::new(min, max.min(&range.max).clone());
            (!part.is_empty()).then_some((part, owner))
        })
    }

    /// The keys that a shard owns. Blocks of which it owns all or nothing are not looked into.
    pub fn ranges_of(&self, shard: &ShardId) -> RangeSet {
        let mut owned: Vec<KeyRange> = Vec::new();
        let mut add = |min: &KeyBound, max: &KeyBound| match owned.last_mut() {
            Some(last) if last.max == *min => last.max = max.clone(),
            Some(_) | None => owned.push(KeyRange::new(min.clone(), max.clone())),
        };
        for (at, block) in self.blocks.iter().enumerate() {
            match &*block.shards {
                [only] if only.shard == *shard => add(block.first(), self.block_end(at)),
                [_] => {}
                _ => {
                    let views = (0..block.chunks.len()).map(|chunk| self.view(at, chunk));
                    for view in views.filter(|view| view.chunk.shard == *shard) {
                        add(&view.chunk.min, view.max);
                    }
                }
            }
        }
        owned.into_iter().collect()
    }

    /// What a shard owns of some ranges, which ascend: in order, chunk by chunk. Whoever wants the first ones only looks
    /// at no more than those; blocks of which it owns nothing are not looked into.
    pub fn owned_within<'a>(
        &'a self,
        shard: &'a ShardId,
        ranges: &'a [KeyRange],
    ) -> impl Iterator<Item = KeyRange> {
        let owns = move |block: &usize| {
            let mut shards = self.blocks[*block].shards.iter();
            shards.any(|part| part.shard == *shard)
        };
        ranges.iter().flat_map(move |range| {
            let (first_block, first_chunk) = self.place_of(range.min.as_bytes());
            let begins_before = move |block: &usize| *self.blocks[*block].first() < range.max;
            let blocks = first_block..self.blocks.len();
            let blocks = blocks.take_while(begins_before).filter(owns);
            let views = blocks.flat_map(move |block| {
                let first = if block == first_block { first_chunk } else { 0 };
                let chunks = first..self.blocks[block].chunks.len();
                let views = chunks.map(move |chunk| self.view(block, chunk));
                views.take_while(|view| view.chunk.min < range.max)
            });
            let owned = views.filter(move |view| view.chunk.shard == *shard);
            owned.filter_map(move |view| {
                let min = (&view.chunk.min).max(&range.min).clone();
                let part = KeyRange::new(min, view.max.min(&range.max).clone());
                (!part.is_empty()).then_some(part)
            })
        })
    }

    /// All keys.
    pub fn whole(&self) -> KeyRange {
        KeyRange::new(self.blocks[0].first().clone(), self.end.clone())
    }

    pub(super) fn end(&self) -> &KeyBound {
        &self.end
    }

    /// The block that a key falls into.
    pub(super) fn block_of(&self, key: &[u8]) -> usize {
        let after = self.heads.count_up_to(key, |at| self.blocks[at].first());
        after.saturating_sub(1)
    }

    /// Where a block ends.
    pub(super) fn block_end(&self, block: usize) -> &KeyBound {
        match self.blocks.get(block + 1) {
            Some(next) => next.first(),
            None => &self.end,
        }
    }

    fn place_of(&self, key: &[u8]) -> (usize, usize) {
        let block = self.block_of(key);
        let Block { chunks, heads, .. } = &*self.blocks[block];
        let after = heads.count_up_to(key, |at| &chunks[at].min);
        (block, after.saturating_sub(1))
    }

    /// The last chunk that begins before a key, if one does.
    fn last_before(&self, key: &[u8]) -> Option<(usize, usize)> {
        let before = self.heads.count_before(key, |at| self.blocks[at].first());
        let block = before.checked_sub(1)?;
        let Block { chunks, heads, .. } = &*self.blocks[block];
        let before = heads.count_before(key, |at| &chunks[at].min);
        Some((block, before.checked_sub(1)?))
    }

    fn view(&self, block: usize, chunk: usize) -> ChunkView<'_> {
        let chunks = &self.blocks[block].chunks;
        let max = match chunks.get(chunk + 1) {
            Some(next) => &next.min,
            None => self.block_end(block),
        };
        ChunkView {
            chunk: &chunks[chunk],
            max,
        }
    }
}

/// Cuts chunks into blocks of about the same size.
pub(super) fn into_blocks(chunks: Vec<Chunk>, blocks: &mut Vec<Arc<Block>>) {
    let parts = chunks.len().div_ceil(BLOCK_MAX).max(1);
    let size = chunks.len().div_ceil(parts);
    let mut chunks = chunks.into_iter().peekable();
    while chunks.peek().is_some() {
        let part: Vec<Chunk> = chunks.by_ref().take(size).collect();
        blocks.push(Arc::new(Block::new(part)));
    }
}

impl Block {
    fn new(chunks: Vec<Chunk>) -> Self {
        let mut shards: Vec<ShardPlacement> = Vec::new();
        for chunk in &chunks {
            add(&mut shards, &chunk.shard, chunk.version, 1);
        }
        let latest = chunks.iter().map(|chunk| chunk.since).max();
        Self {
            heads: Heads::new(chunks.iter().map(|chunk| &chunk.min)),
            latest: latest.unwrap_or(ClusterTime::ZERO),
            chunks: chunks.into(),
            shards: shards.into(),
        }
    }
}

/// Where a shard is in sums by name.
fn place(shards: &[ShardPlacement], shard: &ShardId) -> Option<usize> {
    shards
        .binary_search_by(|placement| placement.shard.cmp(shard))
        .ok()
}

fn highest_of(blocks: &[Arc<Block>], shard: &ShardId) -> ChunkVersion {
    let versions = blocks.iter().filter_map(|block| {
        let shards = &block.shards;
        place(shards, shard).map(|at| shards[at].version)
    });
    versions.max().unwrap_or(ChunkVersion::ZERO)
}

fn add(shards: &mut Vec<ShardPlacement>, shard: &ShardId, version: ChunkVersion, chunks: usize) {
    match shards.binary_search_by(|placement| placement.shard.cmp(shard)) {
        Ok(at) => {
            let placement = &mut shards[at];
            placement.version = placement.version.max(version);
            placement.chunks += chunks;
        }
        Err(at) => shards.insert(
            at,
            ShardPlacement {
                shard: shard.clone(),
                version,
                chunks,
            },
        ),
    }
}
