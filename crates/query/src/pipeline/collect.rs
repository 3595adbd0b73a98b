//! Stages that look at all their input before they answer: `$sort`, `$count`,
//! `$sample`.

use super::environment::Environment;
use super::memory::exceeded;
use super::source::{Advance, Documents, Interruption, Source};
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
        let mut sorter =
            Sorter::new(pattern, limit).with_memory_limit(environment.sort_memory_bytes_max());
        if let Some(spill) = environment.spill() {
            sorter = sorter.with_spill(spill);
        }
        Self {
            input,
            sorter: Some(sorter),
            sorted: None,
            interruption: Interruption::new(environment),
            current: DocBuf::new(),
        }
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
        match self.sorted.as_mut().and_then(Iterator::next).transpose()? {
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
/// order.
///
/// The n-th document takes the place of a random one of those kept with
/// probability size/n.
pub(super) struct Sampling {
    input: Box<dyn Source>,
    environment: Arc<dyn Environment>,
    interruption: Interruption,
    size: u64,
    seen: u64,
    kept: Vec<DocBuf>,
    memory_bytes: usize,
    output: Option<Documents>,
}

impl Sampling {
    pub(super) fn new(
        input: Box<dyn Source>,
        size: u64,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            environment: environment.clone(),
            interruption: Interruption::new(environment),
            size,
            seen: 0,
            kept: Vec::new(),
            memory_bytes: 0,
            output: None,
        }
    }

    fn keep(&mut self) -> Result<(), Error> {
        self.seen += 1;
        if (self.kept.len() as u64) < self.size {
            let document = self.input.take();
            self.memory_bytes += document.as_bytes().len();
            self.kept.push(document);
        } else {
            let place = self.environment.random_below(self.seen) as usize;
            if let Some(kept) = self.kept.get_mut(place) {
                self.memory_bytes -= kept.as_bytes().len();
                *kept = self.input.take();
                self.memory_bytes += kept.as_bytes().len();
            }
        }
        if self.memory_bytes > self.environment.memory_bytes_max() {
            return Err(exceeded("$sample"));
        }
        Ok(())
    }
}

impl Source for Sampling {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.size == 0 {
            return Ok(Advance::End);
        }
        loop {
            if let Some(output) = &mut self.output {
                return output.advance();
            }
            match self.input.advance()? {
                Advance::Document => {
                    self.keep()?;
                    self.interruption.step()?;
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    for at in (1..self.kept.len()).rev() {
                        let other = self.environment.random_below(at as u64 + 1) as usize;
                        self.kept.swap(at, other);
                    }
                    self.output = Some(Documents::new(std::mem::take(&mut self.kept)));
                }
            }
        }
    }

    fn current(&self) -> Doc<'_> {
        match &self.output {
            Some(output) => output.current(),
            None => Doc::EMPTY,
        }
    }

    fn take(&mut self) -> DocBuf {
        match &mut self.output {
            Some(output) => output.take(),
            None => DocBuf::new(),
        }
    }
}
