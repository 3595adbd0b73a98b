//! Finding a place among sorted keys without touching them.
//!
//! Keys lie all over memory, and each one that a binary search looks at costs a cache
//! miss or two. The eight bytes that come after what all keys have in common lie side
//! by side here; the keys themselves are asked only where these are equal.
//!
//! ```text
//!   root     ≤ 8 heads, within the struct        every 64th, say
//!   level    ≤ 64 heads                          every 8th
//!   finest   all heads
//! ```
//!
//! Eight heads are one line of the cache, so a search among 512 of them reads three lines, and
//! compares within each without a branch.

use model::range::KeyBound;

/// Heads in one line of the cache.
const LINE: usize = 8;
/// What keys have in common and fits beside the rest.
const INLINE: usize = 15;

#[derive(Debug)]
pub(super) struct Heads {
    common: Common,
    len: usize,
    /// The coarsest level; behind its end there is nothing less than anything.
    root: [u64; LINE],
    /// The other levels, the finest last.
    levels: Box<[u64]>,
}

/// What all keys begin with.
#[derive(Debug)]
enum Common {
    Short { len: u8, bytes: [u8; INLINE] },
    Long(Box<[u8]>),
}

impl Common {
    fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match inline.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Common::Short {
                    len: bytes.len() as u8,
                    bytes: inline,
                }
            }
            None => Common::Long(bytes.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Common::Short { len, bytes } => &bytes[..usize::from(*len)],
            Common::Long(bytes) => bytes,
        }
    }
}

impl Heads {
    /// Keys must ascend.
    pub(super) fn new<'a>(keys: impl ExactSizeIterator<Item = &'a KeyBound> + Clone) -> Self {
        let first = keys.clone().next().map_or(&[][..], KeyBound::as_bytes);
        let last = keys.clone().last().map_or(&[][..], KeyBound::as_bytes);
        let same = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let finest: Vec<u64> = keys.map(|key| head(&key.as_bytes()[same..])).collect();
        let len = finest.len();
        // From the finest level to the root.
        let mut levels = vec![finest];
        while let Some(level) = levels.last().filter(|level| level.len() > LINE) {
            let coarser = level.iter().copied().step_by(LINE).collect();
            levels.push(coarser);
        }
        let mut root = [u64::MAX; LINE];
        for (place, head) in root.iter_mut().zip(levels.pop().unwrap_or_default()) {
            *place = head;
        }
        levels.reverse();
        Self {
            common: Common::new(&first[..same]),
            len,
            root,
            levels: levels.concat().into(),
        }
    }

    /// How many of the keys are at or before `key`; `at` gives the keys.
    pub(super) fn count_up_to<'a>(&self, key: &[u8], at: impl Fn(usize) -> &'a KeyBound) -> usize {
        self.count(key, |place| at(place).as_bytes() <= key)
    }

    /// How many of the keys are before `key`.
    pub(super) fn count_before<'a>(&self, key: &[u8], at: impl Fn(usize) -> &'a KeyBound) -> usize {
        self.count(key, |place| at(place).as_bytes() < key)
    }

    /// How many keys count; `counts` tells it of those whose heads do not.
    fn count(&self, key: &[u8], counts: impl Fn(usize) -> bool) -> usize {
        let common = self.common.as_bytes();
        let Some(rest) = key.strip_prefix(common) else {
            // Before or after all of them.
            return if key < common { 0 } else { self.len };
        };
        let wanted = head(rest);
        let low = self.count_below(wanted);
        let same = self.finest()[low..].iter();
        if same.clone().next() != Some(&wanted) {
            return low;
        }
        // Where heads are equal, the keys decide.
        let equal = same.as_slice().partition_point(|head| *head == wanted);
        let (mut low, mut high) = (low, low + equal);
        while low < high {
            let middle = low + (high - low) / 2;
            if counts(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn finest(&self) -> &[u64] {
        match self.levels.len() {
            0 => &self.root[..self.len],
            all => &self.levels[all - self.len..],
        }
    }

    /// How many heads are less than this one.
    fn count_below(&self, wanted: u64) -> usize {
        let mut below = less(&self.root, wanted);
        let mut rest = &*self.levels;
        let mut coarser = self.len;
        while coarser > LINE * LINE {
            coarser = coarser.div_ceil(LINE);
        }
        // `coarser` is now the length of the level below the root.
        while !rest.is_empty() {
            if below == 0 {
                return 0;
            }
            let (level, finer) = rest.split_at(coarser.min(rest.len()));
            // The last head that is less begins the line in which the next one is not.
            let line = (below - 1) * LINE;
            below = line + less(&level[line..level.len().min(line + LINE)], wanted);
            rest = finer;
            coarser = self.length_below(coarser);
        }
        below
    }

    /// How long the level is that follows one of this length.
    fn length_below(&self, coarser: usize) -> usize {
        let mut finer = self.len;
        while finer.div_ceil(LINE) > coarser {
            finer = finer.div_ceil(LINE);
        }
        finer
    }
}

/// How many of a line are less, without a branch for each.
fn less(line: &[u64], wanted: u64) -> usize {
    line.iter().map(|head| usize::from(*head < wanted)).sum()
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
            keys in prop::collection::btree_set(keys(), 1..700),
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
            let expected = bounds.iter().filter(|bound| bound.as_bytes() < &wanted[..]).count();
            prop_assert_eq!(heads.count_before(&wanted, |at| &bounds[at]), expected);
        }
    }
}
