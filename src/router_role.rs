//! `terndb router`: what clients of a cluster connect to, apart from its servers.
//!
//! It keeps nothing: it can be stopped and started at any time, and there may be any number of them. How its clients
//! notice an orderly end: the router's `quiesce.rs`.

use crate::configuration::{UpOptions, UpSettings};
use crate::member::{listen, reachable};
use crate::reach::Reach;
use crate::up::{StopSignals, passing_runtime, start_logging};
use anyhow::{Context, Result, anyhow, bail};
use router::{Parameters, Router, RouterOptions, prepare_scratch};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wire::Running;

/// How long running commands may take to finish after the signal to stop.
const FINISH: Duration = Duration::from_secs(5);

pub fn run(options: UpOptions) -> Result<()> {
    let settings = options.settle()?;
    start_logging(settings.log_level);
    passing_runtime()?.block_on(serve(settings))
}

async fn serve(settings: UpSettings) -> Result<()> {
    let mut signals = StopSignals::expect()?;
    let Some(config) = &settings.config_servers else {
        bail!("a router needs --config-servers SET/HOST:PORT,HOST:PORT");
    };
    let listener = listen(SocketAddr::new(settings.bind, settings.port)).await?;
    let address = listener.local_addr().context("cannot see the own port")?;
    let host = settings
        .host
        .clone()
        .unwrap_or_else(|| reachable(address).to_string());
    let reach = Reach::default();
    let scratch = settings.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let options = router_options(&host, scratch, &settings.parameters)?;
    let router = Router::new(reach.set(config), reach.connect(), options);
    let background = router.spawn_background();
    let Running {
        handle,
        task: mut serving,
    } = router.serve(listener);
    announce(&host, config)?;
    let why = tokio::select! {
        why = signals.received() => why,
        () = router.shutdown_requested() => "a client asked for it",
        _ = &mut serving => bail!("the router ended unexpectedly"),
    };
    tracing::info!("stopping: {why}");
    router.quiesce(router.quiesce_limit().await, FINISH).await;
    handle.shutdown();
    serving.await.context("the router did not end in order")?;
    background.abort();
    router.say_farewell().await;
    tracing::info!("stopped");
    Ok(())
}

/// What a router is started with. Its directory is made ready.
pub fn router_options<'a>(
    host: &str,
    scratch: PathBuf,
    parameters: impl IntoIterator<Item = &'a (String, String)>,
) -> Result<RouterOptions> {
    prepare_scratch(&scratch)
        .with_context(|| format!("cannot use the directory {}", scratch.display()))?;
    let mut options = RouterOptions::new(host);
    options.scratch = scratch;
    let given = parameters.into_iter();
    let given = given.map(|(name, value)| (name.as_str(), value.as_str()));
    options.parameters = Parameters::at_startup(given).map_err(|error| anyhow!(error.message))?;
    Ok(options)
}

fn announce(host: &str, config: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "TernDB {} is ready.\n  config servers  {config}\n  connect         mongosh mongodb://{host}",
        env!("CARGO_PKG_VERSION"),
    )
    .and_then(|()| out.flush())
    .context("cannot write to standard output")
}
