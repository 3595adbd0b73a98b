//! The payload of a log entry: physical operations, ready to be applied.
//!
//! An entry says what is stored afterwards (post-images by record key, index
//! entries to add and remove), never how it was computed, so that replicas,
//! recovery, moves and change streams all read the same thing.
//!
//! ```text
//!  payload   [version 1 = 2][header field]* [0] [operation]*          to the end of the payload
//!  header    [1 session | 2 origin | 3 command | 4 names | 5 unseen since | 6 times][length varint][bytes]
//!                                                                     in this order, each at most once
//!  names     [collection][uuid 16][flags 1][namespace][shard key]     one after the other to the end
//!
//!  operation [kind 1] then
//!    1 put record      [collection][key][document][description][change count varint][change]*
//!    2 delete record   [collection][key][document key][change count varint][change]*
//!    3 index entries   [collection][key][change count varint][change]*
//!    4 put meta        [key][value]
//!    5 delete meta     [key]
//!    6 drop collection [collection]
//!    7 drop index      [index]
//!    8 no-op
//!    9 forget record   [collection][key][document length varint][change count varint][change]*
//!   10 forget range    [collection][low][high][documents varint][bytes varint]
//!                      [index count varint]([index][entries varint][bytes varint])*
//!  change    [0 add | 1 remove][index][fields][type bits]             remove has no type bits
//!  description  [0 insert | 1 replace | 2 update][difference]         only an update has a difference
//! ```
//!
//! What the state becomes is in the operations alone. Header, descriptions and
//! document keys tell readers of the log (change streams, the oplog view, retries)
//! what happened, without the catalog or the versions of that time.
//!
//! A record that is *forgotten* is deleted like any other, except that nobody has read it
//! since the time in the header (seconds in 4 bytes, increment in 4 bytes): members whose
//! history begins at that time or later do not put it into history, and do not look it up.
//!
//! A range that is *forgotten* is one stretch of record keys, from `low` to before `high`, whose
//! records go all at once in the same way, with their entries in the indexes that are named.
//! An entry that forgets a range puts nothing into it. Nothing of it is listed: documents and bytes say how much goes, exactly; entries and bytes of
//! each index are estimates.
//!
//! An entry with *times* (a varint) has taken so many times in the log, of which its own is the
//! last: readers may tell its operations apart by them.
//!
//! Ids are varints; keys, documents, fields and type bits are a varint length and
//! the bytes. The length of the whole payload and its checksum belong to the log.
//!
//! This is the hot path: [`Encoder`] writes from borrowed parts into one buffer,
//! and decoding borrows from the payload. Decoding checks everything and never
//! panics: a header field, kind or version that is not known here is an error,
//! because skipping it could lose a write.

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;

use crate::layout;
use crate::varint::{put, put_bytes, take, take_bytes};

const VERSION: u8 = 2;

const HEADER_END: u8 = 0;
const HEADER_SESSION: u8 = 1;
const HEADER_ORIGIN: u8 = 2;
const HEADER_COMMAND: u8 = 3;
const HEADER_NAMES: u8 = 4;
const HEADER_UNSEEN_SINCE: u8 = 5;
const HEADER_TIMES: u8 = 6;

const PUT_RECORD: u8 = 1;
const DELETE_RECORD: u8 = 2;
const INDEX_ENTRIES: u8 = 3;
const PUT_META: u8 = 4;
const DELETE_META: u8 = 5;
const DROP_COLLECTION: u8 = 6;
const DROP_INDEX: u8 = 7;
const NOOP: u8 = 8;
const FORGET_RECORD: u8 = 9;
const FORGET_RANGE: u8 = 10;

const ADD: u8 = 0;
const REMOVE: u8 = 1;

const INSERT: u8 = 0;
const REPLACE: u8 = 1;
const UPDATE: u8 = 2;

/// One index entry that appears or goes. The record key is the operation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexChange<'a> {
    pub index: IndexId,
    /// The encoded fields, without the record key.
    pub fields: &'a [u8],
    pub action: IndexAction<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexAction<'a> {
    /// Also replaces the type bits of an entry that is there.
    Add {
        type_bits: &'a [u8],
    },
    Remove,
}

/// How a record came to be what it is put as. The bytes are opaque here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Description<'a> {
    /// There was none of this key.
    Insert,
    /// The whole document was replaced.
    Replace,
    /// Parts changed: what leads from the version before to this one.
    Update { difference: &'a [u8] },
}

/// One decoded operation, borrowing from the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    PutRecord {
        collection: CollectionId,
        key: &'a [u8],
        document: &'a [u8],
        description: Description<'a>,
        index: IndexChanges<'a>,
    },
    DeleteRecord {
        collection: CollectionId,
        key: &'a [u8],
        /// Names the document to clients; a record key loses the types of numbers.
        document_key: &'a [u8],
        index: IndexChanges<'a>,
    },
    /// Index entries of one record that itself does not change (an index build).
    IndexEntries {
        collection: CollectionId,
        key: &'a [u8],
        index: IndexChanges<'a>,
    },
    PutMeta {
        key: &'a [u8],
        value: &'a [u8],
    },
    DeleteMeta {
        key: &'a [u8],
    },
    DropCollection {
        collection: CollectionId,
    },
    DropIndex {
        index: IndexId,
    },
    Noop,
    /// A record goes that is there, and that nobody reads: see [`Header::unseen_since`].
    ForgetRecord {
        collection: CollectionId,
        key: &'a [u8],
        /// The length of its document: it is counted by this, not looked up.
        document_bytes: u64,
        index: IndexChanges<'a>,
    },
    /// All records from `low` to before `high` go, of which nobody reads any: the same.
    ForgetRange {
        collection: CollectionId,
        low: &'a [u8],
        high: &'a [u8],
        /// How many there are, and the sum of their documents' lengths.
        documents: u64,
        bytes: u64,
        indexes: ForgottenEntries<'a>,
    },
}

/// How many entries of an index go with a range, and what their keys weigh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForgottenIndex {
    pub index: IndexId,
    pub entries: u64,
    pub bytes: u64,
}

/// Writes one payload. Operations follow in the order of the calls.
pub struct Encoder<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Encoder<'o> {
    /// Begins a payload at the end of `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self::with_header(out, Header::default())
    }

    pub fn with_header(out: &'o mut Vec<u8>, header: Header<'_>) -> Self {
        out.push(VERSION);
        if let Some(session) = header.session {
            out.push(HEADER_SESSION);
            put_bytes(out, session);
        }
        if let Some(origin) = header.origin {
            out.push(HEADER_ORIGIN);
            put_bytes(out, origin);
        }
        if let Some(command) = header.command {
            out.push(HEADER_COMMAND);
            put_bytes(out, command);
        }
        if let Some(names) = header.names {
            out.push(HEADER_NAMES);
            put_bytes(out, names.bytes);
        }
        if let Some(time) = header.unseen_since {
            out.push(HEADER_UNSEEN_SINCE);
            put_bytes(out, &layout::time_bytes(time));
        }
        if let Some(times) = header.times {
            let mut bytes = Vec::with_capacity(5);
            put(&mut bytes, u64::from(times));
            out.push(HEADER_TIMES);
            put_bytes(out, &bytes);
        }
        out.push(HEADER_END);
        Self { out }
    }

    pub fn put_record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        document: &[u8],
        description: Description<'_>,
        changes: &[IndexChange<'_>],
    ) {
        let difference = match description {
            Description::Insert | Description::Replace => 0,
            Description::Update { difference } => difference.len(),
        };
        // Lengths and ids rarely need more than these few bytes on top.
        self.out
            .reserve(key.len() + document.len() + difference + 24);
        self.out.push(PUT_RECORD);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        put_bytes(self.out, document);
        match description {
            Description::Insert => self.out.push(INSERT),
            Description::Replace => self.out.push(REPLACE),
            Description::Update { difference } => {
                self.out.push(UPDATE);
                put_bytes(self.out, difference);
            }
        }
        self.changes(changes);
    }

    pub fn delete_record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        document_key: &[u8],
        changes: &[IndexChange<'_>],
    ) {
        self.out.push(DELETE_RECORD);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        put_bytes(self.out, document_key);
        self.changes(changes);
    }

    pub fn forget_record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        document_bytes: u64,
        changes: &[IndexChange<'_>],
    ) {
        self.out.push(FORGET_RECORD);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        put(self.out, document_bytes);
        self.changes(changes);
    }

    pub fn forget_range(
        &mut self,
        collection: CollectionId,
        (low, high): (&[u8], &[u8]),
        (documents, bytes): (u64, u64),
        indexes: &[ForgottenIndex],
    ) {
        self.out.push(FORGET_RANGE);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, low);
        put_bytes(self.out, high);
        put(self.out, documents);
        put(self.out, bytes);
        put(self.out, indexes.len() as u64);
        for index in indexes {
            put(self.out, u64::from(index.index.0));
            put(self.out, index.entries);
            put(self.out, index.bytes);
        }
    }

    pub fn index_entries(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        changes: &[IndexChange<'_>],
    ) {
        self.out.push(INDEX_ENTRIES);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        self.changes(changes);
    }

    pub fn put_meta(&mut self, key: &[u8], value: &[u8]) {
        self.out.push(PUT_META);
        put_bytes(self.out, key);
        put_bytes(self.out, value);
    }

    pub fn delete_meta(&mut self, key: &[u8]) {
        self.out.push(DELETE_META);
        put_bytes(self.out, key);
    }

    pub fn drop_collection(&mut self, collection: CollectionId) {
        self.out.push(DROP_COLLECTION);
        put(self.out, u64::from(collection.0));
    }

    pub fn drop_index(&mut self, index: IndexId) {
        self.out.push(DROP_INDEX);
        put(self.out, u64::from(index.0));
    }

    /// Bytes written so far: where the next operation begins.
    pub fn position(&self) -> usize {
        self.out.len()
    }

    pub fn noop(&mut self) {
        self.out.push(NOOP);
    }

    fn changes(&mut self, changes: &[IndexChange<'_>]) {
        put(self.out, changes.len() as u64);
        for change in changes {
            let action = match change.action {
                IndexAction::Add { .. } => ADD,
                IndexAction::Remove => REMOVE,
            };
            self.out.push(action);
            put(self.out, u64::from(change.index.0));
            put_bytes(self.out, change.fields);
            if let IndexAction::Add { type_bits } = change.action {
                put_bytes(self.out, type_bits);
            }
        }
    }
}

/// What an entry says about itself. The bytes are opaque here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// The session and statement that a retry would repeat.
    pub session: Option<&'a [u8]>,
    /// Set on entries made by moves and range deletions.
    pub origin: Option<&'a [u8]>,
    /// The change of the catalog that the entry makes, as clients know it.
    pub command: Option<&'a [u8]>,
    /// What the collections of the record operations are called.
    pub names: Option<Names<'a>>,
    /// Reads at this time and later do not see the records that the entry forgets.
    pub unseen_since: Option<ClusterTime>,
    /// How many times the entry has taken in the log, if more than its own.
    pub times: Option<u32>,
}

/// The identity of collections at the time of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names<'a> {
    bytes: &'a [u8],
}

/// One collection as an entry names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name<'a> {
    pub collection: CollectionId,
    pub uuid: [u8; 16],
    /// Whether versions before and after a change are kept for change streams.
    pub keeps_images: bool,
    pub namespace: &'a str,
    /// What the collection is sharded by, if it is; opaque here. It names documents to clients
    /// together with their `_id`.
    pub shard_key: Option<&'a [u8]>,
}

const KEEPS_IMAGES: u8 = 1;
const HAS_SHARD_KEY: u8 = 2;

impl Name<'_> {
    /// Appends the name to the bytes of [`Names`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        put(out, u64::from(self.collection.0));
        out.extend_from_slice(&self.uuid);
        let images = if self.keeps_images { KEEPS_IMAGES } else { 0 };
        let sharded = self.shard_key.map_or(0, |_| HAS_SHARD_KEY);
        out.push(images | sharded);
        put_bytes(out, self.namespace.as_bytes());
        if let Some(key) = self.shard_key {
            put_bytes(out, key);
        }
    }
}

impl<'a> Names<'a> {
    /// What [`Name::encode`] wrote.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// What the collections are called; what cannot be read ends it.
    pub fn namespaces(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || take_name(&mut rest).map(|name| name.namespace))
    }

    /// The name of a collection, if the entry has it.
    pub fn get(self, collection: CollectionId) -> Result<Option<Name<'a>>, Malformed> {
        let mut rest = self.bytes;
        while !rest.is_empty() {
            let name = take_name(&mut rest).ok_or("collection name")?;
            if name.collection == collection {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

fn take_name<'a>(input: &mut &'a [u8]) -> Option<Name<'a>> {
    let collection = CollectionId(take_id(input)?);
    let (uuid, rest) = input.split_first_chunk::<16>()?;
    let (&flags, rest) = rest.split_first()?;
    *input = rest;
    let namespace = std::str::from_utf8(take_bytes(input)?).ok()?;
    let shard_key = match flags & HAS_SHARD_KEY {
        0 => None,
        _ => Some(take_bytes(input)?),
    };
    Some(Name {
        collection,
        uuid: *uuid,
        keeps_images: flags & KEEPS_IMAGES != 0,
        namespace,
        shard_key,
    })
}

/// A payload whose header was read. Operations are decoded while iterating.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub header: Header<'a>,
    operations: &'a [u8],
}

/// Names the part of a payload that does not decode.
pub type Malformed = &'static str;

impl<'a> Entry<'a> {
    /// Reads the header. An entry that the log made for itself has an empty payload and
    /// no operations.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        if payload.is_empty() {
            return Ok(Self {
                header: Header::default(),
                operations: payload,
            });
        }
        let (&version, mut rest) = payload.split_first().ok_or("no version")?;
        if version != VERSION {
            return Err("unknown payload version");
        }
        let mut header = Header::default();
        let mut previous = HEADER_END;
        loop {
            let (&field, after) = rest.split_first().ok_or("unfinished header")?;
            rest = after;
            if field == HEADER_END {
                break;
            }
            if field <= previous {
                return Err("header fields out of order");
            }
            previous = field;
            let bytes = take_bytes(&mut rest).ok_or("header field")?;
            match field {
                HEADER_SESSION => header.session = Some(bytes),
                HEADER_ORIGIN => header.origin = Some(bytes),
                HEADER_COMMAND => header.command = Some(bytes),
                HEADER_NAMES => header.names = Some(Names::new(bytes)),
                HEADER_UNSEEN_SINCE if bytes.len() == layout::TIME_BYTES => {
                    let time = layout::value_time(bytes).map_err(|_| "unseen since")?;
                    header.unseen_since = Some(time);
                }
                HEADER_UNSEEN_SINCE => return Err("unseen since"),
                HEADER_TIMES => {
                    let mut rest = bytes;
                    let times = take(&mut rest).filter(|_| rest.is_empty());
                    let times = times.and_then(|times| u32::try_from(times).ok());
                    header.times = Some(times.ok_or("times")?);
                }
                _ => return Err("unknown header field"),
            }
        }
        Ok(Self {
            header,
            operations: rest,
        })
    }

    pub fn operations(&self) -> Operations<'a> {
        Operations {
            rest: self.operations,
        }
    }
}

/// Iterates over operations; stops after the first that does not decode.
#[derive(Clone, Debug)]
pub struct Operations<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        let operation = self.operation(kind);
        if operation.is_err() {
            self.rest = &[];
        }
        Some(operation)
    }
}

impl<'a> Operations<'a> {
    fn operation(&mut self, kind: u8) -> Result<Operation<'a>, Malformed> {
        Ok(match kind {
            PUT_RECORD => Operation::PutRecord {
                collection: self.collection()?,
                key: self.bytes("record key")?,
                document: self.bytes("document")?,
                description: self.description()?,
                index: self.changes()?,
            },
            DELETE_RECORD => Operation::DeleteRecord {
                collection: self.collection()?,
                key: self.bytes("record key")?,
                document_key: self.bytes("document key")?,
                index: self.changes()?,
            },
            INDEX_ENTRIES => Operation::IndexEntries {
                collection: self.collection()?,
                key: self.bytes("record key")?,
                index: self.changes()?,
            },
            PUT_META => Operation::PutMeta {
                key: self.bytes("meta key")?,
                value: self.bytes("meta value")?,
            },
            DELETE_META => Operation::DeleteMeta {
                key: self.bytes("meta key")?,
            },
            DROP_COLLECTION => Operation::DropCollection {
                collection: self.collection()?,
            },
            DROP_INDEX => Operation::DropIndex {
                index: IndexId(take_id(&mut self.rest).ok_or("index id")?),
            },
            NOOP => Operation::Noop,
            FORGET_RECORD => Operation::ForgetRecord {
                collection: self.collection()?,
                key: self.bytes("record key")?,
                document_bytes: take(&mut self.rest).ok_or("document length")?,
                index: self.changes()?,
            },
            FORGET_RANGE => Operation::ForgetRange {
                collection: self.collection()?,
                low: self.bytes("low key")?,
                high: self.bytes("high key")?,
                documents: take(&mut self.rest).ok_or("documents")?,
                bytes: take(&mut self.rest).ok_or("bytes")?,
                indexes: self.forgotten_entries()?,
            },
            _ => return Err("unknown operation"),
        })
    }

    fn collection(&mut self) -> Result<CollectionId, Malformed> {
        take_id(&mut self.rest)
            .map(CollectionId)
            .ok_or("collection id")
    }

    fn description(&mut self) -> Result<Description<'a>, Malformed> {
        let (&kind, rest) = self.rest.split_first().ok_or("description")?;
        self.rest = rest;
        Ok(match kind {
            INSERT => Description::Insert,
            REPLACE => Description::Replace,
            UPDATE => Description::Update {
                difference: self.bytes("difference")?,
            },
            _ => return Err("unknown description"),
        })
    }

    fn bytes(&mut self, what: Malformed) -> Result<&'a [u8], Malformed> {
        take_bytes(&mut self.rest).ok_or(what)
    }

    /// Walks over the changes to check them and to find their end.
    fn changes(&mut self) -> Result<IndexChanges<'a>, Malformed> {
        let count = take(&mut self.rest).ok_or("index change count")?;
        let start = self.rest;
        for _ in 0..count {
            take_change(&mut self.rest).ok_or("index change")?;
        }
        let length = start.len() - self.rest.len();
        Ok(IndexChanges {
            rest: &start[..length],
        })
    }

    /// The same for what goes with a range.
    fn forgotten_entries(&mut self) -> Result<ForgottenEntries<'a>, Malformed> {
        let count = take(&mut self.rest).ok_or("index count")?;
        let start = self.rest;
        for _ in 0..count {
            take_forgotten(&mut self.rest).ok_or("index of a range")?;
        }
        let length = start.len() - self.rest.len();
        Ok(ForgottenEntries {
            rest: &start[..length],
        })
    }
}

fn take_forgotten(input: &mut &[u8]) -> Option<ForgottenIndex> {
    Some(ForgottenIndex {
        index: IndexId(take_id(input)?),
        entries: take(input)?,
        bytes: take(input)?,
    })
}

fn take_id(input: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(input)?).ok()
}

fn take_change<'a>(input: &mut &'a [u8]) -> Option<IndexChange<'a>> {
    let (&action, rest) = input.split_first()?;
    *input = rest;
    let index = IndexId(take_id(input)?);
    let fields = take_bytes(input)?;
    let action = match action {
        ADD => IndexAction::Add {
            type_bits: take_bytes(input)?,
        },
        REMOVE => IndexAction::Remove,
        _ => return None,
    };
    Some(IndexChange {
        index,
        fields,
        action,
    })
}

/// The index changes of one operation. They were checked when it was decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexChanges<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for IndexChanges<'a> {
    type Item = IndexChange<'a>;

    fn next(&mut self) -> Option<IndexChange<'a>> {
        take_change(&mut self.rest)
    }
}

/// The indexes of a forgotten range. They were checked when it was decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForgottenEntries<'a> {
    rest: &'a [u8],
}

impl Iterator for ForgottenEntries<'_> {
    type Item = ForgottenIndex;

    fn next(&mut self) -> Option<ForgottenIndex> {
        take_forgotten(&mut self.rest)
    }
}

#[cfg(test)]
mod tests;
