//! What a primary of the config server knows: the authority over placements, and the documents
//! around it.
//!
//! Rebuilt from the `config` database when a member becomes primary, or when the outcome of a commit
//! is unknown; changed by nothing but commits that were applied.

use crate::documents::{self, CollectionEntry, Fields};
use crate::error::Fault;
use crate::store::Store;
use crate::{commit::by, schema};
use cluster::authority::{Authority, DatabasePlacement, Decision, Outcome};
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocBuf, ObjectId};
use model::version::PlacementVersion;
use model::{Code, Namespace};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) cluster: ObjectId,
    pub(crate) authority: Authority<Namespace>,
    pub(crate) collections: BTreeMap<Namespace, CollectionEntry>,
    /// Connection strings by name.
    pub(crate) hosts: BTreeMap<ShardId, String>,
}

/// What an applied commit changes here.
pub(crate) enum Effect {
    /// A placement was decided, and the collection's document is this now.
    Placement(Box<Decision<Namespace>>, Option<CollectionEntry>),
    Outcome(Box<Decision<Namespace>>),
    Collection(CollectionEntry),
    Database(String, Option<DatabasePlacement>),
    Shard(ShardId, String),
}

impl State {
    /// Reads everything.
    pub(crate) async fn load(store: &Store) -> Result<State, Fault> {
        let cluster = schema::prepare(store).await?;
        let mut state = State {
            cluster,
            authority: Authority::default(),
            collections: BTreeMap::new(),
            hosts: BTreeMap::new(),
        };
        for doc in all(store, documents::SHARDS).await? {
            let fields = Fields::of(documents::SHARDS, doc.as_doc());
            let shard = ShardId::new(fields.text("_id")?);
            state
                .authority
                .set_shard(shard.clone(), !fields.flag("draining"));
            state.hosts.insert(shard, fields.text("host")?.to_owned());
        }
        for doc in all(store, documents::DATABASES).await? {
            let (name, placement) = documents::read_database(doc.as_doc())?;
            state.authority.set_database(&name, Some(placement));
        }
        for doc in all(store, documents::COLLECTIONS).await? {
            let entry = CollectionEntry::read(doc)?;
            let filter = by("uuid", documents::uuid_value(&entry.uuid));
            let chunks = store
                .find(documents::CHUNKS, filter.as_doc(), by("min", 1).as_doc())
                .await?;
            let table = documents::read_table(&entry, &chunks)?;
            let name = entry.namespace.clone();
            state.authority.restore(name.clone(), table, entry.catalog);
            state.collections.insert(name, entry);
        }
        let outcomes = by("kind", "outcome");
        for doc in store
            .find(documents::OPERATIONS, outcomes.as_doc(), Doc::EMPTY)
            .await?
        {
            let fields = Fields::of(documents::OPERATIONS, doc.as_doc());
            let outcome = match fields.doc.get_doc("committed") {
                Some(version) => Outcome::Committed(PlacementVersion::from_document(version)?),
                None => Outcome::Aborted,
            };
            state
                .authority
                .restore_outcome(fields.uuid("_id")?, outcome);
        }
        Ok(state)
    }

    pub(crate) fn apply(&mut self, effect: Effect) -> Result<(), Fault> {
        match effect {
            Effect::Placement(decision, entry) => {
                let operation = decision.operation;
                let name = decision.placement.as_ref().map(|(name, _)| name.clone());
                self.authority.apply(*decision)?;
                // Its own state document tells how far an operation of ours has come.
                self.authority.forget(operation);
                match (name, entry) {
                    (_, Some(entry)) => {
                        self.collections.insert(entry.namespace.clone(), entry);
                    }
                    (Some(name), None) => {
                        self.collections.remove(&name);
                    }
                    (None, None) => {}
                }
            }
            Effect::Outcome(decision) => self.authority.apply(*decision)?,
            Effect::Collection(entry) => {
                if self.authority.catalog_version(&entry.namespace) != Some(entry.catalog) {
                    self.authority.catalog_changed(&entry.namespace);
                }
                self.collections.insert(entry.namespace.clone(), entry);
            }
            Effect::Database(name, placement) => self.authority.set_database(&name, placement),
            Effect::Shard(shard, host) => {
                if !self.hosts.contains_key(&shard) {
                    self.authority.set_shard(shard.clone(), true);
                }
                self.hosts.insert(shard, host);
            }
        }
        Ok(())
    }

    pub(crate) fn table(&self, name: &Namespace) -> Option<&RoutingTable> {
        self.authority.table(name)
    }

    /// A sharded collection, or the error of commands that need one.
    pub(crate) fn sharded(
        &self,
        name: &Namespace,
    ) -> Result<(&CollectionEntry, &RoutingTable), Fault> {
        match (self.collections.get(name), self.authority.table(name)) {
            (Some(entry), Some(table)) => Ok((entry, table)),
            _ => Err(Fault::new(
                Code::NAMESPACE_NOT_SHARDED,
                format!("Expected collection {name} to be sharded"),
            )),
        }
    }

    /// Shards that must know of a collection: who owns chunks, and the primary of its database.
    pub(crate) fn participants(&self, name: &Namespace) -> Vec<ShardId> {
        let owners = self
            .table(name)
            .into_iter()
            .flat_map(|table| table.shards());
        let mut shards: Vec<ShardId> = owners.map(|part| part.shard.clone()).collect();
        if let Some(database) = self.authority.database(name.database())
            && !shards.contains(&database.primary)
        {
            shards.push(database.primary.clone());
        }
        shards
    }

    pub(crate) fn shard_names(&self) -> Vec<ShardId> {
        self.hosts.keys().cloned().collect()
    }
}

async fn all(store: &Store, collection: &str) -> Result<Vec<DocBuf>, Fault> {
    store
        .find(collection, Doc::EMPTY, by("_id", 1).as_doc())
        .await
}
