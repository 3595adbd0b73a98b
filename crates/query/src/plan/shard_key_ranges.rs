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

use super::interval::FieldBounds;
use super::leaves::{Leaf, conjuncts, leaves};
use super::predicate_bounds::IndexTraits;
use super::scan_bounds::{byte_interval, end_of};
use crate::filter::Filter;
use crate::path::Path;
use model::bson::{Doc, ValueRef};
use model::key::Direction;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;

/// More ranges than these are not told apart: their hull is taken.
const RANGES_MAX: usize = 4_096;

type Bytes = Vec<u8>;

/// The keys that documents matching an optimized filter may have.
pub fn shard_key_ranges(filter: &Filter, pattern: &ShardKeyPattern) -> RangeSet {
    let fields: Vec<(Path, bool)> = pattern
        .fields()
        .iter()
        .map(|field| (Path::new(&field.path), field.hashed))
        .collect();
    ranges_of(filter, &[], &fields)
}

/// The one shard key that a filter names, with an equality for every field. A field inside a document is named by
/// an equality with the whole of it too: `a.b` by `{a: {b: 7}}`.
pub fn named_shard_key(filter: &Filter, pattern: &ShardKeyPattern) -> Option<Vec<u8>> {
    let equalities = filter.equalities();
    let mut values = Vec::new();
    for field in pattern.fields() {
        let mut named = (equalities.iter())
            .filter_map(|(path, value)| value_within(path.as_str(), *value, &field.path));
        let value = named.next()?;
        if named.any(|other| other != value) || matches!(value, ValueRef::Array(_)) {
            return None;
        }
        values.push(value);
    }
    Some(pattern.key_of_values(values))
}

/// The one shard key that a filter names with plain values, told without parsing it; `None` for all that is less
/// plain than `{field: value}`. Such a filter has no matches but under this key, whatever else it asks for.
///
/// ⚑ Only values that are equal to nothing but themselves: null is also what is missing, a document may be an
/// operator, an array or a regular expression means more than one value.
pub fn plain_shard_key(filter: Doc<'_>, pattern: &ShardKeyPattern) -> Option<Vec<u8>> {
    let is_known = |key: &[u8]| !key.starts_with(b"$");
    if !filter.iter().all(|element| is_known(element.key_bytes())) {
        return None;
    }
    let mut values = Vec::with_capacity(pattern.fields().len());
    for field in pattern.fields() {
        let mut named = filter
            .iter()
            .filter(|element| element.key_bytes() == field.path.as_bytes());
        let value = named.next()?.value();
        if named.next().is_some() || !is_plain(value) {
            return None;
        }
        values.push(value);
    }
    Some(pattern.key_of_values(values))
}

fn is_plain(value: ValueRef<'_>) -> bool {
    matches!(
        value,
        ValueRef::Int32(_)
            | ValueRef::Int64(_)
            | ValueRef::String(_)
            | ValueRef::ObjectId(_)
            | ValueRef::Binary { .. }
            | ValueRef::Boolean(_)
            | ValueRef::DateTime(_)
    )
}

/// All documents of one key.
pub fn range_of_key(key: &[u8]) -> RangeSet {
    RangeSet::from_iter([range(key, &end_of(key))])
}

/// What is at `path` if `value` is at a path that it begins with.
fn value_within<'a>(at: &str, value: ValueRef<'a>, path: &str) -> Option<ValueRef<'a>> {
    let rest = path.strip_prefix(at)?;
    if rest.is_empty() {
        return Some(value);
    }
    let parts = rest.strip_prefix('.')?.split('.');
    parts
        .into_iter()
        .try_fold(value, |value, part| match value {
            ValueRef::Document(doc) => doc.get(part),
            _ => None,
        })
}

/// `around`: the conditions that hold beside this filter.
fn ranges_of(filter: &Filter, around: &[Leaf<'_>], fields: &[(Path, bool)]) -> RangeSet {
    if matches!(filter, Filter::AlwaysFalse) {
        return RangeSet::new();
    }
    let mut all = leaves(filter);
    all.extend_from_slice(around);
    let mut ranges = conjunction(&all, fields);
    for conjunct in conjuncts(filter) {
        if let Filter::Or(branches) = conjunct {
            let branches: RangeSet = branches
                .iter()
                .flat_map(|branch| ranges_of(branch, &all, fields))
                .collect();
            ranges = ranges.intersection(&branches);
        }
    }
    ranges
}

fn conjunction(leaves: &[Leaf<'_>], fields: &[(Path, bool)]) -> RangeSet {
    let mut prefixes: Vec<Bytes> = vec![Vec::new()];
    for (path, hashed) in fields {
        let bounds = field_bounds(leaves, path, *hashed);
        if bounds.is_nothing() {
            return RangeSet::new();
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
                |(low, high): &(Bytes, Bytes)| range(&joined(prefix, low), &joined(prefix, high));
            intervals.iter().map(of_prefix)
        });
        return ranges.collect();
    }
    let whole = |prefix: &Bytes| match prefix.is_empty() {
        true => KeyRange::new(KeyBound::new(prefix), KeyBound::after_all()),
        false => range(prefix, &end_of(prefix)),
    };
    prefixes.iter().map(whole).collect()
}

fn range(low: &[u8], high: &[u8]) -> KeyRange {
    KeyRange::new(KeyBound::new(low), KeyBound::new(high))
}

/// All conditions on one field of the key.
fn field_bounds(leaves: &[Leaf<'_>], path: &Path, hashed: bool) -> FieldBounds {
    let one_key = IndexTraits {
        multikey: false,
        sparse: false,
    };
    let of_leaf = |leaf: &Leaf<'_>| match hashed {
        true => leaf.hashed_bounds(one_key),
        false => leaf.bounds(one_key),
    };
    leaves
        .iter()
        .filter(|leaf| leaf.path == *path)
        .filter_map(of_leaf)
        .map(|found| found.bounds)
        .fold(FieldBounds::everything(), |all, next| {
            all.intersection(&next)
        })
}

fn hull(intervals: Vec<(Bytes, Bytes)>) -> Vec<(Bytes, Bytes)> {
    let low = intervals.first().map(|(low, _)| low.clone());
    let high = intervals.last().map(|(_, high)| high.clone());
    low.zip(high).into_iter().collect()
}
