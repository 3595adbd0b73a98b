//! From a specification to a tree of names.
//!
//! The first field that says so decides whether the projection includes or
//! excludes; a later one that says otherwise is an error. `_id` as a whole does
//! not decide, nor do `$slice` and `$elemMatch`: if nothing does, `_id: 1`
//! includes, `$slice` excludes, `$elemMatch` includes, in this order.

use super::slice::Slice;
use super::tree::{Branch, Entry, Mode};
use super::{Positional, Projection};
use crate::context::QueryContext;
use crate::expression::{Expression, FieldPath};
use crate::filter::Filter;
use model::bson::{Doc, DocWriter, Element, ValueRef};
use model::{Code, Error, number, text};

/// Which language a specification is written in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Find,
    Stage,
}

pub(super) fn parse_find(
    spec: Doc<'_>,
    filter: Option<Doc<'_>>,
    context: &QueryContext,
) -> Result<Projection, Error> {
    let mut parser = Parser::new(Dialect::Find, context);
    parser.fields(spec, &[])?;
    parser.finish(filter)
}

pub(super) fn parse_stage(spec: Doc<'_>, context: &QueryContext) -> Result<Projection, Error> {
    let explain = |error: Error| {
        let message = format!("Invalid $project :: caused by :: {}", error.message);
        Error { message, ..error }
    };
    if spec.is_empty() {
        return Err(explain(Error::location(
            51272,
            "projection specification must have at least one field",
        )));
    }
    let mut parser = Parser::new(Dialect::Stage, context);
    parser.fields(spec, &[]).map_err(explain)?;
    parser.finish(None)
}

struct Parser<'c> {
    dialect: Dialect,
    context: &'c QueryContext,
    root: Branch,
    mode: Option<Mode>,
    positional: Option<Vec<Box<str>>>,
    has_first_match: bool,
    has_slice: bool,
    /// What `_id` as a whole was given: true to include it.
    id: Option<bool>,
}

impl<'c> Parser<'c> {
    fn new(dialect: Dialect, context: &'c QueryContext) -> Self {
        Self {
            dialect,
            context,
            root: Branch::default(),
            mode: None,
            positional: None,
            has_first_match: false,
            has_slice: false,
            id: None,
        }
    }

    fn fields(&mut self, spec: Doc<'_>, prefix: &[Box<str>]) -> Result<(), Error> {
        spec.iter()
            .try_for_each(|element| self.field(&element, prefix))
    }

    fn field(&mut self, element: &Element<'_>, prefix: &[Box<str>]) -> Result<(), Error> {
        let key = element.key();
        if key.contains(".$.") {
            return Err(Error::location(
                31394,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path. \
                 Positional projection may only be used at the end, for example: a.b.$. If the \
                 query previously used a form like a.b.$.d, remove the parts following the '$' \
                 and the results will be equivalent.",
            ));
        }
        let (key, is_positional) = match key.strip_suffix(".$") {
            Some(array) => (array, true),
            None => (key, false),
        };
        if is_positional && self.dialect == Dialect::Stage {
            return Err(Error::location(
                31324,
                "Cannot use positional projection in aggregation projection",
            ));
        }
        let mut path = prefix.to_vec();
        path.extend(FieldPath::parse(key)?.names().iter().cloned());
        let value = element.value();
        match value {
            ValueRef::Document(_) if is_positional => Err(Error::location(
                31271,
                "positional projection cannot be used with an expression or sub object",
            )),
            ValueRef::Document(doc) => self.document(element, doc, path),
            ValueRef::Boolean(_)
            | ValueRef::Int32(_)
            | ValueRef::Int64(_)
            | ValueRef::Double(_)
            | ValueRef::Decimal128(_) => {
                if is_positional {
                    self.positional(element, path)
                } else {
                    self.flag(element, path)
                }
            }
            _ if is_positional => Err(Error::location(
                31308,
                "positional projection cannot be used with a literal",
            )),
            literal => {
                if self.mode == Some(Mode::Keep) {
                    return Err(Error::location(
                        31310,
                        format!(
                            "Cannot use an expression {}: {} in an exclusion projection",
                            element.key(),
                            text::value_quoted(literal)
                        ),
                    ));
                }
                self.mode = Some(Mode::Include);
                let expression = Expression::parse(literal, self.context)?;
                self.root.insert(&path, Entry::Computed(expression))
            }
        }
    }

    /// A number or a boolean: in or out.
    fn flag(&mut self, element: &Element<'_>, path: Vec<Box<str>>) -> Result<(), Error> {
        let includes = number::is_truthy(element.value());
        if path.len() == 1 && *path[0] == *"_id" {
            self.root.insert(&path, Entry::Named)?;
            self.id = Some(includes);
            return Ok(());
        }
        self.root.insert(&path, Entry::Named)?;
        self.decide(if includes { Mode::Include } else { Mode::Keep }, element)
    }

    /// Takes note that a field wants a mode.
    fn decide(&mut self, mode: Mode, element: &Element<'_>) -> Result<(), Error> {
        let field = element.key();
        match (*self.mode.get_or_insert(mode), mode) {
            (Mode::Keep, Mode::Include) => Err(Error::location(
                31253,
                format!("Cannot do inclusion on field {field} in exclusion projection"),
            )),
            (Mode::Include, Mode::Keep) => Err(Error::location(
                31254,
                format!("Cannot do exclusion on field {field} in inclusion projection"),
            )),
            (Mode::Include, Mode::Include) | (Mode::Keep, Mode::Keep) => Ok(()),
        }
    }

    fn positional(&mut self, element: &Element<'_>, path: Vec<Box<str>>) -> Result<(), Error> {
        if !number::is_truthy(element.value()) {
            return Err(Error::location(
                31395,
                "positional projection cannot be used with exclusion",
            ));
        }
        if self.positional.is_some() {
            return Err(Error::location(
                31276,
                "Cannot specify more than one positional projection per query.",
            ));
        }
        if self.has_first_match {
            return Err(Error::location(
                31256,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        self.decide(Mode::Include, element)?;
        self.root.insert(&path, Entry::Kept)?;
        self.positional = Some(path);
        Ok(())
    }

    /// An operator, or the fields of a nested document.
    fn document(
        &mut self,
        element: &Element<'_>,
        doc: Doc<'_>,
        path: Vec<Box<str>>,
    ) -> Result<(), Error> {
        let mut fields = doc.iter();
        let Some(first) = fields.next() else {
            return Err(Error::location(
                51270,
                "An empty sub-projection is not a valid value. Found empty object at path",
            ));
        };
        if fields.next().is_some() || !first.key().starts_with('$') {
            self.root.check(&path, true)?;
            return self.fields(doc, &path);
        }
        match first.key() {
            "$meta" => Err(refuse_meta(first.value())),
            "$elemMatch" if self.dialect == Dialect::Find => {
                self.first_match(element, first.value(), path)
            }
            "$elemMatch" => Err(Error::new(
                Code::INVALID_PIPELINE_OPERATOR,
                "Cannot use $elemMatch in this context",
            )),
            "$slice" if self.dialect == Dialect::Find => {
                if let Some(slice) = Slice::parse(first.value())
                    && self.root.insert(&path, Entry::Slice(slice)).is_ok()
                {
                    self.has_slice = true;
                    return Ok(());
                }
                self.expression(doc, &first, path).map_err(|error| {
                    let message = format!(
                        "Invalid $slice syntax. The given syntax {} did not match the find() \
                         syntax :: The given syntax did not match the expression $slice syntax. \
                         :: caused by :: {}",
                        text::document_quoted(doc),
                        error.message
                    );
                    Error { message, ..error }
                })
            }
            _ => self.expression(doc, &first, path),
        }
    }

    fn expression(
        &mut self,
        doc: Doc<'_>,
        operator: &Element<'_>,
        path: Vec<Box<str>>,
    ) -> Result<(), Error> {
        if self.mode == Some(Mode::Keep) {
            return Err(Error::location(
                31252,
                "Cannot use expression other than $meta in exclusion projection",
            ));
        }
        self.mode = Some(Mode::Include);
        let unknown = format!("Unrecognized expression '{}'", operator.key());
        let expression =
            Expression::parse(ValueRef::Document(doc), self.context).map_err(|error| {
                // The field's own operator has a code of its own; those inside keep theirs.
                if error.code == Code::INVALID_PIPELINE_OPERATOR && error.message == unknown {
                    Error::location(31325, format!("Unknown expression {}", operator.key()))
                } else {
                    error
                }
            })?;
        self.root.insert(&path, Entry::Computed(expression))
    }

    fn first_match(
        &mut self,
        element: &Element<'_>,
        argument: ValueRef<'_>,
        path: Vec<Box<str>>,
    ) -> Result<(), Error> {
        let ValueRef::Document(_) = argument else {
            return Err(Error::location(
                31274,
                format!(
                    "elemMatch: Invalid argument, object required, but got {}",
                    argument.kind().name()
                ),
            ));
        };
        if self.positional.is_some() {
            return Err(Error::location(
                31255,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        if path.len() > 1 {
            return Err(Error::location(
                31275,
                "Cannot use $elemMatch projection on a nested field.",
            ));
        }
        let filter = DocWriter::new().with(&path[0], element.value()).finish();
        let filter = Filter::parse(filter.as_doc(), self.context)?;
        self.has_first_match = true;
        self.root.insert(&path, Entry::FirstMatch(Box::new(filter)))
    }

    fn finish(mut self, filter: Option<Doc<'_>>) -> Result<Projection, Error> {
        let mode = self.mode.unwrap_or(match self.id {
            Some(true) => Mode::Include,
            Some(false) | None if self.has_slice => Mode::Keep,
            Some(false) | None if self.has_first_match => Mode::Include,
            Some(false) | None => Mode::Keep,
        });
        match (mode, self.id) {
            // Named means the opposite of what was asked for.
            (Mode::Include, Some(false)) | (Mode::Keep, Some(true)) => self.root.remove("_id"),
            (Mode::Include, Some(true)) | (Mode::Keep, Some(false)) | (Mode::Keep, None) => {}
            (Mode::Include, None) => {
                if self.root.get("_id").is_none() {
                    self.root.insert(&["_id".into()], Entry::Named)?;
                }
            }
        }
        let positional = match self.positional {
            None => None,
            Some(path) => Some(Positional {
                path,
                filter: Filter::parse(filter.unwrap_or(Doc::EMPTY), self.context)?.optimized(),
            }),
        };
        Ok(Projection {
            mode,
            root: self.root,
            positional,
        })
    }
}

fn refuse_meta(argument: ValueRef<'_>) -> Error {
    let ValueRef::String(name) = argument else {
        return Error::location(17307, "$meta only supports string arguments");
    };
    match name {
        "textScore" => Error::location(
            40218,
            "query requires text score metadata, but it is not available",
        ),
        "geoNearDistance"
        | "geoNearPoint"
        | "indexKey"
        | "randVal"
        | "recordId"
        | "searchHighlights"
        | "searchScore"
        | "searchScoreDetails"
        | "sortKey"
        | "timeseriesBucketMinTime"
        | "timeseriesBucketMaxTime" => Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            format!("$meta: \"{name}\" is not supported yet"),
        ),
        other => Error::location(17308, format!("Unsupported argument to $meta: {other}")),
    }
}
