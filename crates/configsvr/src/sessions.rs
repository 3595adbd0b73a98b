//! The sessions collection of the cluster, `config.system.sessions`: sharded over the shards by `_id`.
//!
//! `_configsvrSessionsCollection` answers `{exists, timeoutMinutes}`. Routers and members of shards ask
//! before they write; with `setUp`, which the config server's own primary says when it refreshes its
//! sessions, the collection is made if it is not there, and the index by which sessions expire is given
//! the time of this server's `localLogicalSessionTimeoutMinutes`. Nobody else makes it.
//!
//! As MongoDB's it has 1,024 chunks, by the beginning of the session's UUID; each shard that is there
//! when it is made gets one stretch of them.

use crate::collection;
use crate::error::Fault;
use crate::operation::on_owners::OnOwners;
use crate::operation::run;
use crate::operation::shard_collection::ShardCollection;
use crate::queue::Patience;
use crate::tenure::Tenure;
use cluster::sessions;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::{Code, Namespace};
use std::sync::Arc;

pub(crate) const CHUNKS: u64 = 1024;

pub(crate) fn namespace() -> Result<Namespace, Fault> {
    Ok(Namespace::parse(sessions::NAMESPACE)?)
}

pub(crate) async fn answer(tenure: &Arc<Tenure>, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let name = namespace()?;
    let minutes = timeout_minutes(tenure).await?;
    if body.get("setUp") == Some(ValueRef::Boolean(true)) {
        set_up(tenure, &name, i64::from(minutes) * 60).await?;
    }
    let exists = tenure.state().await?.lookup(&name)?.is_some();
    Ok(DocWriter::new()
        .with("exists", exists)
        .with("timeoutMinutes", minutes)
        .with("ok", 1.0)
        .finish())
}

async fn timeout_minutes(tenure: &Tenure) -> Result<i32, Fault> {
    const PARAMETER: &str = "localLogicalSessionTimeoutMinutes";
    let question = DocWriter::new().with("getParameter", 1).with(PARAMETER, 1);
    let told = tenure.store.run_on("admin", question).await?;
    match told.get(PARAMETER) {
        Some(ValueRef::Int32(minutes)) => Ok(minutes),
        _ => Err(Fault::new(
            Code::INTERNAL_ERROR,
            format!("{PARAMETER} is not known"),
        )),
    }
}

async fn set_up(tenure: &Arc<Tenure>, name: &Namespace, seconds: i64) -> Result<(), Fault> {
    let owner = {
        let state = tenure.state().await?;
        let table = state.lookup(name)?.map(|(_, table)| table);
        table.and_then(|table| table.shards().first().map(|part| part.shard.clone()))
    };
    let Some(owner) = owner else {
        run(
            tenure,
            ShardCollection::of_sessions(name, seconds)?,
            Patience::usual(),
            None,
        )
        .await?;
        return Ok(());
    };
    let indexes = collection::indexes(tenure, &owner, name).await?;
    let command = match sessions::lifetime(indexes.iter().map(DocBuf::as_doc)) {
        Some(known) if known == seconds => return Ok(()),
        Some(_) => sessions::set_lifetime(seconds),
        None => {
            let mut create = sessions::command("createIndexes");
            create.begin_array("indexes");
            create.push(&sessions::index(seconds)).end();
            create
        }
    };
    let command = command.finish();
    run(
        tenure,
        OnOwners::parse(sessions::DATABASE, command.as_doc())?,
        Patience::usual(),
        None,
    )
    .await?;
    Ok(())
}

/// Bounds that cut the UUIDs of sessions into so many equal parts.
pub(crate) fn bounds(pattern: &ShardKeyPattern, chunks: usize) -> Result<Vec<KeyBound>, Fault> {
    let count = chunks as u64;
    let bound = |at: u64| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&((at << 32) / count).to_be_bytes()[4..]);
        let mut writer = DocWriter::new();
        writer.begin_document("_id");
        writer.append(
            "id",
            ValueRef::Binary {
                subtype: 4,
                bytes: &id,
            },
        );
        writer.end();
        Ok(pattern.bound(writer.finish().as_doc())?)
    };
    (1..count).map(bound).collect()
}
