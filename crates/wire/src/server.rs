//! Accepts connections, runs one task for each, and ends them all in good order.
//!
//! ```text
//!   serving ── ServerHandle::shutdown ──► draining ── all ended, or deadline ──► ended
//!              listeners close, idle      running commands finish and are        what is left
//!              connections end            answered, then their connections end   is aborted
//! ```
//!
//! Every task has a parent that waits for it: connections belong to the acceptor of their
//! listener, acceptors to [`Server::serve`]. Dropping the future of `serve` ends them all at once.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::connection::{ConnectionInfo, Origin};
use crate::endpoint::BoxFuture;
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::reply::Reply;
use crate::request::Request;
use crate::same_host;
use crate::session::{Session, SessionEnd};

/// Whoever answers commands: a shard, a router, a test.
///
/// The returned future lives inside the connection's task, which reserves room for it even while
/// the connection idles: implementations should box their large and rare branches.
pub trait Handler: Send + Sync + 'static {
    /// Answers one command. The future is polled to its end even if the client is gone; it may
    /// ask `connection` whether that is so.
    fn handle(
        &self,
        connection: &Arc<ConnectionInfo>,
        request: Request,
    ) -> impl Future<Output = Reply> + Send;

    /// The connection has ended, after the last command on it: its cursors and its state can go.
    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        let _ = connection;
    }
}

/// A handler whose futures are boxed, for those whose callers should not contain them.
#[derive(Clone)]
pub struct BoxedHandler(Arc<dyn AnswersBoxed>);

trait AnswersBoxed: Send + Sync + 'static {
    fn handle<'a>(
        &'a self,
        connection: &'a Arc<ConnectionInfo>,
        request: Request,
    ) -> BoxFuture<'a, Reply>;

    fn disconnected(&self, connection: &Arc<ConnectionInfo>);
}

impl<H: Handler> AnswersBoxed for H {
    fn handle<'a>(
        &'a self,
        connection: &'a Arc<ConnectionInfo>,
        request: Request,
    ) -> BoxFuture<'a, Reply> {
        Box::pin(Handler::handle(self, connection, request))
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        Handler::disconnected(self, connection);
    }
}

impl BoxedHandler {
    pub fn new(handler: impl Handler) -> BoxedHandler {
        BoxedHandler(Arc::new(handler))
    }
}

impl Handler for BoxedHandler {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        self.0.handle(connection, request).await
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.0.disconnected(connection);
    }
}

#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Connections beyond this many are accepted and closed at once.
    pub connections_max: usize,
    /// How long running commands may take to finish after a shutdown began.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            connections_max: 65_536,
            drain_timeout: Duration::from_secs(15),
        }
    }
}

/// How long an acceptor rests when the system has no file descriptor or memory left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A peer that vanished without a word is noticed after these.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// What the tasks of one server share.
pub(crate) struct Shared {
    pub metrics: Metrics,
    pub drain_signal: Notify,
    draining: AtomicBool,
    options: ServerOptions,
    next_connection_id: AtomicI64,
}

impl Shared {
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

/// Steers and observes a running server.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// Begins to drain; [`Server::serve`] completes when that is done.
    pub fn shutdown(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.drain_signal.notify_waiters();
    }

    pub fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    pub fn metrics(&self) -> MetricsSnapshot {
        self.shared
            .metrics
            .snapshot(self.shared.options.connections_max)
    }
}

/// A server that runs in a task of its own.
pub struct Running {
    pub handle: ServerHandle,
    pub task: JoinHandle<()>,
}

/// A server that is about to run.
pub struct Server<H> {
    handler: Arc<H>,
    shared: Arc<Shared>,
}

impl<H: Handler> Server<H> {
    pub fn new(handler: Arc<H>, options: ServerOptions) -> Server<H> {
        let shared = Arc::new(Shared {
            metrics: Metrics::default(),
            drain_signal: Notify::new(),
            draining: AtomicBool::new(false),
            options,
            next_connection_id: AtomicI64::new(1),
        });
        Server { handler, shared }
    }

    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// [`Server::serve`] in a task of its own.
    pub fn spawn(self, listeners: Vec<TcpListener>) -> Running {
        Running {
            handle: self.handle(),
            task: tokio::spawn(self.serve(listeners)),
        }
    }

    /// Serves connections from all the listeners until a shutdown has completed.
    pub async fn serve(self, listeners: Vec<TcpListener>) {
        let mut acceptors = JoinSet::new();
        for listener in listeners {
            let acceptor = Acceptor {
                handler: Arc::clone(&self.handler),
                shared: Arc::clone(&self.shared),
            };
            acceptors.spawn(acceptor.run(listener));
        }
        while let Some(ended) = acceptors.join_next().await {
            report_panic(ended, "acceptor");
        }
    }
}

/// Serves one listener.
struct Acceptor<H> {
    handler: Arc<H>,
    shared: Arc<Shared>,
}

impl<H: Handler> Acceptor<H> {
    async fn run(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut drain = pin!(self.shared.drain_signal.notified());
        // Registered before the flag is looked at, so that no signal falls between the two.
        drain.as_mut().enable();
        while !self.shared.is_draining() {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(&mut connections, stream, peer),
                    // These concern one peer only, and the next one may be waiting.
                    Err(error) if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                    ) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(ended) = connections.join_next() => report_panic(ended, "connection"),
                () = &mut drain => {}
            }
        }
        drop(listener);
        self.drain(connections).await;
    }

    fn admit(&self, connections: &mut JoinSet<()>, stream: TcpStream, peer: SocketAddr) {
        let metrics = &self.shared.metrics;
        let current = metrics.connections_current.load(Ordering::Relaxed);
        if current >= self.shared.options.connections_max as u64 {
            metrics.connections_rejected.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, current, "connection refused: there are too many");
            return;
        }
        let local = match prepare(&stream) {
            Ok(local) => local,
            Err(error) => {
                tracing::debug!(%peer, %error, "connection lost before it was served");
                return;
            }
        };
        let id = self
            .shared
            .next_connection_id
            .fetch_add(1, Ordering::Relaxed);
        let origin = Origin::Network { peer, local };
        metrics.connections_created.fetch_add(1, Ordering::Relaxed);
        metrics.connections_current.fetch_add(1, Ordering::Relaxed);
        let served = Served {
            handler: Arc::clone(&self.handler),
            shared: Arc::clone(&self.shared),
            connection: Arc::new(ConnectionInfo::new(id, origin)),
        };
        connections.spawn(served.run(stream));
    }

    async fn drain(&self, mut connections: JoinSet<()>) {
        let mut deadline = pin!(tokio::time::sleep(self.shared.options.drain_timeout));
        loop {
            tokio::select! {
                ended = connections.join_next() => match ended {
                    Some(ended) => report_panic(ended, "connection"),
                    None => return,
                },
                () = &mut deadline => {
                    tracing::warn!(left = connections.len(), "commands outlast the shutdown");
                    connections.shutdown().await;
                    return;
                }
            }
        }
    }
}

/// A connection that counts as open until this is dropped, be it by return, abort or panic.
struct Served<H: Handler> {
    handler: Arc<H>,
    shared: Arc<Shared>,
    connection: Arc<ConnectionInfo>,
}

impl<H: Handler> Served<H> {
    async fn run(self, stream: TcpStream) {
        let session = Session::new(&*self.handler, &self.shared, &self.connection, stream);
        let end = session.run().await;
        let id = self.connection.id();
        match end {
            SessionEnd::Client | SessionEnd::Draining | SessionEnd::Io(_) => {
                tracing::debug!(connection = id, "connection ended: {end}");
            }
            SessionEnd::Protocol(_) => {
                let peer = self.connection.peer();
                tracing::info!(connection = id, ?peer, "connection ended: {end}");
            }
        }
    }
}

impl<H: Handler> Drop for Served<H> {
    fn drop(&mut self) {
        self.connection.mark_closed();
        self.connection.take_writing_half();
        self.handler.disconnected(&self.connection);
        self.shared
            .metrics
            .connections_current
            .fetch_sub(1, Ordering::Relaxed);
    }
}

fn prepare(stream: &TcpStream) -> io::Result<SocketAddr> {
    stream.set_nodelay(true)?;
    same_host::send_at_once(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    stream.local_addr()
}

/// A panic ends one task; the server goes on and says so.
fn report_panic(ended: Result<(), JoinError>, what: &str) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "{what} ended by a panic");
    }
}
