//! What stages need from outside: other collections, disk, statistics, and the
//! word that the operation is to end.

use super::change_stream::ChangeStream;
use super::collection_stats::CollectionStats;
use super::list_sessions::SessionsOf;
use super::memory::MEMORY_BYTES_MAX;
use super::source::Source;
use super::stage::Step;
use crate::filter::Filter;
use crate::sort::{SortPattern, Spill};
use model::bson::{Doc, DocBuf, Value};
use model::{Error, Namespace};
use std::collections::BTreeSet;

/// The world around a running pipeline.
pub trait Environment: Send + Sync {
    /// The error that ends the operation now, if any.
    fn check(&self) -> Result<(), Error>;

    /// Reads a collection; one that does not exist is empty. All parts of the
    /// request are obeyed, by an index where there is one.
    fn scan(&self, request: ScanRequest) -> Result<Box<dyn Source>, Error>;

    /// Runs a pipeline over a collection where its documents are, if they are not
    /// here: whoever can only `scan` a collection from afar would fetch too many.
    fn pipeline(
        &self,
        _steps: &[Step],
        _collection: &Namespace,
        _hint: Option<&Value>,
    ) -> Result<Option<Box<dyn Source>>, Error> {
        Ok(None)
    }

    /// Where to put what does not fit into memory; `None` if that is not allowed.
    fn spill(&self) -> Option<Box<dyn Spill>>;

    /// What a stage that collects its input may take before it uses the disk.
    fn memory_bytes_max(&self) -> usize {
        MEMORY_BYTES_MAX
    }

    /// The same for a sort.
    fn sort_memory_bytes_max(&self) -> usize {
        self.memory_bytes_max()
    }

    /// The one document of `$collStats`.
    fn collection_stats(
        &self,
        namespace: &Namespace,
        stats: &CollectionStats,
    ) -> Result<DocBuf, Error>;

    /// A document for each index.
    fn index_stats(&self, namespace: &Namespace) -> Result<Vec<DocBuf>, Error>;

    /// A document for each operation under way.
    fn current_operations(&self, options: Doc<'_>) -> Result<Vec<DocBuf>, Error>;

    /// A document for each session that is in use here.
    fn local_sessions(&self, whose: SessionsOf) -> Result<Vec<DocBuf>, Error>;

    /// The events of a change stream. Where there is no log to read them from, there
    /// is none.
    fn change_stream(
        &self,
        _stream: &ChangeStream,
        _behind: &[Step],
    ) -> Result<Box<dyn Source>, Error> {
        Err(Error::location(
            40573,
            "The $changeStream stage is only supported on replica sets",
        ))
    }

    /// A number below `bound`, which is not zero.
    fn random_below(&self, bound: u64) -> u64;
}

/// Which documents of a collection, in which order.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    pub namespace: Namespace,
    pub filter: Filter,
    pub sort: Option<SortPattern>,
    pub skip: u64,
    pub limit: Option<u64>,
    /// As the command gave it.
    pub hint: Option<Value>,
    /// The top-level fields that are looked at; `None` if all may be.
    pub fields: Option<BTreeSet<String>>,
}

impl ScanRequest {
    /// All of a collection.
    pub fn all(namespace: Namespace) -> Self {
        Self {
            namespace,
            filter: Filter::everything(),
            sort: None,
            skip: 0,
            limit: None,
            hint: None,
            fields: None,
        }
    }
}
