//! The sessions collection, `config.system.sessions`, as commands.
//!
//! ```text
//!   {_id: {id, uid}, lastUse: Date}     an index on lastUse lets them expire
//! ```
//!
//! Whoever has a cache of sessions (a router, a member of a shard or of the config server) writes
//! those that were used, removes those that were ended, and asks which of the others are still there.
//! A replica set of its own writes to itself. In a cluster the collection is sharded by `_id`, and the
//! commands go through routing; only the config server makes it (`configsvr/src/sessions.rs`).

use model::SessionId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::collections::BTreeSet;

pub const DATABASE: &str = "config";
pub const COLLECTION: &str = "system.sessions";
pub const NAMESPACE: &str = "config.system.sessions";
/// The index by which sessions expire.
pub const INDEX: &str = "lsidTTLIndex";
/// Sessions that one command is about.
pub const PORTION: usize = 1000;

/// Begins a command on the collection; [`DATABASE`] is still to be named.
pub fn command(name: &str) -> DocWriter {
    DocWriter::new().with(name, COLLECTION)
}

/// The specification of the index, for a lifetime.
pub fn index(seconds: i64) -> DocBuf {
    let mut index = DocWriter::new().with("v", 2);
    index.begin_document("key").append("lastUse", 1).end();
    index
        .with("name", INDEX)
        .with("expireAfterSeconds", seconds)
        .finish()
}

/// Gives the index another lifetime.
pub fn set_lifetime(seconds: i64) -> DocWriter {
    let mut change = command("collMod");
    change
        .begin_document("index")
        .append("name", INDEX)
        .append("expireAfterSeconds", seconds)
        .end();
    change
}

/// The lifetime among the specifications of the collection's indexes.
pub fn lifetime<'a>(indexes: impl IntoIterator<Item = Doc<'a>>) -> Option<i64> {
    let named = |index: &Doc<'_>| index.get_str("name") == Some(INDEX);
    let index = indexes.into_iter().find(named)?;
    model::number::Number::of(index.get("expireAfterSeconds")?)?.to_i64_exact()
}

/// Sessions that are in use.
pub fn upserts(sessions: &[SessionId], now_ms: i64) -> DocWriter {
    let mut command = command("update");
    command.append("ordered", false).begin_array("updates");
    for id in sessions {
        command.push_document().begin_document("q");
        id.append(&mut command, "_id");
        command
            .end()
            .begin_document("u")
            .begin_document("$set")
            .append("lastUse", ValueRef::DateTime(now_ms))
            .end()
            .end()
            .append("upsert", true)
            .end();
    }
    command.end();
    command
}

/// Sessions that were ended.
pub fn removals(sessions: &[SessionId]) -> DocWriter {
    let mut command = command("delete");
    command.append("ordered", false).begin_array("deletes");
    for id in sessions {
        command.push_document().begin_document("q");
        id.append(&mut command, "_id");
        command.end().append("limit", 1).end();
    }
    command.end();
    command
}

/// Which of these there are: at most [`PORTION`], in one batch.
pub fn look_up(sessions: &[SessionId]) -> DocWriter {
    let mut command = command("find");
    command
        .begin_document("filter")
        .begin_document("_id")
        .begin_array("$in");
    for id in sessions {
        command.push_document();
        id.append_fields(&mut command);
        command.end();
    }
    command.end().end().end();
    command.begin_document("projection").append("_id", 1).end();
    command
        .append(
            "batchSize",
            i64::try_from(sessions.len()).unwrap_or(i64::MAX),
        )
        .append("singleBatch", true);
    command
}

/// The sessions in the answer to [`look_up`]; `None` if it is no such answer.
pub fn found(reply: Doc<'_>) -> Option<BTreeSet<SessionId>> {
    let batch = reply.get_doc("cursor")?.get_array("firstBatch")?;
    let mut found = BTreeSet::new();
    for document in batch.iter() {
        let ValueRef::Document(document) = document else {
            return None;
        };
        found.insert(SessionId::parse("_id", document.get_doc("_id")?).ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_read_from_the_answer() {
        let ids = [SessionId::new([1; 16]), SessionId::new([2; 16])];
        let mut reply = DocWriter::new();
        reply.begin_document("cursor").begin_array("firstBatch");
        reply.push_document();
        ids[1].append(&mut reply, "_id");
        reply.end().end().end();
        let reply = reply.finish();
        assert_eq!(found(reply.as_doc()), Some(BTreeSet::from([ids[1]])));
        assert_eq!(found(Doc::EMPTY), None);
        let asked = look_up(&ids).finish();
        assert_eq!(asked.get("batchSize"), Some(ValueRef::Int64(2)));
    }

    #[test]
    fn a_lifetime_is_read_from_the_index() {
        let index = index(1800);
        assert_eq!(lifetime([Doc::EMPTY, index.as_doc()]), Some(1800));
        assert_eq!(lifetime([Doc::EMPTY]), None);
    }
}
