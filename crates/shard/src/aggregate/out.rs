//! `$out`: fills a collection that nobody sees, then renames it over the target.
//!
//! The new collection has the target's options and indexes. If anything fails it
//! is dropped, and the target is as it was.

use super::{portion, while_running};
use crate::command::Invocation;
use crate::command::insert::check_target;
use crate::write::{check_stored, prepare_insert};
use model::bson::DocBuf;
use model::key::RecordKey;
use model::{Code, Error, Namespace};
use query::pipeline::Source;

pub(crate) async fn write_out(
    invocation: &Invocation<'_>,
    source: &mut dyn Source,
    target: &Namespace,
) -> Result<(), Error> {
    check_target(target).map_err(|error| {
        Error::new(
            Code::ILLEGAL_OPERATION,
            format!("error with target namespace: {}", error.message),
        )
    })?;
    let shard = invocation.shard;
    shard.check_writable(target, "$out")?;
    if let Some(target) = shard.catalog.get(target)
        && target.is_sharded()
    {
        return Err(Error::location(
            28769,
            format!("{} cannot be sharded", target.namespace),
        ));
    }
    let name = format!("tmp.agg_out.{}", shard.new_uuid());
    let hidden = Namespace::new(target.database(), &name)?;
    {
        let _ddl = shard
            .ddl_in(&[target.database()], Some(invocation.operation))
            .await?;
        let (options, indexes) = match shard.catalog.get(target) {
            Some(replaced) => (
                replaced.options.clone(),
                replaced
                    .secondary_indexes()
                    .filter(|(_, index)| index.is_ready())
                    .map(|(_, index)| index.definition.clone())
                    .collect(),
            ),
            None => (DocBuf::new(), Vec::new()),
        };
        shard.create_collection(&hidden, options, indexes).await?;
    }
    let mut written = fill(invocation, source, &hidden).await;
    if written.is_ok() {
        written = shard
            .rename_collection(&hidden, target, (true, None), Some(invocation.operation))
            .await
            .map(|_| ());
    }
    if written.is_err() {
        shard.drop_collection(&hidden, || Ok(()), None).await?;
    }
    written.map_err(while_running)
}

async fn fill(
    invocation: &Invocation<'_>,
    source: &mut dyn Source,
    hidden: &Namespace,
) -> Result<(), Error> {
    loop {
        let documents = portion(source)?;
        if documents.is_empty() {
            return Ok(());
        }
        insert_all(invocation, hidden, documents).await?;
        invocation.operation.check()?;
    }
}

/// Inserts documents in one entry, all or none.
pub(super) async fn insert_all(
    invocation: &Invocation<'_>,
    namespace: &Namespace,
    documents: Vec<DocBuf>,
) -> Result<(), Error> {
    let shard = invocation.shard;
    let prepared = documents
        .iter()
        .map(|document| {
            let document = prepare_insert(shard, document.as_doc())?;
            check_stored(document.as_doc())?;
            let id = document.get("_id").expect("prepared documents have an _id");
            Ok((RecordKey::from_id(id), document))
        })
        .collect::<Result<Vec<(RecordKey, DocBuf)>, Error>>()?;
    let keys: Vec<RecordKey> = prepared.iter().map(|(key, _)| key.clone()).collect();
    loop {
        let collection = shard
            .ensure_collection(namespace, Some(invocation.operation))
            .await?;
        let written = shard
            .write_statements(
                collection.id,
                invocation.envelope.write_concern,
                None,
                Some(invocation.operation),
                &keys,
                |evaluator| {
                    prepared.iter().try_for_each(|(key, document)| {
                        evaluator.insert(key.clone(), document.clone())
                    })
                },
            )
            .await?;
        if written.is_some() {
            return Ok(());
        }
    }
}
