//! Finding a place among sorted keys without touching them.
//!
//! Keys lie all over memory, and each one that a binary search looks at costs a cache
//! miss or two. The eight bytes that come after what all keys have in common lie side
//! by side here; the keys themselves are asked only where these are equal.

use model::range::KeyBound;

#[derive(Debug)]
pub(super) struct Heads {
    /// What all keys begin with.
    common: Box<[u8]>,
    heads: Box<[u64]>,
}

impl Heads {
    /// Keys must ascend.
    pub(super) fn new<'a>(keys: impl ExactSizeIterator<Item = &'a KeyBound> + Clone) -> Self {
        let first = keys.clone().next().map_or(&[][..], KeyBound::as_bytes);
        let last = keys.clone().last().map_or(&[][..], KeyBound::as_bytes);
        let same = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        Self {
            common: first[..same].into(),
            heads: keys.map(|key| head(&key.as_bytes()[same..])).collect(),
        }
    }

    /// How many of the keys are at or before `key`; `at` gives the keys.
    pub(super) fn count_up_to<'a>(&self, key: &[u8], at: impl Fn(usize) -> &'a KeyBound) -> usize {
        let Some(rest) = key.strip_prefix(&*self.common) else {
            // Before or after all of them.
            return if key < &*self.common {
                0
            } else {
                self.heads.len()
            };
        };
        let wanted = head(rest);
        let low = self.heads.partition_point(|head| *head < wanted);
        let equal = self.heads[low..].partition_point(|head| *head == wanted);
        // Where heads are equal, the keys decide.
        let (mut low, mut high) = (low, low + equal);
        while low < high {
            let middle = low + (high - low) / 2;
            if at(middle).as_bytes() <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The first eight bytes as a number; missing ones are zero, the least.
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = bytes.len().min(8);
    head[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few different bytes, so that prefixes and whole heads coincide often.
    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xFF)], 0..14)
    }

    proptest! {
        #[test]
        fn counts_as_the_keys_would(
            common in prop::collection::vec(any::<u8>(), 0..4),
            keys in prop::collection::btree_set(keys(), 1..40),
            wanted in keys(),
            inside in any::<bool>(),
        ) {
            let bounds: Vec<KeyBound> = keys
                .iter()
                .map(|key| KeyBound::new(&[&common[..], key].concat()))
                .collect();
            let wanted = if inside { [&common[..], &wanted].concat() } else { wanted };
            let heads = Heads::new(bounds.iter());
            let expected = bounds.iter().filter(|bound| bound.as_bytes() <= &wanted[..]).count();
            prop_assert_eq!(heads.count_up_to(&wanted, |at| &bounds[at]), expected);
        }
    }
}
