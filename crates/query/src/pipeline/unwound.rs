//! `$lookup` with the `$unwind` of its field behind it, run as one stage: a document
//! for each match.
//!
//! The array is never made, so that one document may have more matches than a
//! document can hold, and whoever stops early has not read them all.
//!
//! What is the same for all documents is kept while it is read for the first one; more
//! than [`MEMORY_BYTES_MAX`] of it is read again for each.

use super::environment::Environment;
use super::lookup::Lookup;
use super::memory::MEMORY_BYTES_MAX;
use super::nested_field::with_field;
use super::source::{Advance, Interruption, Source};
use super::stage::{Stage, Step};
use super::unwind::Unwind;
use model::Error;
use model::bson::{ArrayBuf, Doc, DocBuf, DocWriter, ValueRef};
use std::sync::Arc;

/// The `$unwind` that a `$lookup` is run with: the one right behind it, of its field.
pub(super) fn unwinding<'s>(lookup: &Lookup, behind: Option<&'s Step>) -> Option<&'s Unwind> {
    match &behind?.stage {
        Stage::Unwind(unwind) if unwind.path() == lookup.output() => Some(unwind),
        _ => None,
    }
}

/// The two stages as explain shows them, if `first` is such a `$lookup`.
pub fn shown_unwound(first: &Step, behind: Option<&Step>) -> Option<DocBuf> {
    let Stage::Lookup(lookup) = &first.stage else {
        return None;
    };
    let unwind = unwinding(lookup, behind)?;
    let written = first.spec.as_doc().get_doc("$lookup")?;
    let mut out = DocWriter::new();
    out.begin_document("$lookup");
    let from = written.get("from");
    out.append("from", from.unwrap_or(ValueRef::String("$cmd.aggregate")));
    for name in ["as", "localField", "foreignField"] {
        if let Some(value) = written.get(name) {
            out.append(name, value);
        }
    }
    if let Some(stages) = written.get("pipeline") {
        let variables = written.get("let");
        out.append("let", variables.unwrap_or(ValueRef::Document(Doc::EMPTY)));
        out.append("pipeline", stages);
    }
    out.begin_document("unwinding");
    unwind.write_options(&mut out);
    out.end();
    out.end();
    Some(out.finish())
}

/// Where the matches of the current document come from.
enum Matches {
    /// There is no current document.
    Nothing,
    Read(Box<dyn Source>),
    /// The next one of those that are the same for all documents.
    Kept(usize),
}

/// The matches that are the same for all documents.
enum Kept {
    /// They are not the same, or too many.
    Nothing,
    Gathering {
        documents: Vec<DocBuf>,
        bytes: usize,
    },
    All(Vec<DocBuf>),
}

impl Kept {
    fn gather(&mut self, document: Doc<'_>) {
        let Kept::Gathering { documents, bytes } = self else {
            return;
        };
        *bytes += document.len();
        if *bytes > MEMORY_BYTES_MAX {
            *self = Kept::Nothing;
            return;
        }
        documents.push(document.to_owned());
    }

    fn gathered_all(&mut self) {
        if let Kept::Gathering { documents, .. } = self {
            *self = Kept::All(std::mem::take(documents));
        }
    }
}

pub(super) struct UnwoundLookup {
    input: Box<dyn Source>,
    lookup: Lookup,
    unwind: Unwind,
    environment: Arc<dyn Environment>,
    interruption: Interruption,
    matches: Matches,
    kept: Kept,
    next_index: i64,
    current: DocBuf,
}

impl UnwoundLookup {
    pub(super) fn new(
        input: Box<dyn Source>,
        lookup: Lookup,
        unwind: Unwind,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        let kept = match lookup.runs_once() {
            true => Kept::Gathering {
                documents: Vec::new(),
                bytes: 0,
            },
            false => Kept::Nothing,
        };
        Self {
            input,
            lookup,
            unwind,
            environment: environment.clone(),
            interruption: Interruption::new(environment),
            matches: Matches::Nothing,
            kept,
            next_index: 0,
            current: DocBuf::new(),
        }
    }

    /// Makes the next document of the current input's, if there is one.
    fn next_match(&mut self) -> Result<Advance, Error> {
        let found = match (&mut self.matches, &mut self.kept) {
            (Matches::Nothing, _) => return Ok(Advance::End),
            (Matches::Read(source), kept) => match source.advance()? {
                Advance::Document => {
                    kept.gather(source.current());
                    source.current()
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {
                    kept.gathered_all();
                    return Ok(Advance::End);
                }
            },
            (Matches::Kept(next), Kept::All(documents)) => match documents.get(*next) {
                Some(document) => {
                    *next += 1;
                    document.as_doc()
                }
                None => return Ok(Advance::End),
            },
            (Matches::Kept(_), Kept::Nothing | Kept::Gathering { .. }) => {
                unreachable!("kept matches are used only when all of them are kept")
            }
        };
        let path = self.lookup.output().names();
        let document = with_field(self.input.current(), path, Some(ValueRef::Document(found)));
        let index = ValueRef::Int64(self.next_index);
        self.current = self.unwind.with_index(document, index);
        self.next_index += 1;
        Ok(Advance::Document)
    }

    /// What a document without a match becomes: as if it had got an empty array that
    /// was taken away again, which leaves the documents around it.
    fn without_match(&self) -> Option<DocBuf> {
        if !self.unwind.preserves() {
            return None;
        }
        let path = self.lookup.output().names();
        let joined = self.lookup.joined(self.input.current(), &ArrayBuf::new());
        let document = with_field(joined.as_doc(), path, None);
        Some(self.unwind.with_index(document, ValueRef::Null))
    }
}

impl Source for UnwoundLookup {
    fn advance(&mut self) -> Result<Advance, Error> {
        loop {
            match self.next_match()? {
                Advance::Document => {
                    self.interruption.step()?;
                    return Ok(Advance::Document);
                }
                Advance::Paused => return Ok(Advance::Paused),
                Advance::End => {}
            }
            let was_open = !matches!(self.matches, Matches::Nothing);
            self.matches = Matches::Nothing;
            if was_open
                && self.next_index == 0
                && let Some(document) = self.without_match()
            {
                self.current = document;
                return Ok(Advance::Document);
            }
            match self.input.advance()? {
                Advance::Document => {}
                other => return Ok(other),
            }
            self.environment.check()?;
            self.next_index = 0;
            self.matches = match &self.kept {
                Kept::All(_) => Matches::Kept(0),
                Kept::Nothing | Kept::Gathering { .. } => {
                    Matches::Read(self.lookup.open(self.input.current(), &self.environment)?)
                }
            };
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
