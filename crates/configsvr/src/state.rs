//! What a primary of the config server knows: the authority over placements, and the documents
//! around it.
//!
//! Rebuilt from the `config` database when a member becomes primary, or when the outcome of a commit
//! is unknown; changed by nothing but commits that were applied.
//!
//! Clients may write into that database. What they leave of a collection or a database that cannot be understood
//! is *damaged*: whoever asks for it is told why, and everything else goes on. ⚑ A damaged collection is never taken
//! for one that is not sharded: whether one is sharded is asked with [`State::lookup`], which says so. When the
//! documents are as they were, they are read again and nothing is damaged any more.
//!
//! A damaged document of a shard leaves a shard that nobody reaches and that gets nothing. One of an operation leaves
//! an operation that nobody goes on with: its names are closed, and whoever is primary next tries again.

use crate::documents::{self, CollectionEntry, Damage, Fields};
use crate::error::Fault;
use crate::store::Store;
use crate::ticket::{self, Ticket};
use crate::{commit::by, operation, schema, settle};
use cluster::authority::{Answers, Authority, DatabasePlacement, Decision, OperationId, Outcome};
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocBuf, ObjectId, ValueRef};
use model::ids::Uuid;
use model::version::PlacementVersion;
use model::{Code, Namespace};
use std::collections::BTreeMap;

pub(crate) const SETTINGS: &str = "settings";

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) cluster: ObjectId,
    pub(crate) authority: Authority<Namespace>,
    pub(crate) collections: BTreeMap<Namespace, CollectionEntry>,
    /// Connection strings by name.
    pub(crate) hosts: BTreeMap<ShardId, String>,
    /// Whether the balancer evens out what shards have.
    pub(crate) balances: bool,
    /// What cannot be understood, by the name of its collection or database, or of the document.
    pub(crate) damaged: BTreeMap<String, Damaged>,
    /// What commands were answered that may be asked again.
    pub(crate) answers: Answers,
    /// When those operations were decided whose outcomes are kept.
    decided_ms: BTreeMap<OperationId, i64>,
}

/// Of a collection or database, what is wrong with its documents.
#[derive(Clone, Debug)]
pub(crate) struct Damaged {
    pub(crate) damage: Damage,
    /// Of a collection whose chunks alone are damaged.
    pub(crate) entry: Option<CollectionEntry>,
}

impl Damaged {
    pub(crate) fn fault(&self, name: &str) -> Fault {
        Fault::new(
            Code::INTERNAL_ERROR,
            format!(
                "what the config server has stored of {name} cannot be understood until somebody puts it right: {}",
                self.damage.why
            ),
        )
    }
}

/// What an applied commit changes here.
pub(crate) enum Effect {
    /// A placement was decided, and the collection's document is this now.
    Placement(Box<Decision<Namespace>>, Option<CollectionEntry>),
    /// An operation was decided that somebody may ask for later, with a placement or without; and when.
    Outcome(Box<Decision<Namespace>>, i64),
    /// Nobody asks for this outcome any more.
    Forgotten(OperationId),
    Collection(CollectionEntry),
    /// A collection is under another name from now on.
    Renamed(Box<RoutingTable>, CollectionEntry),
    Database(String, Option<DatabasePlacement>),
    Shard(ShardId, String),
    /// A shard gets nothing any more.
    Draining(ShardId),
    ShardGone(ShardId),
    /// Whether the balancer is on.
    Balances(bool),
    /// A damaged collection was dropped.
    DamagedGone(Namespace),
    /// A command has ended, at this time and with this answer.
    Answered(Ticket, i64, DocBuf),
    /// Nobody is told this answer any more.
    AnswerGone(OperationId),
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
            decided_ms: BTreeMap::new(),
            balances: false,
            damaged: BTreeMap::new(),
            answers: Answers::default(),
        };
        let balancer = store
            .find_one(SETTINGS, by("_id", "balancer").as_doc())
            .await?;
        state.balances = balancer.is_some_and(|doc| {
            doc.as_doc().get_str("mode") == Some("full")
                && !Fields::of(SETTINGS, doc.as_doc()).flag("stopped")
        });
        for doc in all(store, documents::SHARDS).await? {
            if let Err(fault) = state.take_shard(doc.as_doc()) {
                let damage = Damage::new("CorruptedShard", fault.to_string());
                state.note_damage_in(documents::SHARDS, doc.as_doc(), damage);
            }
        }
        for doc in all(store, documents::DATABASES).await? {
            match documents::read_database(doc.as_doc()) {
                Ok((name, placement)) => state.authority.set_database(&name, Some(placement)),
                Err(fault) => {
                    let damage = Damage::new("CorruptedDatabase", fault.to_string());
                    state.note_damage(doc.as_doc(), damage, None);
                }
            }
        }
        let mut collections = Vec::new();
        for doc in all(store, documents::COLLECTIONS).await? {
            match CollectionEntry::read(doc.clone()) {
                Ok(entry) => collections.push((doc, entry)),
                Err(fault) => {
                    let damage = Damage::new("CorruptedCollection", fault.to_string());
                    state.note_damage(doc.as_doc(), damage, None);
                }
            }
        }
        let mut chunks = BTreeMap::new();
        for (_, entry) in &collections {
            chunks.insert(entry.uuid, (&entry.pattern, Ok(Vec::new())));
        }
        // All of them as they lie: looked up by collection and in order, a million takes many times as long.
        let take = |doc: Doc<'_>| {
            let uuid = Fields::of(documents::CHUNKS, doc).uuid("uuid");
            let of_collection = uuid.ok().and_then(|uuid| chunks.get_mut(&uuid));
            if let Some((pattern, chunks)) = of_collection
                && let Ok(known) = chunks
            {
                match documents::read_chunk(pattern, doc) {
                    Ok(chunk) => known.push(chunk),
                    Err(damage) => *chunks = Err(damage),
                }
            }
            Ok(())
        };
        store.scan(documents::CHUNKS, take).await?;
        let mut chunks: BTreeMap<_, _> = chunks
            .into_iter()
            .map(|(uuid, (_, chunks))| (uuid, chunks))
            .collect();
        for (doc, entry) in collections {
            let own = chunks.remove(&entry.uuid).unwrap_or_else(|| Ok(Vec::new()));
            let table = match own.and_then(|own| documents::table_of(&entry, own)) {
                Ok(table) => table,
                Err(damage) => {
                    state.note_damage(doc.as_doc(), damage, Some(entry));
                    continue;
                }
            };
            let name = entry.namespace.clone();
            state.authority.restore(name.clone(), table, entry.catalog);
            state.collections.insert(name, entry);
        }
        for doc in all(store, documents::OPERATIONS).await? {
            let restored = operation::check_stored(doc.as_doc())
                .and_then(|()| state.restore_outcome(doc.as_doc()));
            if let Err(fault) = restored {
                let damage = Damage::new("CorruptedOperation", fault.to_string());
                state.note_damage_in(documents::OPERATIONS, doc.as_doc(), damage);
            }
        }
        let take = |doc: Doc<'_>| {
            if let Some((ticket, at_ms, answer)) = ticket::read(doc) {
                state.answers.keep(ticket, at_ms, answer);
            }
            Ok(())
        };
        store.scan(documents::ANSWERS, take).await?;
        Ok(state)
    }

    fn take_shard(&mut self, doc: Doc<'_>) -> Result<(), Fault> {
        let fields = Fields::of(documents::SHARDS, doc);
        let shard = ShardId::new(fields.text("_id")?);
        let host = fields.text("host");
        // Whoever owns something is a shard, wherever it is.
        let is_usable = host.is_ok() && !fields.flag("draining");
        self.authority.set_shard(shard.clone(), is_usable);
        self.hosts.insert(shard, host?.to_owned());
        Ok(())
    }

    /// The name under which a document is damaged that is of no one collection or database.
    pub(crate) fn name_in(collection: &str, id: &str) -> String {
        format!("config.{collection}/{id}")
    }

    fn note_damage_in(&mut self, collection: &str, doc: Doc<'_>, damage: Damage) {
        let id = match doc.get("_id") {
            Some(ValueRef::String(id)) => id.to_owned(),
            Some(ValueRef::Binary { subtype: 4, bytes }) => match bytes.try_into() {
                Ok(bytes) => Uuid(bytes).to_string(),
                Err(_) => format!("{bytes:?}"),
            },
            other => format!("{other:?}"),
        };
        let name = Self::name_in(collection, &id);
        tracing::error!("{name} is damaged: {}", damage.why);
        let entry = None;
        self.damaged.insert(name, Damaged { damage, entry });
    }

    fn note_damage(&mut self, doc: Doc<'_>, damage: Damage, entry: Option<CollectionEntry>) {
        let name = match doc.get("_id") {
            Some(ValueRef::String(name)) => name.to_owned(),
            // Nobody can ask for it.
            other => format!("{other:?}"),
        };
        tracing::error!("{name} is damaged: {}", damage.why);
        self.damaged.insert(name, Damaged { damage, entry });
    }

    /// Takes over what was decided of an operation, whether it has ended or not.
    fn restore_outcome(&mut self, doc: Doc<'_>) -> Result<(), Fault> {
        let fields = Fields::of(documents::OPERATIONS, doc);
        let is_over = fields.text("kind")? == settle::OUTCOME;
        let outcome = match (doc.get_doc("committed"), fields.flag("aborted") || is_over) {
            (Some(version), _) => Outcome::Committed {
                version: PlacementVersion::from_document(version)?,
                since: fields.time("validAfter")?,
            },
            (None, true) => Outcome::Aborted,
            (None, false) => return Ok(()),
        };
        let operation = fields.uuid("_id")?;
        self.authority.restore_outcome(operation, outcome);
        let at_ms = match doc.get("at") {
            Some(ValueRef::DateTime(at_ms)) => at_ms,
            _ => documents::now_ms(),
        };
        self.decided_ms.insert(operation, at_ms);
        Ok(())
    }

    /// Operations that were decided before a time.
    pub(crate) fn outcomes_before(&self, ms: i64) -> Vec<OperationId> {
        let old = self.decided_ms.iter().filter(|(_, at_ms)| **at_ms < ms);
        old.map(|(operation, _)| *operation).collect()
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
            Effect::Outcome(decision, at_ms) => {
                self.decided_ms.insert(decision.operation, at_ms);
                self.authority.apply(*decision)?;
            }
            Effect::Forgotten(operation) => {
                self.decided_ms.remove(&operation);
                self.authority.forget(operation);
            }
            Effect::Collection(entry) => {
                self.authority.set_catalog(&entry.namespace, entry.catalog);
                self.collections.insert(entry.namespace.clone(), entry);
            }
            Effect::Renamed(table, entry) => {
                let name = entry.namespace.clone();
                self.authority.restore(name.clone(), *table, entry.catalog);
                self.collections.insert(name, entry);
            }
            Effect::Database(name, placement) => self.authority.set_database(&name, placement),
            Effect::Shard(shard, host) => {
                if !self.hosts.contains_key(&shard) {
                    self.authority.set_shard(shard.clone(), true);
                }
                self.hosts.insert(shard, host);
            }
            Effect::Draining(shard) => self.authority.set_shard(shard, false),
            Effect::ShardGone(shard) => {
                self.authority.remove_shard(&shard);
                self.hosts.remove(&shard);
            }
            Effect::Balances(on) => self.balances = on,
            Effect::DamagedGone(name) => {
                self.damaged.remove(name.as_str());
            }
            Effect::Answered(ticket, at_ms, answer) => self.answers.keep(ticket, at_ms, answer),
            Effect::AnswerGone(id) => self.answers.forget(id),
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
        let missing = || {
            Fault::new(
                Code::NAMESPACE_NOT_SHARDED,
                format!("Expected collection {name} to be sharded"),
            )
        };
        self.lookup(name)?.ok_or_else(missing)
    }

    /// A sharded collection; `None` if it is not sharded, and an error if that cannot be told.
    pub(crate) fn lookup(
        &self,
        name: &Namespace,
    ) -> Result<Option<(&CollectionEntry, &RoutingTable)>, Fault> {
        for damaged in [name.as_str(), name.database()] {
            if let Some(found) = self.damaged.get(damaged) {
                return Err(found.fault(damaged));
            }
        }
        Ok(self.collections.get(name).zip(self.authority.table(name)))
    }

    /// The document of a collection that is to go, whether its chunks can be understood or not.
    pub(crate) fn to_be_dropped(
        &self,
        name: &Namespace,
    ) -> Result<Option<&CollectionEntry>, Fault> {
        match self.damaged.get(name.as_str()) {
            Some(Damaged {
                entry: Some(entry), ..
            }) => Ok(Some(entry)),
            Some(_) | None => Ok(self.lookup(name)?.map(|(entry, _)| entry)),
        }
    }

    /// Refuses what needs to know all sharded collections of a database.
    pub(crate) fn check_within(&self, database: &str) -> Result<(), Fault> {
        let is_within = |name: &str| name.split_once('.').is_some_and(|(of, _)| of == database);
        let damaged = self.damaged.iter().find(|(name, _)| is_within(name));
        damaged.map_or(Ok(()), |(name, damaged)| Err(damaged.fault(name)))
    }

    /// Where a database is; `None` if it does not exist.
    pub(crate) fn database(&self, name: &str) -> Result<Option<&DatabasePlacement>, Fault> {
        match self.damaged.get(name) {
            Some(damaged) => Err(damaged.fault(name)),
            None => Ok(self.authority.database(name)),
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

    /// Refuses a shard whose document is damaged.
    pub(crate) fn check_shard(&self, shard: &ShardId) -> Result<(), Fault> {
        let name = Self::name_in(documents::SHARDS, shard.as_str());
        let damaged = self.damaged.get(&name);
        damaged.map_or(Ok(()), |damaged| Err(damaged.fault(&name)))
    }

    /// Refuses what all shards must hear of while the document of one is damaged: it can't be reached, and would keep
    /// what the others have forgotten.
    pub(crate) fn check_all_shards(&self) -> Result<(), Fault> {
        let of_shards = Self::name_in(documents::SHARDS, "");
        let mut damaged = self.damaged.iter();
        let damaged = damaged.find(|(name, _)| name.starts_with(&of_shards));
        damaged.map_or(Ok(()), |(name, damaged)| Err(damaged.fault(name)))
    }

    /// A shard by its id, its connection string, the name of its replica set, or one of its hosts.
    pub(crate) fn shard_called(&self, name: &str) -> Result<ShardId, Fault> {
        let id = ShardId::new(name);
        if self.hosts.contains_key(&id) {
            return Ok(id);
        }
        let is_meant = |connection: &str| {
            let (set, hosts) = connection.split_once('/').unwrap_or(("", connection));
            connection == name || set == name || hosts.split(',').any(|host| host == name)
        };
        let found = self.hosts.iter().find(|(_, host)| is_meant(host));
        let found = found.map(|(shard, _)| shard.clone());
        let missing = || Fault::new(Code::SHARD_NOT_FOUND, format!("Shard {name} not found"));
        found.ok_or_else(missing)
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
