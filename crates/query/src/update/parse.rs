//! From the command's bytes to an update.

use super::apply::UpdateNode;
use super::array_modifier::{AddToSet, ELEMENT, Pop, Pull, Push, PushSort};
use super::modifier::{BitOperation, Modifier};
use super::path::{self, Component};
use super::{Modifiers, Update};
use crate::context::QueryContext;
use crate::filter::Filter;
use crate::pipeline::Transform;
use crate::sort::SortPattern;
use model::bson::{Array, Doc, DocWriter, Value, ValueRef};
use model::number::Number;
use model::{Code, Error};
use std::cmp::Ordering;
use std::collections::BTreeMap;

fn failed_to_parse(message: impl Into<String>) -> Error {
    Error::new(Code::FAILED_TO_PARSE, message)
}

impl Update {
    /// Parses the `u` of an update statement with its `arrayFilters`.
    pub fn parse(
        update: ValueRef<'_>,
        array_filters: Option<Array<'_>>,
        context: &QueryContext,
    ) -> Result<Update, Error> {
        let document = match update {
            ValueRef::Document(document) => document,
            ValueRef::Array(stages) => {
                if array_filters.is_some() {
                    return Err(failed_to_parse(
                        "arrayFilters may not be specified for pipeline-syle updates",
                    ));
                }
                return Transform::parse_update(stages, context).map(Update::Pipeline);
            }
            other => {
                return Err(failed_to_parse(format!(
                    "Update argument must be either an object or an array, found {}",
                    other.kind().name()
                )));
            }
        };
        let is_modifiers = document
            .first()
            .is_some_and(|first| first.key().starts_with('$'));
        if is_modifiers {
            return Modifiers::parse(document, array_filters, context).map(Update::Modifiers);
        }
        if array_filters.is_some_and(|filters| !filters.is_empty()) {
            return Err(failed_to_parse(
                "arrayFilters may not be specified for a replacement-style update",
            ));
        }
        if let Some(dollar) = document.iter().find(|e| e.key().starts_with('$')) {
            return Err(Error::new(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                format!(
                    "The dollar ($) prefixed field '{}' in '{0}' is not allowed in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith.",
                    dollar.key()
                ),
            ));
        }
        Ok(Update::Replacement(document.to_owned()))
    }
}

impl Modifiers {
    fn parse(
        document: Doc<'_>,
        array_filters: Option<Array<'_>>,
        context: &QueryContext,
    ) -> Result<Modifiers, Error> {
        let array_filters = parse_array_filters(array_filters, context)?;
        let mut building = Building {
            root: UpdateNode::empty(),
            rename_sources: Vec::new(),
            used_filters: Vec::new(),
            uses_position: false,
            array_filters: &array_filters,
        };
        for element in document.iter() {
            let name = element.key();
            let operator = operator(name)?;
            let ValueRef::Document(fields) = element.value() else {
                return Err(failed_to_parse(format!(
                    "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} not {{{name}: {:?}}}",
                    element.kind().name(),
                    element.value()
                )));
            };
            for field in fields.iter() {
                operator(&mut building, field.key(), field.value(), context)?;
            }
        }
        let Building {
            root,
            rename_sources,
            used_filters,
            uses_position,
            ..
        } = building;
        if let Some(unused) = array_filters
            .keys()
            .find(|name| !used_filters.contains(name))
        {
            return Err(failed_to_parse(format!(
                "The array filter for identifier '{unused}' was not used in the update {document:?}"
            )));
        }
        Ok(Modifiers {
            root,
            array_filters,
            rename_sources,
            uses_position,
        })
    }
}

struct Building<'f> {
    root: UpdateNode,
    rename_sources: Vec<String>,
    used_filters: Vec<String>,
    uses_position: bool,
    array_filters: &'f BTreeMap<String, Filter>,
}

impl Building<'_> {
    fn add(&mut self, full: &str, modifier: Modifier) -> Result<(), Error> {
        let components = path::parse(full)?;
        for component in &components {
            match component {
                Component::Positional => self.uses_position = true,
                Component::Filtered(name) => {
                    if !self.array_filters.contains_key(name) {
                        return Err(Error::bad_value(format!(
                            "No array filter found for identifier '{name}' in path '{full}'"
                        )));
                    }
                    if !self.used_filters.contains(name) {
                        self.used_filters.push(name.clone());
                    }
                }
                Component::Field(_) | Component::All => {}
            }
        }
        self.root.insert(&components, modifier, full)
    }
}

type Operator = fn(&mut Building<'_>, &str, ValueRef<'_>, &QueryContext) -> Result<(), Error>;

fn operator(name: &str) -> Result<Operator, Error> {
    Ok(match name {
        "$set" => |b, path, value, _| b.add(path, Modifier::Set(value.to_owned())),
        "$setOnInsert" => |b, path, value, _| b.add(path, Modifier::SetOnInsert(value.to_owned())),
        "$unset" => |b, path, _, _| b.add(path, Modifier::Unset),
        "$inc" => |b, path, value, _| {
            let operand = numeric_operand("increment", path, value)?;
            b.add(path, Modifier::Increment(operand))
        },
        "$mul" => |b, path, value, _| {
            let operand = numeric_operand("multiply", path, value)?;
            b.add(path, Modifier::Multiply(operand))
        },
        "$min" => |b, path, value, _| b.add(path, Modifier::Minimum(value.to_owned())),
        "$max" => |b, path, value, _| b.add(path, Modifier::Maximum(value.to_owned())),
        "$currentDate" => |b, path, value, _| b.add(path, current_date(value)?),
        "$bit" => |b, path, value, _| b.add(path, bit(value)?),
        "$push" => |b, path, value, context| b.add(path, push(value, context)?),
        "$addToSet" => |b, path, value, _| b.add(path, add_to_set(value)?),
        "$pop" => |b, path, value, _| b.add(path, pop(path, value)?),
        "$pull" => |b, path, value, context| b.add(path, pull(value, context)?),
        "$pullAll" => |b, path, value, _| b.add(path, pull_all(value)?),
        "$rename" => |b, path, value, _| rename(b, path, value),
        _ => {
            return Err(failed_to_parse(format!(
                "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified as an array"
            )));
        }
    })
}

fn numeric_operand(verb: &str, path: &str, value: ValueRef<'_>) -> Result<Number, Error> {
    Number::of(value).ok_or_else(|| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!("Cannot {verb} with non-numeric argument: {{{path}: {value:?}}}"),
        )
    })
}

fn current_date(value: ValueRef<'_>) -> Result<Modifier, Error> {
    match value {
        ValueRef::Boolean(_) => Ok(Modifier::CurrentDate),
        ValueRef::Document(doc) => {
            let mut modifier = None;
            for element in doc.iter() {
                modifier = match (element.key(), element.value()) {
                    ("$type", ValueRef::String("date")) => Some(Modifier::CurrentDate),
                    ("$type", ValueRef::String("timestamp")) => Some(Modifier::CurrentTimestamp),
                    ("$type", _) => None,
                    (other, _) => {
                        return Err(Error::bad_value(format!(
                            "Unrecognized $currentDate option: {other}"
                        )));
                    }
                };
            }
            modifier.ok_or_else(|| {
                Error::bad_value(
                    "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : {$type: 'date'}}}",
                )
            })
        }
        other => Err(Error::bad_value(format!(
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({{$type: 'timestamp/date'}}).",
            other.kind().name()
        ))),
    }
}

fn bit(value: ValueRef<'_>) -> Result<Modifier, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::bad_value(format!(
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: {{$bit: {{field: {{and/or/xor: #}}}}",
            value.kind().name()
        )));
    };
    let mut operations = Vec::new();
    for element in doc.iter() {
        let operation = match element.key() {
            "and" => BitOperation::And,
            "or" => BitOperation::Or,
            "xor" => BitOperation::Xor,
            other => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{other}' which is an unknown operator: {{{value:?}}}"
                )));
            }
        };
        match element.value() {
            operand @ (ValueRef::Int32(_) | ValueRef::Int64(_)) => {
                operations.push((operation, operand.to_owned()))
            }
            other => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{value:?}}}",
                    other.kind().name()
                )));
            }
        }
    }
    if operations.is_empty() {
        return Err(Error::bad_value(
            "You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}",
        ));
    }
    Ok(Modifier::Bit(operations))
}

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

fn push(value: ValueRef<'_>, _context: &QueryContext) -> Result<Modifier, Error> {
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
    match value {
        ValueRef::Document(pattern) => {
            for element in pattern.iter() {
                if !matches!(as_f64(element.value()), Some(1.0 | -1.0)) {
                    return Err(Error::bad_value(
                        "The $sort element value must be either 1 or -1",
                    ));
                }
                if element.key().is_empty() || element.key().split('.').any(str::is_empty) {
                    return Err(Error::bad_value(
                        "The $sort field is a dotted field but has an empty part",
                    ));
                }
            }
            if pattern.is_empty() {
                return Err(Error::bad_value(
                    "The $sort pattern is empty when it should be a set of fields.",
                ));
            }
            SortPattern::parse(pattern).map(PushSort::Fields)
        }
        other => match as_f64(other) {
            Some(1.0) => Ok(PushSort::Elements(Ordering::Less)),
            Some(-1.0) => Ok(PushSort::Elements(Ordering::Greater)),
            Some(_) | None => Err(Error::bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )),
        },
    }
}

fn add_to_set(value: ValueRef<'_>) -> Result<Modifier, Error> {
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

fn pop(path: &str, value: ValueRef<'_>) -> Result<Modifier, Error> {
    match exact_integer(value) {
        Some(1) => Ok(Modifier::Pop(Pop::Last)),
        Some(-1) => Ok(Modifier::Pop(Pop::First)),
        Some(other) => Err(failed_to_parse(format!(
            "$pop expects 1 or -1, found: {other}"
        ))),
        None => Err(failed_to_parse(format!(
            "Expected a number in: {path}: {value:?}"
        ))),
    }
}

fn pull(value: ValueRef<'_>, context: &QueryContext) -> Result<Modifier, Error> {
    let element_filter = |value: ValueRef<'_>| {
        let shown = DocWriter::new().with(ELEMENT, value).finish();
        Filter::parse(shown.as_doc(), context).map(Pull::Element)
    };
    let pull = match value {
        ValueRef::Document(doc) => {
            let first = doc.first().map(|e| e.key().to_owned()).unwrap_or_default();
            let on_element = first.starts_with('$')
                && !matches!(first.as_str(), "$and" | "$or" | "$nor" | "$expr");
            if on_element {
                element_filter(value)?
            } else {
                Pull::Documents(Filter::parse(doc, context)?)
            }
        }
        ValueRef::Regex { .. } => element_filter(value)?,
        other => Pull::Equal(other.to_owned()),
    };
    Ok(Modifier::Pull(pull))
}

fn pull_all(value: ValueRef<'_>) -> Result<Modifier, Error> {
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

fn rename(building: &mut Building<'_>, from: &str, value: ValueRef<'_>) -> Result<(), Error> {
    let ValueRef::String(to) = value else {
        return Err(Error::bad_value(format!(
            "The 'to' field for $rename must be a string: {from}: {value:?}"
        )));
    };
    if from == to {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must differ: {from}: {to:?}"
        )));
    }
    for (side, components) in [
        ("source", path::parse(from)?),
        ("destination", path::parse(to)?),
    ] {
        let dynamic = components
            .iter()
            .any(|component| !matches!(component, Component::Field(_)));
        if dynamic {
            return Err(Error::bad_value(format!(
                "The {side} field for $rename may not be dynamic: {from}"
            )));
        }
    }
    building.add(from, Modifier::Unset)?;
    building.add(to, Modifier::RenameFrom(from.to_owned()))?;
    building.rename_sources.push(from.to_owned());
    Ok(())
}

/// The value that a `$rename` takes along; arrays may not be on its way.
pub(super) fn rename_source(doc: Doc<'_>, path: &str) -> Result<Option<Value>, Error> {
    let mut current = doc;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let Some(value) = current.get(part) else {
            return Ok(None);
        };
        if parts.peek().is_none() {
            return Ok(Some(value.to_owned()));
        }
        match value {
            ValueRef::Document(inner) => current = inner,
            ValueRef::Array(_) => {
                return Err(Error::bad_value(format!(
                    "The source field cannot be an array element, '{path}' in doc with {:?} has an array field",
                    doc.get("_id")
                )));
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn parse_array_filters(
    filters: Option<Array<'_>>,
    context: &QueryContext,
) -> Result<BTreeMap<String, Filter>, Error> {
    let mut parsed = BTreeMap::new();
    let Some(filters) = filters else {
        return Ok(parsed);
    };
    for filter in filters.iter() {
        let ValueRef::Document(document) = filter else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "arrayFilters must be documents",
            ));
        };
        let mut identifiers = Vec::new();
        identifiers_of(document, &mut identifiers);
        identifiers.dedup();
        let name = match identifiers.as_slice() {
            [name] => name.clone(),
            [] => {
                return Err(failed_to_parse(
                    "Cannot use an expression without a top-level field name in arrayFilters",
                ));
            }
            [first, second, ..] => {
                return Err(failed_to_parse(format!(
                    "Error parsing array filter :: caused by :: Expected a single top-level field name, found '{first}' and '{second}'"
                )));
            }
        };
        let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        if !valid {
            return Err(Error::bad_value(format!(
                "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string beginning with a lowercase letter, found '{name}'"
            )));
        }
        let filter = Filter::parse(document, context)?;
        if parsed.insert(name.clone(), filter).is_some() {
            return Err(failed_to_parse(format!(
                "Found multiple array filters with the same top-level field name {name}"
            )));
        }
    }
    Ok(parsed)
}

/// The first path components that a filter mentions, in order.
fn identifiers_of(filter: Doc<'_>, found: &mut Vec<String>) {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            ("$and" | "$or" | "$nor", ValueRef::Array(clauses)) => {
                for clause in clauses.iter() {
                    if let ValueRef::Document(clause) = clause {
                        identifiers_of(clause, found);
                    }
                }
            }
            (name, _) if name.starts_with('$') => {}
            (name, _) => {
                let first = name.split('.').next().unwrap_or(name);
                found.push(first.to_owned());
            }
        }
    }
}

fn as_f64(value: ValueRef<'_>) -> Option<f64> {
    Number::of(value).map(Number::to_f64)
}

fn exact_integer(value: ValueRef<'_>) -> Option<i64> {
    Number::of(value).and_then(Number::to_i64_exact)
}
