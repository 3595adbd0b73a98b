//! Sharded clusters on one side and on both: documents of all shards, shard keys, and `_id`s that are
//! there more than once.

use crate::{Kind, Servers, found, insert, live, on_runtime, planted, resume, scenarios, shown_id};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use verifier::settings::Partitioning;
use verifier::{Outcome, verify};

#[test]
fn sharded_on_both_sides() -> Result<()> {
    on_runtime(async {
        let (source, destination) = (Kind::TernDbSharded("3"), Kind::TernDbSharded("2"));
        let servers = Servers::start(source, destination).await?;
        scenarios::many_documents(&servers).await.context("many")?;
        shard_keys(&servers).await.context("shard keys")?;
        repeated_ids(&servers).await.context("repeated ids")
    })
}

/// Shards at rest do not hold up the streams of those that are written.
#[test]
fn sharded_while_written() -> Result<()> {
    on_runtime(async {
        let (source, destination) = (Kind::TernDbSharded("3"), Kind::TernDbSharded("2"));
        let servers = Servers::start(source, destination).await?;
        let hashed = || doc! {"_id": "hashed"};
        shard(&servers, "copied.a", [hashed(), hashed()]).await?;
        live::copied(&servers).await
    })
}

#[test]
fn sharded_and_killed() -> Result<()> {
    on_runtime(async {
        let (source, destination) = (Kind::TernDbSharded("2"), Kind::TernDbSharded("2"));
        let servers = Servers::start(source, destination).await?;
        for name in ["killed.c", "written.c"] {
            let hashed = || doc! {"_id": "hashed"};
            shard(&servers, name, [hashed(), hashed()]).await?;
        }
        resume::while_nobody_writes(&servers, 3)
            .await
            .context("writes off")?;
        resume::while_both_are_written(&servers, "written", None, "stream", 4)
            .await
            .context("written")
    })
}

#[test]
fn sharded_on_one_side() -> Result<()> {
    on_runtime(async {
        let servers = Servers::start(Kind::MongoDb, Kind::TernDbSharded("2")).await?;
        let shard = doc! {"shardCollection": "same.ids", "key": {"_id": "hashed"}};
        let admin = servers.destination.database("admin");
        admin.run_command(shard).await?;
        insert(&servers.source, "same", "ids", &[]).await?;
        // The shard key brings an index of its own.
        let index = doc! {"createIndexes": "ids", "indexes": [
            {"key": {"_id": "hashed"}, "name": "_id_hashed"},
        ]};
        servers.source.database("same").run_command(index).await?;
        planted::check_equal(&servers).await.context("equal")?;
        planted::check(&servers).await.context("planted")
    })
}

async fn shard(servers: &Servers, namespace: &str, keys: [Document; 2]) -> Result<()> {
    for (client, key) in servers.clients().into_iter().zip(keys) {
        let shard = doc! {"shardCollection": namespace, "key": key};
        client.database("admin").run_command(shard).await?;
    }
    Ok(())
}

async fn shard_keys(servers: &Servers) -> Result<()> {
    let hashed = || doc! {"k": "hashed"};
    shard(servers, "keyed.same", [hashed(), hashed()]).await?;
    shard(servers, "keyed.other", [hashed(), doc! {"k": 1}]).await?;
    let documents: Vec<Document> = (0..500).map(|n| doc! {"_id": n, "k": n % 90}).collect();
    for name in ["same", "other"] {
        servers.insert_both("keyed", name, &documents).await?;
    }
    let report = verify(servers.settings("keyed")).await?;
    ensure!(report.totals.equal == 1000, "{report}");
    let keys = report
        .metadata_mismatches
        .iter()
        .filter(|one| one.what == "shard key");
    let keys: Vec<&str> = keys.map(|one| one.namespace.as_str()).collect();
    ensure!(keys == ["keyed.other"], "{report}");
    Ok(())
}

fn shown_value(value: &bson::Bson) -> Result<String> {
    let shown = shown_id(value)?;
    let (_, value) = shown.split_once(' ').context("a type and a value")?;
    Ok(value.to_owned())
}

/// One `_id` on several shards: each document is one of its own there.
async fn repeated_ids(servers: &Servers) -> Result<()> {
    shard(
        servers,
        "repeated.c",
        [doc! {"k": "hashed"}, doc! {"k": "hashed"}],
    )
    .await?;
    let documents: Vec<Document> = (0..300).map(|n| doc! {"_id": n, "k": n}).collect();
    servers.insert_both("repeated", "c", &documents).await?;
    let same = verify(servers.settings("repeated")).await?;
    ensure!(same.outcome == Outcome::Equal, "{same}");
    ensure!(same.totals.duplicates == 0, "{same}");
    // Two of them are on different shards, for some of a hundred keys, on both sides alike.
    let collection = |client: &mongodb::Client| {
        let database = client.database("repeated");
        database.collection::<Document>("c")
    };
    let mut alike = None;
    for k in 1000..1100 {
        let document = doc! {"_id": 7, "k": k};
        let placed = collection(&servers.source).insert_one(&document).await;
        if placed.is_err() {
            continue;
        }
        if collection(&servers.destination)
            .insert_one(&document)
            .await
            .is_ok()
        {
            alike = Some(document);
            break;
        }
        collection(&servers.source).delete_one(document).await?;
    }
    let alike = alike.context("some key lies on another shard on both sides")?;
    for partitioning in [Partitioning::Id, Partitioning::Natural] {
        let mut settings = servers.settings("repeated");
        settings.partitioning = partitioning;
        let report = verify(settings).await?;
        ensure!(report.outcome == Outcome::Equal, "{report}");
        ensure!(report.totals.duplicates == 1, "{report}");
        let totals = report.totals;
        let counts = [
            totals.equal,
            totals.source_documents,
            totals.destination_documents,
        ];
        ensure!(counts == [301; 3], "{report}");
    }
    let key = format!("k: {}", shown_value(alike.get("k").context("a key")?)?);
    let changed = doc! {"$set": {"v": 1}};
    let there = collection(&servers.destination);
    there.update_one(alike.clone(), changed).await?;
    let report = verify(servers.settings("repeated")).await?;
    let place = &report.mismatches[0].differences;
    ensure!(place.len() == 1 && place[0].path == "v", "{report}");
    ensure!(report.totals.equal == 300, "{report}");
    ensure!(place[0].copy.as_ref() == Some(&key), "{report}");
    collection(&servers.destination)
        .delete_one(doc! {"_id": 7, "k": alike.get("k")})
        .await?;
    for partitioning in [Partitioning::Id, Partitioning::Natural] {
        let mut settings = servers.settings("repeated");
        settings.partitioning = partitioning;
        let report = verify(settings).await?;
        let expected = format!("repeated repeated.c {}", shown_id(&7.into())?);
        ensure!(found(&report).into_iter().eq([expected]), "{report}");
        ensure!(report.totals.duplicates == 1, "{report}");
        // Each document of the source that the destination has, in whatever order shards send them.
        ensure!(report.totals.equal == 300, "{report}");
        let place = &report.mismatches[0].differences;
        ensure!(place.len() == 1 && place[0].path.is_empty(), "{report}");
        ensure!(place[0].copy.as_ref() == Some(&key), "{report}");
        ensure!(place[0].source.is_some() && place[0].destination.is_none());
    }
    // And the other way: the destination has one more.
    for partitioning in [Partitioning::Id, Partitioning::Natural] {
        let mut settings = servers.settings("repeated");
        settings.partitioning = partitioning;
        std::mem::swap(&mut settings.from, &mut settings.to);
        let report = verify(settings).await?;
        let counts = [report.totals.equal, report.totals.repeated];
        ensure!(counts == [300, 1], "{report}");
    }
    Ok(())
}
