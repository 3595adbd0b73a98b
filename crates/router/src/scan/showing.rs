//! Scans as `$currentOp` shows them: what they began with, which ranges each stream answers for, and how far it has come.
//!
//! ```text
//!   elasticScan   collectionUUID, baseVersion, baseTime, order, resumed; skip and limit that are left
//!                 streamsOpened, streamsEnded
//!     streams     shard, virtual, state, hops, batches, results, repeats,
//!                 ranges: {count, atLeast, first: [{min, max}, …]}, position, shardCursor, askedAhead
//!
//!   state         opened     nothing has come yet
//!                 under way
//!                 delivering all has come, and is still being delivered
//!                 ended
//! ```
//!
//! A scan may have thousands of streams, a stream millions of ranges, and a router thousands of cursors, so what is shown
//! and what is looked at is bounded: [`STREAMS_SHOWN`], [`RANGES_SHOWN`], [`RANGES_COUNTED`], [`RANGES_TAKEN`],
//! [`BYTES_SHOWN`].
//!
//! The ranges of a base stream are nowhere in a list: they are what its shard has in the base placement, of what the
//! query wants, without what virtual streams have taken over. Streams only ever give ranges to each other, so that is
//! what is left. ⚑ A scan that goes on from a token may have finished some of them before, which is known to nobody here:
//! it is marked `resumed`. Of a moment of the past the base placement tells nothing, and no ranges are shown; nor where
//! very many have moved.

use super::ElasticScan;
use super::asking::OpenCursor;
use cluster::scan::{Reached, StreamId, StreamView};
use model::bson::{DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;

const STREAMS_SHOWN: usize = 32;
const RANGES_SHOWN: usize = 3;
/// Of a base stream no more are counted, and of a query that wants more no more are looked at.
const RANGES_COUNTED: usize = 4096;
/// Where virtual streams have more, those of base streams are not worked out.
const RANGES_TAKEN: usize = 50_000;
/// How much of a bound, and of a position.
const BYTES_SHOWN: usize = 256;

/// What became of a stream's questions.
#[derive(Clone, Copy, Default)]
pub(super) struct StreamCounts {
    /// How often its shard has answered.
    pub(super) batches: u64,
    /// How many results came with that, partial ones on disk left out.
    pub(super) results: u64,
    /// How often a question had to be asked again.
    pub(super) repeats: u64,
}

/// Ranges as far as they are shown.
struct Shown {
    count: usize,
    /// There are more than were counted.
    at_least: bool,
    first: Vec<KeyRange>,
}

impl ElasticScan {
    /// Where a stream's questions are counted.
    pub(super) fn counts(&mut self, stream: StreamId) -> &mut StreamCounts {
        let at = stream.index();
        if self.counts.len() <= at {
            self.counts.resize_with(at + 1, StreamCounts::default);
        }
        &mut self.counts[at]
    }

    pub(super) fn append_streams(&self, cursor: &mut DocWriter) {
        cursor.begin_document("elasticScan");
        self.append_scan(cursor);
        let (ended, open): (Vec<_>, Vec<_>) = self.scan.streams().partition(|one| one.has_ended);
        cursor
            .append("streamsOpened", (ended.len() + open.len()) as i64)
            .append("streamsEnded", ended.len() as i64)
            .begin_array("streams");
        // Those that have not ended first, and all in the order in which they were opened.
        let mut shown: Vec<_> = open.iter().chain(&ended).take(STREAMS_SHOWN).collect();
        shown.sort_by_key(|stream| stream.id);
        let taken = self.taken();
        for stream in shown {
            cursor.push_document();
            self.append_stream(cursor, stream, taken.as_ref());
            cursor.end();
        }
        cursor.end().end();
    }

    fn append_scan(&self, cursor: &mut DocWriter) {
        let base = self.scan.base();
        if let Some(Uuid(bytes)) = &self.collection {
            let uuid = ValueRef::Binary { subtype: 4, bytes };
            cursor.append("collectionUUID", uuid);
        }
        cursor.begin_document("baseVersion");
        base.version().append_to(cursor);
        cursor.end().append("baseTime", base.came_to_be());
        let order = match (&self.command.order, self.command.whole) {
            (Some(_), _) => "sorted",
            (None, true) => "whole",
            (None, false) => "unsorted",
        };
        cursor.append("order", order);
        if self.is_resumed {
            cursor.append("resumed", true);
        }
        let (skip, limit) = self.scan.window();
        if skip > 0 {
            cursor.append("skip", i64::try_from(skip).unwrap_or(i64::MAX));
        }
        if let Some(limit) = limit {
            cursor.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        if self.not_before > ClusterTime::ZERO {
            cursor.append("notBefore", self.not_before);
        }
    }

    fn append_stream(
        &self,
        cursor: &mut DocWriter,
        stream: &StreamView<'_>,
        taken: Option<&RangeSet>,
    ) {
        let state = match (stream.has_ended, stream.reached) {
            (true, _) => "ended",
            (false, Reached::Beginning) => "opened",
            (false, Reached::Behind(_)) => "under way",
            (false, Reached::End) => "delivering",
        };
        let at = stream.id.index();
        let counts = self.counts.get(at).copied().unwrap_or_default();
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        cursor
            .append("shard", stream.shard.as_str())
            .append("virtual", stream.is_virtual)
            .append("state", state)
            .append("hops", i64::from(stream.hops))
            .append("batches", number(counts.batches))
            .append("results", number(counts.results))
            .append("repeats", number(counts.repeats));
        if let Some(ranges) = self.shown_ranges(stream, taken) {
            append_ranges(cursor, &ranges, &self.scan.base().pattern);
        }
        if let Reached::Behind(place) = stream.reached {
            append_bytes(cursor, "position", place);
        }
        let open = self.cursors.get(at).and_then(Option::as_ref);
        if let Some(OpenCursor { id, .. }) = open {
            cursor.append("shardCursor", *id);
        }
        if self.ahead.get(at).is_some_and(Option::is_some) {
            cursor.append("askedAhead", true);
        }
    }

    /// What base streams do not have any more; `None` if it is too much, or means nothing.
    fn taken(&self) -> Option<RangeSet> {
        let ranges = || self.scan.streams().filter_map(|stream| stream.ranges);
        let count: usize = ranges().map(|ranges| ranges.iter().len()).sum();
        let is_known = !self.command.is_past && count <= RANGES_TAKEN;
        is_known.then(|| ranges().flat_map(RangeSet::iter).cloned().collect())
    }

    fn shown_ranges(&self, stream: &StreamView<'_>, taken: Option<&RangeSet>) -> Option<Shown> {
        if let Some(ranges) = stream.ranges {
            return Some(Shown::of(ranges, false));
        }
        let taken = taken?;
        let base = self.scan.base();
        let wanted = self.wanted.as_slice();
        let looked_at = &wanted[..wanted.len().min(RANGES_COUNTED)];
        let looked_at = base
            .pattern
            .completed_ranges(&looked_at.iter().cloned().collect());
        let owned = base.owned_within(stream.shard, looked_at.as_slice());
        let pieces: Vec<KeyRange> = owned.take(RANGES_COUNTED + 1).collect();
        let at_least = pieces.len() > RANGES_COUNTED || wanted.len() > RANGES_COUNTED;
        let owned: RangeSet = pieces.into_iter().collect();
        Some(Shown::of(&owned.difference(taken), at_least))
    }
}

impl Shown {
    fn of(ranges: &RangeSet, at_least: bool) -> Shown {
        Shown {
            count: ranges.iter().len(),
            at_least,
            first: ranges.iter().take(RANGES_SHOWN).cloned().collect(),
        }
    }
}

fn append_ranges(cursor: &mut DocWriter, ranges: &Shown, pattern: &ShardKeyPattern) {
    let count = i64::try_from(ranges.count).unwrap_or(i64::MAX);
    cursor.begin_document("ranges").append("count", count);
    if ranges.at_least {
        cursor.append("atLeast", true);
    }
    cursor.begin_array("first");
    for range in &ranges.first {
        cursor.push_document();
        append_bound(cursor, "min", &range.min, pattern);
        append_bound(cursor, "max", &range.max, pattern);
        cursor.end();
    }
    cursor.end().end();
}

/// A bound as a document; as bytes if it stands between keys, or is long.
fn append_bound(cursor: &mut DocWriter, name: &str, bound: &KeyBound, pattern: &ShardKeyPattern) {
    match pattern.bound_of_key(bound.as_bytes()) {
        Ok(document) if document.as_doc().len() <= BYTES_SHOWN => {
            cursor.append(name, &document);
        }
        Ok(_) | Err(_) => append_bytes(cursor, name, bound.as_bytes()),
    }
}

fn append_bytes(cursor: &mut DocWriter, name: &str, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(BYTES_SHOWN)];
    cursor.append(name, ValueRef::Binary { subtype: 0, bytes });
}
