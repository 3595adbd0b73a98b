//! `hello` of a router: no replica set, and the message by which drivers know one.

use crate::Router;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::error::{Code, Error};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::{AwaitedHello, ConnectionInfo, Reply, Request};

const MAX_WIRE_VERSION: i32 = 17;

pub(crate) async fn hello(
    router: &Router,
    connection: &ConnectionInfo,
    request: &Request,
) -> Result<Reply, Error> {
    let body = request.body();
    note_client(connection, body)?;
    let compressors = match body.get_array("compression") {
        Some(offered) => {
            let names = offered.iter().filter_map(|name| match name {
                ValueRef::String(name) => Some(name),
                _ => None,
            });
            connection.negotiate_compressors(names)
        }
        None => Vec::new(),
    };
    let waits = await_change(router, connection, body).await?;
    if let Some(error) = router.quiescing(body) {
        return Err(error);
    }
    let mut writer = Reply::writer();
    let primary = match request.name() {
        "hello" => "isWritablePrimary",
        _ => "ismaster",
    };
    writer.append(primary, true).append("msg", "isdbgrid");
    if body.get("helloOk") == Some(ValueRef::Boolean(true)) {
        writer.append("helloOk", true);
    }
    append_topology_version(&mut writer, router);
    writer
        .append("maxBsonObjectSize", model::bson::MAX_DOCUMENT_BYTES as i32)
        .append(
            "maxMessageSizeBytes",
            wire::protocol::MESSAGE_BYTES_MAX as i32,
        )
        .append(
            "maxWriteBatchSize",
            wire::protocol::WRITE_BATCH_COUNT_MAX as i32,
        )
        .append("localTime", ValueRef::DateTime(now_ms()))
        .append(
            "logicalSessionTimeoutMinutes",
            router.sessions.timeout_minutes(),
        )
        .append("connectionId", connection.id() as i32)
        .append("maxWireVersion", MAX_WIRE_VERSION)
        .append("minWireVersion", 0);
    if !compressors.is_empty() {
        writer.begin_array("compression");
        for compressor in compressors {
            writer.push(compressor.name());
        }
        writer.end();
    }
    writer.append("ok", 1.0);
    let reply = Reply::from_writer(writer);
    if waits && request.exhaust_allowed() {
        let mut next = DocWriter::new();
        for element in body.iter() {
            match element.key() {
                "topologyVersion" => append_topology_version(&mut next, router),
                _ => {
                    next.append_element(&element);
                }
            }
        }
        return Ok(reply.then(Request::from_parts(next.finish(), Vec::new())?));
    }
    Ok(reply)
}

/// A router's topology changes once: when it is about to stop.
pub(crate) fn append_topology_version(writer: &mut DocWriter, router: &Router) {
    let counter = i64::from(*router.ending.borrow());
    writer
        .begin_document("topologyVersion")
        .append("processId", router.process_id)
        .append("counter", counter)
        .end();
}

/// Keeps what the client says about itself; only its first `hello` may.
fn note_client(connection: &ConnectionInfo, body: Doc<'_>) -> Result<(), Error> {
    let client = match (body.get("client"), connection.client_metadata()) {
        (Some(_), Some(_)) => {
            return Err(Error::new(
                Code::CLIENT_METADATA_CANNOT_BE_MUTATED,
                "The client metadata document may only be sent in the first hello",
            ));
        }
        (None, Some(_)) => return Ok(()),
        (Some(ValueRef::Document(client)), None) => client.to_owned(),
        (Some(_), None) => {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "The client metadata document must be an object",
            ));
        }
        (None, None) => DocBuf::new(),
    };
    // A connection sends one command at a time: nobody else has set it.
    let _ = connection.set_client_metadata(client);
    Ok(())
}

/// Waits as a watching client asks for, for the one change there is; tells whether it asked.
async fn await_change(
    router: &Router,
    connection: &ConnectionInfo,
    body: Doc<'_>,
) -> Result<bool, Error> {
    let Some(asked) = AwaitedHello::parse("hello", body)? else {
        return Ok(false);
    };
    // Another process id: the client knows an earlier life of this router.
    if asked.process_id != router.process_id {
        return Ok(true);
    }
    tokio::select! {
        () = tokio::time::sleep(asked.wait) => {}
        () = connection.closed() => {}
        () = router.ending() => {}
    }
    Ok(true)
}

pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

/// A new id: seconds, five random bytes, a counter.
pub(crate) fn object_id() -> ObjectId {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&((now_ms() / 1000) as u32).to_be_bytes());
    bytes[4..9].copy_from_slice(&fastrand::u64(..).to_be_bytes()[..5]);
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    bytes[9..].copy_from_slice(&counter.to_be_bytes()[1..]);
    ObjectId(bytes)
}
