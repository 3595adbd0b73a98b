//! Projections of `find` and `findAndModify`, and of the stage `$project`.
//!
//! ```text
//!   {a: 1, "b.c": 1, n: {$add: ["$a", 1]}}
//!       │ parse        one tree of names; collisions and mixed modes are errors
//!       ▼
//!   Include { a, b { c }, n = $add }
//!       │ write        one walk over the document, bytes copied where nothing changes
//!       ▼
//!   fields as the document has them, then the computed ones in the order as written
//! ```
//!
//! A projection either includes or excludes; `_id` may differ from the rest.
//! `$slice` and the positional `a.$` shorten arrays on the same walk.
//! `$elemMatch` counts as a computed field, which is why it comes last among
//! included ones.
//!
//! Left out and refused by name: `$meta`, for want of the metadata it shows.

mod parse;
mod slice;
#[cfg(test)]
mod tests;
mod tree;
mod write;

use crate::context::QueryContext;
use crate::filter::Filter;
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, Value};
use tree::{Branch, Entry, Mode};
use write::{Position, Walk};

/// A parsed projection.
#[derive(Clone, Debug)]
pub struct Projection {
    mode: Mode,
    root: Branch,
    positional: Option<Positional>,
}

/// `a.b.$`: the first array on the path keeps only the element that matched.
#[derive(Clone, Debug)]
struct Positional {
    path: Vec<Box<str>>,
    filter: Filter,
}

impl Projection {
    /// The projection of a query. `filter` is the query's, which the positional
    /// projection refers to.
    pub fn parse(
        spec: Doc<'_>,
        filter: Option<Doc<'_>>,
        context: &QueryContext,
    ) -> Result<Self, Error> {
        parse::parse_find(spec, filter, context)
    }

    /// The specification of a `$project` stage.
    pub fn parse_stage(spec: Doc<'_>, context: &QueryContext) -> Result<Self, Error> {
        parse::parse_stage(spec, context)
    }

    pub fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        self.apply_with(doc, &[])
    }

    /// Applies with values for the context's late variables.
    pub fn apply_with(&self, doc: Doc<'_>, late: &[Option<Value>]) -> Result<DocBuf, Error> {
        let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len().min(1024)));
        self.write_with(doc, late, &mut writer)?;
        Ok(writer.finish())
    }

    /// Writes the projected fields into the innermost open document of `out`.
    pub fn write(&self, doc: Doc<'_>, out: &mut DocWriter) -> Result<(), Error> {
        self.write_with(doc, &[], out)
    }

    fn write_with(
        &self,
        doc: Doc<'_>,
        late: &[Option<Value>],
        out: &mut DocWriter,
    ) -> Result<(), Error> {
        let position = match &self.positional {
            None => None,
            Some(positional) => Some(Position {
                path: &positional.path,
                index: positional
                    .filter
                    .matches_with_position(doc)?
                    .and_then(|matched| matched.position),
            }),
        };
        Walk::new(self.mode, doc, late).fields(&self.root, doc, position, out)
    }

    /// Whether the result holds nothing but what the specification names.
    pub fn is_inclusion(&self) -> bool {
        self.mode == Mode::Include
    }

    /// Whether it only includes top-level fields as they are.
    pub fn is_simple(&self) -> bool {
        self.is_inclusion()
            && self.positional.is_none()
            && self
                .root
                .entries()
                .iter()
                .all(|(_, entry)| matches!(entry, Entry::Named))
    }

    pub fn uses_position(&self) -> bool {
        self.positional.is_some()
    }

    /// Dotted paths of all fields that the result is made of: a query is
    /// covered if an index holds them. `None` if the whole document is needed.
    pub fn needed_fields(&self) -> Option<Vec<String>> {
        if !self.is_inclusion() || self.positional.is_some() {
            return None;
        }
        let mut paths = Vec::new();
        needed_in(&self.root, "", &mut paths)?;
        paths.sort();
        paths.dedup();
        Some(paths)
    }

    /// What explain calls the stage; `is_covered` if it reads index keys only.
    pub fn stage_name(&self, is_covered: bool) -> &'static str {
        match (self.is_simple(), is_covered) {
            (true, true) => "PROJECTION_COVERED",
            (true, false) => "PROJECTION_SIMPLE",
            (false, _) => "PROJECTION_DEFAULT",
        }
    }
}

fn needed_in(branch: &Branch, prefix: &str, paths: &mut Vec<String>) -> Option<()> {
    for (name, entry) in branch.entries() {
        match entry {
            Entry::Named => paths.push(format!("{prefix}{name}")),
            Entry::Nested(inner) => {
                // What is computed inside a field depends on its shape.
                if inner.computes() {
                    return None;
                }
                needed_in(inner, &format!("{prefix}{name}."), paths)?;
            }
            Entry::Computed(expression) => {
                if let Some(path) = expression.as_field_path() {
                    paths.push(path.dotted());
                } else {
                    expression.as_constant()?;
                }
            }
            Entry::Kept | Entry::Slice(_) | Entry::FirstMatch(_) => return None,
        }
    }
    Some(())
}
