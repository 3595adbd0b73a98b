//! Branches of a plan that come in the order of a sort, merged.
//!
//! Each branch is an execution of its own over the same snapshot, with its own
//! position, of which the next document is known. The least of these by the sort
//! comes next; of equal ones that of the earlier branch.
//!
//! A document that has keys in several branches belongs to the first of them, as
//! in every union: see `query::plan`.

use super::Query;
use super::execution::{Budget, Execution, Found, Statistics, Step};
use super::part::{Mark, lost_plan};
use super::planning::Planned;
use crate::catalog::Collection;
use crate::operation::Operation;
use crate::{Shard, Snapshot};
use model::Error;
use query::plan::{Access, Merged, Plan, Union, has_key_inside};
use query::sort::SortKey;
use std::mem::take;
use std::sync::Arc;

/// How many documents go by between two looks at the deadline. The branches look
/// themselves where they search for long.
const DOCUMENTS_PER_CHECK: u64 = 64;

pub(super) struct Merging {
    planned: Arc<Planned>,
    branches: Vec<Branch>,
    merged: u64,
    /// Whose document was returned last.
    taken: Option<usize>,
}

struct Branch {
    execution: Execution,
    head: Head,
}

/// The next document of a branch.
enum Head {
    Unknown,
    Known(SortKey, Found),
    /// There is none.
    Ended,
}

impl Merging {
    /// Nothing if the plan does not merge.
    pub(super) fn new(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        query: &Query,
        planned: &Arc<Planned>,
    ) -> Result<Option<Box<Self>>, Error> {
        let Access::Union(union) = &planned.plan.access else {
            return Ok(None);
        };
        if union.merged.is_none() {
            return Ok(None);
        }
        let mut branches = Vec::with_capacity(union.branches.len());
        for branch in &union.branches {
            let alone = Planned {
                plan: Plan {
                    access: Access::Union(Union {
                        branches: vec![branch.clone()],
                        merged: None,
                        ..union.clone()
                    }),
                    needs_sort: false,
                    cost: 0.0,
                },
                indexes: planned.indexes.clone(),
                rejected: Vec::new(),
                remembered: None,
            };
            let query = Query {
                sort: None,
                skip: 0,
                limit: None,
                ..query.clone()
            };
            branches.push(Branch {
                execution: Execution::with_plan(shard, collection, query, alone, None)?,
                head: Head::Unknown,
            });
        }
        Ok(Some(Box::new(Self {
            planned: planned.clone(),
            branches,
            merged: 0,
            taken: None,
        })))
    }

    /// Lets all branches read this snapshot.
    pub(super) fn go_live(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        for branch in &mut self.branches {
            branch.execution.go_live_once(snapshot)?;
        }
        Ok(())
    }

    /// Where the branches stand; `again` if the last document is still to come.
    pub(super) fn marks(&self, again: bool) -> Vec<Mark> {
        let branches = self.branches.iter().enumerate();
        branches
            .map(|(at, branch)| match branch.head {
                Head::Ended => Mark::Ended,
                Head::Known(..) => branch.execution.mark_now(true),
                Head::Unknown => branch.execution.mark_now(again && self.taken == Some(at)),
            })
            .collect()
    }

    /// Goes on where a merge of the same branches stood.
    pub(super) fn stand_at(&mut self, marks: &[Mark]) -> Result<(), Error> {
        if marks.len() != self.branches.len() {
            return Err(lost_plan());
        }
        for (branch, mark) in self.branches.iter_mut().zip(marks) {
            if *mark == Mark::Ended {
                branch.head = Head::Ended;
            }
            branch.execution.stand_at_mark(mark);
        }
        Ok(())
    }

    pub(super) fn suspend(&mut self, statistics: &mut Statistics) {
        for (at, branch) in self.branches.iter_mut().enumerate() {
            branch.execution.suspend();
            // Unless its key is wanted.
            if let Head::Known(_, found) = &mut branch.head
                && !branch.execution.query().return_key
            {
                found.detach();
            }
            branch.note(at, statistics);
        }
    }

    /// The next document in order, before skip and limit.
    pub(super) fn next(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
        statistics: &mut Statistics,
    ) -> Result<Step, Error> {
        let planned = self.planned.clone();
        let Access::Union(union) = &planned.plan.access else {
            return Ok(Step::Ended);
        };
        let Some(merged) = &union.merged else {
            return Ok(Step::Ended);
        };
        loop {
            self.merged += 1;
            if self.merged.is_multiple_of(DOCUMENTS_PER_CHECK) {
                operation.check()?;
            }
            for (at, branch) in self.branches.iter_mut().enumerate() {
                if !branch.advance(at, merged, operation, budget, statistics)? {
                    return Ok(Step::Paused);
                }
            }
            let Some((at, found)) = self.take_least() else {
                return Ok(Step::Ended);
            };
            if belongs_earlier(&planned, union, merged, at, &found)? {
                statistics.duplicates += 1;
                continue;
            }
            statistics.matched += 1;
            return Ok(Step::Found(found));
        }
    }

    fn take_least(&mut self) -> Option<(usize, Found)> {
        let mut least: Option<(usize, &SortKey)> = None;
        for (at, branch) in self.branches.iter().enumerate() {
            if let Head::Known(key, _) = &branch.head
                && least.is_none_or(|(_, best)| key < best)
            {
                least = Some((at, key));
            }
        }
        let (at, _) = least?;
        self.taken = Some(at);
        match std::mem::replace(&mut self.branches[at].head, Head::Unknown) {
            Head::Known(_, found) => Some((at, found)),
            Head::Unknown | Head::Ended => None,
        }
    }
}

impl Branch {
    /// Finds the next document, unless it is known; false if the budget ended.
    fn advance(
        &mut self,
        at: usize,
        merged: &Merged,
        operation: &Operation,
        budget: &mut Budget,
        statistics: &mut Statistics,
    ) -> Result<bool, Error> {
        if !matches!(self.head, Head::Unknown) {
            return Ok(true);
        }
        let step = self.execution.next(operation, budget)?;
        self.note(at, statistics);
        self.head = match step {
            Step::Paused => return Ok(false),
            Step::Ended => Head::Ended,
            Step::Found(found) => {
                let key = merged.sort.key(found.document())?;
                Head::Known(key, found)
            }
        };
        Ok(true)
    }

    /// Takes over what the branch has counted since the last time.
    fn note(&mut self, at: usize, statistics: &mut Statistics) {
        let counted = &mut self.execution.statistics;
        statistics.keys_examined += take(&mut counted.keys_examined);
        statistics.documents_examined += take(&mut counted.documents_examined);
        statistics.steps += take(&mut counted.steps);
        statistics.seeks += take(&mut counted.seeks);
        if let (Some(sum), Some(more)) = (
            statistics.branches.get_mut(at),
            counted.branches.first_mut(),
        ) {
            sum.keys_examined += take(&mut more.keys_examined);
            sum.keys_inside += take(&mut more.keys_inside);
            sum.seeks += take(&mut more.seeks);
        }
    }
}

/// Whether an earlier branch yields the document.
fn belongs_earlier(
    planned: &Planned,
    union: &Union,
    merged: &Merged,
    at: usize,
    found: &Found,
) -> Result<bool, Error> {
    for (earlier, access) in union.branches[..at].iter().enumerate() {
        let index = &planned.indexes[access.index];
        // A document with several keys may have come since the plan was made.
        if merged.groups[earlier] == merged.groups[at] && !index.is_multikey() {
            continue;
        }
        if has_key_inside(&index.definition, access, found.document())? {
            return Ok(true);
        }
    }
    Ok(false)
}
