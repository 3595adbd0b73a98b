//! `$unionWith`: the documents of another pipeline behind one's own.

use super::environment::Environment;
use super::parse::{Place, Scope, missing_field, parse, unknown_field, wrong_type};
use super::run::start;
use super::source::{Advance, Source};
use super::stage::{Stage, Step};
use model::bson::{Array, Doc, DocBuf, ValueRef};
use model::{Code, Error, Namespace};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct UnionWith {
    /// `None` if the pipeline makes its own documents.
    collection: Option<Namespace>,
    steps: Vec<Step>,
}

impl UnionWith {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let (name, stages) = match spec {
            ValueRef::String(name) => (Some(name), Array::EMPTY),
            ValueRef::Document(doc) => arguments(doc)?,
            other => {
                return Err(Error::new(
                    Code::FAILED_TO_PARSE,
                    format!(
                        "the $unionWith stage specification must be an object or string, but \
                         found {}",
                        other.kind().name()
                    ),
                ));
            }
        };
        let collection = name
            .map(|name| Namespace::new(scope.database, name))
            .transpose()?;
        let inside = scope.inside(Place::UnionWith, collection.as_ref(), scope.context)?;
        if collection.is_none() && !starts_with_documents(stages) {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "$unionWith stage without explicit collection must have a pipeline with \
                 $documents as first stage",
            ));
        }
        Ok(Self {
            steps: parse(stages, &inside)?,
            collection,
        })
    }
}

fn arguments(doc: Doc<'_>) -> Result<(Option<&str>, Array<'_>), Error> {
    const STAGE: &str = "$unionWith";
    let (mut name, mut stages) = (None, None);
    for element in doc.iter() {
        let value = element.value();
        match (element.key(), value) {
            ("coll", ValueRef::String(text)) => name = Some(text),
            ("coll", _) => return Err(wrong_type(STAGE, "coll", value, "string")),
            ("pipeline", ValueRef::Array(listed)) => {
                for stage in listed.elements() {
                    if !matches!(stage.value(), ValueRef::Document(_)) {
                        let field = format!("pipeline.{}", stage.key());
                        return Err(wrong_type(STAGE, &field, stage.value(), "object"));
                    }
                }
                stages = Some(listed);
            }
            ("pipeline", _) => return Err(wrong_type(STAGE, "pipeline", value, "array")),
            (unknown, _) => return Err(unknown_field(STAGE, unknown)),
        }
    }
    match (name, stages) {
        (None, None) if !doc.is_empty() => Err(missing_field(STAGE, "coll")),
        (name, stages) => Ok((name, stages.unwrap_or(Array::EMPTY))),
    }
}

/// Whether a pipeline needs no collection to read from.
pub(super) fn starts_with_documents(stages: Array<'_>) -> bool {
    matches!(
        stages.get(0),
        Some(ValueRef::Document(first)) if first.first().is_some_and(|e| e.key() == "$documents")
    )
}

/// A `$unionWith` under way.
pub(super) struct Uniting {
    input: Box<dyn Source>,
    /// Opened when the input has ended.
    union: Option<UnionWith>,
    other: Option<Box<dyn Source>>,
    environment: Arc<dyn Environment>,
}

impl Uniting {
    pub(super) fn new(
        input: Box<dyn Source>,
        union: UnionWith,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            union: Some(union),
            other: None,
            environment: environment.clone(),
        }
    }
}

impl Source for Uniting {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.union.is_some() {
            match self.input.advance()? {
                Advance::End => {}
                other => return Ok(other),
            }
        }
        if let Some(union) = self.union.take() {
            let initial = union
                .steps
                .first()
                .is_some_and(|step| step.stage.is_initial());
            let collection = match (initial, union.collection) {
                (true, _) => None,
                (false, collection) => collection,
            };
            self.other = Some(start(union.steps, collection, None, &self.environment)?);
        }
        match &mut self.other {
            Some(other) => other.advance(),
            None => Ok(Advance::End),
        }
    }

    fn current(&self) -> Doc<'_> {
        match &self.other {
            Some(other) => other.current(),
            None => self.input.current(),
        }
    }

    fn take(&mut self) -> DocBuf {
        match &mut self.other {
            Some(other) => other.take(),
            None => self.input.take(),
        }
    }
}

/// What `$documents` makes of its expression.
pub(super) fn documents(stage: &Stage) -> Result<Vec<DocBuf>, Error> {
    let Stage::Documents(expression) = stage else {
        return Ok(Vec::new());
    };
    let value = expression.evaluate_ref(Doc::EMPTY)?;
    let Some(ValueRef::Array(listed)) = value.as_value() else {
        return Err(Error::location(5858203, "an array is expected"));
    };
    listed
        .iter()
        .map(|value| match value {
            ValueRef::Document(doc) => Ok(doc.to_owned()),
            other => Err(Error::location(
                40228,
                format!(
                    "elements within the array passed to $documents must evaluate to an object, \
                     but resulting value was: {other:?}. Type of resulting value: '{}'",
                    other.kind().name()
                ),
            )),
        })
        .collect()
}
