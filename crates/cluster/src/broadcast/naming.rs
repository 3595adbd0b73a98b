//! How a shard is told the ranges of a stream, where they are too many to be listed.
//!
//! As for scans ([`crate::scan::naming`]) what is said is the difference to what the shard owns by the newest placement
//! that is known, and by that placement's version:
//!
//! ```text
//!   asked = owned − without + besides       without   owned there, and not the stream's
//!                                           besides   the stream's, and not owned there (any more)
//! ```
//!
//! ⚑ *Besides* is said too, unlike in a scan: only the shard knows how far it came in a range before it lost it,
//! and whose it is then must follow from its answer.

use crate::routing::{RoutingTable, ShardId};
use crate::scan::{Limits, weight};
use model::range::RangeSet;
use model::version::PlacementVersion;

/// The ranges of a stream in the words of a placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    pub version: PlacementVersion,
    pub without: RangeSet,
    pub besides: RangeSet,
}

/// How to tell a shard which ranges are a stream's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartNaming {
    /// Each by its bounds.
    ByName,
    ByVersion(Difference),
    /// Neither fits into a request.
    TooLong,
}

/// The words for ranges, given the newest placement that is known.
pub fn part_naming(
    ranges: &RangeSet,
    shard: &ShardId,
    now: &RoutingTable,
    limits: Limits,
) -> PartNaming {
    if limits.are_few(ranges) {
        return PartNaming::ByName;
    }
    let owned = now.ranges_of(shard);
    let difference = Difference {
        version: now.shard_version(shard),
        without: owned.difference(ranges),
        besides: ranges.difference(&owned),
    };
    let named = weight(ranges);
    let differing = weight(&difference.without) + weight(&difference.besides);
    match named.min(differing) > limits.bytes_max {
        true => PartNaming::TooLong,
        false if named < differing => PartNaming::ByName,
        false => PartNaming::ByVersion(difference),
    }
}

/// Ranges in pieces that can be named.
pub(super) fn pieces(ranges: RangeSet, limits: Limits) -> Vec<RangeSet> {
    if weight(&ranges) <= limits.bytes_max {
        return vec![ranges];
    }
    let mut pieces = Vec::new();
    let mut piece = Vec::new();
    let mut bytes = 0;
    for range in ranges.iter() {
        let more = weight(&RangeSet::of([range.clone()]));
        if bytes + more > limits.bytes_max && !piece.is_empty() {
            pieces.push(RangeSet::of(std::mem::take(&mut piece)));
            bytes = 0;
        }
        bytes += more;
        piece.push(range.clone());
    }
    pieces.push(RangeSet::of(piece));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Chunk;
    use model::bson::DocWriter;
    use model::ids::Uuid;
    use model::range::{KeyBound, KeyRange};
    use model::shard_key::ShardKeyPattern;
    use model::time::ClusterTime;
    use model::version::ChunkVersion;

    const KEYS: i32 = 2_000;

    fn pattern() -> ShardKeyPattern {
        let pattern = DocWriter::new().with("k", 1).finish();
        ShardKeyPattern::parse(pattern.as_doc()).expect("a pattern")
    }

    fn range(pattern: &ShardKeyPattern, at: i32) -> KeyRange {
        let bound = |at: i32| match at {
            0 => KeyBound::new(&pattern.least()),
            KEYS => KeyBound::after_all(),
            at => KeyBound::new(
                &pattern
                    .key_of(DocWriter::new().with("k", at).finish().as_doc())
                    .expect("a key"),
            ),
        };
        KeyRange::new(bound(at), bound(at + 1))
    }

    /// Every second range is a's, but for those that have moved.
    fn table(moved: &[i32]) -> RoutingTable {
        let pattern = pattern();
        let mut chunks = Vec::new();
        for at in 0..KEYS {
            let is_of_a = (at % 2 == 0) != moved.contains(&at);
            let shard = ShardId::new(if is_of_a { "a" } else { "b" });
            let range = range(&pattern, at);
            let version = ChunkVersion::new(1, at as u32);
            let chunk = Chunk::new(range.min, shard, version, ClusterTime::ZERO);
            chunks.push((chunk, range.max));
        }
        RoutingTable::full(
            Uuid([7; 16]),
            PlacementVersion::UNSHARDED.incarnation,
            pattern.into(),
            chunks,
        )
        .expect("a table")
    }

    #[test]
    fn many_ranges_are_said_by_what_has_changed() {
        let base = table(&[]);
        let a = ShardId::new("a");
        let asked = base.ranges_of(&a);
        // One has gone, one has come.
        let now = table(&[10, 21]);
        let PartNaming::ByVersion(said) = part_naming(&asked, &a, &now, Limits::OF_REQUESTS) else {
            panic!("they are not listed");
        };
        let owned = now.ranges_of(&a);
        assert_eq!(owned.difference(&said.without).union(&said.besides), asked);
        let pattern = pattern();
        assert_eq!(said.besides, RangeSet::of([range(&pattern, 10)]));
        assert_eq!(said.without, RangeSet::of([range(&pattern, 21)]));
        assert_eq!(said.version, now.shard_version(&a));
        // Few are listed, and so is what has nothing to do with what the shard owns.
        let few = RangeSet::of([range(&pattern, 10), range(&pattern, 30)]);
        assert_eq!(
            part_naming(&few, &a, &now, Limits::OF_REQUESTS),
            PartNaming::ByName
        );
        let others = base.ranges_of(&ShardId::new("b"));
        assert_eq!(
            part_naming(&others, &a, &base, Limits::OF_REQUESTS),
            PartNaming::ByName
        );
        let tight = Limits {
            few_bytes: 0,
            bytes_max: 1_000,
        };
        assert_eq!(part_naming(&others, &a, &base, tight), PartNaming::TooLong);
    }

    #[test]
    fn pieces_are_all_of_it_and_can_be_named() {
        let base = table(&[]);
        let ranges = base.ranges_of(&ShardId::new("a"));
        let limits = Limits {
            few_bytes: 0,
            bytes_max: 1_000,
        };
        let pieces = pieces(ranges.clone(), limits);
        assert!(pieces.len() > 10, "{} pieces", pieces.len());
        assert!(pieces.iter().all(|piece| weight(piece) <= limits.bytes_max));
        let all = pieces.iter().flat_map(|piece| piece.iter().cloned());
        assert_eq!(RangeSet::of(all), ranges);
    }
}
