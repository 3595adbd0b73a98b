//! From BSON to a tree: operators through the table, names to slots, constants
//! to values.

use super::field_path::{FieldPath, MAX_NAMES, check_field_name};
use super::fold::fold;
use super::identifier::check_variable;
use super::node::Node;
use super::table::{self, Operator, Parameters};
use crate::context::QueryContext;
use model::bson::{Array, Doc, Value, ValueRef};
use model::{Code, Error};

pub(super) struct Parser<'c> {
    pub(super) context: &'c QueryContext,
    /// Names in scope, outermost first; a name's place is its slot.
    scope: Vec<String>,
    slots: usize,
    /// The first error of a constant subexpression: reported only if all the
    /// rest can be parsed.
    pub(super) fold_error: Option<Error>,
    /// Whether anything refers to the document, even if folding drops it.
    reads_document: bool,
}

impl<'c> Parser<'c> {
    pub(super) fn new(context: &'c QueryContext) -> Self {
        Self {
            context,
            scope: context.late_variables.clone(),
            slots: context.late_variables.len(),
            fold_error: None,
            reads_document: false,
        }
    }

    /// Parses the whole expression.
    pub(super) fn parse(&mut self, value: ValueRef<'_>) -> Result<Node, Error> {
        let node = self.operand(value)?;
        match self.fold_error.take() {
            Some(error) if !self.context.computes_late => Err(error),
            Some(_) | None => Ok(node),
        }
    }

    pub(super) fn reads_document(&self) -> bool {
        self.reads_document
    }

    /// How many slots an evaluation needs.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Parses with one more name in scope, and tells the name's slot.
    pub(super) fn scoped<T>(
        &mut self,
        names: &[&str],
        parse: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let outside = self.scope.len();
        self.scope
            .extend(names.iter().map(|name| (*name).to_owned()));
        self.slots = self.slots.max(self.scope.len());
        let parsed = parse(self);
        self.scope.truncate(outside);
        parsed
    }

    /// The slot that the next name in scope will have.
    pub(super) fn next_slot(&self) -> usize {
        self.scope.len()
    }

    /// Any value where an expression may stand.
    pub(super) fn operand(&mut self, value: ValueRef<'_>) -> Result<Node, Error> {
        match value {
            ValueRef::String(text) if text.starts_with('$') => self.path(text),
            ValueRef::Document(doc) => self.document(doc),
            ValueRef::Array(array) => {
                let nodes = self.all(array)?;
                Ok(fold(Node::Array(nodes)))
            }
            ValueRef::Double(_)
            | ValueRef::String(_)
            | ValueRef::Binary { .. }
            | ValueRef::Undefined
            | ValueRef::ObjectId(_)
            | ValueRef::Boolean(_)
            | ValueRef::DateTime(_)
            | ValueRef::Null
            | ValueRef::Regex { .. }
            | ValueRef::DbPointer { .. }
            | ValueRef::JavaScript(_)
            | ValueRef::Symbol(_)
            | ValueRef::JavaScriptWithScope { .. }
            | ValueRef::Int32(_)
            | ValueRef::Timestamp(_)
            | ValueRef::Int64(_)
            | ValueRef::Decimal128(_)
            | ValueRef::MinKey
            | ValueRef::MaxKey => Ok(Node::Constant(value.to_owned())),
        }
    }

    fn all(&mut self, array: Array<'_>) -> Result<Box<[Node]>, Error> {
        array.iter().map(|value| self.operand(value)).collect()
    }

    /// `"$a.b"`, `"$$name"` or `"$$name.a.b"`.
    fn path(&mut self, text: &str) -> Result<Node, Error> {
        let rest = &text[1..];
        if rest.is_empty() {
            return Err(Error::location(
                16872,
                "'$' by itself is not a valid FieldPath",
            ));
        }
        let Some(rest) = rest.strip_prefix('$') else {
            let path = FieldPath::parse(rest)?;
            // The variable that it begins with counts as one of its names.
            if path.names().len() == MAX_NAMES {
                return Err(Error::new(Code::OVERFLOW, "FieldPath is too long"));
            }
            // `$a` means `$$CURRENT.a`, and CURRENT can be bound like any other.
            return Ok(match self.slot_of("CURRENT") {
                Some(slot) => Node::Variable {
                    slot,
                    path: Some(path),
                },
                None => self.of_document(Node::Field(path)),
            });
        };
        let (name, path) = match rest.split_once('.') {
            Some((name, path)) => (name, Some(path)),
            None => (rest, None),
        };
        check_variable(name)?;
        self.variable(name, path)
    }

    fn variable(&mut self, name: &str, path: Option<&str>) -> Result<Node, Error> {
        let parse_path = || match path {
            Some("") => Err(Error::location(40353, "FieldPath must not end with a '.'.")),
            path => path.map(FieldPath::parse).transpose(),
        };
        if let Some(slot) = self.slot_of(name) {
            return Ok(Node::Variable {
                slot,
                path: parse_path()?,
            });
        }
        let known = self.context.variables.iter().rev();
        if let Some((_, value)) = known.into_iter().find(|(known, _)| known == name) {
            return Ok(constant_path(value.as_ref(), parse_path()?));
        }
        match name {
            "ROOT" | "CURRENT" => {
                let node = parse_path()?.map_or(Node::Root, Node::Field);
                Ok(self.of_document(node))
            }
            "NOW" => Ok(constant_path(
                ValueRef::DateTime(self.context.now_ms),
                parse_path()?,
            )),
            "REMOVE" => {
                parse_path()?;
                Ok(Node::Missing)
            }
            "CLUSTER_TIME" => {
                let path = parse_path()?;
                Ok(match self.context.cluster_time {
                    Some(time) => constant_path(ValueRef::Timestamp(time), path),
                    None => Node::Unavailable("CLUSTER_TIME"),
                })
            }
            "JS_SCOPE" => Ok(Node::Unavailable("JS_SCOPE")),
            "IS_MR" => Ok(Node::Unavailable("IS_MR")),
            "SEARCH_META" => Err(Error::location(
                6347903,
                "Can't access $$SEARCH_META without a $search stage earlier in the pipeline",
            )),
            _ => Err(Error::location(
                17276,
                format!("Use of undefined variable: {name}"),
            )),
        }
    }

    fn of_document(&mut self, node: Node) -> Node {
        self.reads_document = true;
        node
    }

    fn slot_of(&self, name: &str) -> Option<usize> {
        self.scope.iter().rposition(|known| known == name)
    }

    /// An operator, or a document of expressions.
    fn document(&mut self, doc: Doc<'_>) -> Result<Node, Error> {
        let Some(first) = doc.first() else {
            return Ok(Node::Constant(Value::Document(doc.to_owned())));
        };
        if first.key().starts_with('$') {
            if doc.iter().nth(1).is_some() {
                return Err(Error::location(
                    15983,
                    format!(
                        "An object representing an expression must have exactly one field: {doc:?}"
                    ),
                ));
            }
            return self.operator(first.key(), first.value());
        }
        let mut fields: Vec<(Box<str>, Node)> = Vec::new();
        for element in doc.iter() {
            let name = element.key();
            check_field_name(name)?;
            if fields.iter().any(|(known, _)| **known == *name) {
                return Err(Error::location(
                    16406,
                    format!("duplicate field name specified in object literal: {doc:?}"),
                ));
            }
            fields.push((name.into(), self.operand(element.value())?));
        }
        Ok(fold(Node::Object(fields.into())))
    }

    fn operator(&mut self, name: &str, argument: ValueRef<'_>) -> Result<Node, Error> {
        let Some(operator) = table::find(name) else {
            return Err(match table::refused(name) {
                Some(why) => Error::new(Code::COMMAND_NOT_SUPPORTED, format!("{name} {why}")),
                None => Error::new(
                    Code::INVALID_PIPELINE_OPERATOR,
                    format!("Unrecognized expression '{name}'"),
                ),
            });
        };
        let arguments = match operator.parameters {
            Parameters::Special(parse) => return parse(self, operator, argument),
            Parameters::Exactly(count) => {
                let nodes = self.positional(argument)?;
                if nodes.len() != count {
                    return Err(Error::location(
                        16020,
                        format!(
                            "Expression {name} takes exactly {count} arguments. {} were passed in.",
                            nodes.len()
                        ),
                    ));
                }
                nodes
            }
            Parameters::Between(least, most) => {
                let nodes = self.positional(argument)?;
                if nodes.len() < least || nodes.len() > most {
                    return Err(Error::location(
                        28667,
                        format!(
                            "Expression {name} takes at least {least} arguments, and at most {most}, but {} were passed in.",
                            nodes.len()
                        ),
                    ));
                }
                nodes
            }
            Parameters::Any => self.positional(argument)?,
            Parameters::AtLeast(least, code) => {
                let nodes = self.positional(argument)?;
                if nodes.len() < least {
                    return Err(Error::location(
                        code,
                        format!(
                            "{name} needs at least {least} arguments, had: {}",
                            nodes.len()
                        ),
                    ));
                }
                nodes
            }
            Parameters::Named {
                not_object,
                unknown,
                names,
            } => self.named(name, argument, not_object, unknown, names)?,
        };
        self.call(operator, arguments)
    }

    /// A list of arguments, or the only argument by itself.
    pub(super) fn positional(&mut self, argument: ValueRef<'_>) -> Result<Box<[Node]>, Error> {
        match argument {
            ValueRef::Array(array) => self.all(array),
            single => Ok(Box::new([self.operand(single)?])),
        }
    }

    pub(super) fn named(
        &mut self,
        operator: &str,
        argument: ValueRef<'_>,
        not_object: i32,
        unknown: i32,
        names: &[(&str, Option<i32>)],
    ) -> Result<Box<[Node]>, Error> {
        let doc = object(operator, argument, not_object)?;
        let mut nodes = vec![Node::Absent; names.len()];
        for element in doc.iter() {
            let Some(at) = names.iter().position(|(name, _)| *name == element.key()) else {
                return Err(unknown_argument(operator, element.key(), unknown));
            };
            nodes[at] = self.operand(element.value())?;
        }
        for ((name, code), node) in names.iter().zip(&nodes) {
            if let Some(code) = code
                && node.is_absent()
            {
                return Err(required_argument(operator, name, *code));
            }
        }
        Ok(nodes.into())
    }
}

pub(super) fn unknown_argument(operator: &str, name: &str, code: i32) -> Error {
    Error::location(
        code,
        format!("{operator} found an unknown argument: {name}"),
    )
}

pub(super) fn required_argument(operator: &str, name: &str, code: i32) -> Error {
    Error::location(
        code,
        format!("{operator} requires '{name}' to be specified"),
    )
}

/// The document of named arguments.
pub(super) fn object<'a>(
    operator: &str,
    argument: ValueRef<'a>,
    not_object: i32,
) -> Result<Doc<'a>, Error> {
    match argument {
        ValueRef::Document(doc) => Ok(doc),
        other => Err(Error::location(
            not_object,
            format!(
                "{operator} requires an object as an argument, found: {}",
                other.kind().name()
            ),
        )),
    }
}

fn constant_path(value: ValueRef<'_>, path: Option<FieldPath>) -> Node {
    let found = match path {
        Some(path) => path.evaluate_in(value).into_value(),
        None => Some(value.to_owned()),
    };
    match found {
        Some(value) => Node::Constant(value),
        None => Node::Missing,
    }
}

/// `{$literal: anything}`.
pub(super) fn literal(
    _: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    Ok(Node::Constant(argument.to_owned()))
}

/// `{$meta: "..."}`. Where a document cannot have such a value the real server
/// refuses to look for it, or finds nothing; what it could have is not kept here.
pub(super) fn meta(
    parser: &mut Parser<'_>,
    _: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let ValueRef::String(name) = argument else {
        return Err(Error::location(
            17307,
            "$meta only supports string arguments",
        ));
    };
    match name {
        "textScore" | "geoNearDistance" | "geoNearPoint" => Err(Error::location(
            40218,
            format!("query requires {name} metadata, but it is not available"),
        )),
        "searchScore"
        | "searchHighlights"
        | "searchScoreDetails"
        | "randVal"
        | "timeseriesBucketMinTime"
        | "timeseriesBucketMaxTime" => Ok(parser.of_document(Node::Missing)),
        "sortKey" | "indexKey" | "recordId" => Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            format!("{{$meta: \"{name}\"}} is not supported in expressions yet"),
        )),
        _ => Err(Error::location(
            17308,
            format!("Unsupported argument to $meta: {name}"),
        )),
    }
}

/// Operators that take one operand, an array standing for itself.
pub(super) fn whole_operand(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let operand = parser.operand(argument)?;
    parser.call(operator, Box::new([operand]))
}

/// `$toInt` and its like: an array must hold exactly the one argument.
pub(super) fn conversion(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let operand = match argument {
        ValueRef::Array(array) => {
            let mut values = array.iter();
            match (values.next(), values.next()) {
                (Some(only), None) => only,
                _ => {
                    return Err(Error::location(
                        50723,
                        format!("{} requires a single argument", operator.name),
                    ));
                }
            }
        }
        other => other,
    };
    whole_operand(parser, operator, operand)
}

/// `{$rand: {}}`.
pub(super) fn no_arguments(
    _: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let empty = match argument {
        ValueRef::Document(doc) => doc,
        ValueRef::Array(array) => array.as_doc(),
        _ => {
            return Err(Error::location(
                10065,
                format!("invalid parameter: expected an object ({})", operator.name),
            ));
        }
    };
    if !empty.is_empty() {
        return Err(Error::location(
            3040501,
            format!("{} does not currently accept arguments", operator.name),
        ));
    }
    Ok(Node::Call {
        operator,
        arguments: Box::new([]),
    })
}
