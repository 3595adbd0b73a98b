//! Taking over chunks from the authoritative table: all of them, or those that changed.
//!
//! The source answers with the chunks whose version is at or above the one known
//! here, as they are now. They replace whatever they overlap. Every chunk that is
//! gone at the source was replaced by newer ones that cover it, so afterwards the
//! table covers all keys again; if it does not, the answer was not what the source
//! holds, and only a full refresh helps. This is checked, never assumed: a gap in a
//! routing table is a document that nobody is asked for.

use super::chunk::Chunk;
use super::table::{RoutingTable, into_blocks};
use model::ids::Uuid;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::version::Incarnation;
use std::sync::Arc;

/// Why chunks do not make a routing table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefreshError {
    #[error("the routing table has no chunks")]
    Empty,
    #[error("no chunk has the keys from {from:?} to {to:?}")]
    Gap { from: KeyBound, to: KeyBound },
    #[error("two chunks have the keys from {from:?} to {to:?}")]
    Overlap { from: KeyBound, to: KeyBound },
    #[error("the chunk that begins at {min:?} ends where it begins, or before")]
    EmptyChunk { min: KeyBound },
    #[error("the parts of the chunk that begins at {min:?} do not follow each other within it")]
    BadParts { min: KeyBound },
}

/// A chunk as the source tells of it, with its end.
pub type ChunkWithEnd = (Chunk, KeyBound);

impl RoutingTable {
    /// A table from all its chunks, in any order.
    pub fn full(
        uuid: Uuid,
        incarnation: Incarnation,
        pattern: Arc<ShardKeyPattern>,
        mut chunks: Vec<ChunkWithEnd>,
    ) -> Result<Self, RefreshError> {
        chunks.sort_by(|a, b| a.0.min.cmp(&b.0.min));
        let least = KeyBound::new(&pattern.least());
        check_cover(&chunks, &least, &KeyBound::after_all())?;
        let mut blocks = Vec::new();
        into_blocks(
            chunks.into_iter().map(|(chunk, _)| chunk).collect(),
            &mut blocks,
        );
        Ok(Self::from_blocks(uuid, incarnation, pattern, blocks))
    }

    /// The table after some chunks were replaced, in any order. What did not change
    /// is shared with this table.
    pub fn with_changes(&self, mut changes: Vec<ChunkWithEnd>) -> Result<Self, RefreshError> {
        changes.sort_by(|a, b| a.0.min.cmp(&b.0.min));
        for pair in changes.windows(2) {
            if pair[0].1 > pair[1].0.min {
                return Err(RefreshError::Overlap {
                    from: pair[1].0.min.clone(),
                    to: pair[0].1.clone(),
                });
            }
        }
        let mut blocks = Vec::with_capacity(self.blocks.len() + 1);
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let mut copied = 0;
        let mut changes = changes.into_iter().peekable();
        while let Some(first) = changes.next() {
            // All changes that touch one stretch of blocks are taken together.
            let (low, mut high) = self.blocks_of(&first)?;
            let mut stretch = vec![first];
            while let Some(next) = changes.peek() {
                let (next_low, next_high) = self.blocks_of(next)?;
                if next_low > high {
                    break;
                }
                high = high.max(next_high);
                stretch.extend(changes.next());
            }
            blocks.extend_from_slice(&self.blocks[copied..low]);
            removed.extend_from_slice(&self.blocks[low..=high]);
            let before = blocks.len();
            into_blocks(self.rebuilt(low, high, stretch)?, &mut blocks);
            added.extend_from_slice(&blocks[before..]);
            copied = high + 1;
        }
        blocks.extend_from_slice(&self.blocks[copied..]);
        Ok(self.with_blocks(blocks, &removed, &added))
    }

    /// The first and the last block that a chunk has keys in.
    fn blocks_of(&self, (chunk, max): &ChunkWithEnd) -> Result<(usize, usize), RefreshError> {
        if chunk.min >= *max {
            return Err(RefreshError::EmptyChunk {
                min: chunk.min.clone(),
            });
        }
        let before_end = self.blocks.partition_point(|block| block.first() < max);
        Ok((
            self.block_of(chunk.min.as_bytes()),
            before_end.saturating_sub(1),
        ))
    }

    /// The chunks of a stretch of blocks after sorted changes.
    fn rebuilt(
        &self,
        low: usize,
        high: usize,
        changes: Vec<ChunkWithEnd>,
    ) -> Result<Vec<Chunk>, RefreshError> {
        let begin = self.blocks[low].first().clone();
        let end = self.block_end(high).clone();
        let old = self.blocks[low..=high]
            .iter()
            .flat_map(|block| block.chunks.iter());
        let ends = old
            .clone()
            .skip(1)
            .map(|chunk| chunk.min.clone())
            .chain([end.clone()]);
        let mut kept: Vec<ChunkWithEnd> = Vec::new();
        for (chunk, max) in old.zip(ends) {
            let after = changes.partition_point(|change| change.1 <= chunk.min);
            let overlapped = changes.get(after).is_some_and(|change| change.0.min < max);
            if !overlapped {
                kept.push((chunk.clone(), max));
            }
        }
        kept.extend(changes);
        kept.sort_by(|a, b| a.0.min.cmp(&b.0.min));
        check_cover(&kept, &begin, &end)?;
        Ok(kept.into_iter().map(|(chunk, _)| chunk).collect())
    }
}

/// Sorted chunks must follow one another from `begin` to `end`.
fn check_cover(
    chunks: &[ChunkWithEnd],
    begin: &KeyBound,
    end: &KeyBound,
) -> Result<(), RefreshError> {
    if chunks.is_empty() {
        return Err(RefreshError::Empty);
    }
    let mut reached = begin;
    for (chunk, max) in chunks {
        if chunk.min > *reached {
            return Err(RefreshError::Gap {
                from: reached.clone(),
                to: chunk.min.clone(),
            });
        }
        if chunk.min < *reached {
            return Err(RefreshError::Overlap {
                from: chunk.min.clone(),
                to: reached.clone(),
            });
        }
        if *max <= chunk.min {
            return Err(RefreshError::EmptyChunk {
                min: chunk.min.clone(),
            });
        }
        let parts = chunk.parts();
        let follow = parts.is_sorted_by(|one, next| one.min < next.min)
            && parts.first().is_none_or(|first| first.min == chunk.min)
            && parts.last().is_none_or(|last| last.min < *max);
        if !follow {
            return Err(RefreshError::BadParts {
                min: chunk.min.clone(),
            });
        }
        reached = max;
    }
    match reached.cmp(end) {
        std::cmp::Ordering::Less => Err(RefreshError::Gap {
            from: reached.clone(),
            to: end.clone(),
        }),
        std::cmp::Ordering::Greater => Err(RefreshError::Overlap {
            from: end.clone(),
            to: reached.clone(),
        }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}
