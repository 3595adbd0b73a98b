//! Reads the accumulators of `$group`.

use super::Ties;
use super::numeric::Extreme;
use super::ranked::Ranking;
use super::{Accumulator, Kind};
use crate::context::QueryContext;
use crate::expression::Expression;
use model::bson::{Value, ValueRef};
use model::{Code, Error};

pub(super) fn parse(
    field: &str,
    spec: ValueRef<'_>,
    context: &QueryContext,
) -> Result<Accumulator, Error> {
    let not_accumulator = || {
        Error::location(
            40234,
            format!("The field '{field}' must be an accumulator object"),
        )
    };
    let ValueRef::Document(doc) = spec else {
        return Err(not_accumulator());
    };
    let first = doc.first().ok_or_else(not_accumulator)?;
    let name = first.key();
    if !name.starts_with('$') {
        return Err(not_accumulator());
    }
    if doc.iter().nth(1).is_some() {
        return Err(Error::location(
            40238,
            format!("The field '{field}' must specify one accumulator"),
        ));
    }
    let argument = first.value();
    match name {
        "$firstN" | "$lastN" | "$maxN" | "$minN" => return parse_n(name, argument, context),
        "$top" | "$topN" | "$bottom" | "$bottomN" => return parse_ranked(name, argument, context),
        _ => {}
    }
    if matches!(argument, ValueRef::Array(_)) {
        return Err(Error::location(
            40237,
            format!("The {name} accumulator is a unary operator"),
        ));
    }
    let kind = match name {
        "$sum" => Kind::Sum,
        "$count" => Kind::Count,
        "$avg" => Kind::Avg,
        "$min" => Kind::Extreme(Extreme::Min, Ties::First),
        "$max" => Kind::Extreme(Extreme::Max, Ties::First),
        "$first" => Kind::First,
        "$last" => Kind::Last,
        "$push" => Kind::Push,
        "$addToSet" => Kind::AddToSet,
        "$mergeObjects" => Kind::MergeObjects,
        "$stdDevPop" => Kind::StdDevPop,
        "$stdDevSamp" => Kind::StdDevSamp,
        "$accumulator" => {
            return Err(Error::new(
                Code::COMMAND_NOT_SUPPORTED,
                "$accumulator needs server-side JavaScript, which is not supported",
            ));
        }
        _ => {
            return Err(Error::location(
                15952,
                format!("unknown group operator '{name}'"),
            ));
        }
    };
    let argument = match &kind {
        Kind::Count => match argument {
            ValueRef::Document(none) if none.is_empty() => Expression::constant(Value::Int32(1)),
            _ => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    "$count takes no arguments, i.e. $count:{}",
                ));
            }
        },
        _ => Expression::parse(argument, context)?,
    };
    Ok(Accumulator { kind, argument })
}

/// `{n, input}`.
fn parse_n(
    name: &str,
    argument: ValueRef<'_>,
    context: &QueryContext,
) -> Result<Accumulator, Error> {
    let ValueRef::Document(doc) = argument else {
        let code = if matches!(name, "$maxN" | "$minN") {
            5787900
        } else {
            5787801
        };
        return Err(Error::location(
            code,
            format!("specification must be an object; found {name}: {argument:?}"),
        ));
    };
    let (mut n, mut input) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "n" => n = Some(Expression::parse(element.value(), context)?),
            "input" => input = Some(Expression::parse(element.value(), context)?),
            other => {
                return Err(Error::location(
                    5787901,
                    format!("Unknown argument for 'n' operator: {other}"),
                ));
            }
        }
    }
    let n = n.ok_or_else(|| Error::location(5787906, "Missing value for 'n'"))?;
    let argument = input.ok_or_else(|| Error::location(5787907, "Missing value for 'input'"))?;
    let kind = match name {
        "$firstN" => Kind::FirstN(n),
        "$lastN" => Kind::LastN(n),
        "$maxN" => Kind::ExtremeN(Extreme::Max, n),
        _ => Kind::ExtremeN(Extreme::Min, n),
    };
    Ok(Accumulator { kind, argument })
}

/// `{n, sortBy, output}`, without `n` for one document.
fn parse_ranked(
    name: &str,
    argument: ValueRef<'_>,
    context: &QueryContext,
) -> Result<Accumulator, Error> {
    let ValueRef::Document(doc) = argument else {
        return Err(Error::location(
            5788001,
            format!("specification must be an object; found {name}: {argument:?}"),
        ));
    };
    let several = name.ends_with('N');
    let (mut n, mut sort_by, mut output) = (None, None, None);
    for element in doc.iter() {
        match element.key() {
            "n" if several => n = Some(Expression::parse(element.value(), context)?),
            "output" => output = Some(Expression::parse(element.value(), context)?),
            "sortBy" => {
                let ValueRef::Document(fields) = element.value() else {
                    return Err(Error::location(
                        10065,
                        "invalid parameter: expected an object (sortBy)",
                    ));
                };
                sort_by = Some(fields);
            }
            other => {
                return Err(Error::location(
                    5788002,
                    format!("Unknown argument to {name} '{other}'"),
                ));
            }
        }
    }
    if several && n.is_none() {
        return Err(Error::location(5788003, "Missing value for 'n'"));
    }
    let argument = output.ok_or_else(|| Error::location(5788004, "Missing value for 'output'"))?;
    let sort_by = sort_by.ok_or_else(|| Error::location(5788005, "Missing value for 'sortBy'"))?;
    let ranking = Ranking::parse(sort_by, name.starts_with("$bottom"))?;
    Ok(Accumulator {
        kind: Kind::Ranked { n, ranking },
        argument,
    })
}
