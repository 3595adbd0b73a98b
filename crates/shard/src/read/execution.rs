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

use super::covered;
use super::merging::Merging;
use super::planning::Planned;
use super::scan::{Item, Scan, Space, Stepped};
use super::spill::FileSpill;
use super::virtual_collection::VirtualSource;
use super::{Query, plan};
use crate::catalog::{Collection, Index};
use crate::error::from_storage;
use crate::operation::Operation;
use crate::{Shard, Snapshot};
use model::bson::{Doc, DocBuf, DocWriter};
use model::key::RecordKey;
use model::{Code, Error};
use query::filter::Filter;
use query::plan::{
    Access, IndexAccess, ScanBounds, ScanDirection, Union, emits_at, has_key_inside,
};
use query::sort::{Sorted, Sorter};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::store::Verdict;
use storage::{IndexEntry, Position, Record, StoredRecord};

/// How many steps go by between two looks at the deadline.
const STEPS_PER_CHECK: u64 = 128;
/// A document of this size takes about as long as two small ones.
const BYTES_PER_STEP: u64 = 16 * 1024;

const RESUMED: &str = "an execution is resumed before it steps";

/// How many steps may be taken before the caller is asked again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) steps: u64,
}

impl Budget {
    pub(crate) fn unlimited() -> Self {
        Self { steps: u64::MAX }
    }

    pub(crate) fn of(steps: u64) -> Self {
        Self { steps }
    }

    /// Lets a large document count as many steps: filters look at all of it.
    fn weigh(&mut self, document: &[u8]) {
        let more = document.len() as u64 / BYTES_PER_STEP;
        self.steps = self.steps.saturating_sub(more);
    }
}

/// What `next` came to.
pub(crate) enum Step {
    Found(Found),
    /// The budget is used up; there may be more.
    Paused,
    Ended,
}

/// A document that was found.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Record(StoredRecord),
    Fetched {
        entry: IndexEntry,
        record: Record,
    },
    /// By key alone, or through the record cache.
    Looked {
        key: RecordKey,
        record: Record,
    },
    /// Sorted, or put together from a key.
    Made(DocBuf),
}

impl Found {
    pub(crate) fn document(&self) -> Doc<'_> {
        match self {
            Found::Record(record) => Doc::from_validated(record.document()),
            Found::Fetched { record, .. } | Found::Looked { record, .. } => {
                Doc::from_validated(record.document())
            }
            Found::Made(document) => document.as_doc(),
        }
    }

    /// The record's key. A collection is clustered by `_id`, so a document that
    /// lost its key on the way through a sort still names it.
    pub(crate) fn record_key(&self) -> RecordKey {
        match self {
            Found::Record(record) => RecordKey::from_bytes(record.key()),
            Found::Fetched { entry, .. } => RecordKey::from_bytes(entry.record_key()),
            Found::Looked { key, .. } => key.clone(),
            Found::Made(document) => {
                let id = covered::id_of(document.as_doc());
                RecordKey::from_id(id.unwrap_or(model::bson::ValueRef::Null))
            }
        }
    }

    /// Lets go of everything but the document: a slice of a scan may hold a whole
    /// block of the engine's cache.
    pub(super) fn detach(&mut self) {
        if !matches!(self, Found::Made(_)) {
            *self = Found::Made(self.document().to_owned());
        }
    }

    pub(crate) fn into_document(self) -> DocBuf {
        match self {
            Found::Made(document) => document,
            other => other.document().to_owned(),
        }
    }
}

/// What an execution has done so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) keys_examined: u64,
    pub(crate) documents_examined: u64,
    /// Documents that passed the filter, before sort, skip and limit.
    pub(crate) matched: u64,
    pub(crate) returned: u64,
    pub(crate) steps: u64,
    pub(crate) seeks: u64,
    pub(crate) duplicates: u64,
    /// Per branch: keys inside its bounds.
    pub(crate) branches: Vec<BranchStatistics>,
    pub(crate) sorted_bytes: u64,
    pub(crate) spilled: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BranchStatistics {
    pub(crate) keys_examined: u64,
    pub(crate) keys_inside: u64,
    pub(crate) seeks: u64,
}

impl Statistics {
    /// Counts a step, unless the budget is used up.
    fn may_step(&mut self, operation: &Operation, budget: &mut Budget) -> Result<bool, Error> {
        if budget.steps == 0 {
            return Ok(false);
        }
        budget.steps -= 1;
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) {
            operation.check()?;
        }
        Ok(true)
    }
}

enum Stage {
    /// Documents go out as they are found.
    Streaming,
    Collecting(Box<Sorter>),
    Sorted(Box<Sorted>),
    Ended,
}

/// Lives from `resume` to `suspend`.
struct Live {
    snapshot: Snapshot,
    scan: Option<Scan>,
    /// For each index of the plan's list, whether it has documents with several
    /// keys; read after the snapshot was taken.
    multikey: Vec<bool>,
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
    /// Branches that are merged in order.
    merging: Option<Box<Merging>>,
    branch: usize,
    /// The last item inside the bounds; becomes `position` when suspended.
    last: Option<Position>,
    position: Option<Vec<u8>>,
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
            && let Some(key) = query::plan::id_equality(&query.filter)
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
        let snapshot = shard.store.snapshot();
        let planned = plan(shard, collection, &query, operation)?;
        planned.count_use();
        Self::with_plan(shard, collection, query, planned, Some(snapshot))
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
            branch: 0,
            last: None,
            position: None,
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
                sorter = sorter.with_spill(Box::new(FileSpill::new(shard.scratch.clone())));
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

    pub(crate) fn planned(&self) -> &Planned {
        &self.planned
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
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

    /// Whether everything that is still to come was read, or is read by key.
    fn reads_nothing_more(&self) -> bool {
        matches!(self.stage, Stage::Sorted(_) | Stage::Ended)
            || matches!(self.planned.plan.access, Access::Id(_))
    }

    /// Takes a snapshot, unless there is one.
    fn resume(&mut self) -> Result<(), Error> {
        if self.live.is_some() || self.collection.made.is_some() {
            return Ok(());
        }
        self.go_live(self.shard.store.snapshot())
    }

    /// Reads this snapshot, unless there is one already.
    pub(super) fn go_live_once(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match self.live {
            Some(_) => Ok(()),
            None => self.go_live(snapshot.clone()),
        }
    }

    /// The error for a batch after a change of the catalog that took away what
    /// the plan stands on. MongoDB asks it even of a sort that has read all.
    fn check_catalog(&self) -> Result<(), Error> {
        let collection = &self.collection;
        if collection.made.is_some() {
            return Ok(());
        }
        let Some(current) = self.shard.catalog.by_id(collection.id) else {
            return Err(self.collection_dropped());
        };
        if current.namespace != collection.namespace {
            return Err(killed(format!(
                "collection renamed from '{}' to '{}'. UUID {}",
                collection.namespace,
                current.namespace,
                uuid_text(&collection.uuid.0)
            )));
        }
        for index in self.planned.used_indexes() {
            let there = current
                .indexes
                .iter()
                .any(|other| other.id == index.id && !other.definition.hidden);
            if !there {
                return Err(index_dropped(index));
            }
        }
        Ok(())
    }

    fn collection_dropped(&self) -> Error {
        killed(format!(
            "collection dropped. UUID {}",
            uuid_text(&self.collection.uuid.0)
        ))
    }

    fn go_live(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        // The catalog may not show yet what the snapshot holds already.
        if self.suspended && snapshot.has_dropped_collection(self.collection.id) {
            return Err(self.collection_dropped());
        }
        for index in self.planned.used_indexes() {
            if index.id.is_some_and(|id| snapshot.has_dropped_index(id)) {
                return Err(index_dropped(index));
            }
        }
        let multikey = self
            .planned
            .indexes
            .iter()
            .map(|index| index.is_multikey())
            .collect();
        self.live = Some(Live {
            snapshot,
            scan: None,
            multikey,
        });
        Ok(())
    }

    /// Ends a batch: lets go of the snapshot and keeps the position.
    pub(crate) fn suspend(&mut self) {
        self.note_scan();
        if let Some(merging) = &mut self.merging {
            merging.suspend(&mut self.statistics);
        }
        if let Some(last) = self.last.take() {
            self.position = Some(last.as_bytes().to_vec());
        }
        if let Some(found) = &mut self.put_back {
            found.detach();
        }
        self.live = None;
        self.suspended = true;
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
                Stage::Sorted(sorted) => match sorted.next().transpose()? {
                    Some(document) => Found::Made(document),
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
                    // Keys are sorted like their documents, which are let go of here.
                    let index_key = match self.query.return_key {
                        true => Some(self.index_key(&found)?.unwrap_or_default()),
                        false => None,
                    };
                    let document = found.into_document();
                    self.statistics.sorted_bytes += document.as_bytes().len() as u64;
                    let Stage::Collecting(sorter) = &mut self.stage else {
                        continue;
                    };
                    match (index_key, &self.query.sort) {
                        (Some(index_key), Some(pattern)) => {
                            let key = pattern.key(document.as_doc())?;
                            sorter.push_with_key(key.into_bytes(), index_key)?;
                        }
                        _ => sorter.push(document)?,
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

    /// The next document that matches, before sort, skip and limit.
    fn search(&mut self, operation: &Operation, budget: &mut Budget) -> Result<Step, Error> {
        if let Access::Id(key) = &self.planned.plan.access {
            return self.look_up(key.clone());
        }
        self.resume()?;
        if let (Some(merging), Some(live)) = (&mut self.merging, &self.live) {
            merging.go_live(&live.snapshot)?;
            return merging.next(operation, budget, &mut self.statistics);
        }
        if matches!(self.planned.plan.access, Access::Records { .. }) && self.made.is_none() {
            return self.search_records(operation, budget);
        }
        let planned = Arc::clone(&self.planned);
        loop {
            if !self.statistics.may_step(operation, budget)? {
                return Ok(Step::Paused);
            }
            match self.step(&planned, budget)? {
                Some(Step::Found(found)) => {
                    self.statistics.matched += 1;
                    return Ok(Step::Found(found));
                }
                Some(ended) => return Ok(ended),
                None => {}
            }
        }
    }

    fn look_up(&mut self, key: RecordKey) -> Result<Step, Error> {
        if self.branch > 0 {
            return Ok(Step::Ended);
        }
        self.branch = 1;
        let store = &self.shard.store;
        let record = match self.query.at {
            None => store.get(self.collection.id, key.as_bytes()),
            Some(time) => store
                .snapshot()
                .at(time)
                .and_then(|past| past.get(self.collection.id, key.as_bytes())),
        };
        Ok(match record.map_err(from_storage)? {
            Some(record) => {
                self.statistics.keys_examined += 1;
                self.statistics.documents_examined += 1;
                self.statistics.matched += 1;
                Step::Found(Found::Looked { key, record })
            }
            None => Step::Ended,
        })
    }

    /// Looks at one item of the scan. `None`: not this one.
    fn step(&mut self, planned: &Planned, budget: &mut Budget) -> Result<Option<Step>, Error> {
        match &planned.plan.access {
            Access::Nothing | Access::Id(_) => Ok(Some(Step::Ended)),
            Access::Records { filter, .. } => self.step_made(filter),
            Access::Index(access) => Ok(match self.step_index(access, None, budget)? {
                IndexStep::Found(found) => Some(Step::Found(found)),
                IndexStep::NotThis => None,
                IndexStep::Ended => Some(Step::Ended),
            }),
            Access::Union(union) => self.step_union(union, budget),
        }
    }

    /// The next document of a scan over records: the path of every full scan, with
    /// nothing on it that can be done once instead of for each document.
    fn search_records(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
    ) -> Result<Step, Error> {
        let space = self.record_space();
        let Access::Records { direction, filter } = &self.planned.plan.access else {
            return Ok(Step::Ended);
        };
        let live = self.live.as_mut().expect(RESUMED);
        let position = self.position.as_deref();
        let (scan, _) = live.scan(space, None, *direction, position)?;
        if budget.steps == 0 {
            return Ok(Step::Paused);
        }
        let statistics = &mut self.statistics;
        let mut failure = None;
        let mut judge = |document: &[u8]| {
            statistics.documents_examined += 1;
            statistics.steps += 1;
            budget.steps -= 1;
            budget.weigh(document);
            let mut judged = matches(filter, Doc::from_validated(document));
            if statistics.steps.is_multiple_of(STEPS_PER_CHECK) {
                judged = judged.and_then(|matched| operation.check().map(|()| matched));
            }
            match judged {
                Ok(true) => Verdict::Take,
                Ok(false) if budget.steps > 0 => Verdict::Pass,
                Ok(false) => Verdict::Stop,
                Err(error) => {
                    failure = Some(error);
                    Verdict::Stop
                }
            }
        };
        let found = scan.find_record(&mut judge)?;
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(match found {
            Some((Verdict::Take, record)) => {
                self.statistics.matched += 1;
                self.last = Some(record.position());
                Step::Found(Found::Record(record))
            }
            Some((Verdict::Stop | Verdict::Pass, record)) => {
                self.last = Some(record.into_position());
                Step::Paused
            }
            None => Step::Ended,
        })
    }

    /// The next document of a collection that is made up as it is read.
    fn step_made(&mut self, filter: &Option<Filter>) -> Result<Option<Step>, Error> {
        let Some(made) = &mut self.made else {
            return Ok(Some(Step::Ended));
        };
        let Some(document) = made.next(&self.shard)? else {
            return Ok(Some(Step::Ended));
        };
        self.statistics.documents_examined += 1;
        let matched = matches(filter, document.as_doc())?;
        Ok(matched.then_some(Step::Found(Found::Made(document))))
    }

    fn record_space(&self) -> Space {
        match self.query.at {
            Some(time) => Space::Past(self.collection.id, time),
            None => Space::Records(self.collection.id),
        }
    }

    fn step_union(&mut self, union: &Union, budget: &mut Budget) -> Result<Option<Step>, Error> {
        let Some(branch) = union.branches.get(self.branch) else {
            return Ok(Some(Step::Ended));
        };
        match self.step_index(branch, Some(&union.filter), budget)? {
            IndexStep::NotThis => Ok(None),
            IndexStep::Found(found) => {
                for earlier in &union.branches[..self.branch] {
                    let definition = &self.planned.indexes[earlier.index].definition;
                    if has_key_inside(definition, earlier, found.document())? {
                        self.statistics.duplicates += 1;
                        return Ok(None);
                    }
                }
                Ok(Some(Step::Found(found)))
            }
            IndexStep::Ended => {
                self.note_scan();
                if let Some(live) = &mut self.live {
                    live.scan = None;
                }
                self.last = None;
                self.position = None;
                self.branch += 1;
                Ok(None)
            }
        }
    }

    /// Looks at one entry of the index that the current branch scans. A document
    /// passes by what is left of the branch's condition or by the whole one.
    fn step_index(
        &mut self,
        access: &IndexAccess,
        whole: Option<&Filter>,
        budget: &mut Budget,
    ) -> Result<IndexStep, Error> {
        let index = Arc::clone(&self.planned.indexes[access.index]);
        let space = match index.id {
            Some(id) => Space::Index(id),
            None => self.record_space(),
        };
        let live = self.live.as_mut().expect(RESUMED);
        let multikey = live.multikey[access.index];
        let bounds = Some(&access.bounds);
        let position = self.position.as_deref();
        let (scan, snapshot) = live.scan(space, bounds, access.direction, position)?;
        let stepped = scan.step(snapshot, bounds)?;
        let counts = &mut self.statistics.branches[self.branch];
        if !matches!(stepped, Stepped::Ended) {
            self.statistics.keys_examined += 1;
            counts.keys_examined += 1;
        }
        let item = match stepped {
            Stepped::Ended => return Ok(IndexStep::Ended),
            Stepped::Outside => return Ok(IndexStep::NotThis),
            Stepped::Inside(item) => item,
        };
        counts.keys_inside += 1;
        let one_each = !multikey || access.is_one_key();
        let decided_by_key = one_each && access.residual.is_none() && whole.is_none();
        if decided_by_key
            && self.skipped < self.query.skip
            && matches!(self.stage, Stage::Streaming)
        {
            // What is skipped need not be fetched.
            self.skipped += 1;
            self.statistics.matched += 1;
            self.last = Some(item.position());
            return Ok(IndexStep::NotThis);
        }
        self.last = Some(item.position());
        let found = match item {
            Item::Record(record) => {
                self.statistics.documents_examined += u64::from(!access.covered);
                budget.weigh(record.document());
                passes(access, whole, Doc::from_validated(record.document()))?
                    .then_some(Found::Record(record))
            }
            Item::Entry(entry) if access.covered && one_each => {
                let document = covered::document(&index.definition, &entry)?;
                matches(&access.residual, document.as_doc())?.then_some(Found::Made(document))
            }
            Item::Entry(entry)
                if whole.is_none()
                    && !multikey
                    && access.residual_of_key
                    && access.residual.is_some()
                    && !matches(
                        &access.residual,
                        covered::document(&index.definition, &entry)?.as_doc(),
                    )? =>
            {
                None
            }
            Item::Entry(entry) => {
                self.statistics.documents_examined += 1;
                let record = snapshot
                    .get(self.collection.id, entry.record_key())
                    .map_err(from_storage)?;
                if let Some(record) = &record {
                    budget.weigh(record.document());
                }
                let fetched = Fetch {
                    index: &index,
                    access,
                    whole,
                    one_each,
                };
                fetched.check(entry, record, &mut self.statistics)?
            }
        };
        Ok(match found {
            Some(found) => IndexStep::Found(found),
            None => IndexStep::NotThis,
        })
    }

    /// Takes over the counts of the scan that ends here.
    fn note_scan(&mut self) {
        let Some(scan) = self.live.as_mut().and_then(|live| live.scan.as_mut()) else {
            return;
        };
        self.statistics.seeks += scan.seeks;
        if let Some(branch) = self.statistics.branches.get_mut(self.branch) {
            branch.seeks += scan.seeks;
        }
        scan.seeks = 0;
    }

    /// The key of the index entry that a document was found at, for `returnKey`.
    pub(crate) fn index_key(&self, found: &Found) -> Result<Option<DocBuf>, Error> {
        let index = self.planned.used_indexes().next();
        if self.planned.plan.needs_sort
            && let Found::Made(key) = found
        {
            return Ok(Some(key.clone()));
        }
        match (found, index) {
            (Found::Fetched { entry, .. }, Some(index)) => {
                let values =
                    covered::key_values(&index.definition, entry.fields(), entry.type_bits())?;
                Ok(Some(covered::flat_document(&index.definition, &values)))
            }
            (Found::Record(record), Some(index)) if index.id.is_none() => {
                Ok(Some(only_id(Doc::from_validated(record.document()))))
            }
            (Found::Looked { record, .. }, _) => {
                Ok(Some(only_id(Doc::from_validated(record.document()))))
            }
            _ => Ok(None),
        }
    }
}

impl Live {
    /// The scan under way, opened if there is none, and what it reads.
    fn scan(
        &mut self,
        space: Space,
        bounds: Option<&ScanBounds>,
        direction: ScanDirection,
        position: Option<&[u8]>,
    ) -> Result<(&mut Scan, &Snapshot), Error> {
        if self.scan.is_none() {
            let scan = Scan::open(&self.snapshot, space, bounds, direction, position)?;
            self.scan = Some(scan);
        }
        let scan = self.scan.as_mut().expect("just opened");
        Ok((scan, &self.snapshot))
    }
}

fn matches(filter: &Option<Filter>, document: Doc<'_>) -> Result<bool, Error> {
    match filter {
        Some(filter) => filter.matches(document),
        None => Ok(true),
    }
}

fn passes(access: &IndexAccess, whole: Option<&Filter>, document: Doc<'_>) -> Result<bool, Error> {
    if matches(&access.residual, document)? {
        return Ok(true);
    }
    match whole {
        Some(whole) => whole.matches(document),
        None => Ok(false),
    }
}

enum IndexStep {
    Found(Found),
    NotThis,
    Ended,
}

/// How a fetched record is judged.
struct Fetch<'a> {
    index: &'a Index,
    access: &'a IndexAccess,
    whole: Option<&'a Filter>,
    /// No document has two keys inside the bounds.
    one_each: bool,
}

impl Fetch<'_> {
    fn check(
        &self,
        entry: IndexEntry,
        record: Option<Record>,
        statistics: &mut Statistics,
    ) -> Result<Option<Found>, Error> {
        // An entry without its record: only `validate` is to say so.
        let Some(record) = record else {
            return Ok(None);
        };
        let document = Doc::from_validated(record.document());
        if !passes(self.access, self.whole, document)? {
            return Ok(None);
        }
        let definition = &self.index.definition;
        if !self.one_each && !emits_at(definition, self.access, entry.fields(), document)? {
            statistics.duplicates += 1;
            return Ok(None);
        }
        Ok(Some(Found::Fetched { entry, record }))
    }
}

fn only_id(document: Doc<'_>) -> DocBuf {
    let mut out = DocWriter::new();
    if let Some(id) = covered::id_of(document) {
        out.append("_id", id);
    }
    out.finish()
}

fn killed(message: String) -> Error {
    Error::new(Code::QUERY_PLAN_KILLED, message)
}

fn index_dropped(index: &Index) -> Error {
    killed(format!("index '{}' dropped", index.definition.name))
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

impl Planned {
    /// Adds to the counters that `$indexStats` shows.
    fn count_use(&self) {
        for index in self.used_indexes() {
            index.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }
}
