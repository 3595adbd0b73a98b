//! One server elsewhere, through a bounded pool of connections.
//!
//! ```text
//!   permit ─► idle connection that still lives, or a new one ─► write ─► read one reply ─► idle again
//!     │              │                                            │           │
//!     └── deadline ──┴──── cannot connect ────────────── NotSent ─┘           └─ OutcomeUnknown
//! ```
//!
//! A connection carries one request at a time. A request that could not be written whole was not
//! carried out, because a server acts on whole messages only; once it is written, only a reply says
//! what became of it. A connection whose call failed or was dropped is closed, never reused. One whose reply may
//! name a cursor is closed on this side only, so that the server knows that nobody waits; if the reply was on its way by
//! then, its cursor is closed ([`Unread`]).
//!
//! There is no deadline for the reply: commands have time limits of their own, and keep-alive
//! notices a peer that is gone. Who cannot wait drops the call.
//!
//! Left out: compression, TLS, more than one request on a connection.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::bson::{validate, validate_around_batch};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::abandoned::{closing, opens_cursor};
use super::{BoxFuture, CallError, Endpoint, PoolStatistics};
use crate::protocol::{HEADER_SIZE, Header, MESSAGE_BYTES_MAX, OP_MSG, REPLY_DOCUMENT_BYTES_MAX};
use crate::reply::{PREFIX_BYTES, Reply};
use crate::request::Request;
use crate::same_host;
use crate::spare;

#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Calls beyond this many wait for one to end.
    pub connections_max: usize,
    /// How long a call may wait for its turn and for a connection.
    pub connect_timeout: Duration,
    /// Connections that were not used for so long are closed.
    pub idle_max: Duration,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            connections_max: 256,
            connect_timeout: Duration::from_secs(5),
            idle_max: Duration::from_secs(300),
        }
    }
}

/// The first read of a reply.
const READ_BYTES_MIN: usize = 4096;
/// What one read takes at most before more of the reply has arrived.
const READ_BYTES_STEP: usize = 64 * 1024;
/// Parts up to this size are written in one piece with the others.
const JOINED_BYTES_MAX: usize = 64 * 1024;
/// How long sent bytes may stay unconfirmed by the peer's system before a connection has ended.
#[cfg(target_os = "linux")]
const UNCONFIRMED_MAX: Duration = Duration::from_secs(30);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How long the reply to a dropped call is waited for.
const ABANDONED_LIMIT: Duration = Duration::from_secs(10);
/// Of more dropped calls at a time the connections are closed at once: their cursors end by themselves.
const ABANDONED_MAX: usize = 64;

/// One server, by `host:port`.
pub struct Host(Arc<Pool>);

struct Pool {
    address: String,
    options: HostOptions,
    room: Semaphore,
    /// The most recently used at the back.
    idle: Mutex<VecDeque<Idle>>,
    next_request_id: AtomicI32,
    created: AtomicU64,
    /// How many dropped calls may be waited for.
    abandoned: Arc<Semaphore>,
}

struct Idle {
    stream: TcpStream,
    since: Instant,
}

impl Host {
    pub fn new(address: &str, options: HostOptions) -> Host {
        Host(Arc::new(Pool {
            address: address.to_owned(),
            room: Semaphore::new(options.connections_max),
            options,
            idle: Mutex::default(),
            next_request_id: AtomicI32::new(1),
            created: AtomicU64::new(0),
            abandoned: Arc::new(Semaphore::new(ABANDONED_MAX)),
        }))
    }

    pub fn address(&self) -> &str {
        &self.0.address
    }
}

impl Pool {
    async fn exchange(self: &Arc<Self>, request: Request) -> Result<Reply, CallError> {
        let request_id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        let message = Message::new(&request, request_id)
            .ok_or_else(|| self.not_sent("the request is longer than a message may be"))?;
        let (_permit, mut stream) = match self.at_hand() {
            Some(found) => found,
            None => self.begin().await?,
        };
        message
            .write_to(&mut stream)
            .await
            .map_err(|error| self.not_sent(error))?;
        let mut unread = Unread {
            pool: opens_cursor(request.name()).then_some(self),
            reply: Some(Incoming {
                stream,
                request_id,
                buffer: Vec::with_capacity(READ_BYTES_MIN),
            }),
        };
        let read = match &mut unread.reply {
            Some(reply) => reply.read(request.passes_batch()).await,
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let incoming = unread.reply.take();
        let reply = read.map_err(|error| {
            CallError::OutcomeUnknown(format!(
                "the connection to {} ended before the reply: {error}",
                self.address
            ))
        })?;
        if let Some(Incoming { stream, .. }) = incoming {
            self.keep(stream);
        }
        Ok(reply)
    }

    /// A place in the pool and a connection, if nobody has to wait for them.
    fn at_hand(&self) -> Option<(SemaphorePermit<'_>, TcpStream)> {
        let permit = self.room.try_acquire().ok()?;
        Some((permit, self.take_idle()?))
    }

    async fn begin(&self) -> Result<(SemaphorePermit<'_>, TcpStream), CallError> {
        let beginning = async {
            let permit = self.room.acquire().await;
            let permit = permit.map_err(|_| self.not_sent("the pool is closed"))?;
            let stream = match self.take_idle() {
                Some(stream) => stream,
                None => (self.connect().await).map_err(|error| self.not_sent(error))?,
            };
            Ok((permit, stream))
        };
        tokio::time::timeout(self.options.connect_timeout, beginning)
            .await
            .map_err(|_| self.not_sent("no connection in time"))?
    }

    /// Closes the cursor of a reply that may still come.
    async fn abandon(self: Arc<Self>, mut incoming: Incoming) {
        // By this the server knows; what it has answered can still be read.
        if incoming.stream.shutdown().await.is_err() {
            return;
        }
        if let Ok(reply) = incoming.read(true).await
            && let Some(closing) = closing(reply.document())
            && let Err(error) = self.exchange(closing).await
        {
            tracing::debug!(%error, "a cursor is left to end by itself");
        }
    }

    fn not_sent(&self, error: impl std::fmt::Display) -> CallError {
        CallError::NotSent(format!("cannot reach {}: {error}", self.address))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        same_host::send_at_once(&stream);
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        // Keep-alive is silent while something is on its way: a request that nobody confirms.
        #[cfg(target_os = "linux")]
        SockRef::from(&stream).set_tcp_user_timeout(Some(UNCONFIRMED_MAX))?;
        self.created.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    /// The most recently used connection that still lives.
    fn take_idle(&self) -> Option<TcpStream> {
        let mut idle = self.idle.lock();
        while let Some(Idle { stream, since }) = idle.pop_back() {
            if since.elapsed() > self.options.idle_max {
                idle.clear();
                return None;
            }
            // Between calls a server sends nothing: whatever can be read is the end.
            match stream.try_read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(stream),
                Ok(_) | Err(_) => {}
            }
        }
        None
    }

    fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.lock();
        let too_old = |idle: &Idle| idle.since.elapsed() > self.options.idle_max;
        if idle.front().is_some_and(too_old) {
            idle.pop_front();
        }
        idle.push_back(Idle {
            stream,
            since: Instant::now(),
        });
    }
}

/// A request that was sent, until its reply is read. If it is dropped before that, its cursor is closed.
struct Unread<'a> {
    /// `None`: it has no cursor.
    pool: Option<&'a Arc<Pool>>,
    reply: Option<Incoming>,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        let (Some(pool), Some(reply), Ok(runtime)) = (self.pool, self.reply.take(), runtime) else {
            return;
        };
        if let Ok(permit) = pool.abandoned.clone().try_acquire_owned() {
            let abandoned = pool.clone().abandon(reply);
            runtime.spawn(async move {
                let _one_of_few = permit;
                let _ended = tokio::time::timeout(ABANDONED_LIMIT, abandoned).await;
            });
        }
    }
}

impl Endpoint for Host {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(self.0.exchange(request))
    }

    fn works_elsewhere(&self) -> bool {
        true
    }

    fn pools(&self) -> Vec<PoolStatistics> {
        let pool = &self.0;
        let free = pool.room.available_permits();
        vec![PoolStatistics {
            host: pool.address.clone(),
            in_use: pool.options.connections_max.saturating_sub(free) as u64,
            available: pool.idle.lock().len() as u64,
            created: pool.created.load(Ordering::Relaxed),
        }]
    }
}

/// A request as OP_MSG: what is short joined into one piece, long documents where they lie.
struct Message<'a> {
    request: &'a Request,
    header: Header,
}

impl<'a> Message<'a> {
    /// `None` if it would be too long.
    fn new(request: &'a Request, request_id: i32) -> Option<Message<'a>> {
        let mut length = PREFIX_BYTES + request.body_bytes().len();
        for sequence in request.sequences() {
            length += 1 + sequence_bytes(sequence);
        }
        (length <= MESSAGE_BYTES_MAX).then_some(Message {
            request,
            header: Header {
                length: length as i32,
                request_id,
                response_to: 0,
                opcode: OP_MSG,
            },
        })
    }

    async fn write_to(&self, stream: &mut TcpStream) -> io::Result<()> {
        let room = (self.header.length as usize).min(2 * JOINED_BYTES_MAX);
        let mut joined = Vec::with_capacity(room);
        joined.extend_from_slice(&self.header.encode());
        // No flags, and the body's kind.
        joined.extend_from_slice(&[0; PREFIX_BYTES - HEADER_SIZE]);
        write_part(stream, &mut joined, self.request.body_bytes()).await?;
        for sequence in self.request.sequences() {
            joined.push(1);
            joined.extend_from_slice(&(sequence_bytes(sequence) as i32).to_le_bytes());
            joined.extend_from_slice(sequence.name().as_bytes());
            joined.push(0);
            write_part(stream, &mut joined, sequence.bytes()).await?;
        }
        stream.write_all(&joined).await
    }
}

/// What a section of kind 1 says of its size.
fn sequence_bytes(sequence: &crate::request::Sequence) -> usize {
    4 + sequence.name().len() + 1 + sequence.bytes().len()
}

async fn write_part(stream: &mut TcpStream, joined: &mut Vec<u8>, part: &[u8]) -> io::Result<()> {
    if joined.len() + part.len() <= JOINED_BYTES_MAX {
        joined.extend_from_slice(part);
        return Ok(());
    }
    stream.write_all(joined).await?;
    joined.clear();
    stream.write_all(part).await
}

/// A reply as far as it has come.
struct Incoming {
    stream: TcpStream,
    request_id: i32,
    buffer: Vec<u8>,
}

impl Incoming {
    /// Reads one message straight into the buffer of a reply; memory follows what arrives.
    async fn read(&mut self, passes_batch: bool) -> io::Result<Reply> {
        let length = loop {
            let known = match self.buffer.first_chunk::<HEADER_SIZE>() {
                Some(header) => Some(reply_length(&Header::parse(header), self.request_id)?),
                None => None,
            };
            match known {
                Some(length) if self.buffer.len() >= length => break length,
                Some(length) => self.make_room(length),
                None => {}
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let flags_and_kind = &self.buffer[HEADER_SIZE..PREFIX_BYTES];
        if length != self.buffer.len() || flags_and_kind != [0; PREFIX_BYTES - HEADER_SIZE] {
            return Err(io::Error::other("the reply is not one plain OP_MSG"));
        }
        let check = match passes_batch {
            true => validate_around_batch,
            false => validate,
        };
        check(&self.buffer[PREFIX_BYTES..], REPLY_DOCUMENT_BYTES_MAX).map_err(io::Error::other)?;
        Ok(Reply::from_message(std::mem::take(&mut self.buffer)))
    }

    /// For the next read of a reply of this length.
    fn make_room(&mut self, length: usize) {
        let is_first = self.buffer.capacity() <= READ_BYTES_MIN;
        if is_first
            && length > READ_BYTES_STEP
            && let Some(mut kept) = spare::kept(length + 1)
        {
            kept.extend_from_slice(&self.buffer);
            self.buffer = kept;
        }
        // One byte more than is missing, so that the last read is a short one.
        let missing = length - self.buffer.len() + 1;
        (self.buffer).reserve(missing.min((self.buffer.len() * 3).max(READ_BYTES_STEP)));
    }
}

fn reply_length(header: &Header, request_id: i32) -> io::Result<usize> {
    if header.opcode != OP_MSG || header.response_to != request_id {
        return Err(io::Error::other("this is not the reply to the request"));
    }
    match usize::try_from(header.length) {
        // The shortest document has five bytes.
        Ok(length) if (PREFIX_BYTES + 5..=MESSAGE_BYTES_MAX).contains(&length) => Ok(length),
        Ok(_) | Err(_) => Err(io::Error::other("the reply's length is out of bounds")),
    }
}
