//! A state of the engine on disk: what the engine itself has, with the large batches beside its memtable.

use std::sync::Arc;

use fjall::{Guard, Iter, Readable};
use xxhash_rust::xxh3::xxh3_64;

use super::Open;
use crate::engine::sheaves::{self, SheafScan};
use crate::engine::{Direction, EngineSnapshot, KeyRange, Pair, Slice};
use crate::error::{Error, Result};

#[derive(Clone)]
pub struct FjallSnapshot {
    snapshot: fjall::Snapshot,
    sheaves: Option<sheaves::List>,
    open: Arc<Open>,
}

impl FjallSnapshot {
    pub(super) fn new(open: &Arc<Open>) -> Self {
        let (snapshot, sheaves) = open.sheaves.at_one_moment(|| open.database.snapshot());
        Self {
            snapshot,
            sheaves,
            open: Arc::clone(open),
        }
    }
}

impl EngineSnapshot for FjallSnapshot {
    type Scan = FjallScan;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        if let Some(list) = &self.sheaves
            && let Some(found) = sheaves::get(list, key, xxh3_64(key), self.snapshot.seqno())
        {
            return Ok(Some(found));
        }
        Ok(self.snapshot.get(&self.open.keyspace, key)?)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction) -> FjallScan {
        let stored = || {
            let pairs = (!range.is_empty()).then(|| {
                self.snapshot
                    .range::<&[u8], _>(&self.open.keyspace, (range.low, range.high))
            });
            StoredScan { pairs, direction }
        };
        let merged = self
            .sheaves
            .as_ref()
            .and_then(|list| SheafScan::new(list, range, direction, self.snapshot.seqno(), stored));
        FjallScan {
            pairs: match merged {
                Some(merged) => Pairs::Merged(Box::new(merged)),
                None => Pairs::Stored(stored()),
            },
            _open: Arc::clone(&self.open),
        }
    }
}

pub struct FjallScan {
    pairs: Pairs,
    // Keeps the directory locked while tables are still being read.
    _open: Arc<Open>,
}

enum Pairs {
    Stored(StoredScan),
    Merged(Box<SheafScan<StoredScan>>),
}

impl Iterator for FjallScan {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.pairs {
            Pairs::Stored(stored) => stored.next(),
            Pairs::Merged(merged) => merged.next(),
        }
    }
}

/// What the engine itself has.
struct StoredScan {
    pairs: Option<Iter>,
    direction: Direction,
}

impl Iterator for StoredScan {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let pairs = self.pairs.as_mut()?;
        let guard: Guard = match self.direction {
            Direction::Forward => pairs.next()?,
            Direction::Backward => pairs.next_back()?,
        };
        Some(guard.into_inner().map_err(Error::Engine))
    }
}
