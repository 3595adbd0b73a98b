//! What a run keeps in its store: records as BSON, and the keys that they lie under.
//!
//! ```text
//! r                               the run itself
//! c collection                    a pair of collections whose documents are compared
//! t collection task               a part of one, open or done with its counts
//! q generation name 0 digest why  a document to be looked at again in that generation
//! m name 0 digest                 a document that differed when it was last looked at
//! s side                          how far the side's changes are known
//! h side                          what shows that the side did not go back in time
//! e time side name                a change of collections or indexes during the run
//! x name                          a collection that is to be scanned anew
//! ```
//!
//! Numbers are big-endian, so that keys sort as numbers do. A digest stands for an `_id`, which may
//! be longer than a key; two different ones share a digest once in 2^64 documents at the earliest.

use crate::difference::Difference;
use crate::element::Value;
use crate::error::VerifyError;
use crate::merge::Side;
use crate::report::{Counts, MismatchKind};
use crate::store::{Change, Store};
use crate::time::ClusterTime;
use mongodb::change_stream::event::ResumeToken;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Raised whenever records change their meaning.
pub const FORMAT: u32 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub format: u32,
    /// What was asked for, without what may differ between two starts of one run.
    pub asked: String,
    pub started_ms: i64,
    /// When it was begun by the clocks of both sides, where they have one.
    #[serde(default)]
    pub began: Option<Moment>,
    /// Where the changes of both sides begin to count; None if nobody writes.
    pub start: Option<Moment>,
    pub generation: u64,
    /// A time on each side after which nobody writes.
    pub writes_off: Option<Moment>,
}

/// One moment by the clocks of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub source: ClusterTime,
    pub destination: ClusterTime,
}

impl Moment {
    pub fn on(&self, side: Side) -> ClusterTime {
        match side {
            Side::Source => self.source,
            Side::Destination => self.destination,
        }
    }
}

/// A collection that both sides have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionRecord {
    /// `database.collection`, as the source calls it.
    pub source: String,
    pub destination: String,
    /// What tells a collection from a later one of the same name.
    pub source_uuid: Option<String>,
    pub destination_uuid: Option<String>,
    /// Whether all its tasks exist.
    pub planned: bool,
    /// The generation in which it was first seen like this.
    pub generation: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    pub part: Part,
    /// None until it is done.
    pub counts: Option<Counts>,
}

/// The part of a collection that a task compares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// `_id`s from `lower`, included, to below `upper`.
    Range {
        lower: Option<Value>,
        upper: Option<Value>,
    },
    /// The `_id`s of the whole collection, to find documents that one side does not have.
    Ids,
    /// Records of one node of the source, behind `after` and up to `until`.
    Natural {
        /// None where the source has but one node.
        node: Option<String>,
        after: Option<Value>,
        until: Value,
    },
    /// The whole collection, in stored order.
    WholeNatural,
    /// The measurements of a time series collection.
    Series { time_field: String },
}

/// A document to be looked at again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recheck {
    pub namespace: String,
    pub id: Value,
    /// When it was last changed on either side, by that side's clock, if it was seen to change.
    pub changed_ms: Option<i64>,
}

/// A document that differed when it was last looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    pub namespace: String,
    pub id: Value,
    pub kind: MismatchKind,
    pub differences: Vec<Difference>,
    pub first_seen_ms: i64,
    pub last_seen_ms: i64,
    pub changed_ms: Option<i64>,
}

/// How far a side's changes are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamRecord {
    pub mark: Mark,
}

/// Where a side's changes are resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Mark {
    /// Of a change stream.
    Token(ResumeToken),
    /// Of the last entry of an oplog that was read.
    Time(ClusterTime),
}

impl Mark {
    /// Up to where changes are known; None for a token of a form that is not known.
    pub fn time(&self) -> Option<ClusterTime> {
        match self {
            Mark::Token(token) => ClusterTime::of_token(token),
            Mark::Time(time) => Some(*time),
        }
    }
}

/// A change of collections or indexes during the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefinitionChange {
    pub side: Side,
    /// `create`, `drop`, `rename`, `createIndexes`, …
    pub what: String,
    /// As that side calls it.
    pub namespace: String,
    /// The new name after a rename.
    pub to: Option<String>,
    pub at_ms: i64,
}

pub fn run_key() -> Vec<u8> {
    b"r".to_vec()
}

pub fn collection_key(collection: u32) -> Vec<u8> {
    [b"c".as_slice(), &collection.to_be_bytes()].concat()
}

pub fn collection_of_key(key: &[u8]) -> Option<u32> {
    let number = key.get(1..5)?.first_chunk()?;
    Some(u32::from_be_bytes(*number))
}

pub fn task_prefix(collection: u32) -> Vec<u8> {
    [b"t".as_slice(), &collection.to_be_bytes()].concat()
}

pub fn task_key(collection: u32, task: u32) -> Vec<u8> {
    [task_prefix(collection).as_slice(), &task.to_be_bytes()].concat()
}

pub fn queue_prefix(generation: u64) -> Vec<u8> {
    [b"q".as_slice(), &generation.to_be_bytes()].concat()
}

/// A document that changed and one that differed have keys of their own, so that neither reason
/// replaces the other.
pub fn queue_key(generation: u64, recheck: &Recheck) -> Vec<u8> {
    let mut key = named(queue_prefix(generation), &recheck.namespace, &recheck.id);
    key.push(u8::from(recheck.changed_ms.is_some()));
    key
}

pub fn mismatch_prefix(namespace: &str) -> Vec<u8> {
    [b"m", namespace.as_bytes(), b"\0"].concat()
}

pub fn mismatch_key(namespace: &str, id: &Value) -> Vec<u8> {
    named(b"m".to_vec(), namespace, id)
}

fn named(mut key: Vec<u8>, namespace: &str, id: &Value) -> Vec<u8> {
    key.extend_from_slice(namespace.as_bytes());
    key.push(0);
    let mut digest = xxhash_rust::xxh3::Xxh3::new();
    digest.update(&[id.kind]);
    digest.update(&id.bytes);
    key.extend_from_slice(&digest.digest128().to_be_bytes());
    key
}

pub fn stream_key(side: Side) -> Vec<u8> {
    vec![b's', side as u8]
}

pub fn history_key(side: Side) -> Vec<u8> {
    vec![b'h', side as u8]
}

/// The same change has the same key, so that an event that is read twice is kept once.
pub fn definition_key(time: ClusterTime, change: &DefinitionChange) -> Vec<u8> {
    let mut key = vec![b'e'];
    key.extend_from_slice(&time.seconds.to_be_bytes());
    key.extend_from_slice(&time.counter.to_be_bytes());
    key.push(change.side as u8);
    key.extend_from_slice(change.namespace.as_bytes());
    key
}

pub fn rescan_key(namespace: &str) -> Vec<u8> {
    [b"x", namespace.as_bytes()].concat()
}

/// A change that keeps a record.
pub fn put<T: Serialize>(key: Vec<u8>, record: &T) -> Result<Change, VerifyError> {
    match bson::serialize_to_vec(record) {
        Ok(bytes) => Ok(Change::Put(key, bytes)),
        Err(error) => Err(unreadable(&error)),
    }
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, VerifyError> {
    bson::deserialize_from_slice(bytes).map_err(|error| unreadable(&error))
}

pub async fn read<T: DeserializeOwned>(
    store: &Store,
    key: &[u8],
) -> Result<Option<T>, VerifyError> {
    match store.get(key).await? {
        Some(bytes) => decode(&bytes).map(Some),
        None => Ok(None),
    }
}

fn unreadable(error: &bson::error::Error) -> VerifyError {
    VerifyError::State {
        place: "the run's state".to_owned(),
        detail: format!("a record cannot be read or written ({error}): begin anew with --restart"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_encoding() {
        let id = Value {
            kind: crate::element::kind::STRING,
            // A text that is not UTF-8 stays what it is.
            bytes: vec![3, 0, 0, 0, 0xff, 0xfe, 0].into(),
        };
        let task = TaskRecord {
            part: Part::Range {
                lower: Some(id.clone()),
                upper: None,
            },
            counts: Some(Counts {
                equal: u64::from(u32::MAX) + 1,
                ..Counts::default()
            }),
        };
        let Change::Put(_, bytes) = put(task_key(1, 2), &task).unwrap() else {
            panic!("it is kept");
        };
        assert_eq!(decode::<TaskRecord>(&bytes).unwrap(), task);
        assert!(decode::<RunRecord>(&bytes).is_err());
        let mismatch = Mismatch {
            namespace: "d.c".to_owned(),
            id: id.clone(),
            kind: MismatchKind::Content,
            differences: vec![Difference {
                copy: None,
                path: "a".to_owned(),
                source: Some(crate::difference::show(id.as_ref())),
                destination: None,
            }],
            first_seen_ms: 1,
            last_seen_ms: 2,
            changed_ms: None,
        };
        let Change::Put(key, bytes) = put(mismatch_key("d.c", &id), &mismatch).unwrap() else {
            panic!("it is kept");
        };
        assert!(key.starts_with(&mismatch_prefix("d.c")));
        assert_eq!(decode::<Mismatch>(&bytes).unwrap(), mismatch);
    }

    #[test]
    fn keys_sort_as_their_numbers_do() {
        assert!(task_key(1, 255) < task_key(1, 256));
        assert!(task_key(1, u32::MAX) < task_key(2, 0));
        assert!(queue_prefix(255) < queue_prefix(256));
        assert_eq!(collection_of_key(&collection_key(70_000)), Some(70_000));
    }
}
