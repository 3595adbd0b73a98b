//! How a shard is told which ranges a stream asks for.
//!
//! A stream answers for a set of ranges, and the set may be large: a shard may own a million ranges of a
//! collection, none touching the next. At rest that costs nothing, since the shard's version says them all in a
//! word ([`super::Asked::AsInBase`]). Once one of them has moved the version says something else, and to list the
//! others would take more than a message may hold. So what is said is the *difference*:
//!
//! ```text
//!   asked            ranges that the stream answers for
//!   owned            what the shard owns by the newest placement that the router knows
//!
//!   few              the ranges themselves; the shard answers whatever it owns by now   ByName
//!   asked ⊆ owned    the shard's version, and what it owns besides: owned − asked       ByVersion
//!   else             asked − owned is elsewhere: known without asking anybody           Gone
//!   many both ways   the stream is divided, and its parts are asked each by itself      TooLong
//! ```
//!
//! ⚑ *By version* is as good as by name: the shard refuses another version than the one it has in the snapshot that
//! it reads, and whoever asked looks again with a newer placement. So it answers for exactly these ranges or not at
//! all. Ranges named by their bounds need no agreement, which is why few of them still are: a range that keeps
//! moving is found sooner.
//!
//! The size of a request thus grows with what has changed since the scan began, as the position does, not with the
//! number of chunks. The same words keep a token small that was taken from a scan which itself began with a token
//! ([`rebased`]).
//!
//! Left out: a shard's answer names each range that it does not own by its bounds. Only ranges that were asked for
//! by name can be among them, so there are about as many as were asked for.

use crate::routing::{RoutingTable, ShardId};
use model::range::RangeSet;
use model::version::PlacementVersion;

/// When ranges are named, and when they are too many.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Ranges that weigh no more are named.
    pub few_bytes: usize,
    /// What ranges in one request may weigh.
    pub bytes_max: usize,
}

impl Limits {
    /// A request holds 16 MB, and other things too.
    pub const OF_REQUESTS: Limits = Limits {
        few_bytes: 16 << 10,
        bytes_max: 4 << 20,
    };
}

/// What a bound weighs beside its bytes: its place in an array, its kind and its length.
const BOUND_BYTES: usize = 14;

/// How to tell a shard which ranges are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Naming {
    /// Each by its bounds.
    ByName,
    /// What the shard owns by this version, without these.
    ByVersion {
        version: PlacementVersion,
        without: RangeSet,
    },
    /// It need not be asked for these: others own them.
    Gone(RangeSet),
    /// Neither fits: see [`super::Scan::divide`].
    TooLong,
}

impl Limits {
    /// Whether so many ranges are named without a look at who owns what.
    pub fn are_few(&self, ranges: &RangeSet) -> bool {
        ranges.iter().len() < 2 || weight(ranges) <= self.few_bytes
    }
}

/// How to ask a shard for ranges, given the newest placement that is known.
pub fn naming(ranges: &RangeSet, shard: &ShardId, now: &RoutingTable, limits: Limits) -> Naming {
    if limits.are_few(ranges) {
        return Naming::ByName;
    }
    let owned = now.ranges_of(shard);
    let gone = ranges.difference(&owned);
    if !gone.is_empty() {
        return Naming::Gone(gone);
    }
    let without = owned.difference(ranges);
    let (named, besides) = (weight(ranges), weight(&without));
    match named.min(besides) > limits.bytes_max {
        true => Naming::TooLong,
        false if named < besides => Naming::ByName,
        false => Naming::ByVersion {
            version: now.shard_version(shard),
            without,
        },
    }
}

/// The ranges of a stream in the words of a newer placement.
pub(super) struct Rebased {
    /// What the shard owns in it, without these, is still the stream's; `None` if that is nothing.
    pub(super) without: Option<RangeSet>,
    /// The rest of what the stream asked for, at its owners.
    pub(super) gone: Vec<(ShardId, RangeSet)>,
}

/// Fewer ranges of a stream are named in a token: they are short enough, and need no look at all that a shard owns.
const NAMED_MAX: usize = 8;
/// What one more stream adds to a token, about: its shard and its place.
const STREAM_BYTES: usize = 64;

/// Says ranges by what a newer placement says of their shard; `None` if they are few, or that is hardly shorter. A
/// token has a stream for each shard, and goes to and fro with every batch, so it is no place for as many ranges as a
/// request may name.
///
/// ⚑ *Shorter* is meant strictly: of two disjoint sets of one shard's ranges only one can be said by what it lacks, so
/// that no two streams of a shard are "all but these".
pub(super) fn rebased(
    ranges: &RangeSet,
    shard: &ShardId,
    now: &RoutingTable,
    wanted: &RangeSet,
) -> Option<Rebased> {
    if ranges.iter().len() <= NAMED_MAX {
        return None;
    }
    let owned = now.ranges_of(shard).intersection(wanted);
    let without = owned.difference(ranges);
    let gone = ranges.difference(&owned);
    if weight(&without) + weight(&gone) >= weight(ranges) {
        return None;
    }
    let gone = by_owner(&gone, now);
    let more: usize = gone
        .iter()
        .map(|(_, theirs)| weight(theirs) + STREAM_BYTES)
        .sum();
    let is_shorter = weight(&without) + more < weight(ranges);
    is_shorter.then(|| Rebased {
        without: Some(without).filter(|without| *without != owned),
        gone,
    })
}

/// Who owns what of these ranges.
fn by_owner(ranges: &RangeSet, now: &RoutingTable) -> Vec<(ShardId, RangeSet)> {
    let owners = now.targets(ranges.as_slice()).into_iter();
    let owned = owners.map(|shard| {
        let theirs = now.ranges_of(&shard).intersection(ranges);
        (shard, theirs)
    });
    owned.collect()
}

/// What ranges weigh in a request.
pub(crate) fn weight(ranges: &RangeSet) -> usize {
    let bounds = ranges.iter().flat_map(|range| [&range.min, &range.max]);
    bounds
        .map(|bound| bound.as_bytes().len() + BOUND_BYTES)
        .sum()
}
