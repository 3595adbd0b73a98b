//! One range of keys, who owns it, and who owned it before.
//!
//! A chunk that was merged from others may have had several owners at once in the past: it remembers them part by part,
//! for as long as anybody may ask ([`History`]).

use model::range::{KeyBound, KeyRange};
use model::time::ClusterTime;
use model::version::ChunkVersion;
use std::fmt;
use std::sync::Arc;

/// For how long earlier owners are remembered. What is older is forgotten when its chunk is moved or merged
/// the next time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    seconds: u32,
}

impl History {
    /// Twice as long as anybody may read the past: who begins such a read at its very end has as long again to finish
    /// it, and who holds the token of a scan to come back.
    pub fn of_window(seconds: u32) -> Self {
        Self {
            seconds: seconds.saturating_mul(2),
        }
    }

    /// Nobody asks for who owned what before this.
    fn horizon(self, now: ClusterTime) -> ClusterTime {
        ClusterTime::new(now.seconds().saturating_sub(self.seconds), 0)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::of_window(300)
    }
}

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

/// A part of a chunk that was merged: where it begins, since when the chunk's shard owns it, and who did before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergedPart {
    pub min: KeyBound,
    pub since: ClusterTime,
    /// The latest first.
    pub past: Vec<PastOwner>,
}

/// Who owned a chunk earlier.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Earlier {
    /// All of it, the latest first.
    Whole(Box<[PastOwner]>),
    /// Each of its parts; the first begins where the chunk does.
    Parts(Box<[MergedPart]>),
}

/// One range of keys. Where it ends, the next one begins; the table knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub min: KeyBound,
    pub shard: ShardId,
    pub version: ChunkVersion,
    /// When the shard began to own all of it.
    pub since: ClusterTime,
    /// Nearly always nothing, which takes no memory of its own.
    earlier: Option<Box<Earlier>>,
}

impl Chunk {
    pub fn new(min: KeyBound, shard: ShardId, version: ChunkVersion, since: ClusterTime) -> Self {
        Self {
            min,
            shard,
            version,
            since,
            earlier: None,
        }
    }

    #[must_use]
    pub fn with_past(mut self, past: Vec<PastOwner>) -> Self {
        let earlier = Earlier::Whole(past.into());
        self.earlier = (!earlier.is_empty()).then(|| Box::new(earlier));
        self
    }

    /// A chunk that was merged from parts, which follow each other from its beginning on.
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<MergedPart>) -> Self {
        let since = parts.iter().map(|part| part.since).max();
        self.since = since.unwrap_or(self.since);
        let earlier = Earlier::Parts(parts.into());
        self.earlier = (!earlier.is_empty()).then(|| Box::new(earlier));
        self
    }

    /// Earlier owners of the whole, the latest first. Of one that was merged: none.
    pub fn past(&self) -> &[PastOwner] {
        match self.earlier.as_deref() {
            Some(Earlier::Whole(past)) => past,
            Some(Earlier::Parts(_)) | None => &[],
        }
    }

    /// The parts with histories of their own, of a chunk that was merged from such.
    pub fn parts(&self) -> &[MergedPart] {
        match self.earlier.as_deref() {
            Some(Earlier::Parts(parts)) => parts,
            Some(Earlier::Whole(_)) | None => &[],
        }
    }

    /// Who owned a key of it at a time. `None` if nothing is known that far back: answering
    /// with today's owner would lose what has moved since.
    pub fn owner_at(&self, key: &[u8], time: ClusterTime) -> Option<&ShardId> {
        let parts = self.parts();
        let after = parts.partition_point(|part| part.min.as_bytes() <= key);
        match parts.get(after.saturating_sub(1)) {
            Some(part) => self.owner_among(part.since, &part.past, time),
            None => self.owner_among(self.since, self.past(), time),
        }
    }

    fn owner_among<'a>(
        &'a self,
        since: ClusterTime,
        past: &'a [PastOwner],
        time: ClusterTime,
    ) -> Option<&'a ShardId> {
        if since <= time {
            return Some(&self.shard);
        }
        let earlier = past.iter().find(|owner| owner.since <= time)?;
        Some(&earlier.shard)
    }

    /// Where the parts begin whose owners may differ at a time.
    pub(super) fn begins(&self) -> impl Iterator<Item = &KeyBound> {
        let further = self.parts().iter().skip(1).map(|part| &part.min);
        [&self.min].into_iter().chain(further)
    }

    /// The same on another shard.
    #[must_use]
    pub(super) fn moved(
        &self,
        to: &ShardId,
        version: ChunkVersion,
        since: ClusterTime,
        history: History,
    ) -> Self {
        let mut parts = self.to_parts();
        for part in &mut parts {
            let owner = PastOwner {
                since: part.since,
                shard: self.shard.clone(),
            };
            part.past.insert(0, owner);
            part.since = since;
        }
        Self::of_parts(to.clone(), version, parts, history.horizon(since))
    }

    /// The same owners within a range that lies in the chunk.
    #[must_use]
    pub(super) fn within(&self, range: &KeyRange, version: ChunkVersion) -> Self {
        let mut parts = self.to_parts();
        parts.retain(|part| part.min < range.max);
        let before = parts.partition_point(|part| part.min <= range.min);
        parts.drain(..before.saturating_sub(1));
        if let Some(first) = parts.first_mut() {
            first.min = range.min.clone();
        }
        Self::of_parts(self.shard.clone(), version, parts, ClusterTime::ZERO)
    }

    /// The same with other bounds, which have the same order.
    #[must_use]
    pub(super) fn renamed(&self, name: impl Fn(&KeyBound) -> KeyBound) -> Self {
        let mut parts = self.to_parts();
        for part in &mut parts {
            part.min = name(&part.min);
        }
        Self::of_parts(self.shard.clone(), self.version, parts, ClusterTime::ZERO)
    }

    /// Chunks of one shard that follow each other as one. `now` is when that happens.
    ///
    /// ⚑ Their histories stay apart: whoever reads at an earlier time, or goes on with a scan that began then, has to
    /// ask each owner of that time for its part.
    pub(super) fn merged(
        chunks: &[&Chunk],
        version: ChunkVersion,
        now: ClusterTime,
        history: History,
    ) -> Self {
        let parts: Vec<MergedPart> = chunks.iter().flat_map(|chunk| chunk.to_parts()).collect();
        let shard = chunks[0].shard.clone();
        Self::of_parts(shard, version, parts, history.horizon(now))
    }

    fn to_parts(&self) -> Vec<MergedPart> {
        match self.parts() {
            [] => vec![MergedPart {
                min: self.min.clone(),
                since: self.since,
                past: self.past().to_vec(),
            }],
            parts => parts.to_vec(),
        }
    }

    /// A chunk of parts that follow each other. What was before the horizon is left out.
    fn of_parts(
        shard: ShardId,
        version: ChunkVersion,
        parts: Vec<MergedPart>,
        horizon: ClusterTime,
    ) -> Self {
        let mut kept: Vec<MergedPart> = Vec::with_capacity(parts.len());
        for mut part in parts {
            part.forget(horizon);
            match kept.last_mut() {
                Some(last) if last.is_like(&part, horizon) => {
                    last.since = last.since.max(part.since)
                }
                Some(_) | None => kept.push(part),
            }
        }
        let first = &mut kept[0];
        let chunk = Chunk::new(first.min.clone(), shard, version, first.since);
        match kept.len() {
            1 => {
                let past = std::mem::take(&mut kept[0].past);
                chunk.with_past(past)
            }
            _ => chunk.with_parts(kept),
        }
    }
}

impl Earlier {
    fn is_empty(&self) -> bool {
        match self {
            Earlier::Whole(past) => past.is_empty(),
            Earlier::Parts(parts) => parts.is_empty(),
        }
    }
}

impl MergedPart {
    /// Who owned it before the one who did at the horizon is asked for by nobody.
    fn forget(&mut self, horizon: ClusterTime) {
        let kept = match self.since > horizon {
            false => 0,
            true => {
                let past = self.past.iter();
                past.take_while(|owner| owner.since > horizon).count() + 1
            }
        };
        self.past.truncate(kept);
    }

    /// Whether nobody can tell the two apart from the horizon on.
    fn is_like(&self, other: &MergedPart, horizon: ClusterTime) -> bool {
        let are_old = self.since.max(other.since) <= horizon;
        are_old || (self.since, &self.past) == (other.since, &other.past)
    }
}
