//! A handler in this process as an endpoint.
//!
//! All calls share one connection without a socket: handlers keep nothing on it that calls could
//! take from each other, and no peer can hang up.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::{BoxFuture, CallError, Endpoint};
use crate::connection::ConnectionInfo;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Handler;

/// Ids of connections within the process: negative, so that none is a client's.
static NEXT_ID: AtomicI64 = AtomicI64::new(-1);

pub struct InProcess<H: Handler> {
    handler: Arc<H>,
    connection: Arc<ConnectionInfo>,
}

impl<H: Handler> InProcess<H> {
    pub fn new(handler: Arc<H>) -> InProcess<H> {
        let id = NEXT_ID.fetch_sub(1, Ordering::Relaxed);
        InProcess {
            handler,
            connection: Arc::new(ConnectionInfo::in_process(id)),
        }
    }
}

impl<H: Handler> Endpoint for InProcess<H> {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(async move { Ok(self.handler.handle(&self.connection, request).await) })
    }
}

impl<H: Handler> Drop for InProcess<H> {
    fn drop(&mut self) {
        self.connection.mark_closed();
        self.handler.disconnected(&self.connection);
    }
}
