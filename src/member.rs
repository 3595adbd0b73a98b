//! One member of a replica set in this process: listener, shard, background work.
//!
//! ```text
//!   start: components (engine, log) ─► state (set, configuration) ─► serve ─► elected? primary services
//!   stop:  hand leadership over ─► hello says so, new work is refused ─► what runs finishes, or is
//!          interrupted ─► log and engine synced
//! ```

use anyhow::{Context, Result};
use shard::{
    Doorway, Membership, ReplicaSetOptions, Shard, ShardHandler, ShardOptions, WaitingRoom,
};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use wire::{Server, ServerHandle, ServerOptions};

/// How long running commands may take to finish after the signal to stop.
const FINISH: Duration = Duration::from_secs(5);
/// How long another member may take to become the primary before this one stops.
const HAND_OVER: Duration = Duration::from_secs(2);

/// A member that serves.
pub struct Member {
    shard: Arc<Shard>,
    handle: ServerHandle,
    serving: JoinHandle<()>,
    background: JoinHandle<()>,
}

/// A listener whose server does not know yet which member it is.
pub struct Newcomer {
    room: Arc<WaitingRoom>,
    doorway: Arc<Doorway<ShardHandler>>,
    handle: ServerHandle,
    serving: JoinHandle<()>,
}

impl Member {
    /// Opens the data and serves.
    pub async fn start(
        listener: TcpListener,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        let server = Server::new(
            Arc::new(ShardHandler(shard.clone())),
            ServerOptions::default(),
        );
        let handle = server.handle();
        shard.attach_server(handle.clone());
        Ok(Member {
            background: shard.spawn_background(),
            serving: tokio::spawn(server.serve(vec![listener])),
            shard,
            handle,
        })
    }

    /// Completes with the reason when the member cannot go on, or was asked to end.
    pub async fn ended(&mut self) -> Result<&'static str> {
        tokio::select! {
            () = self.shard.shutdown_requested() => Ok("a client asked for it"),
            // Nothing can be written any more: better to end than to look alive.
            reason = self.shard.log_stopped() => anyhow::bail!(
                "the log stopped ({reason}); what was acknowledged is on disk. Is the disk full? \
                 Make room and start again"
            ),
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
            mut serving,
            background,
        } = self;
        let limit = if hand_over { HAND_OVER } else { Duration::ZERO };
        shard.begin_quiesce(limit).await;
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

impl Newcomer {
    /// Listens, and waits to be told.
    pub fn start(listener: TcpListener, set: &ReplicaSetOptions) -> Result<Newcomer> {
        let room = Arc::new(WaitingRoom::new(&set.name, &set.host)?);
        let doorway = Arc::new(Doorway::new(room.clone()));
        let server = Server::new(doorway.clone(), ServerOptions::default());
        Ok(Newcomer {
            room,
            doorway,
            handle: server.handle(),
            serving: tokio::spawn(server.serve(vec![listener])),
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

    /// Opens the data and serves, on the same listener.
    pub async fn enter(
        self,
        options: &ShardOptions,
        set: &ReplicaSetOptions,
        membership: Membership,
    ) -> Result<Member> {
        let shard = open(options, set, membership).await?;
        shard.attach_server(self.handle.clone());
        let background = shard.spawn_background();
        self.doorway.open(ShardHandler(shard.clone()));
        self.room.settle();
        Ok(Member {
            shard,
            handle: self.handle,
            serving: self.serving,
            background,
        })
    }

    /// Ends without ever having been a member.
    pub async fn stop(self) -> Result<()> {
        self.handle.shutdown();
        self.serving
            .await
            .context("the server did not end in order")
    }
}

async fn open(
    options: &ShardOptions,
    set: &ReplicaSetOptions,
    membership: Membership,
) -> Result<Arc<Shard>> {
    let shard = tokio::task::block_in_place(|| Shard::open_member(options, membership))
        .with_context(|| format!("cannot open the data in {}", options.data.display()))?;
    shard
        .join_replica_set(set)
        .await
        .context("cannot join the replica set")?;
    Ok(shard)
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

/// Where clients on this machine find the server.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new([127, 0, 0, 1].into(), address.port()),
        false => address,
    }
}
