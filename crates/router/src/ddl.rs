//! Commands that change the catalog: the config server decides them for the whole cluster.
//!
//! What concerns an unsharded collection alone (`create`, `collMod`, `createIndexes`,
//! `dropIndexes`) goes to its database's primary shard. Everything else travels as `_configsvrDdl`, with an id by
//! which it is asked again where an answer is lost (`persistence.rs`).
//! Afterwards what this router knows of the names involved is forgotten: it asks again when needed.

use crate::failure::{Failure, is_ok};
use crate::find::no_progress;
use crate::request::fields_without;
use crate::scatter::Answered;
use crate::targeting::namespace_of;
use crate::{Router, STALE_RETRIES_MAX, persistence, time_limit};
use model::bson::{DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use wire::{Reply, Request};

/// Hands a command to the config server.
pub(crate) async fn forward(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let command = fields_without(request.body(), &[]).finish();
    let limit = time_limit::of(request);
    let answered =
        persistence::carry_out(router, request.database(), command.as_doc(), limit).await;
    // Whatever is known of it.
    forget(router, request);
    let reply = answered?;
    router.clock.observe(reply.document());
    if matches!(
        request.name(),
        "addShard" | "addshard" | "removeShard" | "removeshard"
    ) && is_ok(reply.document())
        && let Err(error) = router.registry.reload(&router.config).await
    {
        // It is read again now and then, and the answer is what it is.
        tracing::debug!("config.shards was not read after a change: {error}");
    }
    let mut for_client = DocWriter::new();
    for element in reply.document().iter() {
        if element.key() != "$configTime" {
            for_client.append_element(&element);
        }
    }
    Ok(Reply::from(for_client.finish()))
}

/// Forgets what a command may have changed, whether it succeeded or not.
fn forget(router: &Router, request: &Request) {
    let body = request.body();
    let first = match body.first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => name,
        _ => "",
    };
    let collection = |name: &str| {
        if let Ok(namespace) = Namespace::parse(name) {
            router.routing.forget_collection(&namespace);
        }
    };
    match request.name() {
        "dropDatabase" => router.routing.forget_all(Some(request.database())),
        "drop" | "collMod" | "createIndexes" | "dropIndexes" | "deleteIndexes" | "create" => {
            if let Ok(namespace) = Namespace::new(request.database(), first) {
                router.routing.forget_collection(&namespace);
            }
        }
        "enableSharding" | "enablesharding" | "movePrimary" | "moveprimary" => {
            router.routing.forget_all(Some(first));
        }
        "renameCollection" => {
            collection(first);
            collection(body.get_str("to").unwrap_or_default());
        }
        // Their first field is a whole namespace; versions tell about splits and merges.
        "shardCollection"
        | "shardcollection"
        | "refineCollectionShardKey"
        | "reshardCollection" => collection(first),
        _ => {}
    }
}

/// The reply about indexes with that of the one shard in `raw`, as MongoDB's routers answer. (Those before 7.1 have
/// `raw` alone; what the shard says is told beside it, so that a program need not know whom it asks.)
fn with_raw(router: &Router, command: &str, answered: Answered) -> Reply {
    if !matches!(command, "createIndexes" | "dropIndexes" | "deleteIndexes") {
        return answered.reply;
    }
    let connections = router.registry.connection_strings();
    let connection = connections
        .iter()
        .find(|(id, _)| id == answered.shard.as_str());
    let said = answered.reply.document();
    let is_gossip = |name: &str| name.starts_with('$') || name == "operationTime";
    let mut writer = Reply::writer();
    for element in said.iter() {
        if element.key() == "ok" {
            let connection = connection.map_or(answered.shard.as_str(), |(_, text)| text);
            writer.begin_document("raw").begin_document(connection);
            for element in said.iter().filter(|element| !is_gossip(element.key())) {
                writer.append_element(&element);
            }
            writer.end().end();
        }
        writer.append_element(&element);
    }
    Reply::from_writer(writer)
}

/// `create`, `collMod`, `createIndexes`, `dropIndexes`: on the primary shard if the collection is
/// not sharded.
pub(crate) async fn on_collection(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = namespace_of(request.body(), request.database())?;
    let create = matches!(request.name(), "create" | "createIndexes");
    for _ in 0..STALE_RETRIES_MAX {
        let everywhere = |route: &crate::routing::Route| Ok(route.all());
        let routed = router.route_to(&namespace, create, everywhere).await?;
        let Some((route, shards)) = routed else {
            let message = format!("ns does not exist: {namespace}");
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
        };
        if route.table().is_some() && request.name() == "create" {
            let message = format!("Collection {namespace} already exists.");
            return Err(Error::new(Code::NAMESPACE_EXISTS, message).into());
        }
        if route.table().is_some() {
            return forward(router, request).await;
        }
        let shard = &shards[0];
        let sent = route.request(request, shard, &router.clock)?;
        match router.ask(shard, sent).await {
            Ok(answered) => return Ok(with_raw(router, request.name(), answered)),
            Err(Failure::Stale(stale)) => router.routing.note(&namespace, &stale),
            Err(failure) => return Err(failure),
        }
    }
    Err(no_progress())
}
