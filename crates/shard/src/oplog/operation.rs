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
            Logged::Insert { document, .. }
            | Logged::Replace { document, .. }
            | Logged::Update { document, .. } => {
                let mut key = DocWriter::new();
                if let Some(id) = document.element("_id") {
                    key.append_element(&id);
                }
                Some(key.finish())
            }
            Logged::Delete { key, .. } => Some((*key).to_owned()),
            Logged::Command(_) | Logged::Noop => None,
        }
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
            | Operation::DropIndex { .. } => {}
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
