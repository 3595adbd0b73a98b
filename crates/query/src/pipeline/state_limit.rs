//! What one accumulator may gather for one group, or one bucket.
//!
//! Groups that are too many go to disk, but in the end each is put together in memory:
//! what a single state holds is bounded here, while documents come in and again where
//! spilled partials are merged.
//!
//! | state | beyond the limit |
//! | --- | --- |
//! | a list (`$push`, `$addToSet`, `$firstN`, …) | 146: it holds what it counts |
//! | a document (`$mergeObjects`) | counted anew, since it counts fields that were replaced since; 13548 if it is still large |
//! | the others | never get there |
//!
//! Left out: the parameters by which MongoDB lets these limits be set
//! (`internalQueryMaxPushBytes` and those like it), and its other words where its other
//! engine runs a group.

use crate::accumulator::{Accumulator, State};
use model::bson::{Doc, Value};
use model::{Code, Error};

/// MongoDB's limit for the list of one group.
const STATE_BYTES_MAX: usize = 100 * 1024 * 1024;

/// The largest document that MongoDB puts together.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

// ⚑ A document that was counted anew grows a good while before it is again.
const _: () = assert!(DOCUMENT_BYTES_MAX < STATE_BYTES_MAX / 3 * 2);

#[derive(Clone, Copy)]
pub(super) struct StateLimit {
    state_bytes_max: usize,
    document_bytes_max: usize,
}

impl Default for StateLimit {
    fn default() -> Self {
        Self {
            state_bytes_max: STATE_BYTES_MAX,
            document_bytes_max: DOCUMENT_BYTES_MAX,
        }
    }
}

impl StateLimit {
    #[cfg(test)]
    pub(super) fn new(state_bytes_max: usize, document_bytes_max: usize) -> Self {
        Self {
            state_bytes_max,
            document_bytes_max,
        }
    }

    /// Looks at the state of an output field after something was added to it.
    pub(super) fn check(
        self,
        (name, accumulator): &(Box<str>, Accumulator),
        state: &mut State,
    ) -> Result<(), Error> {
        if state.memory_bytes() <= self.state_bytes_max {
            return Ok(());
        }
        self.count_anew(name, accumulator, state)
    }

    #[cold]
    fn count_anew(
        self,
        name: &str,
        accumulator: &Accumulator,
        state: &mut State,
    ) -> Result<(), Error> {
        let too_large = Error::new(
            Code::EXCEEDED_MEMORY_LIMIT,
            format!(
                "{} used too much memory and cannot spill to disk. Memory limit: {} bytes",
                accumulator.name(),
                self.state_bytes_max
            ),
        );
        // Only lists have an `n`, which may need the group's key.
        let Ok(fresh) = accumulator.start(Doc::EMPTY) else {
            return Err(too_large);
        };
        let Value::Document(partial) = std::mem::replace(state, fresh).partial() else {
            return Err(too_large);
        };
        let bytes = partial.as_bytes().len();
        if bytes > self.document_bytes_max {
            return Err(Error::location(
                13548,
                format!(
                    "the field '{name}' of $group grew to {bytes} bytes, past the limit of {}",
                    self.document_bytes_max
                ),
            ));
        }
        state.merge(Value::Document(partial).as_ref())
    }
}
