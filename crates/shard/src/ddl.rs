//! Changes of the catalog, each one entry of the log.
//!
//! One at a time: a change holds the shard's `ddl` lock from reading the catalog
//! until its entry is applied. Where a collection or its indexes change, it also
//! holds the collection's gate exclusively, so that no write is evaluated with
//! the old catalog and appended behind the change.
//!
//! ```text
//!   create    put collection, put next ids
//!   drop      delete collection, drop its records and indexes
//!   database  the same for all of its collections, in one entry
//!   rename    put collection under its new name; a target that is replaced is
//!             dropped in the same entry
//!   indexes   put collection with its new list; dropped indexes' entries go
//! ```
//!
//! Crash windows: an entry is in the log whole or not at all. Before it is
//! synced nothing has happened and nobody has an answer; afterwards the restart
//! applies it, if the engine had not. Between the two there is no state that
//! needs repair: a collection never exists under both of its names, and a target
//! is never gone without its replacement. What is dropped is invisible from the
//! entry on; its bytes are removed in the background, and a crash in the middle
//! of that only makes it start over. Only an index build spans several entries:
//! see `index_build.rs`.

use crate::Shard;
use crate::catalog::multikey;
use crate::catalog::{CatalogKey, Clustering, Collection, Index, IndexState, NextIds};
use crate::operation::Operation;
use crate::oplog::Commands;
use crate::sharding::{CONFIG_TIME_KEY, Ownership, OwnershipKey, TimePlace};
use crate::write::Companion;
use model::bson::DocBuf;
use model::ids::{CollectionId, IndexId, Uuid};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use query::index::IndexDefinition;
use replication::{Durability, ProposeError, Term};
use std::sync::{Arc, OnceLock};
use storage::entry::{Encoder, Header};
use tokio::sync::RwLock;

/// A collection that is to be created.
pub(crate) struct New {
    pub(crate) uuid: Uuid,
    pub(crate) options: DocBuf,
    /// Besides the one on `_id`.
    pub(crate) indexes: Vec<IndexDefinition>,
    /// What the shard owns of it, if it is sharded.
    pub(crate) ownership: Option<Ownership>,
    /// The same collection, whose gate the caller holds: empty and in another order, or with
    /// records that nobody can read any more.
    pub(crate) replaces: Option<Arc<Collection>>,
    pub(crate) order: Order,
    pub(crate) telling: Telling,
    /// The term in which it was known that it is to be created, if that is not looked at again.
    pub(crate) term: Option<Term>,
}

/// What the records of a new collection are ordered by before `_id`.
pub(crate) enum Order {
    /// By the shard key, if there is one.
    ByShardKey,
    /// As on other shards: by these fields, or by nothing.
    Like(Option<DocBuf>),
}

/// Whether change streams are told. What all shards of a cluster do, one of them tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Telling {
    Aloud,
    Quietly,
}

/// ⚑ Refuses what would change this shard's part of a sharded collection behind the cluster's back:
/// the config server would go on to place what is not there any more.
pub(crate) fn refuse_part(command: &str, collection: &Collection) -> Result<(), Error> {
    match collection.is_sharded() {
        false => Ok(()),
        true => Err(Error::new(
            Code::ILLEGAL_OPERATION,
            format!(
                "{command} of the sharded collection {} has to go through a router",
                collection.namespace
            ),
        )),
    }
}

/// The change of one index's definition.
pub(crate) type Redefine<'a> =
    dyn Fn(&IndexDefinition) -> Result<IndexDefinition, Error> + Send + Sync + 'a;

impl Shard {
    /// The collection, created if it is not there.
    pub(crate) async fn ensure_collection(
        &self,
        namespace: &Namespace,
        operation: Option<&Operation>,
    ) -> Result<Arc<Collection>, Error> {
        if let Some(collection) = self.catalog.get(namespace) {
            return Ok(collection);
        }
        let _ddl = self.ddl_in(&[namespace.database()], operation).await?;
        match self.catalog.get(namespace) {
            Some(collection) => Ok(collection),
            None => {
                self.create_collection(namespace, DocBuf::new(), Vec::new())
                    .await
            }
        }
    }

    /// Creates a collection that does not exist, with these indexes besides the
    /// one on `_id`; the caller holds `ddl`.
    pub(crate) async fn create_collection(
        &self,
        namespace: &Namespace,
        options: DocBuf,
        indexes: Vec<IndexDefinition>,
    ) -> Result<Arc<Collection>, Error> {
        self.check_home(namespace)?;
        let new = New {
            uuid: self.new_uuid(),
            options,
            indexes,
            ownership: None,
            replaces: None,
            order: Order::ByShardKey,
            telling: Telling::Aloud,
            term: None,
        };
        self.create_new(namespace, new).await
    }

    /// The same for a collection that may be sharded from its first moment on.
    pub(crate) async fn create_new(
        &self,
        namespace: &Namespace,
        new: New,
    ) -> Result<Arc<Collection>, Error> {
        self.check_database_case(namespace)?;
        let mut ids = self.next_ids()?;
        let now_ms = self.clock.now_ms();
        let ready = |id, definition| {
            let index = Index::new(id, definition, IndexState::Ready, now_ms);
            Arc::new(index)
        };
        let clustering = match (&new.order, &new.ownership) {
            (Order::Like(Some(fields)), _) => Clustering::by(fields.as_doc())?,
            (Order::Like(None), _) | (Order::ByShardKey, None) => None,
            (Order::ByShardKey, Some(ownership)) => Clustering::by(ownership.key.as_doc())?,
        };
        let mut id_index = None;
        if clustering.is_some() {
            id_index = Some(IndexId(ids.index));
            ids.index += 1;
        }
        let mut collection = Collection {
            clustering: clustering.map(Arc::new),
            id: CollectionId(ids.collection),
            uuid: new.uuid,
            namespace: namespace.clone(),
            options: new.options,
            ownership: None,
            indexes: vec![ready(id_index, IndexDefinition::on_id()?)],
            since: ClusterTime::ZERO,
            gate: Arc::new(RwLock::new(())),
            name: OnceLock::new(),
            made: None,
        };
        ids.collection += 1;
        for definition in new.indexes {
            collection
                .indexes
                .push(ready(Some(IndexId(ids.index)), definition));
            ids.index += 1;
        }
        let mut commands = Commands::new();
        if new.replaces.is_none() {
            commands = commands.create(&collection);
        }
        self.propose_told_in(new.term, commands, new.telling, |encoder| {
            put_next_ids(encoder, ids);
            if let Some(replaced) = &new.replaces {
                drop_collection(encoder, replaced);
            }
            put_collection(encoder, &collection);
            if let Some(ownership) = &new.ownership {
                put_ownership(encoder, collection.id, ownership);
            }
            TimePlace::of_name(encoder, collection.id)
        })
        .await?;
        self.catalog.by_id(collection.id).ok_or_else(|| {
            Error::new(
                Code::INTERNAL_ERROR,
                "an applied catalog entry is not visible",
            )
        })
    }

    /// Databases whose names differ only in case cannot live side by side, as on
    /// servers whose file systems do not tell them apart.
    fn check_database_case(&self, namespace: &Namespace) -> Result<(), Error> {
        let name = namespace.database();
        let catalog = self.catalog.current();
        let other = catalog
            .collections()
            .map(|collection| collection.namespace.database())
            .find(|other| *other != name && other.eq_ignore_ascii_case(name));
        match other {
            Some(other) => Err(Error::new(
                Code::DATABASE_DIFFER_CASE,
                format!(
                    "db already exists with different case already have: [{other}] trying to \
                     create [{name}]"
                ),
            )),
            None => Ok(()),
        }
    }

    /// Drops a collection, if `check` allows it when nothing else changes. `None` if there is none of this name.
    pub(crate) async fn drop_collection(
        &self,
        namespace: &Namespace,
        check: impl Fn() -> Result<(), Error>,
        operation: Option<&Operation>,
    ) -> Result<Option<Arc<Collection>>, Error> {
        if let Some(collection) = self.catalog.get(namespace) {
            refuse_part("drop", &collection)?;
        }
        let ddl = self.ddl_in(&[namespace.database()], operation).await?;
        check()?;
        self.drop_held(ddl, namespace, Telling::Aloud, |known| !known.is_sharded())
            .await
    }

    /// The same if it is the one that is meant.
    pub(crate) async fn drop_collection_if(
        &self,
        namespace: &Namespace,
        telling: Telling,
        is_meant: impl Fn(&Collection) -> bool,
    ) -> Result<Option<Arc<Collection>>, Error> {
        let ddl = self.ddl.lock().await;
        self.drop_held(ddl, namespace, telling, is_meant).await
    }

    async fn drop_held(
        &self,
        _ddl: tokio::sync::MutexGuard<'_, ()>,
        namespace: &Namespace,
        telling: Telling,
        is_meant: impl Fn(&Collection) -> bool,
    ) -> Result<Option<Arc<Collection>>, Error> {
        let Some(collection) = self.catalog.get(namespace).filter(|known| is_meant(known)) else {
            return Ok(None);
        };
        let gate = collection.gate.write().await;
        let command = Commands::new().drop(&collection, self.count_records(&collection));
        self.propose_told(command, telling, |encoder| {
            drop_collection(encoder, &collection)
        })
        .await?;
        drop(gate);
        Ok(Some(collection))
    }

    /// Drops all collections of a database in one entry.
    pub(crate) async fn drop_database(
        &self,
        database: &str,
        telling: Telling,
    ) -> Result<(), Error> {
        self.drop_database_if(database, telling, || Ok(())).await
    }

    /// The same, unless something speaks against it when nobody else changes collections or their ownership.
    pub(crate) async fn drop_database_if(
        &self,
        database: &str,
        telling: Telling,
        permits: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let mut collections: Vec<Arc<Collection>> =
            self.catalog.current().database(database).cloned().collect();
        if collections.is_empty() {
            return permits();
        }
        // Who takes several gates takes them in this order: see `write/several.rs`.
        collections.sort_by_key(|collection| collection.id);
        let mut gates = Vec::with_capacity(collections.len());
        for collection in &collections {
            gates.push(collection.gate.write().await);
        }
        permits()?;
        let commands = collections
            .iter()
            .fold(Commands::new(), |commands, collection| {
                commands.drop(collection, self.count_records(collection))
            });
        self.propose_told(commands.drop_database(database), telling, |encoder| {
            for collection in &collections {
                drop_collection(encoder, collection);
            }
        })
        .await
    }

    /// Gives a collection another name, dropping one that has it if `drop_target`; only the one with this UUID, if
    /// one is expected.
    pub(crate) async fn rename_collection(
        &self,
        from: &Namespace,
        to: &Namespace,
        (drop_target, expected): (bool, Option<&[u8]>),
        operation: Option<&Operation>,
    ) -> Result<(), Error> {
        let within = from.database() == to.database();
        let databases = [from.database(), to.database()];
        let _ddl = self.ddl_in(&databases, operation).await?;
        // ⚑ Both ends: what arrives where its database does not live would be found by nobody.
        self.check_home(from)?;
        self.check_home(to)?;
        let source = self.catalog.get(from);
        if let Some(expected) = expected {
            check_uuid(source.as_ref(), expected)?;
        }
        let Some(source) = source else {
            let message = if within {
                format!("Source collection {from} does not exist")
            } else {
                "source namespace does not exist".to_owned()
            };
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message));
        };
        let target = self.catalog.get(to);
        for end in [Some(&source), target.as_ref()].into_iter().flatten() {
            refuse_part("renameCollection", end)?;
        }
        if target.is_some() && !drop_target {
            return Err(Error::new(
                Code::NAMESPACE_EXISTS,
                "target namespace exists",
            ));
        }
        self.check_database_case(to)?;
        self.rename_held(&source, target, to, None, Telling::Aloud, None)
            .await
    }

    /// What the cluster has decided about a name: the collection with this UUID has it, here with what
    /// this shard owns of it, and whatever else had it is gone. May be told again.
    pub(crate) async fn rename_decided(
        &self,
        from: &Namespace,
        to: &Namespace,
        uuid: Uuid,
        ownership: Option<Ownership>,
        telling: Telling,
        placeholder: Option<Uuid>,
    ) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let is_meant = |known: &Arc<Collection>| known.uuid == uuid;
        let target = self.catalog.get(to);
        if let Some(source) = self.catalog.get(from).filter(is_meant) {
            return self
                .rename_held(&source, target, to, ownership, telling, placeholder)
                .await;
        }
        match (target, ownership) {
            (Some(target), Some(ownership)) if is_meant(&target) => {
                self.place(&target, ownership, false).await
            }
            (Some(target), _) if !is_meant(&target) => {
                let gate = target.gate.write().await;
                let command = Commands::new().drop(&target, self.count_records(&target));
                self.propose_told(command, Telling::Quietly, |encoder| {
                    drop_collection(encoder, &target);
                })
                .await?;
                drop(gate);
                Ok(())
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Renames a collection and drops the one that has the name; the caller holds `ddl`.
    async fn rename_held(
        &self,
        source: &Arc<Collection>,
        target: Option<Arc<Collection>>,
        to: &Namespace,
        ownership: Option<Ownership>,
        telling: Telling,
        placeholder: Option<Uuid>,
    ) -> Result<(), Error> {
        let within = source.namespace.database() == to.database();
        // In the order of `write/several.rs`.
        let mut gates: Vec<&Arc<Collection>> = [source].into_iter().chain(&target).collect();
        gates.sort_by_key(|collection| collection.id);
        let mut held = Vec::with_capacity(gates.len());
        for collection in gates {
            held.push(collection.gate.write().await);
        }
        let mut renamed = source.copy();
        renamed.namespace = to.clone();
        if !within {
            // In another database it is another collection to its users.
            renamed.uuid = self.new_uuid();
        }
        // The same ranges under another incarnation. Looked up again: moves hold the gate and not `ddl`.
        let known = self.catalog.by_id(source.id);
        let known = known.and_then(|source| source.ownership.clone());
        let ownership = ownership
            .zip(known)
            .map(|(new, known)| known.with_versions(new.placement, new.collection_version));
        // What only kept the name free was never there for clients.
        let replaced = target
            .as_deref()
            .filter(|target| Some(target.uuid) != placeholder)
            .map(|target| (target, self.count_records(target)));
        let command = Commands::new().rename(source, to, replaced);
        self.propose_told(command, telling, |encoder| {
            if let Some(target) = &target {
                drop_collection(encoder, target);
            }
            put_collection(encoder, &renamed);
            if let Some(ownership) = &ownership {
                let head = ownership.head_document();
                encoder.put_meta(&OwnershipKey::head(renamed.id), head.as_bytes());
            }
            match renamed.namespace == source.namespace {
                true => None,
                false => Some(TimePlace::of_name(encoder, renamed.id)),
            }
        })
        .await
    }

    /// Drops indexes that `choose` picks by name from the current ones, finished
    /// or not. Returns the collection as it was.
    pub(crate) async fn drop_indexes(
        &self,
        namespace: &Namespace,
        operation: Option<&Operation>,
        choose: impl Fn(&Collection) -> Result<Vec<String>, Error>,
    ) -> Result<Option<Arc<Collection>>, Error> {
        let _ddl = self.ddl_in(&[namespace.database()], operation).await?;
        let Some(collection) = self.catalog.get(namespace) else {
            return Ok(None);
        };
        let chosen = choose(&collection)?;
        if chosen.is_empty() {
            return Ok(Some(collection));
        }
        let gate = collection.gate.write().await;
        let mut changed = collection.copy();
        let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut changed.indexes)
            .into_iter()
            .partition(|index| index.id.is_some() && chosen.contains(&index.definition.name));
        changed.indexes = kept;
        // A build that is stopped was never there for clients.
        let finished: Vec<_> = dropped.iter().filter(|i| i.is_ready()).cloned().collect();
        let command = Commands::new().drop_indexes(&collection, &finished);
        self.propose_command(command, |encoder| {
            put_collection(encoder, &changed);
            drop_indexes(encoder, &dropped);
        })
        .await?;
        drop(gate);
        Ok(Some(collection))
    }

    /// Changes options of a collection and the definition of one index; the caller
    /// holds `ddl` and has just looked `collection` up. Entries do not depend on
    /// what may change.
    pub(crate) async fn modify_collection(
        &self,
        collection: &Collection,
        command: Commands,
        options: Option<DocBuf>,
        index: Option<(&str, &Redefine<'_>)>,
    ) -> Result<(), Error> {
        let _gate = collection.gate.write().await;
        let mut changed = collection.copy();
        if let Some(options) = options {
            changed.options = options;
        }
        if let Some((name, redefine)) = index {
            for index in &mut changed.indexes {
                if index.definition.name == name {
                    *index = Arc::new(Index {
                        definition: redefine(&index.definition)?,
                        ..index.with_state(index.state)
                    });
                }
            }
        }
        self.propose_command(command, |encoder| put_collection(encoder, &changed))
            .await
    }

    /// The records of a collection whose gate is held.
    fn count_records(&self, collection: &Collection) -> u64 {
        self.store.collection_counter(collection.id).items
    }

    /// Appends an entry of catalog operations and waits until it is applied.
    pub(crate) async fn propose_catalog<T: Timed>(
        &self,
        encode: impl Fn(&mut Encoder<'_>) -> T,
    ) -> Result<(), Error> {
        self.propose_with(None, Header::default(), encode).await
    }

    /// The same for what was worked out while this member led in `term`: refused if it has not led without
    /// interruption since.
    pub(crate) async fn propose_catalog_in(
        &self,
        term: Term,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<(), Error> {
        self.propose_with(Some(term), Header::default(), encode)
            .await
    }

    /// The same for an entry that carries out commands of clients.
    pub(crate) async fn propose_command<T: Timed>(
        &self,
        commands: Commands,
        encode: impl Fn(&mut Encoder<'_>) -> T,
    ) -> Result<(), Error> {
        self.propose_told(commands, Telling::Aloud, encode).await
    }

    async fn propose_told<T: Timed>(
        &self,
        commands: Commands,
        telling: Telling,
        encode: impl Fn(&mut Encoder<'_>) -> T,
    ) -> Result<(), Error> {
        self.propose_told_in(None, commands, telling, encode).await
    }

    async fn propose_told_in<T: Timed>(
        &self,
        term: Option<Term>,
        commands: Commands,
        telling: Telling,
        encode: impl Fn(&mut Encoder<'_>) -> T,
    ) -> Result<(), Error> {
        let times = commands.count();
        let commands = commands.finish();
        let header = Header {
            times: (times > 1).then_some(times),
            command: Some(commands.as_bytes()),
            origin: match telling {
                Telling::Aloud => None,
                Telling::Quietly => Some(b"another shard tells"),
            },
            ..Header::default()
        };
        self.propose_with(term, header, encode).await
    }

    async fn propose_with<T: Timed>(
        &self,
        term: Option<Term>,
        header: Header<'_>,
        encode: impl Fn(&mut Encoder<'_>) -> T,
    ) -> Result<(), Error> {
        let times = header.times.unwrap_or(1);
        loop {
            let mut payload = Vec::new();
            let mut encoder = Encoder::with_header(&mut payload, header);
            let timed = encode(&mut encoder);
            if let Some(time) = self.sharding.config_time.to_store() {
                encoder.put_meta(CONFIG_TIME_KEY, time.as_bytes());
            }
            let proposed = self.log.propose_several(
                term,
                Durability::Synced,
                times,
                payload,
                |payload, _, time| {
                    timed.fill_in(payload, time);
                    Companion::empty()
                },
            );
            match proposed {
                Ok(pending) => {
                    pending.await.map_err(crate::error::from_log)?;
                    return Ok(());
                }
                Err(ProposeError::Busy) => {
                    self.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(error) => return Err(crate::error::from_log(error)),
            }
        }
    }
}

/// What an encoded entry still lacks: its own time, in some place or in none.
pub(crate) trait Timed {
    fn fill_in(&self, payload: &mut [u8], time: ClusterTime);
}

impl Timed for () {
    fn fill_in(&self, _payload: &mut [u8], _time: ClusterTime) {}
}

impl Timed for TimePlace {
    fn fill_in(&self, payload: &mut [u8], time: ClusterTime) {
        TimePlace::fill_in(self, payload, time);
    }
}

impl<T: Timed> Timed for Option<T> {
    fn fill_in(&self, payload: &mut [u8], time: ClusterTime) {
        if let Some(timed) = self {
            timed.fill_in(payload, time);
        }
    }
}

pub(crate) fn put_next_ids(encoder: &mut Encoder<'_>, ids: NextIds) {
    encoder.put_meta(CatalogKey::NEXT_ID, ids.to_document().as_bytes());
}

pub(crate) fn put_collection(encoder: &mut Encoder<'_>, collection: &Collection) {
    encoder.put_meta(
        &CatalogKey::collection(collection.id),
        collection.to_document().as_bytes(),
    );
}

pub(crate) fn drop_indexes(encoder: &mut Encoder<'_>, indexes: &[Arc<Index>]) {
    for index in indexes {
        let Some(id) = index.id else { continue };
        encoder.drop_index(id);
        let fields = index.definition.fields.len();
        multikey::delete(encoder, id, &index.multikey, fields);
    }
}

/// Puts what the shard owns of a new collection.
fn put_ownership(encoder: &mut Encoder<'_>, id: CollectionId, ownership: &Ownership) {
    let head = ownership.head_document();
    encoder.put_meta(&OwnershipKey::head(id), head.as_bytes());
    let ranges = ownership.ranges_document();
    encoder.put_meta(&OwnershipKey::ranges(id), ranges.as_bytes());
    if !ownership.moving.is_empty() {
        let moving = ownership.moving.to_document();
        encoder.put_meta(&OwnershipKey::moving(id), moving.as_bytes());
    }
}

/// Refuses a collection that is not the one a command expects, or none.
pub(crate) fn check_uuid(
    collection: Option<&Arc<Collection>>,
    expected: &[u8],
) -> Result<(), Error> {
    if collection.is_some_and(|collection| collection.uuid.0 == expected) {
        return Ok(());
    }
    Err(Error::new(
        Code::COLLECTION_UUID_MISMATCH,
        "Collection UUID does not match that specified",
    ))
}

fn drop_collection(encoder: &mut Encoder<'_>, collection: &Collection) {
    encoder.delete_meta(&CatalogKey::collection(collection.id));
    encoder.delete_meta(&CatalogKey::since(collection.id));
    encoder.drop_collection(collection.id);
    drop_indexes(encoder, &collection.indexes);
    if collection.ownership.is_some() {
        encoder.delete_meta(&OwnershipKey::head(collection.id));
        encoder.delete_meta(&OwnershipKey::ranges(collection.id));
        encoder.delete_meta(&OwnershipKey::moving(collection.id));
    }
}
