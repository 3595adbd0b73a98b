//! `$cond`, `$ifNull`, `$switch`: only the chosen branch is evaluated.

use super::node::{Evaluated, Frame, Node, truthy, truthy_value};
use super::parse::{Parser, object, unknown_argument};
use super::table::Operator;
use model::Error;
use model::bson::ValueRef;

/// `[if, then, else]`, or the same by name.
pub(super) fn parse_cond(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let ValueRef::Document(doc) = argument else {
        let nodes = parser.positional(argument)?;
        if nodes.len() != 3 {
            return Err(Error::location(
                16020,
                format!(
                    "Expression $cond takes exactly 3 arguments. {} were passed in.",
                    nodes.len()
                ),
            ));
        }
        return parser.call(operator, nodes);
    };
    let mut nodes = [Node::Absent, Node::Absent, Node::Absent];
    for element in doc.iter() {
        let at = match element.key() {
            "if" => 0,
            "then" => 1,
            "else" => 2,
            other => {
                return Err(Error::location(
                    17083,
                    format!("Unrecognized parameter to $cond: {other}"),
                ));
            }
        };
        nodes[at] = parser.operand(element.value())?;
    }
    for (at, name) in ["if", "then", "else"].iter().enumerate() {
        if nodes[at].is_absent() {
            return Err(Error::location(
                17080 + at as i32,
                format!("Missing '{name}' parameter to $cond"),
            ));
        }
    }
    parser.call(operator, Box::new(nodes))
}

pub(super) fn cond<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    if truthy(&arguments[0].evaluate(frame)?) {
        arguments[1].evaluate(frame)
    } else {
        arguments[2].evaluate(frame)
    }
}

/// The first argument that is neither null nor missing, else the last.
pub(super) fn if_null<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let (last, others) = arguments.split_last().expect("$ifNull has two arguments");
    for argument in others {
        let value = argument.evaluate(frame)?;
        if !value.is_nullish() {
            return Ok(value);
        }
    }
    last.evaluate(frame)
}

/// Arguments become `[default, case, then, case, then, …]`.
pub(super) fn parse_switch(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    argument: ValueRef<'_>,
) -> Result<Node, Error> {
    let doc = object("$switch", argument, 40060)?;
    // What is left out cannot fail: errors of constants are the switch's own until it is known what stays.
    let outside = parser.fold_error.take();
    let mut default = Part::absent();
    let mut branches = Vec::new();
    for element in doc.iter() {
        match element.key() {
            "branches" => {
                let ValueRef::Array(listed) = element.value() else {
                    return Err(Error::location(
                        40061,
                        "$switch expected an array for 'branches'",
                    ));
                };
                for branch in listed.iter() {
                    branches.push(parse_branch(parser, branch)?);
                }
            }
            "default" => default = Part::parse(parser, element.value())?,
            other => {
                return Err(unknown_argument("$switch", other, 40067));
            }
        }
    }
    if branches.is_empty() {
        return Err(Error::location(
            40068,
            "$switch requires at least one branch",
        ));
    }
    let (mut nodes, failed) = without_constant_cases(default, branches);
    parser.fold_error = outside.or(failed);
    match (nodes.len(), &nodes[0]) {
        (1, Node::Absent) => Err(Error::location(
            40069,
            "One cannot execute a switch statement where all the cases evaluate to false without a default",
        )),
        (1, _) => Ok(nodes.swap_remove(0)),
        _ => parser.call(operator, nodes.into()),
    }
}

/// A part of a `$switch`, and the error of a constant in it.
struct Part {
    node: Node,
    failed: Option<Error>,
}

impl Part {
    fn absent() -> Part {
        Part {
            node: Node::Absent,
            failed: None,
        }
    }

    fn parse(parser: &mut Parser<'_>, value: ValueRef<'_>) -> Result<Part, Error> {
        let node = parser.operand(value)?;
        let failed = parser.fold_error.take();
        Ok(Part { node, failed })
    }
}

/// Drops branches that never apply, and makes the first that always applies
/// the default. With the first error of what is looked at.
fn without_constant_cases(
    default: Part,
    branches: Vec<(Part, Part)>,
) -> (Vec<Node>, Option<Error>) {
    let (mut kept, mut failed) = (vec![default.node], default.failed);
    for (case, then) in branches {
        let constant = match &case.node {
            Node::Constant(value) => Some(truthy_value(value.as_ref())),
            Node::Missing => Some(false),
            _ => None,
        };
        failed = failed.or(case.failed);
        match constant {
            Some(true) => {
                failed = failed.or(then.failed);
                kept[0] = then.node;
                break;
            }
            Some(false) => {}
            None => {
                failed = failed.or(then.failed);
                kept.extend([case.node, then.node]);
            }
        }
    }
    (kept, failed)
}

fn parse_branch(parser: &mut Parser<'_>, branch: ValueRef<'_>) -> Result<(Part, Part), Error> {
    let doc = object("a branch of $switch", branch, 40062)?;
    let (mut case, mut then) = (Part::absent(), Part::absent());
    for element in doc.iter() {
        match element.key() {
            "case" => case = Part::parse(parser, element.value())?,
            "then" => then = Part::parse(parser, element.value())?,
            other => {
                return Err(Error::location(
                    40063,
                    format!("$switch found an unknown argument to a branch: {other}"),
                ));
            }
        }
    }
    if case.node.is_absent() {
        return Err(Error::location(
            40064,
            "$switch requires each branch have a 'case' expression",
        ));
    }
    if then.node.is_absent() {
        return Err(Error::location(
            40065,
            "$switch requires each branch have a 'then' expression.",
        ));
    }
    Ok((case, then))
}

pub(super) fn switch<'a>(
    arguments: &'a [Node],
    frame: &mut Frame<'a>,
) -> Result<Evaluated<'a>, Error> {
    let (default, branches) = arguments.split_first().expect("$switch keeps its default");
    for branch in branches.chunks_exact(2) {
        if truthy(&branch[0].evaluate(frame)?) {
            return branch[1].evaluate(frame);
        }
    }
    if default.is_absent() {
        return Err(Error::location(
            40066,
            "$switch could not find a matching branch for an input, and no default was specified.",
        ));
    }
    default.evaluate(frame)
}
