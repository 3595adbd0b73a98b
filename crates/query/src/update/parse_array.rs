//! Parses the modifiers of arrays.

use super::array_modifier::{AddToSet, ELEMENT, Pop, Pull, Push, PushSort, SortField};
use super::modifier::Modifier;
use super::parse::failed_to_parse;
use crate::context::QueryContext;
use crate::filter::Filter;
use model::bson::{Doc, DocWriter, Element, Value, ValueRef};
use model::number::Number;
use model::{Code, Error, text};

/// Whether a modifier's operand is written out with `$each`.
fn each_form(value: ValueRef<'_>) -> Option<Doc<'_>> {
    match value {
        ValueRef::Document(doc) if doc.get("$each").is_some() => Some(doc),
        _ => None,
    }
}

fn each_values(name: &str, value: ValueRef<'_>) -> Result<Vec<Value>, Error> {
    match value {
        ValueRef::Array(array) => Ok(array.iter().map(|v| v.to_owned()).collect()),
        other => Err(match name {
            "$push" => Error::bad_value(format!(
                "The argument to $each in $push must be an array but it was of type: {}",
                other.kind().name()
            )),
            _ => Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "The argument to $each in {name} must be an array but it was of type {}",
                    other.kind().name()
                ),
            ),
        }),
    }
}

pub(super) fn push(value: ValueRef<'_>) -> Result<Modifier, Error> {
    let Some(doc) = each_form(value) else {
        return Ok(Modifier::Push(Push {
            values: vec![value.to_owned()],
            position: None,
            slice: None,
            sort: None,
        }));
    };
    let mut push = Push {
        values: Vec::new(),
        position: None,
        slice: None,
        sort: None,
    };
    let integer = |name: &str, value: ValueRef<'_>| {
        exact_integer(value).ok_or_else(|| {
            Error::bad_value(format!(
                "The value for {name} must be an integer value but was given type: {}",
                value.kind().name()
            ))
        })
    };
    for element in doc.iter() {
        match (element.key(), element.value()) {
            ("$each", value) => push.values = each_values("$push", value)?,
            ("$position", value) => push.position = Some(integer("$position", value)?),
            ("$slice", value) => push.slice = Some(integer("$slice", value)?),
            ("$sort", value) => push.sort = Some(push_sort(value)?),
            (other, _) => {
                return Err(Error::bad_value(format!(
                    "Unrecognized clause in $push: {other}"
                )));
            }
        }
    }
    Ok(Modifier::Push(push))
}

fn push_sort(value: ValueRef<'_>) -> Result<PushSort, Error> {
    let ValueRef::Document(pattern) = value else {
        return match as_f64(value) {
            Some(1.0) => Ok(PushSort::Ascending),
            Some(-1.0) => Ok(PushSort::Descending),
            Some(_) => Err(Error::bad_value(
                "The $sort element value must be either 1 or -1",
            )),
            None => Err(Error::bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )),
        };
    };
    if pattern.is_empty() {
        return Err(Error::bad_value(
            "The sort pattern is empty when it should be a set of fields.",
        ));
    }
    let field = |element: Element<'_>| {
        let is_descending = match as_f64(element.value()) {
            Some(1.0) => false,
            Some(-1.0) => true,
            Some(_) | None => {
                return Err(Error::bad_value(
                    "The sort element value must be either 1 or -1",
                ));
            }
        };
        let path = element.key();
        if path.is_empty() {
            return Err(Error::bad_value("The sort field cannot be empty"));
        }
        if path.split('.').any(str::is_empty) {
            return Err(Error::bad_value(format!(
                "The sort field is a dotted field but has an empty part: {path}"
            )));
        }
        Ok(SortField {
            path: path.to_owned(),
            is_descending,
        })
    };
    let fields = pattern.iter().map(field).collect::<Result<_, Error>>()?;
    Ok(PushSort::Fields(fields))
}

pub(super) fn add_to_set(value: ValueRef<'_>) -> Result<Modifier, Error> {
    let each = match value {
        ValueRef::Document(doc) if doc.first().is_some_and(|e| e.key() == "$each") => Some(doc),
        _ => None,
    };
    let Some(doc) = each else {
        return Ok(Modifier::AddToSet(AddToSet {
            values: vec![value.to_owned()],
        }));
    };
    if let Some(other) = doc.iter().nth(1) {
        return Err(Error::bad_value(format!(
            "Found unexpected fields after $each in $addToSet: {}",
            other.key()
        )));
    }
    let each = doc.get("$each").expect("the first field is $each");
    Ok(Modifier::AddToSet(AddToSet {
        values: each_values("$addToSet", each)?,
    }))
}

pub(super) fn pop(path: &str, value: ValueRef<'_>) -> Result<Modifier, Error> {
    match exact_integer(value) {
        Some(1) => Ok(Modifier::Pop(Pop::Last)),
        Some(-1) => Ok(Modifier::Pop(Pop::First)),
        Some(other) => Err(failed_to_parse(format!(
            "$pop expects 1 or -1, found: {other}"
        ))),
        None => Err(failed_to_parse(format!(
            "Expected a number in: {path}: {}",
            text::value_quoted(value)
        ))),
    }
}

pub(super) fn pull(value: ValueRef<'_>, context: &QueryContext) -> Result<Modifier, Error> {
    let element_filter = |value: ValueRef<'_>| {
        let shown = DocWriter::new().with(ELEMENT, value).finish();
        parse_filter(shown.as_doc(), context).map(Pull::Element)
    };
    let pull = match value {
        ValueRef::Document(doc) => {
            let is_on_element = doc.first().is_some_and(|first| {
                first.key().starts_with('$') && !is_document_operator(first.key())
            });
            if is_on_element {
                element_filter(value)?
            } else {
                Pull::Documents(parse_filter(doc, context)?)
            }
        }
        ValueRef::Regex { .. } => element_filter(value)?,
        other => Pull::Equal(other.to_owned()),
    };
    Ok(Modifier::Pull(pull))
}

/// Operators that stand where a field name stands, rather than under one.
fn is_document_operator(name: &str) -> bool {
    matches!(
        name,
        "$and"
            | "$or"
            | "$nor"
            | "$not"
            | "$expr"
            | "$comment"
            | "$where"
            | "$text"
            | "$jsonSchema"
            | "$sampleRate"
            | "$alwaysTrue"
            | "$alwaysFalse"
    )
}

/// A filter over elements, where nothing may refer to the whole document.
pub(super) fn parse_filter(doc: Doc<'_>, context: &QueryContext) -> Result<Filter, Error> {
    check_allowed(doc)?;
    let filter = Filter::parse(doc, context)?;
    if has_expression(&filter) {
        return Err(not_allowed(Code::QUERY_FEATURE_NOT_ALLOWED, "$expr"));
    }
    Ok(filter)
}

fn not_allowed(code: Code, operator: &str) -> Error {
    Error::new(code, format!("{operator} is not allowed in this context"))
}

/// Looks for operators that make sense for a whole query only.
fn check_allowed(filter: Doc<'_>) -> Result<(), Error> {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            (name @ ("$where" | "$text"), _) => return Err(not_allowed(Code::BAD_VALUE, name)),
            (name @ "$jsonSchema", _) => {
                return Err(not_allowed(Code::QUERY_FEATURE_NOT_ALLOWED, name));
            }
            ("$and" | "$or" | "$nor", ValueRef::Array(clauses)) => {
                for clause in clauses.iter() {
                    if let ValueRef::Document(clause) = clause {
                        check_allowed(clause)?;
                    }
                }
            }
            (_, ValueRef::Document(operators)) => {
                let near = operators
                    .iter()
                    .any(|e| matches!(e.key(), "$near" | "$nearSphere" | "$geoNear"));
                if near {
                    return Err(Error::location(
                        5626500,
                        "$geoNear, $near, and $nearSphere are not allowed in this context",
                    ));
                }
            }
            (_, _) => {}
        }
    }
    Ok(())
}

/// Whether `$expr` occurs in a filter.
pub(super) fn has_expression(filter: &Filter) -> bool {
    match filter {
        Filter::And(children) | Filter::Or(children) | Filter::Nor(children) => {
            children.iter().any(has_expression)
        }
        Filter::Not(child) => has_expression(child),
        Filter::Expression { .. } => true,
        Filter::Field { .. } | Filter::SampleRate(_) | Filter::AlwaysTrue | Filter::AlwaysFalse => {
            false
        }
    }
}

pub(super) fn pull_all(value: ValueRef<'_>) -> Result<Modifier, Error> {
    match value {
        ValueRef::Array(array) => Ok(Modifier::PullAll(
            array.iter().map(|v| v.to_owned()).collect(),
        )),
        other => Err(Error::bad_value(format!(
            "$pullAll requires an array argument but was given a {}",
            other.kind().name()
        ))),
    }
}

fn as_f64(value: ValueRef<'_>) -> Option<f64> {
    Number::of(value).map(Number::to_f64)
}

fn exact_integer(value: ValueRef<'_>) -> Option<i64> {
    Number::of(value).and_then(Number::to_i64_exact)
}
