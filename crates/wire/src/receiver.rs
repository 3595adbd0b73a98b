//! The reading half of a connection: bytes from a socket become whole messages.
//!
//! Costs are shaped by two facts. Most connections idle most of the time, so a connection owns no
//! buffer while nothing has arrived: it waits for readiness first and allocates then. And a short
//! read tells the runtime that the socket is drained, so the buffer is always a little larger than
//! what is expected: one read per request, and no second one that only finds nothing.
//!
//! A length field buys no memory: the buffer grows with what has arrived.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use crate::frame::{CloseReason, message_length};

/// The first read of a connection, and the least of any read.
const READ_BYTES_MIN: usize = 1024;
/// The most that a read takes on the strength of earlier messages alone.
const READ_BYTES_MAX: usize = 64 * 1024;
/// What may wait in the buffer while a command runs; more stays in the socket.
const PIPELINED_BYTES_MAX: usize = 64 * 1024;
/// A message in flight may grow its buffer to this multiple of what has arrived of it.
const GROWTH: usize = 4;

pub(crate) struct Receiver {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// How much to read when the next message begins; follows the sizes of earlier ones.
    expected_bytes: usize,
    /// The peer sends nothing more.
    ended: bool,
}

impl Receiver {
    pub fn new(stream: OwnedReadHalf) -> Receiver {
        Receiver {
            stream,
            buffer: BytesMut::new(),
            expected_bytes: READ_BYTES_MIN,
            ended: false,
        }
    }

    /// Whether the peer sends nothing more than what is buffered.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether no byte of a next message has arrived.
    pub fn is_idle(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Takes the next message from the buffer, if all of it is there.
    pub fn take_message(&mut self) -> Result<Option<Bytes>, CloseReason> {
        let Some(length) = message_length(&self.buffer)? else {
            return Ok(None);
        };
        if self.buffer.len() < length {
            return Ok(None);
        }
        self.expected_bytes = (length + 1)
            .next_power_of_two()
            .clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let message = if self.buffer.len() == length {
            // Nothing else is in the buffer: the request takes it, and the connection has none.
            std::mem::take(&mut self.buffer)
        } else {
            self.buffer.split_to(length)
        };
        Ok(Some(message.freeze()))
    }

    /// Receives some bytes; `Ok(0)` when there are no more to come.
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        ready!(self.stream.as_ref().poll_read_ready(context))?;
        self.make_room();
        let received = pin!(self.stream.read_buf(&mut self.buffer)).poll(context);
        match &received {
            // Readiness was stale: back to waiting without a buffer.
            Poll::Pending if self.buffer.is_empty() => self.buffer = BytesMut::new(),
            Poll::Pending => {}
            Poll::Ready(Ok(0) | Err(_)) => self.ended = true,
            Poll::Ready(Ok(_)) => {}
        }
        received
    }

    /// Watches for the end of the connection while a command runs, buffering a bounded amount of
    /// what a pipelining client sends meanwhile. Ready once: when the peer is gone.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.ended {
            if self.buffer.len() >= PIPELINED_BYTES_MAX {
                return Poll::Pending;
            }
            // Errors end the connection as well; the reader will not get further either.
            let _ = ready!(self.poll_receive(context));
        }
        Poll::Ready(())
    }

    fn make_room(&mut self) {
        let held = self.buffer.len();
        let wanted = match message_length(&self.buffer) {
            // One byte more than is missing, so that the last read is a short one.
            Ok(Some(length)) if length >= held => {
                (length - held + 1).min((held * (GROWTH - 1)).max(READ_BYTES_MAX))
            }
            Ok(_) | Err(_) => self.expected_bytes,
        };
        if self.buffer.capacity() - held < wanted {
            self.buffer.reserve(wanted);
        }
    }
}
