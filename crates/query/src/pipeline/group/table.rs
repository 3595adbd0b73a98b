//! Groups in a hash table.
//!
//! ```text
//!   document ─► key ─► hash ─► table: hash -> first group ─► next ─► …
//! ```
//!
//! Groups whose hashes collide form a chain through `next`. A document of a
//! known group allocates nothing if its key is a field or a constant.
//!
//! What comes in is a document of the collection ([`Table::add`]) or what another
//! table has gathered for a group ([`Table::merge`]); what goes out are the groups,
//! or the same partials.

mod pieces;

pub(super) use pieces::{is_large, next as next_partial};

use super::super::state_limit::StateLimit;
use super::{Group, Key};
use crate::accumulator::State;
use crate::expression::Evaluated;
use crate::sort::Sorter;
use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::hash::{hash_value, hash_values};
use model::key::{Direction, KeyBuilder};
use model::{Code, Error, order};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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

pub(super) struct Entry {
    pub(super) key: Value,
    next: u32,
}

#[derive(Default)]
pub(super) struct Table {
    heads: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    pub(super) entries: Vec<Entry>,
    /// As many for each entry as the stage has accumulators.
    pub(super) states: Vec<State>,
    pub(super) memory_bytes: usize,
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

    /// What a group's key was before it became part of a partial.
    fn candidate_of<'a>(&self, key: ValueRef<'a>) -> Option<Candidate<'a>> {
        let Key::Fields(fields) = self else {
            return Some(Candidate::Single(Evaluated::Borrowed(key)));
        };
        let ValueRef::Document(key) = key else {
            return None;
        };
        let mut parts = key.iter().peekable();
        let candidate = fields
            .iter()
            .map(
                |(name, _)| match parts.next_if(|part| part.key_bytes() == name.as_bytes()) {
                    Some(part) => Evaluated::Borrowed(part.value()),
                    None => Evaluated::Missing,
                },
            )
            .collect();
        parts
            .next()
            .is_none()
            .then_some(Candidate::Fields(candidate))
    }

    pub(super) fn write(&self, writer: &mut DocWriter, key: ValueRef<'_>) {
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
    pub(super) fn as_document(&self, key: ValueRef<'_>) -> DocBuf {
        match (self, key) {
            (Key::OneField(name, _), key) => DocWriter::new().with(name, key).finish(),
            (_, ValueRef::Document(doc)) => doc.to_owned(),
            (_, _) => DocBuf::new(),
        }
    }
}

impl Table {
    /// Adds a document to its group.
    pub(super) fn add(
        &mut self,
        group: &Group,
        limit: StateLimit,
        doc: Doc<'_>,
    ) -> Result<(), Error> {
        let candidate = group.key.candidate(doc)?;
        let first = self.states_of(group, candidate)?;
        for (offset, field) in group.fields.iter().enumerate() {
            let state = &mut self.states[first + offset];
            let before = state.memory_bytes();
            field.1.add(state, doc)?;
            limit.check(field, state)?;
            self.memory_bytes = (self.memory_bytes + state.memory_bytes()).saturating_sub(before);
        }
        Ok(())
    }

    /// Adds what was gathered elsewhere for a group, see [`write_partial`].
    pub(super) fn merge(
        &mut self,
        group: &Group,
        limit: StateLimit,
        partial: Doc<'_>,
    ) -> Result<(), Error> {
        let (key, parts) = read_partial(group, partial)?;
        let candidate = group.key.candidate_of(key).ok_or_else(malformed)?;
        let first = self.states_of(group, candidate)?;
        let states = self.states[first..].iter_mut();
        for ((field, state), part) in group.fields.iter().zip(states).zip(parts.iter()) {
            let before = state.memory_bytes();
            state.merge(part)?;
            limit.check(field, state)?;
            self.memory_bytes = (self.memory_bytes + state.memory_bytes()).saturating_sub(before);
        }
        Ok(())
    }

    /// Where the states of a group begin, which may be a new one.
    fn states_of(&mut self, group: &Group, candidate: Candidate<'_>) -> Result<usize, Error> {
        let hash = candidate.hash();
        let at = match self.find(group, &candidate, hash) {
            Some(at) => at,
            None => self.insert(group, candidate, hash)?,
        };
        Ok(at as usize * group.fields.len())
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
        self.memory_bytes += size_of::<Entry>() + 16 + key.as_ref().heap_bytes();
        let next = self.heads.insert(hash, at).unwrap_or(NONE);
        self.entries.push(Entry { key, next });
        Ok(at)
    }

    /// Moves all groups to the sorter as partials.
    pub(super) fn drain_into(&mut self, group: &Group, sorter: &mut Sorter) -> Result<(), Error> {
        let table = std::mem::take(self);
        let mut states = table.states.into_iter();
        for entry in table.entries {
            let mut encoded = KeyBuilder::new();
            encoded.push(entry.key.as_ref(), Direction::Ascending);
            let states = states.by_ref().take(group.fields.len());
            let partial = write_partial(entry.key.as_ref(), states);
            pieces::push(sorter, encoded.finish().0, partial)?;
        }
        Ok(())
    }
}

/// A group as it is spilled or sent: `{_id: key, s: [states]}`. The key is what
/// groups are told apart by, the states are in the order of the accumulators.
pub(super) fn write_partial(key: ValueRef<'_>, states: impl Iterator<Item = State>) -> DocBuf {
    let mut writer = DocWriter::new().with("_id", key);
    writer.begin_array("s");
    for state in states {
        writer.push(&state.partial());
    }
    writer.end();
    writer.finish()
}

/// The key and as many states as the group has accumulators.
pub(super) fn read_partial<'a>(
    group: &Group,
    partial: Doc<'a>,
) -> Result<(ValueRef<'a>, Array<'a>), Error> {
    match (partial.get("_id"), partial.get_array("s")) {
        (Some(key), Some(states)) if states.count() == group.fields.len() => Ok((key, states)),
        _ => Err(malformed()),
    }
}

fn malformed() -> Error {
    Error::new(Code::INTERNAL_ERROR, "a group's partial state is malformed")
}
