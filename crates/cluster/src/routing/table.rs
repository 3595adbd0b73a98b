//! The sorted map of chunks, in blocks that tables share.
//!
//! ```text
//!   table  ─► [first key, block] [first key, block] …      a few thousand for a million chunks
//!                         │
//!                         ▼
//!              chunk chunk chunk …                          up to BLOCK_MAX
//!              per shard: highest version, number of chunks
//! ```
//!
//! A lookup is two binary searches. A change copies the blocks it touches and the
//! list of blocks, nothing else. Each block sums up its shards, so that the
//! versions of shards need no walk over all chunks.

use super::chunk::{Chunk, ShardId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::sync::Arc;

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
    shards: Box<[ShardPlacement]>,
}

#[derive(Clone, Debug)]
pub(super) struct BlockEntry {
    pub(super) first: KeyBound,
    pub(super) block: Arc<Block>,
}

/// Which shard owns which keys of a collection.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    pub uuid: Uuid,
    pub incarnation: Incarnation,
    pub pattern: Arc<ShardKeyPattern>,
    pub(super) blocks: Arc<[BlockEntry]>,
    /// By name.
    shards: Arc<[ShardPlacement]>,
    greatest: KeyBound,
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
        blocks: Vec<BlockEntry>,
    ) -> Self {
        let shards = sum_up(blocks.iter().flat_map(|entry| entry.block.shards.iter()));
        let greatest = KeyBound::new(&pattern.greatest());
        Self {
            uuid,
            incarnation,
            pattern,
            blocks: blocks.into(),
            shards: shards.into(),
            greatest,
        }
    }

    pub fn chunk_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.chunks).sum()
    }

    /// What each shard has, by name.
    pub fn shards(&self) -> &[ShardPlacement] {
        &self.shards
    }

    /// The version of the collection: the highest of all chunks.
    pub fn version(&self) -> PlacementVersion {
        let highest = self.shards.iter().map(|shard| shard.version).max();
        self.placement(highest.unwrap_or(ChunkVersion::ZERO))
    }

    /// The version of one shard; zero if it owns nothing.
    pub fn shard_version(&self, shard: &ShardId) -> PlacementVersion {
        let found = self
            .shards
            .binary_search_by(|placement| placement.shard.cmp(shard));
        self.placement(found.map_or(ChunkVersion::ZERO, |at| self.shards[at].version))
    }

    fn placement(&self, chunk: ChunkVersion) -> PlacementVersion {
        PlacementVersion {
            incarnation: self.incarnation,
            chunk,
        }
    }

    /// The chunk that a key belongs to. The last chunk also has the greatest key.
    pub fn find(&self, key: &[u8]) -> ChunkView<'_> {
        let (block, chunk) = self.place_of(key);
        self.view(block, chunk)
    }

    /// All chunks that have keys in a range, in order.
    pub fn overlapping<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = ChunkView<'a>> {
        let (mut block, mut chunk) = self.place_of(range.min.as_bytes());
        let mut done = range.is_empty();
        std::iter::from_fn(move || {
            if done || block == self.blocks.len() {
                return None;
            }
            let view = self.view(block, chunk);
            if view.chunk.min >= range.max {
                done = true;
                return None;
            }
            chunk += 1;
            if chunk == self.blocks[block].block.chunks.len() {
                (block, chunk) = (block + 1, 0);
            }
            Some(view)
        })
    }

    /// Every chunk, in order.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkView<'_>> {
        self.blocks.iter().enumerate().flat_map(move |(at, entry)| {
            (0..entry.block.chunks.len()).map(move |chunk| self.view(at, chunk))
        })
    }

    /// The shards that own keys of any of these ranges, by name. Stops looking once
    /// every shard is among them.
    pub fn targets(&self, ranges: &[KeyRange]) -> Vec<ShardId> {
        let mut found: Vec<ShardId> = Vec::new();
        for range in ranges {
            for view in self.overlapping(range) {
                if let Err(at) = found.binary_search(&view.chunk.shard) {
                    found.insert(at, view.chunk.shard.clone());
                    if found.len() == self.shards.len() {
                        return found;
                    }
                }
            }
        }
        found
    }

    /// Who owned a key at an earlier time.
    pub fn owner_at(&self, key: &[u8], time: ClusterTime) -> Owner<'_> {
        match self.find(key).chunk.owner_at(time) {
            Some(shard) => Owner::Shard(shard),
            None => Owner::Forgotten,
        }
    }

    /// All keys.
    pub fn whole(&self) -> KeyRange {
        KeyRange::new(self.blocks[0].first.clone(), self.greatest.clone())
    }

    pub(super) fn greatest(&self) -> &KeyBound {
        &self.greatest
    }

    /// The block that a key falls into.
    pub(super) fn block_of(&self, key: &[u8]) -> usize {
        let after = self
            .blocks
            .partition_point(|entry| entry.first.as_bytes() <= key);
        after.saturating_sub(1)
    }

    /// Where a block ends.
    pub(super) fn block_end(&self, block: usize) -> &KeyBound {
        match self.blocks.get(block + 1) {
            Some(next) => &next.first,
            None => &self.greatest,
        }
    }

    fn place_of(&self, key: &[u8]) -> (usize, usize) {
        let block = self.block_of(key);
        let chunks = &self.blocks[block].block.chunks;
        let after = chunks.partition_point(|chunk| chunk.min.as_bytes() <= key);
        (block, after.saturating_sub(1))
    }

    fn view(&self, block: usize, chunk: usize) -> ChunkView<'_> {
        let chunks = &self.blocks[block].block.chunks;
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
pub(super) fn into_blocks(chunks: Vec<Chunk>, blocks: &mut Vec<BlockEntry>) {
    let parts = chunks.len().div_ceil(BLOCK_MAX).max(1);
    let size = chunks.len().div_ceil(parts);
    let mut chunks = chunks.into_iter().peekable();
    while chunks.peek().is_some() {
        let part: Vec<Chunk> = chunks.by_ref().take(size).collect();
        blocks.push(BlockEntry {
            first: part[0].min.clone(),
            block: Arc::new(Block::new(part)),
        });
    }
}

impl Block {
    fn new(chunks: Vec<Chunk>) -> Self {
        let mut shards: Vec<ShardPlacement> = Vec::new();
        for chunk in &chunks {
            add(&mut shards, &chunk.shard, chunk.version, 1);
        }
        Self {
            chunks: chunks.into(),
            shards: shards.into(),
        }
    }
}

fn sum_up<'a>(parts: impl Iterator<Item = &'a ShardPlacement>) -> Vec<ShardPlacement> {
    let mut shards = Vec::new();
    for part in parts {
        add(&mut shards, &part.shard, part.version, part.chunks);
    }
    shards
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
