//! The MongoDB wire protocol: frames, requests, replies, connections.
//!
//! ```text
//!   client ──► frame ──► request ──► Handler (shard or router) ──► reply ──► client
//!              (bytes, checked)      (anything that answers)
//! ```
//!
//! This crate knows what bytes mean to the protocol and nothing of what commands do: it cannot
//! see storage, query or cluster code. Every document is validated once, here, on its way in.

pub mod client;
pub mod protocol;
