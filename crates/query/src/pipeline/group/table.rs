//! Groups in a hash table, and on disk when they are too many.
//!
//! ```text
//!   document ─► key ─► hash ─► table: hash -> first group ─► next ─► …
//!                               │ over the limit
//!                               ▼
//!             (encoded key, {_id, partial states}) ─► Sorter ─► merged by key
//! ```
//!
//! Groups whose hashes collide form a chain through `next`. A document of a
//! known group allocates nothing if its key is a field or a constant.
//!
//! Partials of one group reach the sorter in the order of their documents and
//! keep it, so that order-dependent accumulators stay right.

use super::{Group, Key};
use crate::accumulator::State;
use crate::expression::Evaluated;
use crate::pipeline::environment::Environment;
use crate::pipeline::memory::{exceeded, value_bytes};
use crate::pipeline::source::{Advance, Interruption, Source};
use crate::sort::{SortPattern, Sorted, Sorter};
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::hash::{hash_value, hash_values};
use model::key::{Direction, KeyBuilder};
use model::{Code, Error, order};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Ends a chain.
const NONE: u32 = u32::MAX;

/// Hashes were mixed already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

struct Entry {
    key: Value,
    next: u32,
}

#[derive(Default)]
struct Table {
    heads: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    entries: Vec<Entry>,
    /// As many for each entry as the stage has accumulators.
    states: Vec<State>,
    memory_bytes: usize,
}

/// What a key is before it is known whether its group is new.
enum Candidate<'a> {
    Single(Evaluated<'a>),
    Fields(Vec<Evaluated<'a>>),
}

impl Candidate<'_> {
    fn hash(&self) -> u64 {
        match self {
            Candidate::Single(value) => hash_value(value.as_value().unwrap_or(ValueRef::Null)),
            Candidate::Fields(parts) => hash_values(
                parts
                    .iter()
                    .map(|part| part.as_value().unwrap_or(ValueRef::Undefined)),
            ),
        }
    }

    fn equals(&self, key: &Key, known: ValueRef<'_>, compiled: bool) -> bool {
        match (self, key, known) {
            (Candidate::Fields(parts), Key::Fields(fields), ValueRef::Document(known)) => {
                let mut known = known.iter().peekable();
                fields.iter().zip(parts).all(|((name, _), part)| {
                    let stored = known.next_if(|field| field.key_bytes() == name.as_bytes());
                    let stored = stored.map(|field| field.value());
                    match (stored, part.as_value()) {
                        (Some(stored), Some(value)) => order::compare(stored, value).is_eq(),
                        (None, None) => true,
                        // A missing part equals an undefined one, except in
                        // MongoDB's other engine.
                        (Some(present), None) | (None, Some(present)) => {
                            !compiled && matches!(present, ValueRef::Undefined)
                        }
                    }
                })
            }
            (Candidate::Single(value), _, known) => {
                order::compare(value.as_value().unwrap_or(ValueRef::Null), known).is_eq()
            }
            (Candidate::Fields(_), _, _) => false,
        }
    }

    fn into_key(self, key: &Key) -> Value {
        match (self, key) {
            (Candidate::Fields(parts), Key::Fields(fields)) => {
                let mut writer = DocWriter::new();
                for ((name, _), part) in fields.iter().zip(&parts) {
                    if let Some(value) = part.as_value() {
                        writer.append(name, value);
                    }
                }
                Value::Document(writer.finish())
            }
            (Candidate::Single(value), _) => value.into_value().unwrap_or(Value::Null),
            (Candidate::Fields(_), _) => Value::Null,
        }
    }
}

impl Key {
    fn candidate<'a>(&'a self, doc: Doc<'a>) -> Result<Candidate<'a>, Error> {
        match self {
            Key::Single(expression) | Key::OneField(_, expression) => {
                Ok(Candidate::Single(expression.evaluate_ref(doc)?))
            }
            Key::Fields(fields) => fields
                .iter()
                .map(|(_, expression)| expression.evaluate_ref(doc))
                .collect::<Result<_, Error>>()
                .map(Candidate::Fields),
        }
    }

    fn write(&self, writer: &mut DocWriter, key: ValueRef<'_>) {
        match self {
            Key::OneField(name, _) => {
                writer.begin_document("_id").append(name, key).end();
            }
            Key::Single(_) | Key::Fields(_) => {
                writer.append("_id", key);
            }
        }
    }

    /// The key as accumulators see it: they look only at documents.
    fn as_document(&self, key: ValueRef<'_>) -> DocBuf {
        match (self, key) {
            (Key::OneField(name, _), key) => DocWriter::new().with(name, key).finish(),
            (_, ValueRef::Document(doc)) => doc.to_owned(),
            (_, _) => DocBuf::new(),
        }
    }
}

impl Table {
    fn add(&mut self, group: &Group, doc: Doc<'_>) -> Result<(), Error> {
        let candidate = group.key.candidate(doc)?;
        let hash = candidate.hash();
        let at = match self.find(group, &candidate, hash) {
            Some(at) => at,
            None => self.insert(group, candidate, hash)?,
        };
        let first = at as usize * group.fields.len();
        for (offset, (_, accumulator)) in group.fields.iter().enumerate() {
            let state = &mut self.states[first + offset];
            let before = state.memory_bytes();
            accumulator.add(state, doc)?;
            self.memory_bytes = (self.memory_bytes + state.memory_bytes()).saturating_sub(before);
        }
        Ok(())
    }

    fn find(&self, group: &Group, candidate: &Candidate<'_>, hash: u64) -> Option<u32> {
        let mut at = *self.heads.get(&hash)?;
        while at != NONE {
            let entry = &self.entries[at as usize];
            if candidate.equals(&group.key, entry.key.as_ref(), group.compiled) {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    fn insert(&mut self, group: &Group, candidate: Candidate<'_>, hash: u64) -> Result<u32, Error> {
        let key = candidate.into_key(&group.key);
        let at = self.entries.len() as u32;
        let key_doc = group.key.as_document(key.as_ref());
        for (_, accumulator) in &group.fields {
            let state = accumulator.start(key_doc.as_doc())?;
            self.memory_bytes += state.memory_bytes();
            self.states.push(state);
        }
        // The table itself takes about 16 bytes for a group.
        self.memory_bytes += size_of::<Entry>() + 16 + value_bytes(key.as_ref());
        let next = self.heads.insert(hash, at).unwrap_or(NONE);
        self.entries.push(Entry { key, next });
        Ok(at)
    }

    /// Moves all groups to the sorter as partials.
    fn drain_into(&mut self, group: &Group, sorter: &mut Sorter) -> Result<(), Error> {
        let table = std::mem::take(self);
        let mut states = table.states.into_iter();
        for entry in table.entries {
            let mut encoded = KeyBuilder::new();
            encoded.push(entry.key.as_ref(), Direction::Ascending);
            let mut writer = DocWriter::new().with("_id", &entry.key);
            writer.begin_array("s");
            for _ in &group.fields {
                let state = states.next().ok_or_else(broken)?;
                writer.push(&state.partial());
            }
            writer.end();
            sorter.push_with_key(encoded.finish().0, writer.finish())?;
        }
        Ok(())
    }
}

fn broken() -> Error {
    Error::new(Code::INTERNAL_ERROR, "a group's partial state is malformed")
}

/// A `$group` under way.
pub(in crate::pipeline) struct Grouping {
    input: Box<dyn Source>,
    group: Group,
    environment: Arc<dyn Environment>,
    interruption: Interruption,
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
                let ahead = sorted.next().transpose()?;
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
        let mut writer = DocWriter::new();
        self.group.key.write(&mut writer, key);
        for ((name, _), state) in self.group.fields.iter().zip(states) {
            writer.append(name, &state.finish());
        }
        writer.finish()
    }

    /// The next group from disk: partials with the same key follow each other.
    fn merge_next(
        &self,
        sorted: &mut Sorted,
        ahead: &mut Option<DocBuf>,
    ) -> Result<Option<DocBuf>, Error> {
        let Some(first) = ahead.take() else {
            return Ok(None);
        };
        let key = first.get("_id").ok_or_else(broken)?;
        let key_doc = self.group.key.as_document(key);
        let mut states = self
            .group
            .fields
            .iter()
            .map(|(_, accumulator)| accumulator.start(key_doc.as_doc()))
            .collect::<Result<Vec<_>, Error>>()?;
        merge_partials(&mut states, first.as_doc())?;
        for next in sorted {
            let next = next?;
            let next_key = next.get("_id").ok_or_else(broken)?;
            if order::compare(next_key, key).is_ne() {
                *ahead = Some(next);
                break;
            }
            merge_partials(&mut states, next.as_doc())?;
        }
        Ok(Some(self.write(key, states.into_iter())))
    }
}

fn merge_partials(states: &mut [State], partial: Doc<'_>) -> Result<(), Error> {
    let parts = partial.get_array("s").ok_or_else(broken)?;
    for (state, part) in states.iter_mut().zip(parts.iter()) {
        state.merge(part)?;
    }
    Ok(())
}

impl Source for Grouping {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.output.is_none() {
            let memory_bytes_max = self.environment.memory_bytes_max();
            loop {
                match self.input.advance()? {
                    Advance::Document => {}
                    Advance::Paused => return Ok(Advance::Paused),
                    Advance::End => break,
                }
                self.table
                    .add(&self.group, self.input.current())
                    .map_err(|error| self.group.error(error))?;
                if self.table.memory_bytes > memory_bytes_max {
                    self.spill()?;
                }
                self.interruption.step()?;
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
