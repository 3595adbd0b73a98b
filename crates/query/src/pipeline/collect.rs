//! Stages that look at all their input before they answer: `$sort`, `$count`,
//! `$sample`.

use super::environment::Environment;
use super::source::{Advance, Interruption, Source};
use super::split;
use crate::sort::{SortPattern, Sorted, Sorter};
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter};
use std::sync::Arc;

pub(super) struct Sorting {
    input: Box<dyn Source>,
    sorter: Option<Sorter>,
    sorted: Option<Sorted>,
    interruption: Interruption,
    current: DocBuf,
}

impl Sorting {
    pub(super) fn new(
        input: Box<dyn Source>,
        pattern: SortPattern,
        limit: Option<u64>,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self {
            input,
            sorter: Some(within_memory(Sorter::new(pattern, limit), environment)),
            sorted: None,
            interruption: Interruption::new(environment),
            current: DocBuf::new(),
        }
    }
}

/// A sort with the memory and the disk that a pipeline may use.
fn within_memory(sorter: Sorter, environment: &Arc<dyn Environment>) -> Sorter {
    let sorter = sorter.with_memory_limit(environment.sort_memory_bytes_max());
    match environment.spill() {
        Some(spill) => sorter.with_spill(spill),
        None => sorter,
    }
}

fn next_sorted(sorted: &mut Option<Sorted>, current: &mut DocBuf) -> Result<Advance, Error> {
    match sorted.as_mut().and_then(Iterator::next).transpose()? {
        Some(document) => {
            *current = document;
            Ok(Advance::Document)
        }
        None => Ok(Advance::End),
    }
}

impl Source for Sorting {
    fn advance(&mut self) -> Result<Advance, Error> {
        while let Some(sorter) = &mut self.sorter {
            match self.input.advance()? {
                Advance::Document => {
                    sorter.push(self.input.take())?;
                    self.interruption.step()?;
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    if let Some(sorter) = self.sorter.take() {
                        self.sorted = Some(sorter.finish()?);
                    }
                }
            }
        }
        next_sorted(&mut self.sorted, &mut self.current)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

/// `$count`: one document, or none if nothing was counted.
pub(super) struct Counting {
    input: Box<dyn Source>,
    name: Box<str>,
    count: i64,
    done: bool,
    interruption: Interruption,
    current: DocBuf,
}

impl Counting {
    pub(super) fn new(
        input: Box<dyn Source>,
        name: Box<str>,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            name,
            count: 0,
            done: false,
            interruption: Interruption::new(environment),
            current: DocBuf::new(),
        }
    }
}

impl Source for Counting {
    fn advance(&mut self) -> Result<Advance, Error> {
        while !self.done {
            match self.input.advance()? {
                Advance::Document => {
                    self.count += 1;
                    self.interruption.step()?;
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    self.done = true;
                    if self.count == 0 {
                        break;
                    }
                    let mut writer = DocWriter::new();
                    match i32::try_from(self.count) {
                        Ok(count) => writer.append(&self.name, count),
                        Err(_) => writer.append(&self.name, self.count),
                    };
                    self.current = writer.finish();
                    return Ok(Advance::Document);
                }
            }
        }
        Ok(Advance::End)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }
}

/// `$sample`: so many documents, each set of that size equally likely, in random
/// order: the first ones of a sort by random keys, which leaves memory as any
/// other sort does.
///
/// The half of it that a shard does keeps the keys: documents come out as
/// [`split::with_key`] makes them, in the order of their keys, and the first ones of
/// all shards together are a sample of all.
pub(super) struct Sampling {
    input: Box<dyn Source>,
    keyed: bool,
    environment: Arc<dyn Environment>,
    interruption: Interruption,
    sorter: Option<Sorter>,
    sorted: Option<Sorted>,
    current: DocBuf,
}

impl Sampling {
    pub(super) fn new(
        input: Box<dyn Source>,
        size: u64,
        keyed: bool,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        let limit = usize::try_from(size).unwrap_or(usize::MAX);
        let sorter = Sorter::by_keys(Some(limit));
        Self {
            input,
            keyed,
            sorter: (size > 0).then(|| within_memory(sorter, environment)),
            sorted: None,
            interruption: Interruption::new(environment),
            environment: environment.clone(),
            current: DocBuf::new(),
        }
    }
}

impl Source for Sampling {
    fn advance(&mut self) -> Result<Advance, Error> {
        while let Some(sorter) = &mut self.sorter {
            match self.input.advance()? {
                Advance::Document => {
                    // Whole numbers that BSON has, so that they can be sent.
                    let key = self.environment.random_below(1 << 63);
                    let encoded = key.to_be_bytes();
                    if sorter.wants(&encoded) {
                        let document = match self.keyed {
                            true => split::with_key(key as i64, self.input.current()),
                            false => self.input.take(),
                        };
                        sorter.push_with_key(encoded.to_vec(), document)?;
                    }
                    self.interruption.step()?;
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    if let Some(sorter) = self.sorter.take() {
                        self.sorted = Some(sorter.finish()?);
                    }
                }
            }
        }
        next_sorted(&mut self.sorted, &mut self.current)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
