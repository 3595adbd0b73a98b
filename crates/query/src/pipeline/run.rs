//! From stages to a running chain of sources.

use super::bucket_auto::Bucketing;
use super::collect::{Counting, Sampling, Sorting};
use super::environment::{Environment, ScanRequest};
use super::facet::Faceting;
use super::graph_lookup::FollowingGraph;
use super::group::Grouping;
use super::lookup::{LookingUp, Lookup};
use super::optimize::{optimize, push_down};
use super::redact::Redacting;
use super::source::{
    Advance, Counted, Documents, Interruption, Limited, Matching, Projecting, Replacing, Skipping,
    Source,
};
use super::stage::{Stage, Step};
use super::union::{Uniting, documents};
use super::unwind::Unwinding;
use super::unwound::{UnwoundLookup, unwinding};
use model::bson::{DocBuf, Value};
use model::{Code, Error, Namespace};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Starts a pipeline over a collection, or one that makes its own documents.
/// Stages that write are left out: the caller does what they say.
pub fn start(
    steps: Vec<Step>,
    collection: Option<Namespace>,
    hint: Option<Value>,
    environment: &Arc<dyn Environment>,
) -> Result<Box<dyn Source>, Error> {
    if let Some(initial) = initial(&steps, environment)? {
        let mut steps = optimize(steps);
        steps.remove(0);
        return chain(initial, steps, environment);
    }
    let Some(collection) = collection else {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            "a pipeline without a collection begins with its own documents",
        ));
    };
    if let Some(source) = environment.pipeline(&steps, &collection, hint.as_ref())? {
        return Ok(source);
    }
    let (request, mut rest) = split_scan(steps, collection, hint);
    compile(&mut rest);
    let input: Box<dyn Source> = if request.limit == Some(0) {
        Box::new(Documents::new(Vec::new()))
    } else {
        environment.scan(request)?
    };
    chain(input, rest, environment)
}

/// What a pipeline over a collection reads, and the stages behind: for explain.
pub fn split_scan(
    steps: Vec<Step>,
    collection: Namespace,
    hint: Option<Value>,
) -> (ScanRequest, Vec<Step>) {
    let mut request = ScanRequest {
        hint,
        ..ScanRequest::all(collection)
    };
    let rest = push_down(optimize(steps), &mut request);
    (request, rest)
}

/// Marks the leading stages that MongoDB would run in its other engine, which
/// differs in small things that clients can see. A `$lookup` that is unwound is
/// none of them.
pub(super) fn compile(steps: &mut [Step]) {
    for at in 0..steps.len() {
        let (before, behind) = steps.split_at_mut(at + 1);
        match &mut before[at].stage {
            Stage::Group(group) => group.compile(),
            Stage::Lookup(lookup)
                if lookup.is_plain() && unwinding(lookup, behind.first()).is_none() =>
            {
                lookup.compile();
            }
            _ => return,
        }
    }
}

/// The source of a first stage that takes no input.
fn initial(
    steps: &[Step],
    environment: &Arc<dyn Environment>,
) -> Result<Option<Box<dyn Source>>, Error> {
    let Some(first) = steps.first().filter(|step| step.stage.is_initial()) else {
        return Ok(None);
    };
    let made = match &first.stage {
        Stage::CollectionStats(namespace, stats) => {
            vec![environment.collection_stats(namespace, stats)?]
        }
        Stage::IndexStats(namespace) => environment.index_stats(namespace)?,
        Stage::LocalSessions(whose) => environment.local_sessions(*whose)?,
        Stage::ChangeStream(stream) => {
            return environment.change_stream(stream, &steps[1..]).map(Some);
        }
        Stage::CurrentOperations(options) => environment.current_operations(options.as_doc())?,
        stage => documents(stage)?,
    };
    Ok(Some(Box::new(Documents::new(made))))
}

/// Whether stages that take one document and give one or none let this one through.
pub fn lets_through(
    steps: &[Step],
    document: DocBuf,
    environment: &Arc<dyn Environment>,
) -> Result<bool, Error> {
    let source = Box::new(Documents::new(vec![document]));
    let found = chain(source, steps.to_vec(), environment)?.advance()?;
    Ok(matches!(found, Advance::Document))
}

/// A running chain, and what each of its stages has given so far.
pub type CountedChain = (Box<dyn Source>, Vec<Arc<AtomicU64>>);

/// Puts the stages behind a scan, and counts what each of them gives: for explain.
pub fn chain_counted(
    mut source: Box<dyn Source>,
    mut steps: Vec<Step>,
    environment: &Arc<dyn Environment>,
) -> Result<CountedChain, Error> {
    compile(&mut steps);
    let mut counts = Vec::with_capacity(steps.len());
    let mut rest = steps.into_iter();
    while let Some(step) = rest.next() {
        let given = Arc::new(AtomicU64::new(0));
        let before = rest.len();
        source = Box::new(Counted {
            input: attach_next(source, step, &mut rest, environment)?,
            given: given.clone(),
        });
        // Stages that run as one give the same.
        let taken_in = before - rest.len();
        counts.extend(std::iter::repeat_n(given, 1 + taken_in));
    }
    Ok((source, counts))
}

/// Puts stages behind a source.
pub(super) fn chain(
    mut source: Box<dyn Source>,
    steps: Vec<Step>,
    environment: &Arc<dyn Environment>,
) -> Result<Box<dyn Source>, Error> {
    let mut rest = steps.into_iter();
    while let Some(step) = rest.next() {
        source = attach_next(source, step, &mut rest, environment)?;
    }
    Ok(source)
}

/// Puts a stage behind a source, and with it what runs as one with it.
fn attach_next(
    input: Box<dyn Source>,
    step: Step,
    rest: &mut std::vec::IntoIter<Step>,
    environment: &Arc<dyn Environment>,
) -> Result<Box<dyn Source>, Error> {
    if let Stage::Lookup(lookup) = &step.stage
        && let Some(unwind) = unwinding(lookup, rest.as_slice().first()).cloned()
    {
        rest.next();
        let lookup = Lookup::clone(lookup);
        return Ok(Box::new(UnwoundLookup::new(
            input,
            lookup,
            unwind,
            environment,
        )));
    }
    attach(input, step.stage, environment)
}

fn attach(
    input: Box<dyn Source>,
    stage: Stage,
    environment: &Arc<dyn Environment>,
) -> Result<Box<dyn Source>, Error> {
    Ok(match stage {
        Stage::Match(filter) => Box::new(Matching {
            input,
            filter,
            interruption: Interruption::new(environment),
        }),
        Stage::Project(projector) => Box::new(Projecting {
            input,
            projector,
            current: DocBuf::new(),
        }),
        Stage::Replace(replacement) => Box::new(Replacing {
            input,
            replacement,
            current: DocBuf::new(),
        }),
        Stage::Sort { pattern, limit } => {
            Box::new(Sorting::new(input, pattern, limit, environment))
        }
        Stage::Limit(remaining) => Box::new(Limited { input, remaining }),
        Stage::Skip(remaining) => Box::new(Skipping {
            input,
            remaining,
            interruption: Interruption::new(environment),
        }),
        Stage::Count(name) => Box::new(Counting::new(input, name, environment)),
        Stage::Unwind(unwind) => Box::new(Unwinding::new(input, unwind)),
        Stage::Group(group) => Box::new(Grouping::new(input, *group, environment)),
        Stage::BucketAuto(stage) => Box::new(Bucketing::new(input, *stage, environment)?),
        Stage::Sample { size, keyed } => Box::new(Sampling::new(input, size, keyed, environment)),
        Stage::Redact(redact) => Box::new(Redacting {
            input,
            redact,
            current: DocBuf::new(),
        }),
        Stage::Facet(facet) => Box::new(Faceting::new(input, *facet, environment)?),
        Stage::Lookup(lookup) => Box::new(LookingUp::new(input, *lookup, environment)),
        Stage::GraphLookup(stage) => Box::new(FollowingGraph::new(input, *stage, environment)),
        Stage::UnionWith(union) => Box::new(Uniting::new(input, *union, environment)),
        // First stages were taken out by `start`, and writing is the caller's.
        Stage::Documents(_)
        | Stage::CollectionStats(..)
        | Stage::IndexStats(_)
        | Stage::CurrentOperations(_)
        | Stage::LocalSessions(_)
        | Stage::ChangeStream(_)
        | Stage::Out(_)
        | Stage::Merge(_) => input,
    })
}
