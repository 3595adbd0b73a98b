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
    let mut nodes = vec![Node::Absent];
    let mut branches_given = false;
    for element in doc.iter() {
        match element.key() {
            "branches" => {
                let ValueRef::Array(branches) = element.value() else {
                    return Err(Error::location(
                        40061,
                        "$switch expected an array for 'branches'",
                    ));
                };
                for branch in branches.iter() {
                    branches_given = true;
                    let (case, then) = parse_branch(parser, branch)?;
                    nodes.push(case);
                    nodes.push(then);
                }
            }
            "default" => nodes[0] = parser.operand(element.value())?,
            other => {
                return Err(unknown_argument("$switch", other, 40067));
            }
        }
    }
    if !branches_given {
        return Err(Error::location(
            40068,
            "$switch requires at least one branch",
        ));
    }
    let mut nodes = without_constant_cases(nodes);
    match (nodes.len(), &nodes[0]) {
        (1, Node::Absent) => Err(Error::location(
            40069,
            "One cannot execute a switch statement where all the cases evaluate to false without a default",
        )),
        (1, _) => Ok(nodes.swap_remove(0)),
        _ => parser.call(operator, nodes.into()),
    }
}

/// Drops branches that never apply, and makes the first that always applies
/// the default.
fn without_constant_cases(nodes: Vec<Node>) -> Vec<Node> {
    let mut nodes = nodes.into_iter();
    let mut kept: Vec<Node> = nodes.next().into_iter().collect();
    while let (Some(case), Some(then)) = (nodes.next(), nodes.next()) {
        let constant = match &case {
            Node::Constant(value) => Some(truthy_value(value.as_ref())),
            Node::Missing => Some(false),
            _ => None,
        };
        match constant {
            Some(true) => {
                kept[0] = then;
                break;
            }
            Some(false) => {}
            None => kept.extend([case, then]),
        }
    }
    kept
}

fn parse_branch(parser: &mut Parser<'_>, branch: ValueRef<'_>) -> Result<(Node, Node), Error> {
    let doc = object("a branch of $switch", branch, 40062)?;
    let (mut case, mut then) = (Node::Absent, Node::Absent);
    for element in doc.iter() {
        match element.key() {
            "case" => case = parser.operand(element.value())?,
            "then" => then = parser.operand(element.value())?,
            other => {
                return Err(Error::location(
                    40063,
                    format!("$switch found an unknown argument to a branch: {other}"),
                ));
            }
        }
    }
    if case.is_absent() {
        return Err(Error::location(
            40064,
            "$switch requires each branch have a 'case' expression",
        ));
    }
    if then.is_absent() {
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
