//! `listCollections`, `listDatabases` and `listIndexes`.
//!
//! Each lists one version of the catalog. What does not fit into the first
//! batch stays in memory under a cursor.

use super::arguments::{Argument, arguments, fields};
use super::find::time_left;
use super::{Answer, Invocation, finish};
use crate::Shard;
use crate::catalog::Collection;
use crate::cursor::{Batch, BatchSource, Filled, OpenCursor};
use crate::operation::Operation;
use crate::read::Budget;
use model::bson::{DocBuf, DocWriter, MAX_DOCUMENT_BYTES, ValueRef};
use model::{Code, Error, Namespace};
use query::filter::Filter;
use std::collections::VecDeque;
use std::sync::Arc;
use storage::layout::Subject;
use wire::Reply;

pub(crate) async fn list_collections(invocation: &Invocation<'_>) -> Answer {
    let (mut filter, mut name_only, mut batch_size) = (None, false, None);
    for argument in arguments("listCollections", invocation.request.body()) {
        match argument.name() {
            "filter" => filter = parse_filter(invocation, &argument)?,
            "nameOnly" => name_only = argument.boolean()?,
            "cursor" => batch_size = parse_cursor("listCollections.cursor", &argument)?,
            "authorizedCollections" => {
                argument.boolean()?;
            }
            _ => return Err(argument.unknown()),
        }
    }
    let database = invocation.request.database();
    let mut listed = VecDeque::new();
    let catalog = invocation.shard.catalog.current();
    let made = &invocation.shard.virtual_collections;
    let made = made
        .iter()
        .filter(|made| made.namespace.database() == database);
    for collection in catalog.database(database).chain(made) {
        let document = describe_collection(collection, name_only);
        if passes(filter.as_ref(), &document)? {
            listed.push_back(document);
        }
    }
    let namespace = Namespace::new(database, "$cmd.listCollections")?;
    reply_with_list(invocation, &namespace, listed, batch_size)
}

fn describe_collection(collection: &Collection, name_only: bool) -> DocBuf {
    let mut writer = DocWriter::new();
    writer
        .append("name", collection.namespace.collection())
        .append("type", "collection");
    if name_only {
        return writer.finish();
    }
    let uuid = ValueRef::Binary {
        subtype: 4,
        bytes: &collection.uuid.0,
    };
    writer
        .append("options", &collection.options)
        .begin_document("info")
        .append("readOnly", false);
    if collection.made.is_none() {
        writer.append("uuid", uuid);
    }
    writer.end();
    if let Some(index) = collection.index_by_name("_id_") {
        writer.append("idIndex", &index.definition.spec);
    }
    writer.finish()
}

pub(crate) async fn list_indexes(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut batch_size = None;
    for argument in arguments("listIndexes", invocation.request.body()) {
        match argument.name() {
            "cursor" => batch_size = parse_cursor("listIndexes.cursor", &argument)?,
            "includeBuildUUIDs" | "includeIndexBuildInfo" => {
                if argument.loose_boolean()? {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        format!("{} is not supported yet", argument.name()),
                    ));
                }
            }
            _ => return Err(argument.unknown()),
        }
    }
    let Some(collection) = invocation.shard.readable(&namespace) else {
        return Err(Error::new(
            Code::NAMESPACE_NOT_FOUND,
            format!("ns does not exist: {namespace}"),
        ));
    };
    let listed = collection
        .indexes
        .iter()
        .map(|index| index.definition.spec.clone())
        .collect();
    reply_with_list(invocation, &namespace, listed, batch_size)
}

pub(crate) fn list_databases(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let (mut filter, mut name_only) = (None, false);
    for argument in arguments("listDatabases", invocation.request.body()) {
        match argument.name() {
            "filter" => filter = parse_filter(invocation, &argument)?,
            "nameOnly" => name_only = argument.loose_boolean()?,
            "authorizedDatabases" => {
                argument.loose_boolean()?;
            }
            _ => return Err(argument.unknown()),
        }
    }
    let shard = invocation.shard;
    let catalog = shard.catalog.current();
    let mut names: Vec<&str> = catalog
        .collections()
        .chain(&shard.virtual_collections)
        .map(|collection| collection.namespace.database())
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut total = 0;
    let mut writer = Reply::writer();
    writer.begin_array("databases");
    for name in names {
        let mut database = DocWriter::new().with("name", name);
        let mut bytes = 0;
        if !name_only {
            let collections = catalog.database(name);
            bytes = collections.map(|each| disk_bytes(shard, each)).sum::<u64>() as i64;
            database.append("sizeOnDisk", bytes).append("empty", false);
        }
        let database = database.finish();
        if passes(filter.as_ref(), &database)? {
            writer.push(&database);
            total += bytes;
        }
    }
    writer.end();
    if !name_only {
        writer
            .append("totalSize", total)
            .append("totalSizeMb", total / (1024 * 1024));
    }
    finish(writer)
}

/// What a collection takes on disk, its indexes included: a fair share.
fn disk_bytes(shard: &Shard, collection: &Collection) -> u64 {
    let indexes = collection
        .secondary_indexes()
        .map(|(id, _)| shard.store.storage_bytes_of(Subject::Index(id)));
    shard
        .store
        .storage_bytes_of(Subject::Collection(collection.id))
        + indexes.sum::<u64>()
}

fn parse_filter(
    invocation: &Invocation<'_>,
    argument: &Argument<'_>,
) -> Result<Option<Filter>, Error> {
    let context = invocation.context();
    match argument.optional_doc()? {
        Some(doc) => Filter::parse(doc, &context).map(Some),
        None => Ok(None),
    }
}

fn passes(filter: Option<&Filter>, document: &DocBuf) -> Result<bool, Error> {
    filter.map_or(Ok(true), |filter| filter.matches(document.as_doc()))
}

/// The batch size out of `cursor: {batchSize: …}`.
fn parse_cursor(path: &str, argument: &Argument<'_>) -> Result<Option<u64>, Error> {
    let mut batch_size = None;
    let Some(options) = argument.optional_doc()? else {
        return Ok(None);
    };
    for field in fields(path, options) {
        match field.name() {
            "batchSize" => batch_size = Some(field.non_negative()? as u64),
            _ => return Err(field.unknown()),
        }
    }
    Ok(batch_size)
}

/// Documents that are all known when the cursor is opened.
struct ListSource {
    rest: VecDeque<DocBuf>,
}

impl BatchSource for ListSource {
    fn fill(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        _budget: &mut Budget,
    ) -> Result<Filled, Error> {
        operation.check()?;
        while let Some(document) = self.rest.front() {
            if !batch.offer(document.as_doc()) {
                return Ok(Filled::Full);
            }
            self.rest.pop_front();
        }
        Ok(Filled::Ended)
    }

    fn suspend(&mut self) {}
}

fn reply_with_list(
    invocation: &Invocation<'_>,
    namespace: &Namespace,
    mut listed: VecDeque<DocBuf>,
    batch_size: Option<u64>,
) -> Answer {
    let first = first_batch(&mut listed, batch_size);
    // A batch of none opens the cursor even if there is nothing to list.
    let id = match listed.is_empty() && batch_size != Some(0) {
        true => 0,
        false => invocation.shard.cursors.open(OpenCursor {
            session: invocation.envelope.session,
            namespace: namespace.clone(),
            source: Box::new(ListSource { rest: listed }),
            opened_by: invocation.operation.clone(),
            no_timeout: false,
            time_left: time_left(invocation),
            at: None,
        }),
    };
    let mut writer = Reply::writer();
    writer
        .begin_document("cursor")
        .append("id", id)
        .append("ns", namespace.as_str())
        .begin_array("firstBatch");
    for document in &first {
        writer.push(document);
    }
    writer.end().end();
    finish(writer)
}

/// Takes as many documents as one reply holds.
fn first_batch(listed: &mut VecDeque<DocBuf>, batch_size: Option<u64>) -> Vec<DocBuf> {
    let mut first = Vec::new();
    let mut bytes = 0;
    while (first.len() as u64) < batch_size.unwrap_or(u64::MAX)
        && let Some(next) = listed.front()
    {
        bytes += next.as_bytes().len() + 16;
        if !first.is_empty() && bytes > MAX_DOCUMENT_BYTES {
            break;
        }
        first.extend(listed.pop_front());
    }
    first
}
