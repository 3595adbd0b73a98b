//! Folding: what does not depend on the document is computed when parsed.
//!
//! The real server optimises expressions before it looks at documents, and that
//! shows in its answers: errors of constant subexpressions come without any
//! document, arguments that cannot matter are never evaluated, and sums are
//! regrouped. This file does as much of it as can be seen from outside.
//!
//! A constant may take as long to compute as any other expression: it ends with
//! the command's time like an evaluation over documents.

use super::node::{Evaluated, Frame, Node, truthy_value};
use super::parse::Parser;
use super::set::check_constants;
use super::table::Operator;
use model::Error;
use model::bson::Doc;

impl Parser<'_> {
    /// A call; if nothing in it depends on the document, its value.
    pub(super) fn call(
        &mut self,
        operator: &'static Operator,
        arguments: Box<[Node]>,
    ) -> Result<Node, Error> {
        let arguments = if operator.is_commutative() && arguments.len() > 1 {
            constants_last(self, operator, arguments)
        } else {
            arguments
        };
        // One argument may decide, whatever the others are.
        let decided = |node: &Node, by: bool| match node {
            Node::Constant(value) => truthy_value(value.as_ref()) == by,
            Node::Missing => !by,
            _ => false,
        };
        let arguments = if operator.name == "$ifNull" {
            without_constant_nulls(arguments)
        } else {
            arguments
        };
        if operator.name == "$and" && arguments.iter().any(|node| decided(node, false)) {
            return Ok(Node::Constant(false.into()));
        }
        if operator.name == "$or" && arguments.iter().any(|node| decided(node, true)) {
            return Ok(Node::Constant(true.into()));
        }
        if let Err(error) = check_constants(operator.name, &arguments) {
            self.fold_error.get_or_insert(error);
        }
        let constant = operator.folds && arguments.iter().all(Node::is_constant);
        let call = Node::Call {
            operator,
            arguments,
        };
        if !constant {
            return Ok(call);
        }
        Ok(self.evaluated(call))
    }

    /// A node that depends on nothing, as its value if it has one.
    fn evaluated(&mut self, node: Node) -> Node {
        let context = self.context;
        let mut frame = Frame::new(Doc::EMPTY, &[], 0, 0);
        frame.interrupts = Some(&context.interrupts);
        let value = node.evaluate(&mut frame).map(Evaluated::into_value);
        match value {
            Ok(Some(value)) => Node::Constant(value),
            Ok(None) => Node::Missing,
            Err(error) => {
                self.fold_error.get_or_insert(error);
                node
            }
        }
    }
}

/// Constant nulls say nothing, and what follows another constant is never used.
fn without_constant_nulls(arguments: Box<[Node]>) -> Box<[Node]> {
    let last = arguments.len() - 1;
    let mut kept = Vec::new();
    for (at, argument) in arguments.into_iter().enumerate() {
        let null = match &argument {
            Node::Constant(value) => value.as_ref().is_nullish(),
            other => other.is_constant(),
        };
        if null && at < last {
            continue;
        }
        let decides = argument.is_constant() && !null;
        kept.push(argument);
        if decides {
            break;
        }
    }
    kept.into()
}

/// Takes apart nested calls of the same operator, and folds all constants into
/// one that is evaluated last. The real server does this too, which shows: in
/// the rounding of sums of doubles, and in which of two bad arguments is named.
fn constants_last(
    parser: &mut Parser<'_>,
    operator: &'static Operator,
    arguments: Box<[Node]>,
) -> Box<[Node]> {
    let (mut constants, mut others) = (Vec::new(), Vec::new());
    let mut sort = |node: Node| {
        if node.is_constant() {
            constants.push(node);
        } else {
            others.push(node);
        }
    };
    for argument in arguments {
        match argument {
            // A lone argument is not taken out: `$min`, `$max` and `$sum` look
            // into it if it is an array.
            Node::Call {
                operator: inner,
                arguments,
            } if inner.name == operator.name && arguments.len() > 1 => {
                arguments.into_iter().for_each(&mut sort);
            }
            other => sort(other),
        }
    }
    if others.is_empty() || constants.len() < 2 {
        others.append(&mut constants);
    } else {
        let folded = Node::Call {
            operator,
            arguments: constants.into(),
        };
        others.push(parser.evaluated(folded));
    }
    others.into()
}

/// Puts a document or array of constants in one piece.
pub(super) fn fold(node: Node) -> Node {
    let constant = match &node {
        Node::Object(fields) => fields.iter().all(|(_, node)| node.is_constant()),
        Node::Array(nodes) => nodes.iter().all(Node::is_constant),
        _ => false,
    };
    if !constant {
        return node;
    }
    let value = node
        .evaluate(&mut Frame::new(Doc::EMPTY, &[], 0, 0))
        .ok()
        .and_then(|value| value.into_value());
    match value {
        Some(value) => Node::Constant(value),
        None => node,
    }
}
