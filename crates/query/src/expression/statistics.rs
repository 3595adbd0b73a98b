//! `$sum`, `$avg`, `$min`, `$max`, `$stdDevPop`, `$stdDevSamp` over arguments.
//!
//! One argument that is an array stands for its elements; among several, an
//! array is a value like any other. What is computed is the accumulators' own.

use super::array::as_array;
use super::node::{Evaluated, Frame, Node};
use crate::accumulator::{Deviation, Extreme, Mean};
use model::Error;
use model::bson::ValueRef;
use model::number::{Number, Sum};

fn for_each<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    mut step: impl FnMut(ValueRef<'_>),
) -> Result<(), Error> {
    if let [only] = arguments {
        let value = only.evaluate(frame)?;
        match as_array(&value) {
            Some(array) => array.iter().for_each(step),
            None => {
                if let Some(value) = value.as_value() {
                    step(value);
                }
            }
        }
        return Ok(());
    }
    for argument in arguments {
        if let Some(value) = argument.evaluate(frame)?.as_value() {
            step(value);
        }
    }
    Ok(())
}

pub(super) fn sum<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut sum = Sum::new();
    for_each(arguments, frame, |value| {
        if let Some(number) = Number::of(value) {
            sum.add(number);
        }
    })?;
    Ok(Evaluated::Owned(sum.total().to_value()))
}

pub(super) fn avg<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut mean = Mean::default();
    for_each(arguments, frame, |value| mean.add(value))?;
    Ok(Evaluated::Owned(mean.finish()))
}

fn extreme<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
    which: Extreme,
) -> Result<Evaluated<'a>, Error> {
    if let [only] = arguments {
        let value = only.evaluate(frame)?;
        // The elements of a borrowed array are borrowed too.
        if let Evaluated::Borrowed(ValueRef::Array(array)) = value {
            let best = array
                .iter()
                .filter(|value| !value.is_nullish())
                .reduce(|best, value| {
                    if which.replaces(value, best) {
                        value
                    } else {
                        best
                    }
                });
            return Ok(Evaluated::Borrowed(best.unwrap_or(ValueRef::Null)));
        }
        let best = match as_array(&value) {
            Some(array) => array
                .iter()
                .filter(|value| !value.is_nullish())
                .reduce(|best, value| {
                    if which.replaces(value, best) {
                        value
                    } else {
                        best
                    }
                })
                .map(|value| value.to_owned()),
            None if value.is_nullish() => None,
            None => return Ok(value),
        };
        return Ok(best.map_or_else(Evaluated::null, Evaluated::Owned));
    }
    let mut best = Evaluated::null();
    for argument in arguments {
        let value = argument.evaluate(frame)?;
        let better = match (value.as_value(), best.as_value()) {
            (None, _) => false,
            (Some(value), _) if value.is_nullish() => false,
            (Some(value), Some(best)) => best.is_nullish() || which.replaces(value, best),
            (Some(_), None) => true,
        };
        if better {
            best = value;
        }
    }
    Ok(best)
}

pub(super) fn min<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    extreme(arguments, frame, Extreme::Min)
}

pub(super) fn max<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    extreme(arguments, frame, Extreme::Max)
}

pub(super) fn std_dev_pop<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut deviation = Deviation::default();
    for_each(arguments, frame, |value| deviation.add(value))?;
    Ok(Evaluated::Owned(deviation.population()))
}

pub(super) fn std_dev_samp<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let mut deviation = Deviation::default();
    for_each(arguments, frame, |value| deviation.add(value))?;
    Ok(Evaluated::Owned(deviation.sample()))
}
