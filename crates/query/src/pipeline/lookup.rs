//! `$lookup`: for each document, what another pipeline finds.
//!
//! The equality form is a filter over the other collection. The pipeline form
//! is parsed anew for each document with the values of `let` bound, unless it
//! refers to none of them: then it runs once and its result is kept.
//!
//! With an `$unwind` of its field behind it, it runs as `unwound.rs` says.

use super::correlate::with_implied;
use super::environment::{Environment, ScanRequest};
use super::join::any_of;
use super::memory::{MEMORY_BYTES_MAX, too_large};
use super::nested_field::with_field;
use super::parse::{Place, Scope, not_an_array, parse};
use super::run::start;
use super::source::{Advance, Source};
use super::stage::{Stage, Step};
use super::union::starts_with_documents;
use crate::context::QueryContext;
use crate::expression::{Expression, FieldPath, check_user_variable};
use crate::filter::Filter;
use crate::path::{array_index, visit_values};
use model::bson::{Array, ArrayBuf, ArrayWriter, Doc, DocBuf, Value, ValueRef};
use model::{Code, Error, Namespace};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Lookup {
    /// `None` if the pipeline makes its own documents.
    from: Option<Namespace>,
    output: FieldPath,
    /// Local and foreign field.
    join: Option<(FieldPath, String)>,
    pipeline: Option<Pipeline>,
    /// See [`Lookup::compile`].
    compiled: bool,
}

/// The pipeline to run for each document.
#[derive(Clone, Debug)]
struct Pipeline {
    stages: ArrayBuf,
    names: Vec<String>,
    values: Vec<Expression>,
    context: QueryContext,
    database: String,
    depth: usize,
    /// Whether its result depends on the document.
    correlated: bool,
}

fn fail(message: impl Into<String>) -> Error {
    Error::new(Code::FAILED_TO_PARSE, message)
}

fn is_number(name: &str) -> bool {
    array_index(name).is_some()
}

#[derive(Default)]
struct Arguments<'a> {
    from: Option<Namespace>,
    output: &'a str,
    local: &'a str,
    foreign: &'a str,
    pipeline: Option<Array<'a>>,
    variables: Option<Doc<'a>>,
}

impl Lookup {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let ValueRef::Document(doc) = spec else {
            return Err(fail(format!(
                "the $lookup stage specification must be an object, but found {}",
                spec.kind().name()
            )));
        };
        let arguments = Arguments::read(doc, scope)?;
        if arguments.from.is_none() {
            match arguments.pipeline {
                None => return Err(fail("must specify 'pipeline' when 'from' is empty")),
                Some(stages) if !starts_with_documents(stages) => {
                    return Err(fail(
                        "$lookup stage without explicit collection must have a pipeline with \
                         $documents as first stage",
                    ));
                }
                Some(_) => {}
            }
        }
        if arguments.output.is_empty() {
            return Err(fail("must specify 'as' field for a $lookup"));
        }
        let join = match (arguments.local.is_empty(), arguments.foreign.is_empty()) {
            (false, false) => {
                FieldPath::parse(arguments.foreign)?;
                Some((
                    FieldPath::parse(arguments.local)?,
                    arguments.foreign.to_owned(),
                ))
            }
            (true, true) if arguments.pipeline.is_some() => None,
            _ => {
                return Err(fail(
                    "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' \
                     to be specified",
                ));
            }
        };
        if arguments.pipeline.is_none() && arguments.variables.is_some() {
            return Err(fail(
                "$lookup with a 'let' argument must also specify 'pipeline'",
            ));
        }
        let pipeline = match arguments.pipeline {
            None => None,
            Some(stages) => Some(Pipeline::parse(
                stages,
                arguments.variables.unwrap_or(Doc::EMPTY),
                arguments.from.as_ref(),
                scope,
            )?),
        };
        Ok(Self {
            output: FieldPath::parse(arguments.output)?,
            from: arguments.from,
            join,
            pipeline,
            compiled: false,
        })
    }

    /// MongoDB runs leading stages that are plain `$lookup` or `$group` in its
    /// other engine. There the output is always the last field, and a local
    /// value that is undefined finds nothing where else it is an error.
    pub(super) fn compile(&mut self) {
        self.compiled = true;
    }

    /// Whether MongoDB's other engine can run it: it does not know numbers in paths.
    pub(super) fn is_plain(&self) -> bool {
        let has_number = self.join.as_ref().is_some_and(|(local, foreign)| {
            let mut names = local.names().iter().map(|name| &**name);
            names.any(is_number) || foreign.split('.').any(is_number)
        });
        self.pipeline.is_none() && !has_number
    }

    /// Whether all documents get the same.
    pub(super) fn runs_once(&self) -> bool {
        let pipeline = self.pipeline.as_ref();
        self.join.is_none() && pipeline.is_some_and(|pipeline| !pipeline.correlated)
    }

    /// The field that the result is put into.
    pub(super) fn output(&self) -> &FieldPath {
        &self.output
    }

    /// Whether fields under this top-level name come out as they went in.
    pub(super) fn keeps(&self, name: &str) -> bool {
        *self.output.names()[0] != *name
    }

    fn join_filter(&self, doc: Doc<'_>) -> Result<Option<Filter>, Error> {
        let Some((local, foreign)) = &self.join else {
            return Ok(None);
        };
        let mut values = Vec::new();
        let mut undefined = false;
        visit_values(doc, local.names(), &mut |value| match value {
            ValueRef::Undefined => undefined = true,
            value => values.push(value.to_owned()),
        });
        if undefined && !self.compiled {
            return Err(Error::bad_value("cannot compare to undefined"));
        }
        if values.is_empty() && !undefined {
            values.push(Value::Null);
        }
        Ok(Some(any_of(foreign, values)))
    }

    /// The document with what was found.
    pub(super) fn joined(&self, doc: Doc<'_>, found: &ArrayBuf) -> DocBuf {
        let path = self.output.names();
        let joined = with_field(doc, path, Some(found.into()));
        if !self.compiled {
            return joined;
        }
        let outer = &path[..1];
        let value = joined.get(&outer[0]);
        let without = with_field(joined.as_doc(), outer, None);
        with_field(without.as_doc(), outer, value)
    }

    pub(super) fn open(
        &self,
        doc: Doc<'_>,
        environment: &Arc<dyn Environment>,
    ) -> Result<Box<dyn Source>, Error> {
        let filter = self.join_filter(doc)?;
        let mut steps = match &self.pipeline {
            Some(pipeline) => pipeline.bound(doc, self.from.as_ref())?,
            None => Vec::new(),
        };
        match (filter, &self.from) {
            (Some(filter), Some(from)) if steps.is_empty() => environment.scan(ScanRequest {
                filter,
                ..ScanRequest::all(from.clone())
            }),
            (Some(filter), from) => {
                steps.insert(
                    0,
                    Step::new("$match", &filter.to_document(), Stage::Match(filter)),
                );
                start(steps, from.clone(), None, environment)
            }
            (None, from) => {
                let initial = steps.first().is_some_and(|step| step.stage.is_initial());
                let from = if initial { None } else { from.clone() };
                start(steps, from, None, environment)
            }
        }
    }
}

impl<'a> Arguments<'a> {
    fn read(doc: Doc<'a>, scope: &Scope<'_>) -> Result<Self, Error> {
        let mut arguments = Arguments::default();
        for element in doc.iter() {
            let value = element.value();
            match (element.key(), value) {
                ("from", value) => arguments.from = Some(parse_from("$lookup", value, scope)?),
                ("pipeline", ValueRef::Array(stages)) => arguments.pipeline = Some(stages),
                ("pipeline", _) => return Err(not_an_array()),
                ("let", ValueRef::Document(variables)) => arguments.variables = Some(variables),
                ("let", _) => {
                    return Err(fail(format!(
                        "$lookup argument 'let: {value:?}' must be an object, is type {}",
                        value.kind().name()
                    )));
                }
                ("as", ValueRef::String(text)) => arguments.output = text,
                ("localField", ValueRef::String(text)) => arguments.local = text,
                ("foreignField", ValueRef::String(text)) => arguments.foreign = text,
                (name, ValueRef::String(_)) => {
                    return Err(fail(format!("unknown argument to $lookup: {name}")));
                }
                (name, value) => {
                    return Err(fail(format!(
                        "$lookup argument '{name}' must be a string, found {name}: {value:?}: {}",
                        value.kind().name()
                    )));
                }
            }
        }
        Ok(arguments)
    }
}

/// The collection that a stage reads besides its own.
pub(super) fn parse_from(
    stage: &str,
    value: ValueRef<'_>,
    scope: &Scope<'_>,
) -> Result<Namespace, Error> {
    match value {
        ValueRef::String(name) => Namespace::new(scope.database, name).map_err(|_| {
            Error::new(
                Code::INVALID_NAMESPACE,
                format!("invalid {stage} namespace: {}.{name}", scope.database),
            )
        }),
        ValueRef::Document(doc) => {
            let database = doc.get_str("db").unwrap_or_default();
            let collection = doc.get_str("coll").unwrap_or_default();
            let internal = database == "config" && collection.starts_with("cache.chunks.")
                || database == "local" && collection == "oplog.rs";
            if internal {
                return Namespace::new(database, collection);
            }
            Err(fail(format!(
                "{stage} with syntax {{from: {{db:<>, coll:<>}},..}} is not supported for db: \
                 {database} and coll: {collection}"
            )))
        }
        other => Err(fail(format!(
            "{stage} 'from' field must be a string, but found {}",
            other.kind().name()
        ))),
    }
}

impl Pipeline {
    fn parse(
        stages: Array<'_>,
        variables: Doc<'_>,
        from: Option<&Namespace>,
        scope: &Scope<'_>,
    ) -> Result<Self, Error> {
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for element in variables.iter() {
            check_user_variable(element.key())?;
            names.push(element.key().to_owned());
            values.push(Expression::parse(element.value(), scope.context)?);
        }
        // Parsed once to find mistakes, whether or not there is a document.
        let context = scope.context.bind(&names, vec![None; names.len()]);
        let inside = scope.inside(Place::Lookup, from, &context)?;
        parse(stages, &inside)?;
        let correlated = stages.iter().any(|stage| varies(stage, &names));
        Ok(Self {
            stages: stages.to_owned(),
            names,
            values,
            context: scope.context.clone(),
            database: scope.database.to_owned(),
            depth: scope.depth,
            correlated,
        })
    }

    /// The stages with the variables' values for a document.
    fn bound(&self, doc: Doc<'_>, from: Option<&Namespace>) -> Result<Vec<Step>, Error> {
        let values = self
            .values
            .iter()
            .map(|expression| expression.evaluate(doc))
            .collect::<Result<Vec<_>, Error>>()?;
        let context = self.context.bind(&self.names, values.clone());
        let scope = Scope {
            database: &self.database,
            collection: from,
            context: &context,
            place: Place::Lookup,
            depth: self.depth + 1,
        };
        let mut steps = parse(self.stages.as_array(), &scope)?;
        for step in &mut steps {
            if let Stage::Match(filter) = &mut step.stage {
                let plain = std::mem::replace(filter, Filter::AlwaysTrue);
                *filter = with_implied(plain, &self.names, &values);
            }
        }
        Ok(steps)
    }
}

/// Whether a part of a specification may mean something else for each document:
/// it names one of the variables, or chance.
fn varies(spec: ValueRef<'_>, names: &[String]) -> bool {
    match spec {
        ValueRef::String(text) => text.strip_prefix("$$").is_some_and(|rest| {
            let name = rest.split('.').next().unwrap_or(rest);
            names.iter().any(|known| known == name)
        }),
        ValueRef::Document(doc) => doc.iter().any(|element| {
            matches!(element.key(), "$rand" | "$sample" | "$sampleRate")
                || varies(element.value(), names)
        }),
        ValueRef::Array(array) => array.iter().any(|value| varies(value, names)),
        _ => false,
    }
}

/// A `$lookup` under way.
pub(super) struct LookingUp {
    input: Box<dyn Source>,
    lookup: Lookup,
    environment: Arc<dyn Environment>,
    /// The result that is the same for all documents.
    kept: Option<ArrayBuf>,
    current: DocBuf,
}

impl LookingUp {
    pub(super) fn new(
        input: Box<dyn Source>,
        lookup: Lookup,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            lookup,
            environment: environment.clone(),
            kept: None,
            current: DocBuf::new(),
        }
    }

    fn found(&self, doc: Doc<'_>) -> Result<ArrayBuf, Error> {
        let mut source = self.lookup.open(doc, &self.environment)?;
        let mut found = ArrayWriter::new();
        while source.advance()? == Advance::Document {
            found.push(source.current());
            if found.bytes() > MEMORY_BYTES_MAX {
                return Err(too_large(4568, "the result of $lookup for one document"));
            }
        }
        Ok(found.finish())
    }
}

impl Source for LookingUp {
    fn advance(&mut self) -> Result<Advance, Error> {
        match self.input.advance()? {
            Advance::Document => {}
            other => return Ok(other),
        }
        self.environment.check()?;
        let doc = self.input.current();
        self.current = match &self.kept {
            Some(kept) => self.lookup.joined(doc, kept),
            None => {
                let found = self.found(doc)?;
                let document = self.lookup.joined(doc, &found);
                if self.lookup.runs_once() {
                    self.kept = Some(found);
                }
                document
            }
        };
        Ok(Advance::Document)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
