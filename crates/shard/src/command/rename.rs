//! `renameCollection`: one entry of the log, within a database and across.
//!
//! The namespace is only a field of the catalog document, so no data moves.
//! Within a database the collection keeps its UUID; across databases it gets a
//! new one, as MongoDB's copy does.

use super::arguments::{arguments, missing};
use super::drop::uuid_bytes;
use super::insert::check_target;
use super::{Answer, Invocation, finish};
use model::bson::{Kind, ValueRef};
use model::{Code, Error, Namespace};
use wire::Reply;

pub(crate) async fn rename_collection(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let from = match body.first().map(|element| element.value()) {
        Some(ValueRef::String(from)) => from,
        other => {
            let kind = other.map_or("missing", |value| value.kind().name());
            return Err(Error::bad_value(format!(
                "collection name has invalid type {kind}"
            )));
        }
    };
    let (mut to, mut drop_target, mut uuid) = (None, false, None);
    for argument in arguments("renameCollection", body) {
        match argument.name() {
            "to" => to = Some(argument.string()?),
            "dropTarget" => match argument.value().kind() {
                Kind::Boolean => drop_target = argument.boolean()?,
                Kind::Binary => drop_target = true,
                _ => return Err(argument.wrong_type("[bool, binData]")),
            },
            "stayTemp" => {
                argument.loose_boolean()?;
            }
            "collectionUUID" => uuid = Some(uuid_bytes(&argument)?),
            _ => return Err(argument.unknown()),
        }
    }
    let to = to.ok_or_else(|| missing("renameCollection", "to"))?;
    let from = well_formed(from, "Invalid namespace specified", "source")?;
    let to = well_formed(to, "Invalid target namespace:", "target")?;
    if from == to {
        return Err(illegal("Can't rename a collection to itself"));
    }
    if from.as_str() == "admin.system.version" {
        return Err(illegal(
            "renaming the server configuration collection (admin.system.version) is not allowed",
        ));
    }
    check_end(&from, "source")?;
    check_end(&to, "target")?;
    for end in [&from, &to] {
        invocation.shard.check_writable(end, "renameCollection")?;
    }
    invocation
        .shard
        .rename_collection(&from, &to, (drop_target, uuid), Some(invocation.operation))
        .await?;
    finish(Reply::writer())
}

fn illegal(message: impl Into<String>) -> Error {
    Error::new(Code::ILLEGAL_OPERATION, message)
}

/// A database, a dot and a collection; what the two may be is asked later.
fn well_formed(text: &str, complaint: &str, end: &str) -> Result<Namespace, Error> {
    let invalid = || {
        let text = if end == "source" {
            format!("{complaint} '{text}'")
        } else {
            format!("{complaint} {text}")
        };
        Error::new(Code::INVALID_NAMESPACE, text)
    };
    let (database, collection) = text.split_once('.').ok_or_else(invalid)?;
    if collection.is_empty() || model::namespace::check_database(database).is_err() {
        return Err(invalid());
    }
    Namespace::new(database, collection)
        .map_err(|error| illegal(format!("error with {end} namespace: {}", error.message)))
}

fn check_end(namespace: &Namespace, end: &str) -> Result<(), Error> {
    check_target(namespace)
        .map_err(|error| illegal(format!("error with {end} namespace: {}", error.message)))
}
