//! `addShard`: a replica set becomes a shard of the cluster.
//!
//! ```text
//!   prepare: it answers, its name is its set's, it can reach other shards, it has no database that the cluster has
//!   join:    it writes down whose shard it is     (refused if it is another cluster's), and forgets what
//!            is left of databases if it was this cluster's before
//!   enter:   config.shards, and a document for each database that it brings along
//! ```
//!
//! A shard that was removed owned nothing any more, and nobody could write to it since: what it holds are
//! empty collections and documents that moved away. ⚑ It forgets them only if it says so as well.
//!
//! A shard that is added again by its name and set, with other addresses, is reached there from now on.

use super::{Context, Operation, Step};
use crate::collection;
use crate::commit::{Commit, by};
use crate::documents::{self, DATABASES, Fields, SHARDS};
use crate::error::Fault;
use crate::queue::Claim;
use crate::state::Effect;
use crate::tenure::{Plan, Tenure, ask_endpoint};
use cluster::routing::ShardId;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use std::collections::BTreeSet;
use std::time::Duration;
use wire::BoxFuture;

pub(crate) const KIND: &str = "addShard";
/// How long a host that is to become a shard may take to answer at all.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct AddShard {
    shard: ShardId,
    /// `set/host,host`.
    host: String,
    databases: Vec<String>,
    /// What is left of databases from the time when it was a shard of this cluster before.
    left: Vec<String>,
    joined: bool,
}

impl AddShard {
    /// Reads the command of a client.
    pub(crate) fn parse(command: Doc<'_>) -> Result<Self, Fault> {
        let first = command.first().map(|element| element.value());
        let Some(ValueRef::String(host)) = first else {
            return Err(Fault::new(
                Code::TYPE_MISMATCH,
                "addShard expects a connection string: set/host:port",
            ));
        };
        if host.is_empty() {
            return Err(Fault::new(
                Code::FAILED_TO_PARSE,
                "addShard got an empty string; use setName/host:port,host:port",
            ));
        }
        let Some((set, hosts)) = host.split_once('/') else {
            return Err(Fault::new(
                Code::OPERATION_FAILED,
                format!("{host:?} does not name a replica set; use setName/host:port,host:port"),
            ));
        };
        if set.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(Fault::new(
                Code::FAILED_TO_PARSE,
                format!("{host:?} is not setName/host:port,host:port"),
            ));
        }
        let mut name = set;
        for element in command.iter().skip(1) {
            match (element.key(), element.value()) {
                ("name", ValueRef::String(given)) if !given.is_empty() => name = given,
                ("name", _) => {
                    return Err(Fault::new(Code::BAD_VALUE, "shard name cannot be empty"));
                }
                _ => {}
            }
        }
        if name == "config" {
            return Err(Fault::new(
                Code::BAD_VALUE,
                "use of shard replica set with name 'config' is not allowed",
            ));
        }
        Ok(Self {
            shard: ShardId::new(name),
            host: host.to_owned(),
            databases: Vec::new(),
            left: Vec::new(),
            joined: false,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        let names = |field: &str| {
            let names = fields.doc.get_array(field).into_iter();
            let names = names.flat_map(|names| names.iter());
            let names = names.filter_map(|name| match name {
                ValueRef::String(name) => Some(name.to_owned()),
                _ => None,
            });
            names.collect()
        };
        Ok(Self {
            shard: ShardId::new(fields.text("shard")?),
            host: fields.text("host")?.to_owned(),
            databases: names("databases"),
            left: names("left"),
            joined: fields.flag("joined"),
        })
    }

    async fn ask(&self, tenure: &Tenure, command: Doc<'_>) -> Result<DocBuf, Fault> {
        let endpoint = tenure.reach(self.shard.as_str(), &self.host);
        ask_endpoint(&*endpoint, self.shard.as_str(), "admin", command).await
    }

    async fn drop_sessions(&self, tenure: &Tenure) -> Result<(), Fault> {
        let endpoint = tenure.reach(self.shard.as_str(), &self.host);
        let drop = cluster::sessions::command("drop").finish();
        let database = cluster::sessions::DATABASE;
        let dropped = ask_endpoint(&*endpoint, self.shard.as_str(), database, drop.as_doc()).await;
        collection::sessions_dropped(dropped)
    }

    /// The first question, which tells whether anybody is there.
    async fn greet(&self, tenure: &Tenure) -> Result<DocBuf, Fault> {
        let hello = by("hello", 1);
        let asked = self.ask(tenure, hello.as_doc());
        match tokio::time::timeout(GREETING_LIMIT, asked).await {
            Ok(answered) => answered,
            Err(_) => Err(Fault::new(
                Code::HOST_UNREACHABLE,
                format!("{} does not answer", self.host),
            )),
        }
    }

    fn reply(&self) -> DocBuf {
        DocWriter::new()
            .with("shardAdded", self.shard.as_str())
            .with("ok", 1.0)
            .finish()
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let state = tenure.state().await?.clone();
        state.check_shard(&self.shard)?;
        for (shard, host) in &state.hosts {
            let same_set = host.split('/').next() == self.host.split('/').next();
            if *shard == self.shard && same_set {
                if *host != self.host {
                    self.moved(tenure).await?;
                }
                return Ok(Some(self.reply()));
            }
            if *shard == self.shard || same_set {
                return Err(Fault::new(
                    Code::ILLEGAL_OPERATION,
                    format!(
                        "A shard already exists containing the replica set or name: {shard} is {host}"
                    ),
                ));
            }
        }
        let hello = self.greet(tenure).await?;
        let set = self.host.split('/').next().unwrap_or_default();
        if hello.as_doc().get_str("setName") != Some(set) {
            return Err(Fault::new(
                Code::OPERATION_FAILED,
                format!("{} is not a member of the replica set {set}", self.host),
            ));
        }
        let sharding = self.sharding_state(tenure).await?;
        let left = left_over(sharding.as_doc(), state.cluster);
        let mut list = DocWriter::new().with("listDatabases", 1);
        list.append("nameOnly", true);
        let listed = self.ask(tenure, list.finish().as_doc()).await?;
        let listed = listed.as_doc().get_array("databases");
        self.databases.clear();
        self.left.clear();
        for entry in listed.into_iter().flat_map(|names| names.iter()) {
            let ValueRef::Document(entry) = entry else {
                continue;
            };
            let name = entry.get_str("name").unwrap_or_default();
            if matches!(name, "admin" | "config" | "local") {
                continue;
            }
            if left.contains(name) {
                self.left.push(name.to_owned());
                continue;
            }
            if let Some(placement) = state.database(name)? {
                return Err(Fault::new(
                    Code::OPERATION_FAILED,
                    format!(
                        "can't add shard '{}' because a local database '{name}' exists in another {}",
                        self.host, placement.primary
                    ),
                ));
            }
            self.databases.push(name.to_owned());
        }
        Ok(None)
    }

    /// What it says of its place in a cluster. ⚑ One that cannot reach other shards is refused: it could be given
    /// data, and never be emptied.
    async fn sharding_state(&self, tenure: &Tenure) -> Result<DocBuf, Fault> {
        let told = match self.ask(tenure, by("shardingState", 1).as_doc()).await {
            Err(fault) if fault.code() == Some(Code::COMMAND_NOT_FOUND) => DocBuf::new(),
            told => told?,
        };
        let why = match told.get("reachesOtherShards") {
            Some(ValueRef::Boolean(true)) => return Ok(told),
            Some(_) => {
                "was started without config servers and could not reach other shards: start each of its members with \
                 --config-servers (config_servers in its file), then add it again"
            }
            None => "is not a TernDB server, and only those can be shards of this cluster",
        };
        let message = format!("{} {why}", self.host);
        Err(Fault::new(Code::OPERATION_FAILED, message))
    }

    async fn forget_left(&self, tenure: &Tenure) -> Result<(), Fault> {
        for name in &self.left {
            let command = DocWriter::new()
                .with("_terndbForgetDatabase", 1)
                .with("db", name)
                .with("quietly", true)
                .with("unlessOwned", true)
                .finish();
            self.ask(tenure, command.as_doc()).await?;
        }
        Ok(())
    }

    /// A shard of the cluster has other members or addresses than were known.
    async fn moved(&self, tenure: &Tenure) -> Result<(), Fault> {
        let hosts = by("host", &self.host);
        tenure
            .decide(|_| {
                let mut commit = Commit::default();
                let id = by("_id", self.shard.as_str());
                let change = by("$set", hosts.as_doc());
                commit.change(SHARDS, id.as_doc(), change.as_doc());
                Ok(Plan {
                    commit,
                    effects: vec![Effect::Shard(self.shard.clone(), self.host.clone())],
                    answer: (),
                })
            })
            .await
    }

    async fn join(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let cluster = tenure.with_state(|state| state.cluster);
        let command = DocWriter::new()
            .with("_terndbBecomeShard", 1)
            .with("shard", self.shard.as_str())
            .with("clusterId", cluster)
            .finish();
        let joined = async {
            self.ask(tenure, command.as_doc()).await?;
            self.forget_left(tenure).await?;
            // From now on it keeps its sessions in the cluster.
            self.drop_sessions(tenure).await
        };
        match joined.await {
            Ok(()) => {
                self.joined = true;
                Ok(Step::Next)
            }
            Err(fault @ Fault::Refused(_)) => Ok(Step::Failed(fault)),
            Err(fault) => Err(fault),
        }
    }

    async fn enter(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let now = tenure.store.next_time();
        let document = DocWriter::new()
            .with("_id", self.shard.as_str())
            .with("host", &self.host)
            .with("state", 1)
            .with("topologyTime", now)
            .finish();
        tenure
            .decide(|state| {
                let mut commit = Commit::default();
                let mut effects = Vec::new();
                // Done before, and the answer was lost.
                if !state.hosts.contains_key(&self.shard) {
                    commit.insert(SHARDS, document.as_doc());
                    effects.push(Effect::Shard(self.shard.clone(), self.host.clone()));
                }
                let mut known = state.authority.clone();
                known.set_shard(self.shard.clone(), true);
                for name in &self.databases {
                    if state.database(name)?.is_some() {
                        continue;
                    }
                    let uuid = documents::new_uuid();
                    let placement = known.new_database(&self.shard, uuid, now)?;
                    let document = documents::database(name, &placement);
                    commit.insert(DATABASES, document.as_doc());
                    effects.push(Effect::Database(name.clone(), Some(placement)));
                }
                Ok(Plan {
                    commit,
                    effects,
                    answer: (),
                })
            })
            .await?;
        for name in &self.databases {
            crate::database::tell(tenure, name).await;
        }
        Ok(Step::Done(self.reply()))
    }
}

/// Databases of which it has sharded collections, if it has been a shard of this cluster.
fn left_over(sharding_state: Doc<'_>, cluster: ObjectId) -> BTreeSet<String> {
    if sharding_state.get("clusterId") != Some(ValueRef::ObjectId(cluster)) {
        return BTreeSet::new();
    }
    let versions = sharding_state.get_doc("versions").unwrap_or(Doc::EMPTY);
    let names = versions.iter().filter_map(|version| {
        let (database, _) = version.key().split_once('.')?;
        Some(database.to_owned())
    });
    names.collect()
}

impl Operation for AddShard {
    fn kind(&self) -> &'static str {
        KIND
    }

    /// Shards are added one after the other: as if all of them were one collection.
    fn claim(&self) -> Claim {
        Claim::Database(SHARDS.to_owned())
    }

    fn changes(&self) -> Vec<String> {
        Vec::new()
    }

    fn halts_moves(&self) -> bool {
        false
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("shard", self.shard.as_str())
            .append("host", &self.host)
            .append("joined", self.joined)
            .begin_array("databases");
        for name in &self.databases {
            writer.push(name);
        }
        writer.end().begin_array("left");
        for name in &self.left {
            writer.push(name);
        }
        writer.end();
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        match self.joined {
            false => Box::pin(self.join(context.tenure)),
            true => Box::pin(self.enter(context.tenure)),
        }
    }
}
