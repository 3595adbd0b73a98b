//! Collections that go while a run is under way, and others that come after them.

use crate::{Servers, api, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use std::time::Duration;
use verifier::settings::Changes;
use verifier::{Control, verify_controlled};

/// A collection that comes when the run has seen that another one is gone is compared as a whole,
/// although nothing tells it apart from the one that is gone but its name.
pub async fn check(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..50).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("comes", "first", &documents).await?;
    servers.insert_both("comes", "goes", &documents).await?;
    // Only of the destination's documents will there be a word.
    insert(&servers.source, "comes", "later", &documents).await?;
    let mut settings = servers.live_settings("comes");
    settings.listen = Some("127.0.0.1:0".to_owned());
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    let address = control.until_listening().await.context("it listens")?;
    control.until_begun().await;
    let compared = async |expected: &[&str]| {
        api::until(address, "/api/v1/summary", |lines| {
            let collections = lines[0]["summary"]["collections"].as_array();
            let done = |one: &&serde_json::Value| one["partitions"].as_u64() > Some(0);
            let names =
                collections.map(|list| list.iter().filter(done).map(|one| &one["namespace"]));
            names.is_some_and(|names| names.eq(expected))
        })
        .await
    };
    compared(&["comes.first", "comes.goes"]).await?;
    for client in servers.clients() {
        let drop = doc! {"drop": "goes"};
        client.database("comes").run_command(drop).await?;
    }
    compared(&["comes.first"]).await?;
    insert(&servers.destination, "comes", "later", &documents[..40]).await?;
    control.writes_off();
    let report = tokio::time::timeout(Duration::from_secs(120), running).await???;
    let counts: Vec<(&str, u64, u64)> = report
        .collections
        .iter()
        .map(|one| (one.namespace.as_str(), one.counts.equal, one.counts.missing))
        .collect();
    ensure!(
        counts == [("comes.first", 50, 0), ("comes.later", 40, 10)],
        "{report}"
    );
    Ok(())
}

#[test]
fn a_collection_comes_back_with_its_uuid() -> Result<()> {
    on_runtime(async {
        let mut servers = Servers::two_mongods().await?;
        for changes in [Changes::Stream, Changes::Oplog] {
            servers.changes = changes;
            with_the_same_uuid(&servers)
                .await
                .with_context(|| format!("{changes:?}"))?;
            servers.clear().await?;
        }
        Ok(())
    })
}

/// A collection that is dropped and comes back under its old uuid, as restoring a dump can make it:
/// nothing but the events tells that it is another one.
async fn with_the_same_uuid(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("restored", "c", &documents).await?;
    let mut settings = servers.live_settings("restored");
    settings.listen = Some("127.0.0.1:0".to_owned());
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    let address = control.until_listening().await.context("it listens")?;
    control.until_begun().await;
    api::until(address, "/api/v1/summary", |lines| {
        lines[0]["summary"]["collections"][0]["partitions"].as_u64() == Some(1)
    })
    .await?;
    let database = servers.destination.database("restored");
    let listed = database.run_command(doc! {"listCollections": 1}).await?;
    let listed = listed.get_document("cursor")?.get_array("firstBatch")?;
    let listed = listed[0].as_document().context("a collection")?;
    let uuid = listed.get_document("info")?.get("uuid").context("a uuid")?;
    database.run_command(doc! {"drop": "c"}).await?;
    let index = doc! {"v": 2, "key": {"_id": 1}, "name": "_id_"};
    let create =
        doc! {"op": "c", "ns": "restored.$cmd", "ui": uuid, "o": {"create": "c", "idIndex": index}};
    let admin = servers.destination.database("admin");
    admin.run_command(doc! {"applyOps": [create]}).await?;
    insert(&servers.destination, "restored", "c", &documents[..50]).await?;
    control.writes_off();
    let report = tokio::time::timeout(Duration::from_secs(120), running).await???;
    ensure!(report.totals.missing == 50, "{report}");
    Ok(())
}
