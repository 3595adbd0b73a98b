//! A handler in this process as an endpoint.
//!
//! Calls share one connection without a socket: handlers keep nothing on it that calls could
//! take from each other. Those that only read have one each, of the same name: when their caller gives up
//! it is closed, as a socket would be, and whoever answers may stop. So it is when the operation that asks is
//! to end.
//!
//! ⚑ What has begun is finished, as behind a socket, where a caller that gives up (a time limit, the
//! loser of a `select`) does not reach the handler: an index build that is dropped in its middle would be
//! neither there nor gone. Commands run within their callers, which costs no switch of tasks; one whose
//! caller goes away becomes a task of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use super::abandoned::{closing, opens_cursor};
use super::{BoxFuture, CallError, Endpoint};
use crate::connection::ConnectionInfo;
use crate::operation::{current, only_reads};
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
        let handler = self.handler.clone();
        let connection = match only_reads(request.name()) {
            true => Arc::new(self.connection.for_call(current())),
            false => self.connection.clone(),
        };
        let own = only_reads(request.name()).then(|| connection.clone());
        let opens_cursor = opens_cursor(request.name());
        Box::pin(Finished {
            command: Some(Box::pin(async move {
                handler.handle(&connection, request).await
            })),
            has_begun: false,
            own,
            opens_cursor,
            handler: self.handler.clone(),
        })
    }
}

/// A command that goes on by itself when nobody waits for it any more.
struct Finished<H: Handler> {
    /// `None`: it has ended.
    command: Option<BoxFuture<'static, Reply>>,
    /// One that has not is like a request that was not sent.
    has_begun: bool,
    /// The connection that nobody else uses.
    own: Option<Arc<ConnectionInfo>>,
    opens_cursor: bool,
    handler: Arc<H>,
}

impl<H: Handler> Future for Finished<H> {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.has_begun = true;
        let Some(command) = &mut self.command else {
            let ended = CallError::OutcomeUnknown("the call has ended before".to_owned());
            return Poll::Ready(Err(ended));
        };
        let reply = command.as_mut().poll(context);
        if reply.is_ready() {
            self.command = None;
        }
        reply.map(Ok)
    }
}

impl<H: Handler> Drop for Finished<H> {
    fn drop(&mut self) {
        // One that panicked has nothing left to do.
        if !self.has_begun || std::thread::panicking() {
            return;
        }
        if let (Some(own), Some(_)) = (&self.own, &self.command) {
            own.mark_closed();
        }
        let runtime = tokio::runtime::Handle::try_current();
        let (Some(command), Ok(runtime)) = (self.command.take(), runtime) else {
            return;
        };
        match self.own.take().filter(|_| self.opens_cursor) {
            None => {
                runtime.spawn(command);
            }
            Some(own) => {
                let handler = self.handler.clone();
                runtime.spawn(async move {
                    if let Some(closing) = closing(command.await.document()) {
                        handler.handle(&own, closing).await;
                    }
                });
            }
        }
    }
}

impl<H: Handler> Drop for InProcess<H> {
    fn drop(&mut self) {
        self.connection.mark_closed();
        self.handler.disconnected(&self.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;
    use model::bson::DocWriter;
    use std::time::Duration;
    use tokio::sync::Notify;

    /// A handler that waits in its middle.
    #[derive(Default)]
    struct Slow {
        may_go_on: Notify,
        ended: Arc<Notify>,
        begun: AtomicI64,
    }

    impl Handler for Slow {
        async fn handle(&self, _: &Arc<ConnectionInfo>, _: Request) -> Reply {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.may_go_on.notified().await;
            self.ended.notify_one();
            Reply::ok()
        }
    }

    fn request() -> Request {
        let body = DocWriter::new().with("ping", 1).with("$db", "admin");
        Request::from_parts(body.finish(), Vec::new()).expect("a request")
    }

    #[tokio::test]
    async fn a_command_whose_caller_gives_up_is_finished() {
        let slow = Arc::new(Slow::default());
        let endpoint = InProcess::new(slow.clone());
        let given_up = tokio::time::timeout(Duration::ZERO, endpoint.call(request()));
        assert!(given_up.await.is_err());
        let ended = slow.ended.clone();
        slow.may_go_on.notify_one();
        let limit = Duration::from_secs(60);
        let finished = tokio::time::timeout(limit, ended.notified()).await;
        assert!(finished.is_ok(), "it was dropped in its middle");
    }

    #[tokio::test]
    async fn a_command_that_was_not_begun_is_not_sent() {
        let slow = Arc::new(Slow::default());
        let endpoint = InProcess::new(slow.clone());
        drop(endpoint.call(request()));
        // Whatever was spawned would run now.
        tokio::task::yield_now().await;
        assert_eq!(slow.begun.load(Ordering::Relaxed), 0);
    }
}
