//! The router: what clients talk to.
//!
//! In its simplest form it stands in front of one shard in the same process and
//! hands every command to it unchanged. Routing over several shards begins here:
//! everything a client sends passes [`Router::handle`].

use shard::{Shard, ShardHandler};
use std::sync::Arc;
use wire::{ConnectionInfo, Handler, Reply, Request};

pub struct Router {
    shard: ShardHandler,
}

impl Router {
    pub fn new(shard: Arc<Shard>) -> Self {
        Self {
            shard: ShardHandler(shard),
        }
    }
}

impl Handler for Router {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        self.shard.handle(connection, request).await
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.shard.disconnected(connection);
    }
}
