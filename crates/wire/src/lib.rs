//! The MongoDB wire protocol: frames, requests, replies, connections.
//!
//! ```text
//!   client ──► server ──► session ──► frame ──► Request ──► Handler (shard or router)
//!   socket     accepts    reads and   checks    validated         │
//!                         writes      bytes     documents         │
//!   client ◄───────────── session ◄── envelope ◄── Reply ◄────────┘
//! ```
//!
//! This crate knows what bytes mean to the protocol and nothing of what commands do: it cannot
//! see storage, query or cluster code. Every document is validated once, here, on its way in.
//! Roles call each other through an [`Endpoint`]: in one process that is the other's [`Handler`],
//! elsewhere a pool of connections. Same requests ([`Request::from_parts`]), with or without a socket.

mod awaited;
pub mod client;
mod compression;
mod connection;
mod endpoint;
mod envelope;
mod former_options;
mod frame;
mod legacy;
mod metrics;
mod op_counters;
pub mod operation;
pub mod protocol;
mod receiver;
mod reply;
mod request;
mod same_host;
mod server;
mod session;
mod spare;

pub use awaited::AwaitedHello;
pub use compression::{CompressionFault, Compressor};
pub use connection::{ConnectionInfo, Origin};
pub use endpoint::{
    Answer, BoxFuture, CallError, Dial, Endpoint, Host, HostOptions, InProcess, PoolStatistics,
    ReadMode, ReadPreference, ReplicaSet, ReplicaSetTimes,
};
pub use former_options::refuse_former_time_limit;
pub use frame::{CloseReason, Rejection, parse_request};
pub use metrics::{CompressionSnapshot, MetricsSnapshot};
pub use op_counters::OpCounters;
pub use reply::Reply;
pub use request::{Documents, Request, Sequence};
pub use server::{BoxedHandler, Handler, Running, Server, ServerHandle, ServerOptions};
