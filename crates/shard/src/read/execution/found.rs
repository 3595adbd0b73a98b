//! What one step of an execution comes to, how many steps it may take, and what
//! it has counted.

use crate::catalog::Collection;
use crate::operation::Operation;
use model::Error;
use model::bson::{Doc, DocBuf};
use model::key::RecordKey;
use storage::{IndexEntry, Record, StoredRecord};

/// How many steps go by between two looks at the deadline.
pub(super) const STEPS_PER_CHECK: u64 = 128;
/// A document of this size takes about as long as two small ones.
const BYTES_PER_STEP: u64 = 16 * 1024;

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
    pub(super) fn weigh(&mut self, document: &[u8]) {
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

    /// The record's key. A document that lost it on the way through a sort still says
    /// where it is stored.
    pub(crate) fn record_key(&self, collection: &Collection) -> Result<RecordKey, Error> {
        Ok(match self {
            Found::Record(record) => RecordKey::from_bytes(record.key()),
            Found::Fetched { entry, .. } => RecordKey::from_bytes(entry.record_key()),
            Found::Looked { key, .. } => key.clone(),
            Found::Made(document) => collection.record_key(document.as_doc())?,
        })
    }

    /// Lets go of everything but the document: a slice of a scan may hold a whole
    /// block of the engine's cache.
    pub(in crate::read) fn detach(&mut self) {
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
    /// Documents that belong to another shard.
    pub(crate) hidden: u64,
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
    pub(super) fn may_step(
        &mut self,
        operation: &Operation,
        budget: &mut Budget,
    ) -> Result<bool, Error> {
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
