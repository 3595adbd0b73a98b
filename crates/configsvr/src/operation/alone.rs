//! What a database's primary shard does alone, with a collection that is not sharded.
//!
//! It is a step of an operation, with the state document before it. ⚑ A shard that drops or renames is told the UUID of
//! the collection that was there when the operation began (changes of indexes and options are not: done again they do
//! nothing): asked again, because an answer was lost or a primary of the config server, it
//! does nothing to another collection that has got the name since. That the one that was meant is not there any more
//! says then that it was done.
//!
//! A shard that nobody reaches is not waited for if nothing was asked of it before: the client is told, and nothing
//! has happened.

use crate::documents::uuid_value;
use crate::error::Fault;
use crate::tenure::Tenure;
use cluster::routing::ShardId;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;

/// What a shard says to its part.
pub(super) enum Said {
    Done(DocBuf),
    /// By an earlier attempt, whose answer nobody has.
    DoneBefore,
    Refused(Fault),
}

/// Asks once. `again` if it may have been asked before; these codes say then that it was done.
pub(super) async fn ask(
    tenure: &Tenure,
    (shard, database): (&ShardId, &str),
    command: Doc<'_>,
    (again, done_before): (bool, &[Code]),
) -> Result<Said, Fault> {
    match tenure.ask(shard, database, command).await {
        Ok(reply) => Ok(Said::Done(without_times(&reply))),
        Err(Fault::Refused(error)) if again && done_before.contains(&error.code) => {
            Ok(Said::DoneBefore)
        }
        Err(fault @ Fault::Refused(_)) => Ok(Said::Refused(fault)),
        // It never reached anybody.
        Err(Fault::Unreachable(error)) if !again && error.code == Code::HOST_UNREACHABLE => {
            Ok(Said::Refused(Fault::Unreachable(error)))
        }
        Err(fault) => Err(fault),
    }
}

/// A client's command without what belongs to its message. Shards answer for their majority: a write concern that
/// can't be met there would be asked for again and again, and hold up all operations behind this one.
pub(super) fn without_message(command: Doc<'_>) -> DocBuf {
    let mut kept = DocWriter::new();
    for element in command.iter() {
        if !matches!(
            element.key(),
            "$db" | "lsid" | "$clusterTime" | "txnNumber" | "maxTimeMS" | "writeConcern"
        ) {
            kept.append_element(&element);
        }
    }
    kept.finish()
}

/// The command, for the collection with this UUID and no other.
pub(super) fn only_for(command: Doc<'_>, uuid: &Uuid) -> DocBuf {
    let mut meant = DocWriter::new();
    for element in command.iter() {
        if element.key() != "collectionUUID" {
            meant.append_element(&element);
        }
    }
    meant.with("collectionUUID", uuid_value(uuid)).finish()
}

/// Whether a client's command does not expect another collection than the one with this UUID.
pub(super) fn may_mean(command: Doc<'_>, uuid: Uuid) -> bool {
    match command.get("collectionUUID") {
        None => true,
        Some(ValueRef::Binary { bytes, .. }) => bytes == uuid.0,
        Some(_) => false,
    }
}

/// What is wrong with the collection that a command expects.
pub(super) fn another_uuid(command: Doc<'_>) -> Fault {
    let name = command.first().map_or("", |first| first.key());
    if let Some(value) = command.get("collectionUUID")
        && !matches!(value, ValueRef::Binary { subtype: 4, .. })
    {
        let kind = value.kind().name();
        return Fault::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{name}.collectionUUID' is the wrong type '{kind}', expected type 'binData'"
            ),
        );
    }
    Fault::new(
        Code::COLLECTION_UUID_MISMATCH,
        "Collection UUID does not match that specified",
    )
}

/// A shard's reply as that of the cluster: the shard's times mean nothing to clients.
pub(super) fn without_times(reply: &DocBuf) -> DocBuf {
    let mut kept = DocWriter::new();
    for element in reply.iter() {
        if !matches!(element.key(), "operationTime" | "$clusterTime") {
            kept.append_element(&element);
        }
    }
    kept.finish()
}
