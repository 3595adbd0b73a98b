//! `dropDatabase`.
//!
//! ```text
//!   collections  each sharded collection leaves the config server, one entry each
//!   decide       the database's own document, and zones of its other collections
//!   shards       every shard forgets the collections, is no primary of it any more, drops what is local;
//!                the primary last, which tells change streams
//!   chunks       those of the collections are removed
//! ```
//!
//! The primary is told that it is none before its data goes: a request that was routed by the old version is
//! refused from then on, instead of making the database again behind everybody's back. ⚑

use super::drop::{forget_zones, gone, remove_chunks};
use super::{Context, Operation, Step};
use crate::commit::{Commit, by};
use crate::database::set_database;
use crate::documents::{self, DATABASES, Fields, OPERATIONS, TAGS, uuid_value};
use crate::error::Fault;
use crate::placement;
use crate::queue::Claim;
use crate::server::ok;
use crate::state::{Effect, State};
use crate::tenure::{Plan, Tenure};
use cluster::routing::ShardId;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::version::DatabaseVersion;
use model::{Code, Namespace};
use wire::BoxFuture;

pub(crate) const KIND: &str = "dropDatabase";

pub(crate) struct DropDatabase {
    name: String,
    version: DatabaseVersion,
    primary: ShardId,
    collections: Vec<(Namespace, Uuid)>,
    decided: bool,
}

impl DropDatabase {
    pub(crate) fn parse(name: &str) -> Result<Self, Fault> {
        if matches!(name, "admin" | "config" | "local") {
            return Err(Fault::new(
                Code::ILLEGAL_OPERATION,
                format!("Cannot drop '{name}' database"),
            ));
        }
        model::namespace::check_database(name)?;
        Ok(Self {
            name: name.to_owned(),
            version: DatabaseVersion::fixed(),
            primary: ShardId::new(""),
            collections: Vec::new(),
            decided: false,
        })
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        let mut collections = Vec::new();
        for one in fields
            .doc
            .get_array("collections")
            .into_iter()
            .flat_map(|all| all.iter())
        {
            if let ValueRef::Document(one) = one {
                let one = Fields::of(OPERATIONS, one);
                collections.push((Namespace::parse(one.text("ns")?)?, one.uuid("uuid")?));
            }
        }
        Ok(Self {
            name: fields.text("db")?.to_owned(),
            version: DatabaseVersion::from_document(fields.doc("version")?)?,
            primary: ShardId::new(fields.text("primary").unwrap_or_default()),
            collections,
            decided: fields.flag("decided"),
        })
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        let state = tenure.state().await?;
        let Some(placement) = state.database(&self.name)? else {
            return Ok(Some(ok()));
        };
        self.version = placement.version;
        self.primary = placement.primary.clone();
        let within = |name: &Namespace| name.database() == self.name;
        let sharded = state.collections.values();
        self.collections = sharded
            .filter(|entry| within(&entry.namespace))
            .map(|entry| (entry.namespace.clone(), entry.uuid))
            .collect();
        for (name, damaged) in &state.damaged {
            let of_this = name
                .split_once('.')
                .is_some_and(|(database, _)| database == self.name);
            match &damaged.entry {
                Some(entry) if of_this => {
                    self.collections.push((entry.namespace.clone(), entry.uuid));
                }
                // Shards may have anything of it.
                None if of_this => return Err(damaged.fault(name)),
                Some(_) | None => {}
            }
        }
        if !self.collections.is_empty() {
            state.check_all_shards()?;
        }
        Ok(None)
    }

    async fn decide(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        for (name, _) in &self.collections {
            context
                .tenure
                .decide(|state| {
                    let (mut commit, mut effects) = (Commit::default(), Vec::new());
                    if state.to_be_dropped(name)?.is_some() {
                        effects.push(gone(state, context, name, &mut commit)?);
                        forget_zones(&mut commit, name);
                    }
                    context.write_state(self, &mut commit);
                    Ok(Plan {
                        commit,
                        effects,
                        answer: (),
                    })
                })
                .await?;
        }
        self.decided = true;
        let here = &*self;
        let zones = zones_within(&here.name);
        context
            .tenure
            .decide(|_| {
                let mut commit = Commit::default();
                // Those of collections that are not sharded, or not yet.
                commit.delete(TAGS, zones.as_doc());
                commit.delete(DATABASES, by("_id", &here.name).as_doc());
                context.write_state(here, &mut commit);
                Ok(Plan {
                    commit,
                    effects: vec![Effect::Database(here.name.clone(), None)],
                    answer: (),
                })
            })
            .await?;
        Ok(Step::Written)
    }

    async fn tell(&self, tenure: &Tenure) -> Result<Step, Fault> {
        let no_primary = set_database(&self.name, self.version, false);
        let mut shards = tenure.with_state(State::shard_names);
        shards.sort_by_key(|shard| *shard == self.primary);
        for shard in shards {
            let quietly = shard != self.primary;
            for (name, uuid) in &self.collections {
                let forget = placement::forget(name.as_str(), uuid, quietly);
                tenure.insist(&shard, "admin", forget.as_doc()).await?;
            }
            tenure.insist(&shard, "admin", no_primary.as_doc()).await?;
            let drop = DocWriter::new()
                .with("_terndbForgetDatabase", 1)
                .with("db", &self.name)
                .with("quietly", quietly)
                .finish();
            tenure.insist(&shard, "admin", drop.as_doc()).await?;
        }
        for (_, uuid) in &self.collections {
            remove_chunks(tenure, uuid).await?;
        }
        Ok(Step::Done(ok()))
    }
}

/// The zones of all collections of a database.
fn zones_within(database: &str) -> DocBuf {
    let mut query = DocWriter::new();
    query
        .begin_document("ns")
        // The character behind the dot is the slash.
        .append("$gte", format!("{database}.").as_str())
        .append("$lt", format!("{database}/").as_str())
        .end();
    query.finish()
}

impl Operation for DropDatabase {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::Database(self.name.clone())
    }

    fn changes(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn halts_moves(&self) -> bool {
        true
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer
            .append("db", &self.name)
            .append("primary", self.primary.as_str());
        documents::database_version(writer, "version", self.version);
        writer
            .append("decided", self.decided)
            .begin_array("collections");
        for (name, uuid) in &self.collections {
            writer
                .push_document()
                .append("ns", name.as_str())
                .append("uuid", uuid_value(uuid))
                .end();
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
        match self.decided {
            false => Box::pin(self.decide(context)),
            true => Box::pin(self.tell(context.tenure)),
        }
    }
}
