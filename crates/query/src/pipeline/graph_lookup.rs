//! `$graphLookup`: follows references through a collection, breadth first.

use super::environment::{Environment, ScanRequest};
use super::join::any_of;
use super::lookup::parse_from;
use super::memory::{MEMORY_BYTES_MAX, too_large};
use super::nested_field::with_field;
use super::parse::Scope;
use super::source::{Advance, Source};
use crate::expression::{Expression, FieldPath};
use crate::filter::{Filter, ValueSet};
use crate::path::visit_values;
use model::bson::{ArrayWriter, Doc, DocBuf, Value, ValueRef};
use model::hash::hash_value;
use model::number::Number;
use model::order::compare;
use model::{Code, Error, Namespace};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct GraphLookup {
    from: Namespace,
    start_with: Expression,
    connect_from: FieldPath,
    connect_to: FieldPath,
    output: FieldPath,
    depth_max: Option<i64>,
    depth_field: Option<FieldPath>,
    restriction: Option<Filter>,
}

impl GraphLookup {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let ValueRef::Document(doc) = spec else {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!(
                    "the $graphLookup stage specification must be an object, but found {}",
                    spec.kind().name()
                ),
            ));
        };
        let Some(from) = doc.get("from") else {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!("missing 'from' option to $graphLookup stage specification: {doc:?}"),
            ));
        };
        let (mut start_with, mut depth_max, mut restriction) = (None, None, None);
        let (mut connect_from, mut connect_to, mut output, mut depth_field) =
            (None, None, None, None);
        for element in doc.iter() {
            let value = element.value();
            let name = element.key();
            match name {
                "from" => {}
                "startWith" => start_with = Some(Expression::parse(value, scope.context)?),
                "maxDepth" => depth_max = Some(parse_depth(value)?),
                "connectFromField" => connect_from = Some(parse_path(name, value)?),
                "connectToField" => connect_to = Some(parse_path(name, value)?),
                "as" => output = Some(parse_path(name, value)?),
                "depthField" => depth_field = Some(parse_path(name, value)?),
                "restrictSearchWithMatch" => restriction = Some(parse_restriction(value, scope)?),
                unknown => {
                    return Err(Error::location(
                        40104,
                        format!("Unknown argument to $graphLookup: {unknown}"),
                    ));
                }
            }
        }
        let from = parse_from("$graphLookup", from, scope)?;
        let (Some(start_with), Some(connect_from), Some(connect_to), Some(output)) =
            (start_with, connect_from, connect_to, output)
        else {
            return Err(Error::location(
                40105,
                "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and \
                 'connectToField' to be specified.",
            ));
        };
        Ok(Self {
            from,
            start_with,
            connect_from,
            connect_to,
            output,
            depth_max,
            depth_field,
            restriction,
        })
    }

    /// Whether fields under this top-level name come out as they went in.
    pub(super) fn keeps(&self, name: &str) -> bool {
        *self.output.names()[0] != *name
    }

    fn request(&self, frontier: Vec<Value>) -> ScanRequest {
        let reached = any_of(&self.connect_to.dotted(), frontier);
        let filter = match &self.restriction {
            Some(restriction) => Filter::And(vec![reached, restriction.clone()]),
            None => reached,
        };
        ScanRequest {
            filter: filter.optimized(),
            ..ScanRequest::all(self.from.clone())
        }
    }
}

fn parse_path(name: &str, value: ValueRef<'_>) -> Result<FieldPath, Error> {
    match value {
        ValueRef::String(text) => FieldPath::parse(text),
        other => Err(Error::location(
            40103,
            format!(
                "expected string as argument for {name}, found: {}",
                other.kind().name()
            ),
        )),
    }
}

fn parse_depth(value: ValueRef<'_>) -> Result<i64, Error> {
    let Some(number) = Number::of(value) else {
        return Err(Error::location(
            40100,
            format!(
                "maxDepth must be numeric, found type: {}",
                value.kind().name()
            ),
        ));
    };
    let whole = number.to_i64_truncated().unwrap_or(i64::MAX);
    if whole < 0 {
        return Err(Error::location(
            40101,
            format!("maxDepth requires a nonnegative argument, found: {whole}"),
        ));
    }
    if number.to_i64_exact().is_none() {
        return Err(Error::location(
            40102,
            format!("maxDepth could not be represented as a long long: {whole}"),
        ));
    }
    Ok(whole)
}

fn parse_restriction(value: ValueRef<'_>, scope: &Scope<'_>) -> Result<Filter, Error> {
    let ValueRef::Document(filter) = value else {
        return Err(Error::location(
            40185,
            format!(
                "restrictSearchWithMatch must be an object, found {}",
                value.kind().name()
            ),
        ));
    };
    Filter::parse(filter, scope.context).map_err(|error| {
        Error::new(
            error.code,
            format!(
                "Failed to parse 'restrictSearchWithMatch' option to $graphLookup :: caused by \
                 :: {}",
                error.message
            ),
        )
    })
}

/// Values that were met, equal ones once.
#[derive(Default)]
struct Seen {
    places: HashMap<u64, Vec<Value>>,
}

impl Seen {
    fn insert(&mut self, value: ValueRef<'_>) -> bool {
        let known = self.places.entry(hash_value(value)).or_default();
        if known
            .iter()
            .any(|known| compare(known.as_ref(), value).is_eq())
        {
            return false;
        }
        known.push(value.to_owned());
        true
    }
}

/// A `$graphLookup` under way.
pub(super) struct FollowingGraph {
    input: Box<dyn Source>,
    stage: GraphLookup,
    environment: Arc<dyn Environment>,
    current: DocBuf,
}

impl FollowingGraph {
    pub(super) fn new(
        input: Box<dyn Source>,
        stage: GraphLookup,
        environment: &Arc<dyn Environment>,
    ) -> Self {
        Self {
            input,
            stage,
            environment: environment.clone(),
            current: DocBuf::new(),
        }
    }

    fn follow(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        let stage = &self.stage;
        let mut tried = Seen::default();
        let mut visited = Seen::default();
        let mut found = ArrayWriter::new();
        let start = stage.start_with.evaluate_ref(doc)?;
        let mut frontier = Vec::new();
        let mut enter = |value: ValueRef<'_>, frontier: &mut Vec<Value>| {
            if tried.insert(value) {
                frontier.push(value.to_owned());
            }
        };
        match start.as_value() {
            Some(ValueRef::Array(values)) => {
                values.iter().for_each(|value| enter(value, &mut frontier))
            }
            Some(value) => enter(value, &mut frontier),
            None => {}
        }
        let mut depth = 0;
        while !frontier.is_empty() && stage.depth_max.is_none_or(|max| depth <= max) {
            self.environment.check()?;
            let wanted = ValueSet::new(frontier.clone(), Vec::new());
            let mut source = self
                .environment
                .scan(stage.request(std::mem::take(&mut frontier)))?;
            while source.advance()? == Advance::Document {
                let reached = source.current();
                // A missing field equals null for a filter, but leads nowhere here.
                if !reaches(reached, &stage.connect_to, &wanted) {
                    continue;
                }
                if let Some(id) = reached.get("_id")
                    && !visited.insert(id)
                {
                    continue;
                }
                visit_values(reached, stage.connect_from.names(), &mut |value| {
                    enter(value, &mut frontier);
                });
                match &stage.depth_field {
                    Some(path) => {
                        let depth = Some(ValueRef::Int64(depth));
                        found.push(&with_field(reached, path.names(), depth));
                    }
                    None => {
                        found.push(reached);
                    }
                }
                if found.bytes() > MEMORY_BYTES_MAX {
                    return Err(too_large(40099, "$graphLookup"));
                }
            }
            depth += 1;
        }
        let found = found.finish();
        Ok(with_field(doc, stage.output.names(), Some((&found).into())))
    }
}

fn reaches(doc: Doc<'_>, path: &FieldPath, wanted: &ValueSet) -> bool {
    let mut reached = false;
    visit_values(doc, path.names(), &mut |value| {
        reached |= wanted
            .values()
            .binary_search_by(|known| compare(known.as_ref(), value))
            .is_ok();
    });
    reached
}

impl Source for FollowingGraph {
    fn advance(&mut self) -> Result<Advance, Error> {
        let advance = self.input.advance()?;
        if advance == Advance::Document {
            self.current = self.follow(self.input.current())?;
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}
