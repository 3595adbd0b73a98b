//! TernDB as source, as destination, and as both: everything that it must do as well as MongoDB.

use crate::{Kind, Servers, lease, live, on_runtime, planted, resume, scenarios};
use anyhow::{Context, Result};

#[test]
fn terndb_as_source() -> Result<()> {
    on_runtime(check(Kind::TernDb, Kind::MongoDb))
}

#[test]
fn terndb_as_destination() -> Result<()> {
    on_runtime(check(Kind::MongoDb, Kind::TernDb))
}

#[test]
fn terndb_on_both_sides() -> Result<()> {
    on_runtime(check(Kind::TernDb, Kind::TernDb))
}

async fn check(source: Kind, destination: Kind) -> Result<()> {
    let mut servers = Servers::start(source, destination).await?;
    planted::check_equal(&servers).await.context("equal")?;
    planted::check(&servers).await.context("planted")?;
    scenarios::on_any_servers(&servers).await?;
    if (source, destination) == (Kind::TernDb, Kind::TernDb) {
        scenarios::hashes(&servers).await.context("hashes")?;
    }
    live::on_any_servers(&mut servers).await?;
    lease::on_any_servers(&servers).await?;
    resume::on_any_servers(&servers, KILLS).await
}

const KILLS: u64 = 6;
