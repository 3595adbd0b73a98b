//! The router: what clients of a cluster talk to.
//!
//! ```text
//!   client ─► dispatch ─┬ answered here            hello, ping, listShards, …
//!                       ├ one shard                bytes pass through, with versions
//!                       ├ several shards           scatter, merge, a cursor of the router's own
//!                       ├ DDL                      the config server
//!                       └ admin.*, config.*        the config server
//! ```
//!
//! It sees the shards and the config server as [`Endpoint`]s and knows nothing of how they store
//! anything. It keeps no state that matters: a router can be killed at any time.
//!
//! What must hold:
//! - **A statement is sent again only to a shard that said that it did not carry it out.** A lost
//!   reply is told to the client, whose driver retries with the same statement ids. Statements over
//!   several shards have a name of their own, by which they are asked for again (`broadcast.rs`).
//! - **Never half an answer.** If one shard of several does not answer, the command fails.
//! - **Versions travel with every routed request**; who is older refreshes, and the request is
//!   routed again, at most [`STALE_RETRIES_MAX`] times.
//!
//! Where to read on: `routing.rs`, `registry.rs`, `config.rs` (what is known), `request.rs`,
//! `targeting.rs` (where requests go), `direct.rs`, `bulk.rs`, `broadcast.rs` (writes), `find.rs`, `scan/`, `merge.rs`,
//! `cursor.rs` (reads), `aggregate.rs`, `environment.rs`, `output.rs` (pipelines), `change_stream.rs`, `session.rs`, `dispatch.rs` (the commands), `operation.rs`, `current_op.rs` (what runs), `server_status.rs`, `parameters.rs`, `quiesce.rs` (the process).

mod aggregate;
mod apart;
mod arguments;
mod at_home;
mod broadcast;
mod bulk;
mod catalog;
mod change_stream;
mod completion;
mod config;
mod count;
mod current_op;
mod cursor;
mod ddl;
mod diagnostic;
mod direct;
mod dispatch;
mod distribution;
mod environment;
mod explain;
mod failure;
mod find;
mod find_and_modify;
mod get_more;
mod heartbeat;
mod hello;
mod merge;
mod operation;
mod output;
mod parameters;
mod persistence;
mod quiesce;
mod registry;
mod request;
mod routing;
mod scan;
mod scatter;
mod server_status;
mod session;
mod spill;
mod statistics;
mod targeting;
#[cfg(test)]
mod tests;
mod time_limit;

pub use parameters::Parameters;
pub use spill::prepare_scratch;

use config::ConfigServer;
use cursor::Cursors;
use parking_lot::Mutex;
use registry::Registry;
use request::Clock;
use routing::Routing;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use wire::operation::Operations;
use wire::{
    ConnectionInfo, Endpoint, Handler, InProcess, OpCounters, Reply, Request, Running, Server,
    ServerHandle, ServerOptions,
};

/// How often a request is routed again because a shard said that it was routed by an old version.
pub(crate) const STALE_RETRIES_MAX: u32 = 10;

/// How a shard is reached: by its id and the connection string of `config.shards`.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;

#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Where clients reach this router: its name in `config.mongos`.
    pub host: String,
    /// How often it is read which shards there are.
    pub shards_refresh: Duration,
    /// How long a scan waits for a range to arrive where it is said to be, and for a shard to have a primary.
    pub scan_patience: Duration,
    /// Where it puts what does not fit into memory.
    pub scratch: PathBuf,
    /// With which values its parameters begin.
    pub parameters: Parameters,
}

impl RouterOptions {
    const SHARDS_REFRESH: Duration = Duration::from_secs(30);

    pub fn new(host: impl Into<String>) -> RouterOptions {
        RouterOptions {
            host: host.into(),
            shards_refresh: RouterOptions::SHARDS_REFRESH,
            scan_patience: scan::PATIENCE,
            scratch: std::env::temp_dir(),
            parameters: Parameters::default(),
        }
    }
}

pub struct Router {
    config: Arc<ConfigServer>,
    registry: Registry,
    routing: Routing,
    cursors: Cursors,
    sessions: session::Sessions,
    operations: Operations,
    scans: scan::ScanCounters,
    /// Held by who puts a placement under a refined shard key: others wait for what it makes.
    refining: tokio::sync::Mutex<()>,
    slots: broadcast::Slots,
    given_seconds: completion::GivenSeconds,
    clock: Arc<Clock>,
    options: RouterOptions,
    parameters: Mutex<Parameters>,
    started: Instant,
    process_id: model::bson::ObjectId,
    shutdown: Notify,
    /// Whether this router is about to end.
    ending: watch::Sender<bool>,
    /// Until when clients are told so.
    quiesces_until: OnceLock<Instant>,
    /// What the command `shutdown` said about that.
    shutdown_limit: Mutex<Option<Duration>>,
    counters: OpCounters,
    /// What its clients are connected to.
    server: OnceLock<ServerHandle>,
}

impl Router {
    pub fn new(config: Arc<dyn Endpoint>, connect: Connect, options: RouterOptions) -> Arc<Router> {
        let config = Arc::new(ConfigServer::new(config));
        let clock = Arc::new(Clock::new(options.parameters.clock_drift_secs));
        Arc::new(Router {
            registry: Registry::new(connect),
            routing: Routing::new(config.clone(), clock.clone()),
            config,
            cursors: Cursors::default(),
            sessions: session::Sessions::new(),
            operations: Operations::default(),
            scans: scan::ScanCounters::default(),
            refining: tokio::sync::Mutex::default(),
            slots: broadcast::Slots::default(),
            given_seconds: completion::GivenSeconds::default(),
            clock,
            parameters: Mutex::new(options.parameters),
            options,
            started: Instant::now(),
            process_id: hello::object_id(),
            shutdown: Notify::new(),
            ending: watch::Sender::new(false),
            quiesces_until: OnceLock::new(),
            shutdown_limit: Mutex::default(),
            counters: OpCounters::default(),
            server: OnceLock::new(),
        })
    }

    /// Reads which shards there are, keeps looking, says that this router lives, closes
    /// cursors that nobody uses, and refreshes sessions. Runs until it is aborted.
    pub fn spawn_background(self: &Arc<Router>) -> tokio::task::JoinHandle<()> {
        let (alive, sessions, idle) = (self.clone(), self.clone(), self.clone());
        tokio::spawn(async move {
            tokio::join!(
                heartbeat::run(alive),
                session::run(sessions),
                cursor::close_idle(idle)
            );
        })
    }

    /// Keeps looking which shards there are, and where. For a router that clients do not know: it does
    /// nothing else by itself. Runs until it is aborted.
    pub fn spawn_looking(self: &Arc<Router>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(heartbeat::keep_looking(self.clone()))
    }

    /// Answers whoever connects, in a task of its own. The body of an async function is compiled
    /// where it is run: this way all that the router does is compiled here, once.
    pub fn serve(self: &Arc<Self>, listener: TcpListener) -> Running {
        let handler = Arc::new(RouterHandler(self.clone()));
        let running = Server::new(handler, ServerOptions::default()).spawn(vec![listener]);
        // A router serves on one listener.
        let _ = self.server.set(running.handle.clone());
        running
    }

    /// The router for those who share its process.
    pub fn endpoint(self: &Arc<Self>) -> Arc<dyn Endpoint> {
        Arc::new(InProcess::new(Arc::new(RouterHandler(self.clone()))))
    }

    /// What holds at this moment.
    fn parameters(&self) -> Parameters {
        *self.parameters.lock()
    }

    /// Completes when this router is about to end.
    async fn ending(&self) {
        let mut ending = self.ending.subscribe();
        // The sender lives in self.
        let _ = ending.wait_for(|ending| *ending).await;
    }

    /// Completes when a client asked for the end.
    pub async fn shutdown_requested(&self) {
        self.shutdown.notified().await;
    }
}

/// A [`Router`] as the server's handler.
pub struct RouterHandler(pub Arc<Router>);

impl Handler for RouterHandler {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        dispatch::dispatch(&self.0, connection, request).await
    }
}
