//! Runs during which both sides are written: a copier, definitions that change, and what is left.

use crate::{Servers, found, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use mongodb::error::{ErrorKind, TRANSIENT_TRANSACTION_ERROR, WriteFailure};
use mongodb::results::UpdateResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verifier::namespace::Pattern;
use verifier::settings::{Changes, Partitioning};
use verifier::{Control, Outcome, Report, Settings, verify, verify_controlled};

#[test]
fn two_replica_sets() -> Result<()> {
    on_runtime(async {
        let mut servers = Servers::two_mongods().await?;
        on_any_servers(&mut servers).await?;
        for changes in [Changes::Stream, Changes::Oplog] {
            servers.changes = changes;
            transactions(&servers).await.context("transactions")?;
            capped(&servers).await.context("capped")?;
            series(&servers).await.context("series")?;
            late_measurements(&servers).await.context("late")?;
            servers.clear().await?;
        }
        Ok(())
    })
}

/// What TernDB must do as well, with both ways to follow changes.
pub async fn on_any_servers(servers: &mut Servers) -> Result<()> {
    for changes in [Changes::Stream, Changes::Oplog] {
        servers.clear().await?;
        servers.changes = changes;
        played(servers)
            .await
            .with_context(|| format!("{changes:?}"))?;
    }
    servers.changes = Changes::Stream;
    servers.clear().await
}

async fn played(servers: &Servers) -> Result<()> {
    quiet(servers).await.context("quiet")?;
    copied(servers).await.context("copied")?;
    lost_by_the_copier(servers).await.context("lost")?;
    definitions(servers).await.context("definitions")?;
    crate::come_and_gone::check(servers)
        .await
        .context("come and gone")?;
    ids_of_every_type(servers).await.context("ids")?;
    natural(servers).await.context("natural")
}

const RUN_DEADLINE: Duration = Duration::from_secs(600);
/// How long what passes may take.
const PASSING: Duration = Duration::from_secs(60);
const DUPLICATE_KEY: i32 = 11000;

/// A run in the background; `act` says when writes are off.
pub async fn while_running<T>(
    settings: Settings,
    act: impl AsyncFnOnce() -> Result<T>,
) -> Result<(Report, T)> {
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    let mut running = running;
    tokio::select! {
        () = control.until_begun() => {}
        // It cannot have ended well: nobody said that writes are off.
        ended = &mut running => {
            let report = ended??;
            anyhow::bail!("it ended before it began: {report}");
        }
    }
    let acted = act().await?;
    control.writes_off();
    // A minute is what the run itself gives the changes of a side to move on; beside other tests on a
    // busy machine several of them may be needed.
    let report = tokio::time::timeout(RUN_DEADLINE, running)
        .await
        .context("the run does not end")???;
    Ok((report, acted))
}

async fn quiet(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("quiet", "c", &documents).await?;
    insert(&servers.source, "quiet", "c", &[doc! {"_id": "only"}]).await?;
    let (report, ()) = while_running(servers.live_settings("quiet"), async || Ok(())).await?;
    ensure!(report.outcome == Outcome::Different, "{report}");
    ensure!(found(&report).into_iter().collect::<Vec<_>>() == [r#"missing quiet.c string "only""#]);
    let mut settings = servers.live_settings("quiet");
    settings.filter = Some(doc! {"_id": {"$type": "number"}}.to_vec()?);
    let (report, ()) = while_running(settings, async || Ok(())).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    ensure!(report.totals.equal == 100, "{report}");
    // Nobody writes is as good on replica servers, where reads wait for a cluster time.
    let mut settings = servers.live_settings("quiet");
    settings.writes = verifier::Writes::Off;
    ensure!(verify(settings).await?.outcome == Outcome::Different);
    Ok(())
}

/// Of two clients that insert the same document at once one may be told that it is there already.
async fn upserted<A>(ask: impl Fn() -> A) -> Result<()>
where
    A: IntoFuture<Output = mongodb::error::Result<UpdateResult>>,
{
    let deadline = Instant::now() + PASSING;
    loop {
        match ask().await {
            Ok(_) => return Ok(()),
            Err(error) => match error.kind.as_ref() {
                ErrorKind::Write(WriteFailure::WriteError(told))
                    if told.code == DUPLICATE_KEY && Instant::now() < deadline => {}
                _ => return Err(error.into()),
            },
        }
    }
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
                upserted(|| {
                    let update = update.clone();
                    collection.update_one(doc! {"_id": id}, update).upsert(true)
                })
                .await?;
            }
            _ => {
                let document = doc! {"_id": id, "text": "x".repeat(random.usize(0..500))};
                upserted(|| {
                    let replace = collection.replace_one(doc! {"_id": id}, &document);
                    replace.upsert(true)
                })
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
            if Some(&id) == skips.as_ref() {
                continue;
            }
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

async fn with_copier(
    servers: &Servers,
    database: &'static str,
    skips: Option<Bson>,
) -> Result<Report> {
    let documents: Vec<Document> = (0..300).map(|n| doc! {"_id": n, "old": true}).collect();
    for name in ["a", "b"] {
        insert(&servers.source, database, name, &documents).await?;
    }
    if let Some(id) = &skips {
        // It is there as it once was.
        let old = doc! {"_id": id, "old": true};
        insert(&servers.destination, database, "a", &[old]).await?;
    }
    let mut settings = servers.live_settings(database);
    settings.partition_bytes = 2000;
    let (report, ()) = while_running(settings, async || {
        let copying = tokio::spawn(copier(
            servers.source.clone(),
            servers.destination.clone(),
            database.to_owned(),
            skips.clone(),
        ));
        let clients = [1, 2].map(|seed| {
            let client = servers.source.clone();
            application(client, database, seed, 400)
        });
        for ended in futures_util::future::join_all(clients).await {
            ended?;
        }
        let last = servers.source.database(database).collection("a");
        if let Some(id) = skips {
            // Whatever the application did to it, its last state is not the one that was copied.
            let document = doc! {"_id": id.clone(), "last": true};
            let replace = last.replace_one(doc! {"_id": id}, document).upsert(true);
            replace.await?;
        }
        last.insert_one(doc! {"_id": END}).await?;
        copying.await?
    })
    .await?;
    Ok(report)
}

pub async fn copied(servers: &Servers) -> Result<()> {
    let report = with_copier(servers, "copied", None).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    ensure!(report.generations > 1, "{report}");
    Ok(())
}

async fn lost_by_the_copier(servers: &Servers) -> Result<()> {
    let skips = Bson::Int32(7);
    let report = with_copier(servers, "lost", Some(skips.clone())).await?;
    // What is really different, asked directly.
    let mut expected = std::collections::BTreeSet::new();
    for name in ["a", "b", "new"] {
        let one = |client: &Client| {
            let collection = client.database("lost").collection::<Document>(name);
            let filter = doc! {"_id": skips.clone()};
            async move { collection.find_one(filter).await }
        };
        let (source, destination) = (
            one(&servers.source).await?,
            one(&servers.destination).await?,
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

async fn definitions(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..50).map(|n| doc! {"_id": n}).collect();
    for name in ["dropped", "renamed", "recreated", "emptied", "back"] {
        servers.insert_both("defined", name, &documents).await?;
    }
    insert(&servers.source, "defined", "later", &documents).await?;
    let mut settings = servers.live_settings("defined");
    settings.selection.exclude = vec![Pattern::parse("defined.hidden")?];
    let (report, ()) = while_running(settings, async || {
        let admin = |client: &Client| client.database("admin");
        let rename = doc! {"renameCollection": "defined.renamed", "to": "defined.moved"};
        for client in servers.clients() {
            let database = client.database("defined");
            database.run_command(doc! {"drop": "dropped"}).await?;
            admin(client).run_command(rename.clone()).await?;
            let index =
                doc! {"createIndexes": "moved", "indexes": [{"key": {"a": 1}, "name": "a"}]};
            database.run_command(index).await?;
        }
        // On one side all documents go without an event for any of them.
        let database = servers.source.database("defined");
        database.run_command(doc! {"drop": "recreated"}).await?;
        insert(&servers.source, "defined", "recreated", &documents[..10]).await?;
        // A collection that comes late to the destination, and not whole.
        insert(&servers.destination, "defined", "later", &documents[..40]).await?;
        // A collection that is changed while its name is not verified, and comes back the same.
        let away = [("back", "hidden"), ("hidden", "back")].map(|(from, to)| {
            doc! {"renameCollection": format!("defined.{from}"), "to": format!("defined.{to}")}
        });
        admin(&servers.source).run_command(away[0].clone()).await?;
        let delete = doc! {"delete": "hidden", "deletes": [{"q": {"_id": 3}, "limit": 1}]};
        database.run_command(delete).await?;
        admin(&servers.source).run_command(away[1].clone()).await?;
        // A name that is taken over by a collection which changed under another name.
        insert(&servers.source, "elsewhere", "c", &documents[1..]).await?;
        let over =
            doc! {"renameCollection": "elsewhere.c", "to": "defined.emptied", "dropTarget": true};
        admin(&servers.source).run_command(over).await?;
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
async fn ids_of_every_type(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = crate::ids::ascending()
        .into_iter()
        .map(|id| doc! {"_id": id, "v": 1})
        .collect();
    servers.insert_both("types", "c", &documents).await?;
    let mut expected = std::collections::BTreeSet::new();
    for (position, document) in documents.iter().enumerate() {
        let id = crate::shown_id(document.get("_id").context("an _id")?)?;
        let kind = ["content", "extra", "missing"][position % 3];
        expected.insert(format!("{kind} types.c {id}"));
    }
    let (report, ()) = while_running(servers.live_settings("types"), async || {
        for (position, document) in documents.iter().enumerate() {
            let id = document.get("_id").cloned().context("an _id")?;
            let filter = doc! {"_id": {"$eq": id}};
            let (client, command) = match position % 3 {
                0 => (
                    &servers.destination,
                    doc! {"update": "c", "updates": [{"q": filter, "u": {"$set": {"v": 2}}}]},
                ),
                1 => (
                    &servers.source,
                    doc! {"delete": "c", "deletes": [{"q": filter, "limit": 1}]},
                ),
                _ => (
                    &servers.destination,
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
async fn capped(servers: &Servers) -> Result<()> {
    for client in servers.clients() {
        let create = doc! {"create": "c", "capped": true, "size": 100_000, "max": 20};
        client.database("capped").run_command(create).await?;
    }
    let documents: Vec<Document> = (0..60).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("capped", "c", &documents[..20]).await?;
    let (report, ()) = while_running(servers.live_settings("capped"), async || {
        servers.insert_both("capped", "c", &documents[20..]).await
    })
    .await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    Ok(())
}

/// By record id, while records go: those that bounds name among them.
async fn natural(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..2000)
        .map(|n| doc! {"_id": n, "text": "x".repeat(100)})
        .collect();
    servers.insert_both("records", "c", &documents).await?;
    insert(
        &servers.destination,
        "records",
        "c",
        &[doc! {"_id": "extra"}],
    )
    .await?;
    let mut settings = servers.live_settings("records");
    settings.partitioning = Partitioning::Natural;
    settings.partition_bytes = 1000;
    settings.workers = 1;
    // Slow enough that parts are read whose beginnings are gone.
    settings.bytes_per_second_max = Some(600_000);
    let (report, ()) = while_running(settings, async || {
        for client in servers.clients() {
            let some: Vec<i32> = (0..2000).filter(|id| id % 3 != 0).collect();
            let delete =
                doc! {"delete": "c", "deletes": [{"q": {"_id": {"$in": some}}, "limit": 0}]};
            client.database("records").run_command(delete).await?;
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
async fn series(servers: &Servers) -> Result<()> {
    for client in servers.clients() {
        let create = doc! {"create": "c", "timeseries": {"timeField": "t"}};
        client.database("series").run_command(create).await?;
    }
    let (report, ()) = while_running(servers.live_settings("series"), async || {
        let measurement = |n: i64| doc! {"t": bson::DateTime::from_millis(n), "n": n};
        let measurements: Vec<Document> = (0..100).map(measurement).collect();
        insert(&servers.source, "series", "c", &with_ids(&measurements)).await?;
        let some = with_ids(&measurements[..99]);
        insert(&servers.destination, "series", "c", &some).await
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

/// Who writes measurements all the time has not stopped when writes are said to be off.
async fn late_measurements(servers: &Servers) -> Result<()> {
    let measurement = |n: i64| doc! {"_id": n, "t": bson::DateTime::from_millis(n)};
    for client in servers.clients() {
        let create = doc! {"create": "c", "timeseries": {"timeField": "t"}};
        client.database("late").run_command(create).await?;
        let measurements: Vec<Document> = (0..100).map(measurement).collect();
        insert(client, "late", "c", &measurements).await?;
    }
    let mut settings = servers.live_settings("late");
    // Slow enough that some are written while the last generation reads.
    settings.bytes_per_second_max = Some(2000);
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (destination, is_over) = (servers.destination.clone(), is_over.clone());
        async move {
            for n in 100.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                insert(&destination, "late", "c", &[measurement(n)]).await?;
            }
            anyhow::Ok(())
        }
    });
    let ended = while_running(settings, async || Ok(())).await;
    is_over.store(true, Ordering::SeqCst);
    writer.await??;
    let (report, ()) = ended?;
    let mut reasons = report.unverified.iter().map(|one| one.why.as_str());
    ensure!(
        reasons.any(|why| why.contains("after writes were said to be off")),
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

/// Documents that change together, some in a transaction that takes several entries of the oplog.
async fn transactions(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..30).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("together", "c", &documents).await?;
    let (report, ()) = while_running(servers.live_settings("together"), async || {
        let database = servers.source.database("together");
        let collection = database.collection::<Document>("c");
        let mut session = servers.source.start_session().await?;
        for (ids, bytes) in [(0..3, 10), (3..25, 1_000_000)] {
            // A server may refuse a transaction for a passing reason, such as a collection that was made
            // just before or a cache that is full; whoever asks tries again.
            let deadline = Instant::now() + PASSING;
            loop {
                session.start_transaction().await?;
                let mut written = Ok(());
                for id in ids.clone() {
                    let update = doc! {"$set": {"text": "x".repeat(bytes)}};
                    let update = collection
                        .update_one(doc! {"_id": id}, update)
                        .session(&mut session);
                    written = update.await.map(drop);
                    if written.is_err() {
                        break;
                    }
                }
                if written.is_ok() {
                    written = session.commit_transaction().await;
                }
                match written {
                    Ok(()) => break,
                    Err(error)
                        if error.contains_label(TRANSIENT_TRANSACTION_ERROR)
                            && Instant::now() < deadline =>
                    {
                        // The server has given it up already, as a rule.
                        let _ = session.abort_transaction().await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        session.start_transaction().await?;
        collection
            .delete_one(doc! {"_id": 29})
            .session(&mut session)
            .await?;
        session.abort_transaction().await?;
        Ok(())
    })
    .await?;
    ensure!(
        report.totals.content == 25 && report.totals.mismatches() == 25,
        "{report}"
    );
    Ok(())
}
