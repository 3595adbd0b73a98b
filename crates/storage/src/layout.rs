//! Every stored key and value, byte by byte.
//!
//! ```text
//!  key       [tag+id 1-5][...]
//!
//!  records   [01 collection][record key]                       -> [commit time 8][document]
//!  index     [10 index     ][encoded fields][record key]       -> [record key length varint][type bits]
//!                                             or               -> [length + 65,536 varint][commit time 8][type bits]
//!  history   [11 collection][record key][replaced at 6 or 9]   -> [commit time 8][document]
//!  meta      [00 000000][kind 1][...]   the store's own state  -> see below
//!            [00 000001][key]           documents of the shard -> opaque
//! ```
//!
//! **Tag and id** share the first byte, because keys of up to 20 bytes are stored
//! inline by the engine and cost half: the two high bits are the tag, the six low
//! bits begin the id, in a form whose byte order is the order of ids:
//!
//! ```text
//!  low 6 bits   bytes   ids
//!   0 ..= 47      1     0 ..= 47
//!  48 ..= 59      2     48 ..= 3,119          id - 48 in the remaining bits
//!  60 ..= 62      3     3,120 ..= 199,727     id - 3,120 in the remaining bits
//!  63             5     199,728 ..            the id as 4 bytes, big endian
//! ```
//!
//! **Times in values** are 8 bytes, big endian, seconds first.
//!
//! **Times in history keys** are when the version was replaced or removed: the
//! seconds as 4 bytes, then the increment in 2 bytes (`0iiiiiii iiiiiii0`, below
//! 16,384) or 5 bytes (`1i…i` `i…i1`, 38 bits). The first bit keeps the order, the
//! last one tells the length when the key is split from its end. A history key of
//! an ObjectId then has 20 bytes.
//!
//! **A history value is the record value it was**, byte for byte, so moving a
//! version to history copies nothing.
//!
//! **Index values** hold the record key's length, so that an entry is split into
//! fields and record key without decoding either. Entries of records that were stored again
//! in a forgotten range also say when they were added: see `store/forgotten.rs`.
//!
//! The store's own state:
//!
//! ```text
//!  kind 1                     applied     [position 8][time 8] then for each counter changed since
//!                                         the last checkpoint: [kind 1][id varint][items varint][bytes varint]
//!  kind 2 [tag+id]            counter     [items varint][bytes varint]
//!  kind 3 [tag+id]            dropped     empty: this collection or index is being removed
//!  kind 4                     history     [8]: reads at this time and later are complete
//!  kind 5 [tag+id][time 8][number 4]
//!                             forgotten   a range whose records are gone: see `store/forgotten.rs`
//! ```

use std::ops::Deref;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;

use crate::engine::{MAX_KEY_BYTES, Slice};
use crate::error::{Error, Result};

/// The longest prefix plus the longest time at the end of a history key.
const MAX_OVERHEAD_BYTES: usize = 5 + 9;

/// The longest record key; for an index entry, the longest sum of fields and
/// record key. Evaluators check it, so that no entry in the log exceeds it.
pub const MAX_USER_KEY_BYTES: usize = MAX_KEY_BYTES - MAX_OVERHEAD_BYTES;

/// Bytes of the commit time in front of a document.
pub const TIME_BYTES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Tag {
    Meta = 0,
    Records = 1,
    Index = 2,
    History = 3,
}

const INTERNAL: u32 = 0;
const DOCUMENTS: u32 = 1;

const KIND_APPLIED: u8 = 1;
const KIND_COUNTER: u8 = 2;
const KIND_DROPPED: u8 = 3;
const KIND_HISTORY: u8 = 4;
const KIND_FORGOTTEN: u8 = 5;

/// Added to the length in an index value that holds a time too: no record key is as long.
const TIMED: u64 = 1 << 16;

/// A collection's records or an index's entries: what is counted and dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    Collection(CollectionId),
    Index(IndexId),
}

/// A key under construction, on the stack as long as it is short.
pub struct StoredKey {
    length: usize,
    short: [u8; 64],
    /// Holds everything once it is not empty.
    long: Vec<u8>,
}

impl StoredKey {
    fn new(tag: Tag, id: u32) -> Self {
        let mut key = Self {
            length: 0,
            short: [0; 64],
            long: Vec::new(),
        };
        let high = (tag as u8) << 6;
        match id {
            0..48 => key.push(&[high | id as u8]),
            48..3_120 => {
                let rest = (id - 48) as u16;
                let [top, low] = rest.to_be_bytes();
                key.push(&[high | (48 + top), low]);
            }
            3_120..199_728 => {
                let [_, top, middle, low] = (id - 3_120).to_be_bytes();
                key.push(&[high | (60 + top), middle, low]);
            }
            199_728.. => {
                key.push(&[high | 63]);
                key.push(&id.to_be_bytes());
            }
        }
        key
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            let end = self.length + bytes.len();
            if let Some(room) = self.short.get_mut(self.length..end) {
                room.copy_from_slice(bytes);
                self.length = end;
                return;
            }
            self.long.reserve(end);
            self.long.extend_from_slice(&self.short[..self.length]);
        }
        self.long.extend_from_slice(bytes);
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        self.push(bytes);
        self
    }

    pub fn to_slice(&self) -> Slice {
        Slice::new(self)
    }
}

impl Deref for StoredKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.length]
        } else {
            &self.long
        }
    }
}

/// Where an evaluator or a test asks whether a key can be stored.
pub fn check_user_key(bytes: usize) -> Result<()> {
    if bytes > MAX_USER_KEY_BYTES {
        return Err(Error::KeyTooLong {
            bytes,
            limit: MAX_USER_KEY_BYTES,
        });
    }
    Ok(())
}

pub fn records(collection: CollectionId) -> StoredKey {
    StoredKey::new(Tag::Records, collection.0)
}

pub fn record(collection: CollectionId, key: &[u8]) -> StoredKey {
    records(collection).with(key)
}

pub fn index(index: IndexId) -> StoredKey {
    StoredKey::new(Tag::Index, index.0)
}

pub fn index_entry(id: IndexId, fields: &[u8], key: &[u8]) -> StoredKey {
    index(id).with(fields).with(key)
}

/// The time is stored only where it matters.
pub fn index_value(key_bytes: usize, added: Option<ClusterTime>, type_bits: &[u8]) -> Slice {
    let mut value = Vec::with_capacity(3 + TIME_BYTES + type_bits.len());
    match added {
        Some(time) => {
            crate::varint::put(&mut value, key_bytes as u64 + TIMED);
            value.extend_from_slice(&time_bytes(time));
        }
        None => crate::varint::put(&mut value, key_bytes as u64),
    }
    value.extend_from_slice(type_bits);
    Slice::from(value)
}

/// What is in an index value.
pub struct IndexValue {
    pub key_bytes: usize,
    /// When the entry was added; zero where that is not stored.
    pub added: ClusterTime,
    /// Where the type bits begin.
    pub type_bits_at: usize,
}

pub fn split_index_value(value: &[u8]) -> Option<IndexValue> {
    let mut rest = value;
    let number = crate::varint::take(&mut rest)?;
    let (length, added) = match number.checked_sub(TIMED) {
        Some(length) => {
            let added = value_time(rest).ok()?;
            rest = &rest[TIME_BYTES..];
            (length, added)
        }
        None => (number, ClusterTime::ZERO),
    };
    Some(IndexValue {
        key_bytes: usize::try_from(length).ok()?,
        added,
        type_bits_at: value.len() - rest.len(),
    })
}

pub fn histories(collection: CollectionId) -> StoredKey {
    StoredKey::new(Tag::History, collection.0)
}

/// The version of `key` that was replaced or removed at `replaced`.
pub fn history(collection: CollectionId, key: &[u8], replaced: ClusterTime) -> StoredKey {
    let mut stored = histories(collection).with(key);
    stored.push(&replaced.seconds().to_be_bytes());
    let increment = u64::from(replaced.increment());
    if increment < 1 << 14 {
        stored.push(&((increment << 1) as u16).to_be_bytes());
    } else {
        let long = (1 << 39) | (increment << 1) | 1;
        stored.push(&long.to_be_bytes()[3..]);
    }
    stored
}

/// Splits what follows the prefix of a history key into record key and time.
pub fn split_history(rest: &[u8]) -> Result<(&[u8], ClusterTime)> {
    let split = || {
        let long = rest.last()? & 1 == 1;
        let at = rest.len().checked_sub(if long { 9 } else { 6 })?;
        let (key, time) = rest.split_at(at);
        let (seconds, tail) = time.split_first_chunk::<4>()?;
        let mut increment = [0; 8];
        increment[8 - tail.len()..].copy_from_slice(tail);
        let increment = u64::from_be_bytes(increment) >> 1;
        let increment = if long {
            increment & !(1 << 38)
        } else {
            increment
        };
        let increment = u32::try_from(increment).ok()?;
        Some((
            key,
            ClusterTime::new(u32::from_be_bytes(*seconds), increment),
        ))
    };
    split().ok_or(Error::Damaged {
        what: "history key",
    })
}

pub fn applied() -> StoredKey {
    StoredKey::new(Tag::Meta, INTERNAL).with(&[KIND_APPLIED])
}

fn subject(key: StoredKey, subject: Subject) -> StoredKey {
    let id = match subject {
        Subject::Collection(id) => records(id),
        Subject::Index(id) => index(id),
    };
    key.with(&id)
}

pub fn counters() -> StoredKey {
    StoredKey::new(Tag::Meta, INTERNAL).with(&[KIND_COUNTER])
}

pub fn counter(of: Subject) -> StoredKey {
    subject(counters(), of)
}

pub fn all_dropped() -> StoredKey {
    StoredKey::new(Tag::Meta, INTERNAL).with(&[KIND_DROPPED])
}

pub fn dropped(what: Subject) -> StoredKey {
    subject(all_dropped(), what)
}

pub fn history_start() -> StoredKey {
    StoredKey::new(Tag::Meta, INTERNAL).with(&[KIND_HISTORY])
}

pub fn all_forgotten() -> StoredKey {
    StoredKey::new(Tag::Meta, INTERNAL).with(&[KIND_FORGOTTEN])
}

/// A range of a collection that was forgotten at a time; the number tells those of one time apart.
pub fn forgotten(collection: CollectionId, time: ClusterTime, number: u32) -> StoredKey {
    let mut key = subject(all_forgotten(), Subject::Collection(collection));
    key.push(&time_bytes(time));
    key.with(&number.to_be_bytes())
}

/// Reads what follows the kind byte of such a key.
pub fn parse_forgotten(rest: &[u8]) -> Option<(CollectionId, ClusterTime, u32)> {
    let (Tag::Records, id, length) = parse_prefix(rest)? else {
        return None;
    };
    let (time, number) = rest[length..].split_first_chunk::<TIME_BYTES>()?;
    let time = ClusterTime::from_u64(u64::from_be_bytes(*time));
    let number = u32::from_be_bytes(number.try_into().ok()?);
    Some((CollectionId(id), time, number))
}

/// A document of the shard: the catalog, sessions, state documents.
pub fn document(key: &[u8]) -> StoredKey {
    StoredKey::new(Tag::Meta, DOCUMENTS).with(key)
}

/// Reads the collection or index that `input` names, after a kind byte.
pub fn parse_subject(input: &[u8]) -> Result<Subject> {
    match parse_prefix(input) {
        Some((Tag::Records, id, length)) if length == input.len() => {
            Ok(Subject::Collection(CollectionId(id)))
        }
        Some((Tag::Index, id, length)) if length == input.len() => Ok(Subject::Index(IndexId(id))),
        _ => Err(Error::Damaged {
            what: "collection or index id",
        }),
    }
}

/// What a stored key belongs to, for the rule that finds garbage.
pub enum Owner<'a> {
    /// With the record key.
    Record(CollectionId, &'a [u8]),
    /// With fields and record key.
    Index(IndexId, &'a [u8]),
    /// With what follows the prefix: see [`split_history`].
    History(CollectionId, &'a [u8]),
    Meta,
}

pub fn owner(key: &[u8]) -> Option<Owner<'_>> {
    let (tag, id, length) = parse_prefix(key)?;
    Some(match tag {
        Tag::Meta => Owner::Meta,
        Tag::Records => Owner::Record(CollectionId(id), &key[length..]),
        Tag::Index => Owner::Index(IndexId(id), &key[length..]),
        Tag::History => Owner::History(CollectionId(id), &key[length..]),
    })
}

fn parse_prefix(key: &[u8]) -> Option<(Tag, u32, usize)> {
    let (&first, rest) = key.split_first()?;
    let tag = match first >> 6 {
        0 => Tag::Meta,
        1 => Tag::Records,
        2 => Tag::Index,
        _ => Tag::History,
    };
    let low = u32::from(first & 0x3F);
    let (id, length) = match low {
        0..48 => (low, 1),
        48..60 => (48 + (((low - 48) << 8) | u32::from(*rest.first()?)), 2),
        60..63 => {
            let tail = rest.first_chunk::<2>()?;
            let tail = u32::from(u16::from_be_bytes(*tail));
            (3_120 + (((low - 60) << 16) | tail), 3)
        }
        _ => {
            let id = u32::from_be_bytes(*rest.first_chunk::<4>()?);
            if id < 199_728 {
                return None;
            }
            (id, 5)
        }
    };
    Some((tag, id, length))
}

/// Whether this is the key of a record or of an index entry.
pub fn is_scanned(stored: &[u8]) -> bool {
    let tag = stored.first().map(|first| first >> 6);
    tag == Some(Tag::Records as u8) || tag == Some(Tag::Index as u8)
}

/// Where the records of a collection or the entries of an index lie.
pub fn all_of(subject: Subject) -> StoredKey {
    match subject {
        Subject::Collection(id) => records(id),
        Subject::Index(id) => index(id),
    }
}

/// The smallest bytes that are after everything beginning with `prefix`, if any.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xFF)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

pub fn time_bytes(time: ClusterTime) -> [u8; TIME_BYTES] {
    time.to_u64().to_be_bytes()
}

/// The commit time in front of a record or history value.
pub fn value_time(value: &[u8]) -> Result<ClusterTime> {
    value
        .first_chunk::<TIME_BYTES>()
        .map(|bytes| ClusterTime::from_u64(u64::from_be_bytes(*bytes)))
        .ok_or(Error::Damaged {
            what: "record value",
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..60, 3_100u32..3_140, 199_700u32..199_760, any::<u32>()]
    }

    fn times() -> impl Strategy<Value = ClusterTime> {
        let increment = prop_oneof![0u32..5, 16_380u32..16_390, any::<u32>()];
        (prop_oneof![0u32..3, any::<u32>()], increment)
            .prop_map(|(seconds, increment)| ClusterTime::new(seconds, increment))
    }

    #[test]
    fn keys_of_an_object_id_stay_inline() {
        let object_id = [7; 13];
        let time = ClusterTime::new(u32::MAX, 16_383);
        assert_eq!(record(CollectionId(3_119), &object_id).len(), 15);
        assert_eq!(history(CollectionId(47), &object_id, time).len(), 20);
    }

    proptest! {
        #[test]
        fn prefixes_keep_the_order_of_ids(a in ids(), b in ids()) {
            let left = record(CollectionId(a), b"x");
            let right = record(CollectionId(b), b"x");
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            let parsed = parse_prefix(&left);
            prop_assert_eq!(parsed, Some((Tag::Records, a, left.len() - 1)));
            let index = index(IndexId(b));
            prop_assert_eq!(parse_subject(&index).unwrap(), Subject::Index(IndexId(b)));
            prop_assert!(left[..] < index[..]);
        }

        #[test]
        fn history_keys_keep_the_order_of_times(a in times(), b in times()) {
            let left = history(CollectionId(1), b"key", a);
            let right = history(CollectionId(1), b"key", b);
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            prop_assert_eq!(split_history(&left[1..]).unwrap(), (&b"key"[..], a));
        }

        #[test]
        fn long_keys_spill(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6)) {
            let mut key = records(CollectionId(0));
            let mut naive = key.to_vec();
            for part in &parts {
                key.push(part);
                naive.extend_from_slice(part);
            }
            prop_assert_eq!(&key[..], &naive[..]);
        }

        #[test]
        fn garbage_keys_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let _ = owner(&bytes);
            let _ = split_history(&bytes);
            let _ = parse_subject(&bytes);
        }
    }
}
