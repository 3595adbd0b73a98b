//! What an entry did, read back from its payload.

use crate::session::statement_of;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use storage::entry::{Description, Entry, Header, Malformed, Name, Operation};

/// The record keys of a document that changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) before: &'a [u8],
    pub(crate) now: &'a [u8],
}

/// One operation of an entry that clients may know of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Logged<'a> {
    Insert {
        name: Name<'a>,
        document: Doc<'a>,
    },
    Replace {
        name: Name<'a>,
        document: Doc<'a>,
        place: Place<'a>,
    },
    Update {
        name: Name<'a>,
        place: Place<'a>,
        /// The whole document afterwards.
        document: Doc<'a>,
        difference: Doc<'a>,
    },
    Delete {
        name: Name<'a>,
        key: Doc<'a>,
        place: Place<'a>,
    },
    /// A change of the catalog, in the shape of the oplog.
    Command(CommandOperation<'a>),
    Noop,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandOperation<'a> {
    /// `database.$cmd`
    pub(crate) namespace: &'a str,
    pub(crate) uuid: Option<&'a [u8]>,
    pub(crate) command: Doc<'a>,
    /// What was before it.
    pub(crate) before: Option<Doc<'a>>,
}

/// Who wrote an entry, if a session did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionHeader<'a> {
    pub(crate) lsid: Doc<'a>,
    pub(crate) txn_number: i64,
    document: Doc<'a>,
}

impl<'a> SessionHeader<'a> {
    pub(crate) fn of(header: &Header<'a>) -> Result<Option<Self>, Error> {
        let Some(bytes) = header.session else {
            return Ok(None);
        };
        let document = document(bytes)?;
        match (document.get_doc("lsid"), document.get("txnNumber")) {
            (Some(lsid), Some(ValueRef::Int64(txn_number))) => Ok(Some(Self {
                lsid,
                txn_number,
                document,
            })),
            _ => Err(damaged("session header")),
        }
    }

    /// The statement that the operation at this place carries out.
    pub(crate) fn statement(&self, operation: usize) -> Option<i32> {
        statement_of(self.document, operation)
    }
}

impl Logged<'_> {
    /// What names the document to clients.
    pub(crate) fn document_key(&self) -> Option<DocBuf> {
        match self {
            Logged::Insert { document, name }
            | Logged::Replace { document, name, .. }
            | Logged::Update { document, name, .. } => Some(document_key(*document, name)),
            Logged::Delete { key, .. } => Some((*key).to_owned()),
            Logged::Command(_) | Logged::Noop => None,
        }
    }
}

/// What names a document to clients: the fields of its shard key, if it has one, then `_id`.
pub(crate) fn document_key(document: Doc<'_>, name: &Name<'_>) -> DocBuf {
    let mut key = DocWriter::new();
    let pattern = name.shard_key.and_then(|bytes| self::document(bytes).ok());
    for field in pattern.iter().flat_map(|pattern| pattern.iter()) {
        if let Some(value) = at_path(document, field.key()) {
            key.append(field.key(), value);
        }
    }
    let has_id = pattern.is_some_and(|pattern| pattern.get("_id").is_some());
    if let Some(id) = document.element("_id").filter(|_| !has_id) {
        key.append_element(&id);
    }
    key.finish()
}

/// A field by its dotted name; shard keys have no arrays on their way.
fn at_path<'a>(document: Doc<'a>, path: &str) -> Option<ValueRef<'a>> {
    match path.split_once('.') {
        None => document.get(path),
        Some((first, rest)) => at_path(document.get_doc(first)?, rest),
    }
}

/// The operations of an entry, in order. Those that only keep indexes or the
/// catalog up to date are left out.
pub(crate) fn operations<'a>(entry: &Entry<'a>) -> Result<Vec<Logged<'a>>, Error> {
    let mut logged = Vec::new();
    // The key that the next document had before, if it stands under another one now.
    let mut left: Option<&[u8]> = None;
    if let Some(bytes) = entry.header.command {
        commands(document(bytes)?, &mut logged)?;
    }
    for operation in entry.operations() {
        match operation.map_err(malformed)? {
            Operation::PutRecord {
                collection,
                key,
                document: bytes,
                description,
                ..
            } => {
                let place = Place {
                    before: left.take().unwrap_or(key),
                    now: key,
                };
                let name = name(entry, collection)?;
                let document = Doc::from_validated(bytes);
                logged.push(match description {
                    Description::Insert => Logged::Insert { name, document },
                    Description::Replace => Logged::Replace {
                        name,
                        document,
                        place,
                    },
                    Description::Update { difference } => Logged::Update {
                        name,
                        place,
                        document,
                        difference: self::document(difference)?,
                    },
                });
            }
            Operation::DeleteRecord {
                collection,
                key: record_key,
                document_key,
                ..
            } => {
                let key = document(document_key)?;
                // What came and went within one entry was never there, and what gets
                // another record key is put right behind.
                left = key.is_empty().then_some(record_key);
                if !key.is_empty() {
                    let name = name(entry, collection)?;
                    let place = Place {
                        before: record_key,
                        now: record_key,
                    };
                    logged.push(Logged::Delete { name, key, place });
                }
            }
            Operation::Noop => logged.push(Logged::Noop),
            Operation::IndexEntries { .. }
            | Operation::PutMeta { .. }
            | Operation::DeleteMeta { .. }
            | Operation::DropCollection { .. }
            | Operation::DropIndex { .. }
            // Of a range that belongs to another shard: clients never hear of it.
            | Operation::ForgetRecord { .. }
                | Operation::ForgetRange { .. } => {}
        }
    }
    Ok(logged)
}

fn commands<'a>(header: Doc<'a>, logged: &mut Vec<Logged<'a>>) -> Result<(), Error> {
    let listed = header.get_array("ops").ok_or_else(|| damaged("command"))?;
    for command in listed.iter() {
        let ValueRef::Document(command) = command else {
            return Err(damaged("command"));
        };
        let uuid = match command.get("ui") {
            Some(ValueRef::Binary { bytes, .. }) => Some(bytes),
            _ => None,
        };
        logged.push(Logged::Command(CommandOperation {
            namespace: command.get_str("ns").ok_or_else(|| damaged("command"))?,
            uuid,
            command: command.get_doc("o").ok_or_else(|| damaged("command"))?,
            before: command.get_doc("o2"),
        }));
    }
    Ok(())
}

fn name<'a>(entry: &Entry<'a>, id: model::ids::CollectionId) -> Result<Name<'a>, Error> {
    let named = match entry.header.names {
        Some(names) => names.get(id).map_err(malformed)?,
        None => None,
    };
    named.ok_or_else(|| damaged("name of a collection"))
}

fn document(bytes: &[u8]) -> Result<Doc<'_>, Error> {
    // Ours, and under the log's checksum: looked at for its frame alone.
    match bytes {
        [.., 0] if bytes.len() >= 5 => Ok(Doc::from_validated(bytes)),
        _ => Err(damaged("document")),
    }
}

pub(crate) fn malformed(what: Malformed) -> Error {
    damaged(what)
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a log entry cannot be read: {what}"),
    )
}
