//! A set of two members: one leads, and the other can be made deaf.

use super::world::PATIENCE;
use crate::replica_set::transport::REPLICATE;
use crate::testing::{TestShard, options};
use crate::{LogWindow, Membership, ReplicaSetOptions, Shard, ShardHandler};
use model::bson::{DocBuf, DocWriter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use wire::{ConnectionInfo, Handler, Reply, Request, Running, Server, ServerHandle, ServerOptions};

/// What the other member says is lost once this one is deaf. Both are needed for a majority.
struct Ear {
    shard: ShardHandler,
    is_deaf: Arc<AtomicBool>,
}

impl Handler for Ear {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        match request.name() {
            REPLICATE if self.is_deaf.load(Ordering::SeqCst) => Reply::ok(),
            _ => self.shard.handle(connection, request).await,
        }
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.shard.disconnected(connection);
    }
}

/// On a machine that is busy with other tests, nobody is to take a slow member for one that is gone.
fn configuration(founders: &[(i32, String)]) -> DocBuf {
    let mut writer = DocWriter::new().with("_id", "terndb").with("version", 1);
    writer.begin_array("members");
    for (id, host) in founders {
        writer.push_document();
        writer.append("_id", *id).append("host", host.as_str());
        writer.end();
    }
    writer
        .end()
        .begin_document("settings")
        .append("electionTimeoutMillis", 2000)
        .end();
    writer.finish()
}

/// What is left of a pair when its primary was given away.
pub(super) struct Pair {
    pub(super) secondary: TestShard,
    pub(super) is_deaf: Arc<AtomicBool>,
    servers: Vec<ServerHandle>,
    tasks: Vec<JoinHandle<()>>,
}

impl Pair {
    /// The primary with its background, and the rest.
    pub(super) async fn open() -> (Pair, (TestShard, JoinHandle<()>)) {
        let mut listeners = Vec::new();
        let mut founders = Vec::new();
        for id in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let host = listener.local_addr().expect("an address").to_string();
            founders.push((id, host));
            listeners.push(listener);
        }
        let configuration = configuration(&founders);
        let (mut members, mut servers, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        let is_deaf = Arc::<AtomicBool>::default();
        for ((id, host), listener) in founders.clone().into_iter().zip(listeners) {
            let directory = TempDir::new().expect("a temporary directory");
            let membership = Membership::Founder {
                member: id,
                founders: founders.clone(),
                configuration: Some(configuration.clone()),
            };
            let options = options(directory.path(), LogWindow::default(), &[]);
            let shard = tokio::task::block_in_place(|| Shard::open_member(&options, membership));
            let shard = shard.expect("an empty directory opens");
            let ear = Ear {
                shard: ShardHandler(shard.clone()),
                is_deaf: match id {
                    0 => Arc::default(),
                    _ => is_deaf.clone(),
                },
            };
            let server = Server::new(Arc::new(ear), ServerOptions::default());
            let Running { handle, task } = server.spawn(vec![listener]);
            servers.push(handle);
            tasks.push(task);
            let set = ReplicaSetOptions {
                detours: Default::default(),
                name: "terndb".to_owned(),
                host,
            };
            shard.join_replica_set(&set).await.expect("it joins");
            let background = shard.spawn_background();
            members.push((TestShard::of(shard, directory), background));
        }
        let (secondary, background) = members.pop().expect("there are two");
        tasks.push(background);
        secondary.shard.log.rest(Duration::from_secs(600));
        let (primary, background) = members.pop().expect("there is one more");
        primary.shard.log.campaign();
        let mut topology = primary.shard.replica_set.watch();
        let leads = topology.wait_for(|topology| topology.role.is_leader());
        let leads = tokio::time::timeout(PATIENCE, leads).await;
        assert!(leads.is_ok_and(|leads| leads.is_ok()), "nobody leads");
        let pair = Pair {
            secondary,
            is_deaf,
            servers,
            tasks,
        };
        (pair, (primary, background))
    }

    /// Waits until the secondary has all that the primary has applied.
    pub(super) async fn follows(&self, primary: &TestShard) {
        let position = primary.shard.log.last_applied();
        let mut progress = self.secondary.shard.log.watch();
        let follows = progress.wait_for(|progress| progress.applied >= position);
        let follows = tokio::time::timeout(PATIENCE, follows).await;
        assert!(follows.is_ok_and(|follows| follows.is_ok()), "it is behind");
    }

    /// After the primary.
    pub(super) async fn close(self) {
        self.secondary.shard.begin_shutdown();
        for server in self.servers {
            server.shutdown();
        }
        for task in self.tasks {
            task.await.expect("it ends");
        }
    }
}
