//! A side that goes back in time: files of an earlier day are put back, between two processes of a run
//! and under one that goes on.

use crate::{Kind, Servers, insert, live, on_runtime};
use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use std::time::Duration;
use verifier::settings::Changes;
use verifier::{Control, Outcome, Place, Settings, Writes, verify, verify_controlled};

#[test]
fn files_of_an_earlier_day() -> Result<()> {
    on_runtime(async {
        let mut servers = Servers::two_mongods().await?;
        between_processes(&mut servers).await?;
        under_a_process(&mut servers).await.context("under one")
    })
}

#[test]
fn files_of_an_earlier_day_of_terndb() -> Result<()> {
    on_runtime(async {
        let mut servers = Servers::start(Kind::TernDb, Kind::TernDb).await?;
        between_processes(&mut servers).await?;
        under_a_process(&mut servers).await.context("under one")
    })
}

fn settings(servers: &Servers, database: &str, folder: &std::path::Path) -> Settings {
    let mut settings = servers.live_settings(database);
    settings.writes = Writes::Off;
    settings.place = Place::Directory(folder.join("state"));
    settings
}

async fn between_processes(servers: &mut Servers) -> Result<()> {
    let ways = [
        ("off", Writes::Off, Changes::Stream),
        ("stream", Writes::On, Changes::Stream),
        ("oplog", Writes::On, Changes::Oplog),
    ];
    for (database, writes, changes) in ways {
        let folder = tempfile::tempdir()?;
        let mut settings = settings(servers, database, folder.path());
        settings.changes = changes;
        let live = writes == Writes::On;
        put_back_between(servers, settings, live)
            .await
            .context(database)?;
    }
    Ok(())
}

/// Runs to its end; nobody takes the report, so that the run is there to be gone on with.
async fn run(settings: &Settings, live: bool) -> Result<verifier::Report> {
    let mut settings = settings.clone();
    if !live {
        return Ok(verify(settings).await?);
    }
    settings.writes = Writes::On;
    let (report, ()) = live::while_running(settings, async || Ok(())).await?;
    Ok(report)
}

async fn put_back_between(servers: &mut Servers, settings: Settings, live: bool) -> Result<()> {
    let database = settings.scope().include[0].replace(".*", "");
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    servers.insert_both(&database, "c", &documents).await?;
    let destination = &mut servers.running[1];
    destination.stop()?;
    let earlier = destination.copy_files()?;
    destination.start_again()?;
    servers
        .insert_both(&database, "c", &[doc! {"_id": "later"}])
        .await?;
    let report = run(&settings, live).await?;
    ensure!(
        report.outcome == Outcome::Equal && !report.resumed,
        "{report}"
    );
    // A server that is only started again is still what it was.
    let destination = &mut servers.running[1];
    destination.stop()?;
    destination.start_again()?;
    let report = run(&settings, live).await?;
    ensure!(
        report.outcome == Outcome::Equal && report.resumed,
        "{report}"
    );
    let destination = &mut servers.running[1];
    destination.stop()?;
    destination.put_back(earlier.path())?;
    destination.start_again()?;
    let report = run(&settings, live).await?;
    ensure!(report.totals.missing == 1, "{report}");
    ensure!(!report.resumed, "{report}");
    Ok(())
}

/// The driver finds the server again as if nothing had happened.
async fn under_a_process(servers: &mut Servers) -> Result<()> {
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("under", "c", &documents).await?;
    let destination = &mut servers.running[1];
    destination.stop()?;
    let earlier = destination.copy_files()?;
    destination.start_again()?;
    servers
        .insert_both("under", "c", &[doc! {"_id": "later"}])
        .await?;
    let mut settings = servers.live_settings("under");
    settings.listen = Some("127.0.0.1:0".to_owned());
    let control = Control::default();
    let running = tokio::spawn({
        let control = control.clone();
        async move { verify_controlled(settings, &control).await }
    });
    let address = control.until_listening().await.context("it listens")?;
    crate::api::until(address, "/api/v1/summary", |lines| {
        let scanned = &lines[0]["summary"]["collections"][0];
        scanned["partitions"].as_u64() == Some(1)
    })
    .await?;
    let destination = &mut servers.running[1];
    destination.stop()?;
    destination.put_back(earlier.path())?;
    destination.start_again()?;
    // Both are written on, as if nothing had happened.
    insert(&servers.destination, "under", "c", &[doc! {"_id": "on"}]).await?;
    insert(&servers.source, "under", "c", &[doc! {"_id": "on"}]).await?;
    control.writes_off();
    let ended = tokio::time::timeout(Duration::from_secs(300), running).await??;
    let Err(error) = ended else {
        bail!("a verdict");
    };
    ensure!(error.to_string().contains("went back in time"), "{error}");
    Ok(())
}
