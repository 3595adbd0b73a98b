//! `drop` and `dropDatabase`.

use super::arguments::{Argument, arguments};
use super::{Answer, Invocation, finish};
use crate::ddl::{Telling, check_uuid, refuse_part};
use model::bson::ValueRef;
use model::number::Number;
use model::{Code, Error, Namespace};
use wire::Reply;

pub(crate) async fn drop(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut uuid = None;
    for argument in arguments("drop", invocation.request.body()) {
        match argument.name() {
            "collectionUUID" => uuid = Some(uuid_bytes(&argument)?),
            _ => return Err(argument.unknown()),
        }
    }
    if namespace.as_str() == "config.transactions" {
        refuse_in_session(invocation)?;
        invocation.shard.drop_session_documents().await?;
        let mut writer = Reply::writer();
        writer
            .append("nIndexesWas", 1)
            .append("ns", namespace.as_str());
        return finish(writer);
    }
    if invocation.shard.catalog.get(&namespace).is_some() {
        check_droppable(&namespace)?;
    }
    // ⚑ Looked at while nobody else changes collections: who names a UUID drops that one, or none.
    let is_here = || {
        invocation.check_database_route()?;
        match uuid {
            Some(uuid) => check_uuid(invocation.shard.catalog.get(&namespace).as_ref(), uuid),
            None => Ok(()),
        }
    };
    let operation = Some(&**invocation.operation);
    let dropped = (invocation.shard).drop_collection(&namespace, is_here, operation);
    let Some(dropped) = dropped.await? else {
        return Err(Error::new(Code::NAMESPACE_NOT_FOUND, "ns not found"));
    };
    let mut writer = Reply::writer();
    writer
        .append("nIndexesWas", dropped.indexes.len() as i32)
        .append("ns", namespace.as_str());
    finish(writer)
}

fn check_droppable(namespace: &Namespace) -> Result<(), Error> {
    let name = namespace.collection();
    let may_go = matches!(name, "system.profile" | "system.views")
        || namespace.as_str() == cluster::sessions::NAMESPACE;
    if name.starts_with("system.") && !may_go {
        return Err(Error::new(
            Code::ILLEGAL_OPERATION,
            format!("can't drop system collection {namespace}"),
        ));
    }
    Ok(())
}

pub(super) fn uuid_bytes<'a>(argument: &Argument<'a>) -> Result<&'a [u8], Error> {
    match argument.value() {
        ValueRef::Binary { subtype: 4, bytes } => Ok(bytes),
        _ => Err(argument.wrong_type("binData")),
    }
}

pub(crate) async fn drop_database(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let given = body.first().map(|element| element.value());
    match given.and_then(Number::of) {
        None => {
            let kind = given.map_or("missing", |value| value.kind().name());
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'dropDatabase.dropDatabase' is the wrong type '{kind}', expected \
                     types '[long, int, decimal, double']"
                ),
            ));
        }
        Some(number) if number.to_f64() != 1.0 => {
            return Err(Error::location(
                5_255_100,
                "Have to pass 1 as 'drop' parameter",
            ));
        }
        Some(_) => {}
    }
    if let Some(argument) = arguments("dropDatabase", body).next() {
        return Err(argument.unknown());
    }
    let database = invocation.request.database();
    if database == "admin" {
        return Err(Error::new(
            Code::ILLEGAL_OPERATION,
            "Dropping the 'admin' database is prohibited.",
        ));
    }
    if database == "local" {
        return Err(Error::new(
            Code::ILLEGAL_OPERATION,
            "Cannot drop 'local' database while replication is active",
        ));
    }
    // What sessions have written is there, also what this one has.
    if database == "config" {
        refuse_in_session(invocation)?;
    }
    let shard = invocation.shard;
    for collection in shard.catalog.current().database(database) {
        refuse_part("dropDatabase", collection)?;
    }
    shard.drop_database(database, Telling::Aloud).await?;
    finish(Reply::writer())
}

/// What is kept of sessions is not dropped by one of them.
fn refuse_in_session(invocation: &Invocation<'_>) -> Result<(), Error> {
    match invocation.request.body().get("lsid") {
        None => Ok(()),
        Some(_) => Err(Error::location(
            40528,
            "Direct writes against config.transactions cannot be performed using a transaction or \
             on a session.",
        )),
    }
}
