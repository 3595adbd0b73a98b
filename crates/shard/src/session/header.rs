//! What an entry of the log says about its session, for those who read the log:
//! the oplog view shows it, retries do not need it.
//!
//! ```text
//!   {lsid: {id, uid}, txnNumber: long, stmtId: int}      operation n carries stmtId + n
//!   {lsid: {id, uid}, txnNumber: long, stmtIds: [int]}   operation n carries the nth
//! ```
//!
//! Operations are those that change records, in their order.

use super::SessionId;
use super::history::Executed;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};

/// The header of an entry whose record operations are these statements.
pub(crate) fn encode(session: SessionId, number: i64, items: &[Executed]) -> DocBuf {
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(160));
    session.append(&mut writer, "lsid");
    writer.append("txnNumber", number);
    match items {
        [only] => {
            writer.append("stmtId", only.first);
        }
        _ => {
            writer.begin_array("stmtIds");
            for item in items {
                for offset in 0..item.count {
                    writer.push(item.first.wrapping_add_unsigned(offset));
                }
            }
            writer.end();
        }
    }
    writer.finish()
}

/// The statement that the record operation `at` of an entry belongs to.
pub(crate) fn statement_of(header: Doc<'_>, at: usize) -> Option<i32> {
    let int = |value| match value {
        ValueRef::Int32(number) => Some(number),
        _ => None,
    };
    if let Some(first) = header.get("stmtId").and_then(int) {
        return Some(first.wrapping_add_unsigned(u32::try_from(at).ok()?));
    }
    header.get_array("stmtIds")?.get(at).and_then(int)
}
