//! One entry of an index: is it inside the bounds, does its document match, and
//! is this the entry at which the document is yielded?

use super::super::covered;
use super::super::scan::{Item, Space, Stepped};
use super::found::Statistics;
use super::search::matches;
use super::{Budget, Execution, Found, RESUMED, Stage};
use crate::catalog::Index;
use crate::error::from_storage;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter};
use query::filter::Filter;
use query::plan::{IndexAccess, emits_at, leads_at};
use std::sync::Arc;
use storage::{IndexEntry, Record};

pub(super) enum IndexStep {
    Found(Found),
    NotThis,
    Ended,
}

impl Execution {
    /// Looks at one entry of the index that the current branch scans. A document
    /// passes by what is left of the branch's condition or by the whole one.
    pub(super) fn step_index(
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
        let multikey = &live.multikey[access.index];
        let one_each = multikey.is_empty() || access.is_one_key(multikey);
        // Since the plan was made, arrays may have come to where there were none:
        // then neither keys nor bounds tell what they told.
        let as_planned = *multikey == access.multikey;
        let sorts = self.query.sort.is_some() && !self.planned.plan.needs_sort;
        let bounds = Some(&access.bounds);
        let (scan, snapshot) = live.scan(space, bounds, access.direction, &self.mark, None)?;
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
        let decided_by_key = one_each && as_planned && access.residual.is_none() && whole.is_none();
        if decided_by_key
            && !self.collection.may_hold_orphans()
            && self.restriction.is_none()
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
        if let (Item::Entry(entry), Some(asked), true) =
            (&item, &self.restriction, self.windows.is_some())
            && !asked.contains(entry.record_key())
        {
            // The key of the record begins with the shard key: it need not be fetched.
            return Ok(IndexStep::NotThis);
        }
        let found = match item {
            Item::Record(record) => {
                self.statistics.documents_examined += u64::from(!access.covered);
                budget.weigh(record.document());
                passes(access, whole, Doc::from_validated(record.document()))?
                    .then_some(Found::Record(record))
            }
            Item::Entry(entry) if access.covered && one_each && as_planned => {
                let document = covered::document(&index.definition, &entry)?;
                matches(&access.residual, document.as_doc())?.then_some(Found::Made(document))
            }
            Item::Entry(entry)
                if whole.is_none()
                    && as_planned
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
                let found = fetched.check(entry, record, &mut self.statistics)?;
                match found {
                    Some(found)
                        if !as_planned && !self.query.filter.matches(found.document())? =>
                    {
                        None
                    }
                    // ⚑ What has become an array meanwhile would come where it does not belong; it is not what
                    // it was when the scan began.
                    Some(Found::Fetched { entry, record })
                        if !as_planned
                            && sorts
                            && !leads_at(
                                &index.definition,
                                access.direction,
                                entry.fields(),
                                Doc::from_validated(record.document()),
                            )? =>
                    {
                        None
                    }
                    // The record only said that this is the key to yield it at.
                    Some(Found::Fetched { entry, .. }) if access.covered && as_planned => {
                        Some(Found::Made(covered::document(&index.definition, &entry)?))
                    }
                    found => found,
                }
            }
        };
        Ok(match found {
            Some(found) => IndexStep::Found(found),
            None => IndexStep::NotThis,
        })
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

fn passes(access: &IndexAccess, whole: Option<&Filter>, document: Doc<'_>) -> Result<bool, Error> {
    if matches(&access.residual, document)? {
        return Ok(true);
    }
    match whole {
        Some(whole) => whole.matches(document),
        None => Ok(false),
    }
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
