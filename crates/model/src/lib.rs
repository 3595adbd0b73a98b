//! The nouns of TernDB: BSON values and their order, ids, namespaces, cluster
//! time, error codes, and the order-preserving key encoding.
//!
//! This is the bottom layer. It sees no other crate of ours, no runtime, no
//! disk and no socket; everything in it is a plain value or a pure function.

pub mod bson;
pub mod decimal;
pub mod error;
pub mod hash;
pub mod ids;
pub mod key;
pub mod namespace;
mod natural;
pub mod number;
pub mod order;
pub mod parameter;
pub mod range;
pub mod session_id;
pub mod shard_key;
pub mod text;
pub mod time;
pub mod version;

pub use error::{Code, Error};
pub use namespace::Namespace;
pub use session_id::SessionId;
