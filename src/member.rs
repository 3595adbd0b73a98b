//! One member of a replica set in this process: listener, shard, background work. A member of the config
//! server has the config server in front of its shard.
//!
//! ```text
//!   start: components (engine, log) ─► state (set, configuration) ─► serve ─► elected? primary services
//!   stop:  hand leadership over ─► hello says so, new work is refused, until clients are gone or their time
//!          is over ─► what runs has finished, or is interrupted ─► log and engine synced
//! ```

use crate::reach::Reach;
use anyhow::{Context, Result};
use configsvr::{ConfigHandler, ConfigRole, ConfigServer};
use shard::{
    Doorway, Membership, ReplicaSetOptions, Shard, ShardHandler, ShardOptions, WaitingRoom,
};
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wire::{
    BoxedHandler, Endpoint, Handler, InProcess, Running, Server, ServerHandle, ServerOptions,
};

/// How long running commands may take to finish after the signal to stop.
const FINISH: Duration = Duration::from_secs(5);
/// How long a log that stops may take to say why.
const WHY_WAIT: Duration = Duration::from_secs(1);
/// How long another member may take to become the primary before this one stops.
const HAND_OVER: Duration = Duration::from_secs(2);

/// A member that serves.
pub struct Member {
    shard: Arc<Shard>,
    handle: ServerHandle,
    serving: JoinHandle<()>,
    background: JoinHandle<()>,
    deciding: Option<Deciding>,
}

/// The config server of a member: decides while the member is primary.
struct Deciding {
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

/// What a member is asked through.
type ConfigDoor = ConfigHandler<BoxedHandler>;

/// A listener whose server does not know yet which member it is.
pub struct Newcomer<H> {
    room: Arc<WaitingRoom>,
    doorway: Arc<Doorway<H>>,
    running: Running,
}

impl Member {
    /// Opens the data and serves. A shard of a cluster knows where its config server is.
    pub async fn start(
        listener: TcpListener,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
        config: Option<Arc<dyn Endpoint>>,
        reach: &Reach,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        if let Some(config) = config {
            join_cluster(&shard, config, &set.host, reach);
        }
        reach.add(&set.host, shard.endpoint());
        let running = shard.serve(listener);
        Ok(Member::begin(shard, running, None))
    }

    /// Opens the data of a member of the config server, and serves.
    pub async fn start_config(
        listener: TcpListener,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
        reach: &Reach,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        let (door, deciding) = config_server(&shard, set, reach);
        let handler = Arc::new(ConfigRole(Arc::new(door)));
        reach.add(&set.host, Arc::new(InProcess::new(handler.clone())));
        let running = Server::new(handler, ServerOptions::default()).spawn(vec![listener]);
        Ok(Member::begin(shard, running, Some(deciding)))
    }

    fn begin(shard: Arc<Shard>, running: Running, deciding: Option<Deciding>) -> Member {
        shard.attach_server(running.handle.clone());
        Member {
            background: shard.spawn_background(),
            serving: running.task,
            shard,
            handle: running.handle,
            deciding,
        }
    }

    /// Completes with the reason when the member cannot go on, or was asked to end.
    pub async fn ended(&mut self) -> Result<&'static str> {
        tokio::select! {
            () = self.shard.shutdown_requested() => Ok("a client asked for it"),
            // Nothing can be written any more: better to end than to look alive.
            reason = self.shard.log_stopped() => Err(stopped(&reason)),
            ended = &mut self.serving => match ended {
                Ok(()) => anyhow::bail!("the server ended unexpectedly"),
                Err(error) => anyhow::bail!("the server failed: {error}"),
            },
        }
    }

    /// Tells clients and other members, finishes what runs, and makes everything durable.
    pub async fn stop(self, hand_over: bool) -> Result<()> {
        let Member {
            shard,
            handle,
            serving,
            background,
            deciding,
        } = self;
        // Where all members stop together, clients have nowhere to go.
        let (hand_over, limit) = match hand_over {
            true => (HAND_OVER, shard.quiesce_limit()),
            false => (Duration::ZERO, Duration::ZERO),
        };
        if let Some(deciding) = deciding {
            // What it has begun is written down; the next primary goes on.
            deciding.stop.send_replace(true);
            deciding.running.await.context("the config server failed")?;
        }
        shard.begin_quiesce(hand_over, limit).await;
        if shard.quiesced(limit, FINISH).await {
            tracing::info!("interrupting what still runs");
            shard.interrupt_operations();
        }
        handle.shutdown();
        let mut serving = serving;
        let served = loop {
            match tokio::time::timeout(FINISH, &mut serving).await {
                Ok(served) => break served,
                // What came in the last moment.
                Err(_) => shard.interrupt_operations(),
            }
        };
        served.context("the server did not end in order")?;
        match tokio::time::timeout(FINISH, background).await {
            Ok(ended) => ended.context("a background task failed")?,
            // It may be left at any point, and goes on after the next start.
            Err(_) => tracing::warn!("background work is left unfinished"),
        }
        tokio::task::spawn_blocking(move || shard.close())
            .await
            .context("closing was interrupted")?
            .context("cannot make the data durable")
    }
}

impl<H: Handler> Newcomer<H> {
    fn begin(
        set: &ReplicaSetOptions,
        serve: impl FnOnce(Arc<Doorway<H>>) -> Running,
    ) -> Result<Self> {
        let room = Arc::new(WaitingRoom::new(&set.name, &set.host)?);
        let doorway = Arc::new(Doorway::new(room.clone()));
        Ok(Newcomer {
            running: serve(doorway.clone()),
            room,
            doorway,
        })
    }

    /// Completes when it is known which member this is, and that is on disk.
    pub async fn told(&self, options: &ShardOptions) -> Result<Membership> {
        let membership = self.room.became().await;
        membership.store(&options.data).with_context(|| {
            format!(
                "cannot write to the data directory {}",
                options.data.display()
            )
        })?;
        Ok(membership)
    }

    fn become_member(self, shard: Arc<Shard>, inside: H, deciding: Option<Deciding>) -> Member {
        let member = Member::begin(shard, self.running, deciding);
        self.doorway.open(inside);
        self.room.settle();
        member
    }

    /// Ends without ever having been a member.
    pub async fn stop(self) -> Result<()> {
        self.running.handle.shutdown();
        self.running
            .task
            .await
            .context("the server did not end in order")
    }
}

impl Newcomer<ShardHandler> {
    /// Listens, and waits to be told.
    pub fn start(listener: TcpListener, set: &ReplicaSetOptions) -> Result<Self> {
        Self::begin(set, |doorway| doorway.serve(listener))
    }

    /// Opens the data and serves, on the same listener.
    pub async fn enter(
        self,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
        config: Option<Arc<dyn Endpoint>>,
        reach: &Reach,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        if let Some(config) = config {
            join_cluster(&shard, config, &set.host, reach);
        }
        let inside = ShardHandler(shard.clone());
        Ok(self.become_member(shard, inside, None))
    }
}

impl Newcomer<ConfigDoor> {
    /// Listens, and waits to be told.
    pub fn start_config(listener: TcpListener, set: &ReplicaSetOptions) -> Result<Self> {
        Self::begin(set, |doorway| {
            let handler = Arc::new(ConfigRole(doorway));
            Server::new(handler, ServerOptions::default()).spawn(vec![listener])
        })
    }

    /// The same for a member of the config server.
    pub async fn enter_config(
        self,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
        reach: &Reach,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        let (inside, deciding) = config_server(&shard, set, reach);
        Ok(self.become_member(shard, inside, Some(deciding)))
    }
}

/// A shard knows its config server, the other shards, and where the cluster keeps its sessions.
fn join_cluster(shard: &Shard, config: Arc<dyn Endpoint>, host: &str, reach: &Reach) {
    shard.join_cluster(config.clone(), reach.connect());
    let routed = reach.routed(config.clone(), host);
    shard.keep_sessions_in_cluster(config, routed, false);
}

/// The config server in front of a member, which follows the member's leadership from now on.
fn config_server(
    shard: &Arc<Shard>,
    set: &ReplicaSetOptions,
    reach: &Reach,
) -> (ConfigDoor, Deciding) {
    // Whichever member decides.
    let config = reach.of_member(&set.name, &set.host);
    let routed = reach.routed(config.clone(), &set.host);
    shard.keep_sessions_in_cluster(config, routed, true);
    let server = ConfigServer::new(shard.endpoint(), reach.connect());
    let door = ConfigHandler::new(server.clone(), shard.boxed_handler());
    let (stop, stopped) = watch::channel(false);
    let shard = shard.clone();
    let running = tokio::spawn(async move {
        let (leads, leadership) = watch::channel(None);
        let follow = async {
            loop {
                let known = *leads.borrow();
                let now = shard.leadership_changed(known).await;
                leads.send_replace(now);
            }
        };
        let mut stopped = stopped;
        let stop = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        tokio::select! {
            () = server.run(leadership, stop) => {}
            () = follow => {}
        }
    });
    (door, Deciding { stop, running })
}

async fn open(
    options: &ShardOptions,
    set: &ReplicaSetOptions,
    membership: Membership,
) -> Result<Arc<Shard>> {
    let shard = tokio::task::block_in_place(|| Shard::open_member(options, membership))
        .with_context(|| format!("cannot open the data in {}", options.data.display()))?;
    let Err(error) = shard.join_replica_set(set).await else {
        return Ok(shard);
    };
    // Whoever waits for a log that stops hears only that it did.
    match tokio::time::timeout(WHY_WAIT, shard.log_stopped()).await {
        Ok(reason) => Err(stopped(&reason)),
        Err(_) => Err(error).context("cannot join the replica set"),
    }
}

fn stopped(reason: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the log stopped ({reason}); what was acknowledged is on disk. Is the disk full? Make room \
         and start again"
    )
}

pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "cannot listen on {address}: another server is running there. Try --port {}",
                address.port().wrapping_add(1).max(1024)
            ),
            _ => anyhow::anyhow!("cannot listen on {address}: {error}"),
        })
}

/// Where clients find the server, and what its members are told. A server that
/// listens everywhere is known by the name of its machine.
pub fn reachable(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let port = address.port();
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    if (&*name, port).to_socket_addrs().is_ok() {
        return format!("{name}:{port}");
    }
    tracing::warn!(
        "this machine does not know its own name {name:?}: clients are told to connect to \
         127.0.0.1:{port}. Say --host NAME:{port} for clients on other machines"
    );
    format!("127.0.0.1:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::{DocBuf, DocWriter};
    use shard::LogWindow;
    use wire::Request;
    use wire::client::Client;

    const DEADLINE: Duration = Duration::from_secs(60);

    async fn run(member: &Member, command: DocWriter) -> String {
        let request = Request::from_parts(command.finish(), Vec::new()).expect("a command");
        let reply = member.shard.endpoint().call(request).await;
        model::text::document_quoted(reply.expect("an answer").document())
    }

    /// The set of a member, with another one that has no vote and is never there.
    fn with_absent(host: &str) -> DocWriter {
        let mut command = DocWriter::new();
        command.begin_document("replSetReconfig");
        command.append("_id", "flock").append("version", 2);
        command.begin_array("members").push_document();
        command.append("_id", 0).append("host", host).end();
        command.push_document().append("_id", 1);
        command.append("host", "127.0.0.1:1");
        command.append("votes", 0).append("priority", 0).end();
        command.end().end().append("$db", "admin");
        command
    }

    /// Writes, on a connection that looks like another member's, and waits for a member that never comes.
    fn wait_for_absent(host: &str) -> Client {
        let mut packets = DocWriter::new();
        packets.append("_terndbReplicate", 1);
        packets.begin_array("parts").end().append("$db", "admin");
        let packets = packets.finish();
        let mut insert = DocWriter::new();
        insert.append("insert", "c").begin_array("documents");
        insert.push_document().append("_id", 1).end().end();
        insert.begin_document("writeConcern").append("w", 2).end();
        insert.append("$db", "test");
        let mut client = Client::connect(host).expect("it listens");
        let sent = client.send_without_reply(packets.as_bytes());
        sent.expect("it is sent");
        let sent = client.send_with_flags(0, insert.finish().as_bytes());
        sent.expect("it is sent");
        client
    }

    /// Nobody waits for connections of other members before a member stops; what runs on one is
    /// interrupted all the same.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_still_runs_when_a_member_stops_is_answered() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let listener = listen(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        let options = ShardOptions {
            data: data.path().to_owned(),
            cache_bytes: 8 << 20,
            scan_memory: None,
            parameters: Vec::new(),
            log_window: LogWindow::default(),
        };
        let set = ReplicaSetOptions {
            name: "flock".to_owned(),
            host: host.clone(),
            detours: Default::default(),
        };
        let alone = Membership::ALONE;
        let reach = Reach::default();
        let started = Member::start(listener, &options, &set, alone, None, &reach).await;
        let member = started.expect("it starts");
        let reply = run(&member, with_absent(&host)).await;
        assert!(reply.contains("ok: 1.0"), "{reply}");
        let mut client = wait_for_absent(&host);
        let written = async {
            let count = || DocWriter::new().with("count", "c").with("$db", "test");
            while !run(&member, count()).await.contains("n: 1,") {
                tokio::task::yield_now().await;
            }
        };
        let written = tokio::time::timeout(DEADLINE, written).await;
        written.expect("it is written");
        let stopped = tokio::time::timeout(DEADLINE, member.stop(true)).await;
        stopped.expect("it stops in time").expect("it stops");
        let reply = client.read_reply().expect("it is answered").to_vec();
        let reply = DocBuf::from_bytes(reply).expect("a document");
        let reply = model::text::document_quoted(reply.as_doc());
        assert!(
            reply.contains("writeConcernError: { code: 11600"),
            "{reply}"
        );
    }
}
