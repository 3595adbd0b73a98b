//! What one modifier does to the value at its path.

use super::array_modifier::{AddToSet, Pop, Pull, Push};
use super::tree::Node;
use crate::context::QueryContext;
use model::bson::{Kind, Timestamp, Value, ValueRef};
use model::number::{self, Number};
use model::{Code, Error, order};
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
pub(super) enum Effect<'a> {
    Keep,
    Put(Node<'a>),
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

    pub(super) fn apply<'a>(
        &self,
        path: &str,
        current: Option<&Node<'a>>,
        application: &Application<'_>,
    ) -> Result<Effect<'a>, Error> {
        let value = current.map(Node::value);
        let value = value.as_ref().map(|value| value.as_ref().as_ref());
        Ok(match self {
            Modifier::Set(operand) => put_if_changed(value, operand),
            Modifier::SetOnInsert(operand) if application.is_insert => {
                put_if_changed(value, operand)
            }
            Modifier::SetOnInsert(_) => Effect::Keep,
            Modifier::Unset => match value {
                Some(_) => Effect::Remove,
                None => Effect::Keep,
            },
            Modifier::Increment(operand) => match value {
                None => put(operand.to_value()),
                Some(value) => {
                    let sum = number::add_checked(numeric(path, "$inc", value)?, *operand)
                        .ok_or_else(|| overflow(path, "$inc", value))?;
                    put_if_changed(Some(value), &sum.to_value())
                }
            },
            Modifier::Multiply(operand) => match value {
                None => put(zero_like(*operand)),
                Some(value) => {
                    let product = number::multiply_checked(numeric(path, "$mul", value)?, *operand)
                        .ok_or_else(|| overflow(path, "$mul", value))?;
                    put_if_changed(Some(value), &product.to_value())
                }
            },
            Modifier::Minimum(operand) => put_if_ordered(value, operand, Ordering::Less),
            Modifier::Maximum(operand) => put_if_ordered(value, operand, Ordering::Greater),
            Modifier::CurrentDate => put(Value::DateTime(application.context.now_ms)),
            Modifier::CurrentTimestamp => put(Value::Timestamp(application.timestamp)),
            Modifier::Bit(operations) => bit(path, value, operations)?,
            Modifier::Push(push) => push.apply(path, value)?,
            Modifier::AddToSet(add) => add.apply(path, value)?,
            Modifier::Pop(pop) => pop.apply(path, value)?,
            Modifier::Pull(pull) => pull.apply(value)?,
            Modifier::PullAll(unwanted) => super::array_modifier::pull_all(value, unwanted)?,
            // The tree resolves renames before it comes here.
            Modifier::RenameFrom(_) => Effect::Keep,
        })
    }
}

pub(super) fn put<'a>(value: Value) -> Effect<'a> {
    Effect::Put(Node::Owned(value))
}

/// Equal bytes are no change; an equal number of another type is one.
pub(super) fn put_if_changed<'a>(current: Option<ValueRef<'_>>, new: &Value) -> Effect<'a> {
    match current {
        Some(current) if same_bytes(current, new.as_ref()) => Effect::Keep,
        _ => put(new.clone()),
    }
}

fn same_bytes(left: ValueRef<'_>, right: ValueRef<'_>) -> bool {
    match (left, right) {
        (ValueRef::Double(a), ValueRef::Double(b)) => a.to_bits() == b.to_bits(),
        _ => left == right,
    }
}

fn put_if_ordered<'a>(
    current: Option<ValueRef<'_>>,
    operand: &Value,
    wanted: Ordering,
) -> Effect<'a> {
    match current {
        Some(current) if order::compare(operand.as_ref(), current) != wanted => Effect::Keep,
        _ => put(operand.clone()),
    }
}

fn numeric(path: &str, name: &str, value: ValueRef<'_>) -> Result<Number, Error> {
    Number::of(value).ok_or_else(|| {
        Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Cannot apply {name} to a value of non-numeric type. The field '{path}' has non-numeric type {}",
                value.kind().name()
            ),
        )
    })
}

/// What multiplying a missing field gives: zero of the operand's type.
fn zero_like(number: Number) -> Value {
    match number {
        Number::Int32(_) => Value::Int32(0),
        Number::Int64(_) => Value::Int64(0),
        Number::Double(_) => Value::Double(0.0),
        Number::Decimal(_) => Number::Decimal(Number::Int32(0).to_decimal()).to_value(),
    }
}

fn overflow(path: &str, name: &str, value: ValueRef<'_>) -> Error {
    Error::bad_value(format!(
        "Failed to apply {name} operations to current value ({value:?}) of field '{path}'"
    ))
}

fn bit<'a>(
    path: &str,
    current: Option<ValueRef<'_>>,
    operations: &[(BitOperation, Value)],
) -> Result<Effect<'a>, Error> {
    let mut result = match current {
        None => Value::Int32(0),
        Some(value @ (ValueRef::Int32(_) | ValueRef::Int64(_))) => value.to_owned(),
        Some(other) => {
            return Err(Error::bad_value(format!(
                "Cannot apply $bit to a value of non-integral type: field '{path}' has type {}",
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
    Ok(put_if_changed(current, &result))
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
    match value.kind() {
        Kind::Array | Kind::Regex | Kind::Undefined => Err(Error::new(
            Code::INVALID_ID_FIELD,
            format!("The '_id' value cannot be of type {}", value.kind().name()),
        )),
        _ => Ok(()),
    }
}
