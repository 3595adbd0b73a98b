//! The config server as a whole: follows leadership, and answers commands.

use crate::error::Fault;
use crate::operation::add_shard::AddShard;
use crate::operation::drop::Drop;
use crate::operation::drop_database::DropDatabase;
use crate::operation::move_primary::{self, MovePrimary};
use crate::operation::on_owners::OnOwners;
use crate::operation::refine::Refine;
use crate::operation::rename::Rename;
use crate::operation::run;
use crate::operation::shard_collection::ShardCollection;
use crate::queue::Patience;
use crate::store::Store;
use crate::tenure::{Tenure, no_primary};
use crate::ticket::{self, Shown, Ticket};
use crate::{
    Connect, balancer, chunks, consistency, database, moves, remove_shard, routing, sessions,
    settle, zones,
};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use wire::{BoxFuture, ConnectionInfo, Endpoint, Handler, Reply, Request};

/// How long a command waits for a primary that has just been elected to be ready.
const READY_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

pub struct ConfigServer {
    store: Arc<Store>,
    connect: Connect,
    serving: watch::Sender<Serving>,
}

#[derive(Clone)]
enum Serving {
    /// Another member decides, or none.
    No,
    /// This member leads and is about to know what it needs.
    Soon,
    Yes(Arc<Tenure>),
}

impl ConfigServer {
    /// `documents` is the document server of this member, and nobody else.
    pub fn new(documents: Arc<dyn Endpoint>, connect: Connect) -> Arc<ConfigServer> {
        Arc::new(ConfigServer {
            store: Arc::new(Store::new(documents)),
            connect,
            serving: watch::Sender::new(Serving::No),
        })
    }

    /// Follows leadership until `stop` completes: the term in which this member is primary, or `None`.
    pub async fn run(
        self: Arc<Self>,
        mut leadership: watch::Receiver<Option<u64>>,
        stop: impl Future<Output = ()> + Send,
    ) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let term = *leadership.borrow_and_update();
            if term.is_some() {
                self.serving.send_replace(Serving::Soon);
                tokio::select! {
                    () = self.begin() => {}
                    _ = leadership.changed() => {}
                    () = &mut stop => {}
                }
            }
            let ended = tokio::select! {
                changed = leadership.wait_for(|now| *now != term) => changed.is_err(),
                () = &mut stop => true,
            };
            let served = self.serving.send_replace(Serving::No);
            if let Serving::Yes(tenure) = served {
                tenure.end().await;
            }
            if ended {
                return;
            }
        }
    }

    /// Reads what is stored and begins to serve, however often it takes.
    async fn begin(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let tenure: BoxFuture<'_, _> =
                Box::pin(Tenure::begin(self.store.clone(), self.connect.clone()));
            match tenure.await {
                Ok(tenure) => {
                    self.serving.send_replace(Serving::Yes(tenure));
                    return;
                }
                Err(fault) => tracing::warn!("the config server cannot begin yet: {fault}"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn tenure(&self) -> Result<Arc<Tenure>, Fault> {
        let mut serving = self.serving.subscribe();
        let ready = serving.wait_for(|now| !matches!(now, Serving::Soon));
        let now = match tokio::time::timeout(READY_LIMIT, ready).await {
            Ok(Ok(now)) => now.clone(),
            Ok(Err(_)) | Err(_) => Serving::No,
        };
        match now {
            Serving::Yes(tenure) => Ok(tenure),
            Serving::Soon | Serving::No => Err(no_primary()),
        }
    }

    fn now(&self) -> Serving {
        self.serving.borrow().clone()
    }

    #[cfg(test)]
    pub(crate) fn rules(&self) -> &crate::rules::Rules {
        &self.store.rules
    }

    /// Completes when this member decides.
    pub async fn ready(&self) {
        let mut serving = self.serving.subscribe();
        // The sender lives in self.
        let _ = serving.wait_for(|now| matches!(now, Serving::Yes(_))).await;
    }

    /// Answers a command that is the config server's own. Boxed, so that whoever serves does not
    /// compile all of it again.
    fn answer<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<DocBuf, Fault>> {
        Box::pin(self.answered(request))
    }

    async fn answered(&self, request: &Request) -> Result<DocBuf, Fault> {
        let tenure = self.tenure().await?;
        let body = request.body();
        self.store.has_come_to(body).await?;
        match request.name() {
            "_configsvrGetRouting" => routing::answer(&tenure, body).await,
            "_configsvrGetDatabase" => {
                let name = text(body, "db")?;
                let state = tenure.state().await?;
                let placement = match database::fixed(name) {
                    Some(fixed) => fixed,
                    None => {
                        let placement = state.database(name)?.cloned();
                        placement.ok_or_else(|| database::not_found(name))?
                    }
                };
                Ok(database::reply(&placement))
            }
            "_configsvrCreateDatabase" => {
                let on = body.get_str("primaryShard");
                let name = text(body, "db")?;
                let made = database::create(&tenure, name, on, Patience::of(body)?, None).await?;
                Ok(database::reply(&made))
            }
            "_configsvrDdl" => {
                let command = body.get_doc("command");
                let command = command.ok_or_else(|| missing("command"))?;
                let database = text(body, "db")?;
                let ticket = ticket::of(body, database, command)?;
                ask(&tenure, ticket, database, command).await
            }
            "_configsvrCommitMove" => {
                self.store.observe(body);
                moves::commit::answer(&tenure, body).await
            }
            "_configsvrCatalogVersion" => moves::commit::catalog_version(&tenure, body).await,
            "_configsvrCommitPrimary" => {
                self.store.observe(body);
                move_primary::commit(&tenure, body).await
            }
            "_configsvrSettle" => {
                self.store.observe(body);
                settle::settle(&tenure, body).await
            }
            "_configsvrOutcome" => settle::outcome(&tenure, body).await,
            "_configsvrSessionsCollection" => sessions::answer(&tenure, body).await,
            other => Err(Fault::new(
                Code::COMMAND_NOT_FOUND,
                format!("no such command: '{other}'"),
            )),
        }
    }
}

impl ConfigServer {
    /// Ends a reply with the latest time that shards told, and the config time.
    fn tell_time(&self, reply: &mut Reply) {
        let mut trailer = DocWriter::new();
        let told = self.store.told();
        if told > ClusterTime::ZERO && reply.document().get("$clusterTime").is_none() {
            told.append_to(&mut trailer);
            trailer.append("operationTime", told);
        }
        trailer.append("$configTime", self.store.config_time());
        let trailer = trailer.finish();
        let bytes = trailer.as_bytes();
        reply.append_elements(&bytes[4..bytes.len() - 1]);
    }
}

/// Answers a client's command that concerns the whole cluster. One that is asked again joins the first, or is told
/// how it ended. Whose patience ends is told so, and what has begun goes on.
async fn ask(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    database: &str,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let patience = Patience::of(command)?;
    let name = command.first().map_or("", |first| first.key());
    let Some(ticket) = ticket.filter(|_| !only_tells(name)) else {
        return patience.see(ddl(tenure, None, database, command)).await;
    };
    let place = match tenure.show(ticket).await? {
        Shown::Begins(place) => place,
        Shown::Joins(waiting) => return patience.see(ticket::ended(waiting)).await,
        Shown::Answered(ended) => return ended,
    };
    let (here, database, command) = (tenure.clone(), database.to_owned(), command.to_owned());
    let ended = tenure.complete(async move {
        let ended = ddl(&here, Some(ticket), &database, command.as_doc()).await;
        place.end(&ended);
        ended
    });
    patience.see(ended).await
}

/// Commands that change nothing: asked again they are answered again.
fn only_tells(name: &str) -> bool {
    matches!(
        name,
        "balancerStatus" | "balancerCollectionStatus" | "checkMetadataConsistency"
    )
}

/// Carries out a client's command; its reply.
async fn ddl(
    tenure: &Arc<Tenure>,
    ticket: Option<Ticket>,
    database: &str,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let name = command.first().map_or("", |first| first.key());
    // Older spellings are the same commands.
    let spelled = match name {
        "addshard" => "addShard",
        "enablesharding" => "enableSharding",
        "shardcollection" => "shardCollection",
        "deleteIndexes" => "dropIndexes",
        "movechunk" => "moveChunk",
        "moveprimary" => "movePrimary",
        "removeshard" => "removeShard",
        name => name,
    };
    let command = &spelled_as(command, spelled);
    let command = command.as_doc();
    let is_administrative = matches!(
        spelled,
        "addShard"
            | "enableSharding"
            | "shardCollection"
            | "refineCollectionShardKey"
            | "split"
            | "mergeChunks"
            | "moveRange"
            | "moveChunk"
            | "movePrimary"
            | "setAllowMigrations"
            | "removeShard"
            | "addShardToZone"
            | "removeShardFromZone"
            | "updateZoneKeyRange"
            | "balancerStart"
            | "balancerStop"
            | "balancerStatus"
            | "balancerCollectionStatus"
            | "renameCollection"
    );
    if is_administrative && database != "admin" {
        return Err(Fault::new(
            Code::UNAUTHORIZED,
            format!("{name} may only be run against the admin database."),
        ));
    }
    let patience = Patience::of(command)?;
    match spelled {
        "addShard" => run(tenure, AddShard::parse(command)?, patience, ticket).await,
        "enableSharding" => {
            let name = text(command, "enableSharding")?;
            if matches!(name, "admin" | "config" | "local") {
                return Err(Fault::new(
                    Code::INVALID_OPTIONS,
                    format!("Cannot manually create or shard database '{name}'"),
                ));
            }
            let on = match command.get("primaryShard") {
                Some(_) => Some(text(command, "primaryShard")?),
                None => None,
            };
            database::create(tenure, name, on, patience, ticket).await?;
            Ok(ok())
        }
        "shardCollection" => run(tenure, ShardCollection::parse(command)?, patience, ticket).await,
        "refineCollectionShardKey" => run(tenure, Refine::parse(command)?, patience, ticket).await,
        "drop" => run(tenure, Drop::parse(database, command)?, patience, ticket).await,
        "dropDatabase" => run(tenure, DropDatabase::parse(database)?, patience, ticket).await,
        "createIndexes" | "dropIndexes" | "collMod" => {
            run(
                tenure,
                OnOwners::parse(database, command)?,
                patience,
                ticket,
            )
            .await
        }
        "renameCollection" => {
            run(
                tenure,
                Rename::parse(tenure, command, patience).await?,
                patience,
                ticket,
            )
            .await
        }
        "split" => chunks::split(tenure, ticket, command).await,
        "mergeChunks" => chunks::merge(tenure, ticket, command).await,
        "moveRange" => moves::command::move_range(tenure, ticket, command).await,
        "moveChunk" => moves::command::move_chunk(tenure, ticket, command).await,
        "movePrimary" => run(tenure, MovePrimary::parse(command)?, patience, ticket).await,
        "setAllowMigrations" => moves::command::set_allow(tenure, ticket, command).await,
        "removeShard" => remove_shard::remove(tenure, ticket, command).await,
        "addShardToZone" => zones::change_shard(tenure, ticket, "addShardToZone", command).await,
        "removeShardFromZone" => {
            zones::change_shard(tenure, ticket, "removeShardFromZone", command).await
        }
        "updateZoneKeyRange" => zones::update_range(tenure, ticket, command).await,
        "balancerStart" => balancer::set(tenure, ticket, true).await,
        "balancerStop" => balancer::set(tenure, ticket, false).await,
        "balancerStatus" => balancer::status(tenure).await,
        "balancerCollectionStatus" => balancer::collection_status(tenure, command).await,
        "checkMetadataConsistency" => consistency::check(tenure, database, command).await,
        other => Err(Fault::new(
            Code::COMMAND_NOT_SUPPORTED,
            format!("{other} is not supported in a sharded cluster yet"),
        )),
    }
}

/// The same command under its usual name.
fn spelled_as(command: Doc<'_>, name: &str) -> DocBuf {
    let mut writer = DocWriter::new();
    for (at, element) in command.iter().enumerate() {
        match at {
            0 => writer.append_renamed(name, &element),
            _ => writer.append_element(&element),
        };
    }
    writer.finish()
}

pub(crate) fn ok() -> DocBuf {
    DocWriter::new().with("ok", 1.0).finish()
}

pub(crate) fn missing(name: &str) -> Fault {
    Fault::Refused(Error::location(
        40414,
        format!("BSON field '{name}' is missing but a required field"),
    ))
}

pub(crate) fn text<'a>(body: Doc<'a>, name: &str) -> Result<&'a str, Fault> {
    match body.get(name) {
        Some(ValueRef::String(text)) => Ok(text),
        Some(other) => Err(Fault::new(
            Code::TYPE_MISMATCH,
            format!(
                "BSON field '{name}' is the wrong type '{}', expected type 'string'",
                other.kind().name()
            ),
        )),
        None => Err(missing(name)),
    }
}

/// Whether a client writes into a collection that decisions are made by: `sh.disableBalancing()`, for one.
fn writes_what_is_decided(request: &Request) -> bool {
    let writes = matches!(
        request.name(),
        "insert" | "update" | "delete" | "findAndModify" | "findandmodify"
    );
    let collection = request.body().first().map(|first| first.value());
    let is_decided = |name: &str| {
        matches!(
            name,
            "collections" | "databases" | "shards" | "chunks" | "settings"
        )
    };
    writes
        && request.database() == "config"
        && matches!(collection, Some(ValueRef::String(name)) if is_decided(name))
}

/// The config server in front of its document server: what is not its own it hands through.
pub struct ConfigHandler<H> {
    server: Arc<ConfigServer>,
    documents: H,
}

impl<H: Handler> ConfigHandler<H> {
    pub fn new(server: Arc<ConfigServer>, documents: H) -> Self {
        Self { server, documents }
    }
}

impl<H: Handler> Handler for ConfigHandler<H> {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        if !request.name().starts_with("_configsvr") {
            let is_decided = writes_what_is_decided(&request);
            let documents = self.documents.handle(connection, request);
            if is_decided && let Serving::Yes(tenure) = self.server.now() {
                return tenure.beside(documents).await;
            }
            return documents.await;
        }
        let mut reply = match self.server.answer(&request).await {
            Ok(reply) => Reply::from(reply),
            Err(fault) => Reply::error(&fault.into_error()),
        };
        self.server.tell_time(&mut reply);
        reply
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.documents.disconnected(connection);
    }
}
