//! The ranges of a sharded collection that this shard owns.
//!
//! ```text
//!   meta key  "sharding/ownership/" + collection id as 8 hex digits
//!   value     { key: document, unique: bool, placement: {e, t, v}, collectionVersion: {e, t, v},
//!               orphans: bool, unsharded: true,          the last two only where it is so
//!               nextKey: document }
//!   meta key  "sharding/owned/" + collection id as 8 hex digits
//!   value     { ranges: [min, max, min, max, ..] }    encoded bounds as binary, ascending
//! ```
//!
//! Several documents: a split changes the versions and leaves the ranges alone, of which there
//! may be many. What moves add is in `moving.rs`.
//!
//! A collection that is not sharded has an ownership only while the primary of its database moves: it is
//! one range then, given away or received whole (`migration/database.rs`). Nobody works out keys for it.
//!
//! *Next key*: the shard key that the collection is about to get (`next_key.rs`).
//!
//! *Orphans* are documents that are stored here and not owned. There are none until ranges
//! are given away or received, because what is not owned cannot be written; as long as there
//! are none, nobody has to look at documents to know that they are owned.

use super::moving::{
    Block, BlockLevel, Earlier, Moving, Receiving, append_ranges, damaged, ranges,
};
use super::next_key::NextKey;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::{CollectionId, Uuid};
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use model::{Code, Error};
use std::sync::Arc;

const OWNERSHIP_PREFIX: &str = "sharding/ownership/";
const OWNED_PREFIX: &str = "sharding/owned/";
const MOVING_PREFIX: &str = "sharding/moving/";

/// What this shard owns of one sharded collection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ownership {
    pub(crate) pattern: ShardKeyPattern,
    /// The pattern as it was given.
    pub(crate) key: DocBuf,
    pub(crate) unique: bool,
    /// The highest version of this shard's chunks.
    pub(crate) placement: PlacementVersion,
    /// The highest of all chunks.
    pub(crate) collection_version: PlacementVersion,
    pub(crate) owned: Arc<RangeSet>,
    /// Whether documents may be stored here that are not owned.
    pub(crate) orphans: bool,
    pub(crate) moving: Arc<Moving>,
    /// The collection is not sharded; it moves with its database.
    pub(crate) unsharded: bool,
    /// What is written must have a place among keys of this kind too.
    pub(crate) next_key: Option<NextKey>,
}

/// A change of the stored documents; what is not mentioned stays.
#[derive(Default)]
pub(crate) struct OwnershipUpdate {
    pub(crate) head: Option<DocBuf>,
    pub(crate) ranges: Option<DocBuf>,
    pub(crate) moving: Option<DocBuf>,
}

/// Which document of an ownership a meta key stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OwnershipPart {
    Head,
    Ranges,
    Moving,
}

/// The keys of ownership documents in the meta space.
pub(crate) struct OwnershipKey;

impl OwnershipKey {
    pub(crate) fn head(id: CollectionId) -> Vec<u8> {
        format!("{OWNERSHIP_PREFIX}{:08x}", id.0).into_bytes()
    }

    pub(crate) fn ranges(id: CollectionId) -> Vec<u8> {
        format!("{OWNED_PREFIX}{:08x}", id.0).into_bytes()
    }

    pub(crate) fn moving(id: CollectionId) -> Vec<u8> {
        format!("{MOVING_PREFIX}{:08x}", id.0).into_bytes()
    }

    /// The collection and the document that a meta key stands for.
    pub(crate) fn parse(key: &[u8]) -> Option<(CollectionId, OwnershipPart)> {
        let of = |prefix, part| parse(key, prefix).map(|id| (id, part));
        of(OWNERSHIP_PREFIX, OwnershipPart::Head)
            .or_else(|| of(OWNED_PREFIX, OwnershipPart::Ranges))
            .or_else(|| of(MOVING_PREFIX, OwnershipPart::Moving))
    }
}

/// All keys of a pattern.
pub(crate) fn whole(pattern: &ShardKeyPattern) -> KeyRange {
    KeyRange::new(KeyBound::new(&pattern.least()), KeyBound::after_all())
}

fn parse(key: &[u8], prefix: &str) -> Option<CollectionId> {
    let digits = std::str::from_utf8(key.strip_prefix(prefix.as_bytes())?).ok()?;
    u32::from_str_radix(digits, 16).ok().map(CollectionId)
}

impl Ownership {
    /// Whether a document belongs to this shard. One whose key cannot be worked out has
    /// no place in any range.
    pub(crate) fn owns(&self, document: Doc<'_>) -> bool {
        if self.unsharded {
            return !self.owned.is_empty();
        }
        match self.pattern.key_of(document) {
            Ok(key) => self.owned.contains(&key),
            Err(_) => false,
        }
    }

    /// That of a collection which is not sharded: all of it, or nothing.
    pub(crate) fn of_unsharded(version: PlacementVersion, owns: bool) -> Result<Self, Error> {
        let key = DocWriter::new().with("_id", 1).finish();
        let pattern = ShardKeyPattern::parse(key.as_doc())?;
        let owned = match owns {
            true => RangeSet::of([whole(&pattern)]),
            false => RangeSet::new(),
        };
        Ok(Self {
            pattern,
            key,
            unique: false,
            placement: version,
            collection_version: version,
            owned: Arc::new(owned),
            orphans: false,
            moving: Arc::default(),
            unsharded: true,
            next_key: None,
        })
    }

    /// Whether no other shard has any of it.
    pub(crate) fn owns_everything(&self) -> bool {
        self.owned.as_slice() == [whole(&self.pattern)]
    }

    /// Whether the collection comes here with its database: what it was before is not known here. One that
    /// stays because the move was aborted has been here all the time.
    pub(crate) fn is_arrival(&self) -> bool {
        self.owned.is_empty() || !self.moving.receiving.is_empty()
    }

    /// Whether it is what is left here of a collection that lives elsewhere. ⚑ One that comes again is not:
    /// documents of earlier moves are read again by a new primary.
    pub(crate) fn is_dead_copy(&self) -> bool {
        self.unsharded && self.owned.is_empty() && self.moving.receiving.is_empty()
    }

    /// Whether a document that is stored here, or was, must not be seen. ⚑ Before the key was refined nobody minded
    /// arrays in the fields that came to it: reads of that time see them.
    pub(crate) fn hides(&self, document: Doc<'_>) -> bool {
        self.orphans
            && match self.unsharded {
                true => !self.owns(document),
                false => !self.owned.contains(&self.pattern.key_of_before(document)),
            }
    }

    /// Whether writes of a document have to wait.
    pub(crate) fn blocks_writes(&self, document: Doc<'_>) -> bool {
        if self.moving.blocks.is_empty() {
            return false;
        }
        if self.unsharded {
            return true;
        }
        match self.pattern.key_of(document) {
            Ok(key) => (self.moving.blocks.iter()).any(|block| block.range.contains(&key)),
            Err(_) => false,
        }
    }

    /// Whether reads of a document have to wait.
    pub(crate) fn blocks_reads(&self, document: Doc<'_>, at: Option<ClusterTime>) -> bool {
        if self.moving.blocks.is_empty() {
            return false;
        }
        let blocked = self.moving.blocked_for_reads(at);
        if self.unsharded {
            return !blocked.is_empty();
        }
        match self.pattern.key_of(document) {
            Ok(key) => blocked.contains(&key),
            Err(_) => false,
        }
    }

    /// Whether an operation receives the range of a document.
    pub(crate) fn receives(&self, operation: Uuid, document: Doc<'_>) -> bool {
        let receiving = &self.moving.receiving;
        if self.unsharded {
            return receiving.iter().any(|it| it.operation == operation);
        }
        match self.pattern.key_of(document) {
            Ok(key) => receiving
                .iter()
                .any(|received| received.operation == operation && received.range.contains(&key)),
            Err(_) => false,
        }
    }

    /// Whether another operation does, or any.
    pub(crate) fn is_received_except(&self, operation: Option<Uuid>, document: Doc<'_>) -> bool {
        let receiving = &self.moving.receiving;
        if receiving.is_empty() {
            return false;
        }
        if self.unsharded {
            return (receiving.iter()).any(|it| Some(it.operation) != operation);
        }
        match self.pattern.key_of(document) {
            Ok(key) => receiving.iter().any(|received| {
                Some(received.operation) != operation && received.range.contains(&key)
            }),
            Err(_) => false,
        }
    }

    /// The same ranges as bounds of a key that has further fields behind this one's.
    pub(crate) fn owned_by(&self, refined: &ShardKeyPattern) -> RangeSet {
        let refine = self.refine(refined);
        let ranges = self.owned.iter();
        RangeSet::of(ranges.map(|range| KeyRange::new(refine(&range.min), refine(&range.max))))
    }

    fn refine(&self, refined: &ShardKeyPattern) -> impl Fn(&KeyBound) -> KeyBound {
        let added = refined.least()[self.pattern.least().len()..].to_vec();
        move |bound| match *bound == KeyBound::after_all() {
            true => bound.clone(),
            false => KeyBound::new(&[bound.as_bytes(), &added].concat()),
        }
    }

    /// This ownership as it follows another one: what it loses dies, and what was owned before
    /// is remembered for reads at earlier times, as far back as `start`. It counts from a time
    /// on that is not later than its entry's, or from that one. `None` before a collection's
    /// first ownership: all that is stored was its own then.
    pub(crate) fn following(
        mut self,
        known: Option<&Ownership>,
        is_empty: bool,
        start: ClusterTime,
        counts_from: Option<ClusterTime>,
    ) -> Ownership {
        let whole = whole(&self.pattern);
        let known = known.filter(|known| self.pattern.extends(&known.pattern));
        let before = match known {
            Some(known) => known.owned_by(&self.pattern),
            None if is_empty => RangeSet::clone(&self.owned),
            None => RangeSet::of([whole]),
        };
        let mut moving = match known {
            // The ranges of a refined key are the same under longer bounds.
            Some(known) if known.pattern != self.pattern => {
                known.moving.map(known.refine(&self.pattern))
            }
            _ => Moving::clone(&self.moving),
        };
        let gained = self.owned.difference(&before);
        let lost = before.difference(&self.owned);
        let abandoned = match known {
            Some(known) if known.pattern == self.pattern => {
                known.moving.received().difference(&moving.received())
            }
            _ => RangeSet::new(),
        };
        let dead = moving.dead.union(&lost).union(&abandoned);
        moving.dead = dead.difference(&self.owned);
        if !gained.is_empty() || !lost.is_empty() {
            moving.past.push(Earlier {
                until: counts_from,
                gained,
                lost,
            });
        }
        moving.forget_before(start);
        self.orphans = !moving.dead.is_empty() || !moving.receiving.is_empty();
        self.moving = Arc::new(moving);
        self
    }

    /// What was owned at a time: the ownership to read that time with. ⚑ Documents are told
    /// apart in any case: dead ones that are removed by now were there at that time.
    pub(crate) fn at(&self, time: ClusterTime) -> Result<Ownership, Error> {
        let owned = self.moving.owned_at(&self.owned, time).ok_or_else(|| {
            Error::new(
                Code::STALE_CHUNK_HISTORY,
                format!("the ranges that this shard owned at {time:?} are not known any more"),
            )
        })?;
        Ok(Ownership {
            owned: match owned == *self.owned {
                true => self.owned.clone(),
                false => Arc::new(owned),
            },
            orphans: true,
            ..self.clone()
        })
    }

    /// Blocks a range; one that the operation has blocked already gets this level.
    #[must_use]
    pub(crate) fn with_block(&self, operation: Uuid, range: KeyRange, level: BlockLevel) -> Self {
        let mut moving = Moving::clone(&self.moving);
        let known = (moving.blocks.iter()).any(|block| {
            block.operation == operation && block.range == range && block.level == level
        });
        if !known {
            moving.blocks.retain(|block| block.operation != operation);
            moving.blocks.push(Block {
                operation,
                range,
                level,
                since: None,
            });
        }
        self.with_moving(moving)
    }

    #[must_use]
    pub(crate) fn without_block(&self, operation: Uuid) -> Self {
        let mut moving = Moving::clone(&self.moving);
        moving.blocks.retain(|block| block.operation != operation);
        self.with_moving(moving)
    }

    /// Begins to take copies of documents of a range. ⚑ Refused for what is owned, what another
    /// move brings, and what still holds documents of earlier days.
    pub(crate) fn with_receiving(&self, operation: Uuid, range: KeyRange) -> Result<Self, Error> {
        let mut moving = Moving::clone(&self.moving);
        let received = Receiving { operation, range };
        if moving.receiving.contains(&received) {
            return Ok(self.clone());
        }
        let wanted = RangeSet::of([received.range.clone()]);
        let met = |set: &RangeSet| !wanted.intersection(set).is_empty();
        let why = if met(&self.owned) {
            "this shard owns documents of the range"
        } else if met(&moving.undecided()) {
            "another move of the range is under way"
        } else if met(&moving.dead) {
            "documents of an earlier time are still to be removed from the range"
        } else {
            moving.receiving.push(received);
            return Ok(self.with_moving(moving));
        };
        Err(Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, why))
    }

    /// Ends the receiving of a range; what was not gained is dead.
    #[must_use]
    pub(crate) fn without_receiving(&self, operation: Uuid) -> Self {
        let mut moving = Moving::clone(&self.moving);
        moving
            .receiving
            .retain(|received| received.operation != operation);
        self.with_moving(moving)
    }

    /// Owns a range from now on, or does no longer.
    #[must_use]
    pub(crate) fn gaining(&self, range: KeyRange) -> Self {
        let owned = self.owned.union(&RangeSet::of([range]));
        Self {
            owned: Arc::new(owned),
            ..self.clone()
        }
    }

    #[must_use]
    pub(crate) fn losing(&self, range: KeyRange) -> Self {
        let owned = self.owned.difference(&RangeSet::of([range]));
        Self {
            owned: Arc::new(owned),
            ..self.clone()
        }
    }

    /// A dead range has nothing stored any more.
    #[must_use]
    pub(crate) fn without_dead(&self, range: KeyRange) -> Self {
        let mut moving = Moving::clone(&self.moving);
        moving.dead = moving.dead.difference(&RangeSet::of([range]));
        self.with_moving(moving)
    }

    #[must_use]
    pub(crate) fn with_versions(
        &self,
        placement: PlacementVersion,
        collection_version: PlacementVersion,
    ) -> Self {
        Self {
            placement,
            collection_version,
            ..self.clone()
        }
    }

    fn with_moving(&self, moving: Moving) -> Self {
        Self {
            moving: Arc::new(moving),
            ..self.clone()
        }
    }

    pub(crate) fn head_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("key", &self.key)
            .append("unique", self.unique)
            .begin_document("placement");
        self.placement.append_to(&mut writer);
        writer.end().begin_document("collectionVersion");
        self.collection_version.append_to(&mut writer);
        writer.end().append("orphans", self.orphans);
        if self.unsharded {
            writer.append("unsharded", true);
        }
        if let Some(next) = &self.next_key {
            writer.append("nextKey", &next.key);
        }
        writer.finish()
    }

    pub(crate) fn ranges_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        append_ranges(&mut writer, "ranges", &self.owned);
        writer.finish()
    }

    pub(crate) fn from_documents(
        head: Doc<'_>,
        owned: Arc<RangeSet>,
        moving: Arc<Moving>,
    ) -> Result<Self, Error> {
        let version = |name| {
            let doc = head.get_doc(name).ok_or_else(|| damaged(name))?;
            PlacementVersion::from_document(doc)
        };
        let flag = |name| match head.get(name) {
            Some(ValueRef::Boolean(flag)) => Ok(flag),
            _ => Err(damaged(name)),
        };
        let key = head.get_doc("key").ok_or_else(|| damaged("key"))?;
        Ok(Self {
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            unique: flag("unique")?,
            placement: version("placement")?,
            collection_version: version("collectionVersion")?,
            orphans: flag("orphans")?,
            owned,
            moving,
            unsharded: head.get("unsharded") == Some(ValueRef::Boolean(true)),
            next_key: head.get_doc("nextKey").map(NextKey::parse).transpose()?,
        })
    }

    /// The ownership behind an update of `before`.
    pub(crate) fn updated(
        before: Option<&Arc<Ownership>>,
        update: &OwnershipUpdate,
    ) -> Result<Option<Arc<Ownership>>, Error> {
        let Some(head) = &update.head else {
            return Ok(None);
        };
        let owned = match (&update.ranges, before) {
            (Some(stored), _) => Arc::new(ranges(stored.as_doc(), "ranges")?),
            (None, Some(before)) => before.owned.clone(),
            (None, None) => return Err(damaged("ranges")),
        };
        let moving = match (&update.moving, before) {
            (Some(stored), _) => Arc::new(Moving::from_document(stored.as_doc())?),
            (None, Some(before)) => before.moving.clone(),
            (None, None) => Arc::default(),
        };
        Self::from_documents(head.as_doc(), owned, moving).map(|read| Some(Arc::new(read)))
    }
}
