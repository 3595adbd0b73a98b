//! The types that a `$type` names.

use super::arguments::describe;
use model::bson::{Kind, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// A set of BSON types; `"number"` is kept apart to be printed as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeSet {
    kinds: u32,
    all_numbers: bool,
}

const KINDS: [Kind; 21] = [
    Kind::MinKey,
    Kind::Double,
    Kind::String,
    Kind::Document,
    Kind::Array,
    Kind::Binary,
    Kind::Undefined,
    Kind::ObjectId,
    Kind::Boolean,
    Kind::DateTime,
    Kind::Null,
    Kind::Regex,
    Kind::DbPointer,
    Kind::JavaScript,
    Kind::Symbol,
    Kind::JavaScriptWithScope,
    Kind::Int32,
    Kind::Timestamp,
    Kind::Int64,
    Kind::Decimal128,
    Kind::MaxKey,
];

fn bit(kind: Kind) -> u32 {
    match kind {
        Kind::MinKey => 1 << 30,
        Kind::MaxKey => 1 << 31,
        _ => 1 << kind.tag(),
    }
}

/// The number by which users know a type: MinKey is -1.
fn code(kind: Kind) -> i32 {
    match kind {
        Kind::MinKey => -1,
        _ => i32::from(kind.tag()),
    }
}

impl TypeSet {
    pub fn contains(self, kind: Kind) -> bool {
        self.kinds & bit(kind) != 0 || (self.all_numbers && kind.is_number())
    }

    pub fn all_numbers(self) -> bool {
        self.all_numbers
    }

    /// The types named one by one, in the order of their numbers.
    pub fn codes(self) -> impl Iterator<Item = i32> {
        KINDS
            .into_iter()
            .filter(move |&kind| self.kinds & bit(kind) != 0)
            .map(code)
    }

    /// All types in the set.
    pub fn kinds(self) -> impl Iterator<Item = Kind> {
        KINDS.into_iter().filter(move |&kind| self.contains(kind))
    }

    /// Reads `"string"`, `2`, or a list of such.
    pub(super) fn parse(path: &str, value: ValueRef<'_>) -> Result<TypeSet, Error> {
        let mut types = TypeSet::default();
        match value {
            ValueRef::Array(list) => {
                for value in list.iter() {
                    types.insert(value)?;
                }
            }
            single => types.insert(single)?,
        }
        if types == TypeSet::default() {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!("{path} must match at least one type"),
            ));
        }
        Ok(types)
    }

    fn insert(&mut self, value: ValueRef<'_>) -> Result<(), Error> {
        if let ValueRef::String(name) = value {
            return self.insert_name(name);
        }
        let Some(number) = Number::of(value) else {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                "type must be represented as a number or a string",
            ));
        };
        let wanted = number.to_i64_exact();
        match KINDS
            .into_iter()
            .find(|&kind| wanted == Some(code(kind).into()))
        {
            Some(kind) => {
                self.kinds |= bit(kind);
                Ok(())
            }
            None if wanted == Some(0) => Err(Error::bad_value(
                "Invalid numerical type code: 0. Instead use {$exists:false}.",
            )),
            None => Err(Error::bad_value(format!(
                "Invalid numerical type code: {}",
                describe(value)
            ))),
        }
    }

    fn insert_name(&mut self, name: &str) -> Result<(), Error> {
        if name == "number" {
            self.all_numbers = true;
            return Ok(());
        }
        if name == "missing" {
            return Err(Error::bad_value(
                "'missing' is not a legal type name. To query for non-existence of a field, use \
                 {$exists:false}.",
            ));
        }
        match KINDS.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => {
                self.kinds |= bit(kind);
                Ok(())
            }
            None => Err(Error::bad_value(format!("Unknown type name alias: {name}"))),
        }
    }
}
