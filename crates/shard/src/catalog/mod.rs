//! The catalog: which collections and indexes exist, and under which ids.
//!
//! Each collection is one BSON document in the engine's meta space, written
//! only through the log. In memory the catalog is an immutable map that is
//! replaced as a whole; readers take the current one without a lock. It is
//! replaced by the log's loop when a catalog document is *applied*, so that
//! every member follows the same way.
//!
//! ```text
//!   DDL command ─► gate (exclusive) ─► propose PutMeta ─► applied: map replaced ─► gate open
//!   write       ─► gate (shared)    ─► evaluate with the indexes of this moment ─► append
//! ```
//!
//! Invariant: an entry is always evaluated with the catalog that holds at its
//! place in the log. The gate of the collection gives it: writers hold it shared
//! from looking up the collection until their entry is appended; who changes the
//! collection holds it exclusively until the change is applied.

mod clustering;
mod document;
mod lock;
pub(crate) mod multikey;

pub(crate) use clustering::Clustering;
pub(crate) use document::{CatalogKey, IndexState, NextIds};
pub(crate) use lock::CatalogLock;
pub(crate) use multikey::Multikey;

use crate::read::VirtualCollection;
use crate::sharding::{Ownership, OwnershipUpdate};
use arc_swap::ArcSwap;
use model::bson::{DocBuf, ValueRef};
use model::ids::{CollectionId, IndexId, Uuid};
use model::time::ClusterTime;
use model::{Error, Namespace};
use query::index::IndexDefinition;
use query::index_keys::MultikeyPaths;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use storage::entry::{Name, Names};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, RwLock};

/// One collection as of some catalog version.
#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) id: CollectionId,
    pub(crate) uuid: Uuid,
    pub(crate) namespace: Namespace,
    /// What `create` was given, as `listCollections` shows it.
    pub(crate) options: DocBuf,
    /// The index on `_id` comes first; building ones are included.
    pub(crate) indexes: Vec<Arc<Index>>,
    /// Before this time the name meant another collection, or none.
    pub(crate) since: ClusterTime,
    /// What records are ordered by before `_id`, if by anything.
    pub(crate) clustering: Option<Arc<Clustering>>,
    /// What this shard owns of it, if it is sharded.
    pub(crate) ownership: Option<Arc<Ownership>>,
    /// Survives catalog versions: see the invariant above.
    pub(crate) gate: Arc<RwLock<()>>,
    /// How entries of the log name it; see [`Collection::name`].
    pub(crate) name: OnceLock<Box<[u8]>>,
    /// Set if its documents are made, not stored: see `read/virtual_collection.rs`.
    pub(crate) made: Option<Arc<dyn VirtualCollection>>,
}

/// One index of a collection.
#[derive(Debug)]
pub(crate) struct Index {
    /// The id index has none where records are clustered by `_id` themselves.
    pub(crate) id: Option<IndexId>,
    pub(crate) definition: IndexDefinition,
    pub(crate) state: IndexState,
    /// Where documents in it have arrays; survives catalog versions.
    pub(crate) multikey: Arc<Multikey>,
    /// Lookups since the start, for `$indexStats`.
    pub(crate) accesses: Arc<std::sync::atomic::AtomicU64>,
    pub(crate) accesses_since_ms: i64,
}

impl Index {
    pub(crate) fn is_multikey(&self) -> bool {
        self.multikey.any()
    }

    pub(crate) fn multikey_paths(&self) -> MultikeyPaths {
        match self.is_multikey() {
            true => MultikeyPaths::clone(&self.multikey.paths()),
            false => MultikeyPaths::default(),
        }
    }

    /// The same index in another state.
    pub(crate) fn with_state(&self, state: IndexState) -> Index {
        Index {
            id: self.id,
            definition: self.definition.clone(),
            state,
            multikey: self.multikey.clone(),
            accesses: self.accesses.clone(),
            accesses_since_ms: self.accesses_since_ms,
        }
    }

    /// Whether no two documents may have the same key.
    pub(crate) fn is_unique(&self) -> bool {
        self.definition.unique || self.definition.is_id()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state == IndexState::Ready
    }
}

impl Collection {
    /// The collection as entries of the log name it.
    pub(crate) fn name(&self) -> Names<'_> {
        Names::new(self.name.get_or_init(|| {
            let name = Name {
                collection: self.id,
                uuid: self.uuid.0,
                keeps_images: self.keeps_images(),
                namespace: self.namespace.as_str(),
                shard_key: self.sharded_ownership().map(|own| own.key.as_bytes()),
            };
            let mut bytes = Vec::new();
            name.encode(&mut bytes);
            bytes.into_boxed_slice()
        }))
    }

    /// Whether change streams are to see versions before and after a change.
    pub(crate) fn keeps_images(&self) -> bool {
        self.options
            .as_doc()
            .get_doc("changeStreamPreAndPostImages")
            .and_then(|images| images.get("enabled"))
            == Some(ValueRef::Boolean(true))
    }

    /// What this shard owns of it, if it is sharded.
    pub(crate) fn sharded_ownership(&self) -> Option<&Arc<Ownership>> {
        self.ownership.as_ref().filter(|known| !known.unsharded)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded_ownership().is_some()
    }

    /// Whether documents may be stored here that belong to another shard.
    pub(crate) fn may_hold_orphans(&self) -> bool {
        let ownership = self.ownership.as_ref();
        ownership.is_some_and(|ownership| ownership.orphans)
    }

    /// Whether this shard owns the same ranges by another entry of the catalog.
    pub(crate) fn owns_the_same(&self, other: &Collection) -> bool {
        match (&self.ownership, &other.ownership) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(&a.owned, &b.owned),
            _ => false,
        }
    }

    pub(crate) fn index_by_name(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes
            .iter()
            .find(|index| index.definition.name == name)
    }

    /// Indexes with entries of their own, which every write maintains.
    pub(crate) fn secondary_indexes(&self) -> impl Iterator<Item = (IndexId, &Arc<Index>)> {
        self.indexes
            .iter()
            .filter_map(|index| index.id.map(|id| (id, index)))
    }
}

/// The catalog at one moment.
#[derive(Clone, Default)]
pub(crate) struct CatalogVersion {
    by_namespace: BTreeMap<Namespace, Arc<Collection>>,
    by_id: BTreeMap<CollectionId, Arc<Collection>>,
}

impl CatalogVersion {
    pub(crate) fn get(&self, namespace: &Namespace) -> Option<&Arc<Collection>> {
        self.by_namespace.get(namespace)
    }

    pub(crate) fn by_id(&self, id: CollectionId) -> Option<&Arc<Collection>> {
        self.by_id.get(&id)
    }

    pub(crate) fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_namespace.values()
    }

    pub(crate) fn database<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Collection>> {
        self.collections()
            .filter(move |collection| collection.namespace.database() == name)
    }

    fn put(&mut self, collection: Collection) {
        let collection = Arc::new(collection);
        self.by_namespace
            .insert(collection.namespace.clone(), collection.clone());
        self.by_id.insert(collection.id, collection);
    }
}

/// The current catalog, and the way to replace it.
pub(crate) struct Catalog {
    current: ArcSwap<CatalogVersion>,
    changed: Notify,
}

impl Catalog {
    /// The catalog as it was stored.
    pub(crate) fn new(collections: Vec<Collection>) -> Self {
        let mut version = CatalogVersion::default();
        for collection in collections {
            version.put(collection);
        }
        Self {
            current: ArcSwap::from_pointee(version),
            changed: Notify::new(),
        }
    }

    pub(crate) fn current(&self) -> arc_swap::Guard<Arc<CatalogVersion>> {
        self.current.load()
    }

    pub(crate) fn get(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        self.current.load().get(namespace).cloned()
    }

    pub(crate) fn by_id(&self, id: CollectionId) -> Option<Arc<Collection>> {
        self.current.load().by_id(id).cloned()
    }

    /// Completes at the first change after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Takes over the catalog documents of one applied entry, all at once, so
    /// that no reader sees a rename half done. Called by the log's loop only,
    /// one entry at a time.
    pub(crate) fn applied(
        &self,
        changes: Vec<(CollectionId, Option<Collection>)>,
        ownerships: Vec<(CollectionId, OwnershipUpdate)>,
        time: ClusterTime,
    ) -> Result<(), Error> {
        if changes.is_empty() && ownerships.is_empty() {
            return Ok(());
        }
        let current = self.current.load();
        let mut version = CatalogVersion::clone(&current);
        for (id, collection) in changes {
            let previous = version.by_id.remove(&id);
            if let Some(previous) = &previous {
                version.by_namespace.remove(&previous.namespace);
            }
            if let Some(mut collection) = collection {
                collection.since = time;
                if let Some(previous) = previous {
                    collection.carry_over(&previous);
                }
                version.put(collection);
            }
        }
        for (id, update) in ownerships {
            // Gone together with its collection, most of the time.
            let Some(known) = version.by_id.get(&id) else {
                continue;
            };
            let mut collection = known.copy();
            collection.ownership = Ownership::updated(known.ownership.as_ref(), &update)?;
            let comes = (known.ownership.as_ref()).is_some_and(|before| before.is_arrival());
            if comes && collection.ownership.is_none() {
                collection.since = time;
            }
            version.put(collection);
        }
        self.current.store(Arc::new(version));
        self.changed.notify_waiters();
        Ok(())
    }

    /// Takes over a whole catalog: the state was installed from another member.
    pub(crate) fn replace(
        &self,
        collections: Vec<Collection>,
        time: ClusterTime,
    ) -> Result<(), Error> {
        let stored: Vec<_> = (collections.iter())
            .map(|it| (it.id, it.ownership.clone(), it.since))
            .collect();
        let gone: Vec<CollectionId> = self.current.load().by_id.keys().copied().collect();
        let mut changes: Vec<_> = gone.into_iter().map(|id| (id, None)).collect();
        for collection in collections {
            // A collection that is known keeps its gate.
            changes.retain(|(id, _)| *id != collection.id);
            changes.push((collection.id, Some(collection)));
        }
        let loaded = changes
            .iter()
            .filter_map(|(_, collection)| collection.as_ref());
        let multikey: Vec<(IndexId, Arc<MultikeyPaths>)> = loaded
            .flat_map(Collection::secondary_indexes)
            .filter(|(_, index)| index.is_multikey())
            .map(|(id, index)| (id, index.multikey.paths()))
            .collect();
        self.applied(changes, Vec::new(), time)?;
        // An index that was known keeps what it knew, which may be out of date.
        for (id, paths) in multikey {
            self.add_multikey(id, |_| MultikeyPaths::clone(&paths));
        }
        let mut version = CatalogVersion::clone(&self.current.load());
        for (id, ownership, since) in stored {
            if let Some(known) = version.by_id.get(&id) {
                let mut collection = known.copy();
                collection.ownership = ownership;
                collection.since = since;
                version.put(collection);
            }
        }
        self.current.store(Arc::new(version));
        Ok(())
    }

    /// An entry from before a restart or from another member says where an index,
    /// of so many fields, has arrays. Entries of this life have set it before they
    /// were appended.
    pub(crate) fn add_multikey(&self, id: IndexId, paths: impl Fn(usize) -> MultikeyPaths) {
        let current = self.current.load();
        for collection in current.collections() {
            for (other, index) in collection.secondary_indexes() {
                if other == id {
                    index.multikey.add(&paths(index.definition.fields.len()));
                }
            }
        }
    }
}

impl Collection {
    /// The start of the next catalog version.
    pub(crate) fn copy(&self) -> Collection {
        Collection {
            id: self.id,
            uuid: self.uuid,
            namespace: self.namespace.clone(),
            options: self.options.clone(),
            indexes: self.indexes.clone(),
            clustering: self.clustering.clone(),
            ownership: self.ownership.clone(),
            since: self.since,
            gate: self.gate.clone(),
            name: OnceLock::new(),
            made: self.made.clone(),
        }
    }

    /// Keeps what lives longer than one catalog version.
    fn carry_over(&mut self, previous: &Collection) {
        self.gate = previous.gate.clone();
        self.ownership = previous.ownership.clone();
        if self.namespace == previous.namespace {
            self.since = previous.since;
        }
        for index in &mut self.indexes {
            let before = previous.indexes.iter().find(|other| other.id == index.id);
            if let Some(before) = before {
                *index = Arc::new(Index {
                    definition: index.definition.clone(),
                    ..before.with_state(index.state)
                });
            }
        }
    }
}
