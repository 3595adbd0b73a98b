//! From a specification to the tree, with MongoDB's checks.

use super::{Entry, Fields, Mode, Projector};
use crate::context::QueryContext;
use crate::expression::{Expression, FieldPath};
use model::bson::{Doc, ValueRef};
use model::number::is_truthy;
use model::{Code, Error};

/// `$project`.
pub fn parse_project(spec: ValueRef<'_>, context: &QueryContext) -> Result<Projector, Error> {
    let ValueRef::Document(spec) = spec else {
        return Err(Error::location(
            15969,
            "$project specification must be an object",
        ));
    };
    parse_projection(spec, context).map_err(|error| caused_by("$project", error))
}

/// `$unset`: an exclusion in another spelling.
pub fn parse_unset(spec: ValueRef<'_>) -> Result<Projector, Error> {
    let names = match spec {
        ValueRef::String(name) => vec![name],
        ValueRef::Array(names) => names
            .iter()
            .map(|name| match name {
                ValueRef::String(name) => Ok(name),
                _ => Err(Error::location(
                    31120,
                    "$unset specification must be a string or an array containing only string \
                     values",
                )),
            })
            .collect::<Result<_, Error>>()?,
        _ => {
            return Err(Error::location(
                31002,
                "$unset specification must be a string or an array",
            ));
        }
    };
    if names.is_empty() {
        return Err(Error::location(
            31119,
            "$unset specification must be a string or an array with at least one field",
        ));
    }
    let mut fields = Fields::default();
    for name in names {
        checked_path(name)
            .and_then(|path| fields.put(path.names(), Entry::Listed, name))
            .map_err(|error| caused_by("$unset", error))?;
    }
    Ok(Projector {
        mode: Mode::Exclusion,
        fields,
    })
}

/// `$addFields` and `$set`; `stage` is the name that errors mention.
pub fn parse_add_fields(
    stage: &str,
    spec: ValueRef<'_>,
    context: &QueryContext,
) -> Result<Projector, Error> {
    let ValueRef::Document(spec) = spec else {
        return Err(Error::location(
            40272,
            format!(
                "{stage} specification stage must be an object, got {}",
                spec.kind().name()
            ),
        ));
    };
    let mut fields = Fields::default();
    for element in spec.iter() {
        FieldPath::parse(element.key())
            .and_then(|path| add_field(&mut fields, path.names(), element.value(), spec, context))
            .map_err(|error| caused_by(stage, error))?;
    }
    Ok(Projector {
        mode: Mode::Addition,
        fields,
    })
}

fn caused_by(stage: &str, error: Error) -> Error {
    Error::new(
        error.code,
        format!("Invalid {stage} :: caused by :: {}", error.message),
    )
}

fn add_field(
    fields: &mut Fields,
    path: &[Box<str>],
    value: ValueRef<'_>,
    spec: Doc<'_>,
    context: &QueryContext,
) -> Result<(), Error> {
    if let ValueRef::Document(nested) = value {
        let Some(first) = nested.first() else {
            return Err(Error::location(
                40180,
                format!(
                    "an empty object is not a valid value. Found empty object at path {}",
                    path.join(".")
                ),
            ));
        };
        let count = nested.iter().count();
        let has_operator = nested.iter().any(|element| element.key().starts_with('$'));
        if has_operator && count > 1 {
            return Err(Error::location(
                40181,
                format!(
                    "an expression specification must contain exactly one field, the name of \
                     the expression. Found {count} fields in {nested:?}, while parsing object \
                     {spec:?}"
                ),
            ));
        }
        if !first.key().starts_with('$') {
            for element in nested.iter() {
                if element.key().contains('.') {
                    return Err(Error::location(
                        40183,
                        format!(
                            "cannot use dotted field name '{}' in a sub object: {spec:?}",
                            element.key()
                        ),
                    ));
                }
                let inner = FieldPath::parse(element.key())?;
                let mut path = path.to_vec();
                path.extend_from_slice(inner.names());
                add_field(fields, &path, element.value(), spec, context)?;
            }
            return Ok(());
        }
    }
    let expression = Expression::parse(value, context)?;
    let dotted = path.join(".");
    fields
        .put(path, Entry::Computed(expression), &dotted)
        .map_err(|_| {
            Error::location(
                40176,
                format!(
                    "specification contains two conflicting paths. Cannot specify both '{dotted}' \
                     and another path of: {spec:?}"
                ),
            )
        })
}

/// A projection as `$project` takes it.
fn parse_projection(spec: Doc<'_>, context: &QueryContext) -> Result<Projector, Error> {
    if spec.is_empty() {
        return Err(Error::location(
            51272,
            "projection specification must have at least one field",
        ));
    }
    let mut parser = Parser {
        context,
        mode: None,
        id: Id::Unsaid,
        fields: Fields::default(),
    };
    for element in spec.iter() {
        parser.field(&[], element.key(), element.value())?;
    }
    Ok(parser.finish())
}

/// What the specification says of `_id` itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Id {
    Unsaid,
    Included,
    Excluded,
    /// Computed, or something is said of a field inside.
    Other,
}

struct Parser<'c> {
    context: &'c QueryContext,
    /// Decided by the first field that is not `_id`.
    mode: Option<Mode>,
    id: Id,
    fields: Fields,
}

impl Parser<'_> {
    fn field(&mut self, outer: &[Box<str>], name: &str, value: ValueRef<'_>) -> Result<(), Error> {
        let mut path = outer.to_vec();
        path.extend_from_slice(checked_path(name)?.names());
        let dotted = path.join(".");
        match value {
            ValueRef::Boolean(_) => self.listed(&path, name, &dotted, is_truthy(value)),
            value if value.kind().is_number() => {
                self.listed(&path, name, &dotted, is_truthy(value))
            }
            ValueRef::Document(doc) => {
                let Some(first) = doc.first() else {
                    return Err(Error::location(
                        51270,
                        "An empty sub-projection is not a valid value. Found empty object at path",
                    ));
                };
                if first.key().starts_with('$') && doc.iter().nth(1).is_none() {
                    return self.operator(&path, &dotted, first.key(), value);
                }
                for element in doc.iter() {
                    self.field(&path, element.key(), element.value())?;
                }
                Ok(())
            }
            other => {
                if self.mode == Some(Mode::Exclusion) {
                    return Err(Error::location(
                        31310,
                        format!(
                            "Cannot use an expression {name}: {other:?} in an exclusion projection"
                        ),
                    ));
                }
                self.computed(&path, &dotted, other)
            }
        }
    }

    fn operator(
        &mut self,
        path: &[Box<str>],
        dotted: &str,
        operator: &str,
        value: ValueRef<'_>,
    ) -> Result<(), Error> {
        if operator == "$elemMatch" {
            return Err(Error::new(
                Code::INVALID_PIPELINE_OPERATOR,
                "Cannot use $elemMatch in this context",
            ));
        }
        if self.mode == Some(Mode::Exclusion) {
            return Err(Error::location(
                31252,
                "Cannot use expression other than $meta in exclusion projection",
            ));
        }
        self.computed(path, dotted, value).map_err(|error| {
            let unknown = format!("Unrecognized expression '{operator}'");
            if error.code == Code::INVALID_PIPELINE_OPERATOR && error.message == unknown {
                Error::location(31325, format!("Unknown expression {operator}"))
            } else {
                error
            }
        })
    }

    fn computed(
        &mut self,
        path: &[Box<str>],
        dotted: &str,
        value: ValueRef<'_>,
    ) -> Result<(), Error> {
        let expression = Expression::parse(value, self.context)?;
        self.mode = Some(Mode::Inclusion);
        self.put(path, Entry::Computed(expression), dotted)
    }

    fn listed(
        &mut self,
        path: &[Box<str>],
        name: &str,
        dotted: &str,
        include: bool,
    ) -> Result<(), Error> {
        // `_id` goes its own way and decides nothing.
        if dotted == "_id" {
            self.put(path, Entry::Listed, dotted)?;
            self.id = if include { Id::Included } else { Id::Excluded };
            return Ok(());
        }
        match (self.mode, include) {
            (Some(Mode::Inclusion), false) => {
                return Err(Error::location(
                    31254,
                    format!("Cannot do exclusion on field {name} in inclusion projection"),
                ));
            }
            (Some(Mode::Exclusion), true) => {
                return Err(Error::location(
                    31253,
                    format!("Cannot do inclusion on field {name} in exclusion projection"),
                ));
            }
            (None, true) => self.mode = Some(Mode::Inclusion),
            (None, false) => self.mode = Some(Mode::Exclusion),
            (Some(_), _) => {}
        }
        self.put(path, Entry::Listed, dotted)
    }

    fn put(&mut self, path: &[Box<str>], entry: Entry, dotted: &str) -> Result<(), Error> {
        if &*path[0] == "_id" {
            self.id = Id::Other;
        }
        self.fields.put(path, entry, dotted)
    }

    fn finish(mut self) -> Projector {
        let mode = match (self.mode, self.id) {
            (Some(mode), _) => mode,
            (None, Id::Excluded) => Mode::Exclusion,
            (None, Id::Included | Id::Unsaid | Id::Other) => Mode::Inclusion,
        };
        let unlist_id = match (mode, self.id) {
            (Mode::Inclusion, Id::Excluded) | (Mode::Exclusion, Id::Included) => true,
            (Mode::Inclusion, Id::Unsaid) => {
                self.fields.entries.insert(0, ("_id".into(), Entry::Listed));
                false
            }
            (Mode::Inclusion | Mode::Exclusion | Mode::Addition, _) => false,
        };
        if unlist_id {
            self.fields.entries.retain(|(name, _)| &**name != "_id");
        }
        Projector {
            mode,
            fields: self.fields,
        }
    }
}

/// A path as projections take it: the positional operator has its own error.
fn checked_path(name: &str) -> Result<FieldPath, Error> {
    if name.ends_with(".$") {
        return Err(Error::location(
            31324,
            "Cannot use positional projection in aggregation projection",
        ));
    }
    FieldPath::parse(name)
}

impl Fields {
    /// Adds an entry; a path and its prefix cannot both be there.
    fn put(&mut self, path: &[Box<str>], entry: Entry, dotted: &str) -> Result<(), Error> {
        let (name, rest) = path.split_first().expect("a path has a name");
        self.computes |= entry.computes();
        let known = self.entries.iter().position(|(known, _)| known == name);
        match known.map(|at| &mut self.entries[at].1) {
            None => {
                let entry = match rest {
                    [] => entry,
                    _ => {
                        let mut nested = Fields::default();
                        nested.put(rest, entry, dotted)?;
                        Entry::Nested(nested)
                    }
                };
                self.entries.push((name.clone(), entry));
                Ok(())
            }
            Some(Entry::Nested(nested)) if !rest.is_empty() => nested.put(rest, entry, dotted),
            Some(Entry::Listed | Entry::Computed(_)) if !rest.is_empty() => Err(Error::location(
                31249,
                format!(
                    "Path collision at {dotted} remaining portion {}",
                    rest.join(".")
                ),
            )),
            Some(_) => Err(Error::location(
                31250,
                format!("Path collision at {dotted}"),
            )),
        }
    }
}
