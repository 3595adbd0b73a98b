//! From the command's bytes to an update.
//!
//! The modifiers of arrays and `arrayFilters` have files of their own.

use super::array_filters;
use super::modifier::{BitOperation, Modifier};
use super::parse_array;
use super::path::{self, Component};
use super::tree::UpdateNode;
use super::{Modifiers, Update};
use crate::context::QueryContext;
use crate::filter::Filter;
use crate::pipeline::Transform;
use model::bson::{Array, Doc, MAX_STORED_DEPTH, ValueRef};
use model::number::Number;
use model::{Code, Error, text};
use std::collections::BTreeMap;

pub(super) fn failed_to_parse(message: impl Into<String>) -> Error {
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
                if array_filters.is_some_and(|filters| filters.iter().next().is_some()) {
                    return Err(failed_to_parse(
                        "arrayFilters may not be specified for pipeline-style updates",
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
        super::check_depth(document)?;
        Ok(Update::Replacement(document.to_owned()))
    }
}

impl Modifiers {
    fn parse(
        document: Doc<'_>,
        array_filters: Option<Array<'_>>,
        context: &QueryContext,
    ) -> Result<Modifiers, Error> {
        let array_filters = array_filters::parse(array_filters, context)?;
        let mut building = Building {
            root: UpdateNode::empty(),
            renames: Vec::new(),
            used_filters: Vec::new(),
            uses_position: false,
            may_be_too_deep: false,
            array_filters: &array_filters,
        };
        for element in document.iter() {
            let name = element.key();
            let operator = operator(name)?;
            let ValueRef::Document(fields) = element.value() else {
                return Err(failed_to_parse(format!(
                    "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} not {{{name}: {}}}",
                    element.kind().name(),
                    text::value_quoted(element.value())
                )));
            };
            for field in fields.iter() {
                operator(&mut building, field.key(), field.value(), context)?;
            }
        }
        let Building {
            root,
            renames,
            used_filters,
            uses_position,
            may_be_too_deep,
            ..
        } = building;
        if let Some(unused) = array_filters
            .keys()
            .find(|name| !used_filters.contains(name))
        {
            return Err(failed_to_parse(format!(
                "The array filter for identifier '{unused}' was not used in the update {}",
                text::document_quoted(document)
            )));
        }
        let dollar_fields = match &root {
            UpdateNode::Fields(children) => children
                .iter()
                .filter(|(step, _)| match step {
                    Component::Field(name) => name.starts_with('$'),
                    Component::Positional | Component::All | Component::Filtered(_) => true,
                })
                .map(|(step, _)| step.to_string())
                .collect(),
            UpdateNode::Elements(_) | UpdateNode::Leaf(_) => Vec::new(),
        };
        Ok(Modifiers {
            root,
            array_filters,
            renames,
            uses_position,
            may_be_too_deep,
            dollar_fields,
        })
    }
}

struct Building<'f> {
    root: UpdateNode,
    renames: Vec<(String, String)>,
    used_filters: Vec<String>,
    uses_position: bool,
    may_be_too_deep: bool,
    array_filters: &'f BTreeMap<String, Filter>,
}

impl Building<'_> {
    fn add(&mut self, full: &str, modifier: Modifier) -> Result<(), Error> {
        let components = path::parse(full)?;
        if components.len() - 1 + modifier.operand_levels() >= MAX_STORED_DEPTH {
            self.may_be_too_deep = true;
        }
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
        "$push" => |b, path, value, _| b.add(path, parse_array::push(value)?),
        "$addToSet" => |b, path, value, _| b.add(path, parse_array::add_to_set(value)?),
        "$pop" => |b, path, value, _| b.add(path, parse_array::pop(path, value)?),
        "$pull" => |b, path, value, context| b.add(path, parse_array::pull(value, context)?),
        "$pullAll" => |b, path, value, _| b.add(path, parse_array::pull_all(value)?),
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
            format!(
                "Cannot {verb} with non-numeric argument: {{{path}: {}}}",
                text::value_quoted(value)
            ),
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
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{other}' which is an unknown operator: {{{other}: {}}}",
                    text::value_quoted(element.value())
                )));
            }
        };
        match element.value() {
            operand @ (ValueRef::Int32(_) | ValueRef::Int64(_)) => {
                operations.push((operation, operand.to_owned()))
            }
            other => {
                return Err(Error::bad_value(format!(
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}: {}}}",
                    other.kind().name(),
                    element.key(),
                    text::value_quoted(other)
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

fn rename(building: &mut Building<'_>, from: &str, value: ValueRef<'_>) -> Result<(), Error> {
    // What is in conflict with another change is told before what is wrong with this one.
    building.add(from, Modifier::Unset)?;
    let ValueRef::String(to) = value else {
        return Err(Error::bad_value(format!(
            "The 'to' field for $rename must be a string: {from}: {}",
            text::value_quoted(value)
        )));
    };
    if to.contains('\0') {
        return Err(Error::bad_value(
            "The 'to' field for $rename cannot contain an embedded null byte",
        ));
    }
    let source = path::parse(from)?;
    let destination = path::parse(to)?;
    if from == to {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must differ: {from}: \"{to}\""
        )));
    }
    if source.starts_with(&destination) || destination.starts_with(&source) {
        return Err(Error::bad_value(format!(
            "The source and target field for $rename must not be on the same path: {from}: \"{to}\""
        )));
    }
    for (side, path, components) in [("source", from, source), ("destination", to, destination)] {
        let is_dynamic = components
            .iter()
            .any(|component| !matches!(component, Component::Field(_)));
        if is_dynamic {
            return Err(Error::bad_value(format!(
                "The {side} field for $rename may not be dynamic: {path}"
            )));
        }
    }
    building.add(to, Modifier::RenameFrom(from.to_owned()))?;
    // The value may be nested as deep as a document can be, and goes deeper.
    if to.split('.').count() > from.split('.').count() {
        building.may_be_too_deep = true;
    }
    building.renames.push((from.to_owned(), to.to_owned()));
    Ok(())
}
