//! What may stand behind a field: a value to equal, or operators.
//!
//! A document whose first name begins with `$` holds operators, unless it is a
//! DBRef; any other value is equality. Everything here also reads the inside of
//! `$not` and of `$elemMatch` over values, where the path is the value itself.

use super::arguments::{non_negative_int32, truncated};
use super::parse::{Scope, parse_document, unwrap_single};
use super::{BitMask, BitTest, Comparison, Filter, Predicate, TypeSet, ValueSet};
use crate::context::QueryContext;
use crate::path::Path;
use crate::regex::Regex;
use model::bson::{Doc, Element, ValueRef};
use model::number::{self, Number};
use model::{Code, Error};

/// Appends the conditions on one field.
pub(super) fn parse_field(
    path: &Path,
    value: ValueRef<'_>,
    context: &QueryContext,
    out: &mut Vec<Filter>,
) -> Result<(), Error> {
    match value {
        ValueRef::Document(doc) if holds_operators(doc) => parse_operators(path, doc, context, out),
        ValueRef::Regex { pattern, options } => {
            out.push(field(path, Predicate::Regex(Regex::new(pattern, options)?)));
            Ok(())
        }
        value => {
            out.push(comparison(path, Comparison::Equal, value)?);
            Ok(())
        }
    }
}

fn holds_operators(doc: Doc<'_>) -> bool {
    match doc.first() {
        Some(first) if first.key().starts_with('$') => {
            doc.get("$ref").is_none() || doc.get("$id").is_none()
        }
        _ => false,
    }
}

fn field(path: &Path, predicate: Predicate) -> Filter {
    Filter::Field {
        path: path.clone(),
        predicate,
    }
}

fn parse_operators(
    path: &Path,
    doc: Doc<'_>,
    context: &QueryContext,
    out: &mut Vec<Filter>,
) -> Result<(), Error> {
    for element in doc {
        if let Some(filter) = parse_operator(path, doc, &element, context)? {
            out.push(filter);
        }
    }
    Ok(())
}

fn parse_operator(
    path: &Path,
    siblings: Doc<'_>,
    element: &Element<'_>,
    context: &QueryContext,
) -> Result<Option<Filter>, Error> {
    let name = element.key();
    let value = element.value();
    let bits = |test: BitTest| -> Result<Filter, Error> {
        let mask = BitMask::parse(path.as_str(), name, value)?;
        Ok(field(path, Predicate::Bits(test, mask)))
    };
    Ok(Some(match name {
        "$eq" => comparison(path, Comparison::Equal, value)?,
        "$lt" => comparison(path, Comparison::Less, value)?,
        "$lte" => comparison(path, Comparison::LessOrEqual, value)?,
        "$gt" => comparison(path, Comparison::Greater, value)?,
        "$gte" => comparison(path, Comparison::GreaterOrEqual, value)?,
        "$ne" => match value {
            ValueRef::Regex { .. } => {
                return Err(Error::bad_value("Can't have regex as arg to $ne."));
            }
            value => not(comparison(path, Comparison::Equal, value)?),
        },
        "$in" => field(path, Predicate::In(parse_values(name, value)?)),
        "$nin" => not(field(path, Predicate::In(parse_values(name, value)?))),
        "$not" => parse_not(path, value, context)?,
        "$exists" if number::is_truthy(value) => field(path, Predicate::Exists),
        "$exists" => not(field(path, Predicate::Exists)),
        "$type" => field(path, Predicate::Type(TypeSet::parse(path.as_str(), value)?)),
        "$size" => {
            let size = non_negative_int32(name, value)
                .map_err(|why| Error::bad_value(format!("Failed to parse $size. {why}")))?;
            field(path, Predicate::Size(size.into()))
        }
        "$mod" => field(path, parse_modulo(value)?),
        "$all" => parse_all(path, value, context)?,
        "$elemMatch" => field(path, parse_element_match(value, context)?),
        "$regex" => field(path, Predicate::Regex(parse_regex(siblings, value)?)),
        "$options" if siblings.get("$regex").is_some() => return Ok(None),
        "$options" => return Err(Error::bad_value("$options needs a $regex")),
        "$bitsAllSet" => bits(BitTest::AllSet)?,
        "$bitsAllClear" => bits(BitTest::AllClear)?,
        "$bitsAnySet" => bits(BitTest::AnySet)?,
        "$bitsAnyClear" => bits(BitTest::AnyClear)?,
        "$where" => return Err(Error::bad_value("$where cannot be applied to a field")),
        "$near" | "$nearSphere" | "$geoNear" | "$geoWithin" | "$geoIntersects" | "$within" => {
            return Err(geospatial(name, value));
        }
        unknown => {
            return Err(Error::bad_value(format!("unknown operator: {unknown}")));
        }
    }))
}

/// Geospatial operators are not supported; what is written wrongly is refused
/// with MongoDB's code all the same.
fn geospatial(name: &str, value: ValueRef<'_>) -> Error {
    let near = matches!(name, "$near" | "$nearSphere" | "$geoNear");
    let shape = match value {
        ValueRef::Document(shape) => shape,
        ValueRef::Array(point) if near => point.as_doc(),
        _ if near => return Error::bad_value(format!("near must be first in: {name}")),
        _ => return Error::bad_value("geometry must be an object"),
    };
    match shape.first() {
        None if near => Error::bad_value("$geometry is required for geo near query"),
        None => Error::bad_value("geo query doesn't have any geometry"),
        Some(_) if near => Error::new(
            Code::NO_QUERY_EXECUTION_PLANS,
            "unable to find index for $geoNear query: geospatial indexes are not supported yet",
        ),
        Some(first) => match first.key() {
            "$geometry" | "$box" | "$polygon" | "$center" | "$centerSphere" | "$uniqueDocs" => {
                Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    format!("{name} is not supported yet"),
                )
            }
            other => Error::bad_value(format!("unknown geo specifier: {other}")),
        },
    }
}

fn not(filter: Filter) -> Filter {
    Filter::Not(Box::new(filter))
}

fn comparison(path: &Path, comparison: Comparison, value: ValueRef<'_>) -> Result<Filter, Error> {
    match value {
        ValueRef::Undefined => Err(Error::bad_value("cannot compare to undefined")),
        ValueRef::Regex { .. } if comparison != Comparison::Equal => {
            Err(Error::bad_value(format!(
                "Can't have RegEx as arg to predicate over field '{}'.",
                path.as_str()
            )))
        }
        value => Ok(field(
            path,
            Predicate::Compare(comparison, value.to_owned()),
        )),
    }
}

fn parse_not(path: &Path, value: ValueRef<'_>, context: &QueryContext) -> Result<Filter, Error> {
    match value {
        ValueRef::Regex { pattern, options } => Ok(not(field(
            path,
            Predicate::Regex(Regex::new(pattern, options)?),
        ))),
        ValueRef::Document(doc) if doc.is_empty() => Err(Error::bad_value("$not cannot be empty")),
        ValueRef::Document(doc) => {
            let mut children = Vec::new();
            parse_operators(path, doc, context, &mut children)?;
            Ok(not(unwrap_single(children)))
        }
        _ => Err(Error::bad_value("$not needs a regex or a document")),
    }
}

fn parse_values(operator: &str, value: ValueRef<'_>) -> Result<ValueSet, Error> {
    let ValueRef::Array(list) = value else {
        return Err(Error::bad_value(format!("{operator} needs an array")));
    };
    let mut values = Vec::new();
    let mut regexes = Vec::new();
    for value in list.iter() {
        match value {
            ValueRef::Document(doc) if holds_operators(doc) => {
                return Err(Error::bad_value("cannot nest $ under $in"));
            }
            ValueRef::Undefined => {
                return Err(Error::bad_value(
                    "InMatchExpression equality cannot be undefined",
                ));
            }
            ValueRef::Regex { pattern, options } => regexes.push(Regex::new(pattern, options)?),
            value => values.push(value.to_owned()),
        }
    }
    Ok(ValueSet::new(values, regexes))
}

fn parse_modulo(value: ValueRef<'_>) -> Result<Predicate, Error> {
    let malformed = |what: &str| Err(Error::bad_value(format!("malformed mod, {what}")));
    let ValueRef::Array(list) = value else {
        return malformed("needs to be an array");
    };
    let mut items = list.iter();
    let (Some(divisor), Some(remainder)) = (items.next(), items.next()) else {
        return malformed("not enough elements");
    };
    if items.next().is_some() {
        return malformed("too many elements");
    }
    let Some(divisor) = Number::of(divisor) else {
        return malformed("divisor not a number");
    };
    let Some(remainder) = Number::of(remainder) else {
        return malformed("remainder not a number");
    };
    let whole = |name: &str, number: Number| {
        truncated(number).map_err(|why| {
            Error::bad_value(format!(
                "malformed mod, {name} value is invalid :: caused by :: {why}"
            ))
        })
    };
    let divisor = whole("divisor", divisor)?;
    let remainder = whole("remainder", remainder)?;
    if divisor == 0 {
        return Err(Error::bad_value("divisor cannot be 0"));
    }
    Ok(Predicate::Modulo { divisor, remainder })
}

/// `$all` is a conjunction over one path.
fn parse_all(path: &Path, value: ValueRef<'_>, context: &QueryContext) -> Result<Filter, Error> {
    let ValueRef::Array(list) = value else {
        return Err(Error::bad_value("$all needs an array"));
    };
    if list.is_empty() {
        return Ok(Filter::AlwaysFalse);
    }
    let first_operator = |value: ValueRef<'_>| match value {
        ValueRef::Document(doc) => doc.first().map(|first| first.key().to_owned()),
        _ => None,
    };
    let mut children = Vec::new();
    if list.iter().next().and_then(first_operator).as_deref() == Some("$elemMatch") {
        for value in list.iter() {
            let argument = match value {
                ValueRef::Document(doc) => doc.first().filter(|first| first.key() == "$elemMatch"),
                _ => None,
            };
            let Some(argument) = argument else {
                return Err(Error::bad_value("$all/$elemMatch has to be consistent"));
            };
            children.push(field(path, parse_element_match(argument.value(), context)?));
        }
        return Ok(Filter::And(children));
    }
    for value in list.iter() {
        if first_operator(value).is_some_and(|name| is_known(&name)) {
            return Err(Error::bad_value("no $ expressions in $all"));
        }
        children.push(match value {
            ValueRef::Regex { pattern, options } => {
                field(path, Predicate::Regex(Regex::new(pattern, options)?))
            }
            value => comparison(path, Comparison::Equal, value)?,
        });
    }
    Ok(Filter::And(children))
}

/// The operators on fields; anything else with a `$` may be a value in `$all`.
fn is_known(name: &str) -> bool {
    matches!(
        name,
        "$eq"
            | "$ne"
            | "$lt"
            | "$lte"
            | "$gt"
            | "$gte"
            | "$in"
            | "$nin"
            | "$exists"
            | "$type"
            | "$size"
            | "$mod"
            | "$all"
            | "$elemMatch"
            | "$regex"
            | "$options"
            | "$bitsAllSet"
            | "$bitsAllClear"
            | "$bitsAnySet"
            | "$bitsAnyClear"
            | "$near"
            | "$nearSphere"
            | "$geoNear"
            | "$geoWithin"
            | "$geoIntersects"
            | "$within"
    )
}

/// Over values if the first name is an operator on fields, else over documents.
fn parse_element_match(value: ValueRef<'_>, context: &QueryContext) -> Result<Predicate, Error> {
    let ValueRef::Document(doc) = value else {
        return Err(Error::bad_value("$elemMatch needs an Object"));
    };
    let is_over_values = holds_operators(doc)
        && doc.first().is_some_and(|first| {
            !matches!(
                first.key(),
                "$and"
                    | "$or"
                    | "$nor"
                    | "$where"
                    | "$expr"
                    | "$text"
                    | "$comment"
                    | "$alwaysTrue"
                    | "$alwaysFalse"
                    | "$jsonSchema"
            )
        });
    if is_over_values {
        let mut filters = Vec::new();
        parse_operators(&Path::itself(), doc, context, &mut filters)?;
        return Ok(Predicate::ElementPasses(filters));
    }
    let filter = parse_document(doc, Scope::ArrayElement, context)?;
    Ok(Predicate::ElementMatches(Box::new(filter)))
}

/// `$regex`, with `$options` wherever it stands beside it.
fn parse_regex(siblings: Doc<'_>, value: ValueRef<'_>) -> Result<Regex, Error> {
    let options = match siblings.get("$options") {
        None => None,
        Some(ValueRef::String(options)) => Some(options),
        Some(_) => return Err(Error::bad_value("$options has to be a string")),
    };
    match value {
        ValueRef::String(pattern) => Regex::new(pattern, options.unwrap_or("")),
        ValueRef::Regex {
            pattern,
            options: "",
        } => Regex::new(pattern, options.unwrap_or("")),
        ValueRef::Regex {
            pattern,
            options: own,
        } => {
            // MongoDB has a number for each order of the two, and minds empty
            // options only behind the pattern.
            let options_first = siblings
                .iter()
                .find(|element| matches!(element.key(), "$regex" | "$options"))
                .is_some_and(|first| first.key() == "$options");
            if options.is_none_or(|options| options_first && options.is_empty()) {
                return Regex::new(pattern, own);
            }
            Err(Error::location(
                if options_first { 51074 } else { 51075 },
                "options set in both $regex and $options",
            ))
        }
        _ => Err(Error::bad_value("$regex has to be a string")),
    }
}
