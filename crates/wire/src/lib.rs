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
//! Inside one process a router calls a shard's [`Handler`] directly, with [`Request::from_parts`]
//! and [`ConnectionInfo::in_process`]: same requests, no socket.

pub mod client;
mod compression;
mod connection;
mod envelope;
mod frame;
mod legacy;
mod metrics;
pub mod protocol;
mod receiver;
mod reply;
mod request;
mod server;
mod session;

pub use compression::{CompressionFault, Compressor};
pub use connection::{ConnectionInfo, Origin};
pub use frame::{CloseReason, Rejection, parse_request};
pub use metrics::{CompressionSnapshot, MetricsSnapshot};
pub use reply::Reply;
pub use request::{Documents, Request, Sequence};
pub use server::{Handler, Server, ServerHandle, ServerOptions};
