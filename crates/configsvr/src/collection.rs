//! What a database's primary shard tells about one of its collections.

use crate::error::Fault;
use crate::store::cursor_batch;
use crate::tenure::Tenure;
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::number::Number;
use model::shard_key::ShardKeyPattern;
use model::{Code, Namespace};

pub(crate) struct Facts {
    pub(crate) uuid: Uuid,
    pub(crate) options: DocBuf,
    pub(crate) is_view: bool,
    /// All but the one on `_id`.
    pub(crate) indexes: Vec<DocBuf>,
    pub(crate) is_empty: bool,
}

/// The UUID of a collection on a shard; `None` if there is none.
pub(crate) async fn uuid(
    tenure: &Tenure,
    shard: &ShardId,
    name: &Namespace,
) -> Result<Option<Uuid>, Fault> {
    let listed = listed(tenure, shard, name).await?;
    listed.map(|entry| uuid_of(&entry, shard, name)).transpose()
}

/// What `listCollections` says of a collection.
async fn listed(
    tenure: &Tenure,
    shard: &ShardId,
    name: &Namespace,
) -> Result<Option<DocBuf>, Fault> {
    let mut list = DocWriter::new().with("listCollections", 1);
    list.begin_document("filter")
        .append("name", name.collection())
        .end();
    let listed = ask_all(tenure, shard, name.database(), list.finish()).await?;
    Ok(listed.into_iter().next())
}

fn uuid_of(entry: &DocBuf, shard: &ShardId, name: &Namespace) -> Result<Uuid, Fault> {
    let uuid = entry.as_doc().get_doc("info");
    let uuid = match uuid.and_then(|info| info.get("uuid")) {
        Some(ValueRef::Binary { bytes, .. }) => bytes.try_into().map(Uuid).ok(),
        _ => None,
    };
    uuid.ok_or_else(|| {
        Fault::new(
            Code::INTERNAL_ERROR,
            format!("{shard} does not tell the UUID of {name}"),
        )
    })
}

impl Facts {
    /// `None` if there is no such collection.
    pub(crate) async fn ask(
        tenure: &Tenure,
        shard: &ShardId,
        name: &Namespace,
    ) -> Result<Option<Facts>, Fault> {
        let Some(entry) = listed(tenure, shard, name).await? else {
            return Ok(None);
        };
        let is_view = entry.as_doc().get_str("type") == Some("view");
        let uuid = match is_view {
            true => Uuid([0; 16]),
            false => uuid_of(&entry, shard, name)?,
        };
        let entry = entry.as_doc();
        let options = entry.get_doc("options").unwrap_or(Doc::EMPTY).to_owned();
        let mut facts = Facts {
            uuid,
            options,
            is_view,
            indexes: Vec::new(),
            is_empty: true,
        };
        if !is_view {
            facts.indexes = indexes(tenure, shard, name).await?;
            let some = DocWriter::new()
                .with("find", name.collection())
                .with("limit", 1)
                .with("singleBatch", true);
            let some = ask_all(tenure, shard, name.database(), some.finish()).await?;
            facts.is_empty = some.is_empty();
        }
        Ok(Some(facts))
    }
}

/// Indexes on a shard, all but the one on `_id`.
pub(crate) async fn indexes(
    tenure: &Tenure,
    shard: &ShardId,
    name: &Namespace,
) -> Result<Vec<DocBuf>, Fault> {
    let list = DocWriter::new().with("listIndexes", name.collection());
    let mut indexes = ask_all(tenure, shard, name.database(), list.finish()).await?;
    indexes.retain(|index| index.as_doc().get_str("name") != Some("_id_"));
    Ok(indexes)
}

/// Removes the sessions that a shard kept for itself, before it was one or before the cluster had a
/// collection for all.
pub(crate) async fn drop_sessions(tenure: &Tenure, shard: &ShardId) -> Result<(), Fault> {
    let drop = cluster::sessions::command("drop").finish();
    let database = cluster::sessions::DATABASE;
    sessions_dropped(tenure.insist(shard, database, drop.as_doc()).await)
}

/// What an answer to that means. A shard that was in the cluster before, and left it, has its part of
/// the cluster's collection, without ranges: that is not its own, and stays.
pub(crate) fn sessions_dropped(answer: Result<DocBuf, Fault>) -> Result<(), Fault> {
    let done = [Code::NAMESPACE_NOT_FOUND, Code::ILLEGAL_OPERATION];
    match answer {
        Ok(_) => Ok(()),
        Err(Fault::Refused(error)) if done.contains(&error.code) => Ok(()),
        Err(fault) => Err(fault),
    }
}

/// Every document that a command's cursor gives.
pub(crate) async fn ask_all(
    tenure: &Tenure,
    shard: &ShardId,
    database: &str,
    command: DocBuf,
) -> Result<Vec<DocBuf>, Fault> {
    let link = tenure.shard(shard)?;
    let mut found = Vec::new();
    let mut command = command;
    loop {
        let reply =
            crate::tenure::ask_endpoint(&*link, shard.as_str(), database, command.as_doc()).await?;
        let id = cursor_batch(reply.as_doc(), &mut found)?;
        if id == 0 {
            return Ok(found);
        }
        let namespace = reply
            .as_doc()
            .get_doc("cursor")
            .and_then(|cursor| cursor.get_str("ns"))
            .and_then(|namespace| namespace.split_once('.'))
            .map_or("", |(_, collection)| collection)
            .to_owned();
        command = DocWriter::new()
            .with("getMore", id)
            .with("collection", &namespace)
            .finish();
    }
}

fn key_of(index: &DocBuf) -> Doc<'_> {
    index.as_doc().get_doc("key").unwrap_or(Doc::EMPTY)
}

fn is_set(index: &DocBuf, option: &str) -> bool {
    index.get(option) == Some(ValueRef::Boolean(true))
}

/// Whether an index holds all documents in the order of the shard key.
pub(crate) fn supports(index: &DocBuf, key: Doc<'_>) -> bool {
    !is_set(index, "sparse")
        && index.get("partialFilterExpression").is_none()
        && index.get("collation").is_none()
        && begins_with(key_of(index), key)
}

pub(crate) fn is_unique(index: &DocBuf) -> bool {
    is_set(index, "unique")
}

/// Whether the first fields of an index's key are those of the shard key, in the same directions.
fn begins_with(index: Doc<'_>, key: Doc<'_>) -> bool {
    let mut fields = index.iter();
    key.iter().all(|wanted| {
        fields.next().is_some_and(|field| {
            field.key() == wanted.key() && same_direction(field.value(), wanted.value())
        })
    })
}

fn same_direction(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    match (Number::of(a), Number::of(b)) {
        (Some(a), Some(b)) => a.to_f64() == b.to_f64(),
        (None, None) => a == b,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Whether both are the same key pattern.
pub(crate) fn same_key(a: Doc<'_>, b: Doc<'_>) -> bool {
    a.iter().count() == b.iter().count() && begins_with(a, b)
}

/// ⚑ A unique index can only be kept by shards that each see all documents of one value: its first
/// fields must be those of the shard key. `_id` is the exception that everybody knows to be local.
pub(crate) fn keeps_unique(index: &DocBuf, pattern: &ShardKeyPattern) -> bool {
    let mut fields = key_of(index).iter();
    if key_of(index)
        .first()
        .is_some_and(|first| first.key() == "_id")
    {
        return true;
    }
    pattern.fields().iter().all(|wanted| {
        fields
            .next()
            .is_some_and(|field| field.key() == &*wanted.path)
    })
}

/// The specification of an index on a shard key.
pub(crate) fn index_on(key: Doc<'_>, unique: bool) -> DocBuf {
    let parts: Vec<String> = key
        .iter()
        .map(|field| match field.value() {
            ValueRef::String(kind) => format!("{}_{kind}", field.key()),
            _ => format!("{}_1", field.key()),
        })
        .collect();
    let mut spec = DocWriter::new()
        .with("v", 2)
        .with("key", key)
        .with("name", parts.join("_").as_str());
    if unique {
        spec.append("unique", true);
    }
    spec.finish()
}
