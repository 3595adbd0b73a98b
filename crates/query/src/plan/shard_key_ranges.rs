//! From a filter to the ranges of a shard key that its matches lie in.
//!
//! ```text
//!   {k: 1, l: {$gt: 5}}            by {k, l}    one range within k = 1
//!   {k: {$in: [1, 2]}}             by {k, l}    two ranges
//!   {l: 5}                         by {k, l}    everything
//!   {$or: [{k: 1}, {k: {$gt: 9}}]} by {k}       the ranges of both
//! ```
//!
//! The same bounds that index scans use, with what is special about shard keys: a
//! document has exactly one, never an array, so all conditions speak of the same
//! key and may be put together. Ranges never lose a match; they may hold more.
//!
//! A conjunction with several `$or`s is the intersection of what each of them
//! leaves, not the product of their branches, so the work is in proportion to the
//! filter.

use super::access::hashed_bounds;
use super::interval::FieldBounds;
use super::leaves::{Leaf, conjuncts, leaves};
use super::predicate_bounds::{IndexTraits, leaf_bounds};
use super::scan_bounds::{byte_interval, end_of};
use crate::filter::Filter;
use crate::path::Path;
use model::key::Direction;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;

/// More ranges than these are not told apart: their hull is taken.
const RANGES_MAX: usize = 4_096;

/// After every key: no encoded value begins with this byte.
const AFTER_ALL: &[u8] = &[0xFF];

type Bytes = Vec<u8>;

/// The ranges that documents matching an optimized filter have their shard keys
/// in, ascending and apart.
pub fn shard_key_ranges(filter: &Filter, pattern: &ShardKeyPattern) -> Vec<KeyRange> {
    let fields: Vec<(Path, bool)> = pattern
        .fields()
        .iter()
        .map(|field| (Path::new(&field.path), field.hashed))
        .collect();
    let ranges = ranges_of(filter, &[], &fields);
    ranges
        .into_iter()
        .map(|(low, high)| KeyRange::new(KeyBound::new(&low), KeyBound::new(&high)))
        .collect()
}

/// `around`: the conditions that hold beside this filter.
fn ranges_of(filter: &Filter, around: &[Leaf<'_>], fields: &[(Path, bool)]) -> Vec<(Bytes, Bytes)> {
    if matches!(filter, Filter::AlwaysFalse) {
        return Vec::new();
    }
    let mut all = leaves(filter);
    all.extend_from_slice(around);
    let mut ranges = conjunction(&all, fields);
    for conjunct in conjuncts(filter) {
        if let Filter::Or(branches) = conjunct {
            let branches = branches
                .iter()
                .flat_map(|branch| ranges_of(branch, &all, fields))
                .collect();
            ranges = intersection(&ranges, &apart(branches));
        }
    }
    ranges
}

fn conjunction(leaves: &[Leaf<'_>], fields: &[(Path, bool)]) -> Vec<(Bytes, Bytes)> {
    let mut prefixes: Vec<Bytes> = vec![Vec::new()];
    for (path, hashed) in fields {
        let bounds = field_bounds(leaves, path, *hashed);
        if bounds.is_nothing() {
            return Vec::new();
        }
        if bounds.is_everything() {
            break;
        }
        let mut intervals: Vec<(Bytes, Bytes)> = bounds
            .intervals()
            .iter()
            .map(|interval| {
                let bytes = byte_interval(interval, Direction::Ascending);
                (bytes.low, bytes.high)
            })
            .collect();
        let too_many = prefixes.len() * intervals.len() > RANGES_MAX;
        if too_many {
            intervals = hull(intervals);
        }
        let joined = |prefix: &Bytes, rest: &Bytes| [&prefix[..], &rest[..]].concat();
        if bounds.all_points() && !too_many {
            prefixes = prefixes
                .iter()
                .flat_map(|prefix| intervals.iter().map(|(low, _)| joined(prefix, low)))
                .collect();
            continue;
        }
        let ranges = prefixes.iter().flat_map(|prefix| {
            let of_prefix =
                |(low, high): &(Bytes, Bytes)| (joined(prefix, low), joined(prefix, high));
            intervals.iter().map(of_prefix)
        });
        return apart(ranges.collect());
    }
    let whole = |prefix: Bytes| {
        let end = match prefix.is_empty() {
            true => AFTER_ALL.to_vec(),
            false => end_of(&prefix),
        };
        (prefix, end)
    };
    apart(prefixes.into_iter().map(whole).collect())
}

/// All conditions on one field of the key.
fn field_bounds(leaves: &[Leaf<'_>], path: &Path, hashed: bool) -> FieldBounds {
    let one_key = IndexTraits {
        multikey: false,
        sparse: false,
    };
    let of_leaf = |leaf: &Leaf<'_>| match hashed {
        true => hashed_bounds(leaf.filter),
        false => leaf_bounds(path, leaf.filter, one_key).map(|found| found.bounds),
    };
    leaves
        .iter()
        .filter(|leaf| leaf.path == *path)
        .filter_map(of_leaf)
        .fold(FieldBounds::everything(), |all, next| {
            all.intersection(&next)
        })
}

fn hull(intervals: Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
    let low = intervals.first().map(|(low, _)| low.clone());
    let high = intervals.last().map(|(_, high)| high.clone());
    low.zip(high).into_iter().collect()
}

/// Sorted, empty ones left out, touching ones joined.
fn apart(mut ranges: Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
    ranges.retain(|(low, high)| low < high);
    ranges.sort();
    let mut joined: Vec<(Bytes, Bytes)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match joined.last_mut() {
            Some((_, reached)) if low <= *reached => {
                if high > *reached {
                    *reached = high;
                }
            }
            _ => joined.push((low, high)),
        }
    }
    joined
}

/// Of two lists that are sorted and apart.
fn intersection(a: &[(Bytes, Bytes)], b: &[(Bytes, Bytes)]) -> Vec<(Bytes, Bytes)> {
    let (mut at_a, mut at_b) = (0, 0);
    let mut both = Vec::new();
    while let (Some(left), Some(right)) = (a.get(at_a), b.get(at_b)) {
        let low = (&left.0).max(&right.0);
        let high = (&left.1).min(&right.1);
        if low < high {
            both.push((low.clone(), high.clone()));
        }
        if left.1 <= right.1 {
            at_a += 1;
        } else {
            at_b += 1;
        }
    }
    both
}
