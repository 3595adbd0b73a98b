//! `terndb up`: a whole database in one process.
//!
//! ```text
//!   listen ─► open the data ─► serve ── Ctrl-C, SIGTERM or `shutdown` ──► quiesce ─► drain ─► sync ─► exit 0
//! ```
//!
//! With `--shards` it is a cluster (`cluster.rs`). With `--members` the process runs that many members of one replica set, each with a port and a data
//! directory of its own, so that drivers can follow a failover.
//!
//! Everything that can go wrong before the server answers is one sentence on
//! standard error and a non-zero exit.

use crate::cluster;
use crate::configuration::{UpOptions, UpSettings};
use crate::member::{Member, listen, reachable};
use crate::reach::Reach;
use anyhow::{Context, Result, bail};
use futures_util::future::{join_all, select_all};
use shard::{Membership, RecentLog, ReplicaSetOptions, ShardOptions};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Queries are walked by recursion as deep as they are nested, and a build without optimisation has
/// large frames. What is not used of it is never touched.
const STACK_BYTES: usize = 8 * 1024 * 1024;

/// Threads for who computes for long (the shard's `command/apart.rs`). Made as they are
/// needed; beyond this many, whoever computes holds up the others.
const BLOCKING_THREADS_MAX: usize = 4096;

pub fn run(options: UpOptions) -> Result<()> {
    let settings = options.settle()?;
    match settings.shards {
        1 => shard::check_parameters(&settings.parameters)?,
        _ => shard::check_parameters(&cluster::of_servers(&settings.parameters))?,
    }
    start_logging(settings.log_level);
    match settings.shards {
        1 => runtime()?.block_on(serve(settings)),
        _ => runtime()?.block_on(cluster::serve(settings)),
    }
}

pub fn start_logging(level: LevelFilter) {
    let to_stderr = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(level);
    // What `getLog` shows, however little is wanted on standard error.
    let kept = tracing_subscriber::fmt::layer()
        .with_writer(|| RecentLog)
        .with_target(false)
        .with_ansi(false)
        .with_filter(level.max(LevelFilter::INFO));
    tracing_subscriber::registry()
        .with(to_stderr)
        .with(kept)
        .init();
}

pub fn runtime() -> Result<tokio::runtime::Runtime> {
    build(&mut tokio::runtime::Builder::new_multi_thread())
}

/// For who does little but pass on messages: half as many workers as there are processors. Each of
/// them then finds several messages when it looks, where more of them would wake each other for
/// every one; a router takes a third less CPU so, and has a higher rate. Merging halves of pipelines
/// leave the workers while they compute. TOKIO_WORKER_THREADS says otherwise.
pub fn passing_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        builder.worker_threads((processors / 2).max(1));
    }
    build(&mut builder)
}

fn build(builder: &mut tokio::runtime::Builder) -> Result<tokio::runtime::Runtime> {
    builder
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(STACK_BYTES)
        .build()
        .context("cannot start the runtime")
}

async fn serve(settings: UpSettings) -> Result<()> {
    // First of all: a signal may come while the data is opened, and is then obeyed after it.
    let mut signals = StopSignals::expect()?;
    let directories = directories(&settings)?;
    // The ports first: with one taken, the data need not be opened at all.
    let mut listeners = Vec::new();
    for at in 0..settings.members {
        let port = match settings.port {
            0 => 0,
            base => base.checked_add(at).context("the ports go beyond 65535")?,
        };
        listeners.push(listen(SocketAddr::new(settings.bind, port)).await?);
    }
    let addresses = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<Vec<_>, _>>()
        .context("cannot see the own port")?;
    let hosts: Vec<String> = match (&settings.host, addresses.as_slice()) {
        (Some(host), [_]) => vec![host.clone()],
        _ => addresses
            .iter()
            .map(|address| reachable(*address))
            .collect(),
    };
    let scan_memory = ShardOptions::scan_memory_of(settings.cache_bytes);
    let mut members = Vec::new();
    for ((listener, data), (id, host)) in listeners
        .into_iter()
        .zip(directories)
        .zip((0..).zip(&hosts))
    {
        let options = ShardOptions {
            log_window: settings.log_window,
            data,
            cache_bytes: settings.cache_bytes / u64::from(settings.members),
            scan_memory: Some(scan_memory.clone()),
            parameters: settings.parameters.clone(),
        };
        let set = ReplicaSetOptions {
            detours: Default::default(),
            name: settings.replica_set.clone(),
            host: host.clone(),
        };
        let membership = match hosts.as_slice() {
            [_] => Membership::ALONE,
            several => Membership::Founder {
                member: id,
                founders: (0..).zip(several.iter().cloned()).collect(),
                configuration: None,
            },
        };
        let reach = Reach::default();
        let member = Member::start(listener, &options, &set, membership, None, &reach);
        members.push(member.await?);
    }
    announce(&settings, &addresses, &hosts)?;

    let ended = async {
        let ends = members.iter_mut().map(|member| Box::pin(member.ended()));
        select_all(ends).await.0
    };
    let why = tokio::select! {
        why = signals.received() => why,
        why = ended => why.with_context(|| format!("in {}", settings.data.display()))?,
    };
    tracing::info!("stopping: {why}");
    // All of them stop: there is nobody to hand over to.
    let stops = members.into_iter().map(|member| member.stop(false));
    for stopped in join_all(stops).await {
        stopped?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Where each member keeps its data. One member has the directory for itself.
fn directories(settings: &UpSettings) -> Result<Vec<PathBuf>> {
    let data = &settings.data;
    let shards = cluster::shards_in(data);
    if shards > 0 {
        bail!(
            "{} holds a cluster of {shards} shards: say --shards {shards}",
            data.display()
        );
    }
    let of = |at: u16| data.join(format!("member-{at}"));
    let found = (0..).take_while(|at| of(*at).exists()).count();
    if settings.members == 1 {
        if found > 0 {
            bail!(
                "{} holds {found} members: say --members {found}",
                data.display()
            );
        }
        return Ok(vec![data.clone()]);
    }
    if data.join("log").exists() {
        bail!(
            "{} holds the data of one member: start it without --members, and add members to it \
             with rs.add()",
            data.display()
        );
    }
    if found > 0 && found != usize::from(settings.members) {
        bail!(
            "{} holds {found} members: say --members {found}",
            data.display()
        );
    }
    Ok((0..settings.members).map(of).collect())
}

/// What a newcomer needs to know, on standard output.
fn announce(settings: &UpSettings, addresses: &[SocketAddr], hosts: &[String]) -> Result<()> {
    let connect = match hosts {
        [one] => one.clone(),
        several => format!("{}/?replicaSet={}", several.join(","), settings.replica_set),
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "TernDB {} is ready.\n  data     {}\n  cache    {} MiB\n  connect  mongosh mongodb://{connect}\nPress Ctrl-C to stop.",
        env!("CARGO_PKG_VERSION"),
        settings.data.display(),
        settings.cache_bytes / (1024 * 1024),
    )
    .and_then(|()| out.flush())
    .context("cannot write to standard output")?;
    for address in addresses
        .iter()
        .filter(|address| !address.ip().is_loopback())
    {
        tracing::warn!(
            "there is no authentication: anyone who reaches {address} can read and write"
        );
    }
    Ok(())
}

/// The signals that end the process. From [`StopSignals::expect`] on they are
/// caught, whenever somebody asks for them.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn expect() -> Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?,
        })
    }

    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "Ctrl-C",
        }
    }
}
