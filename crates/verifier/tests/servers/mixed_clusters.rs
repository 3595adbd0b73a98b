//! TernDB as source and as destination.

use crate::{Servers, on_runtime, planted, scenarios};
use anyhow::{Context, Result};
use differential::server::{start_mongod, start_terndb};

#[test]
fn terndb_as_source() -> Result<()> {
    on_runtime(async {
        let servers = Servers::new(start_terndb()?, start_mongod()?).await?;
        planted::check_equal(&servers).await.context("equal")?;
        planted::check(&servers).await.context("planted")?;
        scenarios::on_any_servers(&servers).await
    })
}

#[test]
fn terndb_as_destination() -> Result<()> {
    on_runtime(async {
        let servers = Servers::new(start_mongod()?, start_terndb()?).await?;
        planted::check_equal(&servers).await.context("equal")?;
        planted::check(&servers).await.context("planted")?;
        scenarios::on_any_servers(&servers).await
    })
}
