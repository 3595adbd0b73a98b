//! The next document that matches, before sort, skip and limit: by key, over
//! records, or over the branches of a union.

use super::super::part::Mark;
use super::super::planning::Planned;
use super::super::scan::Space;
use super::found::STEPS_PER_CHECK;
use super::index_step::IndexStep;
use super::{Budget, Execution, Found, RESUMED, Step};
use crate::error::from_storage;
use crate::operation::Operation;
use model::Error;
use model::bson::{Doc, ValueRef};
use model::key::RecordKey;
use model::time::ClusterTime;
use query::filter::Filter;
use query::plan::{Access, Union, has_key_inside};
use std::sync::Arc;
use storage::store::Verdict;

impl Execution {
    /// The next document that matches and is owned, before sort, skip and limit.
    pub(super) fn search(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
    ) -> Result<Step, Error> {
        loop {
            match self.search_stored(operation, budget)? {
                Step::Found(found) if self.hides(&found) => {}
                step => return Ok(step),
            }
        }
    }

    /// The next document that matches, whoever owns it.
    fn search_stored(&mut self, operation: &Operation, budget: &mut Budget) -> Result<Step, Error> {
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
        let record = loop {
            let store = &self.shard.store;
            let record = match self.query.at {
                None => store.get(self.collection.id, key.as_bytes()),
                Some(time) => store
                    .snapshot()
                    .at(time)
                    .and_then(|past| past.get(self.collection.id, key.as_bytes())),
            };
            if !self.ownership_changed() {
                break record;
            }
        };
        let record = record.map_err(from_storage)?;
        let document = record.as_ref().map(|record| record.document());
        self.check_readable(document.map(Doc::from_validated))?;
        Ok(match record {
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
        let windows = self.windows.as_ref();
        let (scan, snapshot) = live.scan(space, None, *direction, &self.mark, windows)?;
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
        let found = scan.find_record(snapshot, &mut judge)?;
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
        if let Some(ValueRef::Timestamp(time)) = document.as_doc().get("ts") {
            let time = ClusterTime::new(time.seconds, time.increment);
            self.looked_at = [self.looked_at[1], time];
        }
        let matched = matches(filter, document.as_doc())?;
        Ok(matched.then_some(Step::Found(Found::Made(document))))
    }

    pub(super) fn record_space(&self) -> Space {
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
                self.mark = Mark::Beginning;
                self.branch += 1;
                Ok(None)
            }
        }
    }
}

pub(super) fn matches(filter: &Option<Filter>, document: Doc<'_>) -> Result<bool, Error> {
    match filter {
        Some(filter) => filter.matches(document),
        None => Ok(true),
    }
}
