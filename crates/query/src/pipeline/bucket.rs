//! `$bucket`, which is a `$group` in disguise: its key is a `$switch` over the
//! boundaries, and a `$sort` puts the buckets in order.
//!
//! Boundaries are constants of one type, ascending; what lies in none of them goes to
//! the default, or is the `$switch`'s error.

use super::group::Group;
use super::stage::{Stage, Step};
use crate::context::QueryContext;
use crate::expression::Expression;
use crate::sort::SortPattern;
use model::Error;
use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::order::{bracket, compare};

/// `$bucket` as the two stages that it stands for.
pub(super) fn parse_bucket(spec: ValueRef<'_>, context: &QueryContext) -> Result<[Step; 2], Error> {
    let ValueRef::Document(doc) = spec else {
        return Err(Error::location(
            40201,
            format!(
                "Argument to $bucket stage must be an object, but found type: {}.",
                spec.kind().name()
            ),
        ));
    };
    let (mut group_by, mut boundaries, mut default, mut output) = (None, None, None, None);
    for element in doc.iter() {
        let value = element.value();
        match element.key() {
            "groupBy" => group_by = Some(bucket_group_by(value)?),
            "boundaries" => boundaries = Some(bucket_boundaries(value, context)?),
            "default" => {
                default = Some(constant(value, context).ok_or_else(|| {
                    Error::location(
                        40195,
                        format!(
                            "The $bucket 'default' field must be a constant expression, but found: \
                         {value:?}."
                        ),
                    )
                })?)
            }
            "output" => match value {
                ValueRef::Document(fields) => output = Some(fields),
                _ => {
                    return Err(Error::location(
                        40196,
                        format!(
                            "The $bucket 'output' field must be an object, but found type: {}.",
                            value.kind().name()
                        ),
                    ));
                }
            },
            unknown => {
                return Err(Error::location(
                    40197,
                    format!("Unrecognized option to $bucket: {unknown}."),
                ));
            }
        }
    }
    let (Some(group_by), Some(boundaries)) = (group_by, boundaries) else {
        return Err(Error::location(
            40198,
            "$bucket requires 'groupBy' and 'boundaries' to be specified.",
        ));
    };
    if let (Some(default), [lowest, .., highest]) = (&default, &*boundaries) {
        let inside = compare(default.as_ref(), lowest.as_ref()).is_ge()
            && compare(default.as_ref(), highest.as_ref()).is_lt();
        if inside {
            return Err(Error::location(
                40199,
                "The $bucket 'default' field must be less than the lowest boundary or greater \
                 than or equal to the highest boundary.",
            ));
        }
    }
    let group = bucket_group(group_by, &boundaries, default.as_ref(), output);
    let sort = DocWriter::new().with("_id", 1).finish();
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

fn bucket_group_by(value: ValueRef<'_>) -> Result<ValueRef<'_>, Error> {
    if is_path_or_expression(value) {
        return Ok(value);
    }
    Err(Error::location(
        40202,
        format!(
            "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression, \
             but found: {value:?}."
        ),
    ))
}

pub(super) fn is_path_or_expression(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::String(text) => text.starts_with('$'),
        ValueRef::Document(doc) => doc.first().is_some_and(|e| e.key().starts_with('$')),
        _ => false,
    }
}

fn constant(value: ValueRef<'_>, context: &QueryContext) -> Option<Value> {
    let expression = Expression::parse(value, context).ok()?;
    expression.as_constant().map(|value| value.to_owned())
}

fn bucket_boundaries(value: ValueRef<'_>, context: &QueryContext) -> Result<Vec<Value>, Error> {
    let ValueRef::Array(listed) = value else {
        return Err(Error::location(
            40200,
            format!(
                "The $bucket 'boundaries' field must be an array, but found type: {}.",
                value.kind().name()
            ),
        ));
    };
    let boundaries = constants(listed, context)?;
    if boundaries.len() < 2 {
        return Err(Error::location(
            40192,
            format!(
                "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
                boundaries.len()
            ),
        ));
    }
    for (at, pair) in boundaries.windows(2).enumerate() {
        let [lower, upper] = pair else { continue };
        if bracket(lower.kind()) != bracket(upper.kind()) {
            return Err(Error::location(
                40193,
                format!(
                    "All values in the the 'boundaries' option to $bucket must have the same \
                     type. Found conflicting types {} and {}.",
                    lower.kind().name(),
                    upper.kind().name()
                ),
            ));
        }
        if compare(lower.as_ref(), upper.as_ref()).is_ge() {
            return Err(Error::location(
                40194,
                format!(
                    "The 'boundaries' option to $bucket must be sorted, but elements {at} and {} \
                     are not in ascending order ({:?} is not less than {:?}).",
                    at + 1,
                    lower.as_ref(),
                    upper.as_ref()
                ),
            ));
        }
    }
    Ok(boundaries)
}

fn constants(listed: Array<'_>, context: &QueryContext) -> Result<Vec<Value>, Error> {
    listed
        .iter()
        .map(|value| {
            constant(value, context).ok_or_else(|| {
                Error::location(
                    40191,
                    format!(
                        "The $bucket 'boundaries' field must be an array of constant values, but \
                         found value: {value:?}."
                    ),
                )
            })
        })
        .collect()
}

fn bucket_group(
    group_by: ValueRef<'_>,
    boundaries: &[Value],
    default: Option<&Value>,
    output: Option<Doc<'_>>,
) -> DocBuf {
    let mut group = DocWriter::new();
    group.begin_document("_id").begin_document("$switch");
    group.begin_array("branches");
    for pair in boundaries.windows(2) {
        let [lower, upper] = pair else { continue };
        group
            .push_document()
            .begin_document("case")
            .begin_array("$and");
        for (operator, bound) in [("$gte", lower), ("$lt", upper)] {
            group.push_document().begin_array(operator).push(group_by);
            group.push_document().append("$literal", bound).end();
            group.end().end();
        }
        group.end().end();
        group.begin_document("then").append("$literal", lower).end();
        group.end();
    }
    group.end();
    if let Some(default) = default {
        group
            .begin_document("default")
            .append("$literal", default)
            .end();
    }
    group.end().end();
    match output {
        Some(fields) => fields.iter().for_each(|field| {
            group.append_element(&field);
        }),
        None => {
            group.begin_document("count").append("$sum", 1).end();
        }
    }
    group.finish()
}
