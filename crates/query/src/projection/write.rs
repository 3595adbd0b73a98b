//! Writes a document as a projection shows it, in one walk.
//!
//! Through arrays: the elements that are documents are projected each, arrays
//! in arrays are entered too. Other elements have no fields: they are dropped
//! when including, stay when keeping, and become documents where a field is
//! computed in them.
//!
//! `$slice` and the positional operator go through one level of arrays only,
//! and the positional one stops at the first array it meets.

use super::tree::{Branch, Entry, Mode};
use crate::filter::Filter;
use model::Error;
use model::bson::{Array, Doc, DocWriter, Element, Value, ValueRef};

/// What remains of the positional path, and the element that matched.
#[derive(Clone, Copy)]
pub(super) struct Position<'p> {
    pub(super) path: &'p [Box<str>],
    pub(super) index: Option<u32>,
}

impl<'p> Position<'p> {
    /// The path behind a field, if it leads through it.
    fn behind(self, name: &[u8]) -> Option<Position<'p>> {
        let (first, rest) = self.path.split_first()?;
        (first.as_bytes() == name).then_some(Position { path: rest, ..self })
    }

    fn element<'a>(self, array: Array<'a>) -> Result<ValueRef<'a>, Error> {
        let Some(index) = self.index else {
            return Err(Error::location(
                51246,
                "positional operator '.$' couldn't find a matching element in the array",
            ));
        };
        array.get(index as usize).ok_or_else(mismatch)
    }
}

fn mismatch() -> Error {
    Error::location(51247, "positional operator '.$' element mismatch")
}

/// One document on its way.
pub(super) struct Walk<'a> {
    mode: Mode,
    root: Doc<'a>,
    late: &'a [Option<Value>],
    /// How many arrays directly inside arrays were entered.
    nested_arrays: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn new(mode: Mode, root: Doc<'a>, late: &'a [Option<Value>]) -> Self {
        Self {
            mode,
            root,
            late,
            nested_arrays: 0,
        }
    }

    /// Writes the fields of one document.
    pub(super) fn fields(
        &mut self,
        branch: &Branch,
        doc: Doc<'_>,
        position: Option<Position<'_>>,
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        let entries = branch.entries();
        // A bit per name that was not met yet: when including, the walk ends
        // with the last of them.
        let mut pending = match self.mode {
            Mode::Include if entries.len() < 64 => (1u64 << entries.len()) - 1,
            Mode::Include | Mode::Keep => u64::MAX,
        };
        for element in doc.iter() {
            match branch.position(element.key_bytes()) {
                None if self.mode == Mode::Keep => {
                    out.append_element(&element);
                }
                None => {}
                Some(at) => {
                    self.entry(&entries[at].1, &element, position, out)?;
                    if at < 64 {
                        pending &= !(1 << at);
                    }
                    if pending == 0 {
                        break;
                    }
                }
            }
        }
        if branch.computes() {
            self.computed(branch, Some(doc), out)?;
        }
        Ok(())
    }

    /// A field that the document has and the tree names.
    fn entry(
        &mut self,
        entry: &Entry,
        element: &Element<'_>,
        position: Option<Position<'_>>,
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        let inner = position.and_then(|position| position.behind(element.key_bytes()));
        match entry {
            Entry::Named if self.mode == Mode::Keep => {}
            Entry::Named => {
                out.append_element(element);
            }
            Entry::Kept => match (inner, element.value()) {
                (Some(position), ValueRef::Array(array)) => {
                    let shown = position.element(array)?;
                    out.begin_array(element.key()).push(shown).end();
                }
                _ => {
                    out.append_element(element);
                }
            },
            Entry::Slice(slice) => match element.value() {
                ValueRef::Array(array) if self.nested_arrays == 0 => {
                    out.begin_array(element.key());
                    slice.write(array, out);
                    out.end();
                }
                _ => {
                    out.append_element(element);
                }
            },
            // When including, computed fields follow all others.
            Entry::FirstMatch(_) | Entry::Computed(_) if self.mode == Mode::Include => {}
            Entry::FirstMatch(filter) => {
                write_first_match(element.key(), filter, self.root, out)?;
            }
            Entry::Computed(expression) => {
                let value = expression.evaluate_with(self.root, self.late)?;
                if let Some(value) = value.as_value() {
                    out.append(element.key(), value);
                }
            }
            Entry::Nested(branch) => self.nested(branch, element, inner, out)?,
        }
        Ok(())
    }

    fn nested(
        &mut self,
        branch: &Branch,
        element: &Element<'_>,
        position: Option<Position<'_>>,
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        match element.value() {
            ValueRef::Document(doc) => {
                out.begin_document(element.key());
                self.fields(branch, doc, position, out)?;
                out.end();
            }
            ValueRef::Array(array) => {
                out.begin_array(element.key());
                match position {
                    None => self.elements(branch, array, out)?,
                    Some(position) => {
                        let shown = position.element(array)?;
                        if !self.element(branch, shown, out)? {
                            return Err(mismatch());
                        }
                    }
                }
                out.end();
            }
            _ if branch.computes() => {
                out.begin_document(element.key());
                self.computed(branch, None, out)?;
                out.end();
            }
            _ if self.mode == Mode::Keep => {
                out.append_element(element);
            }
            _ => {}
        }
        Ok(())
    }

    fn elements(
        &mut self,
        branch: &Branch,
        array: Array<'_>,
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        for value in array.iter() {
            self.element(branch, value, out)?;
        }
        Ok(())
    }

    /// Writes one element of an array; false if nothing is left of it.
    fn element(
        &mut self,
        branch: &Branch,
        value: ValueRef<'_>,
        out: &mut DocWriter,
    ) -> Result<bool, Error> {
        match value {
            ValueRef::Document(doc) => {
                out.push_document();
                self.fields(branch, doc, None, out)?;
                out.end();
            }
            ValueRef::Array(array) => {
                out.push_array();
                self.nested_arrays += 1;
                self.elements(branch, array, out)?;
                self.nested_arrays -= 1;
                out.end();
            }
            _ if branch.computes() => {
                out.push_document();
                self.computed(branch, None, out)?;
                out.end();
            }
            other if self.mode == Mode::Keep => {
                out.push(other);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Computed fields that were not written in their place.
    fn computed(
        &mut self,
        branch: &Branch,
        doc: Option<Doc<'_>>,
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        let is_present = |name: &str| doc.is_some_and(|doc| doc.element(name).is_some());
        for (name, entry) in branch.entries() {
            match entry {
                Entry::Named | Entry::Kept | Entry::Slice(_) => {}
                Entry::Computed(_) | Entry::FirstMatch(_)
                    if self.mode == Mode::Keep && is_present(name) => {}
                Entry::Computed(expression) => {
                    let value = expression.evaluate_with(self.root, self.late)?;
                    if let Some(value) = value.as_value() {
                        out.append(name, value);
                    }
                }
                Entry::FirstMatch(filter) => write_first_match(name, filter, self.root, out)?,
                Entry::Nested(inner) if !inner.computes() || is_present(name) => {}
                Entry::Nested(inner) => {
                    out.begin_document(name);
                    self.computed(inner, None, out)?;
                    out.end();
                }
            }
        }
        Ok(())
    }
}

/// `$elemMatch`: an array of the first element that the filter accepts.
fn write_first_match(
    name: &str,
    filter: &Filter,
    root: Doc<'_>,
    out: &mut DocWriter,
) -> Result<(), Error> {
    let Some(ValueRef::Array(array)) = root.get(name) else {
        return Ok(());
    };
    let matched = filter.matches_with_position(root)?;
    let index = matched.and_then(|matched| matched.position);
    if let Some(value) = index.and_then(|index| array.get(index as usize)) {
        out.begin_array(name).push(value).end();
    }
    Ok(())
}
