//! `terndb shard`: one member of a replica set whose other members run elsewhere.
//!
//! ```text
//!   the data says which member it is ──────────────────────────► serve
//!   it does not ─► wait for replSetInitiate, or to be added ─► write it down ─► serve
//! ```

use crate::configuration::{UpOptions, UpSettings};
use crate::member::{Member, Newcomer, listen, reachable};
use crate::up::{StopSignals, runtime, start_logging};
use anyhow::{Context, Result, bail};
use shard::{LogWindow, Membership, ReplicaSetOptions, ShardOptions};
use std::io::Write;
use std::net::SocketAddr;

pub fn run(options: UpOptions) -> Result<()> {
    let settings = options.settle()?;
    if settings.members != 1 {
        bail!("`terndb shard` is one member; `terndb up --members` runs several");
    }
    start_logging(settings.log_level);
    runtime()?.block_on(serve(settings))
}

async fn serve(settings: UpSettings) -> Result<()> {
    let listener = listen(SocketAddr::new(settings.bind, settings.port)).await?;
    let address = listener.local_addr().context("cannot see the own port")?;
    let options = ShardOptions {
        log_window: LogWindow::default(),
        data: settings.data.clone(),
        cache_bytes: settings.cache_bytes,
        parameters: settings.parameters.clone(),
    };
    let set = ReplicaSetOptions {
        name: settings.replica_set.clone(),
        host: settings
            .host
            .clone()
            .unwrap_or_else(|| reachable(address).to_string()),
        detours: settings.detours.clone(),
    };
    let mut signals = StopSignals::expect()?;
    let known = Membership::load(&options.data)
        .with_context(|| format!("cannot read which member {} is", options.data.display()))?;
    let mut member = match known {
        Some(membership) => {
            let member = Member::start(listener, &options, &set, membership).await?;
            announce(&set, "ready")?;
            member
        }
        None => {
            let newcomer = Newcomer::start(listener, &set)?;
            announce(&set, "waiting for replSetInitiate, or to be added to a set")?;
            let told = tokio::select! {
                told = newcomer.told(&options) => Some(told?),
                _ = signals.received() => None,
            };
            match told {
                Some(membership) => newcomer.enter(&options, &set, membership).await?,
                None => return newcomer.stop().await,
            }
        }
    };
    let why = tokio::select! {
        why = signals.received() => why,
        why = member.ended() => why?,
    };
    tracing::info!("stopping: {why}");
    member.stop(true).await?;
    tracing::info!("stopped");
    Ok(())
}

fn announce(set: &ReplicaSetOptions, state: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "TernDB {} is {state}.\n  replica set  {}\n  connect      mongosh mongodb://{}/?directConnection=true",
        env!("CARGO_PKG_VERSION"),
        set.name,
        set.host,
    )
    .and_then(|()| out.flush())
    .context("cannot write to standard output")
}
