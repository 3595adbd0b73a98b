//! What a handler knows of the connection that a request came through.
//!
//! One `ConnectionInfo` lives as long as its connection and is shared by reference: the handshake
//! leaves there what it learned, the handler keeps its own state there, and running operations
//! learn from it that nobody waits for them any more.
//!
//! *Closed* means that the peer is gone (or has shut down its sending side, which the protocol
//! does not distinguish). It is noticed while a command waits, without polling: the socket's
//! readiness wakes the connection's task. A command that computes for long keeps that task busy;
//! it should look for itself now and then, with [`ConnectionInfo::look_for_hangup`]. For that the
//! writing half of the socket lies here whenever no reply is being written.
//! Commands that only read should stop with
//! ClientDisconnect; writes should not, because a client may well send a write that wants no reply
//! and hang up.

use std::any::Any;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use model::bson::DocBuf;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

use crate::compression::Compressor;
use crate::operation::Operation;

/// Where requests come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Network {
        peer: SocketAddr,
        local: SocketAddr,
    },
    /// Another role in the same process.
    InProcess,
}

/// One connection, for as long as it lives.
pub struct ConnectionInfo {
    id: i64,
    origin: Origin,
    client_metadata: OnceLock<DocBuf>,
    compressors: Mutex<Vec<Compressor>>,
    handler_state: OnceLock<Box<dyn Any + Send + Sync>>,
    writing_half: Mutex<Option<OwnedWriteHalf>>,
    closed: AtomicBool,
    closed_signal: Notify,
    /// Within a process: for whom the other role asks.
    caller: Option<Arc<Operation>>,
}

impl ConnectionInfo {
    pub(crate) fn new(id: i64, origin: Origin) -> ConnectionInfo {
        ConnectionInfo {
            id,
            origin,
            client_metadata: OnceLock::new(),
            compressors: Mutex::new(Vec::new()),
            handler_state: OnceLock::new(),
            writing_half: Mutex::new(None),
            closed: AtomicBool::new(false),
            closed_signal: Notify::new(),
            caller: None,
        }
    }

    /// A connection without a socket, for calling a handler in the same process.
    pub fn in_process(id: i64) -> ConnectionInfo {
        ConnectionInfo::new(id, Origin::InProcess)
    }

    /// The same for one call: once its caller is to end, nobody waits for the answer. ⚑ A caller that computes
    /// within the same task cannot give up by dropping the call.
    pub(crate) fn for_call(&self, caller: Option<Arc<Operation>>) -> ConnectionInfo {
        ConnectionInfo {
            caller,
            ..ConnectionInfo::in_process(self.id)
        }
    }

    /// Unique within the server's lifetime; what `hello` calls `connectionId`.
    pub fn id(&self) -> i64 {
        self.id
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The client's address, if it has one.
    pub fn peer(&self) -> Option<SocketAddr> {
        match self.origin {
            Origin::Network { peer, .. } => Some(peer),
            Origin::InProcess => None,
        }
    }

    /// The address that the client connected to, if it has one.
    pub fn local(&self) -> Option<SocketAddr> {
        match self.origin {
            Origin::Network { local, .. } => Some(local),
            Origin::InProcess => None,
        }
    }

    /// What the client said about itself in its first `hello`.
    pub fn client_metadata(&self) -> Option<&DocBuf> {
        self.client_metadata.get()
    }

    /// Records what the client says about itself. It may do so once: otherwise the document is
    /// handed back.
    pub fn set_client_metadata(&self, metadata: DocBuf) -> Result<(), DocBuf> {
        self.client_metadata.set(metadata)
    }

    /// The compressors agreed upon in the last handshake that named any.
    pub fn compressors(&self) -> Vec<Compressor> {
        self.compressors.lock().clone()
    }

    /// Agrees on compressors with a client that offers these; returns what `hello` answers.
    pub fn negotiate_compressors<'a>(
        &self,
        offered: impl IntoIterator<Item = &'a str>,
    ) -> Vec<Compressor> {
        let agreed = Compressor::negotiate(offered);
        self.compressors.lock().clone_from(&agreed);
        agreed
    }

    /// The handler's own state for this connection, made on first use. A connection has one
    /// handler, so all calls name the same type.
    pub fn handler_state<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> &T {
        self.handler_state
            .get_or_init(|| Box::new(make()))
            .downcast_ref::<T>()
            .expect("one handler keeps one type of state on a connection")
    }

    /// The handler's state, if it was ever made.
    pub fn existing_handler_state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.handler_state
            .get()
            .and_then(|state| state.downcast_ref::<T>())
    }

    /// Whether the peer is gone. Costs one load; meant to be asked inside loops.
    pub fn is_closed(&self) -> bool {
        let is_given_up = |caller: &Arc<Operation>| caller.is_killed();
        self.closed.load(Ordering::Acquire) || self.caller.as_ref().is_some_and(is_given_up)
    }

    /// Asks the socket whether the peer is gone. Costs a system call; meant to be asked a few
    /// times a second by a command that computes without ever waiting. What a pipelining client
    /// has sent ahead hides its hangup.
    pub fn look_for_hangup(&self) -> bool {
        if self.is_closed() {
            return true;
        }
        let gone = match &*self.writing_half.lock() {
            None => false,
            Some(half) => {
                let mut byte = [MaybeUninit::uninit()];
                match SockRef::from(half.as_ref()).peek(&mut byte) {
                    Ok(received) => received == 0,
                    Err(error) => {
                        !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
                    }
                }
            }
        };
        if gone {
            self.mark_closed();
        }
        gone
    }

    pub(crate) fn keep_writing_half(&self, half: OwnedWriteHalf) {
        *self.writing_half.lock() = Some(half);
    }

    pub(crate) fn take_writing_half(&self) -> Option<OwnedWriteHalf> {
        self.writing_half.lock().take()
    }

    /// Completes when the peer is gone.
    pub async fn closed(&self) {
        let mut signal = std::pin::pin!(self.closed_signal.notified());
        // Registered before the flag is looked at, so that no signal falls between the two.
        signal.as_mut().enable();
        if !self.is_closed() {
            signal.await;
        }
    }

    /// Says that nobody waits for answers any more. The server calls it; who holds an in-process
    /// connection calls it when done.
    pub fn mark_closed(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.closed_signal.notify_waiters();
        }
    }
}

impl std::fmt::Debug for ConnectionInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionInfo")
            .field("id", &self.id)
            .field("origin", &self.origin)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
