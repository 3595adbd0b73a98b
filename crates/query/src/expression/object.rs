//! `$mergeObjects`, `$objectToArray`, `$arrayToObject`, `$getField`,
//! `$setField`, `$unsetField`.
//!
//! `$getField` and `$setField` reach fields whose names hold dots or begin with
//! a dollar sign; their field name must be written as a constant.

use super::array::as_array;
use super::node::{Evaluated, Frame, Node};
use super::parse::{Parser, object, required_argument, unknown_argument};
use super::table::Operator;
use model::Error;
use model::bson::{Array, ArrayWriter, Doc, DocBuf, DocWriter, Value, ValueRef};

/// A document that is put together field by field: the last value of a name
/// wins, at the place where the name came first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Merged {
    fields: Vec<(String, Value)>,
}

impl Merged {
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        match self.fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.fields.push((name.to_owned(), value)),
        }
    }

    pub(crate) fn merge(&mut self, doc: Doc<'_>) {
        for element in doc.iter() {
            self.set(element.key(), element.value().to_owned());
        }
    }

    pub(crate) fn finish(self) -> DocBuf {
        let mut writer = DocWriter::new();
        for (name, value) in &self.fields {
            writer.append(name, value);
        }
        writer.finish()
    }
}

pub(super) fn merge_objects<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut merged = Merged::default();
    let mut merge = |value: Option<ValueRef<'_>>| match value {
        Some(ValueRef::Document(doc)) => {
            merged.merge(doc);
            Ok(())
        }
        Some(ValueRef::Null | ValueRef::Undefined) | None => Ok(()),
        Some(other) => Err(not_mergeable(other)),
    };
    if let [only] = arguments {
        let value = only.evaluate(frame)?;
        match as_array(&value) {
            Some(array) => array.iter().try_for_each(|value| merge(Some(value)))?,
            None => merge(value.as_value())?,
        }
    } else {
        for argument in arguments {
            merge(argument.evaluate(frame)?.as_value())?;
        }
    }
    Ok(merged.finish().into())
}

pub(crate) fn not_mergeable(value: ValueRef<'_>) -> Error {
    Error::location(
        40400,
        format!(
            "$mergeObjects requires object inputs, but input {value:?} is of type {}",
            value.kind().name()
        ),
    )
}

pub(super) fn object_to_array<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    match value.as_value() {
        Some(ValueRef::Document(doc)) => {
            let mut output = ArrayWriter::new();
            for element in doc.iter() {
                let pair = DocWriter::new()
                    .with("k", element.key())
                    .with("v", element.value())
                    .finish();
                output.push(&pair);
            }
            Ok(output.finish().into())
        }
        Some(ValueRef::Null | ValueRef::Undefined) | None => Ok(Evaluated::null()),
        Some(other) => Err(Error::location(
            40390,
            format!(
                "$objectToArray requires a document input, found: {}",
                other.kind().name()
            ),
        )),
    }
}

pub(super) fn array_to_object<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    if value.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            40386,
            format!(
                "$arrayToObject requires an array input, found: {}",
                value.type_name()
            ),
        ));
    };
    let mut merged = Merged::default();
    // The first element decides which of the two forms all have.
    match array.iter().next() {
        None => {}
        Some(ValueRef::Array(_)) => pairs(array, &mut merged)?,
        Some(ValueRef::Document(_)) => keyed(array, &mut merged)?,
        Some(other) => {
            return Err(Error::location(
                40398,
                format!(
                    "Unrecognised input type format for $arrayToObject: {}",
                    other.kind().name()
                ),
            ));
        }
    }
    Ok(merged.finish().into())
}

/// `[[key, value], …]`.
fn pairs(array: Array<'_>, merged: &mut Merged) -> Result<(), Error> {
    for value in array.iter() {
        let ValueRef::Array(pair) = value else {
            return Err(inconsistent(40396));
        };
        let mut parts = pair.iter();
        let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Error::location(
                40397,
                format!(
                    "$arrayToObject requires an array of size 2 arrays, found array of size: {}",
                    pair.count()
                ),
            ));
        };
        let ValueRef::String(key) = key else {
            return Err(bad_key(40395, key));
        };
        if key.contains('\0') {
            return Err(null_byte(4940400));
        }
        merged.set(key, value.to_owned());
    }
    Ok(())
}

/// `[{k: key, v: value}, …]`.
fn keyed(array: Array<'_>, merged: &mut Merged) -> Result<(), Error> {
    for value in array.iter() {
        let ValueRef::Document(doc) = value else {
            return Err(inconsistent(40391));
        };
        if doc.iter().count() != 2 {
            return Err(Error::location(
                40392,
                "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys",
            ));
        }
        let (Some(key), Some(value)) = (doc.get("k"), doc.get("v")) else {
            return Err(Error::location(
                40393,
                "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys",
            ));
        };
        let ValueRef::String(key) = key else {
            return Err(bad_key(40394, key));
        };
        if key.contains('\0') {
            return Err(null_byte(4940401));
        }
        merged.set(key, value.to_owned());
    }
    Ok(())
}

fn inconsistent(code: i32) -> Error {
    Error::location(
        code,
        "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects",
    )
}

fn bad_key(code: i32, key: ValueRef<'_>) -> Error {
    Error::location(
        code,
        format!(
            "$arrayToObject requires keys of type string. Found key type: {}",
            key.kind().name()
        ),
    )
}

fn null_byte(code: i32) -> Error {
    Error::location(code, "Key field cannot contain an embedded null byte")
}

/// The codes for a field name that is a path, not constant, or no string.
struct FieldCodes {
    path: i32,
    not_constant: i32,
    not_string: i32,
}

const GET_FIELD: FieldCodes = FieldCodes {
    path: 5654600,
    not_constant: 5654601,
    not_string: 5654602,
};
const SET_FIELD: FieldCodes = FieldCodes {
    path: 4161108,
    not_constant: 4161106,
    not_string: 4161107,
};

/// A field name as it is written, before any folding: only a string or a
/// `$literal` counts as constant.
fn field_name(
    parser: &mut Parser<'_>,
    operator: &str,
    value: ValueRef<'_>,
    codes: &FieldCodes,
) -> Result<Node, Error> {
    let constant = match value {
        ValueRef::String(text) if text.starts_with('$') => {
            parser.operand(value)?;
            return Err(Error::location(
                codes.path,
                format!(
                    "'{text}' is a field path reference which is not allowed in this context. Did you mean {{$literal: '{text}'}}?"
                ),
            ));
        }
        ValueRef::Document(doc) => match doc.get("$literal") {
            Some(literal) => literal,
            None => {
                parser.operand(value)?;
                return Err(not_constant(operator, codes));
            }
        },
        ValueRef::Array(_) => {
            parser.operand(value)?;
            return Err(not_constant(operator, codes));
        }
        other => other,
    };
    match constant {
        // Such a name could not be written. The real server tries, and answers
        // with a document that cannot be read.
        ValueRef::String(name) if name.contains('\0') && operator == "$setField" => Err(
            Error::location(16411, "$setField: field names may not contain null bytes"),
        ),
        ValueRef::String(name) => Ok(Node::Constant(name.into())),
        other => Err(Error::location(
            codes.not_string,
            format!(
                "{operator} requires 'field' to evaluate to type String, but got {}",
                other.kind().name()
            ),
        )),
    }
}

fn not_constant(operator: &str, codes: &FieldCodes) -> Error {
    Error::location(
        codes.not_constant,
        format!(
            "{operator} requires 'field' to evaluate to a constant, but got a non-constant argument"
        ),
    )
}

pub(super) fn parse_get_field(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let (field, input) = match argument {
        ValueRef::Document(doc)
            if !doc
                .first()
                .is_some_and(|first| first.key().starts_with('$')) =>
        {
            let (mut field, mut input) = (None, None);
            for element in doc.iter() {
                match element.key() {
                    "field" => field = Some(element.value()),
                    "input" => input = Some(parser.operand(element.value())?),
                    other => {
                        return Err(unknown_argument("$getField", other, 3041701));
                    }
                }
            }
            let field = field.ok_or_else(|| required_argument("$getField", "field", 3041702))?;
            let input = input.ok_or_else(|| required_argument("$getField", "input", 3041703))?;
            (field_name(parser, "$getField", field, &GET_FIELD)?, input)
        }
        name => (
            field_name(parser, "$getField", name, &GET_FIELD)?,
            parser.operand(ValueRef::String("$$CURRENT"))?,
        ),
    };
    Ok(Node::Call {
        operator,
        arguments: Box::new([field, input]),
    })
}

pub(super) fn get_field<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let Node::Constant(Value::String(name)) = &arguments[0] else {
        return Ok(Evaluated::Missing);
    };
    let input = arguments[1].evaluate(frame)?;
    if let Evaluated::Borrowed(ValueRef::Document(doc)) = input {
        return Ok(doc
            .get(name)
            .map_or(Evaluated::Missing, Evaluated::Borrowed));
    }
    Ok(match input.as_value() {
        Some(ValueRef::Document(doc)) => match doc.get(name) {
            Some(value) => Evaluated::Owned(value.to_owned()),
            None => Evaluated::Missing,
        },
        Some(ValueRef::Null | ValueRef::Undefined) => Evaluated::null(),
        _ => Evaluated::Missing,
    })
}

pub(super) fn parse_set_field(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    parse_field_change(parser, operator, argument, true)
}

pub(super) fn parse_unset_field(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    parse_field_change(parser, operator, argument, false)
}

fn parse_field_change(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
    with_value: bool,
) -> Result<Node, Error> {
    let name = operator.name;
    let doc = object(name, argument, 4161100)?;
    let (mut field, mut input, mut new_value) = (None, None, None);
    for element in doc.iter() {
        let value = element.value();
        match element.key() {
            "field" => field = Some(value),
            "input" => input = Some(parser.operand(value)?),
            "value" if with_value => new_value = Some(parser.operand(value)?),
            other => {
                return Err(unknown_argument(name, other, 4161101));
            }
        }
    }
    let field = field.ok_or_else(|| required_argument(name, "field", 4161102))?;
    let new_value = match (new_value, with_value) {
        (Some(value), _) => value,
        (None, true) => return Err(required_argument(name, "value", 4161103)),
        (None, false) => Node::Missing,
    };
    let input = input.ok_or_else(|| required_argument(name, "input", 4161109))?;
    let field = field_name(parser, name, field, &SET_FIELD)?;
    Ok(Node::Call {
        operator,
        arguments: Box::new([field, input, new_value]),
    })
}

pub(super) fn set_field<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let Node::Constant(Value::String(name)) = &arguments[0] else {
        return Ok(Evaluated::Missing);
    };
    let input = arguments[1].evaluate(frame)?;
    if input.is_nullish() {
        return Ok(Evaluated::null());
    }
    let Some(ValueRef::Document(doc)) = input.as_value() else {
        return Err(Error::location(
            4161105,
            "$setField requires 'input' to evaluate to type Object",
        ));
    };
    let value = arguments[2].evaluate(frame)?;
    let mut pending = value.as_value();
    let mut writer = DocWriter::new();
    for element in doc.iter() {
        if element.key() != name {
            writer.append_element(&element);
        } else if let Some(value) = pending.take() {
            writer.append(name, value);
        }
    }
    if let Some(value) = pending {
        writer.append(name, value);
    }
    Ok(writer.finish().into())
}
