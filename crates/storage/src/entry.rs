//! The payload of a log entry: physical operations, ready to be applied.
//!
//! An entry says what is stored afterwards (post-images by record key, index
//! entries to add and remove), never how it was computed, so that replicas,
//! recovery, moves and change streams all read the same thing.
//!
//! ```text
//!  payload   [version 1 = 1][header field]* [0] [operation]*          to the end of the payload
//!  header    [1 session | 2 origin][length varint][bytes]             in this order, each at most once
//!
//!  operation [kind 1] then
//!    1 put record      [collection][key][document][change count varint][change]*
//!    2 delete record   [collection][key][change count varint][change]*
//!    3 index entries   [collection][key][change count varint][change]*
//!    4 put meta        [key][value]
//!    5 delete meta     [key]
//!    6 drop collection [collection]
//!    7 drop index      [index]
//!    8 no-op
//!  change    [0 add | 1 remove][index][fields][type bits]             remove has no type bits
//! ```
//!
//! Ids are varints; keys, documents, fields and type bits are a varint length and
//! the bytes. The length of the whole payload and its checksum belong to the log.
//!
//! This is the hot path: [`Encoder`] writes from borrowed parts into one buffer,
//! and decoding borrows from the payload. Decoding checks everything and never
//! panics: a header field, kind or version that is not known here is an error,
//! because skipping it could lose a write.

use model::ids::{CollectionId, IndexId};

use crate::varint::{put, put_bytes, take, take_bytes};

const VERSION: u8 = 1;

const HEADER_END: u8 = 0;
const HEADER_SESSION: u8 = 1;
const HEADER_ORIGIN: u8 = 2;

const PUT_RECORD: u8 = 1;
const DELETE_RECORD: u8 = 2;
const INDEX_ENTRIES: u8 = 3;
const PUT_META: u8 = 4;
const DELETE_META: u8 = 5;
const DROP_COLLECTION: u8 = 6;
const DROP_INDEX: u8 = 7;
const NOOP: u8 = 8;

const ADD: u8 = 0;
const REMOVE: u8 = 1;

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

/// One decoded operation, borrowing from the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    PutRecord {
        collection: CollectionId,
        key: &'a [u8],
        document: &'a [u8],
        index: IndexChanges<'a>,
    },
    DeleteRecord {
        collection: CollectionId,
        key: &'a [u8],
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
        out.push(HEADER_END);
        Self { out }
    }

    pub fn put_record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        document: &[u8],
        changes: &[IndexChange<'_>],
    ) {
        // Lengths and ids rarely need more than these few bytes on top.
        self.out.reserve(key.len() + document.len() + 16);
        self.out.push(PUT_RECORD);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        put_bytes(self.out, document);
        self.changes(changes);
    }

    pub fn delete_record(
        &mut self,
        collection: CollectionId,
        key: &[u8],
        changes: &[IndexChange<'_>],
    ) {
        self.out.push(DELETE_RECORD);
        put(self.out, u64::from(collection.0));
        put_bytes(self.out, key);
        self.changes(changes);
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
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let (&version, mut rest) = payload.split_first().ok_or("empty payload")?;
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
                index: self.changes()?,
            },
            DELETE_RECORD => Operation::DeleteRecord {
                collection: self.collection()?,
                key: self.bytes("record key")?,
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
            _ => return Err("unknown operation"),
        })
    }

    fn collection(&mut self) -> Result<CollectionId, Malformed> {
        take_id(&mut self.rest)
            .map(CollectionId)
            .ok_or("collection id")
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

#[cfg(test)]
mod tests;
