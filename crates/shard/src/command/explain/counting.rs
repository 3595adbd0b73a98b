//! Runs a pipeline's stages over its search, and counts what each of them gives.
//!
//! Stages that write are left out: nothing is written, and they give nothing.

use super::{Explained, Purpose};
use crate::aggregate::ShardEnvironment;
use crate::command::Invocation;
use crate::operation::Operation;
use crate::read::{Budget, Execution, Found, Step};
use model::Error;
use model::bson::{Doc, DocBuf};
use parking_lot::Mutex;
use query::pipeline::{Advance, Documents, Environment, Source, Stage, chain_counted};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Explained {
    /// Whether there are stages behind the search.
    pub(super) fn has_stages(&self) -> bool {
        matches!(&self.purpose, Purpose::Aggregate { steps, .. } if !steps.is_empty())
    }

    /// How many documents each stage gives; without a search, over nothing.
    pub(super) fn count_stages(
        &self,
        invocation: &Invocation<'_>,
        search: Option<Arc<Mutex<Execution>>>,
    ) -> Result<Vec<u64>, Error> {
        let Purpose::Aggregate { steps, .. } = &self.purpose else {
            return Ok(Vec::new());
        };
        let environment: Arc<dyn Environment> = ShardEnvironment::new(
            invocation.shard,
            invocation.operation,
            true,
            self.query.at,
            self.query.sees_orphans,
            false,
            None,
        );
        let input: Box<dyn Source> = match search {
            Some(execution) => Box::new(Searched {
                execution,
                operation: invocation.operation.clone(),
                found: None,
            }),
            None => Box::new(Documents::new(Vec::new())),
        };
        tokio::task::block_in_place(|| {
            let (mut source, counts) = chain_counted(input, steps.clone(), &environment)?;
            while source.advance()? == Advance::Document {}
            let given = steps
                .iter()
                .zip(&counts)
                .map(|(step, count)| match step.stage {
                    Stage::Out(_) | Stage::Merge(_) => 0,
                    _ => count.load(Ordering::Relaxed),
                });
            Ok(given.collect())
        })
    }
}

/// The documents of the search.
struct Searched {
    execution: Arc<Mutex<Execution>>,
    operation: Arc<Operation>,
    found: Option<Found>,
}

impl Source for Searched {
    fn advance(&mut self) -> Result<Advance, Error> {
        let mut budget = Budget::unlimited();
        let mut execution = self.execution.lock();
        self.found = loop {
            match execution.next(&self.operation, &mut budget)? {
                Step::Found(found) => break Some(found),
                Step::Ended => break None,
                Step::Paused => budget = Budget::unlimited(),
            }
        };
        Ok(match self.found {
            Some(_) => Advance::Document,
            None => {
                execution.suspend();
                Advance::End
            }
        })
    }

    fn current(&self) -> Doc<'_> {
        match &self.found {
            Some(found) => found.document(),
            None => Doc::EMPTY,
        }
    }

    fn take(&mut self) -> DocBuf {
        match self.found.take() {
            Some(found) => found.into_document(),
            None => DocBuf::new(),
        }
    }
}
