//! A shard as others ask it: through a listener, in their own process, or behind another handler.
//!
//! The body of an async function is compiled where it is run. A program that ran a [`ShardHandler`]
//! by itself would compile every command of the shard again, and so would each of its tests. These
//! functions run it here, so that it is compiled once.

use crate::{Doorway, Shard, ShardHandler};
use std::sync::Arc;
use tokio::net::TcpListener;
use wire::{BoxedHandler, Endpoint, InProcess, Running, Server, ServerOptions};

impl Shard {
    /// Answers whoever connects, in a task of its own.
    pub fn serve(self: &Arc<Self>, listener: TcpListener) -> Running {
        let handler = Arc::new(ShardHandler(self.clone()));
        Server::new(handler, ServerOptions::default()).spawn(vec![listener])
    }

    /// The shard for those who share its process.
    pub fn endpoint(self: &Arc<Self>) -> Arc<dyn Endpoint> {
        Arc::new(InProcess::new(Arc::new(ShardHandler(self.clone()))))
    }

    /// The shard behind another handler.
    pub fn boxed_handler(self: &Arc<Self>) -> BoxedHandler {
        BoxedHandler::new(ShardHandler(self.clone()))
    }
}

impl Doorway<ShardHandler> {
    /// Answers whoever connects, before and after there is a shard.
    pub fn serve(self: Arc<Self>, listener: TcpListener) -> Running {
        Server::new(self, ServerOptions::default()).spawn(vec![listener])
    }
}
