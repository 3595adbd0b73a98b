//! One entry of the log as documents of `local.oplog.rs`.
//!
//! ```text
//!   an operation   {lsid, txnNumber, op, ns, ui, o, o2, stmtId, ts, t, v, wall, prevOpTime}
//!   several        one document for each, if the entry has taken as many times, else
//!                  op: "c", ns: "admin.$cmd", o: {applyOps: [{op, ns, ui, o, o2}, ..]}
//!   none           no document: an index build's entries, say
//! ```
//!
//! ⚑ `ts` names exactly one document, and a reader that goes on after a `ts` misses nothing: an
//! entry whose operations are told apart has taken a time for each of them, of which the last one
//! is its own, so what is behind a time stands in the first entry that is not before it. Entries
//! that change several collections at once have one time, and so has what moves bring;
//! MongoDB writes operations of one transaction in that way, and its tools take them apart.
//!
//! What a set begins with before it knows the time is not shown. Its first document is that of its first
//! configuration.

use super::operation::{Logged, SessionHeader, malformed, operations};
use crate::replica_set::configuration::CONFIGURATION_KEY;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use replication::{Entry, EntryKind};
use storage::entry::{Name, Operation};

/// MongoDB's version of the shape.
const VERSION: i64 = 2;

/// The documents of an entry, in order.
pub(super) fn documents(entry: &Entry) -> Result<Vec<DocBuf>, Error> {
    let decoded = storage::entry::Entry::decode(&entry.payload).map_err(malformed)?;
    if let Some(message) = own_message(&entry.kind) {
        if entry.time.seconds() == 0 {
            return Ok(Vec::new());
        }
        let mut out = DocWriter::new();
        append_message(&mut out, message);
        append_moment(&mut out, entry, entry.time);
        return Ok(vec![out.finish()]);
    }
    let logged = operations(&decoded)?;
    let view = View {
        entry,
        session: SessionHeader::of(&decoded.header)?,
        is_moved: decoded.header.origin.is_some(),
    };
    let taken = decoded.header.times.unwrap_or(1) as usize;
    Ok(match &logged[..] {
        [] => {
            configuration(&decoded)?.map_or_else(Vec::new, |document| vec![view.message(document)])
        }
        [only] => vec![view.document(only, 0, 0)],
        several if several.len() <= taken => {
            let last = several.len() - 1;
            let listed = several.iter().enumerate();
            listed
                .map(|(at, operation)| view.document(operation, at, last - at))
                .collect()
        }
        several => vec![view.together(several)],
    })
}

/// An entry, and what holds for all of its operations.
struct View<'a> {
    entry: &'a Entry,
    session: Option<SessionHeader<'a>>,
    is_moved: bool,
}

impl View<'_> {
    /// The operation at a place, which so many follow.
    fn document(&self, operation: &Logged<'_>, at: usize, following: usize) -> DocBuf {
        let mut out = DocWriter::new();
        self.append_session(&mut out);
        append_operation(&mut out, operation);
        self.append_statement(&mut out, at);
        let time = earlier(self.entry.time, following);
        let previous = (at > 0).then(|| earlier(time, 1));
        self.append_rest(&mut out, time, previous);
        out.finish()
    }

    /// What the entry says, where it does nothing that clients know of.
    fn message(&self, message: DocBuf) -> DocBuf {
        let mut out = DocWriter::new();
        out.append("op", "n").append("ns", "").append("o", &message);
        append_moment(&mut out, self.entry, self.entry.time);
        out.finish()
    }

    /// All operations as one.
    fn together(&self, several: &[Logged<'_>]) -> DocBuf {
        let mut out = DocWriter::new();
        self.append_session(&mut out);
        out.append("op", "c")
            .append("ns", "admin.$cmd")
            .begin_document("o")
            .begin_array("applyOps");
        for (at, operation) in several.iter().enumerate() {
            out.push_document();
            append_operation(&mut out, operation);
            self.append_statement(&mut out, at);
            out.end();
        }
        out.end().end();
        self.append_rest(&mut out, self.entry.time, None);
        out.finish()
    }

    fn append_session(&self, out: &mut DocWriter) {
        if let Some(session) = &self.session {
            out.append("lsid", session.lsid)
                .append("txnNumber", session.txn_number);
        }
    }

    fn append_statement(&self, out: &mut DocWriter, at: usize) {
        if let Some(statement) = self.session.as_ref().and_then(|s| s.statement(at)) {
            out.append("stmtId", statement);
        }
    }

    /// `previous` is the time of the session's write before, if that is of this entry.
    fn append_rest(&self, out: &mut DocWriter, time: ClusterTime, previous: Option<ClusterTime>) {
        if self.is_moved {
            out.append("fromMigrate", true);
        }
        append_moment(out, self.entry, time);
        if self.session.is_some() {
            let term = previous.map_or(-1, |_| term_of(self.entry));
            out.begin_document("prevOpTime")
                .append("ts", previous.unwrap_or(ClusterTime::ZERO))
                .append("t", term)
                .end();
        }
    }
}

/// A time of the same second.
fn earlier(time: ClusterTime, by: usize) -> ClusterTime {
    let by = u32::try_from(by).unwrap_or(u32::MAX);
    ClusterTime::new(time.seconds(), time.increment().saturating_sub(by))
}

fn term_of(entry: &Entry) -> i64 {
    i64::try_from(entry.term.get()).unwrap_or(i64::MAX)
}

/// What an entry says that brings another configuration of the set.
fn configuration(entry: &storage::entry::Entry<'_>) -> Result<Option<DocBuf>, Error> {
    for operation in entry.operations() {
        if let Operation::PutMeta { key, value } = operation.map_err(malformed)?
            && key == CONFIGURATION_KEY
        {
            let stored = Doc::from_bytes(value).map_err(|_| malformed("configuration"))?;
            let version = stored.get("version");
            return Ok(Some(match version {
                Some(ValueRef::Int32(1)) | None => {
                    DocWriter::new().with("msg", "initiating set").finish()
                }
                Some(version) => DocWriter::new()
                    .with("msg", "Reconfig set")
                    .with("version", version)
                    .finish(),
            }));
        }
    }
    Ok(None)
}

/// What an entry says that the log made for itself.
fn own_message(kind: &EntryKind) -> Option<&'static str> {
    match kind {
        EntryKind::Data => None,
        EntryKind::Noop => Some("new primary"),
        EntryKind::Configuration(_) => Some("Reconfig set"),
    }
}

fn append_message(out: &mut DocWriter, message: &str) {
    out.append("op", "n")
        .append("ns", "")
        .begin_document("o")
        .append("msg", message)
        .end();
}

fn append_moment(out: &mut DocWriter, entry: &Entry, time: ClusterTime) {
    out.append("ts", time)
        .append("t", term_of(entry))
        .append("v", VERSION)
        .append("wall", ValueRef::DateTime(entry.wall_ms));
}

fn append_operation(out: &mut DocWriter, operation: &Logged<'_>) {
    match operation {
        Logged::Insert { name, document } => {
            append_named(out, "i", name, *document, operation.document_key());
        }
        Logged::Replace { name, document, .. } => {
            append_named(out, "u", name, *document, operation.document_key());
        }
        Logged::Update {
            name, difference, ..
        } => {
            let change = DocWriter::new()
                .with("$v", 2)
                .with("diff", *difference)
                .finish();
            append_named(out, "u", name, change.as_doc(), operation.document_key());
        }
        Logged::Delete { name, key, .. } => append_named(out, "d", name, *key, None),
        Logged::Command(command) => {
            out.append("op", "c").append("ns", command.namespace);
            if let Some(bytes) = command.uuid {
                out.append("ui", ValueRef::Binary { subtype: 4, bytes });
            }
            out.append("o", command.command);
            if let Some(before) = command.before {
                out.append("o2", before);
            }
        }
        Logged::Noop => append_message(out, "no-op"),
    }
}

fn append_named(
    out: &mut DocWriter,
    kind: &str,
    name: &Name<'_>,
    what: Doc<'_>,
    key: Option<DocBuf>,
) {
    out.append("op", kind)
        .append("ns", name.namespace)
        .append(
            "ui",
            ValueRef::Binary {
                subtype: 4,
                bytes: &name.uuid,
            },
        )
        .append("o", what);
    if let Some(key) = &key {
        out.append("o2", key);
    }
}
