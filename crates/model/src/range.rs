//! Ranges of encoded keys.
//!
//! Bounds are bytes that compare as keys do, but need not be whole keys: the
//! encoding of the first fields is a bound before all keys that begin with them.

use std::fmt;
use std::sync::Arc;

/// A place between keys: at or after it is the range that it begins.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBound(Arc<[u8]>);

impl KeyBound {
    pub fn new(key: &[u8]) -> Self {
        Self(key.into())
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
