//! Versions: who must refresh what it knows about the placement of data.
//!
//! ```text
//!   incarnation   epoch, time          one life of a sharded collection under one shard key
//!   chunk version major.minor          grows with every move, split and merge
//!   placement     incarnation + chunk version
//!                 of a chunk:          when it last changed
//!                 of a shard:          the highest of its chunks
//!                 of a collection:     the highest of all chunks
//!   database      uuid, last modified  which shard is the primary of a database
//! ```
//!
//! Versions never decide what is right to read or write: ownership does. They say
//! which of two nodes knows less. Two placements of one incarnation compare by
//! their chunk versions; of two incarnations the one that began later is newer;
//! where that cannot be told, both sides have to ask.

use crate::bson::{Doc, DocWriter, ObjectId, ValueRef};
use crate::ids::Uuid;
use crate::time::ClusterTime;
use crate::{Code, Error};
use std::cmp::Ordering;
use std::fmt;

/// When a chunk last changed, within one incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChunkVersion {
    pub major: u32,
    pub minor: u32,
}

impl ChunkVersion {
    /// Of the first chunk that a collection ever has.
    pub const FIRST: ChunkVersion = ChunkVersion::new(1, 0);
    /// Of a collection that is not sharded, and of a shard that owns nothing.
    pub const ZERO: ChunkVersion = ChunkVersion::new(0, 0);

    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    #[must_use]
    pub const fn next_major(self) -> Self {
        Self::new(self.major + 1, 0)
    }

    #[must_use]
    pub const fn next_minor(self) -> Self {
        Self::new(self.major, self.minor + 1)
    }
}

impl fmt::Debug for ChunkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}", self.major, self.minor)
    }
}

impl fmt::Display for ChunkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}", self.major, self.minor)
    }
}

/// One life of a sharded collection: begun by sharding it, by refining its key or
/// by resharding, ended by the next of these or by dropping it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    pub epoch: ObjectId,
    pub began: ClusterTime,
}

/// How one placement relates to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    Same,
    Older,
    Newer,
    /// Nothing can be said: both have to ask.
    Unknown,
}

/// The version that travels with a routed request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlacementVersion {
    pub incarnation: Incarnation,
    pub chunk: ChunkVersion,
}

/// The epoch that stands for "do not compare".
const EPOCH_IGNORED: ObjectId = ObjectId([0xFF; 12]);
const EPOCH_NONE: ObjectId = ObjectId([0; 12]);

/// ```text
///   0x07 "e\0" 12 bytes    0x11 "t\0" u64    0x11 "v\0" u64
/// ```
const VERSION_FIELDS: &[u8; 37] =
    b"\x07e\0\0\0\0\0\0\0\0\0\0\0\0\0\x11t\0\0\0\0\0\0\0\0\0\x11v\0\0\0\0\0\0\0\0\0";

impl PlacementVersion {
    /// The collection is not sharded, or was dropped.
    pub const UNSHARDED: PlacementVersion = PlacementVersion {
        incarnation: Incarnation {
            epoch: EPOCH_NONE,
            began: ClusterTime::ZERO,
        },
        chunk: ChunkVersion::ZERO,
    };

    /// The request asks not to compare versions.
    pub const IGNORED: PlacementVersion = PlacementVersion {
        incarnation: Incarnation {
            epoch: EPOCH_IGNORED,
            began: ClusterTime::MAX,
        },
        chunk: ChunkVersion::ZERO,
    };

    pub fn is_ignored(self) -> bool {
        self.incarnation.epoch == EPOCH_IGNORED
    }

    pub fn is_unsharded(self) -> bool {
        self.incarnation.epoch == EPOCH_NONE
    }

    /// What `self` is, seen from `other`.
    pub fn age(self, other: PlacementVersion) -> Age {
        if self.incarnation == other.incarnation {
            return match self.chunk.cmp(&other.chunk) {
                Ordering::Less => Age::Older,
                Ordering::Equal => Age::Same,
                Ordering::Greater => Age::Newer,
            };
        }
        // A collection that is not sharded has no time to compare with.
        if self.is_unsharded() || other.is_unsharded() {
            return Age::Unknown;
        }
        match self.incarnation.began.cmp(&other.incarnation.began) {
            Ordering::Less => Age::Older,
            Ordering::Greater => Age::Newer,
            Ordering::Equal => Age::Unknown,
        }
    }

    /// As requests and errors carry it: `{e: epoch, t: began, v: Timestamp(major, minor)}`.
    pub fn append_to(self, writer: &mut DocWriter) {
        // As bytes, in which only the values change: routers write it with every request.
        let mut fields = *VERSION_FIELDS;
        let chunk = ClusterTime::new(self.chunk.major, self.chunk.minor);
        fields[3..15].copy_from_slice(&self.incarnation.epoch.0);
        fields[18..26].copy_from_slice(&self.incarnation.began.to_u64().to_le_bytes());
        fields[29..].copy_from_slice(&chunk.to_u64().to_le_bytes());
        writer.append_encoded(&fields);
    }

    pub fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        // As routers write it with every request.
        let mut fields = doc.iter().map(|field| (field.key_bytes(), field.value()));
        if let (
            Some((b"e", ValueRef::ObjectId(epoch))),
            Some((b"t", ValueRef::Timestamp(began))),
            Some((b"v", ValueRef::Timestamp(chunk))),
        ) = (fields.next(), fields.next(), fields.next())
        {
            let began = ClusterTime::new(began.seconds, began.increment);
            return Ok(Self {
                incarnation: Incarnation { epoch, began },
                chunk: ChunkVersion::new(chunk.seconds, chunk.increment),
            });
        }
        let epoch = match doc.get("e") {
            Some(ValueRef::ObjectId(epoch)) => epoch,
            other => return Err(wrong_field("shardVersion", "e", "objectId", other)),
        };
        let (began, chunk) = (
            time_field("shardVersion", doc, "t")?,
            time_field("shardVersion", doc, "v")?,
        );
        Ok(Self {
            incarnation: Incarnation { epoch, began },
            // The two counters travel as a timestamp.
            chunk: ChunkVersion::new(chunk.seconds(), chunk.increment()),
        })
    }
}

/// Which shard is the primary of a database.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatabaseVersion {
    pub uuid: Uuid,
    pub began: ClusterTime,
    /// Counts the changes of the primary shard.
    pub last_modified: u32,
}

impl DatabaseVersion {
    pub fn new_database(uuid: Uuid, began: ClusterTime) -> Self {
        Self {
            uuid,
            began,
            last_modified: 1,
        }
    }

    /// Of `config` and `admin`, which never move.
    pub fn fixed() -> Self {
        Self {
            uuid: Uuid([0; 16]),
            began: ClusterTime::ZERO,
            last_modified: 0,
        }
    }

    #[must_use]
    pub fn moved(self) -> Self {
        Self {
            last_modified: self.last_modified + 1,
            ..self
        }
    }

    /// As the outcome of a move of the primary tells it, where collections have placements: the same
    /// life, under a number that grows with each move.
    pub fn as_placement(self) -> PlacementVersion {
        let mut epoch = [0; 12];
        epoch.copy_from_slice(&self.uuid.0[..12]);
        PlacementVersion {
            incarnation: Incarnation {
                epoch: ObjectId(epoch),
                began: self.began,
            },
            chunk: ChunkVersion::new(self.last_modified, 0),
        }
    }

    /// Whether it is that of a database that never moves.
    pub fn is_fixed(self) -> bool {
        self == Self::fixed()
    }

    /// As requests, errors and `config.databases` carry it: `{uuid, timestamp, lastMod}`.
    pub fn append_to(self, writer: &mut DocWriter) {
        writer
            .append(
                "uuid",
                ValueRef::Binary {
                    subtype: 4,
                    bytes: &self.uuid.0,
                },
            )
            .append("timestamp", self.began)
            .append(
                "lastMod",
                i32::try_from(self.last_modified).unwrap_or(i32::MAX),
            );
    }

    pub fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let wrong = |name, wanted, found| wrong_field("databaseVersion", name, wanted, found);
        let uuid = match doc.get("uuid") {
            Some(ValueRef::Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
            other => return Err(wrong("uuid", "binData", other)),
        };
        let last_modified = match doc.get("lastMod") {
            Some(ValueRef::Int32(number)) => u32::try_from(number).ok(),
            Some(ValueRef::Int64(number)) => u32::try_from(number).ok(),
            other => return Err(wrong("lastMod", "int", other)),
        };
        match (uuid, last_modified) {
            (Some(uuid), Some(last_modified)) => Ok(Self {
                uuid: Uuid(uuid),
                began: time_field("databaseVersion", doc, "timestamp")?,
                last_modified,
            }),
            _ => Err(Error::bad_value("a database version is out of range")),
        }
    }

    /// What `self` is, seen from `other`.
    pub fn age(self, other: DatabaseVersion) -> Age {
        let order = if self.uuid == other.uuid {
            self.last_modified.cmp(&other.last_modified)
        } else {
            match self.began.cmp(&other.began) {
                Ordering::Equal => return Age::Unknown,
                order => order,
            }
        };
        match order {
            Ordering::Less => Age::Older,
            Ordering::Equal => Age::Same,
            Ordering::Greater => Age::Newer,
        }
    }
}

fn time_field(path: &str, doc: Doc<'_>, name: &str) -> Result<ClusterTime, Error> {
    match doc.get(name) {
        Some(ValueRef::Timestamp(time)) => Ok(ClusterTime::new(time.seconds, time.increment)),
        other => Err(wrong_field(path, name, "timestamp", other)),
    }
}

fn wrong_field(path: &str, name: &str, wanted: &str, found: Option<ValueRef<'_>>) -> Error {
    match found {
        None => Error::location(
            40414,
            format!("BSON field '{path}.{name}' is missing but a required field"),
        ),
        Some(value) => Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{path}.{name}' is the wrong type '{}', expected type '{wanted}'",
                value.kind().name()
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(epoch: u8, began: u32, major: u32, minor: u32) -> PlacementVersion {
        PlacementVersion {
            incarnation: Incarnation {
                epoch: ObjectId([epoch; 12]),
                began: ClusterTime::new(began, 0),
            },
            chunk: ChunkVersion::new(major, minor),
        }
    }

    #[test]
    fn a_version_is_written_as_a_writer_writes_it() {
        let version = placement(7, 0x0102_0304, 5, u32::MAX);
        let mut written = DocWriter::new();
        version.append_to(&mut written);
        let written = written.finish();
        let expected = DocWriter::new()
            .with("e", version.incarnation.epoch)
            .with("t", version.incarnation.began)
            .with("v", ClusterTime::new(5, u32::MAX));
        assert_eq!(written, expected.finish());
        assert_eq!(
            PlacementVersion::from_document(written.as_doc()),
            Ok(version)
        );
        // Whatever else is in it, and in whatever order.
        let other = DocWriter::new()
            .with("v", ClusterTime::new(5, u32::MAX))
            .with("x", 1)
            .with("t", version.incarnation.began)
            .with("e", version.incarnation.epoch);
        let other = other.finish();
        assert_eq!(PlacementVersion::from_document(other.as_doc()), Ok(version));
    }

    #[test]
    fn ages() {
        let check = |a: PlacementVersion, b: PlacementVersion, expected: Age| {
            assert_eq!(a.age(b), expected, "{a:?} seen from {b:?}");
        };
        let base = placement(1, 10, 2, 3);
        check(base, base, Age::Same);
        check(base, placement(1, 10, 2, 4), Age::Older);
        check(base, placement(1, 10, 3, 0), Age::Older);
        check(base, placement(1, 10, 1, 9), Age::Newer);
        // Another incarnation: chunk versions mean nothing.
        check(base, placement(2, 11, 1, 0), Age::Older);
        check(base, placement(2, 9, 9, 0), Age::Newer);
        check(base, placement(2, 10, 2, 3), Age::Unknown);
        check(base, PlacementVersion::UNSHARDED, Age::Unknown);
        check(PlacementVersion::UNSHARDED, base, Age::Unknown);
    }

    #[test]
    fn database_ages() {
        let one = DatabaseVersion::new_database(Uuid([1; 16]), ClusterTime::new(5, 0));
        let two = DatabaseVersion::new_database(Uuid([2; 16]), ClusterTime::new(6, 0));
        assert_eq!(one.last_modified, 1);
        assert_eq!(one.age(one.moved()), Age::Older);
        assert_eq!(one.moved().age(one), Age::Newer);
        assert_eq!(one.moved().moved().age(two), Age::Older);
        assert_eq!(DatabaseVersion::fixed().last_modified, 0);
    }

    #[test]
    fn documents_round_trip() {
        for version in [
            placement(7, 99, 3, 4),
            PlacementVersion::UNSHARDED,
            PlacementVersion::IGNORED,
        ] {
            let mut writer = DocWriter::new();
            version.append_to(&mut writer);
            let doc = writer.finish();
            assert_eq!(
                PlacementVersion::from_document(doc.as_doc()).unwrap(),
                version
            );
        }
        for version in [
            DatabaseVersion::fixed(),
            DatabaseVersion::new_database(Uuid([7; 16]), ClusterTime::new(9, 1)).moved(),
        ] {
            let mut writer = DocWriter::new();
            version.append_to(&mut writer);
            let read = DatabaseVersion::from_document(writer.finish().as_doc());
            assert_eq!(read.unwrap(), version);
        }
        let empty = DocWriter::new().finish();
        let fault = PlacementVersion::from_document(empty.as_doc()).unwrap_err();
        assert_eq!(fault.code.0, 40414);
    }
}
