//! What is asked of a collection.

use super::part::ScanPart;
use model::bson::{DocBuf, Value};
use model::time::ClusterTime;
use query::filter::Filter;
use query::path::Path;
use query::sort::SortPattern;
use std::sync::Arc;

/// A search, whoever asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// Optimized or normalized.
    pub(crate) filter: Filter,
    pub(crate) sort: Option<SortPattern>,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
    /// The fields that suffice; `None` where whole documents are wanted.
    pub(crate) needed: Option<Vec<Path>>,
    /// An index by name or pattern, or `{$natural: ..}`.
    pub(crate) hint: Option<Value>,
    pub(crate) min: Option<DocBuf>,
    pub(crate) max: Option<DocBuf>,
    pub(crate) allow_disk_use: bool,
    /// Index keys are wanted instead of documents.
    pub(crate) return_key: bool,
    /// Read as of this time. Index entries have no history, so only records
    /// are scanned then.
    pub(crate) at: Option<ClusterTime>,
    /// The end is not the end: there may be more later.
    pub(crate) tailable: bool,
    /// What is stored and not owned is shown too: read concern `available`.
    pub(crate) sees_orphans: bool,
    /// Earlier trials do not count: explain shows what one says now.
    pub(crate) plan_anew: bool,
    /// It is a part of a scan over several shards.
    pub(crate) part: Option<Arc<ScanPart>>,
}

impl Query {
    pub(crate) fn new(filter: Filter) -> Self {
        Self {
            filter,
            sort: None,
            skip: 0,
            limit: None,
            needed: None,
            hint: None,
            min: None,
            max: None,
            allow_disk_use: true,
            return_key: false,
            at: None,
            tailable: false,
            sees_orphans: false,
            plan_anew: false,
            part: None,
        }
    }
}
