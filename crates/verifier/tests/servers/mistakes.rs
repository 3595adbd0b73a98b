//! Mistakes in what is asked for: names that match nothing, and a URI that names another replica set.

use crate::{Servers, on_runtime};
use anyhow::{Result, ensure};
use bson::doc;
use differential::server::find_terndb;
use std::process::Command;
use std::time::Duration;
use verifier::verify;

#[test]
fn mistakes_are_told() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        servers
            .insert_both("shop", "people", &[doc! {"_id": 1}])
            .await?;
        names_that_match_nothing(&servers)?;
        another_set(&servers).await
    })
}

/// As warnings on standard error and in the report, which stands all the same.
fn names_that_match_nothing(servers: &Servers) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.json");
    let output = Command::new(find_terndb()?)
        .args(["verify", "--writes-off", "--quiet"])
        .args(["--from", &servers.from, "--to", &servers.to])
        .args(["--include", "shop", "--exclude", "shop.peple"])
        .args(["--map", "shop.people=shop.people", "--map", "peple=people"])
        .arg("--state")
        .arg(folder.path().join("state"))
        .arg("--report")
        .arg(&report)
        .output()?;
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    ensure!(output.status.code() == Some(0), "{texts:?}");
    for text in &texts {
        for expected in ["--exclude shop.peple leaves", "--map peple=people renames"] {
            let expected = format!("warning: {expected} ");
            ensure!(text.contains(&expected), "{expected}: {text}");
        }
        ensure!(!text.contains("shop.people=shop.people renames"), "{text}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report)?)?;
    let warnings = report["warnings"].as_array().map(Vec::len);
    ensure!(warnings == Some(2), "{report}");
    Ok(())
}

async fn another_set(servers: &Servers) -> Result<()> {
    let mut settings = servers.settings("shop");
    settings.from = format!("{}/?replicaSet=another", servers.from);
    // The server is there: nothing is waited for but a member of the set that is not.
    settings.connect_timeout = Duration::from_secs(10);
    let Err(error) = verify(settings).await else {
        anyhow::bail!("no error");
    };
    let told = error.to_string();
    for expected in [
        "a member of the replica set \"",
        "its URI says replicaSet=another",
    ] {
        ensure!(told.contains(expected), "{told}");
    }
    Ok(())
}
