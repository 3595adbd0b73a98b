//! `$and`, `$or`, `$not`: they stop at the first argument that decides.

use super::node::{Evaluated, Frame, Node, truthy};
use model::Error;

pub(super) fn and<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    for argument in arguments {
        if !truthy(&argument.evaluate(frame)?) {
            return Ok(false.into());
        }
    }
    Ok(true.into())
}

pub(super) fn or<'a>(arguments: &'a [Node], frame: &mut Frame<'a>) -> Result<Evaluated<'a>, Error> {
    for argument in arguments {
        if truthy(&argument.evaluate(frame)?) {
            return Ok(true.into());
        }
    }
    Ok(false.into())
}

pub(super) fn not<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    Ok((!truthy(&arguments[0].evaluate(frame)?)).into())
}
