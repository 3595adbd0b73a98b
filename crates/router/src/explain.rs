//! `explain`: which shards a command goes to, and what each of them would do.
//!
//! The stage says how answers are put together: `SINGLE_SHARD`, `SHARD_MERGE`, `SHARD_MERGE_SORT`.
//! Pipelines answer with their two halves and a document per shard. An `aggregate` with
//! `explain: true` that a router would run in halves is asked here ([`aggregate`]): nothing of it is
//! run, and nothing is written.

use crate::Router;
use crate::aggregate::collection_of;
use crate::arguments::is_generic;
use crate::count::Gathered;
use crate::dispatch::is_internal;
use crate::failure::Failure;
use crate::find::order_of;
use crate::heartbeat::COMPATIBLE_VERSION;
use crate::routing::Route;
use crate::scatter::Answered;
use crate::targeting::{context_of, documents, namespace_of, parse_filter};
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::number::Number;
use query::context::QueryContext;
use query::pipeline::split::{Origin, Split, prepare};
use query::pipeline::{Place, Scope, parse};
use wire::{Reply, Request};

pub(crate) async fn explain(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let command = match body.first().map(|first| first.value()) {
        Some(ValueRef::Document(command)) => command,
        _ => {
            return Err(Failure::Error(Error::new(
                Code::TYPE_MISMATCH,
                "BSON field 'explain.explain' is the wrong type, expected type 'object'",
            )));
        }
    };
    let name = command.first().map_or("", |first| first.key());
    let explainable = matches!(
        name,
        "find"
            | "count"
            | "distinct"
            | "aggregate"
            | "update"
            | "delete"
            | "findAndModify"
            | "findandmodify"
    );
    if !explainable {
        // Whoever is asked says what is wrong with it.
        return crate::diagnostic::ask_config(router, request).await;
    }
    let database = request.database();
    let collection = match name {
        "aggregate" => collection_of(command, database)?,
        _ => Some(namespace_of(command, database)?),
    };
    let namespace = match &collection {
        Some(collection) => collection.clone(),
        None => Namespace::new(database, "$cmd.aggregate")?,
    };
    let context = context_of(command, &router.clock)?;
    let filter = explained_filter(name, command);
    let filter = parse_filter(filter.unwrap_or(Doc::EMPTY), &context)?;
    let split = match name {
        "aggregate" => match &collection {
            Some(collection) => split_of(router, command, collection, &context).await?,
            None => None,
        },
        _ => None,
    };
    let halved = match &split {
        Some(split) => Some(shard_half(body, command, split)?),
        None => None,
    };
    let statement = explained_statement(name, command);
    // A write goes where it would go, and is refused where it would be.
    let target = |route: &Route| match (name, statement) {
        ("update", Some(statement)) => route.update_targets(statement, &context),
        ("delete", Some(statement)) => route.delete_targets(statement, &context),
        ("findAndModify" | "findandmodify", _) => route.find_and_modify_target(&filter),
        _ => Ok(route.read_targets(&filter)),
    };
    let gathered = router
        .gather(
            halved.as_ref().unwrap_or(request),
            &namespace,
            target,
            &[],
            |_| {},
        )
        .await?;
    let Some(gathered) = gathered else {
        // As MongoDB's router does for what does not exist.
        let mut writer = Reply::writer();
        writer
            .begin_document("queryPlanner")
            .append("mongosPlannerVersion", 1)
            .begin_document("winningPlan")
            .append("stage", "EOF")
            .end()
            .end()
            .append("ok", 1.0);
        return Ok(Reply::from_writer(writer));
    };
    let sorted = order_of(command.get_doc("sort"))?.is_some();
    match name {
        "aggregate" => Ok(of_pipeline(&gathered, split.as_ref())),
        _ => Ok(of_query(router, &gathered, command, sorted)),
    }
}

/// An `aggregate` with `explain: true`, as the question that it is. Who would answer it is told
/// with the whole pipeline, so what writes is shown and never run.
pub(crate) async fn aggregate(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let mut asked = DocWriter::new();
    asked.begin_document("explain");
    for element in body.iter() {
        if element.key() != "explain" && !is_generic(element.key()) {
            asked.append_element(&element);
        }
    }
    if body.get("cursor").is_none() {
        asked.begin_document("cursor").end();
    }
    asked.end().append("verbosity", "queryPlanner");
    for element in body.iter() {
        if is_generic(element.key()) {
            asked.append_element(&element);
        }
    }
    let asked = Request::from_parts(asked.finish(), Vec::new())?;
    match is_internal(request.database()) {
        true => crate::diagnostic::ask_config(router, &asked).await,
        false => explain(router, &asked).await,
    }
}

/// The one statement of a write that may have several.
fn explained_statement<'a>(name: &str, command: Doc<'a>) -> Option<Doc<'a>> {
    let statements = match name {
        "update" => command.get_array("updates"),
        "delete" => command.get_array("deletes"),
        _ => None,
    };
    documents(statements?).next()
}

fn explained_filter<'a>(name: &str, command: Doc<'a>) -> Option<Doc<'a>> {
    match name {
        "find" => command.get_doc("filter"),
        "update" | "delete" => explained_statement(name, command)?.get_doc("q"),
        "aggregate" => {
            let first = documents(command.get_array("pipeline")?).next()?;
            first.get_doc("$match")
        }
        _ => command.get_doc("query"),
    }
}

fn of_query(router: &Router, gathered: &Gathered, command: Doc<'_>, sorted: bool) -> Reply {
    let answers = &gathered.answers;
    let stage = match (answers.len(), sorted) {
        (0 | 1, _) => "SINGLE_SHARD",
        (_, true) => "SHARD_MERGE_SORT",
        (_, false) => "SHARD_MERGE",
    };
    let connections = router.registry.connection_strings();
    let mut writer = Reply::writer();
    writer
        .begin_document("queryPlanner")
        .append("mongosPlannerVersion", 1)
        .begin_document("winningPlan")
        .append("stage", stage)
        .begin_array("shards");
    for answered in answers {
        let id = answered.shard.as_str();
        let connection = connections.iter().find(|(known, _)| known == id);
        let reply = answered.reply.document();
        writer
            .push_document()
            .append("shardName", id)
            .append("connectionString", connection.map_or("", |(_, text)| text));
        if let Some(server) = reply.element("serverInfo") {
            writer.append_element(&server);
        }
        append_fields(&mut writer, reply.get_doc("queryPlanner"));
        writer.end();
    }
    writer.end().end().end();
    let executed = answers
        .iter()
        .any(|answered| answered.reply.document().get("executionStats").is_some());
    if executed {
        append_execution(&mut writer, answers, stage);
    }
    append_server(&mut writer, router);
    writer.append("command", command).append("ok", 1.0);
    Reply::from_writer(writer)
}

fn append_fields(writer: &mut DocWriter, doc: Option<Doc<'_>>) {
    for element in doc.iter().flat_map(|doc| doc.iter()) {
        writer.append_element(&element);
    }
}

const COUNTS: [&str; 4] = [
    "nReturned",
    "executionTimeMillis",
    "totalKeysExamined",
    "totalDocsExamined",
];

fn append_execution(writer: &mut DocWriter, answers: &[Answered], stage: &str) {
    let of = |answered: &Answered, name: &str| {
        let stats = answered.reply.document().get_doc("executionStats");
        let number = stats.and_then(|stats| stats.get(name)).and_then(Number::of);
        number.map_or(0, |number| number.to_f64() as i64)
    };
    let append_counts = |writer: &mut DocWriter| {
        for name in COUNTS {
            let numbers = answers.iter().map(|answered| of(answered, name));
            // Shards work at the same time.
            let number: i64 = match name {
                "executionTimeMillis" => numbers.max().unwrap_or(0),
                _ => numbers.sum(),
            };
            writer.append(name, i32::try_from(number).unwrap_or(i32::MAX));
        }
    };
    writer.begin_document("executionStats");
    append_counts(writer);
    writer
        .begin_document("executionStages")
        .append("stage", stage);
    append_counts(writer);
    let child_ms: i64 = answers
        .iter()
        .map(|answered| of(answered, "executionTimeMillis"))
        .sum();
    writer
        .append("totalChildMillis", child_ms)
        .begin_array("shards");
    for answered in answers {
        writer
            .push_document()
            .append("shardName", answered.shard.as_str());
        append_fields(writer, answered.reply.document().get_doc("executionStats"));
        writer.end();
    }
    writer.end().end().end();
}

/// The halves of a pipeline, unless one shard does all of it.
async fn split_of(
    router: &Router,
    command: Doc<'_>,
    namespace: &Namespace,
    context: &QueryContext,
) -> Result<Option<Split>, Failure> {
    let Some(stages) = command.get_array("pipeline") else {
        return Ok(None);
    };
    let scope = Scope {
        database: namespace.database(),
        collection: Some(namespace),
        context,
        place: Place::Command,
        depth: 0,
    };
    let prepared = prepare(parse(stages, &scope)?, namespace.database())?;
    let filter = prepared.filter();
    let target = |route: &Route| Ok(route.read_targets(&filter));
    let Some((route, shards)) = router.route_to(namespace, false, target).await? else {
        return Ok(None);
    };
    // As it is run (`aggregate.rs`): what one shard writes beside what it reads it does alone.
    let is_written_here =
        route.table().is_none() && prepared.target().is_some() && prepared.foreign().is_empty();
    if is_written_here || prepared.origin() != Origin::Collection {
        return Ok(None);
    }
    let pattern = route.table().map(|table| &*table.pattern);
    let split = prepared.for_shards(pattern)?;
    let is_split = shards.len() > 1 || !split.passes_through();
    Ok(is_split.then_some(split))
}

/// The same question about what the shards do of a pipeline.
fn shard_half(body: Doc<'_>, command: Doc<'_>, split: &Split) -> Result<Request, Error> {
    let mut halved = DocWriter::new();
    halved.begin_document("explain");
    for element in command.iter() {
        match element.key() {
            "pipeline" => halved.append("pipeline", &split.shard_pipeline()),
            _ => halved.append_element(&element),
        };
    }
    halved
        .append("fromMongos", true)
        .append("needsMerge", true)
        .end();
    for element in body.iter().skip(1) {
        halved.append_element(&element);
    }
    Request::from_parts(halved.finish(), Vec::new())
}

fn of_pipeline(gathered: &Gathered, split: Option<&Split>) -> Reply {
    let mut writer = Reply::writer();
    match split {
        Some(split) => split.explain(&mut writer),
        None => {
            writer.append("splitPipeline", ValueRef::Null);
        }
    }
    writer.begin_document("shards");
    for answered in &gathered.answers {
        writer.begin_document(answered.shard.as_str());
        for element in answered.reply.document().iter() {
            if !matches!(element.key(), "ok" | "$clusterTime" | "operationTime") {
                writer.append_element(&element);
            }
        }
        writer.end();
    }
    writer.end().append("ok", 1.0);
    Reply::from_writer(writer)
}

fn append_server(writer: &mut DocWriter, router: &Router) {
    let (host, port) = router
        .options
        .host
        .rsplit_once(':')
        .unwrap_or((&router.options.host, "0"));
    writer
        .begin_document("serverInfo")
        .append("host", host)
        .append("port", port.parse::<i32>().unwrap_or(0))
        .append("version", COMPATIBLE_VERSION)
        .append("gitVersion", "")
        .end();
}
