//! Where the documents of a range lie.
//!
//! ```text
//!   clustered by the shard key     [min ......... max)     one place: what lies in it belongs to it
//!   by its first fields            [min' ......... max']   a little more: documents are looked at
//!   otherwise (by _id)             everything              documents are looked at
//! ```
//!
//! ⚑ Wherever bounds fall inside one clustering value, or the records have another order, each
//! document is asked whether it belongs to the range. A document whose key cannot be worked
//! out belongs to none.

use crate::catalog::Collection;
use model::bson::Doc;
use model::ids::CollectionId;
use model::key::{Direction, RecordKey, prefix_end};
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use std::ops::Bound;

/// The records among which a range's documents are.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) collection: CollectionId,
    pattern: ShardKeyPattern,
    range: KeyRange,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    /// Whether all that lies there belongs to the range.
    is_exact: bool,
}

impl Stretch {
    pub(super) fn new(
        collection: &Collection,
        pattern: &ShardKeyPattern,
        range: &KeyRange,
    ) -> Self {
        let (low, high, is_exact) = place(collection, pattern, range);
        Self {
            collection: collection.id,
            pattern: pattern.clone(),
            range: range.clone(),
            low,
            high,
            is_exact,
        }
    }

    /// Whether the range is one place, so that a record's key says if it is in it.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    pub(super) fn contains(&self, document: Doc<'_>) -> bool {
        let key = self.pattern.key_of(document);
        key.is_ok_and(|key| self.range.contains(&key))
    }

    /// Whether a record with this key may belong to the range.
    pub(super) fn may_contain_key(&self, key: &[u8]) -> bool {
        let above = match &self.low {
            Bound::Included(low) => low.as_slice() <= key,
            Bound::Excluded(low) => low.as_slice() < key,
            Bound::Unbounded => true,
        };
        let below = match &self.high {
            Bound::Included(high) => key <= high.as_slice(),
            Bound::Excluded(high) => key < high.as_slice(),
            Bound::Unbounded => true,
        };
        above && below
    }

    /// Whether all of the range is in a set.
    pub(super) fn is_within(&self, set: &RangeSet) -> bool {
        RangeSet::of([self.range.clone()])
            .difference(set)
            .is_empty()
    }

    /// Whether a record belongs to the range.
    pub(super) fn has(&self, key: &[u8], document: Doc<'_>) -> bool {
        self.may_contain_key(key) && (self.is_exact || self.contains(document))
    }

    /// Its records behind one of them, up to another and with that; of those that are not given, from its beginning
    /// and to its end.
    pub(super) fn records_between<'a>(
        &'a self,
        after: Option<&'a [u8]>,
        upto: Option<&'a [u8]>,
    ) -> storage::KeyRange<'a> {
        let mut range = self.records(after);
        if let Some(upto) = upto {
            range.high = Bound::Included(upto);
        }
        range
    }

    /// Its records, or those behind one of them.
    pub(super) fn records<'a>(&'a self, after: Option<&'a [u8]>) -> storage::KeyRange<'a> {
        let low = match after {
            Some(after) => Bound::Excluded(after),
            None => self.low.as_ref().map(Vec::as_slice),
        };
        storage::KeyRange::new(low, self.high.as_ref().map(Vec::as_slice))
    }
}

type Place = (Bound<Vec<u8>>, Bound<Vec<u8>>, bool);

fn place(collection: &Collection, pattern: &ShardKeyPattern, range: &KeyRange) -> Place {
    let everywhere = (Bound::Unbounded, Bound::Unbounded, false);
    let shared = match &collection.clustering {
        Some(clustering) => match pattern.extends(clustering.pattern()) {
            true => clustering.pattern().fields().len(),
            false => return everywhere,
        },
        // Encoded the same way, as a key of one field.
        None => match pattern.fields() {
            [first, ..] if &*first.path == "_id" && !first.hashed => 1,
            _ => return everywhere,
        },
    };
    if shared == pattern.fields().len() {
        let [low, high] = [&range.min, &range.max].map(|bound| bound.as_bytes().to_vec());
        return (Bound::Included(low), Bound::Excluded(high), true);
    }
    let directions = vec![Direction::Ascending; shared];
    let first_fields = |bound: &KeyBound| {
        let split = RecordKey::split_off(bound.as_bytes(), &directions);
        split.ok().map(|(fields, _)| fields.to_vec())
    };
    let low = first_fields(&range.min).map_or(Bound::Unbounded, Bound::Included);
    let high = match range.max == KeyBound::after_all() {
        true => None,
        false => first_fields(&range.max).and_then(|fields| prefix_end(&fields)),
    };
    (low, high.map_or(Bound::Unbounded, Bound::Excluded), false)
}
