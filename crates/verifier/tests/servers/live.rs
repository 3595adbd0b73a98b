//! Runs during which both sides are written: a copier, definitions that change, and what is left.

use crate::replica_set::Sets;
use crate::{found, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use std::time::Duration;
use verifier::namespace::Pattern;
use verifier::settings::Partitioning;
use verifier::{Control, Outcome, Report, Settings, verify, verify_controlled};

#[test]
fn two_replica_sets() -> Result<()> {
    on_runtime(async {
        let sets = Sets::start().await?;
        quiet(&sets).await.context("quiet")?;
        copied(&sets).await.context("copied")?;
        lost_by_the_copier(&sets).await.context("lost")?;
        definitions(&sets).await.context("definitions")?;
        ids_of_every_type(&sets).await.context("ids")?;
        capped(&sets).await.context("capped")?;
        natural(&sets).await.context("natural")?;
        series(&sets).await.context("series")
    })
}

/// A run in the background; `act` says when writes are off.
async fn while_running<T>(
    settings: Settings,
    act: impl AsyncFnOnce() -> Result<T>,
) -> Result<(Report, T)> {
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    control.until_begun().await;
    let acted = act().await?;
    control.writes_off();
    let report = tokio::time::timeout(Duration::from_secs(120), running).await???;
    Ok((report, acted))
}

async fn quiet(sets: &Sets) -> Result<()> {
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    sets.insert_both("quiet", "c", &documents).await?;
    insert(&sets.source.client, "quiet", "c", &[doc! {"_id": "only"}]).await?;
    let (report, ()) = while_running(sets.settings("quiet"), async || Ok(())).await?;
    ensure!(report.outcome == Outcome::Different, "{report}");
    ensure!(found(&report).into_iter().collect::<Vec<_>>() == [r#"missing quiet.c string "only""#]);
    let mut settings = sets.settings("quiet");
    settings.filter = Some(doc! {"_id": {"$type": "number"}}.to_vec()?);
    let (report, ()) = while_running(settings, async || Ok(())).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    ensure!(report.totals.equal == 100, "{report}");
    // Nobody writes is as good on replica sets, where reads wait for a cluster time.
    let mut settings = sets.settings("quiet");
    settings.writes = verifier::Writes::Off;
    ensure!(verify(settings).await?.outcome == Outcome::Different);
    Ok(())
}

/// Writes to the source as an application would.
async fn application(client: Client, database: &str, seed: u64, rounds: usize) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let collections = ["a", "b", "new"];
    for _ in 0..rounds {
        let name = collections[random.usize(0..collections.len())];
        let collection = client.database(database).collection::<Document>(name);
        let id = random.i32(0..300);
        match random.u8(0..10) {
            0..3 => {
                let deleted = collection.delete_one(doc! {"_id": id}).await?;
                let _ = deleted;
            }
            3..6 => {
                let update = doc! {"$inc": {"n": 1}, "$set": {"t": random.u32(..)}};
                collection
                    .update_one(doc! {"_id": id}, update)
                    .upsert(true)
                    .await?;
            }
            _ => {
                let document = doc! {"_id": id, "text": "x".repeat(random.usize(0..500))};
                collection
                    .replace_one(doc! {"_id": id}, document)
                    .upsert(true)
                    .await?;
            }
        }
    }
    Ok(())
}

/// The last document that is written to the source.
const END: &str = "end";

/// Copies changes of the source to the destination, up to that document.
async fn copier(from: Client, to: Client, database: String, skips: Option<Bson>) -> Result<()> {
    let mut stream = from
        .database(&database)
        .watch()
        .max_await_time(Duration::from_millis(50))
        .await?;
    // What was there before.
    for name in from.database(&database).list_collection_names().await? {
        let source = from.database(&database).collection::<Document>(&name);
        let target = to.database(&database).collection::<Document>(&name);
        let mut cursor = source.find(doc! {}).await?;
        while let Some(document) = cursor.try_next().await? {
            let id = document.get("_id").cloned().context("an _id")?;
            target
                .replace_one(doc! {"_id": id}, document)
                .upsert(true)
                .await?;
        }
    }
    loop {
        match stream.next_if_any().await? {
            None => {}
            Some(event) => {
                let (Some(ns), Some(key)) = (event.ns, event.document_key) else {
                    continue;
                };
                let name = ns.coll.context("a collection")?;
                let is_end = key.get_str("_id").is_ok_and(|id| id == END);
                if key.get("_id") == skips.as_ref() {
                    continue;
                }
                let source = from.database(&database).collection::<Document>(&name);
                let target = to.database(&database).collection::<Document>(&name);
                // The latest state: events in between make the same write again.
                match source.find_one(key.clone()).await? {
                    Some(document) => {
                        target.replace_one(key, document).upsert(true).await?;
                    }
                    None => {
                        target.delete_one(key).await?;
                    }
                }
                if is_end {
                    return Ok(());
                }
            }
        }
    }
}

async fn with_copier(sets: &Sets, database: &'static str, skips: Option<Bson>) -> Result<Report> {
    let documents: Vec<Document> = (0..300).map(|n| doc! {"_id": n, "old": true}).collect();
    for name in ["a", "b"] {
        insert(&sets.source.client, database, name, &documents).await?;
    }
    let mut settings = sets.settings(database);
    settings.partition_bytes = 2000;
    let (report, ()) = while_running(settings, async || {
        let copying = tokio::spawn(copier(
            sets.source.client.clone(),
            sets.destination.client.clone(),
            database.to_owned(),
            skips,
        ));
        let clients = [1, 2].map(|seed| {
            let client = sets.source.client.clone();
            application(client, database, seed, 400)
        });
        for ended in futures_util::future::join_all(clients).await {
            ended?;
        }
        insert(&sets.source.client, database, "a", &[doc! {"_id": END}]).await?;
        copying.await?
    })
    .await?;
    Ok(report)
}

async fn copied(sets: &Sets) -> Result<()> {
    let report = with_copier(sets, "copied", None).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    ensure!(report.generations > 1, "{report}");
    Ok(())
}

async fn lost_by_the_copier(sets: &Sets) -> Result<()> {
    let skips = Bson::Int32(7);
    let report = with_copier(sets, "lost", Some(skips.clone())).await?;
    // What is really different, asked directly.
    let mut expected = std::collections::BTreeSet::new();
    for name in ["a", "b", "new"] {
        let one = |client: &Client| {
            let collection = client.database("lost").collection::<Document>(name);
            let filter = doc! {"_id": skips.clone()};
            async move { collection.find_one(filter).await }
        };
        let (source, destination) = (
            one(&sets.source.client).await?,
            one(&sets.destination.client).await?,
        );
        let kind = match (source, destination) {
            (None, None) => continue,
            (Some(one), Some(other)) if one == other => continue,
            (Some(_), Some(_)) => "content",
            (Some(_), None) => "missing",
            (None, Some(_)) => "extra",
        };
        expected.insert(format!("{kind} lost.{name} {}", crate::shown_id(&skips)?));
    }
    ensure!(!expected.is_empty());
    ensure!(found(&report) == expected, "{report}\n{expected:?}");
    Ok(())
}

async fn definitions(sets: &Sets) -> Result<()> {
    let documents: Vec<Document> = (0..50).map(|n| doc! {"_id": n}).collect();
    for name in ["dropped", "renamed", "recreated", "emptied", "back"] {
        sets.insert_both("defined", name, &documents).await?;
    }
    insert(&sets.source.client, "defined", "later", &documents).await?;
    let mut settings = sets.settings("defined");
    settings.selection.exclude = vec![Pattern::parse("defined.hidden")?];
    let (report, ()) = while_running(settings, async || {
        let admin = |set: &crate::replica_set::ReplicaSet| set.client.database("admin");
        let rename = doc! {"renameCollection": "defined.renamed", "to": "defined.moved"};
        for set in [&sets.source, &sets.destination] {
            let database = set.client.database("defined");
            database.run_command(doc! {"drop": "dropped"}).await?;
            admin(set).run_command(rename.clone()).await?;
            let index =
                doc! {"createIndexes": "moved", "indexes": [{"key": {"a": 1}, "name": "a"}]};
            database.run_command(index).await?;
        }
        // On one side all documents go without an event for any of them.
        let database = sets.source.client.database("defined");
        database.run_command(doc! {"drop": "recreated"}).await?;
        insert(
            &sets.source.client,
            "defined",
            "recreated",
            &documents[..10],
        )
        .await?;
        // A collection that comes late to the destination, and not whole.
        insert(
            &sets.destination.client,
            "defined",
            "later",
            &documents[..40],
        )
        .await?;
        // A collection that is changed while its name is not verified, and comes back the same.
        let away = [("back", "hidden"), ("hidden", "back")].map(|(from, to)| {
            doc! {"renameCollection": format!("defined.{from}"), "to": format!("defined.{to}")}
        });
        admin(&sets.source).run_command(away[0].clone()).await?;
        let delete = doc! {"delete": "hidden", "deletes": [{"q": {"_id": 3}, "limit": 1}]};
        database.run_command(delete).await?;
        admin(&sets.source).run_command(away[1].clone()).await?;
        // A name that is taken over by a collection which changed under another name.
        insert(&sets.source.client, "elsewhere", "c", &documents[1..]).await?;
        let over =
            doc! {"renameCollection": "elsewhere.c", "to": "defined.emptied", "dropTarget": true};
        admin(&sets.source).run_command(over).await?;
        Ok(())
    })
    .await?;
    let counts: Vec<(String, u64, u64)> = report
        .collections
        .iter()
        .map(|one| (one.namespace.clone(), one.counts.missing, one.counts.extra))
        .collect();
    let expected = [
        ("defined.back", 0, 1),
        ("defined.emptied", 0, 1),
        ("defined.later", 10, 0),
        ("defined.moved", 0, 0),
        ("defined.recreated", 0, 40),
    ]
    .map(|(name, missing, extra)| (name.to_owned(), missing, extra));
    ensure!(counts == expected, "{report}");
    ensure!(report.metadata_mismatches.is_empty(), "{report}");
    let seen: std::collections::BTreeSet<&str> = report
        .definition_changes
        .iter()
        .map(|one| one.what.as_str())
        .collect();
    for what in ["create", "createIndexes", "drop", "rename"] {
        ensure!(seen.contains(what), "{what}: {seen:?}");
    }
    Ok(())
}

/// Changes of documents with every type of `_id`, on either side.
async fn ids_of_every_type(sets: &Sets) -> Result<()> {
    let documents: Vec<Document> = crate::ids::ascending()
        .into_iter()
        .map(|id| doc! {"_id": id, "v": 1})
        .collect();
    sets.insert_both("types", "c", &documents).await?;
    let mut expected = std::collections::BTreeSet::new();
    for (position, document) in documents.iter().enumerate() {
        let id = crate::shown_id(document.get("_id").context("an _id")?)?;
        let kind = ["content", "extra", "missing"][position % 3];
        expected.insert(format!("{kind} types.c {id}"));
    }
    let (report, ()) = while_running(sets.settings("types"), async || {
        for (position, document) in documents.iter().enumerate() {
            let id = document.get("_id").cloned().context("an _id")?;
            let filter = doc! {"_id": {"$eq": id}};
            let (client, command) = match position % 3 {
                0 => (
                    &sets.destination.client,
                    doc! {"update": "c", "updates": [{"q": filter, "u": {"$set": {"v": 2}}}]},
                ),
                1 => (
                    &sets.source.client,
                    doc! {"delete": "c", "deletes": [{"q": filter, "limit": 1}]},
                ),
                _ => (
                    &sets.destination.client,
                    doc! {"delete": "c", "deletes": [{"q": filter, "limit": 1}]},
                ),
            };
            let reply = client.database("types").run_command(command).await?;
            ensure!(reply.get_i32("n").is_ok_and(|n| n == 1), "{reply}");
        }
        Ok(())
    })
    .await?;
    let found = found(&report);
    let missed: Vec<_> = expected.difference(&found).collect();
    let invented: Vec<_> = found.difference(&expected).collect();
    ensure!(
        missed.is_empty() && invented.is_empty(),
        "missed {missed:?}, invented {invented:?}"
    );
    ensure!(report.mismatches.iter().all(|one| one.changed_ms.is_some()));
    Ok(())
}

/// The oldest documents of a capped collection go without an event.
async fn capped(sets: &Sets) -> Result<()> {
    for set in [&sets.source, &sets.destination] {
        let create = doc! {"create": "c", "capped": true, "size": 100_000, "max": 20};
        set.client.database("capped").run_command(create).await?;
    }
    let documents: Vec<Document> = (0..60).map(|n| doc! {"_id": n}).collect();
    sets.insert_both("capped", "c", &documents[..20]).await?;
    let (report, ()) = while_running(sets.settings("capped"), async || {
        sets.insert_both("capped", "c", &documents[20..]).await
    })
    .await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    Ok(())
}

/// By record id, while records go: those that bounds name among them.
async fn natural(sets: &Sets) -> Result<()> {
    let documents: Vec<Document> = (0..2000)
        .map(|n| doc! {"_id": n, "text": "x".repeat(100)})
        .collect();
    sets.insert_both("records", "c", &documents).await?;
    insert(
        &sets.destination.client,
        "records",
        "c",
        &[doc! {"_id": "extra"}],
    )
    .await?;
    let mut settings = sets.settings("records");
    settings.partitioning = Partitioning::Natural;
    settings.partition_bytes = 1000;
    settings.workers = 1;
    // Slow enough that parts are read whose beginnings are gone.
    settings.bytes_per_second_max = Some(600_000);
    let (report, ()) = while_running(settings, async || {
        for set in [&sets.source, &sets.destination] {
            let some: Vec<i32> = (0..2000).filter(|id| id % 3 != 0).collect();
            let delete =
                doc! {"delete": "c", "deletes": [{"q": {"_id": {"$in": some}}, "limit": 0}]};
            set.client.database("records").run_command(delete).await?;
        }
        Ok(())
    })
    .await?;
    ensure!(
        report.totals.extra == 1 && report.totals.mismatches() == 1,
        "{report}"
    );
    ensure!(report.unverified.is_empty(), "{report}");
    Ok(())
}

/// Measurements are not followed, and compared at the end.
async fn series(sets: &Sets) -> Result<()> {
    for set in [&sets.source, &sets.destination] {
        let create = doc! {"create": "c", "timeseries": {"timeField": "t"}};
        set.client.database("series").run_command(create).await?;
    }
    let (report, ()) = while_running(sets.settings("series"), async || {
        let measurement = |n: i64| doc! {"t": bson::DateTime::from_millis(n), "n": n};
        let measurements: Vec<Document> = (0..100).map(measurement).collect();
        insert(&sets.source.client, "series", "c", &with_ids(&measurements)).await?;
        let some = with_ids(&measurements[..99]);
        insert(&sets.destination.client, "series", "c", &some).await
    })
    .await?;
    ensure!(
        (
            report.totals.missing,
            report.totals.extra,
            report.totals.equal
        ) == (1, 0, 99),
        "{report}"
    );
    Ok(())
}

/// The server would give each an `_id` of its own: the same ones go to both sides.
fn with_ids(measurements: &[Document]) -> Vec<Document> {
    let with_ids = measurements.iter().enumerate().map(|(n, one)| {
        let mut one = one.clone();
        one.insert("_id", n as i64);
        one
    });
    with_ids.collect()
}
