//! The nouns of TernDB: BSON values and their order, ids, namespaces, cluster
//! time, error codes, and the order-preserving key encoding.
//!
//! This is the bottom layer. It sees no other crate of ours, no runtime, no
//! disk and no socket; everything in it is a plain value or a pure function.

pub mod bson;
pub mod error;
pub mod ids;
pub mod namespace;
pub mod number;
pub mod order;
pub mod time;

pub use error::{Code, Error};
