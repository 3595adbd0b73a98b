//! The life of one connection: read a message, handle it, write the reply, again.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────┐
//!        ▼                                                      │
//!   waiting ──► message ──► handler runs ──► reply written ─────┤
//!      │           │            │  ▲              │             │
//!      │           │            │  └─ next of a stream          │
//!      │           │            └ no reply wanted ──────────────┤
//!      │           ├ Fault::Answer: error written ──────────────┘
//!      ▼           ▼
//!    closed: peer gone, server draining, or Fault::Close
//! ```
//!
//! While the handler runs, the socket's readiness is watched so that a peer that hangs up is
//! noticed; see [`ConnectionInfo::closed`]. A handler is never cancelled in the middle: it learns
//! that the peer is gone and decides itself. Draining lets it finish and send its reply.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::connection::ConnectionInfo;
use crate::envelope::Envelope;
use crate::frame::{self, CloseReason, Fault, Incoming};
use crate::metrics::{Cell, Metrics};
use crate::receiver::Receiver;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::{Handler, Shared};
use crate::spare;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    #[error("closed by the client")]
    Client,
    #[error("the server shuts down")]
    Draining,
    #[error("protocol violation: {0}")]
    Protocol(#[from] CloseReason),
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
}

/// What a request of HTTP gets.
const HTTP_ANSWER: &str = "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
    This is TernDB. It speaks MongoDB's wire protocol, not HTTP: connect with mongosh or a driver.\r\n";

pub(crate) struct Session<'a, H> {
    handler: &'a H,
    shared: &'a Shared,
    connection: &'a Arc<ConnectionInfo>,
    receiver: Receiver,
    next_reply_id: i32,
}

impl<'a, H: Handler> Session<'a, H> {
    pub fn new(
        handler: &'a H,
        shared: &'a Shared,
        connection: &'a Arc<ConnectionInfo>,
        stream: TcpStream,
    ) -> Self {
        let (reading, writing) = stream.into_split();
        connection.keep_writing_half(writing);
        let receiver = Receiver::new(reading);
        Session {
            handler,
            shared,
            connection,
            receiver,
            next_reply_id: 1,
        }
    }

    /// Runs until the connection ends.
    pub async fn run(mut self) -> SessionEnd {
        // The signal is polled once, here: that leaves this task's waker with it, and a task has
        // one waker for life. Afterwards a look at the flag is enough, at no cost per request.
        let mut drain_signal = pin!(self.shared.drain_signal.notified());
        poll_fn(|context| {
            let _ = drain_signal.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        loop {
            let message = match self.next_message().await {
                Ok(message) => message,
                Err(end @ SessionEnd::Protocol(CloseReason::Http)) => {
                    self.answer_browser().await;
                    return end;
                }
                Err(end) => return end,
            };
            if let Err(end) = self.answer(message).await {
                return end;
            }
        }
    }

    async fn next_message(&mut self) -> Result<Bytes, SessionEnd> {
        loop {
            if let Some(message) = self.receiver.take_message()? {
                return Ok(message);
            }
            let received = poll_fn(|context| {
                // A message that has begun to arrive was sent before the client could know.
                if self.shared.is_draining() && self.receiver.is_idle() {
                    return Poll::Ready(Err(SessionEnd::Draining));
                }
                self.receiver.poll_receive(context).map_err(SessionEnd::Io)
            })
            .await?;
            if received == 0 {
                return Err(SessionEnd::Client);
            }
        }
    }

    /// Somebody has typed the address into a browser: they are told what this is.
    async fn answer_browser(&mut self) {
        if let Some(mut writing) = self.connection.take_writing_half() {
            // The connection ends in any case.
            let _ = writing.write_all(HTTP_ANSWER.as_bytes()).await;
        }
    }

    async fn answer(&mut self, message: Bytes) -> Result<(), SessionEnd> {
        let physical_bytes = message.len();
        match frame::parse(message) {
            Ok(Incoming {
                envelope,
                request,
                logical_bytes,
            }) => {
                self.cell().received(logical_bytes, physical_bytes);
                if let Some(compressor) = envelope.compressor {
                    self.metrics()
                        .decompressed(compressor, physical_bytes, logical_bytes);
                }
                self.execute(envelope, request).await
            }
            Err(Fault::Answer { envelope, reply }) => {
                self.cell().received(physical_bytes, physical_bytes);
                if envelope.silent {
                    return Ok(());
                }
                self.send(&envelope, reply, envelope.request_id, false)
                    .await
                    .map(|_| ())
            }
            Err(Fault::Close(reason)) => Err(reason.into()),
        }
    }

    /// Runs a command and, where client and handler agreed on it, its successors.
    async fn execute(&mut self, envelope: Envelope, first: Request) -> Result<(), SessionEnd> {
        let mut reply = self.handle(first).await;
        if envelope.silent {
            return Ok(());
        }
        if !envelope.exhaust_allowed {
            return self
                .send(&envelope, reply, envelope.request_id, false)
                .await
                .map(|_| ());
        }
        let mut streaming = None;
        let mut response_to = envelope.request_id;
        loop {
            let next = reply.take_next().filter(|_| !self.shared.is_draining());
            response_to = self
                .send(&envelope, reply, response_to, next.is_some())
                .await?;
            let Some(next) = next else {
                return Ok(());
            };
            if self.receiver.ended() {
                return Err(SessionEnd::Client);
            }
            streaming.get_or_insert_with(|| Streaming::start(&self.shared.metrics));
            reply = self.handle(next.with_flags(true, false)).await;
        }
    }

    /// Calls the handler and meanwhile watches for the peer to hang up.
    async fn handle(&mut self, request: Request) -> Reply {
        let _running = self.shared.metrics.cell(self.connection.id()).running();
        let mut command = pin!(self.handler.handle(self.connection, request));
        let receiver = &mut self.receiver;
        let mut watching = true;
        poll_fn(|context| {
            // A command that completes at once never gets as far as watching.
            if let Poll::Ready(reply) = command.as_mut().poll(context) {
                return Poll::Ready(reply);
            }
            if watching && receiver.poll_ended(context).is_ready() {
                watching = false;
                self.connection.mark_closed();
                // The command may have been waiting for just that.
                return command.as_mut().poll(context);
            }
            Poll::Pending
        })
        .await
    }

    /// Writes a reply and returns its id.
    async fn send(
        &mut self,
        envelope: &Envelope,
        reply: Reply,
        response_to: i32,
        more_to_come: bool,
    ) -> Result<i32, SessionEnd> {
        let reply_id = self.next_reply_id;
        self.next_reply_id = reply_id.wrapping_add(1);
        let encoded = envelope.seal(reply, reply_id, response_to, more_to_come);
        let physical_bytes = encoded.bytes.len();
        self.cell().sent(encoded.logical_bytes, physical_bytes);
        if let Some(compressor) = envelope.compressor {
            self.metrics()
                .compressed(compressor, encoded.logical_bytes, physical_bytes);
        }
        let mut writing = (self.connection.take_writing_half()).ok_or(SessionEnd::Client)?;
        let written = writing.write_all(&encoded.bytes).await;
        self.connection.keep_writing_half(writing);
        spare::give(encoded.bytes);
        written?;
        Ok(reply_id)
    }

    fn metrics(&self) -> &'a Metrics {
        &self.shared.metrics
    }

    fn cell(&self) -> &'a Cell {
        self.shared.metrics.cell(self.connection.id())
    }
}

/// Counts a stream of replies for as long as it flows.
struct Streaming<'a>(&'a Metrics);

impl<'a> Streaming<'a> {
    fn start(metrics: &'a Metrics) -> Self {
        metrics.exhaust_streams.fetch_add(1, Relaxed);
        Streaming(metrics)
    }
}

impl Drop for Streaming<'_> {
    fn drop(&mut self) {
        self.0.exhaust_streams.fetch_sub(1, Relaxed);
    }
}
