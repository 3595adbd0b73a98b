//! Ranges of encoded keys, and sets of them.
//!
//! Bounds are bytes that compare as keys do, but need not be whole keys: the
//! encoding of the first fields is a bound before all keys that begin with them.
//! No encoded value begins with the byte FF, so that alone is after every key; the
//! last range ends there, and has the key that is MaxKey throughout.

use std::fmt;
use std::sync::Arc;

/// A place between keys: at or after it is the range that it begins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBound(Arc<[u8]>);

impl KeyBound {
    pub fn new(key: &[u8]) -> Self {
        Self(key.into())
    }

    /// After every key.
    pub fn after_all() -> Self {
        Self::new(&[0xFF])
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for KeyBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Keys from `min` on and below `max`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyRange {
    pub min: KeyBound,
    pub max: KeyBound,
}

impl KeyRange {
    pub fn new(min: KeyBound, max: KeyBound) -> Self {
        Self { min, max }
    }

    pub fn is_empty(&self) -> bool {
        self.min >= self.max
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.min.as_bytes() <= key && key < self.max.as_bytes()
    }
}

/// Keys of several ranges: ascending, none touching the next.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RangeSet(Vec<KeyRange>);

impl RangeSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Ranges in any order; they may overlap, touch or be empty.
    pub fn of(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut ranges: Vec<KeyRange> = ranges.into_iter().collect();
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by(|a, b| a.min.cmp(&b.min));
        let mut joined: Vec<KeyRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.min <= last.max => {
                    if range.max > last.max {
                        last.max = range.max;
                    }
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &KeyRange> {
        self.0.iter()
    }

    pub fn as_slice(&self) -> &[KeyRange] {
        &self.0
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        let after = self.0.partition_point(|range| range.min.as_bytes() <= key);
        after > 0 && self.0[after - 1].contains(key)
    }

    #[must_use]
    pub fn union(&self, other: &RangeSet) -> RangeSet {
        RangeSet::of(self.0.iter().chain(&other.0).cloned())
    }

    #[must_use]
    pub fn intersection(&self, other: &RangeSet) -> RangeSet {
        let (mut at, mut other_at) = (0, 0);
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (self.0.get(at), other.0.get(other_at)) {
            let common = KeyRange::new((&a.min).max(&b.min).clone(), (&a.max).min(&b.max).clone());
            if !common.is_empty() {
                both.push(common);
            }
            if a.max <= b.max {
                at += 1;
            } else {
                other_at += 1;
            }
        }
        RangeSet(both)
    }

    /// The keys of `self` that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &RangeSet) -> RangeSet {
        let mut left = Vec::new();
        for range in &self.0 {
            let mut min = range.min.clone();
            let first = other.0.partition_point(|taken| taken.max <= min);
            for taken in &other.0[first..] {
                if taken.min >= range.max {
                    break;
                }
                if taken.min > min {
                    left.push(KeyRange::new(min, taken.min.clone()));
                }
                min = taken.max.clone();
            }
            if min < range.max {
                left.push(KeyRange::new(min, range.max.clone()));
            }
        }
        RangeSet(left)
    }
}

impl IntoIterator for RangeSet {
    type Item = KeyRange;
    type IntoIter = std::vec::IntoIter<KeyRange>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<KeyRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = KeyRange>>(ranges: I) -> Self {
        Self::of(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sets() -> impl Strategy<Value = RangeSet> {
        let range = (0u8..30, 0u8..30)
            .prop_map(|(a, b)| KeyRange::new(KeyBound::new(&[a]), KeyBound::new(&[b])));
        prop::collection::vec(range, 0..6).prop_map(RangeSet::of)
    }

    proptest! {
        /// Key by key, sets are what they say.
        #[test]
        fn sets_of_keys(a in sets(), b in sets()) {
            let (union, both, left) = (a.union(&b), a.intersection(&b), a.difference(&b));
            for key in 0u8..31 {
                let (in_a, in_b) = (a.contains(&[key]), b.contains(&[key]));
                prop_assert_eq!(union.contains(&[key]), in_a || in_b);
                prop_assert_eq!(both.contains(&[key]), in_a && in_b);
                prop_assert_eq!(left.contains(&[key]), in_a && !in_b);
            }
            for set in [union, both, left] {
                prop_assert!(set.iter().all(|range| !range.is_empty()));
                prop_assert!(set.as_slice().windows(2).all(|pair| pair[0].max < pair[1].min));
            }
        }
    }
}
