//! Computed projections: `$project`, `$addFields`, `$unset`, and the plain part
//! of a find projection.
//!
//! A specification becomes a tree of names. A document is walked once, in its
//! own order; what the tree says about a field is done at the field's place,
//! and what was not met on the way is added at the end, in the order of the
//! specification:
//!
//! ```text
//!                     listed                 not listed     not met
//!   inclusion         kept or computed (*)   left out       computed ones added
//!   exclusion         left out               kept
//!   addition          replaced in place      kept           added
//! ```
//! (*) An inclusion puts a computed field at the end, a field *inside* of which
//! something is computed at its place.
//!
//! Arrays are walked through, at any depth. Where a nested tree meets a value
//! without fields, an inclusion leaves it out and an exclusion keeps it; if the
//! tree computes something, the value becomes a document of just that.
//!
//! Expressions see the whole document as it came in.

mod parse;

pub use parse::{parse_add_fields, parse_project, parse_unset};

use crate::expression::Expression;
use model::Error;
use model::bson::{Array, Doc, DocBuf, DocWriter, Element, ValueRef};

/// What is done to a document.
#[derive(Clone, Debug)]
pub struct Projector {
    mode: Mode,
    fields: Fields,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Only what is listed.
    Inclusion,
    /// All but what is listed.
    Exclusion,
    /// All, and what is listed besides.
    Addition,
}

/// One level of the tree.
#[derive(Clone, Debug, Default)]
struct Fields {
    entries: Vec<(Box<str>, Entry)>,
    /// Whether anything in here is computed.
    computes: bool,
}

#[derive(Clone, Debug)]
enum Entry {
    /// Included or excluded, by the mode.
    Listed,
    Computed(Expression),
    Nested(Fields),
}

impl Entry {
    fn computes(&self) -> bool {
        match self {
            Entry::Listed => false,
            Entry::Computed(_) => true,
            Entry::Nested(fields) => fields.computes,
        }
    }
}

impl Projector {
    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len()));
        self.write(doc, &mut writer)?;
        Ok(writer.finish())
    }

    /// Writes the result into the open document of `writer`.
    pub fn write(&self, doc: Doc<'_>, writer: &mut DocWriter) -> Result<(), Error> {
        Projection {
            mode: self.mode,
            root: doc,
            writer,
        }
        .document(&self.fields, doc)
    }

    /// Whether fields under this top-level name come out as they went in.
    pub fn keeps(&self, name: &str) -> bool {
        let entry = self
            .fields
            .entries
            .iter()
            .find(|(known, _)| **known == *name);
        match (self.mode, entry) {
            (Mode::Inclusion, Some((_, Entry::Listed))) => true,
            (Mode::Inclusion, _) => false,
            (Mode::Exclusion | Mode::Addition, entry) => entry.is_none(),
        }
    }

    /// The top-level fields that an inclusion without expressions reads.
    pub fn only_fields(&self) -> Option<Vec<&str>> {
        (self.mode == Mode::Inclusion && !self.fields.computes).then(|| {
            self.fields
                .entries
                .iter()
                .map(|(name, _)| &**name)
                .collect()
        })
    }

    /// Top-level names that are plain copies of another top-level field.
    pub fn renames(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields
            .entries
            .iter()
            .filter_map(|(name, entry)| match entry {
                Entry::Computed(expression) => match expression.as_field_path()?.names() {
                    [only] => Some((&**name, &**only)),
                    _ => None,
                },
                Entry::Listed | Entry::Nested(_) => None,
            })
    }
}

/// One document on its way out.
struct Projection<'a, 'w> {
    mode: Mode,
    root: Doc<'a>,
    writer: &'w mut DocWriter,
}

impl Projection<'_, '_> {
    fn document(&mut self, fields: &Fields, doc: Doc<'_>) -> Result<(), Error> {
        let mut met = Met::new(fields);
        for element in doc.iter() {
            let listed = fields
                .entries
                .iter()
                .position(|(name, _)| name.as_bytes() == element.key_bytes());
            let Some(at) = listed else {
                if self.mode != Mode::Inclusion {
                    self.writer.append_element(&element);
                }
                continue;
            };
            let (name, entry) = &fields.entries[at];
            match entry {
                Entry::Listed => {
                    if self.mode == Mode::Inclusion {
                        self.writer.append_element(&element);
                    }
                }
                Entry::Computed(expression) => {
                    if self.mode == Mode::Addition && met.first_time(at) {
                        self.compute(name, expression)?;
                    }
                }
                Entry::Nested(nested) => {
                    if met.first_time(at) {
                        self.field(name, nested, &element)?;
                    }
                }
            }
        }
        if !fields.computes {
            return Ok(());
        }
        for (at, (name, entry)) in fields.entries.iter().enumerate() {
            if met.contains(at) {
                continue;
            }
            match entry {
                Entry::Listed => {}
                Entry::Computed(expression) => self.compute(name, expression)?,
                Entry::Nested(nested) if nested.computes => {
                    self.writer.begin_document(name);
                    self.document(nested, Doc::EMPTY)?;
                    self.writer.end();
                }
                Entry::Nested(_) => {}
            }
        }
        Ok(())
    }

    fn compute(&mut self, name: &str, expression: &Expression) -> Result<(), Error> {
        if let Some(value) = expression.evaluate_ref(self.root)?.as_value() {
            self.writer.append(name, value);
        }
        Ok(())
    }

    /// A field with a tree of its own.
    fn field(&mut self, name: &str, nested: &Fields, element: &Element<'_>) -> Result<(), Error> {
        match element.value() {
            ValueRef::Document(doc) => {
                self.writer.begin_document(name);
                self.document(nested, doc)?;
                self.writer.end();
            }
            ValueRef::Array(array) => {
                self.writer.begin_array(name);
                self.array(nested, array)?;
                self.writer.end();
            }
            _ if nested.computes => {
                self.writer.begin_document(name);
                self.document(nested, Doc::EMPTY)?;
                self.writer.end();
            }
            _ if self.mode != Mode::Inclusion => {
                self.writer.append_element(element);
            }
            _ => {}
        }
        Ok(())
    }

    fn array(&mut self, nested: &Fields, array: Array<'_>) -> Result<(), Error> {
        for value in array.iter() {
            match value {
                ValueRef::Document(doc) => {
                    self.writer.push_document();
                    self.document(nested, doc)?;
                    self.writer.end();
                }
                ValueRef::Array(inner) => {
                    self.writer.push_array();
                    self.array(nested, inner)?;
                    self.writer.end();
                }
                _ if nested.computes => {
                    self.writer.push_document();
                    self.document(nested, Doc::EMPTY)?;
                    self.writer.end();
                }
                other if self.mode != Mode::Inclusion => {
                    self.writer.push(other);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Which entries were met in the document; nothing is kept where nothing is
/// computed, because then nothing is added at the end.
enum Met {
    Few(u64),
    Many(Vec<bool>),
}

impl Met {
    fn new(fields: &Fields) -> Met {
        if fields.entries.len() <= 64 {
            Met::Few(0)
        } else {
            Met::Many(vec![false; fields.entries.len()])
        }
    }

    fn contains(&self, at: usize) -> bool {
        match self {
            Met::Few(bits) => bits >> at & 1 == 1,
            Met::Many(flags) => flags[at],
        }
    }

    /// Notes that an entry was met, and says whether it was not before.
    fn first_time(&mut self, at: usize) -> bool {
        let first = !self.contains(at);
        match self {
            Met::Few(bits) => *bits |= 1 << at,
            Met::Many(flags) => flags[at] = true,
        }
        first
    }
}
