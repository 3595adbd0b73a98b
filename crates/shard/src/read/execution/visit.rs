//! Documents shown where they lie, one after the other, until the visitor has enough.
//!
//! Taking a document out of a scan costs reference counts and moves of a large value
//! through several layers: more than looking at it. Where a plan is one plain scan,
//! whose bounds are one range, the visitor is called from inside the scan instead.
//! Everything else goes through [`Execution::next`], and so does the first document of
//! each batch.

use super::super::scan::Space;
use super::ownership::outside;
use super::search::matches;
use super::{Budget, Execution, Found, RESUMED, Stage, Step};
use crate::operation::Operation;
use crate::sharding::Ownership;
use model::Error;
use model::bson::Doc;
use model::range::RangeSet;
use query::filter::Filter;
use query::index_keys::MultikeyPaths;
use query::plan::{Access, IndexAccess, ScanBounds, ScanDirection};
use storage::store::Verdict;

use super::found::STEPS_PER_CHECK;

/// What a visitor does with a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// Takes it and wants more.
    More,
    /// Takes it as the last one.
    Enough,
    /// Leaves it: it comes first next time.
    Refused,
}

/// Why no more documents are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visited {
    /// The visitor took its last one or refused one, or the limit is reached.
    Stopped,
    /// The budget is used up; there may be more.
    Paused,
    /// There is nothing more, for now at least.
    Ended,
}

pub(crate) type Visitor<'v> = &'v mut dyn FnMut(Doc<'_>) -> Result<Taken, Error>;

/// A plan that is one plain scan.
struct PlainScan<'p> {
    space: Space,
    bounds: Option<&'p ScanBounds>,
    direction: ScanDirection,
    filter: &'p Option<Filter>,
    /// The keys of an index count as examined.
    counts_keys: bool,
    counts_documents: bool,
    /// Entries lead to records, which are fetched.
    fetches: bool,
}

impl Execution {
    /// Shows documents to the visitor, looking at no more than the budget allows.
    pub(crate) fn visit(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
        visitor: Visitor<'_>,
    ) -> Result<Visited, Error> {
        loop {
            if self.is_visited_in_place() {
                return self.visit_in_place(operation, budget, visitor);
            }
            let found = match self.next(operation, budget)? {
                Step::Found(found) => found,
                Step::Paused => return Ok(Visited::Paused),
                Step::Ended => return Ok(Visited::Ended),
            };
            match visitor(found.document())? {
                Taken::More => {}
                Taken::Enough => return Ok(Visited::Stopped),
                Taken::Refused => {
                    self.put_back(found);
                    return Ok(Visited::Stopped);
                }
            }
        }
    }

    /// Whether what comes next is the plan's own scan, and nothing else.
    fn is_visited_in_place(&self) -> bool {
        matches!(self.stage, Stage::Streaming)
            && !self.suspended
            && self.made.is_none()
            && self.merging.is_none()
            && self.put_back.is_none()
            && self.skipped >= self.query.skip
            && self.query.limit.is_none_or(|limit| self.emitted < limit)
            && self
                .live
                .as_ref()
                .is_some_and(|live| self.plain_scan(&live.multikey).is_some())
    }

    fn plain_scan(&self, multikey: &[MultikeyPaths]) -> Option<PlainScan<'_>> {
        match &self.planned.plan.access {
            Access::Records { direction, filter } => Some(PlainScan {
                space: self.record_space(),
                bounds: None,
                direction: *direction,
                filter,
                counts_keys: false,
                counts_documents: true,
                fetches: false,
            }),
            Access::Index(access) if access.bounds.range_decides() => {
                self.plain_index(access, &multikey[access.index])
            }
            Access::Index(_) | Access::Union(_) | Access::Nothing | Access::Id(_) => None,
        }
    }

    fn plain_index<'p>(
        &'p self,
        access: &'p IndexAccess,
        multikey: &MultikeyPaths,
    ) -> Option<PlainScan<'p>> {
        let index = &self.planned.indexes[access.index];
        let (space, fetches) = match index.id {
            None => (self.record_space(), false),
            Some(id) => (Space::Index(id), true),
        };
        if fetches {
            let one_each = multikey.is_empty() || access.is_one_key(multikey);
            let as_planned = *multikey == access.multikey;
            let asks_keys = access.residual_of_key && access.residual.is_some();
            // Where most entries may be of other ranges, they are told apart before they are fetched.
            let restricted = self.restriction.is_some() && self.windows.is_some();
            if access.covered || asks_keys || !one_each || !as_planned || restricted {
                return None;
            }
        }
        Some(PlainScan {
            space,
            bounds: Some(&access.bounds),
            direction: access.direction,
            filter: &access.residual,
            counts_keys: true,
            counts_documents: !access.covered,
            fetches,
        })
    }

    fn visit_in_place(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
        visitor: Visitor<'_>,
    ) -> Result<Visited, Error> {
        if budget.steps == 0 {
            return Ok(Visited::Paused);
        }
        // Taken out, because the plan is borrowed from the execution meanwhile.
        let mut live = self.live.take().expect(RESUMED);
        let shown = self.show(&mut live, operation, budget, visitor);
        self.live = Some(live);
        shown
    }

    fn show(
        &mut self,
        live: &mut super::Live,
        operation: &Operation,
        budget: &mut Budget,
        visitor: Visitor<'_>,
    ) -> Result<Visited, Error> {
        let plan = self.plain_scan(&live.multikey).expect("asked before");
        let limit = self.query.limit.unwrap_or(u64::MAX);
        // Within bounds a scan looks at all that lies there, whoever owns it.
        let are_told_apart = plan.bounds.is_some() || !self.windows_decide;
        let ownership = self.collection.ownership.as_deref();
        let mut showing = Showing {
            filter: plan.filter,
            ownership: ownership.filter(|_| are_told_apart),
            sees_orphans: self.query.sees_orphans,
            restriction: self.restriction.as_ref(),
            operation,
            budget,
            visitor,
            examined: 0,
            taken: 0,
            hidden: 0,
            left: limit - self.emitted,
            steps_before: self.statistics.steps,
            stopped: Ok(Visited::Paused),
            refused: false,
        };
        let (counts_keys, counts_documents) = (plan.counts_keys, plan.counts_documents);
        let windows = self.windows.as_ref();
        let (scan, snapshot) =
            live.scan(plan.space, plan.bounds, plan.direction, &self.mark, windows)?;
        let last = if plan.fetches {
            let judge = |document: &[u8]| showing.judge(document);
            let found = scan.find_fetched(snapshot, self.collection.id, judge)?;
            found.map(|(_, entry, record)| {
                let position = entry.position();
                (position, Found::Fetched { entry, record })
            })
        } else {
            let found = scan.find_record(snapshot, |document| showing.judge(document))?;
            found.map(|(_, record)| (record.position(), Found::Record(record)))
        };
        let Showing {
            examined,
            taken,
            hidden,
            stopped,
            refused,
            ..
        } = showing;
        let statistics = &mut self.statistics;
        statistics.steps += examined;
        statistics.hidden += hidden;
        statistics.documents_examined += examined * u64::from(counts_documents);
        if counts_keys {
            statistics.keys_examined += examined;
            let branch = &mut statistics.branches[self.branch];
            branch.keys_examined += examined;
            branch.keys_inside += examined;
        }
        statistics.matched += taken + u64::from(refused);
        statistics.returned += taken;
        self.emitted += taken + u64::from(refused);
        let Some((position, found)) = last else {
            self.stage = Stage::Ended;
            return Ok(Visited::Ended);
        };
        self.last = Some(position);
        if refused {
            self.put_back = Some(found);
        }
        stopped
    }
}

/// A visit under way.
struct Showing<'a> {
    filter: &'a Option<Filter>,
    ownership: Option<&'a Ownership>,
    sees_orphans: bool,
    restriction: Option<&'a RangeSet>,
    operation: &'a Operation,
    budget: &'a mut Budget,
    visitor: Visitor<'a>,
    examined: u64,
    taken: u64,
    /// Documents that belong to another shard.
    hidden: u64,
    /// How many may still be taken.
    left: u64,
    steps_before: u64,
    /// Why it stopped.
    stopped: Result<Visited, Error>,
    refused: bool,
}

impl Showing<'_> {
    /// Shows a document if it matches. It is looked at here, whatever the verdict.
    #[inline]
    fn judge(&mut self, document: &[u8]) -> Verdict {
        self.examined += 1;
        self.budget.steps -= 1;
        self.budget.weigh(document);
        match self.offer(Doc::from_validated(document)) {
            Ok(Taken::More) if self.budget.steps > 0 => Verdict::Pass,
            // The budget is used up.
            Ok(Taken::More) => Verdict::Stop,
            Ok(Taken::Enough | Taken::Refused) => {
                self.stopped = Ok(Visited::Stopped);
                Verdict::Stop
            }
            Err(error) => {
                self.stopped = Err(error);
                Verdict::Stop
            }
        }
    }

    #[inline]
    fn offer(&mut self, document: Doc<'_>) -> Result<Taken, Error> {
        let steps = self.steps_before + self.examined;
        if steps.is_multiple_of(STEPS_PER_CHECK) {
            self.operation.check()?;
        }
        if !matches(self.filter, document)? {
            return Ok(Taken::More);
        }
        if let Some(ownership) = self.ownership
            && ((!self.sees_orphans && ownership.hides(document))
                || outside(self.restriction, ownership, document))
        {
            self.hidden += 1;
            return Ok(Taken::More);
        }
        let taken = (self.visitor)(document)?;
        if taken == Taken::Refused {
            self.refused = true;
            return Ok(taken);
        }
        self.taken += 1;
        match self.taken == self.left {
            true => Ok(Taken::Enough),
            false => Ok(taken),
        }
    }
}
