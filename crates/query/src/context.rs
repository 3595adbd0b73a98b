//! What an expression may refer to besides the document: variables.
//!
//! Names are resolved to slots when an expression is parsed, so that evaluating
//! a variable is an index and never a search by name. There are two kinds:
//!
//! - `variables`, whose values are known when the expression is parsed (the
//!   command's `let`): the parser puts the value in place of the name;
//! - `late_variables`, of which only the names are known (the `let` of
//!   `$lookup` and `$merge`): their values come with each evaluation, in the
//!   same order, see [`crate::expression::Expression::evaluate_with`]. Where
//!   whole stages are parsed anew for each document, `late_values` are kept
//!   with the expressions instead. Unlike `variables` they are never folded
//!   into constants: `{$divide: [1, "$$x"]}` in a branch not taken is no error.
//!
//! A late variable hides one of the same name among `variables`, and a later
//! entry of either list hides an earlier one, so that inner scopes are pushed
//! at the end.
//!
//! And who may end an evaluation: one expression over one document can run for
//! minutes, so its loops ask [`Interrupt`] now and then.

use model::Error;
use model::bson::{DocBuf, Timestamp, Value};
use std::fmt;
use std::sync::Arc;

/// Whoever runs an evaluation and may end it.
pub trait Interrupt: Send + Sync {
    /// The error that ends the evaluation now, if any.
    fn check(&self) -> Result<(), Error>;
}

/// Who may end an evaluation, if anybody.
#[derive(Clone, Default)]
pub struct Interrupts(Option<Arc<dyn Interrupt>>);

impl Interrupts {
    pub fn by(interrupt: Arc<dyn Interrupt>) -> Self {
        Self(Some(interrupt))
    }

    pub fn check(&self) -> Result<(), Error> {
        self.0
            .as_ref()
            .map_or(Ok(()), |interrupt| interrupt.check())
    }
}

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "interruptible",
            None => "uninterrupted",
        })
    }
}

/// Fixed for the duration of one command.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// `$$NOW`, milliseconds since 1970.
    pub now_ms: i64,
    /// `$$CLUSTER_TIME`; absent where the server has no oplog.
    pub cluster_time: Option<Timestamp>,
    /// The command's `let`: already evaluated, in order of definition.
    pub variables: Vec<(String, Value)>,
    /// Names whose values are given at each evaluation.
    pub late_variables: Vec<String>,
    /// Their values where they are known, in the same order; what is not there
    /// is missing.
    pub late_values: Arc<[Option<Value>]>,
    /// Asked by expressions that take long.
    pub interrupts: Interrupts,
    /// Whether what is wrong with a constant is told only when it is evaluated, if it ever is.
    pub computes_late: bool,
}

impl QueryContext {
    pub fn new(now_ms: i64) -> Self {
        Self {
            now_ms,
            cluster_time: None,
            variables: Vec::new(),
            late_variables: Vec::new(),
            late_values: Arc::new([]),
            interrupts: Interrupts::default(),
            computes_late: false,
        }
    }

    /// This context for expressions that are not computed before they are evaluated.
    pub fn computing_late(&self) -> Self {
        Self {
            computes_late: true,
            ..self.clone()
        }
    }

    /// This context with one more name whose value is known at evaluation only.
    pub fn with_late_variable(mut self, name: &str) -> Self {
        self.late_variables.push(name.to_owned());
        self
    }
}

impl QueryContext {
    /// This context with more names and their values, in scope of all others.
    pub fn bind(&self, names: &[String], values: Vec<Option<Value>>) -> Self {
        let mut context = self.clone();
        let mut bound = self.late_values.to_vec();
        bound.resize(self.late_variables.len(), None);
        bound.extend(values);
        context.late_variables.extend_from_slice(names);
        context.late_values = bound.into();
        context
    }
}

/// An empty document, for evaluating expressions that refer to none.
pub fn no_document() -> DocBuf {
    DocBuf::new()
}
