//! `aggregate`: runs a pipeline; the first batch, and a cursor for the rest.
//!
//! A router that puts together what several shards answer sends its half of the
//! pipeline with `fromMongos` and `needsMerge`: see `query::pipeline::split`.

use super::arguments::{arguments, missing};
use super::explain::{Verbosity, explain_command};
use super::find::{finish_cursor, read_time, time_left};
use super::{Answer, Invocation, let_variables, refuse_collation};
use crate::aggregate::{PipelineSource, ShardEnvironment, check_unique, merge_into, write_out};
use crate::change_stream::StreamCursor;
use crate::cursor::{Batch, BatchSource, FIRST_BATCH_DOCUMENTS, Filled, OpenCursor, fill_batch};
use crate::read::ScanPart;
use model::bson::{Array, Doc, Value, ValueRef};
use model::number::Number;
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use query::pipeline::{Environment, Place, Scope, Stage, Step, not_an_array, parse, start};
use std::sync::Arc;
use wire::Reply;

/// The fields of the command as they stand.
#[derive(Default)]
struct Fields<'a> {
    pipeline: Option<Array<'a>>,
    batch_size: Option<u64>,
    has_cursor: bool,
    explain: Option<bool>,
    allow_disk_use: Option<bool>,
    hint: Option<Value>,
    variables: Option<Doc<'a>>,
    /// Whether a router asks, and whether it puts together what several shards answer.
    from_router: bool,
    needs_merge: bool,
}

pub(crate) async fn aggregate(invocation: &Invocation<'_>) -> Answer {
    let body = invocation.request.body();
    let collection = target(invocation)?;
    let fields = Fields::read(body)?;
    let pipeline = fields
        .pipeline
        .ok_or_else(|| missing("aggregate", "pipeline"))?;
    if !fields.has_cursor && fields.explain.is_none() {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    let context = let_variables(invocation, fields.variables)?;
    let mut steps = parse(
        pipeline,
        &Scope {
            database: invocation.request.database(),
            collection: collection.as_ref(),
            context: &context,
            place: match fields.needs_merge {
                true => Place::ShardHalf,
                false => Place::Command,
            },
            depth: 0,
        },
    )?;
    if fields.explain == Some(true) {
        return explain_command(invocation, body, Verbosity::QueryPlanner);
    }
    if let Some(Stage::ChangeStream(_)) = steps.first().map(|step| &step.stage) {
        check_stream_concern(body)?;
    }
    let output = take_output(&mut steps);
    if output.is_some() && is_linearizable(body) {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            "$out and $merge cannot be used with a 'linearizable' read concern level",
        ));
    }
    if let Some(Stage::Merge(merge)) = &output {
        check_unique(invocation, merge)?;
    }
    let at = read_time(invocation);
    let part = ScanPart::read(body)?;
    if let (Some(part), Some(namespace)) = (&part, &collection)
        && part.is_elsewhere(invocation.shard.readable(namespace).as_deref())
    {
        let mut writer = Reply::writer();
        writer
            .begin_document("cursor")
            .begin_array("firstBatch")
            .end();
        part.append_elsewhere(&mut writer);
        return finish_cursor(writer, 0, namespace, at);
    }
    let environment = ShardEnvironment::new(
        invocation.shard,
        invocation.operation,
        (fields.allow_disk_use).unwrap_or_else(|| invocation.shard.parameters.current().disk_use),
        at,
        invocation.envelope.sees_orphans,
        fields.from_router,
        part.clone(),
    );
    let shared: Arc<dyn Environment> = environment.clone();
    let mut source = start(steps, collection.clone(), fields.hint, &shared)?;
    let namespace = match collection {
        Some(collection) => collection,
        None => Namespace::new(invocation.request.database(), "$cmd.aggregate")?,
    };
    match output {
        Some(Stage::Out(out)) => write_out(invocation, &mut *source, &out.target).await?,
        Some(Stage::Merge(merge)) => {
            merge_into(invocation, &mut *source, &merge, &context).await?;
        }
        _ => {
            let source: Box<dyn BatchSource> = match environment.stream() {
                Some(state) => Box::new(StreamCursor::new(
                    source,
                    environment,
                    state,
                    fields.needs_merge,
                )),
                None => Box::new(PipelineSource::new(source, environment, part)),
            };
            return first_batch(invocation, source, fields.batch_size, &namespace, at);
        }
    }
    let mut writer = Reply::writer();
    writer
        .begin_document("cursor")
        .begin_array("firstBatch")
        .end();
    finish_cursor(writer, 0, &namespace, at)
}

/// What a pipeline that is explained may not carry.
pub(crate) fn check_explained(command: Doc<'_>) -> Result<(), Error> {
    let fields = Fields::read(command)?;
    let refuse = |message: &str| Err(Error::new(Code::FAILED_TO_PARSE, message));
    match command.get("writeConcern") {
        None => {}
        Some(ValueRef::Document(_)) => {
            return refuse("Aggregation explain does not support the 'writeConcern' option");
        }
        Some(other) => {
            return Err(mismatch(&format!(
                "BSON field 'aggregate.writeConcern' is the wrong type '{}', expected type \
                 'object'",
                other.kind().name()
            )));
        }
    }
    if fields.explain.is_some() {
        return refuse("The 'explain' option is illegal when a explain verbosity is also provided");
    }
    Ok(())
}

fn is_linearizable(body: Doc<'_>) -> bool {
    let concern = body.get_doc("readConcern");
    concern.and_then(|concern| concern.get_str("level")) == Some("linearizable")
}

/// Events are those that a majority has: another concern would promise otherwise.
fn check_stream_concern(body: Doc<'_>) -> Result<(), Error> {
    let level = body
        .get_doc("readConcern")
        .and_then(|concern| concern.get_str("level"));
    match level {
        None | Some("majority") => Ok(()),
        Some(level) => Err(Error::new(
            Code::INVALID_OPTIONS,
            format!(
                "Command aggregate does not support {{ readConcern: {{ level: \"{level}\" }} }} \
                 :: caused by :: Aggregation stage $changeStream cannot run with a readConcern \
                 other than 'majority'. Current readConcern: {level}"
            ),
        )),
    }
}

/// The collection that is named; `None` for `{aggregate: 1}`.
fn target(invocation: &Invocation<'_>) -> Result<Option<Namespace>, Error> {
    let database = invocation.request.database();
    let first = invocation.request.body().first();
    match first.map(|element| element.value()) {
        Some(ValueRef::String(name)) => {
            if name == "$cmd.aggregate" || name.is_empty() {
                return Err(Error::new(
                    Code::INVALID_NAMESPACE,
                    format!("Invalid namespace specified '{database}.{name}'"),
                ));
            }
            Namespace::new(database, name).map(Some)
        }
        Some(value) if value.is_number() => {
            if Number::of(value).and_then(Number::to_i64_exact) == Some(1) {
                return Ok(None);
            }
            Err(Error::new(
                Code::FAILED_TO_PARSE,
                "Invalid command format: the 'aggregate' field must specify a collection name or 1",
            ))
        }
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "collection name has invalid type: {}",
                other.map_or("missing", |value| value.kind().name())
            ),
        )),
    }
}

impl<'a> Fields<'a> {
    fn read(body: Doc<'a>) -> Result<Self, Error> {
        let mut fields = Fields::default();
        for argument in arguments("aggregate", body) {
            let value = argument.value();
            match argument.name() {
                "pipeline" => match value {
                    ValueRef::Array(stages) => fields.pipeline = Some(stages),
                    _ => return Err(not_an_array()),
                },
                "cursor" => {
                    let ValueRef::Document(cursor) = value else {
                        return Err(mismatch("cursor field must be missing or an object"));
                    };
                    fields.has_cursor = true;
                    fields.batch_size = batch_size(cursor)?;
                }
                "explain" => match value {
                    ValueRef::Boolean(flag) => fields.explain = Some(flag),
                    _ => return Err(mismatch("explain must be a boolean")),
                },
                "allowDiskUse" => match value {
                    ValueRef::Boolean(flag) => fields.allow_disk_use = Some(flag),
                    other => {
                        return Err(mismatch(&format!(
                            "Field 'allowDiskUse' should be a boolean value, but found: {}",
                            other.kind().name()
                        )));
                    }
                },
                "hint" => match value {
                    ValueRef::String(_) | ValueRef::Document(_) => {
                        fields.hint = Some(value.to_owned()).filter(|_| !is_empty(value));
                    }
                    _ => {
                        return Err(Error::new(
                            Code::FAILED_TO_PARSE,
                            "Hint must be a string or an object",
                        ));
                    }
                },
                "let" => fields.variables = argument.optional_doc()?,
                "collation" => refuse_collation(argument.doc()?)?,
                "bypassDocumentValidation" => {
                    argument.loose_boolean()?;
                }
                "fromMongos" => fields.from_router = argument.boolean()?,
                "needsMerge" => fields.needs_merge = argument.boolean()?,
                // It changes how MongoDB counts the command, and nothing of its answer.
                "isMapReduceCommand" => {
                    argument.boolean()?;
                }
                "collectionUUID" => {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        "collectionUUID is not supported yet",
                    ));
                }
                _ => return Err(argument.unknown()),
            }
        }
        if fields.needs_merge && !fields.from_router {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "Cannot specify 'needsMerge' without 'fromMongos'",
            ));
        }
        Ok(fields)
    }
}

fn is_empty(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Document(doc) if doc.is_empty())
}

fn mismatch(message: &str) -> Error {
    Error::new(Code::TYPE_MISMATCH, message)
}

fn batch_size(cursor: Doc<'_>) -> Result<Option<u64>, Error> {
    let mut size = None;
    for field in super::arguments::fields("cursor", cursor) {
        match field.name() {
            "batchSize" if field.value().is_nullish() => {}
            "batchSize" => size = Some(field.non_negative()? as u64),
            _ => return Err(field.unknown()),
        }
    }
    Ok(size)
}

/// Takes the stage that writes off the end.
fn take_output(steps: &mut Vec<Step>) -> Option<Stage> {
    let last = steps.pop()?;
    match last.stage {
        Stage::Out(_) | Stage::Merge(_) => Some(last.stage),
        _ => {
            steps.push(last);
            None
        }
    }
}

fn first_batch(
    invocation: &Invocation<'_>,
    mut source: Box<dyn BatchSource>,
    batch_size: Option<u64>,
    namespace: &Namespace,
    at: Option<ClusterTime>,
) -> Answer {
    let shard = invocation.shard;
    let mut writer = Reply::writer();
    writer.begin_document("cursor");
    let documents_max = batch_size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let mut batch = Batch::begin(writer, "firstBatch", Some(documents_max));
    // A batch of none opens the cursor without looking for anything.
    let more = documents_max == 0
        || fill_batch(&mut *source, invocation.operation, &mut batch)? != Filled::Ended;
    shard.counters.returned(batch.documents() as usize);
    let mut writer = batch.end();
    source.append_state(&mut writer);
    if !more {
        return finish_cursor(writer, 0, namespace, at);
    }
    let id = shard.cursors.open(OpenCursor {
        session: invocation.envelope.session,
        namespace: namespace.clone(),
        // What waits for news is not bound to the time of the first command.
        time_left: match source.awaits_data() {
            true => None,
            false => time_left(invocation),
        },
        source,
        opened_by: invocation.operation.clone(),
        no_timeout: false,
        at,
    });
    finish_cursor(writer, id, namespace, at)
}
