//! What one modifier does to the value at its path.

use super::array_modifier::{AddToSet, Pop, Pull, Push};
use super::path::At;
use crate::context::QueryContext;
use model::bson::{Doc, Element, Kind, Timestamp, Value, ValueRef, nesting_depth};
use model::decimal::Decimal;
use model::number::{self, Number};
use model::{Code, Error, order, text};
use std::cmp::Ordering;

/// A modifier with its operand.
#[derive(Clone, Debug)]
pub(super) enum Modifier {
    Set(Value),
    SetOnInsert(Value),
    Unset,
    Increment(Number),
    Multiply(Number),
    Minimum(Value),
    Maximum(Value),
    CurrentDate,
    CurrentTimestamp,
    Bit(Vec<(BitOperation, Value)>),
    Push(Push),
    AddToSet(AddToSet),
    Pop(Pop),
    Pull(Pull),
    PullAll(Vec<Value>),
    /// Takes the value found at this path; the source has an `Unset`.
    RenameFrom(String),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BitOperation {
    And,
    Or,
    Xor,
}

/// What becomes of the value.
pub(super) enum Effect<'m> {
    Keep,
    /// The modifier's own operand.
    Put(ValueRef<'m>),
    PutOwned(Value),
    Remove,
}

/// Whatever the modifiers of one application share.
pub(super) struct Application<'c> {
    pub(super) context: &'c QueryContext,
    pub(super) is_insert: bool,
    /// Given to `$currentDate` with timestamps.
    pub(super) timestamp: Timestamp,
}

impl Modifier {
    /// Whether it makes a field that is not there.
    pub(super) fn creates(&self, is_insert: bool) -> bool {
        match self {
            Modifier::SetOnInsert(_) => is_insert,
            Modifier::Unset | Modifier::Pop(_) | Modifier::Pull(_) | Modifier::PullAll(_) => false,
            Modifier::Set(_)
            | Modifier::Increment(_)
            | Modifier::Multiply(_)
            | Modifier::Minimum(_)
            | Modifier::Maximum(_)
            | Modifier::CurrentDate
            | Modifier::CurrentTimestamp
            | Modifier::Bit(_)
            | Modifier::Push(_)
            | Modifier::AddToSet(_)
            | Modifier::RenameFrom(_) => true,
        }
    }

    /// Whether it takes elements from an array, and so insists on a path that
    /// can lead to one.
    pub(super) fn takes_from_array(&self) -> bool {
        match self {
            Modifier::Pop(_) | Modifier::Pull(_) | Modifier::PullAll(_) => true,
            Modifier::SetOnInsert(_)
            | Modifier::Unset
            | Modifier::Set(_)
            | Modifier::Increment(_)
            | Modifier::Multiply(_)
            | Modifier::Minimum(_)
            | Modifier::Maximum(_)
            | Modifier::CurrentDate
            | Modifier::CurrentTimestamp
            | Modifier::Bit(_)
            | Modifier::Push(_)
            | Modifier::AddToSet(_)
            | Modifier::RenameFrom(_) => false,
        }
    }

    /// How many levels of documents and arrays its operand adds at its path.
    pub(super) fn operand_levels(&self) -> usize {
        match self {
            Modifier::Set(operand)
            | Modifier::SetOnInsert(operand)
            | Modifier::Minimum(operand)
            | Modifier::Maximum(operand) => levels(operand),
            Modifier::Push(Push { values, .. }) | Modifier::AddToSet(AddToSet { values }) => {
                1 + values.iter().map(levels).max().unwrap_or(0)
            }
            Modifier::Unset
            | Modifier::Increment(_)
            | Modifier::Multiply(_)
            | Modifier::CurrentDate
            | Modifier::CurrentTimestamp
            | Modifier::Bit(_)
            | Modifier::Pop(_)
            | Modifier::Pull(_)
            | Modifier::PullAll(_)
            | Modifier::RenameFrom(_) => 0,
        }
    }

    /// What it does to the value at its path, `None` if there is none.
    pub(super) fn apply<'m>(
        &'m self,
        at: &At<'_>,
        current: Option<ValueRef<'_>>,
        application: &Application<'_>,
    ) -> Result<Effect<'m>, Error> {
        Ok(match self {
            Modifier::Set(operand) => set(current, operand),
            Modifier::SetOnInsert(operand) if application.is_insert => set(current, operand),
            Modifier::SetOnInsert(_) => Effect::Keep,
            Modifier::Unset => match current {
                Some(_) => Effect::Remove,
                None => Effect::Keep,
            },
            Modifier::Increment(operand) => match current {
                None => Effect::PutOwned(operand.to_value()),
                Some(value) => {
                    let sum = number::add_checked(numeric(at, "$inc", value)?, *operand)
                        .ok_or_else(|| overflow(at, "$inc", value))?;
                    put_number(value, sum)
                }
            },
            Modifier::Multiply(operand) => match current {
                // Zero times the operand: its type, sign and NaN come through.
                None => Effect::PutOwned(
                    number::multiply_widening(Number::Int32(0), *operand).to_value(),
                ),
                Some(value) => {
                    let product = number::multiply_checked(numeric(at, "$mul", value)?, *operand)
                        .ok_or_else(|| overflow(at, "$mul", value))?;
                    put_number(value, product)
                }
            },
            Modifier::Minimum(operand) => set_if_ordered(current, operand, Ordering::Less),
            Modifier::Maximum(operand) => set_if_ordered(current, operand, Ordering::Greater),
            Modifier::CurrentDate => Effect::PutOwned(Value::DateTime(application.context.now_ms)),
            Modifier::CurrentTimestamp => Effect::PutOwned(Value::Timestamp(application.timestamp)),
            Modifier::Bit(operations) => bit(at, current, operations)?,
            Modifier::Push(push) => push.apply(at, current)?,
            Modifier::AddToSet(add) => add.apply(at, current)?,
            Modifier::Pop(pop) => pop.apply(at, current)?,
            Modifier::Pull(pull) => pull.apply(current)?,
            Modifier::PullAll(unwanted) => super::array_modifier::pull_all(current, unwanted)?,
            // The walk puts renamed values where they go.
            Modifier::RenameFrom(_) => Effect::Keep,
        })
    }
}

fn levels(value: &Value) -> usize {
    match value {
        Value::Document(doc) => 1 + nesting_depth(doc.as_doc()),
        Value::Array(array) => 1 + nesting_depth(array.as_array().as_doc()),
        _ => 0,
    }
}

/// Equal bytes are no change; an equal number of another type is one.
fn set<'m>(current: Option<ValueRef<'_>>, operand: &'m Value) -> Effect<'m> {
    match current {
        Some(current) if same_bytes(current, operand.as_ref()) => Effect::Keep,
        _ => Effect::Put(operand.as_ref()),
    }
}

/// A result that equals the number before is no change, if its type is the same
/// too. NaN equals nothing, so that arithmetic on it is always a change.
fn put_number<'m>(current: ValueRef<'_>, result: Number) -> Effect<'m> {
    let is_same = match (current, result) {
        (ValueRef::Double(before), Number::Double(after)) => before == after,
        // Only the digits written may differ, as in 4 and 4.0.
        (ValueRef::Decimal128(before), Number::Decimal(after)) => {
            Decimal::from_bits(before).compare(after).is_eq()
        }
        (current, result) => same_bytes(current, result.to_value().as_ref()),
    };
    if is_same {
        Effect::Keep
    } else {
        Effect::PutOwned(result.to_value())
    }
}

fn put_if_changed<'m>(current: Option<ValueRef<'_>>, new: Value) -> Effect<'m> {
    match current {
        Some(current) if same_bytes(current, new.as_ref()) => Effect::Keep,
        _ => Effect::PutOwned(new),
    }
}

fn same_bytes(left: ValueRef<'_>, right: ValueRef<'_>) -> bool {
    match (left, right) {
        (ValueRef::Double(a), ValueRef::Double(b)) => a.to_bits() == b.to_bits(),
        _ => left == right,
    }
}

fn set_if_ordered<'m>(
    current: Option<ValueRef<'_>>,
    operand: &'m Value,
    wanted: Ordering,
) -> Effect<'m> {
    match current {
        Some(current) if order::compare(operand.as_ref(), current) != wanted => Effect::Keep,
        _ => Effect::Put(operand.as_ref()),
    }
}

fn numeric(at: &At<'_>, name: &str, value: ValueRef<'_>) -> Result<Number, Error> {
    Number::of(value).ok_or_else(|| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Cannot apply {name} to a value of non-numeric type. {} has the field '{}' of \
                 non-numeric type {}",
                at.document(),
                at.last(),
                value.kind().name()
            ),
        )
    })
}

fn overflow(at: &At<'_>, name: &str, value: ValueRef<'_>) -> Error {
    Error::bad_value(format!(
        "Failed to apply {name} operations to current value ((NumberLong){}) for document {}",
        text::value_quoted(value),
        at.document()
    ))
}

fn bit<'m>(
    at: &At<'_>,
    current: Option<ValueRef<'_>>,
    operations: &[(BitOperation, Value)],
) -> Result<Effect<'m>, Error> {
    let mut result = match current {
        None => Value::Int32(0),
        Some(value @ (ValueRef::Int32(_) | ValueRef::Int64(_))) => value.to_owned(),
        Some(other) => {
            return Err(Error::bad_value(format!(
                "Cannot apply $bit to a value of non-integral type. {} has the field '{}' of \
                 non-integer type {}",
                at.document(),
                at.last(),
                other.kind().name()
            )));
        }
    };
    for (operation, operand) in operations {
        let wide = matches!(
            (&result, operand),
            (Value::Int64(_), _) | (_, Value::Int64(_))
        );
        let (a, b) = (as_i64(&result), as_i64(operand));
        let combined = match operation {
            BitOperation::And => a & b,
            BitOperation::Or => a | b,
            BitOperation::Xor => a ^ b,
        };
        result = if wide {
            Value::Int64(combined)
        } else {
            Value::Int32(combined as i32)
        };
    }
    Ok(put_if_changed(current, result))
}

fn as_i64(value: &Value) -> i64 {
    match value {
        Value::Int32(v) => i64::from(*v),
        Value::Int64(v) => *v,
        _ => unreachable!("operands of $bit were checked to be integers"),
    }
}

/// Whether `_id` may have this value.
pub fn check_id(value: ValueRef<'_>) -> Result<(), Error> {
    if let Kind::Array | Kind::Regex | Kind::Undefined = value.kind() {
        return Err(Error::new(
            Code::INVALID_ID_FIELD,
            format!("The '_id' value cannot be of type {}", value.kind().name()),
        ));
    }
    check_id_names(value)
}

/// No field of an `_id` may look like an operator, at any depth; but a reference
/// may stand in it: `{$ref: "collection", $id: anything}`, perhaps with `$db`.
fn check_id_names(value: ValueRef<'_>) -> Result<(), Error> {
    let fields = match value {
        ValueRef::Document(doc) => doc,
        ValueRef::Array(array) => array.as_doc(),
        _ => return Ok(()),
    };
    for field in fields.iter().skip(reference_fields(fields)) {
        if field.key_bytes().starts_with(b"$") {
            return Err(Error::new(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                format!(
                    "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                    field.key()
                ),
            ));
        }
        check_id_names(field.value())?;
    }
    Ok(())
}

/// How many of the first fields make a reference to another document.
fn reference_fields(doc: Doc<'_>) -> usize {
    let mut fields = doc.iter();
    let is_text = |field: &Element<'_>, name| field.key() == name && field.kind() == Kind::String;
    match (fields.next(), fields.next(), fields.next()) {
        (Some(first), Some(second), third) if is_text(&first, "$ref") && second.key() == "$id" => {
            2 + usize::from(third.is_some_and(|third| is_text(&third, "$db")))
        }
        _ => 0,
    }
}
