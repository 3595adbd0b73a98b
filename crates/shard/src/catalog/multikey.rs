//! Where documents of an index have arrays, as it is known and as it is stored.
//!
//! ```text
//!   meta key  "catalog/multikey/" + index id as 8 hex digits
//!   value     1 (one byte): the keys below say where
//!             empty, by earlier versions: anywhere
//!   meta key  the same + "/" + field as 2 hex digits + component of its path as 2
//!   value     empty
//! ```
//!
//! Keys of their own, because any write may set one, without the collection's
//! gate: two writes at once add both what they found. Nothing is taken back
//! before the index is dropped.
//!
//! Invariant: what is known is set before the first such entry is appended, so a
//! reader that took its snapshot first and looks here afterwards can trust what
//! is not there.

use super::Index;
use arc_swap::ArcSwap;
use model::ids::IndexId;
use query::index_keys::MultikeyPaths;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use storage::entry::Encoder;

const PREFIX: &str = "catalog/multikey/";
/// The value of an index's own key since paths are kept.
const WITH_PATHS: &[u8] = &[1];

/// What is known of one index. It only grows.
#[derive(Debug, Default)]
pub(crate) struct Multikey {
    /// Spares most readers a look at the paths.
    any: AtomicBool,
    paths: ArcSwap<MultikeyPaths>,
}

impl Multikey {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(crate) fn paths(&self) -> Arc<MultikeyPaths> {
        self.paths.load_full()
    }

    pub(crate) fn contains_all(&self, paths: &MultikeyPaths) -> bool {
        paths.is_empty() || self.paths.load().contains_all(paths)
    }

    pub(crate) fn add(&self, paths: &MultikeyPaths) {
        if paths.is_empty() || self.contains_all(paths) {
            return;
        }
        self.paths.rcu(|known| {
            let mut all = MultikeyPaths::clone(known);
            all.add(paths);
            all
        });
        self.any.store(true, Ordering::Release);
    }
}

/// What the documents of one entry add to what is known.
#[derive(Debug, Default)]
pub(crate) struct MultikeyFound {
    found: Vec<(Arc<Index>, MultikeyPaths)>,
}

impl MultikeyFound {
    pub(crate) fn add(&mut self, index: &Arc<Index>, paths: &MultikeyPaths) {
        if index.multikey.contains_all(paths) {
            return;
        }
        let known = self.found.iter_mut().find(|(i, _)| i.id == index.id);
        match known {
            Some((_, known)) => known.add(paths),
            None => self.found.push((index.clone(), paths.clone())),
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        for (index, paths) in other.found {
            self.add(&index, &paths);
        }
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) {
        for (index, paths) in &self.found {
            if let Some(id) = index.id {
                put(encoder, id, paths);
            }
        }
    }

    /// Before the entry can be applied.
    pub(crate) fn publish(&self) {
        for (index, paths) in &self.found {
            index.multikey.add(paths);
        }
    }
}

/// What one stored key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredMultikey {
    /// By an earlier version, which kept no more.
    Anywhere,
    /// Further keys say where.
    Somewhere,
    At {
        field: usize,
        component: usize,
    },
}

impl StoredMultikey {
    /// As paths of an index with so many fields.
    pub(crate) fn paths(self, fields: usize) -> MultikeyPaths {
        let mut paths = MultikeyPaths::default();
        match self {
            StoredMultikey::Anywhere => return MultikeyPaths::everywhere(fields),
            StoredMultikey::Somewhere => {}
            StoredMultikey::At { field, component } => {
                if field < fields {
                    paths.insert(field, component);
                }
            }
        }
        paths
    }
}

/// The meta keys with which everything of one index begins.
pub(crate) fn prefix(id: IndexId) -> Vec<u8> {
    format!("{PREFIX}{:08x}", id.0).into_bytes()
}

fn path_key(id: IndexId, field: usize, component: usize) -> Vec<u8> {
    format!("{PREFIX}{:08x}/{field:02x}{component:02x}", id.0).into_bytes()
}

/// What a key and its value say, if they speak of this at all.
pub(crate) fn parse(key: &[u8], value: &[u8]) -> Option<(IndexId, StoredMultikey)> {
    let rest = std::str::from_utf8(key.strip_prefix(PREFIX.as_bytes())?).ok()?;
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let (id, stored) = match rest.split_once('/') {
        None if value.is_empty() => (rest, StoredMultikey::Anywhere),
        None => (rest, StoredMultikey::Somewhere),
        Some((id, place)) => {
            let stored = StoredMultikey::At {
                field: number(place.get(..2)?)? as usize,
                component: number(place.get(2..)?)? as usize,
            };
            (id, stored)
        }
    };
    Some((IndexId(number(id)?), stored))
}

/// Stores that documents of an index have arrays at these places.
fn put(encoder: &mut Encoder<'_>, id: IndexId, paths: &MultikeyPaths) {
    if paths.is_empty() {
        return;
    }
    encoder.put_meta(&prefix(id), WITH_PATHS);
    for (field, component) in paths.iter() {
        encoder.put_meta(&path_key(id, field, component), &[]);
    }
}

/// Takes back all that is stored of an index that is dropped.
pub(crate) fn delete(encoder: &mut Encoder<'_>, id: IndexId, known: &Multikey, fields: usize) {
    encoder.delete_meta(&prefix(id));
    let paths = known.paths();
    if *paths == MultikeyPaths::everywhere(fields) {
        return;
    }
    for (field, component) in paths.iter() {
        encoder.delete_meta(&path_key(id, field, component));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_was_put() {
        let id = IndexId(0xAB);
        for (key, value, expected) in [
            (
                "catalog/multikey/000000ab",
                &[][..],
                Some(StoredMultikey::Anywhere),
            ),
            (
                "catalog/multikey/000000ab",
                &[1],
                Some(StoredMultikey::Somewhere),
            ),
            (
                "catalog/multikey/000000ab/1f7f",
                &[],
                Some(StoredMultikey::At {
                    field: 31,
                    component: 127,
                }),
            ),
            ("catalog/multikey/000000ab/1", &[], None),
            ("catalog/multikey/x", &[], None),
            ("catalog/collection/000000ab", &[], None),
        ] {
            let parsed = parse(key.as_bytes(), value);
            assert_eq!(parsed, expected.map(|stored| (id, stored)), "{key}");
        }
        assert_eq!(path_key(id, 31, 127), b"catalog/multikey/000000ab/1f7f");
    }

    #[test]
    fn what_is_known_only_grows() {
        let known = Multikey::default();
        assert!(!known.any());
        let at = |field, component| StoredMultikey::At { field, component }.paths(2);
        known.add(&at(1, 0));
        known.add(&at(0, 2));
        assert!(known.any());
        assert!(known.contains_all(&at(1, 0)) && known.contains_all(&at(0, 2)));
        assert!(!known.contains_all(&at(1, 1)));
        known.add(&StoredMultikey::Anywhere.paths(2));
        assert!(known.contains_all(&at(1, 1)));
        // A field that the index does not have is no reason to fail.
        assert!(at(5, 0).is_empty());
    }
}
