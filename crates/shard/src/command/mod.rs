//! Commands: from a request to a reply.
//!
//! [`dispatch`] finds a command by its name, reads the fields that any command
//! may carry, registers the operation, and runs it. One file per command or
//! small family. Commands that may compute for long run apart from the
//! connections (`apart.rs`). Of the others, frequent ones run inside the connection's own future; the
//! rest is boxed, so that an idle connection does not reserve room for them.

pub(crate) mod aggregate;
mod apart;
pub(crate) mod arguments;
pub(crate) mod coll_mod;
pub(crate) mod commit;
pub(crate) mod commit_quorum;
pub(crate) mod count;
pub(crate) mod create;
pub(crate) mod db_hash;
pub(crate) mod default_concerns;
pub(crate) mod delete;
pub(crate) mod diagnostic;
pub(crate) mod distinct;
pub(crate) mod drop;
pub(crate) mod envelope;
pub(crate) mod explain;
pub(crate) mod find;
pub(crate) mod find_and_modify;
pub(crate) mod get_more;
pub(crate) mod hello;
pub(crate) mod indexes;
pub(crate) mod insert;
pub(crate) mod kill_cursors;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod operations;
mod oplog_note;
pub(crate) mod placement;
pub(crate) mod probes;
pub(crate) mod read_concern;
mod read_preference;
pub(crate) mod rename;
pub(crate) mod replica_set;
mod resume_token;
pub(crate) mod server_status;
mod session;
pub(crate) mod statement_ids;
pub(crate) mod stats;
pub(crate) mod update;
pub(crate) mod validate;
pub(crate) mod write_concern;
pub(crate) mod write_reply;

use crate::Shard;
use crate::catalog::Collection;
use crate::latency;
use crate::migration;
use crate::operation::Operation;
use crate::read::ScanPart;
use crate::rules::Rule;
use crate::session::{Retryable, SessionId};
use crate::sharding::{self, CheckedRoute, Routed};
use arguments::Argument;
use envelope::{Envelope, ReadConcern};
use model::bson::{Doc, DocWriter, Timestamp, ValueRef};
use model::{Code, Error, Namespace};
use placement::MayGoOn;
use query::context::{Interrupts, QueryContext};
use query::expression::Expression;
use std::sync::Arc;
use wire::{ConnectionInfo, Reply, Request};

/// One command under way.
pub(crate) struct Invocation<'a> {
    pub(crate) shard: &'a Arc<Shard>,
    pub(crate) connection: &'a Arc<ConnectionInfo>,
    pub(crate) request: &'a Request,
    pub(crate) operation: &'a Arc<Operation>,
    pub(crate) envelope: Envelope,
    /// The checked out session of a write with a transaction number.
    pub(crate) retryable: Option<Retryable>,
    /// What a routed request was found to agree with.
    pub(crate) route: Option<CheckedRoute>,
    /// Why a write must not run: each of its statements says so.
    pub(crate) stale: Option<Error>,
}

pub(crate) type Answer = Result<Reply, Error>;

impl Invocation<'_> {
    /// The namespace of a command whose first field names a collection.
    pub(crate) fn namespace(&self) -> Result<Namespace, Error> {
        let first = self.request.body().first();
        let name = self.request.name();
        match first.map(|element| element.value()) {
            Some(ValueRef::String(collection)) => {
                let database = self.request.database();
                let checked = self.route.as_ref().and_then(CheckedRoute::namespace);
                match checked {
                    Some(known)
                        if known.collection() == collection && known.database() == database =>
                    {
                        Ok(known.clone())
                    }
                    Some(_) | None => Namespace::new(database, collection),
                }
            }
            Some(other) => Err(Error::new(
                Code::BAD_VALUE,
                format!(
                    "collection name has invalid type {} in command {name}",
                    other.kind().name()
                ),
            )),
            None => Err(Error::bad_value("the command is empty")),
        }
    }

    /// The same for a command that refuses names with a `$`, whether there is such a collection or not. (Pipelines and
    /// what changes the catalog do otherwise.)
    pub(crate) fn plain_namespace(&self) -> Result<Namespace, Error> {
        let namespace = self.namespace()?;
        check_plain(&namespace)?;
        Ok(namespace)
    }

    /// What an expression may refer to, without variables.
    pub(crate) fn context(&self) -> QueryContext {
        let mut context = QueryContext::new(self.shard.clock.now_ms());
        context.interrupts = Interrupts::by(self.operation.clone());
        context
    }

    /// Refuses to go on with a statement if the catalog entry it is evaluated with does not
    /// hold what the request was checked against.
    pub(crate) fn check_route(&self, collection: &Collection) -> Result<(), Error> {
        match &self.route {
            Some(route) => route.check(
                &self.shard.sharding,
                self.request.database(),
                Some(collection),
            ),
            None => Ok(()),
        }
    }

    /// Refuses to go on if the request was routed by a database that is not here any more. ⚑ What changes a
    /// collection asks when it has the right to: what is left of one that has moved away may still be there.
    pub(crate) fn check_database_route(&self) -> Result<(), Error> {
        match &self.route {
            Some(route @ CheckedRoute::Database(_)) => {
                let database = self.request.database();
                route.check(&self.shard.sharding, database, None)
            }
            Some(CheckedRoute::Ranges { .. }) | None => Ok(()),
        }
    }

    /// ⚑ What was not found may have gone to another shard with its database.
    pub(crate) fn check_not_given_away(
        &self,
        collection: Option<&Collection>,
    ) -> Result<(), Error> {
        let is_here = collection.is_some_and(|seen| {
            let now = self.shard.catalog.by_id(seen.id);
            now.is_some_and(|now| {
                let ownership = now.ownership.as_ref();
                !ownership.is_some_and(|it| it.unsharded && it.owned.is_empty())
            })
        });
        match is_here {
            true => Ok(()),
            false => self.check_database_route(),
        }
    }

    /// Like [`Invocation::check_route`] for what a command has read: it read with what held from its beginning
    /// to its end.
    fn check_route_of_read(&self) -> Result<(), Error> {
        let reads = match (&self.route, self.request.name()) {
            (Some(CheckedRoute::Ranges { .. }), name) => {
                matches!(
                    name,
                    "find" | "aggregate" | "count" | "distinct" | "explain"
                )
            }
            (Some(CheckedRoute::Database(_)), name) => {
                only_reads(self.request)
                    || matches!(name, "listCollections" | "listIndexes" | "collStats")
            }
            (None, _) => false,
        };
        match &self.route {
            Some(route) if reads => {
                let now = route
                    .namespace()
                    .and_then(|name| self.shard.catalog.get(name));
                let database = self.request.database();
                route.check(&self.shard.sharding, database, now.as_deref())
            }
            _ => Ok(()),
        }
    }

    /// Like [`Invocation::namespace`], for commands that only look at a
    /// collection: MongoDB has another code for a name that is no string there.
    pub(crate) fn namespace_of_check(&self) -> Result<Namespace, Error> {
        let is_text = matches!(
            self.request.body().first().map(|element| element.value()),
            Some(ValueRef::String(_))
        );
        self.namespace().map_err(|error| match is_text {
            true => error,
            false => Error::new(Code::INVALID_NAMESPACE, error.message),
        })
    }

    /// Refuses a command that belongs to the admin database elsewhere.
    pub(crate) fn admin_only(&self) -> Result<(), Error> {
        if self.request.database() == "admin" {
            return Ok(());
        }
        Err(Error::new(
            Code::UNAUTHORIZED,
            format!(
                "{} may only be run against the admin database.",
                self.request.name()
            ),
        ))
    }
}

/// The statements of a write command, from the body or a sequence beside it.
pub(crate) fn batch_documents<'a>(
    invocation: &'a Invocation<'_>,
    command: &str,
    name: &str,
    listed: Option<Argument<'a>>,
) -> Result<Vec<Doc<'a>>, Error> {
    if let Some(sequence) = invocation.request.sequence(name) {
        return Ok(sequence.iter().collect());
    }
    let listed = listed.ok_or_else(|| arguments::missing(command, name))?;
    if listed.is_null() {
        return Err(Error::location(
            10065,
            format!("invalid parameter: expected an object ({name})"),
        ));
    }
    listed
        .array()?
        .iter()
        // As everywhere in commands, null stands for nothing.
        .filter(|value| !value.is_nullish())
        .map(|value| match value {
            ValueRef::Document(doc) => Ok(doc),
            _ => Err(listed.wrong_type("object")),
        })
        .collect()
}

/// What a command's expressions may refer to: the time, and its `let`. A router that
/// asks several shards tells all of them the same time.
pub(crate) fn let_variables(
    invocation: &Invocation<'_>,
    variables: Option<Doc<'_>>,
) -> Result<QueryContext, Error> {
    let mut context = invocation.context();
    let time = invocation.shard.log.latest_time();
    context.cluster_time = Some(Timestamp {
        seconds: time.seconds(),
        increment: time.increment(),
    });
    if let Some(constants) = invocation.request.get("runtimeConstants") {
        arguments::runtime_constants(constants, &mut context)?;
    }
    for element in variables.iter().flat_map(|doc| doc.iter()) {
        // CURRENT may be bound here too, though nothing ever sees it.
        if element.key() != "CURRENT" {
            query::expression::check_user_variable(element.key())?;
        }
        let expression = Expression::parse(element.value(), &context)?;
        if expression.reads_document() {
            return Err(Error::location(
                4890500,
                "Command let Expression tried to access a field, but this is not allowed because \
                 Command let Expressions run before the query examines any documents.",
            ));
        }
        let value = expression
            .evaluate(Doc::EMPTY)?
            .unwrap_or(model::bson::Value::Undefined);
        context.variables.push((element.key().to_owned(), value));
    }
    Ok(context)
}

/// Refuses a name with a `$`.
pub(crate) fn check_plain(namespace: &Namespace) -> Result<(), Error> {
    let collection = namespace.collection();
    match collection.contains('$') {
        true => Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid collection name: {collection}"),
        )),
        false => Ok(()),
    }
}

/// Only the simple collation is there.
pub(crate) fn refuse_collation(collation: Doc<'_>) -> Result<(), Error> {
    if collation.is_empty() || collation.get_str("locale") == Some("simple") {
        return Ok(());
    }
    Err(Error::new(
        Code::COMMAND_NOT_SUPPORTED,
        "collations other than simple are not supported yet",
    ))
}

/// A failure for which MongoDB has no code.
pub(crate) fn bare_failure(message: &str) -> Answer {
    let writer = Reply::writer().with("ok", 0.0).with("errmsg", message);
    Ok(Reply::from_writer(writer))
}

/// Closes a successful reply.
pub(crate) fn finish(mut writer: DocWriter) -> Answer {
    writer.append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

/// Answers one request.
pub(crate) async fn dispatch(
    shard: &Arc<Shard>,
    connection: &Arc<ConnectionInfo>,
    request: &Request,
) -> Reply {
    let operation = shard
        .operations
        .begin(connection, request.body_bytes().clone());
    shard.counters.operations.command(request.name());
    let (mut confirmation, mut is_retryable) = (None, false);
    let answer = match Envelope::parse(request) {
        // Whatever else is wrong with it.
        Err(_) if !placement::may_exist(request.name()) => Err(not_found(request.name())),
        Err(error) => Err(error),
        Ok(mut envelope) => {
            if let Some(defaults) = shard.replica_set.defaults() {
                envelope.apply_defaults(request.name(), &defaults);
            }
            if envelope.routed.is_none() && !shard.rules.hold(Rule::CheckUnversionedReads) {
                envelope.sees_orphans = true;
            }
            confirmation = envelope.confirmation.take();
            is_retryable = envelope.transaction_number.is_some();
            answer(shard, connection, request, &operation, envelope).await
        }
    };
    let mut ran_out = false;
    if let Err(error) = &answer {
        ran_out = error.code == Code::MAX_TIME_MS_EXPIRED;
        shard.counters.failed();
        Box::pin(shard.await_change(error)).await;
    }
    let explained = answer.map_err(|error| {
        let may_go_on = MayGoOn::of(request, is_retryable, operation.is_of_stream());
        shard.explain_to_drivers(error, may_go_on)
    });
    let mut reply = explained.into();
    if ran_out {
        // There is no time left to wait in: what was written is not known to be confirmed.
        if operation.has_written() {
            reply = write_concern::told_unconfirmed(reply, request.body());
        }
    } else if let Some(confirmation) = confirmation {
        reply = Box::pin(shard.await_members(reply, request, &confirmation, &operation)).await;
    }
    if let Some(request) = operation.way() {
        // ⚑ Here, where it has nothing any more that anybody waits for.
        Box::pin(shard.migrations.making_way.hold(request, &operation)).await;
    }
    if !operation.waits_for_news() {
        let took = operation.started.elapsed();
        shard.counters.ended(request.name(), took);
    }
    shard.tell_time(&mut reply);
    reply
}

/// The log is read as it goes on.
fn refuse_snapshot_of_log(request: &Request, envelope: &Envelope) -> Result<(), Error> {
    let is_log = || {
        let named = request.body().first().map(|first| first.value());
        request.database() == "local" && named == Some(ValueRef::String("oplog.rs"))
    };
    match envelope.read_concern {
        ReadConcern::Snapshot(_) if is_log() => Err(Error::new(
            Code::SNAPSHOT_UNAVAILABLE,
            "Reading from capped collections with readConcern snapshot is not supported",
        )),
        ReadConcern::Snapshot(_) | ReadConcern::Latest => Ok(()),
    }
}

/// Says that a session is in use, and by whom.
fn attach_session(
    shard: &Shard,
    operation: &Operation,
    session: SessionId,
    envelope: &Envelope,
) -> Result<(), Error> {
    operation.set_session(session, envelope.transaction_number.is_some());
    shard.session_cache.touch(session, shard.clock.now_ms())
}

/// Does what the envelope asks for, then runs the command.
async fn answer(
    shard: &Arc<Shard>,
    connection: &Arc<ConnectionInfo>,
    request: &Request,
    operation: &Arc<Operation>,
    envelope: Envelope,
) -> Answer {
    if let Some(limit) = envelope.time_limit {
        operation.set_time_limit(limit);
    }
    if let Some(session) = envelope.session {
        attach_session(shard, operation, session, &envelope)?;
    }
    if let Some(time) = envelope.cluster_time {
        shard.observe_time(time)?;
    }
    shard.check_placement(request, &envelope)?;
    refuse_snapshot_of_log(request, &envelope)?;
    if is_of_config(request.name()) {
        shard.hear_config_time(request.body());
    }
    if let Some(wait) = &envelope.read_wait {
        Box::pin(shard.await_read_concern(wait, operation)).await?;
    }
    let state = shard.state_for(request)?;
    let (route, stale) = match envelope.routed.as_deref() {
        None => (None, None),
        Some(routed) => match check_routed(shard, request, routed, operation).await {
            Ok(route) => (route, None),
            Err(error) if has_statements(request.name()) => (None, Some(error)),
            Err(error) => return Err(error),
        },
    };
    // ⚑ Behind the versions, which may be waited for: a move that is to bring them may need the session itself, for the
    // history that comes with its range.
    let retryable = match (envelope.session, envelope.transaction_number) {
        (Some(session), Some(number)) => {
            Some(shard.begin_retryable(session, number, operation).await?)
        }
        _ => None,
    };
    let invocation = Invocation {
        shard,
        connection,
        request,
        operation,
        envelope,
        retryable,
        route,
        stale,
    };
    let mut has_asked = false;
    let answer = loop {
        let answer = match apart::may_compute_long(request) {
            true => apart::run_apart(&invocation),
            false => run(&invocation).await,
        };
        let answer = answer.and_then(|reply| {
            invocation.check_route_of_read()?;
            Ok(reply)
        });
        let again = answer
            .as_ref()
            .err()
            .and_then(sharding::is_to_be_read_again);
        match again {
            Some(namespace) if only_reads(request) => {
                Box::pin(shard.await_readable(&namespace, operation)).await?;
            }
            _ => match newer_key(request, &answer) {
                Some(routed) if !has_asked => {
                    has_asked = true;
                    Box::pin(shard.refresh_for(request, &routed)).await;
                }
                _ => break answer,
            },
        }
    };
    let answer = shard.if_unbroken(state, request, answer);
    let answer = match &invocation.retryable {
        Some(retryable) if answer.is_ok() => {
            let concern = invocation.envelope.write_concern;
            let settled = shard.settle_retry(retryable, concern).await;
            settled.and(answer)
        }
        _ => answer,
    };
    if latency::is_short(request.name()) {
        shard.latency.note(operation.started.elapsed());
    }
    answer
}

/// Commands that the config server sends. ⚑ Those on indexes too: a recipient that has heard of one believes no
/// member of the config server that has not (`migration/alignment.rs`).
fn is_of_config(command: &str) -> bool {
    let on_indexes = ["createIndexes", "dropIndexes", "collMod"];
    command.starts_with("_terndb") || on_indexes.contains(&command)
}

/// The version by which a part of a scan names its ranges, if it was refused: its shard key may be newer than the one
/// that is known here.
fn newer_key(request: &Request, answer: &Answer) -> Option<Routed> {
    let refused = answer.as_ref().err()?;
    if refused.code != Code::STALE_CONFIG {
        return None;
    }
    let part = ScanPart::read(request.body()).ok()??;
    part.version.map(Routed::by)
}

/// Compares versions, and once again if what is known here could be refreshed.
async fn check_routed(
    shard: &Shard,
    request: &Request,
    routed: &Routed,
    operation: &Operation,
) -> Result<Option<CheckedRoute>, Error> {
    let mut stale = match shard.check_routed(request, routed) {
        Err(stale) => stale,
        checked => return checked,
    };
    loop {
        // Boxed: it is rare, and connections need not reserve room for it.
        let refreshed = Box::pin(shard.refresh_for(request, routed)).await;
        let waited = Box::pin(shard.await_version(request, routed, operation)).await?;
        if refreshed || waited {
            stale = match shard.check_routed(request, routed) {
                Err(stale) => stale,
                checked => return checked,
            };
        }
        // What was waited for may be what there is to ask for.
        if !waited {
            return Err(stale);
        }
    }
}

/// Commands that leave nothing behind when they are given up halfway.
fn only_reads(request: &Request) -> bool {
    match request.name() {
        "find" | "count" | "distinct" | "explain" => true,
        "aggregate" => {
            let pipeline = request.body().get_array("pipeline");
            let mut stages = pipeline.iter().flat_map(|pipeline| pipeline.iter());
            !stages.any(|stage| match stage {
                ValueRef::Document(stage) => {
                    (stage.first()).is_some_and(|first| matches!(first.key(), "$out" | "$merge"))
                }
                _ => false,
            })
        }
        _ => false,
    }
}

/// Commands whose statements fail one by one.
fn has_statements(command: &str) -> bool {
    matches!(command, "insert" | "update" | "delete")
}

async fn run(invocation: &Invocation<'_>) -> Answer {
    refuse_virtual_writes(invocation)?;
    match invocation.request.name() {
        "find" => find::find(invocation).await,
        "getMore" => get_more::get_more(invocation).await,
        "insert" => insert::insert(invocation).await,
        "update" => update::update(invocation).await,
        "delete" => delete::delete(invocation).await,
        name => Box::pin(run_rare(name, invocation)).await,
    }
}

/// Refuses commands that would change a virtual collection.
fn refuse_virtual_writes(invocation: &Invocation<'_>) -> Result<(), Error> {
    let request = invocation.request;
    if !matches!(request.database(), "local" | "config") {
        return Ok(());
    }
    let name = request.name();
    let writes = matches!(
        name,
        "insert"
            | "update"
            | "delete"
            | "findAndModify"
            | "findandmodify"
            | "create"
            | "drop"
            | "collMod"
            | "createIndexes"
            | "dropIndexes"
            | "deleteIndexes"
    );
    match request.body().first().map(|first| first.value()) {
        Some(ValueRef::String(collection)) if writes => {
            let Ok(namespace) = Namespace::new(request.database(), collection) else {
                return Ok(());
            };
            invocation.shard.check_writable(&namespace, name)
        }
        _ => Ok(()),
    }
}

/// Commands whose futures are boxed.
async fn run_rare(name: &str, invocation: &Invocation<'_>) -> Answer {
    match name {
        "hello" | "isMaster" | "ismaster" => hello::hello(invocation).await,
        "findAndModify" | "findandmodify" => find_and_modify::find_and_modify(invocation).await,
        "count" => count::count(invocation),
        "aggregate" => aggregate::aggregate(invocation).await,
        "distinct" => distinct::distinct(invocation),
        "explain" => explain::explain(invocation),
        "killCursors" => kill_cursors::kill_cursors(invocation),
        "ping" => diagnostic::ping(invocation),
        "buildInfo" | "buildinfo" => diagnostic::build_info(),
        "connectionStatus" => diagnostic::connection_status(invocation),
        "getParameter" => diagnostic::get_parameter(invocation),
        "getLog" => diagnostic::get_log(invocation),
        "hostInfo" => diagnostic::host_info(invocation),
        "getCmdLineOpts" => diagnostic::get_cmd_line_opts(invocation),
        "serverStatus" => server_status::server_status(invocation),
        "listCommands" => diagnostic::list_commands(),
        "whatsmyuri" => diagnostic::whats_my_uri(invocation),
        "startSession" => session::start_session(invocation),
        "refreshSessions" => session::refresh_sessions(invocation),
        "endSessions" => session::end_sessions(invocation),
        "killSessions" => session::kill_sessions(invocation),
        "killAllSessions" => session::kill_all_sessions(invocation),
        "killAllSessionsByPattern" => session::kill_all_sessions_by_pattern(invocation),
        "refreshLogicalSessionCacheNow" => session::refresh_now(invocation).await,
        "reapLogicalSessionCacheNow" => session::reap_now(invocation).await,
        "_terndbCommit" => commit::commit(invocation).await,
        "_terndbDataSize" => stats::all_data(invocation),
        "_terndbBecomeShard" => sharding::become_shard(invocation).await,
        "_terndbSetDatabase" => sharding::set_database(invocation).await,
        "_terndbCreateSharded" => sharding::create_sharded(invocation).await,
        "_terndbSetNextKey" => sharding::set_next_key(invocation).await,
        "_terndbSetPlacement" => sharding::set_placement(invocation).await,
        "_terndbForgetPlacement" => sharding::forget_placement(invocation).await,
        "cleanupOrphaned" => sharding::cleanup_orphaned(invocation).await,
        "_terndbMovePrimary" => migration::move_primary(invocation).await,
        "_terndbMoveRange" => migration::move_range(invocation).await,
        "_terndbAbortMoves" => migration::abort_moves(invocation).await,
        "_terndbReceive" => migration::receive(invocation).await,
        "_terndbReceiveFinish" => migration::receive_finish(invocation).await,
        "_terndbReceiveRelease" => migration::receive_release(invocation).await,
        "_terndbMoveCopy" => migration::move_copy(invocation).await,
        "_terndbMoveTail" => migration::move_tail(invocation).await,
        "_terndbMoveSessions" => migration::move_sessions(invocation).await,
        "_terndbForgetDatabase" => sharding::forget_database(invocation).await,
        "_terndbRename" => sharding::rename(invocation).await,
        "getShardVersion" => sharding::get_shard_version(invocation),
        "getDatabaseVersion" => sharding::get_database_version(invocation),
        "shardingState" => sharding::sharding_state(invocation),
        "create" => create::create(invocation).await,
        "drop" => drop::drop(invocation).await,
        "dropDatabase" => drop::drop_database(invocation).await,
        "renameCollection" => rename::rename_collection(invocation).await,
        "collMod" => coll_mod::coll_mod(invocation).await,
        "createIndexes" => indexes::create_indexes(invocation).await,
        "dropIndexes" | "deleteIndexes" => indexes::drop_indexes(invocation).await,
        "listCollections" => list::list_collections(invocation).await,
        "listDatabases" => list::list_databases(invocation),
        "listIndexes" => list::list_indexes(invocation).await,
        "collStats" | "collstats" => stats::coll_stats(invocation),
        "dbStats" | "dbstats" => stats::db_stats(invocation),
        "dbHash" | "dbhash" => db_hash::db_hash(invocation),
        "dataSize" | "datasize" => stats::data_size(invocation),
        "validate" => validate::validate(invocation).await,
        "currentOp" => operations::current_op(invocation),
        "killOp" => operations::kill_op(invocation),
        "fsync" => operations::fsync(invocation).await,
        "fsyncUnlock" => operations::fsync_unlock(invocation),
        "shutdown" => operations::shutdown(invocation),
        "setParameter" => diagnostic::set_parameter(invocation),
        "getDefaultRWConcern" => default_concerns::get(invocation),
        "setDefaultRWConcern" => default_concerns::set(invocation).await,
        "appendOplogNote" => oplog_note::append_oplog_note(invocation).await,
        "replSetGetConfig" => replica_set::get_config(invocation),
        "replSetGetStatus" => replica_set::get_status(invocation).await,
        "replSetInitiate" => replica_set::initiate(invocation),
        "replSetFreeze" => replica_set::freeze(invocation),
        "replSetStepDown" => replica_set::step_down(invocation).await,
        "replSetReconfig" => replica_set::reconfigure(invocation).await,
        _ => probes::answer(name, invocation),
    }
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::new(
        Code::COMMAND_NOT_FOUND,
        format!("no such command: '{name}'"),
    )
}
