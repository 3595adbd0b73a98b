//! The pull model: a chain of sources, each asking the one before it.
//!
//! A source is advanced and then lends its current document until it is
//! advanced again, so that a document passes through `$match`, `$limit` and
//! `$skip` without being copied. Who keeps it takes it: [`Source::take`] copies
//! only where the document is borrowed from a scan.
//!
//! A source may also say [`Advance::Paused`]: nothing now, more later. Only the
//! branches of `$facet` ever see it; every stage passes it on and keeps what it
//! has collected so far.

use super::environment::Environment;
use super::project::Projector;
use crate::expression::Expression;
use crate::filter::Filter;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What came of asking for the next document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advance {
    /// [`Source::current`] is the next document.
    Document,
    /// None for now.
    Paused,
    /// None ever again.
    End,
}

/// Who is shown documents.
pub type Visitor<'v> = &'v mut dyn FnMut(Doc<'_>) -> Result<ControlFlow<()>, Error>;

/// A sequence of documents.
pub trait Source: Send {
    fn advance(&mut self) -> Result<Advance, Error>;

    /// The document that the last call of `advance` arrived at.
    fn current(&self) -> Doc<'_>;

    /// Shows documents one after the other until the visitor breaks off or there is none:
    /// what `advance` and `current` do, for sources that can do better than to stop at
    /// each. [`Advance::Document`] says that the visitor broke off.
    fn visit(&mut self, visitor: Visitor<'_>) -> Result<Advance, Error> {
        loop {
            match self.advance()? {
                Advance::Document if visitor(self.current())?.is_continue() => {}
                other => return Ok(other),
            }
        }
    }

    /// The current document to keep; `current` is not asked for afterwards.
    fn take(&mut self) -> DocBuf {
        self.current().to_owned()
    }
}

/// Documents that are there already.
pub struct Documents {
    rest: std::vec::IntoIter<DocBuf>,
    current: DocBuf,
}

impl Documents {
    pub fn new(documents: Vec<DocBuf>) -> Self {
        Self {
            rest: documents.into_iter(),
            current: DocBuf::new(),
        }
    }
}

impl Source for Documents {
    fn advance(&mut self) -> Result<Advance, Error> {
        match self.rest.next() {
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

/// What a stage gives, counted.
pub(super) struct Counted {
    pub(super) input: Box<dyn Source>,
    pub(super) given: Arc<AtomicU64>,
}

impl Source for Counted {
    fn advance(&mut self) -> Result<Advance, Error> {
        let advance = self.input.advance()?;
        if advance == Advance::Document {
            self.given.fetch_add(1, Ordering::Relaxed);
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.input.current()
    }

    fn take(&mut self) -> DocBuf {
        self.input.take()
    }
}

/// Ends a pipeline that was interrupted, asked every so many documents.
pub(super) struct Interruption {
    environment: Arc<dyn Environment>,
    steps: u32,
}

/// Documents between two looks at the interruption.
const STEPS: u32 = 128;

impl Interruption {
    pub(super) fn new(environment: &Arc<dyn Environment>) -> Self {
        Self {
            environment: environment.clone(),
            steps: 0,
        }
    }

    pub(super) fn step(&mut self) -> Result<(), Error> {
        self.steps += 1;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        self.environment.check()
    }
}

pub(super) struct Matching {
    pub(super) input: Box<dyn Source>,
    pub(super) filter: Filter,
    pub(super) interruption: Interruption,
}

impl Source for Matching {
    fn advance(&mut self) -> Result<Advance, Error> {
        loop {
            match self.input.advance()? {
                Advance::Document if !self.filter.matches(self.input.current())? => {
                    self.interruption.step()?;
                }
                other => return Ok(other),
            }
        }
    }

    fn visit(&mut self, visitor: Visitor<'_>) -> Result<Advance, Error> {
        let (filter, interruption) = (&self.filter, &mut self.interruption);
        self.input.visit(&mut |document| {
            if filter.matches(document)? {
                return visitor(document);
            }
            interruption.step()?;
            Ok(ControlFlow::Continue(()))
        })
    }

    fn current(&self) -> Doc<'_> {
        self.input.current()
    }

    fn take(&mut self) -> DocBuf {
        self.input.take()
    }
}

pub(super) struct Limited {
    pub(super) input: Box<dyn Source>,
    pub(super) remaining: u64,
}

impl Source for Limited {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.remaining == 0 {
            return Ok(Advance::End);
        }
        let advance = self.input.advance()?;
        if advance == Advance::Document {
            self.remaining -= 1;
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.input.current()
    }

    fn take(&mut self) -> DocBuf {
        self.input.take()
    }
}

pub(super) struct Skipping {
    pub(super) input: Box<dyn Source>,
    pub(super) remaining: u64,
    pub(super) interruption: Interruption,
}

impl Source for Skipping {
    fn advance(&mut self) -> Result<Advance, Error> {
        while self.remaining > 0 {
            match self.input.advance()? {
                Advance::Document => self.remaining -= 1,
                other => return Ok(other),
            }
            self.interruption.step()?;
        }
        self.input.advance()
    }

    fn current(&self) -> Doc<'_> {
        self.input.current()
    }

    fn take(&mut self) -> DocBuf {
        self.input.take()
    }
}

/// `$project`, `$addFields` and `$unset`.
pub(super) struct Projecting {
    pub(super) input: Box<dyn Source>,
    pub(super) projector: Projector,
    pub(super) current: DocBuf,
}

impl Source for Projecting {
    fn advance(&mut self) -> Result<Advance, Error> {
        let advance = self.input.advance()?;
        if advance == Advance::Document {
            let mut buffer = std::mem::take(&mut self.current).into_bytes();
            buffer.clear();
            let mut writer = DocWriter::with_buffer(buffer);
            self.projector.write(self.input.current(), &mut writer)?;
            self.current = writer.finish();
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

/// `$replaceRoot` and `$replaceWith`.
pub(super) struct Replacing {
    pub(super) input: Box<dyn Source>,
    pub(super) replacement: Replacement,
    pub(super) current: DocBuf,
}

impl Source for Replacing {
    fn advance(&mut self) -> Result<Advance, Error> {
        let advance = self.input.advance()?;
        if advance == Advance::Document {
            self.current = self.replacement.apply(self.input.current())?;
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

/// The expression whose value takes the place of the document.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub(super) expression: Expression,
    /// What messages call it.
    pub(super) name: &'static str,
}

impl Replacement {
    pub(super) fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        let value = self.expression.evaluate_ref(doc)?;
        match value.as_value() {
            Some(ValueRef::Document(root)) => Ok(root.to_owned()),
            Some(other) => Err(self.not_an_object(&format!("{other:?}"), other.kind().name())),
            None => Err(self.not_an_object("MISSING", "missing")),
        }
    }

    fn not_an_object(&self, shown: &str, kind: &str) -> Error {
        Error::location(
            40228,
            format!(
                "{} must evaluate to an object, but resulting value was: {shown}. Type of \
                 resulting value: '{kind}'",
                self.name
            ),
        )
    }
}
