//! One entry of the log as a document of `local.oplog.rs`.
//!
//! ```text
//!   one operation        {lsid, txnNumber, op, ns, ui, o, o2, stmtId, ts, t, v, wall, prevOpTime}
//!   several operations   op: "c", ns: "admin.$cmd", o: {applyOps: [{op, ns, ui, o, o2}, ..]}
//!   none                 no document: an index build's entries, say
//! ```
//!
//! An entry has one time, so it is one document: `ts` names exactly one, and a
//! reader that goes on after a `ts` misses nothing. MongoDB writes operations of
//! one transaction in the same way, and its tools take them apart.

use super::operation::{Logged, SessionHeader, malformed, operations};
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, Timestamp, ValueRef};
use replication::{Entry, EntryKind};
use storage::entry::Name;

/// MongoDB's version of the shape.
const VERSION: i64 = 2;

/// The document of an entry, if it has one.
pub(super) fn document(entry: &Entry) -> Result<Option<DocBuf>, Error> {
    let decoded = storage::entry::Entry::decode(&entry.payload).map_err(malformed)?;
    let logged = operations(&decoded)?;
    let session = SessionHeader::of(&decoded.header)?;
    let mut out = DocWriter::new();
    if let Some(message) = own_message(&entry.kind) {
        append_message(&mut out, message);
        append_moment(&mut out, entry);
        return Ok(Some(out.finish()));
    }
    if let Some(session) = &session {
        out.append("lsid", session.lsid)
            .append("txnNumber", session.txn_number);
    }
    match &logged[..] {
        [] => return Ok(None),
        [only] => {
            append_operation(&mut out, only);
            if let Some(statement) = session.as_ref().and_then(|s| s.statement(0)) {
                out.append("stmtId", statement);
            }
        }
        several => {
            out.append("op", "c")
                .append("ns", "admin.$cmd")
                .begin_document("o")
                .begin_array("applyOps");
            for (at, operation) in several.iter().enumerate() {
                out.push_document();
                append_operation(&mut out, operation);
                if let Some(statement) = session.as_ref().and_then(|s| s.statement(at)) {
                    out.append("stmtId", statement);
                }
                out.end();
            }
            out.end().end();
        }
    }
    if decoded.header.origin.is_some() {
        out.append("fromMigrate", true);
    }
    append_moment(&mut out, entry);
    if session.is_some() {
        out.begin_document("prevOpTime")
            .append(
                "ts",
                Timestamp {
                    seconds: 0,
                    increment: 0,
                },
            )
            .append("t", -1i64)
            .end();
    }
    Ok(Some(out.finish()))
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

fn append_moment(out: &mut DocWriter, entry: &Entry) {
    out.append("ts", entry.time)
        .append("t", i64::try_from(entry.term.get()).unwrap_or(i64::MAX))
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
