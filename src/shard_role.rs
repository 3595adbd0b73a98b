//! `terndb shard` and `terndb config`: one member of a replica set whose other members run elsewhere.
//!
//! ```text
//!   the data says which member it is ──────────────────────────► serve
//!   it does not ─► wait for replSetInitiate, or to be added ─► write it down ─► serve
//! ```
//!
//! A member of the config server has the config server in front of its data; everything else is the same.

use crate::configuration::{UpOptions, UpSettings};
use crate::member::{Member, Newcomer, listen, reachable};
use crate::reach::Reach;
use crate::up::{StopSignals, runtime, start_logging};
use anyhow::{Context, Result, bail};
use shard::{Membership, ReplicaSetOptions, ShardOptions};
use std::io::Write;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// What the member is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Shard,
    Config,
}

pub fn run(options: UpOptions, part: Part) -> Result<()> {
    let settings = options.settle()?;
    let name = match part {
        Part::Shard => "shard",
        Part::Config => "config",
    };
    if settings.members != 1 {
        bail!("`terndb {name}` is one member; `terndb up --members` runs several");
    }
    if settings.shards != 1 {
        bail!("`terndb {name}` is one member; `terndb up --shards` runs a cluster");
    }
    shard::check_parameters(&settings.parameters)?;
    start_logging(settings.log_level);
    runtime()?.block_on(serve(settings, part))
}

async fn serve(settings: UpSettings, part: Part) -> Result<()> {
    let listener = listen(SocketAddr::new(settings.bind, settings.port)).await?;
    let address = listener.local_addr().context("cannot see the own port")?;
    let options = ShardOptions {
        log_window: settings.log_window,
        data: settings.data.clone(),
        cache_bytes: settings.cache_bytes,
        scan_memory: None,
        parameters: settings.parameters.clone(),
    };
    let set = ReplicaSetOptions {
        name: settings.replica_set.clone(),
        host: settings.host.clone().unwrap_or_else(|| reachable(address)),
        detours: settings.detours.clone(),
    };
    let mut signals = StopSignals::expect()?;
    let begun = begin(listener, &options, &set, &settings, part, &mut signals).await?;
    let Some(mut member) = begun else {
        return Ok(());
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

/// A member that serves; `None` if it was stopped before it knew which one it is.
async fn begin(
    listener: TcpListener,
    options: &ShardOptions,
    set: &ReplicaSetOptions,
    settings: &UpSettings,
    part: Part,
    signals: &mut StopSignals,
) -> Result<Option<Member>> {
    let reach = Reach::with_detours(&settings.detours);
    let config = settings.config_servers.as_deref();
    let config = config.map(|servers| reach.set(servers));
    let known = Membership::load(&options.data)
        .with_context(|| format!("cannot read which member {} is", options.data.display()))?;
    if let Some(membership) = known {
        let member = match part {
            Part::Config => {
                Member::start_config(listener, options, set, membership, &reach).await?
            }
            Part::Shard => {
                Member::start(listener, options, set, membership, config, &reach).await?
            }
        };
        announce(set, "ready")?;
        return Ok(Some(member));
    }
    match part {
        Part::Shard => {
            let newcomer = Newcomer::start(listener, set)?;
            announce(set, WAITING)?;
            let Some(membership) = told(&newcomer, options, signals).await? else {
                newcomer.stop().await?;
                return Ok(None);
            };
            let member = newcomer.enter(options, set, membership, config, &reach);
            Ok(Some(member.await?))
        }
        Part::Config => {
            let newcomer = Newcomer::start_config(listener, set)?;
            announce(set, WAITING)?;
            let Some(membership) = told(&newcomer, options, signals).await? else {
                newcomer.stop().await?;
                return Ok(None);
            };
            let member = newcomer.enter_config(options, set, membership, &reach);
            Ok(Some(member.await?))
        }
    }
}

const WAITING: &str = "waiting for replSetInitiate, or to be added to a set";

async fn told<H: wire::Handler>(
    newcomer: &Newcomer<H>,
    options: &ShardOptions,
    signals: &mut StopSignals,
) -> Result<Option<Membership>> {
    tokio::select! {
        told = newcomer.told(options) => told.map(Some),
        _ = signals.received() => Ok(None),
    }
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
