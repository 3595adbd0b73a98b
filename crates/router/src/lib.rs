//! The router: what clients of a cluster talk to.
//!
//! It sees the shards and the config server as [`Endpoint`]s and knows nothing of how they store
//! anything. Everything a client sends passes [`Router::handle`].

use std::sync::Arc;

use model::error::{Code, Error};
use wire::{ConnectionInfo, Endpoint, Handler, Reply, Request};

/// How a shard is reached: by its id and the connection string of `config.shards`.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;

#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Where clients reach this router: its name in `config.mongos`.
    pub host: String,
}

pub struct Router {
    config: Arc<dyn Endpoint>,
    connect: Connect,
    options: RouterOptions,
}

impl Router {
    pub fn new(config: Arc<dyn Endpoint>, connect: Connect, options: RouterOptions) -> Arc<Router> {
        Arc::new(Router {
            config,
            connect,
            options,
        })
    }
}

impl Handler for Router {
    async fn handle(&self, _connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        let _ = (&self.config, &self.connect, &self.options);
        let message = format!("no such command: '{}'", request.name());
        Reply::error(&Error::new(Code::COMMAND_NOT_FOUND, message))
    }
}
