//! `terndb up --shards N`: config server, shards and router in one process.
//!
//! ```text
//!   port      router            what clients connect to
//!   port + 1  config server     its members, one port each
//!   …         shard0, shard1 …  their members, one port each
//!
//!   listen ─► open all data ─► config server decides ─► shards are added ─► router serves
//!   stop:  router ─► config server ─► shards
//! ```
//!
//! Roles reach each other without sockets (`reach.rs`). Started again with the same data, the cluster is the
//! same; ports may be others. With more shards than before, new ones are added to it.

use crate::configuration::UpSettings;
use crate::member::{Member, listen, reachable};
use crate::reach::Reach;
use crate::router_role::router_options;
use crate::up::StopSignals;
use anyhow::{Context, Result, bail};
use futures_util::future::{join_all, select_all, try_join_all};
use model::bson::{DocBuf, DocWriter};
use router::{Parameters, Router};
use shard::{Membership, ReplicaSetOptions, ScanMemory, ShardOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use wire::{Endpoint, Request, Running};

const CONFIG: &str = "config";
/// How long the config server may take to decide its first things: members have to elect a primary.
const FOUNDING_LIMIT: Duration = Duration::from_secs(30);
const FOUNDING_PAUSE: Duration = Duration::from_millis(20);
/// Of the memory for caching, the config server gets this part.
const CONFIG_SHARE: u64 = 16;

/// A replica set of the cluster: its name, and where its members are and keep their data.
struct Group {
    name: String,
    members: Vec<(TcpListener, PathBuf)>,
    hosts: Vec<String>,
}

pub async fn serve(settings: UpSettings) -> Result<()> {
    let mut signals = StopSignals::expect()?;
    check_data(&settings)?;
    let mut ports = Ports::new(&settings);
    let front = ports.next().await?;
    let address = front.local_addr().context("cannot see the own port")?;
    let names = (0..settings.shards).map(|at| format!("shard{at}"));
    let mut groups = Vec::new();
    for name in [CONFIG.to_owned()].into_iter().chain(names) {
        groups.push(ports.group(&settings, name).await?);
    }
    let connections: Vec<String> = groups
        .iter()
        .map(|group| format!("{}/{}", group.name, group.hosts.join(",")))
        .collect();
    let reach = Reach::default();
    let config = reach.later(&connections[0]);
    // One for all shards, because ranges go from one to the other.
    let memory = ShardOptions::scan_memory_of(settings.cache_bytes);
    // All at once: what takes time is opening files.
    let starts = groups
        .into_iter()
        .flat_map(|group| start(group, &settings, &memory, &config, &reach));
    let mut members = try_join_all(starts).await?;
    for connection in &connections[1..] {
        add_shard(&*config, connection).await?;
    }
    let host = settings
        .host
        .clone()
        .unwrap_or_else(|| reachable(address).to_string());
    let scratch = settings.scratch.clone();
    let scratch = scratch.unwrap_or_else(|| settings.data.join("scratch"));
    let parameters = settings.parameters.iter();
    let parameters = parameters.filter(|(name, _)| Parameters::has(name));
    let options = router_options(&host, scratch, parameters)?;
    let router = Router::new(config, reach.connect(), options);
    let background = router.spawn_background();
    let Running {
        handle,
        task: mut serving,
    } = router.serve(front);
    announce(&settings, address, &host, &connections)?;

    let ended = async {
        let ends = members.iter_mut().map(|member| Box::pin(member.ended()));
        select_all(ends).await.0
    };
    let why = tokio::select! {
        why = signals.received() => why,
        () = router.shutdown_requested() => "a client asked for it",
        why = ended => why.with_context(|| format!("in {}", settings.data.display()))?,
        _ = &mut serving => bail!("the router ended unexpectedly"),
    };
    tracing::info!("stopping: {why}");
    // There is nowhere else to go.
    router.quiesce(Duration::ZERO, Duration::ZERO).await;
    handle.shutdown();
    serving.await.context("the router did not end in order")?;
    background.abort();
    router.say_farewell().await;
    // In the order in which they were started: the config server first.
    let stops = members.into_iter().map(|member| member.stop(false));
    for stopped in join_all(stops).await {
        stopped?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Hands out listeners on ports that follow each other.
struct Ports<'a> {
    settings: &'a UpSettings,
    next: u16,
}

impl<'a> Ports<'a> {
    fn new(settings: &'a UpSettings) -> Self {
        Self {
            settings,
            next: settings.port,
        }
    }

    async fn next(&mut self) -> Result<TcpListener> {
        let listener = listen(SocketAddr::new(self.settings.bind, self.next)).await?;
        if self.next != 0 {
            self.next = self
                .next
                .checked_add(1)
                .context("the ports go beyond 65535")?;
        }
        Ok(listener)
    }

    async fn group(&mut self, settings: &UpSettings, name: String) -> Result<Group> {
        let (mut members, mut hosts) = (Vec::new(), Vec::new());
        for at in 0..settings.members {
            let listener = self.next().await?;
            let address = listener.local_addr().context("cannot see the own port")?;
            hosts.push(reachable(address).to_string());
            let data = settings.data.join(&name);
            let data = match settings.members {
                1 => data,
                _ => data.join(format!("member-{at}")),
            };
            members.push((listener, data));
        }
        Ok(Group {
            name,
            members,
            hosts,
        })
    }
}

/// Parameters that shards and config servers have, or refuse by name.
pub fn of_servers(given: &[(String, String)]) -> Vec<(String, String)> {
    let given = given.iter();
    let given = given.filter(|(name, _)| !Parameters::only_routers_have(name));
    given.cloned().collect()
}

/// What starts the members of one group.
fn start(
    group: Group,
    settings: &UpSettings,
    memory: &ScanMemory,
    config: &Arc<dyn Endpoint>,
    reach: &Reach,
) -> Vec<impl Future<Output = Result<Member>> + Send + 'static> {
    let is_config = group.name == CONFIG;
    let cache_bytes = match is_config {
        true => settings.cache_bytes / CONFIG_SHARE,
        false => settings.cache_bytes / u64::from(settings.shards),
    } / u64::from(settings.members);
    let mut starts = Vec::new();
    for ((id, (listener, data)), host) in (0..).zip(group.members).zip(&group.hosts) {
        let options = ShardOptions {
            log_window: settings.log_window,
            data,
            cache_bytes,
            scan_memory: (!is_config).then(|| memory.clone()),
            parameters: of_servers(&settings.parameters),
        };
        let set = ReplicaSetOptions {
            name: group.name.clone(),
            host: host.clone(),
            detours: Default::default(),
        };
        let membership = match group.hosts.as_slice() {
            [_] => Membership::ALONE,
            several => Membership::Founder {
                member: id,
                founders: (0..).zip(several.iter().cloned()).collect(),
                configuration: None,
            },
        };
        let (config, reach) = (config.clone(), reach.clone());
        starts.push(async move {
            match is_config {
                true => Member::start_config(listener, &options, &set, membership, &reach).await,
                false => {
                    Member::start(listener, &options, &set, membership, Some(config), &reach).await
                }
            }
        });
    }
    starts
}

/// Says to the config server that a shard is there, until it has a primary to hear it.
async fn add_shard(config: &dyn Endpoint, connection: &str) -> Result<()> {
    let command = || {
        let mut writer = DocWriter::new()
            .with("_configsvrDdl", 1)
            .with("db", "admin");
        writer
            .begin_document("command")
            .append("addShard", connection)
            .end();
        Request::from_parts(writer.with("$db", "admin").finish(), Vec::new())
    };
    let deadline = tokio::time::Instant::now() + FOUNDING_LIMIT;
    loop {
        let answer = match config.call(command()?).await {
            Ok(reply) => reply.into_document(),
            Err(lost) => DocWriter::new()
                .with("errmsg", lost.to_string().as_str())
                .finish(),
        };
        if is_ok(&answer) {
            return Ok(());
        }
        let why = answer.as_doc().get_str("errmsg").unwrap_or_default();
        if tokio::time::Instant::now() > deadline {
            bail!("the shard {connection} cannot be added to the cluster: {why}");
        }
        tracing::debug!("{connection} is added again: {why}");
        tokio::time::sleep(FOUNDING_PAUSE).await;
    }
}

fn is_ok(reply: &DocBuf) -> bool {
    reply.get("ok") == Some(model::bson::ValueRef::Double(1.0))
}

/// The data must be that of a cluster, with no more shards and the same members.
fn check_data(settings: &UpSettings) -> Result<()> {
    let data = &settings.data;
    let shown = data.display();
    if data.join("log").exists() || data.join("member-0").exists() {
        bail!("{shown} holds the data of one replica set: start it without --shards");
    }
    let found = shards_in(data);
    if found > usize::from(settings.shards) {
        bail!("{shown} holds {found} shards: say --shards {found}");
    }
    let members = |name: &str| {
        let group = data.join(name);
        (0..)
            .take_while(|at| group.join(format!("member-{at}")).exists())
            .count()
    };
    let several = members(CONFIG);
    let one = data.join(CONFIG).join("log").exists();
    if several > 0 && several != usize::from(settings.members) {
        bail!("the shards in {shown} have {several} members each: say --members {several}");
    }
    if one && settings.members != 1 {
        bail!("the shards in {shown} have one member each: start it without --members");
    }
    Ok(())
}

/// How many shards a data directory has.
pub fn shards_in(data: &std::path::Path) -> usize {
    let shard = |at: &usize| data.join(format!("shard{at}")).exists();
    (0..).take_while(shard).count()
}

fn announce(
    settings: &UpSettings,
    address: SocketAddr,
    host: &str,
    connections: &[String],
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let text = format!(
        "TernDB {} is ready.\n  data     {}\n  cache    {} MiB\n  connect  mongosh mongodb://{host}\n  cluster  {}\nPress Ctrl-C to stop.",
        env!("CARGO_PKG_VERSION"),
        settings.data.display(),
        settings.cache_bytes / (1024 * 1024),
        connections.join("\n           "),
    );
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "there is no authentication: anyone who reaches {address} can read and write"
        );
    }
    Ok(())
}
