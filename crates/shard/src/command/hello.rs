//! `hello` and its older spelling `isMaster`: what drivers ask first and keep
//! asking.
//!
//! A driver that watches the server sends the topology version it knows and how
//! long it is ready to wait; the reply then comes when something changed or the
//! time is over. Nothing about one member ever changes, so it waits the time out
//! (or until the client goes away). With `exhaustAllowed` the replies continue
//! without being asked for.

use super::{Answer, Invocation};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use std::time::Duration;
use wire::{Compressor, Reply, Request};

const MAX_WIRE_VERSION: i32 = 17;
const MAX_WRITE_BATCH: i32 = 100_000;
const SESSION_TIMEOUT_MINUTES: i32 = 30;

pub(crate) async fn hello(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    note_client(invocation, body)?;
    let compressors = negotiate(invocation, body)?;
    let waits = await_change(invocation, body).await?;

    let mut writer = Reply::writer();
    if body.get("helloOk") == Some(ValueRef::Boolean(true)) {
        writer.append("helloOk", true);
    }
    let primary = match invocation.request.name() {
        "hello" => "isWritablePrimary",
        _ => "ismaster",
    };
    writer.append(primary, true);
    append_topology_version(&mut writer, invocation);
    writer
        .append("maxBsonObjectSize", model::bson::MAX_DOCUMENT_BYTES as i32)
        .append("maxMessageSizeBytes", 48_000_000)
        .append("maxWriteBatchSize", MAX_WRITE_BATCH)
        .append(
            "localTime",
            ValueRef::DateTime(invocation.shard.clock.now_ms()),
        )
        .append("logicalSessionTimeoutMinutes", SESSION_TIMEOUT_MINUTES)
        .append("connectionId", invocation.connection.id() as i32)
        .append("minWireVersion", 0)
        .append("maxWireVersion", MAX_WIRE_VERSION)
        .append("readOnly", false);
    if let Some(compressors) = compressors {
        writer.begin_array("compression");
        for compressor in compressors {
            writer.push(compressor.name());
        }
        writer.end();
    }
    writer.append("ok", 1.0);
    let reply = Reply::from_writer(writer);
    if waits && invocation.request.exhaust_allowed() {
        return Ok(reply.then(next_request(invocation)?));
    }
    Ok(reply)
}

/// The request that continues a stream is the same one again.
fn next_request(invocation: &Invocation<'_>) -> Result<Request, Error> {
    Ok(invocation.request.clone())
}

fn append_topology_version(writer: &mut DocWriter, invocation: &Invocation<'_>) {
    writer
        .begin_document("topologyVersion")
        .append("processId", invocation.shard.process_id)
        .append("counter", 0i64)
        .end();
}

/// Keeps what the client says about itself; only its first `hello` may.
fn note_client(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<(), Error> {
    let connection = invocation.connection;
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
        // The first hello has passed without a word about the client.
        (None, None) => DocBuf::new(),
    };
    // A connection sends one command at a time: nobody else has set it.
    let _ = connection.set_client_metadata(client);
    Ok(())
}

fn negotiate(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<Option<Vec<Compressor>>, Error> {
    let Some(offered) = body.get("compression") else {
        return Ok(None);
    };
    let ValueRef::Array(offered) = offered else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            "compression must be an array of names",
        ));
    };
    let names = offered.iter().filter_map(|name| match name {
        ValueRef::String(name) => Some(name),
        _ => None,
    });
    let agreed = invocation.connection.negotiate_compressors(names);
    Ok((!agreed.is_empty()).then_some(agreed))
}

/// Waits as a watching client asks for; tells whether it asked.
async fn await_change(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<bool, Error> {
    let known = body.get_doc("topologyVersion");
    let wait_ms = body
        .get("maxAwaitTimeMS")
        .and_then(model::number::Number::of)
        .map(|n| n.to_f64());
    let (known, wait_ms) = match (known, wait_ms) {
        (Some(known), Some(wait_ms)) => (known, wait_ms),
        (None, None) => return Ok(false),
        (Some(_), None) | (None, Some(_)) => {
            return Err(Error::location(
                31368,
                "topologyVersion and maxAwaitTimeMS go together",
            ));
        }
    };
    if !(0.0..=f64::from(i32::MAX)).contains(&wait_ms) {
        return Err(Error::location(
            31373,
            "maxAwaitTimeMS must be a non-negative integer",
        ));
    }
    // Another process id: the client knows an earlier life of this server.
    let current = known.get("processId") == Some(ValueRef::ObjectId(invocation.shard.process_id));
    if current {
        let wait = Duration::from_millis(wait_ms as u64);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = invocation.connection.closed() => {}
            () = invocation.shard.shutdown_begun() => {}
        }
    }
    Ok(true)
}
