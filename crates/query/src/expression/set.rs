//! Arrays as sets: `$setUnion`, `$setIntersection`, `$setDifference`,
//! `$setEquals`, `$setIsSubset`, `$allElementsTrue`, `$anyElementTrue`.
//!
//! Elements are equal if they compare equal, so 1 and 1.0 are one element.
//! Unions and intersections come out sorted, as the real server's do.

use super::array::as_array;
use super::node::{Evaluated, Frame, Node, truthy_value};
use model::bson::{Array, ArrayBuf, Kind, Value, ValueRef};
use model::{Error, order};

/// Elements between two steps at which the evaluation may be interrupted.
const ELEMENTS_PER_STEP: usize = 1024;

fn expect<'v>(value: &'v Evaluated<'_>, code: i32, operator: &str) -> Result<Array<'v>, Error> {
    as_array(value).ok_or_else(|| {
        Error::location(
            code,
            format!(
                "All operands of {operator} must be arrays. One argument is of type: {}",
                value.type_name()
            ),
        )
    })
}

/// The elements in order, each once; of equal ones the first is kept.
fn sorted_set<'v>(array: Array<'v>, frame: &mut Frame<'_>) -> Result<Vec<ValueRef<'v>>, Error> {
    let mut values: Vec<_> = array.iter().collect();
    sort(&mut values, frame)?;
    Ok(values)
}

fn sort(values: &mut Vec<ValueRef<'_>>, frame: &mut Frame<'_>) -> Result<(), Error> {
    frame.sort(values, |left, right| order::compare(*left, *right))?;
    values.dedup_by(|later, earlier| order::compare(*later, *earlier).is_eq());
    Ok(())
}

fn owned(values: &[ValueRef<'_>]) -> Vec<Value> {
    values.iter().map(|value| value.to_owned()).collect()
}

fn contains(set: &[ValueRef<'_>], value: ValueRef<'_>) -> bool {
    set.binary_search_by(|known| order::compare(*known, value))
        .is_ok()
}

pub(super) fn all_elements_true<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            17040,
            format!(
                "$allElementsTrue's argument must be an array, but is {}",
                value.type_name()
            ),
        ));
    };
    Ok(array.iter().all(truthy_value).into())
}

pub(super) fn any_element_true<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let value = arguments[0].evaluate(frame)?;
    let Some(array) = as_array(&value) else {
        return Err(Error::location(
            17041,
            format!(
                "$anyElementTrue's argument must be an array, but is {}",
                value.type_name()
            ),
        ));
    };
    Ok(array.iter().any(truthy_value).into())
}

pub(super) fn union<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut inputs = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        expect(&value, 17043, "$setUnion")?;
        inputs.push(value);
    }
    let mut values: Vec<_> = inputs
        .iter()
        .filter_map(as_array)
        .flat_map(Array::iter)
        .collect();
    sort(&mut values, frame)?;
    Ok(values.into_iter().collect::<ArrayBuf>().into())
}

pub(super) fn intersection<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let Some((first, others)) = arguments.split_first() else {
        return Ok(ArrayBuf::new().into());
    };
    let first = first.evaluate(frame)?;
    if first.is_nullish() {
        return Ok(Evaluated::null());
    }
    let mut common = owned(&sorted_set(
        expect(&first, 17047, "$setIntersection")?,
        frame,
    )?);
    for argument in others {
        let value = argument.evaluate(frame)?;
        if value.is_nullish() {
            return Ok(Evaluated::null());
        }
        let set = sorted_set(expect(&value, 17047, "$setIntersection")?, frame)?;
        // Of two equal elements the one from the smaller set remains.
        let (mut smaller, larger) = if common.len() > set.len() {
            (owned(&set), common)
        } else {
            let larger = owned(&set);
            (common, larger)
        };
        smaller.retain(|value| {
            larger
                .binary_search_by(|known| order::compare(known.as_ref(), value.as_ref()))
                .is_ok()
        });
        common = smaller;
    }
    Ok(common.into_iter().collect::<ArrayBuf>().into())
}

pub(super) fn difference<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let left = arguments[0].evaluate(frame)?;
    let right = arguments[1].evaluate(frame)?;
    if left.is_nullish() || right.is_nullish() {
        return Ok(Evaluated::null());
    }
    let from = expect(&left, 17048, "$setDifference")?;
    let without = sorted_set(expect(&right, 17049, "$setDifference")?, frame)?;
    // Order is kept, repetitions are not: of equal elements the first stays.
    let mut left: Vec<(ValueRef<'_>, usize)> = Vec::new();
    for (at, value) in from.iter().enumerate() {
        if at.is_multiple_of(ELEMENTS_PER_STEP) {
            frame.step()?;
        }
        if !contains(&without, value) {
            left.push((value, at));
        }
    }
    frame.sort(&mut left, |a, b| order::compare(a.0, b.0))?;
    left.dedup_by(|later, earlier| order::compare(later.0, earlier.0).is_eq());
    left.sort_unstable_by_key(|(_, at)| *at);
    let kept = left.into_iter().map(|(value, _)| value);
    Ok(kept.collect::<ArrayBuf>().into())
}

pub(super) fn equals<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let first = arguments[0].evaluate(frame)?;
    let set = sorted_set(expect(&first, 17044, "$setEquals")?, frame)?;
    for argument in &arguments[1..] {
        let value = argument.evaluate(frame)?;
        let other = sorted_set(expect(&value, 17044, "$setEquals")?, frame)?;
        let equal = set.len() == other.len()
            && set
                .iter()
                .zip(&other)
                .all(|(left, right)| order::compare(*left, *right).is_eq());
        if !equal {
            return Ok(false.into());
        }
    }
    Ok(true.into())
}

pub(super) fn is_subset<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let left = arguments[0].evaluate(frame)?;
    let right = arguments[1].evaluate(frame)?;
    // A constant right side has a code of its own for a left one that is no array.
    let code = if arguments[1].is_constant() && !arguments[0].is_constant() {
        17310
    } else {
        17046
    };
    let part = expect(&left, code, "$setIsSubset")?;
    let whole = sorted_set(expect(&right, 17042, "$setIsSubset")?, frame)?;
    Ok(part.iter().all(|value| contains(&whole, value)).into())
}

/// Constant operands that are no arrays are refused before any document is
/// looked at, with codes of their own.
pub(super) fn check_constants(operator: &str, arguments: &[Node]) -> Result<(), Error> {
    let check = |node: &Node, code: i32| {
        let value = match node {
            Node::Constant(value) => Evaluated::Borrowed(value.as_ref()),
            Node::Missing => Evaluated::Missing,
            _ => return Ok(()),
        };
        expect(&value, code, operator).map(|_| ())
    };
    match (operator, arguments) {
        ("$setEquals", operands) => operands.iter().try_for_each(|node| check(node, 5887502)),
        ("$indexOfArray", [Node::Constant(array), ..])
            if !array.as_ref().is_nullish()
                && array.as_ref().kind() != Kind::Array
                && !arguments.iter().all(Node::is_constant) =>
        {
            Err(Error::location(
                50809,
                format!(
                    "First operand of $indexOfArray must be an array. First argument is of type: \
                     {}",
                    array.as_ref().kind().name()
                ),
            ))
        }
        ("$setIsSubset", [part, whole]) if !part.is_constant() => check(whole, 17311),
        _ => Ok(()),
    }
}
