//! `collStats`, `dbStats`, `dataSize`, `validate`: sums over shards, and what each one said.

use crate::Router;
use crate::catalog::whole_namespace;
use crate::failure::Failure;
use crate::find::whole;
use crate::request::fields_without;
use crate::routing::Route;
use crate::scatter::Answered;
use crate::targeting::namespace_of_check;
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::number::Number;
use std::collections::BTreeMap;
use wire::{Reply, Request};

fn number(doc: Doc<'_>, name: &str) -> f64 {
    doc.get(name)
        .and_then(Number::of)
        .map_or(0.0, |n| n.to_f64())
}

fn sum(answers: &[Answered], name: &str) -> f64 {
    let numbers = answers
        .iter()
        .map(|answered| number(answered.reply.document(), name));
    numbers.sum()
}

/// Integers as MongoDB shows them: short where they fit.
fn append_whole(writer: &mut DocWriter, name: &str, value: f64) {
    let value = value as i64;
    match i32::try_from(value) {
        Ok(small) => writer.append(name, small),
        Err(_) => writer.append(name, value),
    };
}

/// What a shard said, without what every reply ends with.
fn append_answer(writer: &mut DocWriter, name: &str, answered: &Answered) {
    writer.begin_document(name);
    for element in answered.reply.document().iter() {
        if !matches!(element.key(), "$clusterTime" | "operationTime") {
            writer.append_element(&element);
        }
    }
    writer.end();
}

pub(crate) async fn coll_stats(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = namespace_of_check(request.body(), request.database())?;
    let gathered = router
        .gather(request, &namespace, |route| Ok(route.all()), &[], |_| {})
        .await?;
    let Some(gathered) = gathered else {
        let message = format!("Database [{}] not found.", request.database());
        return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
    };
    let mut writer = Reply::writer();
    let answers = &gathered.answers;
    let Some(table) = gathered.route.table() else {
        writer
            .append("sharded", false)
            .append("primary", gathered.route.database.primary.as_str());
        for element in answers
            .iter()
            .flat_map(|answered| answered.reply.document().iter())
        {
            writer.append_element(&element);
        }
        return Ok(Reply::from_writer(writer));
    };
    writer
        .append("sharded", true)
        .append("capped", false)
        .append("ns", namespace.as_str());
    let count = sum(answers, "count");
    for name in [
        "count",
        "size",
        "numOrphanDocs",
        "storageSize",
        "totalIndexSize",
        "totalSize",
    ] {
        append_whole(&mut writer, name, sum(answers, name));
    }
    let mut index_sizes: BTreeMap<String, f64> = BTreeMap::new();
    for answered in answers {
        let sizes = answered.reply.document().get_doc("indexSizes");
        for element in sizes.iter().flat_map(|sizes| sizes.iter()) {
            let size = Number::of(element.value()).map_or(0.0, |size| size.to_f64());
            *index_sizes.entry(element.key().to_owned()).or_default() += size;
        }
    }
    writer.begin_document("indexSizes");
    for (name, size) in &index_sizes {
        append_whole(&mut writer, name, *size);
    }
    writer.end();
    let average = if count > 0.0 {
        sum(answers, "size") / count
    } else {
        0.0
    };
    append_whole(&mut writer, "avgObjSize", average.floor());
    writer
        .append("maxSize", 0)
        .append("nindexes", index_sizes.len() as i32)
        .append("nchunks", table.chunk_count() as i32);
    let scale = answers
        .iter()
        .find_map(|answered| answered.reply.document().get("scaleFactor"));
    if let Some(scale) = scale {
        writer.append("scaleFactor", scale);
    }
    writer.begin_document("shards");
    for answered in answers {
        append_answer(&mut writer, answered.shard.as_str(), answered);
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

pub(crate) async fn db_stats(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let mut requests = Vec::new();
    for shard in router.registry.all(&router.config).await? {
        let mut writer = fields_without(request.body(), &[]);
        router.clock.append_to(&mut writer);
        let sent = Request::from_parts(writer.finish(), Vec::new())?;
        requests.push((shard.id, sent));
    }
    let mut answers = Vec::new();
    for answered in router.ask_all(requests).await? {
        answers.push(answered?);
    }
    let mut writer = Reply::writer();
    writer.append("db", request.database());
    for name in [
        "collections",
        "views",
        "objects",
        "dataSize",
        "storageSize",
        "indexes",
        "indexSize",
        "totalSize",
        "scaleFactor",
        "fsUsedSize",
        "fsTotalSize",
    ] {
        let present = answers
            .iter()
            .find_map(|answered| answered.reply.document().get(name));
        match present {
            // Not a sum: all of them answered for the same scale.
            Some(value) if name == "scaleFactor" => {
                writer.append(name, value);
            }
            Some(ValueRef::Double(_)) => {
                writer.append(name, sum(&answers, name));
            }
            Some(_) => append_whole(&mut writer, name, sum(&answers, name)),
            None => {}
        }
        if name == "objects" {
            let objects = sum(&answers, "objects");
            let average = if objects > 0.0 {
                sum(&answers, "dataSize") / objects
            } else {
                0.0
            };
            writer.append("avgObjSize", average);
        }
    }
    writer.begin_document("raw");
    for answered in &answers {
        append_answer(&mut writer, answered.shard.as_str(), answered);
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

pub(crate) async fn data_size(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = whole_namespace(request)?;
    let route = router.routing.route(&namespace, false).await?;
    let mut requests = Vec::new();
    // Without versions: shards look for those at the collection that a first field names.
    for shard in route.iter().flat_map(Route::all) {
        let mut writer = fields_without(request.body(), &[]);
        router.clock.append_to(&mut writer);
        let sent = Request::from_parts(writer.finish(), Vec::new())?;
        requests.push((shard, sent));
    }
    let mut answers = Vec::new();
    for answered in router.ask_all(requests).await? {
        answers.push(answered?);
    }
    let mut writer = Reply::writer();
    append_whole(&mut writer, "size", sum(&answers, "size"));
    append_whole(&mut writer, "numObjects", sum(&answers, "numObjects"));
    let slowest = answers
        .iter()
        .filter_map(|answered| whole(answered.reply.document().get("millis")))
        .max();
    writer
        .append("millis", slowest.unwrap_or(0) as i32)
        .append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}

pub(crate) async fn validate(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let namespace = namespace_of_check(request.body(), request.database())?;
    let gathered = router
        .gather(request, &namespace, |route| Ok(route.all()), &[], |_| {})
        .await?;
    let Some(mut gathered) = gathered else {
        let message = format!("Collection '{namespace}' does not exist to validate.");
        return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
    };
    if let Some(only) = gathered.take_only() {
        return Ok(only);
    }
    let is_valid = |answered: &Answered| {
        answered.reply.document().get("valid") == Some(ValueRef::Boolean(true))
    };
    let mut writer = Reply::writer();
    writer.append("valid", gathered.answers.iter().all(is_valid));
    append_whole(&mut writer, "nrecords", sum(&gathered.answers, "nrecords"));
    writer.begin_document("raw");
    for answered in &gathered.answers {
        append_answer(&mut writer, answered.shard.as_str(), answered);
    }
    writer.end().append("ok", 1.0);
    Ok(Reply::from_writer(writer))
}
