//! `$redact`: keeps, descends into or cuts off each level of a document.
//!
//! The expression is evaluated with each level in turn as `$$CURRENT`, while
//! `$$ROOT` stays the whole document: here it is a variable, bound once for each
//! document.

use super::source::{Advance, Source};
use crate::context::QueryContext;
use crate::expression::Expression;
use model::Error;
use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};

#[derive(Clone, Debug)]
pub struct Redact {
    expression: Expression,
    /// The values of variables of the stages around it; the root's comes last.
    outer: Vec<Option<Value>>,
}

/// A document under way, with the values of all variables.
struct OneDocument<'r> {
    expression: &'r Expression,
    variables: Vec<Option<Value>>,
}

/// What the expression says by naming one of three variables.
enum Decision {
    Keep,
    Descend,
    Prune,
}

const KEEP: &str = "keep";
const DESCEND: &str = "descend";
const PRUNE: &str = "prune";

impl Redact {
    pub(super) fn parse(spec: ValueRef<'_>, context: &QueryContext) -> Result<Self, Error> {
        let mut context = context.clone();
        for (name, value) in [("KEEP", KEEP), ("DESCEND", DESCEND), ("PRUNE", PRUNE)] {
            context
                .variables
                .push((name.to_owned(), Value::from(value)));
        }
        let mut outer = context.late_values.to_vec();
        outer.resize(context.late_variables.len(), None);
        let context = context.with_late_variable("ROOT");
        Ok(Self {
            expression: Expression::parse(spec, &context)?,
            outer,
        })
    }

    /// `None` if the whole document is cut off.
    pub(super) fn apply(&self, doc: Doc<'_>) -> Result<Option<DocBuf>, Error> {
        let mut variables = self.outer.clone();
        variables.push(Some(Value::Document(doc.to_owned())));
        let redacting = OneDocument {
            expression: &self.expression,
            variables,
        };
        let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len()));
        match redacting.decide(doc)? {
            Decision::Keep => Ok(Some(doc.to_owned())),
            Decision::Prune => Ok(None),
            Decision::Descend => {
                redacting.fields(doc, &mut writer)?;
                Ok(Some(writer.finish()))
            }
        }
    }
}

impl OneDocument<'_> {
    fn decide(&self, doc: Doc<'_>) -> Result<Decision, Error> {
        let value = self.expression.evaluate_with(doc, &self.variables)?;
        match value.as_value() {
            Some(ValueRef::String(KEEP)) => Ok(Decision::Keep),
            Some(ValueRef::String(DESCEND)) => Ok(Decision::Descend),
            Some(ValueRef::String(PRUNE)) => Ok(Decision::Prune),
            other => {
                let other = other.map_or("MISSING".to_owned(), |other| format!("{other:?}"));
                Err(Error::location(
                    17053,
                    format!(
                        "$redact's expression should not return anything aside from the \
                         variables $$KEEP, $$DESCEND, and $$PRUNE, but returned {other}"
                    ),
                ))
            }
        }
    }

    fn fields(&self, doc: Doc<'_>, writer: &mut DocWriter) -> Result<(), Error> {
        for element in doc.iter() {
            match element.value() {
                ValueRef::Document(inner) => match self.decide(inner)? {
                    Decision::Keep => {
                        writer.append_element(&element);
                    }
                    Decision::Prune => {}
                    Decision::Descend => {
                        writer.begin_document(element.key());
                        self.fields(inner, writer)?;
                        writer.end();
                    }
                },
                ValueRef::Array(array) => {
                    writer.begin_array(element.key());
                    self.elements(array, writer)?;
                    writer.end();
                }
                _ => {
                    writer.append_element(&element);
                }
            }
        }
        Ok(())
    }

    fn elements(&self, array: Array<'_>, writer: &mut DocWriter) -> Result<(), Error> {
        for value in array.iter() {
            match value {
                ValueRef::Document(inner) => match self.decide(inner)? {
                    Decision::Keep => {
                        writer.push(value);
                    }
                    Decision::Prune => {}
                    Decision::Descend => {
                        writer.push_document();
                        self.fields(inner, writer)?;
                        writer.end();
                    }
                },
                ValueRef::Array(inner) => {
                    writer.push_array();
                    self.elements(inner, writer)?;
                    writer.end();
                }
                other => {
                    writer.push(other);
                }
            }
        }
        Ok(())
    }
}

pub(super) struct Redacting {
    pub(super) input: Box<dyn Source>,
    pub(super) redact: Redact,
    pub(super) current: DocBuf,
}

impl Source for Redacting {
    fn advance(&mut self) -> Result<Advance, Error> {
        loop {
            match self.input.advance()? {
                Advance::Document => {
                    if let Some(doc) = self.redact.apply(self.input.current())? {
                        self.current = doc;
                        return Ok(Advance::Document);
                    }
                }
                other => return Ok(other),
            }
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
