//! `$group`: its specification; running it is in [`grouping`], over [`table`].
//!
//! The key is evaluated without building it where it is a document: its parts
//! are hashed and compared one by one, and the document is written once, for a
//! group that is new.

mod grouping;
mod table;

pub(super) use grouping::Grouping;

use crate::accumulator::Accumulator;
use crate::context::QueryContext;
use crate::expression::{Expression, FieldPath};
use model::Error;
use model::bson::ValueRef;

#[derive(Clone, Debug)]
pub struct Group {
    key: Key,
    fields: Vec<(Box<str>, Accumulator)>,
    /// See [`Group::compile`].
    compiled: bool,
    half: Half,
}

/// Which half of a group is made here, where documents lie on several shards.
///
/// ```text
///   documents ─ Shard ─► partials ─┐
///   documents ─ Shard ─► partials ─┴─ Merge ─► groups
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    /// Both.
    Whole,
    Shard,
    Merge,
}

/// What documents are grouped by.
#[derive(Clone, Debug)]
enum Key {
    /// Missing counts as null.
    Single(Expression),
    /// A document of several fields; those missing are left out.
    Fields(Vec<(Box<str>, Expression)>),
    /// A document of one field, which is null if missing.
    OneField(Box<str>, Expression),
}

impl Group {
    pub(super) fn parse(spec: ValueRef<'_>, context: &QueryContext) -> Result<Self, Error> {
        let ValueRef::Document(spec) = spec else {
            return Err(Error::location(
                15947,
                "a group's fields must be specified in an object",
            ));
        };
        let mut key = None;
        let mut fields = Vec::new();
        for element in spec.iter() {
            let name = element.key();
            if name == "_id" {
                if key.is_some() {
                    return Err(Error::location(
                        15948,
                        "a group's _id may only be specified once",
                    ));
                }
                key = Some(Key::parse(element.value(), context)?);
                continue;
            }
            if name == "$doingMerge" {
                continue;
            }
            fields.push(parse_field(name, element.value(), context)?);
        }
        let key =
            key.ok_or_else(|| Error::location(15955, "a group specification must include an _id"))?;
        Ok(Self {
            key,
            fields,
            compiled: false,
            half: Half::Whole,
        })
    }

    /// The half that turns documents into partials.
    pub(super) fn shard_half(mut self) -> Self {
        self.half = Half::Shard;
        self
    }

    /// The half that turns partials into groups.
    pub(super) fn merging_half(mut self) -> Self {
        self.half = Half::Merge;
        self
    }

    /// Whether documents of one group agree in the values of all these fields. In
    /// a key of several fields a missing one equals an undefined one unless the
    /// stage is compiled, and as shard keys they differ.
    pub(super) fn tells_apart(&self, paths: &[&str]) -> bool {
        let of = |expression: &Expression| expression.as_field_path().map(FieldPath::dotted);
        let told: Vec<String> = match &self.key {
            Key::Single(only) | Key::OneField(_, only) => of(only).into_iter().collect(),
            Key::Fields(fields) if self.compiled => {
                fields.iter().filter_map(|(_, field)| of(field)).collect()
            }
            Key::Fields(_) => Vec::new(),
        };
        paths
            .iter()
            .all(|path| told.iter().any(|known| known == path))
    }

    /// MongoDB runs leading stages that are plain `$lookup` or `$group` in its
    /// other engine, where some errors have other numbers, and of equal values
    /// of different types the latest is kept.
    pub(super) fn compile(&mut self) {
        self.compiled = true;
        for (_, accumulator) in &mut self.fields {
            accumulator.keep_latest();
        }
    }

    fn error(&self, error: Error) -> Error {
        if !self.compiled {
            return error;
        }
        let code = match (error.code.0, error.message.as_str()) {
            (40066, _) => 4934200,
            (40400, _) => 5911200,
            (16554, _) => 4974201,
            (2, message) if message.contains("$divide") => 4848401,
            (other, _) => other,
        };
        Error::location(code, error.message)
    }
}

/// An output field of `$group` and of the stages like it.
pub(super) fn parse_field(
    name: &str,
    spec: ValueRef<'_>,
    context: &QueryContext,
) -> Result<(Box<str>, Accumulator), Error> {
    if name == "_id" {
        return Err(Error::location(
            15948,
            "a group's _id may only be specified once",
        ));
    }
    if name.contains('.') {
        return Err(Error::location(
            40235,
            format!("The field name '{name}' cannot contain '.'"),
        ));
    }
    if name.starts_with('$') {
        return Err(Error::location(
            40236,
            format!("The field name '{name}' cannot be an operator name"),
        ));
    }
    Ok((name.into(), Accumulator::parse(name, spec, context)?))
}

impl Key {
    fn parse(spec: ValueRef<'_>, context: &QueryContext) -> Result<Self, Error> {
        let ValueRef::Document(doc) = spec else {
            return Ok(Key::Single(Expression::parse(spec, context)?));
        };
        let is_object = doc
            .first()
            .is_some_and(|first| !first.key().starts_with('$'));
        if !is_object {
            return Ok(Key::Single(Expression::parse(spec, context)?));
        }
        for element in doc.iter() {
            if element.kind().is_number() || matches!(element.value(), ValueRef::Boolean(_)) {
                return Err(Error::location(
                    17390,
                    "$group does not support inclusion-style expressions",
                ));
            }
        }
        // Checks the names of the fields, too.
        let whole = Expression::parse(spec, context)?;
        if whole.as_constant().is_some() {
            return Ok(Key::Single(whole));
        }
        let mut fields = doc
            .iter()
            .map(|element| {
                Ok((
                    element.key().into(),
                    Expression::parse(element.value(), context)?,
                ))
            })
            .collect::<Result<Vec<(Box<str>, Expression)>, Error>>()?;
        Ok(match fields.pop() {
            Some((name, only)) if fields.is_empty() => Key::OneField(name, only),
            Some(last) => {
                fields.push(last);
                Key::Fields(fields)
            }
            None => Key::Single(whole),
        })
    }
}
