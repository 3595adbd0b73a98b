//! `$out` and `$merge` behind a merging half: what it makes is written through this router.
//!
//! `$out` fills a collection of another name, with the options and indexes of the one that it
//! replaces, and then renames it over that one, so that nobody ever sees half of it. `$merge` is a batch of
//! updates for each portion of documents; into a sharded collection it joins by the shard key and
//! `_id` where the client names no fields.

use crate::aggregate::Command;
use crate::bulk::{Kind, write as write_batch};
use crate::config::error_of;
use crate::ddl;
use crate::failure::{Failure, is_ok};
use crate::find::whole;
use crate::hello::object_id;
use crate::targeting::documents;
use model::bson::{ArrayWriter, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use query::pipeline::{Advance, Merge, Out, Source, Stage, WhenMatched, WhenNotMatched};
use wire::{Reply, Request, Sequence};

/// Documents that are written together.
const PORTION_DOCUMENTS: usize = 1000;
const PORTION_BYTES: usize = 8 * 1024 * 1024;

pub(crate) async fn write(
    command: &Command<'_>,
    mut source: Box<dyn Source>,
    stage: &Stage,
) -> Result<Reply, Failure> {
    let concern = command.request.body().get_doc("readConcern");
    if concern.and_then(|concern| concern.get_str("level")) == Some("linearizable") {
        let message = "$out and $merge cannot be used with a 'linearizable' read concern level";
        return Err(Error::new(Code::INVALID_OPTIONS, message).into());
    }
    match stage {
        Stage::Out(out) => replace(command, &mut *source, out).await?,
        Stage::Merge(merge) => join(command, &mut *source, merge).await?,
        _ => return Err(Error::new(Code::INTERNAL_ERROR, "no stage that writes").into()),
    }
    Ok(command.router.empty_cursor(&command.namespace))
}

fn portion(source: &mut dyn Source) -> Result<Vec<DocBuf>, Error> {
    tokio::task::block_in_place(|| {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < PORTION_DOCUMENTS && bytes < PORTION_BYTES {
            match source.advance()? {
                Advance::Document => {
                    let document = source.take();
                    bytes += document.as_bytes().len();
                    taken.push(document);
                }
                Advance::Paused => {}
                Advance::End => break,
            }
        }
        Ok(taken)
    })
}

impl Command<'_> {
    /// A command of the router's own with the client's concerns.
    fn own(&self, command: DocWriter, database: &str) -> DocWriter {
        let mut command = command;
        for name in [
            "writeConcern",
            "comment",
            "bypassDocumentValidation",
            "lsid",
        ] {
            if let Some(element) = self.request.body().element(name) {
                command.append_element(&element);
            }
        }
        command.with("$db", database)
    }

    async fn write_all(
        &self,
        kind: Kind,
        target: &Namespace,
        statements: &[DocBuf],
    ) -> Result<Reply, Failure> {
        let (name, field) = match kind {
            Kind::Insert => ("insert", "documents"),
            Kind::Update => ("update", "updates"),
            Kind::Delete => ("delete", "deletes"),
        };
        let command = DocWriter::new()
            .with(name, target.collection())
            .with("ordered", false);
        let command = self.own(command, target.database());
        let sequence = Sequence::new(field, statements.iter().map(DocBuf::as_doc));
        let request = Request::from_parts(command.finish(), vec![sequence])?;
        let reply = write_batch(self.router, &request, kind).await?;
        let document = reply.document();
        let errors = document.get_array("writeErrors").into_iter();
        if let Some(error) = errors.flat_map(documents).next() {
            return Err(Failure::Error(error_of(error)));
        }
        if let Some(error) = document.get_doc("writeConcernError") {
            return Err(Failure::Error(error_of(error)));
        }
        Ok(reply)
    }
}

async fn replace(command: &Command<'_>, source: &mut dyn Source, out: &Out) -> Result<(), Failure> {
    let router = command.router;
    let target = &out.target;
    let route = router.routing.route(target, true).await?;
    if route.is_some_and(|route| route.table().is_some()) {
        return Err(sharded(target).into());
    }
    let name = format!("tmp.agg_out.{}", object_id());
    let filled = Namespace::new(target.database(), &name)?;
    let mut create = DocWriter::new().with("create", name.as_str());
    for option in options_of(command, target).await?.iter() {
        create.append_element(&option);
    }
    let create = command.own(create, target.database()).finish();
    checked(ddl::on_collection(router, &Request::from_parts(create, Vec::new())?).await?)?;
    let written = async {
        fill(command, source, target, &filled).await?;
        let rename = DocWriter::new()
            .with("renameCollection", filled.as_str())
            .with("to", target.as_str())
            .with("dropTarget", true);
        let rename = command.own(rename, "admin").finish();
        checked(ddl::forward(router, &Request::from_parts(rename, Vec::new())?).await?)
    };
    if let Err(failure) = written.await {
        let drop = DocWriter::new().with("drop", name.as_str());
        let drop = command.own(drop, target.database()).finish();
        let dropped = ddl::forward(router, &Request::from_parts(drop, Vec::new())?).await;
        if let Err(failure) = dropped {
            tracing::warn!(?failure, collection = %filled, "what $out has begun is left over");
        }
        return Err(failure);
    }
    Ok(())
}

/// The options of a collection that is not sharded; none if there is no such collection.
async fn options_of(command: &Command<'_>, name: &Namespace) -> Result<DocBuf, Failure> {
    let mut list = DocWriter::new().with("listCollections", 1);
    list.begin_document("filter")
        .append("name", name.collection())
        .end();
    let list = list.with("$db", name.database()).finish();
    let list = Request::from_parts(list, Vec::new())?;
    let listed = crate::catalog::list_collections(command.router, &list).await?;
    let cursor = listed.document().get_doc("cursor").unwrap_or(Doc::EMPTY);
    let found = crate::registry::batch_of(cursor).next();
    let options = found.and_then(|found| found.get_doc("options"));
    Ok(options.unwrap_or(Doc::EMPTY).to_owned())
}

/// Copies indexes, then documents.
async fn fill(
    command: &Command<'_>,
    source: &mut dyn Source,
    target: &Namespace,
    filled: &Namespace,
) -> Result<(), Failure> {
    let router = command.router;
    let list = DocWriter::new().with("listIndexes", target.collection());
    let list = list.with("$db", target.database()).finish();
    let listed =
        crate::catalog::list_indexes(router, &Request::from_parts(list, Vec::new())?).await;
    // A collection that does not exist has none.
    if let Ok(listed) = listed
        && let Some(cursor) = listed.document().get_doc("cursor")
    {
        let mut indexes = ArrayWriter::new();
        for index in crate::registry::batch_of(cursor) {
            if index.get_str("name") != Some("_id_") {
                indexes.push(index);
            }
        }
        if !indexes.is_empty() {
            let create = DocWriter::new()
                .with("createIndexes", filled.collection())
                .with("indexes", &indexes.finish());
            let create = command.own(create, target.database()).finish();
            checked(ddl::on_collection(router, &Request::from_parts(create, Vec::new())?).await?)?;
        }
    }
    loop {
        let documents = portion(source)?;
        if documents.is_empty() {
            return Ok(());
        }
        command.write_all(Kind::Insert, filled, &documents).await?;
    }
}

fn checked(reply: Reply) -> Result<(), Failure> {
    match is_ok(reply.document()) {
        true => Ok(()),
        false => Err(Failure::Reply(reply)),
    }
}

fn sharded(target: &Namespace) -> Error {
    Error::location(
        28769,
        format!("namespace '{target}' is sharded so it can't be used for $out'"),
    )
}

async fn join(
    command: &Command<'_>,
    source: &mut dyn Source,
    merge: &Merge,
) -> Result<(), Failure> {
    check_unique(command, merge).await?;
    let mut merge = merge.clone();
    let route = command.router.routing.route(&merge.target, true).await?;
    if let (None, Some(table)) = (&merge.on, route.as_ref().and_then(|route| route.table())) {
        let fields = table.pattern.fields().iter();
        let mut on: Vec<String> = fields.map(|field| field.path.to_string()).collect();
        if !on.iter().any(|field| field == "_id") {
            on.push("_id".to_owned());
        }
        merge.on = Some(on);
    }
    let on = merge.on.as_ref();
    let by_id = on.is_none_or(|on| on.iter().any(|field| field == "_id"));
    let is_inserted = matches!(merge.when_matched, WhenMatched::Fail);
    loop {
        let documents = portion(source)?;
        if documents.is_empty() {
            return Ok(());
        }
        // ⚑ One that is joined by other fields takes no `_id` to the document that it meets.
        let documents: Vec<DocBuf> = match by_id || is_inserted {
            true => documents.into_iter().map(with_id).collect(),
            false => documents,
        };
        if let (WhenMatched::Fail, WhenNotMatched::Insert) =
            (&merge.when_matched, merge.when_not_matched)
        {
            command
                .write_all(Kind::Insert, &merge.target, &documents)
                .await?;
            continue;
        }
        if let (WhenMatched::Pipeline(_), WhenNotMatched::Insert) =
            (&merge.when_matched, merge.when_not_matched)
        {
            for document in documents {
                let change = [statement(command, &merge, document.as_doc())?];
                let target = &merge.target;
                let reply = command.write_all(Kind::Update, target, &change).await?;
                if whole(reply.document().get("n")) == Some(0) {
                    let document = with_id(document);
                    command.write_all(Kind::Insert, target, &[document]).await?;
                }
            }
            continue;
        }
        let mut statements = Vec::with_capacity(documents.len());
        for document in &documents {
            statements.push(statement(command, &merge, document.as_doc())?);
        }
        let reply = command
            .write_all(Kind::Update, &merge.target, &statements)
            .await?;
        let matched = whole(reply.document().get("n")).unwrap_or(0);
        if merge.when_not_matched == WhenNotMatched::Fail && matched < documents.len() as u64 {
            return Err(Failure::Error(Error::new(
                Code::MERGE_STAGE_NO_MATCHING_DOCUMENT,
                "$merge could not find a matching document in the target collection for at least \
                 one document in the source collection",
            )));
        }
    }
}

/// A field list must be unique in the target, or a document would join several.
async fn check_unique(command: &Command<'_>, merge: &Merge) -> Result<(), Failure> {
    let on = match &merge.on {
        Some(on) if on.iter().any(|field| field != "_id") => on,
        Some(_) | None => return Ok(()),
    };
    let list = DocWriter::new().with("listIndexes", merge.target.collection());
    let list = list.with("$db", merge.target.database()).finish();
    let request = Request::from_parts(list, Vec::new())?;
    let listed = crate::catalog::list_indexes(command.router, &request).await;
    let fits = |index: Doc<'_>| {
        let key = index.get_doc("key").unwrap_or(Doc::EMPTY);
        index.get("unique") == Some(ValueRef::Boolean(true))
            && index.get("partialFilterExpression").is_none()
            && key.iter().count() == on.len()
            && key
                .iter()
                .all(|field| on.iter().any(|name| name == field.key()))
    };
    let is_there = listed.is_ok_and(|listed| {
        let cursor = listed.document().get_doc("cursor").unwrap_or(Doc::EMPTY);
        crate::registry::batch_of(cursor).any(fits)
    });
    if is_there {
        return Ok(());
    }
    let message = "Cannot find index to verify that join fields will be unique";
    Err(Error::location(51183, message).into())
}

fn with_id(document: DocBuf) -> DocBuf {
    if document.get("_id").is_some() {
        return document;
    }
    let mut writer = DocWriter::new().with("_id", object_id());
    for element in document.iter() {
        writer.append_element(&element);
    }
    writer.finish()
}

/// The update that joins one document.
fn statement(command: &Command<'_>, merge: &Merge, document: Doc<'_>) -> Result<DocBuf, Error> {
    let identity = merge.identity(document)?;
    let mut statement = DocWriter::new().with("q", &identity);
    let constants = |statement: &mut DocWriter| -> Result<(), Error> {
        statement.begin_document("c");
        let bound = merge.bound(document, &command.context)?;
        let late = bound.late_variables.iter().zip(bound.late_values.iter());
        for (name, value) in late {
            if let Some(value) = value {
                statement.append(name, value);
            }
        }
        statement.end();
        Ok(())
    };
    match &merge.when_matched {
        WhenMatched::Replace | WhenMatched::KeepExisting | WhenMatched::Merge => {
            let update = merge.operators(document);
            statement.append("u", update.as_ref().map_or(document, DocBuf::as_doc));
        }
        WhenMatched::Pipeline(pipeline) => {
            statement.append("u", &Value::Array(pipeline.clone()));
            constants(&mut statement)?;
            // What is not there is inserted as it is, not as the pipeline would change it.
            return Ok(statement.finish());
        }
        WhenMatched::Fail => {
            let message = "$merge with whenMatched: fail takes whenNotMatched: insert only";
            return Err(Error::location(51181, message));
        }
    }
    statement.append("upsert", merge.when_not_matched == WhenNotMatched::Insert);
    Ok(statement.finish())
}
