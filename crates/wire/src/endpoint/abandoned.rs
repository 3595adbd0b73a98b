//! Replies that nobody waits for any more, and what they have opened.
//!
//! Whoever reads is told that his caller has gone, and stops if he can. He may have answered just before: then
//! his reply names a cursor that nobody knows, which would lie there for ten minutes.

use model::bson::{Doc, DocWriter, ValueRef};

use crate::request::Request;

/// Whether a command's reply may name a cursor.
pub(super) fn opens_cursor(command: &str) -> bool {
    matches!(
        command,
        "find" | "aggregate" | "listCollections" | "listIndexes"
    )
}

/// The command that closes the cursor of a reply, if it has one.
pub(super) fn closing(reply: Doc<'_>) -> Option<Request> {
    let cursor = reply.get_doc("cursor")?;
    let id = match cursor.get("id")? {
        ValueRef::Int64(id) if id != 0 => id,
        _ => return None,
    };
    let (database, collection) = cursor.get_str("ns")?.split_once('.')?;
    let mut kill = DocWriter::new().with("killCursors", collection);
    kill.begin_array("cursors").push(id).end();
    kill.append("$db", database);
    Request::from_parts(kill.finish(), Vec::new()).ok()
}
