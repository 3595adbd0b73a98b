//! Virtual collections: documents that are made when they are asked for.
//!
//! `find`, `aggregate`, `count`, `distinct` and `explain` read them like any
//! other: an [`Execution`](super::Execution) takes its documents from a
//! [`VirtualSource`] instead of a scan of records; filter, sort, skip, limit and
//! batches are the same. They have no indexes, and writes are refused.
//!
//! Left out: reading at an earlier time.

use super::Query;
use crate::Shard;
use crate::catalog::Collection;
use model::bson::DocBuf;
use model::ids::{CollectionId, Uuid};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use query::plan::ScanDirection;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// What stands behind the name of a virtual collection.
pub(crate) trait VirtualCollection: Debug + Send + Sync {
    fn namespace(&self) -> &'static str;

    /// Begins a scan. The filter is applied to what it gives in any case; a source
    /// may use it to leave out what cannot pass.
    fn open(
        &self,
        shard: &Arc<Shard>,
        query: &Query,
        direction: ScanDirection,
    ) -> Result<Box<dyn VirtualSource>, Error>;

    /// How many documents there are, if that is known without making them.
    fn count(&self, _shard: &Shard) -> Option<u64> {
        None
    }

    /// The bytes that it takes, and that it may take.
    fn bytes(&self, _shard: &Shard) -> Option<replication::LogBytes> {
        None
    }

    /// Whether a scan at its end may find more later.
    fn is_tailable(&self) -> bool {
        false
    }

    /// Whether `drop` means something: that what it shows is forgotten.
    fn can_be_dropped(&self) -> bool {
        false
    }

    /// As `listCollections` shows them.
    fn options(&self) -> DocBuf {
        DocBuf::new()
    }

    /// The error for a command that would change it.
    fn refusal(&self, command: &str) -> Error {
        Error::new(
            Code::ILLEGAL_OPERATION,
            format!("{command} is not allowed on {}", self.namespace()),
        )
    }
}

/// One scan of a virtual collection. It is kept between batches.
pub(crate) trait VirtualSource: Send {
    /// The next document; `None` at the end, for now.
    fn next(&mut self, shard: &Shard) -> Result<Option<DocBuf>, Error>;
}

/// Presents virtual collections as the rest of the shard knows collections.
pub(crate) fn virtual_collections() -> Vec<Arc<Collection>> {
    let all: [Arc<dyn VirtualCollection>; 4] = [
        Arc::new(crate::oplog::Oplog),
        Arc::new(crate::replica_set::ConfigurationCollection),
        Arc::new(crate::session::Transactions),
        Arc::new(crate::session::Images),
    ];
    all.into_iter()
        .map(|made| {
            let namespace = Namespace::parse(made.namespace()).expect("our own names are valid");
            Arc::new(Collection {
                // No stored collection has this id.
                id: CollectionId(0),
                uuid: Uuid([0; 16]),
                namespace,
                options: made.options(),
                indexes: Vec::new(),
                clustering: None,
                ownership: None,
                since: ClusterTime::ZERO,
                gate: Arc::default(),
                name: OnceLock::new(),
                made: Some(made),
            })
        })
        .collect()
}

impl Shard {
    /// A collection to read, stored or virtual.
    pub(crate) fn readable(&self, namespace: &Namespace) -> Option<Arc<Collection>> {
        match self.virtual_collection(namespace) {
            Some(made) => Some(made.clone()),
            None => self.catalog.get(namespace),
        }
    }

    pub(crate) fn virtual_collection(&self, namespace: &Namespace) -> Option<&Arc<Collection>> {
        if !matches!(namespace.database(), "local" | "config") {
            return None;
        }
        self.virtual_collections
            .iter()
            .find(|made| made.namespace == *namespace)
    }

    /// The error for a write to a virtual collection.
    pub(crate) fn check_writable(&self, namespace: &Namespace, command: &str) -> Result<(), Error> {
        match self
            .virtual_collection(namespace)
            .and_then(|collection| collection.made.as_ref())
        {
            Some(made) if command == "drop" && made.can_be_dropped() => Ok(()),
            Some(made) => Err(made.refusal(command)),
            None => Ok(()),
        }
    }
}
