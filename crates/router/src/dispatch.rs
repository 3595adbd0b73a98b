//! Commands by name.
//!
//! Frequent ones first. What is not known here is not known: the error names it. Commands for
//! `admin` and `config` that read or write documents go to the config server, whose collections
//! these are.

use crate::bulk::{Kind, write};
use crate::failure::Failure;
use crate::request::{is_time_well_formed, with_snapshot_time};
use crate::targeting::documents;
use crate::{
    Router, STALE_RETRIES_MAX, aggregate, arguments, catalog, count, current_op, ddl, diagnostic,
    distribution, explain, find, find_and_modify, get_more, hello, operation, parameters,
    server_status, session, statistics, time_limit,
};
use model::bson::ValueRef;
use model::error::{Code, Error};
use model::number::Number;
use std::sync::Arc;
use std::time::Duration;
use wire::operation::only_reads;
use wire::{ConnectionInfo, Reply, Request};

pub(crate) async fn dispatch(
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: Request,
) -> Reply {
    if !is_time_well_formed(&request) {
        // Whoever is asked says what is wrong with it.
        return match router.config.call(request).await {
            Ok(reply) => reply,
            Err(error) => Reply::error(&error),
        };
    }
    if let Err(error) = router.clock.observe_client(&request) {
        return Reply::error(&error);
    }
    if let Err(error) = arguments::check(&request) {
        return Reply::error(&error);
    }
    if (is_data(&request) || is_ddl(request.name()))
        && let Some(error) = router.quiescing(request.body())
    {
        return Reply::error(&error);
    }
    router.counters.command(request.name());
    match time_limit::of(&request) {
        None => dispatch_now(router, connection, request).await,
        Some(limit) => {
            Box::pin(time_limit::answer_within(
                limit, router, connection, request,
            ))
            .await
        }
    }
}

/// Carries out a command whose form is right.
pub(crate) async fn dispatch_now(
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: Request,
) -> Reply {
    let running = (router.operations).begin(connection, request.body_bytes().clone());
    let limit = time_limit::of(&request).map(|limit| limit + time_limit::GRACE);
    operation::describe(&running, &request, limit);
    router.sessions.note(running.session());
    let operation = Arc::clone(&running);
    operation::within(operation, run(router, connection, request)).await
}

/// Whether a command changes nothing, however often it is carried out.
fn may_be_asked_again(request: &Request) -> bool {
    let pipeline = request.body().get_array("pipeline");
    let writes = |stage: ValueRef<'_>| match stage {
        ValueRef::Document(stage) => stage.get("$out").or_else(|| stage.get("$merge")).is_some(),
        _ => true,
    };
    only_reads(request.name()) && !pipeline.is_some_and(|stages| stages.iter().any(writes))
}

async fn run(router: &Arc<Router>, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
    let of_config = match is_of_config(router, &request).await {
        Ok(of_config) => of_config,
        Err(error) => return Reply::error(&error),
    };
    let dated = match of_config {
        true => None,
        false => with_snapshot_time(&request, &router.clock),
    };
    let answered = match dated {
        None => match answer(router, connection, &request, of_config).await {
            // Statistics of all shards, and the like, do not ask again by themselves. What was stale is known by now.
            Err(Failure::Stale(_)) if may_be_asked_again(&request) => {
                Box::pin(answer(router, connection, &request, of_config)).await
            }
            answered => answered,
        },
        Some(dated) => Box::pin(answer_dated(router, connection, &request, dated)).await,
    };
    let mut reply = answered.unwrap_or_else(Failure::into_reply);
    router.clock.tell(&mut reply);
    reply
}

async fn answer(
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: &Request,
    of_config: bool,
) -> Result<Reply, Failure> {
    if request.body().element("$maxTimeMS").is_some() {
        wire::refuse_former_time_limit(request.name())?;
    }
    match request.name() {
        "find" if !of_config => find::find(router, request).await,
        "insert" if !of_config => write(router, request, Kind::Insert).await,
        "update" if !of_config => write(router, request, Kind::Update).await,
        "delete" if !of_config => write(router, request, Kind::Delete).await,
        "getMore" => get_more::get_more(router, request).await,
        _ => Box::pin(rare(router, connection, request, of_config)).await,
    }
}

/// Answers a request whose time was chosen here. ⚑ The time may be from before the collection's ranges
/// came to where they are, of which the router hears only while it routes: then a later one is chosen.
async fn answer_dated(
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: &Request,
    mut dated: Request,
) -> Result<Reply, Failure> {
    for _ in 0..STALE_RETRIES_MAX {
        let answered = answer(router, connection, &dated, false).await;
        let is_too_early = matches!(
            &answered,
            Err(Failure::Error(error)) if error.code == Code::STALE_CHUNK_HISTORY
        );
        match with_snapshot_time(request, &router.clock) {
            Some(later) if is_too_early => dated = later,
            Some(_) | None => return answered,
        }
    }
    Err(find::no_progress())
}

/// Whether a command addresses what the config server keeps. Of its databases, sessions are spread over
/// the shards, once there is a collection for them.
async fn is_of_config(router: &Router, request: &Request) -> Result<bool, Error> {
    if !is_internal(request.database()) {
        return Ok(false);
    }
    let first = request.body().first().map(|first| first.value());
    let names_sessions = request.database() == cluster::sessions::DATABASE
        && first == Some(ValueRef::String(cluster::sessions::COLLECTION));
    let is_routed =
        names_sessions && request.name() != "drop" && session::are_sharded(router).await?;
    Ok(!is_routed)
}

pub(crate) fn is_internal(database: &str) -> bool {
    matches!(database, "admin" | "config" | "local")
}

/// ⚑ What the config server must not do although it could: lose its own collections, and write into a
/// database of the shards, where nobody would find it.
fn refuse_to_config(request: &Request) -> Result<(), Error> {
    let (body, database) = (request.body(), request.database());
    if request.name() == "drop" && matches!(database, "admin" | "config") {
        let message = format!("Cannot drop collection in '{database}' database in sharded cluster");
        return Err(Error::new(Code::ILLEGAL_OPERATION, message));
    }
    let stages = body.get_array("pipeline").into_iter().flat_map(documents);
    let target = stages.last().and_then(|stage| {
        let out = stage.get_doc("$out");
        let merge = stage.get_doc("$merge").and_then(|to| to.get_doc("into"));
        out.or(merge)?.get_str("db")
    });
    // Into its own ones it says what is wrong with that.
    if request.name() == "aggregate" && target.is_some_and(|name| !is_internal(name)) {
        let message =
            format!("$out and $merge are not supported from the '{database}' database yet");
        return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, message));
    }
    Ok(())
}

async fn rare(
    router: &Arc<Router>,
    connection: &Arc<ConnectionInfo>,
    request: &Request,
    of_config: bool,
) -> Result<Reply, Failure> {
    if of_config && is_data(request) && !is_about_cluster(request) {
        refuse_to_config(request)?;
        return diagnostic::ask_config(router, request).await;
    }
    if is_admin_only(request.name()) && request.database() != "admin" {
        let name = request.name();
        let message = format!("{name} may only be run against the admin database.");
        return Err(Error::new(Code::UNAUTHORIZED, message).into());
    }
    match request.name() {
        "hello" | "isMaster" | "ismaster" => Ok(hello::hello(router, connection, request).await?),
        "ping" if is_plain_ping(request) => Ok(Reply::ok()),
        "isdbgrid" => Ok(Reply::from_writer(
            Reply::writer()
                .with("isdbgrid", 1)
                .with("hostname", router.options.host.as_str())
                .with("ok", 1.0),
        )),
        "whatsmyuri" => Ok(diagnostic::whats_my_uri(connection)),
        "killCursors" => get_more::kill_cursors(router, request).await,
        "count" => count::count(router, request).await,
        "distinct" => count::distinct(router, request).await,
        "findAndModify" | "findandmodify" => {
            find_and_modify::find_and_modify(router, request).await
        }
        "aggregate" => aggregate::aggregate(router, request).await,
        "explain" => explain::explain(router, request).await,

        "listCollections" => catalog::list_collections(router, request).await,
        "listIndexes" => catalog::list_indexes(router, request).await,
        "listDatabases" => catalog::list_databases(router, request).await,
        "listShards" | "listshards" => catalog::list_shards(router).await,
        "getShardMap" => catalog::shard_map(router).await,
        "getShardVersion" => catalog::shard_version(router, request).await,
        "getDatabaseVersion" => catalog::database_version(router, request).await,
        "flushRouterConfig" | "flushrouterconfig" => catalog::flush(router, request).await,

        "collStats" | "collstats" => statistics::coll_stats(router, request).await,
        "dbStats" | "dbstats" => statistics::db_stats(router, request).await,
        "dataSize" | "datasize" => statistics::data_size(router, request).await,
        "validate" => statistics::validate(router, request).await,

        "cleanupOrphaned" => distribution::clean_up(router, request).await,

        "create" | "collMod" | "createIndexes" | "dropIndexes" | "deleteIndexes" => {
            ddl::on_collection(router, request).await
        }
        name if is_ddl(name) => ddl::forward(router, request).await,

        "serverStatus" => server_status::server_status(router, request),
        "currentOp" => current_op::current_op(router, request).await,
        "killOp" => current_op::kill_op(router, request).await,
        "getParameter" => parameters::get(router, request).await,
        "setParameter" => parameters::set(router, request).await,
        "connPoolStats" => Ok(server_status::connection_pools(router)),
        name if is_about_sessions(name) => session::answer(router, request).await,
        name if is_for_everybody(name) => diagnostic::tell_everybody(router, request).await,
        name if is_answered_by_config(name) => diagnostic::ask_config(router, request).await,
        "shutdown" => {
            let limit = request.body().get("timeoutSecs").and_then(Number::of);
            let limit = limit.map(|limit| Duration::from_secs(limit.to_f64().max(0.0) as u64));
            *router.shutdown_limit.lock() = limit;
            router.shutdown.notify_one();
            Ok(Reply::ok())
        }
        name => Err(Error::new(
            Code::COMMAND_NOT_FOUND,
            format!("no such command: '{name}'"),
        )
        .into()),
    }
}

/// Whether nothing has to be checked.
fn is_plain_ping(request: &Request) -> bool {
    let is_known = |name: &str| {
        matches!(
            name,
            "ping" | "$db" | "lsid" | "$clusterTime" | "$readPreference" | "comment"
        )
    };
    request.body().iter().all(|element| is_known(element.key()))
}

/// A pipeline that begins without a collection: operations, or events of everything.
fn is_about_cluster(request: &Request) -> bool {
    let first = request.body().first().map(|first| first.value());
    request.name() == "aggregate" && first.is_some_and(|first| first.is_number())
}

/// Commands on documents, collections and indexes of a database.
fn is_data(request: &Request) -> bool {
    matches!(
        request.name(),
        "find"
            | "insert"
            | "update"
            | "delete"
            | "findAndModify"
            | "findandmodify"
            | "count"
            | "distinct"
            | "aggregate"
            | "explain"
            | "create"
            | "drop"
            | "collMod"
            | "createIndexes"
            | "dropIndexes"
            | "deleteIndexes"
            | "listCollections"
            | "listIndexes"
            | "collStats"
            | "collstats"
            | "dbStats"
            | "dbstats"
            | "validate"
    )
}

/// Cluster-wide operations, which the config server decides or refuses.
fn is_ddl(name: &str) -> bool {
    matches!(
        name,
        "drop"
            | "dropDatabase"
            | "renameCollection"
            | "enableSharding"
            | "enablesharding"
            | "shardCollection"
            | "shardcollection"
            | "refineCollectionShardKey"
            | "reshardCollection"
            | "split"
            | "mergeChunks"
            | "moveChunk"
            | "movechunk"
            | "moveRange"
            | "setAllowMigrations"
            | "movePrimary"
            | "moveprimary"
            | "addShard"
            | "addshard"
            | "removeShard"
            | "removeshard"
            | "addShardToZone"
            | "removeShardFromZone"
            | "updateZoneKeyRange"
            | "balancerStart"
            | "balancerStop"
            | "balancerStatus"
            | "balancerCollectionStatus"
            | "checkMetadataConsistency"
            | "clearJumboFlag"
            | "configureCollectionBalancing"
    )
}

/// Commands that this router answers, and for one database only. (Others are refused by whoever answers them.)
fn is_admin_only(name: &str) -> bool {
    matches!(
        name,
        "currentOp"
            | "flushRouterConfig"
            | "flushrouterconfig"
            | "getDatabaseVersion"
            | "getParameter"
            | "getShardMap"
            | "getShardVersion"
            | "killOp"
            | "listShards"
            | "listshards"
            | "setParameter"
            | "shutdown"
    )
}

fn is_about_sessions(name: &str) -> bool {
    matches!(
        name,
        "startSession"
            | "refreshSessions"
            | "endSessions"
            | "killSessions"
            | "killAllSessions"
            | "killAllSessionsByPattern"
            | "refreshLogicalSessionCacheNow"
            | "reapLogicalSessionCacheNow"
    )
}

/// What concerns every member of the cluster.
fn is_for_everybody(name: &str) -> bool {
    matches!(name, "fsync" | "fsyncUnlock")
}

/// Commands that say the same wherever they are asked.
fn is_answered_by_config(name: &str) -> bool {
    matches!(
        name,
        "buildInfo"
            | "buildinfo"
            | "connectionStatus"
            | "features"
            | "getCmdLineOpts"
            | "getDefaultRWConcern"
            | "getFreeMonitoringStatus"
            | "getLog"
            | "getDiagnosticData"
            | "hostInfo"
            | "listCommands"
            | "logRotate"
            | "logout"
            | "rolesInfo"
            | "setDefaultRWConcern"
            | "setFeatureCompatibilityVersion"
            | "top"
            | "usersInfo"
            | "availableQueryOptions"
            | "ping"
            | "profile"
            | "authenticate"
            | "saslStart"
            | "saslContinue"
            | "getLastError"
            | "commitTransaction"
            | "abortTransaction"
            | "lockInfo"
    )
}
