//! Record keys of what a filter selects, in their own order, whatever plan finds them: for writes
//! that go on elsewhere from a place (`broadcast/`).
//!
//! A scan over records is in order by itself and lets go of its snapshot between two chunks. Any
//! other plan is run to its end, and the keys that it found behind the place are sorted; of very many
//! only the first are kept, and whoever has used them up searches again from its new place.

use super::part::Mark;
use super::{Budget, Execution, Query, ScanPart, Step};
use crate::Shard;
use crate::catalog::Collection;
use crate::operation::Operation;
use model::Error;
use model::bson::Value;
use model::key::RecordKey;
use query::filter::Filter;
use query::plan::{Access, ScanDirection};
use std::sync::Arc;

/// Steps that a search takes before it makes room for other connections.
const STEPS_INLINE: u64 = 256;
/// Keys that are kept at a time.
const KEYS_MAX: usize = 100_000;

/// What comes behind the keys that were returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Further {
    /// More, from the same search.
    More,
    /// Another search finds more, perhaps.
    Search,
    Nothing,
}

pub(crate) struct RecordOrder {
    source: Source,
    /// Met behind keys that are handed out first.
    failure: Option<Error>,
}

enum Source {
    Sorted {
        keys: std::vec::IntoIter<RecordKey>,
        further: Further,
    },
    Records(Box<Execution>),
}

/// What is looked for.
pub(crate) struct Sought<'a> {
    pub(crate) filter: &'a Filter,
    pub(crate) hint: Option<&'a Value>,
    /// The ranges it is limited to, if the shard owns others.
    pub(crate) part: Option<Arc<ScanPart>>,
    pub(crate) after: Option<&'a [u8]>,
}

impl RecordOrder {
    pub(crate) fn new(
        shard: &Arc<Shard>,
        collection: &Arc<Collection>,
        sought: Sought<'_>,
        operation: &Operation,
    ) -> Result<Self, Error> {
        let is_behind = |key: &RecordKey| sought.after.is_none_or(|after| key.as_bytes() > after);
        if sought.hint.is_none()
            && let Some(id) = query::plan::id_value(sought.filter)
            && let Some(key) = collection.record_key_of_id(id)
        {
            let key = Some(key).filter(is_behind);
            return Ok(Self::sorted(key.into_iter().collect(), Further::Nothing));
        }
        let query = Query {
            hint: sought.hint.cloned(),
            part: sought.part.clone(),
            ..Query::new(sought.filter.clone())
        };
        let mut execution = Execution::new(shard, collection, query, operation)?;
        if let Access::Records {
            direction: ScanDirection::Forward,
            ..
        } = execution.planned().plan.access
        {
            if let Some(after) = sought.after {
                execution.stand_at_mark(&Mark::Behind(after.to_vec()));
            }
            return Ok(Self {
                source: Source::Records(Box::new(execution)),
                failure: None,
            });
        }
        let mut kept = Kept::default();
        let mut take = |found| {
            if is_behind(&found) {
                kept.add(found);
            }
        };
        let mut budget = Budget::of(STEPS_INLINE);
        let mut left = usize::MAX;
        let mut filled = fill(&mut execution, &mut left, &mut take, operation, &mut budget);
        if let Ok(Filled::Paused) = filled {
            filled = tokio::task::block_in_place(|| {
                let mut budget = Budget::unlimited();
                fill(&mut execution, &mut left, &mut take, operation, &mut budget)
            });
        }
        // ⚑ What was found until then is no beginning in the order of records: a place behind it
        // would leave out what was not found yet.
        filled?;
        Ok(kept.finish())
    }

    fn sorted(keys: Vec<RecordKey>, further: Further) -> Self {
        Self {
            source: Source::Sorted {
                keys: keys.into_iter(),
                further,
            },
            failure: None,
        }
    }

    /// The next keys, at most so many.
    pub(crate) fn next_keys(
        &mut self,
        keys_max: usize,
        operation: &Operation,
    ) -> Result<(Vec<RecordKey>, Further), Error> {
        let execution = match &mut self.source {
            Source::Sorted { keys, further } => {
                let next: Vec<RecordKey> = keys.by_ref().take(keys_max).collect();
                let is_used_up = keys.as_slice().is_empty();
                return Ok((next, if is_used_up { *further } else { Further::More }));
            }
            Source::Records(execution) => execution,
        };
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut keys = Vec::new();
        let mut take = |found| keys.push(found);
        let mut budget = Budget::of(STEPS_INLINE);
        let mut left = keys_max;
        let mut filled = fill(execution, &mut left, &mut take, operation, &mut budget);
        if let Ok(Filled::Paused) = filled {
            filled = tokio::task::block_in_place(|| {
                let mut budget = Budget::unlimited();
                fill(execution, &mut left, &mut take, operation, &mut budget)
            });
        }
        match filled {
            Ok(Filled::Ended) => Ok((keys, Further::Nothing)),
            Ok(Filled::Full | Filled::Paused) => {
                execution.suspend();
                Ok((keys, Further::More))
            }
            Err(failure) if keys.is_empty() => Err(failure),
            Err(failure) => {
                self.failure = Some(failure);
                Ok((keys, Further::More))
            }
        }
    }
}

enum Filled {
    Full,
    Ended,
    Paused,
}

fn fill(
    execution: &mut Execution,
    left: &mut usize,
    take: &mut impl FnMut(RecordKey),
    operation: &Operation,
    budget: &mut Budget,
) -> Result<Filled, Error> {
    while *left > 0 {
        match execution.next(operation, budget)? {
            Step::Found(found) => {
                take(found.record_key(execution.collection())?);
                *left -= 1;
            }
            Step::Paused => return Ok(Filled::Paused),
            Step::Ended => return Ok(Filled::Ended),
        }
    }
    Ok(Filled::Full)
}

/// The least keys of many.
#[derive(Default)]
struct Kept {
    keys: Vec<RecordKey>,
    dropped: bool,
}

impl Kept {
    fn add(&mut self, key: RecordKey) {
        self.keys.push(key);
        if self.keys.len() >= 2 * KEYS_MAX {
            self.keys.select_nth_unstable(KEYS_MAX);
            self.keys.truncate(KEYS_MAX);
            self.dropped = true;
        }
    }

    fn finish(mut self) -> RecordOrder {
        self.keys.sort_unstable();
        self.keys.dedup();
        // What was dropped is behind the least ones, but not behind what came later.
        if self.keys.len() > KEYS_MAX {
            self.keys.truncate(KEYS_MAX);
            self.dropped = true;
        }
        let further = match self.dropped {
            true => Further::Search,
            false => Further::Nothing,
        };
        RecordOrder::sorted(self.keys, further)
    }
}
