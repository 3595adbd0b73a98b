//! The outer grammar: fields, logical operators, and what stands for itself.

use super::Filter;
use super::arguments::{describe, integer};
use super::parse_field::parse_field;
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::path::Path;
use model::bson::{Doc, MAX_STORED_DEPTH, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// Where a filter stands: some operators ask about the whole document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Document,
    ArrayElement,
}

pub(super) fn parse(doc: Doc<'_>, context: &QueryContext) -> Result<Filter, Error> {
    parse_document(doc, Scope::Document, context)
}

/// A document of conditions that must all hold.
pub(super) fn parse_document(
    doc: Doc<'_>,
    scope: Scope,
    context: &QueryContext,
) -> Result<Filter, Error> {
    let mut children = Vec::new();
    for element in doc {
        let name = element.key();
        let value = element.value();
        match name.strip_prefix('$') {
            // Parts of a DBRef are fields.
            None | Some("ref" | "id" | "db") => {
                let path = Path::new(name);
                if path.components().len() > MAX_STORED_DEPTH {
                    return Err(Error::location(5729100, "FieldPath is too long"));
                }
                parse_field(&path, value, context, &mut children)?;
            }
            Some(operator) => {
                if let Some(child) = parse_operator(operator, value, scope, context)? {
                    children.push(child);
                }
            }
        }
    }
    Ok(unwrap_single(children))
}

/// A conjunction of one is that one.
pub(super) fn unwrap_single(mut children: Vec<Filter>) -> Filter {
    match children.pop() {
        Some(only) if children.is_empty() => only,
        Some(last) => {
            children.push(last);
            Filter::And(children)
        }
        None => Filter::And(children),
    }
}

fn parse_operator(
    operator: &str,
    value: ValueRef<'_>,
    scope: Scope,
    context: &QueryContext,
) -> Result<Option<Filter>, Error> {
    let list = || parse_list(operator, value, scope, context);
    Ok(Some(match operator {
        "and" => Filter::And(list()?),
        "or" => Filter::Or(list()?),
        "nor" => Filter::Nor(list()?),
        "comment" => return Ok(None),
        "expr" | "where" | "text" if scope == Scope::ArrayElement => {
            return Err(Error::bad_value(format!(
                "${operator} can only be applied to the top-level document"
            )));
        }
        "expr" => Filter::Expression {
            source: value.to_owned(),
            expression: Box::new(Expression::parse(value, context)?),
        },
        "alwaysTrue" => {
            expect_one(operator, value)?;
            Filter::AlwaysTrue
        }
        "alwaysFalse" => {
            expect_one(operator, value)?;
            Filter::AlwaysFalse
        }
        "sampleRate" => parse_sample_rate(value)?,
        "text" => {
            return Err(match value {
                ValueRef::Document(text) => match text.get("$search") {
                    Some(ValueRef::String(_)) => {
                        Error::new(Code::INDEX_NOT_FOUND, "text index required for $text query")
                    }
                    Some(other) => Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "\"$search\" had the wrong type. Expected string, found {}",
                            other.kind().name()
                        ),
                    ),
                    None => Error::new(Code::NO_SUCH_KEY, "Missing expected field \"$search\""),
                },
                _ => Error::bad_value("$text expects an object"),
            });
        }
        "where" => {
            return Err(match value {
                ValueRef::String(_)
                | ValueRef::JavaScript(_)
                | ValueRef::JavaScriptWithScope { .. } => Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "$where is not supported: this server runs no JavaScript",
                ),
                _ => Error::bad_value("$where got bad type"),
            });
        }
        "jsonSchema" => {
            return Err(match value {
                ValueRef::Document(_) => Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "$jsonSchema is not supported yet",
                ),
                _ => Error::new(Code::TYPE_MISMATCH, "$jsonSchema must be an object"),
            });
        }
        "not" => {
            return Err(Error::bad_value(
                "unknown top level operator: $not. If you are trying to negate an entire \
                 expression, use $nor.",
            ));
        }
        unknown => {
            return Err(Error::bad_value(format!(
                "unknown top level operator: ${unknown}. If you have a field name that starts \
                 with a '$' symbol, consider using $getField or $setField."
            )));
        }
    }))
}

fn parse_list(
    operator: &str,
    value: ValueRef<'_>,
    scope: Scope,
    context: &QueryContext,
) -> Result<Vec<Filter>, Error> {
    let ValueRef::Array(list) = value else {
        return Err(Error::bad_value(format!("${operator} must be an array")));
    };
    if list.is_empty() {
        return Err(Error::bad_value("$and/$or/$nor must be a nonempty array"));
    }
    list.iter()
        .map(|entry| match entry {
            ValueRef::Document(doc) => parse_document(doc, scope, context),
            _ => Err(Error::bad_value(
                "$or/$and/$nor entries need to be full objects",
            )),
        })
        .collect()
}

fn expect_one(operator: &str, value: ValueRef<'_>) -> Result<(), Error> {
    let whole = integer(&format!("${operator}"), value)
        .map_err(|why| Error::new(Code::FAILED_TO_PARSE, why))?;
    if whole != 1 {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            format!("${operator} must be an integer value of 1"),
        ));
    }
    Ok(())
}

fn parse_sample_rate(value: ValueRef<'_>) -> Result<Filter, Error> {
    let Some(number) = Number::of(value) else {
        return Err(Error::bad_value(
            "argument to $sampleRate must be a numeric type",
        ));
    };
    let rate = number.to_f64();
    if !(0.0..=1.0).contains(&rate) {
        return Err(Error::bad_value(format!(
            "numeric argument to $sampleRate must be in [0, 1], found {}",
            describe(value)
        )));
    }
    Ok(if rate == 1.0 {
        Filter::AlwaysTrue
    } else if rate == 0.0 {
        Filter::AlwaysFalse
    } else {
        Filter::SampleRate(rate)
    })
}
