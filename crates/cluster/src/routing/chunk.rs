//! One range of keys, who owns it, and who owned it before.

use model::range::KeyBound;
use model::time::ClusterTime;
use model::version::ChunkVersion;
use std::fmt;
use std::sync::Arc;

/// How long earlier owners are remembered: twice as long as anybody may read the past.
const HISTORY_SECONDS: u32 = 600;

/// The name of a shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(Arc<str>);

impl ShardId {
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who owned a chunk earlier, and from when on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastOwner {
    pub since: ClusterTime,
    pub shard: ShardId,
}

/// One range of keys. Where it ends, the next one begins; the table knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub min: KeyBound,
    pub shard: ShardId,
    pub version: ChunkVersion,
    /// When the shard began to own it.
    pub since: ClusterTime,
    /// Earlier owners, the latest first. Nearly always empty, which takes no memory
    /// of its own.
    past: Box<[PastOwner]>,
}

impl Chunk {
    pub fn new(min: KeyBound, shard: ShardId, version: ChunkVersion, since: ClusterTime) -> Self {
        Self {
            min,
            shard,
            version,
            since,
            past: Box::default(),
        }
    }

    #[must_use]
    pub fn with_past(mut self, past: Vec<PastOwner>) -> Self {
        self.past = past.into();
        self
    }

    /// Earlier owners, the latest first.
    pub fn past(&self) -> &[PastOwner] {
        &self.past
    }

    /// Who owned it at a time. `None` if nothing is known that far back: answering
    /// with today's owner would lose what has moved since.
    pub fn owner_at(&self, time: ClusterTime) -> Option<&ShardId> {
        if self.since <= time {
            return Some(&self.shard);
        }
        let earlier = self.past().iter().find(|owner| owner.since <= time)?;
        Some(&earlier.shard)
    }

    /// The same chunk on another shard.
    #[must_use]
    pub(super) fn moved(&self, to: &ShardId, version: ChunkVersion, since: ClusterTime) -> Self {
        let mut past = Vec::with_capacity(self.past().len() + 1);
        past.push(PastOwner {
            since: self.since,
            shard: self.shard.clone(),
        });
        past.extend_from_slice(self.past());
        // Who owned it before the one who did when the window began is asked for by nobody.
        let window = since.seconds().saturating_sub(HISTORY_SECONDS);
        let horizon = ClusterTime::new(window, 0);
        let later = past
            .iter()
            .take_while(|owner| owner.since > horizon)
            .count();
        past.truncate(later + 1);
        Chunk::new(self.min.clone(), to.clone(), version, since).with_past(past)
    }

    /// The same owners from another bound on.
    #[must_use]
    pub(super) fn beginning_at(&self, min: KeyBound, version: ChunkVersion) -> Self {
        Self {
            min,
            version,
            ..self.clone()
        }
    }
}
