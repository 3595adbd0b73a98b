//! Record keys for updates and deletes, in the order of a plan.
//!
//! A writer changes what it finds, and a changed document may move ahead in the
//! index that is being scanned. So a search over an index stays on one snapshot
//! until the statement is over; one over records, whose keys never change, takes
//! a new snapshot for each chunk.

use super::{Budget, Execution, Query, Step};
use crate::Shard;
use crate::catalog::Collection;
use crate::operation::Operation;
use model::Error;
use model::bson::Value;
use model::key::RecordKey;
use query::filter::Filter;
use query::plan::Access;
use query::sort::SortPattern;
use std::sync::Arc;

/// Steps that a search takes before it makes room for other connections.
const STEPS_INLINE: u64 = 256;

pub(crate) struct Candidates {
    source: Source,
    /// Met behind keys that were handed out first: what comes before a failure
    /// is still changed.
    failure: Option<Error>,
}

enum Source {
    /// The filter names one record; whoever asks looks it up anyway.
    One(Option<RecordKey>),
    Search(Box<Execution>),
}

impl Candidates {
    /// Those that a filter selects, which may name one.
    pub(crate) fn new(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        filter: &Filter,
        sort: Option<&SortPattern>,
        hint: Option<&Value>,
        operation: &Operation,
    ) -> Result<Self, Error> {
        match named_key(collection, filter, hint) {
            Some(key) => Ok(Self::one(key)),
            None => Self::search(shard, collection, filter, sort, hint, operation),
        }
    }

    /// The one record that the filter names.
    pub(crate) fn one(key: RecordKey) -> Self {
        Self {
            source: Source::One(Some(key)),
            failure: None,
        }
    }

    /// Those that a plan finds.
    pub(crate) fn search(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        filter: &Filter,
        sort: Option<&SortPattern>,
        hint: Option<&Value>,
        operation: &Operation,
    ) -> Result<Self, Error> {
        let query = Query {
            sort: sort.cloned(),
            hint: hint.cloned(),
            ..Query::new(filter.clone())
        };
        let execution = Execution::new(shard, collection, query, operation)?;
        Ok(Self {
            source: Source::Search(Box::new(execution)),
            failure: None,
        })
    }

    /// The next keys, at most so many; none means that there are no more.
    pub(crate) fn next_keys(
        &mut self,
        keys_max: usize,
        operation: &Operation,
    ) -> Result<Vec<RecordKey>, Error> {
        let execution = match &mut self.source {
            Source::One(key) => return Ok(key.take().into_iter().collect()),
            Source::Search(execution) => execution,
        };
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut keys = Vec::new();
        let mut budget = Budget::of(STEPS_INLINE);
        let mut filled = fill(execution, &mut keys, keys_max, operation, &mut budget);
        if let Ok(false) = filled {
            filled = tokio::task::block_in_place(|| {
                let mut budget = Budget::unlimited();
                fill(execution, &mut keys, keys_max, operation, &mut budget)
            });
        }
        if let Err(failure) = filled {
            if keys.is_empty() {
                return Err(failure);
            }
            self.failure = Some(failure);
            return Ok(keys);
        }
        if let Access::Records { .. } = execution.planned().plan.access {
            execution.suspend();
        }
        Ok(keys)
    }
}

/// The record that a filter names, so that nothing is searched for.
pub(crate) fn named_key(
    collection: &Collection,
    filter: &Filter,
    hint: Option<&Value>,
) -> Option<RecordKey> {
    match hint {
        Some(_) => None,
        None => collection.record_key_of_id(query::plan::id_value(filter)?),
    }
}

/// False if the budget ended first.
fn fill(
    execution: &mut Execution,
    keys: &mut Vec<RecordKey>,
    keys_max: usize,
    operation: &Operation,
    budget: &mut Budget,
) -> Result<bool, Error> {
    while keys.len() < keys_max {
        match execution.next(operation, budget)? {
            Step::Found(found) => keys.push(found.record_key(execution.collection())?),
            Step::Paused => return Ok(false),
            Step::Ended => break,
        }
    }
    Ok(true)
}
