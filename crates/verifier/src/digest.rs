//! A fast hash for values that are keys of maps in memory.
//!
//! A map is made for each batch that is fetched by `_id`, and the standard hash, which withstands
//! whoever chooses keys to collide, would be a good part of what comparing a document costs. Who fills a
//! database so that its `_id`s collide here makes a verification slow, nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

#[derive(Default)]
pub struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // The type of a value and the length of its bytes, which those that share the bytes share too.
    fn write_u8(&mut self, number: u8) {
        self.0 = self.0.rotate_left(8) ^ u64::from(number);
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{ValueRef, kind};

    #[test]
    fn values_are_found_again() {
        let texts: Vec<Vec<u8>> = (0_u32..1000).map(|n| n.to_le_bytes().to_vec()).collect();
        let value = |kind: u8, bytes| ValueRef { kind, bytes };
        let mut map = FastMap::default();
        for (place, bytes) in texts.iter().enumerate() {
            map.insert(value(kind::INT32, bytes), place);
            map.insert(value(kind::BINARY, bytes), place + 5000);
        }
        assert_eq!(map.len(), 2000);
        for (place, bytes) in texts.iter().enumerate() {
            assert_eq!(map.get(&value(kind::INT32, bytes)), Some(&place));
            assert_eq!(map.get(&value(kind::BINARY, bytes)), Some(&(place + 5000)));
            assert_eq!(map.get(&value(kind::DATE, bytes)), None);
        }
    }
}
