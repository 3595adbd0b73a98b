//! A flush that leaves out what was dropped.
//!
//! A collection that is filled and dropped again is still in the memtable when it goes, as a whole or in part. The
//! engine's own flush would write all of it into a table, for the next merge to leave out. Here the stretches of what
//! is dropped are skipped instead.
//!
//! ⚑ The mark of the drop is in the same memtable, or in a table: the engine's manifest names the new table, without
//! the dropped records, at the same moment as the mark. So no power cut leaves a state in which records are gone that
//! were not dropped. Therefore memtables that were sealed before go first, whole.
//!
//! Snapshots that are open keep the memtable, with everything in it. Removals are written like anything else that is
//! not a value: an older version of the key would come back otherwise, and be read once more by whoever removes what
//! is left of the dropped ones.

use fjall::SeqNo;

/// Stretches of keys, from low to high without high, in order and without overlaps.
pub(super) struct Stretches<'a> {
    left: &'a [(Vec<u8>, Vec<u8>)],
}

impl<'a> Stretches<'a> {
    pub fn new(stretches: &'a [(Vec<u8>, Vec<u8>)]) -> Self {
        debug_assert!(stretches.is_sorted_by(|one, next| one.1 <= next.0));
        Self { left: stretches }
    }

    /// Whether a key is in one of them. Keys are asked for in their order.
    pub fn contain(&mut self, key: &[u8]) -> bool {
        while let [(low, high), rest @ ..] = self.left {
            if key < &high[..] {
                return &low[..] <= key;
            }
            self.left = rest;
        }
        false
    }
}

/// Which versions of a key go into a table: the latest, and those that a snapshot may ask for.
///
/// Versions come in the order of keys, the latest of a key first. `unread` is the number below which no snapshot
/// asks for any version but the latest.
pub(super) struct Versions {
    unread: SeqNo,
    /// The key before: as bytes, which are at hand. A handle on them would be counted in memory.
    last: Option<Vec<u8>>,
}

impl Versions {
    pub fn new(unread: SeqNo) -> Self {
        Self { unread, last: None }
    }

    pub fn keep(&mut self, key: &[u8], number: SeqNo) -> bool {
        let is_older = self.last.as_deref() == Some(key);
        if !is_older {
            let last = self.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        !is_older || number >= self.unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_stretches_are_found() {
        let stretches = [("b", "d"), ("d", "e"), ("g", "h")];
        let stretches = stretches.map(|(low, high)| (low.into(), high.into()));
        let mut left_out = Stretches::new(&stretches);
        let keys = ["a", "b", "bb", "czz", "d", "e", "f", "g", "gg", "h", "i"];
        let found = keys.map(|key| left_out.contain(key.as_bytes()));
        let wanted = ["b", "bb", "czz", "d", "g", "gg"];
        assert_eq!(found, keys.map(|key| wanted.contains(&key)));
        assert!(!Stretches::new(&[]).contain(b"a"));
    }

    #[test]
    fn the_latest_version_is_kept_and_those_that_are_read() {
        let mut versions = Versions::new(5);
        let mut kept = |key: &str, number| versions.keep(key.as_bytes(), number);
        assert!(kept("", 2));
        assert!(!kept("", 1));
        assert!(kept("a", 3));
        assert!(!kept("a", 2));
        assert!(kept("b", 9));
        assert!(kept("b", 5));
        assert!(!kept("b", 4));
        assert!(kept("c", 1));
    }
}
