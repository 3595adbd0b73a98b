//! What there is: shards, databases, collections, indexes.
//!
//! A sharded collection need not be on its database's primary shard: of those that it does not tell,
//! `listCollections` asks an owner. Shards that have nothing to add are not asked, so they may be away.

use crate::config::Database;
use crate::failure::Failure;
use crate::find::{CursorOptions, no_progress, open_streams, whole};
use crate::merge::{Batch, Merge, Shared};
use crate::request::{fields_without, stamp_database};
use crate::targeting::namespace_of;
use crate::{Router, STALE_RETRIES_MAX};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{BoxFuture, Reply, Request};

/// Documents that are there already, as a cursor.
pub(crate) struct Listed(pub(crate) VecDeque<DocBuf>);

impl Merge for Listed {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        while let Some(document) = self.0.front() {
            if !batch.offer(document.as_doc()) {
                return Box::pin(async { Ok(false) });
            }
            self.0.pop_front();
        }
        Box::pin(async { Ok(true) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn set_batch_size(&mut self, _batch_size: Option<u64>) {}
}

/// What a command says about its cursor in a `cursor` document.
pub(crate) fn cursor_options(body: Doc<'_>) -> CursorOptions {
    let size = body.get_doc("cursor").and_then(|doc| doc.get("batchSize"));
    CursorOptions {
        batch_size: size.and_then(|size| whole(Some(size))),
        session: body.get_doc("lsid").map(Doc::to_owned),
        ..CursorOptions::default()
    }
}

pub(crate) async fn list_collections(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let name = request.database();
    let listing = format!("{name}.$cmd.listCollections");
    for _ in 0..STALE_RETRIES_MAX {
        let Some(database) = router.routing.database(name, false).await? else {
            let options = cursor_options(request.body());
            let nothing = Box::new(Listed(VecDeque::new()));
            let reply = router.first_batch(&listing, nothing, options).await?;
            return Ok(with_id_first(reply.document()));
        };
        let sharded = sharded_collections(router, name).await?;
        let listed = match sharded.is_empty() {
            true => {
                let mut writer = fields_without(request.body(), &[]);
                stamp_database(&mut writer, &database);
                router.clock.append_to(&mut writer);
                let sent = Request::from_parts(writer.finish(), Vec::new())?;
                let answered = router.ask(&database.primary, sent).await;
                answered.map(|answered| router.keep_passed(request, answered))
            }
            false => list_everywhere(router, request, &database, &sharded, &listing).await,
        };
        match listed {
            Err(Failure::Stale(_)) => router.routing.forget_database(name),
            other => return other,
        }
    }
    Err(no_progress())
}

/// The names of the sharded collections of a database.
async fn sharded_collections(router: &Router, database: &str) -> Result<BTreeSet<String>, Error> {
    let (low, high) = (format!("{database}."), format!("{database}/"));
    let mut command = DocWriter::new().with("find", "collections");
    command
        .begin_document("filter")
        .begin_document("_id")
        .append("$gte", low.as_str())
        .append("$lt", high.as_str())
        .end()
        .end()
        .begin_document("projection")
        .append("_id", 1)
        .end()
        .append("$db", "config");
    let found = router.config.find_all(command).await?;
    let name = |doc: &DocBuf| Some(doc.as_doc().get_str("_id")?[low.len()..].to_owned());
    Ok(found.iter().filter_map(name).collect())
}

async fn list_everywhere(
    router: &Router,
    request: &Request,
    database: &Database,
    sharded: &BTreeSet<String>,
    listing: &str,
) -> Result<Reply, Failure> {
    let mut shards = router.registry.all(&router.config).await?;
    // The primary first: what it has of a collection is what is told.
    shards.sort_by_key(|shard| shard.id != database.primary);
    let mut documents = VecDeque::new();
    let mut seen = BTreeSet::new();
    let mut owners = None;
    for shard in shards {
        let is_primary = shard.id == database.primary;
        if !is_primary {
            if owners.is_none() {
                let missing = sharded.iter().filter(|name| !seen.contains(*name));
                owners = Some(owners_of(router, request, missing).await?);
            }
            if !owners
                .as_ref()
                .is_some_and(|owners| owners.contains(&shard.id))
            {
                continue;
            }
        }
        let mut writer = fields_without(request.body(), &["cursor"]);
        writer.begin_document("cursor").end();
        if is_primary {
            stamp_database(&mut writer, database);
        }
        router.clock.append_to(&mut writer);
        let sent = Request::from_parts(writer.finish(), Vec::new())?;
        let shared = Shared {
            may_leave_out: false,
            order: None,
            session: request.body().get_doc("lsid").map(Doc::to_owned),
            clock: router.clock.clone(),
            batch_size: None,
        };
        let mut streams = open_streams(router, vec![(shard.id, sent)], shared).await?;
        while let Some(document) = streams.next().await? {
            let name = document.as_doc().get_str("name").unwrap_or_default();
            let wanted = is_primary || sharded.contains(name);
            if wanted && seen.insert(name.to_owned()) {
                documents.push_back(document);
            }
        }
    }
    let merge = Box::new(Listed(documents));
    let options = cursor_options(request.body());
    let reply = router.first_batch(listing, merge, options).await?;
    Ok(with_id_first(reply.document()))
}

/// For each of these collections a shard that has it, if the listing may name it.
async fn owners_of(
    router: &Router,
    request: &Request,
    names: impl Iterator<Item = &String>,
) -> Result<BTreeSet<ShardId>, Failure> {
    let filter = request.body().get_doc("filter").unwrap_or(Doc::EMPTY);
    let is_asked_for = |name: &str| match filter.get("name") {
        Some(ValueRef::String(one)) => one == name,
        _ => true,
    };
    let mut owners = BTreeSet::new();
    for name in names.filter(|name| is_asked_for(name)) {
        let namespace = Namespace::new(request.database(), name)?;
        let route = router.routing.route(&namespace, false).await?;
        owners.extend(route.and_then(|route| route.all().into_iter().next()));
    }
    Ok(owners)
}

/// The order in which MongoDB writes this command's cursor.
fn with_id_first(reply: Doc<'_>) -> Reply {
    let cursor = reply.get_doc("cursor").unwrap_or(Doc::EMPTY);
    let mut writer = Reply::writer_with_capacity(reply.len());
    writer.begin_document("cursor");
    for name in ["id", "ns", "firstBatch"] {
        if let Some(element) = cursor.element(name) {
            writer.append_element(&element);
        }
    }
    writer.end().append("ok", 1.0);
    Reply::from_writer(writer)
}

pub(crate) async fn list_indexes(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = namespace_of(request.body(), request.database())?;
    for _ in 0..STALE_RETRIES_MAX {
        // All owners have the same indexes.
        let one = |route: &crate::routing::Route| Ok(route.all().into_iter().take(1).collect());
        let routed = router.route_to(&namespace, false, one).await?;
        let Some((route, shards)) = routed else {
            let message = format!("ns does not exist: {namespace}");
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
        };
        match router.pass_cursor(request, &route, &shards[0]).await {
            Err(Failure::Stale(stale)) => router.routing.note(&namespace, &stale),
            other => return other,
        }
    }
    Err(no_progress())
}

#[derive(Default)]
struct Sizes {
    total: u64,
    is_empty: bool,
    of_shards: BTreeMap<ShardId, u64>,
}

pub(crate) async fn list_databases(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let truthy = |name: &str| body.get(name).is_some_and(model::number::is_truthy);
    let names_only = truthy("nameOnly");
    let context = crate::targeting::context_of(body, &router.clock)?;
    let filter = body.get_doc("filter").unwrap_or(Doc::EMPTY);
    let filter = crate::targeting::parse_filter(filter, &context)?;
    let mut requests = Vec::new();
    for shard in router.registry.all(&router.config).await? {
        requests.push((shard.id, list_command(router, body)?));
    }
    let mut found: BTreeMap<String, Sizes> = BTreeMap::new();
    for answered in router.ask_all(requests).await? {
        let answered = answered?;
        let not_local = |name: &str| !matches!(name, "admin" | "config" | "local");
        let reply = answered.reply.document();
        take_sizes(&mut found, reply, Some(&answered.shard), not_local);
    }
    let config = router.config.call(list_command(router, body)?).await?;
    let shared = |name: &str| matches!(name, "admin" | "config");
    take_sizes(&mut found, config.document(), None, shared);

    let mut writer = Reply::writer();
    let mut total = 0;
    writer.begin_array("databases");
    for (name, sizes) in &found {
        let mut document = DocWriter::new().with("name", name.as_str());
        if !names_only {
            document
                .append("sizeOnDisk", sizes.total as i64)
                .append("empty", sizes.is_empty);
            if !sizes.of_shards.is_empty() {
                document.begin_document("shards");
                for (shard, size) in &sizes.of_shards {
                    document.append(shard.as_str(), *size as i64);
                }
                document.end();
            }
        }
        let document = document.finish();
        if filter.matches(document.as_doc())? {
            total += sizes.total;
            writer.push(&document);
        }
    }
    writer.end();
    if !names_only {
        writer
            .append("totalSize", total as i64)
            .append("totalSizeMb", (total / (1024 * 1024)) as i64);
    }
    writer.append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

fn list_command(router: &Router, body: Doc<'_>) -> Result<Request, Error> {
    let mut writer = fields_without(body, &["filter", "nameOnly"]);
    router.clock.append_to(&mut writer);
    Request::from_parts(writer.finish(), Vec::new())
}

fn take_sizes(
    found: &mut BTreeMap<String, Sizes>,
    reply: Doc<'_>,
    shard: Option<&ShardId>,
    wanted: impl Fn(&str) -> bool,
) {
    let databases = reply.get_array("databases").into_iter();
    for database in databases.flat_map(crate::targeting::documents) {
        let Some(name) = database.get_str("name").filter(|name| wanted(name)) else {
            continue;
        };
        let size = whole(database.get("sizeOnDisk")).unwrap_or(0);
        let empty = database.get("empty") == Some(ValueRef::Boolean(true));
        let first = !found.contains_key(name);
        let sizes = found.entry(name.to_owned()).or_default();
        sizes.total += size;
        sizes.is_empty = empty && (first || sizes.is_empty);
        if let Some(shard) = shard {
            sizes.of_shards.insert(shard.clone(), size);
        }
    }
}

pub(crate) async fn list_shards(router: &Router) -> Result<Reply, Failure> {
    router.registry.reload(&router.config).await?;
    let mut writer = Reply::writer();
    writer.begin_array("shards");
    for shard in router.registry.all(&router.config).await? {
        writer.push(&*shard.document);
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// `getShardMap`: where the shards are, and the config server.
pub(crate) async fn shard_map(router: &Router) -> Result<Reply, Failure> {
    let mut shards = router.registry.connection_strings();
    let hello = DocWriter::new().with("hello", 1).with("$db", "admin");
    let config = router.config.run(hello).await?;
    let config = config.as_doc();
    if let (Some(set), Some(hosts)) = (config.get_str("setName"), config.get_array("hosts")) {
        let hosts = hosts.iter().filter_map(|host| match host {
            ValueRef::String(host) => Some(host),
            _ => None,
        });
        let hosts: Vec<&str> = hosts.collect();
        let connection = format!("{set}/{}", hosts.join(","));
        shards.insert(0, ("config".to_owned(), connection));
    }
    let mut writer = Reply::writer();
    writer.begin_document("map");
    for (id, connection) in &shards {
        writer.append(id, connection.as_str());
    }
    writer.end().begin_document("hosts");
    for (id, connection) in &shards {
        let hosts = connection
            .split_once('/')
            .map_or(connection.as_str(), |(_, hosts)| hosts);
        for host in hosts.split(',') {
            writer.append(host, id.as_str());
        }
    }
    writer.end().begin_document("connStrings");
    for (id, connection) in &shards {
        writer.append(connection, id.as_str());
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// `getShardVersion`: what this router knows.
pub(crate) async fn shard_version(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = whole_namespace(request)?;
    let route = router.routing.route(&namespace, false).await?;
    let table = route.as_ref().and_then(|route| route.table());
    let Some(table) = table else {
        return Err(Error::new(Code(118), format!("Collection {namespace} is not sharded")).into());
    };
    let version = table.version();
    let mut writer = Reply::writer();
    let chunk = version.chunk;
    let pair = model::time::ClusterTime::new(chunk.major, chunk.minor);
    writer
        .append("version", pair)
        .append("versionEpoch", version.incarnation.epoch)
        .append("versionTimestamp", version.incarnation.began)
        .append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

pub(crate) async fn database_version(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let name = match request.body().first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => name,
        _ => return Err(Error::bad_value("getDatabaseVersion takes a database's name").into()),
    };
    let Some(database) = router.routing.database(name, false).await? else {
        let message = format!("database {name} not found");
        return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
    };
    let mut versions = DocWriter::new();
    stamp_database(&mut versions, &database);
    let versions = versions.finish();
    let mut writer = Reply::writer();
    if let Some(version) = versions.as_doc().get("databaseVersion") {
        writer.append("dbVersion", version);
    }
    writer
        .append("primary", database.primary.as_str())
        .append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// `flushRouterConfig`: everything, a database or a collection.
pub(crate) async fn flush(router: &Router, request: &Request) -> Result<Reply, Failure> {
    match request.body().first().map(|first| first.value()) {
        Some(ValueRef::String(name)) if name.contains('.') => {
            router.routing.forget_collection(&Namespace::parse(name)?);
        }
        Some(ValueRef::String(name)) => router.routing.forget_all(Some(name)),
        _ => {
            router.routing.forget_all(None);
            router.registry.reload(&router.config).await?;
        }
    }
    let writer = Reply::writer().with("flushed", true).with("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// The namespace of a command whose first field holds all of it.
pub(crate) fn whole_namespace(request: &Request) -> Result<Namespace, Error> {
    match request.body().first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => Namespace::parse(name),
        _ => Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("{} takes a namespace", request.name()),
        )),
    }
}
