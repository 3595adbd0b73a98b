//! `terndb up`: a whole database in one process.
//!
//! ```text
//!   open the data ─► listen ─► serve ── Ctrl-C, SIGTERM or `shutdown` ──► drain ─► sync ─► exit 0
//! ```
//!
//! Draining gives running commands a few seconds to finish; what takes longer is
//! interrupted, with an error on which drivers retry elsewhere.
//!
//! Everything that can go wrong before the server answers is one sentence on
//! standard error and a non-zero exit.

use crate::configuration::{UpOptions, UpSettings};
use anyhow::{Context, Result, anyhow, bail};
use router::Router;
use shard::{LogWindow, ReplicaSetOptions, Shard, ShardOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use wire::{Server, ServerOptions};

/// How long running commands may take to finish after the signal to stop.
const FINISH: Duration = Duration::from_secs(5);

pub fn run(options: UpOptions) -> Result<()> {
    let settings = options.settle()?;
    tracing_subscriber::fmt()
        .with_max_level(settings.log_level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(serve(settings))
}

async fn serve(settings: UpSettings) -> Result<()> {
    // The port first: with it taken, the data need not be opened at all.
    let listener = listen(SocketAddr::new(settings.bind, settings.port)).await?;
    let address = listener.local_addr().context("cannot see the own port")?;
    let shard = Shard::open(&ShardOptions {
        log_window: LogWindow::default(),
        data: settings.data.clone(),
        cache_bytes: settings.cache_bytes,
        parameters: settings.parameters.clone(),
    })
    .with_context(|| format!("cannot open the data in {}", settings.data.display()))?;

    let server = Server::new(
        Arc::new(Router::new(shard.clone())),
        ServerOptions::default(),
    );
    let handle = server.handle();
    shard.attach_server(handle.clone());
    let set = ReplicaSetOptions {
        name: settings.replica_set.clone(),
        host: reachable(address).to_string(),
    };
    shard
        .join_replica_set(&set)
        .await
        .context("cannot join the replica set")?;
    shard
        .discard_unfinished_builds()
        .await
        .context("cannot tidy up unfinished index builds")?;
    let background = shard.spawn_background();
    // Before the world is told that the server is there: a signal may follow at once.
    let signals = StopSignals::expect()?;
    let mut serving = tokio::spawn(server.serve(vec![listener]));
    announce(&settings, address)?;

    let why = tokio::select! {
        why = signals.received() => why,
        () = shard.shutdown_requested() => "a client asked for it",
        // Nothing can be written any more: better to end than to look alive.
        reason = shard.log_stopped() => bail!(
            "the log in {} stopped ({reason}); what was acknowledged is on disk. Is the disk full? \
             Make room and start again",
            settings.data.display()
        ),
        ended = &mut serving => match ended {
            Ok(()) => bail!("the server ended unexpectedly"),
            Err(error) => bail!("the server failed: {error}"),
        },
    };
    tracing::info!("stopping: {why}");
    shard.begin_shutdown();
    handle.shutdown();
    let drained = match tokio::time::timeout(FINISH, &mut serving).await {
        Ok(drained) => drained,
        Err(_) => {
            tracing::info!("interrupting what still runs");
            shard.interrupt_operations();
            serving.await
        }
    };
    drained.context("the server did not end in order")?;
    background.await.context("a background task failed")?;
    tokio::task::spawn_blocking(move || shard.close())
        .await
        .context("closing was interrupted")?
        .context("cannot make the data durable")?;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow!(
                "cannot listen on {address}: another server is running there. Try --port {}",
                address.port().wrapping_add(1).max(1024)
            ),
            _ => anyhow!("cannot listen on {address}: {error}"),
        })
}

/// Where clients on this machine find the server.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new([127, 0, 0, 1].into(), address.port()),
        false => address,
    }
}

/// What a newcomer needs to know, on standard output.
fn announce(settings: &UpSettings, address: SocketAddr) -> Result<()> {
    let shown = reachable(address);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "TernDB {} is ready.\n  data     {}\n  cache    {} MiB\n  connect  mongosh mongodb://{shown}\nPress Ctrl-C to stop.",
        env!("CARGO_PKG_VERSION"),
        settings.data.display(),
        settings.cache_bytes / (1024 * 1024),
    )
    .and_then(|()| out.flush())
    .context("cannot write to standard output")?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "there is no authentication: anyone who reaches {address} can read and write"
        );
    }
    Ok(())
}

/// The signals that end the process. From [`StopSignals::expect`] on they are
/// caught, whenever somebody asks for them.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn expect() -> Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?,
        })
    }

    async fn received(mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "Ctrl-C",
        }
    }
}
