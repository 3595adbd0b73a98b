//! `$facet`: several pipelines over the same input, in one document.
//!
//! The input is read in portions. Each branch gets the portion and runs until it
//! has used it up ([`Advance::Paused`]), then the next portion is read, so that
//! neither the input nor the branches have to be held in memory as a whole;
//! only what the branches return is.

use super::environment::Environment;
use super::memory::{MEMORY_BYTES_MAX, too_large};
use super::parse::{Place, Scope, parse};
use super::run::chain;
use super::source::{Advance, Source};
use super::stage::Step;
use crate::expression::FieldPath;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use parking::Portion;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Facet {
    branches: Vec<(Box<str>, Vec<Step>)>,
}

impl Facet {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let branches = match spec {
            ValueRef::Document(doc) if !doc.is_empty() => doc,
            _ => {
                return Err(Error::location(
                    40169,
                    format!(
                        "the $facet specification must be a non-empty object, but found: $facet: \
                         {spec:?}"
                    ),
                ));
            }
        };
        let mut parsed = Vec::new();
        for element in branches.iter() {
            let name = element.key();
            check_name(name)?;
            let ValueRef::Array(stages) = element.value() else {
                return Err(Error::location(
                    40170,
                    format!(
                        "arguments to $facet must be arrays, {name} is type {}",
                        element.kind().name()
                    ),
                ));
            };
            for stage in stages.elements() {
                let is_stage = matches!(stage.value(), ValueRef::Document(doc) if !doc.is_empty());
                if !is_stage {
                    return Err(Error::location(
                        40171,
                        format!(
                            "elements of arrays in $facet spec must be non-empty objects, {name} \
                             argument contained an element of type {}: {}: {:?}",
                            stage.kind().name(),
                            stage.key(),
                            stage.value()
                        ),
                    ));
                }
            }
            let inside = scope.inside(Place::Facet, scope.collection, scope.context)?;
            parsed.push((name.into(), parse(stages, &inside)?));
        }
        Ok(Self { branches: parsed })
    }
}

/// The name of an output field: a path of one name.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::location(
            15998,
            "FieldPath field names may not be empty strings.",
        ));
    }
    if name.contains('.') && !name.starts_with('$') {
        return Err(Error::location(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    FieldPath::parse(name).map(|_| ())
}

/// Documents of one portion, at most.
const PORTION_DOCUMENTS: usize = 1000;
/// Bytes of one portion, about.
const PORTION_BYTES: usize = 4 << 20;

struct Branch {
    name: Box<str>,
    portion: Portion,
    source: Box<dyn Source>,
    found: Vec<DocBuf>,
    ended: bool,
}

/// A `$facet` under way.
pub(super) struct Faceting {
    input: Box<dyn Source>,
    branches: Vec<Branch>,
    memory_bytes: usize,
    done: bool,
    current: DocBuf,
}

impl Faceting {
    pub(super) fn new(
        input: Box<dyn Source>,
        facet: Facet,
        environment: &Arc<dyn Environment>,
    ) -> Result<Self, Error> {
        let branches = facet
            .branches
            .into_iter()
            .map(|(name, steps)| {
                let portion = Portion::default();
                let feed = Box::new(portion.feed());
                Ok(Branch {
                    name,
                    source: chain(feed, steps, environment)?,
                    portion,
                    found: Vec::new(),
                    ended: false,
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            input,
            branches,
            memory_bytes: 0,
            done: false,
            current: DocBuf::new(),
        })
    }

    /// Runs all branches until they have used up what they were given.
    fn run(&mut self) -> Result<(), Error> {
        for branch in self.branches.iter_mut().filter(|branch| !branch.ended) {
            loop {
                match branch.source.advance()? {
                    Advance::Document => {
                        let document = branch.source.take();
                        self.memory_bytes += document.as_bytes().len();
                        branch.found.push(document);
                    }
                    Advance::Paused => break,
                    Advance::End => {
                        branch.ended = true;
                        break;
                    }
                }
                if self.memory_bytes > MEMORY_BYTES_MAX {
                    return Err(too_large(4031700, "document constructed by $facet"));
                }
            }
        }
        Ok(())
    }

    fn read_portion(&mut self) -> Result<(Vec<DocBuf>, Advance), Error> {
        let mut portion = Vec::new();
        let mut bytes = 0;
        while portion.len() < PORTION_DOCUMENTS && bytes < PORTION_BYTES {
            match self.input.advance()? {
                Advance::Document => {
                    let document = self.input.take();
                    bytes += document.as_bytes().len();
                    portion.push(document);
                }
                other => return Ok((portion, other)),
            }
        }
        Ok((portion, Advance::Document))
    }
}

impl Source for Faceting {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.done {
            return Ok(Advance::End);
        }
        loop {
            let (documents, advance) = self.read_portion()?;
            let documents: Arc<[DocBuf]> = documents.into();
            let ended = advance == Advance::End;
            for branch in &self.branches {
                branch.portion.put(documents.clone(), ended);
            }
            self.run()?;
            if ended || self.branches.iter().all(|branch| branch.ended) {
                break;
            }
            if advance == Advance::Paused {
                return Ok(Advance::Paused);
            }
        }
        self.done = true;
        let mut writer = DocWriter::new();
        for branch in &self.branches {
            writer.begin_array(&branch.name);
            for document in &branch.found {
                writer.push(document);
            }
            writer.end();
        }
        self.current = writer.finish();
        Ok(Advance::Document)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

/// The portion that a branch works on, shared between it and the stage.
mod parking {
    use crate::pipeline::source::{Advance, Source};
    use model::Error;
    use model::bson::{Doc, DocBuf};
    use std::sync::{Arc, Mutex, PoisonError};

    #[derive(Default)]
    struct Shared {
        documents: Option<Arc<[DocBuf]>>,
        ended: bool,
    }

    #[derive(Default)]
    pub(super) struct Portion(Arc<Mutex<Shared>>);

    impl Portion {
        pub(super) fn put(&self, documents: Arc<[DocBuf]>, ended: bool) {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shared.documents = Some(documents);
            shared.ended = ended;
        }

        pub(super) fn feed(&self) -> Feed {
            Feed {
                shared: self.0.clone(),
                documents: Arc::new([]),
                next: 0,
            }
        }
    }

    /// The input of a branch.
    pub(super) struct Feed {
        shared: Arc<Mutex<Shared>>,
        documents: Arc<[DocBuf]>,
        next: usize,
    }

    impl Source for Feed {
        fn advance(&mut self) -> Result<Advance, Error> {
            while self.next >= self.documents.len() {
                let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                match shared.documents.take() {
                    Some(documents) => {
                        self.documents = documents;
                        self.next = 0;
                    }
                    None if shared.ended => return Ok(Advance::End),
                    None => return Ok(Advance::Paused),
                }
            }
            self.next += 1;
            Ok(Advance::Document)
        }

        fn current(&self) -> Doc<'_> {
            match self
                .next
                .checked_sub(1)
                .and_then(|at| self.documents.get(at))
            {
                Some(document) => document.as_doc(),
                None => Doc::EMPTY,
            }
        }
    }
}
