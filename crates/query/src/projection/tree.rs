//! A projection as a tree of names.
//!
//! Entries stay in the order in which their names first came, which is the
//! order of computed fields in the result.

use super::slice::Slice;
use crate::expression::Expression;
use crate::filter::Filter;
use model::Error;

/// What becomes of a field that the tree does not name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// It is dropped: named fields are included.
    Include,
    /// It stays: named fields are excluded.
    Keep,
}

/// What becomes of a field that the tree names.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Included or excluded, after the mode.
    Named,
    /// Stays as it is in either mode.
    Kept,
    /// Stays; if it is an array, only a part of it.
    Slice(Slice),
    /// An array of the first element that matches; nothing if none does. The
    /// filter is over the whole document.
    FirstMatch(Box<Filter>),
    Computed(Expression),
    Nested(Branch),
}

/// The named fields of one document.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branch {
    entries: Vec<(Box<str>, Entry)>,
    computes: bool,
}

impl Entry {
    fn computes(&self) -> bool {
        match self {
            Entry::Computed(_) | Entry::FirstMatch(_) => true,
            Entry::Nested(branch) => branch.computes,
            Entry::Named | Entry::Kept | Entry::Slice(_) => false,
        }
    }
}

impl Branch {
    pub(crate) fn entries(&self) -> &[(Box<str>, Entry)] {
        &self.entries
    }

    /// Whether any field in it is computed, at any depth.
    pub(crate) fn computes(&self) -> bool {
        self.computes
    }

    pub(super) fn position(&self, name: &[u8]) -> Option<usize> {
        self.entries
            .iter()
            .position(|(known, _)| known.as_bytes() == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.position(name.as_bytes()).map(|at| &self.entries[at].1)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.entries.retain(|(known, _)| **known != *name);
        self.computes = self.entries.iter().any(|(_, entry)| entry.computes());
    }

    /// Adds an entry at a path, unless the path, one before it or one behind it
    /// is there already.
    pub(crate) fn insert(&mut self, path: &[Box<str>], entry: Entry) -> Result<(), Error> {
        self.check(path, false)?;
        let (last, steps) = path.split_last().expect("a path has a name");
        let computes = entry.computes();
        let mut branch = self;
        for step in steps {
            branch.computes |= computes;
            let at = match branch.position(step.as_bytes()) {
                Some(at) => at,
                None => {
                    branch
                        .entries
                        .push((step.clone(), Entry::Nested(Branch::default())));
                    branch.entries.len() - 1
                }
            };
            branch = match &mut branch.entries[at].1 {
                Entry::Nested(inner) => inner,
                Entry::Named
                | Entry::Kept
                | Entry::Slice(_)
                | Entry::FirstMatch(_)
                | Entry::Computed(_) => unreachable!("collisions were looked for before"),
            };
        }
        branch.computes |= computes;
        branch.entries.push((last.clone(), entry));
        Ok(())
    }

    /// Whether something may be added at a path; `as_branch` if further names
    /// will follow.
    pub(super) fn check(&self, path: &[Box<str>], as_branch: bool) -> Result<(), Error> {
        let (last, steps) = path.split_last().expect("a path has a name");
        let mut branch = self;
        for step in steps {
            match branch.get(step) {
                None => return Ok(()),
                Some(Entry::Nested(inner)) => branch = inner,
                Some(
                    Entry::Named
                    | Entry::Kept
                    | Entry::Slice(_)
                    | Entry::FirstMatch(_)
                    | Entry::Computed(_),
                ) => {
                    return Err(Error::location(
                        31249,
                        format!(
                            "Path collision at {} remaining portion {}",
                            path.join("."),
                            path[1..].join(".")
                        ),
                    ));
                }
            }
        }
        match branch.get(last) {
            None => Ok(()),
            Some(Entry::Nested(_)) if as_branch => Ok(()),
            Some(_) => Err(Error::location(
                31250,
                format!("Path collision at {}", path.join(".")),
            )),
        }
    }
}
