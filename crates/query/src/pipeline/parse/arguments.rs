//! The arguments of stages that need no file of their own: counts, sorts, samples, and
//! the stages that show what the server knows.

use super::{Scope, missing_field, unknown_field};
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::pipeline::group::Group;
use crate::pipeline::source::Replacement;
use crate::pipeline::stage::{Stage, Step};
use crate::sort::SortPattern;
use model::bson::{DocWriter, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// The argument of `$limit` and `$skip`.
pub(super) fn count_argument(stage: &str, value: ValueRef<'_>, code: i32) -> Result<u64, Error> {
    let fail = |why: &str| {
        Err(Error::location(
            code,
            format!("invalid argument to {stage} stage: {why}: {stage}: {value:?}"),
        ))
    };
    let Some(number) = Number::of(value) else {
        return fail("Expected a number in");
    };
    match number.to_i64_exact() {
        Some(count) => match u64::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => fail("Expected a non-negative number in"),
        },
        None if number.is_integral() => fail("Cannot represent as a 64-bit integer"),
        None => fail("Expected an integer"),
    }
}

pub(super) fn parse_limit(value: ValueRef<'_>) -> Result<u64, Error> {
    match count_argument("$limit", value, 5107201)? {
        0 => Err(Error::location(15958, "the limit must be positive")),
        limit => Ok(limit),
    }
}

pub(super) fn parse_sort(value: ValueRef<'_>) -> Result<SortPattern, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::location(
            15973,
            "the $sort key specification must be an object",
        ));
    };
    if doc.is_empty() {
        return Err(Error::location(
            15976,
            "$sort stage must have at least one sort key",
        ));
    }
    SortPattern::parse(doc)
}

pub(super) fn parse_count(value: ValueRef<'_>) -> Result<Box<str>, Error> {
    let fail = |code: i32, why: &str| Err(Error::location(code, format!("the count field {why}")));
    let ValueRef::String(name) = value else {
        return fail(40156, "must be a non-empty string");
    };
    if name.is_empty() {
        return fail(40157, "must be a non-empty string");
    }
    if name.starts_with('$') {
        return fail(40158, "cannot be a $-prefixed path");
    }
    if name.contains('\0') {
        return fail(40159, "cannot contain a null byte");
    }
    if name.contains('.') {
        return fail(40160, "cannot contain '.'");
    }
    if name == "_id" {
        return Err(Error::location(
            15948,
            "a group's _id may only be specified once",
        ));
    }
    Ok(name.into())
}

pub(super) fn parse_replace_root(
    spec: ValueRef<'_>,
    context: &QueryContext,
) -> Result<Replacement, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::location(
            40229,
            format!(
                "expected an object as specification for $replaceRoot stage, got {}",
                spec.kind().name()
            ),
        ));
    };
    for element in doc.iter() {
        if element.key() != "newRoot" {
            return Err(unknown_field("$replaceRoot", element.key()));
        }
    }
    let root = doc
        .get("newRoot")
        .ok_or_else(|| missing_field("$replaceRoot", "newRoot"))?;
    Ok(Replacement {
        expression: Expression::parse(root, context)?,
        name: "'newRoot' expression ",
    })
}

pub(super) fn parse_sample(value: ValueRef<'_>) -> Result<u64, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::location(
            28745,
            "the $sample stage specification must be an object",
        ));
    };
    let mut size = None;
    for element in doc.iter() {
        if element.key() != "size" {
            return Err(Error::location(
                28748,
                format!("unrecognized option to $sample: {}", element.key()),
            ));
        }
        let number = Number::of(element.value())
            .ok_or_else(|| Error::location(28746, "size argument to $sample must be a number"))?;
        let whole = number.to_i64_truncated().unwrap_or(i64::MAX);
        size = Some(u64::try_from(whole).map_err(|_| {
            Error::location(28747, "size argument to $sample must not be negative")
        })?);
    }
    size.ok_or_else(|| Error::location(28749, "$sample stage must specify a size"))
}

/// `$group` with a count, then `$sort`.
pub(super) fn parse_sort_by_count(
    spec: ValueRef<'_>,
    context: &QueryContext,
) -> Result<[Step; 2], Error> {
    const MESSAGE: &str = "the sortByCount field must be defined as a $-prefixed path or an \
                           expression inside an object";
    match spec {
        ValueRef::Document(doc) if !doc.first().is_some_and(|e| e.key().starts_with('$')) => {
            return Err(Error::location(40147, MESSAGE));
        }
        ValueRef::String(text) if !text.starts_with('$') => {
            return Err(Error::location(40148, MESSAGE));
        }
        ValueRef::Document(_) | ValueRef::String(_) => {}
        _ => {
            return Err(Error::location(
                40149,
                "the sortByCount field must be specified as a string or as an object",
            ));
        }
    }
    let mut group = DocWriter::new().with("_id", spec);
    group.begin_document("count").append("$sum", 1).end();
    let group = group.finish();
    let sort = DocWriter::new().with("count", -1).finish();
    Ok([
        Step::new(
            "$group",
            &group,
            Stage::Group(Box::new(Group::parse(ValueRef::from(&group), context)?)),
        ),
        Step::new(
            "$sort",
            &sort,
            Stage::Sort {
                pattern: SortPattern::parse(sort.as_doc())?,
                limit: None,
            },
        ),
    ])
}

pub(super) fn parse_current_operations(
    spec: ValueRef<'_>,
    scope: &Scope<'_>,
) -> Result<Stage, Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "$currentOp options must be specified in an object, but found: {}",
                spec.kind().name()
            ),
        ));
    };
    for element in doc.iter() {
        let known = matches!(
            element.key(),
            "allUsers"
                | "idleConnections"
                | "idleSessions"
                | "localOps"
                | "truncateOps"
                | "idleCursors"
                | "backtrace"
                | "targetAllNodes"
        );
        if !known {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "Unrecognized option '{}' in $currentOp stage.",
                    element.key()
                ),
            ));
        }
        if !matches!(element.value(), ValueRef::Boolean(_)) {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "The '{}' parameter of the $currentOp stage must be a boolean value, but \
                     found: {}",
                    element.key(),
                    element.value().kind().name()
                ),
            ));
        }
    }
    if scope.database != "admin" || scope.collection.is_some() {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            "$currentOp must be run against the 'admin' database with {aggregate: 1}",
        ));
    }
    Ok(Stage::CurrentOperations(doc.to_owned()))
}
