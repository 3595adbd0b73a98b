//! A plan under way: it yields documents one by one, pauses when its budget is
//! used up, and is suspended between batches.
//!
//! ```text
//!   scan ─► inside bounds? ─► fetch ─► matches? ─► first time? ─► (sort) ─► skip ─► limit ─► Found
//! ```
//!
//! Between `resume` and `suspend` it reads one snapshot. Suspended, it is a
//! value: plan, branch, position, and what a sort holds already. When it goes on
//! it looks whether the collection and the indexes of its plan are still there;
//! a snapshot in which one of them is dropped would end a scan too early, in
//! silence.
//!
//! What a scan emits, and where, depends on index keys alone: a document with
//! several entries within the bounds of its plan belongs to the first of them,
//! in the first branch. So a change of other fields between two batches neither
//! repeats nor loses it.

//!
//! | file | part |
//! | --- | --- |
//! | `found.rs` | documents found, the budget of steps, what was counted |
//! | `life.rs` | from one batch to the next: snapshot, position, the catalog |
//! | `ownership.rs` | only what this shard owns |
//! | `standing.rs` | where it stands, as any shard understands it |
//! | `search.rs` | the next document that matches: by key, over records, over branches |
//! | `index_step.rs` | one entry of an index |
//! | `visit.rs` | documents shown where they lie |

mod found;
mod index_step;
mod life;
mod ownership;
mod search;
mod standing;
mod visit;

pub(super) use found::{BranchStatistics, Statistics};
pub(crate) use found::{Budget, Found, Step};
pub(crate) use standing::append_ranges;
pub(crate) use visit::{Taken, Visited};

use super::merging::Merging;
use super::part::Mark;
use super::planning::Planned;
use super::scan::Windows;
use super::spill::spill_into;
use super::virtual_collection::VirtualSource;
use super::{Query, plan};
use crate::catalog::Collection;
use crate::operation::Operation;
use crate::{Shard, Snapshot};
use life::Live;
use model::bson::{Doc, DocBuf, DocWriter};
use model::range::RangeSet;
use model::time::ClusterTime;
use model::{Code, Error};
use query::path::Path;
use query::plan::Access;
use query::sort::{Sorted, Sorter};
use std::sync::Arc;
use storage::Position;

const RESUMED: &str = "an execution is resumed before it steps";

enum Stage {
    /// Documents go out as they are found.
    Streaming,
    Collecting(Box<Sorter>),
    Sorted(Box<Sorted>),
    Ended,
}

pub(crate) struct Execution {
    shard: Arc<Shard>,
    collection: Arc<Collection>,
    planned: Arc<Planned>,
    query: Query,
    stage: Stage,
    live: Option<Live>,
    /// Where the documents of a virtual collection come from.
    made: Option<Box<dyn VirtualSource>>,
    /// The times of the last two documents of the log that were looked at, the earlier one first.
    looked_at: [ClusterTime; 2],
    /// Branches that are merged in order.
    merging: Option<Box<Merging>>,
    branch: usize,
    /// The last item inside the bounds; `mark` stands behind it when suspended.
    last: Option<Position>,
    mark: Mark,
    /// Of a part of a scan: the ranges asked for, where the shard owns others too.
    restriction: Option<RangeSet>,
    /// Outside of these keys no record is asked for.
    windows: Option<Windows>,
    /// Inside of them all are: what a scan of records finds there need not be looked at for that.
    windows_decide: bool,
    /// Of a part that is sorted here: the last key returned, and whether its document is
    /// still to come.
    sorted_at: Option<(Vec<u8>, bool)>,
    put_back: Option<Found>,
    /// Nothing was read since the last batch.
    suspended: bool,
    skipped: u64,
    emitted: u64,
    pub(crate) statistics: Statistics,
}

impl Execution {
    /// Plans a query and is ready to run. Takes the snapshot of the first batch.
    pub(crate) fn new(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        query: Query,
        operation: &Operation,
    ) -> Result<Self, Error> {
        if collection.made.is_some() {
            let planned = plan(shard, collection, &query, operation)?;
            return Self::with_plan(shard, collection, query, planned, None);
        }
        if query.hint.is_none()
            && query.min.is_none()
            && query.max.is_none()
            && query.at.is_none()
            && query.part.is_none()
            && let Some(id) = query::plan::id_value(&query.filter)
            && let Some(key) = collection.record_key_of_id(id)
        {
            let planned = Planned::id(key);
            return Self::with_plan(shard, collection, query, planned, None);
        }
        if let Some(time) = query.at
            && time < collection.since
        {
            return Err(Error::new(
                Code::SNAPSHOT_UNAVAILABLE,
                format!(
                    "Unable to read from a snapshot: at {time:?} the name {} did not mean this \
                     collection, which is there since {:?}",
                    collection.namespace, collection.since
                ),
            ));
        }
        let (collection, snapshot) = ownership::snapshot_of(shard, collection, &query)?;
        let query = ownership::with_shard_key(query, &collection);
        let planned = plan(shard, &collection, &query, operation)?;
        planned.count_use();
        let mut execution = Self::with_plan(shard, &collection, query, planned, Some(snapshot))?;
        operation.show_plan(&execution.planned);
        execution.restrict();
        execution.stand_at_place()?;
        Ok(execution)
    }

    /// Runs a plan that was chosen already.
    pub(super) fn with_plan(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        query: Query,
        planned: Planned,
        snapshot: Option<Snapshot>,
    ) -> Result<Self, Error> {
        let planned = Arc::new(planned);
        let mut execution = Self {
            merging: Merging::new(shard, collection, &query, &planned)?,
            shard: shard.clone(),
            collection: collection.clone(),
            stage: Stage::Streaming,
            live: None,
            made: None,
            looked_at: [ClusterTime::ZERO; 2],
            branch: 0,
            last: None,
            mark: Mark::Beginning,
            restriction: None,
            windows: None,
            windows_decide: false,
            sorted_at: None,
            put_back: None,
            suspended: false,
            skipped: 0,
            emitted: 0,
            statistics: Statistics {
                branches: vec![BranchStatistics::default(); planned.branches()],
                ..Statistics::default()
            },
            planned,
            query,
        };
        if execution.planned.plan.needs_sort
            && let Some(pattern) = &execution.query.sort
        {
            let limit = execution
                .query
                .limit
                .map(|limit| limit.saturating_add(execution.query.skip))
                .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
            let memory_bytes = shard.parameters.current().sort_memory_bytes;
            let mut sorter = Sorter::new(pattern.clone(), limit)
                .with_memory_limit(usize::try_from(memory_bytes).unwrap_or(0));
            if execution.query.allow_disk_use {
                sorter = sorter.with_spill(spill_into(shard.scratch.clone()));
            }
            execution.stage = Stage::Collecting(Box::new(sorter));
        }
        if let Some(snapshot) = snapshot {
            execution.go_live(snapshot)?;
        }
        if let Some(made) = &collection.made
            && let Access::Records { direction, .. } = &execution.planned.plan.access
        {
            execution.made = Some(made.open(shard, &execution.query, *direction)?);
        }
        Ok(execution)
    }

    /// When the last thing happened in the log that was looked at, and is not still to come; `None` for
    /// other collections.
    pub(crate) fn log_time(&self) -> Option<ClusterTime> {
        let [before, last] = self.looked_at;
        let time = if self.put_back.is_some() {
            before
        } else {
            last
        };
        self.made.is_some().then_some(time)
    }

    pub(crate) fn planned(&self) -> &Planned {
        &self.planned
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// What a sort of this execution may take.
    pub(super) fn sort_memory_bytes(&self) -> i32 {
        self.shard.parameters.current().sort_memory_bytes
    }

    pub(crate) fn query(&self) -> &Query {
        &self.query
    }

    pub(crate) fn collection(&self) -> &Arc<Collection> {
        &self.collection
    }

    /// Whether everything was returned.
    pub(crate) fn is_ended(&self) -> bool {
        let limit_reached = self.query.limit.is_some_and(|limit| self.emitted >= limit);
        (limit_reached || matches!(self.stage, Stage::Ended)) && self.put_back.is_none()
    }

    /// Returns a document that did not fit; it comes first next time.
    pub(crate) fn put_back(&mut self, found: Found) {
        self.statistics.returned -= 1;
        self.put_back = Some(found);
    }

    /// The next document, looking at no more than the budget allows.
    pub(crate) fn next(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
    ) -> Result<Step, Error> {
        if self.suspended && !matches!(self.stage, Stage::Ended) {
            self.check_catalog()?;
            if !self.reads_nothing_more() {
                self.resume()?;
            }
            self.check_ownership()?;
            self.suspended = false;
        }
        if let Some(found) = self.put_back.take() {
            self.statistics.returned += 1;
            return Ok(Step::Found(found));
        }
        loop {
            if self.query.limit.is_some_and(|limit| self.emitted >= limit) {
                self.stage = Stage::Ended;
            }
            let found = match &mut self.stage {
                Stage::Ended => return Ok(Step::Ended),
                Stage::Sorted(sorted) => match sorted.next_with_key()? {
                    Some((key, document)) => {
                        if self.query.part.is_some() {
                            self.sorted_at = Some((key, false));
                        }
                        Found::Made(document)
                    }
                    None => {
                        self.stage = Stage::Ended;
                        continue;
                    }
                },
                Stage::Streaming => match self.search(operation, budget)? {
                    Step::Found(found) => found,
                    Step::Paused => return Ok(Step::Paused),
                    Step::Ended if self.query.tailable => return Ok(Step::Ended),
                    Step::Ended => {
                        self.stage = Stage::Ended;
                        self.judge_plan();
                        continue;
                    }
                },
                Stage::Collecting(_) => {
                    if !self.collect(operation, budget)? {
                        return Ok(Step::Paused);
                    }
                    continue;
                }
            };
            if self.skipped < self.query.skip {
                self.skipped += 1;
                continue;
            }
            self.emitted += 1;
            self.statistics.returned += 1;
            return Ok(Step::Found(found));
        }
    }

    /// Feeds the sort; false if the budget ended first.
    fn collect(&mut self, operation: &Operation, budget: &mut Budget) -> Result<bool, Error> {
        loop {
            match self.search(operation, budget)? {
                Step::Paused => return Ok(false),
                Step::Found(found) => {
                    let key = match self.key_of_part(&found)? {
                        None => None,
                        Some(key) if self.is_behind(&key) => continue,
                        Some(key) => Some(key),
                    };
                    // Keys are sorted like their documents, which are let go of here.
                    let index_key = match self.query.return_key {
                        true => Some(self.index_key(&found)?.unwrap_or_default()),
                        false => None,
                    };
                    let document = found.into_document();
                    // What is not asked for later need not be kept either; a part of a scan
                    // goes on from where its documents say.
                    let kept = match (index_key, &self.query.needed) {
                        (Some(index_key), _) => Some(index_key),
                        (None, Some(needed)) if key.is_none() => {
                            Some(only(document.as_doc(), needed))
                        }
                        (None, _) => None,
                    };
                    let bytes = kept.as_ref().unwrap_or(&document).as_bytes().len();
                    self.statistics.sorted_bytes += bytes as u64;
                    let Stage::Collecting(sorter) = &mut self.stage else {
                        continue;
                    };
                    match (key, kept, &self.query.sort) {
                        (Some(key), kept, _) => {
                            sorter.push_with_key(key, kept.unwrap_or(document))?;
                        }
                        (None, Some(kept), Some(pattern)) => {
                            let key = pattern.key(document.as_doc())?;
                            sorter.push_with_key(key.into_bytes(), kept)?;
                        }
                        (None, _, _) => sorter.push(document)?,
                    }
                }
                Step::Ended => {
                    let stage = std::mem::replace(&mut self.stage, Stage::Ended);
                    if let Stage::Collecting(sorter) = stage {
                        self.statistics.spilled = sorter.has_spilled();
                        self.stage = Stage::Sorted(Box::new(sorter.finish()?));
                    }
                    return Ok(true);
                }
            }
        }
    }
}

/// A document without the fields that no path begins with.
fn only(document: Doc<'_>, needed: &[Path]) -> DocBuf {
    let mut out = DocWriter::new();
    for element in document {
        let begins = |path: &Path| {
            let first = path.components().first();
            first.is_some_and(|first| first.name() == element.key())
        };
        if needed.iter().any(begins) {
            out.append_element(&element);
        }
    }
    out.finish()
}
