//! Runs whose process is killed at any moment, started again, and concluded rightly.
//!
//! The process that is killed is `terndb verify`. `TERNDB_VERIFY_KILLS` says how often (default below).

use crate::{Servers, found, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use differential::server::find_terndb;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use verifier::namespace::Pattern;
use verifier::settings::Changes;
use verifier::{Outcome, Place, Settings, Writes, verify};

const KILLS: u64 = 25;
const META_DATABASE: &str = "verify_state";

fn changes_of(text: &str) -> Changes {
    match text {
        "oplog" => Changes::Oplog,
        _ => Changes::Stream,
    }
}

struct Child<'a> {
    servers: &'a Servers,
    database: &'a str,
    state: &'a Path,
    meta: Option<String>,
    writes: Writes,
    changes: &'a str,
}

impl Child<'_> {
    fn start(&self) -> Result<std::process::Child> {
        let mut command = Command::new(find_terndb()?);
        command
            .args(["verify", "--quiet", "--workers", "2"])
            // Small parts and short pauses, so that there is much to be killed in.
            .args(["--partition-mb", "0.002", "--generation-pause", "0.02"])
            .args(["--from", &self.servers.from, "--to", &self.servers.to])
            .args(["--include", self.database, "--changes", self.changes])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match &self.meta {
            Some(meta) => command.args(["--meta", meta, "--meta-database", META_DATABASE]),
            None => command.arg("--state").arg(self.state),
        };
        if self.writes == Writes::Off {
            command.arg("--writes-off");
        }
        Ok(command.spawn()?)
    }

    /// Runs for a while and is killed; says whether it came to its end before.
    fn run_and_kill(&self, after: Duration) -> Result<bool> {
        let mut child = self.start()?;
        std::thread::sleep(after);
        if let Some(status) = child.try_wait()? {
            let different = Outcome::Different.exit_code().into();
            ensure!(status.code() == Some(different), "the run failed: {status}");
            return Ok(true);
        }
        child.kill()?;
        child.wait()?;
        Ok(false)
    }
}

fn kills() -> u64 {
    let given = std::env::var("TERNDB_VERIFY_KILLS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

#[test]
fn killed_runs_go_on() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        on_any_servers(&servers, kills()).await?;
        changed_in_between(&servers)
            .await
            .context("changed in between")?;
        other_settings(&servers).await.context("other settings")
    })
}

/// Runs that are killed so often, a third of the times in each way to run and to keep state.
pub async fn on_any_servers(servers: &Servers, kills: u64) -> Result<()> {
    while_nobody_writes(servers, kills / 3)
        .await
        .context("writes off")?;
    let ways = [
        ("written", None, "stream"),
        ("written_too", Some(servers.to.clone()), "stream"),
        ("written_oplog", None, "oplog"),
    ];
    for (database, meta, changes) in ways {
        while_both_are_written(servers, database, meta, changes, kills / 3)
            .await
            .context(database)?;
    }
    Ok(())
}

/// What was changed between two processes of a run in which nobody writes is seen by the second.
async fn changed_in_between(servers: &Servers) -> Result<()> {
    let documents: Vec<Document> = (0..100).map(|n| doc! {"_id": n}).collect();
    servers.insert_both("between", "c", &documents).await?;
    servers.insert_both("between", "d", &documents).await?;
    let folder = tempfile::tempdir()?;
    let mut settings = servers.settings("between");
    settings.place = Place::Directory(folder.path().join("state"));
    let report = verify(settings.clone()).await?;
    ensure!(
        report.outcome == Outcome::Equal && !report.resumed,
        "{report}"
    );
    // Nobody has taken that report, so that the run is there to be gone on with.
    let database = servers.destination.database("between");
    let delete = doc! {"delete": "c", "deletes": [{"q": {"_id": 7}, "limit": 1}]};
    database.run_command(delete).await?;
    database.run_command(doc! {"drop": "d"}).await?;
    insert(&servers.destination, "between", "d", &documents[10..]).await?;
    let report = verify(settings).await?;
    ensure!(report.resumed, "{report}");
    let missing: Vec<u64> = report
        .collections
        .iter()
        .map(|one| one.counts.missing)
        .collect();
    ensure!(missing == [1, 10], "{report}");
    Ok(())
}

/// A scan that is cut into many tasks, none of which is done twice or left out.
pub async fn while_nobody_writes(servers: &Servers, kills: u64) -> Result<()> {
    let documents: Vec<Document> = (0..4000)
        .map(|n| doc! {"_id": n, "text": "x".repeat(100)})
        .collect();
    insert(&servers.source, "killed", "c", &documents).await?;
    insert(&servers.destination, "killed", "c", &documents[..3990]).await?;
    let folder = tempfile::tempdir()?;
    let child = Child {
        servers,
        database: "killed",
        state: &folder.path().join("state"),
        meta: None,
        writes: Writes::Off,
        changes: "stream",
    };
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..kills {
        // A run that ended is forgotten with its report, and the next start begins anew.
        child.run_and_kill(Duration::from_millis(random.u64(5..400)))?;
    }
    let mut settings = servers.live_settings("killed");
    settings.writes = Writes::Off;
    settings.partition_bytes = 2000;
    settings.place = Place::Directory(child.state.to_owned());
    let report = verify(settings).await?;
    ensure!(
        report.totals.missing == 10 && report.totals.mismatches() == 10,
        "{report}"
    );
    ensure!(
        report.totals.source_documents == 4000 && report.totals.equal == 3990,
        "{report}"
    );
    ensure!(report.collections[0].partitions > 20, "{report}");
    verifier::store::forget(&Place::Directory(child.state.to_owned())).await?;
    ensure!(!child.state.exists());
    Ok(())
}

/// Changes on both sides while the process comes and goes: each is found, or found undone.
pub async fn while_both_are_written(
    servers: &Servers,
    database: &str,
    meta: Option<String>,
    changes: &str,
    kills: u64,
) -> Result<()> {
    let documents: Vec<Document> = (0..1000).map(|n| doc! {"_id": n, "v": 0}).collect();
    servers.insert_both(database, "c", &documents).await?;
    let folder = tempfile::tempdir()?;
    let child = Child {
        servers,
        database,
        state: &folder.path().join("state"),
        meta: meta.clone(),
        writes: Writes::On,
        changes,
    };
    let mut random = fastrand::Rng::with_seed(6);
    let mut expected = BTreeSet::new();
    for round in 0..kills {
        ensure!(!child.run_and_kill(Duration::from_millis(random.u64(5..500)))?);
        let mut change = async |id: i32, value: i32| -> Result<()> {
            let client = match random.bool() {
                true => &servers.source,
                false => &servers.destination,
            };
            let update = doc! {"q": {"_id": id}, "u": {"$set": {"v": value}}};
            let command = doc! {"update": "c", "updates": [update]};
            client.database(database).run_command(command).await?;
            Ok(())
        };
        let id = i32::try_from(round)?;
        change(id, 1).await?;
        expected.insert(format!(
            "content {database}.c {}",
            crate::shown_id(&id.into())?
        ));
        // One that is changed on both sides alike, in two steps, is no mismatch in the end.
        for client in servers.clients() {
            let document = doc! {"_id": 5000 + id};
            insert(client, database, "c", &[document]).await?;
        }
    }
    let mut settings = servers.live_settings(database);
    settings.place = match meta {
        Some(uri) => Place::Database {
            uri,
            name: META_DATABASE.to_owned(),
        },
        None => Place::Directory(child.state.to_owned()),
    };
    settings.changes = changes_of(changes);
    // To go on with it and say that writes are off.
    settings.writes = Writes::Off;
    let place = settings.place.clone();
    let report = verify(settings).await?;
    ensure!(report.outcome == Outcome::Different, "{report}");
    ensure!(found(&report) == expected, "{report}\n{expected:?}");
    verifier::store::forget(&place).await?;
    Ok(())
}

async fn other_settings(servers: &Servers) -> Result<()> {
    let folder = tempfile::tempdir()?;
    // To its end, so that it surely has begun: what it was asked is kept until it is forgotten.
    let mut settings = servers.settings("killed");
    settings.place = Place::Directory(folder.path().join("state"));
    let place = settings.place.clone();
    ensure!(verify(settings).await?.outcome == Outcome::Different);
    let mut settings = servers.live_settings("written");
    settings.place = place;
    let refused = |settings: Settings, expected: &'static str| async move {
        let Err(error) = verify(settings).await else {
            anyhow::bail!("{expected}: no error");
        };
        ensure!(error.to_string().contains(expected), "{error}");
        Ok(())
    };
    refused(settings.clone(), "with other clusters, names or filters").await?;
    settings.selection.include = vec![Pattern::parse("killed")?];
    refused(settings.clone(), "begun with --writes-off").await?;
    settings.writes = Writes::Off;
    settings.restart = true;
    ensure!(verify(settings).await?.totals.missing == 10);
    Ok(())
}
