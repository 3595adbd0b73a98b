//! `find`: the first batch, and a cursor for the rest.
//!
//! A filter that names one `_id` and asks for nothing special goes straight to
//! the record cache and from there into the reply.

use super::arguments::{Argument, arguments};
use super::envelope::ReadConcern;
use super::resume_token::{self, ResumeFields};
use super::{Answer, Invocation, finish, let_variables, refuse_collation};
use crate::catalog::Collection;
use crate::cursor::{
    Batch, BatchSource, FIRST_BATCH_DOCUMENTS, Filled, OpenCursor, batch_bytes, fill_batch,
};
use crate::error::from_storage;
use crate::operation::Operation;
use crate::read::{Budget, Execution, Query, ScanPart, Step, Taken, Visited};
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::key::Direction;
use model::number::Number;
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use query::filter::Filter;
use query::path::Path;
use query::projection::Projection;
use query::sort::{SortPattern, natural_direction};
use std::sync::Arc;
use wire::Reply;

/// A parsed `find`.
pub(crate) struct FindCommand {
    pub(crate) query: Query,
    pub(crate) projection: Option<Projection>,
    pub(crate) projection_spec: Option<DocBuf>,
    pub(crate) batch_size: Option<u64>,
    single_batch: bool,
    no_cursor_timeout: bool,
    await_data: bool,
}

/// The fields of the command as they stand.
#[derive(Default)]
struct Fields<'a> {
    filter: Option<Doc<'a>>,
    sort: Option<Doc<'a>>,
    projection: Option<Doc<'a>>,
    hint: Option<Value>,
    skip: u64,
    limit: Option<u64>,
    batch_size: Option<u64>,
    single_batch: bool,
    min: Option<Doc<'a>>,
    max: Option<Doc<'a>>,
    variables: Option<Doc<'a>>,
    allow_disk_use: Option<bool>,
    no_cursor_timeout: bool,
    return_key: bool,
    tailable: bool,
    await_data: bool,
    resume: ResumeFields<'a>,
}

pub(crate) async fn find(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.plain_namespace()?;
    let body = invocation.request.body();
    let part = ScanPart::read(body)?;
    let is_restricted = part.as_ref().is_some_and(|part| part.is_restricted());
    if !is_restricted && let Some(answer) = find_by_id(invocation, &namespace)? {
        return Ok(answer);
    }
    let fields = Fields::read(body)?;
    let part = match part {
        None if fields.resume.requested => {
            let made = invocation.shard.virtual_collection(&namespace);
            let part = match made.and_then(|collection| collection.made.as_ref()) {
                Some(made) => fields.resume.part_of(&**made)?,
                None => fields.resume.part(invocation).await?,
            };
            Some(Arc::new(part))
        }
        part => part,
    };
    let mut command = FindCommand::of(invocation, fields)?;
    let shard = invocation.shard;
    let at = command.query.at;
    let found = shard.readable(&namespace);
    if let Some(part) = &part {
        part.check_collection(found.as_deref())?;
    }
    if let Some(part) = &part
        && part.is_elsewhere(found.as_deref())
    {
        let mut writer = Reply::writer();
        writer
            .begin_document("cursor")
            .begin_array("firstBatch")
            .end();
        part.append_elsewhere(&mut writer);
        return finish_cursor(writer, 0, &namespace, at);
    }
    command.query.part = part;
    command.check_tailable(found.as_deref())?;
    let documents_max = command.batch_size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let bytes = match &found {
        Some(collection) => {
            let limit = command.query.limit.unwrap_or(u64::MAX);
            let counter = shard.store.collection_counter(collection.id);
            batch_bytes(counter, documents_max.min(limit))
        }
        None => 512,
    };
    let mut writer = Reply::writer_with_capacity(bytes);
    writer.begin_document("cursor");
    let Some(collection) = found else {
        // The real server writes this reply in another order, and without a time.
        writer
            .append("id", 0i64)
            .append("ns", namespace.as_str())
            .begin_array("firstBatch")
            .end()
            .end();
        return finish(writer);
    };
    let execution = Execution::new(shard, &collection, command.query, invocation.operation)?;
    let part = execution.query().part.as_ref();
    let mut source = FindSource {
        token: part.and_then(|part| Some(part.after.as_ref()?.encode())),
        execution,
        projection: command.projection,
        await_data: command.await_data,
        places: Vec::new(),
    };
    let mut batch = Batch::begin(writer, "firstBatch", Some(documents_max));
    // A batch of none opens the cursor without looking for anything.
    let mut more = true;
    if documents_max != 0 {
        more = fill_batch(&mut source, invocation.operation, &mut batch)? != Filled::Ended;
    }
    shard.counters.returned(batch.documents() as usize);
    let mut writer = batch.end();
    source.append_state(&mut writer);
    if !more || command.single_batch {
        return finish_cursor(writer, 0, &namespace, at);
    }
    let id = shard.cursors.open(OpenCursor {
        session: invocation.envelope.session,
        namespace: namespace.clone(),
        source: Box::new(source),
        opened_by: invocation.operation.clone(),
        no_timeout: command.no_cursor_timeout,
        time_left: time_left(invocation),
        at,
    });
    finish_cursor(writer, id, &namespace, at)
}

/// What is left of the command's time limit, for its cursor.
pub(crate) fn time_left(invocation: &Invocation<'_>) -> Option<std::time::Duration> {
    let limit = invocation.envelope.time_limit?;
    Some(limit.saturating_sub(invocation.operation.started.elapsed()))
}

/// Closes the `cursor` document and the reply.
pub(crate) fn finish_cursor(
    mut writer: DocWriter,
    id: i64,
    namespace: &Namespace,
    at: Option<ClusterTime>,
) -> Answer {
    writer.append("id", id).append("ns", namespace.as_str());
    if let Some(time) = at {
        writer.append("atClusterTime", time);
    }
    writer.end();
    finish(writer)
}

/// The most frequent query of all: one record by its `_id`, whole.
fn find_by_id(invocation: &Invocation<'_>, namespace: &Namespace) -> Result<Option<Reply>, Error> {
    let mut id = None;
    for argument in arguments("find", invocation.request.body()) {
        match argument.name() {
            "filter" => {
                let ValueRef::Document(filter) = argument.value() else {
                    return Ok(None);
                };
                let mut elements = filter.iter();
                match (elements.next(), elements.next()) {
                    (Some(only), None) if only.key() == "_id" => id = Some(only.value()),
                    _ => return Ok(None),
                }
            }
            "limit" | "batchSize" => match argument.value() {
                ValueRef::Int32(number) if number > 0 => {}
                ValueRef::Int64(number) if number > 0 => {}
                _ => return Ok(None),
            },
            "singleBatch" => {
                if !matches!(argument.value(), ValueRef::Boolean(_)) {
                    return Ok(None);
                }
            }
            _ => return Ok(None),
        }
    }
    let plain = match id {
        Some(ValueRef::Document(doc)) => doc
            .first()
            .is_none_or(|first| !first.key_bytes().starts_with(b"$")),
        Some(ValueRef::Array(_) | ValueRef::Regex { .. } | ValueRef::Undefined) | None => false,
        Some(_) => true,
    };
    let (Some(id), true) = (id, plain) else {
        return Ok(None);
    };
    let shard = invocation.shard;
    if invocation.envelope.read_concern != ReadConcern::Latest
        || invocation.envelope.sees_orphans
        || shard.virtual_collection(namespace).is_some()
    {
        return Ok(None);
    }
    let catalog = shard.catalog.current();
    // Of a collection that is not there the reply has another form.
    let Some(collection) = catalog.get(namespace) else {
        return Ok(None);
    };
    let Some(key) = collection.record_key_of_id(id) else {
        return Ok(None);
    };
    let mut record = shard
        .store
        .get(collection.id, key.as_bytes())
        .map_err(from_storage)?;
    if let Some(ownership) = &collection.ownership {
        // What was read is what was owned, if that was the same before and after.
        let now = shard.catalog.by_id(collection.id);
        let is_same = now.is_some_and(|now| now.has_the_same_ownership(collection));
        if !is_same || collection.has_blocks() {
            return Ok(None);
        }
        record.take_if(|found| ownership.hides(Doc::from_validated(found.document())));
    }
    shard.counters.returned(usize::from(record.is_some()));
    let bytes = record.as_ref().map_or(0, |record| record.document().len());
    let mut writer = Reply::writer_with_capacity(bytes + namespace.as_str().len() + 96);
    writer.begin_document("cursor").begin_array("firstBatch");
    if let Some(record) = &record {
        writer.push(Doc::from_validated(record.document()));
    }
    writer.end();
    finish_cursor(writer, 0, namespace, None).map(Some)
}

/// Documents of a `find`, projected.
pub(crate) struct FindSource {
    pub(crate) execution: Execution,
    pub(crate) projection: Option<Projection>,
    pub(crate) await_data: bool,
    /// Where each document of the batch stands, for who asks for that.
    pub(crate) places: Vec<Vec<u8>>,
    /// Where the batches before ended, for who asks for tokens.
    token: Option<Vec<u8>>,
}

impl BatchSource for FindSource {
    fn fill(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        budget: &mut Budget,
    ) -> Result<Filled, Error> {
        if batch.documents() == 0 {
            if let Some(last) = self.places.pop() {
                self.token = Some(last);
            }
            self.places.clear();
        }
        loop {
            if self.execution.is_ended() {
                return Ok(Filled::Ended);
            }
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            let query = self.execution.query();
            let places = query.part.as_ref().is_some_and(|part| part.places);
            if query.return_key || places {
                match self.fill_with_key(operation, batch, budget)? {
                    Some(filled) => return Ok(filled),
                    None => continue,
                }
            }
            let projection = &self.projection;
            let visited = self.execution.visit(operation, budget, &mut |document| {
                let is_taken = match projection {
                    Some(projection) => batch.offer(projection.apply(document)?.as_doc()),
                    None => batch.offer(document),
                };
                Ok(match is_taken {
                    true if batch.is_full() => Taken::Enough,
                    true => Taken::More,
                    false => Taken::Refused,
                })
            })?;
            match visited {
                // Where the limit was reached the batch is not full.
                Visited::Stopped if self.execution.is_ended() => return Ok(Filled::Ended),
                Visited::Stopped => return Ok(Filled::Full),
                Visited::Paused => return Ok(Filled::Paused),
                Visited::Ended if self.execution.is_ended() => return Ok(Filled::Ended),
                Visited::Ended => return Ok(Filled::Dry),
            }
        }
    }

    fn suspend(&mut self) {
        self.execution.suspend();
    }

    fn awaits_data(&self) -> bool {
        self.await_data
    }

    fn append_state(&self, writer: &mut DocWriter) {
        let query = self.execution.query();
        if query.part.as_ref().is_some_and(|part| part.token) {
            if let Some(time) = self.execution.log_time() {
                return resume_token::append_time(writer, time);
            }
            let place = self.places.last().or(self.token.as_ref());
            let time = self.execution.shard().store.applied_time();
            return resume_token::append(writer, place.map(Vec::as_slice), time);
        }
        let ended = self.execution.is_ended();
        let place = (!ended).then(|| self.execution.place(false, 0));
        self.execution.append_part(writer, place, &self.places);
    }
}

impl FindSource {
    /// One document by itself: its key for `returnKey`, or with its place. Nothing if there is
    /// room for more.
    fn fill_with_key(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        budget: &mut Budget,
    ) -> Result<Option<Filled>, Error> {
        let found = match self.execution.next(operation, budget)? {
            Step::Found(found) => found,
            Step::Paused => return Ok(Some(Filled::Paused)),
            Step::Ended if self.execution.is_ended() => return Ok(Some(Filled::Ended)),
            Step::Ended => return Ok(Some(Filled::Dry)),
        };
        let query = self.execution.query();
        let has_place = query.part.as_ref().is_some_and(|part| part.places);
        let place = has_place.then(|| self.execution.place(false, 0).encode());
        let beside = place.as_ref().map_or(0, Vec::len);
        let is_taken = match (query.return_key, &self.projection) {
            (true, _) => {
                let key = self.execution.index_key(&found)?.unwrap_or_default();
                batch.offer_with(key.as_doc(), beside)
            }
            (false, Some(projection)) => {
                let projected = projection.apply(found.document())?;
                batch.offer_with(projected.as_doc(), beside)
            }
            (false, None) => batch.offer_with(found.document(), beside),
        };
        if is_taken {
            self.places.extend(place);
            return Ok(None);
        }
        self.execution.put_back(found);
        Ok(Some(Filled::Full))
    }
}

/// A number that is not negative; null stands for none.
fn unsigned(argument: &Argument<'_>) -> Result<Option<u64>, Error> {
    if matches!(argument.value(), ValueRef::Null | ValueRef::Undefined) {
        return Ok(None);
    }
    match Number::of(argument.value()).map(Number::to_f64) {
        Some(number) if number.is_nan() => Ok(Some(0)),
        Some(number) if number >= i64::MAX as f64 => Ok(Some(i64::MAX as u64)),
        _ => argument.non_negative().map(|number| Some(number as u64)),
    }
}

/// `find` has checks of its own for documents and flags, with texts of their own.
fn object<'a>(argument: &Argument<'a>) -> Result<Doc<'a>, Error> {
    match argument.value() {
        ValueRef::Document(doc) => Ok(doc),
        _ => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!("Expected field {}to be of type object", argument.name()),
        )),
    }
}

/// A resume token; an empty one is none.
fn token<'a>(argument: &Argument<'a>) -> Result<Option<Doc<'a>>, Error> {
    Ok(Some(object(argument)?).filter(|token| !token.is_empty()))
}

fn flag(argument: &Argument<'_>) -> Result<bool, Error> {
    match argument.value() {
        ValueRef::Boolean(value) => Ok(value),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Field '{}' should be a boolean value, but found: {}",
                argument.name(),
                other.kind().name()
            ),
        )),
    }
}

impl<'a> Fields<'a> {
    fn read(body: Doc<'a>) -> Result<Self, Error> {
        let mut fields = Fields::default();
        for argument in arguments("FindCommandRequest", body) {
            match argument.name() {
                "filter" => fields.filter = Some(object(&argument)?),
                "sort" => fields.sort = Some(object(&argument)?),
                "projection" => fields.projection = Some(object(&argument)?),
                "hint" => fields.hint = hint(&argument)?,
                "skip" => fields.skip = unsigned(&argument)?.unwrap_or(0),
                "limit" => fields.limit = unsigned(&argument)?.filter(|limit| *limit > 0),
                "batchSize" => fields.batch_size = unsigned(&argument)?,
                "singleBatch" => fields.single_batch = flag(&argument)?,
                "min" => fields.min = Some(object(&argument)?),
                "max" => fields.max = Some(object(&argument)?),
                "let" => fields.variables = argument.optional_doc()?,
                "collation" => refuse_collation(object(&argument)?)?,
                "allowDiskUse" => fields.allow_disk_use = Some(flag(&argument)?),
                "noCursorTimeout" => fields.no_cursor_timeout = flag(&argument)?,
                "returnKey" => fields.return_key = flag(&argument)?,
                "tailable" => fields.tailable = flag(&argument)?,
                "awaitData" => fields.await_data = flag(&argument)?,
                "$_requestResumeToken" => fields.resume.requested = flag(&argument)?,
                "$_resumeAfter" => fields.resume.after = token(&argument)?,
                "$_startAt" => fields.resume.start_at = token(&argument)?,
                "showRecordId" => {
                    if flag(&argument)? {
                        return Err(Error::new(
                            Code::COMMAND_NOT_SUPPORTED,
                            "showRecordId is not supported: records have no numeric id",
                        ));
                    }
                }
                "oplogReplay" | "allowPartialResults" | "readOnce" => {
                    flag(&argument)?;
                }
                "options" => {
                    argument.optional_doc()?;
                }
                "ntoreturn" => {
                    if body.get("limit").is_some() || body.get("batchSize").is_some() {
                        return Err(Error::bad_value(
                            "'limit' or 'batchSize' fields can not be set with 'ntoreturn' field.",
                        ));
                    }
                    return Err(Error::location(
                        5746102,
                        "the ntoreturn find command parameter is not supported when FCV >= 5.1",
                    ));
                }
                "term" => {
                    return Err(Error::bad_value(
                        "cannot supply 'term' without active replication",
                    ));
                }
                _ => return Err(argument.unknown()),
            }
        }
        fields.resume.check(fields.hint.as_ref(), fields.sort)?;
        Ok(fields)
    }
}

impl Fields<'_> {
    fn check_tailable(&self) -> Result<(), Error> {
        if let Some(sort) = self.sort
            && !sort.is_empty()
            && natural_direction(sort)? != Some(Direction::Ascending)
        {
            return Err(Error::bad_value(
                "cannot use tailable option with a sort other than {$natural: 1}",
            ));
        }
        if self.single_batch {
            return Err(Error::bad_value(
                "cannot use tailable option with the 'singleBatch' option",
            ));
        }
        Ok(())
    }
}

/// A hint: a document or a string; an empty document is none.
pub(crate) fn hint(argument: &Argument<'_>) -> Result<Option<Value>, Error> {
    match argument.value() {
        ValueRef::Document(doc) if doc.is_empty() => Ok(None),
        value @ (ValueRef::Document(_) | ValueRef::String(_)) => Ok(Some(value.to_owned())),
        _ => Err(Error::new(
            Code::FAILED_TO_PARSE,
            "Hint must be a string or an object",
        )),
    }
}

/// `{$natural: ..}` is an order of records, said as a sort.
pub(crate) fn sort_pattern(
    sort: Doc<'_>,
    hint: &mut Option<Value>,
) -> Result<Option<SortPattern>, Error> {
    if natural_direction(sort)?.is_some() {
        let indexed = match hint {
            Some(Value::Document(hint)) => hint.get("$natural").is_none(),
            Some(_) => true,
            None => false,
        };
        if indexed {
            return Err(Error::bad_value(
                "index hint not allowed with $natural sort order",
            ));
        }
        *hint = Some(Value::Document(sort.to_owned()));
        return Ok(None);
    }
    let pattern = SortPattern::parse(sort)?;
    Ok((!pattern.is_empty()).then_some(pattern))
}

impl FindCommand {
    pub(crate) fn parse(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<Self, Error> {
        Self::of(invocation, Fields::read(body)?)
    }

    fn of(invocation: &Invocation<'_>, fields: Fields<'_>) -> Result<Self, Error> {
        if fields.await_data && !fields.tailable {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "Cannot set 'awaitData' without also setting 'tailable'",
            ));
        }
        if fields.tailable {
            fields.check_tailable()?;
        }
        if let (Some(min), Some(max)) = (fields.min, fields.max)
            && !min.is_empty()
            && !max.is_empty()
            && !min
                .iter()
                .map(|element| element.key())
                .eq(max.iter().map(|element| element.key()))
        {
            return Err(Error::location(
                51176,
                "min and max must have the same field names",
            ));
        }
        let context = let_variables(invocation, fields.variables)?;
        let filter_doc = fields.filter.unwrap_or(Doc::EMPTY);
        let filter = Filter::parse(filter_doc, &context)?.optimized();
        let mut hint = fields.hint;
        let sort = match fields.sort {
            Some(sort) => sort_pattern(sort, &mut hint)?,
            None => None,
        };
        let projection = match fields.projection {
            Some(spec) if !spec.is_empty() => {
                Some(Projection::parse(spec, fields.filter, &context)?)
            }
            _ => None,
        };
        let mut query = Query {
            sort,
            skip: fields.skip,
            limit: fields.limit,
            // A key is shown as it is stored, not as a document put together from it.
            needed: match fields.return_key {
                true => None,
                false => projection.as_ref().and_then(needed_paths),
            },
            hint,
            min: fields.min.filter(|doc| !doc.is_empty()).map(Doc::to_owned),
            max: fields.max.filter(|doc| !doc.is_empty()).map(Doc::to_owned),
            allow_disk_use: (fields.allow_disk_use)
                .unwrap_or_else(|| invocation.shard.parameters.current().disk_use),
            return_key: fields.return_key,
            tailable: fields.tailable,
            sees_orphans: invocation.envelope.sees_orphans,
            ..Query::new(filter)
        };
        query.at = read_time(invocation);
        Ok(Self {
            query,
            projection,
            projection_spec: fields.projection.map(Doc::to_owned),
            batch_size: fields.batch_size,
            single_batch: fields.single_batch,
            no_cursor_timeout: fields.no_cursor_timeout,
            await_data: fields.await_data,
        })
    }

    /// Only what grows at its end can be followed.
    pub(crate) fn check_tailable(&self, collection: Option<&Collection>) -> Result<(), Error> {
        let grows = match collection {
            Some(collection) => collection.made.as_ref().is_some_and(|m| m.is_tailable()),
            None => true,
        };
        if !self.query.tailable || grows {
            return Ok(());
        }
        Err(Error::bad_value(
            "error processing query: tailable cursor requested on non capped collection",
        ))
    }
}

/// The time that a read with concern "snapshot" sees.
pub(crate) fn read_time(invocation: &Invocation<'_>) -> Option<ClusterTime> {
    match invocation.envelope.read_concern {
        ReadConcern::Latest => None,
        ReadConcern::Snapshot(Some(time)) => Some(time),
        ReadConcern::Snapshot(None) => Some(invocation.shard.store.applied_time()),
    }
}

/// The fields that a projection needs, if they are few.
pub(crate) fn needed_paths(projection: &Projection) -> Option<Vec<Path>> {
    let needed = projection.needed_fields()?;
    Some(needed.iter().map(|path| Path::new(path)).collect())
}
