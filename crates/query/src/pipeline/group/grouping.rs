//! A `$group` under way: groups in memory, and on disk when they are too many.
//!
//! ```text
//!   documents ─► table ─────────────────────────────────► groups
//!                  │ over the limit                          ▲
//!                  ▼                                         │
//!        (encoded key, partial) ─► Sorter ─► merged by key ──┘
//! ```
//!
//! Partials of one group reach the sorter in the order of their documents and
//! keep it, so that order-dependent accumulators stay right. One group after the other
//! is put together in memory: ⚑ what each of its accumulators holds there is bounded by
//! [`StateLimit`], and of the large partials only the next one is there besides.
//!
//! In a cluster both ends may be partials instead: see [`Half`].

#[cfg(test)]
mod tests;

use super::table::{Entry, Table, is_large, next_partial, read_partial, write_partial};
use super::{Group, Half};
use crate::accumulator::State;
use crate::pipeline::environment::Environment;
use crate::pipeline::memory::exceeded;
use crate::pipeline::source::{Advance, Interruption, Source};
use crate::pipeline::state_limit::StateLimit;
use crate::sort::{SortPattern, Sorted, Sorter};
use model::bson::{Array, Doc, DocBuf, DocWriter, ValueRef};
use model::{Error, order};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A `$group` under way.
pub(in crate::pipeline) struct Grouping {
    input: Box<dyn Source>,
    group: Group,
    environment: Arc<dyn Environment>,
    interruption: Interruption,
    state_limit: StateLimit,
    table: Table,
    sorter: Option<Sorter>,
    output: Option<Output>,
    current: DocBuf,
}

enum Output {
    Memory {
        entries: std::vec::IntoIter<Entry>,
        states: std::vec::IntoIter<State>,
    },
    Spilled {
        sorted: Sorted,
        /// The first partial of the group after the one returned last.
        ahead: Option<DocBuf>,
    },
}

impl Grouping {
    pub(in crate::pipeline) fn new(
        input: Box<dyn Source>,
        group: Group,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            group,
            environment: environment.clone(),
            interruption: Interruption::new(environment),
            state_limit: StateLimit::default(),
            table: Table::default(),
            sorter: None,
            output: None,
            current: DocBuf::new(),
        }
    }

    fn spill(&mut self) -> Result<(), Error> {
        if self.sorter.is_none() {
            let spill = self.environment.spill().ok_or_else(|| exceeded("$group"))?;
            self.sorter = Some(
                Sorter::new(SortPattern::parse(Doc::EMPTY)?, None)
                    .with_memory_limit(self.environment.memory_bytes_max() / 4)
                    .with_spill(spill),
            );
        }
        if let Some(sorter) = &mut self.sorter {
            self.table.drain_into(&self.group, sorter)?;
        }
        Ok(())
    }

    fn finish_input(&mut self) -> Result<Output, Error> {
        if self.sorter.is_some() {
            self.spill()?;
        }
        match self.sorter.take() {
            Some(sorter) => {
                let mut sorted = sorter.finish()?;
                let ahead = next_partial(&mut sorted)?;
                Ok(Output::Spilled { sorted, ahead })
            }
            None => {
                let table = std::mem::take(&mut self.table);
                Ok(Output::Memory {
                    entries: table.entries.into_iter(),
                    states: table.states.into_iter(),
                })
            }
        }
    }

    fn write(&self, key: ValueRef<'_>, states: impl Iterator<Item = State>) -> DocBuf {
        if self.group.half == Half::Shard {
            return write_partial(key, states);
        }
        let mut writer = DocWriter::new();
        self.group.key.write(&mut writer, key);
        for ((name, _), state) in self.group.fields.iter().zip(states) {
            writer.append(name, &state.finish());
        }
        writer.finish()
    }

    /// The next group from disk: partials with the same key follow each other.
    fn merge_next(
        &mut self,
        sorted: &mut Sorted,
        ahead: &mut Option<DocBuf>,
    ) -> Result<Option<DocBuf>, Error> {
        let Some(first) = ahead.take() else {
            return Ok(None);
        };
        let (key, parts) = read_partial(&self.group, first.as_doc())?;
        let key_doc = self.group.key.as_document(key);
        let mut states = self
            .group
            .fields
            .iter()
            .map(|(_, accumulator)| accumulator.start(key_doc.as_doc()))
            .collect::<Result<Vec<_>, Error>>()?;
        self.merge_parts(&mut states, parts)?;
        while let Some(next) = next_partial(sorted)? {
            let (next_key, parts) = read_partial(&self.group, next.as_doc())?;
            if order::compare(next_key, key).is_ne() {
                *ahead = Some(next);
                break;
            }
            self.merge_parts(&mut states, parts)?;
        }
        Ok(Some(self.write(key, states.into_iter())))
    }

    /// A step of the merge: the operation may be ended before it, and a state that has
    /// grown too large ends it.
    fn merge_parts(&mut self, states: &mut [State], parts: Array<'_>) -> Result<(), Error> {
        if is_large(parts.as_bytes().len()) {
            // What it adds is worth a look of its own.
            self.environment.check()?;
        } else {
            self.interruption.step()?;
        }
        for ((field, state), part) in self.group.fields.iter().zip(states).zip(parts.iter()) {
            state.merge(part)?;
            self.state_limit.check(field, state)?;
        }
        Ok(())
    }
}

impl Source for Grouping {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.output.is_none() {
            let memory_bytes_max = self.environment.memory_bytes_max();
            loop {
                let (group, table) = (&self.group, &mut self.table);
                let (interruption, limit) = (&mut self.interruption, self.state_limit);
                let advance = self.input.visit(&mut |document| {
                    match group.half {
                        Half::Whole | Half::Shard => table
                            .add(group, limit, document)
                            .map_err(|error| group.error(error))?,
                        Half::Merge => table.merge(group, limit, document)?,
                    }
                    if table.memory_bytes > memory_bytes_max {
                        return Ok(ControlFlow::Break(()));
                    }
                    interruption.step()?;
                    Ok(ControlFlow::Continue(()))
                })?;
                match advance {
                    Advance::Document => self.spill()?,
                    Advance::Paused => return Ok(Advance::Paused),
                    Advance::End => break,
                }
            }
            self.output = Some(self.finish_input()?);
        }
        let Some(mut output) = self.output.take() else {
            return Ok(Advance::End);
        };
        let next = match &mut output {
            Output::Memory { entries, states } => entries.next().map(|entry| {
                let states = states.by_ref().take(self.group.fields.len());
                self.write(entry.key.as_ref(), states)
            }),
            Output::Spilled { sorted, ahead } => self.merge_next(sorted, ahead)?,
        };
        self.output = Some(output);
        match next {
            Some(document) => {
                self.current = document;
                Ok(Advance::Document)
            }
            None => Ok(Advance::End),
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
