//! `$shardedDataDistribution` and `cleanupOrphaned`: what of sharded collections is where, and what should
//! not be there any more.
//!
//! The stage becomes `$documents` with what every owner said of its part, so that stages behind it work as
//! behind any other.

use crate::Router;
use crate::failure::Failure;
use crate::registry::batch_of;
use crate::request::fields_without;
use crate::statistics::coll_stats;
use crate::targeting::documents;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::number::Number;
use std::sync::Arc;
use wire::{Reply, Request};

const STAGE: &str = "$shardedDataDistribution";

/// The same aggregation over documents that are known, if it begins with the stage.
pub(crate) async fn resolved(
    router: &Arc<Router>,
    request: &Request,
) -> Result<Option<Request>, Failure> {
    let pipeline = request.body().get_array("pipeline");
    let first = pipeline.and_then(|stages| documents(stages).next());
    let first = first.and_then(|stage| stage.first());
    let Some(first) = first.filter(|first| first.key() == STAGE) else {
        return Ok(None);
    };
    if request.database() != "admin" {
        let message = format!("The {STAGE} stage must be run on the admin database");
        return Err(Error::location(6789102, message).into());
    }
    match first.value() {
        ValueRef::Document(spec) if spec.is_empty() => {}
        _ => {
            let message = format!("The {STAGE} stage specification must be an empty object");
            return Err(Error::location(6789101, message).into());
        }
    }
    let all = distribution(router).await?;
    let mut body = DocWriter::new();
    for element in request.body().iter() {
        if element.key() != "pipeline" {
            body.append_element(&element);
            continue;
        }
        body.begin_array("pipeline");
        body.push_document().begin_array("$documents");
        for document in &all {
            body.push_document().append("$literal", document).end();
        }
        body.end().end();
        for stage in pipeline.into_iter().flat_map(documents).skip(1) {
            body.push(stage);
        }
        body.end();
    }
    Ok(Some(Request::from_parts(body.finish(), Vec::new())?))
}

async fn distribution(router: &Arc<Router>) -> Result<Vec<DocBuf>, Failure> {
    let mut find = DocWriter::new().with("find", "collections");
    find.begin_document("sort").append("_id", 1).end();
    let find = find
        .with("batchSize", 100_000)
        .with("singleBatch", true)
        .with("$db", "config");
    let asked = Request::from_parts(find.finish(), Vec::new())?;
    let reply = router.config.call(asked).await?;
    let cursor = reply.document().get_doc("cursor").unwrap_or(Doc::EMPTY);
    let mut all = Vec::new();
    for collection in batch_of(cursor) {
        let name = collection.get_str("_id").unwrap_or_default();
        if let Some(parts) = parts_of(router, name).await? {
            all.push(parts);
        }
    }
    Ok(all)
}

/// What each owner has of a collection; `None` if it is gone meanwhile.
async fn parts_of(router: &Arc<Router>, name: &str) -> Result<Option<DocBuf>, Failure> {
    let namespace = Namespace::parse(name)?;
    let command = DocWriter::new()
        .with("collStats", namespace.collection())
        .with("$db", namespace.database());
    let asked = Request::from_parts(command.finish(), Vec::new())?;
    let reply = match coll_stats(router, &asked).await {
        Ok(reply) => reply,
        Err(Failure::Error(error)) if error.code == Code::NAMESPACE_NOT_FOUND => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let mut writer = DocWriter::new().with("ns", name);
    writer.begin_array("shards");
    let shards = reply.document().get_doc("shards").unwrap_or(Doc::EMPTY);
    for shard in shards.iter() {
        let ValueRef::Document(stats) = shard.value() else {
            continue;
        };
        let number = |field: &str| {
            let number = stats.get(field).and_then(Number::of);
            number.map_or(0, |number| number.to_f64() as i64)
        };
        let (orphans, average) = (number("numOrphanDocs"), number("avgObjSize"));
        // Orphans are counted, not weighed.
        let orphaned_bytes = orphans * average;
        writer
            .push_document()
            .append("shardName", shard.key())
            .append("numOrphanedDocs", orphans)
            .append("numOwnedDocuments", number("count") - orphans)
            .append("ownedSizeBytes", number("size") - orphaned_bytes)
            .append("orphanedSizeBytes", orphaned_bytes)
            .end();
    }
    writer.end();
    Ok(Some(writer.finish()))
}

/// Every shard removes what it does not own of a collection; answered when all have.
pub(crate) async fn clean_up(router: &Router, request: &Request) -> Result<Reply, Failure> {
    if request.database() != "admin" {
        let message = "cleanupOrphaned may only be run against the admin database.";
        return Err(Error::new(Code::UNAUTHORIZED, message).into());
    }
    let mut requests = Vec::new();
    for shard in router.registry.all(&router.config).await? {
        let mut writer = fields_without(request.body(), &[]);
        router.clock.append_to(&mut writer);
        requests.push((shard.id, Request::from_parts(writer.finish(), Vec::new())?));
    }
    for answered in router.ask_all(requests).await? {
        answered?;
    }
    Ok(Reply::ok())
}
