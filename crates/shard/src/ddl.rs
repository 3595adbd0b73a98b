//! Changes of the catalog, each one entry of the log.
//!
//! One at a time: a change holds the shard's `ddl` lock from reading the catalog
//! until its entry is applied. Where a collection's indexes change, it also holds
//! the collection's gate exclusively, so that no write is evaluated with the old
//! indexes and appended behind the change.

use crate::catalog::{CatalogKey, Collection, Index, IndexState, NextIds};
use crate::write::Companion;
use crate::Shard;
use model::bson::{DocBuf, DocWriter};
use model::ids::CollectionId;
use model::{Error, Namespace};
use query::index::IndexDefinition;
use replication::{Durability, ProposeError};
use std::sync::Arc;
use storage::entry::Encoder;
use tokio::sync::RwLock;

impl Shard {
    /// The collection, created if it is not there.
    pub(crate) async fn ensure_collection(
        &self,
        namespace: &Namespace,
    ) -> Result<Arc<Collection>, Error> {
        if let Some(collection) = self.catalog.get(namespace) {
            return Ok(collection);
        }
        let _ddl = self.ddl.lock().await;
        match self.catalog.get(namespace) {
            Some(collection) => Ok(collection),
            None => self.create_collection(namespace, DocBuf::new()).await,
        }
    }

    /// Creates a collection that does not exist; the caller holds `ddl`.
    pub(crate) async fn create_collection(
        &self,
        namespace: &Namespace,
        options: DocBuf,
    ) -> Result<Arc<Collection>, Error> {
        let ids = self.next_ids()?;
        let collection = Collection {
            id: CollectionId(ids.collection),
            uuid: self.new_uuid(),
            namespace: namespace.clone(),
            options,
            indexes: vec![Arc::new(Index::new(
                None,
                id_index()?,
                IndexState::Ready,
                self.clock.now_ms(),
            ))],
            gate: Arc::new(RwLock::new(())),
        };
        let next = NextIds {
            collection: ids.collection + 1,
            ..ids
        };
        self.propose_catalog(|encoder| {
            encoder.put_meta(CatalogKey::NEXT_ID, next.to_document().as_bytes());
            encoder.put_meta(
                &CatalogKey::collection(collection.id),
                collection.to_document().as_bytes(),
            );
        })
        .await?;
        self.catalog.by_id(collection.id).ok_or_else(|| {
            Error::new(
                model::Code::INTERNAL_ERROR,
                "an applied catalog entry is visible",
            )
        })
    }

    /// Appends an entry of catalog operations and waits until it is applied.
    pub(crate) async fn propose_catalog(
        &self,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<(), Error> {
        loop {
            let mut payload = Vec::new();
            encode(&mut Encoder::new(&mut payload));
            let proposed = self
                .log
                .propose(Durability::Synced, |_, _| (payload, Companion::empty()));
            match proposed {
                Ok(pending) => {
                    pending.await.map_err(crate::error::from_log)?;
                    return Ok(());
                }
                Err(ProposeError::Busy) => {
                    self.log.ready().await.map_err(crate::error::from_log)?
                }
                Err(error) => return Err(crate::error::from_log(error)),
            }
        }
    }
}

/// The index every collection has: the order of its records.
fn id_index() -> Result<IndexDefinition, Error> {
    let key = DocWriter::new().with("_id", 1).finish();
    let spec = DocWriter::new()
        .with("v", 2)
        .with("key", &key)
        .with("name", "_id_")
        .finish();
    IndexDefinition::from_stored(spec.as_doc())
}
