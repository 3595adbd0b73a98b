//! `hello` and its older spelling `isMaster`: what drivers ask first and keep
//! asking.
//!
//! A driver that watches the server sends the topology version it knows and how
//! long it is ready to wait; the reply then comes when something changed or the
//! time is over (or the client goes away). With `exhaustAllowed` the replies
//! continue without being asked for, each as soon as there is news.

use super::placement::{append_topology_version, shutting_down};
use super::{Answer, Invocation};
use crate::Shard;
use crate::replica_set::configuration::Configuration;
use crate::replica_set::{Topology, election_id};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use replication::{Role, Term};
use std::time::Instant;
use wire::{AwaitedHello, Compressor, ConnectionInfo, Reply, Request};

const MAX_WIRE_VERSION: i32 = 17;
const MAX_WRITE_BATCH: i32 = 100_000;

pub(crate) async fn hello(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    note_client(invocation, body)?;
    let compressors = negotiate(invocation, body)?;
    let waits = await_change(invocation, body).await?;
    let topology = invocation.shard.replica_set.topology();
    if let Some(until) = topology.quiesces_until {
        return Err(quiescing(until));
    }

    let mut writer = Reply::writer();
    if body.get("helloOk") == Some(ValueRef::Boolean(true)) {
        writer.append("helloOk", true);
    }
    append_topology_version(&mut writer, invocation.shard.process_id, &topology);
    let me = invocation.shard.replica_set.host();
    let configuration = topology.configuration.as_deref();
    match configuration.filter(|now| now.member_at(me).is_some()) {
        Some(configuration) => append_set(
            &mut writer,
            invocation.shard,
            configuration,
            topology.role,
            primary_field(invocation),
        ),
        None => {
            writer
                .append(primary_field(invocation), false)
                .append("secondary", false)
                .append("info", "Does not have a valid replica set config")
                .append("isreplicaset", true);
        }
    }
    append_limits(
        &mut writer,
        invocation.connection,
        invocation.shard.clock.now_ms(),
        invocation.shard.session_timeout_minutes(),
    );
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
        return Ok(reply.then(next_request(invocation, &topology)?));
    }
    Ok(reply)
}

/// What clients may send, and what they should know of the server and the connection.
pub(crate) fn append_limits(
    writer: &mut DocWriter,
    connection: &ConnectionInfo,
    now_ms: i64,
    session_timeout_minutes: i32,
) {
    writer
        .append("maxBsonObjectSize", model::bson::MAX_DOCUMENT_BYTES as i32)
        .append("maxMessageSizeBytes", 48_000_000)
        .append("maxWriteBatchSize", MAX_WRITE_BATCH)
        .append("localTime", ValueRef::DateTime(now_ms))
        .append("logicalSessionTimeoutMinutes", session_timeout_minutes)
        .append("connectionId", connection.id() as i32)
        .append("minWireVersion", 0)
        .append("maxWireVersion", MAX_WIRE_VERSION)
        .append("readOnly", false);
}

/// The field by which a member says that it is the primary.
fn primary_field(invocation: &Invocation<'_>) -> &'static str {
    match invocation.request.name() {
        "hello" => "isWritablePrimary",
        _ => "ismaster",
    }
}

/// A member that is given the whole state is neither primary nor secondary meanwhile.
fn is_secondary(role: Role) -> bool {
    match role {
        Role::Follower { .. } | Role::Candidate { .. } => true,
        Role::Leader { .. } | Role::Installing { .. } | Role::Gone => false,
    }
}

/// The set, and this member's part in it.
pub(crate) fn append_set(
    writer: &mut DocWriter,
    shard: &Shard,
    configuration: &Configuration,
    role: Role,
    primary_field: &str,
) {
    let shown = || configuration.members.iter().filter(|member| !member.hidden);
    for (name, electable) in [("hosts", true), ("passives", false)] {
        let mut hosts = shown()
            .filter(|member| member.is_electable() == electable)
            .peekable();
        if hosts.peek().is_some() {
            writer.begin_array(name);
            for member in hosts {
                writer.push(member.host.as_str());
            }
            writer.end();
        }
    }
    let me = shard.replica_set.host();
    writer
        .append("setName", configuration.name.as_str())
        .append("setVersion", configuration.version)
        .append(primary_field, role.is_leader())
        .append("secondary", is_secondary(role));
    let primary = match role {
        Role::Leader { .. } => Some(me),
        Role::Follower { leader, .. } => leader
            .and_then(|leader| configuration.member_in_log(leader))
            .map(|leader| leader.host.as_str()),
        Role::Candidate { .. } | Role::Installing { .. } | Role::Gone => None,
    };
    if let Some(primary) = primary {
        writer.append("primary", primary);
    }
    if let Some(member) = configuration.member_at(me) {
        if !member.is_electable() {
            writer.append("passive", true);
        }
        if member.hidden {
            writer.append("hidden", true);
        }
        if !member.tags.is_empty() {
            writer.begin_document("tags");
            for (name, value) in &member.tags {
                writer.append(name, value.as_str());
            }
            writer.end();
        }
    }
    writer.append("me", me);
    if let Role::Leader { term } = role {
        writer.append("electionId", election_id(term));
    }
    append_last_write(writer, shard.store.applied_time(), shard.log.term());
}

/// What is applied is what a majority has: the two are always the same here.
fn append_last_write(writer: &mut DocWriter, time: ClusterTime, term: Term) {
    writer.begin_document("lastWrite");
    for (operation, date) in [
        ("opTime", "lastWriteDate"),
        ("majorityOpTime", "majorityWriteDate"),
    ] {
        writer
            .begin_document(operation)
            .append("ts", time)
            .append("t", i64::try_from(term.get()).unwrap_or(i64::MAX))
            .end()
            .append(date, ValueRef::DateTime(i64::from(time.seconds()) * 1000));
    }
    writer.end();
}

/// The request that continues a stream: the same one, which now knows what the
/// reply before it has said.
fn next_request(invocation: &Invocation<'_>, topology: &Topology) -> Result<Request, Error> {
    let mut body = DocWriter::new();
    for element in invocation.request.body().iter() {
        if element.key() == "topologyVersion" {
            append_topology_version(&mut body, invocation.shard.process_id, topology);
        } else {
            body.append_element(&element);
        }
    }
    Request::from_parts(body.finish(), Vec::new())
}

/// A member that is about to stop says so instead of what it is.
fn quiescing(until: Instant) -> Error {
    let left = until.saturating_duration_since(Instant::now());
    let left_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
    let details = DocWriter::new().with("remainingQuiesceTimeMillis", left_ms);
    shutting_down().with_details(details.finish())
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
    let Some(asked) = AwaitedHello::parse(invocation.request.name(), body)? else {
        return Ok(false);
    };
    invocation.operation.set_waits_for_news();
    // Another process id: the client knows an earlier life of this server.
    if asked.process_id != invocation.shard.process_id {
        return Ok(true);
    }
    let counter = asked.counter;
    let mut topology = invocation.shard.replica_set.watch();
    if counter > topology.borrow().version {
        return Err(Error::location(
            31382,
            format!(
                "Received a topology version with counter: {counter} which is greater than the server topology version counter"
            ),
        ));
    }
    tokio::select! {
        // The sender lives in the shard, so this ends only by the value.
        _ = topology.wait_for(|topology| topology.version > counter) => {}
        () = tokio::time::sleep(asked.wait) => {}
        () = invocation.connection.closed() => {}
        () = invocation.shard.shutdown_begun() => {}
    }
    Ok(true)
}
