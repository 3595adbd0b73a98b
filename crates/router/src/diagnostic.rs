//! Commands about the server itself, and what is told to everybody.
//!
//! What a router has no answer of its own for, the config server's answer stands for.

use crate::Router;
use crate::failure::{Failure, is_ok};
use crate::operation;
use crate::request::fields_without;
use crate::scatter::{Answered, Look};
use cluster::routing::ShardId;
use model::error::{Code, Error};
use wire::operation::only_reads;
use wire::{ConnectionInfo, Reply, Request};

/// Lets the config server answer, and remembers its cursor.
pub(crate) async fn ask_config(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let mut writer = fields_without(request.body(), &[]);
    router.clock.append_to(&mut writer);
    let sent = Request::from_parts(writer.finish(), request.sequences().to_vec())?;
    let endpoint = &router.config.endpoint;
    let answered = match only_reads(request.name()) {
        true => operation::waiting(endpoint.open(sent)).await?,
        false => endpoint.open(sent).await,
    };
    let answer = answered.map_err(|error| {
        let message = format!("the config server: {error}");
        Error::new(Code::HOST_UNREACHABLE, message)
    })?;
    router.clock.observe(answer.reply.document());
    if !is_ok(answer.reply.document()) {
        return Err(Failure::Reply(answer.reply));
    }
    let answered = Answered {
        shard: ShardId::new("config"),
        look: Look::at(answer.reply.document()),
        reply: answer.reply,
        member: answer.member.unwrap_or_else(|| endpoint.clone()),
    };
    Ok(router.keep_passed(request, answered))
}

/// Tells the config server and all shards; the config server's answer stands for all.
pub(crate) async fn tell_everybody(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let mut requests = Vec::new();
    for shard in router.registry.all(&router.config).await? {
        let mut writer = fields_without(request.body(), &[]);
        router.clock.append_to(&mut writer);
        requests.push((shard.id, Request::from_parts(writer.finish(), Vec::new())?));
    }
    for answered in router.ask_all(requests).await? {
        answered?;
    }
    ask_config(router, request).await
}

pub(crate) fn whats_my_uri(connection: &ConnectionInfo) -> Reply {
    let peer = connection.peer().map(|peer| peer.to_string());
    let writer = Reply::writer().with("you", peer.unwrap_or_default().as_str());
    Reply::from_writer(writer.with("ok", 1.0))
}
