//! Logical sessions: which clients are there, and what they wrote last.
//!
//! | file | part |
//! | --- | --- |
//! | `id.rs` | the name of a session |
//! | `catalog.rs` | check-out: one operation of a session at a time |
//! | `history.rs` | what the latest transaction number has executed |
//! | `document.rs` | the same as it is stored, written with the write itself |
//! | `header.rs` | what the log's entries say of their session |
//! | `retry.rs` | a retryable write command under way |

mod catalog;
mod document;
mod header;
mod history;
mod id;
mod retry;

pub(crate) use catalog::SessionCatalog;
pub(crate) use header::statement_of;
pub(crate) use history::{Effect, Executed, Image, ImageKind, join};
pub(crate) use id::SessionId;
pub(crate) use retry::{Retryable, StatementIds, incompatible, refuse_multi};
